// From projections to attention's input: head norms, rotation, append to the cache. One launch.
#pragma once

#include "gpu/attention/attention.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// Bits of the CPU's row kernels: norm as in norm.h; pairs (j, j + rope_dims/2): a' = fma(-b, sin, a cos),
// b' = fma(a, sin, b cos).
struct HeadsArgs {
  KvShape kv;
  int q_heads = 0, rope_dims = 0;
  bool gated = false;  // q rows are [dim query | dim gate] per head
  float eps = 0;
  const float* q_norm = nullptr;  // [dim], nullptr = none
  const float* k_norm = nullptr;
  int rows = 0;
  const AttentionRow* row_plans = nullptr;  // device: slot of a row
  KvCache cache;                            // of the layer; nullptr = no append
  const float* rope = nullptr;              // [rows, rope_dims]: cos of the pairs, then sin; nullptr = no rotation
  const float* q = nullptr;                 // [rows, q_heads * dim * (gated ? 2 : 1)]; nullptr = only k and v
  // [rows, q_heads * dim], rotated once more where keys are TQ3_0; may be q when not gated and no halves.
  void* q_out = nullptr;
  bool q_halves = false;          // q_out: halves for kFlash, else floats
  float* k = nullptr;             // [rows, heads * dim], normed and rotated in place; nullptr = only q
  const float* v = nullptr;       // [rows, heads * dim]; read when a cache is given
  const int32_t* live = nullptr;  // device: rows in use, nullptr = all
};
void launch_heads(Stream& stream, const HeadsArgs& args);

}  // namespace tnd::gpu
