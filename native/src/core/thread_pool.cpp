#include "core/thread_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tnd {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "futex needs the plain word");

void futex_wait(std::atomic<uint32_t>* word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>* word, int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Polls until ready() or the time is over; says whether it became ready.
template <typename Ready>
bool spin(int64_t spin_ns, Ready&& ready) {
  if (ready()) return true;
  if (spin_ns <= 0) return false;
  const int64_t end = now_ns() + spin_ns;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      relax();
    }
  } while (now_ns() < end);
  return ready();
}

}  // namespace

struct ThreadPool::Worker {
  std::thread thread;
  std::atomic<pid_t> tid{0};  // 0 until it runs
};

ThreadPool::ThreadPool(int threads, int spin_us)
    : threads_(threads < 1 ? 1 : threads), spin_ns_(int64_t{1000} * (spin_us < 0 ? 0 : spin_us)) {
  workers_ = std::make_unique<Worker[]>(static_cast<size_t>(threads_ - 1));
  placed_ = threads_ > 1 && sched_getaffinity(0, sizeof allowed_, &allowed_) == 0 && CPU_COUNT(&allowed_) >= threads_;
  for (int i = 1; i < threads_; ++i) workers_[i - 1].thread = std::thread([this, i] { worker_loop(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  wake_.fetch_add(1);
  futex_wake(&wake_, threads_);
  for (int i = 1; i < threads_; ++i) workers_[i - 1].thread.join();
}

void ThreadPool::run(int n_tasks, Fn fn, void* ctx) {
  if (threads_ == 1 || n_tasks == 1) {
    for (int task = 0; task < n_tasks; ++task) fn(ctx, task, 0);
    return;
  }
  if (n_tasks <= kMaxTasks) {
    run_region(n_tasks, fn, ctx);
    return;
  }
  struct Part {
    Fn fn;
    void* ctx;
    int first;
  } part{fn, ctx, 0};
  for (; part.first < n_tasks; part.first += kMaxTasks) {
    const int count = n_tasks - part.first < kMaxTasks ? n_tasks - part.first : kMaxTasks;
    run_region(
        count,
        [](void* p, int task, int worker) {
          const Part& self = *static_cast<Part*>(p);
          self.fn(self.ctx, self.first + task, worker);
        },
        &part);
  }
}

void ThreadPool::keep_workers_off_caller() {
  const int cpu = sched_getcpu();
  if (cpu == caller_cpu_ || cpu < 0 || cpu >= CPU_SETSIZE) return;
  cpu_set_t others = allowed_;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) < threads_ - 1) return;
  caller_cpu_ = cpu;
  for (int i = 0; i < threads_ - 1; ++i) {
    const pid_t tid = workers_[i].tid.load(std::memory_order_relaxed);
    if (tid == 0) {
      caller_cpu_ = -1;  // not started yet: once more at the next region
    } else if (sched_setaffinity(tid, sizeof others, &others) != 0) {
      placed_ = false;  // the system does not let us: leave it to the scheduler
      return;
    }
  }
}

void ThreadPool::run_region(int n_tasks, Fn fn, void* ctx) {
  if (n_tasks <= 0) return;
  if (placed_) keep_workers_off_caller();
  fn_.store(fn, std::memory_order_relaxed);
  ctx_.store(ctx, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const uint64_t epoch = (state_.load(std::memory_order_relaxed) >> 32) + 1;
  state_.store(epoch << 32 | static_cast<uint64_t>(n_tasks) << 16, std::memory_order_release);
  // seq_cst on wake_ and sleepers_, here and in worker_loop: either the worker sees the new region or we see it asleep.
  wake_.fetch_add(1);
  if (sleepers_.load() != 0) futex_wake(&wake_, threads_);

  while (take_and_run(0)) {
  }
  const auto finished = [&] { return done_.load(std::memory_order_acquire) == static_cast<uint32_t>(n_tasks); };
  if (spin(spin_ns_, finished)) return;
  caller_sleeps_.store(1);
  for (uint32_t seen = done_.load(); seen != static_cast<uint32_t>(n_tasks); seen = done_.load()) {
    futex_wait(&done_, seen);
  }
  caller_sleeps_.store(0);
}

// Claims a run of tasks of the open region and runs it; false when none is left. Runs get shorter towards the end, so
// that threads finish together, and neighbouring tasks stay with one thread, which asks for their weights ahead.
bool ThreadPool::take_and_run(int worker) {
  uint64_t state = state_.load(std::memory_order_acquire);
  for (;;) {
    const uint32_t next = static_cast<uint32_t>(state & 0xFFFF);
    const uint32_t count = static_cast<uint32_t>(state >> 16 & 0xFFFF);
    if (next >= count) return false;
    // May already be the next region's values; then state_ has moved on and the exchange fails.
    const Fn fn = fn_.load(std::memory_order_relaxed);
    void* ctx = ctx_.load(std::memory_order_relaxed);
    const uint32_t take = std::max<uint32_t>(1, (count - next) / (2 * static_cast<uint32_t>(threads_)));
    if (!state_.compare_exchange_weak(state, state + take, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;
    for (uint32_t task = next; task < next + take; ++task) fn(ctx, static_cast<int>(task), worker);
    const uint32_t done = done_.fetch_add(take) + take;
    if (done == count && caller_sleeps_.load() != 0) futex_wake(&done_, 1);
    return true;
  }
}

void ThreadPool::worker_loop(int worker) {
  workers_[worker - 1].tid.store(static_cast<pid_t>(syscall(SYS_gettid)), std::memory_order_relaxed);
  uint32_t seen = wake_.load();
  for (;;) {
    while (take_and_run(worker)) {
    }
    if (stop_.load(std::memory_order_relaxed)) return;
    const auto changed = [&] { return wake_.load(std::memory_order_acquire) != seen; };
    if (!spin(spin_ns_, changed)) {
      sleepers_.fetch_add(1);
      while (!changed()) futex_wait(&wake_, seen);
      sleepers_.fetch_sub(1);
    }
    seen = wake_.load();
  }
}

}  // namespace tnd
