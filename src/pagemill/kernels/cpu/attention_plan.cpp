#include "attention_plan.hpp"

#include <algorithm>

namespace pagemill {
namespace {

// Reading a part's keys and values costs about as much as computing this many products with it.
constexpr int kReadProducts = 8;

// Items per thread, so that threads finish together though items differ and neighbours interfere.
constexpr int kItemsPerThread = 4;

// Of one part, for one key/value head.
int64_t cost(int num_products) { return num_products + kReadProducts; }

}  // namespace

AttentionShape::AttentionShape(const Attention& attention)
    : num_heads(attention.num_heads),
      num_kv_heads(attention.cache.num_kv_heads),
      head_dim(attention.cache.head_dim),
      window(attention.window),
      block_size(attention.cache.block_size) {}

bool AttentionShape::operator==(const AttentionShape& other) const {
  return num_heads == other.num_heads && num_kv_heads == other.num_kv_heads &&
         head_dim == other.head_dim && window == other.window && block_size == other.block_size;
}

AttentionPlan::AttentionPlan(const AttentionShape& shape)
    : shape_(shape),
      heads_per_kv_(shape.num_heads / shape.num_kv_heads),
      tile_rows_(std::max(1, kTileProducts / heads_per_kv_)) {}

// The last tile of a sequence, which sees most, comes first.
void AttentionPlan::list_tiles(const Step& step) {
  tiles_.clear();
  for (int b = 0; b < step.num_sequences; ++b) {
    const int begin = static_cast<int>(step.query_start_loc[b]);
    const int end = static_cast<int>(step.query_start_loc[b + 1]);
    const int first_position = static_cast<int>(step.context_lens[b]) - (end - begin);
    const int num_tiles = (end - begin + tile_rows_ - 1) / tile_rows_;
    for (int tile = num_tiles - 1; tile >= 0; --tile) {
      const int row = begin + tile * tile_rows_;
      const int num_rows = std::min(tile_rows_, end - row);
      const int position = first_position + row - begin;
      const int first_seen = shape_.window == 0 ? 0 : std::max(0, position - shape_.window + 1);
      tiles_.push_back({b, row, num_rows, position, first_seen / kPartTokens,
                        (position + num_rows - 1) / kPartTokens + 1, -1});
    }
  }
}

// The parts from the start of the context that every row of the tile sees as a whole; none where
// reading them with other tiles gains little or cannot be.
int AttentionPlan::whole_parts(const AttentionTile& tile) const {
  if (2 * products(tile) > kTileProducts || kPartTokens % shape_.block_size != 0) return 0;
  const int last_position = tile.first_position + tile.num_rows - 1;
  if (shape_.window != 0 && last_position >= shape_.window) return 0;
  return (tile.first_position + 1) / kPartTokens;
}

int AttentionPlan::split_for(AttentionTile& tile) {
  if (tile.split < 0) {
    const int64_t row_floats = (int64_t{shape_.head_dim} + 15) / 16 * 16 + 2;
    const int64_t per_head = row_floats * products(tile) * (tile.end_part - tile.first_part);
    tile.split = static_cast<int>(splits_.size());
    splits_.push_back({0, num_partials_, per_head});
    num_partials_ += per_head * shape_.num_kv_heads;
  }
  return tile.split;
}

// Finds the parts whose blocks several tiles have in common, and makes items of them.
void AttentionPlan::share_parts(const Step& step) {
  num_shared_.assign(tiles_.size(), 0);
  if (step.num_sequences < 2) return;
  const int blocks_per_part = kPartTokens / shape_.block_size;
  const auto begin_of = [&](const AttentionTile& tile) {
    return step.block_tables + int64_t{tile.sequence} * step.max_blocks;
  };
  // In this order tiles that share a part are neighbours, those that see less of it first.
  std::stable_sort(tiles_.begin(), tiles_.end(), [&](const auto& left, const auto& right) {
    const int64_t *a = begin_of(left), *b = begin_of(right);
    return std::lexicographical_compare(a, a + whole_parts(left) * blocks_per_part, b,
                                        b + whole_parts(right) * blocks_per_part);
  });
  share_part(step, 0, 0, static_cast<int>(tiles_.size()));
}

// Tiles [begin, end) have the blocks of all parts before this one in common.
void AttentionPlan::share_part(const Step& step, int part, int begin, int end) {
  const int blocks_per_part = kPartTokens / shape_.block_size;
  const auto blocks_of = [&](int tile) {
    return step.block_tables + int64_t{tiles_[tile].sequence} * step.max_blocks +
           part * blocks_per_part;
  };
  while (begin < end && whole_parts(tiles_[begin]) <= part) ++begin;
  while (begin < end) {
    int next = begin + 1, num_products = products(tiles_[begin]);
    while (next < end && std::equal(blocks_of(begin), blocks_of(begin) + blocks_per_part,
                                    blocks_of(next))) {
      num_products += products(tiles_[next++]);
    }
    if (next - begin > 1) {
      const int most = tile_rows_ * heads_per_kv_;
      const int num_items = (num_products + most - 1) / most;
      const int aim = (num_products + num_items - 1) / num_items;
      for (int first = begin; first < next;) {
        int last = first, taken = 0;
        while (last < next && taken < aim && taken + products(tiles_[last]) <= most) {
          taken += products(tiles_[last]);
          ++splits_[split_for(tiles_[last])].num_items;
          num_shared_[last++] = part + 1;
        }
        items_.push_back({first, last - first, part, part + 1});
        first = last;
      }
      share_part(step, part + 1, begin, next);
    }
    begin = next;
  }
}

// Items of one tile, for the parts that it does not share.
void AttentionPlan::own_parts(int num_threads) {
  int64_t total_cost = 0;
  for (const AttentionTile& tile : tiles_) {
    total_cost += cost(products(tile)) * (tile.end_part - tile.first_part) * shape_.num_kv_heads;
  }
  const int num_shares = num_threads == 1 ? 1 : kItemsPerThread * num_threads;
  const int64_t share = (total_cost + num_shares - 1) / num_shares;
  for (size_t t = 0; t < tiles_.size(); ++t) {
    AttentionTile& tile = tiles_[t];
    const int first_part = std::max(tile.first_part, num_shared_[t]);
    const int most = static_cast<int>(std::max<int64_t>(1, share / cost(products(tile))));
    const bool has_all = first_part == tile.first_part && tile.end_part - first_part <= most;
    for (int part = first_part; part < tile.end_part; part += most) {
      items_.push_back({static_cast<int>(t), 1, part, std::min(part + most, tile.end_part)});
      if (!has_all) ++splits_[split_for(tile)].num_items;
    }
  }
}

void AttentionPlan::build(const Step& step, int num_threads) {
  items_.clear();
  splits_.clear();
  num_partials_ = 0;
  list_tiles(step);
  share_parts(step);
  own_parts(num_threads);
  if (partials_.size() < static_cast<size_t>(num_partials_)) partials_.resize(num_partials_);
  pending_.clear();
  for (const AttentionSplit& split : splits_) {
    pending_.insert(pending_.end(), shape_.num_kv_heads, split.num_items);
  }
  work_ = {tiles_.data(), items_.data(), splits_.data(), partials_.data(), pending_.data(),
           static_cast<int32_t>(items_.size()) * shape_.num_kv_heads, shape_.num_kv_heads};
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
