// The delta rule over a step, and its replay.
//
// Block = (value head, slice of 32 columns) of one sequence; thread = key rows part*16 .. +15 of two columns, 32 floats
// of state in registers. Sums over key rows are sixteen fma ascending and three exchanges (4, 2, 1): the eight partials
// of the contract. Bound: latency of that chain, about 200 cycles a row, once memory has delivered the state (3.1 MB a
// layer of the 27B); the instructions of all blocks are of the same order.
#include <algorithm>

#include "gpu/delta.h"
#include "gpu/delta_device.cuh"

namespace tnd::gpu {
namespace {

constexpr int kParts = 8;
constexpr int kPer = kDeltaDim / kParts;            // key rows of a thread
constexpr int kThreads = kParts * kDeltaSlice / 2;  // two columns a thread
constexpr int kSlices = kDeltaDim / kDeltaSlice;
constexpr int kSliceElems = kDeltaDim * kDeltaSlice;
constexpr int kTileRows = 8;           // rows whose inputs are staged together
constexpr int kPartStride = kPer + 4;  // keeps the parts' reads of 16 bytes on different banks
constexpr int kStaged = kParts * kPartStride;
static_assert(kThreads == kDeltaDim);

struct Inputs {
  float k[kTileRows][kStaged];
  float q[kTileRows][kStaged];
  float v[kTileRows][kDeltaSlice];
  float alpha[kTileRows], beta[kTileRows];
  int4 plan[kTileRows];  // load, save, update of DeltaStepRow
};

// What a thread needs of a row; read from shared memory while the row before is worked on.
struct RowInputs {
  float k[kPer], q[kPer];
  float2 v;
  float alpha, beta;
  int4 plan;
};

struct Place {
  int part, column, head, slice;
};
TND_DEVICE Place place_here(int block) {
  const int lane = static_cast<int>(threadIdx.x) % TND_WARP;
  Place p;
  p.part = lane % kParts;
  p.column = (static_cast<int>(threadIdx.x) / TND_WARP * (TND_WARP / kParts) + lane / kParts) * 2;
  p.head = block / kSlices;
  p.slice = block % kSlices;
  return p;
}

// The thread's part of a slice [128][32] in memory.
TND_DEVICE void load_state(float2 (&s)[kPer], const float* slice, const Place& p) {
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    s[i] = *reinterpret_cast<const float2*>(slice + (p.part * kPer + i) * kDeltaSlice + p.column);
  }
}
TND_DEVICE void store_state(const float2 (&s)[kPer], float* slice, const Place& p) {
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    *reinterpret_cast<float2*>(slice + (p.part * kPer + i) * kDeltaSlice + p.column) = s[i];
  }
}

// Adds the eight parts of four values; all lanes get the sums.
TND_DEVICE void fold_parts(float2& u, float2& v) {
#pragma unroll
  for (int mask = kParts / 2; mask > 0; mask /= 2) {
    const float ux = shfl_xor(u.x, mask), uy = shfl_xor(u.y, mask), vx = shfl_xor(v.x, mask), vy = shfl_xor(v.y, mask);
    u.x += ux, u.y += uy, v.x += vx, v.y += vy;
  }
}

// One row: d from the state, which becomes the new one unless the row is a leaf. o holds the parts of the row before on
// entry and their sums once `finish` is called: its exchanges run beside those of d.
template <bool UPDATE, typename Finish>
TND_DEVICE float2 delta_row(float2 (&s)[kPer], const float* k, const float* q, float alpha, float beta, float2 v,
                            float2& o, const Finish& finish) {
  float2 p = make_float2(0.0f, 0.0f);
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    p.x = fmaf(k[i], s[i].x, p.x);
    p.y = fmaf(k[i], s[i].y, p.y);
  }
  fold_parts(p, o);
  finish();
  const float2 d = make_float2(beta * fmaf(-alpha, p.x, v.x), beta * fmaf(-alpha, p.y, v.y));
  o = make_float2(0.0f, 0.0f);
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const float2 next = make_float2(fmaf(k[i], d.x, alpha * s[i].x), fmaf(k[i], d.y, alpha * s[i].y));
    if constexpr (UPDATE) s[i] = next;
    o.x = fmaf(q[i], next.x, o.x);
    o.y = fmaf(q[i], next.y, o.y);
  }
  return d;
}

// Tap blocks follow the nv * 4 blocks of the recurrence.
__global__ void __launch_bounds__(kThreads) delta_recur_kernel(DeltaArgs a, int shared_slots) {
  TND_DYNAMIC_SHARED(float2, put_aside);  // [shared_slots][kPer][kThreads]
  TND_SHARED(Inputs, staged, [1]);
  Inputs& in = staged[0];
  let_next_start();
  wait_for_previous();
  const DeltaShape& shape = a.w.shape;
  const int64_t conv_dim = shape.conv_dim(), key_dim = shape.key_dim(), value_dim = shape.value_dim();
  const DeltaStepGroup g = a.group_plans[blockIdx.y];
  if (g.count == 0 || g.chunked != 0) return;
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
  float next_k[kTileRows], next_q[kTileRows], next_v[kTileRows * kDeltaSlice / kThreads];
  float next_gate = 0.0f;
  int32_t next_load = 0, next_save = 0, next_update = 0;
  const auto fetch = [&](int first) {
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const bool live = first + r < g.count;
      const float* row = keys + int64_t{first + r} * conv_dim + threadIdx.x;
      next_q[r] = live ? row[0] : 0.0f;
      next_k[r] = live ? row[key_dim] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kTileRows * kDeltaSlice / kThreads; ++i) {
      const int r = (i * kThreads + static_cast<int>(threadIdx.x)) / kDeltaSlice;
      next_v[i] = first + r < g.count ? values[int64_t{first + r} * conv_dim + threadIdx.x % kDeltaSlice] : 0.0f;
    }
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
    const int place = static_cast<int>(threadIdx.x) / kPer * kPartStride + static_cast<int>(threadIdx.x) % kPer;
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      in.k[r][place] = next_k[r];
      in.q[r][place] = next_q[r];
    }
#pragma unroll
    for (int i = 0; i < kTileRows * kDeltaSlice / kThreads; ++i) {
      (&in.v[0][0])[i * kThreads + static_cast<int>(threadIdx.x)] = next_v[i];
    }
    const int r = static_cast<int>(threadIdx.x) / 2;
    if (r < kTileRows) (threadIdx.x % 2 == 0 ? in.alpha : in.beta)[r] = next_gate;
    const int planned = static_cast<int>(threadIdx.x) - 2 * kTileRows;
    if (planned >= 0 && planned < kTileRows) in.plan[planned] = make_int4(next_load, next_save, next_update, 0);
  };

  float2 s[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) s[i] = make_float2(0.0f, 0.0f);
  float2 o = make_float2(0.0f, 0.0f);  // parts of the row before, not yet added
  float* o_to = nullptr;               // where their sums go
  const auto finish = [&] {
    if (at.part == 0 && o_to != nullptr) *reinterpret_cast<float2*>(o_to) = o;
  };
  fetch(0);
  for (int first = 0; first < g.count; first += kTileRows) {
    __syncthreads();
    stage();
    __syncthreads();
    if (first + kTileRows < g.count) fetch(first + kTileRows);
    const int n = g.count - first < kTileRows ? g.count - first : kTileRows;
    const auto read = [&](int r) {
      RowInputs x;
#pragma unroll
      for (int i = 0; i < kPer; i += 4) {
        const float4 k4 = *reinterpret_cast<const float4*>(&in.k[r][at.part * kPartStride + i]);
        const float4 q4 = *reinterpret_cast<const float4*>(&in.q[r][at.part * kPartStride + i]);
        x.k[i] = k4.x, x.k[i + 1] = k4.y, x.k[i + 2] = k4.z, x.k[i + 3] = k4.w;
        x.q[i] = q4.x, x.q[i + 1] = q4.y, x.q[i + 2] = q4.z, x.q[i + 3] = q4.w;
      }
      x.v = *reinterpret_cast<const float2*>(&in.v[r][at.column]);
      x.alpha = in.alpha[r], x.beta = in.beta[r], x.plan = in.plan[r];
      return x;
    };
    // Two rows a turn, for the two sets of inputs: a tile's eight rows are 70 KB of code, more than the nearer caches
    // of instructions hold, and every turn would fetch them anew.
    RowInputs inputs[2];
    inputs[0] = read(0);
    const auto do_row = [&](int r, const RowInputs& x) {
      const int64_t row = g.first + first + r;
      const int32_t load = x.plan.x, save = x.plan.y;
      if (load == kStateCommitted) {
        load_state(s, committed, at);
      } else if (load >= shared_slots) {
        load_state(s, saved + load * slot_elems, at);
      } else if (load >= 0) {
#pragma unroll
        for (int i = 0; i < kPer; ++i) s[i] = put_aside[(load * kPer + i) * kThreads + threadIdx.x];
      }
      const float2 d = x.plan.z != 0 ? delta_row<true>(s, x.k, x.q, x.alpha, x.beta, x.v, o, finish)
                                     : delta_row<false>(s, x.k, x.q, x.alpha, x.beta, x.v, o, finish);
      o_to = a.mixed + row * value_dim + column;
      if (at.part == 0 && g.commit == 0) {
        *reinterpret_cast<float2*>(g.replay.d + int64_t{first + r} * value_dim + column) = d;
      }
      if (save == kStateCommitted) {
        store_state(s, committed, at);
      } else if (save >= shared_slots) {
        store_state(s, saved + save * slot_elems, at);
      } else if (save >= 0) {
#pragma unroll
        for (int i = 0; i < kPer; ++i) put_aside[(save * kPer + i) * kThreads + threadIdx.x] = s[i];
      }
    };
#pragma unroll 1
    for (int r = 0; r < n; r += 2) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        if (r + odd >= n) break;
        inputs[1 - odd] = read((r + odd + 1) % kTileRows);  // beyond n: whatever is there, not used
        do_row(r + odd, inputs[odd]);
      }
    }
  }
  float2 none = make_float2(0.0f, 0.0f);
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
  float2 s[kPer];
  load_state(s, slice, at);
  const int place = static_cast<int>(threadIdx.x) / kPer * kPartStride + static_cast<int>(threadIdx.x) % kPer;
  for (int first = 0; first < n; first += kTileRows) {
    const int rows = n - first < kTileRows ? n - first : kTileRows;
    float2 d[kTileRows];
    float alpha[kTileRows];
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      if (r >= rows) continue;
      const int64_t row = a.path[first + r];
      keys[r][place] = replay.k[row * key_dim + at.head % shape.nk * kDeltaDim + threadIdx.x];
      d[r] = *reinterpret_cast<const float2*>(replay.d + row * value_dim + column);
      alpha[r] = replay.alpha[row * shape.nv + at.head];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      if (r >= rows) continue;
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        const float k = keys[r][at.part * kPartStride + i];
        s[i].x = fmaf(k, d[r].x, alpha[r] * s[i].x);
        s[i].y = fmaf(k, d[r].y, alpha[r] * s[i].y);
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
