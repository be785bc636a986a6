// Products for many rows (prefill), by the same arithmetic as matmul_rows.cu: a prompt gets the same bits in chunks of
// any size.
//
// A block of eight warps computes 128 outputs x COLS columns at a time, a warp 32 x COLS / 2; asynchronous copies bring
// weights and activations of a super-block to shared memory, STAGES deep, and a warp unpacks the codes once for all its
// columns. The four lanes of the contract run one after the other (super-blocks 0, 4, 8, …, then 1, 5, …), so that one
// set of sums is in registers; sums of earlier lanes wait in scratch (L2).
//
// Bound on NVIDIA: the multiply-add by the integer scale, 4 per m16n8k32 at half rate, 8 issue cycles per 8192
// operations: 920 TOP/s on H200; the matrix instruction itself about 1200. Neighbouring blocks take the column tiles of
// the same outputs, so weights come from memory once.
#include <algorithm>

#include "gpu/matmul/matmul_accumulate.h"
#include "gpu/matmul/matmul_jobs.h"

namespace tnd::gpu {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * TND_WARP;
constexpr int kUnitOuts = 16;
constexpr int kUnits = 8;        // of a block
constexpr int kWarpUnits = 2;    // of a warp
constexpr int kWarpColumns = 2;  // warps side by side

// Inputs of a stage, after its weights.
template <uint32_t FORM, int COLS>
struct StageInputs {
  static constexpr int kQ = 0;
  static constexpr int kScale = kQ + COLS * kSuper;
  static constexpr int kSums = kScale + COLS * (FORM == kFormQ256 ? 4 : 32);  // Q256 sum16, Q32 sum32
  static constexpr int kBytes = kSums + COLS * 32;
};
template <uint32_t FORM, int COLS>
constexpr int stage_bytes(int super_bytes) {
  return kUnits * super_bytes + StageInputs<FORM, COLS>::kBytes;
}
constexpr int stages(int cols) {
  return cols == 128 ? 3 : 2;
}

// Starts the copies of super-block s: warp i takes unit i and 1/8 of the inputs. There are no conditions, which would
// cost as much as the products: units beyond the end are the last one again, and columns beyond the batch exist in the
// buffer (row_stride) and reach no other column.
template <template <class> class TYPE, int COLS>
[[maybe_unused]] TND_DEVICE void fetch_stage(const MatmulJobs& args, const MatmulJob& job, int unit0, int col0, int s,
                                             uint8_t* stage) {
  using T = TYPE<MmaUnit>;
  using Inputs = StageInputs<T::kForm, COLS>;
  static_assert(kUnits == kWarps);
  const int lane = static_cast<int>(lane_id());
  const int warp = static_cast<int>(warp_id());
  const int thread = static_cast<int>(threadIdx.x);
  const int unit = unit0 + warp < job.units ? unit0 + warp : job.units - 1;
  const uint8_t* from = job.data + unit * job.unit_bytes + int64_t{s} * T::kBytes + lane * 16;
  uint8_t* to = stage + warp * T::kBytes + lane * 16;
#pragma unroll
  for (int at = 0; at < T::kBytes; at += 512) {
    if (at + 512 <= T::kBytes || at + lane * 16 < T::kBytes) copy_async_16(to + at, from + at);
  }
  uint8_t* const inputs = stage + kUnits * T::kBytes;
  const int64_t stride = args.acts.row_stride;
  const int8_t* q =
      (T::kForm == kFormQ256 ? args.acts.q256 : args.acts.q32) + (s * 4 * stride + col0) * 64 + thread * 16;
#pragma unroll
  for (int p = 0; p < 4; ++p, q += stride * 64) {
#pragma unroll
    for (int at = 0; at < COLS * 64; at += kThreads * 16) {
      copy_async_16(inputs + Inputs::kQ + p * COLS * 64 + at + thread * 16, q + at);
    }
  }
  // Scales, [1 or 8][COLS] floats; mins, [COLS][16] halves or [8][COLS] floats.
  constexpr int kScales = T::kForm == kFormQ256 ? 1 : 8;
  constexpr int kQuads = COLS / 4;
  if (thread < kScales * kQuads) {
    const int j = thread / kQuads;
    const int at = thread % kQuads * 4;
    const float* scale = T::kForm == kFormQ256 ? args.acts.scale256 : args.acts.scale32;
    const int64_t column = (int64_t{s} * kScales + j) * stride + col0 + at;
    copy_async_16(inputs + Inputs::kScale + (j * COLS + at) * 4, scale + column);
    if constexpr (T::kMin && T::kForm == kFormQ32) {
      copy_async_16(inputs + Inputs::kSums + (j * COLS + at) * 4, args.acts.sum32 + column);
    }
  }
  if constexpr (T::kMin && T::kForm == kFormQ256) {
    if (thread < COLS * 2) {
      copy_async_16(inputs + Inputs::kSums + thread * 16, args.acts.sum16 + (s * stride + col0) * 16 + thread * 8);
    }
  }
}

// Four sums of a thread in scratch, [unit, tile][thread].
template <int TILES>
TND_DEVICE float4* quad(uint8_t* scratch, int u, int tile) {
  return reinterpret_cast<float4*>(scratch) + (u * TILES + tile) * kThreads + threadIdx.x;
}

template <template <class> class TYPE, int COLS>
TND_DEVICE void multiply_tile(const MatmulJobs& args, const MatmulJob& job, int unit0, int col0, uint8_t* smem,
                              uint8_t* scratch) {
  using U = MmaUnit;
  using T = TYPE<U>;
  using Inputs = StageInputs<T::kForm, COLS>;
  constexpr int kStages = stages(COLS);
  constexpr int kStageBytes = stage_bytes<T::kForm, COLS>(T::kBytes);
  constexpr int kTiles = COLS / kWarpColumns / U::kCols;
  const int lane = static_cast<int>(lane_id());
  const int warp_unit = static_cast<int>(warp_id()) / kWarpColumns * kWarpUnits;
  const int warp_col = static_cast<int>(warp_id()) % kWarpColumns * (kTiles * U::kCols);
  const int supers = static_cast<int>(super_blocks(args.k));

  // fetch copies the next super-block in the order of lanes; past the end it only counts.
  int next = 0, next_lane = 0;
  const auto fetch = [&](int stage) {
    while (next >= supers && next_lane < 3) next = ++next_lane;
    if (next < supers) {
      fetch_stage<TYPE, COLS>(args, job, unit0, col0, next, smem + stage * kStageBytes);
      next += 4;
    }
    copy_async_commit();
  };
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage);

  constexpr int kHalf = kWarpUnits * kTiles * kThreads * 16;  // bytes of a set of sums
  int stage = 0;
  float acc[kWarpUnits][kTiles][4];
  for (int k_lane = 0; k_lane < 4; ++k_lane) {
#pragma unroll
    for (int u = 0; u < kWarpUnits; ++u) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        acc[u][tile][0] = acc[u][tile][1] = acc[u][tile][2] = acc[u][tile][3] = 0.0f;
    }
    for (int s = k_lane; s < supers; s += 4) {
      copy_async_wait<kStages - 2>();
      __syncthreads();  // all copies have arrived, and all threads have read the stage that fetch fills next
      fetch(stage == 0 ? kStages - 1 : stage - 1);
      const uint8_t* at = smem + stage * kStageBytes;
      const uint8_t* inputs = at + kUnits * T::kBytes;
      const float* scale = reinterpret_cast<const float*>(inputs + Inputs::kScale);
      const uint8_t* sums = inputs + Inputs::kSums;
      const SuperInput in = {reinterpret_cast<const int8_t*>(inputs + Inputs::kQ) + warp_col * 64,
                             reinterpret_cast<const uint16_t*>(sums) + warp_col * 16,
                             scale + warp_col,
                             reinterpret_cast<const float*>(sums) + warp_col,
                             COLS,
                             COLS - 1};
      accumulate<U, TYPE, kWarpUnits, kTiles>(at + warp_unit * T::kBytes, T::kBytes, in, lane, acc);
      stage = stage == kStages - 1 ? 0 : stage + 1;
    }
    if (k_lane == 3) break;
#pragma unroll
    for (int u = 0; u < kWarpUnits; ++u) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float4* const to = quad<kTiles>(scratch + (k_lane == 2 ? kHalf : 0), u, tile);
        const float(&a)[4] = acc[u][tile];
        if (k_lane == 1) {
          const float4 l0 = *to;
          *to = make_float4(l0.x + a[0], l0.y + a[1], l0.z + a[2], l0.w + a[3]);
        } else {
          *to = make_float4(a[0], a[1], a[2], a[3]);
        }
      }
    }
  }
  const int rows = rows_in_use(args.live, args.rows);  // read here: the sums leave no register for it
#pragma unroll
  for (int u = 0; u < kWarpUnits; ++u) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float4 l01 = *quad<kTiles>(scratch, u, tile);
      const float4 l2 = *quad<kTiles>(scratch + kHalf, u, tile);
      const float first[4] = {l01.x, l01.y, l01.z, l01.w};
      const float third[4] = {l2.x, l2.y, l2.z, l2.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = col0 + warp_col + tile * U::kCols + U::column(lane, i);
        const int out = (unit0 + warp_unit + u) * kUnitOuts + U::out(lane, U::out_index(i));
        if (row >= rows || out >= job.n) continue;
        float y = first[i] + (third[i] + acc[u][tile][i]);
        const int64_t at = row * job.y_stride + out;
        if (job.residual != nullptr) y = job.residual[at] + y;
        job.y[at] = y;
      }
    }
  }
  __syncthreads();  // the stages are free for the next tile
}

constexpr int scratch_bytes(int cols) {
  return 2 * kUnits * kUnitOuts * cols * static_cast<int>(sizeof(float));  // of a block
}

// MatmulJob::blocks counts tiles of outputs here.
template <KernelSet SET, int COLS>
__global__ void __launch_bounds__(kThreads, 1) matmul_tiles_kernel(MatmulJobs args) {
  if constexpr (kHasMma) {
    TND_DYNAMIC_SHARED(uint8_t, smem);
    uint8_t* const scratch = args.scratch + int64_t{blockIdx.x} * scratch_bytes(COLS);
    wait_for_previous();
    for (int item = static_cast<int>(blockIdx.x);; item += static_cast<int>(gridDim.x)) {
      // Read for every item: the sums of a tile leave no register for the number of columns.
      const int column_tiles = (rows_in_use(args.live, args.rows) + COLS - 1) / COLS;
      int tile = item / column_tiles;
      const int col0 = item % column_tiles * COLS;
      int index = 0;
      while (index < args.count && tile >= args.jobs[index].blocks) tile -= args.jobs[index++].blocks;
      if (index == args.count) return;
      const MatmulJob& job = args.jobs[index];
      const int unit0 = tile * kUnits;
      if constexpr (SET == KernelSet::kCommon) {
        switch (job.type) {
          case DType::kQ4_K:
            multiply_tile<TypeQ4K, COLS>(args, job, unit0, col0, smem, scratch);
            break;
          case DType::kQ5_K:
            multiply_tile<TypeQ5K, COLS>(args, job, unit0, col0, smem, scratch);
            break;
          case DType::kQ6_K:
            multiply_tile<TypeQ6K, COLS>(args, job, unit0, col0, smem, scratch);
            break;
          default:
            multiply_tile<TypeQ80, COLS>(args, job, unit0, col0, smem, scratch);
        }
      } else {
        switch (job.type) {
          case DType::kQ4_0:
            multiply_tile<TypeQ40, COLS>(args, job, unit0, col0, smem, scratch);
            break;
          case DType::kQ4_1:
            multiply_tile<TypeQ41, COLS>(args, job, unit0, col0, smem, scratch);
            break;
          case DType::kQ5_0:
            multiply_tile<TypeQ50, COLS>(args, job, unit0, col0, smem, scratch);
            break;
          case DType::kQ5_1:
            multiply_tile<TypeQ51, COLS>(args, job, unit0, col0, smem, scratch);
            break;
          case DType::kIQ4_NL:
            multiply_tile<TypeIQ4NL, COLS>(args, job, unit0, col0, smem, scratch);
            break;
          default:
            multiply_tile<TypeIQ4XS, COLS>(args, job, unit0, col0, smem, scratch);
        }
      }
    }
  }
}

// Shared memory of a block that takes any of these weights.
template <int COLS>
int shared_bytes(const MatmulJobs& jobs) {
  int bytes = 0;
  for (int i = 0; i < jobs.count; ++i) {
    const DType type = jobs.jobs[i].type;
    const int super = super_bytes(type);
    bytes = std::max(
        bytes, act_form(type) == kFormQ256 ? stage_bytes<kFormQ256, COLS>(super) : stage_bytes<kFormQ32, COLS>(super));
  }
  return bytes * stages(COLS);
}

template <int COLS>
void launch_columns(Stream& stream, const MatmulGroup& group, MatmulJobs jobs, KernelSet set) {
  int tiles = 0;
  for (int i = 0; i < jobs.count; ++i) {
    MatmulJob& job = jobs.jobs[i];
    job.blocks = (job.units + kUnits - 1) / kUnits;
    tiles += job.blocks;
  }
  const int items = tiles * ((jobs.rows + COLS - 1) / COLS);
  const Launch l = {.grid = {static_cast<unsigned>(std::min(items, std::max(group.processors, 1)))},
                    .block = {kThreads},
                    .shared_bytes = static_cast<unsigned>(shared_bytes<COLS>(jobs)),
                    .overlap = true,
                    .bytes = weight_bytes_of(jobs),
                    .name = "matmul_tiles"};
  if (set == KernelSet::kCommon) {
    launch(stream, l, matmul_tiles_kernel<KernelSet::kCommon, COLS>, jobs);
  } else {
    launch(stream, l, matmul_tiles_kernel<KernelSet::kOther, COLS>, jobs);
  }
}

}  // namespace

bool has_matmul_tiles([[maybe_unused]] const MatmulGroup& group, [[maybe_unused]] const MatmulJobs& jobs) {
#if defined(TND_GPU_HIP)
  return false;  // 64 KB of shared memory hold fewer than two stages; wide steps have matmul_slabs.cu
#else
  return group.unit == 0 && shared_bytes<64>(jobs) <= group.shared_per_block;
#endif
}

void launch_matmul_tiles(Stream& stream, const MatmulGroup& group, MatmulJobs jobs, KernelSet set) {
  if (shared_bytes<128>(jobs) <= group.shared_per_block) {
    launch_columns<128>(stream, group, jobs, set);
  } else {
    launch_columns<64>(stream, group, jobs, set);
  }
}

uint64_t matmul_scratch_bytes(int processors) {
  return static_cast<uint64_t>(std::max(processors, 1)) * scratch_bytes(128);
}

}  // namespace tnd::gpu
