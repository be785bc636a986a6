// Memory layouts behind matmul.h: packed weight tiles and activation panels. Internal to src/cpu/matmul* and quantise*.
//
// Weights. A tile is 16 outputs x k. Its super-blocks of 256 elements are consecutive, and so are tiles: one tile is
// one contiguous stream. The unit of all codes is the *chunk*: 64 bytes = [16 outputs][4 elements], which one
// dot-product instruction of 16 lanes multiplies by one broadcast quad of activations; lane = output, so that nothing
// is ever summed across lanes. Element quads of 32 elements are numbered c = 0..7. Everything in a super-block is
// 64-byte aligned except half-float vectors (32 bytes). Below [x][16] means the 16 outputs are the fastest index.
//
//   Q4_K    d f16[16] | dmin f16[16] | sc u8[8][16] | mn u8[4][16][2] (groups 2i, 2i+1) |
//           chunk (i, c), i < 4: low nibbles quad c of group 2i, high nibbles quad c of group 2i+1          2368 bytes
//   Q5_K    the same, then plane chunk c: bit j = fifth bit of quad c of group j                            2880
//   Q6_K    d f16[16] | 32 bytes unused | sc i8[8][16][2] (groups 2i, 2i+1 of 16) |
//           chunk (h, u, c): low nibbles quad c of quarter u of half h, high nibbles of quarter u+2 |
//           plane chunk (h, c): bits 2t, 2t+1 = upper bits of quad c of quarter t of half h                 3392
//   IQ4_XS  d f16[16] | 32 unused | (ls-32) i8[4][16][2] | chunk (j, c), c < 4: low nibbles quad c of group j, high
//           nibbles quad c+4                                                                                2240
//   32-element blocks: a super-block has nb = 8 blocks (fewer in a short last one), first all scales, then all codes
//   Q8_0    d f16[nb][16] padded to 64 | chunk (b, c), c < 8, of code + 128                                 4352
//   Q4_0, IQ4_NL  d f16[nb][16] padded to 64 | chunk (b, c), c < 4, nibbles as in IQ4_XS                    2304
//   Q4_1    d, m f16[nb][2][16] | chunks as Q4_0                                                            2560
//   Q5_0    as Q4_0, then one plane chunk per block: bit c = fifth bit of quad c                            2816
//   Q5_1    as Q4_1, then planes as Q5_0                                                                    3072
//   F32     f32[k][16];  F16, BF16  u16[k][16] (the tile padded to 64)
//
// Activations. A panel is 16 rows; panel-major, then super-blocks: [panel][super-block]. Sizes are odd multiples of 64
// bytes, so that a single row does not hit the same cache sets in every super-block.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace tnd::cpu {

inline constexpr uint64_t kTileOuts = 16;
inline constexpr int kPanelRows = 16;
inline constexpr uint64_t kSuper = 256;
inline constexpr uint64_t kChunk = 64;

// Offsets inside a super-block of a packed tile, and its size.
struct LayoutQ4K {
  static constexpr uint64_t kD = 0, kDmin = 32, kScales = 64, kMins = 192, kCodes = 320, kBytes = 2368;
};
struct LayoutQ5K {
  static constexpr uint64_t kD = 0, kDmin = 32, kScales = 64, kMins = 192, kCodes = 320, kPlane = 2368, kBytes = 2880;
};
struct LayoutQ6K {
  static constexpr uint64_t kD = 0, kScales = 64, kCodes = 320, kPlane = 2368, kBytes = 3392;
};
struct LayoutIQ4XS {
  static constexpr uint64_t kD = 0, kScales = 64, kCodes = 192, kBytes = 2240;
};

// 32-element block types: bytes of scales per block, code bytes per block (16 outputs), plane bytes per block.
struct LayoutBlock32 {
  uint64_t header;  // 32 (d) or 64 (d, m)
  uint64_t codes;   // 256 (nibbles) or 512 (bytes)
  uint64_t plane;   // 0 or 64

  constexpr uint64_t header_bytes(uint64_t nb) const { return (nb * header + 63) / 64 * 64; }
  constexpr uint64_t plane_offset(uint64_t nb) const { return header_bytes(nb) + nb * codes; }
  constexpr uint64_t bytes(uint64_t nb) const { return plane_offset(nb) + nb * plane; }
};
constexpr LayoutBlock32 layout_block32(DType type) {
  switch (type) {
    case DType::kQ8_0:
      return {32, 512, 0};
    case DType::kQ4_1:
      return {64, 256, 0};
    case DType::kQ5_0:
      return {32, 256, 64};
    case DType::kQ5_1:
      return {64, 256, 64};
    default:  // Q4_0, IQ4_NL
      return {32, 256, 0};
  }
}

// super_bytes returns the bytes of a super-block of `elems` (256, or fewer for a short last one) of one tile.
uint64_t super_bytes(DType type, uint64_t elems);
// tile_bytes returns the bytes of one tile of k elements, a multiple of 64.
uint64_t tile_bytes(DType type, uint64_t k);

// chunk_position returns the byte of element e (of the 4 * chunks elements from `chunks` on) of output o.
constexpr uint64_t chunk_position(uint64_t o, uint64_t e) {
  return e / 4 * kChunk + o * 4 + e % 4;
}

struct alignas(64) Act256 {
  int8_t q[kPanelRows][256];
  float a[kPanelRows];
  int16_t sum16[kPanelRows][16];  // sums of q over 16 elements
  int16_t sum32[kPanelRows][8];   // over 32
};
static_assert(sizeof(Act256) == 77 * 64);

struct alignas(64) Act32 {
  int8_t q[kPanelRows][256];
  float a[kPanelRows][8];
  int32_t minus128[kPanelRows][8];  // -128 * sum of q: the correction for unsigned codes (value + 128)
  float sum[kPanelRows][8];         // float(sum of q), exact
  uint8_t unused[64];
};
static_assert(sizeof(Act32) == 89 * 64);

struct alignas(64) ActF32 {
  float x[kPanelRows][256];
  uint8_t unused[64];
};
static_assert(sizeof(ActF32) == 257 * 64);

// A tile kernel multiplies one tile by rows [row0, row0 + rows) of a panel.
//   tile   tile_bytes(type, k) bytes, 64-byte aligned
//   panel  first super-block of the panel, in the form act_kind(type)
//   out    f32, output o of row row0 + r at out[r * out_stride + o]; all 16 are written, any alignment
//   fetch prefetch the weights kFetchAhead bytes ahead while the tile is read; past the last tile too, since a prefetch
//          never faults
using TileKernel = void (*)(const uint8_t* tile, const void* panel, uint64_t k, int row0, int rows, float* out,
                            int64_t out_stride, bool fetch);

// Distance of prefetches. Tiles of a few KB are consecutive in memory, in the order of their use, so it may reach past
// a tile's end. Long enough for memory (some 150 ns), short enough for L1.
constexpr uint64_t kFetchAhead = 12 * 1024;

[[gnu::always_inline]] inline void fetch_ahead(const uint8_t* p, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + kFetchAhead + i);
}

// Kernels of one instruction set.
TileKernel tile_kernel_scalar(DType type);
TileKernel tile_kernel_avx2(DType type);
TileKernel tile_kernel_avx512(DType type);

// Quantisers of one row's super-block: x [elems] f32 into row `row` of the panel block. elems is 256, or a multiple of
// 32 (Act32) in a short last super-block.
using Quantise256 = void (*)(const float* x, Act256* block, int row);
using Quantise32 = void (*)(const float* x, uint64_t elems, Act32* block, int row);
void quantise256_scalar(const float* x, Act256* block, int row);
void quantise32_scalar(const float* x, uint64_t elems, Act32* block, int row);
void quantise256_avx2(const float* x, Act256* block, int row);
void quantise32_avx2(const float* x, uint64_t elems, Act32* block, int row);
void quantise256_avx512(const float* x, Act256* block, int row);
void quantise32_avx512(const float* x, uint64_t elems, Act32* block, int row);

}  // namespace tnd::cpu
