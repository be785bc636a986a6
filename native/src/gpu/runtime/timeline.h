// Records when the launches of a step run, with their overlap: in builds with TND_TIMELINE (CUDA) the first thread of
// every block notes when it called wait_for_previous() and when that returned. For benches; noting costs a step 1 to 3
// %. Launches are identified by the file of their kernel and the shape of their grid.
//
// The wait of a block ends when all launches before its own have ended. The time from one launch's first block to the
// next one's is thus what the launch adds to the step. How long its blocks had waited by then shows whether they had
// found room beside the launches before. A kernel whose blocks call wait_for_previous() twice counts as two.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"

namespace tnd::gpu {

// What a block notes, written by one store. place: bits 0..9 block, 10..19 blocks of the grid, both modulo 1024, 20..25
// warps a block, 26..31 file + 1 (0 = nothing was noted).
struct alignas(16) TimelineRecord {
  uint32_t came, went;  // clock of the processor, cycles modulo 2^32
  uint32_t time;        // when the wait ended, ns modulo 2^32, of a clock that all processors share
  uint32_t place;
};
// A processor's records, indexed by the time when they were written, in ticks of 512 cycles: some 9 ms, then older ones
// are overwritten. Blocks of a processor whose waits ended in the same tick leave one record.
inline constexpr int kTimelineSlots = 1 << 15;
inline constexpr int kTimelineTick = 9;  // bits

// Launches of one kernel in one shape that follow launches of another one.
struct TimelineShare {
  std::string kernel, before;  // files without .cu
  int blocks = 0, warps = 0;
  int launches = 0;
  double us = 0;       // median from its first block to the next launch's
  double waited = 0;   // median wait of its blocks when the first wait ended, us; negative: they came later
  int processors = 0;  // median of how many processors its blocks were on, at least
};

// timeline_shares finds the launches of the last `us` among records [processors][kTimelineSlots], largest sum of
// times first.
std::vector<TimelineShare> timeline_shares(std::span<const TimelineRecord> records, std::span<const std::string> files,
                                           double us);

// timeline_start drops all records; blocks note from then on. UNIMPLEMENTED where the build has no TND_TIMELINE. The
// device is idle and current.
Status timeline_start(int device);
// timeline_stop ends noting and returns the launches of the last `us` before the newest record.
Status timeline_stop(double us, std::vector<TimelineShare>* out);

// What a file of kernels registers with the functions above, before main(): its name and a function that sets where
// it notes.
struct TimelinePlace {
  TimelineRecord* records = nullptr;  // device [processors][kTimelineSlots], nullptr = do not
  uint32_t file = 0;
};
bool timeline_add(const char* file, int (*set)(const TimelinePlace&));

}  // namespace tnd::gpu
