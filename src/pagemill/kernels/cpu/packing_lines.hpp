// How the q of one row and one unit of 32 columns lie among those of its panel (packing.hpp).
#pragma once

#include <cstdint>
#include <cstring>

#include "packing.hpp"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "packed weights and GGUF files are little-endian"
#endif

namespace pagemill {

constexpr int kLineBytes = 4 * kPanelRows;
constexpr int kSteps = kUnitCols / 4;

constexpr int64_t unit_bytes(int bits) { return int64_t{bits} * kUnitCols * kPanelRows / 8; }

inline uint32_t load_u32(const uint8_t* p) {
  uint32_t value;
  memcpy(&value, p, sizeof value);
  return value;
}

inline void store_u32(uint8_t* p, uint32_t value) { memcpy(p, &value, sizeof value); }

inline uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  memcpy(&value, p, sizeof value);
  return value;
}

// Bit 0 of each of 4 bytes, as 4 bits; and back.
inline uint32_t gather_bits(uint32_t bytes) {
  return (bytes | bytes >> 7 | bytes >> 14 | bytes >> 21) & 15u;
}
inline uint32_t spread_bits(uint32_t bits) {
  return (bits | bits << 7 | bits << 14 | bits << 21) & 0x01010101u;
}

// Writes q[row][32] of all 16 rows of a panel; rows lie `stride` bytes apart.
template <int kBits>
inline void write_unit(const uint8_t* q, int64_t stride, uint8_t* unit) {
  if constexpr (kBits == 5) memset(unit + 4 * kLineBytes, 0, 8 * kSteps);
  for (int row = 0; row < kPanelRows; ++row, q += stride) {
    uint32_t step[kSteps];
    memcpy(step, q, sizeof step);
    if constexpr (kBits == 8) {
      for (int s = 0; s < kSteps; ++s) store_u32(unit + kLineBytes * s + 4 * row, step[s]);
      continue;
    }
    constexpr uint32_t kLow = 0x0f0f0f0fu;
    for (int l = 0; l < kSteps / 2; ++l) {
      store_u32(unit + kLineBytes * l + 4 * row,
                (step[2 * l] & kLow) | (step[2 * l + 1] & kLow) << 4);
    }
    uint8_t* high = unit + kLineBytes * kSteps / 2;
    if constexpr (kBits == 5) {
      for (int s = 0; s < kSteps; ++s) {
        high[8 * s + row / 2] |= static_cast<uint8_t>(gather_bits(step[s] >> 4 & 0x01010101u)
                                                      << 4 * (row % 2));
      }
    } else if constexpr (kBits == 6) {
      for (int h = 0; h < 2; ++h) {
        uint32_t line = 0;
        for (int i = 0; i < 4; ++i) line |= (step[4 * h + i] >> 4 & 0x03030303u) << 2 * i;
        store_u32(high + kLineBytes * h + 4 * row, line);
      }
    }
  }
}

// The inverse for one row.
template <int kBits>
inline void read_unit(const uint8_t* unit, int row, uint8_t (&q)[kUnitCols]) {
  const uint8_t* high = unit + kLineBytes * kSteps / 2;
  uint32_t step[kSteps];
  for (int s = 0; s < kSteps; ++s) {
    if constexpr (kBits == 8) {
      step[s] = load_u32(unit + kLineBytes * s + 4 * row);
      continue;
    }
    step[s] = load_u32(unit + kLineBytes * (s / 2) + 4 * row) >> 4 * (s % 2) & 0x0f0f0f0fu;
    if constexpr (kBits == 5) {
      step[s] |= spread_bits(high[8 * s + row / 2] >> 4 * (row % 2) & 15u) << 4;
    } else if constexpr (kBits == 6) {
      const uint32_t line = load_u32(high + kLineBytes * (s / 4) + 4 * row);
      step[s] |= (line >> 2 * (s % 4) & 0x03030303u) << 4;
    }
  }
  memcpy(q, step, sizeof step);
}

}  // namespace pagemill
