// The kernels of each instruction set, and which set this process uses.
//
// Included by what is compiled for an instruction set, so nothing of the C++ library is included
// here; see simd.hpp.
#pragma once

#include "attention.hpp"
#include "linear.hpp"
#include "peaks.hpp"
#include "quantize.hpp"
#include "row_ops.hpp"
#include "vocab_ops.hpp"

namespace pagemill {

// Every kernel, as compiled for one instruction set. isa_kernels.cpp fills it in.
struct Isa {
  const char* name;
  LinearQuantized* linear_quantized;
  LinearWide* linear_wide;
  LinearFloat* linear_float;
  RowKernels rows;
  Attend* attend;
  QuantizeGroup int8_group, int4_group;
  PeakKernels peaks;
  VocabKernels vocab;
};

// avx512 (F, BW, DQ, VL and VNNI) and avx2 (with FMA and F16C) are built for x86-64 only. Only the
// kernels of a supported set (see dispatch.hpp) may be called.
#if defined(__x86_64__)
const Isa& isa_avx512();
const Isa& isa_avx2();
#endif
const Isa& isa_portable();

// The set in use: the best that this machine can run, until select_isa() says otherwise.
const Isa& current_isa();

}  // namespace pagemill
