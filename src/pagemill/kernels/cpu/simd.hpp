// Sixteen lanes of float or int32, the same on every instruction set.
//
// One panel of a packed weight is sixteen output rows, so a vector here holds one number for each
// row of a panel, and every kernel is written once over these types. Compiled three times, with
// the flags of each instruction set; PAGEMILL_ISA_NAMESPACE keeps the copies apart.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#define PAGEMILL_AVX512 1
#elif defined(__AVX2__)
#include <immintrin.h>
#define PAGEMILL_AVX2 1
#endif

namespace PAGEMILL_ISA_NAMESPACE {

#if PAGEMILL_AVX512

struct F16 { __m512 v; };          // 16 floats
struct I16 { __m512i v; };         // 16 int32
struct B64 { __m512i v; };         // 64 bytes: 4 for each of 16 lanes

inline F16 zero() { return {_mm512_setzero_ps()}; }
inline F16 splat(float x) { return {_mm512_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 x) { _mm512_storeu_ps(p, x.v); }
inline F16 load_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))};
}
inline F16 load_bfloat(const uint16_t* p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline F16 load_u8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline I16 splat_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline F16 to_float(I16 x) { return {_mm512_cvtepi32_ps(x.v)}; }
inline B64 load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline B64 low_nibbles(B64 x) { return {_mm512_and_si512(x.v, _mm512_set1_epi8(15))}; }
inline B64 high_nibbles(B64 x) {
  return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(15))};
}
// acc[lane] += sum over 4 bytes of weight (0..255) times activation (-127..127)
inline I16 dot4(I16 acc, B64 weights, int32_t activations) {
  return {_mm512_dpbusd_epi32(acc.v, weights.v, _mm512_set1_epi32(activations))};
}
#endif

}  // namespace
