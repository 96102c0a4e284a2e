// A recorded step: the ops of a whole model in order, replayed by one call.
//
// Recorded once, when the model is loaded; each op holds the addresses of its weights and of the
// buffers that it reads and writes. What changes from step to step is the `Step` alone. So between
// two ops there is no interpreter, and the threads that compute one are still awake for the next.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention_plan.hpp"
#include "isa.hpp"
#include "linear.hpp"
#include "pool.hpp"

namespace pagemill {

// How many rows an op has in a step: one for each token, or one for each row of logits.
enum class RowCount : int32_t { kTokens = 0, kLogits = 1 };

class Program;

// Rows of the step's tokens.
struct RowRange {
  int begin, end;
};

class Op {
 public:
  virtual ~Op() = default;
  // Whether it computes each row of `rows` from that row of its inputs. Others look at all rows.
  virtual bool is_row_by_row() const { return false; }
  virtual void run(const Step& step, RowRange rows, float* logits, Program& program) = 0;
};

// A part of a linear map: outputs from first_column on. One of the two weights is null.
struct LinearSegment {
  const PackedWeight* packed;
  const FloatWeight* floats;
  int32_t first_column;
};

// A linear map as recorded. Its quantized segments read `quantized`, the others x.
struct Linear {
  std::vector<LinearSegment> segments;
  const float* x;
  int64_t x_stride;
  QuantizedRows quantized;
  const float* bias;  // over all outputs, or null
  float* out;         // null: the step's logits
  int64_t out_stride;
  RowCount rows;
};

class Program {
 public:
  // The pool must outlive the program.
  explicit Program(Pool* pool) : pool_(pool) {}

  template <class Args>
  void add_row_op(RowOp<Args> RowKernels::* kernel, const Args& args, RowCount rows);
  // Rows of a table, by token id or by position, times scale.
  void add_embedding(const LinearSegment& table, bool by_position, float scale, float* out,
                     int64_t out_stride);
  // Positions and slots are those of the step.
  void add_rotary_write(const RotaryWrite& args);
  void add_attention(const Attention& args);
  void add_linear(Linear linear);
  // out[i] = x[logits_indices[i]].
  void add_gather_logits_rows(const float* x, int64_t x_stride, int32_t num_cols, float* out,
                              int64_t out_stride);
  // Scale and cap the step's logits in place.
  void add_cap_logits(float cap, int32_t num_cols);

  // logits: [num_logits, vocabulary], written.
  void run(const Step& step, float* logits);

  Pool& pool() { return *pool_; }
  // Calls kernel(args, begin, end) over rows: here if that is quick, else on the pool.
  template <class Args>
  void run_rows(RowOp<Args> kernel, const Args& args, RowRange rows, int64_t num_cols);
  const AttentionWork& attention_work(int plan) const { return plans_[plan].work(); }

 private:
  int plan_for(const AttentionShape& shape);

  Pool* pool_;
  std::vector<std::unique_ptr<Op>> ops_;
  std::vector<AttentionPlan> plans_;
};

}  // namespace pagemill
