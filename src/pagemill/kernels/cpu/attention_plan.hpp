// The work items of a step's attention, see attention.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.hpp"

namespace pagemill {

// How a layer sees the step; layers of one shape share a plan.
struct AttentionShape {
  explicit AttentionShape(const Attention& attention);
  bool operator==(const AttentionShape& other) const;

  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t window;  // 0: none
  int32_t block_size;
};

class AttentionPlan {
 public:
  explicit AttentionPlan(const AttentionShape& shape);

  const AttentionShape& shape() const { return shape_; }

  // Lays out a step's work for num_threads. Allocates only where steps become larger.
  void build(const Step& step, int num_threads);

  // Valid until the next build. Layers that share it run one after another.
  const AttentionWork& work() const { return work_; }

 private:
  void list_tiles(const Step& step);
  void share_parts(const Step& step);
  void share_part(const Step& step, int part, int begin, int end);
  void own_parts(int num_threads);
  int products(const AttentionTile& tile) const { return tile.num_rows * heads_per_kv_; }
  int whole_parts(const AttentionTile& tile) const;
  int split_for(AttentionTile& tile);

  AttentionShape shape_;
  int heads_per_kv_;
  int tile_rows_;
  AttentionWork work_ = {};
  std::vector<AttentionTile> tiles_;
  std::vector<int32_t> num_shared_;  // of each tile, parts that it reads with others: the first ones
  std::vector<AttentionItem> items_;
  std::vector<AttentionSplit> splits_;
  std::vector<float> partials_;
  std::vector<int32_t> pending_;
  int64_t num_partials_ = 0;
};

}  // namespace pagemill
