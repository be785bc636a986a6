// Fibers: stacks that switch to each other on one host thread. On x86-64 the switch is hand-written (two nanoseconds),
// elsewhere it uses ucontext.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace tnd::gpu::emu {

class Fiber {
 public:
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // start makes the fiber begin at entry(argument) at its next switch, and abandons its earlier state. entry never
  // returns. The stack is allocated at the first call and kept.
  void start(void (*entry)(void*), void* argument);
  // switch_to saves the running fiber in `from` and continues `to`. The host thread's own stack
  // is a Fiber without start.
  static void switch_to(Fiber* from, Fiber* to);

 private:
  static void begin();

  void* stack_ = nullptr;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
#if defined(__x86_64__)
  void* pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* fake_ = nullptr;
  const void* bottom_ = nullptr;
  size_t size_ = 0;
#endif
};

}  // namespace tnd::gpu::emu
