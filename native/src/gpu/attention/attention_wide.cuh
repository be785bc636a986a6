// The flash contract of attention.h for steps between plain decoding and prompts: trees, chains and blocks of drafts,
// with 17 or more queries a key/value head and segments that run side by side. mma.sync only: the softmax works on the
// fragment layout of these instructions.
//
// A block is four warps and up to 64 queries (48 on some cards); a warp has 16 queries from q k^T to p v. Scores never
// leave its registers: the lanes that hold a query's scores hold keys 2 t, 2 t + 1, 2 t + 8, ... , two lanes of the
// contract's sum each, and the fragments of p v are their weights, rounded. K and V are separate tiles in shared
// memory: each is copied while the other one is used, with two barriers a tile; two blocks a processor hide the copies.
// Where K or V lie in blocks of codes, both are unpacked to one tile, after two more barriers. Bound: shared memory,
// read once a warp (144 fragments for 256 matrix instructions a tile of 64 keys), then the matrix units.
//
// Items of at most 16 queries (the tails of a tree's rows) take the form of attention_flash.cuh, where all four warps
// work on one tile of queries.
#pragma once

#include "gpu/attention/attention_flash.cuh"
#include "gpu/attention/attention_softmax.cuh"

namespace tnd::gpu {

#if defined(TND_GPU_EMU) || defined(TND_GPU_CUDA)

inline constexpr int kWideWarps = 4;
inline constexpr int kWideThreads = kWideWarps * TND_WARP;
// Most queries of a block: those of its warps, or 48 where a card has no room for more beside copies of 8-bit codes
// (99 KiB); the last warp then only copies and unpacks. A tree of 23 rows and six queries a key head takes three blocks
// either way.
inline constexpr int kWideQueries[] = {16 * kWideWarps, 16 * (kWideWarps - 1)};

template <int DIM, bool BLOCKS>
TND_HOST_DEVICE constexpr unsigned wide_tile_bytes(int queries) {
  return (static_cast<unsigned>(queries) + (BLOCKS ? 1 : 2) * kAttentionTile) * (DIM + 8) * 2;
}
template <int DIM, bool BLOCKS>
constexpr unsigned wide_shared_bytes(const KvShape& kv, int queries) {
  unsigned bytes = wide_tile_bytes<DIM, BLOCKS>(queries);
  if (BLOCKS) {
    bytes +=
        packed_tile_bytes<DIM>(static_cast<KvType>(kv.k_type)) + packed_tile_bytes<DIM>(static_cast<KvType>(kv.v_type));
  }
  const unsigned narrow = flash_shared_bytes<MmaUnit, DIM, 1, 1, 1, BLOCKS>(kv);
  return bytes > narrow ? bytes : narrow;
}

// Starts the copy of a tile of halves; positions from `end` on become zeros.
template <int DIM>
TND_DEVICE void wide_copy(uint16_t* to, const uint16_t* rows, const TileSlots& slots) {
  constexpr int kStride = DIM + 8, kUnits = DIM / 8, kRowsAtOnce = kWideThreads / kUnits;
  const int tid = static_cast<int>(threadIdx.x), key = tid / kUnits, at = tid % kUnits * 8;
  uint16_t* cell = to + key * kStride + at;
  if (plain_tile(slots)) {
    const uint16_t* from = rows + int64_t{slots.base + key} * DIM + at;
#pragma unroll
    for (int i = 0; i < kAttentionTile; i += kRowsAtOnce) copy_async_16(cell + i * kStride, from + i * DIM);
  } else {
#pragma unroll 1
    for (int i = 0; i < kAttentionTile; i += kRowsAtOnce) {
      const int32_t slot = slot_in(slots, key + i);
      copy_async_16(cell + i * kStride, rows + int64_t{slot < 0 ? 0 : slot} * DIM + at, slot < 0 ? 0 : 16);
    }
  }
  copy_async_commit();
}

template <int DIM, bool BLOCKS>
TND_DEVICE void wide_block(const FlashArgs& f, const FlashItem& item, uint8_t* shared) {
  constexpr int kStride = DIM + 8, kTile = kAttentionTile, kKeyTiles = kTile / 16, kColumnTiles = DIM / 16;
  using Unit = MmaUnit;
  const AttentionArgs& a = f.a;
  const int g = a.q_heads / a.kv.heads;
  const int warp = static_cast<int>(warp_id()), lane = static_cast<int>(lane_id());
  const AttentionTile tile = item.tile;
  const int queries = item.queries;
  uint16_t* sq = reinterpret_cast<uint16_t*>(shared);
  uint16_t* sk = sq + f.block_queries * kStride;
  uint16_t* sv = BLOCKS ? sk : sk + kTile * kStride;

  // Positions that any query of the block sees; every warp finds them.
  const int first_row = item.first_query / g, rows = (item.first_query + queries - 1) / g - first_row + 1;
  const KeyRange span = range_of_rows(f, tile.row + first_row, rows, item.part, f.bulk_parts);
  const int end = span.end;
  const int first_tile = span.begin / kTile, last_tile = (end + kTile - 1) / kTile;
  if (first_tile >= last_tile) return;

  const AttentionRow plan = a.row_plans[tile.row];
  const KvCache& cache = a.cache;
  const int64_t head_begin = kv_index(a.kv, item.kv_head, 0);
  const auto* keys = static_cast<const uint16_t*>(cache.k) + head_begin;
  const auto* values = static_cast<const uint16_t*>(cache.v) + head_begin;
  TileSlots slots = tile_slots(a, tile, plan, end);
  go_to_tile(slots, first_tile);
  // Of the lane's two queries, rows c_row(0) and c_row(2) of the fragments.
  KeyRange range[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int q = warp * 16 + lane / 4 + 8 * h;
    range[h] = KeyRange{0, 0, 1};
    if (q < queries) range[h] = key_range(a.row_plans[tile.row + (item.first_query + q) / g], item.part, f.bulk_parts);
  }
  const bool old = (first_tile + 1) * kTile <= tile.old;  // the first tile
  if (!old) wait_for_previous();
  std::conditional_t<BLOCKS, PackedTiles<DIM, 1, kStride, kWideThreads, true>, NoTiles> packed;
  if constexpr (BLOCKS) {
    packed.init(a.kv, cache, item.kv_head, slots, last_tile, shared + wide_tile_bytes<DIM, true>(f.block_queries), sk);
    packed.fetch_keys(first_tile);
    packed.fetch_values(first_tile);
  } else {
    wide_copy<DIM>(sk, keys, slots);
    wide_copy<DIM>(sv, values, slots);
  }
  if (old) wait_for_previous();

  // Queries: each warp its own 16.
  const bool live = warp * 16 < queries;
  if (live) {
    constexpr int kUnits = DIM / 8;  // of 16 bytes
#pragma unroll 8
    for (int i = lane; i < 16 * kUnits; i += TND_WARP) {
      const int q = warp * 16 + i / kUnits, at = i % kUnits * 8;
      uint4 x = make_uint4(0, 0, 0, 0);
      if (q < queries) {
        x = *reinterpret_cast<const uint4*>(flash_query<DIM>(f, tile, item.kv_head, item.first_query + q) + at);
      }
      *reinterpret_cast<uint4*>(sq + q * kStride + at) = x;
    }
  }

  float m[2], l[2];
  bool seen[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) m[h] = -__builtin_inff(), l[h] = 0.0f, seen[h] = false;
  Unit::C o[kColumnTiles];
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 8; ++e) o[n].v[e] = 0.0f;
  }

  for (int t = first_tile; t < last_tile; ++t) {
    if (BLOCKS || t == first_tile) {
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    __syncthreads();  // K is there, nobody reads V any more
    if constexpr (BLOCKS) {
      packed.unpack_keys(t);
      __syncthreads();
      packed.fetch_keys(t + 1);
    } else {
      if (t > first_tile) wide_copy<DIM>(sv, values, slots);  // the copy of K moved `slots` to this tile
    }
    Unit::C s[kKeyTiles];
    Unit::A p[kKeyTiles];
    if (live) {
      constexpr int kSteps = DIM / 16;
      Unit::A q[2];
      Unit::B k[2][kKeyTiles];
      const auto load = [&](int step) {
        load_a(q[step % 2], sq + warp * 16 * kStride + step * 16, kStride);
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) load_b_columns(k[step % 2][n], sk + n * 16 * kStride + step * 16, kStride);
      };
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 8; ++e) s[n].v[e] = 0.0f;
      }
      load(0);
#pragma unroll 4
      for (int step = 0; step < kSteps; ++step) {
        if (step + 1 < kSteps) load(step + 1);
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) multiply(s[n], q[step % 2], k[step % 2][n]);
      }

      // Softmax. Element e of fragment n is key 16 n + c_column(e) of query c_row(e).
      float scale[2];
      bool whole = true;
#pragma unroll
      for (int h = 0; h < 2; ++h) whole = whole && range[h].begin <= t * kTile && range[h].end >= (t + 1) * kTile;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 8; ++e) s[n].v[e] = a.scale * s[n].v[e];
      }
      if (any_lane(!whole)) {
        rare_branch();
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            const int key = t * kTile + 16 * n + c_column(Unit{}, e), h = e / 2 % 2;
            if (key < range[h].begin || key >= range[h].end) s[n].v[e] = -__builtin_inff();  // no weight
          }
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int from = range[h].begin - t * kTile, stop = range[h].end - t * kTile;  // keys from <= key < stop
        const bool active = from < kTile && stop > 0 && from < stop;
        float top = s[0].v[2 * h];
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) top = fmaxf(top, s[n].v[i / 2 * 4 + 2 * h + i % 2]);
        }
#pragma unroll
        for (int mask = 2; mask > 0; mask /= 2) {
          top = fmaxf(top, shfl_xor(top, mask));
        }
        top = fmaxf(top, m[h]);
        const float base = active ? top : 0.0f;
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int e = i / 2 * 4 + 2 * h + i % 2;
            s[n].v[e] = exp_weight(s[n].v[e] - base);
            sum[i % 2] += s[n].v[e];
          }
        }
#pragma unroll
        for (int mask = 2; mask > 0; mask /= 2) {
          sum[0] += shfl_xor(sum[0], mask);
          sum[1] += shfl_xor(sum[1], mask);
        }
        scale[h] = 1.0f;
        if (active) {
          scale[h] = exp_f32(m[h] - top);
          l[h] = fmaf(l[h], scale[h], sum[0] + sum[1]);
          m[h] = top;
          seen[h] = true;
        }
      }
      if (any_lane(scale[0] != 1.0f || scale[1] != 1.0f)) {
        rare_branch();
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 8; ++e) o[n].v[e] *= scale[e / 2 % 2];
        }
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) p[n].r[i] = pack_halves(s[n].v[2 * i], s[n].v[2 * i + 1]);
      }
    }
    copy_async_wait<BLOCKS ? 1 : 0>();
    __syncthreads();  // V is there, nobody reads K any more
    if constexpr (BLOCKS) {
      packed.unpack_values(t);
      __syncthreads();
      packed.fetch_values(t + 1);
    } else if (t + 1 < last_tile) {
      go_to_tile(slots, t + 1);
      wide_copy<DIM>(sk, keys, slots);
    }
    if (live) {
      constexpr int kGroup = 4, kGroups = kColumnTiles / kGroup, kSteps = kKeyTiles * kGroups;
      Unit::B v[2][kGroup];
      const auto load = [&](int step) {
#pragma unroll
        for (int n = 0; n < kGroup; ++n) {
          load_b_rows(v[step % 2][n], sv + step / kGroups * 16 * kStride + (step % kGroups * kGroup + n) * 16, kStride);
        }
      };
      load(0);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step + 1 < kSteps) load(step + 1);
#pragma unroll
        for (int n = 0; n < kGroup; ++n) {
          multiply(o[step % kGroups * kGroup + n], p[step / kGroups], v[step % 2][n]);
        }
      }
    }
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!seen[h]) continue;
    const int q = item.first_query + warp * 16 + lane / 4 + 8 * h;
    const int64_t at = (int64_t{tile.row + q / g} * a.q_heads + item.kv_head * g + q % g) * f.slots + item.slot;
    if (lane % 4 == 0) f.ml[at] = make_float2(m[h], l[h]);
    float* to = f.o + at * DIM + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      *reinterpret_cast<float2*>(to + n * 16) = make_float2(o[n].v[2 * h], o[n].v[2 * h + 1]);
      *reinterpret_cast<float2*>(to + n * 16 + 8) = make_float2(o[n].v[2 * h + 4], o[n].v[2 * h + 5]);
    }
  }
}

template <int DIM, bool BLOCKS>
__global__ void __launch_bounds__(kWideThreads, 2) attention_wide_kernel(FlashArgs f) {
  TND_DYNAMIC_SHARED(uint8_t, shared);
  let_next_start();
  const FlashItem item = flash_item(f, static_cast<int>(blockIdx.x));
  if (item.queries > 16) {
    wide_block<DIM, BLOCKS>(f, item, shared);
  } else {
    flash_block<MmaUnit, DIM, 1, 1, 1, BLOCKS>(f, item, shared);
  }
  wait_for_previous();  // blocks without work, too: the next kernel relies on the end of the previous one
}

template <int DIM, bool BLOCKS>
bool launch_wide_dim(Stream& stream, FlashArgs f) {
  const AttentionArgs& a = f.a;
  unsigned bytes = 0;
  for (const int queries : kWideQueries) {
    f.block_queries = queries;
    bytes = wide_shared_bytes<DIM, BLOCKS>(a.kv, queries);
    if (bytes <= static_cast<unsigned>(a.shared_per_block)) break;
  }
  if (bytes > static_cast<unsigned>(a.shared_per_block)) return false;
  f.spread = true;
  const int items = a.kv.heads * cut_queries(f, f.block_queries, f.bulk_parts);
  launch(stream,
         {.grid = {static_cast<unsigned>(items)},
          .block = {kWideThreads},
          .shared_bytes = bytes,
          .overlap = true,
          .name = "attention_wide"},
         attention_wide_kernel<DIM, BLOCKS>, f);
  return true;
}

template <bool BLOCKS>
bool launch_wide_dims(Stream& stream, const FlashArgs& f) {
  if (f.a.kv.dim == 256) return launch_wide_dim<256, BLOCKS>(stream, f);
  if (f.a.kv.dim == 128) return launch_wide_dim<128, BLOCKS>(stream, f);
  return launch_wide_dim<64, BLOCKS>(stream, f);
}

#else

template <bool BLOCKS>
bool launch_wide_dims(Stream&, const FlashArgs&) {
  return false;
}

#endif

}  // namespace tnd::gpu
