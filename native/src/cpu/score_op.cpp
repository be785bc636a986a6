// Scoring steps of the CPU backend: keys against the scoring rows, dense attention of a chunk (score_attention.h where
// the processor has its instructions, attention.h elsewhere), peaks.
#include "cpu/score_op.h"

#include <algorithm>
#include <numeric>

#include "cpu/backend.h"
#include "cpu/score_attention.h"

namespace tnd::cpu {
namespace {

constexpr int32_t kRowBlock = 16;  // rows of a task between matmuls

// Dot product in 16 lanes, folded 8, 4, 2, 1.
float dot(const float* a, const float* b, int64_t n) {
  float lanes[16] = {};
  for (int64_t d = 0; d < n; d += 16) {
    for (int i = 0; i < 16; ++i) lanes[i] += a[d + i] * b[d + i];
  }
  for (int w = 8; w > 0; w /= 2) {
    for (int i = 0; i < w; ++i) lanes[i] += lanes[i + w];
  }
  return lanes[0];
}

// Scaled products of one position's keys with the queries.
void score_row(const AttentionLayer& w, const ScoreChunk& c, int32_t position, const float* k) {
  const int64_t dim = w.kv.dim;
  const int g = w.q_heads / w.kv.heads;
  for (int t = 0; t < c.n_query; ++t) {
    for (int h = 0; h < w.q_heads; ++h) {
      const int64_t row = int64_t{t} * w.q_heads + h;
      c.dots[row * c.stride + position] = w.scale * dot(c.query + row * dim, k + h / g * dim, dim);
    }
  }
}

void* values_of(const KvLayout& l, void* kv) {
  return static_cast<uint8_t*>(kv) + l.k_bytes();
}

}  // namespace

void take_peaks(float* s, int32_t visible, float* best) {
  const RowKernels& kernels = row_kernels();
  int32_t at = 0;
  const float max = kernels.argmax(s, visible, &at);
  const float inverse = 1.0f / kernels.sum_exp(s, visible, max, 1.0f);
  kernels.exp_scaled(s, visible, max, 1.0f, s);
  for (int32_t j = 0; j < visible; ++j) best[j] = std::max(best[j], s[j] * inverse);
}

uint64_t CpuBackend::score_kv_bytes(const AttentionLayer& w) const {
  if (score_attention_available(w.kv.dim)) return ScoreKv::bytes(w.kv.dim, w.kv.heads, w.kv.capacity);
  return kv_bytes(w.kv, true) + kv_bytes(w.kv, false);
}

void CpuBackend::plan_score(Arena& arena, const ScratchLimits& limits) {
  const AttentionLayer& w = limits.score;
  const uint64_t threads = static_cast<uint64_t>(pool_.threads());
  if (score_attention_available(w.kv.dim)) {
    score_scratch_ = arena.take(Purpose::kScratch, threads * score_scratch_bytes(w.kv.dim));
    return;
  }
  const AttentionShape shape{kv_layout(w.kv), w.q_heads, w.scale};
  score_scratch_ = arena.take(Purpose::kScratch, threads * attention_scratch_bytes(shape));
  attention_rows_ = arena.take_array<AttentionRow>(Purpose::kScratch, static_cast<uint64_t>(limits.rows));
  score_pages_.resize(static_cast<size_t>(kv_pages(w.kv.capacity)));
  std::iota(score_pages_.begin(), score_pages_.end(), 0);
}

void CpuBackend::score_queries(const AttentionLayer& w, const float* rope, int rows, float* q) {
  const RowKernels& kernels = row_kernels();
  const int64_t dim = w.kv.dim, half = w.rope_dims / 2;
  for (int r = 0; r < rows; ++r) {
    for (int h = 0; h < w.q_heads; ++h) {
      float* x = q + (int64_t{r} * w.q_heads + h) * dim;
      kernels.rms_norm(x, w.q_norm, w.eps, dim, x);
      if (rope == nullptr) continue;
      const float* cos = rope + int64_t{r} * w.rope_dims;
      kernels.rope(x, cos, cos + half, half);
    }
  }
}

void CpuBackend::score_chunk(const AttentionLayer& w, const ScoreChunk& c, const AttentionIo& io, InputForms forms,
                             Acts* out) {
  const RowKernels& kernels = row_kernels();
  const bool fast = score_attention_available(w.kv.dim), last = io.q == nullptr;
  const KvLayout layout = kv_layout(w.kv);
  ScoreKv coarse;
  if (fast) coarse.init(c.kv, w.kv.dim, w.kv.heads, w.kv.capacity);
  const int64_t dim = w.kv.dim, half = w.rope_dims / 2, kv_width = dim * w.kv.heads, q_width = dim * w.q_heads;
  pool_.run((c.rows + kRowBlock - 1) / kRowBlock, [&](int task, int) {
    for (int32_t r = task * kRowBlock; r < std::min(c.rows, (task + 1) * kRowBlock); ++r) {
      float* k = io.k + r * kv_width;
      for (int h = 0; h < w.kv.heads; ++h) kernels.rms_norm(k + h * dim, w.k_norm, w.eps, dim, k + h * dim);
      if (!c.rotated) score_row(w, c, c.first + r, k);
      if (last && !c.rotated) continue;
      const float* cos = c.rope + int64_t{r} * w.rope_dims;
      const float* sin = cos + half;
      for (int h = 0; h < w.kv.heads; ++h) kernels.rope(k + h * dim, cos, sin, half);
      if (c.rotated) score_row(w, c, c.first + r, k);
      if (last) continue;
      const float* v = io.v + r * kv_width;
      if (fast) {
        score_store(coarse, c.first + r, k, v);
      } else {
        kv_store(layout, c.kv, values_of(layout, c.kv), c.first + r, k, v);
      }
      for (int h = 0; h < w.q_heads; ++h) {
        float* q = io.q + r * q_width + h * dim;
        kernels.rms_norm(q, w.q_norm, w.eps, dim, q);
        kernels.rope(q, cos, sin, half);
      }
    }
  });
  if (last) return;
  if (fast) {
    score_attention(pool_, coarse, w.q_heads, w.scale, c.first, c.rows, io.q, io.q, score_scratch_);
  } else {
    for (int32_t r = 0; r < c.rows; ++r) {
      float* q = io.q + r * q_width;
      attention_rows_[r] = AttentionRow{q, q, 0, c.first + r + 1, 0, nullptr};
    }
    const AttentionGroup group{c.kv, values_of(layout, c.kv), score_pages_.data(), attention_rows_, c.rows};
    cpu::attention(pool_, {layout, w.q_heads, w.scale}, &group, 1, {score_scratch_, nullptr, 0});
  }
  prepare(io.q, q_width, c.rows, q_width, forms, out);
}

void CpuBackend::score_peaks(std::span<const int32_t> query, int q_heads, float* dots, float* best, int64_t stride) {
  pool_.run(static_cast<int>(query.size()), [&](int t, int) {
    for (int h = 0; h < q_heads; ++h) {
      take_peaks(dots + (int64_t{t} * q_heads + h) * stride, query[static_cast<size_t>(t)] + 1, best + t * stride);
    }
  });
}

}  // namespace tnd::cpu
