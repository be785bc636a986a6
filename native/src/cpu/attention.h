// Attention over cached keys and values for every model of the engine: gated target layers (head 256), dense qwen3 and
// block drafts (head 128); grouped queries, causal chains, token trees, bidirectional blocks and sliding windows.
//
// Numeric contract (f32, IEEE, the same bits from the scalar reference, AVX2 and AVX-512; any batch, order of rows,
// thread count; chain or tree). For a query q of head h and its visible keys, ordered by ABSOLUTE position j:
//   s_j   = scale * (fma chain over d ascending of q[d]*k_j[d], from 0)
//   positions are cut into segments [256 s, 256 s + 256); in each segment with visible keys
//     m = max s_j; p_j = exp_f32(s_j - m) (core/elementary.h); l = 16 lanes by j mod 16, each added ascending, then
//     folded 8, 4, 2, 1; o[d] = fma chain over j ascending of p_j*v_j[d], from 0
//   segments merge ascending into the running (M, L, O), the first one copied:
//     M' = max(M, m), a = exp(M - M'), b = exp(m - M'), L = fma(L, a, l*b), O[d] = fma(O[d], a, o[d]*b)
//   result O[d] / L; a query that sees nothing gives zeros.
// k_j[d] and v_j[d] are the cached values as f32. Of a block they are code * scale, which is exact, or code * scale +
// minimum, rounded once (NUMERICS.md). Of TQ3_0 they are the rotated values: callers rotate queries before, and outputs
// back afterwards (core/tq3.h).
// Nothing depends on slots or pages: a key has the same effect whether it lies at slot n+17 of a tree or was committed
// at n+3, and wherever its page lies in the pool.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kv_type.h"
#include "core/thread_pool.h"

namespace tnd::cpu {

using tnd::KvType;

// Pool of a layer: the pages of all sequences. Head-major; per head
//   K [capacity/16 tiles], V [capacity][dim]
//   a tile of F32, F16 or BF16: [dim][16 positions] (16 keys lie in the lanes of one vector)
//   a tile of blocks: per block of 32 dims the portable blocks of the 16 positions side by side: [16] scales and [16]
//   minima (halves; minima where the type has them), then every later byte as [16 positions]: four of fifth bits where
//   the type has them (byte i holds those of dims 8 i to 8 i + 7), then codes, 32 int8 or 16 of nibbles (dim j low, dim
//   j + 16 high), or 8 of two bits (byte i: dims 4 i to 4 i + 3) and 4 of third bits
// Rows of V are in the type's portable form (ggml blocks; docs/spec/kv-cache.md section 3.1). A slot holds one
// position's row of all heads. Both bases 64-byte aligned.
struct KvLayout {
  KvType k_type = KvType::kF16;
  KvType v_type = KvType::kF16;
  int32_t dim = 0;  // head size, multiple of 16 and of kv_group of both types, at most 512
  int32_t kv_heads = 0;
  int32_t capacity = 0;  // slots, multiple of kKvPage

  // Bytes of one head's row.
  size_t k_row_bytes() const { return static_cast<size_t>(kv_stored_bytes(k_type, dim)); }
  size_t v_row_bytes() const { return static_cast<size_t>(kv_stored_bytes(v_type, dim)); }
  size_t k_head_bytes() const { return size_t(capacity) * k_row_bytes(); }
  size_t v_head_bytes() const { return size_t(capacity) * v_row_bytes(); }
  size_t k_bytes() const { return k_head_bytes() * kv_heads; }
  size_t v_bytes() const { return v_head_bytes() * kv_heads; }
  // Bytes of one position in row form (kv_export).
  size_t row_bytes() const { return size_t(kv_heads) * (k_row_bytes() + v_row_bytes()); }
};

// kv_store writes the rows k, v [kv_heads, dim] of one position to `slot` (F16: round to nearest even, overflow to
// infinity as the format has it; BF16 and blocks: values beyond +-kKvLargest become that, NaN becomes 0).
void kv_store(const KvLayout& l, void* k_cache, void* v_cache, int32_t slot, const float* k, const float* v);
// kv_move copies the rows of slot `from` to slot `to`.
void kv_move(const KvLayout& l, void* k_cache, void* v_cache, int32_t from, int32_t to);
// kv_export copies slot's rows out as [kv_heads][dim] K then [kv_heads][dim] V in the portable form of the cache types;
// kv_import the reverse.
void kv_export(const KvLayout& l, const void* k_cache, const void* v_cache, int32_t slot, void* row);
void kv_import(const KvLayout& l, void* k_cache, void* v_cache, int32_t slot, const void* row);

// One query row. It sees the past positions [first, past) by the pages of its group, then n_tail keys at absolute
// positions past, past+1, … held in slots tail[0], tail[1], … (a tree row: its ancestors by depth and itself; a row of
// a bidirectional block: the whole block). `first` limits the tail too (sliding window).
struct AttentionRow {
  const float* q = nullptr;  // [q_heads, dim]
  float* out = nullptr;      // [q_heads, dim], may equal q
  int32_t first = 0;
  int32_t past = 0;
  int32_t n_tail = 0;
  const int32_t* tail = nullptr;  // borrowed
};

// Rows of one sequence. Neighbours should have similar `past` (a prefill chunk, a tree): they share K/V loads.
struct AttentionGroup {
  const void* k = nullptr;  // pool of the layer
  const void* v = nullptr;
  const int32_t* pages = nullptr;  // by position / kKvPage: those that hold past positions of the rows
  const AttentionRow* rows = nullptr;
  int32_t n_rows = 0;
};

// Most query heads that may share a key/value head; loaders refuse models with more.
constexpr int32_t kAttentionMaxGroup = 96;

struct AttentionShape {
  KvLayout kv;
  int32_t q_heads = 0;  // multiple of kv_heads; head h reads kv head h / (q_heads / kv_heads)
  float scale = 0;      // 1/sqrt(dim) of the model
};

// attention_scratch_bytes returns the scratch of one thread of the pool, for any number of rows and positions.
size_t attention_scratch_bytes(const AttentionShape& shape);
// attention_partial_bytes returns the size of a buffer that lets few rows over a long context use all threads (at most
// 64 MiB). max_context in positions.
size_t attention_partial_bytes(const AttentionShape& shape, int32_t max_context);

// Memory planned by the caller, 64-byte aligned, reusable by the next call.
struct AttentionScratch {
  void* threads = nullptr;  // pool.threads() * attention_scratch_bytes
  void* partial = nullptr;  // may be null: then a row never uses more than one thread per kv head
  size_t partial_bytes = 0;
};

// attention computes all rows of all groups, which share the shape, in one or two parallel regions. Rows must not
// overlap each other's outputs. Reads only the slots that rows name. No allocation.
void attention(ThreadPool& pool, const AttentionShape& shape, const AttentionGroup* groups, int32_t n_groups,
               const AttentionScratch& scratch);

// attention_reference is the contract in plain scalar code, one row at a time; used by tests and on processors without
// vector kernels.
void attention_reference(const AttentionShape& shape, const AttentionGroup& group, int32_t row);

}  // namespace tnd::cpu
