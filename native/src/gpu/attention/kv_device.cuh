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

// Reads an entry of a table in device memory.
TND_DEVICE KvCache load_cache(const KvCache* from) {
  return {device_pointer(from->k), device_pointer(from->v)};
}

// One head's row. heads are the words of its blocks before their codes (kv_head_words), quantised types only.
struct KvRow {
  uint8_t* codes;
  uint16_t* heads;
};
TND_DEVICE KvRow kv_row(KvType type, const KvShape& s, void* cache, int head, int64_t slot) {
  uint8_t* base = static_cast<uint8_t*>(cache) + int64_t{head} * s.capacity * kv_stored_bytes(type, s.dim);
  const int64_t row = kv_code_bytes(type, s.dim);
  return {base + slot * row,
          reinterpret_cast<uint16_t*>(base + s.capacity * row) + slot * (s.dim / kKvBlock * kv_head_words(type))};
}

// The word of fifth or third bits of a block, from its head.
TND_DEVICE uint32_t kv_fifth_bits(KvType type, const uint16_t* head) {
  const uint16_t* word = head + (kv_has_minimum(type) ? 2 : 1);
  return static_cast<uint32_t>(word[1]) << 16 | word[0];
}

// Element d of a row. Of a block: code * scale, exact in f32, or code * scale + minimum in f32, of TQ3_0 the rotated
// element; of a block and a BF16 rounded to half as the tiles of flash attention hold it.
TND_DEVICE float kv_load(KvType type, const KvRow& row, int d) {
  if (type == KvType::kF32) return reinterpret_cast<const float*>(row.codes)[d];
  if (type == KvType::kF16) return half_to_float(reinterpret_cast<const uint16_t*>(row.codes)[d]);
  float x;
  if (type == KvType::kBF16) {
    x = bfloat_to_float(reinterpret_cast<const uint16_t*>(row.codes)[d]);
  } else {
    const uint16_t* head = row.heads + d / kKvBlock * kv_head_words(type);
    int code;
    if (type == KvType::kTQ3_0) {
      const int third = static_cast<int>(kv_fifth_bits(type, head) >> d % kKvBlock & 1) << 2;
      return half_to_float(
          float_to_half(tq3_value((row.codes[d / 4] >> d % 4 * 2 & 3) | third) * half_to_float(head[0])));
    }
    if (type == KvType::kQ8_0) {
      code = static_cast<int8_t>(row.codes[d]);
    } else {
      code = row.codes[d / kKvBlock * 16 + d % 16] >> (d / 16 % 2 * 4) & 15;
      if (kv_has_fifth_bits(type)) code |= static_cast<int>(kv_fifth_bits(type, head) >> d % kKvBlock & 1) << 4;
      if (!kv_has_minimum(type)) code -= kv_has_fifth_bits(type) ? 16 : 8;
    }
    x = static_cast<float>(code) * half_to_float(head[0]);
    if (kv_has_minimum(type)) x += half_to_float(head[1]);
  }
  return half_to_float(float_to_half(x));
}

// kv_clean is what a block or a BF16 stores of x.
TND_DEVICE float kv_clean(float x) {
  x = x > kKvLargest ? kKvLargest : x;
  x = x < -kKvLargest ? -kKvLargest : x;
  return x == x ? x : 0.0f;
}
TND_DEVICE void kv_store_plain(KvType type, const KvRow& row, int d, float x) {
  if (type == KvType::kF32) {
    reinterpret_cast<float*>(row.codes)[d] = x;
  } else if (type == KvType::kF16) {
    reinterpret_cast<uint16_t*>(row.codes)[d] = half_saturated(x);
  } else {
    reinterpret_cast<uint16_t*>(row.codes)[d] = f32_to_bf16(kv_clean(x));
  }
}

// kv_first is the element of a block that comes before all others, the first one on ties: lanes j of a half warp hold
// elements j (x) and j + 16 (y). Called by the whole warp.
template <typename Before>
TND_DEVICE float kv_first(float x, float y, const Before& before) {
  int at = static_cast<int>(lane_id()) % 16;
  if (before(y, x)) x = y, at += 16;
#pragma unroll
  for (int mask = 8; mask > 0; mask /= 2) {
    const float other = shfl_xor(x, mask);
    const int other_at = shfl_xor(at, mask);
    if (before(other, x) || (!before(x, other) && other_at < at)) x = other, at = other_at;
  }
  return x;
}

// Elements j (x) and j + 16 (y) of a row's block in lane j, encoded.
struct KvCodes {
  float scale, minimum;
  int low, high;    // codes of x and y
  uint32_t fifths;  // of the block, if the type has them
};
// kv_encode follows quant/encode.cpp, operation by operation: the code of v is v * (1 / d), or (v - minimum) *
// (1 / d), d not yet rounded to half. Called by the whole warp; `minima` and `fifths` say that the type of some lane
// has them.
TND_DEVICE KvCodes kv_encode(KvType type, float x, float y, bool minima, bool fifths) {
  const bool bytes = type == KvType::kQ8_0, minimum = kv_has_minimum(type), five = kv_has_fifth_bits(type);
  float number = kv_first(x, y, [](float a, float b) { return fabsf(a) > fabsf(b); });
  number = number == 0.0f ? 0.0f : number;
  float divisor = bytes ? 127.0f : five ? -16.0f : -8.0f;
  if (bytes) number = fabsf(number);
  KvCodes c{0.0f, 0.0f, 0, 0, 0};
  if (minima) {
    const float least = kv_first(x, y, [](float a, float b) { return a < b; });
    const float most = kv_first(x, y, [](float a, float b) { return a > b; });
    if (minimum) {
      number = most > least ? most - least : 0.0f;
      divisor = five ? 31.0f : 15.0f;
      c.minimum = least;
    }
  }
  c.scale = number / divisor;
  float inverse = 1.0f / c.scale;
  if (!(fabsf(inverse) < __builtin_inff())) inverse = 0.0f;  // d is zero or its reciprocal too large
  if (bytes) {
    c.low = static_cast<int>(roundf(x * inverse));
    c.high = static_cast<int>(roundf(y * inverse));
  } else {
    const float excess = minimum ? 0.5f : five ? 16.5f : 8.5f;
    const float from = minimum ? c.minimum : 0.0f;  // subtracting zero changes nothing
    const int top = five ? 31 : 15;
    const int low = static_cast<int>((x - from) * inverse + excess);
    const int high = static_cast<int>((y - from) * inverse + excess);
    c.low = low < top ? low : top;
    c.high = high < top ? high : top;
  }
  if (fifths) {
    const int lane = static_cast<int>(lane_id()) % 16;
    int word = (c.low >> 4 & 1) << lane | (c.high >> 4 & 1) << lane << 16;
#pragma unroll
    for (int mask = 8; mask > 0; mask /= 2) word |= shfl_xor(word, mask);
    c.fifths = static_cast<uint32_t>(word);
  }
  return c;
}
TND_DEVICE void kv_store_block(KvType type, const KvRow& row, int block, const KvCodes& c) {
  const int lane = static_cast<int>(lane_id()) % 16;
  if (type == KvType::kQ8_0) {
    row.codes[block * 32 + lane] = static_cast<uint8_t>(static_cast<int8_t>(c.low));
    row.codes[block * 32 + 16 + lane] = static_cast<uint8_t>(static_cast<int8_t>(c.high));
  } else {
    row.codes[block * 16 + lane] = static_cast<uint8_t>((c.low & 15) | (c.high & 15) << 4);
  }
  if (lane != 0) return;
  uint16_t* head = row.heads + block * kv_head_words(type);
  *head++ = float_to_half(c.scale);
  if (kv_has_minimum(type)) *head++ = float_to_half(c.minimum);
  if (kv_has_fifth_bits(type)) {
    head[0] = static_cast<uint16_t>(c.fifths);
    head[1] = static_cast<uint16_t>(c.fifths >> 16);
  }
}

}  // namespace tnd::gpu
