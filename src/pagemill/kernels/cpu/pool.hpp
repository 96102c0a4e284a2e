// A small thread pool in which no caller waits for a worker that has not started.
//
// Work is a number of chunks, claimed one at a time from an atomic counter by whoever comes: the
// workers, and the caller itself. The caller waits only for chunks that are in progress when none
// is left to claim. A worker that the operating system has not woken yet, or that a neighbour
// process keeps from its core, costs nothing: the caller takes its share. (A static split, as
// OpenMP's, waits for the slowest worker at every region.)
//
// As no job needs the workers, one missed wake-up is slow and not wrong; and a child process, which
// fork() gives no workers, computes on its own thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "semaphore.hpp"

namespace pagemill {

class Pool {
 public:
  using Body = void (*)(const void* context, int chunk);

  // Starts num_threads - 1 workers; the caller of run() is the last thread. Worker i (from 1) is
  // pinned to cpus[i % cpus.size()], or to none if cpus is empty; callers stay where they are.
  // Throws std::system_error if the system has no more threads to give.
  explicit Pool(int num_threads, const std::vector<int>& cpus = {});
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(context, chunk) once for each chunk in [0, num_chunks), in any order, on any thread;
  // returns when all are done. The body must not throw. A single chunk runs on the caller; so does
  // everything while another caller has the workers, and inside a body.
  void run(int num_chunks, Body body, const void* context);

  // The same for a callable: pool.run(n, [&](int chunk) { ... }).
  template <class F>
  void run(int num_chunks, const F& f) {
    run(num_chunks, [](const void* c, int chunk) { (*static_cast<const F*>(c))(chunk); }, &f);
  }

 private:
  void work();
  bool claim_and_run(uint64_t generation);
  bool is_new_job(uint64_t claim, uint64_t last_generation) const;
  void sleep(uint64_t last_generation);
  void wake(int most);
  void stop();

  static constexpr uint64_t kClosed = 0xffffffff;  // no chunk has this number

  // generation << 32 | next chunk. A claim is a compare-exchange on the whole, so a worker that
  // comes late to one job can never take a chunk of the next. (It could if it slept through exactly
  // 2^32 jobs between two instructions and the next chunk were the same.)
  alignas(64) std::atomic<uint64_t> claim_{kClosed};
  alignas(64) std::atomic<int> num_done_{0};
  // The job. Changed only while claim_ is closed; see claim_and_run().
  alignas(64) std::atomic<Body> body_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<int> num_chunks_{0};
  std::atomic<bool> busy_{false};  // a caller has the workers
  // Workers that wait for wake_, or are about to, less the posts on their way to them.
  alignas(64) std::atomic<int> num_sleeping_{0};
  std::atomic<bool> stopping_{false};
  Semaphore wake_;
  int process_id_;
  std::vector<std::thread> workers_;
};

}  // namespace pagemill
