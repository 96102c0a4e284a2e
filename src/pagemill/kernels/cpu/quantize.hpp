// Quantizing one group of columns of the sixteen rows of a panel (packing_quantize.cpp does
// matrices).
#pragma once

#include <stdint.h>

namespace pagemill {

// Args:
//   w         [count][16] finite weights, column after column; overwritten
//   count     columns, at least 1
//   operands  [ceil(count / 4)][16][4] gets the q as kernels read them (packing.hpp), columns that
//             only fill the last operand as those of padding
//   scales    [16] float16
//   mins      [16] float16; not touched in 8 bits
using QuantizeGroup = void (*)(float* w, int32_t count, uint8_t* operands, uint16_t* scales,
                               uint16_t* mins);

}  // namespace pagemill
