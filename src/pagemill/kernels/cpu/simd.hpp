// Sixteen lanes of float or int32, the same on every instruction set.
//
// One panel of a packed weight is sixteen output rows, so a vector here holds one number for each
// row of a panel, and every kernel is written once over these types. Compiled once with the flags
// of each instruction set; PAGEMILL_ISA_NAMESPACE (avx512, avx2, portable) keeps the copies apart.
//
//   F16   16 x float   zero splat lane_numbers load load_first load_half load_bfloat load_u8
//                      load_s8 store store_first store_half store_bfloat + - * / fma min max abs
//                      copy_sign select_less mask_less sum largest round_to_int as_int
//   I16   16 x int32   splat_int load_int store_int + - max largest shift_left to_float as_float
//                      power_of_two store_s8 store_u8
//   B64   64 bytes, 4 for each of 16 lanes
//                      load_bytes store_bytes splat_bytes low_nibbles high_nibbles
//                      bits_4_5 add_16_where - | dot4 dot4_signed
//   WideSum            sums of products of 8 by 14 bits
//                      store_wide wide_weights wide_start add_wide wide_total
//
// Every function gives the same bits on every instruction set, except fma (see there) and the bits
// of a NaN. min and max return their second argument if either is a NaN or both are zero.
//
// Compiled with -ffp-contract=off: a multiply-add is fused where a kernel says fma, nowhere else.
// Left to the compiler, it would depend on the shape of the loop around it, and the same row could
// come out differently in another tile.
//
// What is written over this header lives in PAGEMILL_ISA_NAMESPACE too: the linker keeps only one
// copy of any other inline function, and a copy with AVX-512 instructions would end the process on
// a machine without them. (CMakeLists.txt has the second defence, tests/unit/native a check.)
#pragma once

#include <stdint.h>
#include <string.h>

#define PAGEMILL_INLINE inline __attribute__((always_inline))
// Before a loop over an array of vectors: only with constant indices do they stay in registers.
// (Code that a sanitizer has filled with checks would only take minutes to compile.)
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PAGEMILL_UNROLL
#else
#define PAGEMILL_UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(__AMX_INT8__)
#define PAGEMILL_AMX 1  // whose vectors are those of AVX-512
#endif
#if defined(__AVX512VNNI__)
#define PAGEMILL_AVX512 1
#include "simd_avx512.hpp"
#elif defined(__AVX2__)
#define PAGEMILL_AVX2 1
#include "simd_avx2.hpp"
#else
#include "simd_portable.hpp"
#endif
