// Parts of the kernels of norm.cu that others run as well. For files with kernels.
#pragma once

#include "core/backend.h"
#include "gpu/math/norm_device.cuh"
#include "gpu/math/silu_device.h"
#include "gpu/matmul/acts_device.h"
#include "gpu/norm/norm.h"

namespace tnd::gpu {

TND_DEVICE void load_eight(float (&v)[8], const float* from, bool live) {
  const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const float4 a = live ? *reinterpret_cast<const float4*>(from) : zero;
  const float4 b = live ? *reinterpret_cast<const float4*>(from + 4) : zero;
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// ---- a row by a block of four warps that has other work before

inline constexpr int kRowWarps = 4, kRowSupers = 5;  // super-blocks of a row that a warp holds in registers
inline constexpr int kRowDim = kRowWarps * kRowSupers * kSuper;
inline constexpr int kRowChunk = kRowWarps * kSuper;
inline constexpr int kRowStagedBytes = 2 * kRowChunk * static_cast<int>(sizeof(float));

// add_squares_16 adds x[0..n)^2 to the lanes of sum_squares_16, which fold_16 folds.
TND_DEVICE float add_squares_16(float sum, const float* x, int n) {
  const float* from = x + lane_id() % 16;
#pragma unroll 16
  for (int i = 0; i < n / 16; ++i) sum = fmaf(from[16 * i], from[16 * i], sum);
  return sum;
}

// norm_row computes a row of at most kRowDim elements, prepared as matmul input. Chunks of it go to shared memory in
// turns, where one warp adds their squares. staged: shared memory, [2][kRowChunk], 16-byte aligned.
TND_DEVICE void norm_row(const NormArgs& a, int row, float* staged) {
  TND_SHARED(float, scale, [1]);
  const int lane = static_cast<int>(lane_id());
  const int warp =
      no_hoist(static_cast<int>(warp_id()));  // else clang computes addresses before the block's other work
  const float* from = a.x + row * a.x_stride;
  float x[kRowSupers][8];
#pragma unroll
  for (int i = 0; i < kRowSupers; ++i) {
    const int first = i * kRowChunk + warp * kSuper + lane * 8;
    load_eight(x[i], from + first, first < a.dim);
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kRowSupers; ++i) {
    const int left = a.dim - i * kRowChunk;
    if (left <= 0) continue;
    float* const chunk = staged + i % 2 * kRowChunk;
    float4* to = reinterpret_cast<float4*>(chunk + warp * kSuper + lane * 8);
    to[0] = make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
    to[1] = make_float4(x[i][4], x[i][5], x[i][6], x[i][7]);
    __syncthreads();  // the chunk before the last one has been added, too
    if (warp == 0) sum = add_squares_16(sum, chunk, left < kRowChunk ? left : kRowChunk);
  }
  if (warp == 0) {
    sum = fold_16(sum);
    if (lane == 0) scale[0] = 1.0f / sqrtf(sum / static_cast<float>(a.dim) + a.eps);
  }
  __syncthreads();
  const float r = scale[0];
#pragma unroll
  for (int i = 0; i < kRowSupers; ++i) {
    const int s = i * kRowWarps + warp, first = s * kSuper + lane * 8;
    if (s * kSuper >= a.dim) continue;
    float w[8];
    load_eight(w, a.w + first, first < a.dim);
#pragma unroll
    for (int e = 0; e < 8; ++e) x[i][e] = x[i][e] * r * w[e];
    acts_store(a.acts, a.forms, row, s, x[i]);
    keep_order();  // one after the other: side by side they would need most registers of the products' kernel
  }
}

// ---- output of DeltaNet

inline constexpr int kHeadPair = 2 * kDeltaDim;
static_assert(kHeadPair == kSuper);

// gated_norm_pair computes heads 2 pair and 2 pair + 1 of a row, a super-block of the output: sixteen lanes a head for
// the sum, then eight neighbouring elements a lane. w: the lane's weights. o: shared memory of the warp.
TND_DEVICE void gated_norm_pair(const GatedNormArgs& a, int row, int pair, const float (&w)[8], float (&o)[kHeadPair]) {
  const int lane = static_cast<int>(lane_id());
  const int64_t width = int64_t{a.heads} * kDeltaDim, base = row * width + int64_t{pair} * kHeadPair;
  const bool live = pair * 2 + lane / 16 < a.heads;
  float z[8];
  load_eight(z, a.z + base + lane * 8, live);
  float v[kDeltaDim / 16];
#pragma unroll
  for (int i = 0; i < kDeltaDim / 16; ++i) {
    v[i] = live ? a.o[base + lane / 16 * kDeltaDim + lane % 16 + 16 * i] : 0.0f;
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kDeltaDim / 16; ++i) {
    o[lane / 16 * kDeltaDim + lane % 16 + 16 * i] = v[i];
    sum = fmaf(v[i], v[i], sum);
  }
  silu_all(z);
  const float r = 1.0f / sqrtf(fold_16(sum) / static_cast<float>(kDeltaDim) + a.eps);
  sync_warp();
  float y[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] = o[lane * 8 + i] * r * w[i] * z[i];
  if (a.forms != 0) {
    acts_store(a.acts, a.forms, row, pair, y);
  } else if (live) {
    float4* to = reinterpret_cast<float4*>(a.y + base + lane * 8);
    to[0] = make_float4(y[0], y[1], y[2], y[3]);
    to[1] = make_float4(y[4], y[5], y[6], y[7]);
  }
}

}  // namespace tnd::gpu
