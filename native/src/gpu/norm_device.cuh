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

// sum_squares_16 is the sum of x[0..n)^2, n a multiple of 16. Called by the whole warp; each half may have an x
// of its own. Loads
// run kBatch elements ahead of the chain of fma.
TND_DEVICE float sum_squares_16(const float* x, int n) {
  constexpr int kBatch = 20;
  const int lane = static_cast<int>(lane_id()) % 16, steps = n / 16;
  float now[kBatch], next[kBatch];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kBatch; ++i) now[i] = i < steps ? x[lane + 16 * i] : 0.0f;
  for (int at = 0; at < steps; at += kBatch) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int ahead = at + kBatch + i;
      next[i] = ahead < steps ? x[lane + 16 * ahead] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) sum = fmaf(now[i], now[i], sum);  // zeros beyond the end change nothing
#pragma unroll
    for (int i = 0; i < kBatch; ++i) now[i] = next[i];
  }
  return fold_16(sum);
}

}  // namespace tnd::gpu
