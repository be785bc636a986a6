// Scoring a prompt on a GPU backend. K and V of the layer are an F16 cache and attention is the ordinary one; added are
// the products of un-rotated (or rotated) keys with the scoring rows and the peaks over heads (score_attention.h).
#include "gpu/attention/kv.h"
#include "gpu/attention/rope.h"
#include "gpu/attention/score_attention.h"
#include "gpu/step/backend_gpu.h"

namespace tnd::gpu {

uint64_t GpuBackend::score_kv_bytes(const AttentionLayer& w) const {
  return kv_cache_bytes(w.kv, true) + kv_cache_bytes(w.kv, false);
}

void GpuBackend::score_queries(const AttentionLayer& w, const float* rope, int rows, float* q) {
  HeadsArgs& heads = recorder_.add(launch_heads);
  heads.kv = w.kv;
  heads.q_heads = w.q_heads;
  heads.rope_dims = w.rope_dims;
  heads.eps = w.eps;
  heads.q_norm = w.q_norm;
  heads.rows = rows;
  heads.rope = rope;
  heads.q = q;
  heads.q_out = q;
}

void GpuBackend::score_chunk(const AttentionLayer& w, const ScoreChunk& c, const AttentionIo& io, InputForms forms,
                             Acts* out) {
  const bool last = io.q == nullptr;
  AttentionLayer layer = w;
  if (!c.rotated || last) {  // the keys alone, so that scores use them before attention rotates them
    HeadsArgs& keys = recorder_.add(launch_heads);
    keys.kv = w.kv;
    keys.rope_dims = w.rope_dims;
    keys.eps = w.eps;
    keys.k_norm = w.k_norm;
    keys.rows = c.rows;
    keys.rope = c.rotated ? c.rope : nullptr;
    keys.k = io.k;
    layer.k_norm = nullptr;
  }
  const auto dots = [&] {
    if (c.n_query == 0) return;
    ScoreDotsArgs& args = recorder_.add(launch_score_dots);
    args.query = c.query;
    args.k = io.k;
    args.n_query = c.n_query;
    args.q_heads = w.q_heads;
    args.kv_heads = w.kv.heads;
    args.dim = w.kv.dim;
    args.rows = c.rows;
    args.first = c.first;
    args.scale = w.scale;
    args.dots = c.dots;
    args.stride = c.stride;
  };
  if (!c.rotated || last) dots();
  if (last) return;

  score_rows_.assign(static_cast<size_t>(c.rows), AttentionRowPlan());
  for (int32_t r = 0; r < c.rows; ++r) {
    score_rows_[static_cast<size_t>(r)].slot = c.first + r;
    score_rows_[static_cast<size_t>(r)].past = c.first + r + 1;
  }
  const KvCache cache{c.kv, static_cast<uint8_t*>(c.kv) + kv_cache_bytes(w.kv, true)};
  const int32_t pages = kv_pages(c.first + c.rows);  // in ascending order
  while (static_cast<int32_t>(score_pages_.size()) < pages) {
    score_pages_.push_back(static_cast<int32_t>(score_pages_.size()));
  }
  // No key is old: earlier chunks and layers share the cache.
  const AttentionGroupPlan group{0, c.rows, score_pages_.data(), pages};
  attention(layer, 0, {std::span<const AttentionGroupPlan>(&group, 1), score_rows_.data(), &cache, c.rope}, c.rows, io,
            forms, out);
  if (c.rotated) dots();  // attention leaves the keys normed and rotated
}

void GpuBackend::score_peaks(std::span<const int32_t> query, int q_heads, float* dots, float* best, int64_t stride) {
  numbers_.assign(query.begin(), query.end());
  for (int32_t& n : numbers_) ++n;  // visible positions
  if (!recorder_.reserve(Recorder::padded(query.size_bytes()))) return;
  ScorePeaksArgs& args = recorder_.add(launch_score_peaks);
  args.dots = dots;
  args.best = best;
  args.stride = stride;
  args.n_query = static_cast<int>(query.size());
  args.q_heads = q_heads;
  args.visible = recorder_.put(numbers_.data(), numbers_.size());
  args.max_visible = numbers_.back();
  args.scratch = score_scratch_;
}

}  // namespace tnd::gpu
