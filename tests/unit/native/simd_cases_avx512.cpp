#define PAGEMILL_ISA_NAMESPACE avx512
#include "simd_cases.inc"
