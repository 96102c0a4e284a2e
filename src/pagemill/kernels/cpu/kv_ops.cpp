#include "kv_cache.hpp"

#include <cstring>

namespace pagemill {
namespace {

int64_t round_up(int64_t bytes, int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace

KvCache make_kv_cache(KvType type, int num_blocks, int block_size, int num_kv_heads, int head_dim) {
  KvCache cache = {};
  cache.type = type;
  cache.num_blocks = num_blocks;
  cache.block_size = block_size;
  cache.num_kv_heads = num_kv_heads;
  cache.head_dim = head_dim;
  cache.padded_head_dim = static_cast<int32_t>(round_up(head_dim, 16));
  const int64_t element_bytes = type == KvType::kFloat32 ? 4 : type == KvType::kBFloat16 ? 2 : 1;
  const int64_t scale_bytes = type == KvType::kInt8 ? sizeof(float) * block_size : 0;
  const int64_t key_bytes = element_bytes * block_size * head_dim;
  cache.values_at = round_up(key_bytes, 16);
  cache.key_scales_at = cache.values_at + element_bytes * block_size * cache.padded_head_dim;
  cache.value_scales_at = cache.key_scales_at + scale_bytes;
  cache.head_bytes = round_up(cache.value_scales_at + scale_bytes, 64);
  cache.block_bytes = num_kv_heads * cache.head_bytes;
  return cache;
}

void move_blocks(Pool& pool, const KvCache* layers, int num_layers, const BlockMove* moves,
                 int64_t num_moves, uint8_t* swap) {
  // A layer's moves depend on each other, two layers' do not.
  pool.run(num_layers, [&](int layer) {
    const int64_t bytes = layers[layer].block_bytes;
    const auto block = [&](int64_t id) { return layers[layer].blocks + id * bytes; };
    const auto slot = [&](int64_t id) { return swap + (id * num_layers + layer) * bytes; };
    for (int64_t i = 0; i < num_moves; ++i) {
      const BlockMove& move = moves[i];
      const uint8_t* from = move.kind == MoveKind::kSwapIn ? slot(move.source) : block(move.source);
      uint8_t* to = move.kind == MoveKind::kSwapOut ? slot(move.target) : block(move.target);
      if (from != to) std::memcpy(to, from, bytes);
    }
  });
}

}  // namespace pagemill
