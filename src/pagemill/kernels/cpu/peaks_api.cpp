// The C interface of the loops of peaks.hpp, for ctypes. They run on a pool, or without one on the
// caller's thread, in chunks that the threads claim one after another: what is measured is what
// the threads get done together, not the slowest of them.

#include <algorithm>
#include <atomic>
#include <mutex>

#include "api.hpp"
#include "isa.hpp"
#include "pool.hpp"

namespace {

// Small beside any buffer worth timing, large beside what claiming costs.
constexpr int64_t kReadChunkBytes = 1024 * 1024;

template <class F>
void run_chunks(void* pool, int num_chunks, const F& run_chunk) {
  if (pool) {
    static_cast<pagemill::Pool*>(pool)->run(num_chunks, run_chunk);
  } else {
    for (int chunk = 0; chunk < num_chunks; ++chunk) run_chunk(chunk);
  }
}

}  // namespace

// The sum of the 32-bit words of data, modulo 2^32. num_bytes is a multiple of kPeakReadBytes.
PAGEMILL_EXPORT uint32_t pagemill_peak_read(void* pool, const uint8_t* data, int64_t num_bytes) {
  std::atomic<uint32_t> sum{0};
  const int64_t num_chunks = (num_bytes + kReadChunkBytes - 1) / kReadChunkBytes;
  run_chunks(pool, static_cast<int>(num_chunks), [&](int chunk) {
    const int64_t begin = chunk * kReadChunkBytes;
    const int64_t size = std::min(kReadChunkBytes, num_bytes - begin);
    sum += pagemill::current_isa().peaks.read(data + begin, size);
  });
  return sum;
}

// num_chunks times `rounds` rounds. Returns the number of multiply-adds; *checksum is the sum of
// all products, modulo 2^32.
PAGEMILL_EXPORT int64_t pagemill_peak_multiply_bytes(void* pool, int32_t num_chunks, int64_t rounds,
                                                     uint8_t weight, int8_t activation,
                                                     uint32_t* checksum) {
  std::atomic<uint32_t> sum{0};
  std::atomic<int64_t> count{0};
  run_chunks(pool, num_chunks, [&](int) {
    uint32_t part;
    count += pagemill::current_isa().peaks.multiply_bytes(rounds, weight, activation, &part);
    sum += part;
  });
  *checksum = sum;
  return count;
}

// The same for float32.
PAGEMILL_EXPORT int64_t pagemill_peak_multiply_floats(void* pool, int32_t num_chunks,
                                                      int64_t rounds, float weight,
                                                      float activation, double* checksum) {
  std::mutex mutex;
  int64_t count = 0;
  *checksum = 0;
  run_chunks(pool, num_chunks, [&](int) {
    double part;
    const int64_t done =
        pagemill::current_isa().peaks.multiply_floats(rounds, weight, activation, &part);
    const std::lock_guard<std::mutex> lock(mutex);
    count += done;
    *checksum += part;
  });
  return count;
}
