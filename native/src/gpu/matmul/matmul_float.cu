// Products with float weights (F32, F16, BF16). The contract adds the elements of a lane one by one by fma, so a result
// is a chain of k / 4 dependent operations that cannot be divided: a thread owns (output, lane) for all rows of the
// launch's chunk. That suits memory-bound work: one conversion and one fma per weight and row, for 2 bytes per weight.
//
// A block is four warps, the four lanes; a warp takes 32 outputs (64 from 8 rows on, which halves the reads of inputs).
// Each warp streams weights and inputs through its own ring in shared memory by asynchronous copies, so that even a
// small matrix, with its few threads, is in flight as a whole. Bound: memory up to about 16 rows on H200; then fma,
// because float matrix instructions have another order of sums (NUMERICS.md, Float weights).
#include <algorithm>

#include "gpu/matmul/matmul_jobs.h"
#include "gpu/matmul/matmul_layout.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {
namespace {

constexpr int kLanes = 4;
constexpr int kThreads = kLanes * TND_WARP;
constexpr int kOuts = 32;
constexpr int kSteps = 4;  // 16-byte steps of a place in the ring

constexpr int outs_of(int rows) {
  return rows >= 8 ? 2 : 1;  // units of a warp
}
// A place of the ring: [outs_of][kSteps][32][16 bytes] of weights, [rows][kSteps * elements] floats of inputs.
constexpr int weight_part(int rows) {
  return outs_of(rows) * kSteps * kOuts * 16;
}
constexpr int place_bytes(int rows) {
  return weight_part(rows) + rows * kSteps * 8 * static_cast<int>(sizeof(float));
}
// small: for devices with less shared memory, most of which have no copies in the background (sm_75, HIP).
constexpr int places_of(int rows, bool small) {
  return small ? 2 : rows < 8 ? 8 : rows < 32 ? 4 : 3;
}
constexpr int red_bytes(int rows) {
  return kLanes * rows * outs_of(rows) * kOuts * static_cast<int>(sizeof(float));
}
constexpr int ring_bytes(int rows, bool small) {
  return place_bytes(rows) * places_of(rows, small);  // of a warp
}
constexpr int shared_bytes(int rows, bool small) {
  return red_bytes(rows) + kLanes * ring_bytes(rows, small);
}
static_assert(shared_bytes(16, true) <= 64 * 1024, "every device has room for 16 rows");

template <DType TYPE>
constexpr int kElems = TYPE == DType::kF32 ? 4 : 8;

// widen turns the 16 bytes of a step into floats.
template <DType TYPE>
TND_DEVICE void widen(const uint4& v, float (&w)[kElems<TYPE>]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (TYPE == DType::kF32) {
      w[i] = __uint_as_float(words[i]);
    } else if constexpr (TYPE == DType::kBF16) {
      w[2 * i] = __uint_as_float(words[i] << 16);
      w[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
    } else {
      w[2 * i] = half_to_float(static_cast<uint16_t>(words[i]));
      w[2 * i + 1] = half_to_float(static_cast<uint16_t>(words[i] >> 16));
    }
  }
}

// Place of a warp in its work: steps [step, end) of a super-block of a group of units.
struct Cursor {
  int group, s, step, end;
};

template <DType TYPE, int ROWS, bool SMALL>
TND_DEVICE void multiply(const MatmulJobs& args, const MatmulJob& job, int block, float* red, uint8_t* smem) {
  constexpr int OUTS = outs_of(ROWS);
  constexpr int kE = kElems<TYPE>;
  constexpr int kStepsPerSuper = kSuper / kE;
  constexpr int kPlaces = places_of(ROWS, SMALL);
  [[maybe_unused]] constexpr int kUnroll = ROWS <= 8 ? kSteps : 1;  // more steps at once need too many registers
  const int lane = static_cast<int>(lane_id());
  const int k_lane = static_cast<int>(warp_id());
  const int supers = static_cast<int>(super_blocks(args.k));
  const int steps = (args.k + kE - 1) / kE;
  const int groups = (job.units + OUTS - 1) / OUTS;
  const int row0 = static_cast<int>(blockIdx.y) * ROWS;
  uint8_t* const ring = smem + k_lane * ring_bytes(ROWS, SMALL);

  const auto end_of = [&](int s) { return (s + 1) * kStepsPerSuper < steps ? (s + 1) * kStepsPerSuper : steps; };
  const auto advance = [&](Cursor* c) {
    c->step += kSteps;
    if (c->step < c->end) return;
    c->s += kLanes;
    if (c->s >= supers) {
      c->s = k_lane;
      c->group += job.blocks;
    }
    c->step = c->s * kStepsPerSuper;
    c->end = end_of(c->s);
  };
  const auto fetch_weights = [&](const Cursor& c, int place) {
    if (c.group >= groups || k_lane >= supers) return;
#pragma unroll
    for (int o = 0; o < OUTS; ++o) {
      if (c.group * OUTS + o >= job.units) continue;
      const uint8_t* from = job.data + (c.group * OUTS + o) * job.unit_bytes + (int64_t{c.step} * kOuts + lane) * 16;
      uint8_t* to = ring + place * place_bytes(ROWS) + (o * kSteps * kOuts + lane) * 16;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        if (c.step + i < c.end) copy_async_16(to + i * kOuts * 16, from + i * kOuts * 16);
      }
    }
  };
  // Rows beyond the batch and elements beyond k exist in the buffer; their results are not stored or not used.
  const auto fetch_inputs = [&](const Cursor& c, int place) {
    if (c.group >= groups || k_lane >= supers) return;
    constexpr int kQuads = kSteps * kE / 4;
    const float* from = args.acts.f32 + row0 * args.acts.f32_stride + c.step * kE;
    uint8_t* to = ring + place * place_bytes(ROWS) + weight_part(ROWS);
    for (int i = lane; i < ROWS * kQuads; i += TND_WARP) {
      copy_async_16(to + i * 16, from + i / kQuads * args.acts.f32_stride + i % kQuads * 4);
    }
  };
  const Cursor start{block, k_lane, k_lane * kStepsPerSuper, end_of(k_lane)};
  Cursor next = start;
  for (int place = 0; place < kPlaces - 1; ++place) {
    fetch_weights(next, place);
    advance(&next);
  }
  wait_for_previous();
  next = start;
  for (int place = 0; place < kPlaces - 1; ++place) {
    fetch_inputs(next, place);
    copy_async_commit();
    advance(&next);
  }

  int place = 0;
  for (int group = block; group < groups; group += job.blocks) {
    float acc[OUTS][ROWS] = {};
    for (int s = k_lane; s < supers; s += kLanes) {
      const int end = end_of(s);
      for (int step = s * kStepsPerSuper; step < end; step += kSteps) {
        copy_async_wait<kPlaces - 2>();
        sync_warp();  // all lanes have read the place that is filled next
        const int behind = place == 0 ? kPlaces - 1 : place - 1;
        fetch_weights(next, behind);
        fetch_inputs(next, behind);
        copy_async_commit();
        advance(&next);
        const uint8_t* weights = ring + place * place_bytes(ROWS) + lane * 16;
        const float* inputs = reinterpret_cast<const float*>(ring + place * place_bytes(ROWS) + weight_part(ROWS));
#pragma unroll kUnroll
        for (int i = 0; i < kSteps; ++i) {
          if (step + i >= end) continue;
          float w[OUTS][kE];
#pragma unroll
          for (int o = 0; o < OUTS; ++o) {
            widen<TYPE>(*reinterpret_cast<const uint4*>(weights + (o * kSteps + i) * kOuts * 16), w[o]);
          }
          const int left = args.k - (step + i) * kE;
          // Two loops: a condition inside would keep the compiler from overlapping the chains of different rows.
          if (left >= kE) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
#pragma unroll
              for (int e = 0; e < kE; e += 4) {
                const float4 v = *reinterpret_cast<const float4*>(inputs + (r * kSteps + i) * kE + e);
#pragma unroll
                for (int o = 0; o < OUTS; ++o) {
                  float& to = acc[o][r];
                  to = fmaf(w[o][e + 3], v.w, fmaf(w[o][e + 2], v.z, fmaf(w[o][e + 1], v.y, fmaf(w[o][e], v.x, to))));
                }
              }
            }
          } else {
#pragma unroll
            for (int e = 0; e < kE; ++e) {
              if (e >= left) continue;
#pragma unroll
              for (int r = 0; r < ROWS; ++r) {
                const float x = inputs[(r * kSteps + i) * kE + e];
#pragma unroll
                for (int o = 0; o < OUTS; ++o) acc[o][r] = fmaf(w[o][e], x, acc[o][r]);
              }
            }
          }
        }
        place = place == kPlaces - 1 ? 0 : place + 1;
      }
    }
    constexpr int kWidth = kOuts * OUTS;
    __syncthreads();  // the last group's sums have been read
#pragma unroll
    for (int o = 0; o < OUTS; ++o) {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) red[(k_lane * ROWS + r) * kWidth + o * kOuts + lane] = acc[o][r];
    }
    __syncthreads();
    const int rows = rows_in_use(args.live, args.rows);
    for (int i = static_cast<int>(threadIdx.x); i < ROWS * kWidth; i += kThreads) {
      const int row = row0 + i / kWidth;
      const int out = group * kWidth + i % kWidth;
      if (row >= rows || out >= job.n) continue;
      constexpr int kPitch = ROWS * kWidth;
      float y = (red[i] + red[i + kPitch]) + (red[i + 2 * kPitch] + red[i + 3 * kPitch]);
      const int64_t at = row * job.y_stride + out;
      if (job.residual != nullptr) y = job.residual[at] + y;
      job.y[at] = y;
    }
  }
}

constexpr int blocks_per_processor(int rows) {
  return rows < 16 ? 3 : 2;
}

template <int ROWS, bool SMALL>
__global__ void __launch_bounds__(kThreads, blocks_per_processor(ROWS)) matmul_float_kernel(MatmulJobs args) {
  let_next_start();
  TND_DYNAMIC_SHARED(uint8_t, smem);
  float* const red = reinterpret_cast<float*>(smem);
  uint8_t* const ring = smem + red_bytes(ROWS);
  int block = static_cast<int>(blockIdx.x);
  int index = 0;
  while (block >= args.jobs[index].blocks) block -= args.jobs[index++].blocks;
  const MatmulJob& job = args.jobs[index];
  switch (job.type) {
    case DType::kBF16:
      return multiply<DType::kBF16, ROWS, SMALL>(args, job, block, red, ring);
    case DType::kF16:
      return multiply<DType::kF16, ROWS, SMALL>(args, job, block, red, ring);
    default:
      return multiply<DType::kF32, ROWS, SMALL>(args, job, block, red, ring);
  }
}

template <int ROWS, bool SMALL>
void launch_places(Stream& stream, const MatmulGroup& group, MatmulJobs jobs) {
  constexpr int shared = shared_bytes(ROWS, SMALL);
  const int fit = std::clamp((group.shared_per_block + 1024) / (shared + 1024), 1, blocks_per_processor(ROWS));
  const int chunks = (jobs.rows + ROWS - 1) / ROWS;
  const int blocks = share_blocks(&jobs, fit * std::max(group.processors, 1));
  launch(stream,
         {.grid = {static_cast<unsigned>(blocks), static_cast<unsigned>(chunks)},
          .block = {kThreads},
          .shared_bytes = static_cast<unsigned>(shared),
          .overlap = true,
          .bytes = weight_bytes_of(jobs),
          .name = "matmul_float"},
         matmul_float_kernel<ROWS, SMALL>, jobs);
}

#if defined(TND_GPU_HIP)
constexpr bool kAllSmall = true;  // 64 KiB a block, copies at once
#else
constexpr bool kAllSmall = false;
#endif

template <int ROWS>
void launch_rows(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  if constexpr (!kAllSmall) {
    if (group.shared_per_block >= shared_bytes(ROWS, false)) return launch_places<ROWS, false>(stream, group, jobs);
  }
  launch_places<ROWS, true>(stream, group, jobs);
}

}  // namespace

void launch_matmul_float(Stream& stream, const MatmulGroup& group, MatmulJobs jobs) {
  if (jobs.rows == 1) return launch_rows<1>(stream, group, jobs);
  if (jobs.rows == 2) return launch_rows<2>(stream, group, jobs);
  if (jobs.rows <= 4) return launch_rows<4>(stream, group, jobs);
  if (jobs.rows <= 8) return launch_rows<8>(stream, group, jobs);
  if constexpr (!kAllSmall) {
    if (jobs.rows > 16 && group.shared_per_block >= shared_bytes(32, true)) {
      if (jobs.rows <= 24) return launch_rows<24>(stream, group, jobs);
      return launch_rows<32>(stream, group, jobs);
    }
  }
  launch_rows<16>(stream, group, jobs);
}

}  // namespace tnd::gpu
