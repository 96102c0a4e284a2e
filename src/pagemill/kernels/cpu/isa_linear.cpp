// The linear maps over quantized weights: see isa_kernels.cpp.

#include "linear.hpp"
#include "simd.hpp"

#include "linear_common.inc"
#include "linear_quantized.inc"
