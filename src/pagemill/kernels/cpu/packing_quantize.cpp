// Float weights to 8 and 4 bits, panel by panel. How a group gets its scale is in quantize.inc.

#include <vector>

#include "half.hpp"
#include "isa.hpp"
#include "packing_floats.hpp"
#include "packing_lines.hpp"

namespace pagemill {
namespace {

// One panel's weights and q, and how they are quantized.
class PanelQuantizer {
 public:
  PanelQuantizer(QuantizeGroup quantize_group, const PackedWeight& out)
      : quantize_group_(quantize_group),
        out_(out),
        w_(int64_t{out.padded_cols} * kPanelRows),
        operands_(w_.size()) {}

  template <int kBits>
  bool run(FloatType stored, const uint8_t* const* rows, int32_t panel) {
    load_panel(stored, rows, panel);
    if (!all_finite()) return false;
    memset(operands_.data(), out_.zero, operands_.size());
    const int64_t num_groups = (out_.padded_cols + out_.group_size - 1) / out_.group_size;
    for (int64_t g = 0; g < num_groups; ++g) {
      group(static_cast<int32_t>(g) * out_.group_size, (panel * num_groups + g) * kPanelRows);
    }
    const int64_t num_bytes = static_cast<int64_t>(operands_.size()) * kBits / 8;
    uint8_t* quants = out_.quants + panel * num_bytes;
    if (out_.wide) {
      for (int64_t i = 0; i < num_bytes; ++i) quants[i] = operands_[i] ^ 128;
    } else if constexpr (kBits == 8) {
      memcpy(quants, operands_.data(), num_bytes);
    } else {
      for (int64_t line = 0; line < num_bytes; line += kLineBytes) {
        const uint8_t* even = &operands_[2 * line];
        for (int i = 0; i < kLineBytes; ++i) {
          quants[line + i] = static_cast<uint8_t>(even[i] | even[kLineBytes + i] << 4);
        }
      }
    }
    return true;
  }

 private:
  void load_panel(FloatType stored, const uint8_t* const* rows, int32_t panel) {
    const auto load_as = [&](auto type, auto convert) {
      transpose_panel<decltype(type)>(rows, panel, out_.num_rows, out_.num_cols, w_.data(),
                                      convert);
    };
    switch (stored) {
      case FloatType::kFloat32:
        return load_as(float{}, [](float x) { return x; });
      case FloatType::kBFloat16:
        return load_as(uint16_t{}, float_from_bfloat);
      case FloatType::kFloat16:
        return load_as(uint16_t{}, float_from_half);
    }
  }

  bool all_finite() const {
    constexpr uint32_t kExponent = 0x7f800000u;
    uint32_t any_special = 0;
    for (const float w : w_) any_special |= (bits_of_float(w) & kExponent) == kExponent;
    return !any_special;
  }

  void group(int32_t start, int64_t scale_at) {
    uint16_t* scales = out_.scales + scale_at;
    uint16_t* mins = out_.affine ? out_.mins + scale_at : nullptr;
    const int32_t left = out_.num_cols - start;
    if (left > 0) {
      const int64_t first = int64_t{start} * kPanelRows;
      quantize_group_(&w_[first], left < out_.group_size ? left : out_.group_size,
                      &operands_[first], scales, mins);
      return;
    }
    memset(scales, 0, kPanelRows * sizeof *scales);  // all padding
    if (mins) memset(mins, 0, kPanelRows * sizeof *mins);
  }

  QuantizeGroup quantize_group_;
  const PackedWeight& out_;
  std::vector<float> w_;           // [padded_cols][16]
  std::vector<uint8_t> operands_;  // [padded_cols / 4][16][4]
};

template <int kBits>
bool quantize(QuantizeGroup quantize_group, FloatType stored, const uint8_t* const* rows,
              int32_t first_panel, int32_t last_panel, const PackedWeight& out) {
  PanelQuantizer quantizer(quantize_group, out);
  for (int32_t panel = first_panel; panel < last_panel; ++panel) {
    if (!quantizer.run<kBits>(stored, rows, panel)) return false;
  }
  return true;
}

}  // namespace

bool quantize_int8(FloatType stored, const uint8_t* const* rows, int32_t first_panel,
                   int32_t last_panel, const PackedWeight& out) {
  return quantize<8>(current_isa().int8_group, stored, rows, first_panel, last_panel, out);
}

bool quantize_int4(FloatType stored, const uint8_t* const* rows, int32_t first_panel,
                   int32_t last_panel, const PackedWeight& out) {
  return quantize<4>(current_isa().int4_group, stored, rows, first_panel, last_panel, out);
}

}  // namespace pagemill
