// The warps of attention_group.cuh that bring keys and values of a cache in blocks of codes.
#pragma once

#include "gpu/attention/attention_group_units.cuh"

#if defined(TND_GPU_EMU) || defined(TND_CUDA_WGMMA)

namespace tnd::gpu {
namespace {

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
      values =
          packed_rows<DIM>(a.kv.v_type, a.kv, a.cache.v, u.kv_head, copies + S::kCopies * S::packed_bytes(keys.type));
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

}  // namespace
}  // namespace tnd::gpu

#endif
