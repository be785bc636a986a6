// Products of a prompt's rows with quantised weights on Hopper, by wgmma. Contract: NUMERICS.md, "Prompts through
// quantised weights": inputs and decoded weights are halves, and an element's sum is one chain over k in f32, so the
// choice of tile changes no bits.
//
// A block of three warpgroups has a processor to itself and takes tiles of outputs x rows one after the other. One
// warpgroup fetches: packed weights of a super-block and panels of inputs, each through a ring in shared memory by bulk
// copies (both lie contiguous in memory: units of 16 outputs, any rows of a panel). Two multiply: a warp decodes its
// own units into registers, operand A, while the products of the previous group run; operand B is read from the ring.
//
// Bound: 32 elements of k keep the matrix unit busy for 2 N cycles (both warpgroups), in which a quarter processor has
// about 160 instructions to issue; then the second-level cache, from which a tile of 128 x 256 would need 36 bytes a
// cycle (Q4_K) and gets some 27.
//
// The emulation multiplies the same by mma.sync, one warp at a time.
#include "gpu/matmul/matmul_panel.h"
#include "gpu/matmul/matmul_panel_tile.h"

#if defined(TND_GPU_EMU) || defined(TND_CUDA_WGMMA)

namespace tnd::gpu {
namespace {

constexpr int kSmallUnitOuts = 16;  // of quantised weights

#if defined(TND_GPU_EMU)

template <template <class> class TYPE>
TND_DEVICE void plain_quantised(const MatmulJobs& args, const MatmulJob& job, int tile, int col0) {
  using W = PanelWeights<TYPE>;
  const int lane = static_cast<int>(lane_id());
  const int64_t panel = int64_t{args.acts.row_stride} * kPanelBytes;
  const uint8_t* inputs = reinterpret_cast<const uint8_t*>(args.acts.panels);
  const uint8_t* super = job.data + tile * job.unit_bytes;
  float sums[kPlainTiles][4] = {};
  for (int s = 0; s < super_blocks(args.k); ++s, super += W::kBytes) {
    const typename W::Head head = W::head(super, lane, job.scale);
    const auto pair = [&]<int P>() {
      const typename W::Codes codes = W::codes(super, head, P, lane);
      const GroupOperands w[2] = {W::template operands<P, 0>(head, codes), W::template operands<P, 1>(head, codes)};
      for (int n = 0; n < kPlainTiles && col0 + n * kColumns < args.rows; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t b[2];
          load_step(inputs, col0 + n * kColumns, i, lane, b);
          mma_f16_k16(sums[n], w[i / 2].a[i % 2], b);
        }
      }
      inputs += panel;
    };
    pair.template operator()<0>();
    pair.template operator()<1>();
    pair.template operator()<2>();
    pair.template operator()<3>();
  }
  const float unscale = 1.0f / job.scale;
  plain_results(args, job, tile * kSmallUnitOuts, col0, sums,
                [&](int row) { return unscale * args.acts.row_unscale[row]; });
}

template <template <class> class TYPE>
__global__ void plain_quantised_kernel(MatmulJobs args) {
  plain_item(args, [&](const MatmulJob& job, int tile, int col0) { plain_quantised<TYPE>(args, job, tile, col0); });
}
template <template <class> class TYPE>
void launch_type(Stream& stream, const MatmulGroup&, const MatmulJobs& jobs) {
  launch_plain(stream, jobs, plain_quantised_kernel<TYPE>);
}

#else

constexpr int kWeightStages = 2;  // super-blocks of all units of a tile
constexpr int kMaxInputStages = 10;

// Barriers and factors before the rings.
template <class T>
constexpr int kHeadBytes = (kBarrierBytes + kConsumers * 4 * T::kN * 4 + kPanelAlign - 1) / kPanelAlign * kPanelAlign;

template <class T>
constexpr int kUnits = T::kOuts / kSmallUnitOuts;

// Stages of the rings that fit into shared memory.
template <template <class> class TYPE, class T>
struct PanelStages {
  static constexpr int kWeightBytes = kUnits<T> * PanelWeights<TYPE>::kBytes;
  static constexpr int kLeft = kPanelShared - kPanelAlign - kHeadBytes<T> - kWeightStages * kWeightBytes;
  static constexpr int kInputStages =
      kLeft / T::kInputBytes < kMaxInputStages ? kLeft / T::kInputBytes : kMaxInputStages;
};

// Shared memory of a block: barriers, inputs, weights.
struct Rings {
  Barrier *weights_full, *weights_empty, *inputs_full, *inputs_empty;
  float* factors;  // of a tile's rows, each warp's own
  uint8_t *inputs, *weights;
};

// A consumer's warp: one tile, all of k.
struct Places {
  Place weights, inputs;
};
template <template <class> class TYPE, class T>
TND_DEVICE void multiply_tile(const MatmulJobs& args, const Item& item, const Rings& rings, Places* places) {
  using W = PanelWeights<TYPE>;
  const MatmulJob& job = *item.job;
  const int lane = static_cast<int>(lane_id());
  const int supers = static_cast<int>(super_blocks(args.k));
  Place *const weights = &places->weights, *const inputs = &places->inputs;
  typename T::Sums sums;
#pragma unroll
  for (int m = 0; m < T::kM; ++m) {
#pragma unroll
    for (int j = 0; j < T::kN / 2; ++j) sums[m][j] = 0.0f;
  }
  float* const factors = rings.factors + static_cast<int>(warp_id()) * T::kN;
  const float unscale = 1.0f / job.scale;
  sync_warp();  // the previous tile is stored
  for (int i = lane; i < T::kN; i += TND_WARP) {
    if (item.col0 + i < args.rows) factors[i] = unscale * args.acts.row_unscale[item.col0 + i];
  }
  sync_warp();
  int last = -1;  // last stage of inputs that products in flight read
  for (int s = 0; s < supers; ++s) {
    barrier_wait(rings.weights_full + weights->stage, weights->parity);
    const uint8_t* super[T::kM];
    typename W::Head head[T::kM];
#pragma unroll
    for (int m = 0; m < T::kM; ++m) {
      super[m] = rings.weights + weights->stage * PanelStages<TYPE, T>::kWeightBytes +
                 first_out<T>(m) / kSmallUnitOuts * W::kBytes;
      head[m] = W::head(super[m], lane, job.scale);
    }
    const auto pair = [&]<int P>() {
      typename W::Codes codes[T::kM];
#pragma unroll
      for (int m = 0; m < T::kM; ++m) codes[m] = W::codes(super[m], head[m], P, lane);
      if constexpr (P == 3) {
        sync_warp();
        if (lane < args.arrivals) barrier_arrive(rings.weights_empty + weights->stage);
      }
      const auto group = [&]<int H>() {
        GroupOperands w[T::kM];
#pragma unroll
        for (int m = 0; m < T::kM; ++m) w[m] = W::template operands<P, H>(head[m], codes[m]);
        if constexpr (H == 0) barrier_wait(rings.inputs_full + inputs->stage, inputs->parity);
        const uint64_t x = wgmma_operand(rings.inputs + inputs->stage * T::kInputBytes) + H * 2 * kWgmmaStep;
        wgmma_fence();
#pragma unroll
        for (int f = 0; f < 2; ++f) {
#pragma unroll
          for (int m = 0; m < T::kM; ++m) {
            Wgmma<T::kN>::template multiply<false>(sums[m], w[m].a[f], x + f * kWgmmaStep);
          }
        }
        wgmma_commit();
        wgmma_wait<1>();  // products of the previous group have read their operands
        if constexpr (H == 0) {
          if (last >= 0 && lane < args.arrivals) barrier_arrive(rings.inputs_empty + last);
        }
      };
      group.template operator()<0>();
      group.template operator()<1>();
      last = inputs->stage;
      advance(inputs, PanelStages<TYPE, T>::kInputStages);
    };
    pair.template operator()<0>();
    pair.template operator()<1>();
    pair.template operator()<2>();
    pair.template operator()<3>();
    advance(weights, kWeightStages);
  }
  wgmma_wait<0>();
  if (lane < args.arrivals) barrier_arrive(rings.inputs_empty + last);

  store_tile<T>(args, item, sums, factors);
}

template <template <class> class TYPE, class T>
__global__ void __launch_bounds__(kPanelThreads, 1) matmul_panels_kernel(MatmulJobs args) {
  if constexpr (kHasWgmma) {
    using Shape = PanelStages<TYPE, T>;
    constexpr int kInputStages = Shape::kInputStages;
    TND_DYNAMIC_SHARED(uint8_t, raw);
    uint8_t* const smem = aligned_shared(raw);
    Barrier* const barriers = reinterpret_cast<Barrier*>(smem);
    const Rings rings = {barriers,
                         barriers + kWeightStages,
                         barriers + 2 * kWeightStages,
                         barriers + 2 * kWeightStages + kInputStages,
                         reinterpret_cast<float*>(smem + kBarrierBytes),
                         smem + kHeadBytes<T>,
                         smem + kHeadBytes<T> + kInputStages * T::kInputBytes};
    if (threadIdx.x == 0) {
      for (int i = 0; i < kWeightStages; ++i) {
        barrier_init(rings.weights_full + i, 1);
        barrier_init(rings.weights_empty + i, kConsumers * 4 * args.arrivals);
      }
      for (int i = 0; i < kInputStages; ++i) {
        barrier_init(rings.inputs_full + i, 1);
        barrier_init(rings.inputs_empty + i, kConsumers * 4 * args.arrivals);
      }
      barriers_made();
    }
    __syncthreads();
    const int lane = static_cast<int>(lane_id()), supers = static_cast<int>(super_blocks(args.k));
    const int64_t panel = int64_t{args.acts.row_stride} * kPanelBytes;
    Place place;  // of the fetching warp
    Places places;
    share_block(
        args, T::kN,
        [&](const Item& item) {
          constexpr int kBytes = PanelWeights<TYPE>::kBytes;
          const uint8_t* from = unit_of_lane<kUnits<T> >(item, lane);
          for (int s = 0; s < supers; ++s, from += kBytes) {
            barrier_wait(rings.weights_empty + place.stage, place.parity ^ 1);
            fetch_units<kUnits<T> >(rings.weights + place.stage * Shape::kWeightBytes, from, kBytes, kBytes, lane,
                                    rings.weights_full + place.stage);
            advance(&place, kWeightStages);
          }
        },
        [&](const Item& item) {
          const int bytes = panel_bytes<T>(args, item);
          const uint8_t* from = reinterpret_cast<const uint8_t*>(args.acts.panels) + item.col0 * kPanelBytes;
          for (int s = 0; s < supers * 4; ++s, from += panel) {
            barrier_wait(rings.inputs_empty + place.stage, place.parity ^ 1);
            barrier_expect(rings.inputs_full + place.stage, bytes);
            bulk_copy(rings.inputs + place.stage * T::kInputBytes, from, bytes, rings.inputs_full + place.stage);
            advance(&place, kInputStages);
          }
        },
        [&](const Item& item) { multiply_tile<TYPE, T>(args, item, rings, &places); });
  }
}

template <template <class> class TYPE, class T>
void launch_tiles(Stream& stream, MatmulJobs jobs, int processors) {
  const int items = tiles_of<T>(&jobs);
  launch(stream,
         {.grid = {static_cast<unsigned>(std::min(items, processors))},
          .block = {kPanelThreads},
          .shared_bytes = kPanelShared,
          .overlap = true,
          .bytes = weight_bytes_of(jobs),
          .name = "matmul_panels"},
         matmul_panels_kernel<TYPE, T>, jobs);
}

using Wide = PanelTile<1, 256>;
using Middle = PanelTile<1, 176>;  // three for 512 rows
using Narrow = PanelTile<1, 64>;

template <template <class> class TYPE, class T>
void launch_divided(Stream& stream, MatmulJobs jobs, int tiles, int processors) {
  MatmulJobs rest = divide(&jobs, tiles, T::kOuts, kSmallUnitOuts);
  if (rest.count > 0) {
    rest.joins = 1;
    jobs.joined = 1;
  }
  launch_tiles<TYPE, T>(stream, jobs, processors);
  if (rest.count > 0) launch_tiles<TYPE, Narrow>(stream, rest, processors);
}

template <template <class> class TYPE>
void launch_type(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  const int processors = std::max(group.processors, 1);
  const Division wide = divide_rounds<Wide, Narrow>(jobs, processors);
  const Division middle = divide_rounds<Middle, Narrow>(jobs, processors);
  const int narrow = cost<Narrow>(jobs, processors);
  if (narrow < std::min(wide.cost, middle.cost)) {
    launch_tiles<TYPE, Narrow>(stream, jobs, processors);
  } else if (wide.cost <= middle.cost) {
    launch_divided<TYPE, Wide>(stream, jobs, wide.tiles, processors);
  } else {
    launch_divided<TYPE, Middle>(stream, jobs, middle.tiles, processors);
  }
}

#endif

}  // namespace

void launch_matmul_panels(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  switch (jobs.jobs[0].type) {
    case DType::kQ4_K:
      return launch_type<TypeQ4K>(stream, group, jobs);
    case DType::kQ5_K:
      return launch_type<TypeQ5K>(stream, group, jobs);
    case DType::kQ6_K:
      return launch_type<TypeQ6K>(stream, group, jobs);
    case DType::kQ8_0:
      return launch_type<TypeQ80>(stream, group, jobs);
    case DType::kQ4_0:
      return launch_type<TypeQ40>(stream, group, jobs);
    case DType::kQ4_1:
      return launch_type<TypeQ41>(stream, group, jobs);
    case DType::kQ5_0:
      return launch_type<TypeQ50>(stream, group, jobs);
    case DType::kQ5_1:
      return launch_type<TypeQ51>(stream, group, jobs);
    case DType::kIQ4_NL:
      return launch_type<TypeIQ4NL>(stream, group, jobs);
    case DType::kIQ4_XS:
      return launch_type<TypeIQ4XS>(stream, group, jobs);
    default:
      return launch_matmul_panels_float(stream, group, jobs);
  }
}

}  // namespace tnd::gpu

#else

namespace tnd::gpu {

void launch_matmul_panels(Stream&, const MatmulGroup&, const MatmulJobs&) {}

}  // namespace tnd::gpu

#endif

namespace tnd::gpu {

bool has_matmul_panels([[maybe_unused]] const DeviceInfo& device) {
#if defined(TND_GPU_EMU)
  return true;
#elif defined(TND_CUDA_WGMMA)
  return device.major == 9 && device.shared_per_block >= kPanelShared;
#else
  return false;
#endif
}

}  // namespace tnd::gpu
