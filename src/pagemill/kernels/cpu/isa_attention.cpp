// Attention: see isa_kernels.cpp.

#include "attention.hpp"
#include "vector_math.hpp"

#include "row_output.inc"
#include "attention_blocks.inc"
#include "attention.inc"
