// A fixed set of threads that run short parallel regions: the only source of parallelism on the host.
//
// A region is n tasks handed out in runs from an atomic counter; the calling thread takes part. run() returns when
// all tasks are done, not when all workers have noticed: a worker that the system has not scheduled in time simply
// misses the region, which matters because several Tandem processes share few cores. Results must therefore not
// depend on which worker runs which task.
//
// Placement. Linux likes to wake a worker on the processor of the thread that woke it, where it waits for its own
// caller to finish; the load balancer needs up to a second to notice, and every sleep may start it over (16 rows of the
// demonstration model: 2.5 ms instead of 1.6). So workers may run anywhere except on the caller's processor, which is
// looked up at every region and changes rarely. Pools of more threads than processors are left alone.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace tnd {

class ThreadPool {
 public:
  // Task function: ctx as given to run, task in [0, n_tasks), worker in [0, threads()); the caller is worker 0.
  using Fn = void (*)(void* ctx, int task, int worker);

  static constexpr int kMaxTasks = 65535;    // of one region; run() splits larger counts into several regions
  static constexpr int kDefaultSpinUs = 30;  // longer than the serial gaps between the matmuls of a layer

  // Starts threads - 1 workers (threads >= 1; 1 means that everything runs inline in the caller).
  // spin_us: how long an idle worker polls before it sleeps in the kernel, and the caller before it waits asleep for
  // the last task. 0 = sleep at once.
  explicit ThreadPool(int threads, int spin_us = kDefaultSpinUs);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Runs fn for every task and returns when all have finished; their writes are visible to the caller. Allocates
  // nothing. One region at a time: only one thread may call run, and a task must not call run of the same pool.
  void run(int n_tasks, Fn fn, void* ctx);

  // The same for a callable f(int task, int worker), borrowed until return.
  template <typename F>
  void run(int n_tasks, F&& f) {
    using Callable = std::remove_reference_t<F>;
    run(
        n_tasks, [](void* ctx, int task, int worker) { (*static_cast<Callable*>(ctx))(task, worker); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  struct Worker;

  void run_region(int n_tasks, Fn fn, void* ctx);
  void keep_workers_off_caller();
  bool take_and_run(int worker);
  void worker_loop(int worker);

  const int threads_;
  const int64_t spin_ns_;
  std::unique_ptr<Worker[]> workers_;
  bool placed_ = false;  // workers are kept off the caller's processor
  int caller_cpu_ = -1;  // processor that they are kept off now
  cpu_set_t allowed_;    // processors of the process when the pool was made

  // The open region. state_ packs epoch (32 bits) | tasks (16) | next task (16), so that claiming a task by
  // compare-and-swap also proves that fn_ and ctx_, read before, belong to this region.
  alignas(64) std::atomic<uint64_t> state_{0};
  std::atomic<Fn> fn_{nullptr};
  std::atomic<void*> ctx_{nullptr};
  alignas(64) std::atomic<uint32_t> done_{0};  // finished tasks of the region; futex of the caller
  std::atomic<uint32_t> caller_sleeps_{0};
  alignas(64) std::atomic<uint32_t> wake_{0};  // bumped per region; futex of the workers
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace tnd
