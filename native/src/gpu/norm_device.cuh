// Sums in the order of the CPU's row kernels (cpu/row_kernels.h): sixteen lanes, folded 8, 4, 2, 1.
#pragma once

#include "gpu/runtime.h"

namespace tnd::gpu {

// fold_16 adds the values of each half of a warp; all its lanes get the sum. Called by the whole warp.
TND_DEVICE float fold_16(float v) {
#pragma unroll
  for (int mask = 8; mask > 0; mask /= 2) v += shfl_xor(v, mask);
  return v;
}

// sum_squares_16 is the sum of x[0..n)^2, n a multiple of 16. Called by the whole warp; both halves do the same.
TND_DEVICE float sum_squares_16(const float* x, int n) {
  const int lane = static_cast<int>(lane_id()) % 16;
  float sum = 0.0f;
#pragma unroll 16
  for (int i = lane; i < n; i += 16) sum = fmaf(x[i], x[i], sum);
  return fold_16(sum);
}

}  // namespace tnd::gpu
