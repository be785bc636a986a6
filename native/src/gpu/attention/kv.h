// The pool of keys and values of a layer on the device: layout, compaction, portable rows.
//
//   F32, F16, BF16  K and V [heads][capacity][dim]
//   blocks          K and V [heads], each [capacity] codes of a row, then [capacity][dim / 32] heads of blocks, the
//                   words before their codes (kv_type.h): codes of a row are 16-byte aligned and without gaps. Codes
//                   of a block: 32 int8, or 16 bytes of nibbles as in the portable form (element j low, j + 16 high),
//                   or 8 bytes of two bits (TQ3_0: the third bits are part of the head).
// A slot holds one position's row of all heads. Values are stored with saturation, never as infinity or NaN: a matrix
// instruction may multiply a masked key by the weight zero, which must not change other rows.
#pragma once

#include "core/backend.h"
#include "core/kv_type.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

using tnd::KvType;

// kv_cache_bytes returns the bytes of one cache (K or V) of a layer, kv_row_size those of a position's K and V in
// portable form.
uint64_t kv_cache_bytes(const KvShape& shape, bool keys);
uint64_t kv_row_size(const KvShape& shape);

// Slots from[i] -> to[i], i ascending, in all caches: one launch. No source is an earlier destination.
struct KvMoveArgs {
  KvShape shape;
  const KvCache* caches = nullptr;  // device [n_caches]
  int n_caches = 0;
  const int32_t* from = nullptr;   // device [max_moves]
  const int32_t* to = nullptr;     // device [max_moves]
  const int32_t* count = nullptr;  // device: moves in use
};
void launch_kv_move(Stream& stream, const KvMoveArgs& args);

// Rows of positions [first, first + n) by pages between a cache and portable form [n][K row [heads, dim], V row
// [heads, dim]] in cache types (ggml blocks: head, then codes), both on the device.
struct KvRowsArgs {
  KvShape shape;
  KvCache cache;
  const int32_t* pages = nullptr;  // device
  int32_t first = 0, n = 0;
  void* rows = nullptr;  // device [n * kv_row_size], 16-byte aligned
};
void launch_kv_export(Stream& stream, const KvRowsArgs& args);
void launch_kv_import(Stream& stream, const KvRowsArgs& args);

}  // namespace tnd::gpu
