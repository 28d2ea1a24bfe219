// Copyright (c) 2026 PaddlePaddle Authors.
// SPDX-License-Identifier: Apache-2.0

// The clip's passes over a list of tensors, one launch for all of a type.
//
// NVRTC compiles this for GPUs; no header is needed. The tests compile the same
// text with g++ and run it on a CPU. Sums are fixed by ADAGC_THREADS and
// ADAGC_CHUNK, so that they depend neither on the GPU nor on addresses.

using u16 = unsigned short;
using u64 = unsigned long long;
using i64 = long long;

constexpr int kThreads = ADAGC_THREADS;
constexpr int kChunk = ADAGC_CHUNK;          // values that a block takes
constexpr int kAddresses = ADAGC_ADDRESSES;  // in one launch's arguments
constexpr int kChunksOfBlock = ADAGC_CHUNKS_OF_BLOCK;  // when scaling, at most
constexpr int kWarp = 32;
// Blocks on a multiprocessor: as many as its 1,024 to 2,048 threads allow. To
// scale needs more registers than 4 blocks have.
#if __CUDA_ARCH__ == 750
constexpr int kBlocks = 2;
#elif (__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900) || __CUDA_ARCH__ >= 1200
constexpr int kBlocks = 3;
#else
constexpr int kBlocks = 4;
#endif
constexpr int kScaleBlocks = kBlocks < 3 ? kBlocks : 3;
#define KERNEL(BLOCKS) \
  extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS)

struct Bf16 { u16 bits; };
struct Fp16 { u16 bits; };
struct Chunk { int segment; int index; int entry; int unused; };
// Runs of `run` values, each `stride` values after the one before.
struct Segment { i64 size; i64 run; i64 stride; };
struct Span { int start; int stop; };  // of an entry's chunks
struct Addresses { u64 values[kAddresses]; };

// ---- numbers -------------------------------------------------------------

__device__ inline float to_float(Bf16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

__device__ inline Bf16 to_bf16(float x) {  // nearest, ties to even
  const unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return Bf16{0x7fff};  // NaN
  return Bf16{static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

#ifdef __CUDA_ARCH__
// An address from a table could be of any memory as far as a compiler knows.
template <typename T> __device__ T* in_global_memory(T* address) {
  __builtin_assume(__isGlobal(address));
  return address;
}
__device__ inline float to_float(Fp16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ inline Fp16 to_fp16(float x) {
  Fp16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
#endif  // else: the tests' emulator.h

template <typename T> struct Number;
template <> struct Number<float> {
  using Wide = float;
  static __device__ float wide(float x) { return x; }
  static __device__ float narrow(float x) { return x; }
};
template <> struct Number<double> {
  using Wide = double;
  static __device__ double wide(double x) { return x; }
  static __device__ double narrow(double x) { return x; }
};
template <> struct Number<Bf16> {
  using Wide = float;
  static __device__ float wide(Bf16 x) { return to_float(x); }
  static __device__ Bf16 narrow(float x) { return to_bf16(x); }
};
template <> struct Number<Fp16> {
  using Wide = float;
  static __device__ float wide(Fp16 x) { return to_float(x); }
  static __device__ Fp16 narrow(float x) { return to_fp16(x); }
};

__device__ inline float multiply_add(float a, float b, float c) {
  return fmaf(a, b, c);
}
__device__ inline double multiply_add(double a, double b, double c) {
  return fma(a, b, c);
}

// ---- a block's part of a segment -------------------------------------------

template <typename T> union Pack {
  static constexpr int kSize = 16 / sizeof(T);
  uint4 raw;
  T values[kSize];
};

template <typename T> struct Part {
  T* values;
  int size;          // at most kChunk
  bool is_aligned;   // values can be taken 16 bytes at a time
  unsigned run;      // 0: all values lie together
  unsigned column;   // of the first value in its run
  i64 stride;

  __device__ Part(const u64* addresses, const Segment* segments, Chunk chunk) {
    const Segment segment = segments[chunk.segment];
    const i64 start = static_cast<i64>(chunk.index) * kChunk;
    const i64 left = segment.size - start;
    values = in_global_memory(reinterpret_cast<T*>(addresses[chunk.segment]));
    size = static_cast<int>(left < kChunk ? left : kChunk);
    stride = segment.stride;
    run = segment.run == segment.size ? 0 : static_cast<unsigned>(segment.run);
    column = run == 0 ? 0 : static_cast<unsigned>(start % run);
    values += run == 0 ? start : start / run * stride;
    is_aligned = (reinterpret_cast<u64>(values) & 15) == 0 &&
                 (run == 0 || (run | stride) % Pack<T>::kSize == 0);
  }
  __device__ T* at(int i) const {
    if (run == 0) return values + i;
    const unsigned place = column + i;
    return values + place / run * stride + place % run;
  }
  __device__ bool is_whole() const { return is_aligned && size == kChunk; }
  __device__ Pack<T> load_16_bytes(int i) const {
    Pack<T> pack;
    pack.raw = *reinterpret_cast<const uint4*>(at(i));
    return pack;
  }
  __device__ bool has_16_bytes(int i) const {
    return is_aligned && i + Pack<T>::kSize <= size;
  }
  __device__ Pack<T> load(int i) const {
    if (has_16_bytes(i)) return load_16_bytes(i);
    Pack<T> pack;
    for (int j = 0; j < Pack<T>::kSize; ++j)
      pack.values[j] = i + j < size ? *at(i + j) : T{};
    return pack;
  }
  __device__ void store_16_bytes(int i, const Pack<T>& pack) const {
    *reinterpret_cast<uint4*>(at(i)) = pack.raw;
  }
  __device__ void store(int i, const Pack<T>& pack) const {
    if (has_16_bytes(i)) return store_16_bytes(i, pack);
    for (int j = 0; j < Pack<T>::kSize; ++j)
      if (i + j < size) *at(i + j) = pack.values[j];
  }
};

template <typename Wide> __device__ Wide warp_sum(Wide x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

template <typename T>
__device__ typename Number<T>::Wide add_squares(
    const Pack<T>& pack, typename Number<T>::Wide sum) {
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j) {
    const typename Number<T>::Wide x = Number<T>::wide(pack.values[j]);
    sum = multiply_add(x, x, sum);
  }
  return sum;
}

template <typename T>
__device__ void partial_norm(const u64* addresses, const Segment* segments,
                             const Chunk* chunks, float* partial) {
  using Wide = typename Number<T>::Wide;
  constexpr int kStride = kThreads * Pack<T>::kSize;
  const Chunk chunk = chunks[blockIdx.x];
  if (addresses[chunk.segment] == 0) {  // no gradient in this step
    if (threadIdx.x == 0) partial[blockIdx.x] = 0.0f;
    return;
  }
  const Part<T> part(addresses, segments, chunk);
  const int first = threadIdx.x * Pack<T>::kSize;
  Wide sum = 0;
  // Both loops add in the same order.
  if (part.is_whole()) {
#pragma unroll 4
    for (int i = 0; i < kChunk; i += kStride)
      sum = add_squares(part.load_16_bytes(first + i), sum);
  } else {
#pragma unroll 1
    for (int i = first; i < part.size; i += kStride)
      sum = add_squares(part.load(i), sum);
  }
  __shared__ Wide sums[kThreads / kWarp];
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x < kWarp) {
    sum = threadIdx.x < kThreads / kWarp ? sums[threadIdx.x] : Wide(0);
    sum = warp_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = static_cast<float>(sum);
  }
}

template <typename T>
__device__ Pack<T> scaled(Pack<T> pack, float factor) {
  using Wide = typename Number<T>::Wide;
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j)
    pack.values[j] = Number<T>::narrow(
        Number<T>::wide(pack.values[j]) * static_cast<Wide>(factor));
  return pack;
}

template <typename T>
__device__ Pack<T> scaled_or_zero(const Pack<T>& pack, bool is_discarded,
                                  float factor) {
  Pack<T> zeros;
  zeros.raw = uint4{0, 0, 0, 0};
  return is_discarded ? zeros : scaled(pack, factor);
}

// Scaling has no order to keep, unlike a sum: where values lie together, it
// goes by 16 bytes between the first and the last address that allows it.
template <typename T>
__device__ void scale_unaligned(const Part<T>& part, bool is_discarded,
                                float factor) {
  constexpr int kStride = kThreads * Pack<T>::kSize;
  const int over = static_cast<int>(reinterpret_cast<u64>(part.values) & 15);
  const int before = (16 - over) / static_cast<int>(sizeof(T));
  const int start = before < part.size ? before : part.size;
  const int stop = part.size - (part.size - start) % Pack<T>::kSize;
  const int single = static_cast<int>(threadIdx.x);
  const int i = single < start ? single : stop + single - start;
  if (i < part.size && (i < start || i >= stop)) {
    Pack<T> pack;
    pack.values[0] = part.values[i];
    part.values[i] = scaled_or_zero(pack, is_discarded, factor).values[0];
  }
#pragma unroll 2
  for (int j = start + single * Pack<T>::kSize; j < stop; j += kStride) {
    T* const values = in_global_memory(part.values + j);
    Pack<T> pack;
    pack.raw = *reinterpret_cast<const uint4*>(values);
    *reinterpret_cast<uint4*>(values) =
        scaled_or_zero(pack, is_discarded, factor).raw;
  }
}

template <typename T>
__device__ void scale_chunk(const Part<T>& part, bool is_discarded,
                            float factor) {
  constexpr int kStride = kThreads * Pack<T>::kSize;
  const int first = threadIdx.x * Pack<T>::kSize;
  if (part.is_whole()) {
#pragma unroll 4
    for (int i = first; i < kChunk; i += kStride)
      part.store_16_bytes(
          i, scaled_or_zero(part.load_16_bytes(i), is_discarded, factor));
  } else if (part.run == 0 && !part.is_aligned) {
    scale_unaligned(part, is_discarded, factor);
  } else {
#pragma unroll 1
    for (int i = first; i < part.size; i += kStride)
      part.store(i, scaled_or_zero(part.load(i), is_discarded, factor));
  }
}

// Block b takes chunks b, b + gridDim.x, ..., at most kChunksOfBlock, and looks
// at all of them at once: most gradients are not clipped, and are not read.
template <typename T>
__device__ void scale(const u64* addresses, const Segment* segments,
                      const Chunk* chunks, const float* h, const bool* discard,
                      int count) {
  __shared__ bool is_active[kChunksOfBlock];
  const int self = blockIdx.x + threadIdx.x * gridDim.x;
  if (threadIdx.x < kChunksOfBlock && self < count) {
    const Chunk chunk = chunks[self];
    const bool is_discarded = discard != nullptr && discard[chunk.entry];
    is_active[threadIdx.x] = addresses[chunk.segment] != 0 &&  // a gradient
                             (is_discarded || !(h[chunk.entry] == 1.0f));
  }
  __syncthreads();
  const bool* is_next_active = is_active;
#pragma unroll 1
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    if (!*is_next_active++) continue;
    const Chunk chunk = chunks[i];
    const bool is_discarded = discard != nullptr && discard[chunk.entry];
    const Part<T> part(addresses, segments, chunk);
    scale_chunk(part, is_discarded, h[chunk.entry]);
  }
}

// ---- entry points ----------------------------------------------------------

#define FOR_TYPE(NAME, T)                                                 \
  KERNEL(kBlocks) partial_norm_##NAME(                                    \
      const u64* addresses, const Segment* segments, const Chunk* chunks, \
      float* partial) {                                                   \
    partial_norm<T>(addresses, segments, chunks, partial);                \
  }                                                                       \
  KERNEL(kScaleBlocks) scale_##NAME(                                      \
      const u64* addresses, const Segment* segments, const Chunk* chunks, \
      const float* h, const bool* discard, int count) {                   \
    scale<T>(addresses, segments, chunks, h, discard, count);             \
  }
FOR_TYPE(float32, float)
FOR_TYPE(float64, double)
FOR_TYPE(bfloat16, Bf16)
FOR_TYPE(float16, Fp16)

// One warp per entry: sum of its chunks, always in the same order.
KERNEL(kBlocks) finish_norms(
    const Span* spans, const float* partial, int num_entries, float* out) {
  const int entry = (blockIdx.x * kThreads + threadIdx.x) / kWarp;
  if (entry >= num_entries) return;  // whole warps
  const Span span = spans[entry];
  double sum = 0;
#pragma unroll 8
  for (int i = span.start + threadIdx.x % kWarp; i < span.stop; i += kWarp)
    sum += static_cast<double>(partial[i]);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) out[entry] = static_cast<float>(sum);
}

// Addresses travel as arguments: no host memory has to outlive the call, no
// copy waits for the device, and a CUDA graph keeps them.
KERNEL(kBlocks) store_addresses(
    u64* table, int start, int count, const Addresses addresses) {
  if (static_cast<int>(threadIdx.x) < count)
    table[start + threadIdx.x] = addresses.values[threadIdx.x];
}

// ---- Algorithm 1 after the warm-up ----------------------------------------

struct Rule {  // as in rule.py, of which this is the fast twin
  float lambda_rel;
  float one_minus_beta;
  float h_of_nonfinite;
};

__device__ inline bool is_finite(float x) {
  return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

// discard, which says whose gradient becomes 0, may be null.
KERNEL(kBlocks) adaptive_step(
    const float* squared_norm, int num_tensors, const Rule rule,
    const float* gamma, float* norm_out, float* h_out, float* gamma_out,
    bool* discard, const int* count, int* count_out) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= num_tensors) return;
  const float norm =
      static_cast<float>(sqrt(static_cast<double>(squared_norm[i])));
  const float old = gamma[i];
  const bool is_sound = is_finite(norm);
  const float threshold = rule.lambda_rel * old;
  const float h = is_sound ? fminf(threshold / norm, 1.0f) : 0.0f;
  const float clipped = h * norm;
  const bool is_observed = is_finite(clipped) && clipped > 0.0f;
  const float average = old + rule.one_minus_beta * (clipped - old);
  const float observed = is_finite(old) ? average : clipped;
  norm_out[i] = norm;
  h_out[i] = is_sound ? h : rule.h_of_nonfinite;
  gamma_out[i] = is_observed ? observed : old;
  if (discard != nullptr) discard[i] = !is_sound;
  count_out[i] = count[i] + !is_sound;
}
