#include "packing_floats.hpp"

namespace pagemill {
namespace {

template <class T>
void pack(const uint8_t* const* rows, int32_t first_panel, int32_t last_panel,
          const FloatWeight& out) {
  for (int32_t panel = first_panel; panel < last_panel; ++panel) {
    T* values = static_cast<T*>(out.values) + int64_t{panel} * out.num_cols * kPanelRows;
    transpose_panel<T>(rows, panel, out.num_rows, out.num_cols, values, [](T x) { return x; });
  }
}

}  // namespace

void pack_floats(const uint8_t* const* rows, int32_t first_panel, int32_t last_panel,
                 const FloatWeight& out) {
  if (out.type == FloatType::kFloat32) {
    pack<uint32_t>(rows, first_panel, last_panel, out);
  } else {
    pack<uint16_t>(rows, first_panel, last_panel, out);
  }
}

}  // namespace pagemill
