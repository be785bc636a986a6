// The thread pool: every task exactly once, visibility, many short regions, sleeping workers, oversubscription.
#include "core/thread_pool.h"

#include <pthread.h>

#include <atomic>
#include <vector>

#include "harness.h"

namespace {

using tnd::ThreadPool;

// Runs `regions` regions of changing size and checks that each task ran once in each.
void run_regions(ThreadPool& pool, int regions, int max_tasks) {
  std::vector<int> runs(static_cast<size_t>(max_tasks), 0);
  std::vector<int> want(static_cast<size_t>(max_tasks), 0);
  for (int region = 0; region < regions; ++region) {
    const int tasks = region * 7 % (max_tasks + 1);
    // Plain ints: the pool must order a region's writes before the next one and before the caller.
    pool.run(tasks, [&](int task, int) { ++runs[static_cast<size_t>(task)]; });
    for (int task = 0; task < tasks; ++task) ++want[static_cast<size_t>(task)];
    CHECK(runs == want);
  }
}

}  // namespace

TEST(every_task_runs_once) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK_EQ(pool.threads(), threads);
    run_regions(pool, 2000, 40);
  }
}

TEST(workers_sleep_and_wake) {
  // No spinning at all: every region has to wake workers, and the caller sleeps for the last task.
  for (int threads : {2, 4}) {
    ThreadPool pool(threads, 0);
    run_regions(pool, 2000, 9);
  }
}

TEST(worker_numbers_are_in_range_and_the_caller_is_zero) {
  ThreadPool pool(4);
  std::atomic<int> bad{0};
  std::atomic<int> of_caller{0};
  const auto caller = pthread_self();
  for (int i = 0; i < 500; ++i) {
    pool.run(16, [&](int task, int worker) {
      if (worker < 0 || worker >= 4 || task < 0 || task >= 16) ++bad;
      if ((pthread_equal(pthread_self(), caller) != 0) != (worker == 0)) ++bad;
      if (worker == 0) ++of_caller;
    });
  }
  CHECK_EQ(bad.load(), 0);
  CHECK(of_caller.load() > 0);
}

TEST(large_counts_are_split) {
  ThreadPool pool(2);
  const int tasks = 2 * ThreadPool::kMaxTasks + 17;
  std::vector<uint8_t> runs(static_cast<size_t>(tasks), 0);
  pool.run(tasks, [&](int task, int) { ++runs[static_cast<size_t>(task)]; });
  CHECK(runs == std::vector<uint8_t>(static_cast<size_t>(tasks), 1));
}

TEST(plain_function_form_and_nested_pools) {
  ThreadPool outer(2);
  std::atomic<int> sum{0};
  outer.run(
      8,
      [](void* ctx, int task, int) {
        ThreadPool inner(2);  // another pool may run inside a task
        inner.run(4, [&](int t, int) { *static_cast<std::atomic<int>*>(ctx) += 10 * task + t; });
      },
      &sum);
  CHECK_EQ(sum.load(), 4 * 10 * 28 + 8 * 6);
}

TEST(pools_come_and_go) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(3, i % 2 * 30);
    if (i % 3 == 0) continue;  // destroyed without ever running anything
    std::atomic<int> count{0};
    pool.run(5, [&](int, int) { ++count; });
    CHECK_EQ(count.load(), 5);
  }
}

TEST_MAIN()
