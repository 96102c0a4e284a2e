#define PAGEMILL_ISA_NAMESPACE avx512
#define PAGEMILL_ISA_NAME "avx512"
#include "isa_kernels.inc"

const pagemill::Isa& pagemill::isa_avx512() { return avx512::kIsa; }
