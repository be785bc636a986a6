// One super-block of Q4_K by f16 instructions, with the bits of accumulate() (matmul_accumulate.h). The scale of a
// group is multiplied into its codes, so that no integer multiply-add is left between the matrix instructions: codes
// and inputs as halves, sums in f32.
//
// Why every step is exact: codes are taken from their middle, |scale (n - 8)| <= 63 * 8 = 504 is a half, and a sum over
// the super-block is at most 504 * 127 * 256 < 2^24 in magnitude at any point, whatever the order. What the middle
// leaves out, 8 sum_j scale_j sum q, comes from the sums of q as the mins do; adding it rounds once, as the conversion
// of the integer does. For files with kernels.
#pragma once

#include "gpu/matmul_types.h"

namespace tnd::gpu {

// Words of halves of four codes or inputs: elements 0 and 2, 1 and 3.
struct HalfWords {
  uint32_t even, odd;
};

// The constants that make scale (n - 8) of a code n in bits 4..7 of 1024: (1024 + 16 n) scale / 16 - 72 scale.
struct FoldedScale {
  uint32_t factor, offset;
};
// scales: bytes of four groups, j: which.
TND_DEVICE FoldedScale folded_scale(uint32_t scales, int j) {
  constexpr uint32_t kThousand = 0x64u;  // upper byte of halves 1024 + n
  constexpr uint32_t kSixteenth = 0x2C002C00u, kMinus64 = 0xD400D400u, kMinus1152 = 0xE480E480u;
  const uint32_t scale = byte_perm(scales, kThousand, 0x4040u + static_cast<uint32_t>(j) * 0x0101u);
  const uint32_t factor = fma_halves(scale, kSixteenth, kMinus64);
  return {factor, fma_halves(factor, kMinus1152, 0)};
}

// Codes of one group out of a word of nibbles; high: group 2p + 1 of the pair.
TND_DEVICE HalfWords folded_codes(uint32_t nibbles, int high, const FoldedScale& s) {
  const uint32_t even = (high != 0 ? nibbles : nibbles << 4) & 0x00F000F0u;
  const uint32_t odd = (high != 0 ? nibbles >> 8 : nibbles >> 4) & 0x00F000F0u;
  return {fma_halves(even | 0x64006400u, s.factor, s.offset), fma_halves(odd | 0x64006400u, s.factor, s.offset)};
}

// Four signed bytes as halves: the byte with its top bit flipped is q + 128.
TND_DEVICE HalfWords input_halves(uint32_t bytes) {
  constexpr uint32_t kOne = 0x3C003C00u, kMinus1152 = 0xE480E480u;
  const uint32_t even = (bytes & 0x00FF00FFu) ^ 0x64806480u;
  const uint32_t odd = (bytes >> 8 & 0x00FF00FFu) ^ 0x64806480u;
  return {fma_halves(even, kOne, kMinus1152), fma_halves(odd, kOne, kMinus1152)};
}

// As accumulate() for TypeQ4K and MmaUnit; in: in shared memory, all columns exist.
template <int UNITS, int TILES>
TND_DEVICE void accumulate_folded(const uint8_t* super, int64_t unit_stride, const SuperInput& in, int lane,
                                  float (&acc)[UNITS][TILES][4]) {
  using U = MmaUnit;
  HeadK45<U> head[UNITS];
#pragma unroll
  for (int u = 0; u < UNITS; ++u) head[u] = TypeQ4K<U>::head(super + u * unit_stride, lane);
  float sum[UNITS][TILES][4] = {};
#pragma unroll 1
  for (int p = 0; p < 4; ++p) {
    uint32_t w[UNITS][2][2][4];  // [group of the pair][word]: operands of one instruction
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint2 n = nibble_piece<U>(super + u * unit_stride, p, lane, i);
        const uint32_t scales = p < 2 ? head[u].sc[i][0] : head[u].sc[i][1];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const FoldedScale s = folded_scale(scales, p % 2 * 2 + h);
#pragma unroll
          for (int f = 0; f < 2; ++f) {
            const HalfWords words = folded_codes(f == 0 ? n.x : n.y, h, s);
            w[u][h][f][i] = words.even;
            w[u][h][f][2 + i] = words.odd;
          }
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      const typename U::Input x = U::load_input(in.q + p * in.stride * 64, tile * U::kCols, in.last, lane);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int f = 0; f < 2; ++f) {
          const HalfWords q = input_halves(x.w[h][f]);
#pragma unroll
          for (int u = 0; u < UNITS; ++u) mma_f16_k16(sum[u][tile], w[u][h][f], {q.even, q.odd});
        }
      }
    }
  }
#pragma unroll
  for (int u = 0; u < UNITS; ++u) {
    const typename U::MinOperand min = U::min_operand(head[u].mn, lane), scale = U::min_operand(head[u].sc, lane);
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      float a[4], m[4] = {}, middle[4] = {};
      U::load_columns(in.scale + tile * U::kCols, lane, a);
      U::add_min(m, min, in.sums + tile * U::kCols * 16, lane);
      U::add_min(middle, scale, in.sums + tile * U::kCols * 16, lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int o = U::out_index(i);
        const float t = head[u].d[o] * fmaf(8.0f, middle[i], sum[u][tile][i]);
        acc[u][tile][i] = fmaf(a[i], fmaf(-head[u].dmin[o], m[i], t), acc[u][tile][i]);
      }
    }
  }
}

}  // namespace tnd::gpu
