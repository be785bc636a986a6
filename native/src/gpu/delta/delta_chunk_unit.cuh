// Products of 16x16 tiles for the chunked delta rule, over the two families of matrix instructions (runtime_mma.h).
// Kernels use tiles only through these names:
//   Halves   a 16x16 operand, [index][k]; a number is the sum of two halves, hi + lo, times a power of two
//   Tile     16x16 sums, 8 a lane: element e is (tile_row() + Unit::row(e), tile_column() + Unit::column(e)), of which
//            the second parts are constants
//   multiply c[x][y] += sum over k of X[x][k] Y[y][k], without lo * lo: 22 of the 24 bits of a product of floats
//   turn a Tile as operand [column][row], without going through memory, so that the result of one product is the
//            operand of the next
// On NVIDIA the accumulator fragment has the layout of operand A. Y is therefore passed as A, tiles are kept
// transposed, and turn moves nothing. On AMD a lane's accumulators are rows: consecutive ones on gfx12, as in a lane's
// operand; every other one on gfx11, where turn exchanges them between the halves of a wave.
#pragma once

#include "gpu/runtime/runtime_mma.h"

namespace tnd::gpu {

struct Tile {
  float v[8];
};
TND_DEVICE void clear(Tile& c) {
#pragma unroll
  for (int e = 0; e < 8; ++e) c.v[e] = 0.0f;
}

TND_DEVICE void no_sink(Tile& c) {
#pragma unroll
  for (int e = 0; e < 8; ++e) no_sink(c.v[e]);
}

// Operands lie in memory as they lie in registers: 512 bytes of hi, 512 of lo, 16 bytes a lane at a time.
constexpr int kHalvesBytes = 1024;
constexpr int kTileFloatBytes = 16 * 16 * static_cast<int>(sizeof(float));
// The power of two that scales numbers of at most 1 into the range where both halves, hi and lo, have all their bits.
constexpr int kTopPower = 14;
constexpr float kUnitScale = 0x1p14f, kUnitInverse = 0x1p-14f;

#if defined(TND_GPU_EMU) || defined(TND_GPU_CUDA)
struct DeltaMma {
  static constexpr int kRegs = 4;
  static constexpr int kWide = 1;  // pieces of 16 bytes of a lane's registers
  static constexpr int kLanes = 32;
  // Blocks a processor, which bounds the registers, and places in the ring of the second kernel where there is room.
  static constexpr int kPrepareBlocks = 3, kStateBlocks = 1, kManyPlaces = 7;
  static constexpr bool kAhead = true;  // numbers of the next step are loaded while registers last
  static constexpr int kTogether = 2;   // tiles of W and U
  static constexpr int kCopies = 8;     // copies of a thread that are started together
  static constexpr int row(int e) { return (e & 4) * 2 + (e & 1); }
  static constexpr int column(int e) { return (e & 2) * 4; }
};
// Registers in the order of two B operands: X comes from memory in fours, and B takes two neighbours. Y is made in
// registers, in any order.
TND_DEVICE int operand_index(DeltaMma, int r) {
  return static_cast<int>(lane_id()) / 4 + (r & 2) * 4;
}
TND_DEVICE int operand_k(DeltaMma, int r) {
  return static_cast<int>(lane_id()) % 4 * 2 + (r & 1) * 8;
}
TND_DEVICE int tile_row(DeltaMma) {
  return static_cast<int>(lane_id()) % 4 * 2;
}
TND_DEVICE int tile_column(DeltaMma) {
  return static_cast<int>(lane_id()) / 4;
}
TND_DEVICE void multiply_halves(DeltaMma, Tile& c, const uint32_t (&x)[4], const uint32_t (&y)[4]) {
  float low[4] = {c.v[0], c.v[1], c.v[2], c.v[3]}, high[4] = {c.v[4], c.v[5], c.v[6], c.v[7]};
  const uint32_t first[2] = {x[0], x[1]}, second[2] = {x[2], x[3]}, a[4] = {y[0], y[2], y[1], y[3]};
  mma_f16_k16(low, a, first);
  mma_f16_k16(high, a, second);
#pragma unroll
  for (int i = 0; i < 4; ++i) c.v[i] = low[i], c.v[i + 4] = high[i];
}
#endif

#if defined(TND_GPU_EMU) || defined(TND_GPU_HIP)
template <class MAP>
struct DeltaWmma {
  static constexpr int kRegs = MAP::kHalves;
  static constexpr int kWide = MAP::kHeld / 8;
  static constexpr int kLanes = 16 * 16 / MAP::kHeld;  // the others hold the same
  static constexpr int kPrepareBlocks = 1, kStateBlocks = 1, kManyPlaces = 3;
  static constexpr bool kAhead = false;
  static constexpr int kTogether = 1;
  static constexpr int kCopies = 2;
  TND_DEVICE constexpr int row(int e) { return MAP::row(0, e); }
  static constexpr int column(int) { return 0; }
};
template <class MAP>
TND_DEVICE int operand_index(DeltaWmma<MAP>, int) {
  return static_cast<int>(lane_id()) % 16;
}
template <class MAP>
TND_DEVICE int operand_k(DeltaWmma<MAP>, int r) {
  return MAP::first_k(static_cast<int>(lane_id())) + 2 * r;
}
template <class MAP>
TND_DEVICE int tile_row(DeltaWmma<MAP>) {
  return MAP::row(static_cast<int>(lane_id()), 0);
}
template <class MAP>
TND_DEVICE int tile_column(DeltaWmma<MAP>) {
  return static_cast<int>(lane_id()) % 16;
}
template <class MAP>
TND_DEVICE void multiply_halves(DeltaWmma<MAP>, Tile& c, const uint32_t (&x)[MAP::kHalves],
                                const uint32_t (&y)[MAP::kHalves]) {
  wmma_f16(c.v, x, y);
  keep_order();
}
#endif

template <class Unit>
struct Halves {
  uint32_t hi[Unit::kRegs], lo[Unit::kRegs];
};

// split_pair makes hi and lo of two scaled numbers.
TND_DEVICE void split_pair(float a, float b, uint32_t* hi, uint32_t* lo) {
  const uint32_t h = pack_halves(a, b);
  *hi = h;
  *lo = pack_halves(a - half_to_float(static_cast<uint16_t>(h)), b - half_to_float(static_cast<uint16_t>(h >> 16)));
}

// make_halves takes pair(index, k) = elements k and k + 1, scaled.
template <class Unit, typename Pair>
TND_DEVICE void make_halves(Halves<Unit>& f, const Pair& pair) {
#pragma unroll
  for (int r = 0; r < Unit::kRegs; ++r) {
    const float2 p = pair(operand_index(Unit{}, r), operand_k(Unit{}, r));
    split_pair(p.x, p.y, &f.hi[r], &f.lo[r]);
  }
}

// load_halves and store_halves: `at` is a tile of kHalvesBytes, in shared or global memory.
template <class Unit>
TND_DEVICE void load_halves(Halves<Unit>& f, const uint8_t* at) {
  const uint8_t* from = at + lane_id() % Unit::kLanes * 16;
#pragma unroll
  for (int i = 0; i < Unit::kWide; ++i) {
    const uint4 h = *reinterpret_cast<const uint4*>(from + i * Unit::kLanes * 16);
    const uint4 l = *reinterpret_cast<const uint4*>(from + i * Unit::kLanes * 16 + kHalvesBytes / 2);
    f.hi[4 * i] = h.x, f.hi[4 * i + 1] = h.y, f.hi[4 * i + 2] = h.z, f.hi[4 * i + 3] = h.w;
    f.lo[4 * i] = l.x, f.lo[4 * i + 1] = l.y, f.lo[4 * i + 2] = l.z, f.lo[4 * i + 3] = l.w;
  }
}
template <class Unit>
TND_DEVICE void store_halves(const Halves<Unit>& f, uint8_t* at) {
  const bool second = lane_id() >= Unit::kLanes;  // each half of a wave stores one piece
  const auto piece = [&](const uint32_t(&r)[Unit::kRegs]) {
    constexpr int kUp = Unit::kRegs - 4;
    return make_uint4(second ? r[kUp] : r[0], second ? r[kUp + 1] : r[1], second ? r[kUp + 2] : r[2],
                      second ? r[kUp + 3] : r[3]);
  };
  *reinterpret_cast<uint4*>(at + lane_id() * 16) = piece(f.hi);
  *reinterpret_cast<uint4*>(at + lane_id() * 16 + kHalvesBytes / 2) = piece(f.lo);
}

// load_tile and store_tile: sums in memory, kTileFloatBytes, in the order of registers.
TND_DEVICE void load_tile(Tile& c, const uint8_t* at) {
  const float4* from = reinterpret_cast<const float4*>(at) + lane_id();
  const float4 a = from[0], b = from[TND_WARP];
  c = Tile{{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
TND_DEVICE void store_tile(const Tile& c, float factor, uint8_t* at) {
  float4* to = reinterpret_cast<float4*>(at) + lane_id();
  to[0] = make_float4(c.v[0] * factor, c.v[1] * factor, c.v[2] * factor, c.v[3] * factor);
  to[TND_WARP] = make_float4(c.v[4] * factor, c.v[5] * factor, c.v[6] * factor, c.v[7] * factor);
}

template <class Unit>
TND_DEVICE void multiply(Tile& c, const Halves<Unit>& x, const Halves<Unit>& y) {
  multiply_halves(Unit{}, c, x.hi, y.lo);
  multiply_halves(Unit{}, c, x.lo, y.hi);
  multiply_halves(Unit{}, c, x.hi, y.hi);
}

// turn takes value(e) of a tile's elements, scaled.
#if defined(TND_GPU_EMU) || defined(TND_GPU_CUDA)
template <typename Value>
TND_DEVICE void turn(Halves<DeltaMma>& f, const Value& value) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int e = (r & 1) * 4 + (r & 2);
    split_pair(value(e), value(e + 1), &f.hi[r], &f.lo[r]);
  }
}
#endif
#if defined(TND_GPU_EMU) || defined(TND_GPU_HIP)
template <class MAP, typename Value>
TND_DEVICE void turn(Halves<DeltaWmma<MAP>>& f, const Value& value) {
  if constexpr (MAP::kRowsFollow) {
#pragma unroll
    for (int r = 0; r < MAP::kHalves; ++r) split_pair(value(2 * r), value(2 * r + 1), &f.hi[r], &f.lo[r]);
  } else {
    const bool odd = lane_id() >= 16;  // the lane holds rows 2r + 1
#pragma unroll
    for (int r = 0; r < MAP::kHalves; ++r) {
      const float x = value(r);
      const uint16_t h = float_to_half(x);
      const uint32_t mine = static_cast<uint32_t>(float_to_half(x - half_to_float(h))) << 16 | h;
      const uint32_t other = shfl_xor(mine, 16);
      const uint32_t even_row = odd ? other : mine, odd_row = odd ? mine : other;
      f.hi[r] = byte_perm(even_row, odd_row, 0x5410);
      f.lo[r] = byte_perm(even_row, odd_row, 0x7632);
    }
  }
}
#endif

// power_below returns the exponent e with 2^e <= x < 2^(e+1), kept where 2^(14 - e) and its inverse are normal numbers.
TND_DEVICE int power_below(float x) {
  const int e = static_cast<int>(__float_as_uint(x) >> 23 & 0xFFu) - 127;
  return e < -100 ? -100 : e;
}
TND_DEVICE float power_of_two(int e) {
  return __uint_as_float(static_cast<uint32_t>(e + 127) << 23);
}

}  // namespace tnd::gpu
