// Products of 16-bit float weights with the rows of a prompt, by matrix instructions. Contract: NUMERICS.md, "Prompts
// through float weights": inputs are pairs of bfloat16 (hi + lo). For every 16 elements of k, ascending, a sum adds the
// products with lo, then those with hi.
//
// A block multiplies kOuts outputs with kCols rows; asynchronous copies bring weights and inputs of 32 elements of k to
// shared memory, several stages deep. Both lie in memory as 8x8 matrices of 16-byte rows, eight elements of k each, so
// that operands are single ldmatrix instructions without conflicts. matmul_float.cu streams weights in the same order,
// so there is no second copy of them. F16 weights are split into two bfloat16, exactly, when they
// are read.
//
// Bound: two (F16: three) matrix instructions where plain bfloat16 needs one, so half (a third) of the card's rate;
// then the second-level cache, from which a tile of 64 x 64 reads 384 bytes an element of k, one of 256 x 128 only 128
// for as much work. The choice of tile changes no bits, since an element's sum is one chain over k in each of them.
#include <algorithm>

#include "gpu/matmul/matmul_jobs.h"
#include "gpu/matmul/matmul_pair_unit.h"
#include "gpu/runtime/half_units.h"

namespace tnd::gpu {
namespace {

// A block of OUT_WARPS x COL_WARPS warps, each of 16 M outputs x 16 N rows.
template <int OUT_WARPS, int COL_WARPS, int M, int N, int STAGES, int BLOCKS>
struct Tile {
  static constexpr int kM = M, kN = N, kStages = STAGES, kColWarps = COL_WARPS;
  static constexpr int kBlocks = BLOCKS;  // of a processor, at least: bounds the registers
  static constexpr int kThreads = OUT_WARPS * COL_WARPS * TND_WARP;
  static constexpr int kOuts = OUT_WARPS * M * 16, kCols = COL_WARPS * N * 16;
  static constexpr int kUnits = kOuts / kUnitOuts;
  static constexpr int kWeightBytes = kUnits * kUnitBytes;
  static constexpr int kStageBytes = kWeightBytes + kStageSteps * kCols * 32;
  static constexpr int kShared = STAGES * kStageBytes;
};
// AMD's processors have 64 KB of shared memory and copy at once, so more stages would not help them.
constexpr int stages(int wanted) {
  return kHasMma ? wanted : 3;
}
using LargeTile = Tile<4, 2, 4, 4, 3, 1>;           // 256 x 128, 96 KB
using MiddleTile = Tile<2, 2, 4, 2, stages(4), 3>;  // 128 x 64, 64 KB
using SmallTile = Tile<2, 2, 2, 2, stages(6), 3>;   // 64 x 64, 72 KB

// Starts the copies of weights of stage s. Units that do not exist are the last one again; steps beyond k are zero.
template <class T>
TND_DEVICE void fetch_weights(const MatmulJob& job, int unit0, int steps, int s, uint8_t* to) {
  constexpr int kUnitThreads = kUnitBytes / 16;
  const int thread = static_cast<int>(threadIdx.x);
  const int in_unit = thread % kUnitThreads;
  const bool live = s * kStageSteps + in_unit / kUnitOuts < steps;
#pragma unroll
  for (int i = 0; i < T::kWeightBytes / 16; i += T::kThreads) {
    const int unit = unit0 + (thread + i) / kUnitThreads;
    const uint8_t* from =
        job.data + (unit < job.units ? unit : job.units - 1) * job.unit_bytes + int64_t{s} * kUnitBytes + in_unit * 16;
    copy_async_16(to + (thread + i) * 16, live ? from : job.data, live ? 16 : 0);
  }
}

// Starts the copies of inputs; elements beyond k and rows beyond the batch exist in the buffer.
template <class T>
TND_DEVICE void fetch_inputs(const ActsView& acts, int col0, int s, uint8_t* to) {
  static_assert(T::kCols * 2 == T::kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const uint16_t* from = acts.pairs + (int64_t{s} * kStageSteps * acts.row_stride + col0) * 16 + thread * 8;
#pragma unroll
  for (int i = 0; i < kStageSteps; ++i, from += int64_t{acts.row_stride} * 16) {
    copy_async_16(to + (i * T::kCols * 2 + thread) * 16, from);
  }
}

// Adds one stage to the sums of a warp. weights, inputs: of the stage; out_unit: first unit of the warp, col: its first
// column in the tile.
template <class U, DType TYPE, class T>
TND_DEVICE void multiply_stage(const uint8_t* weights, const uint8_t* inputs, int col, int lane,
                               typename U::Sums (&sums)[T::kM][T::kN]) {
  // F16 also keeps the low parts of weights: operands of both rounds do not fit in registers.
  [[maybe_unused]] constexpr int kUnroll = TYPE == DType::kF16 ? 1 : 2;
#pragma unroll kUnroll
  for (int step = 0; step < kStageSteps; step += 2) {
    typename U::Weights w[T::kM];
    [[maybe_unused]] typename U::Weights low[T::kM];
#pragma unroll
    for (int m = 0; m < T::kM; ++m) {
      w[m] = U::load_weights(weights + m / 2 * kUnitBytes + step * kStepBytes + m % 2 * 256, lane);
      if constexpr (TYPE == DType::kF16) split_halves<U>(&w[m], &low[m]);
    }
#pragma unroll
    for (int n = 0; n < T::kN; ++n) {
      const uint8_t* at = inputs + step * T::kCols * 32;
      const typename U::Inputs lo = U::template load_inputs<T::kCols>(at, col + n * 16, 1, lane);
      const typename U::Inputs hi = U::template load_inputs<T::kCols>(at, col + n * 16, 0, lane);
#pragma unroll
      for (int m = 0; m < T::kM; ++m) U::multiply(&sums[m][n], w[m], lo);
      if constexpr (TYPE == DType::kF16) {
#pragma unroll
        for (int m = 0; m < T::kM; ++m) U::multiply(&sums[m][n], low[m], hi);
      }
#pragma unroll
      for (int m = 0; m < T::kM; ++m) U::multiply(&sums[m][n], w[m], hi);
    }
  }
}

// MatmulJob::blocks counts tiles of outputs. Neighbouring blocks take the rows of the same outputs, so weights come
// from memory once.
template <class U, DType TYPE, class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) matmul_pairs_kernel(MatmulJobs args) {
  if constexpr (U::kPresent) {
    TND_DYNAMIC_SHARED(uint8_t, smem);
    let_next_start();
    const int column_tiles = (args.rows + T::kCols - 1) / T::kCols;
    int tile = static_cast<int>(blockIdx.x) / column_tiles;
    const int col0 = static_cast<int>(blockIdx.x) % column_tiles * T::kCols;
    int index = 0;
    while (tile >= args.jobs[index].blocks) tile -= args.jobs[index++].blocks;
    const MatmulJob& job = args.jobs[index];
    const int lane = static_cast<int>(lane_id());
    const int unit0 = tile * T::kUnits;
    const int warp_out = static_cast<int>(warp_id()) / T::kColWarps * (T::kM * 16);
    const int warp_col = static_cast<int>(warp_id()) % T::kColWarps * (T::kN * 16);
    const int steps = static_cast<int>(float_steps(TYPE, args.k));
    const int stages = (steps + kStageSteps - 1) / kStageSteps;

    const auto weights_of = [&](int place) { return smem + place * T::kStageBytes; };
    const auto inputs_of = [&](int place) { return smem + place * T::kStageBytes + T::kWeightBytes; };
    for (int s = 0; s < T::kStages - 1 && s < stages; ++s) fetch_weights<T>(job, unit0, steps, s, weights_of(s));
    wait_for_previous();
    for (int s = 0; s < T::kStages - 1; ++s) {
      if (s < stages) fetch_inputs<T>(args.acts, col0, s, inputs_of(s));
      copy_async_commit();
    }

    typename U::Sums sums[T::kM][T::kN] = {};
    int place = 0;
    for (int s = 0; s < stages; ++s) {
      copy_async_wait<T::kStages - 2>();
      __syncthreads();  // all copies have arrived, and all threads have read the place that is filled next
      const int next = s + T::kStages - 1;
      if (next < stages) {
        const int behind = place == 0 ? T::kStages - 1 : place - 1;
        fetch_weights<T>(job, unit0, steps, next, weights_of(behind));
        fetch_inputs<T>(args.acts, col0, next, inputs_of(behind));
      }
      copy_async_commit();
      multiply_stage<U, TYPE, T>(weights_of(place) + warp_out / kUnitOuts * kUnitBytes, inputs_of(place), warp_col,
                                 lane, sums);
      place = place == T::kStages - 1 ? 0 : place + 1;
    }
#pragma unroll
    for (int m = 0; m < T::kM; ++m) {
#pragma unroll
      for (int n = 0; n < T::kN; ++n) {
#pragma unroll
        for (int i = 0; i < kPairResults; ++i) {
          const int row = col0 + warp_col + n * 16 + U::column(lane, i);
          const int out = unit0 * kUnitOuts + warp_out + m * 16 + U::out(lane, i);
          if (row >= args.rows || out >= job.n) continue;
          float y = U::result(sums[m][n], i);
          const int64_t at = row * job.y_stride + out;
          if (job.residual != nullptr) y = job.residual[at] + y;
          job.y[at] = y;
        }
      }
    }
  }
}

template <class T>
int tiles_of(MatmulJobs* jobs) {
  int tiles = 0;
  for (int i = 0; i < jobs->count; ++i) {
    jobs->jobs[i].blocks = (jobs->jobs[i].n + T::kOuts - 1) / T::kOuts;
    tiles += jobs->jobs[i].blocks;
  }
  return tiles * ((jobs->rows + T::kCols - 1) / T::kCols);
}

// Cycles of the card per element of k: the matrix instructions of its busiest processor, or all reads from the
// second-level cache, whichever is more. Figures of an H200; on other cards they only rank the tiles.
template <class T>
int64_t cost(MatmulJobs jobs, int processors) {
  constexpr int kCyclesPerTile = 6;   // 64 x 64 multiplied with a pair
  constexpr int kBytesPerCycle = 26;  // of a processor when all read
  constexpr int kHundredths = 100;
  const int tiles = tiles_of<T>(&jobs);
  const int64_t rounds = (tiles + processors - 1) / processors;
  const int64_t multiply = rounds * (T::kOuts * T::kCols / 4096) * kCyclesPerTile * kHundredths;
  const int64_t read =
      int64_t{tiles} * (T::kStageBytes / (kStageSteps * 8)) * kHundredths / (kBytesPerCycle * processors);
  return std::max(multiply, read);
}

template <class U, DType TYPE, class T>
void launch_tiles(Stream& stream, MatmulJobs jobs) {
  const int tiles = tiles_of<T>(&jobs);
  launch(stream,
         {.grid = {static_cast<unsigned>(tiles)},
          .block = {T::kThreads},
          .shared_bytes = T::kShared,
          .overlap = true,
          .bytes = weight_bytes_of(jobs),
          .name = "matmul_pairs"},
         matmul_pairs_kernel<U, TYPE, T>, jobs);
}

template <class U, DType TYPE>
void launch_type(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  const int processors = std::max(group.processors, 1);
  const int64_t middle = cost<MiddleTile>(jobs, processors), small = cost<SmallTile>(jobs, processors);
  if constexpr (kHasMma) {
    if (cost<LargeTile>(jobs, processors) <= std::min(middle, small)) {
      return launch_tiles<U, TYPE, LargeTile>(stream, jobs);
    }
  }
  if (middle <= small) return launch_tiles<U, TYPE, MiddleTile>(stream, jobs);
  launch_tiles<U, TYPE, SmallTile>(stream, jobs);
}

template <class U>
void launch_unit(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  if (jobs.jobs[0].type == DType::kBF16) {
    launch_type<U, DType::kBF16>(stream, group, jobs);
  } else {
    launch_type<U, DType::kF16>(stream, group, jobs);
  }
}

}  // namespace

bool has_matmul_pairs(const DeviceInfo& device) {
#if defined(TND_GPU_CUDA)
  if (device.shared_per_block < LargeTile::kShared) return false;
#endif
  return has_half_units(device);
}

void launch_matmul_pairs(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
#if defined(TND_GPU_EMU)
  if (group.unit == 1) return launch_unit<PairWmma<Wmma11>>(stream, group, jobs);
  if (group.unit == 2) return launch_unit<PairWmma<Wmma12>>(stream, group, jobs);
#endif
  launch_unit<std::conditional_t<kHasMma, PairMma, PairWmma<DeviceWmma>>>(stream, group, jobs);
}

}  // namespace tnd::gpu
