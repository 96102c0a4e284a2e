#define PAGEMILL_ISA_NAMESPACE avx2
#include "simd_cases.inc"
