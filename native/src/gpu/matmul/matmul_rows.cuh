// A block's units in the kernels for 1 to 64 rows, which matmul_rows.cu describes. For files with kernels.
#pragma once

#include "gpu/matmul/matmul_accumulate.h"
#include "gpu/matmul/matmul_jobs.h"

namespace tnd::gpu {
namespace {

constexpr int kLanes = 4;
constexpr int kThreads = kLanes * TND_WARP;
constexpr int kOuts = 16;
constexpr int kRedPitch = kOuts + 4;  // floats; keeps the lanes of a store on different banks

// Super-blocks in a warp's ring, at most: three to four in flight are 28 to 45 KB for the four warps of a block, where
// an SM of H200 needs 25 to 32 (gpu-notes 2.7). Cards with less shared memory have shorter rings (depths_of).
constexpr int kFewestStages = 2;
constexpr int stages(int super_bytes) {
  return super_bytes <= 3000 ? 4 : 3;
}
constexpr int ring_bytes(int super_bytes, int stages) {
  return kLanes * stages * super_bytes;
}
// Super-blocks in the rings of every job of a launch: four bits each, since kernels would copy an array to scratch.
struct RingDepths {
  uint32_t bits = 0;
};
static_assert(kMaxProducts * 4 <= 32);
constexpr int depth_of(RingDepths depths, int job) {
  return static_cast<int>(depths.bits >> (4 * job) & 15);
}

// copy_async_wait for a ring whose depth is known at run time only.
[[maybe_unused]] TND_DEVICE void wait_for_stage(int depth) {
  if (depth == kFewestStages) {
    copy_async_wait<0>();
  } else if (depth == kFewestStages + 1) {
    copy_async_wait<1>();
  } else {
    copy_async_wait<2>();
  }
}
constexpr int red_bytes(int cols) {
  return kLanes * cols * kRedPitch * static_cast<int>(sizeof(float));
}

// Units [first, end) of a block, `step` apart.
struct BlockUnits {
  int first, end, step;
};
// Place of a warp in the super-blocks of its block's units.
struct Cursor {
  int unit, s;
};

template <class U, template <class> class TYPE, int COLS>
TND_DEVICE void multiply_units(const MatmulJobs& args, const MatmulJob& job, [[maybe_unused]] int depth,
                               const BlockUnits& units, float* red, uint8_t* smem) {
  using T = TYPE<U>;
  constexpr int kTiles = COLS > U::kCols ? COLS / U::kCols : 1;
  const int lane = static_cast<int>(lane_id());
  const int k_lane = static_cast<int>(warp_id());
  const int supers = static_cast<int>(super_blocks(args.k));
  const int row0 = static_cast<int>(blockIdx.y) * COLS;
  const int all = rows_in_use(args.live, args.rows);
  if (row0 > 0 && row0 >= all) return;  // the first chunk need not wait for the number
  const int rows = all - row0 < COLS ? all - row0 : COLS;
  uint8_t* const ring = smem + k_lane * depth * T::kBytes;

  // fetch starts the copy of the next super-block into a place of the ring; past the end it only counts.
  Cursor next{units.first, k_lane};
  const auto fetch = [&](int stage) {
    if constexpr (U::kRing) {
      if (next.unit < units.end && next.s < supers) {
        const uint8_t* from = job.data + next.unit * job.unit_bytes + int64_t{next.s} * T::kBytes + lane * 16;
        uint8_t* to = ring + stage * T::kBytes + lane * 16;
#pragma unroll
        for (int at = 0; at < T::kBytes; at += 512) {
          if (at + 512 <= T::kBytes || at + lane * 16 < T::kBytes) copy_async_16(to + at, from + at);
        }
        next.s += kLanes;
        if (next.s >= supers) {
          next.s = k_lane;
          next.unit += units.step;
        }
      }
      copy_async_commit();
    }
  };
  for (int stage = 0; stage < depth - 1; ++stage) fetch(stage);
  wait_for_previous();

  int stage = 0;
  for (int unit = units.first; unit < units.end; unit += units.step) {
    float acc[1][kTiles][U::kElems] = {};
    for (int s = k_lane; s < supers; s += kLanes) {
      const SuperInput in = global_input<T::kForm>(args.acts, s, row0, row0 + rows);
      if constexpr (U::kRing) {
        wait_for_stage(depth);
        sync_warp();  // all lanes have read the place that fetch fills next
        fetch(stage == 0 ? depth - 1 : stage - 1);
        accumulate<U, TYPE, 1, kTiles>(ring + stage * T::kBytes, 0, in, lane, acc);
        stage = stage == depth - 1 ? 0 : stage + 1;
      } else {
        accumulate<U, TYPE, 1, kTiles>(job.data + unit * job.unit_bytes + int64_t{s} * T::kBytes, 0, in, lane, acc);
      }
    }
    __syncthreads();  // the last unit's sums have been read
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < U::kElems; ++i) {
        const int column = tile * U::kCols + U::column(lane, i);
        red[(k_lane * kTiles * U::kCols + column) * kRedPitch + U::out(lane, U::out_index(i))] = acc[0][tile][i];
      }
    }
    __syncthreads();
    const int out = unit * kOuts + static_cast<int>(threadIdx.x) % kOuts;
    for (int column = static_cast<int>(threadIdx.x) / kOuts; column < rows; column += kThreads / kOuts) {
      constexpr int kLanePitch = kTiles * U::kCols * kRedPitch;
      const float* l = red + column * kRedPitch + static_cast<int>(threadIdx.x) % kOuts;
      float y = (l[0] + l[kLanePitch]) + (l[2 * kLanePitch] + l[3 * kLanePitch]);
      if (out >= job.n) continue;
      const int64_t at = (row0 + column) * job.y_stride + out;
      if (job.residual != nullptr) y = job.residual[at] + y;
      job.y[at] = y;
    }
  }
}

// Wide tiles need more registers, so fewer blocks fit (128, 168, 255 registers a thread).
constexpr int blocks_per_processor(int cols) {
  return cols <= 16 ? 4 : cols <= 32 ? 3 : 2;
}

}  // namespace
}  // namespace tnd::gpu
