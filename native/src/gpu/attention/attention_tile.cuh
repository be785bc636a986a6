// Tiles of cached rows for flash attention where keys or values lie in blocks: codes and scales become halves in shared
// memory, code * scale rounded to nearest even, so that everything behind the tile is that of a cache of halves.
//
// A half holds a code exactly and rounds the exact product once, as f32 and a conversion would; a code becomes a half
// by its bits alone: u in 0..255 under the exponent of 1024 is 1024 + u, and what it exceeds the code by is taken off.
// Seven instructions for four values. A unit is 16 bytes of codes: 8 halves, 16 bytes or a block of 32 nibbles. Units
// go to threads so that eight neighbours write the same columns of eight rows: rows start four banks apart.
//
// Where copies run in the background they bring codes and scales as they are, a stage or two ahead, and unpack_tile
// reads shared memory; elsewhere it reads the cache.
#pragma once

#include "gpu/attention/attention_device.cuh"

namespace tnd::gpu {

// Rows of a head, and where its copied tiles lie.
struct PackedRows {
  KvType type;
  const uint8_t* codes;    // [slots][code bytes]
  const uint16_t* scales;  // [slots][dim / 32]
  uint8_t* copies;         // shared: [stages] of packed_tile_bytes
};

// Bytes from a row of codes to the next in a copied tile: blocks skip four banks a row, halves are read along the row.
template <int DIM>
TND_HOST_DEVICE constexpr int packed_stride(KvType type) {
  return static_cast<int>(kv_code_bytes(type, DIM)) + (kv_quantised(type) ? 16 : 0);
}
// Copied tile: codes [64][packed_stride], scales [64][DIM / 32].
template <int DIM>
TND_HOST_DEVICE constexpr int packed_tile_bytes(KvType type) {
  return kAttentionTile * (packed_stride<DIM>(type) + (kv_quantised(type) ? DIM / kKvBlock * 2 : 0));
}

template <int DIM>
TND_DEVICE PackedRows packed_rows(int32_t type, const KvShape& kv, void* cache, int head, uint8_t* copies) {
  const KvRow first = kv_row(static_cast<KvType>(type), kv, cache, head, 0);
  return {static_cast<KvType>(type), first.codes, first.scales, copies};
}

// The slots of a tile's positions; -1 = not visible to anyone, read as zeros: finite, whatever weight they meet.
struct TileSlots {
  int32_t first, end;  // positions
  int32_t direct;      // those below lie in their page, others by the tail of `row`; at most end
  int32_t base;        // slot of `first`
  const int32_t* pages;
  AttentionRow row;
  const int32_t* tails;
};
// Of no tile yet, up to `end`; row: the first of `tile`.
TND_DEVICE TileSlots tile_slots(const AttentionArgs& a, const AttentionTile& tile, const AttentionRow& row,
                                int32_t end) {
  const bool mapped = tile.rows == 1 && row.n_tail > 0 && row.past < end;
  return {-1, end, mapped ? row.past : end, 0, a.pages + tile.pages, row, a.tails};
}
// Goes to tile t.
TND_DEVICE void go_to_tile(TileSlots& s, int t) {
  if (s.first == t * kAttentionTile) return;
  s.first = t * kAttentionTile;
  s.base = s.pages[t] * kAttentionTile;
}
// Nearly always: slots of all keys are steps from the first.
TND_DEVICE bool plain_tile(const TileSlots& s) {
  return s.first + kAttentionTile <= s.direct;
}
TND_DEVICE int32_t slot_in(const TileSlots& s, int key) {
  const int32_t position = s.first + key;
  if (position >= s.end) return -1;
  return position < s.direct ? s.base + key : s.tails[s.row.tail + position - s.row.past];
}

// copy_packed starts the copy of a tile to shared memory.
template <int DIM, int THREADS>
TND_DEVICE void copy_packed(const PackedRows& rows, uint8_t* to, const TileSlots& slots) {
  const int tid = static_cast<int>(threadIdx.x), stride = packed_stride<DIM>(rows.type);
  const int64_t row = kv_code_bytes(rows.type, DIM);
  const int units = static_cast<int>(row / 16), at = tid % units * 16;
  const bool plain = plain_tile(slots);
  for (int key = tid / units; key < kAttentionTile; key += THREADS / units) {
    const int32_t slot = plain ? slots.base + key : slot_in(slots, key);
    copy_async_16(to + key * stride + at, rows.codes + (slot < 0 ? 0 : slot) * row + at, slot < 0 ? 0 : 16);
  }
  if (!kv_quantised(rows.type)) return;
  constexpr int kScales = DIM / kKvBlock;
  uint16_t* scales = reinterpret_cast<uint16_t*>(to + kAttentionTile * stride);
  if (plain) {
    const uint16_t* from = rows.scales + int64_t{slots.base} * kScales;
    for (int i = tid * 8; i < kAttentionTile * kScales; i += THREADS * 8) copy_async_16(scales + i, from + i);
    return;
  }
  // A row's scales are too short for a copy in the background.
  for (int i = tid; i < kAttentionTile * kScales; i += THREADS) {
    const int32_t slot = slot_in(slots, i / kScales);
    scales[i] = slot < 0 ? uint16_t{0} : rows.scales[int64_t{slot} * kScales + i % kScales];
  }
}

// Halves of four codes held as u + 1024 with the excess in `excess`, times the scale (twice in a word).
TND_DEVICE uint2 scaled_halves(uint32_t codes, uint32_t excess, uint32_t scale) {
  const uint32_t low = byte_perm(codes, 0x64646464u, 0x4140), high = byte_perm(codes, 0x64646464u, 0x4342);
  return make_uint2(half2_multiply(half2_subtract(low, excess), scale),
                    half2_multiply(half2_subtract(high, excess), scale));
}
TND_DEVICE void store_halves(uint16_t* to, uint32_t a, uint32_t b, uint32_t excess, uint32_t scale) {
  const uint2 x = scaled_halves(a, excess, scale), y = scaled_halves(b, excess, scale);
  *reinterpret_cast<uint4*>(to) = make_uint4(x.x, x.y, y.x, y.y);
}

template <KvType TYPE, int DIM, int STRIDE, int THREADS, bool COPIED>
TND_DEVICE void unpack_typed(uint16_t* tile, const PackedRows& rows, const uint8_t* copied, const TileSlots& slots) {
  constexpr int kUnits = static_cast<int>(kv_code_bytes(TYPE, DIM) / 16), kElems = DIM / kUnits,
                kScales = DIM / kKvBlock;
  constexpr int kRow = kUnits * 16, kCopied = packed_stride<DIM>(TYPE);
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < kAttentionTile * kUnits; i += THREADS) {
    const bool blocks = TYPE != KvType::kF16;
    const int key = blocks ? i / (8 * kUnits) * 8 + i % 8 : i / kUnits, unit = blocks ? i / 8 % kUnits : i % kUnits;
    const int block = unit * kElems / kKvBlock;
    uint4 codes = make_uint4(0, 0, 0, 0);
    uint32_t scale = 0;
    if constexpr (COPIED) {
      codes = *reinterpret_cast<const uint4*>(copied + key * kCopied + unit * 16);
      if (blocks) scale = reinterpret_cast<const uint16_t*>(copied + kAttentionTile * kCopied)[key * kScales + block];
    } else if (const int32_t slot = slot_in(slots, key); slot >= 0) {
      codes = *reinterpret_cast<const uint4*>(rows.codes + int64_t{slot} * kRow + unit * 16);
      if (blocks) scale = rows.scales[int64_t{slot} * kScales + block];
    }
    scale |= scale << 16;
    uint16_t* to = tile + key * STRIDE + unit * kElems;
    if constexpr (TYPE == KvType::kF16) {
      *reinterpret_cast<uint4*>(to) = codes;
    } else if constexpr (TYPE == KvType::kQ8_0) {
      constexpr uint32_t kSign = 0x80808080u, kExcess = 0x64806480u;  // 1024 + 128
      store_halves(to, codes.x ^ kSign, codes.y ^ kSign, kExcess, scale);
      store_halves(to + 8, codes.z ^ kSign, codes.w ^ kSign, kExcess, scale);
    } else {
      constexpr uint32_t kNibbles = 0x0F0F0F0Fu, kExcess = 0x64086408u;  // 1024 + 8
      store_halves(to, codes.x & kNibbles, codes.y & kNibbles, kExcess, scale);
      store_halves(to + 8, codes.z & kNibbles, codes.w & kNibbles, kExcess, scale);
      store_halves(to + 16, codes.x >> 4 & kNibbles, codes.y >> 4 & kNibbles, kExcess, scale);
      store_halves(to + 24, codes.z >> 4 & kNibbles, codes.w >> 4 & kNibbles, kExcess, scale);
    }
  }
}

// unpack_tile writes the tile [64][STRIDE] of halves, from a copied tile or (COPIED false) from the cache.
template <int DIM, int STRIDE, int THREADS, bool COPIED>
TND_DEVICE void unpack_tile(uint16_t* tile, const PackedRows& rows, const uint8_t* copied, const TileSlots& slots) {
  if (rows.type == KvType::kQ8_0) {
    unpack_typed<KvType::kQ8_0, DIM, STRIDE, THREADS, COPIED>(tile, rows, copied, slots);
  } else if (rows.type == KvType::kQ4_0) {
    unpack_typed<KvType::kQ4_0, DIM, STRIDE, THREADS, COPIED>(tile, rows, copied, slots);
  } else {
    unpack_typed<KvType::kF16, DIM, STRIDE, THREADS, COPIED>(tile, rows, copied, slots);
  }
}

// The tiles of a block of attention_flash_kernel. COPIED: fetch starts a copy, or ends a group without one beyond the
// last tile, and unpack waits for no one; else fetch unpacks at once.
template <int DIM, int STAGES, int STRIDE, int THREADS, bool COPIED>
struct PackedTiles {
  PackedRows keys, values;
  TileSlots slots;
  int last_tile;
  uint16_t* tile;

  __device__ __forceinline__ void init(const KvShape& kv, const KvCache& cache, int head, const TileSlots& all,
                                       int last, uint8_t* copies, uint16_t* halves) {
    keys = packed_rows<DIM>(kv.k_type, kv, cache.k, head, copies);
    values = packed_rows<DIM>(kv.v_type, kv, cache.v, head, copies + STAGES * packed_tile_bytes<DIM>(keys.type));
    slots = all, last_tile = last, tile = halves;
  }
  __device__ __forceinline__ void fetch_keys(int t) { fetch(keys, t); }
  __device__ __forceinline__ void fetch_values(int t) { fetch(values, t); }
  __device__ __forceinline__ void unpack_keys(int t) { unpack(keys, t); }
  __device__ __forceinline__ void unpack_values(int t) { unpack(values, t); }

 private:
  __device__ __forceinline__ TileSlots slots_of(int t) const {
    TileSlots s = slots;
    go_to_tile(s, t);
    return s;
  }
  __device__ __forceinline__ uint8_t* copied(const PackedRows& rows, int t) const {
    return rows.copies + t % STAGES * packed_tile_bytes<DIM>(rows.type);
  }
  __device__ __forceinline__ void fetch(const PackedRows& rows, int t) {
    if constexpr (COPIED) {
      if (t < last_tile) copy_packed<DIM, THREADS>(rows, copied(rows, t), slots_of(t));
      copy_async_commit();
    } else if (t < last_tile) {
      unpack(rows, t);
    }
  }
  __device__ __forceinline__ void unpack(const PackedRows& rows, int t) {
    unpack_tile<DIM, STRIDE, THREADS, COPIED>(tile, rows, COPIED ? copied(rows, t) : nullptr, slots_of(t));
  }
};
struct NoTiles {};

}  // namespace tnd::gpu
