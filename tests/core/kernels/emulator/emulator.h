// Copyright (c) 2026 PaddlePaddle Authors.
// SPDX-License-Identifier: Apache-2.0

// Runs blocks of CUDA C++ on a CPU: a fiber per thread, which stops at barriers
// and shuffles as the thread would.

#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "numbers.h"

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __shared__ static

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct Index { unsigned x; };
static Index blockIdx, gridDim, threadIdx;

inline float __uint_as_float(unsigned bits) { return from_bits(bits); }
inline unsigned __float_as_uint(float value) { return to_bits(value); }

namespace emulator {

constexpr size_t kStack = 64 << 10;

struct Fiber {
  ucontext_t start;
  jmp_buf at;
  bool is_started = false, is_done = false;
  std::unique_ptr<char[]> stack{new char[kStack]};
};

static std::vector<Fiber> fibers;
static jmp_buf scheduler;
static std::function<void()> body;
static unsigned current;
static std::vector<double> exchanged;

static void stop_here() {
  if (!_setjmp(fibers[current].at)) _longjmp(scheduler, 1);
  threadIdx.x = current;
}

static void enter() {
  for (;;) {  // a turn per block
    body();
    fibers[current].is_done = true;
    stop_here();
  }
}

static void resume(Fiber& fiber) {
  if (_setjmp(scheduler)) return;
  if (fiber.is_started) _longjmp(fiber.at, 1);
  fiber.is_started = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = kStack;
  makecontext(&fiber.start, enter, 0);
  setcontext(&fiber.start);
}

inline void run_block(unsigned threads) {
  if (fibers.size() < threads) fibers = std::vector<Fiber>(threads);
  exchanged.resize(threads);
  for (Fiber& fiber : fibers) fiber.is_done = false;
  for (volatile bool is_running = true; is_running;) {
    is_running = false;
    for (current = 0; current < threads; ++current) {
      if (fibers[current].is_done) continue;
      is_running = true;
      threadIdx.x = current;
      resume(fibers[current]);
    }
  }
}

}  // namespace emulator

inline void __syncthreads() { emulator::stop_here(); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  const unsigned self = emulator::current;
  emulator::exchanged[self] = value;
  emulator::stop_here();
  const T got = static_cast<T>(emulator::exchanged[self ^ mask]);
  emulator::stop_here();
  return got;
}
