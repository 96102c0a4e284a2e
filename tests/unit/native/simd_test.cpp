// Compares the functions of simd.hpp with plain arithmetic, on each instruction set that this
// machine can run: `simd_test` prints the sets that it compared, or what is wrong.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <type_traits>

#include "simd_cases.hpp"

namespace {

std::string isa_name;  // the one being compared

template <class T>
void expect(T actual, T expected, const char* what, int index) {
  if (std::memcmp(&actual, &expected, sizeof actual) == 0) return;
  if (actual != actual && expected != expected) return;  // any NaN
  std::fprintf(stderr, "%s: %s[%d] is %.9g instead of %.9g\n", isa_name.c_str(), what, index,
               static_cast<double>(actual), static_cast<double>(expected));
  std::exit(1);
}

float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// The definition: sign, 5 bits of exponent, 10 of mantissa.
float value_of_half(uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  float size = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  if (exponent == 0) size = std::ldexp(static_cast<float>(mantissa), -24);
  if (exponent == 31) size = mantissa ? NAN : INFINITY;
  return h & 0x8000 ? -size : size;
}

// Of two neighbouring 16-bit floats the nearer one, and the even one halfway: by bisection over the
// finite ones, which are ordered as their bits.
template <class Value>
uint16_t nearest(float x, uint16_t infinity, double beyond_largest, const Value& value) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double size = std::fabs(x);
  if (std::isinf(x)) return sign | infinity;
  int low = 0, high = infinity;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (size >= value(static_cast<uint16_t>(middle)) ? low : high) = middle;
  }
  const double below = value(static_cast<uint16_t>(low));
  const double above = high == infinity ? beyond_largest : value(static_cast<uint16_t>(high));
  const bool up = size - below > above - size || (size - below == above - size && low % 2 == 1);
  return static_cast<uint16_t>(sign | (up ? high : low));
}

uint16_t half_of(float x) {
  if (x != x) return 0x7e00;
  return nearest(x, 0x7c00, 65536.0, value_of_half);
}

uint16_t bfloat_of(float x) {
  if (x != x) return 0x7fc0;
  return nearest(x, 0x7f80, 0x1p128, [](uint16_t b) { return float_of(uint32_t{b} << 16); });
}

bool is_nan_half(uint16_t h, uint16_t infinity) { return (h & 0x7fff) > infinity; }

std::unique_ptr<SimdInputs> make_inputs() {
  auto in = std::make_unique<SimdInputs>();
  std::mt19937 random(3);
  const float special[] = {
      0.0f,       -0.0f,      1.0f,       -1.0f,     INFINITY,  -INFINITY, NAN,          1e-45f,
      -1e-40f,    65504.0f,   65519.0f,   65520.0f,  65536.0f,  3.4e38f,   0x1p-24f,     0x1p-25f,
      0x1.8p-25f, 0x1p-14f,   126.5f,     -127.5f,   0x1.002p0f, 0x1.006p0f, 0x1.ffep-15f,
      0x1.01p0f,  0x1.03p0f};
  constexpr int kSpecial = sizeof special / sizeof *special;
  for (int i = 0; i < kNumFloats; ++i) {
    // All pairs of special values, then any bits, then numbers that float16 can hold.
    const bool pairs = i < kSpecial * kSpecial;
    in->a[i] = pairs ? special[i / kSpecial] : float_of(random());
    in->b[i] = pairs ? special[i % kSpecial] : float_of(random());
    if (i % 3 == 0 && !pairs) {
      const uint32_t exponent = 127 - 27 + random() % 44;
      in->a[i] = float_of((random() & 0x807fffff) | exponent << 23);
    }
    const uint32_t exponent = 127 - 3 + random() % 24;
    in->small[i] = i % 2 ? float_of((random() & 0x807fffff) | exponent << 23)
                         : (static_cast<int>(random() % 4001) - 2000) * 0.5f;
    in->integers[i] = static_cast<int32_t>(random());
    const int any = static_cast<int>(random() % 256) - 128;
    // Each group of 16 lanes uses its first four. -1 is 255 where they are unsigned.
    const int extreme[] = {127, -128, -1, any};
    in->activations[i] = static_cast<int8_t>(extreme[i / 16 % 4]);
  }
  for (int i = 0; i < 65536; ++i) in->halves[i] = static_cast<uint16_t>(i);
  for (int i = 0; i < kNumFloats * 4; ++i) {
    const int extreme[] = {255, 0, static_cast<int>(random())};
    in->bytes[i] = static_cast<uint8_t>(extreme[i / 64 % 3]);
  }
  return in;
}

float lanes(const float* x, bool largest) {
  float v[16];
  std::memcpy(v, x, sizeof v);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) {
      v[i] = largest ? (v[i] > v[i + half] ? v[i] : v[i + half]) : v[i] + v[i + half];
    }
  }
  return v[0];
}

void check_floats(const SimdInputs& in, const SimdOutputs& out) {
  for (int i = 0; i < kNumFloats; ++i) {
    const float a = in.a[i], b = in.b[i], x = in.small[i];
    expect(out.sum[i], a + b, "a + b", i);
    expect(out.difference[i], a - b, "a - b", i);
    expect(out.product[i], a * b, "a * b", i);
    expect(out.quotient[i], a / b, "a / b", i);
    expect(out.min[i], a < b ? a : b, "min", i);
    expect(out.max[i], a > b ? a : b, "max", i);
    expect(bits_of(out.abs[i]), bits_of(a) & 0x7fffffff, "abs", i);
    expect(bits_of(out.copy_sign[i]), (bits_of(a) & 0x7fffffff) | (bits_of(b) & 0x80000000),
           "copy_sign", i);
    expect(out.select_less[i], a < b ? x : 0.0f, "select_less", i);
    expect(out.as_int[i], static_cast<int32_t>(bits_of(a)), "as_int", i);
    expect(out.rounded[i], static_cast<int32_t>(std::nearbyint(x)), "round_to_int", i);
    const float least = a < 127.0f ? a : 127.0f;
    const float clamped = least > -127.0f ? least : -127.0f;
    expect(out.s8[i], static_cast<int8_t>(std::nearbyint(clamped)), "store_s8", i);
    const float below_256 = a < 255.0f ? a : 255.0f, not_negative = below_256 > 0.0f ? below_256 : 0.0f;
    expect(out.u8[i], static_cast<uint8_t>(std::nearbyint(not_negative)), "store_u8", i);
    if (isa_name != "portable") expect(out.fma[i], std::fma(x, 1.1f, b), "fma", i);
    if (a == a) {
      expect(out.half[i], half_of(a), "store_half", i);
      expect(out.bfloat[i], bfloat_of(a), "store_bfloat", i);
    } else {
      expect(is_nan_half(out.half[i], 0x7c00), true, "store_half of NaN is NaN", i);
      expect(is_nan_half(out.bfloat[i], 0x7f80), true, "store_bfloat of NaN is NaN", i);
    }
  }
  for (int i = 0; i < kNumFloats; i += 16) {
    expect(out.sum_of_lanes[i / 16], lanes(in.small + i, false), "sum", i / 16);
    expect(out.largest[i / 16], lanes(in.a + i, true), "largest", i / 16);
    uint32_t mask = 0;
    for (int j = 0; j < 16; ++j) mask |= uint32_t{in.a[i + j] < in.b[i + j]} << j;
    expect(out.mask_less[i / 16], mask, "mask_less", i / 16);
  }
  for (int lane = 0; lane < 16; ++lane) {
    expect(out.lane_numbers[lane], static_cast<float>(lane), "lane_numbers", lane);
    for (int count = 0; count <= 16; ++count) {
      expect(out.first[count][lane], lane < count ? in.small[16 - count + lane] : 0.0f,
             "load_first", count);
    }
  }
  for (int lane = 0; lane < 24; ++lane) {
    for (int count = 0; count <= 18; ++count) {
      expect(out.stored_first[count][lane], lane < count && lane < 16 ? in.small[lane] : 7.0f,
             "store_first", count);
    }
  }
}

void check_conversions(const SimdInputs& in, const SimdOutputs& out) {
  for (int i = 0; i < 65536; ++i) {
    expect(out.from_half[i], value_of_half(in.halves[i]), "load_half", i);
    expect(bits_of(out.from_bfloat[i]), uint32_t{in.halves[i]} << 16, "load_bfloat", i);
  }
  for (int i = 0; i < kNumFloats * 4; ++i) {
    expect(out.from_u8[i], static_cast<float>(in.bytes[i]), "load_u8", i);
    expect(out.from_s8[i], static_cast<float>(static_cast<int8_t>(in.bytes[i])), "load_s8", i);
  }
  for (int i = 0; i < kNumFloats; ++i) {
    const uint32_t x = static_cast<uint32_t>(in.integers[i]), y = bits_of(in.a[i]);
    expect(out.to_float[i], static_cast<float>(in.integers[i]), "to_float", i);
    expect(bits_of(out.as_float[i]), x, "as_float", i);
    expect(static_cast<uint32_t>(out.int_sum[i]), x + y, "int +", i);
    expect(static_cast<uint32_t>(out.int_difference[i]), x - y, "int -", i);
    expect(static_cast<uint32_t>(out.shifted[i]), x << 5, "shift_left", i);
    expect(out.int_max[i], std::max(in.integers[i], static_cast<int32_t>(y)), "int max", i);
    const int32_t* first = in.integers + i / 16 * 16;
    expect(out.largest_int[i / 16], *std::max_element(first, first + 16), "int largest", i);
  }
  for (int i = 0; i < 240; ++i) {
    expect(out.power_of_two[i], std::ldexp(1.0f, i - 126), "power_of_two", i);
  }
}

void check_bytes(const SimdInputs& in, const SimdOutputs& out) {
  for (int i = 0; i < kNumFloats; ++i) {
    const int8_t* activations = in.activations + i / 16 * 16;
    const uint8_t* mask = in.bytes + i / 16 * 16;
    const uint32_t start = static_cast<uint32_t>(in.integers[i]);
    uint32_t whole = start, low = start, high = start, plus_16 = start, as_signed = start;
    uint32_t sums[4][2] = {}, wide = 0;
    uint32_t two_bits[4] = {start, start, start, start};
    for (int j = 0; j < 4; ++j) {
      const int w = in.bytes[4 * i + j], x = activations[j], bit = i % 16 * 4 + j;
      whole += w * x;
      low += (w & 15) * x;
      high += (w >> 4) * x;
      const float number = static_cast<float>(in.integers[i / 16 * 16 + 4 + j]) * 0x1p-18f;
      wide += static_cast<int8_t>(w) * static_cast<int>(std::nearbyint(number));
      as_signed += static_cast<int8_t>(w) * static_cast<uint8_t>(x);
      for (const int bits : {4, 5, 6, 8}) {
        const int of_bits = bits == 8 ? 3 : bits - 4;
        const int weight = w >> (8 - bits);
        sums[of_bits][0] += weight * x;
        sums[of_bits][1] += (weight - (1 << (bits - 1))) * static_cast<uint8_t>(x);
      }
      expect(out.byte_differences[4 * i + j], static_cast<uint8_t>(w - in.bytes[i / 16 * 16]),
             "bytes -", 4 * i + j);
      plus_16 += ((w & 15) + 16 * (mask[bit / 8] >> bit % 8 & 1)) * x;
      for (int k = 0; k < 4; ++k) two_bits[k] += ((w & 15) + 16 * (w >> 2 * k & 3)) * x;
    }
    expect(static_cast<uint32_t>(out.dot4[i]), whole, "dot4", i);
    expect(static_cast<uint32_t>(out.dot4_low[i]), low, "dot4 of low_nibbles", i);
    expect(static_cast<uint32_t>(out.dot4_high[i]), high, "dot4 of high_nibbles", i);
    expect(static_cast<uint32_t>(out.dot4_signed[i]), as_signed, "dot4_signed", i);
    expect(static_cast<uint32_t>(out.wide_sums[i]), wide, "WideSum", i);
    for (int of_bits = 0; of_bits < 4; ++of_bits) {
      for (int is_signed = 0; is_signed < 2; ++is_signed) {
        const uint32_t sum = sums[of_bits][is_signed];
        const int32_t* of_steps = out.product_sums[of_bits][is_signed][i];
        expect(static_cast<uint32_t>(of_steps[0]), start + 8 * sum, "ProductSum of 8 steps", i);
        expect(static_cast<uint32_t>(of_steps[1]), start + 4 * sum, "ProductSum of 4 steps", i);
      }
    }
    expect(static_cast<uint32_t>(out.dot4_16[i]), plus_16, "dot4 of add_16_where", i);
    for (int k = 0; k < 4; ++k) {
      expect(static_cast<uint32_t>(out.dot4_two_bits[k][i]), two_bits[k], "dot4 of bits_4_5", i);
    }
  }
}

void check(const char* name, SimdCases cases, const SimdInputs& in) {
  isa_name = name;
  auto out = std::make_unique<SimdOutputs>();
  cases(in, *out);
  check_floats(in, *out);
  check_conversions(in, *out);
  check_bytes(in, *out);
  std::printf("%s\n", name);
}

}  // namespace

int main() {
  const auto in = make_inputs();
  check("portable", portable::simd_cases, *in);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    check("avx2", avx2::simd_cases, *in);
  }
  if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    check("avx512", avx512::simd_cases, *in);
  }
#endif
  return 0;
}
