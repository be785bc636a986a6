// Qwen3.5 / 3.6 hybrid: gated DeltaNet layers with a gated attention layer in between (MODEL_qwen35.md).
//
//   x = E[token]
//   for each layer:  r = x + mixer(N(x; w_in));  x = r + mlp(N(r; w_post))
//   logits = W_head N(x; w_final)
#include "models/architectures.h"
#include "models/layers.h"

namespace tnd {
namespace {

// DeltaNet mixer with its norm: x += W_out delta(qkv, z, a, b), projections of N(x; norm).
struct DeltaNet {
  DeltaLayer layer;
  const float* norm = nullptr;
  std::unique_ptr<Matrix> qkv, z, a, b, out;

  Status load(WeightLoader& w, Backend& backend, const HParams& p, const std::string& prefix, const KvShape&,
              Workspace* ws) {
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

  void scratch(ScratchLimits* limits) const { limits->delta = layer.shape; }

  void forward(Backend& backend, const HParams& p, Workspace& ws, int index, const TargetStep& step,
               PhaseTimer& timer) const {
    const int64_t rows = backend.row_room(step.rows);
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

constexpr char kMlpNorm[] = "post_attention_norm.weight";

}  // namespace

std::unique_ptr<Layer> make_qwen35_layer(bool recurrent) {
  if (recurrent) return std::make_unique<MixerLayer<DeltaNet>>(kMlpNorm);
  return std::make_unique<MixerLayer<Attention>>(kMlpNorm);
}

}  // namespace tnd
