// Copyright (c) 2026 PaddlePaddle Authors.
// SPDX-License-Identifier: Apache-2.0

// NVRTC's entry points that driver.py calls. What it "compiles" is a line that
// the emulated driver loads; the kernels are those of g++.

#include <cstring>
#include <string>
#include <utility>

namespace {

struct Program {
  std::string source, log, cubin, ptx;
};

int num_compiled = 0;

constexpr int kArchs[] = {80, 90};
constexpr const char* kOption = "--gpu-architecture=";

Program* of(void* program) { return static_cast<Program*>(program); }

int copy(const std::string& text, char* out) {
  std::memcpy(out, text.c_str(), text.size() + 1);
  return 0;
}

}  // namespace

extern "C" {

int emulated_compilations() { return std::exchange(num_compiled, 0); }

int nvrtcVersion(int* major, int* minor) {
  *major = 0;  // no real one has it: their images are never mixed up
  *minor = 1;
  return 0;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = 2;
  return 0;
}
int nvrtcGetSupportedArchs(int* archs) {
  std::memcpy(archs, kArchs, sizeof kArchs);
  return 0;
}
int nvrtcCreateProgram(void** program, const char* source, const char*,
                       int num_headers, const char* const*,
                       const char* const*) {
  if (num_headers != 0) return 3;
  *program = new Program{source, "", "", ""};
  return 0;
}
int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  const std::string target =
      count > 0 ? options[0] + std::strlen(kOption) : "";
  if (of(program)->source.find("__global__") == std::string::npos) {
    of(program)->log = "error: no kernel";
    return 6;
  }
  ++num_compiled;
  const bool is_cubin = target.rfind("sm_", 0) == 0;
  (is_cubin ? of(program)->cubin : of(program)->ptx) = "emulated " + target;
  return 0;
}

#define READER(NAME, FIELD)                                  \
  int nvrtcGet##NAME##Size(void* program, size_t* size) {    \
    *size = of(program)->FIELD.size() + 1;                   \
    return 0;                                                \
  }                                                          \
  int nvrtcGet##NAME(void* program, char* out) {             \
    return copy(of(program)->FIELD, out);                    \
  }
READER(ProgramLog, log)
READER(CUBIN, cubin)
READER(PTX, ptx)

int nvrtcDestroyProgram(void** program) {
  delete of(*program);
  *program = nullptr;
  return 0;
}

}  // extern "C"
