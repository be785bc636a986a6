// Packing of GGUF rows into device order, and back. Works on words of four codes; matmul_layout.h describes the layout.
#include "gpu/matmul/repack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/fp.h"
#include "gpu/matmul/matmul_layout.h"

namespace tnd::gpu {
namespace {

constexpr uint32_t kLow = 0x0F0F0F0Fu;

// Offsets of the parts of a super-block of 32-element blocks. -1 = none.
struct Places {
  int plane = -1;  // plane1
  int d = -1;      // halves
  int m = -1;
};

Places places(DType type) {
  switch (type) {
    case DType::kQ8_0:
      return {.d = LayoutQ8::kD};
    case DType::kQ4_1:
      return {.d = LayoutQ45<false, true>::kD, .m = LayoutQ45<false, true>::kM};
    case DType::kQ5_0:
      return {.plane = LayoutQ45<true, false>::kPlane, .d = LayoutQ45<true, false>::kD};
    case DType::kQ5_1:
      return {.plane = LayoutQ45<true, true>::kPlane, .d = LayoutQ45<true, true>::kD, .m = LayoutQ45<true, true>::kM};
    default:
      return {.d = LayoutQ45<false, false>::kD};
  }
}

// Top bits that are stored flipped, so that codes come out signed.
uint32_t nibble_flip(DType type) {
  return type == DType::kQ4_0 ? 0x88888888u : 0u;
}
uint32_t plane_flip(DType type) {
  return type == DType::kQ5_0 ? ~0u : 0u;
}

// Word f of piece t of a pair, of output o.
int nibble_word(int o, int p, int t, int f) {
  return nibble_at(o, 2 * p, 16 * f + 4 * t);
}

// ---- K-quants: a file block is a super-block

// Q4_K and Q5_K: low nibbles of 32 bytes are group 2p, high ones group 2p + 1, as in a piece.
void pack_k45(const uint8_t* header, const uint8_t* qh, const uint8_t* qs, int o, uint8_t* to) {
  for (int p = 0; p < 4; ++p) {
    for (int e = 0; e < 32; e += 4) std::memcpy(to + nibble_at(o, 2 * p, e), qs + 32 * p + e, 4);
  }
  if (qh != nullptr) {
    for (int e = 0; e < 32; e += 4) std::memcpy(to + LayoutQ5K::kPlane + plane1_at(o, e), qh + e, 4);
  }
  std::memcpy(to + (qh != nullptr ? LayoutQ5K::kHeader : LayoutQ4K::kHeader) + 16 * o, header, 16);
}

void unpack_k45(const uint8_t* from, int o, uint8_t* header, uint8_t* qh, uint8_t* qs) {
  for (int p = 0; p < 4; ++p) {
    for (int e = 0; e < 32; e += 4) std::memcpy(qs + 32 * p + e, from + nibble_at(o, 2 * p, e), 4);
  }
  if (qh != nullptr) {
    for (int e = 0; e < 32; e += 4) std::memcpy(qh + e, from + LayoutQ5K::kPlane + plane1_at(o, e), 4);
  }
  std::memcpy(header, from + (qh != nullptr ? LayoutQ5K::kHeader : LayoutQ4K::kHeader) + 16 * o, 16);
}

// Q6_K, half h: bytes 64h..64h+31 hold groups 4h (low) and 4h + 2 (high), the next 32 groups 4h + 1 and 4h + 3; byte
// 32h + l of the upper bits serves all four groups, as in plane2.
constexpr uint32_t kFlip6 = 0xAAAAAAAAu;

void pack_q6_k(const uint8_t* b, int o, uint8_t* to) {
  for (int h = 0; h < 2; ++h) {
    for (int e = 0; e < 32; e += 4) {
      const uint32_t a = load_u32(b + 64 * h + e);
      const uint32_t c = load_u32(b + 64 * h + 32 + e);
      store_u32(to + nibble_at(o, 4 * h, e), (a & kLow) | (c & kLow) << 4);
      store_u32(to + nibble_at(o, 4 * h + 2, e), (a >> 4 & kLow) | (c & ~kLow));
      store_u32(to + LayoutQ6K::kPlane + plane2_at(o, 4 * h, e), load_u32(b + 128 + 32 * h + e) ^ kFlip6);
    }
  }
  std::memcpy(to + LayoutQ6K::kScales + 16 * o, b + 192, 16);
  std::memcpy(to + LayoutQ6K::kD + 2 * o, b + 208, 2);
}

void unpack_q6_k(const uint8_t* from, int o, uint8_t* b) {
  for (int h = 0; h < 2; ++h) {
    for (int e = 0; e < 32; e += 4) {
      const uint32_t a = load_u32(from + nibble_at(o, 4 * h, e));
      const uint32_t c = load_u32(from + nibble_at(o, 4 * h + 2, e));
      store_u32(b + 64 * h + e, (a & kLow) | (c & kLow) << 4);
      store_u32(b + 64 * h + 32 + e, (a >> 4 & kLow) | (c & ~kLow));
      store_u32(b + 128 + 32 * h + e, load_u32(from + LayoutQ6K::kPlane + plane2_at(o, 4 * h, e)) ^ kFlip6);
    }
  }
  std::memcpy(b + 192, from + LayoutQ6K::kScales + 16 * o, 16);
  std::memcpy(b + 208, from + LayoutQ6K::kD + 2 * o, 2);
}

// ---- groups whose nibbles are byte e: low element e, high element e + 16 (IQ4_XS and the types of 32-element blocks)

void pack_group(const uint8_t* qs, int j, int o, uint32_t flip, uint8_t* to) {
  const uint32_t keep = j % 2 == 0 ? ~kLow : kLow;
  for (int t = 0; t < 4; ++t) {
    const uint32_t w = load_u32(qs + 4 * t) ^ flip;
    for (int f = 0; f < 2; ++f) {
      uint8_t* at = to + nibble_word(o, j / 2, t, f);
      store_u32(at, (load_u32(at) & keep) | (w >> 4 * f & kLow) << (j % 2 * 4));
    }
  }
}

void unpack_group(const uint8_t* from, int j, int o, uint32_t flip, uint8_t* qs) {
  for (int t = 0; t < 4; ++t) {
    uint32_t w = 0;
    for (int f = 0; f < 2; ++f) {
      w |= (load_u32(from + nibble_word(o, j / 2, t, f)) >> (j % 2 * 4) & kLow) << 4 * f;
    }
    store_u32(qs + 4 * t, w ^ flip);
  }
}

void pack_iq4_xs(const uint8_t* b, int o, uint8_t* to) {
  const uint16_t scales_h = load_u16(b + 2);
  for (int j = 0; j < 8; ++j) {
    const int ls = (b[4 + j / 2] >> 4 * (j % 2) & 15) | (scales_h >> 2 * j & 3) << 4;
    to[LayoutIQ4XS::kScales + 8 * o + j] = static_cast<uint8_t>(ls - 32);
    pack_group(b + 8 + 16 * j, j, o, 0, to);
  }
  std::memcpy(to + LayoutIQ4XS::kD + 2 * o, b, 2);
}

void unpack_iq4_xs(const uint8_t* from, int o, uint8_t* b) {
  uint32_t high = 0;
  std::memset(b + 4, 0, 4);
  for (int j = 0; j < 8; ++j) {
    const int ls = static_cast<int8_t>(from[LayoutIQ4XS::kScales + 8 * o + j]) + 32;
    b[4 + j / 2] = static_cast<uint8_t>(b[4 + j / 2] | (ls & 15) << 4 * (j % 2));
    high |= static_cast<uint32_t>(ls >> 4) << 2 * j;
    unpack_group(from, j, o, 0, b + 8 + 16 * j);
  }
  store_u16(b + 2, static_cast<uint16_t>(high));
  std::memcpy(b, from + LayoutIQ4XS::kD + 2 * o, 2);
}

// One 32-element block: group j of the super-block.
void pack_block32(DType type, const Places& at, const uint8_t* b, int j, int o, uint8_t* to) {
  std::memcpy(to + at.d + 16 * o + 2 * j, b, 2);
  b += 2;
  if (at.m >= 0) {
    std::memcpy(to + at.m + 16 * o + 2 * j, b, 2);
    b += 2;
  }
  if (at.plane >= 0) {
    const uint32_t bits = load_u32(b) ^ plane_flip(type);
    b += 4;
    for (int e = 0; e < 32; ++e) {
      uint8_t& byte = to[at.plane + plane1_at(o, e)];
      byte = static_cast<uint8_t>((byte & ~(1u << j)) | (bits >> e & 1) << j);
    }
  }
  if (type == DType::kQ8_0) {
    for (int e = 0; e < 32; e += 4) std::memcpy(to + byte_at(o, j, e), b + e, 4);
  } else {
    pack_group(b, j, o, nibble_flip(type), to);
  }
}

void unpack_block32(DType type, const Places& at, const uint8_t* from, int j, int o, uint8_t* b) {
  std::memcpy(b, from + at.d + 16 * o + 2 * j, 2);
  b += 2;
  if (at.m >= 0) {
    std::memcpy(b, from + at.m + 16 * o + 2 * j, 2);
    b += 2;
  }
  if (at.plane >= 0) {
    uint32_t bits = 0;
    for (int e = 0; e < 32; ++e) {
      bits |= static_cast<uint32_t>(from[at.plane + plane1_at(o, e)] >> j & 1) << e;
    }
    store_u32(b, bits ^ plane_flip(type));
    b += 4;
  }
  if (type == DType::kQ8_0) {
    for (int e = 0; e < 32; e += 4) std::memcpy(b + e, from + byte_at(o, j, e), 4);
  } else {
    unpack_group(from, j, o, nibble_flip(type), b);
  }
}

// ---- one output of a unit

void pack_output(DType type, const uint8_t* row, int64_t k, int o, uint8_t* unit) {
  const Places at = places(type);
  for (int64_t s = 0; s < super_blocks(k); ++s, unit += super_bytes(type)) {
    const uint8_t* b = row + row_bytes(type, kSuper) * static_cast<uint64_t>(s);
    switch (type) {
      case DType::kQ4_K:
        pack_k45(b, nullptr, b + 16, o, unit);
        break;
      case DType::kQ5_K:
        pack_k45(b, b + 16, b + 48, o, unit);
        break;
      case DType::kQ6_K:
        pack_q6_k(b, o, unit);
        break;
      case DType::kIQ4_XS:
        pack_iq4_xs(b, o, unit);
        break;
      default: {
        const int blocks = static_cast<int>(std::min<int64_t>(kSuper, k - s * kSuper) / 32);
        for (int j = 0; j < blocks; ++j) {
          pack_block32(type, at, b + block_bytes(type) * static_cast<uint64_t>(j), j, o, unit);
        }
      }
    }
  }
}

void unpack_output(DType type, const uint8_t* unit, int64_t k, int o, uint8_t* row) {
  const Places at = places(type);
  for (int64_t s = 0; s < super_blocks(k); ++s, unit += super_bytes(type)) {
    uint8_t* b = row + row_bytes(type, kSuper) * static_cast<uint64_t>(s);
    switch (type) {
      case DType::kQ4_K:
        unpack_k45(unit, o, b, nullptr, b + 16);
        break;
      case DType::kQ5_K:
        unpack_k45(unit, o, b, b + 16, b + 48);
        break;
      case DType::kQ6_K:
        unpack_q6_k(unit, o, b);
        break;
      case DType::kIQ4_XS:
        unpack_iq4_xs(unit, o, b);
        break;
      default: {
        const int blocks = static_cast<int>(std::min<int64_t>(kSuper, k - s * kSuper) / 32);
        for (int j = 0; j < blocks; ++j) {
          unpack_block32(type, at, unit, j, o, b + block_bytes(type) * static_cast<uint64_t>(j));
        }
      }
    }
  }
}

// Calls f(bytes, offset in the file row, offset in the unit) for every 16-byte step of output o of a float type.
template <typename F>
void for_each_step(DType type, int64_t k, int o, F&& f) {
  const int64_t row = static_cast<int64_t>(row_bytes(type, static_cast<uint64_t>(k)));
  for (int64_t step = 0; step < float_steps(type, k); ++step) {
    f(static_cast<size_t>(std::min<int64_t>(16, row - 16 * step)), 16 * step, step * 512 + 16 * o);
  }
}

}  // namespace

uint64_t weight_bytes(DType type, int64_t k, int64_t n) {
  return static_cast<uint64_t>(units(type, n) * unit_bytes(type, k));
}

Status check_weight(DType type, int64_t k, int64_t n) {
  if (!dtype_matmul(type)) return errorf(TND_UNIMPLEMENTED, "weights of type %s", dtype_name(type));
  constexpr int64_t kMost = int64_t{1} << 24;
  if (k <= 0 || n <= 0 || k > kMost || n > kMost || k % static_cast<int64_t>(block_elems(type)) != 0) {
    return errorf(TND_INVALID_ARGUMENT, "%s weight of %lld x %lld: k must be a positive multiple of %llu",
                  dtype_name(type), static_cast<long long>(k), static_cast<long long>(n),
                  static_cast<unsigned long long>(block_elems(type)));
  }
  return {};
}

void repack_units(DType type, const void* rows, int64_t k, int64_t n, int64_t first, int64_t count, void* dst) {
  const int outs = unit_outs(type);
  const uint64_t row = row_bytes(type, static_cast<uint64_t>(k));
  uint8_t* unit = static_cast<uint8_t*>(dst);
  for (int64_t u = first; u < first + count; ++u, unit += unit_bytes(type, k)) {
    std::memset(unit, 0, static_cast<size_t>(unit_bytes(type, k)));  // missing outputs and blocks have scale 0
    for (int o = 0; o < std::min<int64_t>(outs, n - u * outs); ++o) {
      const uint8_t* from = static_cast<const uint8_t*>(rows) + static_cast<uint64_t>(u * outs + o) * row;
      if (is_float_type(type)) {
        for_each_step(type, k, o, [&](size_t bytes, int64_t in_row, int64_t in_unit) {
          std::memcpy(unit + in_unit, from + in_row, bytes);
        });
      } else {
        pack_output(type, from, k, o, unit);
      }
    }
  }
}

void unpack_row(DType type, const void* weight, int64_t k, int64_t row, void* dst) {
  const int outs = unit_outs(type);
  const uint8_t* unit = static_cast<const uint8_t*>(weight) + row / outs * unit_bytes(type, k);
  const int o = static_cast<int>(row % outs);
  if (is_float_type(type)) {
    for_each_step(type, k, o, [&](size_t bytes, int64_t in_row, int64_t in_unit) {
      std::memcpy(static_cast<uint8_t*>(dst) + in_row, unit + in_unit, bytes);
    });
  } else {
    unpack_output(type, unit, k, o, static_cast<uint8_t*>(dst));
  }
}

// Largest magnitudes of code * integer scale and of integer minimum, in units of d and of dmin (or m), and where d lies
// in a block.
struct LargestCode {
  float code, min;
  int64_t d = 0;
};
static LargestCode largest_code(DType type) {
  switch (type) {
    case DType::kQ4_K:
      return {63 * 15, 63};
    case DType::kQ5_K:
      return {63 * 31, 63};
    case DType::kQ6_K:
      return {128 * 32, 0, 208};
    case DType::kIQ4_XS:
      return {32 * 127, 0};
    case DType::kQ8_0:
      return {128, 0};
    case DType::kIQ4_NL:
      return {127, 0};
    case DType::kQ4_1:
      return {15, 1};
    case DType::kQ5_0:
      return {16, 0};
    case DType::kQ5_1:
      return {31, 1};
    default:
      return {8, 0};
  }
}

float largest_weight(DType type, const void* blocks, int64_t count) {
  if (is_float_type(type)) return 0.0f;
  const LargestCode most = largest_code(type);
  const uint8_t* block = static_cast<const uint8_t*>(blocks) + most.d;
  const auto magnitude = [](const uint8_t* at) {
    const float v = std::fabs(f16_to_f32(load_u16(at)));
    return v <= 65504.0f ? v : 0.0f;
  };
  float largest = 0.0f;
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(block_elems(type)), block += block_bytes(type)) {
    const float min = most.min > 0.0f ? most.min * magnitude(block + 2) : 0.0f;
    largest = std::max(largest, most.code * magnitude(block) + min);
  }
  return largest;
}

float half_scale(float largest) {
  return largest > 0.0f ? std::ldexp(1.0f, 14 - std::ilogb(largest)) : 1.0f;
}

}  // namespace tnd::gpu
