// A warp takes 256 elements of a row, which the quantiser of the next product needs in one warp.
#include "gpu/norm/swiglu_device.cuh"

namespace tnd::gpu {
namespace {

constexpr int kWarps = 4;

__global__ void __launch_bounds__(kWarps* TND_WARP) swiglu_kernel(SwigluArgs a) {
  let_next_start();
  if (static_cast<int>(blockIdx.y) >= rows_in_use(a.live, a.rows)) return;
  wait_for_previous();
  const int s = static_cast<int>(blockIdx.x * kWarps + warp_id());
  if (s >= super_blocks(a.dim)) return;
  const int64_t row = blockIdx.y;
  float y[8];
  swiglu_eight<8>(a, row, s, y);
  if (a.forms != 0) return acts_store(a.acts, a.forms, static_cast<int>(row), s, y);
  const int first = s * kSuper + static_cast<int>(lane_id()) * 8;
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    if (first + i >= a.dim) continue;
    *reinterpret_cast<float4*>(a.y + row * a.dim + first + i) = make_float4(y[i], y[i + 1], y[i + 2], y[i + 3]);
  }
}

// A block takes a row. Eight together spill here.
__global__ void __launch_bounds__(1024) swiglu_scaled_kernel(SwigluArgs a) {
  let_next_start();
  wait_for_previous();
  const int row = static_cast<int>(blockIdx.x);
  store_scaled_row<3>(a.acts, a.forms, row, static_cast<int>(super_blocks(a.dim)),
                      [&](int s, float(&y)[8]) { swiglu_eight<4>(a, row, s, y); });
}

}  // namespace

void launch_swiglu(Stream& stream, const SwigluArgs& args) {
  if (needs_row_scale(args.acts, args.forms)) {
    launch(stream,
           {.grid = {static_cast<unsigned>(args.rows)},
            .block = {scaled_row_threads(args.dim)},
            .overlap = true,
            .name = "swiglu"},
           swiglu_scaled_kernel, args);
    return;
  }
  const unsigned supers = static_cast<unsigned>(super_blocks(args.dim));
  const Dim3 grid{(supers + kWarps - 1) / kWarps, static_cast<unsigned>(args.rows)};
  launch(stream, {.grid = grid, .block = {kWarps * TND_WARP}, .overlap = true, .name = "swiglu"}, swiglu_kernel, args);
}

}  // namespace tnd::gpu
