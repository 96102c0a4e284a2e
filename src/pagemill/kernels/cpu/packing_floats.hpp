// Sixteen float rows side by side.
#pragma once

#include <cstdint>
#include <cstring>

#include "packing.hpp"

namespace pagemill {

// Rows [16 * panel, 16 * panel + 16) as out[column][16], converted by `convert`; zeros for rows
// that do not exist.
template <class In, class Out, class Convert>
inline void transpose_panel(const uint8_t* const* rows, int32_t panel, int32_t num_rows,
                            int32_t num_cols, Out* out, Convert convert) {
  constexpr int kBlock = 16;  // columns: a cache line of float32 from each row at a time
  static const uint8_t kNoRow[kBlock * sizeof(In)] = {};
  for (int32_t start = 0; start < num_cols; start += kBlock) {
    const int count = num_cols - start < kBlock ? num_cols - start : kBlock;
    for (int lane = 0; lane < kPanelRows; ++lane) {
      const int32_t row = panel * kPanelRows + lane;
      const bool exists = row < num_rows && rows[row];
      In values[kBlock] = {};
      memcpy(values, exists ? rows[row] + start * int64_t{sizeof(In)} : kNoRow,
             count * sizeof(In));
      Out* to = out + int64_t{start} * kPanelRows + lane;
      for (int i = 0; i < count; ++i) to[i * kPanelRows] = convert(values[i]);
    }
  }
}

}  // namespace pagemill
