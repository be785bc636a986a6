// The parts that the softmaxes of attention_wide.cuh and attention_wgmma.cu share.
#pragma once

#include "core/elementary.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// e^x of x <= 0, exact enough for weights: the bits of exp_f32 down to x = -84. Below that it is about 2^-121, which is
// 0 as a half and does not change a sum of weights: within a segment the largest weight is 1.
TND_DEVICE float exp_weight(float x) {
  const ExpParts e = exp_parts(fmaxf(x, -84.0f));
  return __uint_as_float(__float_as_uint(e.p) + (__float_as_uint(e.shifted) << 23));  // times 2^n
}

// Keeps compilers from turning a rare branch into predicated instructions, which cost more than a jump over them.
TND_DEVICE void rare_branch() {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__)
  asm volatile("");
#endif
}

}  // namespace tnd::gpu
