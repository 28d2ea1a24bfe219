// Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
//
// Licensed under the Apache License, Version 2.0 (the "License");
// you may not use this file except in compliance with the License.
// You may obtain a copy of the License at
//
//     http://www.apache.org/licenses/LICENSE-2.0
//
// Unless required by applicable law or agreed to in writing, software
// distributed under the License is distributed on an "AS IS" BASIS,
// WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
// See the License for the specific language governing permissions and
// limitations under the License.

// One pass over a list of float32 tensors in host memory.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace {

// Short float sums, added up in double: exact to float32 for any length. The
// number of lanes and the order of the sums are fixed here, and products are not
// fused (-ffp-contract=off), so that every processor gets the same bits.
double squared_norm(const float* values, int64_t size) {
  constexpr int64_t kBlock = 2048;
  constexpr int kLanes = 32;
  double total = 0.0;
  for (int64_t start = 0; start < size; start += kBlock) {
    const int64_t stop = std::min(size, start + kBlock);
    float sums[kLanes] = {};
    int64_t i = start;
    for (; i + kLanes <= stop; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        sums[lane] += values[i + lane] * values[i + lane];
      }
    }
    for (int lane = 0; i < stop; ++i, ++lane) sums[lane] += values[i] * values[i];
    for (int width = kLanes / 2; width > 0; width /= 2) {
      for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
    }
    total += sums[0];
  }
  return total;
}

}  // namespace

extern "C" {

// out[i] = squared L2 norm of tensor i.
void adagc_squared_norms(const float* const* tensors, const int64_t* sizes,
                         int64_t num_tensors, float* out) {
  for (int64_t i = 0; i < num_tensors; ++i) {
    out[i] = static_cast<float>(squared_norm(tensors[i], sizes[i]));
  }
}

// Tensor i is multiplied by h[i]; set to 0 where discard[i]. A tensor with
// h[i] == 1 is not touched. discard may be null.
void adagc_scale(float* const* tensors, const int64_t* sizes,
                 int64_t num_tensors, const float* h, const bool* discard) {
  for (int64_t i = 0; i < num_tensors; ++i) {
    float* values = tensors[i];
    if (discard != nullptr && discard[i]) {
      std::fill(values, values + sizes[i], 0.0f);
      continue;
    }
    const float factor = h[i];
    if (factor == 1.0f) continue;
    for (int64_t j = 0; j < sizes[i]; ++j) values[j] *= factor;
  }
}

// One step of AdamW, with the roundings of the kernel that Paddle generates for
// processors with AVX-512: without them Paddle's kernel rounds otherwise.
// powers = {beta1^t, beta2^t}; without decay weight_decay is 0.
void adagc_adamw(float* weight, const float* gradient, float* moment1,
                 float* moment2, int64_t size, const float* powers, float lr,
                 float beta1, float beta2, float epsilon, float weight_decay) {
  const float correction = std::sqrt(1.0f - powers[1]);
  const float rate = lr * (correction / (1.0f - powers[0]));
  const float floor = epsilon * correction;
  const float decay = lr * weight_decay;
  for (int64_t i = 0; i < size; ++i) {
    const float g = gradient[i];
    const float mean = std::fma(beta1, moment1[i], (1.0f - beta1) * g);
    const float square = std::fma(beta2, moment2[i], (1.0f - beta2) * (g * g));
    const float kept = std::fma(-decay, weight[i], weight[i]);
    const float direction = mean / (std::sqrt(square) + floor);
    weight[i] = std::fma(-rate, direction, kept);
    moment1[i] = mean;
    moment2[i] = square;
  }
}

}  // extern "C"
