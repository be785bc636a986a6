// Order of weights and activations in device memory. Plain arithmetic, for the packer (host) and the kernels.
//
// Weights of integer types. A unit is 16 outputs x k; units follow each other, and in a unit its super-blocks of 256
// elements (a short last one is filled up with zero codes and zero scales). Inside a super-block, a *piece* is the part
// that one lane of a warp takes at a time: the codes of one output for 8 elements of both groups 2p and 2p+1 of 32
// (pair p of four). Piece t (0..3) holds, of each group, elements 4t..4t+3 (word 0) and 16+4t..16+4t+3 (word 1): the
// operand order of m16n8k32, in which word f of all four pieces is also the half f of the group for types with scales
// per 16 and for 16x16x16 instructions. Activations lie in the same order, so that both operands are
// plain 8- or 16-byte loads.
//
//   nibbles [4 p][16 out][4 t][8 bytes]: byte i of word f = element 16f+4t+i of group 2p (low) and 2p+1 (high)
//   bytes   [4 p][16 out][4 t][16 bytes]: words (2p, f 0), (2p, f 1), (2p+1, f 0), (2p+1, f 1)
//   plane1  [16 out][4 t][8 bytes]: byte i of word f, bit j = fifth bit of element 16f+4t+i of group j
//   plane2  [16 out][4 t][16 bytes]: word 2u+f, byte i, bits 2v, 2v+1 = two upper bits of that element of group 4u+v
//
//   Q4_K    nibbles | header [16][16]: d, dmin, 12 bytes of scales as in the file             2304 bytes
//   Q5_K    nibbles | plane1 | header as Q4_K                                                 2816
//   Q6_K    nibbles | plane2, top bit flipped | scales i8 [16][16] | d f16 [16]               3360
//   IQ4_XS  nibbles | scales ls-32 i8 [16][8] | d f16 [16]                                    2208
//   Q8_0    bytes | d f16 [16][8]                                                             4352
//   Q4_0    nibbles with the top bit flipped | d f16 [16][8]                                  2304
//   IQ4_NL  nibbles | d f16 [16][8]                                                           2304
//   Q4_1    nibbles | d f16 [16][8] | m f16 [16][8]                                           2560
//   Q5_0    nibbles | plane1 with the bits flipped | d f16 [16][8]                            2816
//   Q5_1    nibbles | plane1 | d, m as Q4_1                                                   3072
// The flipped top bits make codes signed: (n << 4) - 128 = 16 (n - 8), and so on.
//
// Weights of float types. A unit is 32 outputs x k in steps of 16 bytes: [ceil(k/E)][32 out][16 bytes], E = 8 (F16,
// BF16) or 4 (F32) elements; elements beyond k are zero.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace tnd::gpu {

inline constexpr int kSuper = 256;
inline constexpr int kMaxUnitOuts = 32;

constexpr bool is_float_type(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
}
constexpr int unit_outs(DType type) {
  return is_float_type(type) ? 32 : 16;
}
constexpr int64_t super_blocks(int64_t k) {
  return (k + kSuper - 1) / kSuper;
}

inline constexpr int kNibbleBytes = 2048;

// Offsets in a super-block of a unit, and its bytes.
struct LayoutQ4K {
  static constexpr int kHeader = 2048, kBytes = 2304;
};
struct LayoutQ5K {
  static constexpr int kPlane = 2048, kHeader = 2560, kBytes = 2816;
};
struct LayoutQ6K {
  static constexpr int kPlane = 2048, kScales = 3072, kD = 3328, kBytes = 3360;
};
struct LayoutIQ4XS {
  static constexpr int kScales = 2048, kD = 2176, kBytes = 2208;
};
struct LayoutQ8 {
  static constexpr int kD = 4096, kBytes = 4352;
};
// Q4_0, IQ4_NL, Q4_1, Q5_0, Q5_1
template <bool kFive, bool kMin>
struct LayoutQ45 {
  static constexpr int kPlane = 2048, kD = 2048 + (kFive ? 512 : 0), kM = kD + 256, kBytes = kD + (kMin ? 512 : 256);
};

constexpr int super_bytes(DType type) {
  switch (type) {
    case DType::kQ4_K:
      return LayoutQ4K::kBytes;
    case DType::kQ5_K:
      return LayoutQ5K::kBytes;
    case DType::kQ6_K:
      return LayoutQ6K::kBytes;
    case DType::kIQ4_XS:
      return LayoutIQ4XS::kBytes;
    case DType::kQ8_0:
      return LayoutQ8::kBytes;
    case DType::kQ4_1:
      return LayoutQ45<false, true>::kBytes;
    case DType::kQ5_0:
      return LayoutQ45<true, false>::kBytes;
    case DType::kQ5_1:
      return LayoutQ45<true, true>::kBytes;
    default:
      return LayoutQ45<false, false>::kBytes;
  }
}

constexpr int64_t float_steps(DType type, int64_t k) {
  return type == DType::kF32 ? (k + 3) / 4 : (k + 7) / 8;
}
constexpr int64_t unit_bytes(DType type, int64_t k) {
  return is_float_type(type) ? float_steps(type, k) * 512 : super_blocks(k) * super_bytes(type);
}
constexpr int64_t units(DType type, int64_t n) {
  return (n + unit_outs(type) - 1) / unit_outs(type);
}

// Where the nibble byte, the byte code and the plane bytes of an element of a group lie (see above). j: group of 32, e:
// element of the group, out: output of the unit.
constexpr int piece_of(int e) {
  return e % 16 / 4;
}
constexpr int nibble_at(int out, int j, int e) {
  return j / 2 * 512 + out * 32 + piece_of(e) * 8 + e / 16 * 4 + e % 4;
}
constexpr int byte_at(int out, int j, int e) {
  return j / 2 * 1024 + out * 64 + piece_of(e) * 16 + j % 2 * 8 + e / 16 * 4 + e % 4;
}
constexpr int plane1_at(int out, int e) {
  return out * 32 + piece_of(e) * 8 + e / 16 * 4 + e % 4;
}
constexpr int plane2_at(int out, int j, int e) {
  return out * 64 + piece_of(e) * 16 + j / 4 * 8 + e / 16 * 4 + e % 4;
}

// act_position returns the byte of element e (0..63) of a pair of groups in the 64 bytes of a row.
constexpr int act_position(int e) {
  return piece_of(e % 32) * 16 + e / 32 * 8 + e % 32 / 16 * 4 + e % 4;
}
// sum_position returns the place of the sum over elements 16g..16g+15 among a row's 16 sums: group j = g / 2 of 32 lies
// beside group j + 4, and a lane of m16n8k16 reads both as its two registers.
constexpr int sum_position(int g) {
  return g / 2 % 4 * 4 + g / 8 * 2 + g % 2;
}

// pair_part returns which 16 of a row's 32 bytes in a step hold part 0 (hi) or 1 (lo) of its pairs. They swap every
// four rows: eight rows of a part then lie in different banks of shared memory.
constexpr int pair_part(int row, int part) {
  return part ^ row / 4 % 2;
}

// Panels (Prompt::kPanels) hold 64 elements of k of all rows, a row in 128 bytes whose 16-byte parts are permuted by
// row % 8, as Hopper's matrix instructions read them: any rows from a multiple of eight on are one copy.
constexpr int64_t panel_part(int64_t row, int part) {
  return row * 128 + (part ^ static_cast<int>(row % 8)) * 16;
}
// Panels of halves are cut into steps of 16 elements, half f of a group of 32, in the order in which a word of codes
// yields operands: place 2t, 2t + 1, 2t + 8, 2t + 9 holds element 4t, 4t + 2, 4t + 1, 4t + 3. panel_at returns the byte
// of element e (0..63).
constexpr int step_place(int e) {
  return e % 2 * 8 + e / 4 * 2 + e % 4 / 2;
}
constexpr int64_t panel_at(int64_t row, int e) {
  const int place = step_place(e % 16);
  return panel_part(row, e / 16 * 2 + place / 8) + place % 8 * 2;
}

}  // namespace tnd::gpu
