#include "vocab_adjust.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace pagemill {
namespace {

bool all_below(const TokenIds& tokens, int64_t vocab_size) {
  return std::all_of(tokens.ids, tokens.ids + tokens.count,
                     [&](int64_t id) { return id >= 0 && id < vocab_size; });
}

// Away from likely, for a penalty above 1: Keskar et al., "CTRL" (2019), as amended for negative
// logits. Once for each token, however often it occurs.
void penalize_repetition(const VocabAdjustments& a, float* adjusted, int32_t* counts) {
  for (const TokenIds& tokens : {a.prompt, a.output}) {
    for (int64_t i = 0; i < tokens.count; ++i) {
      const int64_t id = tokens.ids[i];
      if (counts[id]++ > 0) continue;
      const double logit = adjusted[id];
      const double moved =
          logit > 0.0 ? logit / a.repetition_penalty : logit * a.repetition_penalty;
      adjusted[id] = static_cast<float>(std::min(moved, double{FLT_MAX}));
    }
  }
  for (const TokenIds& tokens : {a.prompt, a.output}) {
    for (int64_t i = 0; i < tokens.count; ++i) counts[tokens.ids[i]] = 0;
  }
}

void penalize_output(const VocabAdjustments& a, float* adjusted, int32_t* counts) {
  for (int64_t i = 0; i < a.output.count; ++i) ++counts[a.output.ids[i]];
  for (int64_t i = 0; i < a.output.count; ++i) {
    const int64_t id = a.output.ids[i];
    if (counts[id] == 0) continue;  // it had its penalty
    adjusted[id] -= static_cast<float>(counts[id] * a.frequency_penalty + a.presence_penalty);
    counts[id] = 0;
  }
}

}  // namespace

bool adjust_logits(const VocabAdjustments& a, const float* logits, int64_t vocab_size,
                   float* adjusted, int32_t* counts) {
  for (const TokenIds& tokens : {a.allowed, a.forbidden, a.biased, a.prompt, a.output}) {
    if (!all_below(tokens, vocab_size)) return false;
  }
  if (a.allowed.count > 0) {
    std::fill(adjusted, adjusted + vocab_size, -INFINITY);
    for (int64_t i = 0; i < a.allowed.count; ++i) {
      adjusted[a.allowed.ids[i]] = logits[a.allowed.ids[i]];
    }
  }
  for (int64_t i = 0; i < a.forbidden.count; ++i) adjusted[a.forbidden.ids[i]] = -INFINITY;
  for (int64_t i = 0; i < a.biased.count; ++i) adjusted[a.biased.ids[i]] += a.biases[i];
  if (a.repetition_penalty != 1.0) penalize_repetition(a, adjusted, counts);
  if (a.frequency_penalty != 0.0 || a.presence_penalty != 0.0) {
    penalize_output(a, adjusted, counts);
  }
  return true;
}

}  // namespace pagemill
