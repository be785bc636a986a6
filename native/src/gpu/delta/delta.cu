// The delta rule over a step, and its replay.
//
// Block = (value head, slice of 32 columns) of one sequence; thread = parts p and p + 4 of the eight parts of 16 key
// rows, of two columns: 64 floats of state in registers. Sums over key rows are sixteen fma ascending, an addition
// within the thread and two exchanges (2, 1): the eight partials of the contract. Bound: the row of a single warp,
// about 320 instructions of which 256 are products. A thread has two parts of two columns, not one part of four: that
// saves an exchange before d, for twice the reads of keys and queries, which the exchanges hide.
#include <algorithm>

#include "gpu/delta/delta.h"
#include "gpu/delta/delta_device.cuh"
#include "gpu/delta/delta_follow.cuh"
#include "gpu/delta/delta_rows.cuh"

namespace tnd::gpu {
namespace {

using namespace delta_rows;

constexpr int kLanes = kParts / 2;  // threads that share their columns
constexpr int kHeld = 2 * kPer;     // key rows of a thread
constexpr int kSlices = kDeltaDim / kDeltaSlice;
constexpr int kSliceElems = kDeltaDim * kDeltaSlice;

constexpr int kColumns = 2;  // of a thread
constexpr int kThreads = kLanes * kDeltaSlice / kColumns;
constexpr int kTapChannels = 4 * kThreads;    // of a block: few blocks, since they take processors from others
constexpr int kQuads = kHeld * kColumns / 4;  // a thread's state in pieces of 16 bytes

// A lane's neighbour (xor 1) has the same part and other columns, which halves the turns that reads of 16 bytes of a
// row of keys take.
constexpr int kPartBit = 2, kOtherPart = 2 * kPartBit;  // lanes of parts p ^ 1 and p ^ 2
struct Place {
  int part, column, head, slice;
};
TND_DEVICE Place place_here(int block) {
  const int tid = static_cast<int>(threadIdx.x);
  Place p;
  p.part = tid / 2 % kLanes;
  p.column = (tid % 2 + tid / (2 * kLanes) * 2) * kColumns;
  p.head = block / kSlices;
  p.slice = block % kSlices;
  return p;
}

TND_DEVICE Place fresh_place(Place p) {
  p.part = no_hoist(p.part), p.column = no_hoist(p.column);
  return p;
}

// The key row of the thread's i-th state row.
TND_DEVICE int key_row(int i, int part) {
  return (part + i / kPer * kLanes) * kPer + i % kPer;
}

// A key row of the thread's columns, read and written at once.
struct alignas(kColumns * 4) Pair {
  float v[kColumns];
};

// The thread's part of a slice [128][32] in memory.
TND_DEVICE void load_state(Pair (&s)[kHeld], const float* slice, const Place& p) {
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    s[i] = *reinterpret_cast<const Pair*>(slice + key_row(i, p.part) * kDeltaSlice + p.column);
  }
}
TND_DEVICE void store_state(const Pair (&s)[kHeld], float* slice, const Place& p) {
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    *reinterpret_cast<Pair*>(slice + key_row(i, p.part) * kDeltaSlice + p.column) = s[i];
  }
}

// Four key rows of the thread, from its i-th on.
TND_DEVICE void read_four(float (&x)[kHeld], int i, const float* row, int part) {
  const int place = i % kPer / 4 * kParts + i / kPer * kLanes + part;
  const float4 four = *reinterpret_cast<const float4*>(row + place * 4);
  x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
}

// ---- the recurrence

struct alignas(16) RowHead {
  float alpha, beta;
  int32_t update;   // of DeltaStepRow
  int32_t special;  // 0: the next row is in shared memory and starts from this row's state
};
struct alignas(16) RowInputs {
  float k[kDeltaDim], q[kDeltaDim];  // piece_at
  float v[kDeltaSlice];
  RowHead head;
  int32_t save, load;  // between this row and the next one, of DeltaStepRow
};

// Tap blocks follow the nv * 4 blocks of the recurrence.
template <class AFTER>
__global__ void __launch_bounds__(kThreads)
    delta_recur_kernel(DeltaArgs a, int shared_slots, [[maybe_unused]] AFTER after) {
  TND_DYNAMIC_SHARED(float4, put_aside);  // [shared_slots][kQuads][kThreads]
  TND_SHARED(RowInputs, ring, [kRingRows]);
  let_next_start();
  const DeltaShape& shape = a.w.shape;
  const int64_t conv_dim = shape.conv_dim(), key_dim = shape.key_dim(), value_dim = shape.value_dim();
  const DeltaStepGroup g = load_group(&a.group_plans[blockIdx.y]);  // written before the previous launch began
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

  // The first row starts from the committed state, which only this launch of a step touches.
  Pair s[kHeld];
  load_state(s, committed, at);

  // Even parts store o of a row, odd ones d, one column each; o is summed together with d of the next row.
  const bool second = at.part >= kLanes / 2, holds_o = at.part % 2 == 0;
  const int64_t column = int64_t{at.head} * kDeltaDim + at.slice * kDeltaSlice + at.column + (second ? 1 : 0);
  const bool holds_d = !holds_o && g.commit == 0;
  float* out = (holds_d ? g.replay.d : a.mixed + (int64_t{g.first} - 1) * value_dim) + column;

  const int first_stored = !holds_o && !holds_d ? g.count : holds_o ? 1 : 0;

  // A tile's copies: threads share pieces of keys and queries, then of values; gates and plans go through registers.
  constexpr int kCopied = 2 * kPieces, kRowsAtOnce = kThreads / kCopied, kValuePieces = kDeltaSlice / 4;
  static_assert(kThreads % kCopied == 0 && kThreads >= kTileRows * kValuePieces);
  constexpr int kRowFloats = sizeof(RowInputs) / sizeof(float);
  const bool copies_k = tid % kCopied < kPieces;
  const int copied_row = tid / kCopied, copied_place = tid % kPieces;
  const int value_row = tid / kValuePieces, value_piece = tid % kValuePieces;
  float* to_row = (copies_k ? ring[copied_row].k : ring[copied_row].q) + copied_place * 4;
  float* to_value = ring[value_row % kTileRows].v + value_piece * 4;
  const float* rows = a.conv + g.first * conv_dim;
  const float* from_row = rows + copied_row * conv_dim + (copies_k ? key_dim : 0) + at.head % shape.nk * kDeltaDim +
                          piece_at(copied_place) * 4;
  const float* from_value =
      rows + value_row * conv_dim + 2 * key_dim + at.head * kDeltaDim + at.slice * kDeltaSlice + value_piece * 4;
  const float* gates = a.gates + int64_t{g.first} * 2 * shape.nv + at.head;
  const bool in_tiles = g.count > kRingRows;
  const int heads = in_tiles ? kTileRows : kRingRows;  // rows whose heads are read at once, by a thread each
  static_assert(kThreads >= kRingRows);
  RowHead head{};
  int32_t save = kStateNone, load = kStateNone;
  const auto copy_tile = [&](int first) {
    const int place = first % kRingRows * kRowFloats, live = g.count - first;
    const float* from = from_row + first * conv_dim;
#pragma unroll
    for (int i = 0; i < kTileRows; i += kRowsAtOnce) {
      if (i + copied_row < live) copy_async_16(to_row + place + i * kRowFloats, from);
      from += kRowsAtOnce * conv_dim;
    }
    if (value_row < kTileRows && value_row < live) copy_async_16(to_value + place, from_value + first * conv_dim);
    copy_async_commit();
  };
  const auto read_heads = [&](int first) {
    const int row = first + tid;
    if (tid >= heads || row >= g.count) return;
    const float* gate = gates + int64_t{row} * 2 * shape.nv;
    head.alpha = gate[0];
    head.beta = gate[shape.nv];
    const DeltaStepRow* plan = a.row_plans + g.first + row;
    head.update = plan->update;
    save = plan->save;
    load = row + 1 < g.count ? (plan + 1)->load : kStateNone;
  };
  const auto stage = [&](int first) {  // the registers of read_heads; nothing waits for them before
    if (tid >= heads) return;
    const bool moves = save != kStateNone || load != kStateNone, last = first + tid + 1 >= g.count;
    const bool turns = in_tiles && tid == kTileRows - 1;
    head.special = last || moves || head.update == 0 || turns ? 1 : 0;
    RowInputs& to = ring[first % kRingRows + tid];
    to.head = head, to.save = save, to.load = load;
  };
  // Recomputed in every row; otherwise addresses of the whole state stay in registers through all rows.
  const auto move_state = [&](int32_t to, int32_t from) {
    if (to == kStateCommitted) {
      store_state(s, committed, fresh_place(at));
    } else if (to >= shared_slots) {
      store_state(s, saved + to * slot_elems, fresh_place(at));
    } else if (to >= 0) {
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        float4 four;
        four.x = s[2 * i].v[0], four.y = s[2 * i].v[1];
        four.z = s[2 * i + 1].v[0], four.w = s[2 * i + 1].v[1];
        put_aside[(to * kQuads + i) * kThreads + tid] = four;
      }
    }
    if (from == kStateCommitted) {
      load_state(s, committed, fresh_place(at));
    } else if (from >= shared_slots) {
      load_state(s, saved + from * slot_elems, fresh_place(at));
    } else if (from >= 0) {
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float4 four = put_aside[(from * kQuads + i) * kThreads + tid];
        s[2 * i].v[0] = four.x, s[2 * i].v[1] = four.y;
        s[2 * i + 1].v[0] = four.z, s[2 * i + 1].v[1] = four.w;
      }
    }
  };

  wait_for_previous();
  copy_tile(0);
  read_heads(0);
  copy_tile(kTileRows);
  if (in_tiles) {
    stage(0);
    read_heads(kTileRows);
    copy_async_wait<1>();
  } else {
    copy_tile(2 * kTileRows);
    stage(0);
    copy_async_wait<0>();
  }
  __syncthreads();

  // An iteration begins after the sums of k s and ends with those of the next row.
  float k[kHeld], q[kHeld];
  Pair p[2], o[2] = {};  // sums of parts p and p + 4: of k s of this row, of q s of the row before
  const RowInputs* row_now = ring;
  const auto read_row = [&](float(&x)[kHeld], const float* row) {
#pragma unroll
    for (int i = 0; i < kHeld; i += 4) read_four(x, i, row, at.part);
  };
  const auto add = [&](Pair(&sum)[2], const float(&x)[kHeld], const Pair(&y)[kHeld], int i) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[i / kPer].v[c] = fmaf(x[i], y[i].v[c], sum[i / kPer].v[c]);
  };
  // The i-th of both parts side by side.
  const auto both_parts = [&](const auto& work) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) work(i), work(i + kPer);
  };
  const auto begin_row = [&] {
    read_row(k, row_now->k);
    p[0] = p[1] = Pair{};
    both_parts([&](int i) { add(p, k, s, i); });
  };
  // Adds the parts of o and returns the lane's column of it.
  const auto fold_o = [&] {
    Pair sum;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum.v[c] = o[0].v[c] + o[1].v[c];
    // Lanes of parts 0, 1 go on with column 0, of 2, 3 with 1.
    const float x = (second ? sum.v[1] : sum.v[0]) + shfl_xor(second ? sum.v[0] : sum.v[1], kOtherPart);
    return x + shfl_xor(x, kPartBit);
  };

  RowHead now = ring[0].head;
  Pair v = *reinterpret_cast<const Pair*>(ring[0].v + at.column);
  begin_row();
  int row = 0;
  Pair d;
  const auto exchange = [&] {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      float sum = p[0].v[c] + p[1].v[c];
      sum += shfl_xor(sum, kOtherPart);
      sum += shfl_xor(sum, kPartBit);
      d.v[c] = now.beta * fmaf(-now.alpha, sum, v.v[c]);
    }
    const float sum_o = fold_o(), sum_d = second ? d.v[kColumns - 1] : d.v[0];
    if (row >= first_stored) store_result(out, holds_o ? sum_o : sum_d);
    o[0] = o[1] = Pair{};
    read_row(q, row_now->q);
  };
  // The products by alpha run during the exchanges, so each kind of row has its own exchanges.
  const auto update = [&] {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) s[i].v[c] = fmaf(k[i], d.v[c], now.alpha * s[i].v[c]);
    }
  };
  const auto take_head = [&](const RowInputs* next) {
    now = next->head;
    v = *reinterpret_cast<const Pair*>(next->v + at.column);
    row_now = next;
    out += value_dim;
    ++row;
  };
  // One row an iteration: the code of more would not fit the nearer instruction caches. Most rows take the short path,
  // which has one branch and contiguous code.
#pragma unroll 1
  for (;;) {
    if (__builtin_expect(now.special == 0, 1)) {
      exchange();
      update();
      read_row(k, row_now[1].k);
      p[0] = p[1] = Pair{};
      both_parts([&](int i) { add(o, q, s, i), add(p, k, s, i); });
      take_head(row_now + 1);
      continue;
    }
    const bool more = row + 1 < g.count;
    if (in_tiles && row % kTileRows == kTileRows - 1 && more) {
      stage(row + 1);
      copy_async_wait<0>();
      __syncthreads();
      copy_tile(row + 1 + kTileRows);  // over the tile before this one
      read_heads(row + 1 + kTileRows);
    }
    if (now.update != 0) {
      exchange();
      update();
      both_parts([&](int i) { add(o, q, s, i); });
    } else {
      exchange();
      both_parts([&](int i) {
        Pair leaf[kHeld];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) leaf[i].v[c] = fmaf(k[i], d.v[c], now.alpha * s[i].v[c]);
        add(o, q, leaf, i);
      });
    }
    if (!more) break;
    move_state(row_now->save, row_now->load);
    take_head(ring + (row + 1) % kRingRows);
    begin_row();
  }
  out += value_dim;
  const float sum_o = fold_o();
  if (holds_o) *out = sum_o;
  if (row_now->save == kStateCommitted) store_state(s, committed, fresh_place(at));
  if constexpr (AFTER::kRuns) {
    gated_norm_after<kThreads / TND_WARP>(after, g, static_cast<int>(blockIdx.y), {at.head, kDeltaSlice}, {at.head, 0},
                                          ring);
  }
}

// ---- the replay

constexpr int kCommitRows = 16;  // rows whose inputs are in shared memory together

// Bound: the state, read and written once. Only rows beyond the first kCommitRows wait for memory a second time.
__global__ void __launch_bounds__(kThreads) delta_commit_kernel(DeltaCommitArgs a) {
  struct Row {
    float k[kDeltaDim];  // piece_at
    float d[kDeltaSlice];
  };
  TND_SHARED(Row, inputs, [kCommitRows]);
  TND_SHARED(float, alphas, [kCommitRows]);
  let_next_start();
  wait_for_previous();
  const DeltaShape& shape = a.shape;
  const int64_t conv_dim = shape.conv_dim(), key_dim = shape.key_dim(), value_dim = shape.value_dim();
  const DeltaState state = device_pointers(a.states[blockIdx.y]);
  const DeltaReplay replay = device_pointers(a.replay[blockIdx.y]);
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
  if (n == 0) return;
  const Place at = place_here(static_cast<int>(blockIdx.x));
  float* slice = state.s + int64_t{blockIdx.x} * kSliceElems;
  Pair s[kHeld];
  load_state(s, slice, at);  // during the reads of the path
  // A row's copies: the first threads copy pieces of keys, the ones after them pieces of d.
  constexpr int kValuePieces = kDeltaSlice / 4;
  static_assert(kThreads >= kPieces + kValuePieces && kThreads >= kCommitRows);
  const bool copies_k = tid < kPieces, copies = tid < kPieces + kValuePieces;
  const float* from = copies_k ? replay.k + at.head % shape.nk * kDeltaDim + piece_at(tid) * 4
                               : replay.d + int64_t{at.head} * kDeltaDim + at.slice * kDeltaSlice + (tid - kPieces) * 4;
  const int64_t stride = copies_k ? key_dim : value_dim;
  for (int first = 0; first < n; first += kCommitRows) {
    const int rows = n - first < kCommitRows ? n - first : kCommitRows;
    int32_t path[kCommitRows];  // read at once, before anything depends on them
#pragma unroll
    for (int r = 0; r < kCommitRows; ++r) path[r] = r < rows ? a.path[first + r] : 0;
    const float alpha = tid < rows ? replay.alpha[int64_t{a.path[first + tid]} * shape.nv + at.head] : 0.0f;
    if (first > 0) __syncthreads();
#pragma unroll
    for (int r = 0; r < kCommitRows; ++r) {
      float* to = copies_k ? inputs[r].k + tid * 4 : inputs[r].d + (tid - kPieces) * 4;
      if (r < rows && copies) copy_async_16(to, from + path[r] * stride);
    }
    copy_async_commit();
    if (tid < kCommitRows) alphas[tid] = alpha;
    copy_async_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (int r = 0; r < rows; ++r) {
      const Pair d = *reinterpret_cast<const Pair*>(inputs[r].d + at.column);
      float k[kHeld];
#pragma unroll
      for (int i = 0; i < kHeld; i += 4) read_four(k, i, inputs[r].k, at.part);
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) s[i].v[c] = fmaf(k[i], d.v[c], alphas[r] * s[i].v[c]);
      }
    }
  }
  store_state(s, slice, at);
}

unsigned tap_blocks(const DeltaShape& shape) {
  return static_cast<unsigned>((shape.conv_dim() + kTapChannels - 1) / kTapChannels);
}

template <class AFTER>
void launch_slices(Stream& stream, const DeltaArgs& args, const AFTER& after) {
  // Two blocks a processor must fit, or the grid of a large model runs in waves.
  constexpr int kBlocksPerProcessor = 2;
  constexpr int kSlotBytes = kSliceElems * static_cast<int>(sizeof(float));
  constexpr int kRingBytes = static_cast<int>(sizeof(RowInputs)) * kRingRows;
  const int room = args.shared_per_block / kBlocksPerProcessor - kRingBytes - 1024;
  const int slots = std::clamp(room / kSlotBytes, 0, args.state_slots);
  const Dim3 grid{static_cast<unsigned>(args.w.shape.nv * kSlices) + tap_blocks(args.w.shape),
                  static_cast<unsigned>(args.groups)};
  launch(stream,
         {.grid = grid,
          .block = {kThreads},
          .shared_bytes = static_cast<unsigned>(slots * kSlotBytes),
          .static_bytes = kRingBytes,
          .overlap = true,
          .name = "delta_recur"},
         delta_recur_kernel<AFTER>, args, slots, after);
}

}  // namespace

void launch_delta_slices(Stream& stream, const DeltaArgs& args) {
  launch_slices(stream, args, NothingAfter());
}

void launch_followed_slices(Stream& stream, [[maybe_unused]] const FollowedDelta& args) {
#if defined(TND_GPU_CUDA)
  stream.fail(errorf(TND_INTERNAL, "no delta rule with its gated norm on this card"));
#else
  launch_slices(stream, args.delta, GatedNormAfter{args.norm, args.arrivals});
#endif
}

void launch_delta_commit(Stream& stream, const DeltaCommitArgs& args) {
  const Dim3 grid{static_cast<unsigned>(args.shape.nv * kSlices) + tap_blocks(args.shape),
                  static_cast<unsigned>(args.layers)};
  launch(stream, {.grid = grid, .block = {kThreads}, .overlap = true, .name = "delta_commit"}, delta_commit_kernel,
         args);
}

}  // namespace tnd::gpu
