// The matrix instructions of a target for matmul kernels: products of a unit of 16 outputs with a tile of columns (rows
// of the batch). Operand maps are those of runtime_mma.h; the order of codes and activations in memory
// (matmul_layout.h) follows them, so that operands are plain loads.
//
// A unit type U has
//   kCols      columns of a tile
//   kElems     results of a lane
//   kOuts      different outputs among them, out(lane, o)
//   out_index  which of these result i belongs to; column(lane, i) its column in the tile
//   kPieces    pieces (8 codes of both groups of a pair) that a lane feeds; piece(lane, i) says which of the pair's 64,
//              four of an output
//   Input      activations of a tile for a pair of groups; dot32, dot16 multiply one group, or half F of one
//   MinOperand, add_min   exact sums of mins times sums of activations (integers below 2^24, exact in f32)
//   kRing      weights come through shared memory by asynchronous copies
#pragma once

#include "gpu/runtime/runtime.h"
#include "gpu/runtime/runtime_mma.h"

namespace tnd::gpu {

// half_pair returns byte i of a word twice, as two halves 1024 + n.
TND_DEVICE uint32_t half_pair(uint32_t w, int i) {
  return byte_perm(w, 0x64646464u, 0x4040u + static_cast<uint32_t>(i) * 0x0101u);
}

// packed_mins decodes the words of Q4_K and Q5_K that hold mins: bytes of the first are the mins of groups 0..3, above
// them the top bits of those of groups 4..7, whose low bits are the high nibbles of the second.
TND_DEVICE void packed_mins(const uint32_t (&words)[2], uint32_t (&mn)[2]) {
  mn[0] = words[0] & 0x3F3F3F3Fu;
  mn[1] = (words[1] >> 4 & 0x0F0F0F0Fu) | (words[0] >> 2 & 0x30303030u);
}

// NVIDIA: m16n8k32. Weights are the 16-row operand.
struct MmaUnit {
  static constexpr int kCols = 8, kElems = 4, kOuts = 2, kPieces = 2;
  static constexpr bool kRing = true;

  TND_DEVICE int out(int lane, int o) { return lane / 4 + 8 * o; }
  TND_DEVICE constexpr int out_index(int i) { return i / 2; }
  TND_DEVICE int column(int lane, int i) { return lane % 4 * 2 + i % 2; }
  TND_DEVICE int piece(int lane, int i) { return lane + 32 * i; }

  struct Input {
    uint32_t w[2][2];  // [group of the pair][word]
  };
  // pair: a pair's [columns][64]; col0: of the tile. Columns beyond `last` get the activations of `last`: a condition
  // would cost a branch for every load, and reading other columns costs traffic.
  TND_DEVICE Input load_input(const int8_t* pair, int col0, int last, int lane) {
    const int column = col0 + lane / 4 < last ? col0 + lane / 4 : last;
    const uint4 v = *reinterpret_cast<const uint4*>(pair + column * 64 + lane % 4 * 16);
    return {{{v.x, v.y}, {v.z, v.w}}};
  }
  TND_DEVICE void dot32(int32_t (&d)[4], const uint32_t (&w)[2][2], const uint32_t (&x)[2]) {
    mma_s8_k32(d, {w[0][0], w[1][0], w[0][1], w[1][1]}, x);
  }
  TND_DEVICE void dot32_unsigned(int32_t (&d)[4], const uint32_t (&w)[2][2], const uint32_t (&x)[2]) {
    mma_u8_k32(d, {w[0][0], w[1][0], w[0][1], w[1][1]}, x);
  }
  template <int F>
  TND_DEVICE void dot16(int32_t (&d)[4], const uint32_t (&w)[2][2], const uint32_t (&x)[2]) {
    mma_s8_k16(d, {w[0][F], w[1][F]}, {x[F]});
  }

  struct MinOperand {
    uint32_t a[4];
  };
  // words: as packed_mins() takes them, per output of the lane.
  TND_DEVICE MinOperand min_operand(const uint32_t (&words)[2][2], int lane) {
    MinOperand min;
#pragma unroll
    for (int o = 0; o < 2; ++o) {
      const uint32_t low = half_pair(words[o][0], lane % 4), high = half_pair(words[o][1], lane % 4);
      min.a[o] = half2_subtract(low & 0x643F643Fu, 0x64006400u);
      // (1024 + 16 n) / 16 - 320 + (1024 + 64 m) / 4 = n + 16 m
      const uint32_t bits = fma_halves(high & 0x64F064F0u, 0x2C002C00u, 0xDD00DD00u);
      min.a[2 + o] = fma_halves(low & 0x64C064C0u, 0x34003400u, bits);
    }
    return min;
  }
  // sums: column 0 of the tile in [columns][16].
  TND_DEVICE void add_min(float (&m)[4], const MinOperand& min, const uint16_t* sums, int lane) {
    const uint2 b = *reinterpret_cast<const uint2*>(sums + lane * 4);
    mma_f16_k16(m, min.a, {b.x, b.y});
  }
  // Values of the columns that the results of a lane belong to.
  TND_DEVICE void load_columns(const float* p, int lane, float (&v)[4]) {
    const float2 pair = *reinterpret_cast<const float2*>(p + lane % 4 * 2);
    v[0] = v[2] = pair.x;
    v[1] = v[3] = pair.y;
  }
};

// AMD: 16x16x16. Activations are the first operand, so that a lane's results are all of one output.
template <class MAP>
struct WmmaUnit {
  static constexpr int kCols = 16, kElems = 8, kOuts = 1, kPieces = MAP::kBytes;
  static constexpr bool kRing = false;

  TND_DEVICE int out(int lane, int) { return lane % 16; }
  TND_DEVICE constexpr int out_index(int) { return 0; }
  TND_DEVICE int column(int lane, int i) { return MAP::row(lane, i); }
  TND_DEVICE int piece(int lane, int i) { return lane % 16 * 4 + MAP::first_k(lane) / 4 + i; }

  struct Input {
    uint32_t w[2][2 * kPieces];  // [group of the pair][half of the group, piece]
  };
  TND_DEVICE Input load_input(const int8_t* pair, int col0, int last, int lane) {
    const int column = col0 + lane % 16 < last ? col0 + lane % 16 : last;
    const int8_t* from = pair + column * 64 + MAP::first_k(lane) * 4;
    Input in;
#pragma unroll
    for (int t = 0; t < kPieces; ++t) {
      const uint4 v = *reinterpret_cast<const uint4*>(from + 16 * t);
      in.w[0][t] = v.x, in.w[0][kPieces + t] = v.y;
      in.w[1][t] = v.z, in.w[1][kPieces + t] = v.w;
    }
    return in;
  }
  TND_DEVICE void dot32(int32_t (&d)[8], const uint32_t (&w)[kPieces][2], const uint32_t (&x)[2 * kPieces]) {
    dot16<0>(d, w, x);
    dot16<1>(d, w, x);
  }
  template <int F>
  TND_DEVICE void dot16(int32_t (&d)[8], const uint32_t (&w)[kPieces][2], const uint32_t (&x)[2 * kPieces]) {
    uint32_t a[kPieces], b[kPieces];
#pragma unroll
    for (int t = 0; t < kPieces; ++t) a[t] = x[kPieces * F + t], b[t] = w[t][F];
    wmma_iu8<true, true>(d, a, b);
  }

  struct MinOperand {
    uint32_t a[MAP::kHalves];
  };
  TND_DEVICE MinOperand min_operand(const uint32_t (&words)[1][2], int lane) {
    uint32_t mn[2];
    packed_mins(words[0], mn);
    MinOperand min;
#pragma unroll
    for (int i = 0; i < MAP::kHalves; ++i) {  // as sum_position(): two bytes of each word are 8 of k
      const uint32_t word = mn[i % 2] >> MAP::first_k(lane) * 2;
      min.a[i] = half2_subtract(half_pair(word, i / 2), 0x64006400u);
    }
    return min;
  }
  TND_DEVICE void add_min(float (&m)[8], const MinOperand& min, const uint16_t* sums, int lane) {
    uint32_t a[MAP::kHalves];
    load_wmma<MAP>(a, sums + lane % 16 * 16, 16, lane);
    wmma_f16(m, a, min.a);
  }
  TND_DEVICE void load_columns(const float* p, int lane, float (&v)[8]) {
    if constexpr (MAP::kRowsFollow) {
      const float4* from = reinterpret_cast<const float4*>(p + MAP::row(lane, 0));
      const float4 a = from[0], b = from[1];
      v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
      v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = p[MAP::row(lane, i)];
    }
  }
};

// Targets without matrix instructions: the maps of gfx11 by shuffles and dp4a.
struct DotUnit : WmmaUnit<Wmma11> {
  TND_DEVICE void dot32(int32_t (&d)[8], const uint32_t (&w)[4][2], const uint32_t (&x)[8]) {
    dot16<0>(d, w, x);
    dot16<1>(d, w, x);
  }
  template <int F>
  TND_DEVICE void dot16(int32_t (&d)[8], const uint32_t (&w)[4][2], const uint32_t (&x)[8]) {
    const int half = static_cast<int>(lane_id()) / 16;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        d[i] = dp4a(static_cast<int32_t>(w[t][F]), static_cast<int32_t>(shfl(x[4 * F + t], 2 * i + half)), d[i]);
      }
    }
  }
  TND_DEVICE void add_min(float (&m)[8], const MinOperand& min, const uint16_t* sums, int lane) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t* row = reinterpret_cast<const uint32_t*>(sums + (2 * i + lane / 16) * 16);
#pragma unroll
      for (int word = 0; word < 8; ++word) {
        const float n = half_to_float(static_cast<uint16_t>(min.a[word]));
        m[i] += n * (half_to_float(static_cast<uint16_t>(row[word])) +
                     half_to_float(static_cast<uint16_t>(row[word] >> 16)));
      }
    }
  }
};

#if defined(TND_GPU_HIP)
// One name on all processors and on the host, like DeviceWmma.
struct DeviceUnit : std::conditional_t<DeviceWmma::kPresent, WmmaUnit<DeviceWmma>, DotUnit> {};
#else
using DeviceUnit = MmaUnit;
#endif

}  // namespace tnd::gpu
