#include "models/dflash.h"

#include <algorithm>

#include "core/kv_type.h"

namespace tnd {

namespace {
constexpr int32_t kHeadRows = 64;  // rows of one product with the vocabulary
}

Status DflashModel::load(WeightLoader& w, WeightLoader& tables, int32_t vocab, Arena& arena,
                         const DflashLimits& limits) {
  const HParams& d = p_.decoder;
  limits_ = limits;
  ws_ = Workspace();
  TND_TRY(w.matrix("fc.weight", p_.feature_raw, d.hidden, &fc_));
  TND_TRY(w.vector("hidden_norm.weight", d.hidden, &hidden_norm_));
  TND_TRY(w.vector("output_norm.weight", d.hidden, &norm_));
  layers_.clear();
  layers_.resize(static_cast<size_t>(d.n_layers));
  for (int32_t i = 0; i < d.n_layers; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    TND_TRY(layers_[i].attention.load(w, backend_, d, prefix, p_.sliding[i] ? limits.sliding_kv : limits.kv, &ws_));
    TND_TRY(layers_[i].mlp.load(w, backend_, d, prefix, "ffn_norm.weight", &ws_));
  }
  TND_TRY(tables.matrix("token_embd.weight", d.hidden, vocab, &embedding_));
  output_.reset();
  if (tables.has("output.weight")) TND_TRY(tables.matrix("output.weight", d.hidden, vocab, &output_));
  const Matrix& head = output_ ? *output_ : *embedding_;

  // Working memory: a pass over blocks needs the projections of one layer, an append K and V of all layers.
  const int64_t block_rows = limits.block_rows, append_rows = limits.append_rows;
  const int64_t rows = std::max(block_rows, append_rows);
  const int64_t kv_all = 2 * int64_t{d.kv_heads} * d.head_dim * d.n_layers;
  const auto floats = [&](int64_t n) { return arena.take_array<float>(Purpose::kScratch, static_cast<uint64_t>(n)); };
  ws_.x = floats(rows * d.hidden);
  ws_.wide = floats(
      std::max(backend_.row_room(limits.block_rows) * ws_.width, backend_.row_room(limits.append_rows) * kv_all));
  ws_.acts = backend_.acts(arena, ws_.max_k, static_cast<int>(rows), ws_.forms);
  features_ = floats(append_rows * p_.feature_raw);
  feature_acts_ = backend_.acts(arena, p_.feature_raw, static_cast<int>(append_rows), backend_.forms(*fc_));
  rope_ = floats(rows * d.rope_dims);

  ScratchLimits scratch;
  scratch.rows = static_cast<int>(rows);
  scratch.head_rows = static_cast<int>(std::min<int64_t>(kHeadRows, block_rows));
  scratch.vocab = vocab;
  scratch.max_k = ws_.max_k;
  scratch.forms = ws_.forms | backend_.forms(head);
  scratch.attention = layers_[0].attention.layer;
  scratch.max_context = limits.max_context + p_.block;
  scratch.pages = limits.pages;
  scratch.max_top_k = limits.max_top_k;
  backend_.plan_scratch(arena, scratch);
  if (arena.measuring()) return Status();

  angles_.init(d.rope_theta, d.rope_dims, limits.max_context + p_.block);
  rope_host_.resize(static_cast<size_t>(rows * d.rope_dims));
  return Status();
}

// The features of pieces[*first] and of those behind it that have its encoding, one behind the other: calls with as
// many rows are then alike however many pieces they have. Long ones stay where they are. Moves *first behind them.
const void* DflashModel::gather(std::span<const DflashRows> pieces, int64_t values, size_t* first, int32_t* rows) {
  const DflashRows& head = pieces[*first];
  size_t end = *first + 1;
  while (head.n <= kPromptRows && end < pieces.size() && pieces[end].encoding == head.encoding) ++end;
  const size_t row_bytes = static_cast<size_t>(values) * (bf16_features(head.encoding) ? 2 : sizeof(float));
  gathered_.clear();
  for (const DflashRows& piece : pieces.subspan(*first, end - *first)) {
    *rows += piece.n;
    if (end == *first + 1) break;
    const auto* const from = static_cast<const uint8_t*>(piece.features);
    gathered_.insert(gathered_.end(), from, from + static_cast<size_t>(piece.n) * row_bytes);
  }
  const bool alone = end == *first + 1;
  *first = end;
  return alone ? head.features : gathered_.data();
}

void DflashModel::append(const KvCache* caches, std::span<const DflashRows> pieces, Stats* stats) {
  const HParams& d = p_.decoder;
  PhaseTimer timer(stats);
  int32_t n = 0, prompts = 0;
  for (const DflashRows& piece : pieces) {
    n += piece.n;
    if (piece.n > kPromptRows) prompts += piece.n;
  }
  backend_.begin_step(prompts, n);
  float* c = ws_.x;
  const bool fused = fused_features(pieces[0].encoding);
  const int64_t values = fused ? d.hidden : p_.feature_raw;
  float* to = fused ? c : features_;
  for (size_t first = 0; first < pieces.size();) {
    int32_t rows = 0;
    const void* const from = gather(pieces, values, &first, &rows);
    if (bf16_features(pieces[first - 1].encoding)) {
      backend_.upload_rows_bf16(to, from, rows, values);
    } else {
      backend_.upload_rows(to, static_cast<const float*>(from), rows, values);
    }
    to += rows * values;
  }
  if (!fused) {
    backend_.prepare(features_, p_.feature_raw, n, p_.feature_raw, backend_.forms(*fc_), feature_acts_.get());
    timer.mark(Counter::kFeatureNs);
    const Product fuse{fc_.get(), c, d.hidden, nullptr};
    backend_.matmul(std::span<const Product>(&fuse, 1), *feature_acts_, n);
    timer.mark(Counter::kMatmulNs);
    backend_.norm_rows(c, hidden_norm_, d.eps, n, d.hidden, c);
  }
  // K and V of all layers share c: one group of products.
  const int64_t width = int64_t{d.kv_heads} * d.head_dim, room = backend_.row_room(n) * width;
  InputForms forms = 0;
  products_.clear();
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Attention& a = layers_[i].attention;
    float* k = ws_.wide + static_cast<int64_t>(2 * i) * room;
    products_.push_back({a.k.get(), k, width, nullptr});
    products_.push_back({a.v.get(), k + room, width, nullptr});
    forms |= backend_.forms(*a.k) | backend_.forms(*a.v);
  }
  backend_.prepare(c, d.hidden, n, d.hidden, forms, ws_.acts.get());
  timer.mark(Counter::kNormNs);
  backend_.matmul(products_, *ws_.acts, n);
  timer.mark(Counter::kMatmulNs);

  for (View* view : {&full_, &sliding_}) {
    view->rows.assign(static_cast<size_t>(n), AttentionRowPlan());
    view->groups.clear();
  }
  int32_t row = 0;
  for (const DflashRows& piece : pieces) {
    for (View* view : {&full_, &sliding_}) view->groups.push_back({row, piece.n});  // no row sees anything
    for (int32_t i = 0; i < piece.n; ++i, ++row) {
      full_.rows[row].slot = kv_slot(piece.pages.full, piece.position + i);
      sliding_.rows[row].slot = kv_slot(piece.pages.sliding, piece.position + i);
      angles_.fill(piece.position + i, &rope_host_[static_cast<size_t>(row) * d.rope_dims]);
    }
  }
  backend_.upload_rows(rope_, rope_host_.data(), n, d.rope_dims);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const View& view = p_.sliding[i] ? sliding_ : full_;
    AttentionIo io;
    io.k = ws_.wide + static_cast<int64_t>(2 * i) * room;
    io.v = io.k + room;
    backend_.attention(layers_[i].attention.layer, static_cast<int>(i), {view.groups, view.rows.data(), caches, rope_},
                       n, io, 0, nullptr);
  }
  timer.mark(Counter::kAttentionNs);
}

void DflashModel::plan_block(const DflashBlock& b, int32_t first_row) {
  const int32_t rope_dims = p_.decoder.rope_dims;
  for (int32_t j = 0; j < b.rows; ++j) {
    const int32_t row = first_row + j;
    tokens_[row] = j == 0 ? b.token : p_.mask_token;
    full_.slots[row] = kv_slot(b.pages.full, b.length + j);
    sliding_.slots[row] = kv_slot(b.pages.sliding, b.length + j);
    angles_.fill(b.position + j, &rope_host_[static_cast<size_t>(row) * rope_dims]);
    full_.rows[row] = {full_.slots[row], 0, b.length, b.rows, &full_.slots[first_row]};
    // The window counts true positions; block rows are always inside it.
    const int32_t first = std::clamp(b.position + j - (p_.window - 1), 0, b.length);
    sliding_.rows[row] = {sliding_.slots[row], first, b.length, j + 1, &sliding_.slots[first_row]};
    if (j == 0) continue;
    HeadRow h;
    h.row = row;
    h.top_k = b.top_k;
    h.top_temperature = b.temperature;
    h.top_ids = b.ids;
    h.top_logprobs = b.logprobs;
    head_rows_.push_back(h);
  }
}

void DflashModel::propose(const KvCache* caches, std::span<const DflashBlock> blocks, int32_t stride, Stats* stats) {
  const HParams& d = p_.decoder;
  PhaseTimer timer(stats);
  int32_t rows = 0;
  for (const DflashBlock& b : blocks) rows += b.rows;
  backend_.begin_step(0, rows);
  tokens_.resize(static_cast<size_t>(rows));
  for (View* view : {&full_, &sliding_}) {
    view->slots.resize(static_cast<size_t>(rows));
    view->rows.resize(static_cast<size_t>(rows));
    view->groups.clear();
  }
  head_rows_.clear();
  int32_t first = 0;
  for (const DflashBlock& b : blocks) {
    const size_t heads = head_rows_.size();
    plan_block(b, first);
    for (size_t i = heads; i < head_rows_.size(); ++i) {
      head_rows_[i].top_ids += static_cast<int64_t>(i - heads) * stride;
      head_rows_[i].top_logprobs += static_cast<int64_t>(i - heads) * stride;
    }
    full_.groups.push_back({first, b.rows, b.pages.full, b.n_pages, b.length});
    sliding_.groups.push_back({first, b.rows, b.pages.sliding, b.n_pages, b.length});
    first += b.rows;
  }
  backend_.upload_rows(rope_, rope_host_.data(), rows, d.rope_dims);
  backend_.embed(*embedding_, tokens_, ws_.x);
  timer.mark(Counter::kEmbedNs);

  TargetStep full;
  full.rows = rows;
  full.attention = {full_.groups, full_.rows.data(), caches, rope_};
  TargetStep sliding = full;
  sliding.attention = {sliding_.groups, sliding_.rows.data(), caches, rope_};
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i].attention.forward(backend_, d, ws_, static_cast<int>(i), p_.sliding[i] ? sliding : full, timer);
    layers_[i].mlp.forward(backend_, d, ws_, rows, timer);
  }

  HeadArgs head;
  head.x = ws_.x;
  head.norm = norm_;
  head.eps = d.eps;
  head.w = output_ ? output_.get() : embedding_.get();
  head.rows = head_rows_;
  backend_.head(head);
  timer.mark(Counter::kHeadNs);
}

}  // namespace tnd
