// The work items of a step's attention, see attention.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.hpp"

namespace pagemill {

// How a layer sees the step; layers of one shape share a plan.
struct AttentionShape {
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t window;  // 0: none
};

class AttentionPlan {
 public:
  // Lays out a step's work for num_threads. Allocates only where steps become larger.
  void build(const Step& step, const AttentionShape& shape, int num_threads);

  // Valid until the next build. Layers that share it run one after another.
  const AttentionWork& work() const { return work_; }

 private:
  template <class F>
  void for_each_tile(const Step& step, const F& visit) const;
  int64_t cost(int num_rows) const;

  AttentionShape shape_ = {};
  int heads_per_kv_ = 1;
  AttentionWork work_ = {};
  std::vector<AttentionItem> items_;
  std::vector<AttentionSplit> splits_;
  std::vector<float> partials_;
  std::vector<int32_t> pending_;
};

}  // namespace pagemill
