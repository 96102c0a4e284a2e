// A counting semaphore (the C++17 library has none). On Linux post() never waits for a thread that
// holds a lock, which a mutex with a condition variable cannot promise.
#pragma once

#if defined(__linux__)

#include <semaphore.h>

#include <cerrno>

namespace pagemill {

class Semaphore {
 public:
  Semaphore() { sem_init(&semaphore_, 0, 0); }
  ~Semaphore() { sem_destroy(&semaphore_); }
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;

  void post() { sem_post(&semaphore_); }
  void wait() {
    while (sem_wait(&semaphore_) != 0 && errno == EINTR) {
    }
  }

 private:
  sem_t semaphore_;
};

}  // namespace pagemill

#else

#include <condition_variable>
#include <mutex>

namespace pagemill {

class Semaphore {
 public:
  void post() {
    std::lock_guard<std::mutex> lock(mutex_);
    ++count_;
    posted_.notify_one();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    posted_.wait(lock, [this] { return count_ > 0; });
    --count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable posted_;
  int count_ = 0;
};

}  // namespace pagemill

#endif
