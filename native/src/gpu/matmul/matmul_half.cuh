// The kernel that matmul_half.cu describes, and its launcher for one type of weights.
#pragma once

#include <algorithm>

#include "gpu/math/norm_device.cuh"
#include "gpu/matmul/acts_device.h"
#include "gpu/matmul/matmul_half_unit.h"
#include "gpu/matmul/matmul_jobs.h"
#include "gpu/matmul/matmul_layout.h"
#include "gpu/runtime/runtime.h"
#include "gpu/runtime/runtime_cluster.h"

namespace tnd::gpu {
namespace {

constexpr int kLanes = 32, kGroups = 8;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * TND_WARP;
constexpr int kClusterBlocks = 4;                       // blocks of a cluster
constexpr int kSplitOuts = kUnitOuts / kClusterBlocks;  // outputs whose sums a block of a cluster adds
constexpr int kInputBytes = 2 * 32;                     // of a row and 16 elements of k
constexpr int kBlockBytes = 2 * kStepBytes;             // of a unit and 16 elements of k

// Blocks of 16 elements of k.
constexpr int k_blocks(int k) {
  return (k + 15) / 16;
}
// First block of 16 elements of a lane.
TND_DEVICE int lane_start(int lane, int blocks) {
  return lane * blocks / kLanes;
}

// Rows whose norm is part of the product are staged where the sums go later.
constexpr int kMaxNormDim = 1024;

// The shape of a kernel: TILES of columns, UNITS at once, PLACES of a warp's ring, at least BLOCKS on a processor
// (which bounds the registers).
enum class Extra {
  kRing,    // inputs come through the rings
  kHeld,    // a block holds the inputs of all of its k beside the rings
  kSwiglu,  // the same; the units are one of gate and one of up
  kSplit,   // kRing, and blocks of a cluster share a unit
  kSplitHeld,
};
template <int TILES, int UNITS, int PLACES, int BLOCKS, Extra EXTRA = Extra::kRing>
struct Shape {
  static constexpr int kTiles = TILES, kUnits = UNITS, kPlaces = PLACES, kBlocks = BLOCKS;
  static constexpr bool kSwiglu = EXTRA == Extra::kSwiglu;
  static constexpr bool kHeld = kSwiglu || EXTRA == Extra::kHeld || EXTRA == Extra::kSplitHeld;
  static constexpr int kSplit = EXTRA == Extra::kSplit || EXTRA == Extra::kSplitHeld ? kClusterBlocks : 1;
};

// Place of a warp in its work: a block of 16 elements of a group of units.
struct Cursor {
  int group, b;
};

template <class U, DType TYPE, class SHAPE>
struct HalfProduct {
  static constexpr int TILES = SHAPE::kTiles, UNITS = SHAPE::kUnits, PLACES = SHAPE::kPlaces;
  static constexpr bool HELD = SHAPE::kHeld, SWIGLU = SHAPE::kSwiglu;
  static constexpr int kSplit = SHAPE::kSplit;
  static constexpr bool kNorm = HELD && TILES == 1 && kSplit == 1;  // may read at most kWarps rows before their norm
  static constexpr int kWarpLanes = kLanes / (kSplit * kWarps);
  static constexpr int kCols = TILES * U::kCols;
  static constexpr int kParts = 2 * UNITS;  // of 16 outputs
  static constexpr int kOuts = UNITS * kUnitOuts;
  static constexpr int kPitch = kOuts + 4;  // floats; keeps the lanes of a store on different banks
  static constexpr int kRedFloats = kWarps * kCols * kPitch;
  static constexpr int kSplitFloats = kSplit > 1 ? kGroups* kCols* kSplitOuts : 0;

  static constexpr int place_bytes(int rows) { return UNITS * kBlockBytes + (HELD ? 0 : rows * kInputBytes); }
  // Sums of warps, and before them rows whose norm is taken.
  static constexpr int red_bytes(int rows) {
    const int sums = kRedFloats + kSplitFloats;
    const int staged = kNorm ? (rows + 1) * kMaxNormDim : 0;  // and the norm's weights
    return (sums > staged ? sums : staged) * static_cast<int>(sizeof(float));
  }
  // Most blocks of 16 elements that a warp has of a unit; whether all of them fit into its ring at once; and the places
  // of a ring that holds no more than those. blocks: of k.
  static constexpr int most_blocks(int blocks) { return (blocks + kSplit * kWarps - 1) / (kSplit * kWarps); }
  static constexpr bool fits(int blocks) { return most_blocks(blocks) <= PLACES; }
  static constexpr int places(int blocks, bool whole) { return whole ? most_blocks(blocks) : PLACES; }
  static constexpr int shared_bytes(int rows, int blocks, bool whole) {
    return red_bytes(rows) + kWarps * places(blocks, whole) * place_bytes(rows) +
           (HELD ? (blocks + kSplit - 1) / kSplit * rows * kInputBytes : 0);
  }

  // The sum of a group of four lanes, and of all eight groups, in the order of the contract.
  TND_DEVICE float add_groups(const float (&g)[kGroups]) {
    return ((g[0] + g[1]) + (g[2] + g[3])) + ((g[4] + g[5]) + (g[6] + g[7]));
  }

  TND_DEVICE float add_warps(const float* from) {
    float g[kGroups];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) g[i] = from[i * kCols * kPitch];
    return add_groups(g);
  }

  // exchange_groups adds a block's lanes to groups and sends each block of the cluster the groups of its outputs, which
  // lie there after its own sums: [8 groups][columns][outputs of a block].
  TND_DEVICE void exchange_groups(float* red, int rows, int rank) {
    constexpr int kOwnGroups = kGroups / kSplit, kQuads = kUnitOuts / 4;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kOwnGroups * rows * kQuads; i += kThreads) {
      const int quad = i % kQuads, own = i / kQuads % kOwnGroups, column = i / kQuads / kOwnGroups;
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int l = 0; l < kLanes / kGroups; ++l) {
        const int lane = own * (kLanes / kGroups) + l;
        const float4 v = *reinterpret_cast<const float4*>(red + (lane * kCols + column) * kPitch + quad * 4);
        sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
      }
      constexpr int kQuadsOfBlock = kSplitOuts / 4;
      const int at = ((rank * kOwnGroups + own) * kCols + column) * kSplitOuts + quad % kQuadsOfBlock * 4;
      store_quad(of_block(red + kRedFloats, quad / kQuadsOfBlock), at * static_cast<int>(sizeof(float)), sum);
    }
    cluster_arrive();
    cluster_wait();
  }

  // Makes the next product's inputs from the sums of a unit of gate and one of up.
  TND_DEVICE void store_swiglu(const MatmulJobs& args, const float* red, int unit, int row0, int rows) {
    const int of = static_cast<int>(threadIdx.x) % kUnitOuts, out = unit * kUnitOuts + of;
#pragma unroll 1
    for (int column = static_cast<int>(threadIdx.x) / kUnitOuts; column < rows; column += kThreads / kUnitOuts) {
      const float* from = red + column * kPitch + of;
      const float gate = add_warps(from), up = add_warps(from + kUnitOuts);
      const float y = out < args.jobs[0].n ? silu_f32(gate) * up : 0.0f;
      const uint16_t hi = f32_to_bf16(y);
      const int row = row0 + column;
      uint16_t* to = args.swiglu.pairs + (int64_t{out / 8} * args.swiglu.row_stride + row) * 16 + out % 8;
      to[pair_part(row, 0) * 8] = hi;
      to[pair_part(row, 1) * 8] = f32_to_bf16(y - bf16_to_f32(hi));
    }
  }

  // hold_inputs starts the copies of the pairs of blocks first .. last - 1 of k to `held`.
  TND_DEVICE void hold_inputs(const MatmulJobs& args, int first, int last, int row0, int rows, uint8_t* held) {
    const int row_pieces = 2 * rows, pieces = (last - first) * 2 * row_pieces;
    const uint16_t* from = args.acts.pairs + (int64_t{2 * first} * args.acts.row_stride + row0) * 16;
#pragma unroll 1
    for (int i = static_cast<int>(lane_id()); i < pieces; i += TND_WARP) {
      const int step = i / row_pieces;
      copy_async_16(held + i * 16, from + step * int64_t{args.acts.row_stride} * 16 + (i - step * row_pieces) * 8);
    }
    copy_async_commit();
  }

  // stage_row copies a row of k floats to shared memory for the warp that reads it, without waiting for the copies
  // of weights.
  TND_DEVICE void stage_row(float* to, const float* from, int k) {
    constexpr int kQuads = kMaxNormDim / 4 / TND_WARP;
    const int lane = static_cast<int>(lane_id()) * 4;
    float4 v[kQuads];
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int at = i * TND_WARP * 4 + lane;
      if (at < k) v[i] = *reinterpret_cast<const float4*>(from + at);
    }
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int at = i * TND_WARP * 4 + lane;
      if (at < k) *reinterpret_cast<float4*>(to + at) = v[i];
    }
  }

  // hold_norm makes the pairs of a row `x` before its norm (norm.cu has the same bits). w: the norm's weights.
  TND_DEVICE void hold_norm(const MatmulJobs& args, const float* x, const float* w, int blocks, int rows,
                            uint8_t* held) {
    const int lane = static_cast<int>(lane_id()), row = static_cast<int>(warp_id()), k = args.k;
    float sum = 0.0f;
#pragma unroll 1
    for (int at = lane % 16; at < k; at += 16 * 16) {
      float v[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) v[i] = at + 16 * i < k ? x[at + 16 * i] : 0.0f;
#pragma unroll
      for (int i = 0; i < 16; ++i) sum = fmaf(v[i], v[i], sum);  // zeros beyond the end do not change it
    }
    const float r = 1.0f / sqrtf(fold_16(sum) / static_cast<float>(k) + args.norm.eps);
#pragma unroll 1
    for (int step = lane; step < 2 * blocks; step += TND_WARP) {
      uint32_t hi[4] = {}, lo[4] = {};
      if (step * 8 < k) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float4 a = *reinterpret_cast<const float4*>(x + step * 8 + i * 4);
          const float4 b = *reinterpret_cast<const float4*>(w + step * 8 + i * 4);
          const PairWords p = pair_words(a.x * r * b.x, a.y * r * b.y), q = pair_words(a.z * r * b.z, a.w * r * b.w);
          hi[2 * i] = p.hi, hi[2 * i + 1] = q.hi, lo[2 * i] = p.lo, lo[2 * i + 1] = q.lo;
        }
      }
      uint4* to = reinterpret_cast<uint4*>(held) + (step * rows + row) * 2;
      to[pair_part(row, 0)] = make_uint4(hi[0], hi[1], hi[2], hi[3]);
      to[pair_part(row, 1)] = make_uint4(lo[0], lo[1], lo[2], lo[3]);
    }
  }

  // hold_norms waits for the rows before their norm and makes all pairs, one warp a row. staged: room for rows + 1
  // rows, the first for the norm's weights.
  TND_DEVICE void hold_norms(const MatmulJobs& args, int blocks, int row0, int rows, float* staged, uint8_t* held) {
    const NormInput& norm = args.norm;
    const int row = static_cast<int>(warp_id()), k = args.k, at = static_cast<int>(threadIdx.x) * 4;
    static_assert(kThreads * 4 >= kMaxNormDim);
    if (at < k) *reinterpret_cast<float4*>(staged + at) = *reinterpret_cast<const float4*>(norm.w + at);
    __syncthreads();
    const float* from = norm.x;
    if (row < rows) from += int64_t{norm.gather != nullptr ? norm.gather[row0 + row] : row0 + row} * k;
    wait_for_previous();
    if (row < rows) {
      float* const x = staged + (row + 1) * kMaxNormDim;
      stage_row(x, from, k);
      sync_warp();
      hold_norm(args, x, staged, blocks, rows, held);
    }
    __syncthreads();
  }

  // add_block adds the products of 16 elements of k to a lane's sums.
  using Tile = typename U::Sums[kParts][TILES];
  TND_DEVICE void add_block(const uint8_t* weights, const uint8_t* inputs, int rows, int lane, Tile& high, Tile& low) {
    typename U::Inputs x[TILES];
#pragma unroll
    for (int n = 0; n < TILES; ++n) x[n] = U::load_inputs(inputs, n * U::kCols, rows, lane);
#pragma unroll
    for (int m = 0; m < kParts; ++m) {
      typename U::Weights w = U::load_weights(weights + m / 2 * kBlockBytes + m % 2 * 256, lane);
      [[maybe_unused]] typename U::Weights rest;
      if constexpr (TYPE == DType::kF16) split_halves<U>(&w, &rest);
#pragma unroll
      for (int n = 0; n < TILES; ++n) U::multiply(&low[m][n], w, x[n].lo);
#pragma unroll
      for (int n = 0; n < TILES; ++n) U::multiply(&high[m][n], w, x[n].hi);
      if constexpr (TYPE == DType::kF16) {
#pragma unroll
        for (int n = 0; n < TILES; ++n) U::multiply(&low[m][n], rest, x[n].hi);
      }
      keep_order();
    }
  }

  TND_DEVICE void run(const MatmulJobs& args, const MatmulJob& job, int block, int chunk, int rank, bool whole,
                      float* red, uint8_t* rings) {
    const int lane = static_cast<int>(lane_id());
    const int warp = static_cast<int>(warp_id());
    const int thread = static_cast<int>(threadIdx.x);
    const int steps = static_cast<int>(float_steps(TYPE, args.k));
    const int blocks = (steps + 1) / 2;
    const int first_lane = (rank * kWarps + warp) * kWarpLanes;
    const int first = lane_start(first_lane, blocks), last = lane_start(first_lane + kWarpLanes, blocks);
    const int row0 = chunk * kCols;
    // Places have room for all rows of the launch; rows in use lie next to each other in them.
    const int all = rows_in_use(args.live, args.rows), rows = all - row0 < kCols ? all - row0 : kCols;
    if (chunk > 0 && rows <= 0) return;  // the first chunk need not wait for the number
    const int place_size = place_bytes(args.rows < kCols ? args.rows : kCols);
    const int ring_bytes = places(blocks, whole) * place_size;
    uint8_t* const ring = rings + warp * ring_bytes;
    const int held_from = lane_start(rank * kWarps * kWarpLanes, blocks);
    [[maybe_unused]] uint8_t* const held = rings + kWarps * ring_bytes;
    const auto held_at = [&](int b) { return held + (b - held_from) * rows * kInputBytes; };
    const int groups = SWIGLU ? job.units : (job.units + UNITS - 1) / UNITS;

    const auto advance = [&](Cursor* c) {
      if (++c->b < last) return;
      c->b = first;
      c->group += job.blocks;
    };
    const auto fetch_weights = [&](const Cursor& c, int place) {
      if (c.group >= groups || first >= last) return;
      const bool live = 2 * c.b + 1 < steps;
      uint8_t* to = ring + place * place_size + lane * 16;
#pragma unroll
      for (int u = 0; u < UNITS; ++u, to += kBlockBytes) {
        int unit = c.group;
        if constexpr (!SWIGLU) unit = unit * UNITS + u;
        if (unit >= job.units) unit = job.units - 1;  // its results are not stored
        const uint8_t* from =
            (SWIGLU ? args.jobs[u].data : job.data) + unit * job.unit_bytes + int64_t{c.b} * kBlockBytes + lane * 16;
        copy_async_16(to, from);
        copy_async_16(to + kStepBytes, live ? from + kStepBytes : job.data, live ? 16 : 0);
      }
    };
    // Elements beyond k exist in the buffer.
    const auto fetch_inputs = [&](const Cursor& c, int place) {
      if (c.group >= groups || first >= last) return;
      uint8_t* to = ring + place * place_size + UNITS * kBlockBytes;
      const int64_t step = int64_t{args.acts.row_stride} * 16;
      const uint16_t* from = args.acts.pairs + 2 * c.b * step + row0 * 16;
#pragma unroll
      for (int i = 0; i < kCols * 4; i += TND_WARP) {
        const int at = i + lane;
        if (at < rows * 4) {
          const int second = at >= rows * 2 ? 1 : 0;
          copy_async_16(to + at * 16, from + second * step + (at - second * rows * 2) * 8);
        }
      }
    };
    const Cursor start{block, first};
    Cursor next = start;
#pragma unroll 1
    for (int place = 0; place < PLACES; ++place) {
      fetch_weights(next, place);
      if constexpr (HELD) copy_async_commit();
      advance(&next);
    }
    if constexpr (kSplit > 1) cluster_arrive_relaxed();
    if (kNorm && args.norm.x != nullptr) {
      if constexpr (kNorm) hold_norms(args, blocks, row0, rows, red, held);
    } else {
      wait_for_previous();
      if constexpr (HELD) {
        hold_inputs(args, first, last, row0, rows, held_at(first));
      } else {
        next = start;
#pragma unroll 1
        for (int place = 0; place < PLACES; ++place) {
          fetch_inputs(next, place);
          copy_async_commit();
          advance(&next);
        }
      }
    }
    if constexpr (kSplit > 1) cluster_wait();  // the other blocks have started: their shared memory may be written
    if (HELD || whole) copy_async_wait<0>();
    sync_warp();

    int place = 0;
#pragma unroll 1
    for (int group = block; group < groups; group += job.blocks) {
      // The residual is read meanwhile.
      constexpr int kResults = kSplit == 1 && UNITS == 1 ? kCols * kOuts / kThreads : 1;
      [[maybe_unused]] float residual[kResults] = {};
      if (UNITS == 1 && job.residual != nullptr) {
        constexpr int outs = kSplit > 1 ? kSplitOuts : kOuts;
        const int out = group * kUnitOuts + rank * kSplitOuts + thread % outs;
#pragma unroll
        for (int i = 0; i < kResults; ++i) {
          const int column = thread / outs + i * (kThreads / outs);
          if (column < rows && out < job.n) residual[i] = job.residual[(row0 + column) * job.y_stride + out];
        }
      }
      Tile total = {};
      int b = first;
#pragma unroll 1
      for (int l = 1; l <= kWarpLanes; ++l) {
        const int end = lane_start(first_lane + l, blocks);
        Tile high = {}, low = {};
#pragma unroll 1
        for (; b < end; ++b) {
          if (!whole) {
            copy_async_wait<PLACES - 1>();
            sync_warp();
          }
          const uint8_t* at = ring + place * place_size;
          add_block(at, HELD ? held_at(b) : at + UNITS * kBlockBytes, rows, lane, high, low);
          if (!whole) {
            sync_warp();  // all lanes have read the place
            fetch_weights(next, place);
            if constexpr (!HELD) fetch_inputs(next, place);
            copy_async_commit();
            advance(&next);
          }
          place = place == PLACES - 1 ? 0 : place + 1;
        }
#pragma unroll
        for (int m = 0; m < kParts; ++m) {
#pragma unroll
          for (int n = 0; n < TILES; ++n) {
#pragma unroll
            for (int i = 0; i < U::kResults; ++i) total[m][n].d[i] += high[m][n].d[i] + low[m][n].d[i];
          }
        }
      }
      __syncthreads();  // the last unit's sums have been read
#pragma unroll
      for (int m = 0; m < kParts; ++m) {
#pragma unroll
        for (int n = 0; n < TILES; ++n) {
#pragma unroll
          for (int i = 0; i < U::kResults; ++i) {
            const int column = n * U::kCols + U::column(lane, i);
            red[(warp * kCols + column) * kPitch + m * 16 + U::out(lane, i)] = total[m][n].d[i];
          }
        }
      }
      __syncthreads();
      if constexpr (kSplit > 1) {  // one lane a warp, one unit a cluster
        exchange_groups(red, rows, rank);
        const int column = thread / kSplitOuts, out = group * kUnitOuts + rank * kSplitOuts + thread % kSplitOuts;
        if (column >= rows || out >= job.n) break;
        float g[kGroups];
#pragma unroll
        for (int i = 0; i < kGroups; ++i) g[i] = red[kRedFloats + (i * kCols) * kSplitOuts + thread];
        float y = add_groups(g);
        if (job.residual != nullptr) y = residual[0] + y;
        job.y[(row0 + column) * job.y_stride + out] = y;
        break;
      }
      if constexpr (SWIGLU) {
        store_swiglu(args, red, group, row0, rows);
        continue;
      }
      const int out = group * kOuts + thread % kOuts;
#pragma unroll
      for (int i = 0; i < kCols * kOuts / kThreads; ++i) {
        const int column = thread / kOuts + i * (kThreads / kOuts);
        if (column >= rows || out >= job.n) continue;
        float y = add_warps(red + column * kPitch + thread % kOuts);
        const int64_t to = (row0 + column) * job.y_stride + out;
        if (job.residual != nullptr) y = (UNITS == 1 ? residual[i % kResults] : job.residual[to]) + y;
        job.y[to] = y;
      }
    }
  }
};
static_assert(kThreads >= 32 * kSplitOuts);

inline int units_of(const MatmulJobs& jobs) {
  int units = 0;
  for (int i = 0; i < jobs.count; ++i) units += jobs.jobs[i].units;
  return units;
}

// Chunks of rows are neighbouring blocks, so that they read the same weights at about the same time.
template <class U, DType TYPE, class SHAPE>
__global__ void __launch_bounds__(kThreads, SHAPE::kBlocks) matmul_half_kernel(MatmulJobs args, bool whole) {
  if constexpr (U::kPresent) {
    using P = HalfProduct<U, TYPE, SHAPE>;
    let_next_start();
    TND_DYNAMIC_SHARED(uint8_t, smem);
    float* const red = reinterpret_cast<float*>(smem);
    uint8_t* const rings = smem + P::red_bytes(args.rows < P::kCols ? args.rows : P::kCols);
    int block = static_cast<int>(blockIdx.z), index = 0;
    while (block >= args.jobs[index].blocks) block -= args.jobs[index++].blocks;
    P::run(args, args.jobs[index], block, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x), whole, red,
           rings);
  }
}

template <class U, DType TYPE, class SHAPE>
void launch_shape(Stream& stream, const MatmulGroup& group, MatmulJobs jobs) {
  using P = HalfProduct<U, TYPE, SHAPE>;
  const int rows = std::min(jobs.rows, P::kCols), chunks = (jobs.rows + P::kCols - 1) / P::kCols;
  const int k = k_blocks(jobs.k);
  if constexpr (SHAPE::kSwiglu) jobs.count = 1;  // units of the other one lie beside it
  // Blocks that run on the card at once. The system takes 1 KB more for each block; shared_per_block is 1 KB less than
  // a processor has.
  const auto resident = [&](bool whole) {
    const int fit =
        std::clamp((group.shared_per_block + 1024) / (P::shared_bytes(rows, k, whole) + 1024), 1, SHAPE::kBlocks);
    return std::max(fit * group.processors / chunks, 1);
  };
  bool whole = P::fits(k);
  int blocks = share_blocks(&jobs, P::kSplit > 1 ? units_of(jobs) : resident(whole));
  for (int i = 0; i < jobs.count && whole && P::kSplit == 1; ++i) {
    whole = jobs.jobs[i].blocks * (SHAPE::kSwiglu ? 1 : SHAPE::kUnits) >= jobs.jobs[i].units;
    if (!whole) blocks = share_blocks(&jobs, resident(false));
  }
  const int shared = P::shared_bytes(rows, k, whole);
  launch(stream,
         {.grid = {static_cast<unsigned>(P::kSplit), static_cast<unsigned>(chunks), static_cast<unsigned>(blocks)},
          .block = {kThreads},
          .shared_bytes = static_cast<unsigned>(shared),
          .cluster = static_cast<unsigned>(P::kSplit),
          .overlap = true,
          .bytes = weight_bytes_of(jobs) * (SHAPE::kSwiglu ? 2 : 1),
          .name = SHAPE::kSwiglu ? "matmul_swiglu" : "matmul_half"},
         matmul_half_kernel<U, TYPE, SHAPE>, jobs, whole);
}

// Rings are as deep as shared memory allows: for sm_90 and other devices with 227 KB, and for 99 KB. On AMD copies
// happen at once, and a block has 64 KB. Split shapes are two blocks a processor: with one there is no room for as
// many clusters.
using Ring8 = Shape<1, 1, 8, 2>;
using Ring16 = Shape<2, 2, 7, 1>;
using Ring24 = Shape<3, 2, 6, 1>;
using Ring32 = Shape<4, 1, 7, 1>;
using Held8 = Shape<1, 1, 8, 2, Extra::kHeld>;
using Held16 = Shape<2, 2, 7, 1, Extra::kHeld>;
using Held24 = Shape<3, 2, 4, 1, Extra::kHeld>;
using Held32 = Shape<4, 1, 6, 1, Extra::kHeld>;
using Swiglu8 = Shape<1, 2, 8, 1, Extra::kSwiglu>;
using Swiglu16 = Shape<2, 2, 7, 1, Extra::kSwiglu>;
using Swiglu24 = Shape<3, 2, 4, 1, Extra::kSwiglu>;
using Split8 = Shape<1, 1, 8, 2, Extra::kSplitHeld>;
using Split16 = Shape<2, 1, 5, 2, Extra::kSplit>;
using Split24 = Shape<3, 1, 4, 2, Extra::kSplit>;
using Few8 = Shape<1, 1, 4, 2>;
using Few16 = Shape<2, 1, 3, 1>;
using Few24 = Shape<3, 1, 3, 1>;
using Few32 = Shape<4, 1, 2, 1>;
using FewWmma = Shape<1, 2, 1, 1>;

constexpr int kManyShared = 200 * 1024;
#if defined(TND_GPU_CUDA) || defined(TND_GPU_EMU)
constexpr bool kClusters = true;  // cards with that much are sm_90 or newer
#else
constexpr bool kClusters = false;
#endif

// Says whether the shapes that hold inputs have room for that many rows of k.
inline bool held_fits(int shared_per_block, int rows, int k) {
  const auto bytes = [&]<class SHAPE>(SHAPE) {
    using P = HalfProduct<HalfMma, DType::kBF16, SHAPE>;
    return P::shared_bytes(std::min(rows, P::kCols), k_blocks(k), false);
  };
  const int need = rows <= 8    ? bytes(Swiglu8())
                   : rows <= 16 ? bytes(Swiglu16())
                   : rows <= 24 ? bytes(Swiglu24())
                                : std::max(bytes(Held32()), bytes(Swiglu24()));
  return shared_per_block >= kManyShared && need <= shared_per_block;
}

// Says whether two blocks of a cluster that hold inputs fit a processor.
inline bool split_fits(int shared_per_block, int rows, int k) {
  using P = HalfProduct<HalfMma, DType::kBF16, Split8>;
  return 2 * P::shared_bytes(rows, k_blocks(k), P::fits(k_blocks(k))) + 1024 <= shared_per_block;
}

template <class U, DType TYPE>
void launch_half_type(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  const auto start = [&]<class SHAPE>(SHAPE) { launch_shape<U, TYPE, SHAPE>(stream, group, jobs); };
  const int rows = jobs.rows;
  if constexpr (!U::kRings) {
    return start(FewWmma());
  } else {
    if (group.shared_per_block < kManyShared) {
      if (rows <= 8) return start(Few8());
      if (rows <= 16) return start(Few16());
      if (rows <= 24) return start(Few24());
      return start(Few32());
    }
    if (jobs.swiglu.pairs != nullptr) {
      if (rows <= 8) return start(Swiglu8());
      if (rows <= 16 || (rows > 24 && rows <= 32)) return start(Swiglu16());
      return start(Swiglu24());
    }
    const bool few = units_of(jobs) * 2 <= group.processors;
    if (jobs.norm.x != nullptr || (!few && held_fits(group.shared_per_block, rows, jobs.k))) {
      if (rows <= 8) return start(Held8());
      if (rows <= 16) return start(Held16());
      if (rows <= 24) return start(Held24());
      return start(Held32());
    }
    if constexpr (kClusters) {
#if defined(TND_GPU_EMU)
      const bool clusters = group.unit >= 4;
#else
      const bool clusters = !plain_launches();
#endif
      if (clusters && few && split_fits(group.shared_per_block, std::min(rows, 8), jobs.k)) {
        if (rows <= 8) return start(Split8());
        if (TYPE == DType::kBF16 && rows > 16 && rows <= 24) return start(Split24());
        return start(Split16());
      }
    }
    if (rows <= 8) return start(Ring8());
    if (rows <= 16) return start(Ring16());
    if (rows <= 24) return start(Ring24());
    start(Ring32());
  }
}

}  // namespace
}  // namespace tnd::gpu
