// Attention step of the CPU backend: head norms, rotation and K/V append per row, attention (attention.h), output gate.
#include <cstring>

#include "cpu/backend.h"
#include "cpu/each_row.h"

namespace tnd::cpu {

KvLayout kv_layout(const KvShape& shape) {
  KvLayout l;
  l.k_type = static_cast<KvType>(shape.k_type);
  l.v_type = static_cast<KvType>(shape.v_type);
  l.dim = shape.dim;
  l.kv_heads = shape.heads;
  l.capacity = shape.capacity;
  return l;
}

void CpuBackend::attention(const AttentionLayer& w, int layer, const AttentionPlan& plan, int rows,
                           const AttentionIo& io, InputForms forms, Acts* out) {
  const RowKernels& kernels = row_kernels();
  const AttentionShape shape{kv_layout(w.kv), w.q_heads, w.scale};
  const int64_t dim = w.kv.dim, kv_width = dim * w.kv.heads;
  const int64_t q_step = w.gated ? 2 * dim : dim, q_width = q_step * w.q_heads, out_width = dim * w.q_heads;
  const int64_t half = w.rope_dims / 2;

  const KvCache& cache = plan.caches[layer];
  for (const AttentionGroupPlan& g : plan.groups) {
    each_row(pool_, g.count, static_cast<int>(out_width), [&](int i) {
      const int64_t row = g.first + i;
      const float* cos = plan.rope + row * w.rope_dims;
      const float* sin = cos + half;
      if (io.q != nullptr) {
        for (int h = 0; h < w.q_heads; ++h) {
          const float* src = io.q + row * q_width + h * q_step;
          float* q = query_ + row * out_width + h * dim;
          if (w.q_norm != nullptr) {
            kernels.rms_norm(src, w.q_norm, w.eps, dim, q);
          } else {
            std::memcpy(q, src, static_cast<size_t>(dim) * sizeof(float));
          }
          kernels.rope(q, cos, sin, half);
          if (kv_rotated(shape.kv.k_type)) tq3_rotate(q, dim);
        }
      }
      float* k = io.k + row * kv_width;
      for (int h = 0; h < w.kv.heads; ++h) {
        if (w.k_norm != nullptr) kernels.rms_norm(k + h * dim, w.k_norm, w.eps, dim, k + h * dim);
        kernels.rope(k + h * dim, cos, sin, half);
      }
      kv_store(shape.kv, cache.k, cache.v, plan.rows[row].slot, k, io.v + row * kv_width);
    });
  }
  if (io.q == nullptr) return;

  int n_groups = 0;
  for (const AttentionGroupPlan& g : plan.groups) {
    for (int i = 0; i < g.count; ++i) {
      const int64_t row = g.first + i;
      const AttentionRowPlan& p = plan.rows[row];
      float* q = query_ + row * out_width;
      attention_rows_[row] = AttentionRow{q, q, p.first, p.past, p.n_tail, p.tail};
    }
    attention_groups_[n_groups++] = AttentionGroup{cache.k, cache.v, g.pages, attention_rows_ + g.first, g.count};
  }
  cpu::attention(pool_, shape, attention_groups_, n_groups, attention_scratch_);

  const bool rotated = kv_rotated(shape.kv.v_type);
  if (w.gated || rotated) {
    each_row(pool_, rows, static_cast<int>(out_width), [&](int r) {
      for (int h = 0; h < w.q_heads; ++h) {
        float* o = query_ + r * out_width + h * dim;
        if (rotated) tq3_unrotate(o, dim);
        if (w.gated) kernels.sigmoid_gate(o, io.q + r * q_width + h * q_step + dim, dim, o);
      }
    });
  }
  prepare(query_, out_width, rows, out_width, forms, out);
}

uint64_t CpuBackend::kv_bytes(const KvShape& shape, bool keys) const {
  const KvLayout l = kv_layout(shape);
  return keys ? l.k_bytes() : l.v_bytes();
}

uint64_t CpuBackend::kv_row_bytes(const KvShape& shape) const {
  return kv_layout(shape).row_bytes();
}

void CpuBackend::kv_move(const KvShape& shape, std::span<const KvCache> caches, std::span<const int32_t> from,
                         std::span<const int32_t> to) {
  const KvLayout l = kv_layout(shape);
  for (const KvCache& c : caches) {
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i] != to[i]) cpu::kv_move(l, c.k, c.v, from[i], to[i]);
    }
  }
}

void CpuBackend::kv_export(const KvShape& shape, const KvCache& cache, const int32_t* pages, int32_t n, void* host) {
  const KvLayout l = kv_layout(shape);
  auto* dst = static_cast<uint8_t*>(host);
  each_row(pool_, n, static_cast<int>(l.row_bytes() / 4), [&](int i) {
    cpu::kv_export(l, cache.k, cache.v, kv_slot(pages, i), dst + static_cast<uint64_t>(i) * l.row_bytes());
  });
}

void CpuBackend::kv_import(const KvShape& shape, const KvCache& cache, const int32_t* pages, int32_t n,
                           const void* host) {
  const KvLayout l = kv_layout(shape);
  const auto* src = static_cast<const uint8_t*>(host);
  for (int32_t i = 0; i < n; ++i) {
    cpu::kv_import(l, cache.k, cache.v, kv_slot(pages, i), src + static_cast<uint64_t>(i) * l.row_bytes());
  }
}

}  // namespace tnd::cpu
