// What kernels of the delta rule run after their rows. For files with kernels.
#pragma once

#include "gpu/delta/delta_follow.h"
#include "gpu/norm/norm_rows.cuh"
#include "gpu/runtime/arrivals.h"

namespace tnd::gpu {

struct NothingAfter {
  static constexpr bool kRuns = false;
};
struct GatedNormAfter {
  static constexpr bool kRuns = true;
  GatedNormArgs norm;
  int32_t* arrivals;  // as in FollowedDelta
};

// Columns of a head that a block has computed, of all rows of a sequence.
struct HeadColumns {
  int head, columns;
};

// gated_norm_after is called by all threads of a block of WARPS warps that has stored columns of group g, the index-th
// of the launch. second.columns may be 0. shared: of the block, free.
template <int WARPS>
TND_DEVICE void gated_norm_after(const GatedNormAfter& after, const DeltaStepGroup& g, int index,
                                 const HeadColumns& first, const HeadColumns& second, void* shared) {
  TND_SHARED(int32_t, complete, [2]);
  const int all = after.norm.heads, pairs = (all + 1) / 2;
  const bool one = first.head / 2 == second.head / 2;
  show_to_grid();
  __syncthreads();
  if (threadIdx.x < 2) {
    const bool other = threadIdx.x == 1;
    const int pair = (other ? second.head : first.head) / 2, width = (all - 2 * pair < 2 ? 1 : 2) * kDeltaDim;
    const int mine = other ? (one ? 0 : second.columns) : first.columns + (one ? second.columns : 0);
    complete[threadIdx.x] = mine > 0 && arrive(&after.arrivals[index * pairs + pair], mine, width) ? 1 : 0;
  }
  __syncthreads();
  if (complete[0] + complete[1] == 0) return;
  see_grid();
  float(*const rows)[kHeadPair] = static_cast<float(*)[kHeadPair]>(shared);
  const int warp = static_cast<int>(warp_id());
  float w[8];
  load_eight(w, after.norm.w + static_cast<int>(lane_id()) * 8 % kDeltaDim, true);
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    if (complete[i] == 0) continue;
    for (int row = warp; row < g.count; row += WARPS) {
      gated_norm_pair(after.norm, g.first + row, (i == 0 ? first.head : second.head) / 2, w, rows[warp]);
      sync_warp();
    }
  }
}

}  // namespace tnd::gpu
