// Internals of score_attention: the data that the driver passes to the AVX-512 kernel.
#pragma once

#include "cpu/score_attention.h"

namespace tnd::cpu {

constexpr int kScoreSegment = 256;  // keys per softmax step: K and V of a head of 128 take 96 KiB, inside L2
constexpr int kScoreGroup = 12;     // queries per register block: 12 x 2 sums of 16 lanes
constexpr int kScoreQueries = 192;  // queries (rows x heads) that share a pass over K and V
constexpr int kScoreMaxDim = 256;

struct ScoreBlock {
  const ScoreKv* kv;
  int q_heads;
  float scale;
  int32_t first;               // position of row 0
  int32_t row_begin, row_end;  // rows of this block
  int kv_head;
  const float* q;
  float* out;
  uint8_t* scratch;
};

struct ScoreScratchLayout {
  size_t q8, q_scale, out, m, l, scores, weights, total;  // bytes
  explicit ScoreScratchLayout(int dim) {
    q8 = 0;
    q_scale = q8 + size_t(kScoreQueries) * dim;
    m = q_scale + kScoreQueries * 4;
    l = m + kScoreQueries * 4;
    out = l + kScoreQueries * 4;
    scores = out + size_t(kScoreQueries) * dim * 4;
    weights = scores + size_t(kScoreGroup) * (kScoreSegment + 16) * 4;
    total = (weights + size_t(kScoreGroup) * (kScoreSegment + 32) * 2 + 63) & ~size_t(63);
  }
};

void score_block_avx512(const ScoreBlock& b);
void score_store_avx512(const ScoreKv& kv, int32_t position, const float* k, const float* v);

}  // namespace tnd::cpu
