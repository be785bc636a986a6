// Qwen3 dense: attention and SwiGLU in every layer, rotation over the whole head, no output gate.
//
//   x = E[token]
//   for each layer:  r = x + attention(N(x; attn_norm));  x = r + mlp(N(r; ffn_norm))
//   logits = W_head N(x; output_norm)
// Norm weights are plain multipliers in file and here; the second norm of a layer is called ffn_norm.
#include <vector>

#include "models/layers.h"

namespace tnd {
namespace {

struct Layer {
  Attention attention;
  Mlp mlp;
};

class Qwen3 final : public TargetModel {
 public:
  Qwen3(const HParams& hparams, Backend& backend) : p_(hparams), backend_(backend) {}

  Status load(WeightLoader& w, Arena& arena, const TargetLimits& limits) override {
    limits_ = limits;
    ws_ = Workspace();
    ends_ = Ends();
    TND_TRY(ends_.load(w, backend_, p_, limits.layer_first == 0, limits.layer_last == p_.n_layers, &ws_));
    layers_.clear();
    layers_.resize(static_cast<size_t>(limits.layer_last - limits.layer_first));
    for (int32_t i = limits.layer_first; i < limits.layer_last; ++i) {
      Layer& l = layers_[static_cast<size_t>(i - limits.layer_first)];
      const std::string prefix = "blk." + std::to_string(i) + ".";
      TND_TRY(l.attention.load(w, backend_, p_, prefix, limits.kv, &ws_));
      TND_TRY(l.mlp.load(w, backend_, p_, prefix, "ffn_norm.weight", &ws_));
    }
    ws_.take(backend_, arena, limits.max_rows, p_.hidden);
    return Status();
  }

  void scratch(ScratchLimits* limits) const override {
    limits->rows = limits_.max_rows;
    limits->max_k = ws_.max_k;
    limits->forms |= ws_.forms;
    if (!layers_.empty()) limits->attention = layers_[0].attention.layer;
  }

  Status forward(const TargetStep& step, Stats* stats) override {
    PhaseTimer timer(stats);
    if (limits_.layer_first == 0) {
      backend_.embed(*ends_.embedding, step.tokens, ws_.x);
    } else {
      take_hidden(backend_, p_, ws_, step);
    }
    timer.mark(Counter::kEmbedNs);
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (step.cancel != nullptr && step.cancel->load(std::memory_order_relaxed)) {
        return errorf(TND_CANCELED, "cancelled before layer %d", limits_.layer_first + static_cast<int>(i));
      }
      layers_[i].attention.forward(backend_, p_, ws_, static_cast<int>(i), step, timer);
      layers_[i].mlp.forward(backend_, p_, ws_, step.rows, timer);
      capture(backend_, p_, ws_, limits_.layer_first + static_cast<int32_t>(i), step, timer);
    }
    return Status();
  }

  float* x() const override { return ws_.x; }
  const Matrix* output() const override { return ends_.head(); }
  const float* output_norm() const override { return ends_.norm; }
  DeltaShape delta_shape() const override { return DeltaShape{}; }

 private:
  const HParams p_;
  Backend& backend_;
  TargetLimits limits_;
  Workspace ws_;
  Ends ends_;
  std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<TargetModel> make_qwen3(const HParams& hparams, Backend& backend) {
  return std::make_unique<Qwen3>(hparams, backend);
}

}  // namespace tnd
