// Attention over the paged cache for the rows of a step, prefill chunks and decodes alike.
//
// Exactness. The context of a sequence is cut at absolute positions into parts of kPartTokens. For
// each row and head a part gives its own maximum, sum and weighted sum of values, and the parts are
// merged from the first to the last. That is done for every row, long or short, so the bits of a
// row do not depend on which rows share a work item, nor on whether one thread computed all parts
// or many did. A part that a row does not see would merge with factors of exactly 1 and 0.
//
// Work. A tile is some rows of one sequence; with all query heads of one key/value head they share
// every load. An item is a tile by some parts of the context, or several tiles by one part whose
// blocks they have in common: sequences with a shared prefix read it together. Where an item has all
// parts of its tile, it merges as it goes. Where parts are spread over items, each leaves its part in
// the plan's memory, and whichever item finishes last merges them; nobody waits.
#pragma once

#include <cstdint>

#include "kv_cache.hpp"
#include "quantized_rows.hpp"
#include "step.hpp"

namespace pagemill {

constexpr int kPartTokens = 256;
constexpr int kTileProducts = 96;  // rows times query heads that an item has at most, if it can

// One layer's inputs. Query head h reads key/value head h / (num_heads / num_kv_heads).
struct Attention {
  const float* query;  // row t, head h at query + t * query_stride + h * head_dim
  int64_t query_stride;
  float* out;  // likewise; or null
  int64_t out_stride;
  KvCache cache;  // this step's keys and values written
  int32_t num_heads;
  int32_t window;  // a row sees this many positions, its own included; 0: all before it
  float scale;     // multiplies the query
  float soft_cap;  // scores become soft_cap * tanh(score / soft_cap); 0: they stay
  QuantizedRows rounded;  // the outputs in 8 bits, if wanted; head_dim is then a multiple of 32
};

struct AttentionTile {
  int32_t sequence;
  int32_t first_row, num_rows;  // of the batch
  int32_t first_position;       // of first_row in its sequence
  int32_t first_part, end_part;
  int32_t split;  // index of the tile's AttentionSplit, or -1: one item has all parts
};

// Parts [first_part, end_part) of tiles [first_tile, first_tile + num_tiles). Of several tiles every
// row sees every token of the parts, and these lie in the same blocks.
struct AttentionItem {
  int32_t first_tile, num_tiles;
  int32_t first_part, end_part;
};

// Where the parts of a tile are spread over items.
struct AttentionSplit {
  int32_t num_items;
  int64_t partials;           // where the partial results of key/value head 0 begin, in floats
  int64_t partials_per_head;  // part by part: outputs, maxima, sums of all products
};

// The work of a step; AttentionPlan makes it. All items of key/value head 0 come first, then those of
// head 1: item i is items[i % n] for head i / n, n being num_items / num_kv_heads.
struct AttentionWork {
  const AttentionTile* tiles;
  const AttentionItem* items;
  const AttentionSplit* splits;
  float* partials;
  int32_t* pending;  // [splits][num_kv_heads] items that have not finished
  int32_t num_items;
  int32_t num_kv_heads;
};

// Computes items [begin, end) with scratch memory of the calling thread.
using Attend = void(const Attention& attention, const Step& step, const AttentionWork& work,
                    int begin, int end, float* scratch);

// Floats of scratch memory that one thread needs.
int64_t attention_scratch_floats(int num_heads, const KvCache& cache);

}  // namespace pagemill
