// Blocks of one grid that finish a piece of work together: each adds what it did to a counter, and the one that sees
// the sum of all is the last. It alone goes on, with what the others wrote, while they end; so no block waits for
// another, and no order of blocks is assumed. Counters are in device memory. They are zero before the launch and after
// it.
#pragma once

#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// show_to_grid makes what the thread wrote visible to blocks that see an arrival after it. Called by every thread of a
// block, before a barrier and then arrive().
TND_DEVICE void show_to_grid() {
#if defined(__HIP_DEVICE_COMPILE__)
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");  // waits for stores; caches stay as they are
#else
  __threadfence();
#endif
}

// arrive adds `units` to the counter and says whether this is all of them. It then sets the counter back to zero.
// Called by one thread of a block.
TND_DEVICE bool arrive(int32_t* counter, int32_t units, int32_t all) {
  const bool last = atomicAdd(counter, units) + units == all;
  if (last) *counter = 0;
  return last;
}

// see_grid comes before reads of what other blocks wrote before they arrived. Called by every thread of the last block,
// after a barrier that follows arrive().
TND_DEVICE void see_grid() {
#if defined(__HIP_DEVICE_COMPILE__)
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
#else
  __threadfence();
#endif
}

}  // namespace tnd::gpu
