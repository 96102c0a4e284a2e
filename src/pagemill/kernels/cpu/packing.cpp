// Where a packed matrix's arrays lie, and reading single rows back.

#include "packing.hpp"

#include "half.hpp"
#include "packing_lines.hpp"

namespace pagemill {
namespace {

struct Format {
  int bits, group_size, super_size, block_size;
  bool affine;
  int zero;
  bool wide = false;
};

bool format_of(WeightType type, int32_t group_size, int32_t padded_cols, Format* out) {
  switch (type) {
    case WeightType::kQ4_0:
      *out = {4, 32, 0, 32, false, 8};
      return true;
    case WeightType::kQ4_1:
      *out = {4, 32, 0, 32, true, 0};
      return true;
    case WeightType::kQ5_0:
      *out = {5, 32, 0, 32, false, 16};
      return true;
    case WeightType::kQ5_1:
      *out = {5, 32, 0, 32, true, 0};
      return true;
    case WeightType::kQ8_0:
      *out = {8, 32, 0, 32, false, 128};
      return true;
    case WeightType::kQ4_K:
      *out = {4, 32, 256, 256, true, 0};
      return true;
    case WeightType::kQ5_K:
      *out = {5, 32, 256, 256, true, 0};
      return true;
    case WeightType::kQ6_K:
      *out = {6, 16, 256, 256, false, 32};
      return true;
    case WeightType::kInt8:
    case WeightType::kInt4: {
      const bool known = group_size == 16 || group_size == 32 || group_size == 64 ||
                         group_size == 128 || group_size == 0;
      const int size = group_size ? group_size : padded_cols;
      *out = type == WeightType::kInt8 ? Format{8, size, 0, 1, false, 128, group_size == 0}
                                       : Format{4, size, 0, 1, true, 0};
      return known;
    }
    default:
      return false;
  }
}

int32_t round_up(int32_t value, int32_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Hands out pieces of a buffer, each 64-byte aligned.
class Pieces {
 public:
  explicit Pieces(uint8_t* buffer) : buffer_(buffer) {}

  uint8_t* take(int64_t num_bytes) {
    uint8_t* piece = buffer_ ? buffer_ + size_ : nullptr;
    size_ += (num_bytes + 63) / 64 * 64;
    return piece;
  }
  int64_t size() const { return size_; }

 private:
  uint8_t* buffer_;
  int64_t size_ = 0;
};

template <int kBits>
void dequantize(const PackedWeight& w, int32_t row, float* out) {
  const int64_t panel = row / kPanelRows;
  const int lane = row % kPanelRows;
  const int64_t num_units = w.padded_cols / kUnitCols;
  const int outer_size = w.super_size ? w.super_size : w.group_size;
  const int64_t num_outer = (w.padded_cols + outer_size - 1) / outer_size;
  const int64_t num_groups = (w.padded_cols + w.group_size - 1) / w.group_size;
  const uint8_t* quants = w.quants + panel * num_units * unit_bytes(kBits);
  const int step = w.group_size < kUnitCols ? w.group_size : kUnitCols;
  const float zero = static_cast<float>(w.zero);
  for (int32_t unit = 0; unit < num_units; ++unit) {
    uint8_t q[kUnitCols];
    read_unit<kBits>(quants + unit * unit_bytes(kBits), lane, q);
    if (w.wide) {
      for (uint8_t& each : q) each ^= 128;  // as it would be with a zero of 128
    }
    float values[kUnitCols];
    for (int start = 0; start < kUnitCols; start += step) {
      const int32_t column = unit * kUnitCols + start;
      const int64_t outer = (panel * num_outer + column / outer_size) * kPanelRows + lane;
      const int64_t group = (panel * num_groups + column / w.group_size) * kPanelRows + lane;
      float scale = float_from_half(w.scales[outer]);
      float min = w.affine ? float_from_half(w.mins[outer]) : 0.0f;
      if (w.super_size && w.affine) {
        scale *= static_cast<float>(w.sub_scales[group]);
        min = -(min * static_cast<float>(w.sub_mins[group]));
      } else if (w.super_size) {
        scale *= static_cast<float>(static_cast<int8_t>(w.sub_scales[group]));
      }
      for (int i = start; i < start + step; ++i) {
        const float value = static_cast<float>(q[i]);
        values[i] = w.affine ? scale * value + min : scale * (value - zero);
      }
    }
    const int32_t left = w.num_cols - unit * kUnitCols;
    memcpy(out + unit * kUnitCols, values, sizeof(float) * (left < kUnitCols ? left : kUnitCols));
  }
}

}  // namespace

int64_t layout_packed(WeightType type, int32_t group_size, int32_t num_rows, int32_t num_cols,
                      uint8_t* buffer, PackedWeight* out) {
  const int32_t padded_rows = round_up(num_rows, kPanelRows);
  const int32_t padded_cols = round_up(num_cols, kUnitCols);
  Format f;
  if (!format_of(type, group_size, padded_cols, &f) || num_cols % f.block_size) return -1;
  const int outer_size = f.super_size ? f.super_size : f.group_size;
  const int64_t num_outer = (padded_cols + outer_size - 1) / outer_size;
  const int64_t num_groups = (padded_cols + f.group_size - 1) / f.group_size;
  Pieces pieces(buffer);
  *out = {f.bits,   f.group_size, f.super_size, f.affine,    f.zero,  f.wide,
          num_rows, num_cols,     padded_rows,  padded_cols, nullptr, nullptr,
          nullptr,  nullptr,      nullptr};
  const int64_t read_beyond = f.wide ? unit_bytes(8) : 0;
  out->quants = pieces.take(int64_t{padded_rows} * padded_cols * f.bits / 8 + read_beyond);
  out->scales = reinterpret_cast<uint16_t*>(pieces.take(2 * num_outer * padded_rows));
  if (f.affine) out->mins = reinterpret_cast<uint16_t*>(pieces.take(2 * num_outer * padded_rows));
  if (f.super_size) out->sub_scales = pieces.take(num_groups * padded_rows);
  if (f.super_size && f.affine) out->sub_mins = pieces.take(num_groups * padded_rows);
  return pieces.size();
}

int64_t layout_float(FloatType type, int32_t num_rows, int32_t num_cols, uint8_t* buffer,
                     FloatWeight* out) {
  const int32_t padded_rows = round_up(num_rows, kPanelRows);
  *out = {type, num_rows, num_cols, padded_rows, buffer};
  return int64_t{padded_rows} * num_cols * (type == FloatType::kFloat32 ? 4 : 2);
}

void dequantize_row(const PackedWeight& w, int32_t row, float* out) {
  switch (w.bits) {
    case 4:
      return dequantize<4>(w, row, out);
    case 5:
      return dequantize<5>(w, row, out);
    case 6:
      return dequantize<6>(w, row, out);
    default:
      return dequantize<8>(w, row, out);
  }
}

void dequantize_row(const FloatWeight& w, int32_t row, float* out) {
  const int64_t first = int64_t{row / kPanelRows} * w.num_cols * kPanelRows + row % kPanelRows;
  if (w.type == FloatType::kFloat32) {
    const float* values = static_cast<const float*>(w.values) + first;
    for (int64_t k = 0; k < w.num_cols; ++k) out[k] = values[k * kPanelRows];
    return;
  }
  const uint16_t* values = static_cast<const uint16_t*>(w.values) + first;
  for (int64_t k = 0; k < w.num_cols; ++k) {
    const uint16_t bits = values[k * kPanelRows];
    out[k] = w.type == FloatType::kBFloat16 ? float_from_bfloat(bits) : float_from_half(bits);
  }
}

}  // namespace pagemill
