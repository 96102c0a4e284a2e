#include "api.hpp"

#include <exception>
#include <string>
#include <vector>

#include "dispatch.hpp"
#include "pool.hpp"

int32_t pagemill_abi_version() { return kAbiVersion; }

const char* pagemill_isa_name() { return pagemill::current_isa().name; }

const char* pagemill_supported_isas() {
  static const std::string names = [] {
    std::string joined;
    for (const pagemill::Isa* isa : pagemill::supported_isas()) {
      joined += (joined.empty() ? "" : ",") + std::string(isa->name);
    }
    return joined;
  }();
  return names.c_str();
}

const char* pagemill_select_isa(const char* name) {
  static thread_local std::string message;
  message = pagemill::select_isa(name);
  return message.empty() ? nullptr : message.c_str();
}

void* pagemill_pool_create(int32_t num_threads, const int32_t* cpus, int32_t num_cpus) {
  try {
    return new pagemill::Pool(num_threads, std::vector<int>(cpus, cpus + num_cpus));
  } catch (const std::exception&) {
    return nullptr;
  }
}

void pagemill_pool_destroy(void* pool) { delete static_cast<pagemill::Pool*>(pool); }
