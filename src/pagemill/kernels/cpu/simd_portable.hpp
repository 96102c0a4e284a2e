// The vectors of simd.hpp without an instruction set of their own: four of GCC's and Clang's
// generic 128-bit vectors each, which every machine with vectors has (SSE2, NEON), and others
// imitate. What the functions promise is said in simd_avx512.hpp.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Packed weights are read as little-endian words."
#endif

namespace PAGEMILL_ISA_NAMESPACE {

typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t s32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef int16_t s16x8 __attribute__((vector_size(16)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef uint64_t u64x2 __attribute__((vector_size(16)));

struct F16 { f32x4 v[4]; };
struct I16 { s32x4 v[4]; };
struct B64 { u32x4 v[4]; };

// A vector whose parts are f(0) to f(3).
template <class V, class F>
PAGEMILL_INLINE V parts(const F& f) {
  return {{f(0), f(1), f(2), f(3)}};
}
template <class To, class From>
PAGEMILL_INLINE To same_bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "");
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}
PAGEMILL_INLINE f32x4 splat_4(float x) { return f32x4{x, x, x, x}; }
PAGEMILL_INLINE u32x4 splat_4(uint32_t x) { return u32x4{x, x, x, x}; }
// Where is all ones or all zeros in each lane.
PAGEMILL_INLINE u32x4 choose(u32x4 where, u32x4 x, u32x4 y) { return (where & x) | (~where & y); }
PAGEMILL_INLINE f32x4 choose(s32x4 where, f32x4 x, f32x4 y) {
  return (f32x4)choose((u32x4)where, (u32x4)x, (u32x4)y);
}
template <class T>
PAGEMILL_INLINE u32x4 widened_4(const T* p) {  // of uint16_t, uint8_t; int8_t keeps its sign
  return u32x4{static_cast<uint32_t>(p[0]), static_cast<uint32_t>(p[1]),
               static_cast<uint32_t>(p[2]), static_cast<uint32_t>(p[3])};
}
PAGEMILL_INLINE f32x4 converted_4(s32x4 x) { return __builtin_convertvector(x, f32x4); }

PAGEMILL_INLINE F16 splat(float x) {
  return {{splat_4(x), splat_4(x), splat_4(x), splat_4(x)}};
}
PAGEMILL_INLINE F16 zero() { return splat(0.0f); }
PAGEMILL_INLINE F16 lane_numbers() {
  return parts<F16>([](int i) { return f32x4{0, 1, 2, 3} + splat_4(4.0f * i); });
}
PAGEMILL_INLINE F16 load(const float* p) {
  F16 x;
  memcpy(&x, p, sizeof x);
  return x;
}
PAGEMILL_INLINE F16 load_first(const float* p, int count) {
  float values[16] = {};
  for (int i = 0; i < 16 && i < count; ++i) values[i] = p[i];
  return load(values);
}
// The number is the mantissa and exponent moved up, times a power of two; a subnormal one is an
// integer times 2^-24. (A subnormal float32 on the way would be lost where those count as zero.)
PAGEMILL_INLINE f32x4 half_4(const uint16_t* p) {
  const u32x4 half = widened_4(p);
  const u32x4 magnitude = half & 0x7fff;
  const u32x4 quiet = (u32x4)(magnitude > 0x7c00) & 0x400000;
  const u32x4 special = (magnitude << 13) | 0x7f800000 | quiet;
  const u32x4 normal = (magnitude << 13) + (112u << 23);
  const f32x4 subnormal = converted_4((s32x4)magnitude) * 0x1p-24f;
  const u32x4 finite =
      choose((u32x4)(magnitude < 0x0400), (u32x4)subnormal, normal);
  return (f32x4)(choose((u32x4)(magnitude >= 0x7c00), special, finite) | ((half & 0x8000) << 16));
}
PAGEMILL_INLINE F16 load_half(const uint16_t* p) {
  return parts<F16>([&](int i) { return half_4(p + 4 * i); });
}
PAGEMILL_INLINE F16 load_bfloat(const uint16_t* p) {
  return parts<F16>([&](int i) { return (f32x4)(widened_4(p + 4 * i) << 16); });
}
PAGEMILL_INLINE F16 load_u8(const uint8_t* p) {
  return parts<F16>([&](int i) { return converted_4((s32x4)widened_4(p + 4 * i)); });
}
PAGEMILL_INLINE F16 load_s8(const int8_t* p) {
  return parts<F16>([&](int i) { return converted_4((s32x4)widened_4(p + 4 * i)); });
}
PAGEMILL_INLINE void store(float* p, F16 x) { memcpy(p, &x, sizeof x); }
PAGEMILL_INLINE void store_first(float* p, F16 x, int count) {
  float values[16];
  store(values, x);
  for (int i = 0; i < 16 && i < count; ++i) p[i] = values[i];
}
PAGEMILL_INLINE uint16_t half_of(uint32_t bits) {
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | (magnitude >> 13 & 0x3ff);
  if (magnitude >= 0x47800000) return sign | 0x7c00;
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 102) return sign;  // below 2^-25, half of the smallest number
  // The mantissa in units of the result's last place, and what is cut off below it.
  const uint32_t shift = exponent < 113 ? 126 - exponent : 13;
  const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
  const uint32_t base = exponent < 113 ? 0 : (exponent - 113) << 10;
  const uint32_t kept = base + (mantissa >> shift);
  const uint32_t rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
  // A carry out of the mantissa moves to the next exponent by itself, and so to infinity.
  return sign | (kept + (rest > half || (rest == half && (kept & 1))));
}
PAGEMILL_INLINE void store_half(uint16_t* p, F16 x) {
  uint32_t bits[16];
  memcpy(bits, &x, sizeof bits);
  for (int i = 0; i < 16; ++i) p[i] = half_of(bits[i]);
}
PAGEMILL_INLINE void store_bfloat(uint16_t* p, F16 x) {
  uint32_t bits[16];
  memcpy(bits, &x, sizeof bits);
  for (int i = 0; i < 16; ++i) {
    const bool is_nan = (bits[i] & 0x7fffffff) > 0x7f800000;
    const uint32_t rounded = bits[i] + 0x7fff + (bits[i] >> 16 & 1);
    p[i] = static_cast<uint16_t>((is_nan ? bits[i] | 0x400000 : rounded) >> 16);
  }
}

PAGEMILL_INLINE F16 operator+(F16 a, F16 b) {
  return parts<F16>([&](int i) { return a.v[i] + b.v[i]; });
}
PAGEMILL_INLINE F16 operator-(F16 a, F16 b) {
  return parts<F16>([&](int i) { return a.v[i] - b.v[i]; });
}
PAGEMILL_INLINE F16 operator*(F16 a, F16 b) {
  return parts<F16>([&](int i) { return a.v[i] * b.v[i]; });
}
PAGEMILL_INLINE F16 operator/(F16 a, F16 b) {
  return parts<F16>([&](int i) { return a.v[i] / b.v[i]; });
}
#if defined(__FP_FAST_FMAF)
PAGEMILL_INLINE f32x4 fma_4(f32x4 a, f32x4 b, f32x4 c) {
  return f32x4{__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]),
               __builtin_fmaf(a[2], b[2], c[2]), __builtin_fmaf(a[3], b[3], c[3])};
}
#else
PAGEMILL_INLINE f32x4 fma_4(f32x4 a, f32x4 b, f32x4 c) { return a * b + c; }
#endif
PAGEMILL_INLINE F16 fma(F16 a, F16 b, F16 c) {
  return parts<F16>([&](int i) { return fma_4(a.v[i], b.v[i], c.v[i]); });
}
PAGEMILL_INLINE F16 min(F16 a, F16 b) {
  return parts<F16>([&](int i) { return choose(a.v[i] < b.v[i], a.v[i], b.v[i]); });
}
PAGEMILL_INLINE F16 max(F16 a, F16 b) {
  return parts<F16>([&](int i) { return choose(a.v[i] > b.v[i], a.v[i], b.v[i]); });
}
PAGEMILL_INLINE F16 abs(F16 x) {
  return parts<F16>([&](int i) { return (f32x4)((u32x4)x.v[i] & 0x7fffffff); });
}
PAGEMILL_INLINE F16 copy_sign(F16 size, F16 sign) {
  return parts<F16>([&](int i) {
    return (f32x4)(((u32x4)size.v[i] & 0x7fffffff) | ((u32x4)sign.v[i] & 0x80000000));
  });
}
PAGEMILL_INLINE F16 select_less(F16 a, F16 b, F16 x, F16 y) {
  return parts<F16>([&](int i) { return choose(a.v[i] < b.v[i], x.v[i], y.v[i]); });
}
#if defined(__SSE2__)
PAGEMILL_INLINE uint32_t sign_bits_4(s32x4 x) {
  return static_cast<uint32_t>(_mm_movemask_ps((__m128)x));
}
#else
PAGEMILL_INLINE uint32_t sign_bits_4(s32x4 x) {
  return (x[0] & 1) | (x[1] & 2) | (x[2] & 4) | (x[3] & 8);
}
#endif
PAGEMILL_INLINE uint32_t mask_less(F16 a, F16 b) {
  uint32_t mask = 0;
  for (int i = 0; i < 4; ++i) mask |= sign_bits_4(a.v[i] < b.v[i]) << 4 * i;
  return mask;
}
PAGEMILL_INLINE float sum(F16 x) {
  const f32x4 by_4 = (x.v[0] + x.v[2]) + (x.v[1] + x.v[3]);
  return (by_4[0] + by_4[2]) + (by_4[1] + by_4[3]);
}
PAGEMILL_INLINE float largest(F16 x) {
  const f32x4 lo = choose(x.v[0] > x.v[2], x.v[0], x.v[2]);
  const f32x4 hi = choose(x.v[1] > x.v[3], x.v[1], x.v[3]);
  const f32x4 by_4 = choose(lo > hi, lo, hi);
  const float even = by_4[0] > by_4[2] ? by_4[0] : by_4[2];
  const float odd = by_4[1] > by_4[3] ? by_4[1] : by_4[3];
  return even > odd ? even : odd;
}

PAGEMILL_INLINE I16 splat_int(int32_t x) {
  return parts<I16>([&](int) { return (s32x4)splat_4(static_cast<uint32_t>(x)); });
}
PAGEMILL_INLINE I16 load_int(const int32_t* p) {
  I16 x;
  memcpy(&x, p, sizeof x);
  return x;
}
PAGEMILL_INLINE void store_int(int32_t* p, I16 x) { memcpy(p, &x, sizeof x); }
// Unsigned, so that an overflow wraps around, as it does in the other instruction sets.
PAGEMILL_INLINE I16 operator+(I16 a, I16 b) {
  return parts<I16>([&](int i) { return (s32x4)((u32x4)a.v[i] + (u32x4)b.v[i]); });
}
PAGEMILL_INLINE I16 operator-(I16 a, I16 b) {
  return parts<I16>([&](int i) { return (s32x4)((u32x4)a.v[i] - (u32x4)b.v[i]); });
}
PAGEMILL_INLINE I16 max(I16 a, I16 b) {
  return parts<I16>([&](int i) {
    const s32x4 is_more = a.v[i] > b.v[i];
    return (a.v[i] & is_more) | (b.v[i] & ~is_more);
  });
}
PAGEMILL_INLINE int32_t largest(I16 x) {
  int32_t most = x.v[0][0];
  for (int i = 1; i < 16; ++i) most = x.v[i / 4][i % 4] > most ? x.v[i / 4][i % 4] : most;
  return most;
}
template <int kBits>
PAGEMILL_INLINE I16 shift_left(I16 x) {
  return parts<I16>([&](int i) { return (s32x4)((u32x4)x.v[i] << kBits); });
}
PAGEMILL_INLINE F16 to_float(I16 x) {
  return parts<F16>([&](int i) { return converted_4(x.v[i]); });
}
// Added to 1.5 * 2^23, a number is rounded to an integer, which the low bits then hold.
PAGEMILL_INLINE I16 round_to_int(F16 x) {
  return parts<I16>([&](int i) {
    return (s32x4)((u32x4)(x.v[i] + splat_4(0x1.8p23f)) - splat_4(uint32_t{0x4b400000}));
  });
}
PAGEMILL_INLINE F16 as_float(I16 x) { return same_bits<F16>(x); }
PAGEMILL_INLINE I16 as_int(F16 x) { return same_bits<I16>(x); }
PAGEMILL_INLINE F16 power_of_two(I16 exponent) {
  return as_float(shift_left<23>(exponent + splat_int(127)));
}
PAGEMILL_INLINE void store_s8(int8_t* p, I16 x) {
  int32_t values[16];
  store_int(values, x);
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(values[i]);
}
PAGEMILL_INLINE void store_u8(uint8_t* p, I16 x) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>(x.v[i / 4][i % 4]);
}

PAGEMILL_INLINE B64 load_bytes(const uint8_t* p) {
  B64 x;
  memcpy(&x, p, sizeof x);
  return x;
}
PAGEMILL_INLINE void store_bytes(uint8_t* p, B64 x) { memcpy(p, &x, sizeof x); }
PAGEMILL_INLINE B64 splat_bytes(uint8_t x) {
  return parts<B64>([&](int) { return splat_4(uint32_t{x} * 0x01010101u); });
}
PAGEMILL_INLINE B64 operator-(B64 a, B64 b) {
  return parts<B64>([&](int i) { return (u32x4)((u8x16)a.v[i] - (u8x16)b.v[i]); });
}
PAGEMILL_INLINE B64 operator|(B64 a, B64 b) {
  return parts<B64>([&](int i) { return a.v[i] | b.v[i]; });
}
PAGEMILL_INLINE B64 low_nibbles(B64 x) {
  return parts<B64>([&](int i) { return x.v[i] & 0x0f0f0f0f; });
}
PAGEMILL_INLINE B64 high_nibbles(B64 x) {
  return parts<B64>([&](int i) { return (x.v[i] >> 4) & 0x0f0f0f0f; });
}
template <int kFirst>
PAGEMILL_INLINE B64 bits_4_5(B64 x) {
  constexpr int kLeft = kFirst < 4 ? 4 - kFirst : 0, kRight = kFirst < 4 ? 0 : kFirst - 4;
  return parts<B64>([&](int i) { return (x.v[i] << kLeft >> kRight) & 0x30303030; });
}
PAGEMILL_INLINE B64 add_16_where(B64 x, uint64_t mask) {
  const u8x16 bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  return parts<B64>([&](int i) {
    const u64x2 spread = {(mask >> 16 * i & 255) * 0x0101010101010101,
                          (mask >> (16 * i + 8) & 255) * 0x0101010101010101};
    const u8x16 is_set = (u8x16)(((u8x16)spread & bit) == bit);
    return x.v[i] + (u32x4)(is_set & 16);
  });
}
// The sum of the products of the two 16-bit halves of each lane.
#if defined(__SSE2__)
PAGEMILL_INLINE s32x4 pair_products(s32x4 a, s32x4 b) {
  return (s32x4)_mm_madd_epi16((__m128i)a, (__m128i)b);
}
#else
PAGEMILL_INLINE s32x4 pair_products(s32x4 a, s32x4 b) {
  return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
}
#endif
PAGEMILL_INLINE I16 dot4(I16 acc, B64 weights, int32_t activations) {
  const u32x4 bytes = splat_4(static_cast<uint32_t>(activations));
  const s32x4 even = (s32x4)((s16x8)(bytes << 8) >> 8);
  const s32x4 odd = (s32x4)((s16x8)bytes >> 8);
  // Bytes 0 and 2, 1 and 3 of each lane: the top byte of (bytes << 8) is byte 2, as it should be.
  return parts<I16>([&](int i) {
    const s32x4 even_weights = (s32x4)(weights.v[i] & 0x00ff00ff);
    const s32x4 odd_weights = (s32x4)((weights.v[i] >> 8) & 0x00ff00ff);
    return acc.v[i] + pair_products(even_weights, even) + pair_products(odd_weights, odd);
  });
}
PAGEMILL_INLINE I16 dot4_signed(I16 acc, B64 weights, int32_t activations) {
  const u32x4 bytes = splat_4(static_cast<uint32_t>(activations));
  const s32x4 even = (s32x4)(bytes & 0x00ff00ff), odd = (s32x4)((bytes >> 8) & 0x00ff00ff);
  return parts<I16>([&](int i) {
    const s32x4 even_weights = (s32x4)((s16x8)(weights.v[i] << 8) >> 8);
    const s32x4 odd_weights = (s32x4)((s16x8)weights.v[i] >> 8);
    return acc.v[i] + pair_products(even_weights, even) + pair_products(odd_weights, odd);
  });
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
struct WideWeights { B64 bytes; };
PAGEMILL_INLINE WideWeights wide_weights(const uint8_t* p) { return {load_bytes(p)}; }
PAGEMILL_INLINE WideSum wide_start(int32_t) { return {splat_int(0)}; }
// Adds the products of columns [column, column + 4) of a row; weights are from -128 to 127.
PAGEMILL_INLINE WideSum add_wide(WideSum sum, const WideWeights& w, const uint8_t* row, int64_t,
                                 int64_t column) {
  uint32_t words[2];
  memcpy(words, row + 2 * column, sizeof words);
  const s32x4 even = (s32x4)splat_4(words[0]), odd = (s32x4)splat_4(words[1]);
  return {parts<I16>([&](int i) {
    const s32x4 even_weights = (s32x4)((s16x8)(w.bytes.v[i] << 8) >> 8);
    const s32x4 odd_weights = (s32x4)((s16x8)w.bytes.v[i] >> 8);
    return sum.all.v[i] + pair_products(even_weights, even) + pair_products(odd_weights, odd);
  })};
}
PAGEMILL_INLINE I16 wide_total(WideSum sum) { return sum.all; }

}  // namespace PAGEMILL_ISA_NAMESPACE
