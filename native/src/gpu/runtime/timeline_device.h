// What blocks do for timeline.h. Included by runtime_device.h in builds with TND_TIMELINE.
#pragma once

#include <cuda_runtime.h>

#include "gpu/runtime/timeline.h"

namespace tnd::gpu {

// One a file: kernels are compiled file by file.
static __constant__ TimelinePlace timeline_place;
static int timeline_set(const TimelinePlace& place) {
  return static_cast<int>(cudaMemcpyToSymbol(timeline_place, &place, sizeof place));
}
[[maybe_unused]] static const bool timeline_added = timeline_add(__BASE_FILE__, timeline_set);

static __device__ __forceinline__ uint32_t timeline_clock() {
  uint32_t t;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(t)::"memory");
  return t;
}
// Everything that is read before the wait, so that after it only the clock is read before noting.
struct TimelineCame {
  TimelinePlace at;
  uint32_t clock;
};
static __device__ __forceinline__ TimelineCame timeline_came() {
  return {timeline_place, timeline_clock()};
}
static __device__ __forceinline__ void timeline_note(const TimelineCame& came) {
  const TimelinePlace& at = came.at;
  const uint32_t went = timeline_clock();
  if (at.records == nullptr || (threadIdx.x | threadIdx.y | threadIdx.z) != 0) return;
  uint32_t time, processor;
  asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(time));
  asm("mov.u32 %0, %%smid;" : "=r"(processor));
  const uint32_t blocks = gridDim.x * gridDim.y * gridDim.z;
  const uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const uint32_t warps = (blockDim.x * blockDim.y * blockDim.z + 31) / 32;
  const uint32_t place = (block & 1023) | (blocks & 1023) << 10 | (warps & 63) << 20 | (at.file + 1) << 26;
  const uint32_t slot = processor * kTimelineSlots + (went >> kTimelineTick) % kTimelineSlots;
  *reinterpret_cast<uint4*>(at.records + slot) = make_uint4(came.clock, went, time, place);
}

}  // namespace tnd::gpu
