// Storage types of cached keys and values. NUMERICS.md, "Cached keys and values", is the contract.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace tnd {

enum class KvType : int32_t { kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ8_0 = 8 };  // ggml ids

inline constexpr int kKvBlock = 32;  // elements that share a scale
// Positions of a page, a tile of the attention kernels: page p of a pool is its slots [64 p, 64 p + 64).
inline constexpr int32_t kKvPage = 64;

// kv_pages returns how many pages hold `positions` positions.
constexpr int32_t kv_pages(int64_t positions) {
  return static_cast<int32_t>((positions + kKvPage - 1) / kKvPage);
}
// kv_slot returns the slot of a position by the pages of its sequence.
TND_HOST_DEVICE constexpr int32_t kv_slot(const int32_t* pages, int32_t position) {
  return pages[position / kKvPage] * kKvPage + position % kKvPage;
}
// Largest magnitude that a block encodes: the largest product of a scale (a half) and a code then still is a finite
// half, 504 * 127 for Q8_0 and 8000 * 8 for Q4_0.
inline constexpr float kKvLargest = 64000.0f;

constexpr bool kv_type_known(int32_t type) {
  return type == 0 || type == 1 || type == 2 || type == 8;
}
TND_HOST_DEVICE constexpr bool kv_quantised(KvType type) {
  return type == KvType::kQ4_0 || type == KvType::kQ8_0;
}
// Bytes of the codes of n elements, scales not included. n is a multiple of kKvBlock for quantised types.
TND_HOST_DEVICE constexpr int64_t kv_code_bytes(KvType type, int64_t n) {
  return type == KvType::kF32 ? n * 4 : type == KvType::kF16 ? n * 2 : type == KvType::kQ8_0 ? n : n / 2;
}
// Bytes of n elements of one head's row with their scales.
TND_HOST_DEVICE constexpr int64_t kv_stored_bytes(KvType type, int64_t n) {
  return kv_code_bytes(type, n) + (kv_quantised(type) ? n / kKvBlock * 2 : 0);
}

}  // namespace tnd
