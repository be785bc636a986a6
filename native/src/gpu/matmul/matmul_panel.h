// Weights for products of panels (matmul_panels.cu): 16 outputs x 16 elements of k as operand A of an instruction with
// 16-bit floats, decoded in registers. Contract: NUMERICS.md, "Prompts through quantised weights" and "Prompts through
// float weights". For files with kernels.
#pragma once

#include "gpu/matmul/matmul_layout.h"
#include "gpu/matmul/matmul_types.h"

namespace tnd::gpu {

// Both halves f of a group.
struct GroupOperands {
  uint32_t a[2][4];
};

// Quantised weights of a type of matmul_types.h. The integers of the type become halves exactly; its scale, times the
// power of two `scale`, is rounded to half once, as is its minimum, and a weight is one product or fma of halves. The
// instruction's k is in the order of panel_at().
template <template <class> class TYPE>
struct PanelWeights {
  using T = TYPE<MmaUnit>;
  static constexpr int kBytes = T::kBytes;
  struct Head {
    typename T::Head of;
    float scale;
  };
  struct Codes {
    uint32_t w[2][MmaUnit::kPieces][2];
  };
  TND_DEVICE Head head(const uint8_t* super, int lane, float scale) { return {T::head(super, lane), scale}; }
  TND_DEVICE Codes codes(const uint8_t* super, const Head& head, int p, int lane) {
    Codes c;
    T::words(super, head.of, p, lane, c.w);
    return c;
  }

  // Group 2 P + H.
  template <int P, int H>
  TND_DEVICE GroupOperands operands(const Head& head, const Codes& codes) {
    constexpr int kGroup = 2 * P + H;
    // Bytes above 1024 are 1024 + byte; signed ones have their top bit flipped first.
    constexpr uint32_t kFlip = T::kMin ? 0u : 0x80808080u, kAbove = T::kMin ? 0x64006400u : 0x64806480u;
    GroupOperands r;
#pragma unroll
    for (int o = 0; o < 2; ++o) {
      uint32_t min = 0;
      if constexpr (T::kMin) min = twice(-min_of<kGroup>(head, o));
#pragma unroll
      for (int f = 0; f < 2; ++f) {
        const uint32_t bytes = codes.w[H][o][f] ^ kFlip;
        const uint32_t even = half2_subtract(byte_perm(bytes, 0x64646464u, 0x4240), kAbove);
        const uint32_t odd = half2_subtract(byte_perm(bytes, 0x64646464u, 0x4341), kAbove);
        const uint32_t scale = twice(scale_of(head, o, kGroup, f));
        r.a[f][o] = T::kMin ? fma_halves(even, scale, min) : half2_multiply(even, scale);
        r.a[f][o + 2] = T::kMin ? fma_halves(odd, scale, min) : half2_multiply(odd, scale);
      }
    }
    return r;
  }

 private:
  TND_DEVICE uint32_t twice(float v) { return pack_halves(v, v); }
  TND_DEVICE float scale_of(const Head& head, int o, int j, int f) {
    if constexpr (T::kForm == kFormQ256) {
      const int integer = T::scale(head.of, o, T::kGroup == 16 ? 2 * j + f : j);
      return static_cast<float>(integer) * (head.of.d[o] * (head.scale * T::kUnscale));
    } else {
      return half_of(head.of.d.v[o], j) * (head.scale * T::kUnscale);
    }
  }
  template <int J>
  TND_DEVICE float min_of(const Head& head, int o) {
    if constexpr (T::kForm == kFormQ256) {
      uint32_t mn[2];
      packed_mins(head.of.mn[o], mn);
      return static_cast<float>(byte_of(mn, J)) * (head.of.dmin[o] * head.scale);
    } else {
      return -(half_of(head.of.m.v[o], J) * head.scale);
    }
  }
};

}  // namespace tnd::gpu
