// Copyright (c) 2026 PaddlePaddle Authors.
// SPDX-License-Identifier: Apache-2.0

// The clip's two passes over a list of tensors in host memory.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "numbers.h"

namespace {

// Short sums in the values' own precision, or float32 for the 16-bit types,
// added up in double: exact to float32 for any length. The number of lanes and
// the order of the sums are fixed here, and products are not fused
// (-ffp-contract=off), so that every processor gets the same bits.
template <typename T>
double squared_norm(const void* tensor, int64_t size) {
  using Wide = decltype(widen(T()));
  constexpr int64_t kBlock = 2048;
  constexpr int kLanes = 32;
  const T* values = static_cast<const T*>(tensor);
  double total = 0.0;
  for (int64_t start = 0; start < size; start += kBlock) {
    const int64_t stop = std::min(size, start + kBlock);
    Wide sums[kLanes] = {};
    int64_t i = start;
    for (; i + kLanes <= stop; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const Wide value = widen(values[i + lane]);
        sums[lane] += value * value;
      }
    }
    for (int lane = 0; i < stop; ++i, ++lane) {
      const Wide value = widen(values[i]);
      sums[lane] += value * value;
    }
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
    }
    total += sums[0];
  }
  return total;
}

template <typename T>
void scale(void* tensor, int64_t size, float h, bool is_discarded) {
  T* values = static_cast<T*>(tensor);
  if (is_discarded) {
    std::fill(values, values + size, T());
    return;
  }
  const decltype(widen(T())) factor = h;
  for (int64_t i = 0; i < size; ++i) narrow(widen(values[i]) * factor, values + i);
}

}  // namespace

// One library for all x86 processors: each takes the widest vectors it has.
#if defined(__x86_64__) && !defined(ADAGC_NARROW)
#define WIDEST __attribute__((target_clones("avx2", "default"), flatten))
#else
#define WIDEST
#endif

// A tensor as host.py describes it.
struct Descriptor {
  void* values;
  int64_t size;
  int64_t dtype;  // -1: none that the loops know, or not contiguous
  int64_t device;
};

// As DLPack 1 has it (dlpack.h of github.com/dmlc/dlpack).
struct DlTensor {
  void* data;
  int32_t device_type, device_id;
  int32_t num_dims;
  uint8_t type_code, type_bits;
  uint16_t type_lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};

namespace {

int64_t dtype_of(const DlTensor& tensor) {
  switch (tensor.type_code << 8 | tensor.type_bits) {
    case 2 << 8 | 32: return 0;
    case 2 << 8 | 64: return 1;
    case 4 << 8 | 16: return 2;
    case 2 << 8 | 16: return 3;
    default: return -1;
  }
}

Descriptor descriptor_of(const DlTensor& tensor) {
  int64_t size = 1;
  bool is_contiguous = true;
  for (int i = tensor.num_dims - 1; i >= 0; --i) {
    if (tensor.strides != nullptr && tensor.shape[i] != 1) {
      is_contiguous &= tensor.strides[i] == size;
    }
    size *= tensor.shape[i];
  }
  return {static_cast<char*>(tensor.data) + tensor.byte_offset, size,
          is_contiguous || size == 0 ? dtype_of(tensor) : -1,
          tensor.device_type << 8 | tensor.device_id};
}

}  // namespace

extern "C" {

// What DLPack's exchange function says of each Python object but None. Gives
// the number of objects described: fewer than count if one made it fail.
int64_t adagc_describe(void* const* objects, int64_t count, const void* none,
                       int (*exchange)(void*, DlTensor*), Descriptor* out) {
  for (int64_t i = 0; i < count; ++i) {
    if (objects[i] == none) continue;
    DlTensor tensor;
    if (exchange(objects[i], &tensor) != 0) return i;
    out[i] = descriptor_of(tensor);
  }
  return count;
}

// out[i] = squared L2 norm of tensor i.
WIDEST void adagc_squared_norms(const Descriptor* tensors, int64_t num_tensors,
                         float* out) {
  for (int64_t i = 0; i < num_tensors; ++i) {
    const Descriptor& t = tensors[i];
    double sum = 0.0;
    if (t.size != 0) {
      switch (t.dtype) {  // the codes of host.py
        case 0: sum = squared_norm<float>(t.values, t.size); break;
        case 1: sum = squared_norm<double>(t.values, t.size); break;
        case 2: sum = squared_norm<Bfloat16>(t.values, t.size); break;
        case 3: sum = squared_norm<Float16>(t.values, t.size); break;
      }
    }
    out[i] = static_cast<float>(sum);
  }
}

// Tensor i is multiplied by h[i], and rounded once; set to 0 where discard[i].
// A tensor with h[i] == 1 is not touched. discard may be null. changed[i] says
// whether tensor i was written to.
WIDEST void adagc_scale(const Descriptor* tensors, int64_t num_tensors,
                        const float* h, const bool* discard, bool* changed) {
  for (int64_t i = 0; i < num_tensors; ++i) {
    const Descriptor& t = tensors[i];
    const bool is_discarded = discard != nullptr && discard[i];
    changed[i] = t.size != 0 && (h[i] != 1.0f || is_discarded);
    if (!changed[i]) continue;
    switch (t.dtype) {
      case 0: scale<float>(t.values, t.size, h[i], is_discarded); break;
      case 1: scale<double>(t.values, t.size, h[i], is_discarded); break;
      case 2: scale<Bfloat16>(t.values, t.size, h[i], is_discarded); break;
      case 3: scale<Float16>(t.values, t.size, h[i], is_discarded); break;
    }
  }
}

}  // extern "C"
