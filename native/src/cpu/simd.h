// V: sixteen floats, the unit in which all row kernels are written. One definition per instruction set, picked by the
// flags of the including file; every operation is lane-wise IEEE, so a kernel written with V gives the same bits on
// all. Everything has internal linkage: the linker must not use code of a file compiled for AVX-512 for other files.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/math.h"

namespace tnd::cpu {
namespace {

#if defined(__AVX512F__)

struct V {
  __m512 v;
};
inline V load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline void store(float* p, V a) {
  _mm512_storeu_ps(p, a.v);
}
inline V set1(float x) {
  return {_mm512_set1_ps(x)};
}
inline V add(V a, V b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline V sub(V a, V b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline V mul(V a, V b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline V div(V a, V b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline V fma(V a, V b, V c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline V fnma(V a, V b, V c) {
  return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
}
inline V exp(V a) {
  return {exp_ps(a.v)};
}
inline V sigmoid(V a) {
  return {sigmoid_ps(a.v)};
}
inline V silu(V a) {
  return {silu_ps(a.v)};
}
// Bit j of the result: a[j] > b[j] (false for NaN).
inline uint32_t greater(V a, V b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ);
}
inline V select(uint32_t mask, V yes, V no) {
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(mask), no.v, yes.v)};
}

#elif defined(__AVX2__)

struct V {
  __m256 lo, hi;
};
inline V load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void store(float* p, V a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline V set1(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
inline V add(V a, V b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline V sub(V a, V b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline V mul(V a, V b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline V div(V a, V b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline V fma(V a, V b, V c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline V fnma(V a, V b, V c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
inline V exp(V a) {
  return {exp_ps(a.lo), exp_ps(a.hi)};
}
inline V sigmoid(V a) {
  return {sigmoid_ps(a.lo), sigmoid_ps(a.hi)};
}
inline V silu(V a) {
  return {silu_ps(a.lo), silu_ps(a.hi)};
}
inline uint32_t greater(V a, V b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ))) |
         static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))) << 8;
}
inline V select(uint32_t mask, V yes, V no) {
  alignas(32) int32_t bits[16];
  for (int j = 0; j < 16; ++j) bits[j] = (mask >> j & 1u) != 0 ? -1 : 0;
  const __m256 lo = _mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(bits)));
  const __m256 hi = _mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(bits + 8)));
  return {_mm256_blendv_ps(no.lo, yes.lo, lo), _mm256_blendv_ps(no.hi, yes.hi, hi)};
}

#else

struct V {
  float v[16];
};
template <typename F>
inline V each(F f) {
  V r;
  for (int j = 0; j < 16; ++j) r.v[j] = f(j);
  return r;
}
inline V load(const float* p) {
  return each([=](int j) { return p[j]; });
}
inline void store(float* p, V a) {
  for (int j = 0; j < 16; ++j) p[j] = a.v[j];
}
inline V set1(float x) {
  return each([=](int) { return x; });
}
inline V add(V a, V b) {
  return each([&](int j) { return a.v[j] + b.v[j]; });
}
inline V sub(V a, V b) {
  return each([&](int j) { return a.v[j] - b.v[j]; });
}
inline V mul(V a, V b) {
  return each([&](int j) { return a.v[j] * b.v[j]; });
}
inline V div(V a, V b) {
  return each([&](int j) { return a.v[j] / b.v[j]; });
}
inline V fma(V a, V b, V c) {
  return each([&](int j) { return __builtin_fmaf(a.v[j], b.v[j], c.v[j]); });
}
inline V fnma(V a, V b, V c) {
  return each([&](int j) { return __builtin_fmaf(-a.v[j], b.v[j], c.v[j]); });
}
inline V exp(V a) {
  return each([&](int j) { return exp_f32(a.v[j]); });
}
inline V sigmoid(V a) {
  return each([&](int j) { return sigmoid_f32(a.v[j]); });
}
inline V silu(V a) {
  return each([&](int j) { return silu_f32(a.v[j]); });
}
inline uint32_t greater(V a, V b) {
  uint32_t bits = 0;
  for (int j = 0; j < 16; ++j) bits |= static_cast<uint32_t>(a.v[j] > b.v[j]) << j;
  return bits;
}
inline V select(uint32_t mask, V yes, V no) {
  return each([&](int j) { return (mask >> j & 1u) != 0 ? yes.v[j] : no.v[j]; });
}

#endif

// fold_sum adds the lanes as a tree: j with j+8, j+4, j+2, j+1.
inline float fold_sum(V a) {
  float t[16];
  store(t, a);
  for (int half = 8; half >= 1; half /= 2) {
    for (int j = 0; j < half; ++j) t[j] += t[j + half];
  }
  return t[0];
}

}  // namespace
}  // namespace tnd::cpu
