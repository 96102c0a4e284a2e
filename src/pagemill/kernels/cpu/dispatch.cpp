#include "dispatch.hpp"

#include <atomic>

namespace pagemill {
namespace {

std::vector<const Isa*> find_supported_isas() {
  std::vector<const Isa*> isas;
#if defined(__x86_64__)
  // These also ask whether the operating system saves the registers.
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma")) {
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
  if (name == "avx512" || name == "avx2") {
    return "this machine or this build has no " + name + " kernels" + choice;
  }
  return "\"" + name + "\" is no instruction set (avx512, avx2, portable)" + choice;
}

}  // namespace pagemill
