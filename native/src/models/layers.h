// Layers that the target families share: attention with or without output gate, SwiGLU MLP, embedding and head.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

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

// Working memory of a step: the residual stream, the projections of one layer and one prepared matmul input. A layer's
// input is consumed before its mixer writes the next one, so a single Acts serves all.
struct Workspace {
  float* x = nullptr;     // backend [rows, hidden]
  float* wide = nullptr;  // backend [rows * width]: projections of the current layer, one after the other
  std::unique_ptr<Acts> acts;
  int64_t width = 0;     // widest sum of projections of a layer
  int64_t max_k = 0;     // widest matmul input
  InputForms forms = 0;  // of all weights

  void need(int64_t projections, int64_t k) {
    width = projections > width ? projections : width;
    max_k = k > max_k ? k : max_k;
  }
  void take(Backend& backend, Arena& arena, int max_rows, int64_t hidden);
};

// SwiGLU MLP with its norm: x += W_down(silu(W_gate u) * W_up u), u = N(x; norm).
struct Mlp {
  const float* norm = nullptr;
  std::unique_ptr<Matrix> gate, up, down;

  Status load(WeightLoader& w, Backend& b, const HParams& p, const std::string& prefix, const char* norm_name,
              Workspace* ws);
  void forward(Backend& b, const HParams& p, Workspace& ws, int rows, PhaseTimer& timer) const;
};

// Attention with its norm: x += W_o attend(q, k, v), projections of N(x; norm).
struct Attention {
  AttentionLayer layer;
  const float* norm = nullptr;
  std::unique_ptr<Matrix> q, k, v, o;

  Status load(WeightLoader& w, Backend& b, const HParams& p, const std::string& prefix, const KvShape& kv,
              Workspace* ws);
  void scratch(ScratchLimits* limits) const { limits->attention = layer; }
  void forward(Backend& b, const HParams& p, Workspace& ws, int layer_index, const TargetStep& step,
               PhaseTimer& timer) const;
};

// One layer of a target: the residual stream (Workspace::x) goes in and out. An architecture makes it.
class Layer {
 public:
  virtual ~Layer() = default;

  // load reads the tensors whose names begin with prefix. kv: of one sequence and layer.
  virtual Status load(WeightLoader& w, Backend& b, const HParams& p, const std::string& prefix, const KvShape& kv,
                      Workspace* ws) = 0;
  // scratch adds what the layer needs of the backend's scratch.
  virtual void scratch(ScratchLimits* limits) const = 0;
  // forward runs the layer over a step. index: among the layers of its kind in the range.
  virtual void forward(Backend& b, const HParams& p, Workspace& ws, int index, const TargetStep& step,
                       PhaseTimer& timer) const = 0;
};

// A mixer (Attention or a family's own, with the same three functions), then the MLP.
template <typename Mixer>
class MixerLayer final : public Layer {
 public:
  // mlp_norm names the tensor of the norm before the MLP.
  explicit MixerLayer(const char* mlp_norm) : mlp_norm_(mlp_norm) {}

  Status load(WeightLoader& w, Backend& b, const HParams& p, const std::string& prefix, const KvShape& kv,
              Workspace* ws) override {
    TND_TRY(mixer_.load(w, b, p, prefix, kv, ws));
    return mlp_.load(w, b, p, prefix, mlp_norm_, ws);
  }
  void scratch(ScratchLimits* limits) const override { mixer_.scratch(limits); }
  void forward(Backend& b, const HParams& p, Workspace& ws, int index, const TargetStep& step,
               PhaseTimer& timer) const override {
    mixer_.forward(b, p, ws, index, step, timer);
    mlp_.forward(b, p, ws, step.rows, timer);
  }

 private:
  const char* const mlp_norm_;
  Mixer mixer_;
  Mlp mlp_;
};

// Embedding table and head; the table serves as head when the file has none.
struct Ends {
  std::unique_ptr<Matrix> embedding, output;
  const float* norm = nullptr;
  bool has_output = false;

  Status load(WeightLoader& w, Backend& b, const HParams& p, bool first, bool last, Workspace* ws);
  const Matrix* head() const { return !has_output ? nullptr : output ? output.get() : embedding.get(); }
};

// take_hidden makes the hidden rows of a step the residual stream.
void take_hidden(Backend& b, const HParams& p, const Workspace& ws, const TargetStep& step);

// capture keeps the residual stream of the rows that want features when `layer` is a captured one.
void capture(Backend& b, const HParams& p, const Workspace& ws, int32_t layer, const TargetStep& step,
             PhaseTimer& timer);

}  // namespace tnd
