// Ops that work on rows by themselves. Each takes a range of rows [begin, end), so that threads can
// share a batch; a row's bits depend on that row alone.
//
// Sums over a row have one order: lane i of four vectors adds columns i, i + 64, ..., then the four
// are joined and the lanes by halves. Strides count elements. Rows may be updated in place where
// the input and output of an op have the same shape.
#pragma once

#include <cstdint>

#include "kv_cache.hpp"
#include "packing.hpp"
#include "quantized_rows.hpp"

namespace pagemill {

// out = (x - mean) / sqrt(var + eps) * weight + bias, or the root mean square norm without mean and
// bias. With a residual, x is first added to it: residual += x, and that sum is normalized.
struct Norm {
  const float* x;
  int64_t x_stride;
  float* residual;  // or null
  int64_t residual_stride;
  const float* weight;  // [num_cols]
  const float* bias;    // [num_cols], or null
  float* out;           // or null
  int64_t out_stride;
  int32_t num_cols;
  int32_t subtract_mean;  // 1: layer norm, 0: root mean square norm
  float eps;
  QuantizedRows rounded;  // the rows in 8 bits, if wanted
};

enum class ActivationKind : int32_t { kSilu = 0, kGelu = 1, kGeluTanh = 2 };

// out = act(x), or act(x[:num_cols]) * x[num_cols:] if gated.
struct Activation {
  const float* x;
  int64_t x_stride;
  float* out;  // or null
  int64_t out_stride;
  int32_t num_cols;  // of out
  ActivationKind kind;
  int32_t gated;
  QuantizedRows rounded;  // the rows in 8 bits, if wanted
};

// out = a + b, b a batch of rows, or one row for all if b_stride is 0.
struct Add {
  const float* a;
  int64_t a_stride;
  const float* b;
  int64_t b_stride;
  float* out;
  int64_t out_stride;
  int32_t num_cols;
};

// out = x * scale, then cap * tanh(out / cap) unless cap is 0.
struct ScaleCap {
  const float* x;
  int64_t x_stride;
  float* out;
  int64_t out_stride;
  int32_t num_cols;
  float scale;
  float cap;
};

// out = table[ids[row]] * scale, added to out if accumulate.
struct Embedding {
  const void* table;  // [count, num_cols]
  FloatType type;
  int32_t num_cols;
  const int64_t* ids;
  float* out;
  int64_t out_stride;
  float scale;
  int32_t accumulate;
};

// Queries, keys and values of a projection, row after row: heads of queries, then of keys, then of
// values. Normalizes and rotates queries in place, and keys on their way to the cache; values go to
// the cache as they are.
struct RotaryWrite {
  float* qkv;
  int64_t qkv_stride;
  int32_t num_heads;
  const float* query_norm;  // [head_dim], or null: no norm
  const float* key_norm;
  float norm_eps;
  int32_t num_pairs;  // dimension i is rotated with i + num_pairs; 0: no rotation
  const float* cos;   // [positions, num_pairs]
  const float* sin;
  const int64_t* positions;     // [rows]
  const int64_t* slot_mapping;  // [rows]
  KvCache cache;
};

// Rows as integers, where the op that computes them does not write them so itself.
struct QuantizeRows {
  const float* x;
  int64_t x_stride;
  int32_t num_cols;
  QuantizedRows to;
};

template <class Args>
using RowOp = void (*)(const Args& args, int64_t begin, int64_t end);

// The row ops of one instruction set.
struct RowKernels {
  RowOp<Norm> norm;
  RowOp<Activation> activation;
  RowOp<Add> add;
  RowOp<ScaleCap> scale_cap;
  RowOp<Embedding> embedding;
  RowOp<RotaryWrite> rotary_write;
  RowOp<QuantizeRows> quantize_rows;
};

}  // namespace pagemill
