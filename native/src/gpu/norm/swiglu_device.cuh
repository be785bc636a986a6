// The activation of one super-block of a row, for files with kernels.
#pragma once

#include "gpu/math/silu_device.h"
#include "gpu/matmul/acts_device.h"
#include "gpu/norm/swiglu.h"

namespace tnd::gpu {

// y: the lane's eight elements of super-block s, zeros beyond the end, TOGETHER at a time.
template <int TOGETHER>
TND_DEVICE void swiglu_eight(const SwigluArgs& a, int64_t row, int s, float (&y)[8]) {
  const int first = s * kSuper + static_cast<int>(lane_id()) * 8;
  float g[8 / TOGETHER][TOGETHER], u[8];
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    float4 gate = make_float4(0.0f, 0.0f, 0.0f, 0.0f), up = gate;
    if (first + i < a.dim) {
      gate = *reinterpret_cast<const float4*>(a.gate + row * a.stride + first + i);
      up = *reinterpret_cast<const float4*>(a.up + row * a.stride + first + i);
    }
    float* to = g[i / TOGETHER] + i % TOGETHER;
    to[0] = gate.x, to[1] = gate.y, to[2] = gate.z, to[3] = gate.w;
    u[i] = up.x, u[i + 1] = up.y, u[i + 2] = up.z, u[i + 3] = up.w;
  }
#pragma unroll
  for (int i = 0; i < 8; i += TOGETHER) silu_all(g[i / TOGETHER]);
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] = g[i / TOGETHER][i % TOGETHER] * u[i];
}

}  // namespace tnd::gpu
