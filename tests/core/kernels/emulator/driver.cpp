// Copyright (c) 2026 PaddlePaddle Authors.
// SPDX-License-Identifier: Apache-2.0

// The CUDA driver's entry points that driver.py calls, over emulated kernels.
// There is none that waits: a call of one would be an error.

#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "emulator.h"

struct Fp16;
inline float to_float(Fp16 x);
inline Fp16 to_fp16(float x);
template <typename T>
T* in_global_memory(T* address) {
  return address;
}
#include "cuda/multi_tensor.cu"
inline float to_float(Fp16 x) { return widen(Float16{x.bits}); }
inline Fp16 to_fp16(float x) {
  Float16 y;
  narrow(x, &y);
  return Fp16{y.bits};
}

namespace {

using Launch = std::function<void(void**)>;

template <typename... A, size_t... I>
Launch unpacked(void (*kernel)(A...), std::index_sequence<I...>) {
  return [kernel](void** arguments) {
    kernel(*static_cast<std::remove_const_t<A>*>(arguments[I])...);
  };
}

template <typename... A>
Launch launch_of(void (*kernel)(A...)) {
  return unpacked(kernel, std::index_sequence_for<A...>());
}

std::map<std::string, Launch>& kernels() {
#define KERNEL(name) {#name, launch_of(name)}
  static std::map<std::string, Launch> all = {
      KERNEL(partial_norm_float32),  KERNEL(partial_norm_float64),
      KERNEL(partial_norm_bfloat16), KERNEL(partial_norm_float16),
      KERNEL(scale_float32),         KERNEL(scale_float64),
      KERNEL(scale_bfloat16),        KERNEL(scale_float16),
      KERNEL(finish_norms),          KERNEL(store_addresses),
      KERNEL(adaptive_step)};
  return all;
}

std::map<std::string, int>& counts() {
  static std::map<std::string, int> all;
  return all;
}

std::map<std::string, int>& failures() {
  static std::map<std::string, int> all;
  return all;
}

// A context is the address of its device; a function knows its module, which is
// the context that it was loaded into.
char devices[8];
void* current = nullptr;

struct Function {
  void* context;
  const std::pair<const std::string, Launch>* kernel;
};

// Counts the call; gives the code that it is to return.
int called(const char* name) {
  ++counts()[name];
  const auto failure = failures().find(name);
  return failure == failures().end() ? 0 : failure->second;
}

}  // namespace

extern "C" {

int emulated_calls(const char* name) { return counts()[name]; }
void emulated_failure(const char* name, int code) { failures()[name] = code; }
void emulated_reset() {
  counts().clear();
  failures().clear();
  current = nullptr;
}

int cuInit(unsigned) { return called("cuInit"); }
int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR_EMULATED";
  return 0;
}
int cuDriverGetVersion(int* version) {
  *version = 12090;
  return called("cuDriverGetVersion");
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return called("cuDeviceGet");
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : 0;
  return called("cuDeviceGetAttribute");
}
int cuCtxGetCurrent(void** context) {
  *context = current;
  return called("cuCtxGetCurrent");
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &devices[device];
  return called("cuDevicePrimaryCtxRetain");
}
int cuCtxSetCurrent(void* context) {
  const int code = called("cuCtxSetCurrent");
  if (code == 0) current = context;
  return code;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = *total = size_t{1} << 30;
  return called("cuMemGetInfo");
}
int cuModuleLoadData(void** module, const void* image) {
  *module = current;
  const int code = called("cuModuleLoadData");
  const bool is_sound =
      std::strncmp(static_cast<const char*>(image), "emulated ", 9) == 0;
  return code != 0 || is_sound ? code : 200;  // CUDA_ERROR_INVALID_IMAGE
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  const auto found = kernels().find(name);
  if (found == kernels().end()) return 500;
  *function = new Function{module, &*found};  // as long as the process
  return called("cuModuleGetFunction");
}
int cuMemcpyHtoDAsync_v2(unsigned long long target, const void* source,
                         size_t size, void*) {
  std::memcpy(reinterpret_cast<void*>(target), source, size);
  return called("cuMemcpyHtoDAsync");
}
int cuLaunchKernel(void* function, unsigned grid, unsigned, unsigned,
                   unsigned block, unsigned, unsigned, unsigned, void*,
                   void** arguments, void**) {
  const auto* its = static_cast<Function*>(function);
  if (its->context != current) return 201;  // CUDA_ERROR_INVALID_CONTEXT
  const auto& [name, launch] = *its->kernel;
  const int code = called("cuLaunchKernel");
  ++counts()[name];
  emulator::body = [&launch = launch, arguments] { launch(arguments); };
  gridDim.x = grid;
  for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
    emulator::run_block(block);
  }
  return code;
}

}  // extern "C"
