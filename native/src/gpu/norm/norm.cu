// One block a row: all threads stage the row in shared memory, sixteen lanes sum it in the order of the contract, all
// threads write. Having the CPU's bits costs a chain of dim / 16 dependent fma (320 at 5120: under a microsecond); the
// rest is one pass over the row.
#include "gpu/norm/norm_rows.cuh"

namespace tnd::gpu {
namespace {

constexpr int kMaxWarps = 32;
constexpr int kHeldDim = kMaxWarps * kSuper;  // one super-block a warp

// Writes super-block s of the row: plain, or prepared as matmul input.
TND_DEVICE void store_row(const NormArgs& a, int s, const float (&v)[8]) {
  const int row = static_cast<int>(blockIdx.x), first = s * kSuper + static_cast<int>(lane_id()) * 8;
  if (a.forms != 0) {
    acts_store(a.acts, a.forms, row, s, v);
  } else if (first < a.dim) {
    float4* to = reinterpret_cast<float4*>(a.y + int64_t{row} * a.dim + first);
    to[0] = make_float4(v[0], v[1], v[2], v[3]);
    to[1] = make_float4(v[4], v[5], v[6], v[7]);
  }
}

// The block's row of x.
TND_DEVICE const float* row_of(const NormArgs& a) {
  return a.x + (a.gather != nullptr ? a.gather[blockIdx.x] : int64_t{blockIdx.x}) * a.x_stride;
}

// Rows of at most kHeldDim: a warp holds its super-block in registers, and waits for memory once.
__global__ void __launch_bounds__(kMaxWarps* TND_WARP) norm_held_kernel(NormArgs a) {
  TND_DYNAMIC_SHARED(float, staged);
  TND_SHARED(float, scale, [1]);
  let_next_start();
  if (static_cast<int>(blockIdx.x) >= rows_in_use(a.live, a.rows)) return;
  const int s = static_cast<int>(warp_id()), first = s * kSuper + static_cast<int>(lane_id()) * 8;
  const bool live = first < a.dim;
  float w[8], x[8];
  load_eight(w, a.w + first, live);
  const float* row = row_of(a);
  wait_for_previous();
  load_eight(x, row + first, live);
  if (live) {
    float4* to = reinterpret_cast<float4*>(staged + first);
    to[0] = make_float4(x[0], x[1], x[2], x[3]);
    to[1] = make_float4(x[4], x[5], x[6], x[7]);
  }
  __syncthreads();
  if (s == 0) {
    const float sum = sum_squares_16(staged, a.dim);
    if (threadIdx.x == 0) scale[0] = 1.0f / sqrtf(sum / static_cast<float>(a.dim) + a.eps);
  }
  __syncthreads();
  const float r = scale[0];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = x[i] * r * w[i];
  store_row(a, s, x);
}

// The same for rows with a scale of their own. There are many of these, so a block takes two, whose sums run side
// by side.
constexpr int kTogether = 2;
constexpr int kStagedPad = 16;  // floats: puts the rows of a warp's two halves into different banks

// Blocks that a processor should hold, which bounds the registers; before sm_80 it cannot hold two of 20 warps.
constexpr int resident(int blocks) {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  return blocks > 1 ? 1 : blocks;
#else
  return blocks;
#endif
}

template <int WARPS, int BLOCKS>
__global__ void __launch_bounds__(WARPS* TND_WARP, resident(BLOCKS)) norm_scaled_kernel(NormArgs a) {
  TND_DYNAMIC_SHARED(float, staged);
  TND_SHARED(float, scale, [kTogether]);
  TND_SHARED(float, maxima, [kTogether][kMaxWarps]);
  let_next_start();
  const int s = static_cast<int>(warp_id()), lane = static_cast<int>(lane_id()), first = s * kSuper + lane * 8;
  const int row0 = static_cast<int>(blockIdx.x) * kTogether, stride = a.dim + kStagedPad;
  const bool live = first < a.dim;
  float w[8], x[kTogether][8];
  wait_for_previous();
#pragma unroll
  for (int r = 0; r < kTogether; ++r) {
    load_eight(x[r], a.x + int64_t{row0 + r} * a.x_stride + first, live && row0 + r < a.rows);
  }
#pragma unroll
  for (int r = 0; r < kTogether; ++r) {
    if (!live) continue;
    float4* to = reinterpret_cast<float4*>(staged + r * stride + first);
    to[0] = make_float4(x[r][0], x[r][1], x[r][2], x[r][3]);
    to[1] = make_float4(x[r][4], x[r][5], x[r][6], x[r][7]);
  }
  __syncthreads();
  if (s == 0) {
    const int r = lane / 16;
    const float sum = sum_squares_16(staged + r * stride, a.dim);
    if (lane % 16 == 0) scale[r] = 1.0f / sqrtf(sum / static_cast<float>(a.dim) + a.eps);
  }
  load_eight(w, a.w + first, live);  // here: the sums need the registers
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kTogether; ++r) {
    float max = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[r][i] = x[r][i] * scale[r] * w[i];
      max = larger_magnitude(max, x[r][i]);
    }
    max = warp_max(max);
    if (lane == 0) maxima[r][s] = max;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kTogether; ++r) {
    const int warps = static_cast<int>(blockDim.x) / TND_WARP;
    const int up = row_scale_exponent(warp_max(lane < warps ? maxima[r][lane] : 0.0f));
    if (row0 + r >= a.rows) continue;
    if (threadIdx.x == 0) a.acts.row_unscale[row0 + r] = power_of_two(-up);
    store_scaled(a.acts, a.forms, row0 + r, s, x[r], power_of_two(up));
  }
}

// Longer rows are read again from the second-level cache.
__global__ void __launch_bounds__(kMaxWarps* TND_WARP) norm_long_kernel(NormArgs a) {
  TND_SHARED(float, scale, [1]);
  let_next_start();
  if (static_cast<int>(blockIdx.x) >= rows_in_use(a.live, a.rows)) return;
  wait_for_previous();
  const float* row = row_of(a);
  if (warp_id() == 0) {
    const float sum = sum_squares_16(row, a.dim);
    if (threadIdx.x == 0) scale[0] = 1.0f / sqrtf(sum / static_cast<float>(a.dim) + a.eps);
  }
  __syncthreads();
  const float r = scale[0];
  const int supers = static_cast<int>(super_blocks(a.dim));
  const auto eight = [&](int s, float(&x)[8]) {
    const int first = s * kSuper + static_cast<int>(lane_id()) * 8;
    float w[8];
    load_eight(w, a.w + first, first < a.dim);
    load_eight(x, row + first, first < a.dim);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = x[i] * r * w[i];
  };
  if (needs_row_scale(a.acts, a.forms)) {
    store_scaled_row<1>(a.acts, a.forms, static_cast<int>(blockIdx.x), supers, eight);
    return;
  }
  for (int s = static_cast<int>(warp_id()); s < supers; s += kMaxWarps) {
    float x[8];
    eight(s, x);
    store_row(a, s, x);
  }
}

// A warp takes two heads.
constexpr int kGatedWarps = 4;

__global__ void __launch_bounds__(kGatedWarps* TND_WARP) gated_norm_kernel(GatedNormArgs a) {
  TND_SHARED(float, rows, [kGatedWarps][kHeadPair]);
  let_next_start();
  if (static_cast<int>(blockIdx.y) >= rows_in_use(a.live, a.rows)) return;
  const int lane = static_cast<int>(lane_id()), pair = static_cast<int>(blockIdx.x * kGatedWarps + warp_id());
  const int pairs = (a.heads + 1) / 2;
  float w[8];
  load_eight(w, a.w + lane * 8 % kDeltaDim, true);
  wait_for_previous();
  if (pair < pairs) gated_norm_pair(a, static_cast<int>(blockIdx.y), pair, w, rows[warp_id()]);
}

}  // namespace

void launch_norm(Stream& stream, const NormArgs& args) {
  const Dim3 grid{static_cast<unsigned>(args.rows)};
  const bool held = args.dim <= kHeldDim;
  const unsigned warps = held ? static_cast<unsigned>(super_blocks(args.dim)) : kMaxWarps;
  if (held && needs_row_scale(args.acts, args.forms)) {
    launch(stream,
           {.grid = {static_cast<unsigned>((args.rows + kTogether - 1) / kTogether)},
            .block = {warps * TND_WARP},
            .shared_bytes = static_cast<unsigned>(kTogether * (args.dim + kStagedPad)) * 4u,
            .overlap = true,
            .name = "norm"},
           warps <= 20 ? norm_scaled_kernel<20, 2> : norm_scaled_kernel<kMaxWarps, 1>, args);
    return;
  }
  const unsigned bytes = held ? static_cast<unsigned>(args.dim) * sizeof(float) : 0;
  launch(stream, {.grid = grid, .block = {warps * TND_WARP}, .shared_bytes = bytes, .overlap = true, .name = "norm"},
         held ? norm_held_kernel : norm_long_kernel, args);
}

void launch_gated_norm(Stream& stream, const GatedNormArgs& args) {
  const unsigned pairs = static_cast<unsigned>((args.heads + 1) / 2);
  const Dim3 grid{(pairs + kGatedWarps - 1) / kGatedWarps, static_cast<unsigned>(args.rows)};
  const bool scaled = needs_row_scale(args.acts, args.forms);
  GatedNormArgs a = args;
  if (scaled) a.forms = 0;
  launch(stream, {.grid = grid, .block = {kGatedWarps * TND_WARP}, .overlap = true, .name = "gated_norm"},
         gated_norm_kernel, a);
  if (!scaled) return;
  const int32_t width = args.heads * kDeltaDim;
  launch_prepare(stream, {args.y, width, args.rows, width, args.forms, args.acts, args.live});
}

}  // namespace tnd::gpu
