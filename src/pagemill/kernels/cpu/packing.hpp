// Linear weights as the kernels read them: panels of sixteen output rows.
//
// Rows come as pointers, one for each output row, to wherever their bytes lie (a mapped GGUF file,
// a tensor). So joining tensors, reordering rows and padding cost nothing: a row that does not
// exist is a null pointer, and packs as zeros. What a GGUF file stores is moved bit by bit; nothing
// is rounded, and `dequantize_row` gives the numbers that the format defines.
//
// Quantized, [panel][unit of 32 columns]. Within a unit a step is 4 consecutive columns, and its
// operand 64 bytes, byte 4 r + j the weight q of row r and column j of the step:
//
//   8 bits  8 operands
//   4 bits  4 lines of 64 bytes: step 2 l in the low halves of line l, step 2 l + 1 in the high
//   5 bits  the 4-bit lines, then 8 masks of 64 bits: bit 4 r + j of mask s is bit 4 of q
//   6 bits  the 4-bit lines, then 2 lines of 64 bytes: bits 2 i and 2 i + 1 of byte 4 r + j of
//           line h are bits 4 and 5 of q in step 4 h + i
//
// All scales are [panel][group][16 rows]. Without a super group a weight is scale * (q - zero) or,
// affine, scale * q + min. With one, scale is d * sub_scale and min is -(dmin * sub_min): d and dmin
// float16 for each 256 columns, the 8-bit integers for each group.
//
// Weights of 8 bits with one scale a row are "wide" (so are the rows that they are multiplied with,
// see quantized_rows.hpp): instead of q with its zero of 128, q - 128 is stored, signed. Tiles read
// up to a unit beyond a panel, and multiply what is there by zeros. All other q are unsigned.
#pragma once

#include <cstdint>

namespace pagemill {

constexpr int kPanelRows = 16;
constexpr int kUnitCols = 32;

// GGUF's numbers for the types that a file may hold; ours for what is made from float weights.
enum class WeightType : int32_t {
  kFloat32 = 0,
  kFloat16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBFloat16 = 30,
  kInt8 = 1008,  // symmetric, round to nearest
  kInt4 = 1004,  // affine, scale and minimum searched
};

enum class FloatType : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

struct PackedWeight {
  int32_t bits;         // 4, 5, 6 or 8
  int32_t group_size;   // columns that share a scale: 16, 32, 64, 128 or padded_cols
  int32_t super_size;   // columns that share the float16 scale of sub_scales; 0: there are none
  int32_t affine;       // whether there are minimums
  int32_t zero;         // the q that means 0, if not affine
  int32_t wide;         // whether there is one scale a row and q - zero is stored
  int32_t num_rows;     // of the matrix
  int32_t num_cols;
  int32_t padded_rows;  // rows up to whole panels have scale 0 (and minimum 0)
  int32_t padded_cols;  // columns up to whole units have q = zero, or 0: see below
  uint8_t* quants;
  uint16_t* scales;     // float16
  uint16_t* mins;       // float16, or null
  uint8_t* sub_scales;  // unsigned for Q4_K and Q5_K, signed for Q6_K, or null
  uint8_t* sub_mins;    // unsigned, or null
};
// A column of padding shares its group's minimum with the real ones, so in an affine format it is
// worth `min`, not 0: kernels multiply it by an activation of 0. (GGUF's rows need no padding.)

// Float weights: [panel][column][16 rows], no padding of columns.
struct FloatWeight {
  FloatType type;
  int32_t num_rows;
  int32_t num_cols;
  int32_t padded_rows;
  void* values;
};

// Describes a packed matrix whose arrays lie, each 64-byte aligned, in one buffer, and returns the
// buffer's size in bytes. Without a buffer the pointers are null or meaningless, and only the size
// counts. group_size is for kInt8 and kInt4 only, 0 there for one group a row. Returns -1 for a type
// that is not quantized, a group size that kernels do not know, and columns that are no whole
// number of the type's blocks.
int64_t layout_packed(WeightType type, int32_t group_size, int32_t num_rows, int32_t num_cols,
                      uint8_t* buffer, PackedWeight* out);
int64_t layout_float(FloatType type, int32_t num_rows, int32_t num_cols, uint8_t* buffer,
                     FloatWeight* out);

// Fill the panels [first_panel, last_panel), each of them whole; panels are independent of each
// other, so threads may share a matrix by ranges. rows[i] is the first byte of output row i.
void pack_blocks(WeightType type, const uint8_t* const* rows, int32_t first_panel,
                 int32_t last_panel, const PackedWeight& out);
void pack_floats(const uint8_t* const* rows, int32_t first_panel, int32_t last_panel,
                 const FloatWeight& out);

// Quantizes rows of float32, bfloat16 or float16. False if a weight is infinite or not a number.
bool quantize_int8(FloatType stored, const uint8_t* const* rows, int32_t first_panel,
                   int32_t last_panel, const PackedWeight& out);
bool quantize_int4(FloatType stored, const uint8_t* const* rows, int32_t first_panel,
                   int32_t last_panel, const PackedWeight& out);

// One row as num_cols float32.
void dequantize_row(const PackedWeight& weight, int32_t row, float* out);
void dequantize_row(const FloatWeight& weight, int32_t row, float* out);

}  // namespace pagemill
