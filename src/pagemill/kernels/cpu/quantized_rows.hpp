// Rows of activations in 8 bits, as quantized linear maps read them.
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
};

}  // namespace pagemill
