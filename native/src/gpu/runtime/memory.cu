#include <algorithm>

#include "gpu/runtime/memory.h"

namespace tnd::gpu {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kMaxBlocks = 4096;

unsigned blocks_for(int64_t n) {
  return static_cast<unsigned>(std::min<int64_t>((n + kThreads - 1) / kThreads, kMaxBlocks));
}

// Block (x, i) copies elements of row i.
__global__ void copy_rows_f32_kernel(CopyRowsArgs a) {
  if (static_cast<int>(blockIdx.y) >= rows_in_use(a.live, a.n)) return;
  const float* from = a.src + a.rows[blockIdx.y] * a.dim;
  float* to = a.dst + (a.to != nullptr ? a.to[blockIdx.y] : int64_t{blockIdx.y}) * a.dst_stride;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < a.dim; i += int64_t{gridDim.x} * kThreads) {
    to[i] = from[i];
  }
}

__global__ void copy_kernel(CopyArgs a) {
  let_next_start();
  wait_for_previous();
  const uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < a.bytes / 16) static_cast<uint4*>(a.dst)[i] = static_cast<const uint4*>(a.src)[i];
}

// Copies the rows in use, of any number of words.
__global__ void copy_live_kernel(CopyArgs a) {
  let_next_start();
  const uint64_t words = static_cast<uint64_t>(*a.live) * (a.row_bytes / 4);
  wait_for_previous();
  const uint64_t step = uint64_t{gridDim.x} * kThreads;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += step) {
    static_cast<uint32_t*>(a.dst)[i] = static_cast<const uint32_t*>(a.src)[i];
  }
}

// Elements in use.
template <typename A>
TND_DEVICE int64_t elements_of(const A& a) {
  return a.live != nullptr ? *a.live * a.row : a.n;
}

__global__ void round_bf16_kernel(RoundArgs a) {
  const int64_t n = elements_of(a);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    a.dst[i] = f32_to_bf16(a.src[i]);
  }
}

__global__ void widen_bf16_kernel(WidenArgs a) {
  let_next_start();
  const int64_t n = elements_of(a);
  wait_for_previous();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    a.dst[i] = bf16_to_f32(a.src[i]);
  }
}

// Copies both ranges, one after the other. A loop over them would index the arguments and so put them into
// local memory.
__global__ void plan_kernel(PlanArgs a) {
  const PlanArgs::Range &first = a.ranges[0], &second = a.ranges[1];
  uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const bool in_second = i >= first.bytes / 16;
  if (in_second) i -= first.bytes / 16;
  if (in_second && i >= second.bytes / 16) return;
  void* const dst = in_second ? second.dst : first.dst;
  const void* const src = in_second ? second.src : first.src;
  static_cast<uint4*>(dst)[i] = static_cast<const uint4*>(src)[i];
}

constexpr unsigned kResultThreads = 512;
__global__ void __launch_bounds__(kResultThreads) results_kernel(ResultsArgs a) {
  const uint64_t number = *a.number;  // of the plan: written before the previous launch began
  wait_for_previous();
  for (const ResultsArgs::Range& range : a.ranges) {
    for (uint64_t i = threadIdx.x; i < range.bytes / 16; i += kResultThreads) {
      static_cast<uint4*>(range.dst)[i] = static_cast<const uint4*>(range.src)[i];
    }
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) *static_cast<volatile uint64_t*>(a.done) = number;
}

}  // namespace

void launch_plan(Stream& stream, const PlanArgs& args) {
  const uint64_t bytes = args.ranges[0].bytes + args.ranges[1].bytes;
  launch(stream, {.grid = {blocks_for(static_cast<int64_t>(bytes / 16))}, .block = {kThreads}, .name = "plan"},
         plan_kernel, args);
}

void launch_results(Stream& stream, const ResultsArgs& args) {
  launch(stream, {.grid = {1}, .block = {kResultThreads}, .overlap = true, .name = "results"}, results_kernel, args);
}

void launch_copy_rows(Stream& stream, const CopyRowsArgs& args) {
  launch(stream,
         {.grid = {blocks_for(args.dim), static_cast<unsigned>(args.n)}, .block = {kThreads}, .name = "copy_rows"},
         copy_rows_f32_kernel, args);
}

void launch_round_bf16(Stream& stream, const RoundArgs& args) {
  launch(stream, {.grid = {blocks_for(args.n)}, .block = {kThreads}, .name = "round_bf16"}, round_bf16_kernel, args);
}

void launch_widen_bf16(Stream& stream, const WidenArgs& args) {
  launch(stream, {.grid = {blocks_for(args.n)}, .block = {kThreads}, .overlap = true, .name = "widen_bf16"},
         widen_bf16_kernel, args);
}

void launch_copy(Stream& stream, const CopyArgs& args) {
  constexpr uint64_t kMost = 1 << 20;
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  if (args.live != nullptr) {
    return launch(stream,
                  {.grid = {blocks_for(static_cast<int64_t>(args.bytes / 4))},
                   .block = {kThreads},
                   .overlap = true,
                   .name = "copy"},
                  copy_live_kernel, args);
  }
  if (args.bytes > kMost || args.bytes % 16 != 0 || !aligned(args.dst) || !aligned(args.src)) {
    return stream.copy(args.dst, args.src, args.bytes);
  }
  launch(stream,
         {.grid = {blocks_for(static_cast<int64_t>(args.bytes / 16))},
          .block = {kThreads},
          .overlap = true,
          .name = "copy"},
         copy_kernel, args);
}

void launch_fill(Stream& stream, const FillArgs& args) {
  stream.fill(args.dst, args.value, args.bytes);
}

}  // namespace tnd::gpu
