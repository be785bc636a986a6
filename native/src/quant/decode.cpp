// Block decoders: GGUF blocks to float32. Products of a half-float scale, an integer scale and a code have at most 24
// significant bits, so they are exact; only the additions of a minimum round, once.
#include <cstring>

#include "core/dtype.h"
#include "core/fp.h"
#include "quant/tables.h"

namespace tnd {
namespace {

// The low nibbles of 16 bytes are elements 0..15, the high ones 16..31.
template <typename Value>
void nibbles(const uint8_t* qs, float* y, Value&& value) {
  for (int j = 0; j < 16; ++j) {
    y[j] = value(qs[j] & 15, j);
    y[j + 16] = value(qs[j] >> 4, j + 16);
  }
}

void decode_q4_0(const uint8_t* b, float* y) {
  const float d = f16_to_f32(load_u16(b));
  nibbles(b + 2, y, [&](int n, int) { return static_cast<float>(n - 8) * d; });
}

void decode_q4_1(const uint8_t* b, float* y) {
  const float d = f16_to_f32(load_u16(b));
  const float m = f16_to_f32(load_u16(b + 2));
  nibbles(b + 4, y, [&](int n, int) { return static_cast<float>(n) * d + m; });
}

void decode_q5_0(const uint8_t* b, float* y) {
  const float d = f16_to_f32(load_u16(b));
  const uint32_t qh = load_u32(b + 2);
  nibbles(b + 6, y,
          [&](int n, int j) { return static_cast<float>((n | static_cast<int>(qh >> j & 1) << 4) - 16) * d; });
}

void decode_q5_1(const uint8_t* b, float* y) {
  const float d = f16_to_f32(load_u16(b));
  const float m = f16_to_f32(load_u16(b + 2));
  const uint32_t qh = load_u32(b + 4);
  nibbles(b + 8, y, [&](int n, int j) { return static_cast<float>(n | static_cast<int>(qh >> j & 1) << 4) * d + m; });
}

void decode_q8_0(const uint8_t* b, float* y) {
  const float d = f16_to_f32(load_u16(b));
  for (int j = 0; j < 32; ++j) y[j] = static_cast<float>(static_cast<int8_t>(b[2 + j])) * d;
}

void decode_iq4_nl(const uint8_t* b, float* y) {
  const float d = f16_to_f32(load_u16(b));
  nibbles(b + 2, y, [&](int n, int) { return d * static_cast<float>(kIq4Values[n]); });
}

void decode_q2_k(const uint8_t* b, float* y) {
  const uint8_t* qs = b + 16;
  const float d = f16_to_f32(load_u16(b + 80));
  const float dmin = f16_to_f32(load_u16(b + 82));
  for (int e = 0; e < 256; ++e) {
    const int half = e / 128;
    const int shift = e % 128 / 32;
    const int l = e % 32;
    const int q = qs[32 * half + l] >> 2 * shift & 3;
    const int scale = b[8 * half + 2 * shift + l / 16];
    y[e] = d * static_cast<float>((scale & 15) * q) - dmin * static_cast<float>(scale >> 4);
  }
}

void decode_q3_k(const uint8_t* b, float* y) {
  const uint8_t* hmask = b;
  const uint8_t* qs = b + 32;
  const uint8_t* packed = b + 96;
  const float d = f16_to_f32(load_u16(b + 108));
  for (int e = 0; e < 256; ++e) {
    const int half = e / 128;
    const int shift = e % 128 / 32;
    const int l = e % 32;
    const int group = 8 * half + 2 * shift + l / 16;
    const int q = (qs[32 * half + l] >> 2 * shift & 3) - (hmask[l] >> (4 * half + shift) & 1 ? 0 : 4);
    const int low = group < 8 ? packed[group] & 15 : packed[group - 8] >> 4;
    const int scale = (low | (packed[8 + group % 4] >> 2 * (group / 4) & 3) << 4) - 32;
    y[e] = d * static_cast<float>(scale * q);
  }
}

// Q4_K (fifth bits absent) and Q5_K share scales and nibble order.
void decode_k45(const uint8_t* b, const uint8_t* qh, const uint8_t* qs, float* y) {
  const float d = f16_to_f32(load_u16(b));
  const float dmin = f16_to_f32(load_u16(b + 2));
  for (int j = 0; j < 8; ++j) {
    uint8_t scale = 0;
    uint8_t min = 0;
    k4_scale_min(b + 4, j, &scale, &min);
    const float group_d = d * static_cast<float>(scale);
    const float group_m = dmin * static_cast<float>(min);
    for (int l = 0; l < 32; ++l) {
      const int byte = qs[32 * (j / 2) + l];
      int n = j % 2 == 0 ? byte & 15 : byte >> 4;
      if (qh != nullptr) n |= (qh[l] >> j & 1) << 4;
      y[32 * j + l] = group_d * static_cast<float>(n) - group_m;
    }
  }
}

void decode_q4_k(const uint8_t* b, float* y) {
  decode_k45(b, nullptr, b + 16, y);
}
void decode_q5_k(const uint8_t* b, float* y) {
  decode_k45(b, b + 16, b + 48, y);
}

void decode_q6_k(const uint8_t* b, float* y) {
  const uint8_t* ql = b;
  const uint8_t* qh = b + 128;
  const uint8_t* scales = b + 192;
  const float d = f16_to_f32(load_u16(b + 208));
  for (int half = 0; half < 2; ++half) {
    for (int t = 0; t < 4; ++t) {
      for (int l = 0; l < 32; ++l) {
        const int byte = ql[64 * half + l + 32 * (t & 1)];
        const int low = t < 2 ? byte & 15 : byte >> 4;
        const int q = (low | (qh[32 * half + l] >> 2 * t & 3) << 4) - 32;
        const int scale = static_cast<int8_t>(scales[8 * half + 2 * t + l / 16]);
        y[128 * half + 32 * t + l] = d * static_cast<float>(scale * q);
      }
    }
  }
}

void decode_iq4_xs(const uint8_t* b, float* y) {
  const float d = f16_to_f32(load_u16(b));
  const uint16_t scales_h = load_u16(b + 2);
  for (int j = 0; j < 8; ++j) {
    const float group_d = d * static_cast<float>(iq4xs_scale(scales_h, b + 4, j));
    nibbles(b + 8 + 16 * j, y + 32 * j, [&](int n, int) { return group_d * static_cast<float>(kIq4Values[n]); });
  }
}

// E2M1 doubled, so that it is an integer; the sign is bit 3.
float fp4_doubled(int code) {
  static constexpr float kMagnitude[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  return code & 8 ? -kMagnitude[code & 7] : kMagnitude[code & 7];
}

void decode_mxfp4(const uint8_t* b, float* y) {
  // 2^(e - 127) / 2 for the doubled table; e - 128 may be below the normal exponents, ldexp stays exact there.
  const float d = b[0] == 255 ? std::bit_cast<float>(0x7FC00000u) : std::ldexp(1.0f, b[0] - 128);
  nibbles(b + 1, y, [&](int n, int) { return fp4_doubled(n) * d; });
}

// Unsigned E4M3 with bias 7; 0 and 0x7F stand for zero, the top bit is not used.
float ue4m3(uint8_t x) {
  const int exponent = x >> 3 & 15;
  const int mantissa = x & 7;
  if (x == 0 || x == 0x7F) return 0.0f;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-9f;
  return std::ldexp(1.0f + static_cast<float>(mantissa) / 8.0f, exponent - 7);
}

void decode_nvfp4(const uint8_t* b, float* y) {
  for (int s = 0; s < 4; ++s) {
    const float d = ue4m3(b[s]) * 0.5f;
    const uint8_t* qs = b + 4 + 8 * s;
    for (int j = 0; j < 8; ++j) {
      y[16 * s + j] = fp4_doubled(qs[j] & 15) * d;
      y[16 * s + j + 8] = fp4_doubled(qs[j] >> 4) * d;
    }
  }
}

using Decoder = void (*)(const uint8_t* block, float* y);

Decoder decoder_of(DType type) {
  switch (type) {
    case DType::kQ4_0:
      return decode_q4_0;
    case DType::kQ4_1:
      return decode_q4_1;
    case DType::kQ5_0:
      return decode_q5_0;
    case DType::kQ5_1:
      return decode_q5_1;
    case DType::kQ8_0:
      return decode_q8_0;
    case DType::kQ2_K:
      return decode_q2_k;
    case DType::kQ3_K:
      return decode_q3_k;
    case DType::kQ4_K:
      return decode_q4_k;
    case DType::kQ5_K:
      return decode_q5_k;
    case DType::kQ6_K:
      return decode_q6_k;
    case DType::kIQ4_NL:
      return decode_iq4_nl;
    case DType::kIQ4_XS:
      return decode_iq4_xs;
    case DType::kMXFP4:
      return decode_mxfp4;
    case DType::kNVFP4:
      return decode_nvfp4;
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  return nullptr;
}

}  // namespace

void dequantise_row(DType type, const void* src, float* dst, uint64_t k) {
  const uint8_t* from = static_cast<const uint8_t*>(src);
  switch (type) {
    case DType::kF32:
      std::memcpy(dst, src, k * sizeof(float));
      return;
    case DType::kF16:
      for (uint64_t i = 0; i < k; ++i) dst[i] = f16_to_f32(load_u16(from + 2 * i));
      return;
    case DType::kBF16:
      for (uint64_t i = 0; i < k; ++i) dst[i] = bf16_to_f32(load_u16(from + 2 * i));
      return;
    default:
      break;
  }
  const Decoder decode = decoder_of(type);
  const uint64_t elems = block_elems(type);
  const uint64_t bytes = block_bytes(type);
  for (uint64_t i = 0; i < k / elems; ++i) decode(from + i * bytes, dst + i * elems);
}

}  // namespace tnd
