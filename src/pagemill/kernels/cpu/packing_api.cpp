// The C interface of packing, for ctypes.

#include "api.hpp"
#include "packing.hpp"

namespace {

using pagemill::FloatType;
using pagemill::FloatWeight;
using pagemill::PackedWeight;
using pagemill::WeightType;

}  // namespace

PAGEMILL_EXPORT int64_t pagemill_layout_packed(int32_t type, int32_t group_size, int32_t num_rows,
                                               int32_t num_cols, uint8_t* buffer,
                                               PackedWeight* out) {
  return pagemill::layout_packed(static_cast<WeightType>(type), group_size, num_rows, num_cols,
                                 buffer, out);
}

PAGEMILL_EXPORT int64_t pagemill_layout_float(int32_t type, int32_t num_rows, int32_t num_cols,
                                              uint8_t* buffer, FloatWeight* out) {
  return pagemill::layout_float(static_cast<FloatType>(type), num_rows, num_cols, buffer, out);
}

PAGEMILL_EXPORT void pagemill_pack_blocks(int32_t type, const uint8_t* const* rows,
                                          int32_t first_panel, int32_t last_panel,
                                          const PackedWeight* out) {
  pagemill::pack_blocks(static_cast<WeightType>(type), rows, first_panel, last_panel, *out);
}

PAGEMILL_EXPORT void pagemill_pack_floats(const uint8_t* const* rows, int32_t first_panel,
                                          int32_t last_panel, const FloatWeight* out) {
  pagemill::pack_floats(rows, first_panel, last_panel, *out);
}

// 1, or 0 if a weight is infinite or not a number.
PAGEMILL_EXPORT int32_t pagemill_quantize(int32_t stored, const uint8_t* const* rows,
                                          int32_t first_panel, int32_t last_panel,
                                          const PackedWeight* out) {
  const auto quantize = out->bits == 4 ? pagemill::quantize_int4 : pagemill::quantize_int8;
  return quantize(static_cast<FloatType>(stored), rows, first_panel, last_panel, *out);
}

// Rows row_ids[0..count) as [count, num_cols] float32.
PAGEMILL_EXPORT void pagemill_dequantize_packed(const PackedWeight* weight, const int64_t* row_ids,
                                                int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    pagemill::dequantize_row(*weight, static_cast<int32_t>(row_ids[i]), out + i * weight->num_cols);
  }
}

PAGEMILL_EXPORT void pagemill_dequantize_float(const FloatWeight* weight, const int64_t* row_ids,
                                               int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    pagemill::dequantize_row(*weight, static_cast<int32_t>(row_ids[i]), out + i * weight->num_cols);
  }
}
