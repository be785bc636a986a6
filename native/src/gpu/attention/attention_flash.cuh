// The flash contract of attention.h. One kernel serves plain decoding, trees and prompts: an item is up to BM queries
// (rows x query heads) of a tile of rows that share keys, one key/value head, and a part of the keys: a segment, or all
// segments before the tail (SEQUENTIAL, many rows), or the tail. Its result goes to a slot of the partial results,
// where the segments of one item are folded in order; attention_merge_kernel folds the slots of a row.
//
// A block has 4 * WM warps. q k^T: a warp takes MT * 16 queries x 16 keys. Softmax: eight lanes a query. p v: a warp
// takes MT * 16 queries x DIM / 4 columns, sums in registers. Scores and weights cross through shared memory, so that
// the kernel does not depend on the fragment layout of the matrix unit; K of the next tile is copied during the
// softmax, V during the next q k^T. Bound: memory up to about 16 queries a key/value head, shared memory and matrix
// units beyond.
//
// HELD (AMD, steps with more than 32 queries a key/value head): 96 queries share a tile of K or V, for which 64 KiB
// have no room. So queries stay in registers, and weights take the place of their scores. q k^T: a warp takes 16
// queries x MT * 16 keys. An item is one segment. The rest is as above, operation by operation.
//
// BLOCKS: keys or values lie in blocks of codes. Their tiles are copied unchanged and unpacked to the one tile of
// halves that q k^T and p v then read (attention_tile.cuh), K before q k^T and V beside the softmax.
#pragma once

#include <algorithm>
#include <type_traits>

#include "gpu/attention/attention_device.cuh"
#include "gpu/attention/attention_tile.cuh"
#include "gpu/attention/attention_unit.cuh"
#include "gpu/matmul/acts_device.h"

namespace tnd::gpu {

// Divides, in four instructions, by a number that is known on the host; n times the divisor is below 2^20.
struct Divisor {
  int32_t by = 1;
  uint32_t inverse = 1 << 20;
  Divisor() = default;
  explicit Divisor(int n) : by(n), inverse(((1u << 20) + static_cast<uint32_t>(n) - 1) / static_cast<uint32_t>(n)) {}
};
TND_DEVICE int operator/(int n, const Divisor& d) {
  return static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(n)) * d.inverse >> 20);
}

struct FlashArgs {
  AttentionArgs a;
  Divisor group;                         // query heads of a key/value head
  int slots = 0;                         // of a row in the partial results
  int bulk_parts = 0;                    // number of parts of the keys before a tail: segments, or 1
  int block_queries = 0;                 // most of a block
  bool spread = false;                   // a tile's queries are shared evenly among its blocks, in sixteens
  int bulk_blocks = 0, tail_blocks = 0;  // of a tile
  Divisor bulk_divisor, tail_divisor;    // divide by the numbers of blocks, for attention_wgmma.cu
  float* o = nullptr;                    // [rows * q_heads, slots, dim]
  float2* ml = nullptr;                  // [rows * q_heads, slots]: m, l
  int32_t* handed = nullptr;             // [1 + rows * q_heads]: for attention_group.cuh, where slots is 2
};

// Part of a row's keys.
struct KeyRange {
  int32_t begin, end;  // positions
  int32_t segment;     // size: a new segment begins at its multiples
};

TND_DEVICE int32_t row_end(const AttentionRow& r) {
  return r.past + r.n_tail;
}
TND_DEVICE int32_t tail_begin(int32_t end) {
  const int32_t b = (end / kAttentionTile - 1) * kAttentionTile;
  return b > 0 ? b : 0;
}
TND_DEVICE int32_t segment_size(int32_t end) {
  constexpr int32_t kSpan = kAttentionTile * (kAttentionSegments - 1);
  return end > 2 * kSpan ? (end + kSpan - 1) / kSpan * kAttentionTile : 2 * kAttentionTile;
}
// part: index of a segment when there are several parts, else all; -1 = the tail.
TND_DEVICE KeyRange key_range(const AttentionRow& r, int part, int parts) {
  const int32_t end = row_end(r), tail = tail_begin(end);
  KeyRange k;
  k.segment = segment_size(end);
  if (part < 0) {
    k.begin = tail, k.end = end, k.segment = 1 << 30;
  } else if (parts == 1) {
    k.begin = 0, k.end = tail;
  } else {
    k.begin = part * k.segment;
    k.end = k.begin + k.segment < tail ? k.begin + k.segment : tail;
  }
  if (k.begin < r.first) k.begin = r.first;
  return k;
}

// Widens `all` by what a row sees, if it sees anything.
TND_DEVICE void widen(KeyRange& all, const KeyRange& row) {
  if (row.begin >= row.end) return;
  all.begin = row.begin < all.begin ? row.begin : all.begin;
  all.end = row.end > all.end ? row.end : all.end;
}
inline constexpr KeyRange kNoKeys = {1 << 30, 0, 1};
// The range of what all lanes of a warp hold.
TND_DEVICE KeyRange warp_range(KeyRange k) {
#pragma unroll
  for (int mask = TND_WARP / 2; mask > 0; mask /= 2) {
    const int32_t begin = shfl_xor(k.begin, mask), end = shfl_xor(k.end, mask);
    k.begin = begin < k.begin ? begin : k.begin;
    k.end = end > k.end ? end : k.end;
  }
  return k;
}
// The range of positions that any of `rows` rows from `first` on sees of a part of its keys. Called by a warp. Plans
// were written before the previous launch began.
TND_DEVICE KeyRange range_of_rows(const FlashArgs& f, int first, int rows, int part, int parts) {
  KeyRange all = kNoKeys;
  for (int row = static_cast<int>(lane_id()); row < rows; row += TND_WARP) {
    widen(all, key_range(f.a.row_plans[first + row], part, parts));
  }
  return warp_range(all);
}

// FlashItem is the work of a block: queries [first_query, first_query + queries) of a tile of rows (rows x query heads
// of a key/value head) over a part of their keys, to a slot of the partial results.
struct FlashItem {
  AttentionTile tile;
  int kv_head, part, slot;
  int first_query, queries;  // <= 0: nothing to do
};
// Tails come first, since they take longest when contexts are short.
TND_DEVICE FlashItem flash_item(const FlashArgs& f, int item) {
  const AttentionArgs& a = f.a;
  const int tail_items = a.n_tail * a.kv.heads * f.tail_blocks;
  const bool is_tail = item < tail_items;
  if (!is_tail) item -= tail_items;
  const int blocks = is_tail ? f.tail_blocks : f.bulk_blocks;
  const int block = item % blocks;
  item /= blocks;
  FlashItem it;
  it.kv_head = item % a.kv.heads;
  item /= a.kv.heads;
  it.part = is_tail ? -1 : item % f.bulk_parts;
  it.tile = is_tail ? a.tail[item] : a.bulk[item / f.bulk_parts];
  const int all = it.tile.rows * (a.q_heads / a.kv.heads);
  int most = f.block_queries;
  if (f.spread) {
    const int used = (all + most - 1) / most;
    most = used > 0 ? ((all + used - 1) / used + 15) / 16 * 16 : most;
  }
  it.first_query = block * most;
  it.queries = all - it.first_query < most ? all - it.first_query : most;
  it.slot = is_tail ? f.slots - 1 : f.bulk_parts == 1 ? 0 : it.part;
  return it;
}

// Query q of a tile of rows, as halves.
template <int DIM>
TND_DEVICE const uint16_t* flash_query(const FlashArgs& f, const AttentionTile& tile, int kv_head, int q) {
  const int row = q / f.group, head = kv_head * f.group.by + q - row * f.group.by;
  return static_cast<const uint16_t*>(f.a.q) + (int64_t{tile.row + row} * f.a.q_heads + head) * DIM;
}

template <class Unit, int DIM, int WM, int MT, int STAGES, bool BLOCKS>
struct FlashShape {
  static constexpr bool kUnpack = BLOCKS && !Unit::kOneBuffer;                   // copied tiles, unpacked later
  static constexpr int kBuffers = Unit::kOneBuffer || kUnpack ? 1 : 2 * STAGES;  // tiles of halves
  static constexpr int kThreads = 4 * WM * TND_WARP;
  static constexpr int kQueries = 16 * WM * MT;
  static constexpr bool kHeld = Unit::kOneBuffer && WM > 1;                     // HELD
  static constexpr int kStride = DIM + 8;                                       // halves; rows start four banks apart
  static constexpr int kScores = kAttentionTile + (kHeld ? 4 : 8);              // floats
  static constexpr int kWeights = kHeld ? 2 * kScores : kAttentionTile + 8;     // halves
  static constexpr int kQueryBytes = kHeld ? 0 : kQueries * kStride * 2;        // in shared memory
  static constexpr int kScoreBytes = kScores * 4 + (kHeld ? 0 : kWeights * 2);  // a query, with its weights
};

// What happens to a query's sums before a tile is added, and by which factor they are scaled.
struct FlashRow {
  float scale;    // of o
  int32_t flush;  // 0 no, 1 copy o to the slot, 2 fold it in: slot = slot * old + o * add
  float old, add;
};

// Bytes of shared memory before copied tiles; a multiple of 16.
template <class S>
constexpr int flash_tile_bytes() {
  return S::kQueryBytes + S::kBuffers * kAttentionTile * S::kStride * 2 + S::kQueries * S::kScoreBytes +
         S::kQueries * static_cast<int>(sizeof(FlashRow) + sizeof(KeyRange)) + 16;
}
template <class Unit, int DIM, int WM, int MT, int STAGES, bool BLOCKS>
constexpr unsigned flash_shared_bytes(const KvShape& kv) {
  using S = FlashShape<Unit, DIM, WM, MT, STAGES, BLOCKS>;
  int bytes = flash_tile_bytes<S>();
  if (S::kUnpack) {
    bytes += STAGES * (packed_tile_bytes<DIM>(static_cast<KvType>(kv.k_type)) +
                       packed_tile_bytes<DIM>(static_cast<KvType>(kv.v_type)));
  }
  return static_cast<unsigned>(bytes);
}

// flash_block works on an item with all threads of the block; `shared` is flash_shared_bytes() of shared memory. Plans
// and old tiles were written before the previous launch began; the block waits for that launch only where it needs
// its results.
template <class Unit, int DIM, int WM, int MT, int STAGES, bool BLOCKS>
TND_DEVICE void flash_block(const FlashArgs& f, const FlashItem& item, uint8_t* shared) {
  using S = FlashShape<Unit, DIM, WM, MT, STAGES, BLOCKS>;
  constexpr int kColumnTiles = DIM / 4 / 16;  // of a warp in p v
  const AttentionArgs& a = f.a;
  const int g = a.q_heads / a.kv.heads;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / TND_WARP;
  const int wm = warp / 4, wn = warp % 4;
  const AttentionTile tile = item.tile;
  const int kv_head = item.kv_head, part = item.part, slot = item.slot;
  const int first_query = item.first_query, queries = item.queries;
  if (queries <= 0) return;

  uint16_t* sq = reinterpret_cast<uint16_t*>(shared);
  uint16_t* sk = sq + S::kQueryBytes / 2;
  constexpr int kTileHalves = kAttentionTile * S::kStride;
  uint16_t* sv = S::kBuffers == 1 ? sk : sk + STAGES * kTileHalves;
  float* scores = reinterpret_cast<float*>(sk + S::kBuffers * kTileHalves);
  uint16_t* weights = reinterpret_cast<uint16_t*>(scores + (S::kHeld ? 0 : S::kQueries * S::kScores));
  FlashRow* work = reinterpret_cast<FlashRow*>(weights + S::kQueries * S::kWeights);
  KeyRange* ranges = reinterpret_cast<KeyRange*>(work + S::kQueries);
  int32_t* span = reinterpret_cast<int32_t*>(ranges + S::kQueries);  // range of positions that the block's queries see

  if (tid == 0) span[0] = 1 << 30, span[1] = 0;
  __syncthreads();
  for (int i = tid; i < S::kQueries; i += S::kThreads) {
    KeyRange k{0, 0, 1};
    if (i < queries) k = key_range(a.row_plans[tile.row + (first_query + i) / g], part, f.bulk_parts);
    ranges[i] = k;
    work[i] = FlashRow{1.0f, 0, 0.0f, 0.0f};
    if (k.begin < k.end) {
      atomicMin(&span[0], k.begin);
      atomicMax(&span[1], k.end);
    }
  }
  __syncthreads();
  const int first_tile = span[0] / kAttentionTile, end = span[1];
  const int last_tile = (end + kAttentionTile - 1) / kAttentionTile;
  if (first_tile >= last_tile) return;

  const AttentionRow first_row = a.row_plans[tile.row];
  const KvCache& cache = a.cache;
  TileSlots slots = tile_slots(a, tile, first_row, end);
  const int64_t head_begin = kv_index(a.kv, kv_head, 0);
  std::conditional_t<BLOCKS, PackedTiles<DIM, STAGES, S::kStride, S::kThreads, S::kUnpack>, NoTiles> packed;
  if constexpr (BLOCKS) {
    packed.init(a.kv, cache, kv_head, slots, last_tile, shared + flash_tile_bytes<S>(), sk);
  }
  // HELD: registers are for queries, so what a loop derives from the thread's number is computed in every round.
  const auto fresh = [](int n) { return S::kHeld ? no_hoist(n) : n; };
  [[maybe_unused]] const auto copy_tile = [&](uint16_t* to, const void* cache_rows, int t) {
    constexpr int kUnits = DIM / 8;                    // of 16 bytes, a row
    constexpr int kRowsAtOnce = S::kThreads / kUnits;  // that the block's threads cover
    const int thread = fresh(tid), key = thread / kUnits, at = thread % kUnits * 8;
    const int last = kAttentionTile - (kAttentionTile % kRowsAtOnce == 0 ? 0 : key);  // i below it are in the tile
    const uint16_t* from = static_cast<const uint16_t*>(cache_rows) + head_begin + at;
    uint16_t* cell = to + key * S::kStride + at;
    go_to_tile(slots, t);
    if (plain_tile(slots)) {
      from += int64_t{slots.base + key} * DIM;
#pragma unroll
      for (int i = 0; i < kAttentionTile; i += kRowsAtOnce) {
        if (i < last) copy_async_16(cell + i * S::kStride, from + i * DIM);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < last; i += kRowsAtOnce) {
        const int32_t key_slot = slot_in(slots, key + i);
        copy_async_16(cell + i * S::kStride, from + int64_t{key_slot < 0 ? 0 : key_slot} * DIM, key_slot < 0 ? 0 : 16);
      }
    }
    copy_async_commit();
  };

  // Tiles before this one are old; those from here on may be of the step, and queries always are.
  const int new_tile = tile.old / kAttentionTile > first_tile ? tile.old / kAttentionTile : first_tile;
  // Copies run STAGES tiles ahead; a group without copies keeps the number of groups right.
  constexpr int kAhead = Unit::kOneBuffer ? 1 : STAGES, kOutstanding = Unit::kOneBuffer ? 0 : 2 * STAGES - 1;
  [[maybe_unused]] const auto copy_or_skip = [&](uint16_t* to, const void* from, int t) {
    if (t < last_tile) {
      copy_tile(to + (Unit::kOneBuffer ? 0 : t % STAGES * kTileHalves), from, t);
    } else {
      copy_async_commit();
    }
  };
  for (int t = first_tile; t < first_tile + kAhead; ++t) {
    if (t == new_tile) wait_for_previous();
    if constexpr (BLOCKS) {
      packed.fetch_keys(t);
      if constexpr (S::kUnpack) packed.fetch_values(t);
    } else {
      copy_or_skip(sk, cache.k, t);
      if constexpr (!Unit::kOneBuffer) copy_or_skip(sv, cache.v, t);
    }
  }
  if (new_tile >= first_tile + kAhead) wait_for_previous();

  constexpr int kSharers = 4 / MT;  // HELD: warps with the same 16 queries in q k^T, of different keys
  [[maybe_unused]] const int held_query = warp / kSharers * 16, held_key = warp % kSharers * MT * 16;
  [[maybe_unused]] typename Unit::A held[S::kHeld ? DIM / 16 : 1];
  if constexpr (S::kHeld) {
    const int q = held_query + static_cast<int>(lane_id()) % 16;
#pragma unroll
    for (int k = 0; k < DIM / 16; ++k) {
#pragma unroll
      for (uint32_t& r : held[k].r) r = 0;
    }
    if (q < queries) {
      const uint16_t* from = flash_query<DIM>(f, tile, kv_head, first_query + q);
#pragma unroll
      for (int k = 0; k < DIM / 16; ++k) load_a_row(held[k], from + k * 16);
    }
  } else {
    constexpr int kUnits = S::kQueries * DIM / 8;  // of 16 bytes
#pragma unroll 8
    for (int i = tid; i < kUnits; i += S::kThreads) {
      const int q = i / (DIM / 8), at = i % (DIM / 8) * 8;
      uint4 x = make_uint4(0, 0, 0, 0);
      if (q < queries) x = *reinterpret_cast<const uint4*>(flash_query<DIM>(f, tile, kv_head, first_query + q) + at);
      *reinterpret_cast<uint4*>(sq + q * S::kStride + at) = x;
    }
  }

  typename Unit::C o[MT][kColumnTiles];
#pragma unroll
  for (int i = 0; i < MT; ++i) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 8; ++e) o[i][n].v[e] = 0.0f;
    }
  }
  // Softmax state of the queries (pass * 16 * WM + tid / 8).
  float m[MT], l[MT];
  bool seen[MT], flushed[MT];
#pragma unroll
  for (int i = 0; i < MT; ++i) m[i] = -__builtin_inff(), l[i] = 0.0f, seen[i] = false, flushed[i] = false;
  const auto partial = [&](int q) {  // index of a query's slot
    const int64_t row = tile.row + (first_query + q) / g, head = kv_head * g + (first_query + q) % g;
    return (row * a.q_heads + head) * f.slots + slot;
  };
  // Where `ends`, ends a query's segment: m and l go to its slot here, o does in apply_rows. Called by whole warps.
  const auto flush = [&](int i, int q, bool ends, FlashRow* w) {
    if (!any_lane(ends)) return;
    const int64_t at = ends ? partial(q) : 0;
    const float2 run = ends && flushed[i] ? f.ml[at] : make_float2(0.0f, 0.0f);
    sync_warp();  // all eight lanes of the query have read
    if (!ends) return;
    float2 now = make_float2(m[i], l[i]);
    w->flush = 1;
    if (flushed[i]) {
      const float top = run.x > now.x ? run.x : now.x;
      w->flush = 2;
      w->old = exp_f32(run.x - top);
      w->add = exp_f32(now.x - top);
      now = make_float2(top, fmaf(run.y, w->old, now.y * w->add));
    }
    if (tid % 8 == 0) f.ml[at] = now;
    flushed[i] = true;
    seen[i] = false;
    m[i] = -__builtin_inff();
    l[i] = 0.0f;
  };
  // How many of the warp's tiles of 16 queries hold any. The parts below are compiled for all of them and for one,
  // which is enough for the tail of a single row.
  const int live_queries = queries - wm * MT * 16;
  const auto for_live = [&](const auto& work_on) {
    if (MT == 1 || live_queries > 16) {
      if (live_queries > 0) work_on(std::integral_constant<int, MT>());
    } else if (live_queries > 0) {
      work_on(std::integral_constant<int, 1>());
    }
  };
  // Writes the warp's sums to the slot where a segment ended, then scales them unless this is the end. It is always
  // inlined: clang would otherwise make a function of it, called in the loop and after it, and so keep all sums in
  // memory. If the end wrote to the sums, clang would join the stores of both branches, with the same result.
  const auto apply_rows = [&](auto live, auto last) __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < decltype(live)::value; ++i) {
      const int base = (wm * MT + i) * 16;
      if constexpr (S::kHeld && !decltype(last)::value) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const float scale = work[base + c_row(Unit{}, e)].scale;
#pragma unroll
          for (int n = 0; n < kColumnTiles; ++n) o[i][n].v[e] *= scale;
        }
        continue;
      }
      FlashRow w[8];
      bool ends = false;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        w[e] = work[base + c_row(Unit{}, e)];
        ends = ends || w[e].flush != 0;
      }
      if (ends) {
        float old[8][kColumnTiles];  // all are read before any is written
        float* cells[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          if (w[e].flush == 0) continue;
          cells[e] = f.o + partial(base + c_row(Unit{}, e)) * DIM + wn * (DIM / 4) + c_column(Unit{}, e);
#pragma unroll
          for (int n = 0; n < kColumnTiles; ++n) old[e][n] = w[e].flush == 2 ? cells[e][n * 16] : 0.0f;
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          if (w[e].flush == 0) continue;
#pragma unroll
          for (int n = 0; n < kColumnTiles; ++n) {
            const float now = o[i][n].v[e];
            cells[e][n * 16] = w[e].flush == 1 ? now : fmaf(old[e][n], w[e].old, now * w[e].add);
            if constexpr (!decltype(last)::value) o[i][n].v[e] = 0.0f;
          }
        }
      }
      if constexpr (!decltype(last)::value) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
#pragma unroll
          for (int n = 0; n < kColumnTiles; ++n) o[i][n].v[e] *= w[e].scale;
        }
      }
    }
  };
  // Fragments are loaded one step ahead of the products: instructions stay in the order written here.
  const auto multiply_keys = [&](const uint16_t* tile_k, auto live) {
    constexpr int kLive = decltype(live)::value, kSteps = DIM / 16;
    typename Unit::C c[kLive];
    typename Unit::B keys[Unit::kDepth];
    typename Unit::A q[Unit::kDepth][kLive];
    const auto load = [&](int k) {
      load_b_columns(keys[k % Unit::kDepth], tile_k + wn * 16 * S::kStride + k * 16, S::kStride);
#pragma unroll
      for (int i = 0; i < kLive; ++i)
        load_a(q[k % Unit::kDepth][i], sq + (wm * MT + i) * 16 * S::kStride + k * 16, S::kStride);
    };
#pragma unroll
    for (int i = 0; i < kLive; ++i) {
#pragma unroll
      for (int e = 0; e < 8; ++e) c[i].v[e] = 0.0f;
    }
    if (Unit::kDepth == 2) load(0);
#pragma unroll Unit::kUnroll
    for (int k = 0; k < kSteps; ++k) {
      if (Unit::kDepth == 1) load(k);
      if (Unit::kDepth == 2 && k + 1 < kSteps) load(k + 1);
#pragma unroll
      for (int i = 0; i < kLive; ++i) multiply(c[i], q[k % Unit::kDepth][i], keys[k % Unit::kDepth]);
    }
#pragma unroll
    for (int i = 0; i < kLive; ++i) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int row = (wm * MT + i) * 16 + c_row(Unit{}, e);
        scores[row * S::kScores + wn * 16 + c_column(Unit{}, e)] = a.scale * c[i].v[e];
      }
    }
  };
  // HELD: the warp's 16 queries x MT * 16 keys.
  [[maybe_unused]] const auto multiply_held = [&](const auto* tile_k) {
    if (held_query >= queries) return;
    typename Unit::C c[MT];
#pragma unroll
    for (int n = 0; n < MT; ++n) {
#pragma unroll
      for (int e = 0; e < 8; ++e) c[n].v[e] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < DIM / 16; ++k) {
#pragma unroll
      for (int n = 0; n < MT; ++n) {
        typename Unit::B keys;
        load_b_columns(keys, tile_k + (held_key + n * 16) * S::kStride + k * 16, S::kStride);
        multiply(c[n], held[k], keys);
      }
      keep_order();
    }
#pragma unroll
    for (int n = 0; n < MT; ++n) {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int row = held_query + c_row(Unit{}, e);
        scores[row * S::kScores + held_key + n * 16 + c_column(Unit{}, e)] = a.scale * c[n].v[e];
      }
    }
  };
  const auto multiply_values = [&](const uint16_t* tile_v, auto live) {
    constexpr int kLive = decltype(live)::value, kSteps = kAttentionTile / 16;
    typename Unit::A p[Unit::kDepth][kLive];
    typename Unit::B v[Unit::kDepth];
    const auto load_p = [&](int k) {
#pragma unroll
      for (int i = 0; i < kLive; ++i) {
        load_a(p[k % Unit::kDepth][i], weights + (wm * MT + i) * 16 * S::kWeights + k * 16, S::kWeights);
      }
    };
    const auto load_v = [&](int step) {
      load_b_rows(v[step % Unit::kDepth],
                  tile_v + step / kColumnTiles * 16 * S::kStride + wn * (DIM / 4) + step % kColumnTiles * 16,
                  S::kStride);
    };
    if (Unit::kDepth == 2) {
      load_p(0);
      load_v(0);
    }
#pragma unroll Unit::kUnroll
    for (int k = 0; k < kSteps; ++k) {
      if (Unit::kDepth == 1) load_p(k);
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const int step = k * kColumnTiles + n;
        if (Unit::kDepth == 1) load_v(step);
        if (Unit::kDepth == 2 && step + 1 < kSteps * kColumnTiles) load_v(step + 1);
        if (Unit::kDepth == 2 && n == 0 && k + 1 < kSteps) load_p(k + 1);
#pragma unroll
        for (int i = 0; i < kLive; ++i) multiply(o[i][n], p[k % Unit::kDepth][i], v[step % Unit::kDepth]);
        if constexpr (S::kHeld) keep_order();
      }
    }
  };

  for (int t = first_tile; t < last_tile; ++t) {
    const int buffer = S::kBuffers == 1 ? 0 : t % STAGES * kTileHalves;
    copy_async_wait<kOutstanding>();
    __syncthreads();
    if constexpr (S::kUnpack) {
      packed.unpack_keys(t);
      __syncthreads();
      packed.fetch_keys(t + STAGES);
    }
    if constexpr (S::kHeld) {
      multiply_held(sk);
    } else {
      for_live([&](auto live) { multiply_keys(sk + buffer, live); });
    }
    if constexpr (S::kUnpack) copy_async_wait<kOutstanding>();
    __syncthreads();
    if constexpr (S::kUnpack) {
      packed.unpack_values(t);
    } else if constexpr (BLOCKS) {
      packed.fetch_values(t);
    } else if constexpr (Unit::kOneBuffer) {
      copy_or_skip(sv, cache.v, t);
    } else {
      copy_or_skip(sk, cache.k, t + STAGES);
    }
#pragma unroll
    for (int i = 0; i < MT; ++i) {  // softmax
      if (i * 16 * WM >= queries) continue;
      const int thread = fresh(tid), q = i * 16 * WM + thread / 8, lane = thread % 8;
      // HELD: a tree's tails leave most warps without a query. Rows of no query may hold any weights.
      if (S::kHeld && !any_lane(q < queries)) continue;
      const KeyRange r = ranges[q];
      const int begin = r.begin - t * kAttentionTile, stop = r.end - t * kAttentionTile;  // keys begin <= j < stop
      const bool active = begin < kAttentionTile && stop > 0 && begin < stop;
      FlashRow w{1.0f, 0, 0.0f, 0.0f};
      if constexpr (!S::kHeld) flush(i, q, active && seen[i] && t * kAttentionTile % r.segment == 0, &w);
      float p[8];
      float top = -__builtin_inff();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int key = lane + 8 * j;
        p[j] = scores[q * S::kScores + key];
        if (active && key >= begin && key < stop && p[j] > top) top = p[j];
      }
#pragma unroll
      for (int mask = 4; mask > 0; mask /= 2) {
        const float other = shfl_xor(top, mask);
        top = other > top ? other : top;
      }
      top = m[i] > top ? m[i] : top;
      if constexpr (S::kHeld) sync_warp();  // all lanes have read their scores
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int key = lane + 8 * j;
        p[j] = active && key >= begin && key < stop ? exp_f32(p[j] - top) : 0.0f;
        sum += p[j];
        weights[q * S::kWeights + key] = float_to_half(p[j]);
      }
#pragma unroll
      for (int mask = 4; mask > 0; mask /= 2) sum += shfl_xor(sum, mask);
      if (active) {
        w.scale = exp_f32(m[i] - top);
        l[i] = fmaf(l[i], w.scale, sum);
        m[i] = top;
        seen[i] = true;
      }
      if constexpr (S::kHeld) {
        if (lane == 0) work[q].scale = w.scale;
      } else {
        if (lane == 0) work[q] = w;
      }
    }
    if constexpr (!S::kUnpack) copy_async_wait<kOutstanding>();
    __syncthreads();
    if constexpr (S::kUnpack) packed.fetch_values(t + STAGES);
    for_live([&](auto live) {
      apply_rows(live, std::false_type());
      multiply_values(sv + buffer, live);
    });
    if constexpr (S::kUnpack) continue;  // the next tile starts with a barrier
    __syncthreads();
    if constexpr (BLOCKS) {
      packed.fetch_keys(t + 1);
    } else if constexpr (Unit::kOneBuffer) {
      copy_or_skip(sk, cache.k, t + 1);
    } else {
      copy_or_skip(sv, cache.v, t + STAGES);
    }
  }
  if constexpr (S::kUnpack) __syncthreads();

#pragma unroll
  for (int i = 0; i < MT; ++i) {
    const int q = i * 16 * WM + tid / 8;
    FlashRow w{1.0f, 0, 0.0f, 0.0f};
    flush(i, q, seen[i], &w);
    if (tid % 8 == 0) work[q] = w;
  }
  __syncthreads();
  for_live([&](auto live) { apply_rows(live, std::true_type()); });
}

template <class Unit, int DIM, int WM, int MT, int STAGES, bool BLOCKS>
__global__ void __launch_bounds__(4 * WM * TND_WARP, 1) attention_flash_kernel(FlashArgs f) {
  TND_DYNAMIC_SHARED(uint8_t, shared);
  let_next_start();
  flash_block<Unit, DIM, WM, MT, STAGES, BLOCKS>(f, flash_item(f, static_cast<int>(blockIdx.x)), shared);
  wait_for_previous();  // blocks without work, too: the next kernel relies on the end of the previous one
}

// ---- host

// Cuts the queries of tiles of rows into blocks of at most `queries`. Returns the items of a key/value head, a block
// and one of `parts` parts of the keys before the tail, or the tail, each.
inline int cut_queries(FlashArgs& f, int queries, int parts) {
  const auto blocks = [&](int rows) { return (rows * f.group.by + queries - 1) / queries; };
  f.bulk_blocks = blocks(f.a.bulk_rows);
  f.tail_blocks = blocks(f.a.tail_rows);
  return f.a.n_bulk * parts * f.bulk_blocks + f.a.n_tail * f.tail_blocks;
}

template <class Unit, int DIM, int WM, int MT, int STAGES, bool BLOCKS>
void launch_flash(Stream& stream, FlashArgs f) {
  using S = FlashShape<Unit, DIM, WM, MT, STAGES, BLOCKS>;
  const AttentionArgs& a = f.a;
  f.block_queries = S::kQueries;
  f.spread = S::kHeld;
  const int items = a.kv.heads * cut_queries(f, S::kQueries, f.bulk_parts);
  launch(stream,
         {.grid = {static_cast<unsigned>(items)},
          .block = {S::kThreads},
          .shared_bytes = flash_shared_bytes<Unit, DIM, WM, MT, STAGES, BLOCKS>(a.kv),
          .overlap = true,
          .name = "attention_flash"},
         attention_flash_kernel<Unit, DIM, WM, MT, STAGES, BLOCKS>, f);
}

// Steps of at most this many rows cut a row's keys into segments that run side by side; wider steps have enough work
// without. The bits are the same.
inline constexpr int kFlashSplitRows = 64;

inline int partial_slots(int rows) {
  return rows <= kFlashSplitRows ? kAttentionSegments : 2;
}

// launch_flash_wide launches the form of attention_wide.cuh if the card has enough shared memory.
template <bool BLOCKS>
bool launch_flash_wide(Stream& stream, const FlashArgs& f);
template <>
bool launch_flash_wide<false>(Stream& stream, const FlashArgs& f);
template <>
bool launch_flash_wide<true>(Stream& stream, const FlashArgs& f);
// The forms of attention_wgmma.cu, of caches of halves, and attention_group.cuh on cards that have them
// (has_attention_wgmma). The latter launches nothing and returns false where a block has too little shared memory, and
// of caches in blocks where K or V are none.
void launch_flash_wgmma(Stream& stream, const FlashArgs& f);
template <bool BLOCKS>
bool launch_flash_group(Stream& stream, const FlashArgs& f);
template <>
bool launch_flash_group<false>(Stream& stream, const FlashArgs& f);
template <>
bool launch_flash_group<true>(Stream& stream, const FlashArgs& f);
// launch_flash_codes launches the form of attention_codes.cuh, or nothing and returns false where keys or values have
// another type, heads another size, or a block has too little shared memory.
bool launch_flash_codes(Stream& stream, const FlashArgs& f);

// The widest block of queries that is useful and fits.
template <class Unit, int DIM, bool BLOCKS>
void launch_flash_dim(Stream& stream, const FlashArgs& f) {
  const int queries = std::max(f.a.bulk_rows, f.a.tail_rows) * (f.a.q_heads / f.a.kv.heads);
  const auto fits = [&](unsigned bytes) { return static_cast<int>(bytes) <= f.a.shared_per_block; };
  if constexpr (!Unit::kOneBuffer) {
    if (BLOCKS && f.a.codes && f.bulk_parts > 1 && launch_flash_codes(stream, f)) return;
    const bool group = f.bulk_parts > 1 ? f.a.many_keys : queries > 32;
    if (f.a.wgmma && group && launch_flash_group<BLOCKS>(stream, f)) return;
    if (queries > 16 && f.bulk_parts > 1) {
      if (!BLOCKS && f.a.wgmma) return launch_flash_wgmma(stream, f);
      if (launch_flash_wide<BLOCKS>(stream, f)) return;
    }
    if (queries <= 16 && fits(flash_shared_bytes<Unit, DIM, 1, 1, 2, BLOCKS>(f.a.kv))) {
      return launch_flash<Unit, DIM, 1, 1, 2, BLOCKS>(stream, f);
    }
    if (queries > 32 && fits(flash_shared_bytes<Unit, DIM, 2, 3, 1, BLOCKS>(f.a.kv))) {
      return launch_flash<Unit, DIM, 2, 3, 1, BLOCKS>(stream, f);
    }
  }
  if constexpr (Unit::kOneBuffer) {
    if (queries > 32 && f.bulk_parts > 1 && fits(flash_shared_bytes<Unit, DIM, 3, 2, 1, BLOCKS>(f.a.kv))) {
      return launch_flash<Unit, DIM, 3, 2, 1, BLOCKS>(stream, f);
    }
  }
  if (queries > 16 && fits(flash_shared_bytes<Unit, DIM, 1, 2, 1, BLOCKS>(f.a.kv))) {
    return launch_flash<Unit, DIM, 1, 2, 1, BLOCKS>(stream, f);
  }
  launch_flash<Unit, DIM, 1, 1, 1, BLOCKS>(stream, f);
}

// Partial results of all items. BLOCKS true lives in attention_blocks.cu.
template <class Unit, bool BLOCKS>
void launch_flash_items(Stream& stream, const FlashArgs& f) {
  if (f.a.kv.dim == 256) {
    launch_flash_dim<Unit, 256, BLOCKS>(stream, f);
  } else if (f.a.kv.dim == 128) {
    launch_flash_dim<Unit, 128, BLOCKS>(stream, f);
  } else {
    launch_flash_dim<Unit, 64, BLOCKS>(stream, f);
  }
}
extern template void launch_flash_items<FlashUnit, true>(Stream&, const FlashArgs&);

void launch_attention_merge(Stream& stream, const FlashArgs& f);

// Bytes of the partial results of a step.
inline uint64_t flash_scratch_bytes(const KvShape& kv, int q_heads, int rows) {
  const uint64_t queries = static_cast<uint64_t>(rows) * static_cast<uint64_t>(q_heads);
  const uint64_t floats = static_cast<uint64_t>(partial_slots(rows)) * (static_cast<uint64_t>(kv.dim) + 2);
  return queries * floats * sizeof(float) + (queries + 1) * sizeof(int32_t);
}

// Keys or values must be unpacked to halves: BLOCKS of the kernels.
inline bool in_blocks(const KvShape& kv) {
  const int32_t halves = static_cast<int32_t>(KvType::kF16);
  return kv.k_type != halves || kv.v_type != halves;
}

template <class Unit>
void launch_attention_flash(Stream& stream, const AttentionArgs& args) {
  FlashArgs f;
  f.a = args;
  f.group = Divisor(args.q_heads / args.kv.heads);
  f.slots = partial_slots(args.rows);
  f.bulk_parts = f.slots == 2 ? 1 : kAttentionSegments - 1;
  const uint64_t partials = static_cast<uint64_t>(args.rows) * static_cast<uint64_t>(args.q_heads * f.slots);
  if (flash_scratch_bytes(args.kv, args.q_heads, args.rows) > args.scratch_bytes) {
    stream.fail(errorf(TND_INTERNAL, "attention of %d rows has %llu bytes of scratch", args.rows,
                       static_cast<unsigned long long>(args.scratch_bytes)));
    return;
  }
  f.o = static_cast<float*>(args.scratch);
  f.ml = reinterpret_cast<float2*>(f.o + partials * static_cast<uint64_t>(args.kv.dim));
  f.handed = reinterpret_cast<int32_t*>(f.ml + partials);
  if (in_blocks(args.kv)) {
    launch_flash_items<Unit, true>(stream, f);
  } else {
    launch_flash_items<Unit, false>(stream, f);
  }
  launch_attention_merge(stream, f);
}

}  // namespace tnd::gpu
