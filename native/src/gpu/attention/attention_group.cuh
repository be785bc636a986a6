// The flash contract of attention.h by Hopper's wgmma, for caches of halves and of blocks of codes: prompts (steps of
// more than 64 rows, whose segments are folded one after the other), and trees, chains and plain decoding over long
// contexts, whose segments run side by side. The emulation has this form too, with the products of mma.sync
// (attention_wgmma_tiles.cuh).
//
// Work is cut into units: up to 64 * kGroups queries (rows x query heads of a key/value head), and one of their
// segments, or their tails. One block a processor takes unit after unit.
//
// In prompts segments ascend: a unit folds its sums into the slots after the unit of the segment before has handed over
// its own (handover.h); so a step's work is shared evenly, whatever its number of queries. Rows with segments of other
// sizes, on the other side of a multiple of 2048 positions, take units of their own. Where segments run side by side
// (SPLIT) each has a slot, and attention_merge_kernel folds them.
//
// The first warpgroup of a block brings data: a warp each for K, V, queries, and the next unit. Of a cache in blocks of
// codes (CODES) each of these warps copies the codes of 16 keys a tile or two ahead, unchanged, and unpacks them to the
// tile of halves that wgmma reads; the last one brings units and queries, too. Each of the others has 64 queries,
// a warp 16 from q k^T to p v. Their sums lie in registers; each thread folds the elements that it holds. The products of a warpgroup run while
// another one has its softmax. Bound: memory up to about 64 queries, then matrix units for heads of 256, instructions of
// the softmax for shorter ones; at short contexts, where segments are short, the folds.
#pragma once

#include <algorithm>

#include "gpu/attention/attention_flash.cuh"
#include "gpu/attention/attention_softmax.cuh"
#include "gpu/attention/attention_wgmma_tiles.cuh"
#include "gpu/runtime/handover.h"

#if defined(TND_GPU_EMU) || defined(TND_CUDA_WGMMA)

namespace tnd::gpu {
namespace {

constexpr int kGroupThreads = 4 * TND_WARP;
constexpr int kBeginThreads = 256;
constexpr int kParts = kAttentionSegments - 1;  // of the keys before a tail
constexpr int kUnits = 4;                       // that are known: whoever brings codes looks ahead by up to two

// A unit of work, as the block's warps read it from shared memory.
struct Unit {
  AttentionTile tile;
  int32_t kv_head, part, slot;
  int32_t first_query, queries;
  int32_t segment;                // size: rows with another one take no part; SPLIT: 0
  int32_t first_tile, last_tile;  // none left: 0, 0
  int32_t end;                    // of the positions that any query sees
  int32_t turn, first_turn;       // number of this segment, and of the first one with keys
};

template <int DIM, bool CODES>
struct GroupShape {
  using Tiles = GroupTiles<DIM>;
  static constexpr int kGroups = CODES || DIM == 256 ? 2 : 3;  // that multiply
  static constexpr int kQueries = 64 * kGroups;
  static constexpr int kDepth = (DIM == 256 ? 2 : 4) / (CODES ? 2 : 1);  // tiles of K and of V
  static constexpr int kCopies = 2;                                      // tiles of codes of K and of V
  static constexpr int kThreads = kGroupThreads * (kGroups + 1);
  // A thread's registers.
  static constexpr int kBringing = CODES ? (DIM == 256 ? 120 : 136) : kGroups == 2 ? 40 : 32,
                       kMultiplying = CODES ? (DIM == 256 ? 192 : 184) : kGroups == 2 ? 232 : 160;
  static_assert(kGroupThreads * (kBringing + kGroups * kMultiplying) <= 65536, "registers of a processor");

  // Shared memory, from a boundary of kGroupAlign on.
  static constexpr unsigned kKeys = kGroups * Tiles::kBytes, kValues = kKeys + kDepth * Tiles::kBytes,
                            kState = kValues + kDepth * Tiles::kBytes;
  struct State {
    Barrier keys[kDepth], keys_read[kDepth], values[kDepth], values_read[kDepth];
    Barrier queries, queries_read;
    Barrier unit[kUnits], unit_read[kUnits];
    Barrier key_codes[kCopies][4], value_codes[kCopies][4];  // CODES: of a warp's rows
    Unit units[kUnits];
  };
  static constexpr unsigned kPacked = kState + (sizeof(State) + 127) / 128 * 128;  // copies of K, then of V
  // A copy of a tile: codes [64][code bytes], heads [64][DIM / 32 words].
  TND_HOST_DEVICE static constexpr int packed_row(KvType type) { return static_cast<int>(kv_code_bytes(type, DIM)); }
  TND_HOST_DEVICE static constexpr int packed_head(KvType type) { return DIM / kKvBlock * 2 * kv_head_words(type); }
  TND_HOST_DEVICE static constexpr int packed_bytes(KvType type) {
    return kAttentionTile * (packed_row(type) + packed_head(type));
  }
  static constexpr unsigned shared_bytes(const KvShape& kv) {
    unsigned bytes = kPacked + kGroupAlign;
    if (CODES) {
      bytes += kCopies * static_cast<unsigned>(packed_bytes(static_cast<KvType>(kv.k_type)) +
                                               packed_bytes(static_cast<KvType>(kv.v_type)));
    }
    return bytes;
  }
};

// A ring of N places has a barrier each for what came and for what was read; the user of number `use` waits for one.
template <int N>
TND_DEVICE void await_filled(const Barrier* filled, uint32_t use) {
  barrier_wait(filled + use % N, use / N % 2);
}
template <int N>
TND_DEVICE void await_free(const Barrier* read, uint32_t use) {
  if (use >= N) barrier_wait(read + use % N, (use / N - 1) % 2);
}

// Calls take(unit) for the units of the next number, with segments of one size each: none, or up to two. Returns false
// when there are no more. Called by a warp.
template <int QUERIES, typename Take>
TND_DEVICE bool next_units(const FlashArgs& f, const Take& take) {
  const AttentionArgs& a = f.a;
  const int lane = static_cast<int>(lane_id()), g = f.group.by;
  const int bulk_items = a.n_bulk * a.kv.heads * f.bulk_blocks, tail_items = a.n_tail * a.kv.heads * f.tail_blocks;
  const int number = shfl(lane == 0 ? take_unit(f.handed) : 0, 0);
  if (number >= bulk_items * kParts + tail_items) return false;
  const bool is_tail = number >= bulk_items * kParts;
  Unit u{};
  u.turn = is_tail ? 0 : number / bulk_items;
  int item = is_tail ? number - bulk_items * kParts : number % bulk_items;
  const int blocks = is_tail ? f.tail_blocks : f.bulk_blocks, block = item % blocks;
  item /= blocks;
  u.kv_head = item % a.kv.heads;
  item /= a.kv.heads;
  u.part = is_tail ? -1 : 0;
  u.slot = is_tail ? f.slots - 1 : 0;
  u.tile = is_tail ? a.tail[item] : a.bulk[item];
  const int all = u.tile.rows * g;
  u.first_query = block * QUERIES;
  u.queries = all - u.first_query < QUERIES ? all - u.first_query : QUERIES;
  if (u.queries <= 0) return true;

  const int first_row = u.first_query / g, rows = (u.first_query + u.queries - 1) / g - first_row + 1;
  for (int32_t size = 0;;) {
    int32_t begin = 1 << 30, end = 0, larger = 1 << 30;  // positions; the next size that rows have
    for (int row = lane; row < rows; row += TND_WARP) {
      const KeyRange k = key_range(a.row_plans[u.tile.row + first_row + row], u.part, 1);
      if (k.begin >= k.end) continue;
      if (k.segment > size && k.segment < larger) larger = k.segment;
      if (k.segment != size) continue;
      begin = k.begin < begin ? k.begin : begin;
      end = k.end > end ? k.end : end;
    }
#pragma unroll
    for (int mask = TND_WARP / 2; mask > 0; mask /= 2) {
      const int32_t b = shfl_xor(begin, mask), e = shfl_xor(end, mask), l = shfl_xor(larger, mask);
      begin = b < begin ? b : begin;
      end = e > end ? e : end;
      larger = l < larger ? l : larger;
    }
    if (begin < end) {
      Unit of = u;
      of.segment = size;
      of.end = end;
      of.first_tile = begin / kAttentionTile;
      of.last_tile = (end + kAttentionTile - 1) / kAttentionTile;
      if (!is_tail) {
        const int tiles = size / kAttentionTile, from = u.turn * tiles;
        of.first_turn = of.first_tile / tiles;
        if (from > of.first_tile) of.first_tile = from;
        if (from + tiles < of.last_tile) of.last_tile = from + tiles;
      }
      if (of.first_tile < of.last_tile) take(of);
    }
    if (size == 1 << 30 || (larger == 1 << 30 && !is_tail)) return true;
    size = larger;  // of tails, which are one segment: 1 << 30
  }
}

// Calls take(unit) for the unit of a number of segments that run side by side, if it has keys. Returns false when there
// are no more. Tails come first, since they take longest when contexts are short; then full blocks of queries before
// the last ones of tiles, so that no processor takes two of these. Called by a warp.
template <int QUERIES, typename Take>
TND_DEVICE bool split_unit(const FlashArgs& f, int number, const Take& take) {
  const AttentionArgs& a = f.a;
  const int lane = static_cast<int>(lane_id()), g = f.group.by;
  const int tails = a.n_tail * a.kv.heads, segments = a.n_bulk * a.kv.heads * kParts;
  const bool is_tail = number < tails * f.tail_blocks;
  if (!is_tail) number -= tails * f.tail_blocks;
  if (!is_tail && number >= segments * f.bulk_blocks) return false;
  const int items = is_tail ? tails : segments, block = number / items;
  int item = number - block * items;
  Unit u{};
  u.kv_head = item % a.kv.heads;
  item /= a.kv.heads;
  u.part = is_tail ? -1 : item % kParts;
  u.slot = is_tail ? f.slots - 1 : u.part;
  u.tile = is_tail ? a.tail[item] : a.bulk[item / kParts];
  const int all = u.tile.rows * g;
  u.first_query = block * QUERIES;
  u.queries = all - u.first_query < QUERIES ? all - u.first_query : QUERIES;
  if (u.queries <= 0) return true;
  const int first_row = u.first_query / g, rows = (u.first_query + u.queries - 1) / g - first_row + 1;
  int32_t begin = 1 << 30, end = 0;  // positions that any query sees
  for (int row = lane; row < rows; row += TND_WARP) {
    const KeyRange k = key_range(a.row_plans[u.tile.row + first_row + row], u.part, kParts);
    if (k.begin >= k.end) continue;
    begin = k.begin < begin ? k.begin : begin;
    end = k.end > end ? k.end : end;
  }
#pragma unroll
  for (int mask = TND_WARP / 2; mask > 0; mask /= 2) {
    const int32_t b = shfl_xor(begin, mask), e = shfl_xor(end, mask);
    begin = b < begin ? b : begin;
    end = e > end ? e : end;
  }
  if (begin >= end) return true;
  u.end = end;
  u.first_tile = begin / kAttentionTile;
  u.last_tile = (end + kAttentionTile - 1) / kAttentionTile;
  take(u);
  return true;
}

// The keys that a row sees in a unit: none where its segments have another size.
template <bool SPLIT>
TND_DEVICE KeyRange range_in_unit(const Unit& u, const AttentionRow& row) {
  if (SPLIT) return key_range(row, u.part, kParts);
  KeyRange k = key_range(row, u.part, 1);
  if (k.segment != u.segment) k.end = k.begin;
  return k;
}

// ---- warps that bring data

template <int DIM>
TND_DEVICE void copy_tile(uint16_t* to, const uint16_t* rows, const TileSlots& slots) {
  using Tiles = GroupTiles<DIM>;
  constexpr unsigned kPieces = DIM / 8, kRowsAtOnce = TND_WARP / kPieces;  // of 16 bytes
  const unsigned unit = lane_id() % kPieces, key = lane_id() / kPieces;
  rows += unit * 8;
  if (plain_tile(slots)) {
    rows += int64_t{slots.base + static_cast<int>(key)} * DIM;
#pragma unroll 1
    for (unsigned j = 0; j < 8; j += kRowsAtOnce) {  // the offset of a cell repeats every eight rows
      uint16_t* cell = Tiles::cell(to, key + j, unit);
      const uint16_t* from = rows + j * DIM;
#pragma unroll
      for (unsigned i = 0; i < kAttentionTile; i += 8) copy_async_16(cell + i * Tiles::kStride, from + i * DIM);
    }
  } else {
#pragma unroll 1
    for (unsigned i = 0; i < kAttentionTile; i += kRowsAtOnce) {
      const int32_t slot = slot_in(slots, static_cast<int>(key + i));
      copy_async_16(Tiles::cell(to, key + i, unit), rows + int64_t{slot < 0 ? 0 : slot} * DIM, slot < 0 ? 0 : 16);
    }
  }
}

[[maybe_unused]] TND_DEVICE void arrive_once(Barrier* b) {
  sync_warp();
  if (lane_id() == 0) barrier_arrive(b);
}

// All tiles of K, or of V, of a cache of halves. Where segments run side by side, tiles older than the step are copied
// before the previous launch ends.
template <int DIM, bool SPLIT>
TND_DEVICE void bring_tiles(const FlashArgs& f, typename GroupShape<DIM, false>::State& state, bool keys,
                            uint16_t* tiles) {
  using S = GroupShape<DIM, false>;
  const AttentionArgs& a = f.a;
  Barrier* filled = keys ? state.keys : state.values;
  Barrier* read = keys ? state.keys_read : state.values_read;
  const auto* cache = static_cast<const uint16_t*>(keys ? a.cache.k : a.cache.v);
  uint32_t use = 0;
  for (uint32_t unit = 0;; ++unit) {
    await_filled<kUnits>(state.unit, unit);
    const Unit& u = state.units[unit % kUnits];
    const int last_tile = u.last_tile, old = u.tile.old;
    if (last_tile == 0) return;
    TileSlots slots = tile_slots(a, u.tile, a.row_plans[u.tile.row], u.end);
    const uint16_t* rows = cache + kv_index(a.kv, u.kv_head, 0);
#pragma unroll 1
    for (int t = u.first_tile; t < last_tile; ++t, ++use) {
      if (SPLIT && (t + 1) * kAttentionTile > old) wait_for_previous();
      go_to_tile(slots, t);
      await_free<S::kDepth>(read, use);
      copy_tile<DIM>(tiles + use % S::kDepth * (S::Tiles::kBytes / 2), rows, slots);
      copy_async_arrive(filled + use % S::kDepth);
    }
    arrive_once(state.unit_read + unit % kUnits);
  }
}

// Starts the copy of the queries of a unit.
template <class S, int DIM>
TND_DEVICE void copy_queries(const FlashArgs& f, typename S::State& state, uint32_t number, uint16_t* tiles) {
  using Tiles = GroupTiles<DIM>;
  const AttentionArgs& a = f.a;
  constexpr int kPieces = DIM / 8, kRowsAtOnce = TND_WARP / kPieces;  // of 16 bytes
  const int piece = static_cast<int>(lane_id()) % kPieces, g = f.group.by;
  const Unit& u = state.units[number % kUnits];
  const int queries = u.queries, first_row = u.first_query / g, first = u.first_query - first_row * g;
  const uint16_t* from = static_cast<const uint16_t*>(a.q) +
                         (int64_t{u.tile.row + first_row} * a.q_heads + u.kv_head * g) * DIM + piece * 8;
  await_free<1>(&state.queries_read, number);
  // Queries of a row follow each other; the next row's are `skip` further on.
  const int64_t skip = int64_t{a.q_heads - g} * DIM;
  int q = static_cast<int>(lane_id()) / kPieces, head = first + q;
  from += int64_t{head} * DIM;
  const auto end_row = [&] {
    for (; head >= g; head -= g) from += skip;
  };
  end_row();
#pragma unroll 4
  for (; q < queries; q += kRowsAtOnce) {
    copy_async_16(
        Tiles::cell(tiles + q / 64 * (Tiles::kBytes / 2), static_cast<unsigned>(q % 64), static_cast<unsigned>(piece)),
        from);
    head += kRowsAtOnce;
    from += kRowsAtOnce * DIM;
    end_row();
  }
  copy_async_arrive(&state.queries);
}

template <class S, int DIM>
TND_DEVICE void bring_queries(const FlashArgs& f, typename S::State& state, uint16_t* tiles) {
  for (uint32_t number = 0;; ++number) {
    await_filled<kUnits>(state.unit, number);
    if (state.units[number % kUnits].last_tile == 0) return;
    copy_queries<S, DIM>(f, state, number, tiles);
    arrive_once(state.unit_read + number % kUnits);
  }
}

// Makes units known, in order; one without tiles after the last one.
template <class S, bool SPLIT>
struct UnitBringer {
  const FlashArgs& f;
  typename S::State& state;
  uint32_t known = 0;
  int next = static_cast<int>(blockIdx.x);  // SPLIT: number of the unit that follows
  bool more = true;

  __device__ __forceinline__ UnitBringer(const FlashArgs& args, typename S::State& s) : f(args), state(s) {}

  __device__ __forceinline__ void add(const Unit& u) {
    await_free<kUnits>(state.unit_read, known);
    if (lane_id() == 0) state.units[known % kUnits] = u;
    arrive_once(state.unit + known % kUnits);
    ++known;
  }
  // The units of the next number: none, or up to two.
  __device__ __forceinline__ void step() {
    const auto take = [&](const Unit& u) { add(u); };
    if constexpr (SPLIT) {
      more = split_unit<S::kQueries>(f, next, take);
      next += static_cast<int>(gridDim.x);
    } else {
      await_free<kUnits>(state.unit_read, known);
      more = next_units<S::kQueries>(f, take);
    }
    if (!more) add(Unit{});
  }
};

// A warp's 16 keys of the tiles of K and V of a cache in blocks of codes. The last warp brings units and queries, too:
// units when it is the first to need them, queries before the first tile of a unit, when all tiles of the unit before
// are there.
template <int DIM, bool SPLIT>
struct CodeBringer {
  using S = GroupShape<DIM, true>;
  using Tiles = typename S::Tiles;
  static constexpr int kRows = kAttentionTile / 4;
  using Share = TileShare<TND_WARP, kRows, false>;

  // A tile as wgmma reads it.
  struct Target {
    uint16_t* tile;
    __device__ __forceinline__ uint16_t* cell(int key, int element) const {
      return Tiles::cell(tile, static_cast<unsigned>(key), static_cast<unsigned>(element) / 8) + element % 8;
    }
  };

  const FlashArgs& f;
  typename S::State& state;
  UnitBringer<S, SPLIT> units;
  const bool leads;  // the last warp
  Share share;
  uint8_t* const copies;    // of tiles of K, then of V
  PackedRows keys, values;  // of the unit that is copied
  TileSlots slots;          // of the tile that is copied
  uint32_t unit = 0;
  int t = 0, last = 0, old = 0;
  uint32_t copied = 0;  // tiles
  uint32_t begins = 0;  // bit i: tile i of the copies is the first one of its unit
  bool ended = false;

  __device__ __forceinline__ CodeBringer(const FlashArgs& args, typename S::State& s, int warp, uint8_t* packed)
      : f(args), state(s), units(args, s), leads(warp == 3), copies(packed) {
    share.tid = static_cast<int>(lane_id());
    share.first = warp * kRows;
  }

  // Goes to the next tile, of the next unit after the last one.
  __device__ __forceinline__ void next() {
    if (ended) return;
    uint32_t begin = 0;
    if (++t >= last) {
      if (last > 0) arrive_once(state.unit_read + unit++ % kUnits);
      while (leads && units.known <= unit) units.step();
      await_filled<kUnits>(state.unit, unit);
      const Unit& u = state.units[unit % kUnits];
      t = u.first_tile, last = u.last_tile, old = u.tile.old;
      ended = last == 0;
      if (ended) return;
      const AttentionArgs& a = f.a;
      slots = tile_slots(a, u.tile, a.row_plans[u.tile.row], u.end);
      keys = packed_rows<DIM>(a.kv.k_type, a.kv, a.cache.k, u.kv_head, copies);
      values = packed_rows<DIM>(a.kv.v_type, a.kv, a.cache.v, u.kv_head,
                                copies + S::kCopies * S::packed_bytes(keys.type));
      begin = 1;
    }
    if (SPLIT && (t + 1) * kAttentionTile > old) wait_for_previous();
    go_to_tile(slots, t);
    const uint32_t place = copied++ % S::kCopies;
    begins = (begins & ~(1u << place)) | begin << place;
  }
  __device__ __forceinline__ uint8_t* copy_of(const PackedRows& rows, uint32_t use) const {
    return rows.copies + use % S::kCopies * S::packed_bytes(rows.type);
  }
  // Copies rows of `bytes`, of the slots that lanes hold; those of slot -1 become zeros.
  template <typename Piece>
  __device__ __forceinline__ void gather(uint8_t* into, const void* base, int bytes, int32_t slot_of_lane) const {
    const int pieces = bytes / static_cast<int>(sizeof(Piece));  // of a row
#pragma unroll 4
    for (int begin = 0; begin < kRows * pieces; begin += TND_WARP) {
      const int i = begin + share.tid, row = i / pieces % kRows;
      const int32_t slot = shfl(slot_of_lane, row);
      if (i >= kRows * pieces) continue;
      Piece x{};
      if (slot >= 0) x = static_cast<const Piece*>(base)[int64_t{slot} * pieces + i - row * pieces];
      reinterpret_cast<Piece*>(into)[i] = x;
    }
  }
  // Starts the copy of the tile of number `use`, if there is one.
  __device__ __forceinline__ void copy(const PackedRows& rows, uint32_t use, Barrier (*codes)[4]) {
    if (use >= copied) return;
    const int row = S::packed_row(rows.type), head = S::packed_head(rows.type), first = share.first;
    Barrier* there = &codes[use % S::kCopies][first / kRows];
    uint8_t* to = copy_of(rows, use) + first * row;
    uint8_t* heads = copy_of(rows, use) + kAttentionTile * row + first * head;
    if (plain_tile(slots)) {
      if (!one_of_warp()) return;
      barrier_expect(there, static_cast<uint32_t>(kRows * (row + head)));
      const int64_t slot = slots.base + first;
      bulk_copy(to, rows.codes + slot * row, static_cast<uint32_t>(kRows * row), there);
      bulk_copy(heads, reinterpret_cast<const uint8_t*>(rows.heads) + slot * head, static_cast<uint32_t>(kRows * head),
                there);
      return;
    }
    const int32_t slot_of_lane = slot_in(slots, first + share.tid % kRows);
    gather<uint4>(to, rows.codes, row, slot_of_lane);
    gather<uint32_t>(heads, rows.heads, head, slot_of_lane);
    arrive_once(there);
  }
  // rows may be of a later unit: type and place of copies are the same.
  __device__ __forceinline__ void unpack(const PackedRows& rows, uint32_t use, const Barrier (*codes)[4],
                                         uint16_t* tiles, Barrier* filled, const Barrier* read) {
    barrier_wait(&codes[use % S::kCopies][share.first / kRows], use / S::kCopies % 2);
    await_free<S::kDepth>(read, use);
    unpack_tile<DIM, true>(Target{tiles + use % S::kDepth * (Tiles::kBytes / 2)}, rows, copy_of(rows, use), slots,
                           share);
    show_to_wgmma();
    arrive_once(filled + use % S::kDepth);
  }

  __device__ __forceinline__ void run(uint16_t* halves) {
    uint32_t begun = 0;  // units whose queries are copied
    for (uint32_t use = 0; use < S::kCopies; ++use) {
      next();
      copy(keys, use, state.key_codes);
      copy(values, use, state.value_codes);
    }
    for (uint32_t use = 0; use < copied; ++use) {
      if (leads && (begins >> use % S::kCopies & 1) != 0) {
        wait_for_previous();
        copy_queries<S, DIM>(f, state, begun++, halves);
      }
      unpack(keys, use, state.key_codes, halves + S::kKeys / 2, state.keys, state.keys_read);
      next();
      copy(keys, use + S::kCopies, state.key_codes);
      unpack(values, use, state.value_codes, halves + S::kValues / 2, state.values, state.values_read);
      copy(values, use + S::kCopies, state.value_codes);
    }
  }
};

// ---- warps that multiply

// Turns the scores of a tile into weights. s: q k^T. Returns whether the sums of values must be scaled by `scale`.
[[maybe_unused]] TND_DEVICE bool weigh(float (&s)[kKeyBlocks][4], LaneQuery (&query)[2], float (&scale)[2],
                                       float score_scale, int first_key) {
  int begin[2], end[2];  // visible keys of the tile
  float base[2] = {-__builtin_inff(), -__builtin_inff()};
  bool active[2];
  const bool whole = find_visible(query, first_key, begin, end, active);
  if (any_lane(!whole)) {
    rare_branch();
    const int key = static_cast<int>(lane_id()) % 4 * 2;
#pragma unroll
    for (int j = 0; j < kKeyBlocks; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = key + 8 * j + e % 2, h = e / 2;
        if (at < begin[h] || at >= end[h]) s[j][e] = -__builtin_inff();  // no weight
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kKeyBlocks; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[j][e] = score_scale * s[j][e];
      base[e / 2] = fmaxf(base[e / 2], s[j][e]);
    }
  }
  const bool scaled = raise_maxima(query, active, base, scale);
  float sum[2][2] = {};
#pragma unroll
  for (int j = 0; j < kKeyBlocks; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s[j][e] = exp_weight(s[j][e] - base[e / 2]);
      sum[e / 2][e % 2] += s[j][e];
    }
  }
  add_weights(query, active, scale, sum);
  return any_lane(scaled);
}

[[maybe_unused]] TND_DEVICE void pack(uint32_t (&p)[kKeySteps][4], const float (&s)[kKeyBlocks][4]) {
#pragma unroll
  for (int n = 0; n < kKeySteps; ++n) {
#pragma unroll
    for (int r = 0; r < 4; ++r) p[n][r] = pack_halves(s[2 * n + r / 2][r % 2 * 2], s[2 * n + r / 2][r % 2 * 2 + 1]);
  }
}

// places[h]: the index of the row and head of a lane's query h among those of the step.
[[maybe_unused]] TND_DEVICE void places_of(const FlashArgs& f, const Unit& u, int first_of_lane, int (&places)[2]) {
  const int g = f.group.by, first_row = u.first_query / g, first = u.first_query - first_row * g;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int q = first + first_of_lane + 8 * h, row = q / f.group;
    places[h] = (u.tile.row + first_row + row) * f.a.q_heads + u.kv_head * g + q - row * g;
  }
}

// The number of segments that are in the slots of the warp's queries; nullptr if none takes part. It lies in the place
// of the first that does, which is the same in all units of these queries.
[[maybe_unused]] TND_DEVICE int32_t* handed_by(const FlashArgs& f, const LaneQuery (&query)[2],
                                               const int (&places)[2]) {
  const uint32_t low = ballot(query[0].begin < query[0].end), high = ballot(query[1].begin < query[1].end);
  if ((low | high) == 0) return nullptr;
  return f.handed + 1 + shfl(low != 0 ? places[0] : places[1], __ffs(static_cast<int>(low != 0 ? low : high)) - 1);
}

// Brings the sums of a segment to their slots. SPLIT: each has its own.
template <int DIM, bool SPLIT>
TND_DEVICE void fold(const FlashArgs& f, const Unit& u, const float (&o)[DIM / 8][4], const LaneQuery (&query)[2],
                     const int (&places)[2]) {
  float2* cells[2];
  float keep[2], add[2];
  bool folds[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const LaneQuery& q = query[h];
    const int64_t at = int64_t{places[h]} * f.slots + u.slot;
    folds[h] = !SPLIT && q.seen && u.part == 0 && q.begin < u.turn * u.segment;  // the slot holds earlier segments
    keep[h] = 0.0f, add[h] = 1.0f;
    const float2 run = folds[h] ? load_handed(f.ml + at) : make_float2(0.0f, 0.0f);
    sync_warp();  // all lanes of the query have read
    float2 now = make_float2(q.m, q.l);
    if (folds[h]) {
      const float top = run.x > now.x ? run.x : now.x;
      keep[h] = exp_f32(run.x - top);
      add[h] = exp_f32(now.x - top);
      now = make_float2(top, fmaf(run.y, keep[h], now.y * add[h]));
    }
    if (q.seen && lane_id() % 4 == 0) f.ml[at] = now;
    cells[h] = reinterpret_cast<float2*>(f.o + at * DIM) + lane_id() % 4;
  }
  constexpr int kAtOnce = 8;
#pragma unroll
  for (int first = 0; first < DIM / 8; first += kAtOnce) {
    float2 old[2][kAtOnce];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        old[h][j] = make_float2(0.0f, 0.0f);
        if (folds[h]) old[h][j] = load_handed(cells[h] + (first + j) * 4);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!query[h].seen) continue;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const float(&sums)[4] = o[first + j];
        float2 now = make_float2(sums[2 * h], sums[2 * h + 1]);
        if (folds[h]) {
          now.x = fmaf(old[h][j].x, keep[h], now.x * add[h]);
          now.y = fmaf(old[h][j].y, keep[h], now.y * add[h]);
        }
        cells[h][(first + j) * 4] = now;
      }
    }
  }
}

template <class S, int DIM, bool SPLIT>
TND_DEVICE void multiply_units(const FlashArgs& f, typename S::State& state, int group, uint16_t* shared) {
  using Tiles = GroupTiles<DIM>;
  constexpr int kHalves = Tiles::kBytes / 2;
  const AttentionArgs& a = f.a;
  const int warp = one_warp_id() % 4, g = f.group.by;
  const int first_of_lane = group * 64 + warp * 16 + static_cast<int>(lane_id()) / 4;  // the other is eight further on
  uint16_t* sq = shared + group * kHalves;
  uint16_t* sk = shared + S::kKeys / 2;
  uint16_t* sv = shared + S::kValues / 2;
  uint32_t use = 0;  // of a tile of V, or of K
  for (uint32_t number = 0;; ++number) {
    await_filled<kUnits>(state.unit, number);
    const Unit& u = state.units[number % kUnits];
    if (u.last_tile == 0) return;
    if (group * 64 >= u.queries) {  // nothing for this warpgroup
      await_filled<1>(&state.queries, number);
#pragma unroll 1
      for (int t = u.first_tile; t < u.last_tile; ++t, ++use) {
        await_filled<S::kDepth>(state.keys, use);
        arrive_once(state.keys_read + use % S::kDepth);
        await_filled<S::kDepth>(state.values, use);
        arrive_once(state.values_read + use % S::kDepth);
      }
      arrive_once(&state.queries_read);
      arrive_once(state.unit_read + number % kUnits);
      continue;
    }
    LaneQuery query[2];
    const int first_row = u.first_query / g, first = u.first_query - first_row * g;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int q = first_of_lane + 8 * h;
      if (q >= u.queries) continue;
      const int row = (first + q) / f.group;
      const KeyRange k = range_in_unit<SPLIT>(u, a.row_plans[u.tile.row + first_row + row]);
      if (k.begin < k.end) query[h].begin = k.begin, query[h].end = k.end;
    }

    float o[DIM / 8][4], s[kKeyBlocks][4], scale[2];
    uint32_t p[kKeySteps][4];
#pragma unroll
    for (int j = 0; j < DIM / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o[j][e] = 0.0f;
    }
    await_filled<1>(&state.queries, number);
    await_filled<S::kDepth>(state.keys, use);
    show_to_wgmma();
    Tiles::begin_keys(s, sq, sk + use % S::kDepth * kHalves, warp);
    wgmma_wait<0>();
    settled(s);
    arrive_once(state.keys_read + use % S::kDepth);
    weigh(s, query, scale, a.scale, u.first_tile * kAttentionTile);
    pack(p, s);
#pragma unroll 1
    for (int t = u.first_tile + 1; t < u.last_tile; ++t, ++use) {
      const uint32_t place = shfl(use % S::kDepth, 0), next = shfl((use + 1) % S::kDepth, 0);
      await_filled<S::kDepth>(state.keys, use + 1);
      await_filled<S::kDepth>(state.values, use);
      show_to_wgmma();
      Tiles::begin_keys(s, sq, sk + next * kHalves, warp);
      Tiles::begin_values(o, p, sv + place * kHalves);
      wgmma_wait<0>();
      settled(s);
      settled(o);
      arrive_once(state.keys_read + next);
      arrive_once(state.values_read + place);
      const bool scaled = weigh(s, query, scale, a.scale, t * kAttentionTile);
      pack(p, s);
      if (scaled) {
        rare_branch();
#pragma unroll
        for (int j = 0; j < DIM / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) o[j][e] *= scale[e / 2];
        }
      }
    }
    arrive_once(&state.queries_read);
    await_filled<S::kDepth>(state.values, use);
    show_to_wgmma();
    Tiles::begin_values(o, p, sv + use % S::kDepth * kHalves);
    int places[2];
    places_of(f, u, first_of_lane, places);
    int32_t* const handed = !SPLIT && u.part == 0 ? handed_by(f, query, places) : nullptr;
    if (handed != nullptr && u.turn > u.first_turn) wait_for_number(handed, u.turn);
    wgmma_wait<0>();
    settled(o);
    arrive_once(state.values_read + use % S::kDepth);
    ++use;
    fold<DIM, SPLIT>(f, u, o, query, places);
    if (handed != nullptr) raise_number(handed, u.turn + 1);
    arrive_once(state.unit_read + number % kUnits);
  }
}

template <int DIM, bool CODES, bool SPLIT>
__global__ void __launch_bounds__(GroupShape<DIM, CODES>::kThreads, 1) attention_group_kernel(FlashArgs f) {
  if constexpr (kGroupTiles) {
    using S = GroupShape<DIM, CODES>;
    TND_DYNAMIC_SHARED(uint8_t, dynamic);
    uint8_t* shared = S::Tiles::aligned(dynamic);
    auto* halves = reinterpret_cast<uint16_t*>(shared);
    auto& state = *reinterpret_cast<typename S::State*>(shared + S::kState);
    constexpr int kReaders = 4 * S::kGroups;         // warps that multiply
    constexpr int kBringers = CODES ? 4 : 3;         // warps that read units to bring data
    constexpr int kArrivals = CODES ? 4 : TND_WARP;  // at a tile: of warps, or of the lanes whose copies are there
    let_next_start();
    if (threadIdx.x == 0) {
      for (int i = 0; i < S::kDepth; ++i) {
        barrier_init(&state.keys[i], kArrivals);
        barrier_init(&state.keys_read[i], kReaders);
        barrier_init(&state.values[i], kArrivals);
        barrier_init(&state.values_read[i], kReaders);
      }
      barrier_init(&state.queries, TND_WARP);
      barrier_init(&state.queries_read, kReaders);
      for (int i = 0; CODES && i < S::kCopies * 4; ++i) {
        barrier_init(&state.key_codes[0][0] + i, 1);
        barrier_init(&state.value_codes[0][0] + i, 1);
      }
      for (int i = 0; i < kUnits; ++i) {
        barrier_init(&state.unit[i], 1);
        barrier_init(&state.unit_read[i], kReaders + kBringers);
      }
      barriers_made();
    }
    __syncthreads();
    const int warp = one_warp_id();
    // Plans were written before the previous launch began. Whoever brings tiles waits when they may be newer.
    if (!SPLIT || warp >= (CODES ? 4 : 2)) wait_for_previous();
    if (warp < 4) {
      give_registers<S::kBringing>();
      if constexpr (CODES) {
        CodeBringer<DIM, SPLIT>(f, state, warp, shared + S::kPacked).run(halves);
      } else if (warp < 2) {
        bring_tiles<DIM, SPLIT>(f, state, warp == 0, halves + (warp == 0 ? S::kKeys : S::kValues) / 2);
      } else if (warp == 2) {
        bring_queries<S, DIM>(f, state, halves);
      } else {
        UnitBringer<S, SPLIT> units(f, state);
        while (units.more) units.step();
      }
    } else {
      take_registers<S::kMultiplying>();
      multiply_units<S, DIM, SPLIT>(f, state, warp / 4 - 1, halves);
    }
    if (SPLIT) wait_for_previous();  // everyone: the next kernel relies on the end of the previous one
  }
}

// Sets the numbers of handover.h to zero.
__global__ void __launch_bounds__(kBeginThreads) attention_begin_kernel(int32_t* handed, int n) {
  let_next_start();
  wait_for_previous();
  const int i = static_cast<int>(blockIdx.x * kBeginThreads + threadIdx.x);
  if (i < n) handed[i] = 0;
}

template <int DIM, bool CODES, bool SPLIT>
bool launch_group_units(Stream& stream, FlashArgs f) {
  using S = GroupShape<DIM, CODES>;
  const AttentionArgs& a = f.a;
  const unsigned bytes = S::shared_bytes(a.kv);
  if (bytes > static_cast<unsigned>(a.shared_per_block)) return false;
  f.bulk_blocks = (a.bulk_rows * f.group.by + S::kQueries - 1) / S::kQueries;
  f.tail_blocks = (a.tail_rows * f.group.by + S::kQueries - 1) / S::kQueries;
  const int units = a.kv.heads * (a.n_bulk * f.bulk_blocks * kParts + a.n_tail * f.tail_blocks);
  int blocks = std::min(a.processors, units);
  if (!SPLIT) {
    const int numbers = a.rows * a.q_heads + 1;
    launch(stream,
           {.grid = {static_cast<unsigned>((numbers + kBeginThreads - 1) / kBeginThreads)},
            .block = {kBeginThreads},
            .overlap = true,
            .name = "attention_begin"},
           attention_begin_kernel, f.handed, numbers);
#if defined(TND_GPU_EMU)
    blocks = 1;  // handover.h
#endif
  }
  launch(stream,
         {.grid = {static_cast<unsigned>(blocks)},
          .block = {S::kThreads},
          .shared_bytes = bytes,
          .overlap = true,
          .name = SPLIT ? "attention_group" : "attention_prompt"},
         attention_group_kernel<DIM, CODES, SPLIT>, f);
  return true;
}

template <bool CODES, bool SPLIT>
bool launch_group_dims(Stream& stream, const FlashArgs& f) {
  if (f.a.kv.dim == 256) return launch_group_units<256, CODES, SPLIT>(stream, f);
  if (f.a.kv.dim == 128) return launch_group_units<128, CODES, SPLIT>(stream, f);
  return launch_group_units<64, CODES, SPLIT>(stream, f);
}

}  // namespace
}  // namespace tnd::gpu

#endif
