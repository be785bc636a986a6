// Qwen3.5 / 3.6 hybrid: gated DeltaNet layers with a gated attention layer in between (MODEL_qwen35.md).
//
//   x = E[token]
//   for each layer:  r = x + mixer(N(x; w_in));  x = r + mlp(N(r; w_post))
//   logits = W_head N(x; w_final)
#include <vector>

#include "models/layers.h"

namespace tnd {
namespace {

// DeltaNet mixer with its norm: x += W_out delta(qkv, z, a, b), projections of N(x; norm).
struct DeltaNet {
  DeltaLayer layer;
  const float* norm = nullptr;
  std::unique_ptr<Matrix> qkv, z, a, b, out;

  Status load(WeightLoader& w, Backend& backend, const HParams& p, const std::string& prefix, Workspace* ws) {
    DeltaShape& s = layer.shape;
    s.nk = p.delta_key_heads;
    s.nv = p.delta_value_heads;
    layer.eps = p.eps;
    TND_TRY(w.vector(prefix + "attn_norm.weight", p.hidden, &norm));
    TND_TRY(w.matrix(prefix + "attn_qkv.weight", p.hidden, s.conv_dim(), &qkv));
    TND_TRY(w.matrix(prefix + "attn_gate.weight", p.hidden, s.value_dim(), &z));
    TND_TRY(w.matrix(prefix + "ssm_alpha.weight", p.hidden, s.nv, &a));
    TND_TRY(w.matrix(prefix + "ssm_beta.weight", p.hidden, s.nv, &b));
    TND_TRY(w.conv(prefix + "ssm_conv1d.weight", kConvTaps, s.conv_dim(), &layer.conv));
    TND_TRY(w.vector(prefix + "ssm_a", s.nv, &layer.a));
    TND_TRY(w.vector(prefix + "ssm_dt.bias", s.nv, &layer.dt));
    TND_TRY(w.vector(prefix + "ssm_norm.weight", kDeltaDim, &layer.norm));
    TND_TRY(w.matrix(prefix + "ssm_out.weight", s.value_dim(), p.hidden, &out));
    ws->need(s.conv_dim() + s.value_dim() + 2 * s.nv, std::max<int64_t>(p.hidden, s.value_dim()));
    ws->forms |= inputs(backend) | backend.forms(*out);
    return Status();
  }

  InputForms inputs(Backend& backend) const {
    return backend.forms(*qkv) | backend.forms(*z) | backend.forms(*a) | backend.forms(*b);
  }

  void forward(Backend& backend, const HParams& p, Workspace& ws, int index, const TargetStep& step,
               PhaseTimer& timer) const {
    const int64_t rows = step.rows;
    float* m = ws.wide;
    float* gate = m + rows * qkv->n;
    float* alpha = gate + rows * z->n;
    float* beta = alpha + rows * a->n;
    backend.norm(ws.x, norm, p.eps, step.rows, p.hidden, inputs(backend), ws.acts.get());
    timer.mark(Counter::kNormNs);
    const Product in[] = {{qkv.get(), m, qkv->n, nullptr},
                          {z.get(), gate, z->n, nullptr},
                          {a.get(), alpha, a->n, nullptr},
                          {b.get(), beta, b->n, nullptr}};
    backend.matmul(in, *ws.acts, step.rows);
    timer.mark(Counter::kMatmulNs);
    const DeltaIo io{m, gate, alpha, beta};
    backend.delta_mixer(layer, index, step.delta, step.rows, io, backend.forms(*out), ws.acts.get());
    timer.mark(Counter::kDeltaNs);
    const Product product[] = {{out.get(), ws.x, p.hidden, ws.x}};
    backend.matmul(product, *ws.acts, step.rows);
    timer.mark(Counter::kMatmulNs);
  }
};

struct Layer {
  bool recurrent = false;
  int index = 0;  // among the layers of its kind
  DeltaNet delta;
  Attention attention;
  Mlp mlp;
};

class Qwen35 final : public TargetModel {
 public:
  Qwen35(const HParams& hparams, Backend& backend) : p_(hparams), backend_(backend) {}

  Status load(WeightLoader& w, Arena& arena, const TargetLimits& limits) override {
    limits_ = limits;
    ws_ = Workspace();
    ends_ = Ends();
    TND_TRY(ends_.load(w, backend_, p_, limits.layer_first == 0, limits.layer_last == p_.n_layers, &ws_));
    layers_.clear();
    layers_.resize(static_cast<size_t>(limits.layer_last - limits.layer_first));
    int counts[2] = {0, 0};
    for (int32_t i = limits.layer_first; i < limits.layer_last; ++i) {
      Layer& l = layers_[static_cast<size_t>(i - limits.layer_first)];
      const std::string prefix = "blk." + std::to_string(i) + ".";
      l.recurrent = p_.recurrent[static_cast<size_t>(i)];
      l.index = counts[l.recurrent]++;
      if (l.recurrent) {
        TND_TRY(l.delta.load(w, backend_, p_, prefix, &ws_));
      } else {
        TND_TRY(l.attention.load(w, backend_, p_, prefix, limits.kv, &ws_));
      }
      TND_TRY(l.mlp.load(w, backend_, p_, prefix, "post_attention_norm.weight", &ws_));
    }
    ws_.take(backend_, arena, limits.max_rows, p_.hidden);
    return Status();
  }

  void scratch(ScratchLimits* limits) const override {
    limits->rows = limits_.max_rows;
    limits->max_k = ws_.max_k;
    limits->forms |= ws_.forms;
    for (const Layer& l : layers_) {
      if (l.recurrent) limits->delta = l.delta.layer.shape;
      if (!l.recurrent) limits->attention = l.attention.layer;
    }
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
      const Layer& l = layers_[i];
      if (l.recurrent) {
        l.delta.forward(backend_, p_, ws_, l.index, step, timer);
      } else {
        l.attention.forward(backend_, p_, ws_, l.index, step, timer);
      }
      l.mlp.forward(backend_, p_, ws_, step.rows, timer);
      capture(backend_, p_, ws_, limits_.layer_first + static_cast<int32_t>(i), step, timer);
    }
    return Status();
  }

  float* x() const override { return ws_.x; }
  const Matrix* output() const override { return ends_.head(); }
  const float* output_norm() const override { return ends_.norm; }
  DeltaShape delta_shape() const override { return DeltaShape{p_.delta_key_heads, p_.delta_value_heads}; }

 private:
  const HParams p_;
  Backend& backend_;
  TargetLimits limits_;
  Workspace ws_;
  Ends ends_;
  std::vector<Layer> layers_;
};

}  // namespace

std::unique_ptr<TargetModel> make_qwen35(const HParams& hparams, Backend& backend) {
  return std::make_unique<Qwen35>(hparams, backend);
}

}  // namespace tnd
