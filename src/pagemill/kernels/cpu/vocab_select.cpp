#include "vocab_select.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace pagemill {

int64_t collect_largest(const VocabKernels& kernels, const float* logits, int64_t vocab_size,
                        int64_t k, Candidate* out) {
  if (k <= 0) return 0;
  // One pass: once there are more than enough, the worst are dropped, and what is not above the
  // k-th best so far (an equal one has the higher id) is not looked at any more.
  const int64_t limit = k + std::max<int64_t>(k, 256);
  float bound = -INFINITY;
  int64_t count = 0;
  for (int64_t column = 0; column < vocab_size;) {
    count = kernels.collect(logits, &column, vocab_size, bound, false, limit, out, count);
    if (count > k) {
      std::nth_element(out, out + (k - 1), out + count, ranks_before);
      count = k;
      bound = out[k - 1].logit;
    }
  }
  return count;
}

int64_t collect_at_least(const VocabKernels& kernels, const float* logits, int64_t vocab_size,
                         float lowest, Candidate* out) {
  int64_t column = 0;
  if (lowest < -FLT_MAX) {  // all but the impossible ones
    return kernels.collect(logits, &column, vocab_size, -INFINITY, false, INT64_MAX, out, 0);
  }
  return kernels.collect(logits, &column, vocab_size, lowest, true, INT64_MAX, out, 0);
}

Candidate nucleus_end(Candidate* candidates, int64_t count, double target) {
  // The end is in [begin, end); the candidates before begin are better ones and weigh `mass`.
  int64_t begin = 0, end = count;
  double mass = 0.0;
  while (end - begin > 1) {
    const int64_t middle = begin + (end - begin) / 2;
    std::nth_element(candidates + begin, candidates + middle, candidates + end, ranks_before);
    double upper_mass = 0.0;
    for (int64_t i = begin; i < middle; ++i) upper_mass += candidates[i].weight;
    if (mass + upper_mass >= target) {
      end = middle;
    } else {
      mass += upper_mass;
      begin = middle;
    }
  }
  return candidates[begin];
}

}  // namespace pagemill
