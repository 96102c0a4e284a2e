// Masks, bias and penalties: what a request's own wishes and history do to its logits.
#pragma once

#include <cstdint>

namespace pagemill {

struct TokenIds {
  const int64_t* ids;
  int64_t count;
};

// In the order in which they act. `sampling/adjustments.py` has the same in numpy, bit for bit.
struct VocabAdjustments {
  TokenIds allowed;    // all others become impossible; no ids: every token is allowed
  TokenIds forbidden;  // become impossible
  TokenIds biased;     // each at most once
  const float* biases;
  TokenIds prompt;  // looked at only if a penalty asks for it
  TokenIds output;
  double repetition_penalty;  // 1: none
  double frequency_penalty;   // 0: none
  double presence_penalty;    // 0: none
};

// Changes adjusted [vocab_size], a copy of the row `logits`. counts [vocab_size] must be zero, and
// are again. False, and nothing is changed, if an id is outside the vocabulary.
bool adjust_logits(const VocabAdjustments& adjustments, const float* logits, int64_t vocab_size,
                   float* adjusted, int32_t* counts);

}  // namespace pagemill
