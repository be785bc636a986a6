// A target model: the layers of its architecture (architectures.h) between embedding and head. The target engine loads
// it and runs it over planned steps.
#pragma once

#include <memory>
#include <vector>

#include "models/layers.h"

namespace tnd {

// Sizes that the engine chose.
struct TargetLimits {
  int32_t layer_first = 0, layer_last = 0;
  int32_t max_rows = 0;  // of a step
  KvShape kv;            // of one sequence and layer
};

class TargetModel {
 public:
  // hparams of an architecture that this build runs: read_hparams.
  TargetModel(const HParams& hparams, Backend& backend) : p_(hparams), backend_(backend) {}

  // load plans (measuring arena) or loads the layer range and takes the working memory of a step.
  Status load(WeightLoader& weights, Arena& arena, const TargetLimits& limits);
  // scratch adds what the layers need of the backend's scratch.
  void scratch(ScratchLimits* limits) const;
  // forward runs the layers; x() then holds the residual stream. TND_CANCELED when the flag was set.
  Status forward(const TargetStep& step, Stats* stats);

  float* x() const { return ws_.x; }                       // backend [rows, hidden]
  const Matrix* output() const { return ends_.head(); }    // [vocab, hidden]; nullptr unless the last layer is here
  const float* output_norm() const { return ends_.norm; }  // backend [hidden]; likewise
  DeltaShape delta_shape() const { return {p_.delta_key_heads, p_.delta_value_heads}; }  // nv = 0: none

 private:
  struct Place {
    std::unique_ptr<Layer> layer;
    int index = 0;  // among the layers of its kind
  };

  Status run_layers(const TargetStep& step, PhaseTimer& timer);

  const HParams p_;
  Backend& backend_;
  TargetLimits limits_;
  Workspace ws_;
  Ends ends_;
  std::vector<Place> layers_;
};

}  // namespace tnd
