// The keys and values of one layer, in blocks of token slots, laid out for the attention kernel.
//
// slot = block_id * block_size + offset. A block is one contiguous piece of block_bytes(), so that
// copying or swapping it is one memory copy. Within a block each key/value head has its own piece:
//
//   block    | head 0                                        | head 1 ...
//   head     | keys | values | key scales | value scales | padding to 64 bytes
//   keys     [ceil(block_size / 16)] vectors of 16 tokens, each [head_dim][tokens of the vector];
//            the last vector of a block may have fewer than 16
//   values   [block_size][padded_head_dim], the padding is 0
//   scales   [block_size] float32, of kInt8 only: one for each token and head
//
// Transposed keys give the scores of 16 tokens as head_dim multiply-adds of whole vectors, and
// values by token do the same for the weighted sum.
#pragma once

#include <cstdint>

#include "pool.hpp"

namespace pagemill {

enum class KvType : int32_t { kFloat32 = 0, kBFloat16 = 1, kInt8 = 2 };

// The offsets are make_kv_cache's, and count bytes.
struct KvCache {
  uint8_t* blocks;
  KvType type;
  int32_t num_blocks;
  int32_t block_size;  // 1 to 1,024
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t padded_head_dim;  // the next multiple of 16
  int64_t values_at;        // in the piece of a head; its keys are at 0
  int64_t key_scales_at;
  int64_t value_scales_at;
  int64_t head_bytes;
  int64_t block_bytes;
};

// A cache without memory: the caller allocates num_blocks * block_bytes and sets blocks. The memory
// need not be initialized, only what was written is read.
KvCache make_kv_cache(KvType type, int num_blocks, int block_size, int num_kv_heads, int head_dim);

enum class MoveKind : int64_t { kCopy = 0, kSwapOut = 1, kSwapIn = 2 };

// Content of a block, in all layers, to be brought from a block or swap slot to another.
struct BlockMove {
  MoveKind kind;
  int64_t source;
  int64_t target;
};

// Makes the moves, as if one after another. A swap slot holds a block of every layer, one after
// another: slot s of layer l is at swap + (s * num_layers + l) * block_bytes. swap may be null if no
// move needs it. All layers have the same layout.
void move_blocks(Pool& pool, const KvCache* layers, int num_layers, const BlockMove* moves,
                 int64_t num_moves, uint8_t* swap);

}  // namespace pagemill
