// The numeric contract of cpu/matmul.h worked out a second time, straight from file blocks and without packing, and the
// random weights that matmul tests run on.
#pragma once

#include <cmath>
#include <vector>

#include "core/dtype.h"
#include "core/fp.h"
#include "harness.h"

namespace tnd::test {

inline constexpr DType kMatmulTypes[] = {DType::kF32,  DType::kF16,    DType::kBF16,  DType::kQ4_0, DType::kQ4_1,
                                         DType::kQ5_0, DType::kQ5_1,   DType::kQ8_0,  DType::kQ4_K, DType::kQ5_K,
                                         DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS};

// Offset of the half-float scale in a block, and whether a second one (a minimum) follows it.
inline uint64_t scale_offset(DType type) {
  return type == DType::kQ6_K ? 208 : 0;
}
inline bool has_minimum(DType type) {
  return type == DType::kQ4_1 || type == DType::kQ5_1 || type == DType::kQ4_K || type == DType::kQ5_K;
}

// How random weights are scaled.
enum class Scales { kOrdinary, kExtreme, kZero };

// n rows of k elements with random code bits; scales positive and negative around 0.01 (kOrdinary), any finite half
// including subnormals and zeros (kExtreme), or zero.
inline std::vector<uint8_t> random_weights(DType type, uint64_t k, uint64_t n, Scales scales, Rng& rng) {
  std::vector<uint8_t> rows(row_bytes(type, k) * n);
  if (type == DType::kF32 || type == DType::kF16 || type == DType::kBF16) {
    for (uint64_t i = 0; i < k * n; ++i) {
      float v = rng.normal();
      if (scales == Scales::kZero) v = 0.0f;
      if (scales == Scales::kExtreme) v = std::ldexp(v, static_cast<int>(rng.below(30)) - 22);
      CHECK_OK(quantise_row(type, &v, rows.data() + row_bytes(type, 1) * i, 1));
    }
    return rows;
  }
  for (uint8_t& byte : rows) byte = static_cast<uint8_t>(rng.next());
  for (uint64_t at = scale_offset(type); at < rows.size(); at += block_bytes(type)) {
    for (uint64_t i = 0; i < (has_minimum(type) ? 2u : 1u); ++i) {
      uint16_t half = static_cast<uint16_t>(0x2000 + rng.below(0x400) + (rng.below(2) << 15));
      if (scales == Scales::kZero) half = 0;
      if (scales == Scales::kExtreme) {
        do half = static_cast<uint16_t>(rng.next());
        while ((half & 0x7C00) == 0x7C00);
      }
      store_u16(rows.data() + at + 2 * i, half);
    }
  }
  return rows;
}

// Integer code of element e of a block, as the contract uses it.
inline int block_code(DType type, const uint8_t* b, int e) {
  static constexpr int kTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  const auto bit = [](const uint8_t* p, int i) { return p[i / 8] >> i % 8 & 1; };
  const auto nibble = [](const uint8_t* qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; };
  switch (type) {
    case DType::kQ8_0:
      return static_cast<int8_t>(b[2 + e]);
    case DType::kQ4_0:
      return nibble(b + 2, e) - 8;
    case DType::kIQ4_NL:
      return kTable[nibble(b + 2, e)];
    case DType::kQ4_1:
      return nibble(b + 4, e);
    case DType::kQ5_0:
      return nibble(b + 6, e) + 16 * bit(b + 2, e) - 16;
    case DType::kQ5_1:
      return nibble(b + 8, e) + 16 * bit(b + 4, e);
    case DType::kQ4_K:
    case DType::kQ5_K: {
      const uint8_t byte = b[(type == DType::kQ4_K ? 16 : 48) + e / 64 * 32 + e % 32];
      const int n = e / 32 % 2 == 0 ? byte & 15 : byte >> 4;
      return type == DType::kQ4_K ? n : n + 16 * (b[16 + e % 32] >> e / 32 & 1);
    }
    case DType::kQ6_K: {
      const uint8_t byte = b[e / 128 * 64 + e % 64];
      const int n = e % 128 < 64 ? byte & 15 : byte >> 4;
      return n + 16 * (b[128 + e / 128 * 32 + e % 32] >> 2 * (e / 32 % 4) & 3) - 32;
    }
    default:  // IQ4_XS
      return kTable[nibble(b + 8 + 16 * (e / 32), e % 32)];
  }
}

// Integer scale (and min) of the group that element e of a 256-element block is in.
inline int block_scale(DType type, const uint8_t* b, int e, int* min) {
  const int j = e / 32;
  *min = 0;
  if (type == DType::kQ6_K) return static_cast<int8_t>(b[192 + e / 16]);
  if (type == DType::kIQ4_XS) {
    return (b[4 + j / 2] >> 4 * (j % 2) & 15) + 16 * (load_u16(b + 2) >> 2 * j & 3) - 32;
  }
  const uint8_t* s = b + 4;
  *min = j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) + 16 * (s[j] >> 6);
  return j < 4 ? s[j] & 63 : (s[j + 4] & 15) + 16 * (s[j - 4] >> 6);
}

// Quantised activations of n values with one scale.
inline float reference_quantise(const float* x, int n, int* q) {
  float max = 0;
  for (int i = 0; i < n; ++i) max = std::fmax(max, std::fabs(x[i]));
  const float a = max / 127.0f;
  const bool zero = a < 0x1p-126f;
  const float inverse = 1.0f / a;
  for (int i = 0; i < n; ++i) q[i] = zero ? 0 : static_cast<int>(std::nearbyint(x[i] * inverse));
  return zero ? 0.0f : a;
}

// y of one output (a file row) for one input.
inline float reference_product(DType type, const uint8_t* row, const float* x, uint64_t k) {
  float lane[4] = {0, 0, 0, 0};
  for (uint64_t s = 0; s * 256 < k; ++s) {
    float& acc = lane[s % 4];
    const int elems = static_cast<int>(k - s * 256 < 256 ? k - s * 256 : 256);
    const uint8_t* block = row + row_bytes(type, s * 256);
    const float* in = x + s * 256;
    int q[256];
    if (block_elems(type) == 1) {
      for (int i = 0; i < elems; ++i) {
        float w = 0;
        dequantise_row(type, block + row_bytes(type, static_cast<uint64_t>(i)), &w, 1);
        acc = std::fma(w, in[i], acc);
      }
    } else if (block_elems(type) == 256) {
      const float a = reference_quantise(in, 256, q);
      int64_t sum_d = 0;
      int64_t sum_m = 0;
      for (int e = 0; e < 256; ++e) {
        int min = 0;
        const int scale = block_scale(type, block, e, &min);
        sum_d += scale * block_code(type, block, e) * q[e];
        sum_m += min * q[e];
      }
      CHECK(sum_d == static_cast<int32_t>(sum_d));
      float t = f16_to_f32(load_u16(block + scale_offset(type))) * static_cast<float>(sum_d);
      if (has_minimum(type)) t = std::fma(-f16_to_f32(load_u16(block + 2)), static_cast<float>(sum_m), t);
      acc = std::fma(a, t, acc);
    } else {
      for (int j = 0; j < elems / 32; ++j) {
        const uint8_t* b = block + static_cast<uint64_t>(j) * block_bytes(type);
        const float a = reference_quantise(in + 32 * j, 32, q);
        int sum_d = 0;
        int sum_q = 0;
        for (int e = 0; e < 32; ++e) {
          sum_d += block_code(type, b, e) * q[e];
          sum_q += q[e];
        }
        acc = std::fma(f16_to_f32(load_u16(b)) * a, static_cast<float>(sum_d), acc);
        if (has_minimum(type)) acc = std::fma(f16_to_f32(load_u16(b + 2)) * a, static_cast<float>(sum_q), acc);
      }
    }
  }
  return (lane[0] + lane[1]) + (lane[2] + lane[3]);
}

}  // namespace tnd::test
