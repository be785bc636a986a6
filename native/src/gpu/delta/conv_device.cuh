// Convolution and gates of a head of a row. For files with kernels.
#pragma once

#include "gpu/delta/delta_device.cuh"
#include "gpu/math/norm_device.cuh"
#include "gpu/math/silu_device.h"

namespace tnd::gpu {

// delta_gate computes the gates of a value head of a row.
TND_DEVICE void delta_gate(const DeltaArgs& a, int64_t row, int h) {
  const DeltaShape& shape = a.w.shape;
  const DeltaStepGroup group = load_group(&a.group_plans[a.row_plans[row].group]);
  wait_for_previous();
  const float alpha = exp_f32(a.w.a[h] * softplus_f32(a.io.alpha[row * shape.nv + h] + a.w.dt[h]));
  a.gates[row * 2 * shape.nv + h] = alpha;
  a.gates[(row * 2 + 1) * shape.nv + h] = sigmoid_f32(a.io.beta[row * shape.nv + h]);
  if (group.commit == 0) group.replay.alpha[(row - group.first) * shape.nv + h] = alpha;
}

// delta_conv_head computes head `index` (queries, keys, values) of a row. Called by whole warps; sixteen lanes whose
// index is beyond the heads write nothing.
TND_DEVICE void delta_conv_head(const DeltaArgs& a, int64_t row, int index) {
  constexpr int kPer = kDeltaDim / 16;
  constexpr float kQueryScale = 0.08838834764831845f;  // 1 / sqrt(128)
  constexpr float kL2Eps = 1e-6f;
  const DeltaShape& shape = a.w.shape;
  const int heads = 2 * shape.nk + shape.nv;
  // Plans and weights were written before the previous launch began, so only one read is left for after the wait.
  const DeltaStepRow plan = a.row_plans[row];
  const DeltaStepGroup group = load_group(&a.group_plans[plan.group]);
  const int64_t in_group = row - group.first;
  const int64_t conv_dim = shape.conv_dim();
  const bool live = index < heads;
  const int head = live ? index : 0;
  const int64_t at = int64_t{head} * kDeltaDim + threadIdx.x % 16;  // channel of the lane's first element
  // Inputs 3, 2, 1, 0 tokens back: rows of the group, or saved taps (-1 is the newest).
  const float* inputs[kConvTaps];
  float w[kConvTaps][kPer], x[kConvTaps][kPer];
#pragma unroll
  for (int t = 0; t < kConvTaps; ++t) {
    const int32_t from = t < kConvTaps - 1 ? plan.taps[kConvTaps - 2 - t] : static_cast<int32_t>(in_group);
    inputs[t] =
        from >= 0 ? a.io.qkv + (group.first + from) * conv_dim : group.state.taps + (kConvTaps - 1 + from) * conv_dim;
#pragma unroll
    for (int i = 0; i < kPer; ++i) w[t][i] = a.w.conv[t * conv_dim + at + 16 * i];
  }
  wait_for_previous();
#pragma unroll
  for (int t = 0; t < kConvTaps; ++t) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) x[t][i] = inputs[t][at + 16 * i];
  }
  float y[kPer];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    float acc = w[0][i] * x[0][i];
#pragma unroll
    for (int t = 1; t < kConvTaps; ++t) acc = fmaf(w[t][i], x[t][i], acc);
    y[i] = acc;
  }
  silu_all(y);
#pragma unroll
  for (int i = 0; i < kPer; ++i) sum = fmaf(y[i], y[i], sum);
  sum = fold_16(sum);
  if (!live) return;
  const bool is_q = head < shape.nk, is_k = !is_q && head < 2 * shape.nk;
  const float r = 1.0f / sqrtf(sum + kL2Eps);
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int64_t c = at + 16 * i;
    const float v = is_q || is_k ? y[i] * r * (is_q ? kQueryScale : 1.0f) : y[i];
    a.conv[row * conv_dim + c] = v;
    if (group.commit != 0) continue;
    group.replay.conv_in[in_group * conv_dim + c] = x[kConvTaps - 1][i];
    if (is_k) group.replay.k[(in_group - 1) * shape.key_dim() + c] = v;  // c counts from the queries
  }
}

}  // namespace tnd::gpu
