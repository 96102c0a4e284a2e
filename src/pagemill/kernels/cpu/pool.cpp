#include "pool.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <chrono>

namespace pagemill {
namespace {

// How long an idle worker looks for work before it sleeps. Ops of one step follow each other within
// microseconds; between steps there may be Python. Longer would burn a shared machine's time.
constexpr auto kSpin = std::chrono::microseconds(200);

// How often a caller looks whether the last chunks are done before it offers its core to others: a
// worker with a chunk may be waiting for one.
constexpr int kLooksBeforeYield = 2000;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
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

// While it lives, threads that are started take no signals: those are for the program's own.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

Pool::Pool(int num_threads, const std::vector<int>& cpus) : process_id_(getpid()) {
  SignalsBlocked blocked;
  try {
    for (int i = 1; i < num_threads; ++i) {
      workers_.emplace_back([this] { work(); });
      if (!cpus.empty()) pin(workers_.back().native_handle(), cpus[i % cpus.size()]);
    }
  } catch (...) {
    stop();
    throw;
  }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
  if (getpid() != process_id_) {  // a fork of the process that has the workers
    for (std::thread& worker : workers_) worker.detach();
    return;
  }
  stopping_.store(true, std::memory_order_seq_cst);
  wake(static_cast<int>(workers_.size()));
  for (std::thread& worker : workers_) worker.join();
}

void Pool::run(int num_chunks, Body body, const void* context) {
  if (num_chunks <= 1 || workers_.empty() || busy_.exchange(true, std::memory_order_acquire)) {
    for (int chunk = 0; chunk < num_chunks; ++chunk) body(context, chunk);
    return;
  }
  const uint64_t last_generation = claim_.load(std::memory_order_relaxed) >> 32;
  claim_.store(last_generation << 32 | kClosed, std::memory_order_relaxed);
  // Released, so that who reads any of these also sees the claim closed.
  body_.store(body, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  num_chunks_.store(num_chunks, std::memory_order_release);
  num_done_.store(0, std::memory_order_relaxed);
  const uint64_t generation = (last_generation + 1) & 0xffffffff;
  // Sequentially consistent against sleep(): either the worker sees this job or we see it asleep.
  claim_.store(generation << 32, std::memory_order_seq_cst);
  wake(num_chunks - 1);
  while (claim_and_run(generation)) {
  }
  for (int looks = 0; num_done_.load(std::memory_order_acquire) < num_chunks; ++looks) {
    if (looks < kLooksBeforeYield) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
  busy_.store(false, std::memory_order_release);
}

// Claims one chunk of the job of this generation and runs it; false if there is none left.
bool Pool::claim_and_run(uint64_t generation) {
  uint64_t seen = claim_.load(std::memory_order_acquire);
  for (;;) {
    // Not older than the job of `seen`, whose opening was acquired with it. If one of these is
    // newer, then claim_ was closed before, the loads acquired that, and the exchange fails.
    const Body body = body_.load(std::memory_order_acquire);
    const void* context = context_.load(std::memory_order_acquire);
    const int num_chunks = num_chunks_.load(std::memory_order_acquire);
    const uint64_t next = seen & 0xffffffff;
    if (seen >> 32 != generation || next >= static_cast<uint64_t>(num_chunks)) return false;
    if (claim_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      body(context, static_cast<int>(next));
      num_done_.fetch_add(1, std::memory_order_release);
      return true;
    }
  }
}

bool Pool::is_new_job(uint64_t claim, uint64_t last_generation) const {
  return claim >> 32 != last_generation && (claim & 0xffffffff) != kClosed;
}

void Pool::work() {
  uint64_t last_generation = 0;  // the first job has number 1
  while (!stopping_.load(std::memory_order_acquire)) {
    auto start = std::chrono::steady_clock::now();
    uint64_t claim = claim_.load(std::memory_order_acquire);
    for (int looks = 1; !is_new_job(claim, last_generation); ++looks) {
      if (stopping_.load(std::memory_order_acquire)) return;
      if (looks % 64 == 0 && std::chrono::steady_clock::now() - start > kSpin) {
        sleep(last_generation);
        start = std::chrono::steady_clock::now();
      } else if (looks % 64 == 0) {
        // Better give way to a neighbour now than be made to in the middle of a chunk.
        std::this_thread::yield();
      } else {
        relax();
      }
      claim = claim_.load(std::memory_order_acquire);
    }
    last_generation = claim >> 32;
    while (claim_and_run(last_generation)) {
    }
  }
}

// Returns when woken, or at once if there is work or the pool is stopping.
void Pool::sleep(uint64_t last_generation) {
  int sleeping = num_sleeping_.fetch_add(1, std::memory_order_seq_cst) + 1;
  if (stopping_.load(std::memory_order_seq_cst) ||
      is_new_job(claim_.load(std::memory_order_seq_cst), last_generation)) {
    // Takes the announcement back, unless a caller has answered it: then its post must be received.
    while (sleeping > 0) {
      if (num_sleeping_.compare_exchange_weak(sleeping, sleeping - 1)) return;
    }
  }
  wake_.wait();
}

void Pool::wake(int most) {
  int sleeping = num_sleeping_.load(std::memory_order_seq_cst);
  int count;
  do {
    count = sleeping < most ? sleeping : most;
    if (count <= 0) return;
  } while (!num_sleeping_.compare_exchange_weak(sleeping, sleeping - count));
  for (int i = 0; i < count; ++i) wake_.post();
}

}  // namespace pagemill
