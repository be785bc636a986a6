// TQ3_0: groups of 128 values, rotated by a fixed orthogonal transform, then three bits a value and a length a group
// (docs/spec/kv-cache.md section 3). Cached keys and values of this type stay rotated: queries are rotated before
// they meet the keys, and what attention makes of the values is rotated back.
//
// The order of all operations is part of the numeric contract (NUMERICS.md, "Cached keys and values"): steps of the
// transform ascending, sums by 16 lanes as those of head norms.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/fp.h"
#include "core/host_device.h"

namespace tnd {

inline constexpr int kTq3Group = 128;
inline constexpr float kTq3Step = 0.08838834764831845f;  // 1 / sqrt(128)
// Vectors that are not longer have the length zero.
inline constexpr float kTq3Shortest = 1e-10f;
inline constexpr float kTq3LargestNorm = 65504.0f;  // a finite half

// Elements whose sign the transform turns before and after its sums: bit j of word i is element 32 i + j.
TND_HOST_DEVICE constexpr uint32_t tq3_first_signs(int word) {
  return word == 0 ? 0xe46a0359u : word == 1 ? 0x42f85949u : word == 2 ? 0xa4c63bbbu : 0x49f250a9u;
}
TND_HOST_DEVICE constexpr uint32_t tq3_second_signs(int word) {
  return word == 0 ? 0x16acee90u : word == 1 ? 0x3f628fdcu : word == 2 ? 0xb7a5357au : 0xbea56562u;
}
TND_HOST_DEVICE constexpr float tq3_turned(float x, uint32_t signs, int bit) {
  return signs >> bit & 1 ? -x : x;
}

// Magnitudes of the values of a rotated unit vector, ascending. Code 4 + i is the positive one, 3 - i its negative.
TND_HOST_DEVICE constexpr float tq3_magnitude(int i) {
  return i == 0 ? 0.021460f : i == 1 ? 0.065717f : i == 2 ? 0.117832f : 0.190685f;
}
TND_HOST_DEVICE constexpr float tq3_value(int code) {
  return code >= 4 ? tq3_magnitude(code - 4) : -tq3_magnitude(3 - code);
}
TND_HOST_DEVICE constexpr int tq3_code(float v) {
  return (v >= -0.154259f ? 1 : 0) + (v >= -0.091775f ? 1 : 0) + (v >= -0.043589f ? 1 : 0) + (v >= 0.0f ? 1 : 0) +
         (v >= 0.043589f ? 1 : 0) + (v >= 0.091775f ? 1 : 0) + (v >= 0.154259f ? 1 : 0);
}
// The stored length, before it becomes a half, of a group of `length` whose decoded codes have the length `coded`.
TND_HOST_DEVICE constexpr float tq3_norm(float length, float coded) {
  const float norm = length / coded;  // coded is at least sqrt(128) times the smallest magnitude
  return norm < kTq3LargestNorm ? norm : kTq3LargestNorm;
}

namespace tq3_host {

// x = H x / sqrt(128), between turns of signs.
template <typename First, typename Second>
inline void transform(float* x, First first, Second second) {
  for (int i = 0; i < kTq3Group; i++) x[i] = tq3_turned(x[i], first(i / 32), i % 32);
  for (int step = 1; step < kTq3Group; step *= 2) {
    for (int from = 0; from < kTq3Group; from += 2 * step) {
      for (int i = from; i < from + step; i++) {
        const float a = x[i], b = x[i + step];
        x[i] = a + b;
        x[i + step] = a - b;
      }
    }
  }
  for (int i = 0; i < kTq3Group; i++) x[i] = tq3_turned(x[i] * kTq3Step, second(i / 32), i % 32);
}

inline float length(const float* x) {
  float lanes[16] = {};
  for (int i = 0; i < kTq3Group; i++) lanes[i % 16] = __builtin_fmaf(x[i], x[i], lanes[i % 16]);
  for (int n = 8; n > 0; n /= 2) {
    for (int i = 0; i < n; i++) lanes[i] = lanes[i] + lanes[i + n];
  }
  return __builtin_sqrtf(lanes[0]);
}

}  // namespace tq3_host

// tq3_rotate rotates every group of n elements, tq3_unrotate takes that back. n is a multiple of kTq3Group.
inline void tq3_rotate(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kTq3Group) tq3_host::transform(x + i, tq3_first_signs, tq3_second_signs);
}
inline void tq3_unrotate(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kTq3Group) tq3_host::transform(x + i, tq3_second_signs, tq3_first_signs);
}

// tq3_encode writes the portable blocks of n finite elements: norm, low two bits of 32 codes, third bits.
inline void tq3_encode(const float* x, void* to, int64_t n) {
  auto* out = static_cast<uint8_t*>(to);
  for (int64_t at = 0; at < n; at += kTq3Group) {
    float v[kTq3Group];
    const float length = tq3_host::length(x + at), inverse = length > kTq3Shortest ? 1.0f / length : 0.0f;
    for (int i = 0; i < kTq3Group; i++) v[i] = x[at + i] * inverse;
    tq3_rotate(v, kTq3Group);
    uint8_t codes[kTq3Group];
    for (int i = 0; i < kTq3Group; i++) {
      codes[i] = static_cast<uint8_t>(tq3_code(v[i]));
      v[i] = tq3_value(codes[i]);
    }
    const uint16_t norm = f32_to_f16(tq3_norm(length, tq3_host::length(v)));
    for (int block = 0; block < kTq3Group; block += 32, out += 14) {
      std::memset(out, 0, 14);
      std::memcpy(out, &norm, sizeof norm);
      for (int j = 0; j < 32; j++) {
        const int code = codes[block + j];
        out[2 + j / 4] = static_cast<uint8_t>(out[2 + j / 4] | (code & 3) << j % 4 * 2);
        out[10 + j / 8] = static_cast<uint8_t>(out[10 + j / 8] | code >> 2 << j % 8);
      }
    }
  }
}

}  // namespace tnd
