// What the target engine asks of a model family: load weights, run the layers over a planned step. Families: qwen35
// (hybrid, qwen35.cpp) and qwen3 (dense, qwen3.cpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "core/backend.h"
#include "core/stats.h"
#include "models/hparams.h"
#include "models/weights.h"

namespace tnd {

// One forward pass. Rows are grouped by sequence, parents before children.
struct TargetStep {
  int rows = 0;
  std::span<const int32_t> tokens;  // host [rows]; read by the shard with layer 0
  const void* hidden_in = nullptr;  // host [rows, hidden], floats or bfloat16; read by the other shards
  bool hidden_bf16 = false;
  std::span<const DeltaGroup> delta;  // same groups as attention.groups
  AttentionPlan attention;
  std::span<const int32_t> capture_layers;    // ascending, in the layer range
  std::span<const int32_t> feature_rows;      // rows whose residual stream is captured
  std::span<const int32_t> feature_places;    // by feature row: its row of features; empty: 0, 1, ..
  float* features = nullptr;                  // backend [feature rows, capture layers * hidden]
  const std::atomic<bool>* cancel = nullptr;  // checked before each layer
};

// Sizes that the engine chose.
struct TargetLimits {
  int32_t layer_first = 0, layer_last = 0;
  int32_t max_rows = 0;  // of a step
  KvShape kv;            // of one sequence and layer
};

class TargetModel {
 public:
  virtual ~TargetModel() = default;

  // load plans (measuring arena) or loads the layer range and takes the working memory of a step.
  virtual Status load(WeightLoader& weights, Arena& arena, const TargetLimits& limits) = 0;
  // scratch adds what the layers need of the backend's scratch.
  virtual void scratch(ScratchLimits* limits) const = 0;
  // forward runs the layers; x() then holds the residual stream. TND_CANCELED when the flag was set.
  virtual Status forward(const TargetStep& step, Stats* stats) = 0;

  virtual float* x() const = 0;                  // backend [rows, hidden]
  virtual const Matrix* output() const = 0;      // [vocab, hidden]; nullptr unless the last layer is here
  virtual const float* output_norm() const = 0;  // backend [hidden]; likewise
  virtual DeltaShape delta_shape() const = 0;    // nv = 0: none
};

std::unique_ptr<TargetModel> make_qwen35(const HParams& hparams, Backend& backend);
std::unique_ptr<TargetModel> make_qwen3(const HParams& hparams, Backend& backend);

}  // namespace tnd
