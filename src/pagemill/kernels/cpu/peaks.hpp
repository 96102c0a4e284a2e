// What the machine allows: loops that only read, or only multiply, and cannot be left out.
//
// `pagemill bench roofline` times them beside the kernels. Each returns something that the caller
// can work out another way, so a test sees that the loop did what it is timed for.
#pragma once

#include <cstdint>

namespace pagemill {

// The reading loop takes so many bytes in a pass; a rest below that is not read.
constexpr int kPeakReadBytes = 256;

// The 32-bit words of data added up, modulo 2^32: one stream of loads, as a linear map with one row
// reads its weights.
using PeakRead = uint32_t (*)(const uint8_t* data, int64_t num_bytes);

// `rounds` times the same products, added up in registers: no memory but a few operands of the
// first cache. The sum is *checksum; the result is how many multiply-adds that were.
//
// Bytes: 4 products of an unsigned and a signed byte a lane, as the linear maps sum them up for
// weights of 8 bits. The sum is modulo 2^32.
using PeakMultiplyBytes = int64_t (*)(int64_t rounds, uint8_t weight, int8_t activation,
                                      uint32_t* checksum);
// Floats: fused where the set can. Exact while 48 * rounds * weight * activation, a lane's part of
// the sum, is below 2^24.
using PeakMultiplyFloats = int64_t (*)(int64_t rounds, float weight, float activation,
                                       double* checksum);

struct PeakKernels {
  PeakRead read;
  PeakMultiplyBytes multiply_bytes;
  PeakMultiplyFloats multiply_floats;
};

}  // namespace pagemill
