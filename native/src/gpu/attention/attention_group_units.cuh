// What the warps of a block of attention_group.cuh share: units of work, shared memory, rings of tiles.
#pragma once

#include "gpu/attention/attention_flash.cuh"
#include "gpu/attention/attention_wgmma_tiles.cuh"
#include "gpu/runtime/handover.h"

#if defined(TND_GPU_EMU) || defined(TND_CUDA_WGMMA)

namespace tnd::gpu {
namespace {

constexpr int kGroupThreads = 4 * TND_WARP;
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
  static constexpr int kBringing = CODES          ? (DIM == 256 ? 120 : 136)
                                   : kGroups == 2 ? 40
                                                  : 32,
                       kMultiplying = CODES          ? (DIM == 256 ? 192 : 184)
                                      : kGroups == 2 ? 232
                                                     : 160;
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
    KeyRange seen = kNoKeys;
    int32_t larger = 1 << 30;  // the next size that rows have
    for (int row = lane; row < rows; row += TND_WARP) {
      const KeyRange k = key_range(a.row_plans[u.tile.row + first_row + row], u.part, 1);
      if (k.begin >= k.end) continue;
      if (k.segment > size && k.segment < larger) larger = k.segment;
      if (k.segment == size) widen(seen, k);
    }
    seen = warp_range(seen);
#pragma unroll
    for (int mask = TND_WARP / 2; mask > 0; mask /= 2) {
      const int32_t l = shfl_xor(larger, mask);
      larger = l < larger ? l : larger;
    }
    if (seen.begin < seen.end) {
      Unit of = u;
      of.segment = size;
      of.end = seen.end;
      of.first_tile = seen.begin / kAttentionTile;
      of.last_tile = (seen.end + kAttentionTile - 1) / kAttentionTile;
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
  const int g = f.group.by;
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
  const KeyRange seen = range_of_rows(f, u.tile.row + first_row, rows, u.part, kParts);
  if (seen.begin >= seen.end) return true;
  u.end = seen.end;
  u.first_tile = seen.begin / kAttentionTile;
  u.last_tile = (seen.end + kAttentionTile - 1) / kAttentionTile;
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

[[maybe_unused]] TND_DEVICE void arrive_once(Barrier* b) {
  sync_warp();
  if (lane_id() == 0) barrier_arrive(b);
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

}  // namespace
}  // namespace tnd::gpu

#endif
