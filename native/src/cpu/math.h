// Elementary functions of every CPU kernel: scalar, AVX2 and AVX-512 forms that agree bit for bit.
//
// All are polynomials written with explicit fma and IEEE add, mul, div only (build with -ffp-contract=off), so that
// other back ends can repeat them exactly. Coefficients are least-maximum fits made for these ranges:
//   exp: e^r = 1 + r + r^2 P(r), |r| <= ln2/2, P of degree 4 (3.1e-9 relative before rounding; measured <= 1.0 ulp)
//   log: ln m = 2 s + s^3 P(s^2), s = (m-1)/(m+1), m in [sqrt(1/2), sqrt 2), P of degree 3
// The vector forms carry their instruction set as a target attribute: usable from any file, but only after the
// processor was asked.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tnd::cpu {

namespace exp_const {
constexpr float kMax = 89.0f;    // above: +inf
constexpr float kMin = -104.0f;  // below: 0
constexpr float kLog2e = 1.44269504f;
constexpr float kRound = 12582912.0f;      // 1.5 * 2^23: adding it rounds to an integer, half to even
constexpr float kLn2Hi = 0x1.62e4p-1f;     // 15 bits: n * kLn2Hi is exact
constexpr float kLn2Lo = 0x1.7f7d1cp-20f;  // ln 2 - kLn2Hi
constexpr float kC2 = 0x1.fffffcp-2f;
constexpr float kC3 = 0x1.555490p-3f;
constexpr float kC4 = 0x1.5558f4p-5f;
constexpr float kC5 = 0x1.123a6cp-7f;
constexpr float kC6 = 0x1.6a2350p-10f;
}  // namespace exp_const

// exp_f32 returns e^x; 0 below -104, +inf above 88.72, NaN for NaN. Subnormal results are rounded twice.
static inline float exp_f32(float x) {
  using namespace exp_const;
  x = kMax < x ? kMax : x;  // NaN passes both comparisons, as with vminps/vmaxps
  x = kMin > x ? kMin : x;
  const float shifted = __builtin_fmaf(x, kLog2e, kRound);
  const float n = shifted - kRound;
  float r = __builtin_fmaf(n, -kLn2Hi, x);
  r = __builtin_fmaf(n, -kLn2Lo, r);
  float p = __builtin_fmaf(kC6, r, kC5);
  p = __builtin_fmaf(p, r, kC4);
  p = __builtin_fmaf(p, r, kC3);
  p = __builtin_fmaf(p, r, kC2);
  p = __builtin_fmaf(p, r * r, r) + 1.0f;
  // 2^n as a product of two normal powers: n may be -150 or 128.
  const int32_t i = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const int32_t half = i >> 1;
  const float s1 = std::bit_cast<float>((half + 127) << 23);
  const float s2 = std::bit_cast<float>((i - half + 127) << 23);
  return p * s1 * s2;
}

// sigmoid_f32 returns 1 / (1 + e^-x).
static inline float sigmoid_f32(float x) {
  return 1.0f / (1.0f + exp_f32(-x));
}

// silu_f32 returns x / (1 + e^-x).
static inline float silu_f32(float x) {
  return x / (1.0f + exp_f32(-x));
}

// log_f32 returns ln x for normal positive x; -inf for 0 and subnormals, NaN for negatives and NaN, +inf for +inf.
static inline float log_f32(float x) {
  if (!(x >= 0x1p-126f)) return x != x || x < 0.0f ? __builtin_nanf("") : -__builtin_inff();
  if (x > 0x1.fffffep127f) return x;
  const int32_t bits = std::bit_cast<int32_t>(x);
  const int32_t e = (bits - 0x3F3504F3) >> 23;  // m = x / 2^e in [sqrt(1/2), sqrt 2)
  const float m = std::bit_cast<float>(bits - (e << 23));
  const float s = (m - 1.0f) / (m + 1.0f);
  const float z = s * s;
  float p = __builtin_fmaf(0x1.e2fdd4p-3f, z, 0x1.2438a8p-2f);
  p = __builtin_fmaf(p, z, 0x1.999a7cp-2f);
  p = __builtin_fmaf(p, z, 0x1.555554p-1f);
  const float n = static_cast<float>(e);
  const float tail = __builtin_fmaf(n, exp_const::kLn2Lo, (s * z) * p);
  return __builtin_fmaf(n, exp_const::kLn2Hi, __builtin_fmaf(2.0f, s, tail));
}

// softplus_f32 returns ln(1 + e^x), x itself above 20.
static inline float softplus_f32(float x) {
  if (x > 20.0f) return x;
  const float t = exp_f32(x);
  const float u = 1.0f + t;
  if (u == 1.0f) return t;
  return log_f32(u) * (t / (u - 1.0f));  // corrects for what 1 + t lost
}

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
