// Tiles of cached rows for flash attention where keys or values are not halves. They become halves in shared memory:
// the f32 value that a block or a BF16 decodes to, rounded to nearest even. Everything after that is as with a cache
// of halves.
//
// Q8_0 and Q4_0, the types of most caches, never leave halves:
// A half holds a code exactly and rounds the exact product once, as f32 and a conversion would; a code becomes a half
// by its bits alone: u in 0..255 as mantissa under the exponent of 1024 is 1024 + u, from which the excess over the
// code is subtracted. That takes seven instructions for four values. A unit is 16 bytes of codes: 8 halves, 16 bytes or
// a block of 32 nibbles. Units go to threads so that eight neighbours write the same columns of eight rows: rows start
// four banks apart. The other blocks share a loop that computes in f32.
//
// Where copies run in the background, they fetch codes and scales unchanged, a stage or two ahead, and unpack_tile
// reads shared memory; elsewhere it reads the cache. Rows of BF16 are always read from the cache: on smaller cards a
// block has no room for their copies beside a tile of halves.
#pragma once

#include "gpu/attention/attention_device.cuh"

namespace tnd::gpu {

// Rows of a head, and where its copied tiles lie.
struct PackedRows {
  KvType type;
  const uint8_t* codes;   // [slots][code bytes]
  const uint16_t* heads;  // [slots][dim / 32] words before the codes
  uint8_t* copies;        // shared: [stages] of packed_tile_bytes
};

// Bytes from a row of codes to the next in a copied tile: blocks skip four banks a row, halves are read along the row.
template <int DIM>
TND_HOST_DEVICE constexpr int packed_stride(KvType type) {
  return static_cast<int>(kv_code_bytes(type, DIM)) + (kv_quantised(type) ? 16 : 0);
}
// Copied tile: codes [64][packed_stride], heads [64][DIM / 32]. BF16 has none.
template <int DIM>
TND_HOST_DEVICE constexpr int packed_tile_bytes(KvType type) {
  if (type == KvType::kBF16) return 0;
  return kAttentionTile *
         (packed_stride<DIM>(type) + (kv_quantised(type) ? DIM / kKvBlock * 2 * kv_head_words(type) : 0));
}

template <int DIM>
TND_DEVICE PackedRows packed_rows(int32_t type, const KvShape& kv, void* cache, int head, uint8_t* copies) {
  const KvRow first = kv_row(static_cast<KvType>(type), kv, cache, head, 0);
  return {static_cast<KvType>(type), first.codes, first.heads, copies};
}

// The slots of a tile's positions; -1 = visible to no row, read as zeros, which are finite under any weight.
struct TileSlots {
  int32_t first, end;  // positions
  int32_t direct;      // those below lie in their page, others by the tail of `row`; at most end
  int32_t base;        // slot of `first`
  const int32_t* pages;
  AttentionRow row;
  const int32_t* tails;
};
// tile_slots returns the slots up to `end`, at no tile yet; row: the first of `tile`.
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
// plain_tile is true of nearly all tiles: their slots follow the first one's in order.
TND_DEVICE bool plain_tile(const TileSlots& s) {
  return s.first + kAttentionTile <= s.direct;
}
TND_DEVICE int32_t slot_in(const TileSlots& s, int key) {
  const int32_t position = s.first + key;
  if (position >= s.end) return -1;
  return position < s.direct ? s.base + key : s.tails[s.row.tail + position - s.row.past];
}

// The rows of a tile that some threads copy or unpack: ROWS from `first` on, by THREADS of which `tid` is one. By
// default all rows, by all threads of a block, in a copied tile whose rows skip four banks. PADDED false: rows follow
// each other, and neighbours read other units of theirs.
template <int THREADS, int ROWS = kAttentionTile, bool PADDED = true>
struct TileShare {
  static constexpr int kThreads = THREADS, kRows = ROWS, kPad = PADDED ? 16 : 0;
  int tid = static_cast<int>(threadIdx.x), first = 0;

  // Of `units` a row, the one of a thread whose eight neighbours have the same number.
  template <int UNITS>
  static __device__ __forceinline__ int unit(int number, int neighbour) {
    constexpr int kTurn = UNITS < 8 ? UNITS : 8;
    return PADDED ? number : number / kTurn * kTurn + (number + neighbour) % kTurn;
  }
};

// copy_packed starts the copy of a tile to shared memory.
template <int DIM, int THREADS>
TND_DEVICE void copy_packed(const PackedRows& rows, uint8_t* to, const TileSlots& slots) {
  if (rows.type == KvType::kBF16) return;
  const int tid = static_cast<int>(threadIdx.x), stride = packed_stride<DIM>(rows.type);
  const int64_t row = kv_code_bytes(rows.type, DIM);
  const int units = static_cast<int>(row / 16), at = tid % units * 16;
  const bool plain = plain_tile(slots);
  for (int key = tid / units; key < kAttentionTile; key += THREADS / units) {
    const int32_t slot = plain ? slots.base + key : slot_in(slots, key);
    copy_async_16(to + key * stride + at, rows.codes + (slot < 0 ? 0 : slot) * row + at, slot < 0 ? 0 : 16);
  }
  if (!kv_quantised(rows.type)) return;
  const int words = DIM / kKvBlock * kv_head_words(rows.type);  // of a row's heads
  uint16_t* heads = reinterpret_cast<uint16_t*>(to + kAttentionTile * stride);
  if (plain) {
    const uint16_t* from = rows.heads + int64_t{slots.base} * words;
    for (int i = tid * 8; i < kAttentionTile * words; i += THREADS * 8) copy_async_16(heads + i, from + i);
    return;
  }
  // A row's heads of blocks are too short for a copy in the background.
  for (int i = tid; i < kAttentionTile * words; i += THREADS) {
    const int32_t slot = slot_in(slots, i / words);
    heads[i] = slot < 0 ? uint16_t{0} : rows.heads[int64_t{slot} * words + i % words];
  }
}

// A tile [64][STRIDE] of halves.
template <int STRIDE>
struct StridedTile {
  uint16_t* tile;
  __device__ __forceinline__ uint16_t* cell(int key, int element) const { return tile + key * STRIDE + element; }
};

// Halves of four codes, which are held as 1024 + u; `excess` is subtracted, then they are multiplied by the scale
// (twice in a word).
TND_DEVICE uint2 scaled_halves(uint32_t codes, uint32_t excess, uint32_t scale) {
  const uint32_t low = byte_perm(codes, 0x64646464u, 0x4140), high = byte_perm(codes, 0x64646464u, 0x4342);
  return make_uint2(half2_multiply(half2_subtract(low, excess), scale),
                    half2_multiply(half2_subtract(high, excess), scale));
}
TND_DEVICE void store_halves(uint16_t* to, uint32_t a, uint32_t b, uint32_t excess, uint32_t scale) {
  const uint2 x = scaled_halves(a, excess, scale), y = scaled_halves(b, excess, scale);
  *reinterpret_cast<uint4*>(to) = make_uint4(x.x, x.y, y.x, y.y);
}

template <KvType TYPE, int DIM, bool COPIED, class Tile, class Share>
TND_DEVICE void unpack_typed(const Tile& tile, const PackedRows& rows, const uint8_t* copied, const TileSlots& slots,
                             const Share& share) {
  constexpr int kUnits = static_cast<int>(kv_code_bytes(TYPE, DIM) / 16), kElems = DIM / kUnits,
                kScales = DIM / kKvBlock;
  constexpr int kRow = kUnits * 16, kCopied = kRow + (TYPE == KvType::kF16 ? 0 : Share::kPad);
  // A warp by itself needs more units at once than several that take turns.
  constexpr int kAll = Share::kRows * kUnits;
  [[maybe_unused]] constexpr int kUnroll = Share::kThreads == TND_WARP ? 4 : 2;
#pragma unroll kUnroll
  for (int begin = 0; begin < kAll; begin += Share::kThreads) {
    const int i = begin + share.tid;
    if (kAll % Share::kThreads != 0 && i >= kAll) break;
    const bool blocks = TYPE != KvType::kF16;
    const int key = share.first + (blocks ? i / (8 * kUnits) * 8 + i % 8 : i / kUnits),
              unit = blocks ? Share::template unit<kUnits>(i / 8 % kUnits, i % 8) : i % kUnits, element = unit * kElems;
    const int block = unit * kElems / kKvBlock;
    uint4 codes = make_uint4(0, 0, 0, 0);
    uint32_t scale = 0;
    if constexpr (COPIED) {
      codes = *reinterpret_cast<const uint4*>(copied + key * kCopied + unit * 16);
      if (blocks) scale = reinterpret_cast<const uint16_t*>(copied + kAttentionTile * kCopied)[key * kScales + block];
    } else if (const int32_t slot = slot_in(slots, key); slot >= 0) {
      codes = *reinterpret_cast<const uint4*>(rows.codes + int64_t{slot} * kRow + unit * 16);
      if (blocks) scale = rows.heads[int64_t{slot} * kScales + block];
    }
    scale |= scale << 16;
    const auto cell = [&](int at) { return tile.cell(key, element + at); };
    if constexpr (TYPE == KvType::kF16) {
      *reinterpret_cast<uint4*>(cell(0)) = codes;
    } else if constexpr (TYPE == KvType::kQ8_0) {
      constexpr uint32_t kSign = 0x80808080u, kExcess = 0x64806480u;  // 1024 + 128
      store_halves(cell(0), codes.x ^ kSign, codes.y ^ kSign, kExcess, scale);
      store_halves(cell(8), codes.z ^ kSign, codes.w ^ kSign, kExcess, scale);
    } else {
      constexpr uint32_t kNibbles = 0x0F0F0F0Fu, kExcess = 0x64086408u;  // 1024 + 8
      store_halves(cell(0), codes.x & kNibbles, codes.y & kNibbles, kExcess, scale);
      store_halves(cell(8), codes.z & kNibbles, codes.w & kNibbles, kExcess, scale);
      store_halves(cell(16), codes.x >> 4 & kNibbles, codes.y >> 4 & kNibbles, kExcess, scale);
      store_halves(cell(24), codes.z >> 4 & kNibbles, codes.w >> 4 & kNibbles, kExcess, scale);
    }
  }
}

// Blocks of nibbles with a minimum or fifth bits, a unit a block.
template <int DIM, bool COPIED, class Tile, class Share>
TND_DEVICE void unpack_nibbles(const Tile& tile, const PackedRows& rows, const uint8_t* copied, const TileSlots& slots,
                               const Share& share) {
  constexpr int kUnits = DIM / kKvBlock, kRow = DIM / 2, kCopied = kRow + Share::kPad;
  const int words = kv_head_words(rows.type);
  const bool minimum = kv_has_minimum(rows.type), five = kv_has_fifth_bits(rows.type);
  const float excess = minimum ? 0.0f : 16.0f;
#pragma unroll 1
  for (int i = share.tid; i < Share::kRows * kUnits; i += Share::kThreads) {
    const int key = share.first + i / (8 * kUnits) * 8 + i % 8,
              unit = Share::template unit<kUnits>(i / 8 % kUnits, i % 8);
    uint4 codes = make_uint4(0, 0, 0, 0);
    const uint16_t* head = nullptr;
    if constexpr (COPIED) {
      codes = *reinterpret_cast<const uint4*>(copied + key * kCopied + unit * 16);
      head = reinterpret_cast<const uint16_t*>(copied + kAttentionTile * kCopied) + (key * kUnits + unit) * words;
    } else if (const int32_t slot = slot_in(slots, key); slot >= 0) {
      codes = *reinterpret_cast<const uint4*>(rows.codes + int64_t{slot} * kRow + unit * 16);
      head = rows.heads + (int64_t{slot} * kUnits + unit) * words;
    }
    // Adding -0 changes nothing, not even the sign of a zero.
    float scale = 0.0f, least = -0.0f;
    uint32_t fifths = 0;
    if (head != nullptr) {
      scale = half_to_float(head[0]);
      if (minimum) least = half_to_float(head[1]);
      if (five) fifths = kv_fifth_bits(rows.type, head);
    }
    const uint32_t quads[] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int quad = 0; quad < 8; ++quad) {  // of four elements
      // Bit i of the four goes to bit 4 of byte i.
      const uint32_t fifth = (fifths >> (4 * quad) & 15) * 0x00204081u & 0x01010101u;
      const uint32_t u = (quads[quad % 4] >> (quad / 4 * 4) & 0x0F0F0F0Fu) | fifth << 4;
      const auto value = [&](int at) { return fmaf(static_cast<float>(u >> at & 255) - excess, scale, least); };
      *reinterpret_cast<uint2*>(tile.cell(key, unit * kKvBlock + quad * 4)) =
          make_uint2(pack_halves(value(0), value(8)), pack_halves(value(16), value(24)));
    }
  }
}

// Blocks of TQ3_0. The eight values of a scale are four halves and their negatives.
template <int DIM, bool COPIED, class Tile, class Share>
TND_DEVICE void unpack_rotated(const Tile& tile, const PackedRows& rows, const uint8_t* copied, const TileSlots& slots,
                               const Share& share) {
  constexpr int kUnits = DIM / kKvBlock, kRow = DIM / 4, kCopied = kRow + Share::kPad, kWords = 3;
#pragma unroll 1
  for (int i = share.tid; i < Share::kRows * kUnits; i += Share::kThreads) {
    const int key = share.first + i / (8 * kUnits) * 8 + i % 8,
              unit = Share::template unit<kUnits>(i / 8 % kUnits, i % 8);
    uint2 codes = make_uint2(0, 0);
    const uint16_t* head = nullptr;
    if constexpr (COPIED) {
      codes = *reinterpret_cast<const uint2*>(copied + key * kCopied + unit * 8);
      head = reinterpret_cast<const uint16_t*>(copied + kAttentionTile * kCopied) + (key * kUnits + unit) * kWords;
    } else if (const int32_t slot = slot_in(slots, key); slot >= 0) {
      codes = *reinterpret_cast<const uint2*>(rows.codes + int64_t{slot} * kRow + unit * 8);
      head = rows.heads + (int64_t{slot} * kUnits + unit) * kWords;
    }
    const float scale = head != nullptr ? half_to_float(head[0]) : 0.0f;
    const uint32_t third = head != nullptr ? kv_fifth_bits(KvType::kTQ3_0, head) : 0xFFFFFFFFu;
    const uint32_t small = pack_halves(tq3_magnitude(0) * scale, tq3_magnitude(1) * scale),
                   large = pack_halves(tq3_magnitude(2) * scale, tq3_magnitude(3) * scale);
#pragma unroll
    for (int part = 0; part < 4; ++part) {  // of eight elements
      const uint32_t low = (part < 2 ? codes.x : codes.y) >> (part % 2 * 16), signs = third >> (8 * part);
      const auto pair = [&](int at) {
        const uint32_t a = signs >> at & 1, b = signs >> (at + 1) & 1;
        // Magnitudes descend where the third bit is clear.
        const uint32_t i = (low >> (2 * at) & 3) ^ (a != 0 ? 0u : 3u),
                       j = (low >> (2 * at + 2) & 3) ^ (b != 0 ? 0u : 3u);
        const uint32_t both = byte_perm(small, large, i * 0x22u + 0x10u + (j * 0x22u + 0x10u) * 0x100u);
        return both ^ ((a ^ 1) << 15 | (b ^ 1) << 31);
      };
      *reinterpret_cast<uint4*>(tile.cell(key, unit * kKvBlock + part * 8)) =
          make_uint4(pair(0), pair(2), pair(4), pair(6));
    }
  }
}

// Rows of BF16, from the cache.
template <int DIM, class Tile, class Share>
TND_DEVICE void unpack_bfloats(const Tile& tile, const PackedRows& rows, const TileSlots& slots, const Share& share) {
  constexpr int kUnits = DIM / 8;  // of 16 bytes
#pragma unroll 1
  for (int i = share.tid; i < Share::kRows * kUnits; i += Share::kThreads) {
    const int key = share.first + i / kUnits, at = i % kUnits * 8;
    const int32_t slot = slot_in(slots, key);
    uint4 x = make_uint4(0, 0, 0, 0);
    if (slot >= 0) x = *reinterpret_cast<const uint4*>(rows.codes + (int64_t{slot} * DIM + at) * 2);
    const auto both = [](uint32_t pair) {
      return pack_halves(bfloat_to_float(static_cast<uint16_t>(pair)),
                         bfloat_to_float(static_cast<uint16_t>(pair >> 16)));
    };
    *reinterpret_cast<uint4*>(tile.cell(key, at)) = make_uint4(both(x.x), both(x.y), both(x.z), both(x.w));
  }
}

// unpack_tile writes rows of a tile of halves, from a copied tile or (COPIED false, BF16) from the cache.
template <int DIM, bool COPIED, class Tile, class Share>
TND_DEVICE void unpack_tile(const Tile& tile, const PackedRows& rows, const uint8_t* copied, const TileSlots& slots,
                            const Share& share) {
  if (rows.type == KvType::kQ8_0) {
    unpack_typed<KvType::kQ8_0, DIM, COPIED>(tile, rows, copied, slots, share);
  } else if (rows.type == KvType::kQ4_0) {
    unpack_typed<KvType::kQ4_0, DIM, COPIED>(tile, rows, copied, slots, share);
  } else if (rows.type == KvType::kF16) {
    unpack_typed<KvType::kF16, DIM, COPIED>(tile, rows, copied, slots, share);
  } else if (rows.type == KvType::kBF16) {
    unpack_bfloats<DIM>(tile, rows, slots, share);
  } else if (rows.type == KvType::kTQ3_0) {
    unpack_rotated<DIM, COPIED>(tile, rows, copied, slots, share);
  } else {
    unpack_nibbles<DIM, COPIED>(tile, rows, copied, slots, share);
  }
}

// The tiles of a block of attention_flash_kernel. COPIED: fetch starts a copy, or beyond the last tile ends a group
// without one, and unpack does not wait; else fetch unpacks at once.
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
    TileShare<THREADS> share;
    if (!COPIED) share.tid = no_hoist(share.tid);
    unpack_tile<DIM, COPIED>(StridedTile<STRIDE>{tile}, rows, COPIED ? copied(rows, t) : nullptr, slots_of(t), share);
  }
};
struct NoTiles {};

}  // namespace tnd::gpu
