// Sums in the order of the CPU's row kernels (cpu/row_kernels.h): sixteen lanes, folded 8, 4, 2, 1.
#pragma once

#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// fold_16 adds the values of each half of a warp; all its lanes get the sum. Called by the whole warp.
TND_DEVICE float fold_16(float v) {
#pragma unroll
  for (int mask = 8; mask > 0; mask /= 2) v += shfl_xor(v, mask);
  return v;
}

// sum_squares_16 is the sum of x[0..n)^2, n a multiple of 16. Called by the whole warp; each half may have an x of its
// own. The time is that of the chain of fma alone: loads run a batch ahead of it, in two sets of registers, and have
// no conditions.
TND_DEVICE float sum_squares_16(const float* x, int n) {
  constexpr int kBatch = 16;
  const float* from = x + lane_id() % 16;
  const int steps = n / 16, batches = steps / kBatch;
  float now[kBatch], next[kBatch];
  float sum = 0.0f;
  const auto read = [&](float(&to)[kBatch], int batch) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) to[i] = from[16 * (batch * kBatch + i)];
  };
  const auto add = [&](const float(&v)[kBatch]) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) sum = fmaf(v[i], v[i], sum);
  };
  if (batches > 0) read(now, 0);
#pragma unroll 1
  for (int b = 0; b + 1 < batches; b += 2) {
    read(next, b + 1);
    add(now);
    read(now, b + 2 < batches ? b + 2 : b);
    add(next);
  }
  if (batches % 2 != 0) add(now);
#pragma unroll 1
  for (int i = batches * kBatch; i < steps; ++i) sum = fmaf(from[16 * i], from[16 * i], sum);
  return fold_16(sum);
}

}  // namespace tnd::gpu
