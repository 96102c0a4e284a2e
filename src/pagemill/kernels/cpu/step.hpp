// One batch, as pagemill/batch.py describes it.
#pragma once

#include <cstdint>

namespace pagemill {

struct Step {
  int32_t num_tokens;     // T
  int32_t num_sequences;  // B
  int32_t num_logits;     // L
  int32_t max_blocks;
  const int64_t* token_ids;        // [T]
  const int64_t* positions;        // [T]
  const int64_t* slot_mapping;     // [T] block_id * block_size + offset
  const int64_t* query_start_loc;  // [B + 1] rows of sequence b: query_start_loc[b] to [b + 1]
  const int64_t* context_lens;     // [B] tokens in the cache, those of this step included
  const int64_t* block_tables;     // [B, max_blocks]
  const int64_t* logits_indices;   // [L]
};

}  // namespace pagemill
