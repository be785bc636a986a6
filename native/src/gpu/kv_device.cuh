// Cells of a cache as kernels see them.
#pragma once

#include "gpu/kv.h"
#include "gpu/runtime.h"

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

TND_DEVICE float kv_load(int32_t type, const void* cache, int64_t i) {
  if (type == static_cast<int32_t>(KvType::kF32)) return static_cast<const float*>(cache)[i];
  return half_to_float(static_cast<const uint16_t*>(cache)[i]);
}
TND_DEVICE void kv_store(int32_t type, void* cache, int64_t i, float x) {
  if (type == static_cast<int32_t>(KvType::kF32)) {
    static_cast<float*>(cache)[i] = x;
  } else {
    static_cast<uint16_t*>(cache)[i] = half_saturated(x);
  }
}

}  // namespace tnd::gpu
