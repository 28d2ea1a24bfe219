// Copyright (c) 2026 PaddlePaddle Authors.
// SPDX-License-Identifier: Apache-2.0

// The clip's two passes over a list of tensors in host memory.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "numbers.h"

namespace {

// Short sums in the values' own precision, or float32 for the 16-bit types,
// added up in double: right to 1e-6 for values above 1e-19. The number of lanes
// and the order of the sums are fixed here, and products are not fused
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

// How a segment lies in its tensor, as host.py says: runs of `run` values, each
// `stride` values after the one before; -1: all values lie together.
// Segments of one entry are neighbours.
struct Runs {
  int64_t entry;
  int64_t tensor;
  int64_t run;
  int64_t stride;
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

template <typename T>
double sum_of_runs(const Descriptor& t, const Runs* runs, int64_t i) {
  if (runs == nullptr || runs[i].run < 0 || runs[i].run == t.size) {
    return squared_norm<T>(t.values, t.size);
  }
  double sum = 0.0;
  const T* values = static_cast<const T*>(t.values);
  for (int64_t left = t.size; left > 0; left -= runs[i].run) {
    sum += squared_norm<T>(values, runs[i].run);
    values += runs[i].stride;
  }
  return sum;
}

template <typename T>
void scale_runs(const Descriptor& t, const Runs* runs, int64_t i, float h,
                bool is_discarded) {
  if (runs == nullptr || runs[i].run < 0 || runs[i].run == t.size) {
    return scale<T>(t.values, t.size, h, is_discarded);
  }
  T* values = static_cast<T*>(t.values);
  for (int64_t left = t.size; left > 0; left -= runs[i].run) {
    scale<T>(values, runs[i].run, h, is_discarded);
    values += runs[i].stride;
  }
}

// Functions and objects of Python, by address: so the library needs no Python
// to be compiled. As in pairs.py.
struct Python {
  void* (*list_item)(void* list, int64_t i);  // borrowed
  void* (*tuple_item)(void* tuple, int64_t i);  // borrowed
  int (*set_list_item)(void* list, int64_t i, void* object);  // takes it over
  void* (*get_attribute)(void* object, void* name);
  void* (*call)(void* function, ...);  // arguments end with null
  void (*take)(void* object);
  void (*give_back)(void* object);
  void (*clear_error)();
  void *none, *false_, *true_;
  void *need_clip, *is_dense, *bump;  // a name, two methods of a tensor
  int (*exchange)(void* tensor, DlTensor* out);
};

struct Pair { void *parameter, *gradient; };
constexpr int64_t kBlock = 32;

// Read some pairs, and fetch them into the processor's cache all at once: what
// a tensor holds first is a pointer to its numbers, or anything else: nothing
// depends on it. False if one is no pair.
bool fetch(const Python& python, void* pairs, int64_t start, int64_t count,
           Pair* out) {
  void* tuples[kBlock];
  for (int64_t i = 0; i < count; ++i) {
    tuples[i] = python.list_item(pairs, start + i);
    __builtin_prefetch(tuples[i]);
  }
  for (int64_t i = 0; i < count; ++i) {
    out[i].parameter = python.tuple_item(tuples[i], 0);
    if (out[i].parameter == nullptr) return false;
    out[i].gradient = python.tuple_item(tuples[i], 1);
    if (out[i].gradient == nullptr) return false;
    __builtin_prefetch(out[i].parameter);
    __builtin_prefetch(out[i].gradient);
  }
  for (int64_t i = 0; i < count; ++i) {
    if (out[i].gradient == python.none) continue;
    const char* inner = static_cast<const char* const*>(out[i].gradient)[2];
    for (int line = 0; line < 6; ++line) __builtin_prefetch(inner + 64 * line);
  }
  return true;
}

// Whether an object is `wanted`; takes it over.
bool is_object(const Python& python, void* object, void* wanted) {
  if (object != nullptr) python.give_back(object);
  return object == wanted;
}

}  // namespace

extern "C" {

// One pass over pairs of known parameter and gradient, in any order; without
// pairs of None or of need_clip=False, and without parameters whose `where` is
// -2. Of pair i, index[i] says which parameter it has (-1: left out). Its
// gradient and descriptor go to `where` of that, below length; elsewhere is no
// tensor. A gradient on a device of type `mark` is marked as written to. Gives
// the number of pairs read: fewer than count at one that is no such pair.
int64_t adagc_read_pairs(const Python* python, void* pairs, int64_t count,
                         void* const* known, const int64_t* where,
                         int64_t num_known, int64_t mark, int64_t* index,
                         void* gradients, int64_t length, Descriptor* out) {
  std::fill(out, out + length, Descriptor{nullptr, 0, -1, 0});
  Pair block[kBlock];
  int64_t at = 0, num_skipped = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto stop = [&] { return python->clear_error(), i; };
    if (i % kBlock == 0 &&
        !fetch(*python, pairs, i, std::min(kBlock, count - i), block))
      return stop();
    const auto [parameter, gradient] = block[i % kBlock];
    for (int64_t skipped = 0; ; ++skipped, ++num_skipped, ++at) {
      if (skipped > num_known || num_skipped > 4 * num_known) return i;
      if (at >= num_known) at = 0;
      if (known[at] == parameter) break;
    }
    index[i] = -1;
    if (gradient == python->none || where[at] == -2) continue;
    void* need_clip = python->get_attribute(parameter, python->need_clip);
    if (need_clip == nullptr) return stop();
    if (is_object(*python, need_clip, python->false_)) continue;
    const int64_t target = where[at];
    if (target < 0 || python->list_item(gradients, target) != python->none)
      return i;
    // One without values is not dense, and exchange() would follow null.
    void* is_dense = python->call(python->is_dense, gradient, nullptr);
    DlTensor tensor;
    if (!is_object(*python, is_dense, python->true_) ||
        python->exchange(gradient, &tensor) != 0)
      return stop();
    out[target] = descriptor_of(tensor);
    if (out[target].device >> 8 == mark) {
      void* done = python->call(python->bump, gradient, nullptr);
      if (!is_object(*python, done, python->none)) return stop();
    }
    python->take(gradient);
    python->set_list_item(gradients, target, gradient);
    index[i] = at++;
  }
  return count;
}

// out[entry] = squared L2 norm of the entry's segments. runs may be null: then
// segment i is the whole tensor i, in entry i.
WIDEST void adagc_squared_norms(const Descriptor* segments, int64_t count,
                                const Runs* runs, float* out,
                                int64_t num_entries) {
  std::fill(out, out + num_entries, 0.0f);
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    const Descriptor& t = segments[i];
    const int64_t entry = runs == nullptr ? i : runs[i].entry;
    if (t.size != 0) {
      switch (t.dtype) {  // the codes of host.py
        case 0: sum += sum_of_runs<float>(t, runs, i); break;
        case 1: sum += sum_of_runs<double>(t, runs, i); break;
        case 2: sum += sum_of_runs<Bfloat16>(t, runs, i); break;
        case 3: sum += sum_of_runs<Float16>(t, runs, i); break;
      }
      out[entry] = static_cast<float>(sum);
    }
    if (runs == nullptr || i + 1 == count || runs[i + 1].entry != entry) sum = 0.0;
  }
}

// A segment is multiplied by h[entry], and rounded once; set to 0 where
// discard[entry]. One with h[entry] == 1 is not touched. discard may be null, and
// runs as above. changed[tensor], false before, says what was written to.
WIDEST void adagc_scale(const Descriptor* segments, int64_t count,
                        const Runs* runs, const float* h, const bool* discard,
                        bool* changed) {
  for (int64_t i = 0; i < count; ++i) {
    const Descriptor& t = segments[i];
    const int64_t entry = runs == nullptr ? i : runs[i].entry;
    const bool is_discarded = discard != nullptr && discard[entry];
    if (t.size == 0 || (h[entry] == 1.0f && !is_discarded)) continue;
    changed[runs == nullptr ? i : runs[i].tensor] = true;
    switch (t.dtype) {
      case 0: scale_runs<float>(t, runs, i, h[entry], is_discarded); break;
      case 1: scale_runs<double>(t, runs, i, h[entry], is_discarded); break;
      case 2: scale_runs<Bfloat16>(t, runs, i, h[entry], is_discarded); break;
      case 3: scale_runs<Float16>(t, runs, i, h[entry], is_discarded); break;
    }
  }
}

}  // extern "C"
