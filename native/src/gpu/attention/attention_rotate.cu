#include "gpu/attention/attention.h"
#include "gpu/attention/tq3_device.cuh"

namespace tnd::gpu {
namespace {

constexpr int kThreads = 128;
constexpr int kGroupsPerBlock = kThreads / 16;

// A half warp takes a group of a row.
__global__ void __launch_bounds__(kThreads) unrotate_kernel(AttentionArgs a) {
  if (static_cast<int>(blockIdx.y) >= rows_in_use(a.live, a.rows)) return;
  const int width = a.q_heads * a.kv.dim, lane = static_cast<int>(threadIdx.x) % 16;
  const int at = static_cast<int>(blockIdx.x * kGroupsPerBlock + threadIdx.x / 16) * kTq3Group;
  const bool live = at < width;  // idle lanes run too: shuffles need whole warps
  float* out = a.out + int64_t{blockIdx.y} * width + (live ? at : 0) + lane;
  float x[kTq3Per];
#pragma unroll
  for (int i = 0; i < kTq3Per; ++i) x[i] = out[16 * i];
  tq3_transform(x, true);
  if (!live) return;
  const float* gate = a.gate;
  if (gate != nullptr) gate += blockIdx.y * a.gate_row + at / a.kv.dim * a.gate_head + at % a.kv.dim + lane;
#pragma unroll
  for (int i = 0; i < kTq3Per; ++i) {
    if (gate != nullptr) x[i] *= sigmoid_f32(gate[16 * i]);
    out[16 * i] = x[i];
  }
}

}  // namespace

void launch_unrotate(Stream& stream, const AttentionArgs& args) {
  const int groups = args.q_heads * args.kv.dim / kTq3Group;
  const Dim3 grid{static_cast<unsigned>((groups + kGroupsPerBlock - 1) / kGroupsPerBlock),
                  static_cast<unsigned>(args.rows)};
  launch(stream, {.grid = grid, .block = {kThreads}, .name = "attention_unrotate"}, unrotate_kernel, args);
}

}  // namespace tnd::gpu
