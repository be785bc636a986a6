// quantise_row: dispatch of the encoders and the float and 32-element formats.
// Rules (kv-cache and GGUF format definitions): scales are computed in float32 and stored as halves; codes use the
// reciprocal of the unrounded scale.
#include <cstring>

#include "core/dtype.h"
#include "core/fp.h"
#include "quant/encode_k.h"

namespace tnd {
namespace {

// The element of largest magnitude, with its sign; the first one on ties.
float signed_max(const float* x, int n) {
  float best = 0.0f;
  float magnitude = 0.0f;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > magnitude) {
      magnitude = std::fabs(x[i]);
      best = x[i];
    }
  }
  return best;
}

// 1 / d, or 0 where that is not finite (d zero or below 2^-128).
float reciprocal(float d) {
  const float inverse = 1.0f / d;
  return std::isfinite(inverse) ? inverse : 0.0f;
}

int clamp_code(float v, int top) {
  const int code = static_cast<int>(static_cast<int8_t>(v));
  return code < top ? code : top;
}

// Q4_0 (levels 16) and Q5_0 (levels 32): the extreme element becomes code 0.
void encode_symmetric(const float* x, int levels, uint8_t* code, uint16_t* d_half) {
  const float d = signed_max(x, 32) / static_cast<float>(-levels / 2);
  const float inverse = reciprocal(d);
  for (int j = 0; j < 32; ++j) {
    code[j] = static_cast<uint8_t>(clamp_code(x[j] * inverse + (static_cast<float>(levels / 2) + 0.5f), levels - 1));
  }
  *d_half = f32_to_f16(d);
}

// Q4_1 and Q5_1: codes from the minimum upwards.
void encode_offset(const float* x, int levels, uint8_t* code, uint16_t* d_half, uint16_t* m_half) {
  float lo = x[0];
  float hi = x[0];
  for (int j = 1; j < 32; ++j) {
    if (x[j] < lo) lo = x[j];
    if (x[j] > hi) hi = x[j];
  }
  const float d = (hi - lo) / static_cast<float>(levels - 1);
  const float inverse = reciprocal(d);
  for (int j = 0; j < 32; ++j) code[j] = static_cast<uint8_t>(clamp_code((x[j] - lo) * inverse + 0.5f, levels - 1));
  *d_half = f32_to_f16(d);
  *m_half = f32_to_f16(lo);
}

void pack_nibbles(const uint8_t* code, uint8_t* qs) {
  for (int j = 0; j < 16; ++j) qs[j] = static_cast<uint8_t>((code[j] & 15) | (code[j + 16] & 15) << 4);
}

uint32_t fifth_bits(const uint8_t* code) {
  uint32_t bits = 0;
  for (int j = 0; j < 32; ++j) bits |= static_cast<uint32_t>(code[j] >> 4 & 1) << j;
  return bits;
}

void encode_q4_0(const float* x, uint8_t* b) {
  uint8_t code[32];
  uint16_t d = 0;
  encode_symmetric(x, 16, code, &d);
  store_u16(b, d);
  pack_nibbles(code, b + 2);
}

void encode_q5_0(const float* x, uint8_t* b) {
  uint8_t code[32];
  uint16_t d = 0;
  encode_symmetric(x, 32, code, &d);
  store_u16(b, d);
  store_u32(b + 2, fifth_bits(code));
  pack_nibbles(code, b + 6);
}

void encode_q4_1(const float* x, uint8_t* b) {
  uint8_t code[32];
  uint16_t d = 0;
  uint16_t m = 0;
  encode_offset(x, 16, code, &d, &m);
  store_u16(b, d);
  store_u16(b + 2, m);
  pack_nibbles(code, b + 4);
}

void encode_q5_1(const float* x, uint8_t* b) {
  uint8_t code[32];
  uint16_t d = 0;
  uint16_t m = 0;
  encode_offset(x, 32, code, &d, &m);
  store_u16(b, d);
  store_u16(b + 2, m);
  store_u32(b + 4, fifth_bits(code));
  pack_nibbles(code, b + 8);
}

void encode_q8_0(const float* x, uint8_t* b) {
  const float d = std::fabs(signed_max(x, 32)) / 127.0f;
  const float inverse = reciprocal(d);
  store_u16(b, f32_to_f16(d));
  for (int j = 0; j < 32; ++j) b[2 + j] = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[j] * inverse)));
}

}  // namespace

Status quantise_row(DType type, const float* src, void* dst, uint64_t k) {
  if (k % block_elems(type) != 0) {
    return errorf(TND_INVALID_ARGUMENT, "%s row of %llu elements: not a multiple of %llu", dtype_name(type),
                  static_cast<unsigned long long>(k), static_cast<unsigned long long>(block_elems(type)));
  }
  uint8_t* to = static_cast<uint8_t*>(dst);
  void (*encode)(const float*, uint8_t*) = nullptr;
  switch (type) {
    case DType::kF32:
      std::memcpy(dst, src, k * sizeof(float));
      return {};
    case DType::kF16:
      for (uint64_t i = 0; i < k; ++i) store_u16(to + 2 * i, f32_to_f16(src[i]));
      return {};
    case DType::kBF16:
      for (uint64_t i = 0; i < k; ++i) store_u16(to + 2 * i, f32_to_bf16(src[i]));
      return {};
    case DType::kQ4_0:
      encode = encode_q4_0;
      break;
    case DType::kQ4_1:
      encode = encode_q4_1;
      break;
    case DType::kQ5_0:
      encode = encode_q5_0;
      break;
    case DType::kQ5_1:
      encode = encode_q5_1;
      break;
    case DType::kQ8_0:
      encode = encode_q8_0;
      break;
    case DType::kQ4_K:
      encode = encode_q4_k;
      break;
    case DType::kQ5_K:
      encode = encode_q5_k;
      break;
    case DType::kQ6_K:
      encode = encode_q6_k;
      break;
    default:
      return errorf(TND_UNIMPLEMENTED, "no encoder for %s", dtype_name(type));
  }
  const uint64_t elems = block_elems(type);
  const uint64_t bytes = block_bytes(type);
  for (uint64_t i = 0; i < k / elems; ++i) encode(src + i * elems, to + i * bytes);
  return {};
}

}  // namespace tnd
