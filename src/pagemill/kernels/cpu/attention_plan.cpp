#include "attention_plan.hpp"

#include <algorithm>

namespace pagemill {
namespace {

// Reading a part's keys and values costs about as much as computing this many products with it.
constexpr int kReadProducts = 8;

// Items per thread, so that threads finish together though items differ and neighbours interfere.
constexpr int kItemsPerThread = 4;

}  // namespace

// Of one part, for one key/value head.
int64_t AttentionPlan::cost(int num_rows) const {
  return int64_t{num_rows} * heads_per_kv_ + kReadProducts;
}

// Calls visit(item) for each row tile; the last tile of a sequence, which sees most, first.
template <class F>
void AttentionPlan::for_each_tile(const Step& step, const F& visit) const {
  const int tile_rows = std::max(1, kTileProducts / heads_per_kv_);
  for (int b = 0; b < step.num_sequences; ++b) {
    const int begin = static_cast<int>(step.query_start_loc[b]);
    const int end = static_cast<int>(step.query_start_loc[b + 1]);
    const int first_position = static_cast<int>(step.context_lens[b]) - (end - begin);
    const int num_tiles = (end - begin + tile_rows - 1) / tile_rows;
    for (int tile = num_tiles - 1; tile >= 0; --tile) {
      const int row = begin + tile * tile_rows;
      const int num_rows = std::min(tile_rows, end - row);
      const int position = first_position + row - begin;
      const int first_seen = shape_.window == 0 ? 0 : std::max(0, position - shape_.window + 1);
      visit(AttentionItem{b, row, num_rows, position, first_seen / kPartTokens,
                          (position + num_rows - 1) / kPartTokens + 1, -1});
    }
  }
}

void AttentionPlan::build(const Step& step, const AttentionShape& shape, int num_threads) {
  shape_ = shape;
  heads_per_kv_ = shape.num_heads / shape.num_kv_heads;
  const int64_t row_floats = (int64_t{shape.head_dim} + 15) / 16 * 16 + 2;
  int64_t total_cost = 0;
  for_each_tile(step, [&](const AttentionItem& tile) {
    total_cost += cost(tile.num_rows) * (tile.end_part - tile.first_part) * shape.num_kv_heads;
  });
  const int num_shares = num_threads == 1 ? 1 : kItemsPerThread * num_threads;
  const int64_t share = (total_cost + num_shares - 1) / num_shares;
  items_.clear();
  splits_.clear();
  int64_t num_partials = 0;
  for_each_tile(step, [&](AttentionItem item) {
    const AttentionItem tile = item;
    const int num_parts = tile.end_part - tile.first_part;
    const int most = static_cast<int>(std::max<int64_t>(1, share / cost(tile.num_rows)));
    if (num_parts <= most) {
      items_.push_back(tile);
      return;
    }
    item.split = static_cast<int>(splits_.size());
    const int64_t per_head = row_floats * tile.num_rows * heads_per_kv_ * num_parts;
    splits_.push_back({tile.first_part, tile.end_part, (num_parts + most - 1) / most, num_partials,
                       per_head});
    num_partials += per_head * shape.num_kv_heads;
    for (int part = tile.first_part; part < tile.end_part; part += most) {
      item.first_part = part;
      item.end_part = std::min(part + most, tile.end_part);
      items_.push_back(item);
    }
  });
  if (partials_.size() < static_cast<size_t>(num_partials)) partials_.resize(num_partials);
  pending_.clear();
  for (const AttentionSplit& split : splits_) {
    pending_.insert(pending_.end(), shape.num_kv_heads, split.num_items);
  }
  work_ = {items_.data(), splits_.data(), partials_.data(), pending_.data(),
           static_cast<int32_t>(items_.size()) * shape.num_kv_heads, shape.num_kv_heads};
}

int64_t attention_scratch_floats(int num_heads, const KvCache& cache) {
  const int64_t heads_per_kv = num_heads / cache.num_kv_heads;
  const int64_t rows = std::max<int64_t>(1, kTileProducts / heads_per_kv);
  const int64_t products = rows * heads_per_kv;
  // Queries, scores, outputs of a part and of all, two maxima and sums; then keys of an odd block
  // size, the part in float32, scales of keys and values.
  const int64_t of_products = cache.head_dim + kPartTokens + 2 * cache.padded_head_dim + 4;
  const int64_t of_part = 2 * cache.head_dim + cache.padded_head_dim + 2;
  const int64_t to_align = 64 / sizeof(float);
  return products * of_products + kPartTokens * of_part + to_align;
}

}  // namespace pagemill
