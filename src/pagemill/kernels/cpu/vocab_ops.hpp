// What sampling asks of a row of logits, one for each token of the vocabulary: the passes over
// memory, which vocab_sampler.cpp puts together.
//
// A row is cut into chunks at fixed columns, which threads may share, and a chunk into blocks,
// whose weights are summed in one fixed order. So a row's bits depend neither on its batch-mates
// nor on the number of threads.
#pragma once

#include <cstdint>

namespace pagemill {

constexpr int kVocabBlock = 512;
constexpr int kBlocksPerChunk = 16;
constexpr int kVocabChunk = kVocabBlock * kBlocksPerChunk;

// A token that a filter looks at. The weight is its probability up to a factor; only the functions
// that say so fill it in.
struct Candidate {
  float logit;
  int32_t token_id;
  double weight;
};

// The weight of a logit is exp((logit - center) * scale); no logit may be above the center.
struct VocabWeights {
  float center;
  float scale;
};

// Depths below the center, in nats, at which the mass above is measured: kDepthStep, twice that ...
constexpr int kNumDepths = 8;
constexpr float kDepthStep = 1.5f;

struct VocabKernels {
  // The largest of the logits that are not NaN; -infinity if there is none.
  float (*peak)(const float* logits, int64_t count);

  // The sum of the weights of each block: NaN if a logit is NaN or infinity. With masses
  // [kNumDepths], also that of all weights down to each depth.
  void (*sum_weights)(const float* logits, int64_t count, VocabWeights weights, float* block_sums,
                      float* masses);

  // The weights themselves.
  void (*weigh)(const float* logits, int64_t count, VocabWeights weights, float* out);

  // Appends to out, which holds num_found, the columns from *column on whose logit is above the
  // bound (or equal to it, if or_equal), in order. Stops at `end`, or after 16 columns that make it
  // `limit` or more; returns how many out holds then, and *column says where it stopped.
  int64_t (*collect)(const float* logits, int64_t* column, int64_t end, float bound, bool or_equal,
                     int64_t limit, Candidate* out, int64_t num_found);

  // How many logits are above the bound, or equal to it if or_equal.
  int64_t (*count)(const float* logits, int64_t count, float bound, bool or_equal);
};

}  // namespace pagemill
