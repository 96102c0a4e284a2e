#include "vocab_sampler.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "vocab_row.hpp"
#include "vocab_select.hpp"

namespace pagemill {
namespace {

// Keeps (logit - peak) / temperature from being 0 * infinity. At this factor, all but the tokens
// equal to the peak have weight 0.
constexpr double kMaxInverseTemperature = 1e30;
// A bound that only narrows the search is set this much too wide, to cover rounding; the tokens in
// between are judged exactly afterwards.
constexpr double kSlackNats = 1e-3;

// Does one task after another, with one workspace.
class VocabSampler {
 public:
  VocabSampler(const VocabKernels& kernels, const VocabBatch& batch, int64_t workspace, Pool* pool)
      : kernels_(kernels),
        vocab_size_(batch.vocab_size),
        workspace_(batch.workspaces + workspace * vocab_workspace_bytes(batch.vocab_size),
                   batch.vocab_size),
        row_(kernels, batch.vocab_size, workspace_, pool) {}

  void run(const VocabTask& task, VocabOutcome* out, int64_t* top_ids, double* top_logprobs) {
    *out = {-1, 0, NAN, 0, VocabStatus::kDamaged};
    const bool is_adjusted = task.adjustments != nullptr;
    const float* logits = task.logits;
    if (!row_.summarize(logits, is_adjusted ? workspace_.adjusted : nullptr)) return;
    if (is_adjusted) {
      if (!adjust_logits(*task.adjustments, task.logits, vocab_size_, workspace_.adjusted,
                         workspace_.counts)) {
        out->status = VocabStatus::kBadToken;
        return;
      }
      logits = workspace_.adjusted;
      row_.find_peak(logits);
    }
    out->token_id = task.kind == VocabTaskKind::kScore    ? task.token_id
                    : row_.peak() == -INFINITY            ? -1
                    : task.kind == VocabTaskKind::kGreedy ? row_.first_peak(logits)
                                                          : draw(logits, task);
    report(task, out, top_ids, top_logprobs);
  }

 private:
  // Temperature, top-k, top-p and min-p, each on what the one before it leaves, and the draw.
  int64_t draw(const float* logits, const VocabTask& task) {
    const double inverse_temperature = std::min(1.0 / task.temperature, kMaxInverseTemperature);
    const float scale = static_cast<float>(inverse_temperature);
    const auto collect_within = [&](double depth_nats) {
      const double lowest = row_.peak() - task.temperature * (depth_nats + kSlackNats);
      return collect_at_least(kernels_, logits, vocab_size_, static_cast<float>(lowest),
                              workspace_.candidates);
    };
    if (0 < task.top_k && task.top_k < vocab_size_) {
      Candidate* candidates = workspace_.candidates;
      const int64_t count = collect_largest(kernels_, logits, vocab_size_, task.top_k, candidates);
      std::sort(candidates, candidates + count,
                [](const Candidate& a, const Candidate& b) { return a.token_id < b.token_id; });
      return judge_and_draw(count, inverse_temperature, task, nullptr);
    }
    if (task.top_p < 1.0) {
      const double total = row_.weigh(logits, scale, true);
      const int64_t count = collect_within(row_.depth_of_share(task.top_p, total));
      return judge_and_draw(count, inverse_temperature, task, &total);
    }
    if (task.min_p > 0.0) {
      const int64_t count = collect_within(-std::log(task.min_p));
      return judge_and_draw(count, inverse_temperature, task, nullptr);
    }
    // The model's own weights are there already.
    const bool is_raw = logits == task.logits && task.temperature == 1.0;
    if (!is_raw) row_.weigh(logits, scale, false);
    return row_.draw(logits, scale, task.uniform);
  }

  // Applies top-p and min-p to candidates, by ascending id, that include all that can pass, and
  // draws one. `total` is the mass that top_p is a share of; null: that of the candidates.
  int64_t judge_and_draw(int64_t count, double inverse_temperature, const VocabTask& task,
                         const double* total) {
    Candidate* candidates = workspace_.candidates;
    double mass = 0.0;
    for (int64_t i = 0; i < count; ++i) {
      const double depth_nats = (double{row_.peak()} - candidates[i].logit) * inverse_temperature;
      candidates[i].weight = std::exp(-depth_nats);
      mass += candidates[i].weight;
    }
    if (task.top_p < 1.0) {
      std::copy(candidates, candidates + count, workspace_.ranked);
      const double target = task.top_p * (total ? *total : mass);
      const Candidate end = nucleus_end(workspace_.ranked, count, target);
      count = std::remove_if(candidates, candidates + count,
                             [&](const Candidate& c) { return ranks_before(end, c); }) -
              candidates;
    }
    count = std::remove_if(candidates, candidates + count,
                           [&](const Candidate& c) { return c.weight < task.min_p; }) -
            candidates;
    mass = 0.0;
    for (int64_t i = 0; i < count; ++i) mass += candidates[i].weight;
    double before = 0.0;
    const int64_t drawn = find_at_mass(count, task.uniform * mass, &before,
                                       [&](int64_t i) { return candidates[i].weight; });
    return candidates[drawn].token_id;
  }

  void report(const VocabTask& task, VocabOutcome* out, int64_t* top_ids, double* top_logprobs) {
    const float* logits = task.logits;
    if (out->token_id < 0) {
      out->status = VocabStatus::kNothing;
      out->logprob = -INFINITY;
    } else {
      out->status = VocabStatus::kDone;
      const float logit = logits[out->token_id];
      out->logprob = logprob(logit);
      if (task.num_top >= 0) {
        const int64_t after = vocab_size_ - out->token_id;
        out->rank = 1 + kernels_.count(logits, out->token_id, logit, true) +
                    kernels_.count(logits + out->token_id, after, logit, false);
      }
    }
    if (task.num_top <= 0) return;
    const int64_t k = std::min<int64_t>(task.num_top, vocab_size_);
    const int64_t count = collect_largest(kernels_, logits, vocab_size_, k, workspace_.candidates);
    std::sort(workspace_.candidates, workspace_.candidates + count, ranks_before);
    for (int64_t i = 0; i < count; ++i) {
      top_ids[i] = workspace_.candidates[i].token_id;
      top_logprobs[i] = logprob(workspace_.candidates[i].logit);
    }
    out->num_top = static_cast<int32_t>(count);
  }

  double logprob(float logit) const {
    return logit == -INFINITY ? -INFINITY : double{logit} - row_.log_normalizer();
  }

  const VocabKernels& kernels_;
  const int64_t vocab_size_;
  const VocabWorkspace workspace_;
  VocabRow row_;
};

}  // namespace

int64_t vocab_workspace_bytes(int64_t vocab_size) {
  return VocabWorkspace(nullptr, vocab_size).num_bytes;
}

void run_vocab_batch(const VocabKernels& kernels, const VocabBatch& batch, Pool* pool) {
  const auto run = [&](VocabSampler* sampler, int64_t i) {
    sampler->run(batch.tasks[i], batch.outcomes + i, batch.top_ids + i * batch.max_top,
                 batch.top_logprobs + i * batch.max_top);
  };
  const int64_t num_threads = pool ? pool->num_threads() : 1;
  const int64_t num_chunks = (batch.vocab_size + kVocabChunk - 1) / kVocabChunk;
  // Threads share a row only if there are two for each: they wait for each other between passes.
  if (2 * batch.num_tasks <= std::min(num_threads, num_chunks)) {
    VocabSampler sampler(kernels, batch, 0, pool);
    for (int64_t i = 0; i < batch.num_tasks; ++i) run(&sampler, i);
    return;
  }
  // A claim is a workspace; whoever has one takes rows until there are none left.
  std::atomic<int64_t> next{0};
  const auto work = [&](int workspace) {
    VocabSampler sampler(kernels, batch, workspace, nullptr);
    for (int64_t i = next++; i < batch.num_tasks; i = next++) run(&sampler, i);
  };
  const int64_t num_workers = std::min({num_threads, batch.num_tasks, batch.num_workspaces});
  if (pool) {
    pool->run(static_cast<int>(num_workers), work);
  } else {
    work(0);
  }
}

}  // namespace pagemill
