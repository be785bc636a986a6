// Tile kernels and activation quantisers for AVX2 with FMA, for processors without VNNI. Bits equal matmul_scalar.cpp.
//
// A tile is computed in two halves of 8 outputs. Without a 32-bit dot product, vpmaddubsw makes pairs of 16-bit sums.
// They are added in 16 bits as long as they cannot overflow. Then vpmaddwd, whose second operand is the group's integer
// scale (or ones), widens them to 32 bits. Limits with |q| <= 127, two products a step:
//   codes <= 15: 3810 a step, 8 steps fit (30480);  <= 31: 7874, 4 steps (31496);  <= 63: 16002, 2 steps (32004)
//   signed codes as |c| <= 128 times q with c's sign: 32512, one step. (Unsigned code + 128 would saturate.)
#include <immintrin.h>

#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/matmul.h"
#include "cpu/matmul_layout.h"
#include "quant/tables.h"

#define TND_INLINE [[gnu::always_inline]] inline
#define TND_UNROLL _Pragma("GCC unroll 8")

namespace tnd::cpu {
namespace {

constexpr int kMaxRows = 4;
constexpr int kQStride = 256;  // bytes from one row's q to the next in a panel block

// H is the half of the tile: outputs 8 * H .. 8 * H + 7.
template <int H>
TND_INLINE __m256i load(const uint8_t* chunk) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(chunk + 32 * H));
}
template <int H>
TND_INLINE __m256 halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p + 16 * H)));
}
// Four activations, or a pair of int16 sums, for all outputs.
TND_INLINE __m256i broadcast(const void* p) {
  int32_t v;
  std::memcpy(&v, p, sizeof v);
  return _mm256_set1_epi32(v);
}
// u8[16] scales as (s, s) pairs of int16.
template <int H>
TND_INLINE __m256i doubled_u8(const uint8_t* p) {
  const __m256i s = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * H)));
  return _mm256_or_si256(s, _mm256_slli_epi32(s, 16));
}
template <int H>
TND_INLINE __m256i pairs_u8(const uint8_t* p) {
  return _mm256_cvtepu8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(p + 16 * H)));
}
template <int H>
TND_INLINE __m256i pairs_i8(const uint8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(p + 16 * H)));
}
// (a, b) pairs to (a, a) or (b, b).
template <int WHICH>
TND_INLINE __m256i doubled(__m256i pairs) {
  constexpr int kPick = WHICH == 0 ? 0xA0 : 0xF5;
  return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(pairs, kPick), kPick);
}
TND_INLINE __m256i low_nibbles(__m256i b) {
  return _mm256_and_si256(b, _mm256_set1_epi8(15));
}
TND_INLINE __m256i high_nibbles(__m256i b) {
  return _mm256_and_si256(_mm256_srli_epi16(b, 4), _mm256_set1_epi8(15));
}
TND_INLINE __m256i or_masked(__m256i a, __m256i b, __m256i mask) {
  return _mm256_or_si256(a, _mm256_and_si256(b, mask));
}
TND_INLINE __m256 fma(__m256 a, __m256 b, __m256 c) {
  return _mm256_fmadd_ps(a, b, c);
}

template <int R>
TND_INLINE void zero(__m256i (&v)[R]) {
  TND_UNROLL for (int r = 0; r < R; ++r) v[r] = _mm256_setzero_si256();
}

// sum16[r] += unsigned codes . quad of row r, as two 16-bit sums per output.
template <int R>
TND_INLINE void dot16(__m256i (&sum16)[R], __m256i codes, const int8_t* q) {
  TND_UNROLL for (int r = 0; r < R; ++r) {
    sum16[r] = _mm256_add_epi16(sum16[r], _mm256_maddubs_epi16(codes, broadcast(q + r * kQStride)));
  }
}

// total[r] += (16-bit sums) * scale, to 32 bits; scale is doubled, or ones.
template <int R>
TND_INLINE void widen_add(__m256i (&total)[R], const __m256i (&sum16)[R], __m256i scale) {
  TND_UNROLL for (int r = 0; r < R; ++r) {
    total[r] = _mm256_add_epi32(total[r], _mm256_madd_epi16(sum16[r], scale));
  }
}

// total[r] += scale * (signed codes . quad of row r).
template <int R>
TND_INLINE void dot_signed(__m256i (&total)[R], __m256i codes, const int8_t* q, __m256i scale) {
  const __m256i magnitude = _mm256_abs_epi8(codes);
  TND_UNROLL for (int r = 0; r < R; ++r) {
    const __m256i x = _mm256_sign_epi8(broadcast(q + r * kQStride), codes);
    total[r] = _mm256_add_epi32(total[r], _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, x), scale));
  }
}

TND_INLINE void add_to_lane(float* lane, __m256 a, __m256 t) {
  _mm256_store_ps(lane, fma(a, t, _mm256_load_ps(lane)));
}

// out[r] = sum over N pairs of groups of scale * sum of activations; sums(r): those int16 sums of row r.
template <int N, int R, typename Pairs, typename Sums>
TND_INLINE void dot_sums(__m256i (&out)[R], Pairs&& pairs, Sums&& sums) {
  zero(out);
  TND_UNROLL for (int i = 0; i < N; ++i) {
    const __m256i pair = pairs(i);
    TND_UNROLL for (int r = 0; r < R; ++r) {
      out[r] = _mm256_add_epi32(out[r], _mm256_madd_epi16(pair, broadcast(sums(r) + 2 * i)));
    }
  }
}

template <DType TYPE, int H, int R>
TND_INLINE void super_k45(const uint8_t* p, const Act256& x, int row0, float* lane) {
  constexpr bool kFive = TYPE == DType::kQ5_K;
  using Layout = std::conditional_t<kFive, LayoutQ5K, LayoutQ4K>;
  constexpr int kSteps = kFive ? 4 : 8;
  const __m256i bit4 = _mm256_set1_epi8(0x10);
  __m256i total[R];
  zero(total);
  for (int j = 0; j < 8; ++j) {
    const uint8_t* chunk = p + Layout::kCodes + j / 2 * 8 * kChunk;
    const int8_t* q = x.q[row0] + 32 * j;
    const __m128i nibble = _mm_cvtsi32_si128(j % 2 * 4);
    const __m256i scale = doubled_u8<H>(p + Layout::kScales + 16 * j);
    for (int part = 0; part < 8; part += kSteps) {
      __m256i sum16[R];
      zero(sum16);
      TND_UNROLL for (int c = 0; c < kSteps; ++c) {
        __m256i codes = low_nibbles(_mm256_srl_epi16(load<H>(chunk + (part + c) * kChunk), nibble));
        if constexpr (kFive) {
          const __m256i plane = load<H>(p + LayoutQ5K::kPlane + (part + c) * kChunk);
          const __m256i fifth = _mm256_slli_epi16(_mm256_srl_epi16(plane, _mm_cvtsi32_si128(j)), 4);
          codes = or_masked(codes, fifth, bit4);
        }
        dot16(sum16, codes, q + 4 * (part + c));
      }
      widen_add(total, sum16, scale);
    }
  }
  __m256i m[R];
  dot_sums<4>(
      m, [&](int i) { return pairs_u8<H>(p + Layout::kMins + 32 * i); }, [&](int r) { return x.sum32[row0 + r]; });
  const __m256 d = halves<H>(p + Layout::kD);
  const __m256 dmin = halves<H>(p + Layout::kDmin);
  TND_UNROLL for (int r = 0; r < R; ++r) {
    const __m256 t = _mm256_fnmadd_ps(dmin, _mm256_cvtepi32_ps(m[r]), _mm256_mul_ps(d, _mm256_cvtepi32_ps(total[r])));
    add_to_lane(lane + 16 * r + 8 * H, _mm256_set1_ps(x.a[row0 + r]), t);
  }
}

// The epilogue of Q6_K and IQ4_XS.
template <int H, int R>
TND_INLINE void finish(__m256 d, const __m256i (&total)[R], const Act256& x, int row0, float* lane) {
  TND_UNROLL for (int r = 0; r < R; ++r) {
    add_to_lane(lane + 16 * r + 8 * H, _mm256_set1_ps(x.a[row0 + r]), _mm256_mul_ps(d, _mm256_cvtepi32_ps(total[r])));
  }
}

template <int H, int R>
TND_INLINE void super_q6_k(const uint8_t* p, const Act256& x, int row0, float* lane) {
  const __m256i upper = _mm256_set1_epi8(0x30);
  __m256i total[R];
  zero(total);
  for (int quarter = 0; quarter < 8; ++quarter) {
    const int half = quarter / 4;
    const int t = quarter % 4;
    const uint8_t* chunk = p + LayoutQ6K::kCodes + (2 * half + t % 2) * 8 * kChunk;
    const uint8_t* plane = p + LayoutQ6K::kPlane + half * 8 * kChunk;
    const int8_t* q = x.q[row0] + 32 * quarter;
    const __m128i nibble = _mm_cvtsi32_si128(t / 2 * 4);
    const __m128i field = _mm_cvtsi32_si128(2 * t);
    const __m256i pair = pairs_i8<H>(p + LayoutQ6K::kScales + 32 * quarter);
    TND_UNROLL for (int part = 0; part < 4; ++part) {
      __m256i sum16[R];
      zero(sum16);
      TND_UNROLL for (int c = 2 * part; c < 2 * part + 2; ++c) {
        const __m256i low = low_nibbles(_mm256_srl_epi16(load<H>(chunk + c * kChunk), nibble));
        const __m256i two = _mm256_slli_epi16(_mm256_srl_epi16(load<H>(plane + c * kChunk), field), 4);
        dot16(sum16, or_masked(low, two, upper), q + 4 * c);
      }
      widen_add(total, sum16, part < 2 ? doubled<0>(pair) : doubled<1>(pair));
    }
  }
  __m256i excess[R];  // codes are stored 32 too large
  dot_sums<8>(
      excess, [&](int i) { return pairs_i8<H>(p + LayoutQ6K::kScales + 32 * i); },
      [&](int r) { return x.sum16[row0 + r]; });
  TND_UNROLL for (int r = 0; r < R; ++r) total[r] = _mm256_sub_epi32(total[r], _mm256_slli_epi32(excess[r], 5));
  finish<H>(halves<H>(p + LayoutQ6K::kD), total, x, row0, lane);
}

TND_INLINE __m256i iq4_table() {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Values)));
}

template <int H, int R>
TND_INLINE void super_iq4_xs(const uint8_t* p, const Act256& x, int row0, float* lane) {
  const __m256i table = iq4_table();
  __m256i total[R];
  zero(total);
  for (int j = 0; j < 8; ++j) {
    const __m256i pair = pairs_i8<H>(p + LayoutIQ4XS::kScales + 32 * (j / 2));
    const __m256i scale = j % 2 == 0 ? doubled<0>(pair) : doubled<1>(pair);
    const int8_t* q = x.q[row0] + 32 * j;
    TND_UNROLL for (int c = 0; c < 4; ++c) {
      const __m256i b = load<H>(p + LayoutIQ4XS::kCodes + (4 * j + c) * kChunk);
      dot_signed(total, _mm256_shuffle_epi8(table, low_nibbles(b)), q + 4 * c, scale);
      dot_signed(total, _mm256_shuffle_epi8(table, high_nibbles(b)), q + 16 + 4 * c, scale);
    }
  }
  finish<H>(halves<H>(p + LayoutIQ4XS::kD), total, x, row0, lane);
}

// sum[r] of one block of 32 elements with signed codes, or unsigned ones from which the excess is subtracted.
template <DType TYPE, int H, int R>
TND_INLINE void dot_block32(__m256i (&sum)[R], const uint8_t* chunk, const uint8_t* plane, const Act32& x, int row0,
                            uint64_t b) {
  const __m256i ones = _mm256_set1_epi16(1);
  const int8_t* q = x.q[row0] + 32 * b;
  zero(sum);
  if constexpr (TYPE == DType::kQ8_0) {
    const __m256i top = _mm256_set1_epi8(static_cast<char>(0x80));
    TND_UNROLL for (int c = 0; c < 8; ++c) {
      dot_signed(sum, _mm256_xor_si256(load<H>(chunk + c * kChunk), top), q + 4 * c, ones);
    }
  } else if constexpr (TYPE == DType::kIQ4_NL) {
    const __m256i table = iq4_table();
    TND_UNROLL for (int c = 0; c < 4; ++c) {
      const __m256i bytes = load<H>(chunk + c * kChunk);
      dot_signed(sum, _mm256_shuffle_epi8(table, low_nibbles(bytes)), q + 4 * c, ones);
      dot_signed(sum, _mm256_shuffle_epi8(table, high_nibbles(bytes)), q + 16 + 4 * c, ones);
    }
  } else {
    constexpr bool kFive = TYPE == DType::kQ5_0 || TYPE == DType::kQ5_1;
    constexpr int kParts = kFive ? 2 : 1;
    TND_UNROLL for (int part = 0; part < kParts; ++part) {
      __m256i sum16[R];
      zero(sum16);
      TND_UNROLL for (int i = 0; i < 4 / kParts; ++i) {
        const int c = part * (4 / kParts) + i;
        const __m256i bytes = load<H>(chunk + c * kChunk);
        __m256i low = low_nibbles(bytes);
        __m256i high = high_nibbles(bytes);
        if constexpr (kFive) {
          const __m256i fifths = load<H>(plane);
          const __m256i bit4 = _mm256_set1_epi8(0x10);
          low = or_masked(low, _mm256_slli_epi16(fifths, 4 - c), bit4);
          high = or_masked(high, _mm256_srli_epi16(fifths, c), bit4);
        }
        dot16(sum16, low, q + 4 * c);
        dot16(sum16, high, q + 16 + 4 * c);
      }
      widen_add(sum, sum16, ones);
    }
    constexpr int kShift = TYPE == DType::kQ4_0 ? 4 : 3;  // 8 or 16 times the sum of activations
    if constexpr (TYPE == DType::kQ4_0 || TYPE == DType::kQ5_0) {
      TND_UNROLL for (int r = 0; r < R; ++r) {
        sum[r] = _mm256_add_epi32(sum[r], _mm256_srai_epi32(broadcast(&x.minus128[row0 + r][b]), kShift));
      }
    }
  }
}

template <DType TYPE, int H, int R>
TND_INLINE void super_block32(const uint8_t* p, uint64_t nb, const Act32& x, int row0, float* lane) {
  constexpr LayoutBlock32 kLayout = layout_block32(TYPE);
  constexpr bool kMin = kLayout.header == 64;
  const uint8_t* chunk = p + kLayout.header_bytes(nb);
  const uint8_t* plane = p + kLayout.plane_offset(nb);
  __m256 acc[R];
  TND_UNROLL for (int r = 0; r < R; ++r) acc[r] = _mm256_load_ps(lane + 16 * r + 8 * H);
  for (uint64_t b = 0; b < nb; ++b, chunk += kLayout.codes, plane += kLayout.plane) {
    __m256i sum[R];
    dot_block32<TYPE, H>(sum, chunk, plane, x, row0, b);
    const __m256 d = halves<H>(p + b * kLayout.header);
    __m256 m = _mm256_setzero_ps();
    if constexpr (kMin) m = halves<H>(p + b * kLayout.header + 32);
    TND_UNROLL for (int r = 0; r < R; ++r) {
      const __m256 a = _mm256_set1_ps(x.a[row0 + r][b]);
      acc[r] = fma(_mm256_mul_ps(d, a), _mm256_cvtepi32_ps(sum[r]), acc[r]);
      if constexpr (kMin) acc[r] = fma(_mm256_mul_ps(m, a), _mm256_set1_ps(x.sum[row0 + r][b]), acc[r]);
    }
  }
  TND_UNROLL for (int r = 0; r < R; ++r) _mm256_store_ps(lane + 16 * r + 8 * H, acc[r]);
}

template <DType TYPE, int H>
TND_INLINE __m256 float_weights(const uint8_t* p, uint64_t i) {
  if constexpr (TYPE == DType::kF32) {
    return _mm256_load_ps(reinterpret_cast<const float*>(p + 64 * i + 32 * H));
  } else if constexpr (TYPE == DType::kF16) {
    return halves<H>(p + 32 * i);
  } else {
    const __m128i w = _mm_load_si128(reinterpret_cast<const __m128i*>(p + 32 * i + 16 * H));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(w), 16));
  }
}

// Both halves at once: 2 * R independent chains of fma.
template <DType TYPE, int R>
TND_INLINE void super_float(const uint8_t* p, uint64_t elems, const ActF32& x, int row0, float* lane) {
  __m256 acc[2][R];
  TND_UNROLL for (int r = 0; r < R; ++r) {
    acc[0][r] = _mm256_load_ps(lane + 16 * r);
    acc[1][r] = _mm256_load_ps(lane + 16 * r + 8);
  }
  for (uint64_t i = 0; i < elems; ++i) {
    const __m256 w0 = float_weights<TYPE, 0>(p, i);
    const __m256 w1 = float_weights<TYPE, 1>(p, i);
    TND_UNROLL for (int r = 0; r < R; ++r) {
      const __m256 v = _mm256_set1_ps(x.x[row0 + r][i]);
      acc[0][r] = fma(w0, v, acc[0][r]);
      acc[1][r] = fma(w1, v, acc[1][r]);
    }
  }
  TND_UNROLL for (int r = 0; r < R; ++r) {
    _mm256_store_ps(lane + 16 * r, acc[0][r]);
    _mm256_store_ps(lane + 16 * r + 8, acc[1][r]);
  }
}

template <DType TYPE, int H, int R>
TND_INLINE void add_super_half(const uint8_t* p, uint64_t elems, const void* panel, uint64_t s, int row0, float* lane) {
  if constexpr (TYPE == DType::kQ4_K || TYPE == DType::kQ5_K) {
    super_k45<TYPE, H, R>(p, static_cast<const Act256*>(panel)[s], row0, lane);
  } else if constexpr (TYPE == DType::kQ6_K) {
    super_q6_k<H, R>(p, static_cast<const Act256*>(panel)[s], row0, lane);
  } else if constexpr (TYPE == DType::kIQ4_XS) {
    super_iq4_xs<H, R>(p, static_cast<const Act256*>(panel)[s], row0, lane);
  } else {
    super_block32<TYPE, H, R>(p, elems / 32, static_cast<const Act32*>(panel)[s], row0, lane);
  }
}

template <DType TYPE, int R>
void tile_rows(const uint8_t* tile, const void* panel, uint64_t k, int row0, float* out, int64_t out_stride,
               bool fetch) {
  alignas(64) float lanes[4][R * 16];
  std::memset(lanes, 0, sizeof lanes);
  const uint64_t full = super_bytes(TYPE, kSuper);
  const uint8_t* p = tile;
  for (uint64_t s = 0; s * kSuper < k; ++s, p += full) {
    if (fetch) fetch_ahead(p, full);
    const uint64_t elems = k - s * kSuper < kSuper ? k - s * kSuper : kSuper;
    if constexpr (TYPE == DType::kF32 || TYPE == DType::kF16 || TYPE == DType::kBF16) {
      super_float<TYPE, R>(p, elems, static_cast<const ActF32*>(panel)[s], row0, lanes[s % 4]);
    } else {
      add_super_half<TYPE, 0, R>(p, elems, panel, s, row0, lanes[s % 4]);
      add_super_half<TYPE, 1, R>(p, elems, panel, s, row0, lanes[s % 4]);
    }
  }
  for (int i = 0; i < R * 16; i += 8) {
    const __m256 l01 = _mm256_add_ps(_mm256_load_ps(lanes[0] + i), _mm256_load_ps(lanes[1] + i));
    const __m256 l23 = _mm256_add_ps(_mm256_load_ps(lanes[2] + i), _mm256_load_ps(lanes[3] + i));
    _mm256_storeu_ps(out + i / 16 * out_stride + i % 16, _mm256_add_ps(l01, l23));
  }
}

template <DType TYPE>
void tile_avx2(const uint8_t* tile, const void* panel, uint64_t k, int row0, int rows, float* out, int64_t out_stride,
               bool fetch) {
  while (rows > 0) {
    const int part = rows < kMaxRows ? rows : kMaxRows;
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
      default:
        tile_rows<TYPE, 4>(tile, panel, k, row0, out, out_stride, fetch);
        break;
    }
    fetch = false;
    row0 += part;
    rows -= part;
    out += part * out_stride;
  }
}

TND_INLINE __m256 magnitude(__m256 x) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

TND_INLINE float largest(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// round_half_even(clamp(x * inverse)) of 8 values as int32. max's second operand wins over NaN.
TND_INLINE __m256i quantise8(const float* x, __m256 inverse) {
  __m256 v = _mm256_max_ps(_mm256_mul_ps(_mm256_loadu_ps(x), inverse), _mm256_set1_ps(-127.0f));
  v = _mm256_min_ps(v, _mm256_set1_ps(127.0f));
  return _mm256_cvtps_epi32(v);
}

// Quantises 32 values; returns the sums of the first and second 16 in the two elements of out.
TND_INLINE void quantise_group32(const float* x, float a, int8_t* q, int (&sums)[2]) {
  __m256i bytes = _mm256_setzero_si256();
  if (a != 0.0f) {
    const __m256 inverse = _mm256_set1_ps(1.0f / a);
    const __m256i ab = _mm256_packs_epi32(quantise8(x, inverse), quantise8(x + 8, inverse));
    const __m256i cd = _mm256_packs_epi32(quantise8(x + 16, inverse), quantise8(x + 24, inverse));
    // packs works within 128-bit halves, so the eight quads are put in order again.
    bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);
  const __m256i quads = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
  const __m256i pairs = _mm256_add_epi32(quads, _mm256_shuffle_epi32(quads, 0x4E));
  const __m256i all = _mm256_add_epi32(pairs, _mm256_shuffle_epi32(pairs, 0xB1));
  sums[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(all));
  sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(all, 1));
}

// The group's scale from its largest magnitude, 0 when it counts as zero.
TND_INLINE float scale_of(float max) {
  const float a = max / 127.0f;
  return a < std::numeric_limits<float>::min() ? 0.0f : a;
}

TND_INLINE float largest_of(const float* x, int n) {
  __m256 max = _mm256_setzero_ps();
  for (int i = 0; i < n; i += 8) max = _mm256_max_ps(magnitude(_mm256_loadu_ps(x + i)), max);
  return largest(max);
}

}  // namespace

void quantise256_avx2(const float* x, Act256* block, int row) {
  const float a = scale_of(largest_of(x, 256));
  block->a[row] = a;
  for (int j = 0; j < 8; ++j) {
    int sums[2];
    quantise_group32(x + 32 * j, a, block->q[row] + 32 * j, sums);
    block->sum16[row][2 * j] = static_cast<int16_t>(sums[0]);
    block->sum16[row][2 * j + 1] = static_cast<int16_t>(sums[1]);
    block->sum32[row][j] = static_cast<int16_t>(sums[0] + sums[1]);
  }
}

void quantise32_avx2(const float* x, uint64_t elems, Act32* block, int row) {
  for (uint64_t j = 0; j < elems / 32; ++j) {
    const float a = scale_of(largest_of(x + 32 * j, 32));
    int sums[2];
    quantise_group32(x + 32 * j, a, block->q[row] + 32 * j, sums);
    block->a[row][j] = a;
    block->minus128[row][j] = -128 * (sums[0] + sums[1]);
    block->sum[row][j] = static_cast<float>(sums[0] + sums[1]);
  }
}

TileKernel tile_kernel_avx2(DType type) {
  switch (type) {
    case DType::kF32:
      return tile_avx2<DType::kF32>;
    case DType::kF16:
      return tile_avx2<DType::kF16>;
    case DType::kBF16:
      return tile_avx2<DType::kBF16>;
    case DType::kQ4_0:
      return tile_avx2<DType::kQ4_0>;
    case DType::kQ4_1:
      return tile_avx2<DType::kQ4_1>;
    case DType::kQ5_0:
      return tile_avx2<DType::kQ5_0>;
    case DType::kQ5_1:
      return tile_avx2<DType::kQ5_1>;
    case DType::kQ8_0:
      return tile_avx2<DType::kQ8_0>;
    case DType::kQ4_K:
      return tile_avx2<DType::kQ4_K>;
    case DType::kQ5_K:
      return tile_avx2<DType::kQ5_K>;
    case DType::kQ6_K:
      return tile_avx2<DType::kQ6_K>;
    case DType::kIQ4_NL:
      return tile_avx2<DType::kIQ4_NL>;
    case DType::kIQ4_XS:
      return tile_avx2<DType::kIQ4_XS>;
    default:
      return nullptr;
  }
}

}  // namespace tnd::cpu
