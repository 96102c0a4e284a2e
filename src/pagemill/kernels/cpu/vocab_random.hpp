// Counter-based random numbers: a draw is a function of a sequence's key and the token's position.
#pragma once

#include <cstdint>

namespace pagemill {

// In [0, 1), a multiple of 2^-53: Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy
// as 1, 2, 3" (SC 2011), whose counter is (position low, position high, 0, 0: a draw), as in
// `philox.py`.
inline double uniform_at(uint64_t key, uint64_t position) {
  uint32_t words[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0,
                       0};
  uint32_t key_low = static_cast<uint32_t>(key), key_high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product_0 = uint64_t{0xD2511F53} * words[0];
    const uint64_t product_2 = uint64_t{0xCD9E8D57} * words[2];
    words[0] = static_cast<uint32_t>(product_2 >> 32) ^ words[1] ^ key_low;
    words[1] = static_cast<uint32_t>(product_2);
    words[2] = static_cast<uint32_t>(product_0 >> 32) ^ words[3] ^ key_high;
    words[3] = static_cast<uint32_t>(product_0);
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
  const uint64_t bits = uint64_t{words[0] >> 5} << 26 | words[1] >> 6;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace pagemill
