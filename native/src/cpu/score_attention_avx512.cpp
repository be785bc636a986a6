// score_attention with AVX-512 VNNI and BF16; see score_attention.h.
#include <utility>

#include "cpu/score_attention_kernel.h"

#pragma GCC target("avx512bf16")
#include <immintrin.h>

namespace tnd::cpu {
namespace {

constexpr int kScoreStride = kScoreSegment + 16;   // floats
constexpr int kWeightStride = kScoreSegment + 32;  // bf16
constexpr float kHidden = -1e30f;                  // score of a key that a row does not see; 2^kHidden is 0
constexpr float kLog2e = 1.44269504f;

inline int imin(int a, int b) {
  return a < b ? a : b;
}
inline int imax(int a, int b) {
  return a > b ? a : b;
}

// 2^x for x <= 0: polynomial of degree 4 on [-1/2, 1/2], relative error 4e-5, far below the bf16 rounding that follows.
inline __m512 exp2_fast(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_fmadd_ps(f, _mm512_set1_ps(0.0096181291f), _mm512_set1_ps(0.0555041087f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.2402265070f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931471806f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

inline float absmax(const float* x, int n) {
  __m512 m = _mm512_setzero_ps();
  for (int d = 0; d < n; d += 16) m = _mm512_max_ps(m, _mm512_abs_ps(_mm512_loadu_ps(x + d)));
  return _mm512_reduce_max_ps(m);
}

// acc += products of unsigned and signed bytes, four to a lane. In assembly: with the intrinsic, gcc 12 keeps a second
// copy of every sum and stores it to the stack in each iteration (int8 products at 35 % of their rate).
inline __attribute__((always_inline)) void dot4(__m512i* acc, __m512i u, __m512i s) {
  asm("vpdpbusd %2, %1, %0" : "+v"(*acc) : "v"(u), "v"(s));
}

// Calls f(0) … f(11) with constants.
template <typename F, int... I>
inline __attribute__((always_inline)) void each(F&& f, std::integer_sequence<int, I...>) {
  (f(std::integral_constant<int, I>()), ...);
}
using Queries = std::make_integer_sequence<int, kScoreGroup>;
#define TND_INLINE __attribute__((always_inline))

// scores[i][key] of 12 queries and n keys (a multiple of 32).
inline void score_group(const uint8_t* q8, const float* q_scale, const int8_t* k, const float* k_scale,
                        const int32_t* k_sum, int dim, int n, float* scores) {
  for (int j = 0; j < n; j += 32) {
    __m512i acc[kScoreGroup][2];
    each([&](auto i) TND_INLINE { acc[i][0] = acc[i][1] = _mm512_setzero_si512(); }, Queries());
    const int8_t* k0 = k + size_t(j) * dim;
    const int8_t* k1 = k0 + size_t(16) * dim;
    for (int d = 0; d < dim / 4; d++) {
      const __m512i a = _mm512_load_si512(k0 + d * 64), b = _mm512_load_si512(k1 + d * 64);
      const uint8_t* qd = q8 + d * kScoreGroup * 4;
      each(
          [&](auto i) TND_INLINE {
            int32_t bytes;
            __builtin_memcpy(&bytes, qd + i * 4, 4);
            const __m512i q = _mm512_set1_epi32(bytes);
            dot4(&acc[i][0], q, a);
            dot4(&acc[i][1], q, b);
          },
          Queries());
    }
    const __m512i s0 = _mm512_loadu_si512(k_sum + j), s1 = _mm512_loadu_si512(k_sum + j + 16);
    const __m512 f0 = _mm512_loadu_ps(k_scale + j), f1 = _mm512_loadu_ps(k_scale + j + 16);
    each(
        [&](auto i) TND_INLINE {
          const __m512 f = _mm512_set1_ps(q_scale[i]);
          float* s = scores + i * kScoreStride + j;
          const __m512 x0 = _mm512_cvtepi32_ps(_mm512_sub_epi32(acc[i][0], s0));
          const __m512 x1 = _mm512_cvtepi32_ps(_mm512_sub_epi32(acc[i][1], s1));
          _mm512_storeu_ps(s, _mm512_mul_ps(x0, _mm512_mul_ps(f, f0)));
          _mm512_storeu_ps(s + 16, _mm512_mul_ps(x1, _mm512_mul_ps(f, f1)));
        },
        Queries());
  }
}

// Softmax step of one query over n scores (a multiple of 32): weights in bf16, running maximum and sum; returns the
// factor of the running output.
inline float softmax_step(const float* s, int n, float* m, float* l, uint16_t* w) {
  __m512 mv = _mm512_set1_ps(*m);
  for (int j = 0; j < n; j += 16) mv = _mm512_max_ps(mv, _mm512_loadu_ps(s + j));
  const float top = _mm512_reduce_max_ps(mv);
  mv = _mm512_set1_ps(top);
  __m512 sum0 = _mm512_setzero_ps(), sum1 = sum0;
  for (int j = 0; j < n; j += 32) {
    const __m512 a = exp2_fast(_mm512_sub_ps(_mm512_loadu_ps(s + j), mv));
    const __m512 b = exp2_fast(_mm512_sub_ps(_mm512_loadu_ps(s + j + 16), mv));
    sum0 = _mm512_add_ps(sum0, a);
    sum1 = _mm512_add_ps(sum1, b);
    const __m512bh both = _mm512_cvtne2ps_pbh(b, a);
    __builtin_memcpy(w + j, &both, 64);
  }
  const float factor = _mm512_cvtss_f32(exp2_fast(_mm512_set1_ps(*m - top)));
  *l = *l * factor + _mm512_reduce_add_ps(_mm512_add_ps(sum0, sum1));
  *m = top;
  return factor;
}

inline __m512bh load_bf16(const void* p) {
  __m512bh x;
  __builtin_memcpy(&x, p, 64);
  return x;
}

// out[i] = factor[i] * out[i] + sum_j w[i][j] * v[j] for 12 queries; v [n/2][dim][2].
inline void value_group(const uint16_t* w, const float* factor, const uint16_t* v, int dim, int n, float* out) {
  for (int d = 0; d < dim; d += 32) {
    __m512 acc[kScoreGroup][2];
    each(
        [&](auto i) TND_INLINE {
          const __m512 f = _mm512_set1_ps(factor[i]);
          acc[i][0] = _mm512_mul_ps(f, _mm512_loadu_ps(out + i * dim + d));
          acc[i][1] = _mm512_mul_ps(f, _mm512_loadu_ps(out + i * dim + d + 16));
        },
        Queries());
    for (int j = 0; j < n; j += 2) {
      const uint16_t* row = v + size_t(j) * dim + d * 2;
      const __m512bh a = load_bf16(row), b = load_bf16(row + 32);
      each(
          [&](auto i) TND_INLINE {
            int32_t pair;
            __builtin_memcpy(&pair, w + i * kWeightStride + j, 4);
            const __m512bh p = (__m512bh)_mm512_set1_epi32(pair);
            acc[i][0] = _mm512_dpbf16_ps(acc[i][0], p, a);
            acc[i][1] = _mm512_dpbf16_ps(acc[i][1], p, b);
          },
          Queries());
    }
    each(
        [&](auto i) TND_INLINE {
          _mm512_storeu_ps(out + i * dim + d, acc[i][0]);
          _mm512_storeu_ps(out + i * dim + d + 16, acc[i][1]);
        },
        Queries());
  }
}

}  // namespace

void score_store_avx512(const ScoreKv& kv, int32_t position, const float* k, const float* v) {
  const int dim = kv.dim;
  for (int h = 0; h < kv.kv_heads; h++) {
    const size_t row = size_t(h) * kv.capacity + position;
    const float* x = k + h * dim;
    const float top = absmax(x, dim);
    const float scale = top / 127.0f, inverse = top > 1e-30f ? 127.0f / top : 0.0f;
    int8_t* tile = kv.k + size_t(h) * kv.capacity * dim + size_t(position / 16) * 16 * dim + position % 16 * 4;
    __m512i sum = _mm512_setzero_si512();
    for (int d = 0; d < dim; d += 16) {
      const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + d), _mm512_set1_ps(inverse)));
      sum = _mm512_add_epi32(sum, q);
      alignas(16) int32_t bytes[4];
      _mm_store_si128(reinterpret_cast<__m128i*>(bytes), _mm512_cvtepi32_epi8(q));
      for (int i = 0; i < 4; i++) __builtin_memcpy(tile + (d / 4 + i) * 64, &bytes[i], 4);
    }
    kv.k_scale[row] = scale;
    kv.k_sum[row] = 128 * _mm512_reduce_add_epi32(sum);
    uint16_t* dst = kv.v + (size_t(h) * kv.capacity + (position & ~1)) * dim + (position & 1);
    for (int d = 0; d < dim; d += 16) {
      alignas(32) uint16_t half[16];
      const __m256bh b = _mm512_cvtneps_pbh(_mm512_loadu_ps(v + h * dim + d));
      __builtin_memcpy(half, &b, 32);
      for (int i = 0; i < 16; i++) dst[(d + i) * 2] = half[i];
    }
  }
}

void score_block_avx512(const ScoreBlock& b) {
  const ScoreKv& kv = *b.kv;
  const int dim = kv.dim, g = b.q_heads / kv.kv_heads;
  const int nq = (b.row_end - b.row_begin) * g;
  const ScoreScratchLayout lay(dim);
  uint8_t* q8 = b.scratch + lay.q8;
  float* q_scale = reinterpret_cast<float*>(b.scratch + lay.q_scale);
  float* m = reinterpret_cast<float*>(b.scratch + lay.m);
  float* l = reinterpret_cast<float*>(b.scratch + lay.l);
  float* run = reinterpret_cast<float*>(b.scratch + lay.out);
  float* scores = reinterpret_cast<float*>(b.scratch + lay.scores);
  uint16_t* weights = reinterpret_cast<uint16_t*>(b.scratch + lay.weights);
  const int groups = (nq + kScoreGroup - 1) / kScoreGroup;
  auto position = [&](int i) { return b.first + b.row_begin + imin(i, nq - 1) / g; };

  // Queries in groups of 12, [dim/4][12][4] bytes with 128 added; a short last group is filled with its last query.
  for (int i = 0; i < groups * kScoreGroup; i++) {
    const int j = imin(i, nq - 1);
    const float* q = b.q + (size_t(b.row_begin + j / g) * b.q_heads + b.kv_head * g + j % g) * dim;
    const float top = absmax(q, dim);
    const float inverse = top > 1e-30f ? 127.0f / top : 0.0f;
    q_scale[i] = top / 127.0f * b.scale * kLog2e;
    uint8_t* dst = q8 + size_t(i / kScoreGroup) * kScoreGroup * dim + i % kScoreGroup * 4;
    for (int d = 0; d < dim; d += 16) {
      const __m512i x = _mm512_add_epi32(
          _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(q + d), _mm512_set1_ps(inverse))), _mm512_set1_epi32(128));
      alignas(16) int32_t bytes[4];
      _mm_store_si128(reinterpret_cast<__m128i*>(bytes), _mm512_cvtepi32_epi8(x));
      for (int e = 0; e < 4; e++) __builtin_memcpy(dst + (d / 4 + e) * kScoreGroup * 4, &bytes[e], 4);
    }
    m[i] = kHidden;
    l[i] = 0;
    for (int d = 0; d < dim; d += 16) _mm512_storeu_ps(run + size_t(i) * dim + d, _mm512_setzero_ps());
  }

  const size_t head = size_t(b.kv_head) * kv.capacity;
  const int end = b.first + b.row_end;
  for (int start = 0; start < end; start += kScoreSegment) {
    const int8_t* k = kv.k + (head + start) * dim;
    const uint16_t* v = kv.v + (head + start) * dim;
    for (int grp = 0; grp < groups; grp++) {
      const int q0 = grp * kScoreGroup;
      const int visible = imin(kScoreSegment, position(q0 + kScoreGroup - 1) + 1 - start);
      if (visible <= 0) continue;
      const int n = (visible + 31) & ~31;
      score_group(q8 + size_t(q0) * dim, q_scale + q0, k, kv.k_scale + head + start, kv.k_sum + head + start, dim, n,
                  scores);
      float factor[kScoreGroup];
      for (int i = 0; i < kScoreGroup; i++) {
        float* s = scores + i * kScoreStride;
        for (int j = imax(0, position(q0 + i) + 1 - start); j < n; j++) s[j] = kHidden;
        factor[i] = softmax_step(s, n, &m[q0 + i], &l[q0 + i], weights + i * kWeightStride);
      }
      value_group(weights, factor, v, dim, n, run + size_t(q0) * dim);
    }
  }
  for (int i = 0; i < nq; i++) {
    float* out = b.out + (size_t(b.row_begin + i / g) * b.q_heads + b.kv_head * g + i % g) * dim;
    const __m512 f = _mm512_set1_ps(1.0f / l[i]);
    for (int d = 0; d < dim; d += 16) {
      _mm512_storeu_ps(out + d, _mm512_mul_ps(f, _mm512_loadu_ps(run + size_t(i) * dim + d)));
    }
  }
}

}  // namespace tnd::cpu
