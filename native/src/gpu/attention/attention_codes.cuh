// The flash contract of attention.h for steps of up to 64 rows over caches in Q8_0 and Q4_0, whose codes become halves
// in the registers of the warp that multiplies them: no tile of halves exists, so nothing is written to shared memory
// and read again.
//
// A block has eight warps and up to 16 * MT queries, of one segment or of a tail (flash_item). A tile of 64 keys and
// values is copied unchanged, K while the tile before is multiplied and V a tile later. q k^T: a warp takes 8 keys and
// all queries, in wide blocks 16 keys and half of them. Softmax: eight lanes a query. p v: a warp takes 32 columns, of
// all queries for heads of 256; sums stay in registers. q k^T of the next tile and p v of this one lie between the same
// two barriers.
//
// Operands are those of mma.sync: a lane's pair of a key's neighbouring elements lies side by side among codes, too. Of
// values it needs a pair of neighbouring keys; it reads four columns of four keys at once, and columns go to products
// so that these are its own: product j of a warp has columns j, 4 + j, 8 + j, ...
//
// Blocks are of 16 queries (plain decoding), on all cards with mma.sync, or of 144 (a tree of 23 rows of the 27B),
// whose memory only larger cards have. Between them the forms that unpack to shared memory were faster. Bound: the
// instructions that unpack, and latency between barriers.
#pragma once

#include <algorithm>
#include <type_traits>

#include "gpu/attention/attention_flash.cuh"
#include "gpu/attention/attention_softmax.cuh"

#if defined(TND_GPU_EMU) || defined(TND_GPU_CUDA)

namespace tnd::gpu {
namespace {

template <int DIM, int MT>
struct CodesShape {
  static constexpr int kWarps = 8, kThreads = kWarps * TND_WARP;
  static constexpr int kQueries = 16 * MT;
  static constexpr int kQueryWarps = MT < 6 ? 1 : 2;               // that share the queries in q k^T
  static constexpr int kColumnWarps = DIM / 32;                    // that share the columns in p v
  static constexpr int kRowWarps = kWarps / kColumnWarps;          // that share the queries
  static constexpr int kTiles = (MT + kRowWarps - 1) / kRowWarps;  // of 16 queries, a warp's in p v
  static constexpr int kStride = DIM + 8;                          // halves; rows of queries start four banks apart
  static constexpr int kScores = kAttentionTile + 8;               // floats
  static constexpr int kWeights = kAttentionTile + 8;              // halves
  static constexpr int kRowsAtOnce = kThreads / 8;                 // queries of a pass of the softmax
  static constexpr int kPasses = (kQueries + kRowsAtOnce - 1) / kRowsAtOnce;
  // Shared memory: queries, scores, weights, ranges, factors, then two copies of tiles of K and of V.
  static constexpr int kCopies =
      kQueries * ((kStride + kWeights) * 2 + kScores * 4 + static_cast<int>(sizeof(KeyRange)) + 4);
  static_assert(kCopies % 16 == 0);
};

// A tile of codes of TYPE in shared memory: rows, four banks apart, then their scales [64][DIM / 32].
template <KvType TYPE, int DIM>
struct CodeTile {
  static constexpr bool kBytesEach = TYPE == KvType::kQ8_0;
  static constexpr int kCodes = kBytesEach ? DIM : DIM / 2;  // bytes of a row
  static constexpr int kRow = kCodes + 16, kBlocks = DIM / kKvBlock;
  static constexpr int kScales = kAttentionTile * kRow;  // begin here
  static constexpr int kBytes = kScales + kAttentionTile * kBlocks * 2;
  static constexpr uint32_t kExcess = kBytesEach ? 0x64806480u : 0x64086408u;  // 1024 + 128, 1024 + 8

  // What a word holds of half `high` of a block, as unsigned bytes: of nibbles both halves lie in the same bytes.
  static __device__ __forceinline__ uint32_t codes(uint32_t word, int high) {
    return kBytesEach ? word ^ 0x80808080u : word >> (4 * high) & 0x0F0F0F0Fu;
  }
  // Byte of a row where half `high` of a block begins.
  static __device__ __forceinline__ constexpr int byte_of(int block, int high) {
    return kBytesEach ? block * 32 + high * 16 : block * 16;
  }
  // Two codes in the low bytes of a word as scaled halves.
  static __device__ __forceinline__ uint32_t pair(uint32_t two, uint32_t scale) {
    return half2_multiply(half2_subtract(byte_perm(two, 0x64646464u, 0x4140), kExcess), scale);
  }

  // Starts the copy of the tile that `slots` is at, by all threads of a block.
  template <int THREADS>
  static __device__ __forceinline__ void copy(uint8_t* to, const PackedRows& rows, const TileSlots& slots) {
    constexpr int kPieces = kCodes / 16, kRowsAtOnce = THREADS / kPieces;
    const int tid = static_cast<int>(threadIdx.x), key = tid / kPieces, at = tid % kPieces * 16;
    uint8_t* cell = to + key * kRow + at;
    if (plain_tile(slots)) {
      const uint8_t* from = rows.codes + int64_t{slots.base + key} * kCodes + at;
#pragma unroll
      for (int i = 0; i < kAttentionTile; i += kRowsAtOnce) copy_async_16(cell + i * kRow, from + i * kCodes);
      constexpr int kScalePieces = kAttentionTile * kBlocks / 8;
      if (tid < kScalePieces) {
        copy_async_16(to + kScales + tid * 16, rows.heads + int64_t{slots.base} * kBlocks + tid * 8);
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kAttentionTile; i += kRowsAtOnce) {
      const int32_t slot = slot_in(slots, key + i);
      copy_async_16(cell + i * kRow, rows.codes + int64_t{slot < 0 ? 0 : slot} * kCodes + at, slot < 0 ? 0 : 16);
    }
    auto* scales = reinterpret_cast<uint16_t*>(to + kScales);  // of a row too few for a copy in the background
#pragma unroll 1
    for (int i = tid; i < kAttentionTile * kBlocks; i += THREADS) {
      const int32_t slot = slot_in(slots, i / kBlocks);
      scales[i] = slot < 0 ? uint16_t{0} : rows.heads[int64_t{slot} * kBlocks + i % kBlocks];
    }
  }
};

// The queries of a block as operands: of 16 they stay in registers.
template <int DIM, int MT>
struct CodeQueries {
  static constexpr int kStride = CodesShape<DIM, MT>::kStride;
  static constexpr bool kHeld = MT == 1;
  const uint16_t* shared;
  MmaUnit::A held[kHeld ? DIM / 16 : 1];

  __device__ __forceinline__ void init(const uint16_t* sq) {
    shared = sq;
    if constexpr (kHeld) {
#pragma unroll
      for (int k = 0; k < DIM / 16; ++k) load_a(held[k], sq + k * 16, kStride);
    }
  }
  __device__ __forceinline__ void load(MmaUnit::A& to, int i, int k) const {
    if constexpr (kHeld) {
      to = held[k];
    } else {
      load_a(to, shared + i * 16 * kStride + k * 16, kStride);
    }
  }
};

// The number of 16 queries, or of the last: a warp that has fewer than others multiplies those in vain.
template <int LIVE>
TND_DEVICE int within(int number) {
  return number < LIVE ? number : LIVE - 1;
}

// Scores of 16 * LIVE queries and a tile's keys: a warp takes 8 * kQueryWarps keys and every kQueryWarps-th 16 queries.
template <KvType TYPE, int DIM, int MT, int LIVE>
TND_DEVICE void multiply_coded_keys(const uint8_t* tile, const CodeQueries<DIM, MT>& queries, float* scores,
                                    float scale, int warp) {
  using S = CodesShape<DIM, MT>;
  using T = CodeTile<TYPE, DIM>;
  constexpr int kTiles = (LIVE + S::kQueryWarps - 1) / S::kQueryWarps, kNext = S::kQueryWarps;  // of queries; of keys
  constexpr int kWords = T::kBytesEach ? 4 : 2;  // of two codes that a lane reads of a block
  constexpr int kAtOnce = kTiles > 3 ? 1 : 4;    // blocks
  constexpr int kSteps = 2 * kAtOnce, kAhead = CodeQueries<DIM, MT>::kHeld || kTiles == 1 ? 1 : 2;
  const int lane = static_cast<int>(lane_id());
  const int of_queries = warp % S::kQueryWarps, key = warp / S::kQueryWarps * 8 * kNext + lane / 4;
  if (LIVE < S::kQueryWarps && of_queries >= LIVE) return;
  const uint8_t* row = tile + key * T::kRow + lane % 4 * 2;
  const uint8_t* scales = tile + T::kScales + key * T::kBlocks * 2;
  float c[kTiles][kNext][4];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int n = 0; n < kNext; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) c[i][n][e] = 0.0f;
    }
  }
#pragma unroll
  for (int first = 0; first < T::kBlocks; first += kAtOnce) {
    // Codes are read before the operands of queries, whose loads keep their order.
    uint32_t words[kAtOnce][kNext][kWords];
    uint32_t factors[kAtOnce][kNext];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int n = 0; n < kNext; ++n) {
        factors[i][n] = reinterpret_cast<const uint16_t*>(scales + n * 8 * T::kBlocks * 2)[first + i] * 0x10001u;
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          const uint8_t* from = row + n * 8 * T::kRow + T::byte_of(first + i, 0) + 8 * w;
          words[i][n][w] = *reinterpret_cast<const uint16_t*>(from);
        }
      }
    }
    MmaUnit::A q[kAhead];  // operands, loaded before the products that precede theirs
    const auto load = [&](int at) {
      if (at >= kSteps * kTiles) return;
      queries.load(q[at % kAhead], within<LIVE>(at % kTiles * S::kQueryWarps + of_queries), 2 * first + at / kTiles);
    };
    if (kAhead == 2) load(0);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int block = k / 2, high = k % 2;
      uint32_t b[kNext][2];
#pragma unroll
      for (int n = 0; n < kNext; ++n) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          b[n][r] = T::pair(T::codes(words[block][n][T::kBytesEach ? 2 * high + r : r], high), factors[block][n]);
        }
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int at = k * kTiles + i;
        load(at + kAhead - 1);
#pragma unroll
        for (int n = 0; n < kNext; ++n) mma_f16_k16(c[i][n], q[at % kAhead].r, b[n]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int number = i * S::kQueryWarps + of_queries;
    if (LIVE % S::kQueryWarps != 0 && number >= LIVE) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float* to = scores + (number * 16 + h * 8 + lane / 4) * S::kScores + (key - lane / 4) + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kNext; ++n) {
        *reinterpret_cast<float2*>(to + n * 8) = make_float2(scale * c[i][n][2 * h], scale * c[i][n][2 * h + 1]);
      }
    }
  }
}

// Adds the weighted values of a tile to a warp's sums of 16 * LIVE queries: columns 32 * column_warp + 4 * c + j are
// column c of o[..][j].
template <KvType TYPE, int DIM, int MT, int LIVE>
TND_DEVICE void multiply_coded_values(float (&o)[CodesShape<DIM, MT>::kTiles][4][4], const uint8_t* tile,
                                      const uint16_t* weights, int column_warp, int row_warp) {
  using S = CodesShape<DIM, MT>;
  using T = CodeTile<TYPE, DIM>;
  constexpr int kTiles = (LIVE + S::kRowWarps - 1) / S::kRowWarps;
  constexpr int kSteps = kAttentionTile / 16, kAtOnce = kTiles > 3 ? 1 : 2, kAhead = kTiles > 1 ? 2 : 1;
  const int lane = static_cast<int>(lane_id()), n = lane / 4, key = lane % 4 * 2;
  if (LIVE < S::kRowWarps && row_warp >= LIVE) return;
  const int high = T::kBytesEach ? 0 : n / 4, at = T::kBytesEach ? 4 * n : 4 * (n % 4);
  const uint8_t* row = tile + key * T::kRow + T::byte_of(column_warp, 0) + at;
  const auto* scales = reinterpret_cast<const uint16_t*>(tile + T::kScales) + key * T::kBlocks + column_warp;
  MmaUnit::A p[kAhead];  // operands, loaded before the products that precede theirs
  const auto load = [&](int at) {
    if (at >= kSteps * kTiles) return;
    const int number = within<LIVE>(at % kTiles * S::kRowWarps + row_warp);
    load_a(p[at % kAhead], weights + number * 16 * S::kWeights + at / kTiles * 16, S::kWeights);
  };
  if (kAhead == 2) load(0);
#pragma unroll
  for (int first = 0; first < kSteps; first += kAtOnce) {
    uint32_t words[kAtOnce][4], factors[kAtOnce][4];  // of keys 2t, 2t + 1, 2t + 8, 2t + 9
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int of = 16 * (first + i) + w / 2 * 8 + w % 2;
        words[i][w] = *reinterpret_cast<const uint32_t*>(row + of * T::kRow);
        factors[i][w] = scales[of * T::kBlocks];
      }
    }
#pragma unroll
    for (int step = 0; step < kAtOnce; ++step) {
      uint32_t v[4][2];  // [product][keys 2t and 2t + 1, and these + 8]
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t x = T::codes(words[step][2 * r], high), y = T::codes(words[step][2 * r + 1], high);
        const uint32_t scale = factors[step][2 * r] | factors[step][2 * r + 1] << 16;
        const uint2 low = scaled_halves(byte_perm(x, y, 0x5140), T::kExcess, scale);
        const uint2 up = scaled_halves(byte_perm(x, y, 0x7362), T::kExcess, scale);
        v[0][r] = low.x, v[1][r] = low.y, v[2][r] = up.x, v[3][r] = up.y;
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int at = (first + step) * kTiles + i;
        load(at + kAhead - 1);
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_f16_k16(o[i][j], p[at % kAhead].r, v[j]);
      }
    }
  }
}

template <int DIM, int MT, KvType KEYS, KvType VALUES>
TND_DEVICE void codes_block(const FlashArgs& f, const FlashItem& item, uint8_t* shared) {
  using S = CodesShape<DIM, MT>;
  using K = CodeTile<KEYS, DIM>;
  using V = CodeTile<VALUES, DIM>;
  const AttentionArgs& a = f.a;
  const int g = f.group.by;
  const int tid = static_cast<int>(threadIdx.x), warp = one_warp_id(), lane = tid % TND_WARP;
  const AttentionTile tile = item.tile;
  const int kv_head = item.kv_head, first_query = item.first_query, queries = item.queries;
  if (queries <= 0) return;
  const int tiles = (queries + 15) / 16;  // of queries

  auto* sq = reinterpret_cast<uint16_t*>(shared);
  auto* scores = reinterpret_cast<float*>(sq + S::kQueries * S::kStride);
  auto* weights = reinterpret_cast<uint16_t*>(scores + S::kQueries * S::kScores);
  auto* ranges = reinterpret_cast<KeyRange*>(weights + S::kQueries * S::kWeights);
  auto* factors = reinterpret_cast<float*>(ranges + S::kQueries);  // of the sums so far; at last 1 = has seen keys
  uint8_t* const copies_k = shared + S::kCopies;
  uint8_t* const copies_v = copies_k + 2 * K::kBytes;

  // Positions that any query of the block sees; every warp finds them.
  const int first_row = first_query / f.group, rows = (first_query + queries - 1) / f.group - first_row + 1;
  const KeyRange seen_by_any = range_of_rows(f, tile.row + first_row, rows, item.part, f.bulk_parts);
  const int first_tile = seen_by_any.begin / kAttentionTile, end = seen_by_any.end;
  const int last_tile = (end + kAttentionTile - 1) / kAttentionTile;
  if (first_tile >= last_tile) return;
  for (int i = tid; i < S::kQueries; i += S::kThreads) {
    ranges[i] = i < queries ? key_range(a.row_plans[tile.row + (first_query + i) / f.group], item.part, f.bulk_parts)
                            : KeyRange{0, 0, 1};
  }

  TileSlots slots = tile_slots(a, tile, a.row_plans[tile.row], end);
  const PackedRows keys = packed_rows<DIM>(a.kv.k_type, a.kv, a.cache.k, kv_head, nullptr);
  const PackedRows values = packed_rows<DIM>(a.kv.v_type, a.kv, a.cache.v, kv_head, nullptr);
  // Starts the copies of V of the tile before t, and of K of tile t.
  const auto fetch = [&](int t) {
    if (t > first_tile && t <= last_tile) {
      V::template copy<S::kThreads>(copies_v + (t - 1) % 2 * V::kBytes, values, slots);
    }
    if (t < last_tile) {
      go_to_tile(slots, t);
      K::template copy<S::kThreads>(copies_k + t % 2 * K::kBytes, keys, slots);
    }
    copy_async_commit();
  };
  const bool old = (first_tile + 1) * kAttentionTile <= tile.old;  // the first tile
  if (!old) wait_for_previous();
  fetch(first_tile);
  if (old) wait_for_previous();

  constexpr int kPieces = S::kQueries * DIM / 8;  // of 16 bytes
#pragma unroll 4
  for (int i = tid; i < kPieces; i += S::kThreads) {
    const int q = i / (DIM / 8), at = i % (DIM / 8) * 8;
    uint4 x = make_uint4(0, 0, 0, 0);
    if (q < queries) x = *reinterpret_cast<const uint4*>(flash_query<DIM>(f, tile, kv_head, first_query + q) + at);
    *reinterpret_cast<uint4*>(sq + q * S::kStride + at) = x;
  }
  __syncthreads();
  CodeQueries<DIM, MT> operands;
  operands.init(sq);

  const int column_warp = warp % S::kColumnWarps, row_warp = warp / S::kColumnWarps;
  float o[S::kTiles][4][4];
#pragma unroll
  for (int i = 0; i < S::kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o[i][j][e] = 0.0f;
    }
  }
  // Softmax state of the queries pass * kRowsAtOnce + tid / 8.
  float m[S::kPasses], l[S::kPasses];
  bool seen[S::kPasses];
#pragma unroll
  for (int i = 0; i < S::kPasses; ++i) m[i] = -__builtin_inff(), l[i] = 0.0f, seen[i] = false;

  // Turns the scores of tile t into weights.
  const auto weigh = [&](int t) {
#pragma unroll
    for (int i = 0; i < S::kPasses; ++i) {
      const int q = i * S::kRowsAtOnce + tid / 8, eighth = tid % 8;
      if (q >= tiles * 16) continue;  // of whole warps
      const KeyRange r = ranges[q];
      const int begin = r.begin - t * kAttentionTile, stop = r.end - t * kAttentionTile;  // keys begin <= j < stop
      const bool active = begin < kAttentionTile && stop > 0 && begin < stop;
      float p[8];
      float top = -__builtin_inff();
#pragma unroll
      for (int j = 0; j < 8; ++j) p[j] = scores[q * S::kScores + eighth + 8 * j];
      if (begin > 0 || stop < kAttentionTile) {
        rare_branch();
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int key = eighth + 8 * j;
          if (key < begin || key >= stop) p[j] = -__builtin_inff();
        }
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) top = fmaxf(top, p[j]);
#pragma unroll
      for (int mask = 4; mask > 0; mask /= 2) top = fmaxf(top, shfl_xor(top, mask));
      top = fmaxf(top, m[i]);
      const float base = active ? top : 0.0f;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        p[j] = exp_weight(p[j] - base);
        sum += p[j];
        weights[q * S::kWeights + eighth + 8 * j] = float_to_half(p[j]);
      }
#pragma unroll
      for (int mask = 4; mask > 0; mask /= 2) sum += shfl_xor(sum, mask);
      float scale = 1.0f;
      if (active) {
        scale = exp_f32(m[i] - top);
        l[i] = fmaf(l[i], scale, sum);
        m[i] = top;
        seen[i] = true;
      }
      if (eighth == 0) factors[q] = scale;
    }
  };

  // The products are compiled for all of a block's queries and for 16, which is enough for the tail of a single row.
  const auto for_live = [&](const auto& work_on) {
    if (MT > 1 && tiles == 1) {
      work_on(std::integral_constant<int, 1>());
    } else {
      work_on(std::integral_constant<int, MT>());
    }
  };
  for (int t = first_tile - 1; t < last_tile; ++t) {
    copy_async_wait<0>();
    __syncthreads();
    fetch(t + 2);
    if (t + 1 < last_tile) {
      for_live([&](auto live) {
        multiply_coded_keys<KEYS, DIM, MT, decltype(live)::value>(copies_k + (t + 1) % 2 * K::kBytes, operands, scores,
                                                                  a.scale, warp);
      });
    }
    if (t >= first_tile) {
#pragma unroll
      for (int i = 0; i < S::kTiles; ++i) {
        const int first = (i * S::kRowWarps + row_warp) * 16 + lane / 4;
        if (first >= tiles * 16) continue;
        const float scale[2] = {factors[first], factors[first + 8]};
        if (!any_lane(scale[0] != 1.0f || scale[1] != 1.0f)) continue;
        rare_branch();
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) o[i][j][e] *= scale[e / 2];
        }
      }
      for_live([&](auto live) {
        multiply_coded_values<VALUES, DIM, MT, decltype(live)::value>(o, copies_v + t % 2 * V::kBytes, weights,
                                                                      column_warp, row_warp);
      });
    }
    __syncthreads();
    if (t + 1 < last_tile) weigh(t + 1);
  }

  const auto partial = [&](int q) {  // index of a query's slot
    const int row = (first_query + q) / f.group, head = kv_head * g + first_query + q - row * g;
    return (int64_t{tile.row + row} * a.q_heads + head) * f.slots + item.slot;
  };
#pragma unroll
  for (int i = 0; i < S::kPasses; ++i) {
    const int q = i * S::kRowsAtOnce + tid / 8;
    if (tid % 8 != 0 || q >= S::kQueries) continue;
    factors[q] = seen[i] ? 1.0f : 0.0f;
    if (seen[i]) f.ml[partial(q)] = make_float2(m[i], l[i]);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < S::kTiles; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int q = (i * S::kRowWarps + row_warp) * 16 + h * 8 + lane / 4;
      if (q >= queries || factors[q] == 0.0f) continue;
      auto* to = reinterpret_cast<float4*>(f.o + partial(q) * DIM + column_warp * 32 + lane % 4 * 8);
      to[0] = make_float4(o[i][0][2 * h], o[i][1][2 * h], o[i][2][2 * h], o[i][3][2 * h]);
      to[1] = make_float4(o[i][0][2 * h + 1], o[i][1][2 * h + 1], o[i][2][2 * h + 1], o[i][3][2 * h + 1]);
    }
  }
}

template <int DIM, int MT, KvType KEYS, KvType VALUES>
__global__ void __launch_bounds__(CodesShape<DIM, MT>::kThreads, MT == 1 && DIM == 128 ? 2 : 1)
    attention_codes_kernel(FlashArgs f) {
  TND_DYNAMIC_SHARED(uint8_t, shared);
  let_next_start();
  codes_block<DIM, MT, KEYS, VALUES>(f, flash_item(f, static_cast<int>(blockIdx.x)), shared);
  wait_for_previous();  // blocks without work, too: the next kernel relies on the end of the previous one
}

// Launches nothing and returns false where a block has too little shared memory.
template <int DIM, int MT, KvType KEYS, KvType VALUES>
bool launch_codes(Stream& stream, FlashArgs f) {
  using S = CodesShape<DIM, MT>;
  const AttentionArgs& a = f.a;
  constexpr int kBytes = S::kCopies + 2 * (CodeTile<KEYS, DIM>::kBytes + CodeTile<VALUES, DIM>::kBytes);
  if (kBytes > a.shared_per_block) return false;
  f.block_queries = S::kQueries;
  const int items = a.kv.heads * cut_queries(f, S::kQueries, f.bulk_parts);
  launch(stream,
         {.grid = {static_cast<unsigned>(items)},
          .block = {S::kThreads},
          .shared_bytes = static_cast<unsigned>(kBytes),
          .overlap = true,
          .name = "attention_codes"},
         attention_codes_kernel<DIM, MT, KEYS, VALUES>, f);
  return true;
}

template <int DIM, KvType KEYS, KvType VALUES>
bool launch_codes_types(Stream& stream, const FlashArgs& f) {
  const int queries = std::max(f.a.bulk_rows, f.a.tail_rows) * f.group.by;
  if (queries <= 16) return launch_codes<DIM, 1, KEYS, VALUES>(stream, f);
  // Rows are those of their bucket: 32 for a tree of 23, which leaves a second block nothing to do.
  return f.a.many_keys && queries > 96 && queries <= 192 && launch_codes<DIM, 9, KEYS, VALUES>(stream, f);
}

template <KvType KEYS, KvType VALUES>
bool launch_codes_dims(Stream& stream, const FlashArgs& f) {
  if (f.a.kv.dim == 256) return launch_codes_types<256, KEYS, VALUES>(stream, f);
  if (f.a.kv.dim == 128) return launch_codes_types<128, KEYS, VALUES>(stream, f);
  return false;
}

}  // namespace
}  // namespace tnd::gpu

#endif
