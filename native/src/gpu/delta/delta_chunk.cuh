// The two kernels of the chunked delta rule (delta_chunk.h), for a family of matrix instructions.
//
// In the notation of docs/spec/qwen35.md 3.7, with rows as vectors and G the sums of log decays from the chunk's start:
//   prepare  A_ij = beta_i (k_i k_j) D_ij (j < i), D_ij = e^(G_i - G_j), T = (I + A)^-1
//            W = T diag(beta e^G) K, U = T diag(beta) V, P_ij = (q_i k_j) D_ij (j <= i)
//   states   V' = U - W S, O = diag(e^G) Q S + P V', S = e^(G_C) S + K^T diag(e^(G_C - G)) V'
// T, W and K, Q are at most 1 in size (the rule only ever shrinks a state along k), so their scale is fixed; V, S and
// V' are scaled by a power of two from their own maximum.
//
// The rows that a chunk lacks of 64 count as k = q = v = beta = g = 0, which changes nothing.
#pragma once

#include <type_traits>

#include "gpu/delta/delta_chunk.h"
#include "gpu/delta/delta_chunk_unit.cuh"
#include "gpu/delta/delta_device.cuh"

namespace tnd::gpu {

constexpr int kChunkWarps = 4;
constexpr int kChunkThreads = kChunkWarps * TND_WARP;
constexpr int kTokenTiles = kDeltaChunk / 16;
constexpr int kKeyTiles = kDeltaDim / 16;
constexpr int kTriTiles = kTokenTiles * (kTokenTiles + 1) / 2;
constexpr int kHalfBlock = kDeltaDim / 2;  // columns of S in a block of the second kernel, 16 a warp
constexpr int kHalfBlocks = kDeltaDim / kHalfBlock;

constexpr int tri_tile(int i, int j) {
  return i * (i + 1) / 2 + j;
}

// Scratch of n chunks. Matrices are tiles of kHalvesBytes, those of V's size tiles of floats in the order of lanes.
struct ChunkScratch {
  // Of a (chunk, value head): w [key tile][token tile], p [lower tiles, row by row], u [column tile][token tile],
  // from_start and to_end [64] each: e^G and e^(G_C - G).
  static constexpr int64_t kW = int64_t{kKeyTiles} * kTokenTiles * kHalvesBytes;
  static constexpr int64_t kP = int64_t{kTriTiles} * kHalvesBytes;
  static constexpr int64_t kU = int64_t{kKeyTiles} * kTokenTiles * kTileFloatBytes;
  static constexpr int64_t kFactors = 2 * kDeltaChunk * static_cast<int64_t>(sizeof(float));
  static constexpr int64_t kValueHead = kW + kP + kU + kFactors;
  // Of a (chunk, key head): q [key tile][token tile], k transposed [token tile][key tile].
  static constexpr int64_t kQ = int64_t{kKeyTiles} * kTokenTiles * kHalvesBytes;
  static constexpr int64_t kKeyHead = 2 * kQ;

  uint8_t *w, *p, *u, *q, *k;
  float* factors;

  static constexpr int64_t chunk_bytes(const DeltaShape& s) { return s.nv * kValueHead + s.nk * kKeyHead; }
};

TND_DEVICE ChunkScratch chunk_scratch(void* scratch, const DeltaShape& s, int chunk, int head) {
  using C = ChunkScratch;
  uint8_t* at = static_cast<uint8_t*>(scratch) + chunk * C::chunk_bytes(s);
  uint8_t* mine = at + head * C::kValueHead;
  uint8_t* q = at + s.nv * C::kValueHead + head % s.nk * C::kKeyHead;
  uint8_t *p = mine + C::kW, *u = p + C::kP;
  return {mine, p, u, q, q + C::kQ, reinterpret_cast<float*>(u + C::kU)};
}

// ---- first kernel: block = (value head, chunk)

struct alignas(16) PrepareShared {
  uint8_t keys[kTokenTiles * kKeyTiles * kHalvesBytes];  // K [token tile][key tile]
  float tri[kTriTiles][16][20];                          // A, then T; rows are four floats apart in banks
  float g_hi[kDeltaChunk], g_lo[kDeltaChunk];            // G as the sum of two floats
  float beta[kDeltaChunk], beta_decay[kDeltaChunk];      // beta, beta e^G
};

// Log decays of a chunk and the factors made from them; by the first warp. Sums and differences of G need more bits
// than a float has: a decay of e^-1000 must not reduce the precision of later ones.
TND_DEVICE void chunk_decays(PrepareShared& s, const DeltaChunkArgs& a, const DeltaChunk& chunk, int head,
                             float* factors) {
  const int lane = static_cast<int>(lane_id());
  const DeltaShape& shape = a.w.shape;
  constexpr float kLeast = -256.0f;  // e^-256 is zero, and so is all that it multiplies
  float g[2], beta[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = chunk.first + 2 * lane + i;
    const bool live = 2 * lane + i < chunk.count;
    g[i] = live ? a.w.a[head] * softplus_f32(a.io.alpha[row * shape.nv + head] + a.w.dt[head]) : 0.0f;
    if (g[i] < kLeast) g[i] = kLeast;
    beta[i] = live ? a.gates[(row * 2 + 1) * shape.nv + head] : 0.0f;
  }
  double sum = double{g[0]} + double{g[1]};
#pragma unroll
  for (int step = 1; step < TND_WARP; step *= 2) {
    const double before = shfl_up(sum, step);
    if (lane >= step) sum += before;
  }
  const double whole = shfl(sum, TND_WARP - 1);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const double at = i == 1 ? sum : sum - double{g[1]};
    const float from_start = exp_f32(static_cast<float>(at));
    const int t = 2 * lane + i;
    s.g_hi[t] = static_cast<float>(at);
    s.g_lo[t] = static_cast<float>(at - double{s.g_hi[t]});
    s.beta[t] = beta[i];
    s.beta_decay[t] = beta[i] * from_start;
    factors[t] = from_start;
    factors[kDeltaChunk + t] = exp_f32(static_cast<float>(whole - at));
  }
}

// Inverse of I + A for a diagonal tile, in place: column lane % 16 by forward substitution.
TND_DEVICE void invert_diagonal(float (&tile)[16][20]) {
  const int column = static_cast<int>(lane_id()) % 16;
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
  for (int i = 1; i < 16; ++i) {
#pragma unroll
    for (int j = 0; j < 16; j += 4) {
      if (j >= i) continue;
      const float4 a = *reinterpret_cast<const float4*>(&tile[i][j]);  // elements on and above the diagonal are zero
      x[i] = fmaf(-a.x, x[j], x[i]);
      if (j + 1 < i) x[i] = fmaf(-a.y, x[j + 1], x[i]);
      if (j + 2 < i) x[i] = fmaf(-a.z, x[j + 2], x[i]);
      if (j + 3 < i) x[i] = fmaf(-a.w, x[j + 3], x[i]);
    }
  }
  sync_warp();
  if (lane_id() < 16) {
#pragma unroll
    for (int i = 0; i < 16; ++i) tile[i][column] = x[i];
  }
  sync_warp();
}

// Pairs of a tile in shared memory as an operand: [index = row][k = column], or the other way round.
template <class Unit>
TND_DEVICE void halves_of_rows(Halves<Unit>& f, const float (&tile)[16][20]) {
  make_halves<Unit>(f, [&](int index, int k) {
    const float2 p = *reinterpret_cast<const float2*>(&tile[index][k]);
    return make_float2(p.x * kUnitScale, p.y * kUnitScale);
  });
}
template <class Unit>
TND_DEVICE void halves_of_columns(Halves<Unit>& f, const float (&tile)[16][20]) {
  make_halves<Unit>(
      f, [&](int index, int k) { return make_float2(tile[k][index] * kUnitScale, tile[k + 1][index] * kUnitScale); });
}

// K, Q or V of a chunk: [64][128], rows of zeros after the last.
struct ChunkMatrix {
  const float* m;
  int64_t stride;
  int count;
};
// All 128 columns of a tile of tokens, as [token][d].
template <class Unit>
TND_DEVICE void halves_of_rows(Halves<Unit> (&x)[kKeyTiles], const ChunkMatrix& c, int tile) {
#pragma unroll
  for (int d = 0; d < kKeyTiles; ++d) {
    make_halves<Unit>(x[d], [&](int index, int k) {
      const int token = tile * 16 + index;
      float2 p = make_float2(0.0f, 0.0f);
      if (token < c.count) p = *reinterpret_cast<const float2*>(c.m + token * c.stride + d * 16 + k);
      return make_float2(p.x * kUnitScale, p.y * kUnitScale);
    });
  }
}
// All 64 tokens of tiles of columns, as [column][token].
template <class Unit, int N>
TND_DEVICE void halves_of_columns(Halves<Unit> (&x)[N][kTokenTiles], const ChunkMatrix& c, int first, float scale) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      make_halves<Unit>(x[n][j], [&](int index, int k) {
        const int token = j * 16 + k;
        const float* from = c.m + token * c.stride + (first + n) * 16 + index;
        const float a = token < c.count ? from[0] : 0.0f, b = token + 1 < c.count ? from[c.stride] : 0.0f;
        return make_float2(a * scale, b * scale);
      });
    }
  }
}

// T below the diagonal, T_ij = -T_ii sum over j <= k < i of A_ik T_kj: warp = column j of tiles. Called by all warps.
template <class Unit>
TND_DEVICE void invert_below(PrepareShared& s, int column) {
  // |A_ii T_ij| <= 16, so the sums above are scaled less than other numbers.
  constexpr float kSumScale = 0x1p10f;
  Tile t[kTokenTiles - 1];
  Halves<Unit> turned[kTokenTiles - 1];  // T_kj [column][row]
#pragma unroll
  for (int i = 0; i < kTokenTiles; ++i) {
    constexpr int kLast = kTokenTiles - 1;
    Halves<Unit>& mine = turned[i < kLast ? i : 0];
    if (i < kLast && i == column) halves_of_columns(mine, s.tri[tri_tile(i, i)]);
    if (i == 0 || i <= column) continue;
    Tile sum;
    clear(sum);
    Halves<Unit> x, y;
#pragma unroll
    for (int k = 0; k < i; ++k) {
      if (k < column) continue;
      halves_of_rows(x, s.tri[tri_tile(i, k)]);
      multiply(sum, x, turned[k]);
    }
    turn(y, [&](int e) { return sum.v[e] * (-kSumScale * kUnitInverse * kUnitInverse); });
    halves_of_rows(x, s.tri[tri_tile(i, i)]);
    Tile& to = t[i - 1];
    clear(to);
    multiply(to, x, y);
#pragma unroll
    for (int e = 0; e < 8; ++e) to.v[e] *= kUnitInverse / kSumScale;
    if (i < kLast) turn(mine, [&](int e) { return to.v[e] * kUnitScale; });
  }
  __syncthreads();  // A has been read
#pragma unroll
  for (int i = 1; i < kTokenTiles; ++i) {
    if (i <= column) continue;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      s.tri[tri_tile(i, column)][tile_row(Unit{}) + Unit::row(e)][tile_column(Unit{}) + Unit::column(e)] =
          t[i - 1].v[e];
    }
  }
}

TND_DEVICE float chunk_decay(const PrepareShared& s, int i, int j) {
  return exp_f32((s.g_hi[i] - s.g_hi[j]) + (s.g_lo[i] - s.g_lo[j]));
}

template <class Unit>
__global__ void __launch_bounds__(kChunkThreads, Unit::kPrepareBlocks) delta_prepare_kernel(DeltaChunkArgs a) {
  TND_SHARED(PrepareShared, shared, [1]);
  PrepareShared& s = shared[0];
  let_next_start();
  wait_for_previous();
  const DeltaShape& shape = a.w.shape;
  const int warp = static_cast<int>(warp_id());
  const int head = static_cast<int>(blockIdx.x);
  const DeltaChunk chunk = a.chunks[blockIdx.y];
  const ChunkScratch out = chunk_scratch(a.scratch, shape, static_cast<int>(blockIdx.y), head);
  const int row0 = tile_row(Unit{}), column0 = tile_column(Unit{});
  const bool own_key = head < shape.nk;  // this block writes K and Q for all value heads that use them
  const int64_t conv_dim = shape.conv_dim(), key_dim = shape.key_dim();
  const float* queries = a.conv + chunk.first * conv_dim + head % shape.nk * kDeltaDim;
  const float* keys = queries + key_dim;
  const float* values = a.conv + chunk.first * conv_dim + 2 * key_dim + head * kDeltaDim;
  const auto chunk_matrix = [&](const float* m) { return ChunkMatrix{m, conv_dim, chunk.count}; };

  Halves<Unit> rows[kKeyTiles];  // a token tile of K, then of Q
  halves_of_rows(rows, chunk_matrix(keys), warp);
#pragma unroll
  for (int d = 0; d < kKeyTiles; ++d) store_halves(rows[d], s.keys + (warp * kKeyTiles + d) * kHalvesBytes);
  if (warp == 0) chunk_decays(s, a, chunk, head, out.factors);
  __syncthreads();

  // Products of token tile `i` (in rows) with the keys of tile j.
  const auto against_keys = [&](int j) {
    Tile c, small;  // small: products of hi and lo, which would lose bits in the sums of the large ones
    clear(c);
    clear(small);
#pragma unroll
    for (int d = 0; d < kKeyTiles; ++d) {
      Halves<Unit> x;
      load_halves(x, s.keys + (j * kKeyTiles + d) * kHalvesBytes);
      multiply_halves(Unit{}, small, x.hi, rows[d].lo);
      multiply_halves(Unit{}, c, x.hi, rows[d].hi);
      multiply_halves(Unit{}, small, x.lo, rows[d].hi);
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) c.v[e] = (c.v[e] + small.v[e]) * (kUnitInverse * kUnitInverse);
    return c;
  };
#pragma unroll 1
  for (int j = 0; j <= warp; ++j) {
    const Tile c = against_keys(j);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int from = j * 16 + row0 + Unit::row(e), to = warp * 16 + column0 + Unit::column(e);
      s.tri[tri_tile(warp, j)][to % 16][from % 16] =
          from < to ? s.beta[to] * (c.v[e] * chunk_decay(s, to, from)) : 0.0f;
    }
  }
  const int tile = kTokenTiles - 1 - warp;  // the warp with the fewest products above has the most here
  halves_of_rows(rows, chunk_matrix(queries), tile);
  if (own_key) {
#pragma unroll
    for (int d = 0; d < kKeyTiles; ++d) store_halves(rows[d], out.q + (d * kTokenTiles + tile) * kHalvesBytes);
  }
#pragma unroll 1
  for (int j = 0; j <= tile; ++j) {
    const Tile c = against_keys(j);
    Halves<Unit> p;
    turn(p, [&](int e) {
      const int from = j * 16 + row0 + Unit::row(e), to = tile * 16 + column0 + Unit::column(e);
      return from <= to ? c.v[e] * chunk_decay(s, to, from) * kUnitScale : 0.0f;
    });
    store_halves(p, out.p + tri_tile(tile, j) * kHalvesBytes);
  }

  sync_warp();
  invert_diagonal(s.tri[tri_tile(warp, warp)]);
  __syncthreads();
  invert_below<Unit>(s, warp);
  __syncthreads();

  // W and U: a warp has two tiles of keys, then two of columns, kTogether at a time; rows of tiles one after the other,
  // as all of them unrolled take more registers than there are.
  constexpr int kMine = kKeyTiles / kChunkWarps, kTogether = Unit::kTogether;
  Halves<Unit> x[kTogether][kTokenTiles];  // [key or column][token]
  // Row i of tiles of T diag(factor), each passed to `use` with its place j.
  const auto each_t = [&](int i, const float* factor, const auto& use) {
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      if (j > i) continue;
      Halves<Unit> t;  // [token i][token j]
      make_halves<Unit>(t, [&](int index, int k) {
        const float2 p = *reinterpret_cast<const float2*>(&s.tri[tri_tile(i, j)][index][k]);
        const float2 f = *reinterpret_cast<const float2*>(factor + j * 16 + k);
        return make_float2(p.x * f.x * kUnitScale, p.y * f.y * kUnitScale);
      });
      use(j, t);
    }
  };
#pragma unroll 1
  for (int first = warp * kMine; first < (warp + 1) * kMine; first += kTogether) {
    halves_of_columns(x, chunk_matrix(keys), first, kUnitScale);
    if (own_key) {
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          store_halves(x[n][j], out.k + (j * kKeyTiles + first + n) * kHalvesBytes);
        }
      }
    }
#pragma unroll 1
    for (int i = 0; i < kTokenTiles; ++i) {
      Tile c[kTogether] = {};  // [key][token]
      each_t(i, s.beta_decay, [&](int j, const Halves<Unit>& t) {
#pragma unroll
        for (int n = 0; n < kTogether; ++n) multiply(c[n], x[n][j], t);
      });
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        Halves<Unit> w;
        turn(w, [&](int e) { return c[n].v[e] * kUnitInverse; });
        store_halves(w, out.w + ((first + n) * kTokenTiles + i) * kHalvesBytes);
      }
    }
  }
  const float* mine = values + warp * TND_WARP + lane_id();
  static_assert(kMine * 16 == TND_WARP);
  float largest = 0.0f;
#pragma unroll 8
  for (int token = 0; token < chunk.count; ++token) largest = fmaxf(largest, fabsf(mine[token * conv_dim]));
  const int power = power_below(warp_max(largest));
  const float scale = power_of_two(kTopPower - power), inverse = kUnitInverse * power_of_two(power - kTopPower);
#pragma unroll 1
  for (int first = warp * kMine; first < (warp + 1) * kMine; first += kTogether) {
    halves_of_columns(x, chunk_matrix(values), first, scale);
#pragma unroll 1
    for (int i = 0; i < kTokenTiles; ++i) {
      Tile c[kTogether] = {};  // [token][column]
      each_t(i, s.beta, [&](int j, const Halves<Unit>& t) {
#pragma unroll
        for (int n = 0; n < kTogether; ++n) multiply(c[n], t, x[n][j]);
      });
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        store_tile(c[n], inverse, out.u + ((first + n) * kTokenTiles + i) * kTileFloatBytes);
      }
    }
  }
}

// ---- second kernel: block = (value head, half of its columns) of a chain; warp = 16 columns, S in registers

// The matrices of the chunks come through a ring in shared memory, in the order of their use: kPieces a chunk.
constexpr int kPlaceBytes = 16 << 10;
constexpr int kStatePieces = 4;  // W and Q for two tiles of keys each
constexpr int kKeyPieces = 2;    // K for two tiles of tokens each
constexpr int kPieces = kStatePieces + 1 + kKeyPieces;
constexpr int kKeyRowBytes = kTokenTiles * kHalvesBytes;  // all tokens of a tile of keys
static_assert(2 * kKeyTiles / kStatePieces * kKeyRowBytes == kPlaceBytes);
static_assert(kKeyTiles * kKeyRowBytes == kKeyPieces * kPlaceBytes && kTriTiles * kHalvesBytes <= kPlaceBytes);

template <class Unit, int PLACES>
__global__ void __launch_bounds__(kChunkThreads, Unit::kStateBlocks) delta_states_kernel(DeltaChunkArgs a) {
  TND_DYNAMIC_SHARED(uint8_t, ring);  // [PLACES][kPlaceBytes]
  let_next_start();
  wait_for_previous();
  const DeltaShape& shape = a.w.shape;
  const int64_t value_dim = shape.value_dim();
  const DeltaChain chain = a.chains[blockIdx.y];
  const DeltaStepGroup group = load_group(&a.group_plans[chain.group]);
  const int blocks = shape.nv * kHalfBlocks;
  if (static_cast<int>(blockIdx.x) >= blocks) {
    const int64_t channel = int64_t{blockIdx.x - blocks} * kChunkThreads + threadIdx.x;
    if (channel < shape.conv_dim()) shift_taps(group, a.io.qkv, shape.conv_dim(), channel);
    return;
  }
  const int head = static_cast<int>(blockIdx.x) / kHalfBlocks;
  const int column0 = static_cast<int>(blockIdx.x) % kHalfBlocks * kHalfBlock + static_cast<int>(warp_id()) * 16;

  const auto copy = [&](uint8_t* to, const uint8_t* from, int bytes) {
    const int at = static_cast<int>(threadIdx.x) * 16;
#pragma unroll Unit::kCopies
    for (int i = 0; i < bytes; i += kChunkThreads * 16) copy_async_16(to + at + i, from + at + i);
  };
  // The next places. Where a chunk fits the ring they are constants, as `part` is in every call.
  int next = 0, next_free = 0;
  const auto place_of = [&](int* counter, int part) {
    if (PLACES == kPieces) return ring + part * kPlaceBytes;
    uint8_t* at = ring + *counter * kPlaceBytes;
    *counter = *counter + 1 == PLACES ? 0 : *counter + 1;
    return at;
  };
  const auto fetch = [&](int c, int part) {
    uint8_t* to = place_of(&next_free, part);
    if (c < chain.count) {
      const ChunkScratch in = chunk_scratch(a.scratch, shape, chain.first + c, head);
      constexpr int kHalfPlace = kPlaceBytes / 2;
      if (part < kStatePieces) {
        copy(to, in.w + part * kHalfPlace, kHalfPlace);
        copy(to + kHalfPlace, in.q + part * kHalfPlace, kHalfPlace);
      } else if (part == kStatePieces) {
        copy(to, in.p, kTriTiles * kHalvesBytes);
      } else {
        copy(to, in.k + (part - kStatePieces - 1) * kPlaceBytes, kPlaceBytes);
      }
    }
    copy_async_commit();
  };
  constexpr int kAhead = PLACES - 1;  // pieces in flight
  static_assert(kAhead <= kPieces);
  // take returns a piece and fetches into the place of the one before it.
  const auto take = [&](int c, int part) {
    copy_async_wait<kAhead - 1>();
    __syncthreads();
    const uint8_t* piece = place_of(&next, part);
    fetch(c + (part + kAhead) / kPieces, (part + kAhead) % kPieces);
    return piece;
  };
#pragma unroll
  for (int part = 0; part < kAhead; ++part) fetch(0, part);

  const int row0 = tile_row(Unit{}), column = column0 + tile_column(Unit{});  // of the lane
  // Computed again where it is needed; otherwise clang keeps 64 addresses from the loads at the start to the stores at
  // the end.
  const auto state = [&] {
    return group.state.s + (int64_t{head} * kDeltaDim * kDeltaDim + column / kDeltaSlice * kDeltaDim * kDeltaSlice +
                            row0 * kDeltaSlice + column % kDeltaSlice);
  };
  const float* before = state();
  Tile s[kKeyTiles];  // [key][column]
#pragma unroll
  for (int k = 0; k < kKeyTiles; ++k) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      s[k].v[e] = before[(k * 16 + Unit::row(e)) * kDeltaSlice + Unit::column(e)];
    }
  }
  // The largest number of some tiles, over the warp.
  const auto largest = [](const auto& tiles) {
    float m = 0.0f;
#pragma unroll
    for (const Tile& t : tiles) {
#pragma unroll
      for (int e = 0; e < 8; ++e) m = fmaxf(m, fabsf(t.v[e]));
    }
    return warp_max(m);
  };

#pragma unroll 1
  for (int c = 0; c < chain.count; ++c) {
    const ChunkScratch in = chunk_scratch(a.scratch, shape, chain.first + c, head);
    const float* factors = in.factors + row0;
    Tile v[kTokenTiles], o[kTokenTiles];  // [token][column]
    {
      Tile u[kTokenTiles];
      const uint8_t* from_u = in.u + column0 / 16 * kTokenTiles * kTileFloatBytes;
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        if (Unit::kAhead) load_tile(u[t], from_u + t * kTileFloatBytes);
        clear(v[t]);
        clear(o[t]);
      }
      const int power = power_below(largest(s));
      const float scale = power_of_two(kTopPower - power), inverse = kUnitInverse * power_of_two(power - kTopPower);
#pragma unroll
      for (int part = 0; part < kStatePieces; ++part) {
        const uint8_t* piece = take(c, part);
#pragma unroll
        for (int i = 0; i < kKeyTiles / kStatePieces; ++i) {
          const int k = part * (kKeyTiles / kStatePieces) + i;
          Halves<Unit> y, x;
          turn(y, [&](int e) { return s[k].v[e] * scale; });
#pragma unroll
          for (int t = 0; t < kTokenTiles; ++t) {
            load_halves(x, piece + i * kKeyRowBytes + t * kHalvesBytes);
            multiply(v[t], x, y);
            load_halves(x, piece + kPlaceBytes / 2 + i * kKeyRowBytes + t * kHalvesBytes);
            multiply(o[t], x, y);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        if (!Unit::kAhead) load_tile(u[t], from_u + t * kTileFloatBytes);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          v[t].v[e] = fmaf(-inverse, v[t].v[e], u[t].v[e]);
          o[t].v[e] *= inverse * factors[t * 16 + Unit::row(e)];
        }
        no_sink(o[t]);
      }
    }
    {
      const int power = power_below(largest(v));
      const float scale = power_of_two(kTopPower - power), inverse = kUnitInverse * power_of_two(power - kTopPower);
      const uint8_t* piece = take(c, kStatePieces);
      Tile sum[kTokenTiles] = {};
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) {
        Halves<Unit> y;  // V' [column][token]
        turn(y, [&](int e) { return v[j].v[e] * scale; });
#pragma unroll
        for (int i = j; i < kTokenTiles; ++i) {
          Halves<Unit> x;
          load_halves(x, piece + tri_tile(i, j) * kHalvesBytes);
          multiply(sum[i], x, y);
        }
        no_sink(sum[j]);
      }
      const DeltaChunk chunk = a.chunks[chain.first + c];
      float* out = a.mixed + (chunk.first + row0) * value_dim + head * kDeltaDim + column;
      const int count = chunk.count - row0;
#pragma unroll
      for (int i = 0; i < kTokenTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const int token = i * 16 + Unit::row(e);
          if (token < count) out[token * value_dim + Unit::column(e)] = fmaf(inverse, sum[i].v[e], o[i].v[e]);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 8; ++e) v[t].v[e] *= factors[kDeltaChunk + t * 16 + Unit::row(e)];
    }
    const int power = power_below(largest(v));
    const float scale = power_of_two(kTopPower - power), inverse = kUnitInverse * power_of_two(power - kTopPower);
    Tile sum[kKeyTiles] = {};
#pragma unroll
    for (int part = 0; part < kKeyPieces; ++part) {
      const uint8_t* piece = take(c, kStatePieces + 1 + part);
      constexpr int kTiles = kTokenTiles / kKeyPieces;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        Halves<Unit> y;
        turn(y, [&](int e) { return v[part * kTiles + i].v[e] * scale; });
#pragma unroll
        for (int k = 0; k < kKeyTiles; ++k) {
          Halves<Unit> x;
          load_halves(x, piece + (i * kKeyTiles + k) * kHalvesBytes);
          multiply(sum[k], x, y);
        }
      }
    }
    // Products are summed separately and added to S with one rounding: matrix units truncate sums, which would let
    // S decay.
    const float decay = in.factors[kDeltaChunk - 1];
#pragma unroll
    for (int k = 0; k < kKeyTiles; ++k) {
#pragma unroll
      for (int e = 0; e < 8; ++e) s[k].v[e] = fmaf(inverse, sum[k].v[e], decay * s[k].v[e]);
    }
  }
  float* after = state();
#pragma unroll
  for (int k = 0; k < kKeyTiles; ++k) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      after[(k * 16 + Unit::row(e)) * kDeltaSlice + Unit::column(e)] = s[k].v[e];
    }
  }
}

template <class Unit>
void launch_delta_prepare_on(Stream& stream, const DeltaChunkArgs& args) {
  const Dim3 grid{static_cast<unsigned>(args.w.shape.nv), static_cast<unsigned>(args.n_chunks)};
  launch(stream, {.grid = grid, .block = {kChunkThreads}, .overlap = true, .name = "delta_prepare"},
         delta_prepare_kernel<Unit>, args);
}

template <class Unit>
void launch_delta_states_on(Stream& stream, const DeltaChunkArgs& args) {
  const int taps = (args.w.shape.conv_dim() + kChunkThreads - 1) / kChunkThreads;
  const Dim3 grid{static_cast<unsigned>(args.w.shape.nv * kHalfBlocks + taps), static_cast<unsigned>(args.n_chains)};
  const auto start = [&](auto places, const auto& kernel) {
    constexpr unsigned kBytes = decltype(places)::value * kPlaceBytes;
    launch(stream,
           {.grid = grid, .block = {kChunkThreads}, .shared_bytes = kBytes, .overlap = true, .name = "delta_states"},
           kernel, args);
  };
  // With a wide ring the copies of a whole chunk are in flight; small cards hold two rings of three places.
  if (Unit::kManyPlaces > 3 && args.shared_per_block >= Unit::kManyPlaces * kPlaceBytes) {
    using Places = std::integral_constant<int, Unit::kManyPlaces>;
    start(Places(), delta_states_kernel<Unit, Places::value>);
  } else {
    start(std::integral_constant<int, 3>(), delta_states_kernel<Unit, 3>);
  }
}

}  // namespace tnd::gpu
