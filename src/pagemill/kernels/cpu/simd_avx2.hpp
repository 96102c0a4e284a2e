// The vectors of simd.hpp on AVX2, FMA and F16C: two registers each. What the functions promise is
// said in simd_avx512.hpp.
#pragma once

#include <immintrin.h>

namespace PAGEMILL_ISA_NAMESPACE {

struct F16 { __m256 lo, hi; };
struct I16 { __m256i lo, hi; };
struct B64 { __m256i lo, hi; };

PAGEMILL_INLINE __m128i bytes_8(const void* p) {
  return _mm_loadl_epi64(static_cast<const __m128i*>(p));
}
PAGEMILL_INLINE __m128i bytes_16(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
PAGEMILL_INLINE __m256i bytes_32(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
PAGEMILL_INLINE void store_32(void* p, __m256i x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), x);
}
// All ones in the lanes (of 8) below count.
PAGEMILL_INLINE __m256i first_lanes(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

PAGEMILL_INLINE F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
PAGEMILL_INLINE F16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
PAGEMILL_INLINE F16 lane_numbers() {
  return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)};
}
PAGEMILL_INLINE F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PAGEMILL_INLINE F16 load_first(const float* p, int count) {
  return {_mm256_maskload_ps(p, first_lanes(count)),
          _mm256_maskload_ps(p + 8, first_lanes(count - 8))};
}
PAGEMILL_INLINE F16 load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(bytes_16(p)), _mm256_cvtph_ps(bytes_16(p + 8))};
}
PAGEMILL_INLINE __m256 bfloat_8(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bytes_16(p)), 16));
}
PAGEMILL_INLINE F16 load_bfloat(const uint16_t* p) { return {bfloat_8(p), bfloat_8(p + 8)}; }
PAGEMILL_INLINE F16 load_u8(const uint8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes_8(p))),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes_8(p + 8)))};
}
PAGEMILL_INLINE F16 load_s8(const int8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes_8(p))),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes_8(p + 8)))};
}
PAGEMILL_INLINE void store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
PAGEMILL_INLINE void store_first(float* p, F16 x, int count) {
  _mm256_maskstore_ps(p, first_lanes(count), x.lo);
  _mm256_maskstore_ps(p + 8, first_lanes(count - 8), x.hi);
}
PAGEMILL_INLINE void store_half(uint16_t* p, F16 x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.lo, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.hi, kNearest));
}
// The bfloat16 of each lane in the low half of its 32 bits.
PAGEMILL_INLINE __m256i rounded_bfloat_8(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256 nan = _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_set1_epi32(0x400000)));
  const __m256 rounded = _mm256_blendv_ps(_mm256_castsi256_ps(_mm256_add_epi32(bits, bias)), nan,
                                          _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_castps_si256(rounded), 16);
}
PAGEMILL_INLINE void store_bfloat(uint16_t* p, F16 x) {
  const __m256i packed = _mm256_packus_epi32(rounded_bfloat_8(x.lo), rounded_bfloat_8(x.hi));
  store_32(p, _mm256_permute4x64_epi64(packed, 0xd8));  // packing goes by 128-bit halves
}

PAGEMILL_INLINE F16 operator+(F16 a, F16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
PAGEMILL_INLINE F16 operator-(F16 a, F16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
PAGEMILL_INLINE F16 operator*(F16 a, F16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
PAGEMILL_INLINE F16 operator/(F16 a, F16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
PAGEMILL_INLINE F16 fma(F16 a, F16 b, F16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
PAGEMILL_INLINE F16 min(F16 a, F16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
PAGEMILL_INLINE F16 max(F16 a, F16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
PAGEMILL_INLINE F16 abs(F16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.lo), _mm256_andnot_ps(sign, x.hi)};
}
PAGEMILL_INLINE F16 copy_sign(F16 size, F16 sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(bit, size.lo), _mm256_and_ps(bit, sign.lo)),
          _mm256_or_ps(_mm256_andnot_ps(bit, size.hi), _mm256_and_ps(bit, sign.hi))};
}
PAGEMILL_INLINE F16 select_less(F16 a, F16 b, F16 x, F16 y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
PAGEMILL_INLINE uint32_t mask_less(F16 a, F16 b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ));
  return static_cast<uint32_t>(lo | hi << 8);
}
PAGEMILL_INLINE float sum(F16 x) {
  const __m256 by_8 = _mm256_add_ps(x.lo, x.hi);
  const __m128 by_4 = _mm_add_ps(_mm256_castps256_ps128(by_8), _mm256_extractf128_ps(by_8, 1));
  const __m128 by_2 = _mm_add_ps(by_4, _mm_movehl_ps(by_4, by_4));
  return _mm_cvtss_f32(_mm_add_ss(by_2, _mm_movehdup_ps(by_2)));
}
PAGEMILL_INLINE float largest(F16 x) {
  const __m256 by_8 = _mm256_max_ps(x.lo, x.hi);
  const __m128 by_4 = _mm_max_ps(_mm256_castps256_ps128(by_8), _mm256_extractf128_ps(by_8, 1));
  const __m128 by_2 = _mm_max_ps(by_4, _mm_movehl_ps(by_4, by_4));
  return _mm_cvtss_f32(_mm_max_ss(by_2, _mm_movehdup_ps(by_2)));
}

PAGEMILL_INLINE I16 splat_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
PAGEMILL_INLINE I16 load_int(const int32_t* p) { return {bytes_32(p), bytes_32(p + 8)}; }
PAGEMILL_INLINE void store_int(int32_t* p, I16 x) {
  store_32(p, x.lo);
  store_32(p + 8, x.hi);
}
PAGEMILL_INLINE I16 operator+(I16 a, I16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
PAGEMILL_INLINE I16 operator-(I16 a, I16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
PAGEMILL_INLINE I16 max(I16 a, I16 b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
PAGEMILL_INLINE int32_t largest(I16 x) {
  const __m256i by_8 = _mm256_max_epi32(x.lo, x.hi);
  const __m128i by_4 =
      _mm_max_epi32(_mm256_castsi256_si128(by_8), _mm256_extracti128_si256(by_8, 1));
  const __m128i by_2 = _mm_max_epi32(by_4, _mm_shuffle_epi32(by_4, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(by_2, _mm_shuffle_epi32(by_2, 0xb1)));
}
template <int kBits>
PAGEMILL_INLINE I16 shift_left(I16 x) {
  return {_mm256_slli_epi32(x.lo, kBits), _mm256_slli_epi32(x.hi, kBits)};
}
PAGEMILL_INLINE F16 to_float(I16 x) {
  return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)};
}
PAGEMILL_INLINE I16 round_to_int(F16 x) {
  return {_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)};
}
PAGEMILL_INLINE F16 as_float(I16 x) {
  return {_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)};
}
PAGEMILL_INLINE I16 as_int(F16 x) { return {_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)}; }
PAGEMILL_INLINE F16 power_of_two(I16 exponent) {
  return as_float(shift_left<23>(exponent + splat_int(127)));
}
// Sixteen numbers of 16 bits, in order.
PAGEMILL_INLINE __m256i words_of(I16 x) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(x.lo, x.hi), 0xd8);
}
PAGEMILL_INLINE void store_s8(int8_t* p, I16 x) {
  const __m256i words = words_of(x);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
PAGEMILL_INLINE void store_u8(uint8_t* p, I16 x) {
  const __m256i words = words_of(x);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

PAGEMILL_INLINE B64 load_bytes(const uint8_t* p) { return {bytes_32(p), bytes_32(p + 32)}; }
PAGEMILL_INLINE void store_bytes(uint8_t* p, B64 x) {
  store_32(p, x.lo);
  store_32(p + 32, x.hi);
}
PAGEMILL_INLINE B64 splat_bytes(uint8_t x) {
  const __m256i all = _mm256_set1_epi8(static_cast<char>(x));
  return {all, all};
}
PAGEMILL_INLINE B64 operator-(B64 a, B64 b) {
  return {_mm256_sub_epi8(a.lo, b.lo), _mm256_sub_epi8(a.hi, b.hi)};
}
PAGEMILL_INLINE B64 operator|(B64 a, B64 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
PAGEMILL_INLINE B64 low_nibbles(B64 x) {
  const __m256i nibble = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.lo, nibble), _mm256_and_si256(x.hi, nibble)};
}
PAGEMILL_INLINE B64 high_nibbles(B64 x) {
  return low_nibbles({_mm256_srli_epi16(x.lo, 4), _mm256_srli_epi16(x.hi, 4)});
}
template <int kFirst>
PAGEMILL_INLINE __m256i bits_4_5_of_32(__m256i x) {
  const __m256i moved =
      kFirst < 4 ? _mm256_slli_epi16(x, 4 - kFirst) : _mm256_srli_epi16(x, kFirst - 4);
  return _mm256_and_si256(moved, _mm256_set1_epi8(0x30));
}
template <int kFirst>
PAGEMILL_INLINE B64 bits_4_5(B64 x) {
  return {bits_4_5_of_32<kFirst>(x.lo), bits_4_5_of_32<kFirst>(x.hi)};
}
PAGEMILL_INLINE __m256i add_16_where_of_32(__m256i x, uint32_t mask) {
  // Each byte gets the byte of the mask that holds its bit, then all but that bit is taken away.
  const __m256i home = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                          0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i spread =
      _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int32_t>(mask)), home);
  const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
  return _mm256_add_epi8(x, _mm256_and_si256(is_set, _mm256_set1_epi8(16)));
}
PAGEMILL_INLINE B64 add_16_where(B64 x, uint64_t mask) {
  return {add_16_where_of_32(x.lo, static_cast<uint32_t>(mask)),
          add_16_where_of_32(x.hi, static_cast<uint32_t>(mask >> 32))};
}
// The one instruction that multiplies unsigned by signed bytes saturates its 16-bit sums, so even
// and odd bytes are widened and multiplied as 16-bit numbers.
PAGEMILL_INLINE __m256i dot4_of_8(__m256i acc, __m256i weights, __m256i even, __m256i odd) {
  const __m256i even_weights = _mm256_and_si256(weights, _mm256_set1_epi16(255));
  const __m256i odd_weights = _mm256_srli_epi16(weights, 8);
  acc = _mm256_add_epi32(acc, _mm256_madd_epi16(even_weights, even));
  return _mm256_add_epi32(acc, _mm256_madd_epi16(odd_weights, odd));
}
PAGEMILL_INLINE I16 dot4(I16 acc, B64 weights, int32_t activations) {
  const __m256i bytes = _mm256_set1_epi32(activations);
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
  const __m256i odd = _mm256_srai_epi16(bytes, 8);
  return {dot4_of_8(acc.lo, weights.lo, even, odd), dot4_of_8(acc.hi, weights.hi, even, odd)};
}
PAGEMILL_INLINE __m256i dot4_signed_of_8(__m256i acc, __m256i weights, __m256i even, __m256i odd) {
  const __m256i even_weights = _mm256_srai_epi16(_mm256_slli_epi16(weights, 8), 8);
  const __m256i odd_weights = _mm256_srai_epi16(weights, 8);
  acc = _mm256_add_epi32(acc, _mm256_madd_epi16(even_weights, even));
  return _mm256_add_epi32(acc, _mm256_madd_epi16(odd_weights, odd));
}
PAGEMILL_INLINE I16 dot4_signed(I16 acc, B64 weights, int32_t activations) {
  const __m256i bytes = _mm256_set1_epi32(activations);
  const __m256i even = _mm256_and_si256(bytes, _mm256_set1_epi16(255));
  const __m256i odd = _mm256_srli_epi16(bytes, 8);
  return {dot4_signed_of_8(acc.lo, weights.lo, even, odd),
          dot4_signed_of_8(acc.hi, weights.hi, even, odd)};
}
// Thirty-two numbers of 16 bits; each is the sum of two products of a step.
struct W32 { __m256i lo, hi; };
PAGEMILL_INLINE W32 operator+(W32 a, W32 b) {
  return {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)};
}
// For weights from 0 to 127 and activations from -128 to 127.
PAGEMILL_INLINE W32 pairs_unsigned(B64 weights, int32_t activations) {
  const __m256i bytes = _mm256_set1_epi32(activations);
  return {_mm256_maddubs_epi16(weights.lo, bytes), _mm256_maddubs_epi16(weights.hi, bytes)};
}
// For weights from -64 to 63 and activations from 0 to 255.
PAGEMILL_INLINE W32 pairs_signed(B64 weights, int32_t activations) {
  const __m256i bytes = _mm256_set1_epi32(activations);
  return {_mm256_maddubs_epi16(bytes, weights.lo), _mm256_maddubs_epi16(bytes, weights.hi)};
}
// Adds neighbours to each lane of acc.
PAGEMILL_INLINE I16 add_words(I16 acc, W32 words) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(words.lo, ones)),
          _mm256_add_epi32(acc.hi, _mm256_madd_epi16(words.hi, ones))};
}

// Sixteen numbers of 14 bits into a row of 2 * num_cols bytes: 16 bits each, of four columns the
// first and the third, then the others.
PAGEMILL_INLINE I16 store_wide(uint8_t* row, int64_t, int64_t column, I16 x) {
  int32_t values[16];
  int16_t words[16];
  store_int(values, x);
  for (int i = 0; i < 16; ++i) {
    words[(i & ~3) | (i & 1) << 1 | (i & 2) >> 1] = static_cast<int16_t>(values[i]);
  }
  memcpy(row + 2 * column, words, sizeof words);
  return splat_int(0);
}

// Sums of products of 14 bits.
struct WideSum { I16 all; };
// Weights (-128 to 127) of even columns and of odd ones, in 16 bits.
struct WideWeights { W32 even, odd; };
PAGEMILL_INLINE WideWeights wide_weights(const uint8_t* p) {
  const B64 w = load_bytes(p);
  return {{_mm256_srai_epi16(_mm256_slli_epi16(w.lo, 8), 8),
           _mm256_srai_epi16(_mm256_slli_epi16(w.hi, 8), 8)},
          {_mm256_srai_epi16(w.lo, 8), _mm256_srai_epi16(w.hi, 8)}};
}
PAGEMILL_INLINE WideSum wide_start(int32_t) { return {splat_int(0)}; }
// Adds the products of columns [column, column + 4) of a row.
PAGEMILL_INLINE WideSum add_wide(WideSum sum, const WideWeights& w, const uint8_t* row, int64_t,
                                 int64_t column) {
  int32_t words[2];
  memcpy(words, row + 2 * column, sizeof words);
  const __m256i even = _mm256_set1_epi32(words[0]), odd = _mm256_set1_epi32(words[1]);
  I16 all = sum.all;
  all.lo = _mm256_add_epi32(all.lo, _mm256_madd_epi16(w.even.lo, even));
  all.hi = _mm256_add_epi32(all.hi, _mm256_madd_epi16(w.even.hi, even));
  all.lo = _mm256_add_epi32(all.lo, _mm256_madd_epi16(w.odd.lo, odd));
  all.hi = _mm256_add_epi32(all.hi, _mm256_madd_epi16(w.odd.hi, odd));
  return {all};
}
PAGEMILL_INLINE I16 wide_total(WideSum sum) { return sum.all; }

}  // namespace PAGEMILL_ISA_NAMESPACE
