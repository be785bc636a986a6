// Elementary functions of every kernel, on the host and on GPUs: the definition of their bits.
//
// All are polynomials written with explicit fma and IEEE add, mul, div only (build without contraction). Coefficients
// are least-maximum fits made for these ranges:
//   exp: e^r = 1 + r + r^2 P(r), |r| <= ln2/2, P of degree 4 (3.1e-9 relative before rounding; measured <= 1.0 ulp)
//   log: ln m = 2 s + s^3 P(s^2), s = (m-1)/(m+1), m in [sqrt(1/2), sqrt 2), P of degree 3
// cpu/math.h has vector forms that agree bit for bit. Static: files built for other instruction sets include this too.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace tnd {

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

// e^x = p * 2^n, n = shifted - kRound, for x where n is in range.
struct ExpParts {
  float p, shifted;
};
TND_HOST_DEVICE static inline ExpParts exp_parts(float x) {
  using namespace exp_const;
  const float shifted = fmaf(x, kLog2e, kRound);
  const float n = shifted - kRound;
  float r = fmaf(n, -kLn2Hi, x);
  r = fmaf(n, -kLn2Lo, r);
  float p = fmaf(kC6, r, kC5);
  p = fmaf(p, r, kC4);
  p = fmaf(p, r, kC3);
  p = fmaf(p, r, kC2);
  return {fmaf(p, r * r, r) + 1.0f, shifted};
}

// exp_f32 returns e^x; 0 below -104, +inf above 88.72, NaN for NaN. Subnormal results are rounded twice.
TND_HOST_DEVICE static inline float exp_f32(float x) {
  using namespace exp_const;
  x = kMax < x ? kMax : x;  // NaN passes both comparisons, as with vminps/vmaxps
  x = kMin > x ? kMin : x;
  const auto [p, shifted] = exp_parts(x);
  // 2^n as a product of two normal powers: n may be -150 or 128.
  const int32_t i = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const int32_t half = i >> 1;
  const float s1 = std::bit_cast<float>((half + 127) << 23);
  const float s2 = std::bit_cast<float>((i - half + 127) << 23);
  return p * s1 * s2;
}

// sigmoid_f32 returns 1 / (1 + e^-x).
TND_HOST_DEVICE static inline float sigmoid_f32(float x) {
  return 1.0f / (1.0f + exp_f32(-x));
}

// silu_f32 returns x / (1 + e^-x).
TND_HOST_DEVICE static inline float silu_f32(float x) {
  return x / (1.0f + exp_f32(-x));
}

// log_f32 returns ln x for normal positive x; -inf for 0 and subnormals, NaN for negatives and NaN, +inf for +inf.
TND_HOST_DEVICE static inline float log_f32(float x) {
  if (!(x >= 0x1p-126f))
    return x != x || x < 0.0f ? std::bit_cast<float>(0x7FC00000u) : -std::bit_cast<float>(0x7F800000u);
  if (x > 0x1.fffffep127f) return x;
  const int32_t bits = std::bit_cast<int32_t>(x);
  const int32_t e = (bits - 0x3F3504F3) >> 23;  // m = x / 2^e in [sqrt(1/2), sqrt 2)
  const float m = std::bit_cast<float>(bits - (e << 23));
  const float s = (m - 1.0f) / (m + 1.0f);
  const float z = s * s;
  float p = fmaf(0x1.e2fdd4p-3f, z, 0x1.2438a8p-2f);
  p = fmaf(p, z, 0x1.999a7cp-2f);
  p = fmaf(p, z, 0x1.555554p-1f);
  const float n = static_cast<float>(e);
  const float tail = fmaf(n, exp_const::kLn2Lo, (s * z) * p);
  return fmaf(n, exp_const::kLn2Hi, fmaf(2.0f, s, tail));
}

// softplus_f32 returns ln(1 + e^x), x itself above 20.
TND_HOST_DEVICE static inline float softplus_f32(float x) {
  if (x > 20.0f) return x;
  const float t = exp_f32(x);
  const float u = 1.0f + t;
  if (u == 1.0f) return t;
  return log_f32(u) * (t / (u - 1.0f));  // corrects for what 1 + t lost
}

}  // namespace tnd
