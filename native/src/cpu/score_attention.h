// Dense causal attention for scoring a prompt: int8 products of queries and keys, bf16 products of weights and values.
// It is about twice as fast as attention.h in f32, and exact enough for scores only; nothing that a client sees is
// computed with it. Needs AVX-512 with VNNI and BF16; elsewhere the scorer uses attention.h.
//
// Per (query, key): s = (qs * ks) * (q8 . k8) with one scale per row and head (absmax / 127); softmax in f32 by
// segments of 256 keys with a running maximum; weights rounded to bf16; sums of weight * value in f32 (vdpbf16ps). A
// row depends on its own query and the keys before it only. Bound: 64 int8 or 32 bf16 products per instruction, two per
// cycle, against 16 of f32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/thread_pool.h"

namespace tnd::cpu {

// score_attention_available says whether the processor and the instruction set in use (cpu_features.h) run it for a
// head size.
bool score_attention_available(int dim);

// Keys and values of one layer in the order that the kernel reads.
struct ScoreKv {
  int dim = 0, kv_heads = 0;
  int32_t capacity = 0;      // positions, multiple of 256
  int8_t* k = nullptr;       // [kv_heads][capacity/16][dim/4][16 keys][4]
  float* k_scale = nullptr;  // [kv_heads][capacity]
  int32_t* k_sum = nullptr;  // [kv_heads][capacity] 128 * sum of k8: queries are stored with 128 added
  uint16_t* v = nullptr;     // [kv_heads][capacity/2][dim][2 positions] bf16

  static size_t bytes(int dim, int kv_heads, int32_t capacity);
  // init lays the arrays out in mem (bytes(), 64-byte aligned, zeroed once: unwritten values must be finite).
  void init(void* mem, int dim_, int kv_heads_, int32_t capacity_);
};

// score_store quantises one position's rotated keys and values, both [kv_heads, dim].
void score_store(const ScoreKv& kv, int32_t position, const float* k, const float* v);

// score_scratch_bytes returns the scratch of one thread of the pool.
size_t score_scratch_bytes(int dim);

// score_attention computes rows at positions first, first + 1, …; keys up to the last of them are stored.
//   q, out   f32 [rows, q_heads, dim], may be the same
//   scratch  threads * score_scratch_bytes, 64-byte aligned
void score_attention(ThreadPool& pool, const ScoreKv& kv, int q_heads, float scale, int32_t first, int32_t rows,
                     const float* q, float* out, void* scratch);

}  // namespace tnd::cpu
