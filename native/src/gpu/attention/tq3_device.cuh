// TQ3_0 on half warps (core/tq3.h has the host's side; the bits are the same): lane j holds elements j + 16 i of a
// group in x[i]. All functions are called by whole warps; each half may have a group of its own.
#pragma once

#include "core/tq3.h"
#include "gpu/math/norm_device.cuh"

namespace tnd::gpu {

inline constexpr int kTq3Per = kTq3Group / 16;  // elements of a lane

// tq3_transform rotates a group, or rotates it back.
TND_DEVICE void tq3_transform(float (&x)[kTq3Per], bool back) {
  const int lane = static_cast<int>(lane_id()) % 16;
  const auto turned = [&](int i, bool first) {
    const uint32_t signs = first != back ? tq3_first_signs(i / 2) : tq3_second_signs(i / 2);
    return tq3_turned(x[i], signs, lane + i % 2 * 16);
  };
#pragma unroll
  for (int i = 0; i < kTq3Per; ++i) x[i] = turned(i, true);
#pragma unroll
  for (int mask = 1; mask < 16; mask *= 2) {
    const bool upper = (lane & mask) != 0;
#pragma unroll
    for (int i = 0; i < kTq3Per; ++i) {
      const float other = shfl_xor(x[i], mask);
      x[i] = upper ? other - x[i] : x[i] + other;
    }
  }
#pragma unroll
  for (int step = 1; step < kTq3Per; step *= 2) {
#pragma unroll
    for (int i = 0; i < kTq3Per; ++i) {
      if ((i & step) != 0) continue;
      const float a = x[i], b = x[i + step];
      x[i] = a + b;
      x[i + step] = a - b;
    }
  }
#pragma unroll
  for (int i = 0; i < kTq3Per; ++i) {
    x[i] *= kTq3Step;
    x[i] = turned(i, false);
  }
}

TND_DEVICE float tq3_length(const float (&x)[kTq3Per]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kTq3Per; ++i) sum = fmaf(x[i], x[i], sum);
  return sqrtf(fold_16(sum));
}

// A group, coded; the same in all lanes.
struct Tq3Codes {
  float norm;
  uint32_t low[kTq3Per];        // low two bits of elements 16 i to 16 i + 15
  uint32_t third[kTq3Per / 2];  // third bits of a block
};
TND_DEVICE Tq3Codes tq3_encode_group(float (&x)[kTq3Per]) {
  const int lane = static_cast<int>(lane_id()) % 16;
  const float length = tq3_length(x), inverse = length > kTq3Shortest ? 1.0f / length : 0.0f;
#pragma unroll
  for (int i = 0; i < kTq3Per; ++i) x[i] *= inverse;
  tq3_transform(x, false);
  Tq3Codes c;
#pragma unroll
  for (int i = 0; i < kTq3Per; ++i) {
    const int code = tq3_code(x[i]);
    x[i] = tq3_value(code);
    c.low[i] = static_cast<uint32_t>(code & 3) << (2 * lane);
    const uint32_t third = static_cast<uint32_t>(code >> 2) << (lane + i % 2 * 16);
    c.third[i / 2] = i % 2 == 0 ? third : c.third[i / 2] | third;
  }
  c.norm = tq3_norm(length, tq3_length(x));
#pragma unroll
  for (int mask = 8; mask > 0; mask /= 2) {
#pragma unroll
    for (int i = 0; i < kTq3Per; ++i) c.low[i] |= shfl_xor(c.low[i], mask);
#pragma unroll
    for (int i = 0; i < kTq3Per / 2; ++i) c.third[i] |= shfl_xor(c.third[i], mask);
  }
  return c;
}

// tq3_store_group writes group `group` of a row, codes and heads of its blocks (kv.h).
TND_DEVICE void tq3_store_group(uint8_t* codes, uint16_t* heads, int group, const Tq3Codes& c) {
  if (lane_id() % 16 != 0) return;
  uint32_t* low = reinterpret_cast<uint32_t*>(codes) + group * kTq3Per;
  uint16_t* head = heads + group * (kTq3Per / 2) * 3;
  const uint16_t norm = float_to_half(c.norm);
#pragma unroll
  for (int i = 0; i < kTq3Per; ++i) low[i] = c.low[i];
#pragma unroll
  for (int i = 0; i < kTq3Per / 2; ++i) {
    head[3 * i] = norm;
    head[3 * i + 1] = static_cast<uint16_t>(c.third[i]);
    head[3 * i + 2] = static_cast<uint16_t>(c.third[i] >> 16);
  }
}

}  // namespace tnd::gpu
