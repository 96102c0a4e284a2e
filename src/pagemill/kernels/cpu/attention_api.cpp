// The C interface of attention, for ctypes.

#include <vector>

#include "api.hpp"
#include "attention_plan.hpp"
#include "isa.hpp"
#include "pool.hpp"

// Plans for num_threads and computes all items: on the pool, or without one on the caller, the last
// item first. That the order and the number of threads change nothing is for tests to see. Returns
// how many items there were for each key/value head.
PAGEMILL_EXPORT int32_t pagemill_attend(const pagemill::Attention* attention,
                                        const pagemill::Step* step, int32_t num_threads,
                                        void* pool) {
  pagemill::AttentionPlan plan{pagemill::AttentionShape(*attention)};
  plan.build(*step, num_threads);
  const pagemill::AttentionWork& work = plan.work();
  const int64_t scratch_floats =
      pagemill::attention_scratch_floats(attention->num_heads, attention->cache);
  const auto run_item = [&](int item) {
    static thread_local std::vector<float> scratch;
    if (scratch.size() < static_cast<size_t>(scratch_floats)) scratch.resize(scratch_floats);
    pagemill::current_isa().attend(*attention, *step, work, item, item + 1, scratch.data());
  };
  if (pool) {
    static_cast<pagemill::Pool*>(pool)->run(work.num_items, run_item);
  } else {
    for (int item = work.num_items - 1; item >= 0; --item) run_item(item);
  }
  return work.num_items / work.num_kv_heads;
}
