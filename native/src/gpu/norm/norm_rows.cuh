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
