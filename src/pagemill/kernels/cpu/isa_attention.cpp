// Attention: see isa_kernels.cpp.

#include "attention.hpp"
#include "vector_math.hpp"

namespace PAGEMILL_ISA_NAMESPACE {
using namespace pagemill;
}

#include "attention_blocks.inc"
#include "attention.inc"
