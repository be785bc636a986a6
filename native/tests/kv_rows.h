// Rows of cached keys and values in portable form, of any type of the table.
#pragma once

#include "core/dtype.h"
#include "core/kv_type.h"

namespace tnd::test {

inline void encode_kv(KvType type, const float* x, void* row, int64_t n) {
  if (type == KvType::kTQ3_0) return tq3_encode(x, row, n);
  (void)quantise_row(static_cast<DType>(type), x, row, static_cast<uint64_t>(n));
}
// Of TQ3_0 the rotated values.
inline void decode_kv(KvType type, const void* row, float* x, int64_t n) {
  if (type != KvType::kTQ3_0) return dequantise_row(static_cast<DType>(type), row, x, static_cast<uint64_t>(n));
  const auto* block = static_cast<const uint8_t*>(row);
  for (int64_t at = 0; at < n; at += kKvBlock, block += kv_stored_bytes(type, kKvBlock)) {
    for (int j = 0; j < kKvBlock; j++) {
      const int code = (block[2 + j / 4] >> j % 4 * 2 & 3) | (block[10 + j / 8] >> j % 8 & 1) << 2;
      x[at + j] = tq3_value(code) * f16_to_f32(load_u16(block));
    }
  }
}

}  // namespace tnd::test
