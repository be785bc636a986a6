// The matrix instructions of a target for products of pairs (matmul_pairs.cu): 16 outputs times 16 rows of the batch,
// bfloat16, sums in f32. Operand maps are those of runtime_mma.h. For files with kernels.
#pragma once

#include "gpu/matmul/matmul_layout.h"
#include "gpu/runtime/runtime.h"
#include "gpu/runtime/runtime_mma.h"

namespace tnd::gpu {

inline constexpr int kStageSteps = 4;                        // steps of eight elements of k in a stage
inline constexpr int kUnitOuts = 32;                         // outputs of a unit
inline constexpr int kStepBytes = kUnitOuts * 16;            // of a unit
inline constexpr int kUnitBytes = kStageSteps * kStepBytes;  // of a unit in a stage
inline constexpr int kPairResults = 8;                       // of a lane

// Instructions on 16 outputs x 16 rows. Weights and Inputs hold 16 elements of k.
//   kPresent      the target has them
//   load_weights at: the first of 16 outputs in a step of a stage; the next step lies kStepBytes later
//   load_inputs   at: the first column in a step of a stage, [columns][2 parts, swapped by pair_part][16 bytes];
//                 col: of the tile; part 0 = hi, 1 = lo
//   out, column   where result i of a lane belongs
struct PairMma {
  static constexpr bool kPresent = kHasMma;
  struct Weights {
    uint32_t r[4];
  };
  struct Inputs {
    uint32_t r[4];
  };
  struct Sums {
    float d[2][4];
  };
  TND_DEVICE Weights load_weights(const uint8_t* at, int lane) {
    Weights w;
    load_matrix_x4(w.r, at + lane / 16 * kStepBytes + lane % 16 * 16);
    return w;
  }
  template <int COLS>
  TND_DEVICE Inputs load_inputs(const uint8_t* at, int col, int part, int lane) {
    const int column = col + lane / 16 * 8 + lane % 8;
    Inputs x;
    load_matrix_x4(x.r, at + (lane / 8 % 2 * COLS + column) * 32 + pair_part(column, part) * 16);
    return x;
  }
  TND_DEVICE void multiply(Sums* sums, const Weights& w, const Inputs& x) {
    mma_bf16_k16(sums->d[0], w.r, {x.r[0], x.r[1]});
    mma_bf16_k16(sums->d[1], w.r, {x.r[2], x.r[3]});
  }
  TND_DEVICE float result(const Sums& sums, int i) { return sums.d[i / 4][i % 4]; }
  TND_DEVICE int out(int lane, int i) { return lane / 4 + i % 4 / 2 * 8; }
  TND_DEVICE int column(int lane, int i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; }
};

template <class MAP>
struct PairWmma {
  static constexpr bool kPresent = MAP::kPresent;
  struct Weights {
    uint32_t r[MAP::kHalves];
  };
  struct Inputs {
    uint32_t r[MAP::kHalves];
  };
  struct Sums {
    float d[8];
  };
  TND_DEVICE Weights load_weights(const uint8_t* at, int lane) {
    Weights w;
    load_wmma<MAP>(w.r, at + lane % 16 * 16, kStepBytes, lane);
    return w;
  }
  template <int COLS>
  TND_DEVICE Inputs load_inputs(const uint8_t* at, int col, int part, int lane) {
    const int column = col + lane % 16;
    Inputs x;
    load_wmma<MAP>(x.r, at + column * 32 + pair_part(column, part) * 16, COLS * 32, lane);
    return x;
  }
  // Inputs are the first operand, so that a lane's results are all of one output.
  TND_DEVICE void multiply(Sums* sums, const Weights& w, const Inputs& x) { wmma_bf16(sums->d, x.r, w.r); }
  TND_DEVICE float result(const Sums& sums, int i) { return sums.d[i]; }
  TND_DEVICE int out(int lane, int) { return lane % 16; }
  TND_DEVICE int column(int lane, int i) { return MAP::row(lane, i); }
};

// split_halves splits each half into two bfloat16: the nearest one (ties away from zero) and the remainder of at most
// three bits, so the split is exact.
template <class U>
TND_DEVICE void split_halves(typename U::Weights* w, typename U::Weights* low) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(w->r) / 4); ++i) {
    uint32_t& word = w->r[i];
    const float f0 = half_to_float(static_cast<uint16_t>(word));
    const float f1 = half_to_float(static_cast<uint16_t>(word >> 16));
    const uint32_t h0 = (__float_as_uint(f0) + 0x8000u) & 0xFFFF0000u;
    const uint32_t h1 = (__float_as_uint(f1) + 0x8000u) & 0xFFFF0000u;
    constexpr uint32_t kUpperHalves = 0x7632u;
    low->r[i] =
        byte_perm(__float_as_uint(f0 - __uint_as_float(h0)), __float_as_uint(f1 - __uint_as_float(h1)), kUpperHalves);
    word = byte_perm(h0, h1, kUpperHalves);
  }
}

}  // namespace tnd::gpu
