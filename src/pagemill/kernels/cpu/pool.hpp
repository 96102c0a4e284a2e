// A small thread pool in which no caller waits for a worker that has not started.
//
// Work is a number of chunks, claimed one at a time from an atomic counter by whoever comes: the
// workers, and the caller itself. The caller waits only for chunks that are in progress when none
// is left to claim. A worker that the operating system has not woken yet, or that a neighbour
// process keeps from its core, costs nothing: the caller takes its share. (A static split, as
// OpenMP's, waits for the slowest worker at every region.)
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace pagemill {

class Pool {
 public:
  using Body = void (*)(const void* context, int chunk);

  // Starts num_threads - 1 workers; the caller of run() is the last thread.
  // cpus: where to pin worker i + 1 (and the first caller), or empty for no affinity.
  explicit Pool(int num_threads, const std::vector<int>& cpus = {});
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(context, chunk) once for each chunk in [0, num_chunks), in any order, on any thread;
  // returns when all are done. One caller at a time. A single chunk runs on the caller.
  void run(int num_chunks, Body body, const void* context);

  // The same for a callable: pool.run(n, [&](int chunk) { ... }).
  template <class F>
  void run(int num_chunks, const F& f) {
    run(num_chunks, [](const void* c, int chunk) { (*static_cast<const F*>(c))(chunk); }, &f);
  }

 private:
  void work();
  bool claim_and_run(uint64_t generation);

  // generation << 32 | next chunk. A claim is a compare-exchange on the whole, so a worker that
  // comes late to one job can never take a chunk of the next.
  alignas(64) std::atomic<uint64_t> claim_{kClosed};
  alignas(64) std::atomic<int> num_done_{0};
  alignas(64) std::atomic<int> num_sleeping_{0};
  // The job. Written while claim_ is closed, read by a worker before its claim proves it valid.
  std::atomic<Body> body_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<int> num_chunks_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;

  static constexpr uint64_t kClosed = 0xffffffffu;  // no chunk has this number
};

}  // namespace pagemill
