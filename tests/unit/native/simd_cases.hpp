// What every function of simd.hpp and ProductSum makes of the same inputs, to compare instruction
// sets.
#pragma once

#include <stdint.h>

constexpr int kNumFloats = 4096;  // a multiple of 16

struct SimdInputs {
  float a[kNumFloats], b[kNumFloats];  // among them zeros, infinities, subnormals, NaN
  float small[kNumFloats];             // up to 2^22 in size, halves among them
  int32_t integers[kNumFloats];
  uint16_t halves[65536];              // all there are
  uint8_t bytes[kNumFloats * 4];
  int8_t activations[kNumFloats];
};

struct SimdOutputs {
  float sum[kNumFloats], difference[kNumFloats], product[kNumFloats], quotient[kNumFloats];
  float min[kNumFloats], max[kNumFloats], abs[kNumFloats], copy_sign[kNumFloats];
  float select_less[kNumFloats], as_float[kNumFloats], to_float[kNumFloats];
  float power_of_two[256], lane_numbers[16];
  float from_half[65536], from_bfloat[65536], from_u8[kNumFloats * 4], from_s8[kNumFloats * 4];
  float first[17][16];         // load_first of 0 to 16 lanes, zero elsewhere
  float stored_first[19][24];  // store_first of 0 to 18 lanes over 7s
  float sum_of_lanes[kNumFloats / 16], largest[kNumFloats / 16];
  uint32_t mask_less[kNumFloats / 16];
  uint16_t half[kNumFloats], bfloat[kNumFloats];
  int32_t as_int[kNumFloats], rounded[kNumFloats];
  int32_t int_sum[kNumFloats], int_difference[kNumFloats], shifted[kNumFloats];
  int32_t int_max[kNumFloats], largest_int[kNumFloats / 16];
  int8_t s8[kNumFloats];
  uint8_t u8[kNumFloats], byte_differences[kNumFloats * 4];
  int32_t dot4[kNumFloats], dot4_signed[kNumFloats], dot4_low[kNumFloats];
  int32_t dot4_high[kNumFloats], dot4_two_bits[4][kNumFloats], dot4_16[kNumFloats];
  // Of 4, 5, 6 and 8 bits, unsigned and signed, 8 and 4 steps.
  int32_t product_sums[4][2][kNumFloats][2];
  int32_t wide_sums[kNumFloats];
  float fma[kNumFloats];  // the one that may differ
};

using SimdCases = void (*)(const SimdInputs& in, SimdOutputs& out);

namespace portable {
void simd_cases(const SimdInputs& in, SimdOutputs& out);
}
namespace avx2 {
void simd_cases(const SimdInputs& in, SimdOutputs& out);
}
namespace avx512 {
void simd_cases(const SimdInputs& in, SimdOutputs& out);
}
