#define PAGEMILL_ISA_NAMESPACE portable
#include "simd_cases.inc"
