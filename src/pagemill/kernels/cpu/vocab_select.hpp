// Which tokens of a row the filters leave, and the draw of one of them.
#pragma once

#include "vocab_ops.hpp"

namespace pagemill {

// Better tokens first: by logit, then by lower id.
inline bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token_id < b.token_id;
}

// The k best possible tokens of logits [vocab_size], in no order; out has room for vocab_size.
// Returns their number: less than k if fewer are possible.
int64_t collect_largest(const VocabKernels& kernels, const float* logits, int64_t vocab_size,
                        int64_t k, Candidate* out);

// The possible tokens with a logit of at least `lowest`, by ascending id. Returns their number.
int64_t collect_at_least(const VocabKernels& kernels, const float* logits, int64_t vocab_size,
                         float lowest, Candidate* out);

// The worst of the smallest set of best candidates that together weigh at least target; the worst
// of all if all together do not. There is at least one; their order is changed.
Candidate nucleus_end(Candidate* candidates, int64_t count, double target);

// The first of the items 0 to count - 1, each with a mass, at which the sum of masses, *before
// included, exceeds target; where rounding keeps it from that, the last that has mass. *before
// becomes the sum ahead of it. One item at least must have mass.
template <class F>
int64_t find_at_mass(int64_t count, double target, double* before, const F& mass_of) {
  double sum = *before;
  int64_t last = -1;
  for (int64_t i = 0; i < count; ++i) {
    const double mass = mass_of(i);
    if (mass > 0.0) {
      last = i;
      *before = sum;
      if (sum + mass > target) break;
    }
    sum += mass;
  }
  return last;
}

}  // namespace pagemill
