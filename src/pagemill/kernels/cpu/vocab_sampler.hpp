// From rows of logits to tokens and log-probabilities. `sampling/reference.py` is the same in
// numpy; `pagemill.sampling` describes the order of operations.
//
// A row is computed by one thread, or chunk by chunk by all of them where there are few rows; the
// order of its operations is the same.
#pragma once

#include <cstdint>

#include "pool.hpp"
#include "vocab_adjust.hpp"
#include "vocab_ops.hpp"

namespace pagemill {

enum class VocabTaskKind : int32_t { kGreedy = 0, kDraw = 1, kScore = 2 };

struct VocabTask {
  const float* logits;                  // [vocab_size] of the model, not changed
  const VocabAdjustments* adjustments;  // or null: none. Not for kScore.
  int64_t token_id;                     // of kScore, in the vocabulary
  VocabTaskKind kind;
  int32_t num_top;  // most likely tokens to report; -1: not even the token's rank
  // Of kDraw:
  double temperature;  // above 0
  double top_p;        // 1: no such filter
  double min_p;        // 0: no such filter
  double uniform;      // in [0, 1)
  int64_t top_k;       // 0 or less: no such filter
};

enum class VocabStatus : int32_t {
  kDone = 0,
  kDamaged = 1,   // a logit is NaN or infinity
  kNothing = 2,   // no token is possible
  kBadToken = 3,  // the adjustments name a token outside the vocabulary
};

// Log-probabilities are those of the model, before any adjustment, in nats.
struct VocabOutcome {
  int64_t token_id;  // -1 unless kDone
  int64_t rank;      // 1 for the most likely; 0 unless asked for and kDone
  double logprob;    // NaN if kDamaged, -infinity if kNothing
  int32_t num_top;   // how many there are
  VocabStatus status;
};

struct VocabBatch {
  const VocabTask* tasks;  // [num_tasks]
  int64_t num_tasks;
  int64_t vocab_size;      // above 0, below 2^31
  VocabOutcome* outcomes;  // [num_tasks]
  int64_t* top_ids;        // [num_tasks, max_top], best first, equal ones by lower id
  double* top_logprobs;    // likewise
  int64_t max_top;         // the largest num_top, or 0
  char* workspaces;        // [num_workspaces] of vocab_workspace_bytes each; at first all zero
  int64_t num_workspaces;  // at least 1; so many threads can work at a time
};

// See VocabWorkspace.
int64_t vocab_workspace_bytes(int64_t vocab_size);

// Does the tasks, on the threads of the pool (null: on this thread alone).
void run_vocab_batch(const VocabKernels& kernels, const VocabBatch& batch, Pool* pool);

}  // namespace pagemill
