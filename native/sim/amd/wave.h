// A wave of 32 lanes and the work group that it belongs to.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "sim/amd/inst.h"

namespace tnd::amdsim {

inline constexpr int kLanes = 32;
// Upper halves of generic addresses of shared and private memory; no pointer of the host has them.
inline constexpr uint32_t kSharedAperture = 0x00010000, kPrivateAperture = 0x00020000;

// Memory that kernels may touch: what the host allocated, and no byte beyond it.
class Memory {
 public:
  void add(const void* p, uint64_t bytes);
  // remove returns the bytes that were there, 0 if p was not added.
  uint64_t remove(const void* p);
  struct Range {
    uint64_t begin = 0, end = 0;
    bool holds(uint64_t address, uint64_t bytes) const { return address >= begin && address + bytes <= end; }
  };
  Range find(uint64_t address) const;  // empty if none holds it
  static Memory& of_device();
};

// Where a kernel begins, and the resources of a work group.
struct Kernel {
  std::string name;  // mangled
  const Code* code = nullptr;
  int entry = 0;  // index into code
  uint32_t shared_bytes = 0, private_bytes = 0, arguments_bytes = 0;
  uint32_t resources2 = 0;  // COMPUTE_PGM_RSRC2
  uint16_t properties = 0;
  bool gfx10 = false, gfx12 = false;
  bool copies = false;  // gfx11: lanes 16 to 31 of matrix operands repeat lanes 0 to 15
  struct Argument {
    uint32_t offset, bytes;
    std::string kind;
  };
  std::vector<Argument> arguments;
  // Of all launches: waves and the instructions that they ran, by class.
  mutable std::atomic<uint64_t> launches{0}, waves{0}, instructions[kClasses]{};
};

// The waves that accessed two bytes of shared memory, and after which barrier. Waves run one after the other here; an
// access to bytes that another wave accessed since the last barrier, if one of both writes, is a race on a card.
struct Touch {
  uint32_t write_epoch = 0, read_epoch = 0;  // 1 for before the first barrier; 0: never
  uint32_t readers = 0;                      // bit i: wave i of the group, since read_epoch
  uint8_t writer = 0;
  bool atomic = false;
};
enum class Access { kRead, kWrite, kAtomic };

struct Group {
  const Kernel* kernel = nullptr;
  std::vector<uint8_t> shared;
  std::vector<Touch> touches;  // [bytes of shared memory / 2]
};

struct Wave {
  alignas(64) uint32_t v[kVectors + kHiddenCount][kLanes];
  uint32_t s[kScalars];
  bool scc = false;
  const Inst* at = nullptr;  // the instruction that runs, for reports
  int next = 0;              // the one after it
  bool ended = false, waits = false;
  uint8_t number = 0;  // in its group
  uint32_t epoch = 1;  // barriers passed, and one
  Group* group = nullptr;
  std::vector<uint8_t> scratch;  // [lane][private_bytes]
  Memory::Range recent;          // where the last access was

  // The results of the first half of a dual instruction, kept until the second has read its operands.
  bool holds = false;
  uint16_t held = 0;
  alignas(64) uint32_t held_values[kLanes];

  uint64_t instructions[kClasses] = {};

  uint32_t exec() const { return s[kExec]; }
  bool active(int lane) const { return (s[kExec] >> lane & 1u) != 0; }
  // Ends the program with the instruction and the kernel.
  [[noreturn]] void fail(const char* what, uint64_t address = 0, int lane = -1) const;
};

// run_until_barrier runs a wave until it waits at a barrier or ends.
void run_until_barrier(Wave& wave);

}  // namespace tnd::amdsim
