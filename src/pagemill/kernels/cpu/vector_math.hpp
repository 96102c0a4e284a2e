// exp, tanh and the normal distribution function on sixteen lanes. Included after simd.hpp, once
// for each instruction set.
//
// Each is one formula for all lanes, so a lane's result depends on nothing but its argument. The
// polynomials are minimax fits of this project; the errors named are against exact arithmetic.
#pragma once

#include "simd.hpp"

namespace PAGEMILL_ISA_NAMESPACE {

// What 8-bit numbers are made of: x / scale within +-127. A smaller scale has no inverse.
constexpr float kSmallestScale = 1.2e-38f;
// Sizes of floats are in the order of their bits, where infinity is more than any number and NaN
// more than infinity: the bits of the largest size of all say whether everything is a number.
PAGEMILL_INLINE I16 size_bits(F16 x) { return as_int(abs(x)); }
PAGEMILL_INLINE float largest_size(I16 bits) {
  const int32_t most = largest(bits);
  float size;
  memcpy(&size, &most, sizeof size);
  return size;
}
// A scale of what is not finite is NaN, and with it all that it is applied to: rounding to integers
// would make a number of it.
template <class T>
PAGEMILL_INLINE T finite_or_nan(T scale) {
  return scale + (scale - scale);
}
PAGEMILL_INLINE F16 bounded_127(F16 x) { return min(max(x, splat(-127.0f)), splat(127.0f)); }

// Below this, exp is 0: its results would be denormal, which processors handle slowly.
constexpr float kExpLowest = -87.0f;
constexpr float kExpHighest = 88.37f;  // above this, exp is infinity

// exp for arguments in [kExpLowest, kExpHighest]; 1 at 0 exactly. Error below 1.2 ulp.
PAGEMILL_INLINE F16 exp_in_range(F16 x) {
  const I16 exponent = round_to_int(x * splat(1.44269504f));
  const F16 n = to_float(exponent);
  F16 r = fma(n, splat(-0.693359375f), x);   // ln 2 in two parts: the first product is exact
  r = fma(n, splat(2.12194440e-4f), r);
  F16 p = splat(0.00138144669f);
  p = fma(p, r, splat(0.00836878055f));
  p = fma(p, r, splat(0.0416683942f));
  p = fma(p, r, splat(0.166665201f));
  p = fma(p, r, splat(0.499999934f));
  return (fma(r * r, p, r) + splat(1.0f)) * power_of_two(exponent);
}

// exp for arguments that are not positive, minus infinity included.
PAGEMILL_INLINE F16 exp_nonpositive(F16 x) {
  const F16 lowest = splat(kExpLowest);
  return select_less(x, lowest, zero(), exp_in_range(max(x, lowest)));
}

PAGEMILL_INLINE F16 exp(F16 x) {
  const F16 lowest = splat(kExpLowest), highest = splat(kExpHighest);
  const F16 inside = exp_in_range(min(max(x, lowest), highest));
  const F16 bounded = select_less(x, lowest, zero(), inside);
  return select_less(highest, x, splat(__builtin_inff()), bounded);
}

// Error below 2 ulp.
PAGEMILL_INLINE F16 tanh(F16 x) {
  const F16 size = abs(x), square = x * x;
  F16 p = splat(-0.00571704234f);
  p = fma(p, square, splat(0.0206505849f));
  p = fma(p, square, splat(-0.0537434974f));
  p = fma(p, square, splat(0.133314913f));
  p = fma(p, square, splat(-0.333332839f));
  const F16 small = fma(p * square, x, x);
  const F16 twice = min(size + size, splat(40.0f));  // by then tanh is 1
  const F16 large = splat(1.0f) - splat(2.0f) / (exp_in_range(twice) + splat(1.0f));
  return select_less(size, splat(0.625f), small, copy_sign(large, x));
}

// The probability that a standard normal variable is below x: (1 + erf(x / sqrt(2))) / 2.
//
// exp(-x^2 / 2) times a polynomial in 1 / (1 + 0.35 |x|) is the tail beyond |x|, to a relative
// error of 4e-8 and what rounding x^2 costs; the left tail therefore keeps its digits.
PAGEMILL_INLINE F16 normal_distribution(F16 x) {
  const F16 size = abs(x);
  const F16 t = splat(1.0f) / fma(size, splat(0.35f), splat(1.0f));
  F16 p = splat(-0.0291458813f);
  p = fma(p, t, splat(0.143971489f));
  p = fma(p, t, splat(-0.255713881f));
  p = fma(p, t, splat(0.1591738f));
  p = fma(p, t, splat(-0.0231096317f));
  p = fma(p, t, splat(0.105507936f));
  p = fma(p, t, splat(0.11983288f));
  p = fma(p, t, splat(0.139861868f));
  p = fma(p, t, splat(0.139621404f));
  const F16 tail = exp_nonpositive(size * size * splat(-0.5f)) * (p * t);
  return select_less(x, zero(), tail, splat(1.0f) - tail);
}

PAGEMILL_INLINE F16 silu(F16 x) { return x / (splat(1.0f) + exp(zero() - x)); }

PAGEMILL_INLINE F16 gelu(F16 x) { return x * normal_distribution(x); }

// x times sigmoid(2 z) is x / 2 times (1 + tanh(z)), without its cancellation.
PAGEMILL_INLINE F16 gelu_tanh(F16 x) {
  const F16 twice = fma(x * x * x, splat(0.0713548163f), x * splat(1.59576912f));
  return x / (splat(1.0f) + exp(zero() - twice));
}

PAGEMILL_INLINE F16 soft_cap(F16 x, float cap) { return splat(cap) * tanh(x / splat(cap)); }

}  // namespace PAGEMILL_ISA_NAMESPACE
