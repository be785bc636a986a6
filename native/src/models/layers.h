// Layers that the target families share: attention with or without output gate, SwiGLU MLP, embedding and head.
#pragma once

#include <memory>
#include <string>

#include "models/target.h"

namespace tnd {

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
  void forward(Backend& b, const HParams& p, Workspace& ws, int layer_index, const TargetStep& step,
               PhaseTimer& timer) const;
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
