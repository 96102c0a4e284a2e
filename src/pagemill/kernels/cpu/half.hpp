// Float16 and bfloat16 to float32 and back, in plain integer arithmetic.
#pragma once

#include <cstdint>
#include <cstring>

namespace pagemill {

inline float float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_from_bfloat(uint16_t b) { return float_from_bits(uint32_t{b} << 16); }

// Exact, including subnormal, infinite and NaN.
inline float float_from_half(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  const uint32_t magnitude = uint32_t{h & 0x7fffu} << 13;
  if (magnitude >= 0x0f800000u) return float_from_bits(sign | 0x7f800000u | magnitude);
  if (magnitude >= 0x00800000u) return float_from_bits(sign | (magnitude + 0x38000000u));
  // Subnormal: m * 2^-24. Subtracting 2^-14 from 2^-14 + m * 2^-24 is exact.
  const float value = float_from_bits(magnitude + 0x38800000u) - float_from_bits(0x38800000u);
  return float_from_bits(sign | bits_of_float(value));
}

// To the nearest, ties to even; beyond the largest float16, infinity. For finite values.
inline uint16_t half_from_float(float value) {
  const uint32_t bits = bits_of_float(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 leaves units of 2^-24 in the last place.
    const float shifted = float_from_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of_float(shifted) - bits_of_float(0.5f)));
  }
  const uint32_t even = magnitude >> 13 & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + even) >> 13));
}

}  // namespace pagemill
