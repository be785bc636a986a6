// The delta rule over a step, and its replay.
//
// Block = (value head, slice of 32 columns) of one sequence; thread = key rows part*16 .. +15 of four columns, 64
// floats of state in registers. Sums over key rows are sixteen fma ascending and three exchanges (4, 2, 1): the eight
// partials of the contract. Bound: a warp's row alone, about 350 instructions of which 256 are products; four columns a
// thread because keys and queries come from shared memory once for all of them.
#include <algorithm>
#include <type_traits>

#include "gpu/delta.h"
#include "gpu/delta_device.cuh"

namespace tnd::gpu {
namespace {

constexpr int kParts = 8;
constexpr int kPer = kDeltaDim / kParts;  // key rows of a thread
constexpr int kSlices = kDeltaDim / kDeltaSlice;
constexpr int kSliceElems = kDeltaDim * kDeltaSlice;
constexpr int kTileRows = 8;           // rows whose inputs are staged together
constexpr int kPartStride = kPer + 4;  // keeps the parts' reads of 16 bytes on different banks
constexpr int kStaged = kParts * kPartStride;

struct Inputs {
  float k[kTileRows][kStaged];
  float q[kTileRows][kStaged];
  float v[kTileRows][kDeltaSlice];
  float alpha[kTileRows], beta[kTileRows];
  int4 plan[kTileRows];  // load, save, update of DeltaStepRow
};

// COLUMNS of a thread, and what follows from them.
template <int COLUMNS>
struct Form {
  static constexpr int kThreads = kParts * kDeltaSlice / COLUMNS;
  static constexpr int kKeys = kDeltaDim / kThreads;                  // elements of a row of keys that a thread fetches
  static constexpr int kValues = kTileRows * kDeltaSlice / kThreads;  // of a tile of values
  static constexpr int kTapChannels = 4 * kThreads;  // of a block: few blocks, they keep others from the processors
  static_assert(kValues == COLUMNS && kThreads >= 3 * kTileRows);
};

// N neighbouring floats, read and written at once.
template <int N>
struct alignas(N * 4) Floats {
  float v[N];
};

struct Place {
  int part, column, head, slice;
};
template <int COLUMNS>
TND_DEVICE Place place_here(int block) {
  Place p;
  p.part = static_cast<int>(threadIdx.x) % kParts;
  p.column = static_cast<int>(threadIdx.x) / kParts * COLUMNS;
  p.head = block / kSlices;
  p.slice = block % kSlices;
  return p;
}

// The thread's part of a slice [128][32] in memory.
template <int N>
TND_DEVICE void load_state(Floats<N> (&s)[kPer], const float* slice, const Place& p) {
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    s[i] = *reinterpret_cast<const Floats<N>*>(slice + (p.part * kPer + i) * kDeltaSlice + p.column);
  }
}
template <int N>
TND_DEVICE void store_state(const Floats<N> (&s)[kPer], float* slice, const Place& p) {
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    *reinterpret_cast<Floats<N>*>(slice + (p.part * kPer + i) * kDeltaSlice + p.column) = s[i];
  }
}

// Adds the eight parts of the columns of u and v: the first exchange parts u (part < 4 goes on with it) from v, the
// second columns. Lane `part` ends with the sum of column own_column(part). Adding is commutative: the order of the
// parts is that of exchanging everything.
template <int COLUMNS>
TND_DEVICE int own_column(int part) {
  return COLUMNS == 4 ? part % 4 : part / 2 % 2;
}
template <int COLUMNS>
TND_DEVICE float fold_parts(const Floats<COLUMNS>& u, const Floats<COLUMNS>& v, int part) {
  const bool upper = (part & 4) != 0, second = (part & 2) != 0, odd = (part & 1) != 0;
  Floats<COLUMNS> x;
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    x.v[c] = (upper ? v.v[c] : u.v[c]) + shfl_xor(upper ? u.v[c] : v.v[c], 4);
  }
  constexpr int kHalf = COLUMNS / 2;
  float z[kHalf];
#pragma unroll
  for (int c = 0; c < kHalf; ++c) {
    z[c] = (second ? x.v[kHalf + c] : x.v[c]) + shfl_xor(second ? x.v[c] : x.v[kHalf + c], 2);
  }
  if constexpr (COLUMNS == 4) return (odd ? z[1] : z[0]) + shfl_xor(odd ? z[0] : z[1], 1);
  return z[0] + shfl_xor(z[0], 1);
}
// The columns of a value that lanes part 0 .. 3 hold, for all eight lanes of a group.
template <int COLUMNS>
TND_DEVICE Floats<COLUMNS> gather_columns(float x) {
  const int first = static_cast<int>(threadIdx.x) % TND_WARP / kParts * kParts;
  Floats<COLUMNS> all;
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) all.v[c] = shfl(x, first + c * (4 / COLUMNS));
  return all;
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
template <int COLUMNS>
__global__ void __launch_bounds__(Form<COLUMNS>::kThreads) delta_recur_kernel(DeltaArgs a, int shared_slots) {
  using F = Form<COLUMNS>;
  using State = Floats<COLUMNS>;
  constexpr int kThreads = F::kThreads;
  TND_DYNAMIC_SHARED(State, put_aside);  // [shared_slots][kPer][kThreads]
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
    const int64_t channel = int64_t{blockIdx.x - blocks} * F::kTapChannels + threadIdx.x;
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < F::kTapChannels; i += kThreads) {
      if (g.commit != 0 && channel + i < conv_dim) shift_taps(g, a.io.qkv, conv_dim, channel + i);
    }
    return;
  }
  const Place at = place_here<COLUMNS>(static_cast<int>(blockIdx.x));
  float* committed = g.state.s + int64_t{blockIdx.x} * kSliceElems;
  float* saved = a.saved + (int64_t{blockIdx.y} * a.state_slots * blocks + blockIdx.x) * kSliceElems;
  const int64_t slot_elems = int64_t{blocks} * kSliceElems;
  // Where the lane's share of d (parts 0 .. 3) and of o (parts 4 .. 7) goes.
  const int own = at.column + own_column<COLUMNS>(at.part);
  const int64_t column = int64_t{at.head} * kDeltaDim + at.slice * kDeltaSlice + own;
  const bool holds_o = at.part >= 4, twin = COLUMNS == 2 && at.part % 2 != 0;  // two lanes have the same sum
  float* out = twin            ? nullptr
               : holds_o       ? a.mixed + g.first * value_dim + column
               : g.commit == 0 ? g.replay.d + column
                               : nullptr;

  // Inputs of a tile go through registers: loads of the next tile run under the work on this one.
  const float* keys = a.conv + g.first * conv_dim + at.head % shape.nk * kDeltaDim + tid * F::kKeys;
  const float* values = a.conv + g.first * conv_dim + 2 * key_dim + at.head * kDeltaDim + at.slice * kDeltaSlice +
                        tid * F::kValues % kDeltaSlice;
  const float* gates = a.gates + int64_t{g.first} * 2 * shape.nv + at.head;
  Floats<F::kKeys> next_k[kTileRows], next_q[kTileRows];
  Floats<F::kValues> next_v{};
  float next_gate = 0.0f;
  int4 next_plan = make_int4(0, 0, 0, 0);
  const auto fetch = [&](int first) {
    const Floats<F::kKeys> zero{};
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const bool live = first + r < g.count;
      const float* row = keys + int64_t{first + r} * conv_dim;
      next_q[r] = live ? *reinterpret_cast<const Floats<F::kKeys>*>(row) : zero;
      next_k[r] = live ? *reinterpret_cast<const Floats<F::kKeys>*>(row + key_dim) : zero;
    }
    int r = first + tid * F::kValues / kDeltaSlice;
    if (r < g.count) next_v = *reinterpret_cast<const Floats<F::kValues>*>(values + int64_t{r} * conv_dim);
    r = first + tid / 2;
    if (tid < 2 * kTileRows && r < g.count) next_gate = gates[(int64_t{r} * 2 + tid % 2) * shape.nv];
    r = first + tid - 2 * kTileRows;  // threads behind those of the gates
    if (tid >= 2 * kTileRows && tid < 3 * kTileRows && r < g.count) {
      const DeltaStepRow& row = a.row_plans[g.first + r];
      next_plan = make_int4(row.load, row.save, row.update, 0);
    }
  };
  const auto stage = [&] {
    const int place = tid * F::kKeys / kPer * kPartStride + tid * F::kKeys % kPer;
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      *reinterpret_cast<Floats<F::kKeys>*>(&in.k[r][place]) = next_k[r];
      *reinterpret_cast<Floats<F::kKeys>*>(&in.q[r][place]) = next_q[r];
    }
    reinterpret_cast<Floats<F::kValues>*>(&in.v[0][0])[tid] = next_v;
    if (tid < 2 * kTileRows) (tid % 2 == 0 ? in.alpha : in.beta)[tid / 2] = next_gate;
    const int planned = tid - 2 * kTileRows;
    if (planned >= 0 && planned < kTileRows) in.plan[planned] = next_plan;
  };

  // The first row starts from the committed state, which only this launch of a step touches.
  State s[kPer], o{};  // o: parts of the row before, not yet added
  load_state(s, committed, at);
  float k[kPer], q[kPer];
  // One row: d from the state, which becomes the new one unless the row is a leaf.
  const auto do_row = [&](int r, int row, auto updates) {
    constexpr bool kUpdate = decltype(updates)::value;
    const float v = in.v[r][own], alpha = in.alpha[r], beta = in.beta[r];
    State p{};
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) p.v[c] = fmaf(k[i], s[i].v[c], p.v[c]);
    }
    if constexpr (kUpdate) {  // under the exchanges
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) s[i].v[c] = alpha * s[i].v[c];
      }
    }
    const float sum = fold_parts<COLUMNS>(p, o, at.part), mine = beta * fmaf(-alpha, sum, v);
    const State d = gather_columns<COLUMNS>(mine);
    const int64_t to = holds_o ? row - 1 : row;
    if (out != nullptr && to >= 0) out[to * value_dim] = holds_o ? sum : mine;
    o = State{};
    if constexpr (kUpdate) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) s[i].v[c] = fmaf(k[i], d.v[c], s[i].v[c]);
      }
    }
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        const float next = kUpdate ? s[i].v[c] : fmaf(k[i], d.v[c], alpha * s[i].v[c]);
        o.v[c] = fmaf(q[i], next, o.v[c]);
      }
    }
  };
  wait_for_previous();
  fetch(0);
  for (int first = 0; first < g.count; first += kTileRows) {
    __syncthreads();
    stage();
    __syncthreads();
    if (first + kTileRows < g.count) fetch(first + kTileRows);
    const int n = g.count - first < kTileRows ? g.count - first : kTileRows;
    read_part(k, in.k[0], at.part);
    int4 plan = in.plan[0];
    // One row a turn: a tile's eight rows in one piece are more code than the nearer caches of instructions hold.
#pragma unroll 1
    for (int r = 0; r < n; ++r) {
      const int32_t load = plan.x, save = plan.y;
      read_part(q, in.q[r], at.part);
      if (load == kStateCommitted) {
        if (first + r > 0) load_state(s, committed, at);
      } else if (load >= shared_slots) {
        load_state(s, saved + load * slot_elems, at);
      } else if (load >= 0) {
#pragma unroll
        for (int i = 0; i < kPer; ++i) s[i] = put_aside[(load * kPer + i) * kThreads + tid];
      }
      if (plan.z != 0) {
        do_row(r, first + r, std::true_type());
      } else {
        do_row(r, first + r, std::false_type());
      }
      const int ahead = (r + 1) % kTileRows;  // beyond n: whatever is there, not used
      read_part(k, in.k[ahead], at.part);
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
  const float sum = fold_parts<COLUMNS>(State{}, o, at.part);
  if (holds_o && out != nullptr) out[int64_t{g.count - 1} * value_dim] = sum;
}

// Four columns need 242 registers, which gfx1100 does not have.
#if defined(TND_GPU_HIP)
constexpr int kColumns = 2;
#else
constexpr int kColumns = 4;
#endif
constexpr int kThreads = Form<kColumns>::kThreads;

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
    const int64_t channel = int64_t{blockIdx.x - blocks} * Form<kColumns>::kTapChannels + tid * 4;
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
  const Place at = place_here<kColumns>(static_cast<int>(blockIdx.x));
  const int64_t column = int64_t{at.head} * kDeltaDim + at.slice * kDeltaSlice + at.column;
  float* slice = state.s + int64_t{blockIdx.x} * kSliceElems;
  Floats<kColumns> s[kPer];
  load_state(s, slice, at);  // under the reads of the path
  constexpr int kKeys = Form<kColumns>::kKeys;
  const int place = tid * kKeys / kPer * kPartStride + tid * kKeys % kPer;
  for (int first = 0; first < n; first += kTileRows) {
    const int rows = n - first < kTileRows ? n - first : kTileRows;
    Floats<kColumns> d[kTileRows];
    float alpha[kTileRows];
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      if (r >= rows) continue;
      const int64_t row = a.path[first + r];
      *reinterpret_cast<Floats<kKeys>*>(&keys[r][place]) = *reinterpret_cast<const Floats<kKeys>*>(
          replay.k + row * key_dim + at.head % shape.nk * kDeltaDim + tid * kKeys);
      d[r] = *reinterpret_cast<const Floats<kColumns>*>(replay.d + row * value_dim + column);
      alpha[r] = replay.alpha[row * shape.nv + at.head];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      if (r >= rows) continue;
      float k[kPer];
      read_part(k, keys[r], at.part);
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) s[i].v[c] = fmaf(k[i], d[r].v[c], alpha[r] * s[i].v[c]);
      }
    }
  }
  if (n > 0) store_state(s, slice, at);
}

unsigned tap_blocks(const DeltaShape& shape) {
  return static_cast<unsigned>((shape.conv_dim() + Form<kColumns>::kTapChannels - 1) / Form<kColumns>::kTapChannels);
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
         delta_recur_kernel<kColumns>, args, slots);
}

void launch_delta_commit(Stream& stream, const DeltaCommitArgs& args) {
  const Dim3 grid{static_cast<unsigned>(args.shape.nv * kSlices) + tap_blocks(args.shape),
                  static_cast<unsigned>(args.layers)};
  launch(stream, {.grid = grid, .block = {kThreads}, .overlap = true, .name = "delta_commit"}, delta_commit_kernel,
         args);
}

}  // namespace tnd::gpu
