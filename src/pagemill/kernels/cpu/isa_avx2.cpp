#define PAGEMILL_ISA_NAMESPACE avx2
#define PAGEMILL_ISA_NAME "avx2"
#include "isa_kernels.inc"

const pagemill::Isa& pagemill::isa_avx2() { return avx2::kIsa; }
