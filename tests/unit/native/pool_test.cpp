// Tests of the thread pool: pool_test NAME runs one and exits with 0, or says what is wrong.
// pool_test cost prints figures.

#include "pool.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

namespace {

using pagemill::Pool;
using Clock = std::chrono::steady_clock;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

double ns_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

// Runs a job whose chunks count themselves in plain memory, which only the pool's own ordering
// protects, and checks that each ran once.
void check_job(Pool& pool, std::vector<int>& counts, int num_chunks) {
  std::fill(counts.begin(), counts.end(), 0);
  pool.run(num_chunks, [&](int chunk) { ++counts[chunk]; });
  for (int i = 0; i < static_cast<int>(counts.size()); ++i) {
    expect(counts[i] == (i < num_chunks), "each chunk ran exactly once");
  }
}

void every_chunk_runs_once() {
  std::mt19937 random(7);
  for (int num_threads : {1, 2, 3, 8}) {
    Pool pool(num_threads);
    expect(pool.num_threads() == num_threads, "the pool has the threads asked for");
    std::vector<int> counts(64);
    for (int job = 0; job < 20000; ++job) {
      check_job(pool, counts, static_cast<int>(random() % 65));
      // Sometimes long enough for the workers to fall asleep, or to be about to.
      if (random() % 512 == 0) usleep(random() % 400);
    }
  }
}

void a_job_sees_what_the_job_before_wrote() {
  constexpr int kCells = 257;
  Pool pool(4);
  std::vector<uint64_t> cells(kCells, 1), next(kCells), alone(kCells, 1);
  cells[0] = alone[0] = 2;
  for (int job = 0; job < 20000; ++job) {
    pool.run(kCells, [&](int i) { next[i] = 3 * cells[i] + cells[(i + 1) % kCells]; });
    std::swap(cells, next);
    const uint64_t first = alone[0];
    for (int i = 0; i + 1 < kCells; ++i) alone[i] = 3 * alone[i] + alone[i + 1];
    alone[kCells - 1] = 3 * alone[kCells - 1] + first;
  }
  expect(cells == alone, "the cells are those of one thread");
}

// Each job has two chunks that wait for each other, so a worker has to come.
void workers_come_even_from_sleep() {
  Pool pool(2);
  for (int job = 0; job < 1000; ++job) {
    if (job % 4 == 0) usleep(200 + job % 200);
    std::atomic<int> started{0};
    pool.run(2, [&](int) {
      ++started;
      const auto start = Clock::now();
      while (started < 2) {
        std::this_thread::yield();
        expect(ns_since(start) < 30e9, "a worker comes");
      }
    });
  }
}

void pools_come_and_go() {
  std::mt19937 random(8);
  std::vector<int> counts(16);
  for (int i = 0; i < 3000; ++i) {
    Pool pool(1 + static_cast<int>(random() % 4), {0});
    for (unsigned job = random() % 3; job > 0; --job) check_job(pool, counts, 16);
    if (random() % 64 == 0) usleep(300);  // the workers sleep when they are told to stop
  }
}

void two_callers_share_a_pool() {
  Pool pool(3);
  const auto calls = [&pool] {
    std::vector<int> counts(32);
    for (int job = 0; job < 10000; ++job) check_job(pool, counts, 32);
  };
  std::thread other(calls);
  calls();
  other.join();
}

void a_body_may_run_a_job() {
  Pool pool(3);
  std::atomic<int> count{0};
  pool.run(8, [&](int) { pool.run(8, [&](int) { ++count; }); });
  expect(count == 64, "the inner jobs ran");
}

void a_forked_child_computes_alone() {
  auto pool = std::make_unique<Pool>(3);
  std::vector<int> counts(32);
  check_job(*pool, counts, 32);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    for (int job = 0; job < 100; ++job) check_job(*pool, counts, 32);
    pool.reset();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child computed and ended");
  check_job(*pool, counts, 32);
}

// The best and the median time of a region with as many chunks as threads that do nothing.
void print_region_cost(const char* label, int num_threads) {
  Pool pool(num_threads);
  std::vector<double> times;
  for (int batch = 0; batch < 400; ++batch) {
    constexpr int kRegions = 500;
    const auto start = Clock::now();
    for (int i = 0; i < kRegions; ++i) pool.run(num_threads, [](int) {});
    times.push_back(ns_since(start) / kRegions);
  }
  std::sort(times.begin(), times.end());
  std::printf("%s, %d threads: best %.0f ns, median %.0f ns, slowest of 400 batches %.0f ns\n",
              label, num_threads, times.front(), times[times.size() / 2], times.back());
}

// Regions with work in them, as a model has: 121 of 8 chunks of about 10 us.
void print_step_cost(const char* label, int num_threads) {
  Pool pool(num_threads);
  double best = 1e18, worst = 0, total = 0;
  for (int step = 0; step < 50; ++step) {
    const auto start = Clock::now();
    for (int region = 0; region < 121; ++region) {
      pool.run(8, [](int) {
        volatile uint64_t x = 1;
        for (int i = 0; i < 5000; ++i) x = x * 6364136223846793005u + 1;
      });
    }
    const double ms = ns_since(start) / 1e6;
    best = std::min(best, ms);
    worst = std::max(worst, ms);
    total += ms;
  }
  std::printf("%s, %d threads: 121 regions best %.1f ms, mean %.1f ms, worst %.1f ms\n", label,
              num_threads, best, total / 50, worst);
}

void cost() {
  print_region_cost("empty region", 2);
  print_step_cost("step", 1);
  print_step_cost("step", 2);
  std::atomic<bool> stop{false};
  std::thread neighbour([&stop] {
    while (!stop) {
    }
  });
  print_region_cost("empty region beside a spinning neighbour", 2);
  print_step_cost("step beside a spinning neighbour", 1);
  print_step_cost("step beside a spinning neighbour", 2);
  stop = true;
  neighbour.join();
}

struct Test {
  const char* name;
  void (*run)();
};

constexpr Test kTests[] = {
    {"every_chunk_runs_once", every_chunk_runs_once},
    {"a_job_sees_what_the_job_before_wrote", a_job_sees_what_the_job_before_wrote},
    {"workers_come_even_from_sleep", workers_come_even_from_sleep},
    {"pools_come_and_go", pools_come_and_go},
    {"two_callers_share_a_pool", two_callers_share_a_pool},
    {"a_body_may_run_a_job", a_body_may_run_a_job},
    {"a_forked_child_computes_alone", a_forked_child_computes_alone},
    {"cost", cost},
};

}  // namespace

int main(int argc, char** argv) {
  for (const Test& test : kTests) {
    if (argc == 2 && std::strcmp(argv[1], test.name) == 0) {
      test.run();
      return 0;
    }
  }
  std::fprintf(stderr, "usage: pool_test NAME\n");
  return 2;
}
