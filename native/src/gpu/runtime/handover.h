// Results that blocks of one grid hand each other in a fixed order: a block that needs another's waits for it. Numbers
// are in device memory and only grow; they are zero before the launch. A kernel may wait only for work that was begun
// before its own by a block that runs: blocks take the units of work in order from one counter (take_unit). In the
// emulation, which runs one block after the other, such a kernel is one block.
#pragma once

#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// take_unit returns the next unit of work. Called by one thread.
TND_DEVICE int32_t take_unit(int32_t* counter) {
  return atomicAdd(counter, 1);
}

// raise_number tells other blocks that what the warp wrote before is there. Called by whole warps.
TND_DEVICE void raise_number(int32_t* number, int32_t to) {
  sync_warp();
  if (lane_id() != 0) return;
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__)
  asm volatile("red.release.gpu.global.max.s32 [%0], %1;" ::"l"(number), "r"(to) : "memory");
#else
  __threadfence();
  atomicMax(number, to);
#endif
}

// wait_for_number returns when the number is at least `least`; what was written before it was raised is then read by
// load_handed. Called by whole warps.
TND_DEVICE void wait_for_number(const int32_t* number, int32_t least) {
  if (lane_id() == 0) {
    int32_t is;
    do {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__)
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(is) : "l"(number) : "memory");
#else
      is = *static_cast<const volatile int32_t*>(number);
      __threadfence();
#endif
    } while (is < least);
  }
  sync_warp();
}

// load_handed reads what another block of this grid may have written: never from a processor's own cache.
TND_DEVICE float2 load_handed(const float2* p) {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__)
  float2 v;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p) : "memory");
  return v;
#else
  return *p;
#endif
}

}  // namespace tnd::gpu
