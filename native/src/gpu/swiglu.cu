#include "gpu/swiglu.h"

namespace tnd::gpu {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) swiglu_kernel(SwigluArgs a) {
  const int i = (blockIdx.x * kThreads + threadIdx.x) * 4;
  if (i >= a.dim) return;
  const int64_t row = blockIdx.y;
  const float4 g = *reinterpret_cast<const float4*>(a.gate + row * a.stride + i);
  const float4 u = *reinterpret_cast<const float4*>(a.up + row * a.stride + i);
  const float4 y = make_float4(silu_f32(g.x) * u.x, silu_f32(g.y) * u.y, silu_f32(g.z) * u.z, silu_f32(g.w) * u.w);
  *reinterpret_cast<float4*>(a.y + row * a.dim + i) = y;
}

}  // namespace

void launch_swiglu(Stream& stream, const SwigluArgs& args) {
  constexpr int kPerBlock = kThreads * 4;
  const Dim3 grid{static_cast<unsigned>((args.dim + kPerBlock - 1) / kPerBlock), static_cast<unsigned>(args.rows)};
  launch(stream, {.grid = grid, .block = {kThreads}, .name = "swiglu"}, swiglu_kernel, args);
}

}  // namespace tnd::gpu
