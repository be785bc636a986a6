#include "models/layers.h"

#include <cmath>

namespace tnd {

void Workspace::take(Backend& backend, Arena& arena, int max_rows, int64_t hidden) {
  x = arena.take_array<float>(Purpose::kScratch, static_cast<uint64_t>(max_rows * hidden));
  wide = arena.take_array<float>(Purpose::kScratch, static_cast<uint64_t>(backend.row_room(max_rows) * width));
  acts = backend.acts(arena, max_k, max_rows, forms);
}

Status Mlp::load(WeightLoader& w, Backend& b, const HParams& p, const std::string& prefix, const char* norm_name,
                 Workspace* ws) {
  TND_TRY(w.vector(prefix + norm_name, p.hidden, &norm));
  TND_TRY(w.matrix(prefix + "ffn_gate.weight", p.hidden, p.ffn, &gate));
  TND_TRY(w.matrix(prefix + "ffn_up.weight", p.hidden, p.ffn, &up));
  TND_TRY(w.matrix(prefix + "ffn_down.weight", p.ffn, p.hidden, &down));
  ws->need(2 * int64_t{p.ffn}, std::max(p.hidden, p.ffn));
  ws->forms |= b.forms(*gate) | b.forms(*up) | b.forms(*down);
  return Status();
}

void Mlp::forward(Backend& b, const HParams& p, Workspace& ws, int rows, PhaseTimer& timer) const {
  float* g = ws.wide;
  float* u = g + int64_t{b.row_room(rows)} * p.ffn;
  b.norm(ws.x, norm, p.eps, rows, p.hidden, b.forms(*gate) | b.forms(*up), ws.acts.get());
  timer.mark(Counter::kNormNs);
  const Product in[] = {{gate.get(), g, p.ffn, nullptr}, {up.get(), u, p.ffn, nullptr}};
  b.matmul(in, *ws.acts, rows);
  timer.mark(Counter::kMatmulNs);
  b.swiglu(g, u, rows, p.ffn, b.forms(*down), ws.acts.get());
  timer.mark(Counter::kSwigluNs);
  const Product out[] = {{down.get(), ws.x, p.hidden, ws.x}};
  b.matmul(out, *ws.acts, rows);
  timer.mark(Counter::kMatmulNs);
}

Status Attention::load(WeightLoader& w, Backend& b, const HParams& p, const std::string& prefix, const KvShape& kv,
                       Workspace* ws) {
  const int64_t q_width = int64_t{p.q_heads} * p.head_dim * (p.gated ? 2 : 1);
  const int64_t kv_width = int64_t{p.kv_heads} * p.head_dim, out_width = int64_t{p.q_heads} * p.head_dim;
  layer.q_heads = p.q_heads;
  layer.kv = kv;
  layer.rope_dims = p.rope_dims;
  layer.gated = p.gated;
  layer.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.head_dim)));
  layer.eps = p.eps;
  TND_TRY(w.vector(prefix + "attn_norm.weight", p.hidden, &norm));
  TND_TRY(w.vector(prefix + "attn_q_norm.weight", p.head_dim, &layer.q_norm));
  TND_TRY(w.vector(prefix + "attn_k_norm.weight", p.head_dim, &layer.k_norm));
  TND_TRY(w.matrix(prefix + "attn_q.weight", p.hidden, q_width, &q));
  TND_TRY(w.matrix(prefix + "attn_k.weight", p.hidden, kv_width, &k));
  TND_TRY(w.matrix(prefix + "attn_v.weight", p.hidden, kv_width, &v));
  TND_TRY(w.matrix(prefix + "attn_output.weight", out_width, p.hidden, &o));
  ws->need(q_width + 2 * kv_width, std::max<int64_t>(p.hidden, out_width));
  ws->forms |= b.forms(*q) | b.forms(*k) | b.forms(*v) | b.forms(*o);
  return Status();
}

void Attention::forward(Backend& b, const HParams& p, Workspace& ws, int layer_index, const TargetStep& step,
                        PhaseTimer& timer) const {
  const int64_t rows = b.row_room(step.rows);
  AttentionIo io;
  float* values = nullptr;
  io.q = ws.wide;
  io.k = io.q + rows * q->n;
  values = io.k + rows * k->n;
  io.v = values;
  b.norm(ws.x, norm, p.eps, step.rows, p.hidden, b.forms(*q) | b.forms(*k) | b.forms(*v), ws.acts.get());
  timer.mark(Counter::kNormNs);
  const Product in[] = {
      {q.get(), io.q, q->n, nullptr}, {k.get(), io.k, k->n, nullptr}, {v.get(), values, v->n, nullptr}};
  b.matmul(in, *ws.acts, step.rows);
  timer.mark(Counter::kMatmulNs);
  b.attention(layer, layer_index, step.attention, step.rows, io, b.forms(*o), ws.acts.get());
  timer.mark(Counter::kAttentionNs);
  const Product out[] = {{o.get(), ws.x, p.hidden, ws.x}};
  b.matmul(out, *ws.acts, step.rows);
  timer.mark(Counter::kMatmulNs);
}

Status Ends::load(WeightLoader& w, Backend& b, const HParams& p, bool first, bool last, Workspace* ws) {
  const bool tied = !w.has("output.weight");
  if (first || (last && tied)) TND_TRY(w.matrix("token_embd.weight", p.hidden, p.vocab, &embedding));
  if (last) {
    if (!tied) TND_TRY(w.matrix("output.weight", p.hidden, p.vocab, &output));
    TND_TRY(w.vector("output_norm.weight", p.hidden, &norm));
    has_output = true;
    ws->forms |= b.forms(*head());
  }
  ws->need(0, p.hidden);
  return Status();
}

void take_hidden(Backend& b, const HParams& p, const Workspace& ws, const TargetStep& step) {
  if (step.hidden_bf16) {
    b.upload_rows_bf16(ws.x, step.hidden_in, step.rows, p.hidden);
  } else {
    b.upload_rows(ws.x, static_cast<const float*>(step.hidden_in), step.rows, p.hidden);
  }
}

void capture(Backend& b, const HParams& p, const Workspace& ws, int32_t layer, const TargetStep& step,
             PhaseTimer& timer) {
  if (step.feature_rows.empty()) return;
  for (size_t i = 0; i < step.capture_layers.size(); ++i) {
    if (step.capture_layers[i] != layer) continue;
    const int64_t width = static_cast<int64_t>(step.capture_layers.size()) * p.hidden;
    b.copy_rows(ws.x, p.hidden, step.feature_rows, step.feature_places,
                step.features + static_cast<int64_t>(i) * p.hidden, width);
    timer.mark(Counter::kFeatureNs);
  }
}

}  // namespace tnd
