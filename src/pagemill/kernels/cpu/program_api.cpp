// The C interface of recorded programs, for ctypes. Structures are copied when they are recorded;
// what they point at must live as long as the program.

#include "api.hpp"
#include "program.hpp"

namespace {

using namespace pagemill;

Program& program_of(void* program) { return *static_cast<Program*>(program); }

// An array of (packed or null, floats or null, first column), as Python lays it out.
std::vector<LinearSegment> segments_of(const LinearSegment* segments, int32_t count) {
  return std::vector<LinearSegment>(segments, segments + count);
}

}  // namespace

PAGEMILL_EXPORT void* pagemill_program_create(void* pool) {
  return new Program(static_cast<Pool*>(pool));
}

PAGEMILL_EXPORT void pagemill_program_destroy(void* program) {
  delete static_cast<Program*>(program);
}

PAGEMILL_EXPORT void pagemill_program_run(void* program, const Step* step, float* logits) {
  program_of(program).run(*step, logits);
}

PAGEMILL_EXPORT void pagemill_record_norm(void* program, const Norm* args, int32_t rows) {
  program_of(program).add_row_op(&RowKernels::norm, *args, static_cast<RowCount>(rows));
}

PAGEMILL_EXPORT void pagemill_record_activation(void* program, const Activation* args,
                                                int32_t rows) {
  program_of(program).add_row_op(&RowKernels::activation, *args, static_cast<RowCount>(rows));
}

PAGEMILL_EXPORT void pagemill_record_add(void* program, const Add* args, int32_t rows) {
  program_of(program).add_row_op(&RowKernels::add, *args, static_cast<RowCount>(rows));
}

PAGEMILL_EXPORT void pagemill_record_quantize_rows(void* program, const QuantizeRows* args,
                                                   int32_t rows) {
  program_of(program).add_row_op(&RowKernels::quantize_rows, *args, static_cast<RowCount>(rows));
}

PAGEMILL_EXPORT void pagemill_record_embedding(void* program, const LinearSegment* table,
                                               int32_t by_position, float scale, float* out,
                                               int64_t out_stride) {
  program_of(program).add_embedding(*table, by_position != 0, scale, out, out_stride);
}

PAGEMILL_EXPORT void pagemill_record_rotary_write(void* program, const RotaryWrite* args) {
  program_of(program).add_rotary_write(*args);
}

PAGEMILL_EXPORT void pagemill_record_attention(void* program, const Attention* args) {
  program_of(program).add_attention(*args);
}

PAGEMILL_EXPORT void pagemill_record_linear(void* program, const LinearSegment* segments,
                                            int32_t num_segments, const float* x, int64_t x_stride,
                                            const QuantizedRows* quantized, const float* bias,
                                            float* out, int64_t out_stride, int32_t rows) {
  program_of(program).add_linear({segments_of(segments, num_segments), x, x_stride,
                                  quantized ? *quantized : QuantizedRows{}, bias, out, out_stride,
                                  static_cast<RowCount>(rows)});
}

PAGEMILL_EXPORT void pagemill_record_gather_logits_rows(void* program, const float* x,
                                                        int64_t x_stride, int32_t num_cols,
                                                        float* out, int64_t out_stride) {
  program_of(program).add_gather_logits_rows(x, x_stride, num_cols, out, out_stride);
}

PAGEMILL_EXPORT void pagemill_record_cap_logits(void* program, float cap, int32_t num_cols) {
  program_of(program).add_cap_logits(cap, num_cols);
}
