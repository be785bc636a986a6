// The chunked (WY) form of the gated delta rule for prefill (qwen35.md section 3.7): the measured alternative to the
// recurrence in src/cpu/row_kernels.h. It is not used by the engine: SPEED.md has the figures.
//
// Idea: inside a chunk of C tokens the corrections d solve a triangular system, so the state is read and written once
// per chunk and the rest is matrix products. Why it loses here: with C = 64 it needs, per token and head,
//   C dk/2 (K K^T) + C dk/2 (Q K^T) + C^2/6 (solve) + C (dk + dv)/2 (U, W) + 3 dk dv + C dv/2 = 71 k multiply-adds,
// the recurrence 4 dk dv = 65 k, all of them vertical vector operations on a state slice that stays in the first-level
// cache. Matrix units change the balance, AVX-512 does not. It would also give prefill other bits than decoding.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "cpu/math.h"

namespace tnd::bench {

constexpr int kChunkMax = 64;
constexpr int kHead = 128;  // key and value size

struct ChunkScratch {
  float cumulative[kChunkMax], decay[kChunkMax][kChunkMax], a[kChunkMax][kChunkMax];
  alignas(64) float u[kChunkMax][kHead], w[kChunkMax][kHead], p[kChunkMax][kHead];
};

// dot of two rows of 128 in 16 lanes.
TND_TARGET_AVX512 static inline float dot128(const float* x, const float* y) {
  __m512 acc = _mm512_setzero_ps();
  for (int i = 0; i < kHead; i += 16) acc = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(y + i), acc);
  float t[16], sum = 0;
  _mm512_storeu_ps(t, acc);
  for (const float v : t) sum += v;
  return sum;
}

// y[0..128) += f * x
TND_TARGET_AVX512 static inline void axpy128(float f, const float* x, float* y) {
  const __m512 vf = _mm512_set1_ps(f);
  for (int i = 0; i < kHead; i += 16) {
    _mm512_storeu_ps(y + i, _mm512_fmadd_ps(vf, _mm512_loadu_ps(x + i), _mm512_loadu_ps(y + i)));
  }
}

// rows [n][128] of x times S [128][128], rows four at a time: out[r] = scale[r] * x[r] S, added to out when add.
TND_TARGET_AVX512 static inline void times_state(const float* x, int64_t stride, int n, const float* s,
                                                 float (*out)[kHead]) {
  for (int r = 0; r < n; r += 4) {
    const int m = n - r < 4 ? n - r : 4;
    for (int c = 0; c < kHead; c += 64) {
      __m512 acc[4][4];
      for (auto& row : acc) {
        for (auto& v : row) v = _mm512_setzero_ps();
      }
      for (int i = 0; i < kHead; ++i) {
        __m512 sv[4];
        for (int j = 0; j < 4; ++j) sv[j] = _mm512_loadu_ps(s + i * kHead + c + 16 * j);
        for (int q = 0; q < 4; ++q) {
          const __m512 xv = _mm512_set1_ps(x[(r + (q < m ? q : 0)) * stride + i]);
          for (int j = 0; j < 4; ++j) acc[q][j] = _mm512_fmadd_ps(xv, sv[j], acc[q][j]);
        }
      }
      for (int q = 0; q < m; ++q) {
        for (int j = 0; j < 4; ++j) _mm512_storeu_ps(out[r + q] + c + 16 * j, acc[q][j]);
      }
    }
  }
}

// One chunk of one head. q (scaled), k, v, o: [c, 128] with row strides; g [c] log decay <= 0; beta [c];
// s [128 key rows, 128 columns] in and out; 1 <= c <= 64.
TND_TARGET_AVX512 static void delta_chunk(int c, const float* q, const float* k, int64_t qk_stride, const float* v,
                                          int64_t v_stride, const float* g, const float* beta, float* s, float* o,
                                          int64_t o_stride, ChunkScratch* t) {
  float sum = 0;
  for (int i = 0; i < c; ++i) t->cumulative[i] = sum += g[i];
  for (int i = 0; i < c; ++i) {
    for (int j = 0; j <= i; ++j) t->decay[i][j] = cpu::exp_f32(t->cumulative[i] - t->cumulative[j]);  // never j > i
  }
  for (int i = 0; i < c; ++i) {
    for (int j = 0; j < i; ++j) {
      t->a[i][j] = beta[i] * dot128(k + i * qk_stride, k + j * qk_stride) * t->decay[i][j];
    }
  }
  // Forward substitution: (I + A) [U W] = [beta V, beta e^G K].
  for (int i = 0; i < c; ++i) {
    const float from_start = beta[i] * cpu::exp_f32(t->cumulative[i]);
    for (int x = 0; x < kHead; ++x) {
      t->u[i][x] = beta[i] * v[i * v_stride + x];
      t->w[i][x] = from_start * k[i * qk_stride + x];
    }
    for (int j = 0; j < i; ++j) {
      axpy128(-t->a[i][j], t->u[j], t->u[i]);
      axpy128(-t->a[i][j], t->w[j], t->w[i]);
    }
  }
  times_state(&t->w[0][0], kHead, c, s, t->p);  // corrections: U - W S0
  for (int i = 0; i < c; ++i) axpy128(-1.0f, t->p[i], t->u[i]);
  times_state(q, qk_stride, c, s, t->p);
  for (int i = 0; i < c; ++i) {
    float* y = o + i * o_stride;
    const float from_start = cpu::exp_f32(t->cumulative[i]);
    for (int x = 0; x < kHead; ++x) y[x] = from_start * t->p[i][x];
    for (int j = 0; j <= i; ++j) axpy128(dot128(q + i * qk_stride, k + j * qk_stride) * t->decay[i][j], t->u[j], y);
  }
  const float whole = cpu::exp_f32(t->cumulative[c - 1]);
  for (int row = 0; row < kHead; ++row) {
    float* y = s + row * kHead;
    for (int x = 0; x < kHead; ++x) y[x] *= whole;
    for (int i = 0; i < c; ++i) axpy128(k[i * qk_stride + row] * t->decay[c - 1][i], t->u[i], y);
  }
}

}  // namespace tnd::bench
