// Products of 16x16 fragments of halves for attention, over the two families of matrix instructions (runtime_mma.h).
// Kernels use fragments only through these names:
//   A      16 rows x 16 k of a row-major matrix in shared memory
//   B      16 k x 16 columns; stored [column][k] (keys for q k^T) or [k][column] (values for p v)
//   C      16 x 16 sums, 8 a lane: element i is (c_row(i), c_column(i))
// Strides are in halves; rows are 16-byte aligned.
#pragma once

#include "gpu/runtime/runtime_mma.h"

namespace tnd::gpu {

#if defined(TND_GPU_EMU) || defined(TND_GPU_CUDA)
struct MmaUnit {
  static constexpr bool kOneBuffer = false;  // K and V in shared memory together, copied ahead
  static constexpr int kDepth = 2;           // fragments are loaded a step ahead: instructions stay in source order
  static constexpr int kUnroll = 16;
  struct A {
    uint32_t r[4];
  };
  struct B {
    uint32_t r[4];
  };
  struct C {
    float v[8];
  };
};

TND_DEVICE void load_a(MmaUnit::A& f, const uint16_t* m, int stride) {
  const int lane = static_cast<int>(lane_id());
  load_matrix_x4(f.r, m + lane % 16 * stride + lane / 16 * 8);
}
TND_DEVICE void load_b_columns(MmaUnit::B& f, const uint16_t* m, int stride) {
  const int lane = static_cast<int>(lane_id());
  load_matrix_x4(f.r, m + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
}
TND_DEVICE void load_b_rows(MmaUnit::B& f, const uint16_t* m, int stride) {
  const int lane = static_cast<int>(lane_id());
  load_matrix_x4_transposed(f.r, m + (lane % 8 + lane / 8 % 2 * 8) * stride + lane / 16 * 8);
}
TND_DEVICE void multiply(MmaUnit::C& c, const MmaUnit::A& a, const MmaUnit::B& b) {
  float low[4] = {c.v[0], c.v[1], c.v[2], c.v[3]}, high[4] = {c.v[4], c.v[5], c.v[6], c.v[7]};
  const uint32_t first[2] = {b.r[0], b.r[1]}, second[2] = {b.r[2], b.r[3]};
  mma_f16_k16(low, a.r, first);
  mma_f16_k16(high, a.r, second);
#pragma unroll
  for (int i = 0; i < 4; ++i) c.v[i] = low[i], c.v[i + 4] = high[i];
}
TND_DEVICE int c_row(const MmaUnit&, int i) {
  return static_cast<int>(lane_id()) / 4 + (i & 2) * 4;
}
TND_DEVICE int c_column(const MmaUnit&, int i) {
  return i / 4 * 8 + static_cast<int>(lane_id()) % 4 * 2 + (i & 1);
}
#endif

#if defined(TND_GPU_EMU) || defined(TND_GPU_HIP)
template <class MAP>
struct WmmaOperand {
  uint32_t r[MAP::kHalves];
};
template <class MAP>
struct WmmaUnit {
  static constexpr bool kOneBuffer = true;  // 64 KiB of shared memory, no copies in the background
  static constexpr int kDepth = 1;          // the compiler moves loads itself; twice the registers would spill
  static constexpr int kUnroll = 2;
  using A = WmmaOperand<MAP>;
  using B = WmmaOperand<MAP>;
  struct C {
    float v[8];
  };
};

// The lane's part of its row, lane % 16, of which 16 halves begin here; anywhere in memory.
template <class MAP>
TND_DEVICE void load_a_row(WmmaOperand<MAP>& f, const uint16_t* row) {
  load_wmma<MAP>(f.r, row, 16, static_cast<int>(lane_id()));
}
template <class MAP>
TND_DEVICE void load_a(WmmaOperand<MAP>& f, const uint16_t* m, int stride) {
  load_a_row(f, m + static_cast<int>(lane_id()) % 16 * stride);
}
template <class MAP>
TND_DEVICE void load_b_columns(WmmaOperand<MAP>& f, const uint16_t* m, int stride) {
  load_a(f, m, stride);
}
template <class MAP>
TND_DEVICE void load_b_rows(WmmaOperand<MAP>& f, const uint16_t* m, int stride) {
  const int lane = static_cast<int>(lane_id());
  const uint16_t* column = m + MAP::first_k(lane) * stride + lane % 16;
#pragma unroll
  for (int i = 0; i < MAP::kHalves; ++i) {
    f.r[i] = static_cast<uint32_t>(column[2 * i * stride]) | static_cast<uint32_t>(column[(2 * i + 1) * stride]) << 16;
  }
}
template <class C, class MAP>
TND_DEVICE void multiply(C& c, const WmmaOperand<MAP>& a, const WmmaOperand<MAP>& b) {
  wmma_f16(c.v, a.r, b.r);
}
template <class MAP>
TND_DEVICE int c_row(const WmmaUnit<MAP>&, int i) {
  return MAP::row(static_cast<int>(lane_id()), i);
}
template <class MAP>
TND_DEVICE int c_column(const WmmaUnit<MAP>&, int) {
  return static_cast<int>(lane_id()) % 16;
}
#endif

// The unit of the device; the emulation has both and takes MMA's.
#if defined(TND_GPU_HIP)
using FlashUnit = WmmaUnit<DeviceWmma>;
#else
using FlashUnit = MmaUnit;
#endif

}  // namespace tnd::gpu
