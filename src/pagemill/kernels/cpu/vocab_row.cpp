#include "vocab_row.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "vocab_select.hpp"

namespace pagemill {
namespace {

// A bound that only narrows the search is set this much too wide, to cover rounding.
constexpr double kSlackShare = 1e-4;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

VocabWorkspace::VocabWorkspace(char* memory, int64_t vocab_size) : num_bytes(0) {
  const auto take = [&](auto** piece, int64_t count) {
    using T = std::remove_reference_t<decltype(**piece)>;
    *piece = memory ? reinterpret_cast<T*>(memory + num_bytes) : nullptr;
    num_bytes += ceil_div(count * static_cast<int64_t>(sizeof(T)), 64) * 64;
  };
  take(&counts, vocab_size);
  take(&adjusted, vocab_size);
  take(&candidates, vocab_size);
  take(&ranked, vocab_size);
  take(&block_sums, ceil_div(vocab_size, kVocabBlock));
  take(&chunks, ceil_div(vocab_size, kVocabChunk));
}

VocabRow::VocabRow(const VocabKernels& kernels, int64_t vocab_size, const VocabWorkspace& workspace,
                   Pool* pool)
    : kernels_(kernels),
      vocab_size_(vocab_size),
      num_chunks_(ceil_div(vocab_size, kVocabChunk)),
      ws_(workspace),
      pool_(pool) {}

// Calls f(index, first column, columns) for each chunk.
template <class F>
void VocabRow::for_each_chunk(const F& f) const {
  const auto one = [&](int i) {
    const int64_t first = int64_t{i} * kVocabChunk;
    f(i, first, std::min<int64_t>(kVocabChunk, vocab_size_ - first));
  };
  const int num_chunks = static_cast<int>(num_chunks_);
  if (pool_) {
    pool_->run(num_chunks, one);
  } else {
    for (int i = 0; i < num_chunks; ++i) one(i);
  }
}

bool VocabRow::summarize(const float* logits, float* copy) {
  for_each_chunk([&](int i, int64_t first, int64_t count) {
    VocabChunk& chunk = ws_.chunks[i];
    chunk.peak = kernels_.peak(logits + first, count);
    chunk.center = chunk.peak == -INFINITY ? 0.0f : chunk.peak;
    sum_weights(i, logits + first, count, 1.0f, nullptr);
    if (copy) std::memcpy(copy + first, logits + first, count * sizeof *logits);
  });
  join_peaks();
  double total = 0.0;
  for (int64_t i = 0; i < num_chunks_; ++i) {
    VocabChunk& chunk = ws_.chunks[i];
    chunk.factor = chunk.peak == -INFINITY ? 0.0 : std::exp(double{chunk.peak} - double{peak_});
    total += chunk.factor * chunk.mass;
  }
  log_normalizer_ = peak_ + std::log(total);
  return !std::isnan(total);
}

void VocabRow::find_peak(const float* logits) {
  for_each_chunk([&](int i, int64_t first, int64_t count) {
    ws_.chunks[i].peak = kernels_.peak(logits + first, count);
  });
  join_peaks();
}

void VocabRow::join_peaks() {
  peak_ = -INFINITY;
  for (int64_t i = 0; i < num_chunks_; ++i) peak_ = std::max(peak_, ws_.chunks[i].peak);
}

int64_t VocabRow::first_peak(const float* logits) const {
  int64_t column = 0;
  while (ws_.chunks[column / kVocabChunk].peak != peak_) column += kVocabChunk;
  Candidate found[16];
  kernels_.collect(logits, &column, vocab_size_, peak_, true, 1, found, 0);
  return found[0].token_id;
}

void VocabRow::sum_weights(int64_t index, const float* logits, int64_t count, float scale,
                           float* masses) {
  VocabChunk& chunk = ws_.chunks[index];
  float* sums = ws_.block_sums + index * kBlocksPerChunk;
  kernels_.sum_weights(logits, count, {chunk.center, scale}, sums, masses);
  chunk.mass = 0.0;
  for (int64_t b = 0; b < ceil_div(count, kVocabBlock); ++b) chunk.mass += sums[b];
}

double VocabRow::weigh(const float* logits, float scale, bool with_masses) {
  for_each_chunk([&](int i, int64_t first, int64_t count) {
    VocabChunk& chunk = ws_.chunks[i];
    chunk.center = peak_;
    chunk.factor = 1.0;
    sum_weights(i, logits + first, count, scale, with_masses ? chunk.masses : nullptr);
  });
  double total = 0.0;
  for (int64_t i = 0; i < num_chunks_; ++i) total += ws_.chunks[i].mass;
  return total;
}

double VocabRow::depth_of_share(double share, double total) const {
  for (int d = 0; d < kNumDepths; ++d) {
    double mass = 0.0;
    for (int64_t i = 0; i < num_chunks_; ++i) mass += ws_.chunks[i].masses[d];
    if (mass >= (share + kSlackShare) * total) return (d + 1) * double{kDepthStep};
  }
  // All tokens deeper than this together weigh at most (1 - share) * total.
  return std::log(static_cast<double>(vocab_size_) / ((1.0 - share) * total));
}

int64_t VocabRow::draw(const float* logits, float scale, double uniform) const {
  const auto chunk_mass = [&](int64_t i) { return ws_.chunks[i].factor * ws_.chunks[i].mass; };
  double total = 0.0, before = 0.0;
  for (int64_t i = 0; i < num_chunks_; ++i) total += chunk_mass(i);
  const double target = uniform * total;
  const int64_t c = find_at_mass(num_chunks_, target, &before, chunk_mass);

  const VocabChunk& chunk = ws_.chunks[c];
  const float* sums = ws_.block_sums + c * kBlocksPerChunk;
  const int64_t columns = std::min<int64_t>(kVocabChunk, vocab_size_ - c * kVocabChunk);
  const int64_t b = find_at_mass(ceil_div(columns, kVocabBlock), target, &before,
                                 [&](int64_t i) { return chunk.factor * sums[i]; });

  const int64_t first = c * kVocabChunk + b * kVocabBlock;
  const int64_t count = std::min<int64_t>(kVocabBlock, vocab_size_ - first);
  float weights[kVocabBlock];
  kernels_.weigh(logits + first, count, {chunk.center, scale}, weights);
  // A share of what they add up to here: the block's sum is in single precision, and what that was
  // rounded up by must not go to the last token.
  const double share = (target - before) / (chunk.factor * sums[b]);
  double inside = 0.0;
  for (int64_t i = 0; i < count; ++i) inside += weights[i];
  before = 0.0;
  return first + find_at_mass(count, share * inside, &before,
                              [&](int64_t i) { return double{weights[i]}; });
}

}  // namespace pagemill
