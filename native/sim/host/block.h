// Runs one block of a kernel, or the blocks of a cluster: fibers for its threads, barriers,
// warp collectives, shared memory.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/runtime/runtime.h"
#include "sim/host/fiber.h"

namespace tnd::gpu::emu {

constexpr int kMaxThreads = 1024;
constexpr unsigned kMaxShared = 227 * 1024;
// Of the emulated device: kMaxShared, or less by TND_EMU_SHARED.
unsigned shared_per_block();
constexpr int kMaxCluster = 8;
constexpr uint8_t kPattern = 0xFF;  // of memory before its first write: NaN as a float, -1 as an integer
constexpr uint8_t kGuard = 0xA5;    // after shared and device memory

// The data that all blocks of a grid share.
struct Grid {
  const Launch* launch = nullptr;
  const std::function<void()>* body = nullptr;
};

// A Runner belongs to one host thread at a time.
class Runner {
 public:
  Runner();
  ~Runner();
  // run executes a block, or the cluster whose first block it is, to its end; false and a message when it cannot end.
  bool run(const Grid& grid, Dim3 block_idx, uint64_t seed, std::string* error);

  // From inside the block.
  void collective(Apply apply, void* operands);
  void barrier();
  void* static_memory(const void* key, uint64_t bytes, uint64_t align);
  void* dynamic_memory() { return shared_of(lane().block); }
  void copy_async(void* shared, const void* global, int bytes);
  void copy_commit();
  void copy_wait(int newest);
  void barrier_init(uint64_t* barrier, int count);
  void barrier_arrive(uint64_t* barrier, int bytes);
  void barrier_wait(const uint64_t* barrier, uint32_t parity);
  void send(void* shared, const void* from, uint32_t bytes, uint64_t* barrier);
  void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier);
  void cluster_arrive();
  void cluster_wait();
  int rank() const { return lane().block; }
  void* of_block(void* shared, int rank);

 private:
  struct Copy {
    void* to;
    const void* from;
    int bytes;
    int group;
  };
  struct Lane : Thread {  // first: emu::current_thread points here
    Fiber fiber;
    int index = 0;     // counts all blocks of the cluster, whole warps each
    int block = 0;     // of the cluster
    int group = 0;     // of copies, the open one
    int arrivals = 0;  // at the barrier of the cluster
    std::vector<Copy> copies;
  };
  struct Warp {
    uint32_t present = 0, ready = 0, waiting = 0, at_barrier = 0, ended = 0;
    uint32_t polling = 0;  // lanes that wait for a condition; each event makes all check again
    Apply apply = nullptr;
    std::array<void*, TND_WARP> operands{};
  };

  Lane& lane() const;
  Warp& warp_of(const Lane& l) { return warps_[static_cast<size_t>(l.index / TND_WARP)]; }
  void leave(Lane& from);  // to the next ready lane of the warp, else to run()
  void poll();             // until anything has happened
  void happened();
  void settle(uint64_t* barrier);  // ends its phase if nothing is missing
  uint8_t* shared_of(int block) const;
  Lane& lane_at(int index) const { return *lanes_[static_cast<size_t>(index)]; }
  static void enter(void* lane);
  uint32_t random();
  void fail(const Lane& at, const char* what);
  void describe_deadlock();
  void lay_guard(uint8_t* end);
  bool guards_hold();

  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Warp> warps_;
  Fiber scheduler_;
  Grid grid_;
  int threads_ = 0;  // of a block
  int blocks_ = 1;   // of the cluster
  int block_warps_ = 0;
  uint64_t random_ = 1;
  std::string error_;

  struct Static {
    const void* key;
    int block;
    void* memory;
  };
  struct BulkCopy {
    void* to;
    const void* from;
    uint32_t bytes;
    uint64_t* barrier;
  };
  uint8_t* shared_ = nullptr;  // a room per block of a cluster
  std::array<uint64_t, kMaxCluster> shared_used_{};
  std::vector<Static> statics_;
  std::vector<uint8_t*> guards_;
  std::vector<BulkCopy> bulk_;  // not delivered yet
};

}  // namespace tnd::gpu::emu
