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
// tile of halves that wgmma reads; the last one brings units and queries, too. Each of the other warpgroups has 64
// queries, a warp 16 from q k^T to p v. Their sums lie in registers; each thread folds the elements that it holds. The
// products of a warpgroup run while another one has its softmax. Bound: memory up to about 64 queries, then matrix
// units for heads of 256, instructions of the softmax for shorter ones; at short contexts, where segments are short,
// the folds.
#pragma once

#include <algorithm>

#include "gpu/attention/attention_group_codes.cuh"
#include "gpu/attention/attention_softmax.cuh"

#if defined(TND_GPU_EMU) || defined(TND_CUDA_WGMMA)

namespace tnd::gpu {

// Sets the numbers of handover.h to zero.
void launch_attention_begin(Stream& stream, int32_t* handed, int n);

namespace {

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

template <class S, int DIM>
TND_DEVICE void bring_queries(const FlashArgs& f, typename S::State& state, uint16_t* tiles) {
  for (uint32_t number = 0;; ++number) {
    await_filled<kUnits>(state.unit, number);
    if (state.units[number % kUnits].last_tile == 0) return;
    copy_queries<S, DIM>(f, state, number, tiles);
    arrive_once(state.unit_read + number % kUnits);
  }
}

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

template <int DIM, bool CODES, bool SPLIT>
bool launch_group_units(Stream& stream, FlashArgs f) {
  using S = GroupShape<DIM, CODES>;
  const AttentionArgs& a = f.a;
  const unsigned bytes = S::shared_bytes(a.kv);
  if (bytes > static_cast<unsigned>(a.shared_per_block)) return false;
  const int units = a.kv.heads * cut_queries(f, S::kQueries, kParts);
  int blocks = std::min(a.processors, units);
  if (!SPLIT) {
    launch_attention_begin(stream, f.handed, a.rows * a.q_heads + 1);
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
