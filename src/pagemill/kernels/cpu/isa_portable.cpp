#define PAGEMILL_ISA_NAMESPACE portable
#define PAGEMILL_ISA_NAME "portable"
#include "isa_kernels.inc"

const pagemill::Isa& pagemill::isa_portable() { return portable::kIsa; }
