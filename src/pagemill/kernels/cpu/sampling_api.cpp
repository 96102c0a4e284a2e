// The C interface of sampling, for ctypes.

#include "api.hpp"
#include "isa.hpp"
#include "vocab_random.hpp"
#include "vocab_sampler.hpp"

PAGEMILL_EXPORT int64_t pagemill_vocab_workspace_bytes(int64_t vocab_size) {
  return pagemill::vocab_workspace_bytes(vocab_size);
}

// The pool may be null.
PAGEMILL_EXPORT void pagemill_vocab_run(const pagemill::VocabBatch* batch, void* pool) {
  pagemill::run_vocab_batch(pagemill::current_isa().vocab, *batch,
                            static_cast<pagemill::Pool*>(pool));
}

// 0 if an id is outside the vocabulary; see adjust_logits.
PAGEMILL_EXPORT int32_t pagemill_vocab_adjust(const pagemill::VocabAdjustments* adjustments,
                                              const float* logits, int64_t vocab_size,
                                              float* adjusted, int32_t* counts) {
  return pagemill::adjust_logits(*adjustments, logits, vocab_size, adjusted, counts);
}

PAGEMILL_EXPORT void pagemill_uniforms(const uint64_t* keys, const uint64_t* positions,
                                       int64_t count, double* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = pagemill::uniform_at(keys[i], positions[i]);
}
