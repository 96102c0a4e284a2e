// The C interface of the row ops and of the cache, for ctypes. All run on the caller's thread.

#include "api.hpp"
#include "isa.hpp"

using pagemill::current_isa;

PAGEMILL_EXPORT void pagemill_norm(const pagemill::Norm* args, int64_t begin, int64_t end) {
  current_isa().rows.norm(*args, begin, end);
}

PAGEMILL_EXPORT void pagemill_activation(const pagemill::Activation* args, int64_t begin,
                                         int64_t end) {
  current_isa().rows.activation(*args, begin, end);
}

PAGEMILL_EXPORT void pagemill_add(const pagemill::Add* args, int64_t begin, int64_t end) {
  current_isa().rows.add(*args, begin, end);
}

PAGEMILL_EXPORT void pagemill_scale_cap(const pagemill::ScaleCap* args, int64_t begin,
                                        int64_t end) {
  current_isa().rows.scale_cap(*args, begin, end);
}

PAGEMILL_EXPORT void pagemill_embedding(const pagemill::Embedding* args, int64_t begin,
                                        int64_t end) {
  current_isa().rows.embedding(*args, begin, end);
}

PAGEMILL_EXPORT void pagemill_rotary_write(const pagemill::RotaryWrite* args, int64_t begin,
                                           int64_t end) {
  current_isa().rows.rotary_write(*args, begin, end);
}

PAGEMILL_EXPORT void pagemill_quantize_rows(const pagemill::QuantizeRows* args, int64_t begin,
                                            int64_t end) {
  current_isa().rows.quantize_rows(*args, begin, end);
}

// Fills in all but the memory, see make_kv_cache.
PAGEMILL_EXPORT void pagemill_kv_cache(int32_t type, int32_t num_blocks, int32_t block_size,
                                       int32_t num_kv_heads, int32_t head_dim,
                                       pagemill::KvCache* out) {
  *out = pagemill::make_kv_cache(static_cast<pagemill::KvType>(type), num_blocks, block_size,
                                 num_kv_heads, head_dim);
}

PAGEMILL_EXPORT void pagemill_move_blocks(void* pool, const pagemill::KvCache* layers,
                                          int32_t num_layers, const pagemill::BlockMove* moves,
                                          int64_t num_moves, uint8_t* swap) {
  pagemill::move_blocks(*static_cast<pagemill::Pool*>(pool), layers, num_layers, moves, num_moves,
                        swap);
}
