// One block a row: the row is staged in shared memory by all threads, sixteen lanes sum it in the order of the
// contract, all threads write. The chain of dim / 16 dependent fma (320 at 5120: under a microsecond) is the price of
// the CPU's bits; the rest is one pass over the row.
#include "core/backend.h"
#include "gpu/acts_device.h"
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
  const auto value = [&](int i) { return (STAGED ? staged[i] : x[i]) * r * a.w[i]; };
  if (a.forms == 0) {
    for (int i = threadIdx.x; i < a.dim; i += kThreads) y[i] = value(i);
    return;
  }
  for (int s = static_cast<int>(warp_id()); s < super_blocks(a.dim); s += kThreads / TND_WARP) {
    const int first = s * kSuper + static_cast<int>(lane_id()) * 8;
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = first + i < a.dim ? value(first + i) : 0.0f;
    acts_store(a.acts, a.forms, static_cast<int>(blockIdx.x), s, v);
  }
}

// A warp takes two heads, a super-block of the output: sixteen lanes a head for the sum, then eight neighbouring
// elements a lane.
constexpr int kGatedWarps = 4;
constexpr int kPair = 2 * kDeltaDim;
static_assert(kPair == kSuper);

__global__ void __launch_bounds__(kGatedWarps* TND_WARP) gated_norm_kernel(GatedNormArgs a) {
  TND_SHARED(float, rows, [kGatedWarps][kPair]);
  const int lane = static_cast<int>(lane_id()), pair = static_cast<int>(blockIdx.x * kGatedWarps + warp_id());
  const int pairs = (a.heads + 1) / 2;
  if (pair >= pairs) return;
  const int row = static_cast<int>(blockIdx.y);
  const int64_t width = int64_t{a.heads} * kDeltaDim, base = row * width + int64_t{pair} * kPair;
  const bool live = pair * 2 + lane / 16 < a.heads;
  float* o = rows[warp_id()];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kDeltaDim / 16; ++i) {
    const int at = lane / 16 * kDeltaDim + lane % 16 + 16 * i;
    const float v = live ? a.o[base + at] : 0.0f;
    o[at] = v;
    sum = fmaf(v, v, sum);
  }
  const float r = 1.0f / sqrtf(fold_16(sum) / static_cast<float>(kDeltaDim) + a.eps);
  sync_warp();
  float y[8];
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const int at = lane * 8 + i;
    const float4 v = *reinterpret_cast<const float4*>(o + at);
    const float4 w = *reinterpret_cast<const float4*>(a.w + at % kDeltaDim);
    const float4 z = live ? *reinterpret_cast<const float4*>(a.z + base + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    y[i] = v.x * r * w.x * silu_f32(z.x);
    y[i + 1] = v.y * r * w.y * silu_f32(z.y);
    y[i + 2] = v.z * r * w.z * silu_f32(z.z);
    y[i + 3] = v.w * r * w.w * silu_f32(z.w);
  }
  if (a.forms != 0) {
    acts_store(a.acts, a.forms, row, pair, y);
  } else if (live) {
    float4* to = reinterpret_cast<float4*>(a.y + base + lane * 8);
    to[0] = make_float4(y[0], y[1], y[2], y[3]);
    to[1] = make_float4(y[4], y[5], y[6], y[7]);
  }
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
  const unsigned pairs = static_cast<unsigned>((args.heads + 1) / 2);
  const Dim3 grid{(pairs + kGatedWarps - 1) / kGatedWarps, static_cast<unsigned>(args.rows)};
  launch(stream, {.grid = grid, .block = {kGatedWarps * TND_WARP}, .name = "gated_norm"}, gated_norm_kernel, args);
}

}  // namespace tnd::gpu
