// The kernel of matmul_rows.cu with what follows the products, for AMD. A block takes neighbouring units, so that it
// touches few parts; it arrives once, after its last unit.
//
// Cost over matmul_rows: a block waits for its stores, then for one atomic operation on the second-level cache. The
// last block of a part then does what a block of a launch of its own would do.
#include <algorithm>
#include <cstring>

#include "gpu/follow/matmul_follow.h"
#include "gpu/matmul/matmul_jobs.h"
#if !defined(TND_GPU_CUDA)
#include "gpu/attention/heads_device.cuh"
#include "gpu/delta/conv_device.cuh"
#include "gpu/matmul/matmul_rows.cuh"
#include "gpu/norm/norm_rows.cuh"
#include "gpu/norm/swiglu_device.cuh"
#include "gpu/runtime/arrivals.h"
#endif

namespace tnd::gpu {
#if !defined(TND_GPU_CUDA)
namespace {

// Units of [begin, end) of a product that a part needs.
TND_DEVICE int units_of_part(const PartUnits& of, int part, int begin, int end) {
  const int low = (part - of.part) * of.period, high = low + of.counted;
  const int n = (high < end ? high : end) - (low > begin ? low : begin);
  return of.period > 0 && n > 0 ? n : 0;
}

// ---- what follows, on the parts that are complete: bit i of `parts` is part first + i

// for_rows calls f(part, row) for all rows of the parts. A warp takes every fourth.
template <class F>
TND_DEVICE void for_rows(uint32_t parts, int first, int rows, F&& f) {
  int row = static_cast<int>(warp_id());
  for (; parts != 0; parts &= parts - 1) {
    const int part = first + __ffs(static_cast<int>(parts)) - 1;
    for (; row < rows; row += kLanes) f(part, row);
    row -= rows;
  }
}

// for_heads calls f(part, row) for all rows of the parts, sixteen lanes each, in whole warps; lanes that are left over
// get the part `none`.
template <class F>
TND_DEVICE void for_heads(uint32_t parts, int first, int rows, int none, F&& f) {
  constexpr int kGroups = kThreads / 16;
  const int group = static_cast<int>(threadIdx.x) / 16, all = __popc(parts) * rows;
  for (int i = group; i / 2 * 2 < all; i += kGroups) {
    uint32_t left = parts;
    for (int n = i / rows; n > 0; --n) left &= left - 1;
    const bool live = i < all;
    f(live ? first + __ffs(static_cast<int>(left)) - 1 : none, live ? i % rows : 0);
  }
}

TND_DEVICE void conv_parts(const MatmulFollow& follow, uint32_t parts, int first, int rows) {
  const DeltaArgs& a = follow.conv;
  const int nv = a.w.shape.nv, gates = follow.parts - 1 - first;
  if (gates < TND_WARP && (parts >> gates & 1u) != 0) {
    parts ^= 1u << gates;
    for (int i = static_cast<int>(threadIdx.x); i < rows * nv; i += kThreads) delta_gate(a, i / nv, i % nv);
  }
  for_heads(parts, first, rows, follow.parts, [&](int part, int row) { delta_conv_head(a, row, part); });
}

template <Follow KIND>
TND_DEVICE void run_parts(const MatmulFollow& follow, uint32_t parts, int first, int rows,
                          [[maybe_unused]] float* shared) {
  if constexpr (KIND == Follow::kSwiglu) {
    for_rows(parts, first, rows, [&](int part, int row) {
      float y[8];
      swiglu_eight<8>(follow.swiglu, row, part, y);
      acts_store(follow.swiglu.acts, follow.swiglu.forms, row, part, y);
    });
  } else if constexpr (KIND == Follow::kNorm) {
    for (int row = 0; row < rows; ++row) {
      if (row > 0) __syncthreads();
      norm_row(follow.norm, row, shared);
    }
  } else if constexpr (KIND == Follow::kConv) {
    conv_parts(follow, parts, first, rows);
  } else {
    const HeadsArgs& a = follow.heads;
    float* const x = shared + static_cast<int>(threadIdx.x) / 16 * a.kv.dim;
    for_heads(parts, first, rows, follow.parts, [&](int part, int row) {
      if (a.kv.dim == 256) return heads_head<256, false>(a, row, part, x);
      heads_head<128, false>(a, row, part, x);
    });
  }
}

// Arrives at the parts of the block's units, and runs those that are complete.
template <Follow KIND>
TND_DEVICE void finish_units(const MatmulJobs& args, const MatmulFollow& follow, int index, const BlockUnits& units,
                             float* shared) {
  TND_SHARED(uint32_t, complete, [1]);
  const PartUnits& of = follow.units[index];
  if (of.period == 0) return;
  show_to_grid();
  __syncthreads();
  const int begin = of.part + units.first / of.period, end = of.part + (units.end - 1) / of.period + 1;
  for (int first = begin; first < end; first += TND_WARP) {
    if (first > begin) __syncthreads();  // the parts before are done
    if (warp_id() == 0) {
      const int part = first + static_cast<int>(lane_id());
      const int mine = part < end ? units_of_part(of, part, units.first, units.end) : 0;
      bool last = false;
      if (mine > 0) {
        int all = 0;
        for (int i = 0; i < args.count; ++i) all += units_of_part(follow.units[i], part, 0, args.jobs[i].units);
        last = arrive(&follow.arrivals[part], mine, all);
      }
      const uint32_t parts = ballot(last);
      if (lane_id() == 0) complete[0] = parts;
    }
    __syncthreads();
    const uint32_t parts = complete[0];
    if (parts == 0) continue;
    see_grid();
    run_parts<KIND>(follow, parts, first, rows_in_use(args.live, args.rows), shared);
  }
}

template <class U, Follow KIND>
__global__ void __launch_bounds__(kThreads, blocks_per_processor(kFollowedRows))
    matmul_followed_kernel(MatmulJobs args, MatmulFollow follow) {
  TND_DYNAMIC_SHARED(uint8_t, smem);
  let_next_start();
  float* const red = reinterpret_cast<float*>(smem);
  int block = static_cast<int>(blockIdx.x);
  int index = 0;
  while (block >= args.jobs[index].blocks) block -= args.jobs[index++].blocks;
  const MatmulJob& job = args.jobs[index];
  const BlockUnits units{block * job.units / job.blocks, (block + 1) * job.units / job.blocks, 1};
  switch (job.type) {
    case DType::kQ4_K:
      multiply_units<U, TypeQ4K, kFollowedRows>(args, job, 0, units, red, nullptr);
      break;
    case DType::kQ5_K:
      multiply_units<U, TypeQ5K, kFollowedRows>(args, job, 0, units, red, nullptr);
      break;
    case DType::kQ6_K:
      multiply_units<U, TypeQ6K, kFollowedRows>(args, job, 0, units, red, nullptr);
      break;
    default:
      multiply_units<U, TypeQ80, kFollowedRows>(args, job, 0, units, red, nullptr);
  }
  finish_units<KIND>(args, follow, index, units, red);
}

template <class U, Follow KIND>
void launch_kind(Stream& stream, const FollowedMatmul& args) {
  static_assert(!U::kRing && kFollowedRows % U::kCols == 0);
  MatmulJobs jobs = jobs_of(args.group, KernelSet::kCommon);
  static_assert(kRowWarps == kLanes && kRowDim >= kFollowedNormDim);
  int shared = red_bytes(kFollowedRows);
  if (KIND == Follow::kNorm) shared = std::max(shared, kRowStagedBytes);
  if (KIND == Follow::kHeads) {
    shared = std::max(shared, kThreads / 16 * args.follow.heads.kv.dim * static_cast<int>(sizeof(float)));
  }
  const int fit =
      std::clamp((args.group.shared_per_block + 1024) / (shared + 1024), 1, blocks_per_processor(kFollowedRows));
  const int blocks = share_blocks(&jobs, fit * std::max(args.group.processors, 1));
  launch(stream,
         {.grid = {static_cast<unsigned>(blocks)},
          .block = {kThreads},
          .shared_bytes = static_cast<unsigned>(shared),
          .overlap = true,
          .bytes = weight_bytes_of(jobs),
          .name = "matmul_followed"},
         matmul_followed_kernel<U, KIND>, jobs, args.follow);
}

template <class U>
void launch_products(Stream& stream, const FollowedMatmul& args) {
  switch (args.follow.kind) {
    case Follow::kSwiglu:
      return launch_kind<U, Follow::kSwiglu>(stream, args);
    case Follow::kNorm:
      return launch_kind<U, Follow::kNorm>(stream, args);
    case Follow::kConv:
      return launch_kind<U, Follow::kConv>(stream, args);
    case Follow::kHeads:
      return launch_kind<U, Follow::kHeads>(stream, args);
  }
}

}  // namespace
#endif

void launch_followed_matmul(Stream& stream, [[maybe_unused]] const FollowedMatmul& args) {
#if defined(TND_GPU_EMU)
  launch_products<WmmaUnit<Wmma11>>(stream, args);
#elif defined(TND_GPU_HIP)
  launch_products<DeviceUnit>(stream, args);
#else
  stream.fail(errorf(TND_INTERNAL, "no products with what follows them on this card"));
#endif
}

bool followed_launches() {
  return std::strcmp(api_name(), "hip") == 0 && !plain_launches();
}

bool matmul_follows(const MatmulGroup& group) {
  const auto* end = group.products + group.count;
  return group.count > 0 && group.rows <= kFollowedRows && group.acts.prompt == Prompt::kNone &&
         group.swiglu.pairs == nullptr && group.norm.x == nullptr &&
         std::all_of(group.products, end,
                     [](const MatmulProduct& p) { return kernel_set(p.w.type) == KernelSet::kCommon; });
}

}  // namespace tnd::gpu
