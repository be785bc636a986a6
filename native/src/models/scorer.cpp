#include "models/scorer.h"

#include <algorithm>

#include "models/rope_angles.h"

namespace tnd {
namespace {

// Chunks that a backend with queues gets at a time: enough that the device hardly waits for the host, few enough that a
// cancelled call ends soon.
constexpr int32_t kChunksAhead = 8;

}  // namespace

Status ScorerModel::load(WeightLoader& w, Arena& arena, const ScorerLimits& limits) {
  limits_ = limits;
  ws_ = Workspace();
  TND_TRY(w.matrix("token_embd.weight", p_.hidden, p_.vocab, &embedding_));
  TND_TRY(w.vector("output_norm.weight", p_.hidden, &norm_));
  layers_.clear();
  layers_.resize(static_cast<size_t>(p_.n_layers));
  const KvShape kv{1, 1, p_.kv_heads, p_.head_dim, (limits.max_tokens + 255) / 256 * 256};
  for (int32_t i = 0; i < p_.n_layers; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    TND_TRY(layers_[i].attention.load(w, backend_, p_, prefix, kv, &ws_));
    TND_TRY(layers_[i].mlp.load(w, backend_, p_, prefix, "ffn_norm.weight", &ws_));
  }
  const int32_t rows = std::max(limits.chunk, limits.max_query);
  ws_.take(backend_, arena, rows, p_.hidden);

  const auto floats = [&](uint64_t n) { return arena.take_array<float>(Purpose::kScratch, n); };
  const uint64_t tokens = static_cast<uint64_t>(limits.max_tokens), queries = static_cast<uint64_t>(limits.max_query);
  x_ = floats(tokens * p_.hidden);
  rope_ = floats(tokens * p_.rope_dims);
  query_x_ = floats(queries * p_.hidden);
  query_rope_ = floats(queries * p_.rope_dims);
  query_q_ = floats(queries * p_.q_heads * p_.head_dim);
  dots_ = floats(queries * p_.q_heads * tokens);
  best_ = floats(queries * tokens);
  ScratchLimits scratch;
  scratch.rows = rows;
  scratch.max_k = ws_.max_k;
  scratch.forms = ws_.forms;
  scratch.score = layers_[0].attention.layer;
  scratch.max_query = limits.max_query;
  kv_ = arena.take(Purpose::kKv, backend_.score_kv_bytes(scratch.score));
  backend_.plan_scratch(arena, scratch);
  if (arena.measuring()) return Status();

  RopeAngles angles;
  angles.init(p_.rope_theta, p_.rope_dims, limits.max_tokens);
  std::vector<float> piece(static_cast<size_t>(limits.chunk) * p_.rope_dims);
  for (int32_t first = 0; first < limits.max_tokens; first += limits.chunk) {
    const int32_t n = std::min(limits.chunk, limits.max_tokens - first);
    for (int32_t i = 0; i < n; ++i) angles.fill(first + i, &piece[static_cast<size_t>(i) * p_.rope_dims]);
    backend_.upload(rope_ + int64_t{first} * p_.rope_dims, piece.data(), int64_t{n} * p_.rope_dims);
  }
  return backend_.sync();
}

// Starts a prompt: its first residual stream.
void ScorerModel::embed(std::span<const int32_t> ids) {
  for (size_t first = 0; first < ids.size(); first += static_cast<size_t>(limits_.chunk)) {
    const size_t n = std::min(static_cast<size_t>(limits_.chunk), ids.size() - first);
    backend_.embed(*embedding_, ids.subspan(first, n), x_ + static_cast<int64_t>(first) * p_.hidden);
  }
}

// Queries of the scoring rows, head-normed, from the residual stream that enters the layer.
void ScorerModel::query_rows(const Layer& l, std::span<const int32_t> query, bool rotated) {
  const Attention& a = l.attention;
  const int rows = static_cast<int>(query.size());
  backend_.begin_step(rows > kPromptRows ? rows : 0, rows);
  backend_.copy_rows(x_, p_.hidden, query, {}, query_x_, p_.hidden);
  backend_.norm(query_x_, a.norm, p_.eps, rows, p_.hidden, backend_.forms(*a.q), ws_.acts.get());
  const Product product{a.q.get(), query_q_, int64_t{p_.q_heads} * p_.head_dim, nullptr};
  backend_.matmul(std::span<const Product>(&product, 1), *ws_.acts, rows);
  if (rotated) backend_.copy_rows(rope_, p_.rope_dims, query, {}, query_rope_, p_.rope_dims);
  backend_.score_queries(a.layer, rotated ? query_rope_ : nullptr, rows, query_q_);
}

Status ScorerModel::layer(int32_t index, int32_t n, std::span<const int32_t> query, bool rotated, bool last,
                          const std::atomic<bool>* cancel, PhaseTimer& timer, ScoreProgress* progress) {
  const Layer& l = layers_[index];
  const Attention& a = l.attention;
  const int64_t q_width = int64_t{p_.q_heads} * p_.head_dim, kv_width = int64_t{p_.kv_heads} * p_.head_dim;
  if (!query.empty()) query_rows(l, query, rotated);
  for (int32_t first = 0; first < n; first += limits_.chunk) {
    if (++ahead_ > kChunksAhead) {
      TND_TRY(backend_.sync());
      ahead_ = 1;
    }
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      return errorf(TND_CANCELED, "cancelled in layer %d at position %d of %d", index, first, n);
    }
    const int32_t rows = std::min(limits_.chunk, n - first);
    backend_.begin_step(rows > kPromptRows ? rows : 0, rows);
    ws_.x = x_ + int64_t{first} * p_.hidden;
    float* q = ws_.wide;
    float* k = q + rows * q_width;
    float* v = k + rows * kv_width;
    const Product all[] = {
        {a.k.get(), k, kv_width, nullptr}, {a.v.get(), v, kv_width, nullptr}, {a.q.get(), q, q_width, nullptr}};
    const std::span<const Product> products(all, last ? 1 : 3);
    InputForms forms = 0;
    for (const Product& p : products) forms |= backend_.forms(*p.w);
    backend_.norm(ws_.x, a.norm, p_.eps, rows, p_.hidden, forms, ws_.acts.get());
    timer.mark(Counter::kNormNs);
    backend_.matmul(products, *ws_.acts, rows);
    timer.mark(Counter::kMatmulNs);
    ScoreChunk c;
    c.first = first;
    c.rows = rows;
    c.rotated = rotated;
    c.rope = rope_ + int64_t{first} * p_.rope_dims;
    c.n_query = static_cast<int>(query.size());
    c.query = query_q_;
    c.dots = dots_;
    c.stride = limits_.max_tokens;
    c.kv = kv_;
    const AttentionIo io{last ? nullptr : q, k, last ? nullptr : v};
    backend_.score_chunk(a.layer, c, io, backend_.forms(*a.o), ws_.acts.get());
    timer.mark(Counter::kAttentionNs);
    if (!last) {
      const Product out{a.o.get(), ws_.x, p_.hidden, ws_.x};
      backend_.matmul(std::span<const Product>(&out, 1), *ws_.acts, rows);
      timer.mark(Counter::kMatmulNs);
      l.mlp.forward(backend_, p_, ws_, rows, timer);
    }
    if (progress != nullptr) progress->add(rows);
  }
  if (!query.empty()) backend_.score_peaks(query, p_.q_heads, dots_, best_, limits_.max_tokens);
  timer.mark(Counter::kHeadNs);
  return Status();
}

Status ScorerModel::score(std::span<const int32_t> ids, std::span<const int32_t> query, bool rotated,
                          const std::atomic<bool>* cancel, Stats* stats, float* scores, ScoreProgress* progress) {
  PhaseTimer timer(stats);
  const int32_t n = static_cast<int32_t>(ids.size());
  const auto best = [&](size_t t) { return best_ + static_cast<int64_t>(t) * limits_.max_tokens; };
  for (size_t t = 0; t < query.size(); ++t) backend_.zero(best(t), n);
  embed(ids);
  timer.mark(Counter::kEmbedNs);
  for (int32_t i = 0; i < p_.n_layers; ++i) {
    TND_TRY(layer(i, n, query, rotated, i + 1 == p_.n_layers, cancel, timer, progress));
  }
  std::vector<float> row(ids.size());
  std::fill_n(scores, ids.size(), 0.0f);
  for (size_t t = 0; t < query.size(); ++t) {
    backend_.download(row.data(), best(t), n);
    TND_TRY(backend_.sync());
    for (size_t j = 0; j < ids.size(); ++j) scores[j] += row[j];
  }
  const float inverse = 1.0f / static_cast<float>(query.size());
  for (size_t j = 0; j < ids.size(); ++j) scores[j] *= inverse;
  return Status();
}

const float* ScorerModel::forward(std::span<const int32_t> ids, Stats* stats) {
  PhaseTimer timer(stats);
  embed(ids);
  for (int32_t i = 0; i < p_.n_layers; ++i) {
    (void)layer(i, static_cast<int32_t>(ids.size()), {}, false, false, nullptr, timer, nullptr).ok();
  }
  return x_;
}

}  // namespace tnd
