// A warp takes 256 elements of a row, what the quantiser of the next product wants to see together.
#include "gpu/acts_device.h"
#include "gpu/swiglu.h"

namespace tnd::gpu {
namespace {

constexpr int kWarps = 4;

__global__ void __launch_bounds__(kWarps* TND_WARP) swiglu_kernel(SwigluArgs a) {
  let_next_start();
  wait_for_previous();
  const int s = static_cast<int>(blockIdx.x * kWarps + warp_id());
  if (s >= super_blocks(a.dim)) return;
  const int64_t row = blockIdx.y;
  const int first = s * kSuper + static_cast<int>(lane_id()) * 8;
  float y[8];
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const bool live = first + i < a.dim;
    float4 g = make_float4(0.0f, 0.0f, 0.0f, 0.0f), u = g;
    if (live) {
      g = *reinterpret_cast<const float4*>(a.gate + row * a.stride + first + i);
      u = *reinterpret_cast<const float4*>(a.up + row * a.stride + first + i);
    }
    y[i] = silu_f32(g.x) * u.x;
    y[i + 1] = silu_f32(g.y) * u.y;
    y[i + 2] = silu_f32(g.z) * u.z;
    y[i + 3] = silu_f32(g.w) * u.w;
    if (a.forms == 0 && live) {
      *reinterpret_cast<float4*>(a.y + row * a.dim + first + i) = make_float4(y[i], y[i + 1], y[i + 2], y[i + 3]);
    }
  }
  if (a.forms != 0) acts_store(a.acts, a.forms, static_cast<int>(row), s, y);
}

}  // namespace

void launch_swiglu(Stream& stream, const SwigluArgs& args) {
  const unsigned supers = static_cast<unsigned>(super_blocks(args.dim));
  const Dim3 grid{(supers + kWarps - 1) / kWarps, static_cast<unsigned>(args.rows)};
  launch(stream, {.grid = grid, .block = {kWarps * TND_WARP}, .overlap = true, .name = "swiglu"}, swiglu_kernel, args);
}

}  // namespace tnd::gpu
