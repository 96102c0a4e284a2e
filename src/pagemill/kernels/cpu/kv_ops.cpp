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

void copy_block(const KvCache& cache, int64_t source, int64_t target) {
  const int64_t bytes = cache.block_bytes;
  if (source != target) {
    std::memcpy(cache.blocks + target * bytes, cache.blocks + source * bytes, bytes);
  }
}

void gather_blocks(const KvCache& cache, const int64_t* block_ids, int64_t count,
                   uint8_t* buffer) {
  const int64_t bytes = cache.block_bytes;
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(buffer + i * bytes, cache.blocks + block_ids[i] * bytes, bytes);
  }
}

void scatter_blocks(const KvCache& cache, const int64_t* block_ids, int64_t count,
                    const uint8_t* buffer) {
  const int64_t bytes = cache.block_bytes;
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(cache.blocks + block_ids[i] * bytes, buffer + i * bytes, bytes);
  }
}

}  // namespace pagemill
