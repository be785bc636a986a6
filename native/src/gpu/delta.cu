// The delta rule over a step, and its replay.
//
// Block = (value head, slice of 32 columns) of one sequence; thread = key rows part*16 .. +15 of one column, 16 floats
// of state in registers. Sums over key rows are sixteen fma ascending and three exchanges (4, 2, 1): the eight partials
// of the contract. Bound: latency of that chain, about 200 cycles a row, once memory has delivered the state (3.1 MB a
// layer of the 27B); the instructions of all blocks are of the same order.
#include <algorithm>

#include "gpu/delta.h"

namespace tnd::gpu {
namespace {

constexpr int kParts = 8;
constexpr int kPer = kDeltaDim / kParts;  // key rows of a thread
constexpr int kThreads = kParts * kDeltaSlice;
constexpr int kSlices = kDeltaDim / kDeltaSlice;
constexpr int kSliceElems = kDeltaDim * kDeltaSlice;
constexpr int kTileRows = 8;           // rows whose inputs are staged together
constexpr int kPartStride = kPer + 4;  // keeps the parts' reads of 16 bytes on different banks
constexpr int kStaged = kParts * kPartStride;
static_assert(kThreads == 2 * kDeltaDim);

struct Inputs {
  float k[kTileRows][kStaged];
  float q[kTileRows][kStaged];
  float v[kTileRows][kDeltaSlice];
  float alpha[kTileRows], beta[kTileRows];
  int32_t load[kTileRows], save[kTileRows], update[kTileRows];  // of DeltaStepRow
};

struct Place {
  int part, column, head, slice;
};
TND_DEVICE Place place_here(int block) {
  const int lane = static_cast<int>(threadIdx.x) % TND_WARP;
  Place p;
  p.part = lane % kParts;
  p.column = static_cast<int>(threadIdx.x) / TND_WARP * (TND_WARP / kParts) + lane / kParts;
  p.head = block / kSlices;
  p.slice = block % kSlices;
  return p;
}

// The thread's part of a slice [128][32] in memory.
TND_DEVICE void load_state(float (&s)[kPer], const float* slice, const Place& p) {
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    s[i] = slice[(p.part * kPer + i) * kDeltaSlice + p.column];
  }
}
TND_DEVICE void store_state(const float (&s)[kPer], float* slice, const Place& p) {
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    slice[(p.part * kPer + i) * kDeltaSlice + p.column] = s[i];
  }
}

// Adds the eight parts of two values; all lanes get the sums.
TND_DEVICE void fold_parts(float& u, float& v) {
#pragma unroll
  for (int mask = kParts / 2; mask > 0; mask /= 2) {
    const float du = shfl_xor(u, mask), dv = shfl_xor(v, mask);
    u += du, v += dv;
  }
}

// One row: d from the state, which becomes the new one unless the row is a leaf. o holds the parts of the row before on
// entry and their sums once `finish` is called: its exchanges run beside those of d.
template <bool UPDATE, typename Finish>
TND_DEVICE float delta_row(float (&s)[kPer], const float* k, const float* q, float alpha, float beta, float v, float& o,
                           const Finish& finish) {
  float p = 0.0f;
#pragma unroll
  for (int i = 0; i < kPer; ++i) p = fmaf(k[i], s[i], p);
  fold_parts(p, o);
  finish();
  const float d = beta * fmaf(-alpha, p, v);
  o = 0.0f;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const float next = fmaf(k[i], d, alpha * s[i]);
    if constexpr (UPDATE) s[i] = next;
    o = fmaf(q[i], next, o);
  }
  return d;
}

// Keeps the last three inputs of a committing chain: thread = channel.
TND_DEVICE void shift_taps(const DeltaStepGroup& g, const float* qkv, int64_t conv_dim, int64_t channel) {
  constexpr int kSaved = kConvTaps - 1;
  float kept[kSaved];
#pragma unroll
  for (int t = 0; t < kSaved; ++t) {
    const int row = g.count - kSaved + t;  // negative: an old tap
    kept[t] = row >= 0 ? qkv[(g.first + row) * conv_dim + channel] : g.state.taps[(kSaved + row) * conv_dim + channel];
  }
#pragma unroll
  for (int t = 0; t < kSaved; ++t) g.state.taps[t * conv_dim + channel] = kept[t];
}

// Tap blocks follow the nv * 4 blocks of the recurrence.
__global__ void __launch_bounds__(kThreads) delta_recur_kernel(DeltaArgs a, int shared_slots) {
  TND_DYNAMIC_SHARED(float, put_aside);  // [shared_slots][kPer][kThreads]
  TND_SHARED(Inputs, staged, [1]);
  Inputs& in = staged[0];
  let_next_start();
  wait_for_previous();
  const DeltaShape& shape = a.w.shape;
  const int64_t conv_dim = shape.conv_dim(), key_dim = shape.key_dim(), value_dim = shape.value_dim();
  const DeltaStepGroup g = a.group_plans[blockIdx.y];
  if (g.count == 0) return;
  const int blocks = shape.nv * kSlices;
  if (static_cast<int>(blockIdx.x) >= blocks) {
    const int64_t channel = int64_t{blockIdx.x - blocks} * kThreads + threadIdx.x;
    if (g.commit != 0 && channel < conv_dim) shift_taps(g, a.io.qkv, conv_dim, channel);
    return;
  }
  const Place at = place_here(static_cast<int>(blockIdx.x));
  const int64_t column = int64_t{at.head} * kDeltaDim + at.slice * kDeltaSlice + at.column;
  float* committed = g.state.s + int64_t{blockIdx.x} * kSliceElems;
  float* saved = a.saved + (int64_t{blockIdx.y} * a.state_slots * blocks + blockIdx.x) * kSliceElems;
  const int64_t slot_elems = int64_t{blocks} * kSliceElems;

  // Inputs of a tile go through registers: loads of the next tile run under the work on this one.
  const float* keys = a.conv + g.first * conv_dim + at.head % shape.nk * kDeltaDim;
  const float* values = a.conv + g.first * conv_dim + 2 * key_dim + at.head * kDeltaDim + at.slice * kDeltaSlice;
  const float* gates = a.gates + int64_t{g.first} * 2 * shape.nv + at.head;
  // The first half of the threads takes queries, the second keys.
  const int element = static_cast<int>(threadIdx.x) % kDeltaDim;
  const bool takes_k = threadIdx.x >= kDeltaDim;
  static_assert(kTileRows * kDeltaSlice == kThreads);
  float next_kq[kTileRows], next_v = 0.0f, next_gate = 0.0f;
  int32_t next_load = 0, next_save = 0, next_update = 0;
  const auto fetch = [&](int first) {
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      next_kq[r] = first + r < g.count ? keys[int64_t{first + r} * conv_dim + (takes_k ? key_dim : 0) + element] : 0.0f;
    }
    const int v_row = static_cast<int>(threadIdx.x) / kDeltaSlice;
    if (first + v_row < g.count) next_v = values[int64_t{first + v_row} * conv_dim + threadIdx.x % kDeltaSlice];
    const int r = static_cast<int>(threadIdx.x) / 2;
    if (r < kTileRows && first + r < g.count) {
      next_gate = gates[(int64_t{first + r} * 2 + threadIdx.x % 2) * shape.nv];
    }
    const int planned = static_cast<int>(threadIdx.x) - 2 * kTileRows;  // threads behind those of the gates
    if (planned >= 0 && planned < kTileRows && first + planned < g.count) {
      const DeltaStepRow& row = a.row_plans[g.first + first + planned];
      next_load = row.load, next_save = row.save, next_update = row.update;
    }
  };
  const auto stage = [&] {
    const int place = element / kPer * kPartStride + element % kPer;
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) (takes_k ? in.k : in.q)[r][place] = next_kq[r];
    (&in.v[0][0])[threadIdx.x] = next_v;
    const int r = static_cast<int>(threadIdx.x) / 2;
    if (r < kTileRows) (threadIdx.x % 2 == 0 ? in.alpha : in.beta)[r] = next_gate;
    const int planned = static_cast<int>(threadIdx.x) - 2 * kTileRows;
    if (planned >= 0 && planned < kTileRows) {
      in.load[planned] = next_load, in.save[planned] = next_save, in.update[planned] = next_update;
    }
  };

  float s[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) s[i] = 0.0f;
  float o = 0.0f;         // parts of the row before, not yet added
  float* o_to = nullptr;  // where their sums go
  const auto finish = [&] {
    if (at.part == 0 && o_to != nullptr) *o_to = o;
  };
  fetch(0);
  for (int first = 0; first < g.count; first += kTileRows) {
    __syncthreads();
    stage();
    __syncthreads();
    if (first + kTileRows < g.count) fetch(first + kTileRows);
    const int n = g.count - first < kTileRows ? g.count - first : kTileRows;
    for (int r = 0; r < n; ++r) {
      const int64_t row = g.first + first + r;
      const int32_t load = in.load[r], save = in.save[r];
      if (load == kStateCommitted) {
        load_state(s, committed, at);
      } else if (load >= shared_slots) {
        load_state(s, saved + load * slot_elems, at);
      } else if (load >= 0) {
#pragma unroll
        for (int i = 0; i < kPer; ++i) s[i] = put_aside[(load * kPer + i) * kThreads + threadIdx.x];
      }
      float k[kPer], q[kPer];
#pragma unroll
      for (int i = 0; i < kPer; i += 4) {
        const float4 k4 = *reinterpret_cast<const float4*>(&in.k[r][at.part * kPartStride + i]);
        const float4 q4 = *reinterpret_cast<const float4*>(&in.q[r][at.part * kPartStride + i]);
        k[i] = k4.x, k[i + 1] = k4.y, k[i + 2] = k4.z, k[i + 3] = k4.w;
        q[i] = q4.x, q[i + 1] = q4.y, q[i + 2] = q4.z, q[i + 3] = q4.w;
      }
      const float v = in.v[r][at.column];
      const float d = in.update[r] != 0 ? delta_row<true>(s, k, q, in.alpha[r], in.beta[r], v, o, finish)
                                        : delta_row<false>(s, k, q, in.alpha[r], in.beta[r], v, o, finish);
      o_to = a.mixed + row * value_dim + column;
      if (at.part == 0 && g.commit == 0) {
        g.replay.d[int64_t{first + r} * value_dim + column] = d;
      }
      if (save == kStateCommitted) {
        store_state(s, committed, at);
      } else if (save >= shared_slots) {
        store_state(s, saved + save * slot_elems, at);
      } else if (save >= 0) {
#pragma unroll
        for (int i = 0; i < kPer; ++i) put_aside[(save * kPer + i) * kThreads + threadIdx.x] = s[i];
      }
    }
  }
  float none = 0.0f;
  fold_parts(none, o);
  finish();
}

__global__ void __launch_bounds__(kThreads) delta_commit_kernel(DeltaCommitArgs a) {
  TND_SHARED(float, keys, [kTileRows][kStaged]);
  let_next_start();
  wait_for_previous();
  const DeltaShape& shape = a.shape;
  const int64_t conv_dim = shape.conv_dim(), key_dim = shape.key_dim(), value_dim = shape.value_dim();
  const DeltaState state = a.states[blockIdx.y];
  const DeltaReplay replay = a.replay[blockIdx.y];
  const int n = *a.count;
  if (n == 0) return;
  const int blocks = shape.nv * kSlices;
  if (static_cast<int>(blockIdx.x) >= blocks) {
    constexpr int kSaved = kConvTaps - 1;
    const int64_t channel = int64_t{blockIdx.x - blocks} * kThreads + threadIdx.x;
    if (channel >= conv_dim) return;
    float kept[kSaved];
#pragma unroll
    for (int t = 0; t < kSaved; ++t) {
      const int i = n - kSaved + t;
      kept[t] = i >= 0 ? replay.conv_in[a.path[i] * conv_dim + channel] : state.taps[(kSaved + i) * conv_dim + channel];
    }
#pragma unroll
    for (int t = 0; t < kSaved; ++t) state.taps[t * conv_dim + channel] = kept[t];
    return;
  }
  const Place at = place_here(static_cast<int>(blockIdx.x));
  const int64_t column = int64_t{at.head} * kDeltaDim + at.slice * kDeltaSlice + at.column;
  float* slice = state.s + int64_t{blockIdx.x} * kSliceElems;
  float s[kPer];
  load_state(s, slice, at);
  const int element = static_cast<int>(threadIdx.x) % kDeltaDim, half = static_cast<int>(threadIdx.x) / kDeltaDim;
  const int place = element / kPer * kPartStride + element % kPer;
  for (int first = 0; first < n; first += kTileRows) {
    const int rows = n - first < kTileRows ? n - first : kTileRows;
    float d[kTileRows];
    float alpha[kTileRows];
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      if (r >= rows) continue;
      const int64_t row = a.path[first + r];
      if (r % 2 == half) keys[r][place] = replay.k[row * key_dim + at.head % shape.nk * kDeltaDim + element];
      d[r] = replay.d[row * value_dim + column];
      alpha[r] = replay.alpha[row * shape.nv + at.head];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      if (r >= rows) continue;
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        const float k = keys[r][at.part * kPartStride + i];
        s[i] = fmaf(k, d[r], alpha[r] * s[i]);
      }
    }
  }
  store_state(s, slice, at);
}

unsigned tap_blocks(const DeltaShape& shape) {
  return static_cast<unsigned>((shape.conv_dim() + kThreads - 1) / kThreads);
}

}  // namespace

void launch_delta_recur(Stream& stream, const DeltaArgs& args) {
  // Two blocks a processor must fit, or the grid of a large model runs in waves.
  constexpr int kBlocksPerProcessor = 2;
  constexpr int kSlotBytes = kSliceElems * static_cast<int>(sizeof(float));
  constexpr int kOther = static_cast<int>(sizeof(Inputs)) + 1024;
  const int room = args.shared_per_block / kBlocksPerProcessor - kOther;
  const int slots = std::clamp(room / kSlotBytes, 0, args.state_slots);
  const Dim3 grid{static_cast<unsigned>(args.w.shape.nv * kSlices) + tap_blocks(args.w.shape),
                  static_cast<unsigned>(args.groups)};
  launch(stream,
         {.grid = grid,
          .block = {kThreads},
          .shared_bytes = static_cast<unsigned>(slots * kSlotBytes),
          .overlap = true,
          .name = "delta_recur"},
         delta_recur_kernel, args, slots);
}

void launch_delta_commit(Stream& stream, const DeltaCommitArgs& args) {
  const Dim3 grid{static_cast<unsigned>(args.shape.nv * kSlices) + tap_blocks(args.shape),
                  static_cast<unsigned>(args.layers)};
  launch(stream, {.grid = grid, .block = {kThreads}, .overlap = true, .name = "delta_commit"}, delta_commit_kernel,
         args);
}

}  // namespace tnd::gpu
