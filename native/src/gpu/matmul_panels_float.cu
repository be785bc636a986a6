// Products of a prompt's rows with 16-bit float weights on Hopper, by wgmma. Contract: NUMERICS.md, "Prompts through
// float weights", that of matmul_pairs.cu.
//
// As in matmul_panels.cu; a stage is 64 elements of k of weights and of both parts of the inputs. Operand A is read by
// ldmatrix: the order that matmul_float.cu streams is one of 8x8 matrices.
//
// Bound: two (F16: three) matrix instructions where plain bfloat16 needs one.
#include "gpu/matmul_pair_unit.h"
#include "gpu/matmul_panel_tile.h"

#if defined(TND_GPU_EMU) || defined(TND_CUDA_WGMMA)

namespace tnd::gpu {
namespace {

#if defined(TND_GPU_EMU)

// Half `tile % 2` of a unit of 32 outputs.
template <DType TYPE>
TND_DEVICE void plain_float(const MatmulJobs& args, const MatmulJob& job, int tile, int col0) {
  const int lane = static_cast<int>(lane_id());
  const int64_t panel = int64_t{args.acts.row_stride} * kPanelBytes;
  const int steps = static_cast<int>(float_steps(TYPE, args.k));
  const uint8_t* weights = job.data + tile / 2 * job.unit_bytes + tile % 2 * 256 + lane / 4 * 16 + lane % 4 * 4;
  float sums[kPlainTiles][4] = {};
  for (int step = 0; step < steps; step += 2) {
    PairMma::Weights w;
    [[maybe_unused]] PairMma::Weights low;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint8_t* at = weights + (step + i / 2) * kStepBytes + i % 2 * 128;
      w.r[i] = step + i / 2 < steps ? *reinterpret_cast<const uint32_t*>(at) : 0;
    }
    if constexpr (TYPE == DType::kF16) split_halves<PairMma>(&w, &low);
    const uint8_t* inputs = reinterpret_cast<const uint8_t*>(args.acts.pairs) + step / 8 * 2 * panel;
    for (int n = 0; n < kPlainTiles && col0 + n * kColumns < args.rows; ++n) {
      uint32_t hi[2], lo[2];
      load_step(inputs, col0 + n * kColumns, step % 8 / 2, lane, hi);
      load_step(inputs + panel, col0 + n * kColumns, step % 8 / 2, lane, lo);
      mma_bf16_k16(sums[n], w.r, lo);
      if constexpr (TYPE == DType::kF16) mma_bf16_k16(sums[n], low.r, hi);
      mma_bf16_k16(sums[n], w.r, hi);
    }
  }
  plain_results(args, job, tile * 16, col0, sums, [](int) { return 1.0f; });
}

template <DType TYPE>
__global__ void plain_float_kernel(MatmulJobs args) {
  plain_item(args, [&](const MatmulJob& job, int tile, int col0) { plain_float<TYPE>(args, job, tile, col0); });
}

template <DType TYPE>
void launch_type(Stream& stream, const MatmulGroup&, const MatmulJobs& jobs) {
  launch_plain(stream, jobs, plain_float_kernel<TYPE>);
}

#else

constexpr int kStageUnitBytes = 8 * kStepBytes;  // 64 elements of k of a unit

template <class T>
struct FloatStages {
  static constexpr int kUnits = T::kOuts / kUnitOuts;
  static constexpr int kWeightBytes = kUnits * kStageUnitBytes;
  static constexpr int kBytes = kWeightBytes + 2 * T::kInputBytes;
  static constexpr int kFit = (kPanelShared - kPanelAlign - kBarrierBytes) / kBytes;
  static constexpr int kCount = kFit < 8 ? kFit : 8;
};

struct FloatRing {
  uint64_t *full, *empty;
  uint8_t* stages;
};

// A consumer's warp: one tile, all of k.
template <DType TYPE, class T>
TND_DEVICE void multiply_tile(const MatmulJobs& args, const Item& item, const FloatRing& ring, Place* place) {
  using Stages = FloatStages<T>;
  const int lane = static_cast<int>(lane_id());
  const int steps = static_cast<int>(float_steps(TYPE, args.k));
  typename T::Sums sums;
#pragma unroll
  for (int m = 0; m < T::kM; ++m) {
#pragma unroll
    for (int j = 0; j < T::kN / 2; ++j) sums[m][j] = 0.0f;
  }
  int last = -1;  // stage that is read last by the products under way
  for (int step = 0; step < steps; step += 8) {
    const uint8_t* stage = ring.stages + place->stage * Stages::kBytes;
    // Inputs first: they begin at multiples of 1024 bytes.
    const uint8_t* weights = stage + 2 * T::kInputBytes + lane / 16 * kStepBytes + lane % 16 * 16;
    barrier_wait(ring.full + place->stage, place->parity);
    const uint64_t hi = wgmma_operand(stage), lo = wgmma_operand(stage + T::kInputBytes);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      PairMma::Weights w[2][T::kM];
      [[maybe_unused]] PairMma::Weights low[2][T::kM];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int k16 = 2 * pair + i;
#pragma unroll
        for (int m = 0; m < T::kM; ++m) {
          const int out = first_out<T>(m);
          load_matrix_x4(w[i][m].r,
                         weights + out / kUnitOuts * kStageUnitBytes + k16 * 2 * kStepBytes + out % kUnitOuts * 16);
#pragma unroll
          for (int r = 0; r < 4; ++r) {  // beyond k the stage holds what it held before
            if (step + 2 * k16 + r / 2 >= steps) w[i][m].r[r] = 0;
          }
          if constexpr (TYPE == DType::kF16) split_halves<PairMma>(&w[i][m], &low[i][m]);
        }
      }
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint64_t at = (2 * pair + i) * kWgmmaStep;
#pragma unroll
        for (int m = 0; m < T::kM; ++m) Wgmma<T::kN>::template multiply<true>(sums[m], w[i][m].r, lo + at);
        if constexpr (TYPE == DType::kF16) {
#pragma unroll
          for (int m = 0; m < T::kM; ++m) Wgmma<T::kN>::template multiply<true>(sums[m], low[i][m].r, hi + at);
        }
#pragma unroll
        for (int m = 0; m < T::kM; ++m) Wgmma<T::kN>::template multiply<true>(sums[m], w[i][m].r, hi + at);
      }
      wgmma_commit();
      wgmma_wait<1>();  // the pair before has left its operands
      if (pair == 0 && last >= 0) {
        sync_warp();  // every lane has its weights of that stage
        if (lane == 0) barrier_arrive(ring.empty + last);
      }
    }
    last = place->stage;
    advance(place, Stages::kCount);
  }
  wgmma_wait<0>();
  sync_warp();
  if (lane == 0) barrier_arrive(ring.empty + last);
  store_tile<T>(args, item, sums, nullptr);
}

template <DType TYPE, class T>
__global__ void __launch_bounds__(kPanelThreads, 1) matmul_panels_float_kernel(MatmulJobs args) {
  if constexpr (kHasWgmma) {
    using Stages = FloatStages<T>;
    TND_DYNAMIC_SHARED(uint8_t, raw);
    uint8_t* const smem = aligned_shared(raw);
    uint64_t* const barriers = reinterpret_cast<uint64_t*>(smem);
    const FloatRing ring = {barriers, barriers + Stages::kCount, smem + kBarrierBytes};
    if (threadIdx.x == 0) {
      for (int i = 0; i < Stages::kCount; ++i) {
        barrier_init(ring.full + i, 2);  // who fetches weights, who fetches inputs
        barrier_init(ring.empty + i, kConsumers * 4);
      }
      barrier_init_done();
    }
    __syncthreads();
    const int column_tiles = (args.rows + T::kN - 1) / T::kN;
    const int steps = static_cast<int>(float_steps(TYPE, args.k));
    const int stride = static_cast<int>(gridDim.x);
    int items = 0;
    for (int i = 0; i < args.count; ++i) items += args.jobs[i].blocks * column_tiles;

    if (threadIdx.x >= kConsumers * kGroupThreads) {
      give_registers<40>();
      const int warp = warp_in_group(), lane = static_cast<int>(lane_id());
      Place place;
      if (warp == 0) {  // weights do not wait for the kernel before
        for (int i = static_cast<int>(blockIdx.x); i < items; i += stride) {
          const Item item = item_of(args, i, column_tiles, T::kN);
          const MatmulJob& job = *item.job;
          const int wanted = item.tile * Stages::kUnits + lane;  // beyond the end the last one again
          const uint8_t* from = job.data + (wanted < job.units ? wanted : job.units - 1) * job.unit_bytes;
          for (int step = 0; step < steps; step += 8, from += kStageUnitBytes) {
            const int bytes = (steps - step < 8 ? steps - step : 8) * kStepBytes;
            barrier_wait(ring.empty + place.stage, place.parity ^ 1);
            if (lane == 0) barrier_expect(ring.full + place.stage, Stages::kUnits * bytes);
            sync_warp();
            if (lane < Stages::kUnits) {
              copy_bulk(ring.stages + place.stage * Stages::kBytes + 2 * T::kInputBytes + lane * kStageUnitBytes, from,
                        bytes, ring.full + place.stage);
            }
            advance(&place, Stages::kCount);
          }
        }
      } else if (warp == 1 && lane == 0) {
        if (args.joins == 0) wait_for_previous();
        const int64_t panel = int64_t{args.acts.row_stride} * kPanelBytes;
        for (int i = static_cast<int>(blockIdx.x); i < items; i += stride) {
          const int col0 = item_of(args, i, column_tiles, T::kN).col0;
          const int there = args.acts.row_stride - col0;  // what is left in the ring beyond reaches no other column
          const int bytes = (there < T::kN ? there : T::kN) * kPanelBytes;
          const uint8_t* from = reinterpret_cast<const uint8_t*>(args.acts.pairs) + col0 * kPanelBytes;
          for (int step = 0; step < steps; step += 8, from += 2 * panel) {
            barrier_wait(ring.empty + place.stage, place.parity ^ 1);
            barrier_expect(ring.full + place.stage, 2 * bytes);
            uint8_t* const to = ring.stages + place.stage * Stages::kBytes;
            copy_bulk(to, from, bytes, ring.full + place.stage);
            copy_bulk(to + T::kInputBytes, from + panel, bytes, ring.full + place.stage);
            advance(&place, Stages::kCount);
          }
        }
      } else if (warp == 2 && args.joined != 0) {
        if (args.joins == 0) wait_for_previous();
        let_next_start();  // it reads what this launch does and no results
      }
    } else {
      take_registers<232>();
      if (args.joins == 0) wait_for_previous();
      Place place;
      for (int i = static_cast<int>(blockIdx.x); i < items; i += stride) {
        multiply_tile<TYPE, T>(args, item_of(args, i, column_tiles, T::kN), ring, &place);
      }
    }
    if (args.joins != 0) wait_for_previous();  // what comes next waits for this launch alone
  }
}

template <DType TYPE, class T>
void launch_tiles(Stream& stream, MatmulJobs jobs, int processors) {
  const int items = tiles_of<T>(&jobs);
  launch(stream,
         {.grid = {static_cast<unsigned>(std::min(items, processors))},
          .block = {kPanelThreads},
          .shared_bytes = kPanelShared,
          .overlap = true,
          .bytes = weight_bytes_of(jobs),
          .name = "matmul_panels"},
         matmul_panels_float_kernel<TYPE, T>, jobs);
}

template <DType TYPE>
void launch_type(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  using Large = PanelTile<2, 128>;
  using Middle = PanelTile<1, 128>;
  using Small = PanelTile<1, 64>;
  using Narrow = PanelTile<1, 40>;
  const int processors = std::max(group.processors, 1);
  const int large = cost<Large>(jobs, processors), middle = cost<Middle>(jobs, processors);
  const int small = cost<Small>(jobs, processors), narrow = cost<Narrow>(jobs, processors);
  const int least = std::min(std::min(large, middle), std::min(small, narrow));
  if (least == large) return launch_tiles<TYPE, Large>(stream, jobs, processors);
  if (least == middle) return launch_tiles<TYPE, Middle>(stream, jobs, processors);
  if (least == small) return launch_tiles<TYPE, Small>(stream, jobs, processors);
  launch_tiles<TYPE, Narrow>(stream, jobs, processors);
}

#endif

}  // namespace

void launch_matmul_panels_float(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  if (jobs.jobs[0].type == DType::kBF16) {
    launch_type<DType::kBF16>(stream, group, jobs);
  } else {
    launch_type<DType::kF16>(stream, group, jobs);
  }
}

}  // namespace tnd::gpu

#endif
