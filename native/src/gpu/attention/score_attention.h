// The kernels that a prompt scorer needs beyond launch_attention: scores of chosen query rows against every key, and
// their largest attention over heads and layers. Same bits as cpu/score_op.cpp.
//
// A layer of a chunk: launch_heads on k alone (norm, no rotation), launch_score_dots, launch_heads (rotation, append,
// q), launch_attention. After the layer's chunks: launch_score_peaks.
#pragma once

#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// dots[t * q_heads + h][first + r] = scale * (query[t][h] . k[r][h / group]): sixteen lanes of products and sums,
// folded 8, 4, 2, 1.
struct ScoreDotsArgs {
  const float* query = nullptr;  // [n_query, q_heads, dim]
  const float* k = nullptr;      // [rows, kv_heads, dim]
  int n_query = 0, q_heads = 0, kv_heads = 0;
  int dim = 0;  // multiple of 16
  int rows = 0, first = 0;
  float scale = 0;
  float* dots = nullptr;  // [n_query * q_heads, stride]
  int64_t stride = 0;     // positions
};
void launch_score_dots(Stream& stream, const ScoreDotsArgs& args);

// best[t][j] = max(best[t][j], softmax over j < visible[t] of dots[t * q_heads + h], all h).
struct ScorePeaksArgs {
  const float* dots = nullptr;  // [n_query * q_heads, stride]
  float* best = nullptr;        // [n_query, stride]
  int64_t stride = 0;
  int n_query = 0, q_heads = 0;
  const int32_t* visible = nullptr;  // device [n_query], at most max_visible
  int max_visible = 0;
  float* scratch = nullptr;  // score_scratch_floats(n_query, q_heads, max_visible)
};
int64_t score_scratch_floats(int n_query, int q_heads, int max_visible);
void launch_score_peaks(Stream& stream, const ScorePeaksArgs& args);

}  // namespace tnd::gpu
