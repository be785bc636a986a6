// Products of a prompt's rows with 16-bit float weights on Hopper, by wgmma. Contract: NUMERICS.md, "Prompts through
// float weights", that of matmul_pairs.cu.
//
// As in matmul_panels.cu; a stage is 64 elements of k of weights and of both parts of the inputs. Operand A is read by
// ldmatrix: the weights lie as 8x8 matrices, in the order that matmul_float.cu streams.
//
// Bound: two (F16: three) matrix instructions where plain bfloat16 needs one.
#include "gpu/matmul/matmul_pair_unit.h"
#include "gpu/matmul/matmul_panel_tile.h"

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
  Barrier *full, *empty;
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
  int last = -1;  // last stage that products in flight read
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
          for (int r = 0; r < 4; ++r) {  // beyond k the stage holds older data
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
      wgmma_wait<1>();  // products of the previous pair have read their operands
      if (pair == 0 && last >= 0) {
        sync_warp();  // every lane has read its weights of that stage
        if (lane < args.arrivals) barrier_arrive(ring.empty + last);
      }
    }
    last = place->stage;
    advance(place, Stages::kCount);
  }
  wgmma_wait<0>();
  sync_warp();
  if (lane < args.arrivals) barrier_arrive(ring.empty + last);
  store_tile<T>(args, item, sums, nullptr);
}

template <DType TYPE, class T>
__global__ void __launch_bounds__(kPanelThreads, 1) matmul_panels_float_kernel(MatmulJobs args) {
  if constexpr (kHasWgmma) {
    using Stages = FloatStages<T>;
    TND_DYNAMIC_SHARED(uint8_t, raw);
    uint8_t* const smem = aligned_shared(raw);
    Barrier* const barriers = reinterpret_cast<Barrier*>(smem);
    const FloatRing ring = {barriers, barriers + Stages::kCount, smem + kBarrierBytes};
    if (threadIdx.x == 0) {
      for (int i = 0; i < Stages::kCount; ++i) {
        barrier_init(ring.full + i, 2);  // the fetcher of weights and that of inputs
        barrier_init(ring.empty + i, kConsumers * 4 * args.arrivals);
      }
      barriers_made();
    }
    __syncthreads();
    const int lane = static_cast<int>(lane_id()), steps = static_cast<int>(float_steps(TYPE, args.k));
    const int64_t panel = int64_t{args.acts.row_stride} * kPanelBytes;
    Place place;
    share_block(
        args, T::kN,
        [&](const Item& item) {
          const uint8_t* from = unit_of_lane<Stages::kUnits>(item, lane);
          for (int step = 0; step < steps; step += 8, from += kStageUnitBytes) {
            const int bytes = (steps - step < 8 ? steps - step : 8) * kStepBytes;
            barrier_wait(ring.empty + place.stage, place.parity ^ 1);
            fetch_units<Stages::kUnits>(ring.stages + place.stage * Stages::kBytes + 2 * T::kInputBytes, from, bytes,
                                        kStageUnitBytes, lane, ring.full + place.stage);
            advance(&place, Stages::kCount);
          }
        },
        [&](const Item& item) {
          const int bytes = panel_bytes<T>(args, item);
          const uint8_t* from = reinterpret_cast<const uint8_t*>(args.acts.pairs) + item.col0 * kPanelBytes;
          for (int step = 0; step < steps; step += 8, from += 2 * panel) {
            barrier_wait(ring.empty + place.stage, place.parity ^ 1);
            barrier_expect(ring.full + place.stage, 2 * bytes);
            uint8_t* const to = ring.stages + place.stage * Stages::kBytes;
            bulk_copy(to, from, bytes, ring.full + place.stage);
            bulk_copy(to + T::kInputBytes, from + panel, bytes, ring.full + place.stage);
            advance(&place, Stages::kCount);
          }
        },
        [&](const Item& item) { multiply_tile<TYPE, T>(args, item, ring, &place); });
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
