// The vectors of simd.hpp on AVX-512 F, BW, DQ, VL and VNNI.
#pragma once

#include <immintrin.h>

namespace PAGEMILL_ISA_NAMESPACE {

struct F16 { __m512 v; };
struct I16 { __m512i v; };
struct B64 { __m512i v; };

PAGEMILL_INLINE __m128i bytes_16(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
PAGEMILL_INLINE __m256i bytes_32(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
PAGEMILL_INLINE __mmask16 first_lanes(int count) {
  return static_cast<__mmask16>(count < 16 ? (1u << count) - 1 : 0xffff);
}

PAGEMILL_INLINE F16 zero() { return {_mm512_setzero_ps()}; }
PAGEMILL_INLINE F16 splat(float x) { return {_mm512_set1_ps(x)}; }
PAGEMILL_INLINE F16 lane_numbers() {
  return {_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
PAGEMILL_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
// The first count lanes (all, if count is more) from memory, the others zero; nothing behind them
// is touched.
PAGEMILL_INLINE F16 load_first(const float* p, int count) {
  return {_mm512_maskz_loadu_ps(first_lanes(count), p)};
}
PAGEMILL_INLINE F16 load_half(const uint16_t* p) { return {_mm512_cvtph_ps(bytes_32(p))}; }
PAGEMILL_INLINE F16 load_bfloat(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(bytes_32(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
PAGEMILL_INLINE F16 load_u8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes_16(p)))};
}
PAGEMILL_INLINE F16 load_s8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes_16(p)))};
}
PAGEMILL_INLINE void store(float* p, F16 x) { _mm512_storeu_ps(p, x.v); }
PAGEMILL_INLINE void store_first(float* p, F16 x, int count) {
  _mm512_mask_storeu_ps(p, first_lanes(count), x.v);
}
// Both round to nearest even; too large becomes infinity.
PAGEMILL_INLINE void store_half(uint16_t* p, F16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
PAGEMILL_INLINE void store_bfloat(uint16_t* p, F16 x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_mask_mov_epi32(
      _mm512_add_epi32(bits, bias), _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q),
      _mm512_or_si512(bits, _mm512_set1_epi32(0x400000)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

PAGEMILL_INLINE F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
PAGEMILL_INLINE F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
PAGEMILL_INLINE F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
PAGEMILL_INLINE F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c, rounded once here and wherever the machine can; twice on a portable build without FMA.
PAGEMILL_INLINE F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
PAGEMILL_INLINE F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
PAGEMILL_INLINE F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
PAGEMILL_INLINE F16 abs(F16 x) { return {_mm512_abs_ps(x.v)}; }
PAGEMILL_INLINE F16 copy_sign(F16 size, F16 sign) {
  return {_mm512_or_ps(abs(size).v, _mm512_and_ps(sign.v, _mm512_set1_ps(-0.0f)))};
}
// Lane by lane a < b ? x : y.
PAGEMILL_INLINE F16 select_less(F16 a, F16 b, F16 x, F16 y) {
  return {_mm512_mask_mov_ps(y.v, _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), x.v)};
}
// Bit i says whether lane i of a is less than that of b.
PAGEMILL_INLINE uint32_t mask_less(F16 a, F16 b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ);
}
// Over all lanes, in one fixed order: halves are joined, lane i with i + 8, then 4, 2, 1.
PAGEMILL_INLINE float sum(F16 x) {
  const __m256 by_8 =
      _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 by_4 = _mm_add_ps(_mm256_castps256_ps128(by_8), _mm256_extractf128_ps(by_8, 1));
  const __m128 by_2 = _mm_add_ps(by_4, _mm_movehl_ps(by_4, by_4));
  return _mm_cvtss_f32(_mm_add_ss(by_2, _mm_movehdup_ps(by_2)));
}
PAGEMILL_INLINE float largest(F16 x) {
  const __m256 by_8 =
      _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 by_4 = _mm_max_ps(_mm256_castps256_ps128(by_8), _mm256_extractf128_ps(by_8, 1));
  const __m128 by_2 = _mm_max_ps(by_4, _mm_movehl_ps(by_4, by_4));
  return _mm_cvtss_f32(_mm_max_ss(by_2, _mm_movehdup_ps(by_2)));
}

PAGEMILL_INLINE I16 splat_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
PAGEMILL_INLINE I16 load_int(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
PAGEMILL_INLINE void store_int(int32_t* p, I16 x) { _mm512_storeu_si512(p, x.v); }
PAGEMILL_INLINE I16 operator+(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
PAGEMILL_INLINE I16 operator-(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
PAGEMILL_INLINE I16 max(I16 a, I16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
PAGEMILL_INLINE int32_t largest(I16 x) { return _mm512_reduce_max_epi32(x.v); }
template <int kBits>
PAGEMILL_INLINE I16 shift_left(I16 x) {
  return {_mm512_slli_epi32(x.v, kBits)};
}
PAGEMILL_INLINE F16 to_float(I16 x) { return {_mm512_cvtepi32_ps(x.v)}; }
// To nearest even; for |x| up to 2^22.
PAGEMILL_INLINE I16 round_to_int(F16 x) { return {_mm512_cvtps_epi32(x.v)}; }
PAGEMILL_INLINE F16 as_float(I16 x) { return {_mm512_castsi512_ps(x.v)}; }
PAGEMILL_INLINE I16 as_int(F16 x) { return {_mm512_castps_si512(x.v)}; }
// For exponents from -126 to 127.
PAGEMILL_INLINE F16 power_of_two(I16 exponent) {
  return as_float(shift_left<23>(exponent + splat_int(127)));
}
// For numbers from -128 to 127.
PAGEMILL_INLINE void store_s8(int8_t* p, I16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}
// For numbers from 0 to 255.
PAGEMILL_INLINE void store_u8(uint8_t* p, I16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}

PAGEMILL_INLINE B64 load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
PAGEMILL_INLINE void store_bytes(uint8_t* p, B64 x) { _mm512_storeu_si512(p, x.v); }
PAGEMILL_INLINE B64 splat_bytes(uint8_t x) { return {_mm512_set1_epi8(static_cast<char>(x))}; }
PAGEMILL_INLINE B64 operator-(B64 a, B64 b) { return {_mm512_sub_epi8(a.v, b.v)}; }
PAGEMILL_INLINE B64 operator|(B64 a, B64 b) { return {_mm512_or_si512(a.v, b.v)}; }
PAGEMILL_INLINE B64 low_nibbles(B64 x) { return {_mm512_and_si512(x.v, _mm512_set1_epi8(15))}; }
PAGEMILL_INLINE B64 high_nibbles(B64 x) {
  return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(15))};
}
// Of each byte, bits kFirst and kFirst + 1, moved to bits 4 and 5; kFirst is 0, 2, 4 or 6.
template <int kFirst>
PAGEMILL_INLINE B64 bits_4_5(B64 x) {
  const __m512i moved =
      kFirst < 4 ? _mm512_slli_epi16(x.v, 4 - kFirst) : _mm512_srli_epi16(x.v, kFirst - 4);
  return {_mm512_and_si512(moved, _mm512_set1_epi8(0x30))};
}
// Byte i of x, plus 16 where bit i of the mask is set.
PAGEMILL_INLINE B64 add_16_where(B64 x, uint64_t mask) {
  return {_mm512_mask_add_epi8(x.v, mask, x.v, _mm512_set1_epi8(16))};
}
// acc[lane] += the sum over 4 bytes of weight (0 to 255) times activation (-128 to 127), exactly.
PAGEMILL_INLINE I16 dot4(I16 acc, B64 weights, int32_t activations) {
  return {_mm512_dpbusd_epi32(acc.v, weights.v, _mm512_set1_epi32(activations))};
}
// The same for weights from -128 to 127 and activations from 0 to 255.
PAGEMILL_INLINE I16 dot4_signed(I16 acc, B64 weights, int32_t activations) {
  return {_mm512_dpbusd_epi32(acc.v, _mm512_set1_epi32(activations), weights.v)};
}

// Sixteen numbers of 14 bits into a row of 2 * num_cols bytes: first the upper halves of all
// columns (-64 to 63), then the lower ones (0 to 127). Returns the upper ones.
PAGEMILL_INLINE I16 store_wide(uint8_t* row, int64_t num_cols, int64_t column, I16 x) {
  const I16 upper = {_mm512_srai_epi32(x.v, 7)};
  store_s8(reinterpret_cast<int8_t*>(row) + column, upper);
  store_u8(row + num_cols + column, {_mm512_and_si512(x.v, _mm512_set1_epi32(127))});
  return upper;
}

// Sums of products of 14 bits: 128 * upper + lower.
struct WideSum { I16 upper, lower; };
// Weights as they come (-128 to 127), and with 128 added (0 to 255), which is what upper halves are
// multiplied with; sum_of_upper is that over the columns that will come.
struct WideWeights { B64 as_signed, as_unsigned; };
PAGEMILL_INLINE WideWeights wide_weights(const uint8_t* p) {
  const __m512i w = _mm512_loadu_si512(p);
  return {{w}, {_mm512_xor_si512(w, _mm512_set1_epi8(-128))}};
}
PAGEMILL_INLINE WideSum wide_start(int32_t sum_of_upper) {
  return {splat_int(-128 * sum_of_upper), splat_int(0)};
}
// Adds the products of columns [column, column + 4) of a row.
PAGEMILL_INLINE WideSum add_wide(WideSum sum, const WideWeights& w, const uint8_t* row,
                                 int64_t num_cols, int64_t column) {
  int32_t upper, lower;
  memcpy(&upper, row + column, sizeof upper);
  memcpy(&lower, row + num_cols + column, sizeof lower);
  return {dot4(sum.upper, w.as_unsigned, upper), dot4_signed(sum.lower, w.as_signed, lower)};
}
PAGEMILL_INLINE I16 wide_total(WideSum sum) { return shift_left<7>(sum.upper) + sum.lower; }

}  // namespace PAGEMILL_ISA_NAMESPACE
