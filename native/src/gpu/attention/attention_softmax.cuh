// The parts that the softmaxes of attention_wide.cuh, attention_wgmma.cu and attention_group.cuh share.
#pragma once

#include "core/elementary.h"
#include "gpu/attention/attention.h"
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

// A query of a segment of keys. Four lanes have the scores of two queries, every fourth pair of keys each.
struct LaneQuery {
  int32_t begin = 0, end = 0;             // positions it sees
  float m = -__builtin_inff(), l = 0.0f;  // maximum of its scores, sum of its weights
  bool seen = false;                      // keys of the segment
};

// The keys of a tile that a lane's queries see: from begin to end, where active. Returns whether both see all of them.
TND_DEVICE bool find_visible(const LaneQuery (&query)[2], int first_key, int (&begin)[2], int (&end)[2],
                             bool (&active)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    begin[h] = query[h].begin - first_key, end[h] = query[h].end - first_key;
    active[h] = begin[h] < kAttentionTile && end[h] > 0 && begin[h] < end[h];
  }
  return begin[0] <= 0 && begin[1] <= 0 && end[0] >= kAttentionTile && end[1] >= kAttentionTile;
}

// Raises the queries' maxima. base: the largest of the lane's scores, then what weights of the tile are relative to;
// scale: of the sums so far. Returns whether one of them is not 1.
TND_DEVICE bool raise_maxima(LaneQuery (&query)[2], const bool (&active)[2], float (&base)[2], float (&scale)[2]) {
  bool scaled = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int mask = 2; mask > 0; mask /= 2) base[h] = fmaxf(base[h], shfl_xor(base[h], mask));
    LaneQuery& q = query[h];
    const float top = fmaxf(base[h], q.m);
    base[h] = active[h] ? top : 0.0f;
    scale[h] = active[h] ? exp_f32(q.m - top) : 1.0f;
    if (active[h]) q.m = top;
    scaled = scaled || (q.seen && scale[h] != 1.0f);  // without keys so far the sums are zeros
    q.seen = q.seen || active[h];
  }
  return scaled;
}

// Adds a tile's weights to the queries' sums. sum: those of the lane's even and odd keys.
TND_DEVICE void add_weights(LaneQuery (&query)[2], const bool (&active)[2], const float (&scale)[2],
                            float (&sum)[2][2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int mask = 2; mask > 0; mask /= 2) {
      sum[h][0] += shfl_xor(sum[h][0], mask);
      sum[h][1] += shfl_xor(sum[h][1], mask);
    }
    if (active[h]) query[h].l = fmaf(query[h].l, scale[h], sum[h][0] + sum[h][1]);
  }
}

}  // namespace tnd::gpu
