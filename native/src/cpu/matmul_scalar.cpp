// The numeric contract of matmul.h in plain code: the definition that every vector kernel is compared with by memcmp.
// It is written for clarity, and runs on processors without a vector kernel.
#include <cmath>
#include <cstring>
#include <limits>

#include "core/fp.h"
#include "cpu/matmul.h"
#include "cpu/matmul_layout.h"
#include "quant/tables.h"

namespace tnd::cpu {
namespace {

// One output's codes and scales of a super-block, decoded from the tile.
struct Codes {
  int code[256];  // signed where the contract says so
  int scale[16];  // per group
  int min[8];     // Q4_K, Q5_K
  float d[8];     // [0], or per block of 32
  float m[8];     // dmin in [0], or per block of 32
};

float half_at(const uint8_t* p, uint64_t o) {
  return f16_to_f32(load_u16(p + 2 * o));
}
int signed_at(const uint8_t* p) {
  return static_cast<int8_t>(*p);
}

int nibble(const uint8_t* chunks, uint64_t o, uint64_t e, bool high) {
  const int byte = chunks[chunk_position(o, e)];
  return high ? byte >> 4 : byte & 15;
}

template <typename Layout, bool kFive>
void decode_k45(const uint8_t* p, uint64_t o, Codes* out) {
  out->d[0] = half_at(p + Layout::kD, o);
  out->m[0] = half_at(p + Layout::kDmin, o);
  for (uint64_t j = 0; j < 8; ++j) {
    out->scale[j] = p[Layout::kScales + 16 * j + o];
    out->min[j] = p[Layout::kMins + 32 * (j / 2) + 2 * o + j % 2];
    for (uint64_t e = 0; e < 32; ++e) {
      int n = nibble(p + Layout::kCodes + j / 2 * 8 * kChunk, o, e, j % 2 != 0);
      if constexpr (kFive) n |= (p[Layout::kPlane + chunk_position(o, e)] >> j & 1) << 4;
      out->code[32 * j + e] = n;
    }
  }
}

void decode_q6_k(const uint8_t* p, uint64_t o, Codes* out) {
  out->d[0] = half_at(p + LayoutQ6K::kD, o);
  for (uint64_t g = 0; g < 16; ++g) out->scale[g] = signed_at(p + LayoutQ6K::kScales + 32 * (g / 2) + 2 * o + g % 2);
  for (uint64_t h = 0; h < 2; ++h) {
    for (uint64_t t = 0; t < 4; ++t) {
      for (uint64_t e = 0; e < 32; ++e) {
        const int low = nibble(p + LayoutQ6K::kCodes + (2 * h + t % 2) * 8 * kChunk, o, e, t >= 2);
        const int high = p[LayoutQ6K::kPlane + h * 8 * kChunk + chunk_position(o, e)] >> 2 * t & 3;
        out->code[128 * h + 32 * t + e] = (low | high << 4) - 32;
      }
    }
  }
}

void decode_iq4_xs(const uint8_t* p, uint64_t o, Codes* out) {
  out->d[0] = half_at(p + LayoutIQ4XS::kD, o);
  for (uint64_t j = 0; j < 8; ++j) {
    out->scale[j] = signed_at(p + LayoutIQ4XS::kScales + 32 * (j / 2) + 2 * o + j % 2);
    for (uint64_t e = 0; e < 32; ++e) {
      out->code[32 * j + e] = kIq4Values[nibble(p + LayoutIQ4XS::kCodes + j * 4 * kChunk, o, e % 16, e >= 16)];
    }
  }
}

void decode_block32(DType type, const uint8_t* p, uint64_t nb, uint64_t o, Codes* out) {
  const LayoutBlock32 layout = layout_block32(type);
  for (uint64_t b = 0; b < nb; ++b) {
    const uint8_t* chunks = p + layout.header_bytes(nb) + b * layout.codes;
    out->d[b] = half_at(p + b * layout.header, o);
    if (layout.header == 64) out->m[b] = half_at(p + b * layout.header + 32, o);
    for (uint64_t e = 0; e < 32; ++e) {
      int* code = &out->code[32 * b + e];
      if (type == DType::kQ8_0) {
        *code = chunks[chunk_position(o, e)] - 128;
        continue;
      }
      int n = nibble(chunks, o, e % 16, e >= 16);
      if (layout.plane != 0) {
        n |= (p[layout.plane_offset(nb) + b * layout.plane + o * 4 + e % 4] >> e / 4 & 1) << 4;
      }
      switch (type) {
        case DType::kQ4_0:
          *code = n - 8;
          break;
        case DType::kQ5_0:
          *code = n - 16;
          break;
        case DType::kIQ4_NL:
          *code = kIq4Values[n];
          break;
        default:  // Q4_1, Q5_1
          *code = n;
      }
    }
  }
}

int32_t dot(const int* code, const int8_t* q, int n) {
  int32_t sum = 0;
  for (int i = 0; i < n; ++i) sum += code[i] * q[i];
  return sum;
}

// acc after one super-block of a 256-scaled type. GROUP: elements per integer scale.
template <int GROUP, bool kMin>
float add_super256(const Codes& w, const Act256& x, int row, float acc) {
  int32_t sum_d = 0;
  int32_t sum_m = 0;
  for (int g = 0; g < 256 / GROUP; ++g) sum_d += w.scale[g] * dot(w.code + GROUP * g, x.q[row] + GROUP * g, GROUP);
  float t = w.d[0] * static_cast<float>(sum_d);
  if constexpr (kMin) {
    for (int j = 0; j < 8; ++j) sum_m += w.min[j] * x.sum32[row][j];
    t = std::fma(-w.m[0], static_cast<float>(sum_m), t);
  }
  return std::fma(x.a[row], t, acc);
}

float add_super32(const Codes& w, const Act32& x, int row, uint64_t nb, bool with_min, float acc) {
  for (uint64_t b = 0; b < nb; ++b) {
    acc = std::fma(w.d[b] * x.a[row][b], static_cast<float>(dot(w.code + 32 * b, x.q[row] + 32 * b, 32)), acc);
    if (with_min) acc = std::fma(w.m[b] * x.a[row][b], x.sum[row][b], acc);
  }
  return acc;
}

template <DType TYPE>
void add_super(const uint8_t* p, const void* panel, uint64_t s, uint64_t elems, uint64_t o, int row0, int rows,
               float* lane, int lane_stride) {
  if constexpr (TYPE == DType::kF32 || TYPE == DType::kF16 || TYPE == DType::kBF16) {
    const ActF32& x = static_cast<const ActF32*>(panel)[s];
    for (int r = 0; r < rows; ++r) {
      float acc = lane[r * lane_stride];
      for (uint64_t i = 0; i < elems; ++i) {
        const uint64_t at = i * kTileOuts + o;
        float w;
        if constexpr (TYPE == DType::kF32) {
          std::memcpy(&w, p + 4 * at, 4);
        } else if constexpr (TYPE == DType::kF16) {
          w = half_at(p, at);
        } else {
          w = bf16_to_f32(load_u16(p + 2 * at));
        }
        acc = std::fma(w, x.x[row0 + r][i], acc);
      }
      lane[r * lane_stride] = acc;
    }
  } else {
    Codes w;
    if constexpr (TYPE == DType::kQ4_K) {
      decode_k45<LayoutQ4K, false>(p, o, &w);
    } else if constexpr (TYPE == DType::kQ5_K) {
      decode_k45<LayoutQ5K, true>(p, o, &w);
    } else if constexpr (TYPE == DType::kQ6_K) {
      decode_q6_k(p, o, &w);
    } else if constexpr (TYPE == DType::kIQ4_XS) {
      decode_iq4_xs(p, o, &w);
    } else {
      decode_block32(TYPE, p, elems / 32, o, &w);
    }
    for (int r = 0; r < rows; ++r) {
      float* acc = lane + r * lane_stride;
      if constexpr (TYPE == DType::kQ4_K || TYPE == DType::kQ5_K) {
        *acc = add_super256<32, true>(w, static_cast<const Act256*>(panel)[s], row0 + r, *acc);
      } else if constexpr (TYPE == DType::kQ6_K) {
        *acc = add_super256<16, false>(w, static_cast<const Act256*>(panel)[s], row0 + r, *acc);
      } else if constexpr (TYPE == DType::kIQ4_XS) {
        *acc = add_super256<32, false>(w, static_cast<const Act256*>(panel)[s], row0 + r, *acc);
      } else {
        constexpr bool kMin = TYPE == DType::kQ4_1 || TYPE == DType::kQ5_1;
        *acc = add_super32(w, static_cast<const Act32*>(panel)[s], row0 + r, elems / 32, kMin, *acc);
      }
    }
  }
}

template <DType TYPE>
void tile_scalar(const uint8_t* tile, const void* panel, uint64_t k, int row0, int rows, float* out, int64_t out_stride,
                 bool /*fetch*/) {
  for (uint64_t o = 0; o < kTileOuts; ++o) {
    float lanes[kPanelRows][4] = {};
    const uint8_t* p = tile;
    for (uint64_t s = 0; s * kSuper < k; ++s) {
      const uint64_t elems = k - s * kSuper < kSuper ? k - s * kSuper : kSuper;
      add_super<TYPE>(p, panel, s, elems, o, row0, rows, &lanes[0][s % 4], 4);
      p += super_bytes(TYPE, elems);
    }
    for (int r = 0; r < rows; ++r) {
      out[r * out_stride + static_cast<int64_t>(o)] = (lanes[r][0] + lanes[r][1]) + (lanes[r][2] + lanes[r][3]);
    }
  }
}

// Quantises n values to q with one scale; returns the scale.
float quantise_group(const float* x, uint64_t n, int8_t* q) {
  float max = 0.0f;
  for (uint64_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(x[i]);
    max = magnitude > max ? magnitude : max;
  }
  const float a = max / 127.0f;
  if (a < std::numeric_limits<float>::min()) {
    for (uint64_t i = 0; i < n; ++i) q[i] = 0;
    return 0.0f;
  }
  const float inverse = 1.0f / a;
  for (uint64_t i = 0; i < n; ++i) {
    float v = x[i] * inverse;
    v = v > -127.0f ? v : -127.0f;  // also takes NaN
    v = v < 127.0f ? v : 127.0f;
    q[i] = static_cast<int8_t>(round_even(v));
  }
  return a;
}

int sum_of(const int8_t* q, int n) {
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += q[i];
  return sum;
}

}  // namespace

void quantise256_scalar(const float* x, Act256* block, int row) {
  int8_t* q = block->q[row];
  block->a[row] = quantise_group(x, 256, q);
  for (int g = 0; g < 16; ++g) block->sum16[row][g] = static_cast<int16_t>(sum_of(q + 16 * g, 16));
  for (int j = 0; j < 8; ++j) block->sum32[row][j] = static_cast<int16_t>(sum_of(q + 32 * j, 32));
}

void quantise32_scalar(const float* x, uint64_t elems, Act32* block, int row) {
  for (uint64_t j = 0; j < elems / 32; ++j) {
    int8_t* q = block->q[row] + 32 * j;
    block->a[row][j] = quantise_group(x + 32 * j, 32, q);
    const int sum = sum_of(q, 32);
    block->minus128[row][j] = -128 * sum;
    block->sum[row][j] = static_cast<float>(sum);
  }
}

TileKernel tile_kernel_scalar(DType type) {
  switch (type) {
    case DType::kF32:
      return tile_scalar<DType::kF32>;
    case DType::kF16:
      return tile_scalar<DType::kF16>;
    case DType::kBF16:
      return tile_scalar<DType::kBF16>;
    case DType::kQ4_0:
      return tile_scalar<DType::kQ4_0>;
    case DType::kQ4_1:
      return tile_scalar<DType::kQ4_1>;
    case DType::kQ5_0:
      return tile_scalar<DType::kQ5_0>;
    case DType::kQ5_1:
      return tile_scalar<DType::kQ5_1>;
    case DType::kQ8_0:
      return tile_scalar<DType::kQ8_0>;
    case DType::kQ4_K:
      return tile_scalar<DType::kQ4_K>;
    case DType::kQ5_K:
      return tile_scalar<DType::kQ5_K>;
    case DType::kQ6_K:
      return tile_scalar<DType::kQ6_K>;
    case DType::kIQ4_NL:
      return tile_scalar<DType::kIQ4_NL>;
    case DType::kIQ4_XS:
      return tile_scalar<DType::kIQ4_XS>;
    default:
      return nullptr;
  }
}

}  // namespace tnd::cpu
