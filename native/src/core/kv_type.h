// Storage types of cached keys and values. NUMERICS.md, "Cached keys and values", is the contract.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace tnd {

// The table of types: name, id of the tensor type in GGUF files, bytes of the codes of n elements, bytes of a block of
// kKvBlock elements with its scale. LAST ends the list. services/kvtype is the table's other side.
#define TND_KV_TYPES(ROW, LAST) \
  ROW(F32, 0, n * 4, 128)       \
  ROW(F16, 1, n * 2, 64)        \
  ROW(Q8_0, 8, n, 34)           \
  LAST(Q4_0, 2, n / 2, 18)

enum class KvType : int32_t {
#define TND_ROW(name, id, codes, block) k##name = id,
  TND_KV_TYPES(TND_ROW, TND_ROW)
#undef TND_ROW
};

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
#define TND_ROW(name, id, codes, block) type == id ||
#define TND_LAST(name, id, codes, block) type == id
  return TND_KV_TYPES(TND_ROW, TND_LAST);
#undef TND_ROW
#undef TND_LAST
}
// Name of a known type; "an unknown type" of others.
constexpr const char* kv_type_name(int32_t type) {
#define TND_ROW(name, id, codes, block) type == id ? #name:
  return TND_KV_TYPES(TND_ROW, TND_ROW) "an unknown type";
#undef TND_ROW
}
// Names and ids of all types, for messages.
#define TND_ROW(name, id, codes, block) #name " (" #id "), "
#define TND_LAST(name, id, codes, block) "or " #name " (" #id ")"
inline constexpr char kKvTypeNames[] = TND_KV_TYPES(TND_ROW, TND_LAST);
#undef TND_ROW
#undef TND_LAST
// Types with a scale a block. It is written out because device code reads it at run time and compilers give another
// order of comparisons other registers; the assertions below hold it to the table.
TND_HOST_DEVICE constexpr bool kv_quantised(KvType type) {
  return type == KvType::kQ4_0 || type == KvType::kQ8_0;
}
// Bytes of the codes of n elements, scales not included. n is a multiple of kKvBlock for quantised types.
TND_HOST_DEVICE constexpr int64_t kv_code_bytes(KvType type, int64_t n) {
#define TND_ROW(name, id, codes, block) type == KvType::k##name ? codes:
#define TND_LAST(name, id, codes, block) codes
  return TND_KV_TYPES(TND_ROW, TND_LAST);
#undef TND_ROW
#undef TND_LAST
}
// Bytes of n elements of one head's row with their scales.
TND_HOST_DEVICE constexpr int64_t kv_stored_bytes(KvType type, int64_t n) {
  return kv_code_bytes(type, n) + (kv_quantised(type) ? n / kKvBlock * 2 : 0);
}
#define TND_ROW(name, id, codes, block) \
  static_assert(kv_stored_bytes(KvType::k##name, kKvBlock) == block, "the bytes of a block of " #name);
TND_KV_TYPES(TND_ROW, TND_ROW)
#undef TND_ROW

}  // namespace tnd
