// The parts that the kernels over panels share (matmul_panels.cu, matmul_panels_float.cu): tiles of a block, the roles
// of its warpgroups, its rings of stages, and the same products by mma.sync for the emulation. For files with kernels.
#pragma once

#include <algorithm>

#include "gpu/matmul/matmul_jobs.h"
#include "gpu/runtime/hopper.h"
#include "gpu/runtime/runtime_mma.h"

namespace tnd::gpu {

inline constexpr int kPanelBytes = 128;  // of a row
inline constexpr int kConsumers = 2;     // warpgroups that multiply; one more fetches
inline constexpr int kGroupThreads = 128;
inline constexpr int kPanelThreads = (kConsumers + 1) * kGroupThreads;
inline constexpr int kPanelShared = 227 * 1024;
inline constexpr int kPanelAlign = 1024;  // of the operands of matrix instructions
inline constexpr int kBarrierBytes = 1024;

// A tile of 64 M outputs a consumer, N rows.
template <int M, int N>
struct PanelTile {
  static constexpr int kM = M, kN = N;
  static constexpr int kOuts = kConsumers * M * 64;
  static constexpr int kInputBytes = N * kPanelBytes;  // of a panel
  using Sums = float[M][N / 2];
};

// A place in a ring of stages.
struct Place {
  int stage = 0;
  uint32_t parity = 0;
};
TND_DEVICE void advance(Place* place, int stages) {
  if (++place->stage == stages) place->stage = 0, place->parity ^= 1;
}

// The position of an item of the grid. MatmulJob::blocks counts tiles of outputs. Neighbouring blocks take the rows of
// the same outputs, so weights come from memory once.
struct Item {
  const MatmulJob* job;
  int tile, col0;
};
TND_DEVICE Item item_of(const MatmulJobs& args, int item, int column_tiles, int cols) {
  int tile = item / column_tiles, index = 0;
  while (tile >= args.jobs[index].blocks) tile -= args.jobs[index++].blocks;
  return {&args.jobs[index], tile, item % column_tiles * cols};
}

TND_DEVICE int warp_in_group() {
  return static_cast<int>(threadIdx.x) % kGroupThreads / TND_WARP;
}
// The first output of a warp's 16 in the tile, of the 64 of m.
template <class T>
TND_DEVICE int first_out(int m) {
  return (static_cast<int>(threadIdx.x) / kGroupThreads * T::kM + m) * 64 + warp_in_group() * 16;
}

// share_block calls, for every tile of the block, weights(item) in a warp of the third warpgroup, inputs(item) in one
// thread of it and multiply(item) in the two others.
template <class WEIGHTS, class INPUTS, class MULTIPLY>
TND_DEVICE void share_block(const MatmulJobs& args, int cols, WEIGHTS&& weights, INPUTS&& inputs, MULTIPLY&& multiply) {
  const int column_tiles = (args.rows + cols - 1) / cols;
  int items = 0;
  for (int i = 0; i < args.count; ++i) items += args.jobs[i].blocks * column_tiles;
  const auto for_items = [&](auto&& take) {
    for (int i = static_cast<int>(blockIdx.x); i < items; i += static_cast<int>(gridDim.x)) {
      take(item_of(args, i, column_tiles, cols));
    }
  };
  if (threadIdx.x >= kConsumers * kGroupThreads) {
    give_registers<40>();
    const int warp = warp_in_group();
    if (warp == 0) {  // weights do not wait for the previous kernel
      for_items(weights);
    } else if (warp == 1 && lane_id() == 0) {
      if (args.joins == 0) wait_for_previous();
      for_items(inputs);
    } else if (warp == 2 && args.joined != 0) {
      if (args.joins == 0) wait_for_previous();
      let_next_start();  // that one reads the same inputs and no results of this one
    }
  } else {
    take_registers<232>();
    if (args.joins == 0) wait_for_previous();
    for_items(multiply);
  }
  if (args.joins != 0) wait_for_previous();  // the next launch waits for this one only
}

// The unit of a tile of UNITS that a lane fetches; beyond the end the last one again.
template <int UNITS>
TND_DEVICE const uint8_t* unit_of_lane(const Item& item, int lane) {
  const int wanted = item.tile * UNITS + lane;
  return item.job->data + (wanted < item.job->units ? wanted : item.job->units - 1) * item.job->unit_bytes;
}
// A warp fetches `bytes` of each of UNITS units, which lie `pitch` apart in the stage.
template <int UNITS>
TND_DEVICE void fetch_units(uint8_t* stage, const uint8_t* from, int bytes, int pitch, int lane, Barrier* full) {
  if (lane == 0) barrier_expect(full, UNITS * bytes);
  sync_warp();
  if (lane < UNITS) bulk_copy(stage + lane * pitch, from, bytes, full);
}
// Bytes of a panel that a tile's columns have; older data in the ring beyond them reaches no other column.
template <class T>
TND_DEVICE int panel_bytes(const MatmulJobs& args, const Item& item) {
  const int there = args.acts.row_stride - item.col0;
  return (there < T::kN ? there : T::kN) * kPanelBytes;
}

// aligned_shared rounds the start of a block's shared memory up.
TND_DEVICE uint8_t* aligned_shared(uint8_t* raw) {
  return raw + (kPanelAlign - shared_address(raw) % kPanelAlign) % kPanelAlign;
}

// Stores the sums of a warp that multiplies; factors: of its tile's rows, in shared memory, nullptr = 1.
template <bool WHOLE, bool RESIDUAL, class T>
TND_DEVICE void store_sums(const MatmulJobs& args, const Item& item, const typename T::Sums& sums,
                           const float* factors) {
  const MatmulJob& job = *item.job;
  const int lane = static_cast<int>(lane_id());
  const int first = lane % 4 * 2, out = item.tile * T::kOuts + first_out<T>(0) + lane / 4;
  const int64_t base = (item.col0 + first) * job.y_stride + out;
  constexpr int kBatch = 4;  // eights of rows whose residuals are read before the first is stored
  const auto live = [&](int n, int i, int m, int o) {
    return WHOLE || (item.col0 + first + n * 8 + i < args.rows && out + m * 64 + o * 8 < job.n);
  };
  float residual[kBatch][2][T::kM][2];
#pragma unroll
  for (int n0 = 0; n0 < T::kN / 8; n0 += kBatch) {
#pragma unroll
    for (int n = n0; RESIDUAL && n < n0 + kBatch && n < T::kN / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int mo = 0; mo < 2 * T::kM; ++mo) {
          const float* at = job.residual + base + (n * 8 + i) * job.y_stride + mo / 2 * 64 + mo % 2 * 8;
          residual[n - n0][i][mo / 2][mo % 2] = live(n, i, mo / 2, mo % 2) ? *at : 0.0f;
        }
      }
    }
#pragma unroll
    for (int n = n0; n < n0 + kBatch && n < T::kN / 8; ++n) {
      const float2 factor =
          factors != nullptr ? *reinterpret_cast<const float2*>(factors + n * 8 + first) : make_float2(1.0f, 1.0f);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int mo = 0; mo < 2 * T::kM; ++mo) {
          float y = sums[mo / 2][n * 4 + mo % 2 * 2 + i] * (i == 0 ? factor.x : factor.y);
          if constexpr (RESIDUAL) y = residual[n - n0][i][mo / 2][mo % 2] + y;
          float* at = job.y + base + (n * 8 + i) * job.y_stride + mo / 2 * 64 + mo % 2 * 8;
          if (live(n, i, mo / 2, mo % 2)) *at = y;
        }
      }
    }
  }
}
template <class T>
TND_DEVICE void store_tile(const MatmulJobs& args, const Item& item, const typename T::Sums& sums,
                           const float* factors) {
  const MatmulJob& job = *item.job;
  const bool whole = item.col0 + T::kN <= args.rows && (item.tile + 1) * T::kOuts <= job.n;
  if (job.residual != nullptr) {
    if (whole) {
      store_sums<true, true, T>(args, item, sums, factors);
    } else {
      store_sums<false, true, T>(args, item, sums, factors);
    }
  } else if (whole) {
    store_sums<true, false, T>(args, item, sums, factors);
  } else {
    store_sums<false, false, T>(args, item, sums, factors);
  }
}

template <class T>
int tiles_of(MatmulJobs* jobs) {
  int tiles = 0;
  for (int i = 0; i < jobs->count; ++i) {
    jobs->jobs[i].blocks = (jobs->jobs[i].n + T::kOuts - 1) / T::kOuts;
    tiles += jobs->jobs[i].blocks;
  }
  return tiles * ((jobs->rows + T::kN - 1) / T::kN);
}

// Time of the busiest processor, in columns: measured, a tile takes as long as its columns and kTileColumns more.
inline constexpr int kTileColumns = 80;
template <class T>
int cost(MatmulJobs jobs, int processors) {
  return (tiles_of<T>(&jobs) + processors - 1) / processors * T::kOuts * (T::kN + kTileColumns);
}

// How products are shared among launches: tiles T for the first `tiles` tiles of outputs, which keep all processors
// busy to the end of a wave, narrow tiles R for the rest.
struct Division {
  int tiles;
  int cost;
};
template <class T, class R>
Division divide_rounds(MatmulJobs jobs, int processors) {
  const int whole = cost<T>(jobs, processors);
  const int column_tiles = (jobs.rows + T::kN - 1) / T::kN, all = tiles_of<T>(&jobs) / column_tiles;
  const int tiles = all * column_tiles / processors * processors / column_tiles;
  if (tiles == 0 || tiles == all) return {all, whole};
  const MatmulJobs rest = divide(&jobs, tiles, T::kOuts, 1);
  const int parts = cost<T>(jobs, processors) + cost<R>(rest, processors);
  return parts < whole ? Division{tiles, parts} : Division{all, whole};
}

// ---- one warp at a time, by mma.sync

inline constexpr int kColumns = 8;      // of an instruction
inline constexpr int kPlainTiles = 16;  // of a warp

// The inputs of k16 step i of a panel for columns 0..7 of `rows`, as operand B.
TND_DEVICE void load_step(const uint8_t* panel, int row0, int i, int lane, uint32_t (&b)[2]) {
  const int row = row0 + lane / 4;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    b[part] = *reinterpret_cast<const uint32_t*>(panel + panel_part(row, 2 * i + part) + lane % 4 * 4);
  }
}

// Calls store(row, out, value) for the sums of a warp.
template <class STORE>
TND_DEVICE void plain_results(const MatmulJobs& args, const MatmulJob& job, int out0, int col0,
                              const float (&sums)[kPlainTiles][4], STORE&& factor) {
  const int lane = static_cast<int>(lane_id());
#pragma unroll
  for (int n = 0; n < kPlainTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = col0 + n * kColumns + lane % 4 * 2 + i % 2, out = out0 + lane / 4 + i / 2 * 8;
      if (row >= args.rows || out >= job.n) continue;
      float y = sums[n][i] * factor(row);
      const int64_t at = row * job.y_stride + out;
      if (job.residual != nullptr) y = job.residual[at] + y;
      job.y[at] = y;
    }
  }
}

// MatmulJob::blocks counts sixteens of outputs. A block is a warp.
template <class MULTIPLY>
TND_DEVICE void plain_item(const MatmulJobs& args, MULTIPLY&& multiply) {
  wait_for_previous();
  const Item item = item_of(args, static_cast<int>(blockIdx.x), 1, 0);
  multiply(*item.job, item.tile, static_cast<int>(blockIdx.y) * kPlainTiles * kColumns);
}
inline void launch_plain(Stream& stream, MatmulJobs jobs, void (*kernel)(MatmulJobs)) {
  int tiles = 0;
  for (int i = 0; i < jobs.count; ++i) {
    jobs.jobs[i].blocks = (jobs.jobs[i].n + 15) / 16;
    tiles += jobs.jobs[i].blocks;
  }
  constexpr int kRows = kPlainTiles * kColumns;
  launch(stream,
         {.grid = {static_cast<unsigned>(tiles), static_cast<unsigned>((jobs.rows + kRows - 1) / kRows)},
          .block = {TND_WARP},
          .overlap = true,
          .bytes = weight_bytes_of(jobs),
          .name = "matmul_panels"},
         kernel, jobs);
}

}  // namespace tnd::gpu
