// Copyright (c) 2026 PaddlePaddle Authors.
// SPDX-License-Identifier: Apache-2.0

// Conversions between float32 and the two 16-bit types, without branches, so
// that compilers vectorise the loops around them.

#pragma once

#include <cstdint>
#include <cstring>

struct Bfloat16 { uint16_t bits; };
struct Float16 { uint16_t bits; };

inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float widen(float value) { return value; }
inline double widen(double value) { return value; }

inline float widen(Bfloat16 value) {
  return from_bits(static_cast<uint32_t>(value.bits) << 16);
}

inline float widen(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t magnitude = value.bits & 0x7fff;
  const bool is_finite = magnitude < 0x7c00;
  const uint32_t exponent_bias = is_finite ? 112u << 23 : 224u << 23;
  const uint32_t normal = (magnitude << 13) + exponent_bias;
  const uint32_t subnormal = to_bits(static_cast<float>(magnitude) * 0x1p-24f);
  return from_bits(sign | (magnitude < 0x0400 ? subnormal : normal));
}

// Round to nearest, ties to even; a NaN stays one.
inline void narrow(float value, float* out) { *out = value; }
inline void narrow(double value, double* out) { *out = value; }

inline void narrow(float value, Bfloat16* out) {
  const uint32_t bits = to_bits(value);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  out->bits = static_cast<uint16_t>((is_nan ? bits | 0x400000 : rounded) >> 16);
}

inline void narrow(float value, Float16* out) {
  const uint32_t bits = to_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  // Adding 0.5 leaves a subnormal result in the sum's lowest bits.
  const uint32_t subnormal = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000;
  const uint32_t normal =
      (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  uint32_t result = magnitude < 0x38800000 ? subnormal : normal;
  result = magnitude >= 0x47800000 ? 0x7c00 : result;
  result = magnitude > 0x7f800000 ? 0x7e00 : result;
  out->bits = static_cast<uint16_t>(sign | result);
}
