// Conversions between float32 and the 16-bit float formats, and exact rounding helpers.
// All of them are pure bit arithmetic or single IEEE operations: the same bits on every machine.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/host_device.h"

namespace tnd {

// load_u16 / load_u32 read little-endian integers from unaligned memory.
inline uint16_t load_u16(const void* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline uint32_t load_u32(const void* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store_u16(void* p, uint16_t v) {
  std::memcpy(p, &v, sizeof v);
}
inline void store_u32(void* p, uint32_t v) {
  std::memcpy(p, &v, sizeof v);
}

// f16_to_f32 is exact for every half, subnormals included; NaN keeps its payload and becomes quiet, as the hardware
// conversion does.
TND_HOST_DEVICE inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t mantissa = h & 1023u;
  if (exponent == 31) {
    const uint32_t quiet = mantissa != 0 ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7F800000u | quiet | mantissa << 13);
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // exact: ten bits times a power of two
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | (exponent + 112u) << 23 | mantissa << 13);
}

// f32_to_f16 rounds to nearest, ties to even; overflow gives infinity, NaN a quiet NaN.
TND_HOST_DEVICE inline uint16_t f32_to_f16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // >= 65520 rounds to infinity
  if (magnitude < 0x38800000u) {                                               // below 2^-14: subnormal half
    // Adding 0.5 aligns the last bit of the sum with 2^-24, so the float addition itself rounds to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// bf16_to_f32 is exact: a bfloat16 is the upper half of a float32.
TND_HOST_DEVICE inline float bf16_to_f32(uint16_t b) {
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
}

// f32_to_bf16 rounds to nearest, ties to even; NaN stays NaN and becomes quiet.
TND_HOST_DEVICE inline uint16_t f32_to_bf16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

// round_even rounds half to even for |x| <= 4194303: adding 1.5 * 2^23 leaves the integer in the mantissa. Beyond that,
// and for NaN, the result is some integer.
TND_HOST_DEVICE inline int32_t round_even(float x) {
  const float shifted = x + 12582912.0f;
  return static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - 0x4B400000u);
}

}  // namespace tnd
