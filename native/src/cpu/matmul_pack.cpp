// Packing of GGUF rows into tiles, and back. matmul_layout.h describes the layouts.
#include <algorithm>
#include <cstring>

#include "core/fp.h"
#include "cpu/matmul.h"
#include "cpu/matmul_layout.h"
#include "quant/tables.h"

namespace tnd::cpu {
namespace {

// Scatters `count` bytes of one output (element order) into chunks.
void put_chunks(const uint8_t* from, uint64_t count, uint64_t o, uint8_t* chunks) {
  for (uint64_t c = 0; c < count / 4; ++c) std::memcpy(chunks + c * kChunk + o * 4, from + 4 * c, 4);
}

void get_chunks(const uint8_t* chunks, uint64_t count, uint64_t o, uint8_t* to) {
  for (uint64_t c = 0; c < count / 4; ++c) std::memcpy(to + 4 * c, chunks + c * kChunk + o * 4, 4);
}

// One 256-element block of output o into / out of its super-block.

template <typename Layout>
void pack_k45_header(const uint8_t* b, uint64_t o, uint8_t* to) {
  std::memcpy(to + Layout::kD + 2 * o, b, 2);
  std::memcpy(to + Layout::kDmin + 2 * o, b + 2, 2);
  for (int j = 0; j < 8; ++j) {
    k4_scale_min(b + 4, j, &to[Layout::kScales + 16 * j + o], &to[Layout::kMins + 32 * (j / 2) + 2 * o + j % 2]);
  }
}

template <typename Layout>
void unpack_k45_header(const uint8_t* from, uint64_t o, uint8_t* b) {
  std::memcpy(b, from + Layout::kD + 2 * o, 2);
  std::memcpy(b + 2, from + Layout::kDmin + 2 * o, 2);
  uint8_t scale[8];
  uint8_t min[8];
  for (int j = 0; j < 8; ++j) {
    scale[j] = from[Layout::kScales + 16 * j + o];
    min[j] = from[Layout::kMins + 32 * (j / 2) + 2 * o + j % 2];
  }
  k4_pack_scales(scale, min, b + 4);
}

void pack_q4_k(const uint8_t* b, uint64_t o, uint8_t* to) {
  pack_k45_header<LayoutQ4K>(b, o, to);
  put_chunks(b + 16, 128, o, to + LayoutQ4K::kCodes);
}
void unpack_q4_k(const uint8_t* from, uint64_t o, uint8_t* b) {
  unpack_k45_header<LayoutQ4K>(from, o, b);
  get_chunks(from + LayoutQ4K::kCodes, 128, o, b + 16);
}

void pack_q5_k(const uint8_t* b, uint64_t o, uint8_t* to) {
  pack_k45_header<LayoutQ5K>(b, o, to);
  put_chunks(b + 48, 128, o, to + LayoutQ5K::kCodes);
  put_chunks(b + 16, 32, o, to + LayoutQ5K::kPlane);
}
void unpack_q5_k(const uint8_t* from, uint64_t o, uint8_t* b) {
  unpack_k45_header<LayoutQ5K>(from, o, b);
  get_chunks(from + LayoutQ5K::kCodes, 128, o, b + 48);
  get_chunks(from + LayoutQ5K::kPlane, 32, o, b + 16);
}

void pack_q6_k(const uint8_t* b, uint64_t o, uint8_t* to) {
  std::memcpy(to + LayoutQ6K::kD + 2 * o, b + 208, 2);
  for (int g = 0; g < 16; ++g) to[LayoutQ6K::kScales + 32 * (g / 2) + 2 * o + g % 2] = b[192 + g];
  put_chunks(b, 128, o, to + LayoutQ6K::kCodes);
  put_chunks(b + 128, 64, o, to + LayoutQ6K::kPlane);
}
void unpack_q6_k(const uint8_t* from, uint64_t o, uint8_t* b) {
  std::memcpy(b + 208, from + LayoutQ6K::kD + 2 * o, 2);
  for (int g = 0; g < 16; ++g) b[192 + g] = from[LayoutQ6K::kScales + 32 * (g / 2) + 2 * o + g % 2];
  get_chunks(from + LayoutQ6K::kCodes, 128, o, b);
  get_chunks(from + LayoutQ6K::kPlane, 64, o, b + 128);
}

void pack_iq4_xs(const uint8_t* b, uint64_t o, uint8_t* to) {
  std::memcpy(to + LayoutIQ4XS::kD + 2 * o, b, 2);
  const uint16_t scales_h = load_u16(b + 2);
  for (int j = 0; j < 8; ++j) {
    to[LayoutIQ4XS::kScales + 32 * (j / 2) + 2 * o + j % 2] =
        static_cast<uint8_t>(static_cast<int8_t>(iq4xs_scale(scales_h, b + 4, j)));
  }
  put_chunks(b + 8, 128, o, to + LayoutIQ4XS::kCodes);
}
void unpack_iq4_xs(const uint8_t* from, uint64_t o, uint8_t* b) {
  std::memcpy(b, from + LayoutIQ4XS::kD + 2 * o, 2);
  uint32_t high = 0;
  std::memset(b + 4, 0, 4);
  for (int j = 0; j < 8; ++j) {
    const int ls = static_cast<int8_t>(from[LayoutIQ4XS::kScales + 32 * (j / 2) + 2 * o + j % 2]) + 32;
    b[4 + j / 2] = static_cast<uint8_t>(b[4 + j / 2] | (ls & 15) << 4 * (j % 2));
    high |= static_cast<uint32_t>(ls >> 4) << 2 * j;
  }
  store_u16(b + 2, static_cast<uint16_t>(high));
  get_chunks(from + LayoutIQ4XS::kCodes, 128, o, b + 8);
}

// 32-element blocks: block number `index` of the nb of a super-block.

void put_plane(uint32_t bits, uint64_t o, uint8_t* plane) {
  for (int e = 0; e < 4; ++e) {
    uint8_t byte = 0;
    for (int c = 0; c < 8; ++c) byte = static_cast<uint8_t>(byte | (bits >> (4 * c + e) & 1) << c);
    plane[o * 4 + e] = byte;
  }
}

uint32_t get_plane(const uint8_t* plane, uint64_t o) {
  uint32_t bits = 0;
  for (int e = 0; e < 4; ++e) {
    for (int c = 0; c < 8; ++c) bits |= static_cast<uint32_t>(plane[o * 4 + e] >> c & 1) << (4 * c + e);
  }
  return bits;
}

void pack_block32(DType type, const uint8_t* b, uint64_t index, uint64_t nb, uint64_t o, uint8_t* to) {
  const LayoutBlock32 layout = layout_block32(type);
  uint8_t* header = to + index * layout.header;
  uint8_t* codes = to + layout.header_bytes(nb) + index * layout.codes;
  std::memcpy(header + 2 * o, b, 2);
  b += 2;
  if (layout.header == 64) {
    std::memcpy(header + 32 + 2 * o, b, 2);
    b += 2;
  }
  if (layout.plane != 0) {
    put_plane(load_u32(b), o, to + layout.plane_offset(nb) + index * layout.plane);
    b += 4;
  }
  if (type == DType::kQ8_0) {
    uint8_t shifted[32];
    for (int j = 0; j < 32; ++j) shifted[j] = b[j] ^ 0x80;
    put_chunks(shifted, 32, o, codes);
  } else {
    put_chunks(b, 16, o, codes);
  }
}

void unpack_block32(DType type, const uint8_t* from, uint64_t index, uint64_t nb, uint64_t o, uint8_t* b) {
  const LayoutBlock32 layout = layout_block32(type);
  const uint8_t* header = from + index * layout.header;
  const uint8_t* codes = from + layout.header_bytes(nb) + index * layout.codes;
  std::memcpy(b, header + 2 * o, 2);
  b += 2;
  if (layout.header == 64) {
    std::memcpy(b, header + 32 + 2 * o, 2);
    b += 2;
  }
  if (layout.plane != 0) {
    store_u32(b, get_plane(from + layout.plane_offset(nb) + index * layout.plane, o));
    b += 4;
  }
  get_chunks(codes, type == DType::kQ8_0 ? 32 : 16, o, b);
  if (type == DType::kQ8_0) {
    for (int j = 0; j < 32; ++j) b[j] ^= 0x80;
  }
}

// One output's `elems` elements of a super-block.
void pack_super(DType type, const uint8_t* row, uint64_t elems, uint64_t o, uint8_t* to) {
  switch (type) {
    case DType::kQ4_K:
      return pack_q4_k(row, o, to);
    case DType::kQ5_K:
      return pack_q5_k(row, o, to);
    case DType::kQ6_K:
      return pack_q6_k(row, o, to);
    case DType::kIQ4_XS:
      return pack_iq4_xs(row, o, to);
    case DType::kF32:
      for (uint64_t i = 0; i < elems; ++i) std::memcpy(to + (i * kTileOuts + o) * 4, row + 4 * i, 4);
      return;
    case DType::kF16:
    case DType::kBF16:
      for (uint64_t i = 0; i < elems; ++i) std::memcpy(to + (i * kTileOuts + o) * 2, row + 2 * i, 2);
      return;
    default:
      for (uint64_t i = 0; i < elems / 32; ++i) {
        pack_block32(type, row + i * block_bytes(type), i, elems / 32, o, to);
      }
  }
}

void unpack_super(DType type, const uint8_t* from, uint64_t elems, uint64_t o, uint8_t* row) {
  switch (type) {
    case DType::kQ4_K:
      return unpack_q4_k(from, o, row);
    case DType::kQ5_K:
      return unpack_q5_k(from, o, row);
    case DType::kQ6_K:
      return unpack_q6_k(from, o, row);
    case DType::kIQ4_XS:
      return unpack_iq4_xs(from, o, row);
    case DType::kF32:
      for (uint64_t i = 0; i < elems; ++i) std::memcpy(row + 4 * i, from + (i * kTileOuts + o) * 4, 4);
      return;
    case DType::kF16:
    case DType::kBF16:
      for (uint64_t i = 0; i < elems; ++i) std::memcpy(row + 2 * i, from + (i * kTileOuts + o) * 2, 2);
      return;
    default:
      for (uint64_t i = 0; i < elems / 32; ++i) {
        unpack_block32(type, from, i, elems / 32, o, row + i * block_bytes(type));
      }
  }
}

// Calls f(elements, offset in the tile, offset in the file row) for every super-block.
template <typename F>
void for_each_super(DType type, uint64_t k, F&& f) {
  uint64_t in_tile = 0;
  for (uint64_t first = 0; first < k; first += kSuper) {
    const uint64_t elems = std::min(kSuper, k - first);
    f(elems, in_tile, row_bytes(type, first));
    in_tile += super_bytes(type, elems);
  }
}

}  // namespace

uint64_t super_bytes(DType type, uint64_t elems) {
  switch (type) {
    case DType::kQ4_K:
      return LayoutQ4K::kBytes;
    case DType::kQ5_K:
      return LayoutQ5K::kBytes;
    case DType::kQ6_K:
      return LayoutQ6K::kBytes;
    case DType::kIQ4_XS:
      return LayoutIQ4XS::kBytes;
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return (elems * kTileOuts * block_bytes(type) + 63) / 64 * 64;
    default:
      return layout_block32(type).bytes(elems / 32);
  }
}

uint64_t tile_bytes(DType type, uint64_t k) {
  const uint64_t rest = k % kSuper;
  return k / kSuper * super_bytes(type, kSuper) + (rest != 0 ? super_bytes(type, rest) : 0);
}

uint64_t packed_bytes(DType type, uint64_t k, uint64_t n) {
  return (n + kTileOuts - 1) / kTileOuts * tile_bytes(type, k);
}

Status pack_weight(DType type, const void* rows, uint64_t k, uint64_t n, void* dst, PackedWeight* out,
                   ThreadPool* pool) {
  if (!dtype_matmul(type)) return errorf(TND_UNIMPLEMENTED, "weights of type %s", dtype_name(type));
  if (k == 0 || n == 0 || k % block_elems(type) != 0) {
    return errorf(TND_INVALID_ARGUMENT, "%s weight of %llu x %llu: k must be a positive multiple of %llu",
                  dtype_name(type), static_cast<unsigned long long>(k), static_cast<unsigned long long>(n),
                  static_cast<unsigned long long>(block_elems(type)));
  }
  if (reinterpret_cast<uintptr_t>(dst) % 64 != 0) {
    return errorf(TND_INVALID_ARGUMENT, "packed weight is not 64-byte aligned");
  }
  const uint64_t stride = tile_bytes(type, k);
  const uint64_t row_stride = row_bytes(type, k);
  const auto pack_tile = [&](int tile, int) {
    uint8_t* to = static_cast<uint8_t*>(dst) + static_cast<uint64_t>(tile) * stride;
    const uint64_t first = static_cast<uint64_t>(tile) * kTileOuts;
    std::memset(to, 0, stride);  // padding outputs have scale 0
    for (uint64_t o = 0; o < std::min(kTileOuts, n - first); ++o) {
      const uint8_t* row = static_cast<const uint8_t*>(rows) + (first + o) * row_stride;
      for_each_super(type, k, [&](uint64_t elems, uint64_t in_tile, uint64_t in_row) {
        pack_super(type, row + in_row, elems, o, to + in_tile);
      });
    }
  };
  const int tiles = static_cast<int>((n + kTileOuts - 1) / kTileOuts);
  if (pool != nullptr) {
    pool->run(tiles, pack_tile);
  } else {
    for (int tile = 0; tile < tiles; ++tile) pack_tile(tile, 0);
  }
  *out = {type, k, n, dst, packed_bytes(type, k, n)};
  return {};
}

void unpack_row(const PackedWeight& w, uint64_t row, void* dst) {
  const uint8_t* tile = static_cast<const uint8_t*>(w.data) + row / kTileOuts * tile_bytes(w.type, w.k);
  for_each_super(w.type, w.k, [&](uint64_t elems, uint64_t in_tile, uint64_t in_row) {
    unpack_super(w.type, tile + in_tile, elems, row % kTileOuts, static_cast<uint8_t*>(dst) + in_row);
  });
}

void embed_row(const PackedWeight& w, uint64_t row, float* y) {
  const uint8_t* tile = static_cast<const uint8_t*>(w.data) + row / kTileOuts * tile_bytes(w.type, w.k);
  uint64_t done = 0;
  for_each_super(w.type, w.k, [&](uint64_t elems, uint64_t in_tile, uint64_t) {
    uint8_t block[kSuper * 4];  // the widest type is F32
    unpack_super(w.type, tile + in_tile, elems, row % kTileOuts, block);
    dequantise_row(w.type, block, y + done, elems);
    done += elems;
  });
}

}  // namespace tnd::cpu
