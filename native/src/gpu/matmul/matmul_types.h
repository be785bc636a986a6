// Weight types for matmul kernels: how the codes of a unit become operands of int8 products, and which scales belong to
// them. For files with kernels.
//
// A type T<U> (U: matmul_unit.h) has
//   kBytes    of a super-block of a unit
//   kForm     of its activations
//   kMin      whether it has mins
//   Head      scales of a super-block, decoded once; head(super, lane)
//   words     codes of a pair of groups, [group of the pair][piece][word], each a multiple 1 / kUnscale of
//             the contract's
// and, by kForm,
//   kFormQ256 groups of kGroup (16 or 32) elements: an integer scale(head, o, j) each, times head.d[o] for all;
//             mins head.mn[o], times head.dmin[o]; kUnsigned: codes are unsigned bytes
//   kFormQ32  half j of head.d.v[o] is the scale of block j, that of head.m.v[o] its min
#pragma once

#include "gpu/matmul/matmul.h"
#include "gpu/matmul/matmul_layout.h"
#include "gpu/matmul/matmul_unit.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// ---- pieces

template <class U>
TND_DEVICE uint2 nibble_piece(const uint8_t* super, int p, int lane, int i) {
  return *reinterpret_cast<const uint2*>(super + p * 512 + U::piece(lane, i) * 8);
}

// Planes of a super-block: one bit (two words a piece) or two bits (four words) per code.
template <class U>
struct Plane1 {
  uint2 w[U::kPieces];
};
template <class U>
TND_DEVICE Plane1<U> load_plane1(const uint8_t* plane, int lane) {
  Plane1<U> r;
#pragma unroll
  for (int i = 0; i < U::kPieces; ++i) {
    r.w[i] = *reinterpret_cast<const uint2*>(plane + U::piece(lane, i) * 8);
  }
  return r;
}

TND_DEVICE uint32_t shifted(uint32_t v, int left) {
  return left >= 0 ? v << left : v >> -left;
}

// Low (h = 0) or high (h = 1) nibbles of a word, moved so that their lowest bit is bit `at` of the byte.
TND_DEVICE uint32_t nibbles_at(uint32_t w, int h, int at) {
  return shifted(w, at - 4 * h) & (0x0F0F0F0Fu << at);
}
// Bit j of every byte, moved to bit `at`.
TND_DEVICE uint32_t bit_at(uint32_t w, int j, int at) {
  return shifted(w, at - j) & (0x01010101u << at);
}

TND_DEVICE int byte_of(const uint32_t (&w)[2], int i) {
  return static_cast<int>(byte_perm(i < 4 ? w[0] : w[1], 0, 0x4440u + i % 4));  // no index: i may be a variable
}
// Word i of four. By value and without an index: i may be a variable, and arrays with variable indices go to
// local memory.
TND_DEVICE uint32_t word_of(const uint4& v, int i) {
  const uint32_t x = v.x, y = v.y, z = v.z, w = v.w;
  const uint32_t low = i == 0 ? x : y;
  const uint32_t high = i == 2 ? z : w;
  return i < 2 ? low : high;
}
TND_DEVICE int signed_byte(uint32_t w, int i) {
  return static_cast<int8_t>(w >> i % 4 * 8);
}

// ---- Q4_K, Q5_K

template <class U>
struct HeadK45 {
  uint32_t sc[U::kOuts][2];  // bytes: groups 0..3, 4..7
  uint32_t mn[U::kOuts][2];  // packed_mins()
  float d[U::kOuts], dmin[U::kOuts];
};
template <class U>
TND_DEVICE void load_head_k45(const uint8_t* header, int lane, HeadK45<U>* h) {
#pragma unroll
  for (int o = 0; o < U::kOuts; ++o) {
    const uint4 v = *reinterpret_cast<const uint4*>(header + U::out(lane, o) * 16);
    h->d[o] = half_to_float(static_cast<uint16_t>(v.x));
    h->dmin[o] = half_to_float(static_cast<uint16_t>(v.x >> 16));
    h->sc[o][0] = v.y & 0x3F3F3F3Fu;
    h->sc[o][1] = (v.w & 0x0F0F0F0Fu) | (v.y >> 2 & 0x30303030u);
    h->mn[o][0] = v.z;
    h->mn[o][1] = v.w;
  }
}

template <class U>
struct TypeQ4K {
  static constexpr int kBytes = LayoutQ4K::kBytes, kGroup = 32;
  static constexpr uint32_t kForm = kFormQ256;
  static constexpr bool kMin = true;
  static constexpr float kUnscale = 1.0f;
  static constexpr bool kUnsigned = false;
  using Head = HeadK45<U>;
  TND_DEVICE Head head(const uint8_t* super, int lane) {
    Head h;
    load_head_k45<U>(super + LayoutQ4K::kHeader, lane, &h);
    return h;
  }
  TND_DEVICE void words(const uint8_t* super, const Head&, int p, int lane, uint32_t (&w)[2][U::kPieces][2]) {
#pragma unroll
    for (int i = 0; i < U::kPieces; ++i) {
      const uint2 n = nibble_piece<U>(super, p, lane, i);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        w[h][i][0] = nibbles_at(n.x, h, 0);
        w[h][i][1] = nibbles_at(n.y, h, 0);
      }
    }
  }
  TND_DEVICE int scale(const Head& h, int o, int j) { return byte_of(h.sc[o], j); }
};

// Q4_K for signed times unsigned bytes: the nibbles of odd groups stay where they are, so their codes are 16 times
// those of the contract, and the scales of even groups are too.
template <class U>
struct TypeQ4KInPlace {
  static constexpr int kBytes = LayoutQ4K::kBytes, kGroup = 32;
  static constexpr uint32_t kForm = kFormQ256;
  static constexpr bool kMin = true;
  static constexpr float kUnscale = 0.0625f;
  static constexpr bool kUnsigned = true;
  struct Head : HeadK45<U> {
    uint32_t even[U::kOuts][2];  // halves of a word: 16 times the scales of groups 0 and 2, 4 and 6
  };
  TND_DEVICE Head head(const uint8_t* super, int lane) {
    Head h;
    load_head_k45<U>(super + LayoutQ4K::kHeader, lane, &h);
#pragma unroll
    for (int o = 0; o < U::kOuts; ++o) {
#pragma unroll
      for (int i = 0; i < 2; ++i) h.even[o][i] = (h.sc[o][i] & 0x003F003Fu) * 16;
    }
    return h;
  }
  TND_DEVICE void words(const uint8_t* super, const Head&, int p, int lane, uint32_t (&w)[2][U::kPieces][2]) {
#pragma unroll
    for (int i = 0; i < U::kPieces; ++i) {
      const uint2 n = nibble_piece<U>(super, p, lane, i);
      w[0][i][0] = n.x & 0x0F0F0F0Fu, w[0][i][1] = n.y & 0x0F0F0F0Fu;
      w[1][i][0] = n.x & 0xF0F0F0F0u, w[1][i][1] = n.y & 0xF0F0F0F0u;
    }
  }
  TND_DEVICE int scale(const Head& h, int o, int j) {
    if (j % 2 != 0) return byte_of(h.sc[o], j);
    return static_cast<int>(byte_perm(h.even[o][j / 4], 0, j % 4 == 0 ? 0x4410u : 0x4432u));
  }
};

template <class U>
struct TypeQ5K {
  static constexpr int kBytes = LayoutQ5K::kBytes, kGroup = 32;
  static constexpr uint32_t kForm = kFormQ256;
  static constexpr bool kMin = true;
  static constexpr float kUnscale = 1.0f;
  static constexpr bool kUnsigned = false;
  struct Head : HeadK45<U> {
    Plane1<U> plane;
  };
  TND_DEVICE Head head(const uint8_t* super, int lane) {
    Head h;
    load_head_k45<U>(super + LayoutQ5K::kHeader, lane, &h);
    h.plane = load_plane1<U>(super + LayoutQ5K::kPlane, lane);
    return h;
  }
  TND_DEVICE void words(const uint8_t* super, const Head& head, int p, int lane, uint32_t (&w)[2][U::kPieces][2]) {
#pragma unroll
    for (int i = 0; i < U::kPieces; ++i) {
      const uint2 n = nibble_piece<U>(super, p, lane, i);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        w[h][i][0] = nibbles_at(n.x, h, 0) | bit_at(head.plane.w[i].x, 2 * p + h, 4);
        w[h][i][1] = nibbles_at(n.y, h, 0) | bit_at(head.plane.w[i].y, 2 * p + h, 4);
      }
    }
  }
  TND_DEVICE int scale(const Head& h, int o, int j) { return byte_of(h.sc[o], j); }
};

// ---- Q6_K: codes 4 (n - 32), upper bits at the top of the byte

template <class U>
struct TypeQ6K {
  static constexpr int kBytes = LayoutQ6K::kBytes, kGroup = 16;
  static constexpr uint32_t kForm = kFormQ256;
  static constexpr bool kMin = false;
  static constexpr float kUnscale = 0.25f;
  struct Head {
    uint4 sc[U::kOuts];  // 16 signed bytes
    uint4 plane[U::kPieces];
    float d[U::kOuts];
  };
  TND_DEVICE Head head(const uint8_t* super, int lane) {
    Head h;
#pragma unroll
    for (int o = 0; o < U::kOuts; ++o) {
      h.sc[o] = *reinterpret_cast<const uint4*>(super + LayoutQ6K::kScales + U::out(lane, o) * 16);
      h.d[o] = half_to_float(*reinterpret_cast<const uint16_t*>(super + LayoutQ6K::kD + U::out(lane, o) * 2));
    }
#pragma unroll
    for (int i = 0; i < U::kPieces; ++i) {
      h.plane[i] = *reinterpret_cast<const uint4*>(super + LayoutQ6K::kPlane + U::piece(lane, i) * 16);
    }
    return h;
  }
  TND_DEVICE void words(const uint8_t* super, const Head& head, int p, int lane, uint32_t (&w)[2][U::kPieces][2]) {
#pragma unroll
    for (int i = 0; i < U::kPieces; ++i) {
      const uint2 n = nibble_piece<U>(super, p, lane, i);
      const uint32_t upper[2] = {word_of(head.plane[i], p / 2 * 2), word_of(head.plane[i], p / 2 * 2 + 1)};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int v = (2 * p + h) % 4;
        w[h][i][0] = nibbles_at(n.x, h, 2) | (upper[0] << (6 - 2 * v) & 0xC0C0C0C0u);
        w[h][i][1] = nibbles_at(n.y, h, 2) | (upper[1] << (6 - 2 * v) & 0xC0C0C0C0u);
      }
    }
  }
  TND_DEVICE int scale(const Head& h, int o, int g) { return signed_byte(word_of(h.sc[o], g / 4), g); }
};

// ---- 4-bit codes that stand for values of a table

// table_values looks up four codes, one per byte.
TND_DEVICE uint32_t table_values(uint32_t nibbles) {
  uint32_t s = (nibbles | nibbles >> 4) & 0x00FF00FFu;
  s = (s | s >> 8) & 0xFFFFu;  // four selectors
  const uint32_t low = byte_perm(0xBFAD9881u, 0xF6EADDCFu, s & 0x7777u);
  const uint32_t high = byte_perm(0x26190D01u, 0x71594535u, s & 0x7777u);
  return byte_perm(low, high, 0x3210u | (s & 0x8888u) >> 1);
}

template <class U>
TND_DEVICE void table_words(const uint8_t* super, int p, int lane, uint32_t (&w)[2][U::kPieces][2]) {
#pragma unroll
  for (int i = 0; i < U::kPieces; ++i) {
    const uint2 n = nibble_piece<U>(super, p, lane, i);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      w[h][i][0] = table_values(nibbles_at(n.x, h, 0));
      w[h][i][1] = table_values(nibbles_at(n.y, h, 0));
    }
  }
}

template <class U>
struct TypeIQ4XS {
  static constexpr int kBytes = LayoutIQ4XS::kBytes, kGroup = 32;
  static constexpr uint32_t kForm = kFormQ256;
  static constexpr bool kMin = false;
  static constexpr float kUnscale = 1.0f;
  static constexpr bool kUnsigned = false;
  struct Head {
    uint2 sc[U::kOuts];  // 8 signed bytes
    float d[U::kOuts];
  };
  TND_DEVICE Head head(const uint8_t* super, int lane) {
    Head h;
#pragma unroll
    for (int o = 0; o < U::kOuts; ++o) {
      h.sc[o] = *reinterpret_cast<const uint2*>(super + LayoutIQ4XS::kScales + U::out(lane, o) * 8);
      h.d[o] = half_to_float(*reinterpret_cast<const uint16_t*>(super + LayoutIQ4XS::kD + U::out(lane, o) * 2));
    }
    return h;
  }
  TND_DEVICE void words(const uint8_t* super, const Head&, int p, int lane, uint32_t (&w)[2][U::kPieces][2]) {
    table_words<U>(super, p, lane, w);
  }
  TND_DEVICE int scale(const Head& h, int o, int j) { return signed_byte(j < 4 ? h.sc[o].x : h.sc[o].y, j); }
};

// ---- blocks of 32

// Eight halves per output.
template <class U>
struct Halves {
  uint4 v[U::kOuts];
};
template <class U>
TND_DEVICE Halves<U> load_halves(const uint8_t* from, int lane) {
  Halves<U> r;
#pragma unroll
  for (int o = 0; o < U::kOuts; ++o) r.v[o] = *reinterpret_cast<const uint4*>(from + U::out(lane, o) * 16);
  return r;
}
TND_DEVICE float half_of(const uint4& v, int j) {
  const uint32_t w = word_of(v, j / 2);
  return half_to_float(static_cast<uint16_t>(j % 2 == 0 ? w : w >> 16));
}

template <class U>
struct TypeQ80 {
  static constexpr int kBytes = LayoutQ8::kBytes;
  static constexpr uint32_t kForm = kFormQ32;
  static constexpr bool kMin = false;
  static constexpr float kUnscale = 1.0f;
  struct Head {
    Halves<U> d;
  };
  TND_DEVICE Head head(const uint8_t* super, int lane) { return {load_halves<U>(super + LayoutQ8::kD, lane)}; }
  TND_DEVICE void words(const uint8_t* super, const Head&, int p, int lane, uint32_t (&w)[2][U::kPieces][2]) {
#pragma unroll
    for (int i = 0; i < U::kPieces; ++i) {
      const uint4 v = *reinterpret_cast<const uint4*>(super + p * 1024 + U::piece(lane, i) * 16);
      w[0][i][0] = v.x, w[0][i][1] = v.y;
      w[1][i][0] = v.z, w[1][i][1] = v.w;
    }
  }
};

// Q4_0 (codes 16 (n - 8)), Q4_1, Q5_0 (codes 8 (n - 16)), Q5_1.
template <class U, bool FIVE, bool MIN>
struct TypeQ45 {
  using Layout = LayoutQ45<FIVE, MIN>;
  static constexpr int kBytes = Layout::kBytes;
  static constexpr uint32_t kForm = kFormQ32;
  static constexpr bool kMin = MIN;
  static constexpr int kShift = MIN ? 0 : FIVE ? 3 : 4;
  static constexpr float kUnscale = 1.0f / (1 << kShift);
  struct Head {
    Halves<U> d, m;
    Plane1<U> plane;
  };
  TND_DEVICE Head head(const uint8_t* super, int lane) {
    Head h{};
    h.d = load_halves<U>(super + Layout::kD, lane);
    if constexpr (MIN) h.m = load_halves<U>(super + Layout::kM, lane);
    if constexpr (FIVE) h.plane = load_plane1<U>(super + Layout::kPlane, lane);
    return h;
  }
  TND_DEVICE void words(const uint8_t* super, const Head& head, int p, int lane, uint32_t (&w)[2][U::kPieces][2]) {
#pragma unroll
    for (int i = 0; i < U::kPieces; ++i) {
      const uint2 n = nibble_piece<U>(super, p, lane, i);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        w[h][i][0] = nibbles_at(n.x, h, kShift);
        w[h][i][1] = nibbles_at(n.y, h, kShift);
        if constexpr (FIVE) {
          w[h][i][0] |= bit_at(head.plane.w[i].x, 2 * p + h, kShift + 4);
          w[h][i][1] |= bit_at(head.plane.w[i].y, 2 * p + h, kShift + 4);
        }
      }
    }
  }
};

template <class U>
using TypeQ40 = TypeQ45<U, false, false>;
template <class U>
using TypeQ41 = TypeQ45<U, false, true>;
template <class U>
using TypeQ50 = TypeQ45<U, true, false>;
template <class U>
using TypeQ51 = TypeQ45<U, true, true>;

template <class U>
struct TypeIQ4NL {
  static constexpr int kBytes = LayoutQ45<false, false>::kBytes;
  static constexpr uint32_t kForm = kFormQ32;
  static constexpr bool kMin = false;
  static constexpr float kUnscale = 1.0f;
  struct Head {
    Halves<U> d;
  };
  TND_DEVICE Head head(const uint8_t* super, int lane) {
    return {load_halves<U>(super + LayoutQ45<false, false>::kD, lane)};
  }
  TND_DEVICE void words(const uint8_t* super, const Head&, int p, int lane, uint32_t (&w)[2][U::kPieces][2]) {
    table_words<U>(super, p, lane, w);
  }
};

}  // namespace tnd::gpu
