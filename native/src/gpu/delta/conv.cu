// Causal convolution by parents, SiLU, L2 norms of queries and keys, gates. Sixteen lanes a head of 128 channels, so
// that the sums of the norms run in the order of the CPU; one more block a row computes the gates.
#include "gpu/delta/delta_device.cuh"
#include "gpu/math/norm_device.cuh"
#include "gpu/math/silu_device.h"

namespace tnd::gpu {
namespace {

constexpr int kHeadsPerBlock = 8;
constexpr int kThreads = 16 * kHeadsPerBlock;
constexpr int kPer = kDeltaDim / 16;
constexpr float kQueryScale = 0.08838834764831845f;  // 1 / sqrt(128)
constexpr float kL2Eps = 1e-6f;

__global__ void __launch_bounds__(kThreads) delta_conv_kernel(DeltaArgs a) {
  let_next_start();
  if (static_cast<int>(blockIdx.y) >= rows_in_use(a.live, a.rows)) return;
  const DeltaShape& shape = a.w.shape;
  const int64_t row = blockIdx.y;
  const int heads = 2 * shape.nk + shape.nv;
  // Plans and weights were written before the previous launch began, so only one read is left for after the wait.
  const DeltaStepRow plan = a.row_plans[row];
  const DeltaStepGroup group = load_group(&a.group_plans[plan.group]);
  const int64_t in_group = row - group.first;

  if (blockIdx.x == gridDim.x - 1) {  // gates
    wait_for_previous();
    for (int h = threadIdx.x; h < shape.nv; h += kThreads) {
      const float alpha = exp_f32(a.w.a[h] * softplus_f32(a.io.alpha[row * shape.nv + h] + a.w.dt[h]));
      a.gates[row * 2 * shape.nv + h] = alpha;
      a.gates[(row * 2 + 1) * shape.nv + h] = sigmoid_f32(a.io.beta[row * shape.nv + h]);
      if (group.commit == 0) group.replay.alpha[in_group * shape.nv + h] = alpha;
    }
    return;
  }

  const int64_t conv_dim = shape.conv_dim();
  const int index = blockIdx.x * kHeadsPerBlock + threadIdx.x / 16;
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

}  // namespace

void launch_delta_conv(Stream& stream, const DeltaArgs& args) {
  const int heads = 2 * args.w.shape.nk + args.w.shape.nv;
  const Dim3 grid{static_cast<unsigned>((heads + kHeadsPerBlock - 1) / kHeadsPerBlock) + 1,
                  static_cast<unsigned>(args.rows)};
  launch(stream, {.grid = grid, .block = {kThreads}, .overlap = true, .name = "delta_conv"}, delta_conv_kernel, args);
}

}  // namespace tnd::gpu
