// The flash contract of attention.h over caches of halves, by Hopper's wgmma, for the same items as attention_wide.cuh.
// The emulation has this form too, with the products of mma.sync (attention_wgmma_tiles.cuh).
//
// A block is a warpgroup and up to 64 queries; a warp has 16 queries from q k^T to p v. Scores never leave its
// registers: the lanes that hold a query's scores hold keys 2 t, 2 t + 1, 2 t + 8, ... , two lanes of the contract's
// sum each, and the fragments of p v are their weights, rounded. K of the next tile is copied during softmax and p v, V
// during q k^T and softmax; two blocks a processor hide the rest.
//
// At short contexts a block has one or two tiles, so every instruction is fetched for one or two uses. It comes from
// memory, since the weights of a layer have passed through the second-level cache: about ten cycles an instruction
// outside of loops. The code is therefore short: wgmma takes few instructions, the softmax is a loop over sixteen keys
// whose registers move on, and one form serves all items, the tails of a tree's rows too.
#include "gpu/attention/attention_flash.cuh"
#include "gpu/attention/attention_softmax.cuh"
#include "gpu/attention/attention_wgmma_tiles.cuh"

#if defined(TND_GPU_EMU) || defined(TND_CUDA_WGMMA)

namespace tnd::gpu {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * TND_WARP;
constexpr int kParts = kAttentionSegments - 1;  // of the keys before a tail

// Queries, K and V.
template <int DIM>
constexpr unsigned kSharedBytes = 3 * GroupTiles<DIM>::kBytes + kGroupAlign;

// Starts the copy of a tile of halves; positions from `end` on become zeros.
template <int DIM>
TND_DEVICE void copy_tile(uint16_t* to, const uint16_t* rows, const TileSlots& slots) {
  using Tiles = GroupTiles<DIM>;
  constexpr unsigned kUnits = DIM / 8, kRowsAtOnce = kThreads / kUnits;
  const unsigned unit = threadIdx.x % kUnits, key = threadIdx.x / kUnits;
  rows += unit * 8;
  if (plain_tile(slots)) {
    rows += int64_t{slots.base + static_cast<int>(key)} * DIM;
    constexpr unsigned kPeriod = kRowsAtOnce < 8 ? 8 : kRowsAtOnce;  // rows after which the offset of a cell repeats
#pragma unroll
    for (unsigned j = 0; j < kPeriod; j += kRowsAtOnce) {
      uint16_t* cell = Tiles::cell(to, key + j, unit);
#pragma unroll
      for (unsigned i = 0; i < kAttentionTile; i += kPeriod) {
        copy_async_16(cell + i * Tiles::kStride, rows + (i + j) * DIM);
      }
    }
  } else {
#pragma unroll 1
    for (unsigned i = 0; i < kAttentionTile; i += kRowsAtOnce) {
      const int32_t slot = slot_in(slots, static_cast<int>(key + i));
      copy_async_16(Tiles::cell(to, key + i, unit), rows + int64_t{slot < 0 ? 0 : slot} * DIM, slot < 0 ? 0 : 16);
    }
  }
}

// The item of block (head, item): first tails, which take longest when contexts are short; then segments, with the
// blocks of queries of one segment side by side. A tile's queries are shared evenly among its blocks, in sixteens.
TND_DEVICE FlashItem item_of_block(const FlashArgs& f) {
  const AttentionArgs& a = f.a;
  int item = static_cast<int>(blockIdx.y);
  const int tail_items = a.n_tail * f.tail_blocks;
  const bool is_tail = item < tail_items;
  if (!is_tail) item -= tail_items;
  const Divisor blocks = is_tail ? f.tail_divisor : f.bulk_divisor;
  const int index = item / blocks, block = item - index * blocks.by;
  FlashItem it;
  it.kv_head = static_cast<int>(blockIdx.x);
  it.part = is_tail ? -1 : index % kParts;
  it.slot = is_tail ? f.slots - 1 : it.part;
  it.tile = is_tail ? a.tail[index] : a.bulk[index / kParts];
  const int all = it.tile.rows * f.group.by;
  const int sixteens = (all + 15) / 16, used = (sixteens + kWarps - 1) / kWarps;
  const int most = 16 * (1 + (sixteens > used) + (sixteens > 2 * used) + (sixteens > 3 * used));
  it.first_query = block * most;
  it.queries = all - it.first_query < most ? all - it.first_query : most;
  return it;
}

// Turns the scores of a tile into weights. s: q k^T. Returns whether the sums of values must be scaled by `scale`.
[[maybe_unused]] TND_DEVICE bool softmax(float (&s)[kKeyBlocks][4], uint32_t (&p)[kKeySteps][4], LaneQuery (&query)[2],
                                         float (&scale)[2], float score_scale, int first_key) {
  // Rotates s by n blocks of keys: the first ones go to the end.
  const auto rotate = [&] {
    float first[2][4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) first[j][e] = s[j][e];
    }
#pragma unroll
    for (int j = 0; j < kKeyBlocks; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[j][e] = j + 2 < kKeyBlocks ? s[j + 2][e] : first[j + 2 - kKeyBlocks][e];
    }
  };
  int begin[2], end[2];  // visible keys of the tile
  float base[2] = {-__builtin_inff(), -__builtin_inff()};
  bool active[2];
  const bool whole = find_visible(query, first_key, begin, end, active);
  const bool masked = any_lane(!whole);
#pragma unroll 1
  for (int n = 0, key = static_cast<int>(threadIdx.x % 4) * 2; n < kKeySteps; ++n, key += 16) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[j][e] = score_scale * s[j][e];
        const int at = key + 8 * j + e % 2, h = e / 2;
        if (masked && (at < begin[h] || at >= end[h])) s[j][e] = -__builtin_inff();  // no weight
        base[h] = fmaxf(base[h], s[j][e]);
      }
    }
    rotate();
  }
  const bool scaled = raise_maxima(query, active, base, scale);
  float sum[2][2] = {};
#pragma unroll 1
  for (int n = 0; n < kKeySteps; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[j][e] = exp_weight(s[j][e] - base[e / 2]);
        sum[e / 2][e % 2] += s[j][e];
      }
    }
#pragma unroll
    for (int i = 0; i + 1 < kKeySteps; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) p[i][r] = p[i + 1][r];
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) p[kKeySteps - 1][r] = pack_halves(s[r / 2][r % 2 * 2], s[r / 2][r % 2 * 2 + 1]);
    rotate();
  }
  add_weights(query, active, scale, sum);
  return any_lane(scaled);
}

template <int DIM>
TND_DEVICE void attend(const FlashArgs& f, const FlashItem& item, uint8_t* shared) {
  using Tiles = GroupTiles<DIM>;
  constexpr int kTile = kAttentionTile;
  const AttentionArgs& a = f.a;
  const int warp = static_cast<int>(threadIdx.x / TND_WARP), lane = static_cast<int>(threadIdx.x % TND_WARP);
  const AttentionTile tile = item.tile;
  const int queries = item.queries;
  if (queries <= 0) return;

  // Positions that any query of the block sees, and those of the lane's two: a lane a row. Plans were written before
  // the previous launch began.
  const KvCache& cache = a.cache;
  const AttentionRow plan = a.row_plans[tile.row];
  const int first_row = item.first_query / f.group, rows = (item.first_query + queries - 1) / f.group - first_row + 1;
  const int first_of_lane = warp * 16 + lane / 4;
  LaneQuery query[2];
  KeyRange seen = kNoKeys;
#pragma unroll 1
  for (int row = 0; row < rows; row += TND_WARP) {
    KeyRange k = kNoKeys;
    if (row + lane < rows) widen(k, key_range(a.row_plans[tile.row + first_row + row + lane], item.part, kParts));
    widen(seen, k);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int q = first_of_lane + 8 * h, from = (item.first_query + q) / f.group - first_row - row;
      const int32_t b = shfl(k.begin, from % TND_WARP), e = shfl(k.end, from % TND_WARP);
      if (q < queries && from >= 0 && from < TND_WARP) query[h].begin = b, query[h].end = e;
    }
  }
  seen = warp_range(seen);
  const int end = seen.end;
  const int first_tile = seen.begin / kTile, last_tile = (end + kTile - 1) / kTile;
  if (first_tile >= last_tile) return;

  shared = Tiles::aligned(shared);
  uint16_t* sq = reinterpret_cast<uint16_t*>(shared);
  uint16_t* sk = sq + Tiles::kBytes / 2;
  uint16_t* sv = sk + Tiles::kBytes / 2;
  const int64_t head_begin = kv_index(a.kv, item.kv_head, 0);
  const auto* keys = static_cast<const uint16_t*>(cache.k) + head_begin;
  const auto* values = static_cast<const uint16_t*>(cache.v) + head_begin;
  TileSlots slots = tile_slots(a, tile, plan, end);
  go_to_tile(slots, first_tile);
  const bool old = (first_tile + 1) * kTile <= tile.old;  // the first tile
  if (!old) wait_for_previous();
#pragma unroll 1
  for (int i = 0; i < 2; ++i) copy_tile<DIM>(i == 0 ? sk : sv, i == 0 ? keys : values, slots);
  if (old) wait_for_previous();
  constexpr int kUnits = DIM / 8;
#pragma unroll 1
  for (int q = static_cast<int>(threadIdx.x) / kUnits; q < queries; q += kThreads / kUnits) {
    const unsigned unit = threadIdx.x % kUnits;
    const uint16_t* from = flash_query<DIM>(f, tile, item.kv_head, item.first_query + q);
    copy_async_16(Tiles::cell(sq, static_cast<unsigned>(q), unit), from + unit * 8);
  }
  copy_async_commit();

  float o[DIM / 8][4];
#pragma unroll
  for (int j = 0; j < DIM / 8; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) o[j][e] = 0.0f;
  }
  const bool live = warp * 16 < queries;
#pragma unroll 1
  for (int t = first_tile; t < last_tile; ++t) {
    copy_async_wait<0>();
    show_to_wgmma();
    __syncthreads();  // K is there, nobody reads V any more
    if (t > first_tile) {
      copy_tile<DIM>(sv, values, slots);  // the copy of K moved `slots` to this tile
      copy_async_commit();
    }
    float s[kKeyBlocks][4];
    uint32_t p[kKeySteps][4];
    Tiles::multiply_keys(s, sq, sk, warp);
    __syncthreads();  // nobody reads K any more
    if (t + 1 < last_tile) {
      go_to_tile(slots, t + 1);
      copy_tile<DIM>(sk, keys, slots);
    }
    copy_async_commit();
    if (live) {
      float scale[2];
      if (softmax(s, p, query, scale, a.scale, t * kTile)) {
        rare_branch();
#pragma unroll
        for (int j = 0; j < DIM / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) o[j][e] *= scale[e / 2];
        }
      }
    }
    copy_async_wait<1>();
    show_to_wgmma();
    __syncthreads();  // V is there
    Tiles::multiply_values(o, p, sv);
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!query[h].seen) continue;
    const int q = item.first_query + first_of_lane + 8 * h, row = q / f.group;
    const int head = item.kv_head * f.group.by + q - row * f.group.by;
    const int64_t at = (int64_t{tile.row + row} * a.q_heads + head) * f.slots + item.slot;
    if (lane % 4 == 0) f.ml[at] = make_float2(query[h].m, query[h].l);
    float* to = f.o + at * DIM + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < DIM / 8; ++j) {
      *reinterpret_cast<float2*>(to + j * 8) = make_float2(o[j][2 * h], o[j][2 * h + 1]);
    }
  }
}

template <int DIM>
__global__ void __launch_bounds__(kThreads, 2) attention_wgmma_kernel(FlashArgs f) {
  if constexpr (kGroupTiles) {
    TND_DYNAMIC_SHARED(uint8_t, shared);
    let_next_start();
    attend<DIM>(f, item_of_block(f), shared);
    wait_for_previous();  // blocks without work, too: the next kernel relies on the end of the previous one
  }
}

template <int DIM>
void launch_dim(Stream& stream, FlashArgs f) {
  const AttentionArgs& a = f.a;
  constexpr int kQueries = 16 * kWarps;  // most of a block
  const int items = cut_queries(f, kQueries, f.bulk_parts);
  f.bulk_divisor = Divisor(f.bulk_blocks);
  f.tail_divisor = Divisor(f.tail_blocks);
  launch(stream,
         {.grid = {static_cast<unsigned>(a.kv.heads), static_cast<unsigned>(items)},
          .block = {kThreads},
          .shared_bytes = kSharedBytes<DIM>,
          .overlap = true,
          .name = "attention_wgmma"},
         attention_wgmma_kernel<DIM>, f);
}

}  // namespace

bool has_attention_wgmma([[maybe_unused]] const DeviceInfo& device) {
#if defined(TND_GPU_EMU)
  return true;
#else
  return device.major == 9 && device.shared_per_block >= static_cast<int>(kSharedBytes<256>);
#endif
}

void launch_flash_wgmma(Stream& stream, const FlashArgs& f) {
  if (f.a.kv.dim == 256) return launch_dim<256>(stream, f);
  if (f.a.kv.dim == 128) return launch_dim<128>(stream, f);
  launch_dim<64>(stream, f);
}

}  // namespace tnd::gpu

#else

namespace tnd::gpu {

bool has_attention_wgmma(const DeviceInfo&) {
  return false;
}
void launch_flash_wgmma(Stream&, const FlashArgs&) {}

}  // namespace tnd::gpu

#endif
