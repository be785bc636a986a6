// The matrix instructions of a target for products of few rows with 16-bit float weights (matmul_half.cu). They are
// those of matmul_pair_unit.h, but for the fewest rows that an instruction takes, with both parts of the inputs at
// once. For files with kernels.
#pragma once

#include "gpu/matmul/matmul_pair_unit.h"

namespace tnd::gpu {

// Instructions on 16 outputs x kCols rows and 16 elements of k.
//   kPresent      the target has them
//   kRings        copies run in the background, so rings have several places
//   load_weights at: the first of 16 outputs in a step; the next step lies kStepBytes later
//   load_inputs   at: [2 steps][rows][2 parts, swapped by pair_part][16 bytes]; columns col + i beyond `rows` are the
//   last out, column   where result i of a lane belongs
struct HalfMma {
  static constexpr bool kPresent = kHasMma, kRings = true;
  static constexpr int kCols = 8, kResults = 4;
  using Weights = PairMma::Weights;
  struct Inputs {
    uint32_t hi[2], lo[2];
  };
  struct Sums {
    float d[kResults];
  };
  TND_DEVICE Weights load_weights(const uint8_t* at, int lane) { return PairMma::load_weights(at, lane); }
  TND_DEVICE Inputs load_inputs(const uint8_t* at, int col, int rows, int lane) {
    int column = col + lane % 8;
    column = column < rows ? column : rows - 1;
    uint32_t r[4];
    load_matrix_x4(r, at + (lane / 8 % 2 * rows + column) * 32 + pair_part(column, lane / 16) * 16);
    return {{r[0], r[1]}, {r[2], r[3]}};
  }
  TND_DEVICE void multiply(Sums* sums, const Weights& w, const uint32_t (&x)[2]) { mma_bf16_k16(sums->d, w.r, x); }
  TND_DEVICE int out(int lane, int i) { return lane / 4 + i / 2 * 8; }
  TND_DEVICE int column(int lane, int i) { return lane % 4 * 2 + i % 2; }
};

template <class MAP>
struct HalfWmma {
  static constexpr bool kPresent = MAP::kPresent, kRings = false;
  static constexpr int kCols = 16, kResults = 8;
  using Weights = typename PairWmma<MAP>::Weights;
  struct Inputs {
    uint32_t hi[MAP::kHalves], lo[MAP::kHalves];
  };
  struct Sums {
    float d[kResults];
  };
  TND_DEVICE Weights load_weights(const uint8_t* at, int lane) { return PairWmma<MAP>::load_weights(at, lane); }
  TND_DEVICE Inputs load_inputs(const uint8_t* at, int col, int rows, int lane) {
    int column = col + lane % 16;
    column = column < rows ? column : rows - 1;
    Inputs x;
    load_wmma<MAP>(x.hi, at + column * 32 + pair_part(column, 0) * 16, rows * 32, lane);
    load_wmma<MAP>(x.lo, at + column * 32 + pair_part(column, 1) * 16, rows * 32, lane);
    return x;
  }
  TND_DEVICE void multiply(Sums* sums, const Weights& w, const uint32_t (&x)[MAP::kHalves]) {
    wmma_bf16(sums->d, x, w.r);
  }
  TND_DEVICE int out(int lane, int) { return lane % 16; }
  TND_DEVICE int column(int lane, int i) { return MAP::row(lane, i); }
};

}  // namespace tnd::gpu
