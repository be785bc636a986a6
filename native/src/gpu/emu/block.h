// Runs one block of a kernel: fibers for its threads, barriers, warp collectives, shared memory.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/emu/fiber.h"
#include "gpu/runtime.h"

namespace tnd::gpu::emu {

constexpr int kMaxThreads = 1024;
constexpr unsigned kMaxShared = 227 * 1024;
constexpr uint8_t kPattern = 0xFF;  // of memory that nobody wrote: NaN as a float, -1 as an integer
constexpr uint8_t kGuard = 0xA5;    // behind shared and device memory

// What the launches of a grid share.
struct Grid {
  const Launch* launch = nullptr;
  const std::function<void()>* body = nullptr;
};

// A Runner belongs to one host thread at a time.
class Runner {
 public:
  Runner();
  ~Runner();
  // run executes a block to its end; false and a message when it cannot end.
  bool run(const Grid& grid, Dim3 block_idx, uint64_t seed, std::string* error);

  // From inside the block.
  void collective(Apply apply, void* operands);
  void barrier();
  void* static_memory(const void* key, uint64_t bytes, uint64_t align);
  void* dynamic_memory() { return shared_; }
  void copy_async(void* shared, const void* global, int bytes);
  void copy_commit();
  void copy_wait(int newest);

 private:
  struct Copy {
    void* to;
    const void* from;
    int bytes;
    int group;
  };
  struct Lane : Thread {  // first: emu::current_thread points here
    Fiber fiber;
    int index = 0;
    int group = 0;  // of copies, the open one
    std::vector<Copy> copies;
  };
  struct Warp {
    uint32_t present = 0, ready = 0, waiting = 0, at_barrier = 0, ended = 0;
    Apply apply = nullptr;
    std::array<void*, TND_WARP> operands{};
  };

  Lane& lane() const;
  Warp& warp_of(const Lane& l) { return warps_[static_cast<size_t>(l.index / TND_WARP)]; }
  void leave(Lane& from);  // to the next ready lane of the warp, else to run()
  static void enter(void* lane);
  uint32_t random();
  void fail(const Lane& at, const char* what);
  void describe_deadlock();
  void lay_guard(uint64_t end);
  bool guards_hold();

  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Warp> warps_;
  Fiber scheduler_;
  Grid grid_;
  Dim3 block_idx_;
  int threads_ = 0;
  uint64_t random_ = 1;
  std::string error_;

  struct Static {
    const void* key;
    void* memory;
  };
  uint8_t* shared_ = nullptr;
  uint64_t shared_used_ = 0;
  std::vector<Static> statics_;
  std::vector<uint64_t> guards_;  // offsets of guard zones
};

}  // namespace tnd::gpu::emu
