// Vector forms (AVX2 and AVX-512) of the elementary functions of core/elementary.h, equal to them bit for bit.
//
// They have their instruction set as a target attribute: any file may use them, after a check that the processor
// supports it.
#pragma once

#include "core/elementary.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tnd::cpu {

using tnd::exp_f32;
using tnd::log_f32;
using tnd::sigmoid_f32;
using tnd::silu_f32;
using tnd::softplus_f32;

#if defined(__x86_64__)
#define TND_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define TND_TARGET_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")))

// exp_ps is exp_f32 on 8 lanes.
TND_TARGET_AVX2 static inline __m256 exp_ps(__m256 x) {
  using namespace exp_const;
  x = _mm256_min_ps(_mm256_set1_ps(kMax), x);
  x = _mm256_max_ps(_mm256_set1_ps(kMin), x);
  const __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(kLog2e), _mm256_set1_ps(kRound));
  const __m256 n = _mm256_sub_ps(shifted, _mm256_set1_ps(kRound));
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Hi), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Lo), r);
  __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(kC6), r, _mm256_set1_ps(kC5));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kC4));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kC3));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kC2));
  p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
  const __m256i i = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(_mm256_set1_ps(kRound)));
  const __m256i half = _mm256_srai_epi32(i, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 s1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 s2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(p, s1), s2);
}

// sigmoid_ps is sigmoid_f32 on 8 lanes, silu_ps is silu_f32.
TND_TARGET_AVX2 static inline __m256 sigmoid_ps(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0f);
  return _mm256_div_ps(one, _mm256_add_ps(one, exp_ps(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)))));
}
TND_TARGET_AVX2 static inline __m256 silu_ps(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0f);
  return _mm256_div_ps(x, _mm256_add_ps(one, exp_ps(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)))));
}

// exp_ps is exp_f32 on 16 lanes.
TND_TARGET_AVX512 static inline __m512 exp_ps(__m512 x) {
  using namespace exp_const;
  x = _mm512_min_ps(_mm512_set1_ps(kMax), x);
  x = _mm512_max_ps(_mm512_set1_ps(kMin), x);
  const __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(kLog2e), _mm512_set1_ps(kRound));
  const __m512 n = _mm512_sub_ps(shifted, _mm512_set1_ps(kRound));
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2Hi), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2Lo), r);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(kC6), r, _mm512_set1_ps(kC5));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kC4));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kC3));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kC2));
  p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
  const __m512i i = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(_mm512_set1_ps(kRound)));
  const __m512i half = _mm512_srai_epi32(i, 1);
  const __m512i bias = _mm512_set1_epi32(127);
  const __m512 s1 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23));
  const __m512 s2 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(i, half), bias), 23));
  return _mm512_mul_ps(_mm512_mul_ps(p, s1), s2);
}

// sigmoid_ps is sigmoid_f32 on 16 lanes, silu_ps is silu_f32.
TND_TARGET_AVX512 static inline __m512 sigmoid_ps(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  return _mm512_div_ps(one, _mm512_add_ps(one, exp_ps(_mm512_xor_ps(x, _mm512_set1_ps(-0.0f)))));
}
TND_TARGET_AVX512 static inline __m512 silu_ps(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  return _mm512_div_ps(x, _mm512_add_ps(one, exp_ps(_mm512_xor_ps(x, _mm512_set1_ps(-0.0f)))));
}
#endif  // __x86_64__

}  // namespace tnd::cpu
