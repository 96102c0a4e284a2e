#include "program.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

namespace pagemill {
namespace {

// Below this many numbers a row op is done before another thread could begin.
constexpr int64_t kNumbersAlone = 16384;
// A linear map with one row is cut into chunks of about this many bytes of weights.
constexpr int64_t kChunkBytes = 16 * 1024;
constexpr int kChunksPerThread = 6;
// More rows than this are cut into blocks, so that a chunk has many panels for each row.
constexpr int kUncutRows = 128;

// Row by row ops in a row are done for so many tokens after each other: what one writes, the next
// finds in the cache.
constexpr int kRowsAtOnce = 256;

RowRange rows_of(RowCount count, RowRange tokens, const Step& step) {
  return count == RowCount::kTokens ? tokens : RowRange{0, step.num_logits};
}

// A thread's memory between its ops.
class LinearScratch {
 public:
  LinearScratch() : bytes_(kBytes + 64) {}
  float* floats() {
    void* memory = bytes_.data();
    size_t space = bytes_.size();
    return static_cast<float*>(std::align(64, kBytes, memory, space));
  }

 private:
  static constexpr size_t kBytes = kLinearScratchFloats * sizeof(float);
  std::vector<uint8_t> bytes_;
};

template <class Args>
class RowsOp : public Op {
 public:
  RowsOp(RowOp<Args> RowKernels::* kernel, const Args& args, RowCount rows)
      : kernel_(kernel), args_(args), rows_(rows) {}
  bool is_row_by_row() const override { return rows_ == RowCount::kTokens; }
  void run(const Step& step, RowRange rows, float*, Program& program) override {
    program.run_rows(current_isa().rows.*kernel_, args_, rows_of(rows_, rows, step),
                     args_.num_cols);
  }

 private:
  RowOp<Args> RowKernels::* kernel_;
  Args args_;
  RowCount rows_;
};

class RotaryWriteOp : public Op {
 public:
  explicit RotaryWriteOp(const RotaryWrite& args) : args_(args) {}
  bool is_row_by_row() const override { return true; }
  void run(const Step& step, RowRange rows, float*, Program& program) override {
    RotaryWrite args = args_;
    args.positions = step.positions;
    args.slot_mapping = step.slot_mapping;
    program.run_rows(current_isa().rows.rotary_write, args, rows, args.qkv_stride);
  }

 private:
  RotaryWrite args_;
};

class EmbeddingOp : public Op {
 public:
  EmbeddingOp(const LinearSegment& table, bool by_position, float scale, float* out,
              int64_t out_stride)
      : table_(table),
        by_position_(by_position),
        scale_(scale),
        out_(out),
        out_stride_(out_stride),
        num_cols_(table.packed ? table.packed->num_cols : table.floats->num_cols) {}

  bool is_row_by_row() const override { return true; }
  void run(const Step& step, RowRange rows, float*, Program& program) override {
    const int64_t* ids = by_position_ ? step.positions : step.token_ids;
    program.pool().run(rows.end - rows.begin, [&](int i) {
      const int row = rows.begin + i;
      look_up(static_cast<int>(ids[row]), row);
    });
  }

 private:
  void look_up(int id, int row) const {
    float* out = out_ + row * out_stride_;
    static thread_local std::vector<float> found;
    found.resize(num_cols_);
    if (table_.packed) {
      dequantize_row(*table_.packed, id, found.data());
    } else {
      dequantize_row(*table_.floats, id, found.data());
    }
    for (int i = 0; i < num_cols_; ++i) {
      out[i] = found[i] * scale_;
    }
  }

  LinearSegment table_;
  bool by_position_;
  float scale_;
  float* out_;
  int64_t out_stride_;
  int num_cols_;
};

class AttentionOp : public Op {
 public:
  AttentionOp(const Attention& args, int plan) : args_(args), plan_(plan) {}
  void run(const Step& step, RowRange, float*, Program& program) override {
    const AttentionWork& work = program.attention_work(plan_);
    const int64_t scratch_floats = attention_scratch_floats(args_.num_heads, args_.cache);
    program.pool().run(work.num_items, [&](int item) {
      static thread_local std::vector<float> scratch;
      if (static_cast<int64_t>(scratch.size()) < scratch_floats) scratch.resize(scratch_floats);
      current_isa().attend(args_, step, work, item, item + 1, scratch.data());
    });
  }

 private:
  Attention args_;
  int plan_;
};

class LinearOp : public Op {
 public:
  explicit LinearOp(Linear linear) : linear_(std::move(linear)) {}

  bool is_row_by_row() const override { return linear_.rows == RowCount::kTokens; }
  void run(const Step& step, RowRange tokens, float* logits, Program& program) override {
    const RowRange rows = rows_of(linear_.rows, tokens, step);
    const int num_rows = rows.end - rows.begin;
    if (num_rows == 0) return;
    float* out = linear_.out ? linear_.out : logits;
    const int block_rows = num_rows <= kUncutRows ? num_rows : std::min(num_rows / 2, kRowBlock);
    const int num_row_blocks = (num_rows + block_rows - 1) / block_rows;
    for (const LinearSegment& segment : linear_.segments) {
      const int num_panels = padded_rows(segment) / kPanelRows;
      const int panels = panels_per_chunk(segment, num_rows, num_row_blocks, num_panels, program);
      const int num_chunks = (num_panels + panels - 1) / panels;
      program.pool().run(num_chunks * num_row_blocks, [&](int chunk) {
        const int first_row = rows.begin + chunk / num_chunks * block_rows;
        const int first_panel =
            in_streams(chunk % num_chunks, num_chunks, program.pool().num_threads()) * panels;
        const Tile tile = {first_row, std::min(first_row + block_rows, rows.end), first_panel,
                           std::min(first_panel + panels, num_panels)};
        run_tile(segment, tile, out);
      });
    }
  }

 private:
  // Chunks are handed out in ascending order, to the threads about in turn. So cut, what a thread
  // gets next lies behind what it has just read, and was asked of memory meanwhile.
  static int in_streams(int chunk, int num_chunks, int num_streams) {
    const int stream = chunk % num_streams, longer = num_chunks % num_streams;
    return stream * (num_chunks / num_streams) + std::min(stream, longer) + chunk / num_streams;
  }

  static int padded_rows(const LinearSegment& segment) {
    return segment.packed ? segment.packed->padded_rows : segment.floats->padded_rows;
  }

  static int64_t panel_bytes(const LinearSegment& segment) {
    if (segment.packed) return int64_t{segment.packed->padded_cols} * segment.packed->bits * 2;
    return int64_t{segment.floats->num_cols} * kPanelRows *
           (segment.floats->type == FloatType::kFloat32 ? 4 : 2);
  }

  // No more chunks than balance the threads. Where rows share panels, kernels take pairs of them,
  // and a few more a chunk may give every thread as many chunks.
  static int panels_per_chunk(const LinearSegment& segment, int num_rows, int num_row_blocks,
                              int num_panels, Program& program) {
    const int num_threads = program.pool().num_threads();
    const int by_threads = num_panels * num_row_blocks / (num_threads * kChunksPerThread);
    if (num_rows == 1) {
      const int64_t by_bytes = kChunkBytes / std::max<int64_t>(1, panel_bytes(segment));
      return std::max({1, by_threads, static_cast<int>(by_bytes)});
    }
    const int least = std::max(2, (by_threads + 1) / 2 * 2);
    for (int panels = least; panels <= 2 * least; panels += 2) {
      const int num_chunks = (num_panels + panels - 1) / panels * num_row_blocks;
      if (num_chunks % num_threads == 0) return panels;
    }
    return least;
  }

  void run_tile(const LinearSegment& segment, const Tile& tile, float* out) const {
    const Epilogue epilogue = {linear_.bias ? linear_.bias + segment.first_column : nullptr};
    float* first_out = out + segment.first_column;
    if (segment.packed && segment.packed->wide) {
      current_isa().linear_wide(*segment.packed, linear_.quantized, tile, epilogue, first_out,
                                linear_.out_stride);
    } else if (segment.packed) {
      static thread_local LinearScratch scratch;
      current_isa().linear_quantized(*segment.packed, linear_.quantized, tile, epilogue,
                                     scratch.floats(), first_out, linear_.out_stride);
    } else {
      current_isa().linear_float(*segment.floats, linear_.x, linear_.x_stride, tile, epilogue,
                                 first_out, linear_.out_stride);
    }
  }

  Linear linear_;
};

class GatherLogitsRowsOp : public Op {
 public:
  GatherLogitsRowsOp(const float* x, int64_t x_stride, int32_t num_cols, float* out,
                     int64_t out_stride)
      : x_(x), x_stride_(x_stride), num_cols_(num_cols), out_(out), out_stride_(out_stride) {}
  void run(const Step& step, RowRange, float*, Program&) override {
    for (int i = 0; i < step.num_logits; ++i) {
      memcpy(out_ + i * out_stride_, x_ + step.logits_indices[i] * x_stride_,
             num_cols_ * sizeof(float));
    }
  }

 private:
  const float* x_;
  int64_t x_stride_;
  int32_t num_cols_;
  float* out_;
  int64_t out_stride_;
};

class CapLogitsOp : public Op {
 public:
  CapLogitsOp(float cap, int32_t num_cols) : cap_(cap), num_cols_(num_cols) {}
  void run(const Step& step, RowRange, float* logits, Program& program) override {
    const ScaleCap args = {logits, num_cols_, logits, num_cols_, num_cols_, 1.0f, cap_};
    program.run_rows(current_isa().rows.scale_cap, args, {0, step.num_logits}, num_cols_);
  }

 private:
  float cap_;
  int32_t num_cols_;
};

}  // namespace

template <class Args>
void Program::run_rows(RowOp<Args> kernel, const Args& args, RowRange all, int64_t num_cols) {
  const int64_t num_rows = all.end - all.begin;
  if (num_rows * num_cols <= kNumbersAlone || num_rows == 1) {
    kernel(args, all.begin, all.end);
    return;
  }
  const int64_t most = pool_->num_threads() * kChunksPerThread;
  const int64_t rows = std::max<int64_t>((num_rows + most - 1) / most, 1);
  const int num_chunks = static_cast<int>((num_rows + rows - 1) / rows);
  pool_->run(num_chunks, [&](int chunk) {
    const int64_t begin = all.begin + chunk * rows;
    kernel(args, begin, std::min(begin + rows, int64_t{all.end}));
  });
}

template <class Args>
void Program::add_row_op(RowOp<Args> RowKernels::* kernel, const Args& args, RowCount rows) {
  ops_.push_back(std::make_unique<RowsOp<Args>>(kernel, args, rows));
}
template void Program::add_row_op(RowOp<Norm> RowKernels::*, const Norm&, RowCount);
template void Program::add_row_op(RowOp<Activation> RowKernels::*, const Activation&, RowCount);
template void Program::add_row_op(RowOp<Add> RowKernels::*, const Add&, RowCount);
template void Program::add_row_op(RowOp<QuantizeRows> RowKernels::*, const QuantizeRows&, RowCount);

void Program::add_embedding(const LinearSegment& table, bool by_position, float scale, float* out,
                            int64_t out_stride) {
  ops_.push_back(std::make_unique<EmbeddingOp>(table, by_position, scale, out, out_stride));
}

void Program::add_rotary_write(const RotaryWrite& args) {
  ops_.push_back(std::make_unique<RotaryWriteOp>(args));
}

void Program::add_attention(const Attention& args) {
  ops_.push_back(std::make_unique<AttentionOp>(args, plan_for(AttentionShape(args))));
}

void Program::add_linear(Linear linear) {
  ops_.push_back(std::make_unique<LinearOp>(std::move(linear)));
}

void Program::add_gather_logits_rows(const float* x, int64_t x_stride, int32_t num_cols, float* out,
                                     int64_t out_stride) {
  ops_.push_back(std::make_unique<GatherLogitsRowsOp>(x, x_stride, num_cols, out, out_stride));
}

void Program::add_cap_logits(float cap, int32_t num_cols) {
  ops_.push_back(std::make_unique<CapLogitsOp>(cap, num_cols));
}

int Program::plan_for(const AttentionShape& shape) {
  for (size_t i = 0; i < plans_.size(); ++i) {
    if (plans_[i].shape() == shape) return static_cast<int>(i);
  }
  plans_.emplace_back(shape);
  return static_cast<int>(plans_.size()) - 1;
}

void Program::run(const Step& step, float* logits) {
  for (AttentionPlan& plan : plans_) plan.build(step, pool_->num_threads());
  const int num_blocks = std::max(1, (step.num_tokens + kRowsAtOnce / 2) / kRowsAtOnce);
  for (auto op = ops_.begin(); op != ops_.end();) {
    if (!(*op)->is_row_by_row()) {
      (*op++)->run(step, {0, step.num_tokens}, logits, *this);
      continue;
    }
    const auto end =
        std::find_if(op, ops_.end(), [](const auto& other) { return !other->is_row_by_row(); });
    for (int64_t block = 0; block < num_blocks; ++block) {
      const RowRange rows = {static_cast<int>(step.num_tokens * block / num_blocks),
                             static_cast<int>(step.num_tokens * (block + 1) / num_blocks)};
      for (auto each = op; each != end; ++each) (*each)->run(step, rows, logits, *this);
    }
    op = end;
  }
}

}  // namespace pagemill
