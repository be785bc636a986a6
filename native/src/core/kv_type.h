// Storage types of cached keys and values. NUMERICS.md, "Cached keys and values", is the contract.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/tq3.h"

namespace tnd {

// The table of types: name, id of the tensor type in GGUF files, bytes of the codes of n elements, 16-bit words of a
// block of kKvBlock elements before its codes (kv_head_words), bytes of a block. LAST ends the list. services/kvtype is
// the table's other side. Of TQ3_0 the codes are the low two bits; in its portable form the words of third bits stand
// behind them.
#define TND_KV_TYPES(ROW, LAST) \
  ROW(F32, 0, n * 4, 0, 128)    \
  ROW(F16, 1, n * 2, 0, 64)     \
  ROW(BF16, 30, n * 2, 0, 64)   \
  ROW(Q8_0, 8, n, 1, 34)        \
  ROW(Q5_1, 7, n / 2, 4, 24)    \
  ROW(Q5_0, 6, n / 2, 3, 22)    \
  ROW(Q4_1, 3, n / 2, 2, 20)    \
  ROW(Q4_0, 2, n / 2, 1, 18)    \
  LAST(TQ3_0, 42, n / 4, 3, 14)

enum class KvType : int32_t {
#define TND_ROW(name, id, codes, words, block) k##name = id,
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
// Largest magnitude that a block or a BF16 element encodes: what it decodes to then still is a finite half, at most
// 504 * 127 for Q8_0, 8000 * 8 for Q4_0, 4000 * 16 for Q5_0, 8536 * 15 - 64000 for Q4_1 and 4128 * 31 - 64000 for Q5_1;
// a BF16 has it exactly. TQ3_0 bounds the length of a group instead.
inline constexpr float kKvLargest = 64000.0f;

constexpr bool kv_type_known(int32_t type) {
#define TND_ROW(name, id, codes, words, block) type == id ||
#define TND_LAST(name, id, codes, words, block) type == id
  return TND_KV_TYPES(TND_ROW, TND_LAST);
#undef TND_ROW
#undef TND_LAST
}
// Name of a known type; "an unknown type" of others.
constexpr const char* kv_type_name(int32_t type) {
#define TND_ROW(name, id, codes, words, block) type == id ? #name:
  return TND_KV_TYPES(TND_ROW, TND_ROW) "an unknown type";
#undef TND_ROW
}
// Names and ids of all types, for messages.
#define TND_ROW(name, id, codes, words, block) #name " (" #id "), "
#define TND_LAST(name, id, codes, words, block) "or " #name " (" #id ")"
inline constexpr char kKvTypeNames[] = TND_KV_TYPES(TND_ROW, TND_LAST);
#undef TND_ROW
#undef TND_LAST
// Types with a scale a block. It is written out because device code reads it at run time and compilers give another
// order of comparisons other registers; the assertions below hold it to the table.
TND_HOST_DEVICE constexpr bool kv_quantised(KvType type) {
  return type != KvType::kF32 && type != KvType::kF16 && type != KvType::kBF16;
}
// Types whose blocks have a minimum: an element is code * scale + minimum, codes from 0.
TND_HOST_DEVICE constexpr bool kv_has_minimum(KvType type) {
  return type == KvType::kQ4_1 || type == KvType::kQ5_1;
}
// Values are rotated before they are coded (core/tq3.h), and groups of kTq3Group share a scale.
TND_HOST_DEVICE constexpr bool kv_rotated(KvType type) {
  return type == KvType::kTQ3_0;
}
// Elements that are coded together: heads are whole ones.
constexpr int kv_group(KvType type) {
  return !kv_quantised(type) ? 1 : kv_rotated(type) ? kTq3Group : kKvBlock;
}
// Types with codes of five bits: a word of the fifth ones stands before the low four.
TND_HOST_DEVICE constexpr bool kv_has_fifth_bits(KvType type) {
  return type == KvType::kQ5_0 || type == KvType::kQ5_1;
}
// 16-bit words of a block before its codes: scale, minimum and the word of fifth or third bits, as far as the type has
// them.
TND_HOST_DEVICE constexpr int kv_head_words(KvType type) {
  return type == KvType::kQ8_0 || type == KvType::kQ4_0
             ? 1
             : 1 + (kv_has_minimum(type) ? 1 : 0) + (kv_has_fifth_bits(type) || kv_rotated(type) ? 2 : 0);
}
// Bytes of the codes of n elements, without the words before them. n is a multiple of kKvBlock for quantised types.
TND_HOST_DEVICE constexpr int64_t kv_code_bytes(KvType type, int64_t n) {
#define TND_ROW(name, id, codes, words, block) type == KvType::k##name ? codes:
#define TND_LAST(name, id, codes, words, block) codes
  return TND_KV_TYPES(TND_ROW, TND_LAST);
#undef TND_ROW
#undef TND_LAST
}
// Bytes of n elements of one head's row with their scales.
TND_HOST_DEVICE constexpr int64_t kv_stored_bytes(KvType type, int64_t n) {
  return kv_code_bytes(type, n) + (kv_quantised(type) ? n / kKvBlock * 2 * kv_head_words(type) : 0);
}
#define TND_ROW(name, id, codes, words, block)                                                          \
  static_assert(kv_stored_bytes(KvType::k##name, kKvBlock) == block, "the bytes of a block of " #name); \
  static_assert(words == (kv_quantised(KvType::k##name) ? kv_head_words(KvType::k##name) : 0), "the words of " #name);
TND_KV_TYPES(TND_ROW, TND_ROW)
#undef TND_ROW

}  // namespace tnd
