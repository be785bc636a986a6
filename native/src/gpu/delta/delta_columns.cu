// The delta rule by columns (delta.h).
//
// A key head's value heads lie side by side, and their columns are dealt to warps, four times as many as value heads
// share a key head: 512 warps for every model with 16 key heads. A block is four warps, one for each quarter of a
// processor. As few blocks as the card allows share a processor, so that a warp waits for its own instructions only.
//
// Thread = one of the eight parts of 16 key rows, of COLUMNS columns: 16 COLUMNS floats of state in registers. Sums
// over key rows are sixteen fma ascending and three exchanges (4, 2, 1): the eight partials of the contract. Within a
// row, only k s, the exchanges, d and the update depend on each other; the products q s of the previous row run during
// the exchanges. Bound: the row of a single warp, 258 instructions with three columns a thread (sm_90).
#include <algorithm>

#include "gpu/delta/delta.h"
#include "gpu/delta/delta_device.cuh"
#include "gpu/delta/delta_follow.cuh"
#include "gpu/delta/delta_rows.cuh"

namespace tnd::gpu {
namespace {

using namespace delta_rows;

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * TND_WARP;
constexpr int kColumnLanes = TND_WARP / kParts;  // lanes of a warp with the same part
constexpr int kMostBlocks = 4;                   // of a processor that are considered
// Shared memory that blocks leave free, so that blocks of the small kernel after this one find room.
constexpr int kLeftFree = 4096;

// Lanes: bit 0 and bit 4 choose columns, bits 1 to 3 the part. Neighbours then read the same 16 bytes of keys, and half
// a warp those of all parts: a read of 16 bytes takes two turns instead of four.
constexpr int kPart4 = 8, kPart2 = 4, kPart1 = 2;  // lanes of parts p ^ 4, p ^ 2, p ^ 1

// A block's columns: pairs of neighbouring ones first, warp by warp, then single ones.
template <int COLUMNS>
struct Columns {
  static constexpr int kPairs = COLUMNS / 2, kPieces = COLUMNS - kPairs;  // column c of a thread is of piece c / 2
  static constexpr int kBlock = kWarps * kColumnLanes * COLUMNS;
  static constexpr int kElems = kBlock * kDeltaDim;  // of a block's state
  static constexpr int kQuads = kPer * COLUMNS / 4;  // a thread's state in pieces of 16 bytes
};

struct Place {
  int part, lane_column, warp;
};
TND_DEVICE Place place_here() {
  const int lane = static_cast<int>(lane_id());
  return {lane / 2 % kParts, lane % 2 + lane / 16 * 2, static_cast<int>(warp_id())};
}
// column_of returns where the thread's column c is among the block's columns.
template <int COLUMNS>
TND_DEVICE int column_of(const Place& p, int c) {
  const int before = c / 2 * kWarps * kColumnLanes * 2, lanes = p.warp * kColumnLanes + p.lane_column;
  return before + (c / 2 < Columns<COLUMNS>::kPairs ? lanes * 2 + c % 2 : lanes);
}

// Where columns of a key head's value heads are: the head, and the column in it.
struct Column {
  int head, in_head;
};
TND_DEVICE Column column_at(const DeltaShape& shape, int key_head, int column) {
  return {key_head + column / kDeltaDim * shape.nk, column % kDeltaDim};
}

// What happens to a row's state.
enum RowKind : int32_t {
  kLeaf,      // dropped: registers keep the state that the row started from
  kMoves,     // kept, but saved, or the next row starts from another state
  kFlows,     // the next row starts from it as it is in registers
  kOrdinary,  // the same holds for the row before, and the next row is of the same tile
};
struct alignas(16) RowPlan {
  int32_t kind;
  int32_t save, load;  // between this row and the next one, of DeltaStepRow
};
struct alignas(8) Gates {
  float alpha, beta;
};
template <int COLUMNS>
struct alignas(16) RowInputs {
  float k[kDeltaDim], q[kDeltaDim];  // piece_at
  float v[Columns<COLUMNS>::kBlock];
  Gates gates[2];  // of the head of the block's first column, and of the next head
  RowPlan plan;
};
// at: 16 * part.
TND_DEVICE void read_row(float (&x)[kPer], const float* row, int at) {
#pragma unroll
  for (int i = 0; i < kPer; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(reinterpret_cast<const uint8_t*>(row + i * kParts) + at);
    x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
  }
}

// A thread's state: [key row][column].
template <int COLUMNS>
struct Held {
  float v[kPer][COLUMNS];
};

// Functions that visit a state are inlined by attribute: otherwise clang keeps the state in scratch.
//
// visit_state calls visit(where, i, c, pair) for the numbers of the thread in a sequence's state in memory: key row i
// of its column c, or of its columns c and c + 1.
template <int COLUMNS, class VISIT>
TND_DEVICE void visit_state(const DeltaShape& shape, float* state, int key_head, int first, Place p, VISIT visit) {
  using C = Columns<COLUMNS>;
#pragma unroll
  for (int piece = 0; piece < C::kPieces; ++piece) {
    const Column at = column_at(shape, key_head, first + column_of<COLUMNS>(p, 2 * piece));
    float* const from = state + int64_t{at.head} * kDeltaDim * kDeltaDim +
                        at.in_head / kDeltaSlice * kDeltaDim * kDeltaSlice + at.in_head % kDeltaSlice +
                        p.part * kPer * kDeltaSlice;
#pragma unroll
    for (int i = 0; i < kPer; ++i) visit(from + i * kDeltaSlice, i, 2 * piece, piece < C::kPairs);
  }
}
template <int COLUMNS>
TND_DEVICE Held<COLUMNS> load_state(const DeltaShape& shape, float* state, int key_head, int first, Place p) {
  Held<COLUMNS> s;
  visit_state<COLUMNS>(shape, state, key_head, first, p,
                       [&](float* from, int i, int c, bool pair) __attribute__((always_inline)) {
                         if (pair) {
                           const float2 two = *reinterpret_cast<const float2*>(from);
                           s.v[i][c] = two.x, s.v[i][c + 1 < COLUMNS ? c + 1 : c] = two.y;
                         } else {
                           s.v[i][c] = *from;
                         }
                       });
  return s;
}
template <int COLUMNS>
TND_DEVICE void store_state(const Held<COLUMNS>& s, const DeltaShape& shape, float* state, int key_head, int first,
                            Place p) {
  visit_state<COLUMNS>(shape, state, key_head, first, p,
                       [&](float* to, int i, int c, bool pair) __attribute__((always_inline)) {
                         if (pair) {
                           *reinterpret_cast<float2*>(to) = make_float2(s.v[i][c], s.v[i][c + 1 < COLUMNS ? c + 1 : c]);
                         } else {
                           *to = s.v[i][c];
                         }
                       });
}

// fold adds the parts of each column's sum. At every exchange a lane drops some of its columns; it ends with that
// of kept_column.
template <int COLUMNS>
TND_DEVICE float fold(const float (&o)[COLUMNS], bool second4, bool second2) {
  constexpr int kPairs = COLUMNS / 2, kLeft = COLUMNS - kPairs;
  float x[kLeft];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float keep = second4 ? o[2 * i + 1] : o[2 * i], give = second4 ? o[2 * i] : o[2 * i + 1];
    x[i] = keep + shfl_xor(give, kPart4);
  }
  if constexpr (COLUMNS % 2 != 0) x[kPairs] = o[COLUMNS - 1] + shfl_xor(o[COLUMNS - 1], kPart4);
  float y;
  if constexpr (kLeft == 2) {
    const float keep = second2 ? x[1] : x[0], give = second2 ? x[0] : x[1];
    y = keep + shfl_xor(give, kPart2);
  } else {
    y = x[0] + shfl_xor(x[0], kPart2);
  }
  return y + shfl_xor(y, kPart1);
}
// pick returns the value of that column. It selects values: if it selected addresses, clang would keep the array
// in memory.
template <int COLUMNS>
TND_DEVICE float pick(const float (&d)[COLUMNS], bool second4, bool second2) {
  const float d0 = d[0], d1 = d[COLUMNS > 1 ? 1 : 0], d2 = d[COLUMNS > 2 ? 2 : 0], d3 = d[COLUMNS - 1];
  const float first = COLUMNS > 1 && second4 ? d1 : d0, second = COLUMNS > 3 && second4 ? d3 : d2;
  return COLUMNS > 2 && second2 ? second : first;
}
template <int COLUMNS>
TND_DEVICE int kept_column(int part) {
  const int by4 = COLUMNS > 1 ? part / 4 : 0, by2 = COLUMNS > 2 ? part / 2 % 2 : 0;
  return by2 * 2 + by4 < COLUMNS ? by2 * 2 + by4 : COLUMNS - 1;
}

template <int COLUMNS, class AFTER>
__global__ void __launch_bounds__(kThreads)
    delta_columns_kernel(DeltaArgs a, int shared_slots, [[maybe_unused]] AFTER after) {
  using C = Columns<COLUMNS>;
  using Row = RowInputs<COLUMNS>;
  TND_DYNAMIC_SHARED(float4, put_aside);  // [shared_slots][kQuads][kThreads]
  TND_SHARED(Row, ring, [kRingRows]);
  let_next_start();
  const DeltaShape& shape = a.w.shape;
  const int64_t conv_dim = shape.conv_dim(), key_dim = shape.key_dim(), value_dim = shape.value_dim();
  const DeltaStepGroup g = load_group(&a.group_plans[blockIdx.y]);  // written before the previous launch began
  if (g.count == 0 || g.chunked != 0) {
    wait_for_previous();
    return;
  }
  const int tid = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  const int blocks = static_cast<int>(gridDim.x), of_head = blocks / shape.nk;
  const int key_head = block / of_head, first_column = block % of_head * C::kBlock;
  const Place at = place_here();
  float4* const saved =
      reinterpret_cast<float4*>(a.saved + (int64_t{blockIdx.y} * a.state_slots * blocks + blockIdx.x) * C::kElems);
  const int64_t slot_quads = int64_t{blocks} * C::kElems / 4;

  // The first row starts from the committed state, which only this launch of a step touches.
  Held<COLUMNS> s = load_state<COLUMNS>(shape, g.state.s, key_head, first_column, at);

  // Even parts store o of a row, odd ones d, one column each; o is summed together with d of the next row.
  const int kept = kept_column<COLUMNS>(at.part);
  const bool second4 = at.part / 4 != 0, second2 = at.part / 2 % 2 != 0, holds_o = at.part % 2 == 0;
  // True in lanes that end with a column that another lane has, too.
  const bool again = (COLUMNS < 2 && second4) || (COLUMNS < 3 && second2) || (COLUMNS == 3 && second2 && second4);
  const bool stores_o = holds_o && !again, stores_d = !holds_o && !again && g.commit == 0;
  const Column stored = column_at(shape, key_head, first_column + column_of<COLUMNS>(at, kept));
  float* out = (stores_d ? g.replay.d : a.mixed + (int64_t{g.first} - 1) * value_dim) +
               int64_t{stored.head} * kDeltaDim + stored.in_head;
  // Offsets of the thread's data in a row, in bytes. They go through a shuffle, so that the compiler keeps them instead
  // of computing them again for every row.
  const auto keep = [](int n) { return shfl_xor(n, 0); };
  const int key_at = keep(at.part * 16);
  int value_at[C::kPieces], gate_at[C::kPieces];
#pragma unroll
  for (int piece = 0; piece < C::kPieces; ++piece) {
    const int column = column_of<COLUMNS>(at, 2 * piece);
    value_at[piece] = keep(column * 4);
    gate_at[piece] = keep(((first_column + column) / kDeltaDim - first_column / kDeltaDim) * 8);
  }

  // A tile's copies: threads share pieces of keys and queries, then of values; gates and plans go through registers.
  constexpr int kCopied = 2 * kPieces, kRowsAtOnce = kThreads / kCopied, kValuePieces = C::kBlock / 4;
  static_assert(kThreads % kCopied == 0 && kThreads >= kTileRows * kValuePieces && kThreads >= kRingRows);
  constexpr int kRowFloats = sizeof(Row) / sizeof(float);
  const bool copies_k = tid % kCopied < kPieces;
  const int copied_row = tid / kCopied, copied_place = tid % kPieces;
  const int value_row = tid / kValuePieces, value_piece = tid % kValuePieces;
  float* const to_row = (copies_k ? ring[copied_row].k : ring[copied_row].q) + copied_place * 4;
  float* const to_value = ring[value_row % kTileRows].v + value_piece * 4;
  const float* const rows = a.conv + g.first * conv_dim;
  const float* const from_row =
      rows + copied_row * conv_dim + (copies_k ? key_dim : 0) + key_head * kDeltaDim + piece_at(copied_place) * 4;
  const Column value = column_at(shape, key_head, first_column + value_piece * 4);
  const float* const from_value =
      rows + value_row * conv_dim + 2 * key_dim + int64_t{value.head} * kDeltaDim + value.in_head;
  const int head = column_at(shape, key_head, first_column).head;
  const int next_head = head + shape.nk < shape.nv ? head + shape.nk : head;
  const bool in_tiles = g.count > kRingRows;
  const int planned = in_tiles ? kTileRows : kRingRows;  // rows whose plans are read at once, by a thread each
  Gates gates[2] = {};
  RowPlan plan = {};
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
  const auto read_plans = [&](int first) {
    const int row = first + tid;
    if (tid >= planned || row >= g.count) return;
    const float* const alpha = a.gates + (int64_t{g.first} + row) * 2 * shape.nv;
    gates[0] = {alpha[head], alpha[shape.nv + head]};
    gates[1] = {alpha[next_head], alpha[shape.nv + next_head]};
    const DeltaStepRow* const here = a.row_plans + g.first + row;
    const bool more = row + 1 < g.count, same_tile = !in_tiles || tid != kTileRows - 1;
    const auto flows = [&](const DeltaStepRow* r) {
      return r->update != 0 && r->save == kStateNone && (r + 1)->load == kStateNone;
    };
    plan.kind = here->update == 0 ? kLeaf : more && flows(here) ? kFlows : kMoves;
    if (plan.kind == kFlows && same_tile && row > 0 && flows(here - 1)) plan.kind = kOrdinary;
    plan.save = here->save;
    plan.load = more ? (here + 1)->load : kStateNone;
  };
  const auto stage = [&](int first) {  // the registers of read_plans; nothing waits for them before
    if (tid >= planned) return;
    Row& to = ring[first % kRingRows + tid];
    to.gates[0] = gates[0], to.gates[1] = gates[1];
    to.plan = plan;
  };
  // The n-th number of the thread's state.
  const auto held = [&](int n) -> float& { return s.v[n / COLUMNS][n % COLUMNS]; };
  const auto put = [&](float4* place) {
#pragma unroll
    for (int i = 0; i < C::kQuads; ++i) {
      place[i * kThreads] = make_float4(held(4 * i), held(4 * i + 1), held(4 * i + 2), held(4 * i + 3));
    }
  };
  const auto take = [&](const float4* place) {
#pragma unroll
    for (int i = 0; i < C::kQuads; ++i) {
      const float4 four = place[i * kThreads];
      held(4 * i) = four.x, held(4 * i + 1) = four.y, held(4 * i + 2) = four.z, held(4 * i + 3) = four.w;
    }
  };
  // Recomputed in every row; otherwise addresses of the whole state stay in registers through all rows.
  const auto fresh_place = [&] { return Place{no_hoist(at.part), no_hoist(at.lane_column), no_hoist(at.warp)}; };
  const auto move_state = [&](int32_t to, int32_t from) {
    if (to == kStateCommitted) {
      store_state(s, shape, g.state.s, key_head, first_column, fresh_place());
    } else if (to >= shared_slots) {
      put(saved + to * slot_quads + tid);
    } else if (to >= 0) {
      put(put_aside + to * C::kQuads * kThreads + tid);
    }
    if (from == kStateCommitted) {
      s = load_state<COLUMNS>(shape, g.state.s, key_head, first_column, fresh_place());
    } else if (from >= shared_slots) {
      take(saved + from * slot_quads + tid);
    } else if (from >= 0) {
      take(put_aside + from * C::kQuads * kThreads + tid);
    }
  };

  wait_for_previous();
  copy_tile(0);
  read_plans(0);
  copy_tile(kTileRows);
  // Taps: a channel a thread, dealt to all blocks.
  const int channels = (static_cast<int>(conv_dim) + blocks - 1) / blocks, channel = block * channels + tid;
  const bool shifts = g.commit != 0 && tid < channels && channel < conv_dim;
  float taps[kConvTaps - 1] = {};
  if (shifts) read_taps(g, a.io.qkv, conv_dim, channel, taps);
  if (in_tiles) {
    stage(0);
    read_plans(kTileRows);
    copy_async_wait<1>();
  } else {
    copy_tile(2 * kTileRows);
    stage(0);
    copy_async_wait<0>();
  }
  __syncthreads();

  float k[kPer], q[kPer] = {};
  float p[COLUMNS], o[COLUMNS] = {}, d[COLUMNS];  // sums of k s of this row, of q s of the row before; d of this row
  float alpha[C::kPieces], beta[C::kPieces], v[COLUMNS];
  const Row* now = ring;
  int row = 0;
  int32_t kind;
  const auto take_row = [&](const Row* next) {
    now = next;
#pragma unroll
    for (int piece = 0; piece < C::kPieces; ++piece) {
      const Gates two = *reinterpret_cast<const Gates*>(reinterpret_cast<const uint8_t*>(next->gates) + gate_at[piece]);
      alpha[piece] = two.alpha, beta[piece] = two.beta;
      const void* const values = reinterpret_cast<const uint8_t*>(next->v) + value_at[piece];
      if (piece < C::kPairs) {
        const float2 pair = *static_cast<const float2*>(values);
        v[2 * piece] = pair.x, v[2 * piece + 1 < COLUMNS ? 2 * piece + 1 : 0] = pair.y;
      } else {
        v[COLUMNS - 1] = *static_cast<const float*>(values);
      }
    }
    kind = next->plan.kind;
  };
  const auto add = [&](float(&sum)[COLUMNS], const float(&x)[kPer]) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) sum[c] = fmaf(x[i], s.v[i][c], i == 0 ? 0.0f : sum[c]);
    }
  };
  const auto find_d = [&] {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      float sum = p[c] + shfl_xor(p[c], kPart4);
      sum += shfl_xor(sum, kPart2);
      sum += shfl_xor(sum, kPart1);
      d[c] = beta[c / 2] * fmaf(-alpha[c / 2], sum, v[c]);
    }
  };
  // o of the row before, d of this one.
  const auto store_row = [&](bool stores) {
    const float sum = fold<COLUMNS>(o, second4, second2);
    const float kept_d = pick<COLUMNS>(d, second4, second2);
    if (stores) store_result(out, holds_o ? sum : kept_d);
    out += value_dim;
  };
  const auto scale = [&] {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) s.v[i][c] *= alpha[c / 2];
    }
  };
  const auto update = [&] {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) s.v[i][c] = fmaf(k[i], d[c], s.v[i][c]);
    }
  };

  take_row(ring);
  read_row(k, now->k, key_at);
  add(p, k);
  bool o_pending = false;  // o of the row before lacks its products q s
  for (;;) {
    // Most rows take this path, whose code is contiguous.
#pragma unroll 1
    while (kind == kOrdinary) {
      find_d();
      add(o, q);
      scale();
      store_row(stores_o || stores_d);
      update();
      read_row(q, now->q, key_at);
      read_row(k, now[1].k, key_at);
      add(p, k);
      take_row(now + 1);
      ++row;
    }
    if (o_pending) add(o, q);
    const bool more = row + 1 < g.count;
    if (in_tiles && row % kTileRows == kTileRows - 1 && more) {
      stage(row + 1);
      copy_async_wait<0>();
      __syncthreads();
      copy_tile(row + 1 + kTileRows);  // over the tile before this one
      read_plans(row + 1 + kTileRows);
    }
    find_d();
    store_row(stores_d || (stores_o && row > 0));
    read_row(q, now->q, key_at);
    o_pending = kind == kFlows;
    if (kind != kLeaf) {
      scale();
      update();
      if (!o_pending) add(o, q);
    } else {
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          const float leaf = fmaf(k[i], d[c], alpha[c / 2] * s.v[i][c]);
          o[c] = fmaf(q[i], leaf, i == 0 ? 0.0f : o[c]);
        }
      }
    }
    if (!more) break;
    if (!o_pending) move_state(now->plan.save, now->plan.load);
    take_row(ring + (row + 1) % kRingRows);
    ++row;
    read_row(k, now->k, key_at);
    add(p, k);
  }
  const float sum = fold<COLUMNS>(o, second4, second2);
  if (stores_o) *out = sum;
  if (now->plan.save == kStateCommitted) store_state(s, shape, g.state.s, key_head, first_column, fresh_place());
  if (shifts) write_taps(g, conv_dim, channel, taps);
  if constexpr (AFTER::kRuns) {
    const int in_head = kDeltaDim - first_column % kDeltaDim, columns = in_head < C::kBlock ? in_head : C::kBlock;
    const int last = column_at(shape, key_head, first_column + C::kBlock - 1).head;
    gated_norm_after<kThreads / TND_WARP>(after, g, static_cast<int>(blockIdx.y), {head, columns},
                                          {last, C::kBlock - columns}, ring);
  }
}

template <int COLUMNS, class AFTER>
void launch_columns(Stream& stream, const DeltaArgs& args, const AFTER& after) {
  using C = Columns<COLUMNS>;
  const DeltaShape& shape = args.w.shape;
  const int blocks = shape.value_dim() / C::kBlock, all = blocks * args.groups;
  const int share = std::clamp((all + args.processors - 1) / args.processors, 1, kMostBlocks);
  constexpr int kSlotBytes = C::kElems * static_cast<int>(sizeof(float));
  constexpr int kRingBytes = static_cast<int>(sizeof(RowInputs<COLUMNS>)) * kRingRows;
  const int room = args.shared_per_block / share - kRingBytes - kLeftFree;
  const int slots = std::clamp(room / kSlotBytes, 0, args.state_slots);
  // Blocks start on processors as these become free, and the first processors would get more blocks than others.
  const int alone = std::min(args.shared_per_block / (share + 1) + 1 - kRingBytes, room);
  launch(stream,
         {.grid = {static_cast<unsigned>(blocks), static_cast<unsigned>(args.groups)},
          .block = {kThreads},
          .shared_bytes = static_cast<unsigned>(std::max({slots * kSlotBytes, alone, 0})),
          .static_bytes = kRingBytes,
          .overlap = true,
          .name = "delta_columns"},
         delta_columns_kernel<COLUMNS, AFTER>, args, slots, after);
}

template <class AFTER>
void launch_with(Stream& stream, const DeltaArgs& args, const AFTER& after) {
  switch (delta_thread_columns(args.w.shape)) {
    case 1:
      return launch_columns<1>(stream, args, after);
    case 2:
      return launch_columns<2>(stream, args, after);
    case 3:
      return launch_columns<3>(stream, args, after);
    default:
      if constexpr (!AFTER::kRuns) launch_columns<4>(stream, args, after);
  }
}

}  // namespace

void launch_delta_columns(Stream& stream, const DeltaArgs& args) {
  launch_with(stream, args, NothingAfter());
}

void launch_followed_columns(Stream& stream, [[maybe_unused]] const FollowedDelta& args) {
#if defined(TND_GPU_CUDA)
  stream.fail(errorf(TND_INTERNAL, "no delta rule with its gated norm on this card"));
#else
  launch_with(stream, args.delta, GatedNormAfter{args.norm, args.arrivals});
#endif
}

}  // namespace tnd::gpu
