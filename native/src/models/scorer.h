// Prompt scorer: how much chosen rows of a prompt attend to every earlier position, by a small dense Qwen3 model.
//
//   for each layer, over the whole prompt before the next layer:
//     q, k per position, head-normed;   for query rows t:  a[t][j] = softmax over j <= t of (q_t . k_j / sqrt(dim))
//     x += W_o attend(rope(q), rope(k), v);  x += mlp(x)
//   M[t][j] = maximum of a over layers and heads;  score[j] = mean over t of M[t][j]     (0 where a row does not see j)
// q and k of the scores are taken before the rotation unless asked otherwise. The last layer needs its keys and the
// query rows only: no attention output, no MLP, and no head at all.
//
// Layers run one after the other in chunks of positions, so that K and V of one layer exist at a time. Query rows are
// taken from the residual stream before a layer's chunks start: they may lie anywhere and straddle chunks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpu/attention.h"
#include "cpu/score_attention.h"
#include "engine/stats.h"
#include "models/layers.h"
#include "models/rope_angles.h"

namespace tnd {

namespace cpu {
class CpuBackend;
}

struct ScorerLimits {
  int32_t max_tokens = 0;  // of a prompt
  int32_t max_query = 0;   // query rows
  int32_t chunk = 0;       // positions processed together, multiple of 16
};

// take_peaks turns the scaled scores s [visible] of one query row, layer and head into attention (in place) and raises
// best [visible] to it where it is larger.
void take_peaks(float* s, int32_t visible, float* best);

class ScorerModel {
 public:
  ScorerModel(const HParams& hparams, cpu::CpuBackend& backend);

  // load plans (measuring arena) or loads all weights and takes all working memory.
  Status load(WeightLoader& weights, Arena& arena, const ScorerLimits& limits);

  // score fills scores [ids.size()]. query ascending positions, at most max_query. TND_CANCELED when the flag was set.
  Status score(std::span<const int32_t> ids, std::span<const int32_t> query, bool rotated,
               const std::atomic<bool>* cancel, Stats* stats, float* scores);

  // forward runs all layers completely and returns the residual stream [ids.size(), hidden]; for tests that compare the
  // model's logits.
  const float* forward(std::span<const int32_t> ids, Stats* stats);
  const float* output_norm() const { return norm_; }

  // fast says whether int8/bf16 attention is in use.
  bool fast() const { return fast_; }

 private:
  struct Layer {
    Attention attention;
    Mlp mlp;
  };

  Status layer(int32_t index, int32_t n, std::span<const int32_t> query, bool rotated, bool last,
               const std::atomic<bool>* cancel, PhaseTimer& timer);
  void query_rows(const Layer& l, std::span<const int32_t> query, bool rotated);
  void finish_rows(const Layer& l, int32_t first, int32_t rows, size_t n_query, bool rotated, bool last);
  void attend(int32_t first, int32_t rows);
  void merge_layer(std::span<const int32_t> query);

  const HParams p_;
  cpu::CpuBackend& backend_;
  ScorerLimits limits_;
  bool fast_ = false;
  float scale_ = 0;
  RopeAngles angles_;

  std::unique_ptr<Matrix> embedding_;
  const float* norm_ = nullptr;
  std::vector<Layer> layers_;

  Workspace ws_;                                      // of a chunk; its x points into x_
  float* x_ = nullptr;                                // [max_tokens, hidden] residual stream
  float *q_ = nullptr, *k_ = nullptr, *v_ = nullptr;  // [chunk, …] of the current chunk, in ws_.wide
  float* query_x_ = nullptr;                          // [max_query, hidden]
  float* query_q_ = nullptr;                          // [max_query, q_heads * dim]
  float* dots_ = nullptr;                             // [max_query * q_heads, max_tokens]
  float* best_ = nullptr;                             // [max_query, max_tokens] M
  cpu::ScoreKv score_kv_;
  cpu::AttentionShape shape_;  // without the fast path
  void *k_cache_ = nullptr, *v_cache_ = nullptr;
  void* scratch_ = nullptr;  // of attention, all threads
  std::vector<cpu::AttentionRow> rows_;
};

}  // namespace tnd
