// The table of all kernels over the vectors of simd.hpp, and those that compile quickly.
//
// This file and isa_*.cpp beside it are compiled once for each instruction set, with its flags and
// PAGEMILL_ISA_NAMESPACE defined as its name; all that they define is in that namespace. They are
// several so that a build always has something for each processor to do.

#include "isa.hpp"
#include "simd.hpp"

#include "linear_common.inc"
#include "linear_float.inc"
#include "linear_wide.inc"
#include "peaks.inc"
#include "quantize.inc"
#include "row_kernels.inc"
#include "vocab_ops.inc"

#define PAGEMILL_TEXT_OF(name) #name
#define PAGEMILL_TEXT(name) PAGEMILL_TEXT_OF(name)
#define PAGEMILL_JOIN_OF(a, b) a##b
#define PAGEMILL_JOIN(a, b) PAGEMILL_JOIN_OF(a, b)

namespace PAGEMILL_ISA_NAMESPACE {

pagemill::LinearQuantized linear_quantized;  // isa_linear.cpp
pagemill::Attend attend;                     // isa_attention.cpp

constexpr pagemill::Isa kIsa = {
    PAGEMILL_TEXT(PAGEMILL_ISA_NAMESPACE),
    linear_quantized,
    linear_wide,
    linear_float,
    kRowKernels,
    attend,
    int8_group,
    int4_group,
    kPeakKernels,
    kVocabKernels,
};

}  // namespace PAGEMILL_ISA_NAMESPACE

const pagemill::Isa& pagemill::PAGEMILL_JOIN(isa_, PAGEMILL_ISA_NAMESPACE)() {
  return PAGEMILL_ISA_NAMESPACE::kIsa;
}
