// Linear maps over packed weights: out[row, n] = sum over k of x[row, k] * w[n, k] (+ bias[n]).
//
// Exactness: the number in (row, n) is built by the same operations in the same order whatever the
// other rows are, however many there are, and wherever a sub-range is cut. Only the number of rows
// that share one pass over the weights changes with the batch, and that is no part of the sum.
#pragma once

#include <cstdint>

#include "packing.hpp"
#include "quantized_rows.hpp"

namespace pagemill {

// What happens to a finished number before it is stored at out[row * out_stride + n].
struct Epilogue {
  const float* bias;  // [num_rows of the weight] or null
};

// A part of the product: rows [row_begin, row_end) by panels [panel_begin, panel_end).
struct Tile {
  int row_begin, row_end;
  int panel_begin, panel_end;
};

// `scratch` has kLinearScratchFloats from a multiple of 64 bytes on, and belongs to the calling
// thread. A tile has at most kRowBlock rows.
using LinearQuantized = void(const PackedWeight& weight, const QuantizedRows& x, Tile tile,
                             Epilogue epilogue, float* scratch, float* out, int64_t out_stride);

// With many rows, so many at a time pass over the weights: in 8 bits they fit the second cache.
constexpr int kRowBlock = 256;
// Of a pair of panels, units of 32 columns that are unpacked at a time: with as much of the rows
// they fit the first cache.
constexpr int kStripUnits = 18;
// 32 sums for each row, and for each unit 8-bit weights and two scales, minimums and so on.
constexpr int64_t kLinearScratchFloats = 32 * kRowBlock + kStripUnits * 2 * (512 / 4 + 2 * 48);

// The same for weights whose `wide` is set, which read the rows in 14 bits: total = fma(sum as
// float, scale of the row's block, total) over blocks of kWideBlock columns, times the weights'
// scale.
using LinearWide = void(const PackedWeight& weight, const QuantizedRows& x, Tile tile,
                        Epilogue epilogue, float* out, int64_t out_stride);

using LinearFloat = void(const FloatWeight& weight, const float* x, int64_t x_stride, Tile tile,
                         Epilogue epilogue, float* out, int64_t out_stride);

}  // namespace pagemill
