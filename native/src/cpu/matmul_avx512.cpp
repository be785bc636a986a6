// Tile kernels and activation quantisers for AVX-512 with VNNI. Bits equal matmul_scalar.cpp.
//
// One vector is one value per output of the tile. vpdpbusd takes a chunk (16 outputs x 4 unsigned codes) and a
// broadcast quad of activations; codes are stored unsigned, and exact integer sums of activations correct for their
// offset from the signed codes. Rows: a kernel instance holds R rows in registers, so a chunk is unpacked once for R
// rows. Bound: two dot products a cycle and core for many rows, cache or memory bandwidth for one.
#include <immintrin.h>

#include <cstring>
#include <limits>

#include "cpu/matmul.h"
#include "cpu/matmul_layout.h"
#include "quant/tables.h"

#define TND_INLINE [[gnu::always_inline]] inline
#define TND_UNROLL _Pragma("GCC unroll 16")

namespace tnd::cpu {
namespace {

constexpr int kQStride = 256;  // bytes from one row's q to the next in a panel block

TND_INLINE __m512i load(const uint8_t* p) {
  return _mm512_load_si512(p);
}
TND_INLINE __m512 halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}
// Four activations, or a pair of int16 sums, for all outputs.
TND_INLINE __m512i broadcast(const void* p) {
  int32_t v;
  std::memcpy(&v, p, sizeof v);
  return _mm512_set1_epi32(v);
}
TND_INLINE __m512i scales_u8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}
// Pairs of scales of neighbouring groups as int16, for vpdpwssd with a pair of sums.
TND_INLINE __m512i pairs_u8(const uint8_t* p) {
  return _mm512_cvtepu8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}
TND_INLINE __m512i pairs_i8(const uint8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}
TND_INLINE __m512i first_of_pair(__m512i pairs) {
  return _mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16);
}
TND_INLINE __m512i second_of_pair(__m512i pairs) {
  return _mm512_srai_epi32(pairs, 16);
}
TND_INLINE __m512i low_nibbles(__m512i b) {
  return _mm512_and_si512(b, _mm512_set1_epi8(15));
}
TND_INLINE __m512i high_nibbles(__m512i b) {
  return _mm512_and_si512(_mm512_srli_epi16(b, 4), _mm512_set1_epi8(15));
}
// a | (b & mask)
TND_INLINE __m512i or_masked(__m512i a, __m512i b, __m512i mask) {
  return _mm512_ternarylogic_epi32(a, b, mask, 0xF8);
}

template <int R>
TND_INLINE void zero(__m512i (&v)[R]) {
  TND_UNROLL for (int r = 0; r < R; ++r) v[r] = _mm512_setzero_si512();
}

// sum[r] += codes . quad of row r
template <int R>
TND_INLINE void dot(__m512i (&sum)[R], __m512i codes, const int8_t* q) {
  TND_UNROLL for (int r = 0; r < R; ++r) sum[r] = _mm512_dpbusd_epi32(sum[r], codes, broadcast(q + r * kQStride));
}

// total[r] += sum[r] * scale; 32 bits are enough (the bounds are in NUMERICS.md). The empty asm keeps the compiler from
// delaying the additions: it would hold the sums of several groups and spill them.
template <int R>
TND_INLINE void scale_add(__m512i (&total)[R], const __m512i (&sum)[R], __m512i scale) {
  TND_UNROLL for (int r = 0; r < R; ++r) {
    total[r] = _mm512_add_epi32(total[r], _mm512_mullo_epi32(sum[r], scale));
    asm("" : "+v"(total[r]));
  }
}

// A lane's accumulators of R rows in memory. `live` has all bits set once a super-block has been added; before, the
// lane counts as +0 and its memory is not read.
struct Lane {
  float* acc;  // [R][16]
  __mmask16 live;

  TND_INLINE __m512 load(int r) const { return _mm512_maskz_load_ps(live, acc + 16 * r); }
  TND_INLINE void store(int r, __m512 v) const { _mm512_store_ps(acc + 16 * r, v); }
  TND_INLINE void add(int r, __m512 a, __m512 t) const { store(r, _mm512_fmadd_ps(a, t, load(r))); }
};

// The epilogue of Q4_K and Q5_K. d is the tile's d vector, divided by the factor that is in total.
template <int R>
TND_INLINE void finish_with_min(const uint8_t* mins, __m512 d, __m512 dmin, const __m512i (&total)[R], const Act256& x,
                                int row0, Lane lane) {
  __m512i m[R];
  zero(m);
  TND_UNROLL for (int i = 0; i < 4; ++i) {
    const __m512i pair = pairs_u8(mins + 32 * i);
    TND_UNROLL for (int r = 0; r < R; ++r) {
      m[r] = _mm512_dpwssd_epi32(m[r], pair, broadcast(&x.sum32[row0 + r][2 * i]));
    }
  }
  TND_UNROLL for (int r = 0; r < R; ++r) {
    const __m512 t = _mm512_fnmadd_ps(dmin, _mm512_cvtepi32_ps(m[r]), _mm512_mul_ps(d, _mm512_cvtepi32_ps(total[r])));
    lane.add(r, _mm512_set1_ps(x.a[row0 + r]), t);
  }
}

template <int R>
TND_INLINE void super_q4_k(const uint8_t* p, const Act256& x, int row0, Lane lane) {
  const __m512i low = _mm512_set1_epi8(0x0F);
  const __m512i high = _mm512_set1_epi8(static_cast<char>(0xF0));
  __m512i total[R];
  zero(total);
  for (int i = 0; i < 4; ++i) {
    const uint8_t* chunk = p + LayoutQ4K::kCodes + i * 8 * kChunk;
    const int8_t* q = x.q[row0] + 64 * i;
    __m512i sum_low[R];
    __m512i sum_high[R];
    zero(sum_low);
    zero(sum_high);
    TND_UNROLL for (int c = 0; c < 8; ++c) {
      const __m512i b = load(chunk + c * kChunk);
      dot(sum_low, _mm512_and_si512(b, low), q + 4 * c);
      dot(sum_high, _mm512_and_si512(b, high), q + 32 + 4 * c);
    }
    // High nibbles are not shifted and so count 16 times. The scale of the low group is therefore multiplied by 16,
    // too, and d divided by 16: powers of two change no rounding.
    scale_add(total, sum_low, _mm512_slli_epi32(scales_u8(p + LayoutQ4K::kScales + 32 * i), 4));
    scale_add(total, sum_high, scales_u8(p + LayoutQ4K::kScales + 32 * i + 16));
  }
  const __m512 d = _mm512_mul_ps(halves(p + LayoutQ4K::kD), _mm512_set1_ps(0.0625f));
  finish_with_min(p + LayoutQ4K::kMins, d, halves(p + LayoutQ4K::kDmin), total, x, row0, lane);
}

// Moves a bit field of each byte by N places, up when positive. Bits of the neighbouring byte move in: mask afterwards.
template <int N>
TND_INLINE __m512i shift(__m512i v) {
  if constexpr (N > 0) return _mm512_slli_epi16(v, N);
  if constexpr (N < 0) return _mm512_srli_epi16(v, -N);
  return v;
}

// Groups 2 I and 2 I + 1 of a Q5_K super-block.
template <int R, int I>
TND_INLINE void groups_q5_k(const uint8_t* p, const Act256& x, int row0, __m512i (&total)[R]) {
  const __m512i bit4 = _mm512_set1_epi8(0x10);
  const uint8_t* chunk = p + LayoutQ5K::kCodes + I * 8 * kChunk;
  const uint8_t* plane = p + LayoutQ5K::kPlane;
  const int8_t* q = x.q[row0] + 64 * I;
  __m512i sum_low[R];
  __m512i sum_high[R];
  zero(sum_low);
  zero(sum_high);
  TND_UNROLL for (int c = 0; c < 8; ++c) {
    const __m512i b = load(chunk + c * kChunk);
    const __m512i fifths = load(plane + c * kChunk);
    dot(sum_low, or_masked(low_nibbles(b), shift<4 - 2 * I>(fifths), bit4), q + 4 * c);
    dot(sum_high, or_masked(high_nibbles(b), shift<3 - 2 * I>(fifths), bit4), q + 32 + 4 * c);
  }
  scale_add(total, sum_low, scales_u8(p + LayoutQ5K::kScales + 32 * I));
  scale_add(total, sum_high, scales_u8(p + LayoutQ5K::kScales + 32 * I + 16));
}

template <int R>
TND_INLINE void super_q5_k(const uint8_t* p, const Act256& x, int row0, Lane lane) {
  __m512i total[R];
  zero(total);
  groups_q5_k<R, 0>(p, x, row0, total);
  groups_q5_k<R, 1>(p, x, row0, total);
  groups_q5_k<R, 2>(p, x, row0, total);
  groups_q5_k<R, 3>(p, x, row0, total);
  finish_with_min(p + LayoutQ5K::kMins, halves(p + LayoutQ5K::kD), halves(p + LayoutQ5K::kDmin), total, x, row0, lane);
}

// The epilogue of Q6_K and IQ4_XS.
template <int R>
TND_INLINE void finish(__m512 d, const __m512i (&total)[R], const Act256& x, int row0, Lane lane) {
  TND_UNROLL for (int r = 0; r < R; ++r) {
    lane.add(r, _mm512_set1_ps(x.a[row0 + r]), _mm512_mul_ps(d, _mm512_cvtepi32_ps(total[r])));
  }
}

// Subtracts 2^SHIFT * sum of scale * sum of activations: the excess of codes that are stored with 2^SHIFT added.
// sums(r): int16 sums of row r's activations over the groups that the N pairs of scales belong to.
template <int N, int SHIFT, int R, typename Sums>
TND_INLINE void subtract_excess(__m512i (&total)[R], const uint8_t* scales, Sums&& sums) {
  __m512i excess[R];
  zero(excess);
  TND_UNROLL for (int i = 0; i < N; ++i) {
    const __m512i pair = pairs_i8(scales + 32 * i);
    TND_UNROLL for (int r = 0; r < R; ++r) {
      excess[r] = _mm512_dpwssd_epi32(excess[r], pair, broadcast(sums(r) + 2 * i));
    }
  }
  TND_UNROLL for (int r = 0; r < R; ++r) total[r] = _mm512_sub_epi32(total[r], _mm512_slli_epi32(excess[r], SHIFT));
}

// Quarter T (32 elements, two groups of 16) of a Q6_K half. One sum at a time: with two, registers spill.
template <int R, int T>
TND_INLINE void quarter_q6_k(const uint8_t* p, int half, const Act256& x, int row0, __m512i (&total)[R]) {
  const __m512i upper = _mm512_set1_epi8(0x30);
  const uint8_t* chunk = p + LayoutQ6K::kCodes + (2 * half + T % 2) * 8 * kChunk;
  const uint8_t* plane = p + LayoutQ6K::kPlane + half * 8 * kChunk;
  const int8_t* q = x.q[row0] + 128 * half + 32 * T;
  const __m512i pair = pairs_i8(p + LayoutQ6K::kScales + 32 * (4 * half + T));
  TND_UNROLL for (int g = 0; g < 2; ++g) {
    __m512i sum[R];
    zero(sum);
    TND_UNROLL for (int c = 4 * g; c < 4 * g + 4; ++c) {
      const __m512i b = load(chunk + c * kChunk);
      const __m512i two = shift<4 - 2 * T>(load(plane + c * kChunk));
      dot(sum, or_masked(T < 2 ? low_nibbles(b) : high_nibbles(b), two, upper), q + 4 * c);
    }
    scale_add(total, sum, g == 0 ? first_of_pair(pair) : second_of_pair(pair));
  }
}

template <int R>
TND_INLINE void super_q6_k(const uint8_t* p, const Act256& x, int row0, Lane lane) {
  __m512i total[R];
  zero(total);
  for (int half = 0; half < 2; ++half) {
    quarter_q6_k<R, 0>(p, half, x, row0, total);
    quarter_q6_k<R, 1>(p, half, x, row0, total);
    quarter_q6_k<R, 2>(p, half, x, row0, total);
    quarter_q6_k<R, 3>(p, half, x, row0, total);
  }
  subtract_excess<8, 5>(total, p + LayoutQ6K::kScales, [&](int r) { return x.sum16[row0 + r]; });
  finish(halves(p + LayoutQ6K::kD), total, x, row0, lane);
}

// The IQ4 table plus 128, in each 16-byte part of the vector.
TND_INLINE __m512i iq4_table() {
  alignas(16) uint8_t table[16];
  for (int i = 0; i < 16; ++i) table[i] = static_cast<uint8_t>(kIq4Values[i] + 128);
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
}

template <int R>
TND_INLINE void super_iq4_xs(const uint8_t* p, const Act256& x, int row0, Lane lane) {
  const __m512i table = iq4_table();
  __m512i total[R];
  zero(total);
  for (int i = 0; i < 4; ++i) {
    const __m512i pair = pairs_i8(p + LayoutIQ4XS::kScales + 32 * i);
    TND_UNROLL for (int g = 0; g < 2; ++g) {
      const uint8_t* chunk = p + LayoutIQ4XS::kCodes + (2 * i + g) * 4 * kChunk;
      const int8_t* q = x.q[row0] + 64 * i + 32 * g;
      __m512i sum[R];
      zero(sum);
      TND_UNROLL for (int c = 0; c < 4; ++c) {
        const __m512i b = load(chunk + c * kChunk);
        dot(sum, _mm512_shuffle_epi8(table, low_nibbles(b)), q + 4 * c);
        dot(sum, _mm512_shuffle_epi8(table, high_nibbles(b)), q + 16 + 4 * c);
      }
      scale_add(total, sum, g == 0 ? first_of_pair(pair) : second_of_pair(pair));
    }
  }
  subtract_excess<4, 7>(total, p + LayoutIQ4XS::kScales, [&](int r) { return x.sum32[row0 + r]; });
  finish(halves(p + LayoutIQ4XS::kD), total, x, row0, lane);
}

// -128 * (sum of activations) >> kExcessShift is minus the excess of the stored code: 128, 8 or 16 times the sum.
template <DType TYPE>
inline constexpr int kExcessShift = TYPE == DType::kQ4_0   ? 4
                                    : TYPE == DType::kQ5_0 ? 3
                                                           : 0;

template <DType TYPE, int R>
TND_INLINE void super_block32(const uint8_t* p, uint64_t nb, const Act32& x, int row0, Lane lane) {
  constexpr LayoutBlock32 kLayout = layout_block32(TYPE);
  constexpr bool kMin = kLayout.header == 64;
  const uint8_t* chunk = p + kLayout.header_bytes(nb);
  const uint8_t* plane = p + kLayout.plane_offset(nb);
  __m512i table = _mm512_setzero_si512();
  if constexpr (TYPE == DType::kIQ4_NL) table = iq4_table();
  __m512 acc[R];
  TND_UNROLL for (int r = 0; r < R; ++r) acc[r] = lane.load(r);
  for (uint64_t b = 0; b < nb; ++b, chunk += kLayout.codes, plane += kLayout.plane) {
    // One pointer each, rows at constant distances: the compiler would keep a pointer per row otherwise.
    const int8_t* q = x.q[row0] + 32 * b;
    const int32_t* minus128 = &x.minus128[row0][b];
    const float* scale = &x.a[row0][b];
    const float* sum_q = &x.sum[row0][b];
    __m512i sum[R];
    __m512i other[R];  // a second chain per row: a single one waits for its own latency
    zero(other);
    if constexpr (kMin) {
      zero(sum);
    } else {
      TND_UNROLL for (int r = 0; r < R; ++r) {
        sum[r] = _mm512_srai_epi32(broadcast(minus128 + 8 * r), kExcessShift<TYPE>);
      }
    }
    if constexpr (TYPE == DType::kQ8_0) {
      TND_UNROLL for (int c = 0; c < 8; c += 2) {
        dot(sum, load(chunk + c * kChunk), q + 4 * c);
        dot(other, load(chunk + (c + 1) * kChunk), q + 4 * c + 4);
      }
    } else {
      TND_UNROLL for (int c = 0; c < 4; ++c) {
        const __m512i bytes = load(chunk + c * kChunk);
        __m512i low = low_nibbles(bytes);
        __m512i high = high_nibbles(bytes);
        if constexpr (TYPE == DType::kIQ4_NL) {
          low = _mm512_shuffle_epi8(table, low);
          high = _mm512_shuffle_epi8(table, high);
        }
        if constexpr (kLayout.plane != 0) {
          const __m512i fifths = load(plane);
          const __m512i bit4 = _mm512_set1_epi8(0x10);
          low = or_masked(low, _mm512_slli_epi16(fifths, static_cast<unsigned>(4 - c)), bit4);
          high = or_masked(high, _mm512_srli_epi16(fifths, static_cast<unsigned>(c)), bit4);
        }
        dot(sum, low, q + 4 * c);
        dot(other, high, q + 16 + 4 * c);
      }
    }
    TND_UNROLL for (int r = 0; r < R; ++r) sum[r] = _mm512_add_epi32(sum[r], other[r]);
    const __m512 d = halves(p + b * kLayout.header);
    __m512 m = _mm512_setzero_ps();
    if constexpr (kMin) m = halves(p + b * kLayout.header + 32);
    TND_UNROLL for (int r = 0; r < R; ++r) {
      const __m512 a = _mm512_set1_ps(scale[8 * r]);
      acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(d, a), _mm512_cvtepi32_ps(sum[r]), acc[r]);
      if constexpr (kMin) acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(m, a), _mm512_set1_ps(sum_q[8 * r]), acc[r]);
    }
  }
  TND_UNROLL for (int r = 0; r < R; ++r) lane.store(r, acc[r]);
}

template <DType TYPE>
TND_INLINE __m512 float_weights(const uint8_t* p, uint64_t i) {
  if constexpr (TYPE == DType::kF32) {
    return _mm512_load_ps(p + 64 * i);
  } else if constexpr (TYPE == DType::kF16) {
    return halves(p + 32 * i);
  } else {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(p + 32 * i))), 16));
  }
}

// LANES super-blocks (full ones, of different lanes) side by side, to have LANES * R independent chains of fma.
template <DType TYPE, int R, int LANES>
TND_INLINE void super_float(const uint8_t* p, uint64_t elems, const ActF32* x, int row0, Lane lane) {
  const uint64_t bytes = kSuper * kTileOuts * (TYPE == DType::kF32 ? 4 : 2);
  __m512 acc[LANES][R];
  TND_UNROLL for (int l = 0; l < LANES; ++l) {
    TND_UNROLL for (int r = 0; r < R; ++r) acc[l][r] = lane.load(l * R + r);
  }
  for (uint64_t i = 0; i < elems; ++i) {
    TND_UNROLL for (int l = 0; l < LANES; ++l) {
      const __m512 w = float_weights<TYPE>(p + static_cast<uint64_t>(l) * bytes, i);
      TND_UNROLL for (int r = 0; r < R; ++r) {
        acc[l][r] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[l].x[row0 + r][i]), acc[l][r]);
      }
    }
  }
  TND_UNROLL for (int l = 0; l < LANES; ++l) {
    TND_UNROLL for (int r = 0; r < R; ++r) lane.store(l * R + r, acc[l][r]);
  }
}

template <DType TYPE, int R>
TND_INLINE void add_super(const uint8_t* p, uint64_t elems, const void* panel, uint64_t s, int row0, Lane lane) {
  if constexpr (TYPE == DType::kQ4_K) {
    super_q4_k<R>(p, static_cast<const Act256*>(panel)[s], row0, lane);
  } else if constexpr (TYPE == DType::kQ5_K) {
    super_q5_k<R>(p, static_cast<const Act256*>(panel)[s], row0, lane);
  } else if constexpr (TYPE == DType::kQ6_K) {
    super_q6_k<R>(p, static_cast<const Act256*>(panel)[s], row0, lane);
  } else if constexpr (TYPE == DType::kIQ4_XS) {
    super_iq4_xs<R>(p, static_cast<const Act256*>(panel)[s], row0, lane);
  } else if constexpr (TYPE == DType::kF32 || TYPE == DType::kF16 || TYPE == DType::kBF16) {
    super_float<TYPE, R, 1>(p, elems, static_cast<const ActF32*>(panel) + s, row0, lane);
  } else {
    super_block32<TYPE, R>(p, elems / 32, static_cast<const Act32*>(panel)[s], row0, lane);
  }
}

template <DType TYPE, int R>
void tile_rows(const uint8_t* tile, const void* panel, uint64_t k, int row0, float* out, int64_t out_stride,
               bool fetch) {
  constexpr bool kFloat = TYPE == DType::kF32 || TYPE == DType::kF16 || TYPE == DType::kBF16;
  alignas(64) float lanes[4][R * 16];
  const uint64_t full = super_bytes(TYPE, kSuper);
  const uint8_t* p = tile;
  uint64_t s = 0;
  const auto lane_of = [&](uint64_t super) -> Lane {
    return {lanes[super % 4], static_cast<__mmask16>(super < 4 ? 0 : 0xFFFF)};
  };
  if constexpr (kFloat && R <= 4) {
    for (; (s + 4) * kSuper <= k; s += 4, p += 4 * full) {
      super_float<TYPE, R, 4>(p, kSuper, static_cast<const ActF32*>(panel) + s, row0, lane_of(s));
    }
    if ((s + 2) * kSuper <= k) {
      super_float<TYPE, R, 2>(p, kSuper, static_cast<const ActF32*>(panel) + s, row0, lane_of(s));
      s += 2;
      p += 2 * full;
    }
  }
  for (; s * kSuper < k; ++s, p += full) {
    if (fetch) fetch_ahead(p, full);
    const uint64_t elems = k - s * kSuper < kSuper ? k - s * kSuper : kSuper;
    add_super<TYPE, R>(p, elems, panel, s, row0, lane_of(s));
  }
  // Lanes that no super-block reached are +0; s is the number of super-blocks.
  if (s <= 2) {
    const Lane second = {lanes[1], static_cast<__mmask16>(s == 2 ? 0xFFFF : 0)};
    TND_UNROLL for (int r = 0; r < R; ++r) {
      const __m512 l01 = _mm512_add_ps(_mm512_load_ps(lanes[0] + 16 * r), second.load(r));
      _mm512_storeu_ps(out + r * out_stride, _mm512_add_ps(l01, _mm512_setzero_ps()));
    }
    return;
  }
  const Lane last = {lanes[3], static_cast<__mmask16>(s >= 4 ? 0xFFFF : 0)};
  TND_UNROLL for (int r = 0; r < R; ++r) {
    const __m512 l01 = _mm512_add_ps(_mm512_load_ps(lanes[0] + 16 * r), _mm512_load_ps(lanes[1] + 16 * r));
    const __m512 l23 = _mm512_add_ps(_mm512_load_ps(lanes[2] + 16 * r), last.load(r));
    _mm512_storeu_ps(out + r * out_stride, _mm512_add_ps(l01, l23));
  }
}

template <DType TYPE>
void tile_avx512(const uint8_t* tile, const void* panel, uint64_t k, int row0, int rows, float* out, int64_t out_stride,
                 bool fetch) {
  // Up to 8 rows at once; 9 to 16 in two nearly equal parts. Dot products fill the processor's window, so loads start
  // too late; the first part therefore prefetches the weights.
  for (int left = rows > 8 ? 2 : 1; left > 0; --left) {
    const int part = (rows + left - 1) / left;
    switch (part) {
      case 1:
        tile_rows<TYPE, 1>(tile, panel, k, row0, out, out_stride, fetch);
        break;
      case 2:
        tile_rows<TYPE, 2>(tile, panel, k, row0, out, out_stride, fetch);
        break;
      case 3:
        tile_rows<TYPE, 3>(tile, panel, k, row0, out, out_stride, fetch);
        break;
      case 4:
        tile_rows<TYPE, 4>(tile, panel, k, row0, out, out_stride, fetch);
        break;
      case 5:
        tile_rows<TYPE, 5>(tile, panel, k, row0, out, out_stride, fetch);
        break;
      case 6:
        tile_rows<TYPE, 6>(tile, panel, k, row0, out, out_stride, fetch);
        break;
      case 7:
        tile_rows<TYPE, 7>(tile, panel, k, row0, out, out_stride, fetch);
        break;
      default:
        tile_rows<TYPE, 8>(tile, panel, k, row0, out, out_stride, fetch);
        break;
    }
    fetch = false;
    row0 += part;
    rows -= part;
    out += part * out_stride;
  }
}

TND_INLINE __m512 magnitude(__m512 x) {
  return _mm512_abs_ps(x);
}

// round_half_even(clamp(x * inverse)) of 16 values as bytes. max's second operand wins over NaN.
TND_INLINE __m128i quantise16(__m512 x, __m512 inverse) {
  __m512 v = _mm512_max_ps(_mm512_mul_ps(x, inverse), _mm512_set1_ps(-127.0f));
  v = _mm512_min_ps(v, _mm512_set1_ps(127.0f));
  return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v));
}

// Sums of the four bytes of each quad.
TND_INLINE __m128i quad_sums(const int8_t* q) {
  const __m128i ones = _mm_set1_epi8(1);
  return _mm_dpbusd_epi32(_mm_setzero_si128(), ones, _mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
}

TND_INLINE int sum16(const int8_t* q) {
  const __m128i s = quad_sums(q);
  const __m128i t = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xB1)));
}

// The group's scale from its largest magnitude, 0 when it counts as zero.
TND_INLINE float scale_of(float max) {
  const float a = max / 127.0f;
  return a < std::numeric_limits<float>::min() ? 0.0f : a;
}

}  // namespace

void quantise256_avx512(const float* x, Act256* block, int row) {
  __m512 max = _mm512_setzero_ps();
  for (int i = 0; i < 256; i += 16) max = _mm512_max_ps(magnitude(_mm512_loadu_ps(x + i)), max);
  const float a = scale_of(_mm512_reduce_max_ps(max));
  block->a[row] = a;
  int8_t* q = block->q[row];
  if (a == 0.0f) {
    std::memset(q, 0, 256);
  } else {
    const __m512 inverse = _mm512_set1_ps(1.0f / a);
    for (int i = 0; i < 256; i += 16) {
      _mm_store_si128(reinterpret_cast<__m128i*>(q + i), quantise16(_mm512_loadu_ps(x + i), inverse));
    }
  }
  // Quad sums, then within each 128-bit part the sum of its four quads in every element; vector v holds groups 4v..4v+3
  // in its four parts. Taking element v from vector v combines all sixteen.
  __m512i all = _mm512_setzero_si512();
  TND_UNROLL for (int v = 0; v < 4; ++v) {
    const __m512i bytes = _mm512_load_si512(q + 64 * v);
    __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes);
    sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_BADC));
    sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_CDAB));
    all = _mm512_mask_mov_epi32(all, static_cast<__mmask16>(0x1111 << v), sums);
  }
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m256i sums16 = _mm512_cvtepi32_epi16(_mm512_permutexvar_epi32(order, all));
  _mm256_store_si256(reinterpret_cast<__m256i*>(block->sum16[row]), sums16);
  const __m256i sums32 = _mm256_madd_epi16(sums16, _mm256_set1_epi16(1));
  _mm_store_si128(reinterpret_cast<__m128i*>(block->sum32[row]), _mm256_cvtepi32_epi16(sums32));
}

void quantise32_avx512(const float* x, uint64_t elems, Act32* block, int row) {
  for (uint64_t j = 0; j < elems / 32; ++j) {
    int8_t* q = block->q[row] + 32 * j;
    const __m512 x0 = _mm512_loadu_ps(x + 32 * j);
    const __m512 x1 = _mm512_loadu_ps(x + 32 * j + 16);
    const __m512 max = _mm512_max_ps(magnitude(x1), _mm512_max_ps(magnitude(x0), _mm512_setzero_ps()));
    const float a = scale_of(_mm512_reduce_max_ps(max));
    block->a[row][j] = a;
    if (a == 0.0f) {
      std::memset(q, 0, 32);
    } else {
      const __m512 inverse = _mm512_set1_ps(1.0f / a);
      _mm_store_si128(reinterpret_cast<__m128i*>(q), quantise16(x0, inverse));
      _mm_store_si128(reinterpret_cast<__m128i*>(q + 16), quantise16(x1, inverse));
    }
    const int sum = sum16(q) + sum16(q + 16);
    block->minus128[row][j] = -128 * sum;
    block->sum[row][j] = static_cast<float>(sum);
  }
}

TileKernel tile_kernel_avx512(DType type) {
  switch (type) {
    case DType::kF32:
      return tile_avx512<DType::kF32>;
    case DType::kF16:
      return tile_avx512<DType::kF16>;
    case DType::kBF16:
      return tile_avx512<DType::kBF16>;
    case DType::kQ4_0:
      return tile_avx512<DType::kQ4_0>;
    case DType::kQ4_1:
      return tile_avx512<DType::kQ4_1>;
    case DType::kQ5_0:
      return tile_avx512<DType::kQ5_0>;
    case DType::kQ5_1:
      return tile_avx512<DType::kQ5_1>;
    case DType::kQ8_0:
      return tile_avx512<DType::kQ8_0>;
    case DType::kQ4_K:
      return tile_avx512<DType::kQ4_K>;
    case DType::kQ5_K:
      return tile_avx512<DType::kQ5_K>;
    case DType::kQ6_K:
      return tile_avx512<DType::kQ6_K>;
    case DType::kIQ4_NL:
      return tile_avx512<DType::kIQ4_NL>;
    case DType::kIQ4_XS:
      return tile_avx512<DType::kIQ4_XS>;
    default:
      return nullptr;
  }
}

}  // namespace tnd::cpu
