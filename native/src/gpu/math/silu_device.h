// SiLU of several numbers side by side. For files with kernels.
#pragma once

#include <bit>

#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

TND_OUTLINE float silu_any(float x) {
  return silu_f32(x);
}

// silu_all replaces each x by silu_f32(x), bit by bit. With exp_f32 and the compilers' division, which branch for
// unusual operands, N of them run one after the other, about 100 cycles each. Here one branch serves all N.
//
// For x >= -40: e^-x < 2^58, so that the clamps of exp_f32 do nothing and 2^n is one factor; above 40 the divisor is 1,
// as at 40. divide_usual is then right for all finite x: where |x| < 2^-60 the divisor is 2, and for zeros only the
// sign is wrong.
template <int N>
TND_DEVICE void silu_all(float (&x)[N]) {
  using namespace exp_const;
  constexpr float kLimit = 40.0f;
  float y[N], least = 0.0f, zero = 0.0f;  // zero: NaN when one x is not finite
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float z = -fminf(x[i], kLimit);
    const float shifted = fmaf(z, kLog2e, kRound), n = shifted - kRound;
    float r = fmaf(n, -kLn2Hi, z);
    r = fmaf(n, -kLn2Lo, r);
    float p = fmaf(kC6, r, kC5);
    p = fmaf(p, r, kC4);
    p = fmaf(p, r, kC3);
    p = fmaf(p, r, kC2);
    p = fmaf(p, r * r, r) + 1.0f;
    const uint32_t power = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;  // kRound has no bits there
    y[i] = copysignf(divide_usual(x[i], 1.0f + p * std::bit_cast<float>(power)), x[i]);
    least = fminf(least, x[i]);
    zero = fmaf(x[i], 0.0f, zero);
  }
  if (!(least >= -kLimit && zero == 0.0f)) {
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = silu_any(x[i]);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = y[i];
}

}  // namespace tnd::gpu
