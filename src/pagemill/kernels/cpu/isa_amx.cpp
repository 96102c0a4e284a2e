// The linear maps that tiles of bytes compute; dispatch.cpp adds them to the kernels of AVX-512.
// Compiled once, with the flags of both.

#include "isa.hpp"
#include "simd.hpp"

#include "linear_common.inc"
#include "linear_wide.inc"
