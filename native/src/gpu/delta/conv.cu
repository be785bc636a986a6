// Causal convolution by parents, SiLU, L2 norms of queries and keys, gates. Sixteen lanes a head of 128 channels, so
// that the sums of the norms run in the order of the CPU; one more block a row computes the gates.
#include "gpu/delta/conv_device.cuh"

namespace tnd::gpu {
namespace {

constexpr int kHeadsPerBlock = 8;
constexpr int kThreads = 16 * kHeadsPerBlock;

__global__ void __launch_bounds__(kThreads) delta_conv_kernel(DeltaArgs a) {
  let_next_start();
  if (static_cast<int>(blockIdx.y) >= rows_in_use(a.live, a.rows)) return;
  if (blockIdx.x == gridDim.x - 1) {
    for (int h = threadIdx.x; h < a.w.shape.nv; h += kThreads) delta_gate(a, blockIdx.y, h);
    return;
  }
  delta_conv_head(a, blockIdx.y, static_cast<int>(blockIdx.x * kHeadsPerBlock + threadIdx.x / 16));
}

}  // namespace

void launch_delta_conv(Stream& stream, const DeltaArgs& args) {
  const int heads = 2 * args.w.shape.nk + args.w.shape.nv;
  const Dim3 grid{static_cast<unsigned>((heads + kHeadsPerBlock - 1) / kHeadsPerBlock) + 1,
                  static_cast<unsigned>(args.rows)};
  launch(stream, {.grid = grid, .block = {kThreads}, .overlap = true, .name = "delta_conv"}, delta_conv_kernel, args);
}

}  // namespace tnd::gpu
