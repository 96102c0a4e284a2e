// GGUF blocks to panels. The block layouts are ggml's: a float16 scale (and minimum), then the
// quants with the first half of the block in the low 4 bits and the second in the high ones; the
// K-quants are blocks of 256 with integer scales for each 16 or 32 within.

#include "packing.hpp"
#include "packing_lines.hpp"

namespace pagemill {
namespace {

// Bits 0..7 of `bits` as bit 4 of 8 bytes.
inline uint64_t fifth_bits(uint32_t bits) {
  const uint64_t one_each = bits * 0x0101010101010101u & 0x8040201008040201u;
  return (one_each + 0x7f7f7f7f7f7f7f7fu) >> 3 & 0x1010101010101010u;
}

inline void add_fifth_bits(uint32_t bits, uint8_t* q) {
  for (int i = 0; i < 4; ++i) {
    uint64_t bytes;
    memcpy(&bytes, q + 8 * i, sizeof bytes);
    bytes |= fifth_bits(bits >> 8 * i & 255u);
    memcpy(q + 8 * i, &bytes, sizeof bytes);
  }
}

template <int kHalf>
inline void split_nibbles(const uint8_t* packed, uint8_t* q) {
  for (int i = 0; i < kHalf; ++i) q[i] = packed[i] & 15;
  for (int i = 0; i < kHalf; ++i) q[kHalf + i] = packed[i] >> 4;
}

// Where the scales of one row and block go; entries of neighbouring groups lie 16 apart.
struct Scales {
  uint16_t* scales;
  uint16_t* mins;
  uint8_t* sub_scales;
  uint8_t* sub_mins;
};

// The 12 bytes of Q4_K and Q5_K: eight pairs of 6-bit integers.
inline void write_sub_scales(const uint8_t* packed, const Scales& s) {
  for (int g = 0; g < 4; ++g) {
    s.sub_scales[g * kPanelRows] = packed[g] & 63;
    s.sub_mins[g * kPanelRows] = packed[4 + g] & 63;
    s.sub_scales[(4 + g) * kPanelRows] =
        static_cast<uint8_t>((packed[8 + g] & 15) | packed[g] >> 6 << 4);
    s.sub_mins[(4 + g) * kPanelRows] =
        static_cast<uint8_t>(packed[8 + g] >> 4 | packed[4 + g] >> 6 << 4);
  }
}

struct Q4_0 {
  static constexpr int kBits = 4, kSize = 32, kBytes = 18, kZero = 8;
  static void read(const uint8_t* block, uint8_t* q, const Scales& s) {
    *s.scales = load_u16(block);
    split_nibbles<16>(block + 2, q);
  }
};

struct Q4_1 {
  static constexpr int kBits = 4, kSize = 32, kBytes = 20, kZero = 0;
  static void read(const uint8_t* block, uint8_t* q, const Scales& s) {
    *s.scales = load_u16(block);
    *s.mins = load_u16(block + 2);
    split_nibbles<16>(block + 4, q);
  }
};

struct Q5_0 {
  static constexpr int kBits = 5, kSize = 32, kBytes = 22, kZero = 16;
  static void read(const uint8_t* block, uint8_t* q, const Scales& s) {
    *s.scales = load_u16(block);
    split_nibbles<16>(block + 6, q);
    add_fifth_bits(load_u32(block + 2), q);
  }
};

struct Q5_1 {
  static constexpr int kBits = 5, kSize = 32, kBytes = 24, kZero = 0;
  static void read(const uint8_t* block, uint8_t* q, const Scales& s) {
    *s.scales = load_u16(block);
    *s.mins = load_u16(block + 2);
    split_nibbles<16>(block + 8, q);
    add_fifth_bits(load_u32(block + 4), q);
  }
};

struct Q8_0 {
  static constexpr int kBits = 8, kSize = 32, kBytes = 34, kZero = 128;
  static void read(const uint8_t* block, uint8_t* q, const Scales& s) {
    *s.scales = load_u16(block);
    for (int i = 0; i < kSize; ++i) q[i] = block[2 + i] ^ 128;  // -128..127 to 0..255
  }
};

struct Q4_K {
  static constexpr int kBits = 4, kSize = 256, kBytes = 144, kZero = 0;
  static void read(const uint8_t* block, uint8_t* q, const Scales& s) {
    *s.scales = load_u16(block);
    *s.mins = load_u16(block + 2);
    write_sub_scales(block + 4, s);
    for (int i = 0; i < 4; ++i) split_nibbles<32>(block + 16 + 32 * i, q + 64 * i);
  }
};

struct Q5_K {
  static constexpr int kBits = 5, kSize = 256, kBytes = 176, kZero = 0;
  static void read(const uint8_t* block, uint8_t* q, const Scales& s) {
    *s.scales = load_u16(block);
    *s.mins = load_u16(block + 2);
    write_sub_scales(block + 4, s);
    const uint8_t* high = block + 16;
    for (int i = 0; i < 4; ++i) split_nibbles<32>(block + 48 + 32 * i, q + 64 * i);
    for (int g = 0; g < 8; ++g) {
      for (int i = 0; i < 32; ++i) {
        q[32 * g + i] = static_cast<uint8_t>(q[32 * g + i] | (high[i] >> g & 1) << 4);
      }
    }
  }
};

struct Q6_K {
  static constexpr int kBits = 6, kSize = 256, kBytes = 210, kZero = 32;
  static void read(const uint8_t* block, uint8_t* q, const Scales& s) {
    for (int half = 0; half < 2; ++half) {
      const uint8_t* low = block + 64 * half;
      const uint8_t* high = block + 128 + 32 * half;
      split_nibbles<64>(low, q + 128 * half);
      for (int g = 0; g < 4; ++g) {
        uint8_t* out = q + 128 * half + 32 * g;
        for (int i = 0; i < 32; ++i) {
          out[i] = static_cast<uint8_t>(out[i] | (high[i] >> 2 * g & 3) << 4);
        }
      }
    }
    for (int g = 0; g < 16; ++g) s.sub_scales[g * kPanelRows] = block[192 + g];
    *s.scales = load_u16(block + 208);
  }
};

template <class Block>
void pack_panel(const uint8_t* const* rows, int32_t panel, const PackedWeight& out) {
  constexpr int kUnits = Block::kSize / kUnitCols;
  const int64_t num_blocks = out.num_cols / Block::kSize;
  const int64_t num_subs = out.super_size ? out.num_cols / out.group_size : 0;
  const int64_t first_scale = panel * num_blocks * kPanelRows;
  const int64_t first_sub = panel * num_subs * kPanelRows;
  static const uint8_t kNoBlock[Block::kBytes] = {};
  uint8_t* quants = out.quants + panel * num_blocks * kUnits * unit_bytes(Block::kBits);
  for (int64_t b = 0; b < num_blocks; ++b) {
    uint8_t q[kPanelRows][Block::kSize];
    for (int lane = 0; lane < kPanelRows; ++lane) {
      const int32_t row = panel * kPanelRows + lane;
      const bool exists = row < out.num_rows && rows[row];
      const int64_t scale = first_scale + b * kPanelRows + lane;
      const int64_t sub = first_sub + b * (num_subs / num_blocks) * kPanelRows + lane;
      const Scales at = {out.scales + scale, out.mins ? out.mins + scale : nullptr,
                         out.sub_scales ? out.sub_scales + sub : nullptr,
                         out.sub_mins ? out.sub_mins + sub : nullptr};
      Block::read(exists ? rows[row] + b * Block::kBytes : kNoBlock, q[lane], at);
      if (!exists) memset(q[lane], Block::kZero, Block::kSize);
    }
    for (int u = 0; u < kUnits; ++u, quants += unit_bytes(Block::kBits)) {
      write_unit<Block::kBits>(&q[0][u * kUnitCols], Block::kSize, quants);
    }
  }
}

using PackPanel = void (*)(const uint8_t* const*, int32_t, const PackedWeight&);

PackPanel packer_of(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return pack_panel<Q4_0>;
    case WeightType::kQ4_1:
      return pack_panel<Q4_1>;
    case WeightType::kQ5_0:
      return pack_panel<Q5_0>;
    case WeightType::kQ5_1:
      return pack_panel<Q5_1>;
    case WeightType::kQ8_0:
      return pack_panel<Q8_0>;
    case WeightType::kQ4_K:
      return pack_panel<Q4_K>;
    case WeightType::kQ5_K:
      return pack_panel<Q5_K>;
    case WeightType::kQ6_K:
      return pack_panel<Q6_K>;
    default:
      return nullptr;  // layout_packed has refused it
  }
}

}  // namespace

void pack_blocks(WeightType type, const uint8_t* const* rows, int32_t first_panel,
                 int32_t last_panel, const PackedWeight& out) {
  const PackPanel pack = packer_of(type);
  for (int32_t panel = first_panel; panel < last_panel; ++panel) pack(rows, panel, out);
}

}  // namespace pagemill
