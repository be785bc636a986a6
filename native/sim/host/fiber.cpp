#include "sim/host/fiber.h"

#include <sys/mman.h>

#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace tnd::gpu::emu {
namespace {

constexpr size_t kPage = 4096;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStack = 256 * 1024;  // sanitised frames are larger
#else
constexpr size_t kStack = 128 * 1024;
#endif

// The last switch of this host thread.
thread_local Fiber* leaving = nullptr;
thread_local Fiber* entering = nullptr;

}  // namespace

#if defined(__x86_64__)
// Saves the registers that a call keeps on the old stack and takes them from the new one.
extern "C" void tnd_emu_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.type tnd_emu_switch, @function
tnd_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  retq
.size tnd_emu_switch, .-tnd_emu_switch
)");
#endif

Fiber::~Fiber() {
  if (stack_ != nullptr) munmap(stack_, kStack + kPage);
}

void Fiber::begin() {
  Fiber* const self = entering;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &leaving->bottom_, &leaving->size_);
#endif
  self->entry_(self->argument_);
  std::abort();  // entry never returns
}

void Fiber::start(void (*entry)(void*), void* argument) {
  if (stack_ == nullptr) {
    void* p = mmap(nullptr, kStack + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, kPage, PROT_NONE) != 0) std::abort();
    stack_ = p;
  }
  entry_ = entry;
  argument_ = argument;
  uint8_t* const bottom = static_cast<uint8_t*>(stack_) + kPage;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(bottom, kStack);  // frames that were abandoned
  fake_ = nullptr;
  bottom_ = bottom;
  size_ = kStack;
#endif
#if defined(__x86_64__)
  // Six registers, then the address to which the switch returns; the stack is then as after a call of begin().
  auto* top = reinterpret_cast<void**>(bottom + kStack - 64);
  *--top = nullptr;  // a return address for begin
  *--top = reinterpret_cast<void*>(&Fiber::begin);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  pointer_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = bottom;
  context_.uc_stack.ss_size = kStack;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::begin, 0);
#endif
}

void Fiber::switch_to(Fiber* from, Fiber* to) {
  leaving = from;
  entering = to;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from->fake_, to->bottom_, to->size_);
#endif
#if defined(__x86_64__)
  tnd_emu_switch(&from->pointer_, to->pointer_);
#else
  swapcontext(&from->context_, &to->context_);
#endif
#if defined(__SANITIZE_ADDRESS__)
  // Back in `from`. The sanitizer returns the bounds of the stack just left; this also records those of the host
  // thread's own stack.
  __sanitizer_finish_switch_fiber(from->fake_, &leaving->bottom_, &leaving->size_);
#endif
}

}  // namespace tnd::gpu::emu
