// One row of logits, chunk by chunk: its peak, its weights, and a draw from all of it.
#pragma once

#include <cstdint>

#include "pool.hpp"
#include "vocab_ops.hpp"

namespace pagemill {

struct VocabChunk {
  float peak;
  float center;   // of its weights
  double factor;  // that its weights are multiplied by, to be comparable with the others'
  double mass;    // of its weights, without the factor; NaN if the chunk is damaged
  float masses[kNumDepths];
};

// What a thread needs beside the row, laid out in one piece of memory. Most of it is touched by few
// kinds of tasks only.
struct VocabWorkspace {
  // All zero at first; null, to learn num_bytes only.
  VocabWorkspace(char* memory, int64_t vocab_size);

  int32_t* counts;        // [vocab_size], all zero between two tasks
  float* adjusted;        // [vocab_size]
  Candidate* candidates;  // [vocab_size]
  Candidate* ranked;      // [vocab_size]
  float* block_sums;      // one for each block
  VocabChunk* chunks;
  int64_t num_bytes;
};

class VocabRow {
 public:
  // With a pool, its threads share the chunks; else this thread does them all.
  VocabRow(const VocabKernels& kernels, int64_t vocab_size, const VocabWorkspace& workspace,
           Pool* pool);

  // Finds the peak of the logits and the logarithm of the sum of exp, and weighs each chunk about
  // its own peak; copies the logits to `copy` unless that is null. False if one is NaN or infinity.
  bool summarize(const float* logits, float* copy);

  // Finds the peak alone.
  void find_peak(const float* logits);

  // Weighs the logits about the peak; returns the sum.
  double weigh(const float* logits, float scale, bool with_masses);

  // How deep below the peak the best tokens reach that hold a share, below 1, of the total: a bound
  // on it. After weigh() with masses.
  double depth_of_share(double share, double total) const;

  // The first token, in order of ids, up to which the weights exceed a share of their total.
  // After summarize() or weigh() with the same logits and scale.
  int64_t draw(const float* logits, float scale, double uniform) const;

  // The first token that has the peak.
  int64_t first_peak(const float* logits) const;

  float peak() const { return peak_; }
  double log_normalizer() const { return log_normalizer_; }  // of the row last summarized

 private:
  template <class F>
  void for_each_chunk(const F& f) const;
  void sum_weights(int64_t index, const float* logits, int64_t count, float scale, float* masses);
  void join_peaks();

  const VocabKernels& kernels_;
  const int64_t vocab_size_;
  const int64_t num_chunks_;
  const VocabWorkspace& ws_;
  Pool* const pool_;
  float peak_ = 0.0f;
  double log_normalizer_ = 0.0;
};

}  // namespace pagemill
