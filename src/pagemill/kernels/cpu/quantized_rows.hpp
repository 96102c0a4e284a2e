// Rows of activations as integers, as quantized linear maps read them.
#pragma once

#include <cstdint>

namespace pagemill {

// x is about scale * q: of each group of 32 columns scale = max|x| / 127, q = x / scale to nearest
// even.
struct QuantizedRows {
  int8_t* q;            // [rows, padded_cols]; or null: not wanted
  uint8_t* shifted;     // [rows, padded_cols], 128 + q
  float* scales;        // [rows, padded_cols / 32]
  int32_t* sums;        // [rows, padded_cols / 16] of q
  float* totals;        // [rows, padded_cols / 32], scale times the sum of the group's q
  int32_t padded_cols;  // the next multiple of 32; q is 0 in between

  // The same in 14 bits, for weights with one scale a row: of each block of kWideBlock columns
  // scale = max|x| / 8191. A row has 2 * wide_cols bytes, in the order of the instruction set's
  // products (see store_wide of its vectors); only that set reads them.
  uint8_t* wide;       // or null: not wanted
  float* wide_scales;  // [rows, blocks]
  int32_t* wide_sums;  // [rows, blocks] of the upper halves, where products need them
  int32_t wide_cols;   // the next multiple of 64; 0 in between
};

// The integer sum of so many products of 8 and 14 bits is exact in 32 bits: 2048 * 128 * 8191 <
// 2^31.
constexpr int kWideBlock = 2048;
constexpr float kWideLargest = 8191.0f;

inline int wide_blocks(int cols) { return (cols + kWideBlock - 1) / kWideBlock; }

}  // namespace pagemill
