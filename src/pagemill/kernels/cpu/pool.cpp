#include "pool.hpp"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

#include <chrono>

namespace pagemill {
namespace {

// How long an idle worker looks for work before it sleeps. Ops of one step follow each other within
// microseconds; between steps there may be Python. Longer would burn a shared machine's time.
constexpr auto kSpin = std::chrono::microseconds(200);

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

void pin(std::thread::native_handle_type thread, int cpu) {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread, sizeof set, &set);
#else
  (void)thread;
  (void)cpu;
#endif
}

}  // namespace

Pool::Pool(int num_threads, const std::vector<int>& cpus) {
  for (int i = 1; i < num_threads; ++i) {
    workers_.emplace_back([this] { work(); });
    if (!cpus.empty()) pin(workers_.back().native_handle(), cpus[i % cpus.size()]);
  }
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::run(int num_chunks, Body body, const void* context) {
  if (num_chunks <= 0) return;
  if (num_chunks == 1 || workers_.empty()) {
    for (int chunk = 0; chunk < num_chunks; ++chunk) body(context, chunk);
    return;
  }
  const uint64_t generation = (claim_.load(std::memory_order_relaxed) >> 32) + 1;
  claim_.store(generation << 32 | kClosed, std::memory_order_seq_cst);
  body_.store(body, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  num_chunks_.store(num_chunks, std::memory_order_relaxed);
  num_done_.store(0, std::memory_order_relaxed);
  const uint64_t open = (generation + 1) & 0xffffffffu;
  claim_.store(open << 32, std::memory_order_seq_cst);
  if (num_sleeping_.load(std::memory_order_seq_cst) > 0) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }
  while (claim_and_run(open)) {
  }
  while (num_done_.load(std::memory_order_acquire) < num_chunks) relax();
}

// Claims one chunk of the job of this generation and runs it; false if there is none left.
bool Pool::claim_and_run(uint64_t generation) {
  uint64_t seen = claim_.load(std::memory_order_acquire);
  for (;;) {
    const Body body = body_.load(std::memory_order_relaxed);
    const void* context = context_.load(std::memory_order_relaxed);
    const int num_chunks = num_chunks_.load(std::memory_order_relaxed);
    const uint64_t next = seen & 0xffffffffu;
    if (seen >> 32 != generation || next >= static_cast<uint64_t>(num_chunks)) return false;
    // Success proves that the job just read is this generation's: it is closed before it changes.
    if (claim_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      body(context, static_cast<int>(next));
      num_done_.fetch_add(1, std::memory_order_release);
      return true;
    }
  }
}

void Pool::work() {
  uint64_t last = ~uint64_t{0};
  while (!stopping_.load(std::memory_order_relaxed)) {
    const auto start = std::chrono::steady_clock::now();
    uint64_t generation;
    int spins = 0;
    for (;;) {
      const uint64_t seen = claim_.load(std::memory_order_acquire);
      generation = seen >> 32;
      if (generation != last && (seen & 0xffffffffu) != kClosed) break;
      relax();
      if (++spins % 64 == 0 && std::chrono::steady_clock::now() - start > kSpin) {
        std::unique_lock<std::mutex> lock(mutex_);
        num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(lock, [&] {
          const uint64_t now = claim_.load(std::memory_order_seq_cst);
          return stopping_.load() || (now >> 32 != last && (now & 0xffffffffu) != kClosed);
        });
        num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
        if (stopping_.load()) return;
      }
      if (stopping_.load(std::memory_order_relaxed)) return;
    }
    while (claim_and_run(generation)) {
    }
    last = generation;
  }
}

}  // namespace pagemill
