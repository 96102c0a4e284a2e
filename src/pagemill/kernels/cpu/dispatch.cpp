#include "dispatch.hpp"

#include <atomic>

#if defined(PAGEMILL_BUILDS_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(PAGEMILL_BUILDS_AMX)
namespace amx {
pagemill::LinearWide linear_wide;  // isa_amx.cpp
}
#endif

namespace pagemill {
namespace {

#if defined(PAGEMILL_BUILDS_AMX)
const Isa& isa_amx() {
  static const Isa isa = [] {
    Isa of_amx = isa_avx512();
    of_amx.name = "amx";
    of_amx.linear_wide = amx::linear_wide;
    return of_amx;
  }();
  return isa;
}

// Whether the processor multiplies tiles of bytes, and Linux lets this process use them, which it
// has to be asked for: the registers have 8 KB, which most programs need not have saved.
bool is_amx_granted() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kTiles = 1u << 24, kBytes = 1u << 25;
  if (!(d & kTiles) || !(d & kBytes)) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

std::vector<const Isa*> find_supported_isas() {
  std::vector<const Isa*> isas;
#if defined(__x86_64__)
  // These also ask whether the operating system saves the registers.
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma")) {
#if defined(PAGEMILL_BUILDS_AMX)
    if (is_amx_granted()) isas.push_back(&isa_amx());
#endif
    isas.push_back(&isa_avx512());
  }
  // No processor has AVX2 without F16C, which older compilers cannot ask for.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    isas.push_back(&isa_avx2());
  }
#endif
  isas.push_back(&isa_portable());
  return isas;
}

std::atomic<const Isa*>& selected_isa() {
  static std::atomic<const Isa*> isa{supported_isas().front()};
  return isa;
}

std::string joined_names(const std::vector<const Isa*>& isas) {
  std::string names;
  for (const Isa* isa : isas) names += (names.empty() ? "" : ", ") + std::string(isa->name);
  return names;
}

}  // namespace

const std::vector<const Isa*>& supported_isas() {
  static const std::vector<const Isa*> isas = find_supported_isas();
  return isas;
}

const Isa& current_isa() { return *selected_isa().load(std::memory_order_relaxed); }

std::string select_isa(const std::string& name) {
  if (name.empty()) {
    selected_isa() = supported_isas().front();
    return "";
  }
  for (const Isa* isa : supported_isas()) {
    if (name == isa->name) {
      selected_isa() = isa;
      return "";
    }
  }
  const std::string choice = "; this machine can run " + joined_names(supported_isas());
  if (name == "amx" || name == "avx512" || name == "avx2") {
    return "this machine or this build has no " + name + " kernels" + choice;
  }
  return "\"" + name + "\" is no instruction set (amx, avx512, avx2, portable)" + choice;
}

}  // namespace pagemill
