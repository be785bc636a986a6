// One super-block of the contract (NUMERICS.md) for one warp: UNITS units of 16 outputs times TILES tiles of columns.
// Everything between the two float steps is integer, hence exact in any order. All kernels share the float steps here.
// For files with kernels.
#pragma once

#include "gpu/matmul/matmul_types.h"

namespace tnd::gpu {

// Activations of one super-block, in global or shared memory; column 0 is the warp's first.
struct SuperInput {
  const int8_t* q;       // [4][stride][64]
  const uint16_t* sums;  // [stride][16]
  const float* scale;    // kFormQ256 [stride], kFormQ32 [8][stride]
  const float* sum32;    // [8][stride]
  int stride;            // columns
  int last;              // column that exists
};

// global_input returns columns row0 .. of super-block s.
template <uint32_t FORM>
TND_DEVICE SuperInput global_input(const ActsView& acts, int s, int row0, int rows) {
  const int64_t stride = acts.row_stride;
  if constexpr (FORM == kFormQ256) {
    return {acts.q256 + (s * 4 * stride + row0) * 64,
            acts.sum16 + (s * stride + row0) * 16,
            acts.scale256 + s * stride + row0,
            nullptr,
            acts.row_stride,
            rows - row0 - 1};
  } else {
    return {acts.q32 + (s * 4 * stride + row0) * 64, nullptr,         acts.scale32 + s * 8 * stride + row0,
            acts.sum32 + s * 8 * stride + row0,      acts.row_stride, rows - row0 - 1};
  }
}

// Turns an integer sum into a float: a sum n that starts at this value instead of 0 has the bits of the float 1.5 *
// 2^23 + n, for |n| < 2^22.
inline constexpr int32_t kFloatBias = 0x4B400000;

// acc += one super-block. super: of the first unit, the others unit_stride bytes apart.
template <class U, template <class> class TYPE, int UNITS, int TILES>
TND_DEVICE void accumulate(const uint8_t* super, int64_t unit_stride, const SuperInput& in, int lane,
                           float (&acc)[UNITS][TILES][U::kElems]) {
  using T = TYPE<U>;
  // If this is unrolled, compilers load the operands of all pairs first. Wide tiles, and targets that read weights
  // straight from memory, have no registers for that.
  [[maybe_unused]] constexpr int kPairUnroll = UNITS > 1 || !U::kRing ? 1 : 4;
  typename T::Head head[UNITS];
#pragma unroll
  for (int u = 0; u < UNITS; ++u) head[u] = T::head(super + u * unit_stride, lane);

  if constexpr (T::kForm == kFormQ256) {
    int32_t sum[UNITS][TILES][U::kElems] = {};
#pragma unroll kPairUnroll
    for (int p = 0; p < 4; ++p) {
      uint32_t w[UNITS][2][U::kPieces][2];
#pragma unroll
      for (int u = 0; u < UNITS; ++u) T::words(super + u * unit_stride, head[u], p, lane, w[u]);
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        const typename U::Input x = U::load_input(in.q + p * in.stride * 64, tile * U::kCols, in.last, lane);
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            if constexpr (T::kGroup == 32) {
              int32_t d[U::kElems] = {};
              if constexpr (T::kUnsigned) {
                U::dot32_unsigned(d, w[u][h], x.w[h]);
              } else {
                U::dot32(d, w[u][h], x.w[h]);
              }
#pragma unroll
              for (int i = 0; i < U::kElems; ++i) {
                sum[u][tile][i] += mul24(T::scale(head[u], U::out_index(i), 2 * p + h), d[i]);
              }
            } else {
              int32_t d0[U::kElems] = {}, d1[U::kElems] = {};
              U::template dot16<0>(d0, w[u][h], x.w[h]);
              U::template dot16<1>(d1, w[u][h], x.w[h]);
#pragma unroll
              for (int i = 0; i < U::kElems; ++i) {
                sum[u][tile][i] += mul24(T::scale(head[u], U::out_index(i), 4 * p + 2 * h), d0[i]);
                sum[u][tile][i] += mul24(T::scale(head[u], U::out_index(i), 4 * p + 2 * h + 1), d1[i]);
              }
            }
          }
        }
      }
    }
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
      typename U::MinOperand min{};
      if constexpr (T::kMin) min = U::min_operand(head[u].mn, lane);
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        float a[U::kElems], m[U::kElems] = {};
        U::load_columns(in.scale + tile * U::kCols, lane, a);
        if constexpr (T::kMin) U::add_min(m, min, in.sums + tile * U::kCols * 16, lane);
#pragma unroll
        for (int i = 0; i < U::kElems; ++i) {
          const int o = U::out_index(i);
          float t = (head[u].d[o] * T::kUnscale) * static_cast<float>(sum[u][tile][i]);
          if constexpr (T::kMin) t = fmaf(-head[u].dmin[o], m[i], t);
          acc[u][tile][i] = fmaf(a[i], t, acc[u][tile][i]);
        }
      }
    }
  } else {
#pragma unroll kPairUnroll
    for (int p = 0; p < 4; ++p) {
      uint32_t w[UNITS][2][U::kPieces][2];
#pragma unroll
      for (int u = 0; u < UNITS; ++u) T::words(super + u * unit_stride, head[u], p, lane, w[u]);
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        const typename U::Input x = U::load_input(in.q + p * in.stride * 64, tile * U::kCols, in.last, lane);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int j = 2 * p + h;
          float a[U::kElems], m[U::kElems];
          U::load_columns(in.scale + j * in.stride + tile * U::kCols, lane, a);
          if constexpr (T::kMin) U::load_columns(in.sum32 + j * in.stride + tile * U::kCols, lane, m);
#pragma unroll
          for (int u = 0; u < UNITS; ++u) {
            int32_t d[U::kElems];
#pragma unroll
            for (int i = 0; i < U::kElems; ++i) d[i] = kFloatBias;
            U::dot32(d, w[u][h], x.w[h]);
#pragma unroll
            for (int i = 0; i < U::kElems; ++i) {
              const int o = U::out_index(i);
              // (bias + n) * unscale - bias * unscale: both products and the result are exact.
              const float n = fmaf(__int_as_float(d[i]), T::kUnscale, -12582912.0f * T::kUnscale);
              float& to = acc[u][tile][i];
              to = fmaf(half_of(head[u].d.v[o], j) * a[i], n, to);
              if constexpr (T::kMin) to = fmaf(half_of(head[u].m.v[o], j) * a[i], m[i], to);
            }
          }
        }
      }
    }
  }
}

}  // namespace tnd::gpu
