// The row kernels, written once over V. Included by row_kernels_{scalar,avx2,avx512}.cpp.
// Bound: all are memory- or L1-bound at one or two operations per element except delta_row, which does four fma or mul
// per state element and row (128 * 128 per head): 2048 AVX-512 operations, about 0.35 us per head and row.
#pragma once

#include <cmath>

#include "cpu/row_kernels.h"
#include "cpu/simd.h"

namespace tnd::cpu {
namespace {

constexpr int kDim = 128;     // key rows of a state
constexpr int kColumns = 32;  // of a slice
constexpr int kParts = 8;     // partial sums over key rows
constexpr int64_t kSumBlock = 1024;

inline float sum_squares(const float* x, int64_t n) {
  V acc = set1(0.0f);
  for (int64_t i = 0; i < n; i += 16) {
    const V a = load(x + i);
    acc = fma(a, a, acc);
  }
  return fold_sum(acc);
}

inline float inverse_root(float x) {
  return 1.0f / std::sqrt(x);
}

void rms_norm(const float* x, const float* w, float eps, int64_t n, float* y) {
  const V r = set1(inverse_root(sum_squares(x, n) / static_cast<float>(n) + eps));
  for (int64_t i = 0; i < n; i += 16) store(y + i, mul(mul(load(x + i), r), load(w + i)));
}

void l2_norm(const float* x, float scale, float eps, int64_t n, float* y) {
  const V r = set1(inverse_root(sum_squares(x, n) + eps));
  const V s = set1(scale);
  for (int64_t i = 0; i < n; i += 16) store(y + i, mul(mul(load(x + i), r), s));
}

void gated_norm(const float* o, const float* w, const float* z, float eps, int64_t n, float* y) {
  const V r = set1(inverse_root(sum_squares(o, n) / static_cast<float>(n) + eps));
  for (int64_t i = 0; i < n; i += 16) {
    store(y + i, mul(mul(mul(load(o + i), r), load(w + i)), silu(load(z + i))));
  }
}

void conv_silu(const float* m3, const float* m2, const float* m1, const float* m0, const float* w, int64_t w_stride,
               int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 16) {
    V acc = mul(load(w + i), load(m3 + i));
    acc = fma(load(w + w_stride + i), load(m2 + i), acc);
    acc = fma(load(w + 2 * w_stride + i), load(m1 + i), acc);
    acc = fma(load(w + 3 * w_stride + i), load(m0 + i), acc);
    store(y + i, silu(acc));
  }
}

void swiglu(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 16) store(y + i, mul(silu(load(gate + i)), load(up + i)));
}

void sigmoid_gate(const float* x, const float* gate, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 16) store(y + i, mul(load(x + i), sigmoid(load(gate + i))));
}

void rope(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t j = 0; j < half; j += 16) {
    const V a = load(x + j), b = load(x + half + j), c = load(cos + j), s = load(sin + j);
    store(x + j, fnma(b, s, mul(a, c)));
    store(x + half + j, fma(a, s, mul(b, c)));
  }
}

// Adds the eight partials of the delta contract.
inline V fold_parts(const V* p) {
  return add(add(add(p[0], p[4]), add(p[2], p[6])), add(add(p[1], p[5]), add(p[3], p[7])));
}

// COLS vectors of columns at a time: 2 with 32 registers, 1 with 16.
template <int COLS>
inline void delta_columns(const float* s_in, float* s_out, const float* k, const float* q, const float* v, float alpha,
                          float beta, float* d, float* o) {
  constexpr int kRowsPerPart = kDim / kParts;
  V p[COLS][kParts];
  for (int c = 0; c < COLS; ++c) {
    for (int t = 0; t < kParts; ++t) p[c][t] = set1(0.0f);
  }
  for (int i = 0; i < kRowsPerPart; ++i) {
    for (int t = 0; t < kParts; ++t) {
      const int row = t * kRowsPerPart + i;
      const V kk = set1(k[row]);
      for (int c = 0; c < COLS; ++c) p[c][t] = fma(kk, load(s_in + row * kColumns + 16 * c), p[c][t]);
    }
  }
  const V va = set1(alpha);
  V dd[COLS];
  for (int c = 0; c < COLS; ++c) {
    dd[c] = mul(set1(beta), fnma(va, fold_parts(p[c]), load(v + 16 * c)));
    if (d != nullptr) store(d + 16 * c, dd[c]);
    for (int t = 0; t < kParts; ++t) p[c][t] = set1(0.0f);
  }
  for (int i = 0; i < kRowsPerPart; ++i) {
    for (int t = 0; t < kParts; ++t) {
      const int row = t * kRowsPerPart + i;
      const V kk = set1(k[row]), qq = set1(q[row]);
      for (int c = 0; c < COLS; ++c) {
        const V s = fma(kk, dd[c], mul(va, load(s_in + row * kColumns + 16 * c)));
        if (s_out != nullptr) store(s_out + row * kColumns + 16 * c, s);
        p[c][t] = fma(qq, s, p[c][t]);
      }
    }
  }
  for (int c = 0; c < COLS; ++c) store(o + 16 * c, fold_parts(p[c]));
}

void delta_row(const float* s_in, float* s_out, const float* k, const float* q, const float* v, float alpha, float beta,
               int slices, float* d, float* o) {
#if defined(__AVX512F__)
  constexpr int kCols = 2;
#else
  constexpr int kCols = 1;
#endif
  for (int slice = 0; slice < slices; ++slice) {
    const int64_t base = int64_t{slice} * kDim * kColumns;
    for (int c = 0; c < kColumns; c += 16 * kCols) {
      const int column = slice * kColumns + c;
      delta_columns<kCols>(s_in + base + c, s_out != nullptr ? s_out + base + c : nullptr, k, q, v + column, alpha,
                           beta, d != nullptr ? d + column : nullptr, o + column);
    }
  }
}

void delta_apply(float* s, const int32_t* rows, int n, const float* k, int64_t k_stride, const float* d,
                 int64_t d_stride, const float* alpha, int64_t alpha_stride) {
  for (int i = 0; i < kDim; ++i) {
    V a = load(s + i * kColumns), b = load(s + i * kColumns + 16);
    for (int r = 0; r < n; ++r) {
      const int64_t row = rows[r];
      const V kk = set1(k[row * k_stride + i]), va = set1(alpha[row * alpha_stride]);
      a = fma(kk, load(d + row * d_stride), mul(va, a));
      b = fma(kk, load(d + row * d_stride + 16), mul(va, b));
    }
    store(s + i * kColumns, a);
    store(s + i * kColumns + 16, b);
  }
}

constexpr float kMinusInf = -__builtin_inff();

// Loads up to 16 elements; missing lanes are -inf.
inline V load_tail(const float* x, int64_t n) {
  if (n >= 16) return load(x);
  float t[16];
  for (int j = 0; j < 16; ++j) t[j] = j < n ? x[j] : kMinusInf;
  return load(t);
}

float argmax(const float* x, int64_t n, int32_t* index) {
  V best = set1(kMinusInf);
  int32_t at[16] = {};  // block in which a lane's best was seen
  for (int64_t i = 0; i < n; i += 16) {
    const V a = load_tail(x + i, n - i);
    uint32_t mask = greater(a, best);
    if (mask == 0) continue;
    best = select(mask, a, best);
    for (; mask != 0; mask &= mask - 1) at[__builtin_ctz(mask)] = static_cast<int32_t>(i / 16);
  }
  float lanes[16];
  store(lanes, best);
  float value = kMinusInf;
  int32_t where = 0;
  for (int j = 0; j < 16; ++j) {
    const int32_t id = at[j] * 16 + j;
    if (lanes[j] > value || (lanes[j] == value && value != kMinusInf && id < where)) {
      value = lanes[j];
      where = id;
    }
  }
  *index = where;
  return value;
}

inline V exp_of(V x, V max, V temperature, bool divide) {
  const V shifted = sub(x, max);
  return exp(divide ? div(shifted, temperature) : shifted);
}

float sum_exp(const float* x, int64_t n, float max, float temperature) {
  const V vm = set1(max), vt = set1(temperature);
  const bool divide = temperature != 1.0f;
  float total = 0.0f;
  for (int64_t block = 0; block < n; block += kSumBlock) {
    const int64_t end = block + kSumBlock < n ? block + kSumBlock : n;
    V acc = set1(0.0f);
    for (int64_t i = block; i < end; i += 16) acc = add(acc, exp_of(load_tail(x + i, end - i), vm, vt, divide));
    total += fold_sum(acc);
  }
  return total;
}

void exp_scaled(const float* x, int64_t n, float max, float temperature, float* y) {
  const V vm = set1(max), vt = set1(temperature);
  const bool divide = temperature != 1.0f;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(y + i, exp_of(load(x + i), vm, vt, divide));
  if (i < n) {
    float t[16];
    store(t, exp_of(load_tail(x + i, n - i), vm, vt, divide));
    for (int64_t j = i; j < n; ++j) y[j] = t[j - i];
  }
}

void top_k(const float* x, int64_t n, int k, int32_t* ids, float* values) {
  int found = 0;
  V threshold = set1(kMinusInf);
  for (int64_t i = 0; i < n; i += 16) {
    const V a = load_tail(x + i, n - i);
    const int64_t left = n - i;
    const uint32_t valid = left >= 16 ? 0xFFFFu : (1u << left) - 1u;
    uint32_t mask = found < k ? valid : greater(a, threshold) & valid;
    for (; mask != 0; mask &= mask - 1) {
      const int64_t id = i + __builtin_ctz(mask);
      const float value = x[id] == x[id] ? x[id] : kMinusInf;
      if (found == k && !(value > values[k - 1])) continue;  // raised since the mask was made
      int at = found < k ? found++ : k - 1;
      for (; at > 0 && values[at - 1] < value; --at) {  // strict: an equal lower id stays before
        values[at] = values[at - 1];
        ids[at] = ids[at - 1];
      }
      values[at] = value;
      ids[at] = static_cast<int32_t>(id);
    }
    if (found == k) threshold = set1(values[k - 1]);
  }
}

constexpr RowKernels kTable = {rms_norm,  l2_norm,     gated_norm, conv_silu, swiglu,     sigmoid_gate, rope,
                               delta_row, delta_apply, argmax,     sum_exp,   exp_scaled, top_k};

}  // namespace
}  // namespace tnd::cpu
