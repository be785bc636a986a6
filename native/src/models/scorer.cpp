#include "models/scorer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/backend.h"
#include "cpu/row_kernels.h"

namespace tnd {
namespace {

constexpr int32_t kRowBlock = 16;  // rows of a task between matmuls
constexpr int32_t kMaxHeadDim = 512;

// Dot product in 16 lanes, folded 8, 4, 2, 1.
float dot(const float* a, const float* b, int n) {
  float lanes[16] = {};
  for (int d = 0; d < n; d += 16) {
    for (int i = 0; i < 16; ++i) lanes[i] += a[d + i] * b[d + i];
  }
  for (int w = 8; w > 0; w /= 2) {
    for (int i = 0; i < w; ++i) lanes[i] += lanes[i + w];
  }
  return lanes[0];
}

}  // namespace

void take_peaks(float* s, int32_t visible, float* best) {
  const cpu::RowKernels& kernels = cpu::row_kernels();
  int32_t at = 0;
  const float max = kernels.argmax(s, visible, &at);
  const float inverse = 1.0f / kernels.sum_exp(s, visible, max, 1.0f);
  kernels.exp_scaled(s, visible, max, 1.0f, s);
  for (int32_t j = 0; j < visible; ++j) best[j] = std::max(best[j], s[j] * inverse);
}

ScorerModel::ScorerModel(const HParams& hparams, cpu::CpuBackend& backend) : p_(hparams), backend_(backend) {
  scale_ = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p_.head_dim)));
}

Status ScorerModel::load(WeightLoader& w, Arena& arena, const ScorerLimits& limits) {
  limits_ = limits;
  ws_ = Workspace();
  fast_ = cpu::score_attention_available(p_.head_dim);
  TND_TRY(w.matrix("token_embd.weight", p_.hidden, p_.vocab, &embedding_));
  TND_TRY(w.vector("output_norm.weight", p_.hidden, &norm_));
  layers_.clear();
  layers_.resize(static_cast<size_t>(p_.n_layers));
  const KvShape none;
  for (int32_t i = 0; i < p_.n_layers; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    TND_TRY(layers_[i].attention.load(w, backend_, p_, prefix, none, &ws_));
    TND_TRY(layers_[i].mlp.load(w, backend_, p_, prefix, "ffn_norm.weight", &ws_));
  }
  ws_.take(backend_, arena, std::max(limits.chunk, limits.max_query), p_.hidden);

  const auto floats = [&](uint64_t n) { return arena.take_array<float>(Purpose::kScratch, n); };
  const uint64_t tokens = static_cast<uint64_t>(limits.max_tokens), queries = static_cast<uint64_t>(limits.max_query);
  x_ = floats(tokens * p_.hidden);
  query_x_ = floats(queries * p_.hidden);
  query_q_ = floats(queries * p_.q_heads * p_.head_dim);
  dots_ = floats(queries * p_.q_heads * tokens);
  best_ = floats(queries * tokens);
  const int32_t capacity = (limits.max_tokens + 255) / 256 * 256;
  const uint64_t threads = static_cast<uint64_t>(backend_.pool().threads());
  if (fast_) {
    void* mem = arena.take(Purpose::kKv, cpu::ScoreKv::bytes(p_.head_dim, p_.kv_heads, capacity));
    if (!arena.measuring()) score_kv_.init(mem, p_.head_dim, p_.kv_heads, capacity);
    scratch_ = arena.take(Purpose::kScratch, threads * cpu::score_scratch_bytes(p_.head_dim));
  } else {
    shape_.kv = {cpu::KvType::kF16, cpu::KvType::kF16, p_.head_dim, p_.kv_heads, capacity};
    shape_.q_heads = p_.q_heads;
    shape_.scale = scale_;
    k_cache_ = arena.take(Purpose::kKv, shape_.kv.k_bytes());
    v_cache_ = arena.take(Purpose::kKv, shape_.kv.v_bytes());
    scratch_ = arena.take(Purpose::kScratch, threads * cpu::attention_scratch_bytes(shape_));
  }
  ScratchLimits scratch;
  scratch.rows = std::max(limits.chunk, limits.max_query);
  scratch.max_k = ws_.max_k;
  scratch.forms = ws_.forms;
  backend_.plan_scratch(arena, scratch);
  if (arena.measuring()) return Status();
  angles_.init(p_.rope_theta, p_.rope_dims, limits.max_tokens);
  rows_.resize(static_cast<size_t>(limits.chunk));
  return Status();
}

// Queries of the scoring rows, head-normed, from the residual stream that enters the layer.
void ScorerModel::query_rows(const Layer& l, std::span<const int32_t> query, bool rotated) {
  const cpu::RowKernels& kernels = cpu::row_kernels();
  const int rows = static_cast<int>(query.size());
  const int32_t dim = p_.head_dim;
  backend_.copy_rows(x_, p_.hidden, query, query_x_, p_.hidden);
  backend_.norm(query_x_, l.attention.norm, p_.eps, rows, p_.hidden, backend_.forms(*l.attention.q), ws_.acts.get());
  const Product product{l.attention.q.get(), query_q_, int64_t{p_.q_heads} * dim, nullptr};
  backend_.matmul(std::span<const Product>(&product, 1), *ws_.acts, rows);
  float angles[kMaxHeadDim];
  for (int r = 0; r < rows; ++r) {
    if (rotated) angles_.fill(query[r], angles);
    for (int h = 0; h < p_.q_heads; ++h) {
      float* q = query_q_ + (int64_t{r} * p_.q_heads + h) * dim;
      kernels.rms_norm(q, l.attention.layer.q_norm, p_.eps, dim, q);
      if (rotated) kernels.rope(q, angles, angles + p_.rope_dims / 2, p_.rope_dims / 2);
    }
  }
}

// Head norms, scores against the query rows, rotation and storage of a chunk's keys and values.
void ScorerModel::finish_rows(const Layer& l, int32_t first, int32_t rows, size_t n_query, bool rotated, bool last) {
  const cpu::RowKernels& kernels = cpu::row_kernels();
  const int32_t dim = p_.head_dim, half = p_.rope_dims / 2, g = p_.q_heads / p_.kv_heads;
  const auto score_row = [&](int32_t position, const float* k) {
    for (size_t t = 0; t < n_query; ++t) {
      for (int h = 0; h < p_.q_heads; ++h) {
        const size_t row = t * p_.q_heads + h;
        dots_[row * limits_.max_tokens + position] = scale_ * dot(query_q_ + row * dim, k + h / g * dim, dim);
      }
    }
  };
  backend_.pool().run((rows + kRowBlock - 1) / kRowBlock, [&](int task, int) {
    float angles[kMaxHeadDim];
    for (int32_t r = task * kRowBlock; r < std::min(rows, (task + 1) * kRowBlock); ++r) {
      float* k = k_ + int64_t{r} * p_.kv_heads * dim;
      for (int h = 0; h < p_.kv_heads; ++h) {
        kernels.rms_norm(k + h * dim, l.attention.layer.k_norm, p_.eps, dim, k + h * dim);
      }
      if (!rotated && n_query > 0) score_row(first + r, k);
      if (last && !rotated) continue;
      angles_.fill(first + r, angles);
      for (int h = 0; h < p_.kv_heads; ++h) kernels.rope(k + h * dim, angles, angles + half, half);
      if (rotated && n_query > 0) score_row(first + r, k);
      if (last) continue;
      const float* v = v_ + int64_t{r} * p_.kv_heads * dim;
      if (fast_) {
        cpu::score_store(score_kv_, first + r, k, v);
      } else {
        cpu::kv_store(shape_.kv, k_cache_, v_cache_, first + r, k, v);
      }
      for (int h = 0; h < p_.q_heads; ++h) {
        float* q = q_ + (int64_t{r} * p_.q_heads + h) * dim;
        kernels.rms_norm(q, l.attention.layer.q_norm, p_.eps, dim, q);
        kernels.rope(q, angles, angles + half, half);
      }
    }
  });
}

// Attention of a chunk over all positions up to it; the result replaces q.
void ScorerModel::attend(int32_t first, int32_t rows) {
  if (fast_) {
    cpu::score_attention(backend_.pool(), score_kv_, p_.q_heads, scale_, first, rows, q_, q_, scratch_);
    return;
  }
  for (int32_t r = 0; r < rows; ++r) {
    float* q = q_ + int64_t{r} * p_.q_heads * p_.head_dim;
    rows_[r] = cpu::AttentionRow{q, q, 0, first + r + 1, 0, nullptr};
  }
  const cpu::AttentionGroup group{k_cache_, v_cache_, rows_.data(), rows};
  cpu::attention(backend_.pool(), shape_, &group, 1, {scratch_, nullptr, 0});
}

// Softmax of the layer's scores per query row and head; best_ keeps the maximum.
void ScorerModel::merge_layer(std::span<const int32_t> query) {
  backend_.pool().run(static_cast<int>(query.size()), [&](int t, int) {
    float* best = best_ + int64_t{t} * limits_.max_tokens;
    const int32_t visible = query[t] + 1;
    for (int h = 0; h < p_.q_heads; ++h) {
      float* s = dots_ + (int64_t{t} * p_.q_heads + h) * limits_.max_tokens;
      take_peaks(s, visible, best);
    }
  });
}

Status ScorerModel::layer(int32_t index, int32_t n, std::span<const int32_t> query, bool rotated, bool last,
                          const std::atomic<bool>* cancel, PhaseTimer& timer) {
  const Layer& l = layers_[index];
  const Attention& a = l.attention;
  const int64_t q_width = int64_t{p_.q_heads} * p_.head_dim, kv_width = int64_t{p_.kv_heads} * p_.head_dim;
  if (!query.empty()) query_rows(l, query, rotated);
  for (int32_t first = 0; first < n; first += limits_.chunk) {
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      return errorf(TND_CANCELED, "cancelled in layer %d at position %d of %d", index, first, n);
    }
    const int32_t rows = std::min(limits_.chunk, n - first);
    ws_.x = x_ + int64_t{first} * p_.hidden;
    q_ = ws_.wide;
    k_ = q_ + rows * q_width;
    v_ = k_ + rows * kv_width;
    const Product all[] = {
        {a.k.get(), k_, kv_width, nullptr}, {a.v.get(), v_, kv_width, nullptr}, {a.q.get(), q_, q_width, nullptr}};
    const std::span<const Product> products(all, last ? 1 : 3);
    InputForms forms = 0;
    for (const Product& p : products) forms |= backend_.forms(*p.w);
    backend_.norm(ws_.x, a.norm, p_.eps, rows, p_.hidden, forms, ws_.acts.get());
    timer.mark(Counter::kNormNs);
    backend_.matmul(products, *ws_.acts, rows);
    timer.mark(Counter::kMatmulNs);
    finish_rows(l, first, rows, query.size(), rotated, last);
    timer.mark(Counter::kNormNs);
    if (last) continue;
    attend(first, rows);
    timer.mark(Counter::kAttentionNs);
    backend_.prepare(q_, q_width, rows, q_width, backend_.forms(*a.o), ws_.acts.get());
    const Product out{a.o.get(), ws_.x, p_.hidden, ws_.x};
    backend_.matmul(std::span<const Product>(&out, 1), *ws_.acts, rows);
    timer.mark(Counter::kMatmulNs);
    l.mlp.forward(backend_, p_, ws_, rows, timer);
  }
  if (!query.empty()) merge_layer(query);
  timer.mark(Counter::kHeadNs);
  return Status();
}

Status ScorerModel::score(std::span<const int32_t> ids, std::span<const int32_t> query, bool rotated,
                          const std::atomic<bool>* cancel, Stats* stats, float* scores) {
  PhaseTimer timer(stats);
  const int32_t n = static_cast<int32_t>(ids.size());
  for (size_t t = 0; t < query.size(); ++t) {
    std::fill_n(best_ + static_cast<int64_t>(t) * limits_.max_tokens, n, 0.0f);
  }
  backend_.embed(*embedding_, ids, x_);
  timer.mark(Counter::kEmbedNs);
  for (int32_t i = 0; i < p_.n_layers; ++i) {
    TND_TRY(layer(i, n, query, rotated, i + 1 == p_.n_layers, cancel, timer));
  }
  const float inverse = 1.0f / static_cast<float>(query.size());
  for (int32_t j = 0; j < n; ++j) {
    float sum = 0;
    for (size_t t = 0; t < query.size(); ++t) sum += best_[static_cast<int64_t>(t) * limits_.max_tokens + j];
    scores[j] = sum * inverse;
  }
  return Status();
}

const float* ScorerModel::forward(std::span<const int32_t> ids, Stats* stats) {
  PhaseTimer timer(stats);
  backend_.embed(*embedding_, ids, x_);
  for (int32_t i = 0; i < p_.n_layers; ++i) {
    (void)layer(i, static_cast<int32_t>(ids.size()), {}, false, false, nullptr, timer).ok();
  }
  return x_;
}

}  // namespace tnd
