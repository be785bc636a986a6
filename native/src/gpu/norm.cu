// One block a row: the row is staged in shared memory by all threads, sixteen lanes sum it in the order of the
// contract, all threads write. The chain of dim / 16 dependent fma (320 at 5120: under a microsecond) is the price of
// the CPU's bits; the rest is one pass over the row.
#include "core/backend.h"
#include "gpu/norm.h"
#include "gpu/norm_device.cuh"

namespace tnd::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kStagedDim = 12 * 1024;  // 48 KiB; longer rows are read again from the second-level cache

template <bool STAGED>
__global__ void __launch_bounds__(kThreads) norm_kernel(NormArgs a) {
  TND_DYNAMIC_SHARED(float, staged);
  TND_SHARED(float, scale, [1]);
  const float* x = a.x + int64_t{blockIdx.x} * a.x_stride;
  float* y = a.y + int64_t{blockIdx.x} * a.dim;
  if constexpr (STAGED) {
    for (int i = threadIdx.x; i < a.dim; i += kThreads) staged[i] = x[i];
    __syncthreads();
  }
  if (warp_id() == 0) {
    const float sum = sum_squares_16(STAGED ? staged : x, a.dim);
    if (threadIdx.x == 0) scale[0] = 1.0f / sqrtf(sum / static_cast<float>(a.dim) + a.eps);
  }
  __syncthreads();
  const float r = scale[0];
  for (int i = threadIdx.x; i < a.dim; i += kThreads) y[i] = (STAGED ? staged[i] : x[i]) * r * a.w[i];
}

constexpr int kHeadsPerBlock = 8;  // sixteen lanes a head

__global__ void __launch_bounds__(16 * kHeadsPerBlock) gated_norm_kernel(GatedNormArgs a) {
  constexpr int kPer = kDeltaDim / 16;
  const int lane = threadIdx.x % 16;
  const int head = blockIdx.x * kHeadsPerBlock + threadIdx.x / 16;
  const bool live = head < a.heads;
  const int64_t at = (int64_t{blockIdx.y} * a.heads + (live ? head : 0)) * kDeltaDim + lane;
  float o[kPer];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    o[i] = a.o[at + 16 * i];
    sum = fmaf(o[i], o[i], sum);
  }
  const float r = 1.0f / sqrtf(fold_16(sum) / static_cast<float>(kDeltaDim) + a.eps);
  if (!live) return;
#pragma unroll
  for (int i = 0; i < kPer; ++i) a.y[at + 16 * i] = o[i] * r * a.w[lane + 16 * i] * silu_f32(a.z[at + 16 * i]);
}

}  // namespace

void launch_norm(Stream& stream, const NormArgs& args) {
  const Dim3 grid{static_cast<unsigned>(args.rows)};
  if (args.dim <= kStagedDim) {
    const unsigned bytes = static_cast<unsigned>(args.dim) * sizeof(float);
    launch(stream, {.grid = grid, .block = {kThreads}, .shared_bytes = bytes, .name = "norm"}, norm_kernel<true>, args);
  } else {
    launch(stream, {.grid = grid, .block = {kThreads}, .name = "norm"}, norm_kernel<false>, args);
  }
}

void launch_gated_norm(Stream& stream, const GatedNormArgs& args) {
  const Dim3 grid{static_cast<unsigned>((args.heads + kHeadsPerBlock - 1) / kHeadsPerBlock),
                  static_cast<unsigned>(args.rows)};
  launch(stream, {.grid = grid, .block = {16 * kHeadsPerBlock}, .name = "gated_norm"}, gated_norm_kernel, args);
}

}  // namespace tnd::gpu
