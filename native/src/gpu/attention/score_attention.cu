#include "gpu/attention/score_attention.h"
#include "gpu/math/norm_device.cuh"

namespace tnd::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kPerBlock = kThreads / 16;  // dot products, sixteen lanes each
constexpr int kSumBlock = 1024;           // positions summed together: part of the CPU's contract

// A block takes one key row; its half warps share it over queries and heads.
__global__ void __launch_bounds__(kThreads) score_dots_kernel(ScoreDotsArgs a) {
  const int pairs = a.n_query * a.q_heads, g = a.q_heads / a.kv_heads, lane = static_cast<int>(threadIdx.x) % 16;
  const int64_t row = blockIdx.x;
  for (int first = 0; first < pairs; first += kPerBlock) {
    const int pair = first + static_cast<int>(threadIdx.x) / 16;
    const bool live = pair < pairs;
    const float* q = a.query + int64_t{live ? pair : 0} * a.dim;
    const float* k = a.k + (row * a.kv_heads + (live ? pair % a.q_heads / g : 0)) * a.dim;
    float sum = 0.0f;
    for (int d = lane; d < a.dim; d += 16) sum += q[d] * k[d];
    sum = fold_16(sum);
    if (live && lane == 0) a.dots[pair * a.stride + a.first + row] = a.scale * sum;
  }
}

// Largest score of a (query, head): block = pair.
__global__ void __launch_bounds__(kThreads) score_max_kernel(ScorePeaksArgs a) {
  TND_SHARED(float, warps, [kThreads / TND_WARP]);
  const int pair = static_cast<int>(blockIdx.x), n = a.visible[pair / a.q_heads];
  const float* s = a.dots + pair * a.stride;
  float m = -__builtin_inff();
  for (int j = threadIdx.x; j < n; j += kThreads) m = s[j] > m ? s[j] : m;
  m = warp_max(m);
  if (lane_id() == 0) warps[warp_id()] = m;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads / TND_WARP; ++i) m = warps[i] > m ? warps[i] : m;
  a.scratch[pair] = m;
}

// Sums of exp(s - max) over blocks of kSumBlock positions: a half warp a block.
__global__ void __launch_bounds__(kThreads) score_sums_kernel(ScorePeaksArgs a, int sums) {
  const int pair = static_cast<int>(blockIdx.y), n = a.visible[pair / a.q_heads];
  const int block = static_cast<int>(blockIdx.x) * kPerBlock + static_cast<int>(threadIdx.x) / 16;
  const float* s = a.dots + pair * a.stride;
  const float m = a.scratch[pair];
  const int end = (block + 1) * kSumBlock < n ? (block + 1) * kSumBlock : n;
  float sum = 0.0f;
  for (int j = block * kSumBlock + static_cast<int>(threadIdx.x) % 16; j < end; j += 16) sum += exp_f32(s[j] - m);
  sum = fold_16(sum);
  const int pairs = a.n_query * a.q_heads;
  if (threadIdx.x % 16 == 0 && block < sums) a.scratch[pairs * 2 + int64_t{pair} * sums + block] = sum;
}

// 1 / sum of a pair: the blocks ascending.
__global__ void __launch_bounds__(kThreads) score_total_kernel(ScorePeaksArgs a, int sums) {
  const int pairs = a.n_query * a.q_heads, pair = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (pair >= pairs) return;
  const int used = (a.visible[pair / a.q_heads] + kSumBlock - 1) / kSumBlock;
  float total = 0.0f;
  for (int i = 0; i < used; ++i) total += a.scratch[pairs * 2 + int64_t{pair} * sums + i];
  a.scratch[pairs + pair] = 1.0f / total;
}

__global__ void __launch_bounds__(kThreads) score_best_kernel(ScorePeaksArgs a) {
  const int t = static_cast<int>(blockIdx.y), j = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (j >= a.visible[t]) return;
  const int pairs = a.n_query * a.q_heads;
  float best = a.best[t * a.stride + j];
  for (int h = 0; h < a.q_heads; ++h) {
    const int pair = t * a.q_heads + h;
    const float p = exp_f32(a.dots[pair * a.stride + j] - a.scratch[pair]) * a.scratch[pairs + pair];
    best = best < p ? p : best;
  }
  a.best[t * a.stride + j] = best;
}

int sum_blocks(int visible) {
  return (visible + kSumBlock - 1) / kSumBlock;
}

}  // namespace

void launch_score_dots(Stream& stream, const ScoreDotsArgs& args) {
  launch(stream, {.grid = {static_cast<unsigned>(args.rows)}, .block = {kThreads}, .name = "score_dots"},
         score_dots_kernel, args);
}

int64_t score_scratch_floats(int n_query, int q_heads, int max_visible) {
  return int64_t{n_query} * q_heads * (2 + sum_blocks(max_visible));
}

void launch_score_peaks(Stream& stream, const ScorePeaksArgs& args) {
  const unsigned pairs = static_cast<unsigned>(args.n_query * args.q_heads);
  const int sums = sum_blocks(args.max_visible);
  const auto parts = [](int n, int per) { return static_cast<unsigned>((n + per - 1) / per); };
  launch(stream, {.grid = {pairs}, .block = {kThreads}, .name = "score_max"}, score_max_kernel, args);
  launch(stream, {.grid = {parts(sums, kPerBlock), pairs}, .block = {kThreads}, .name = "score_sums"},
         score_sums_kernel, args, sums);
  launch(stream, {.grid = {parts(static_cast<int>(pairs), kThreads)}, .block = {kThreads}, .name = "score_total"},
         score_total_kernel, args, sums);
  launch(stream,
         {.grid = {parts(args.max_visible, kThreads), static_cast<unsigned>(args.n_query)},
          .block = {kThreads},
          .name = "score_best"},
         score_best_kernel, args);
}

}  // namespace tnd::gpu
