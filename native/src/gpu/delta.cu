// The delta rule over a step, and its replay.
//
// Block = (value head, slice of 32 columns) of one sequence; thread = key rows part*16 .. +15 of four columns, 64
// floats of state in registers. Sums over key rows are sixteen fma ascending and three exchanges (4, 2, 1): the eight
// partials of the contract. Bound: a warp's row alone, about 350 instructions of which 256 are products; four columns a
// thread because keys and queries come from shared memory once for all of them.
#include <algorithm>

#include "gpu/delta.h"
#include "gpu/delta_device.cuh"

namespace tnd::gpu {
namespace {

constexpr int kParts = 8;
constexpr int kPer = kDeltaDim / kParts;  // key rows of a thread
constexpr int kColumns = 4;               // of a thread
constexpr int kThreads = kParts * kDeltaSlice / kColumns;
constexpr int kTapChannels = 4 * kThreads;  // of a block: few blocks, they keep others from the processors
constexpr int kSlices = kDeltaDim / kDeltaSlice;
constexpr int kSliceElems = kDeltaDim * kDeltaSlice;
constexpr int kTileRows = 8;           // rows whose inputs are staged together
constexpr int kPartStride = kPer + 4;  // keeps the parts' reads of 16 bytes on different banks
constexpr int kStaged = kParts * kPartStride;
static_assert(kThreads * 2 == kDeltaDim && kThreads * 4 == kTileRows * kDeltaSlice && kThreads >= 3 * kTileRows);

struct Inputs {
  float k[kTileRows][kStaged];
  float q[kTileRows][kStaged];
  float v[kTileRows][kDeltaSlice];
  float alpha[kTileRows], beta[kTileRows];
  int4 plan[kTileRows];  // load, save, update of DeltaStepRow
};

struct Place {
  int part, column, head, slice;
};
TND_DEVICE Place place_here(int block) {
  Place p;
  p.part = static_cast<int>(threadIdx.x) % kParts;
  p.column = static_cast<int>(threadIdx.x) / kParts * kColumns;
  p.head = block / kSlices;
  p.slice = block % kSlices;
  return p;
}

// The thread's part of a slice [128][32] in memory.
TND_DEVICE void load_state(float4 (&s)[kPer], const float* slice, const Place& p) {
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    s[i] = *reinterpret_cast<const float4*>(slice + (p.part * kPer + i) * kDeltaSlice + p.column);
  }
}
TND_DEVICE void store_state(const float4 (&s)[kPer], float* slice, const Place& p) {
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    *reinterpret_cast<float4*>(slice + (p.part * kPer + i) * kDeltaSlice + p.column) = s[i];
  }
}

// Adds the eight parts of eight values, four of u and four of v: each exchange halves what a lane goes on with, and
// lane `part` ends with the sum of u's column part % 4, or v's from part 4 on. Adding is commutative: the order of the
// parts is that of exchanging everything.
TND_DEVICE float fold_parts(const float4& u, const float4& v, int part) {
  const bool upper = (part & 4) != 0, second = (part & 2) != 0, odd = (part & 1) != 0;
  float4 x = upper ? v : u;
  const float4 y = upper ? u : v;
  x.x += shfl_xor(y.x, 4), x.y += shfl_xor(y.y, 4), x.z += shfl_xor(y.z, 4), x.w += shfl_xor(y.w, 4);
  float2 z = second ? make_float2(x.z, x.w) : make_float2(x.x, x.y);
  const float2 w = second ? make_float2(x.x, x.y) : make_float2(x.z, x.w);
  z.x += shfl_xor(w.x, 2), z.y += shfl_xor(w.y, 2);
  return (odd ? z.y : z.x) + shfl_xor(odd ? z.x : z.y, 1);
}

// The four columns of a value that lanes part 0 .. 3 hold, for all eight lanes of a group.
TND_DEVICE float4 gather_columns(float x) {
  const int first = static_cast<int>(threadIdx.x) % TND_WARP / kParts * kParts;
  return make_float4(shfl(x, first), shfl(x, first + 1), shfl(x, first + 2), shfl(x, first + 3));
}

TND_DEVICE float4 multiply_add(float a, const float4& b, const float4& c) {
  return make_float4(fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z), fmaf(a, b.w, c.w));
}
TND_DEVICE float4 multiply(float a, const float4& b) {
  return make_float4(a * b.x, a * b.y, a * b.z, a * b.w);
}

// A thread's part of a staged row.
TND_DEVICE void read_part(float (&x)[kPer], const float* row, int part) {
#pragma unroll
  for (int i = 0; i < kPer; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(row + part * kPartStride + i);
    x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
  }
}

// Tap blocks follow the nv * 4 blocks of the recurrence.
__global__ void __launch_bounds__(kThreads) delta_recur_kernel(DeltaArgs a, int shared_slots) {
  TND_DYNAMIC_SHARED(float4, put_aside);  // [shared_slots][kPer][kThreads]
  TND_SHARED(Inputs, staged, [1]);
  Inputs& in = staged[0];
  let_next_start();
  const DeltaShape& shape = a.w.shape;
  const int64_t conv_dim = shape.conv_dim(), key_dim = shape.key_dim(), value_dim = shape.value_dim();
  const DeltaStepGroup g = a.group_plans[blockIdx.y];  // plans are older than the work before
  if (g.count == 0 || g.chunked != 0) {
    wait_for_previous();
    return;
  }
  const int blocks = shape.nv * kSlices, tid = static_cast<int>(threadIdx.x);
  if (static_cast<int>(blockIdx.x) >= blocks) {
    const int64_t channel = int64_t{blockIdx.x - blocks} * kTapChannels + threadIdx.x;
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < kTapChannels; i += kThreads) {
      if (g.commit != 0 && channel + i < conv_dim) shift_taps(g, a.io.qkv, conv_dim, channel + i);
    }
    return;
  }
  const Place at = place_here(static_cast<int>(blockIdx.x));
  float* committed = g.state.s + int64_t{blockIdx.x} * kSliceElems;
  float* saved = a.saved + (int64_t{blockIdx.y} * a.state_slots * blocks + blockIdx.x) * kSliceElems;
  const int64_t slot_elems = int64_t{blocks} * kSliceElems;
  // Where the lane's share of d (parts 0 .. 3) and of o (parts 4 .. 7) goes.
  const int64_t column = int64_t{at.head} * kDeltaDim + at.slice * kDeltaSlice + at.column + at.part % kColumns;
  float* out = at.part >= kColumns ? a.mixed + g.first * value_dim + column
               : g.commit == 0     ? g.replay.d + column
                                   : nullptr;

  // Inputs of a tile go through registers: loads of the next tile run under the work on this one.
  const float* keys = a.conv + g.first * conv_dim + at.head % shape.nk * kDeltaDim + tid * 2;
  const float* values = a.conv + g.first * conv_dim + 2 * key_dim + at.head * kDeltaDim + at.slice * kDeltaSlice +
                        tid % (kDeltaSlice / 4) * 4;
  const float* gates = a.gates + int64_t{g.first} * 2 * shape.nv + at.head;
  float2 next_k[kTileRows], next_q[kTileRows];
  float4 next_v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float next_gate = 0.0f;
  int4 next_plan = make_int4(0, 0, 0, 0);
  const auto fetch = [&](int first) {
    const float2 zero = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const bool live = first + r < g.count;
      const float* row = keys + int64_t{first + r} * conv_dim;
      next_q[r] = live ? *reinterpret_cast<const float2*>(row) : zero;
      next_k[r] = live ? *reinterpret_cast<const float2*>(row + key_dim) : zero;
    }
    int r = first + tid / (kDeltaSlice / 4);
    if (r < g.count) next_v = *reinterpret_cast<const float4*>(values + int64_t{r} * conv_dim);
    r = first + tid / 2;
    if (tid < 2 * kTileRows && r < g.count) next_gate = gates[(int64_t{r} * 2 + tid % 2) * shape.nv];
    r = first + tid - 2 * kTileRows;  // threads behind those of the gates
    if (tid >= 2 * kTileRows && tid < 3 * kTileRows && r < g.count) {
      const DeltaStepRow& row = a.row_plans[g.first + r];
      next_plan = make_int4(row.load, row.save, row.update, 0);
    }
  };
  const auto stage = [&] {
    const int place = tid * 2 / kPer * kPartStride + tid * 2 % kPer;
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      *reinterpret_cast<float2*>(&in.k[r][place]) = next_k[r];
      *reinterpret_cast<float2*>(&in.q[r][place]) = next_q[r];
    }
    reinterpret_cast<float4*>(&in.v[0][0])[tid] = next_v;
    if (tid < 2 * kTileRows) (tid % 2 == 0 ? in.alpha : in.beta)[tid / 2] = next_gate;
    const int planned = tid - 2 * kTileRows;
    if (planned >= 0 && planned < kTileRows) in.plan[planned] = next_plan;
  };

  // The first row starts from the committed state, which only this launch of a step touches.
  float4 s[kPer];
  load_state(s, committed, at);
  float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);  // parts of the row before, not yet added
  wait_for_previous();
  fetch(0);
  for (int first = 0; first < g.count; first += kTileRows) {
    __syncthreads();
    stage();
    __syncthreads();
    if (first + kTileRows < g.count) fetch(first + kTileRows);
    const int n = g.count - first < kTileRows ? g.count - first : kTileRows;
    float k[kPer], q[kPer];
    read_part(k, in.k[0], at.part);
    int4 plan = in.plan[0];
    // One row a turn: a tile's eight rows in one piece are more code than the nearer caches of instructions hold.
#pragma unroll 1
    for (int r = 0; r < n; ++r) {
      const int32_t load = plan.x, save = plan.y;
      const bool update = plan.z != 0;
      read_part(q, in.q[r], at.part);
      const float v = in.v[r][at.column + at.part % kColumns], alpha = in.alpha[r], beta = in.beta[r];
      if (load == kStateCommitted) {
        if (first + r > 0) load_state(s, committed, at);
      } else if (load >= shared_slots) {
        load_state(s, saved + load * slot_elems, at);
      } else if (load >= 0) {
#pragma unroll
        for (int i = 0; i < kPer; ++i) s[i] = put_aside[(load * kPer + i) * kThreads + tid];
      }
      float4 p = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
      for (int i = 0; i < kPer; ++i) p = multiply_add(k[i], s[i], p);
      // The exchanges of o run beside those of d.
      const float sum = fold_parts(p, o, at.part), mine = beta * fmaf(-alpha, sum, v);
      const float4 d = gather_columns(mine);
      const int64_t row = at.part < kColumns ? first + r : first + r - 1;
      if (out != nullptr && row >= 0) out[row * value_dim] = at.part < kColumns ? mine : sum;
      o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      const int ahead = (r + 1) % kTileRows;  // beyond n: whatever is there, not used
      if (update) {
#pragma unroll
        for (int i = 0; i < kPer; ++i) s[i] = multiply_add(k[i], d, multiply(alpha, s[i]));
        read_part(k, in.k[ahead], at.part);
#pragma unroll
        for (int i = 0; i < kPer; ++i) o = multiply_add(q[i], s[i], o);
      } else {
#pragma unroll
        for (int i = 0; i < kPer; ++i) o = multiply_add(q[i], multiply_add(k[i], d, multiply(alpha, s[i])), o);
        read_part(k, in.k[ahead], at.part);
      }
      plan = in.plan[ahead];
      if (save == kStateCommitted) {
        store_state(s, committed, at);
      } else if (save >= shared_slots) {
        store_state(s, saved + save * slot_elems, at);
      } else if (save >= 0) {
#pragma unroll
        for (int i = 0; i < kPer; ++i) put_aside[(save * kPer + i) * kThreads + tid] = s[i];
      }
    }
  }
  const float sum = fold_parts(make_float4(0.0f, 0.0f, 0.0f, 0.0f), o, at.part);
  if (at.part >= kColumns) out[int64_t{g.count - 1} * value_dim] = sum;
}

__global__ void __launch_bounds__(kThreads) delta_commit_kernel(DeltaCommitArgs a) {
  TND_SHARED(float, keys, [kTileRows][kStaged]);
  let_next_start();
  wait_for_previous();
  const DeltaShape& shape = a.shape;
  const int64_t conv_dim = shape.conv_dim(), key_dim = shape.key_dim(), value_dim = shape.value_dim();
  const DeltaState state = a.states[blockIdx.y];
  const DeltaReplay replay = a.replay[blockIdx.y];
  const int n = *a.count, tid = static_cast<int>(threadIdx.x);
  const int blocks = shape.nv * kSlices;
  if (static_cast<int>(blockIdx.x) >= blocks) {
    constexpr int kSaved = kConvTaps - 1;
    const int64_t channel = int64_t{blockIdx.x - blocks} * kTapChannels + tid * 4;
    if (n == 0 || channel >= conv_dim) return;
    float4 kept[kSaved];
#pragma unroll
    for (int t = 0; t < kSaved; ++t) {
      const int i = n - kSaved + t;
      const float* from = i >= 0 ? replay.conv_in + a.path[i] * conv_dim : state.taps + (kSaved + i) * conv_dim;
      kept[t] = *reinterpret_cast<const float4*>(from + channel);
    }
#pragma unroll
    for (int t = 0; t < kSaved; ++t) *reinterpret_cast<float4*>(state.taps + t * conv_dim + channel) = kept[t];
    return;
  }
  const Place at = place_here(static_cast<int>(blockIdx.x));
  const int64_t column = int64_t{at.head} * kDeltaDim + at.slice * kDeltaSlice + at.column;
  float* slice = state.s + int64_t{blockIdx.x} * kSliceElems;
  float4 s[kPer];
  load_state(s, slice, at);  // under the reads of the path
  const int place = tid * 2 / kPer * kPartStride + tid * 2 % kPer;
  for (int first = 0; first < n; first += kTileRows) {
    const int rows = n - first < kTileRows ? n - first : kTileRows;
    float4 d[kTileRows];
    float alpha[kTileRows];
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      if (r >= rows) continue;
      const int64_t row = a.path[first + r];
      *reinterpret_cast<float2*>(&keys[r][place]) =
          *reinterpret_cast<const float2*>(replay.k + row * key_dim + at.head % shape.nk * kDeltaDim + tid * 2);
      d[r] = *reinterpret_cast<const float4*>(replay.d + row * value_dim + column);
      alpha[r] = replay.alpha[row * shape.nv + at.head];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      if (r >= rows) continue;
      float k[kPer];
      read_part(k, keys[r], at.part);
#pragma unroll
      for (int i = 0; i < kPer; ++i) s[i] = multiply_add(k[i], d[r], multiply(alpha[r], s[i]));
    }
  }
  if (n > 0) store_state(s, slice, at);
}

unsigned tap_blocks(const DeltaShape& shape) {
  return static_cast<unsigned>((shape.conv_dim() + kTapChannels - 1) / kTapChannels);
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
