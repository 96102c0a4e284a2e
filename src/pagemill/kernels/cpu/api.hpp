// The C interface for ctypes: what src/pagemill/kernels/native.py declares again in Python.
//
// No exception leaves these functions. Where something can be wrong they return a message, valid
// until the thread's next call, or null.
#pragma once

#include <cstdint>

#define PAGEMILL_EXPORT extern "C" __attribute__((visibility("default")))

// Changes whenever a function or a structure here or in another *_api.cpp changes its form; the
// Python side refuses a library with another number.
constexpr int32_t kAbiVersion = 6;

PAGEMILL_EXPORT int32_t pagemill_abi_version();

// The instruction set in use, and those that this machine can run, separated by commas, best first.
PAGEMILL_EXPORT const char* pagemill_isa_name();
PAGEMILL_EXPORT const char* pagemill_supported_isas();
// "" selects the best. Returns why not, or null.
PAGEMILL_EXPORT const char* pagemill_select_isa(const char* name);

// A pool of num_threads, the caller included; its workers pinned to cpus in turn (cpus[1] first),
// if there are any. Null if the system has no more threads to give.
PAGEMILL_EXPORT void* pagemill_pool_create(int32_t num_threads, const int32_t* cpus,
                                           int32_t num_cpus);
PAGEMILL_EXPORT void pagemill_pool_destroy(void* pool);
