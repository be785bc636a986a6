// Cells of a cache as kernels see them.
#pragma once

#include "gpu/attention/kv.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// half_saturated rounds to the nearest finite half; NaN becomes 0.
TND_DEVICE uint16_t half_saturated(float x) {
  constexpr float kMaxHalf = 65504.0f;
  x = x > kMaxHalf ? kMaxHalf : x;
  x = x < -kMaxHalf ? -kMaxHalf : x;
  return x == x ? float_to_half(x) : uint16_t{0};
}

// Element index of a head's row in [heads][capacity][dim].
TND_DEVICE int64_t kv_index(const KvShape& s, int head, int64_t slot) {
  return (int64_t{head} * s.capacity + slot) * s.dim;
}

// Of a table in device memory.
TND_DEVICE KvCache load_cache(const KvCache* from) {
  return {device_pointer(from->k), device_pointer(from->v)};
}

// One head's row. scales are those of its blocks, quantised types only.
struct KvRow {
  uint8_t* codes;
  uint16_t* scales;
};
TND_DEVICE KvRow kv_row(KvType type, const KvShape& s, void* cache, int head, int64_t slot) {
  uint8_t* base = static_cast<uint8_t*>(cache) + int64_t{head} * s.capacity * kv_stored_bytes(type, s.dim);
  const int64_t row = kv_code_bytes(type, s.dim);
  return {base + slot * row, reinterpret_cast<uint16_t*>(base + s.capacity * row) + slot * (s.dim / kKvBlock)};
}

// Element d of a row. Of a block: code * scale, exact in f32, rounded to half as the tiles of flash attention hold it.
TND_DEVICE float kv_load(KvType type, const KvRow& row, int d) {
  if (type == KvType::kF32) return reinterpret_cast<const float*>(row.codes)[d];
  if (type == KvType::kF16) return half_to_float(reinterpret_cast<const uint16_t*>(row.codes)[d]);
  int code;
  if (type == KvType::kQ8_0) {
    code = static_cast<int8_t>(row.codes[d]);
  } else {
    code = (row.codes[d / kKvBlock * 16 + d % 16] >> (d / 16 % 2 * 4) & 15) - 8;
  }
  return half_to_float(float_to_half(static_cast<float>(code) * half_to_float(row.scales[d / kKvBlock])));
}

TND_DEVICE void kv_store_plain(KvType type, const KvRow& row, int d, float x) {
  if (type == KvType::kF32) {
    reinterpret_cast<float*>(row.codes)[d] = x;
  } else {
    reinterpret_cast<uint16_t*>(row.codes)[d] = half_saturated(x);
  }
}

// kv_clean is what a block stores of x.
TND_DEVICE float kv_clean(float x) {
  x = x > kKvLargest ? kKvLargest : x;
  x = x < -kKvLargest ? -kKvLargest : x;
  return x == x ? x : 0.0f;
}
// kv_extreme is the element of largest magnitude of a block, with its sign, the first on ties: lanes j of a half warp
// hold elements j (x) and j + 16 (y). Called by the whole warp.
TND_DEVICE float kv_extreme(float x, float y) {
  int at = static_cast<int>(lane_id()) % 16;
  if (fabsf(y) > fabsf(x)) x = y, at += 16;
#pragma unroll
  for (int mask = 8; mask > 0; mask /= 2) {
    const float other = shfl_xor(x, mask);
    const int other_at = shfl_xor(at, mask);
    if (fabsf(other) > fabsf(x) || (fabsf(other) == fabsf(x) && other_at < at)) x = other, at = other_at;
  }
  return x == 0.0f ? 0.0f : x;
}
// kv_store_block encodes elements j (x) and j + 16 (y) of a row's block in lane j, with the rules and the operations of
// quant/encode.cpp: the code of v is v * (1 / d), d not yet rounded to half.
TND_DEVICE void kv_store_block(KvType type, const KvRow& row, int block, float x, float y, float extreme) {
  const int lane = static_cast<int>(lane_id()) % 16;
  const bool bytes = type == KvType::kQ8_0;
  const float d = bytes ? fabsf(extreme) / 127.0f : extreme / -8.0f;
  float inverse = 1.0f / d;
  if (!(fabsf(inverse) < __builtin_inff())) inverse = 0.0f;  // d is zero or its reciprocal too large
  if (bytes) {
    row.codes[block * 32 + lane] = static_cast<uint8_t>(static_cast<int8_t>(roundf(x * inverse)));
    row.codes[block * 32 + 16 + lane] = static_cast<uint8_t>(static_cast<int8_t>(roundf(y * inverse)));
  } else {
    const int low = static_cast<int>(x * inverse + 8.5f), high = static_cast<int>(y * inverse + 8.5f);
    row.codes[block * 16 + lane] = static_cast<uint8_t>((low < 15 ? low : 15) | (high < 15 ? high : 15) << 4);
  }
  if (lane == 0) row.scales[block] = float_to_half(d);
}

}  // namespace tnd::gpu
