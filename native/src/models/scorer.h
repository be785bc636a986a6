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
// taken from the residual stream before a layer's chunks start: they may lie anywhere and straddle chunks. How K and V
// are kept and attended to is the backend's (core/backend.h, scoring a prompt).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/stats.h"
#include "models/layers.h"
#include "tandem/engine.h"

namespace tnd {

struct ScorerLimits {
  int32_t max_tokens = 0;  // of a prompt
  int32_t max_query = 0;   // query rows
  int32_t chunk = 0;       // positions processed together, multiple of 16
};

// Where a call stands, in rows times layers.
struct ScoreProgress {
  tnd_progress_fn report = nullptr;
  void* user = nullptr;
  uint64_t done = 0, total = 0;

  void add(int32_t rows) {
    done += static_cast<uint64_t>(rows);
    if (report != nullptr) report(user, done, total);
  }
};

class ScorerModel {
 public:
  ScorerModel(const HParams& hparams, Backend& backend) : p_(hparams), backend_(backend) {}

  // load plans (measuring arena) or loads all weights and takes all working memory.
  Status load(WeightLoader& weights, Arena& arena, const ScorerLimits& limits);

  // score fills scores [ids.size()]. query ascending positions, at most max_query. TND_CANCELED when the flag was set.
  // progress may be nullptr.
  Status score(std::span<const int32_t> ids, std::span<const int32_t> query, bool rotated,
               const std::atomic<bool>* cancel, Stats* stats, float* scores, ScoreProgress* progress = nullptr);

  // forward runs all layers completely and returns the residual stream, backend [ids.size(), hidden]; for tests that
  // compare the model's logits.
  const float* forward(std::span<const int32_t> ids, Stats* stats);
  const float* output_norm() const { return norm_; }

 private:
  struct Layer {
    Attention attention;
    Mlp mlp;
  };

  void embed(std::span<const int32_t> ids);
  void query_rows(const Layer& l, std::span<const int32_t> query, bool rotated);
  Status layer(int32_t index, int32_t n, std::span<const int32_t> query, bool rotated, bool last,
               const std::atomic<bool>* cancel, PhaseTimer& timer, ScoreProgress* progress);

  const HParams p_;
  Backend& backend_;
  ScorerLimits limits_;

  std::unique_ptr<Matrix> embedding_;
  const float* norm_ = nullptr;
  std::vector<Layer> layers_;

  Workspace ws_;  // of a chunk; its x points into x_
  // All in backend space.
  float* x_ = nullptr;           // [max_tokens, hidden] residual stream
  float* rope_ = nullptr;        // [max_tokens, rope_dims] cosines and sines
  float* query_x_ = nullptr;     // [max_query, hidden]
  float* query_rope_ = nullptr;  // [max_query, rope_dims]
  float* query_q_ = nullptr;     // [max_query, q_heads * dim]
  float* dots_ = nullptr;        // [max_query * q_heads, max_tokens]
  float* best_ = nullptr;        // [max_query, max_tokens] M
  void* kv_ = nullptr;           // K and V of the layer that runs

  int32_t ahead_ = 0;  // chunks issued since the last sync
};

}  // namespace tnd
