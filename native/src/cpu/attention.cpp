#include "cpu/attention.h"

#include <algorithm>
#include <cstring>

#include "core/fp.h"
#include "cpu/attention_kernel.h"
#include "cpu/cpu_features.h"
#include "cpu/math.h"

namespace tnd::cpu {
namespace {

float load_cell(KvType t, const void* p, size_t i) {
  return t == KvType::kF32 ? static_cast<const float*>(p)[i] : f16_to_f32(static_cast<const uint16_t*>(p)[i]);
}

// Index of element d of slot's key inside its head.
size_t key_index(const KvLayout& l, int32_t slot, int d) {
  return (static_cast<size_t>(slot / 16) * l.dim + d) * 16 + slot % 16;
}

// Calls f(K element index, V element index, head-major row index) over all elements of a slot; indices count elements
// over all heads.
template <typename F>
void for_slot(const KvLayout& l, int32_t slot, F&& f) {
  for (int h = 0; h < l.kv_heads; h++) {
    const size_t head = static_cast<size_t>(h) * l.capacity * l.dim;
    for (int d = 0; d < l.dim; d++) {
      f(head + key_index(l, slot, d), head + static_cast<size_t>(slot) * l.dim + d, static_cast<size_t>(h) * l.dim + d);
    }
  }
}

void copy_cell(KvType t, void* dst, size_t to, const void* src, size_t from) {
  if (t == KvType::kF32) {
    static_cast<float*>(dst)[to] = static_cast<const float*>(src)[from];
  } else {
    static_cast<uint16_t*>(dst)[to] = static_cast<const uint16_t*>(src)[from];
  }
}

}  // namespace

const AttentionKernels* attention_kernels() {
#if defined(__x86_64__)
  if (isa() == Isa::kAvx512) return &kAttentionAvx512;
  if (isa() == Isa::kAvx2) return &kAttentionAvx2;
#endif
  return nullptr;
}

void kv_store(const KvLayout& l, void* k_cache, void* v_cache, int32_t slot, const float* k, const float* v) {
  const AttentionKernels* kernels = attention_kernels();
  for (int h = 0; h < l.kv_heads; h++) {
    const float* kr = k + static_cast<size_t>(h) * l.dim;
    const float* vr = v + static_cast<size_t>(h) * l.dim;
    uint16_t half[kAttnMaxDim];
    const auto halves = [&](const float* x) {
      if (kernels != nullptr) return kernels->to_half(x, half, l.dim);
      for (int d = 0; d < l.dim; d++) half[d] = f32_to_f16(x[d]);
    };
    const size_t k_at = static_cast<size_t>(h) * l.capacity * l.dim + key_index(l, slot, 0);
    const size_t v_at = (static_cast<size_t>(h) * l.capacity + slot) * l.dim;
    if (l.k_type == KvType::kF32) {
      for (int d = 0; d < l.dim; d++) static_cast<float*>(k_cache)[k_at + static_cast<size_t>(d) * 16] = kr[d];
    } else {
      halves(kr);
      for (int d = 0; d < l.dim; d++) static_cast<uint16_t*>(k_cache)[k_at + static_cast<size_t>(d) * 16] = half[d];
    }
    if (l.v_type == KvType::kF32) {
      std::memcpy(static_cast<float*>(v_cache) + v_at, vr, static_cast<size_t>(l.dim) * 4);
    } else {
      halves(vr);
      std::memcpy(static_cast<uint16_t*>(v_cache) + v_at, half, static_cast<size_t>(l.dim) * 2);
    }
  }
}

void kv_move(const KvLayout& l, void* k_cache, void* v_cache, int32_t from, int32_t to) {
  if (from == to) return;
  for (int h = 0; h < l.kv_heads; h++) {
    const size_t head = static_cast<size_t>(h) * l.capacity * l.dim;
    for (int d = 0; d < l.dim; d++) {
      copy_cell(l.k_type, k_cache, head + key_index(l, to, d), k_cache, head + key_index(l, from, d));
    }
    const size_t row = static_cast<size_t>(l.dim) * kv_type_size(l.v_type);
    char* v = static_cast<char*>(v_cache) + l.v_head_bytes() * h;
    std::memcpy(v + row * to, v + row * from, row);
  }
}

void kv_export(const KvLayout& l, const void* k_cache, const void* v_cache, int32_t slot, void* row) {
  void* v_row = static_cast<char*>(row) + static_cast<size_t>(l.kv_heads) * l.dim * kv_type_size(l.k_type);
  for_slot(l, slot, [&](size_t ki, size_t vi, size_t i) {
    copy_cell(l.k_type, row, i, k_cache, ki);
    copy_cell(l.v_type, v_row, i, v_cache, vi);
  });
}

void kv_import(const KvLayout& l, void* k_cache, void* v_cache, int32_t slot, const void* row) {
  const void* v_row = static_cast<const char*>(row) + static_cast<size_t>(l.kv_heads) * l.dim * kv_type_size(l.k_type);
  for_slot(l, slot, [&](size_t ki, size_t vi, size_t i) {
    copy_cell(l.k_type, k_cache, ki, row, i);
    copy_cell(l.v_type, v_cache, vi, v_row, i);
  });
}

// The contract of attention.h, word for word.
void attention_reference(const AttentionShape& shape, const AttentionGroup& group, int32_t r) {
  const KvLayout& kv = shape.kv;
  const AttentionRow& row = group.rows[r];
  const int dim = kv.dim, g = shape.q_heads / kv.kv_heads;
  const int end = row.past + row.n_tail;
  auto slot_of = [&](int j) { return j < row.past ? j : row.tail[j - row.past]; };
  for (int h = 0; h < shape.q_heads; h++) {
    const char* k = static_cast<const char*>(group.k) + kv.k_head_bytes() * (h / g);
    const char* v = static_cast<const char*>(group.v) + kv.v_head_bytes() * (h / g);
    const float* q = row.q + static_cast<size_t>(h) * dim;
    float run[kAttnMaxDim] = {};
    float m_run = 0, l_run = -1;
    for (int start = row.first / kAttnSegment * kAttnSegment; start < end; start += kAttnSegment) {
      const int lo = std::max(start, row.first), hi = std::min(start + kAttnSegment, end);
      if (lo >= hi) continue;
      float p[kAttnSegment];
      float m = -__builtin_inff();
      for (int j = lo; j < hi; j++) {
        float s = 0;
        for (int d = 0; d < dim; d++) {
          s = __builtin_fmaf(q[d], load_cell(kv.k_type, k, key_index(kv, slot_of(j), d)), s);
        }
        s = shape.scale * s;
        p[j - start] = s;
        m = s > m ? s : m;
      }
      float lanes[16] = {};
      for (int j = lo; j < hi; j++) {
        p[j - start] = exp_f32(p[j - start] - m);
        lanes[j % 16] = lanes[j % 16] + p[j - start];
      }
      for (int n = 8; n > 0; n /= 2) {
        for (int i = 0; i < n; i++) lanes[i] = lanes[i] + lanes[i + n];
      }
      const float l = lanes[0];
      float o[kAttnMaxDim] = {};
      for (int j = lo; j < hi; j++) {
        const size_t base = static_cast<size_t>(slot_of(j)) * dim;
        for (int d = 0; d < dim; d++) o[d] = __builtin_fmaf(p[j - start], load_cell(kv.v_type, v, base + d), o[d]);
      }
      if (l_run < 0) {
        m_run = m;
        l_run = l;
        std::copy(o, o + dim, run);
        continue;
      }
      const float top = m_run > m ? m_run : m;
      const float a = exp_f32(m_run - top), b = exp_f32(m - top);
      m_run = top;
      l_run = __builtin_fmaf(l_run, a, l * b);
      for (int d = 0; d < dim; d++) run[d] = __builtin_fmaf(run[d], a, o[d] * b);
    }
    float* out = row.out + static_cast<size_t>(h) * dim;
    for (int d = 0; d < dim; d++) out[d] = l_run < 0 ? 0 : run[d] / l_run;
  }
}

size_t attention_scratch_bytes(const AttentionShape& shape) {
  return AttentionScratchLayout(shape.kv.dim).total * sizeof(float);
}

size_t attention_partial_bytes(const AttentionShape& shape, int32_t max_context) {
  const size_t segments = static_cast<size_t>(max_context) / kAttnSegment + 2;
  const size_t need = static_cast<size_t>(kAttnQueries) * shape.kv.kv_heads * segments * (shape.kv.dim + 2) * 4;
  return std::min<size_t>(need, size_t{64} << 20);
}

namespace {

// How a call is cut: blocks of `rows` rows of each group for every kv head, and segment ranges when partial results are
// merged afterwards.
struct Plan {
  int rows;          // per block
  int n_blocks;      // over all groups
  int ranges;        // segment ranges per block; 1 = blocks write their outputs
  int segment_base;  // first and number of segments that any row sees (ranges > 1)
  int segments;
};

int count_blocks(const AttentionGroup* groups, int n_groups, int rows) {
  int n = 0;
  for (int i = 0; i < n_groups; i++) n += (groups[i].n_rows + rows - 1) / rows;
  return n;
}

Plan make_plan(int threads, const AttentionShape& shape, const AttentionGroup* groups, int n_groups,
               size_t partial_bytes) {
  const int g = shape.q_heads / shape.kv.kv_heads;
  Plan p{attention_block_rows(g), 0, 1, 0, 0};
  int first = INT32_MAX, end = 0;
  size_t rows = 0;
  for (int i = 0; i < n_groups; i++) {
    rows += groups[i].n_rows;
    for (int r = 0; r < groups[i].n_rows; r++) {
      const AttentionRow& row = groups[i].rows[r];
      first = std::min(first, row.first / kAttnSegment);
      end = std::max(end, (row.past + row.n_tail + kAttnSegment - 1) / kAttnSegment);
    }
  }
  p.n_blocks = count_blocks(groups, n_groups, p.rows);
  const int items = p.n_blocks * shape.kv.kv_heads;
  if (items >= threads || threads == 1) return p;
  p.segment_base = first;
  p.segments = end - first;
  // Few rows: cut the keys, at least two segments each, when the partial results fit.
  const size_t need = rows * shape.q_heads * p.segments * (shape.kv.dim + 2) * sizeof(float);
  const int ranges = std::min((2 * threads + items - 1) / items, p.segments / 2);
  if (ranges > 1 && need <= partial_bytes) {
    p.ranges = ranges;
    return p;
  }
  while (p.rows > 1 && p.n_blocks * shape.kv.kv_heads < threads) {
    p.rows = (p.rows + 1) / 2;
    p.n_blocks = count_blocks(groups, n_groups, p.rows);
  }
  return p;
}

}  // namespace

void attention(ThreadPool& pool, const AttentionShape& shape, const AttentionGroup* groups, int32_t n_groups,
               const AttentionScratch& scratch) {
  const AttentionKernels* kernels = attention_kernels();
  const int g = shape.q_heads / shape.kv.kv_heads;
  const Plan plan = make_plan(pool.threads(), shape, groups, n_groups, kernels == nullptr ? 0 : scratch.partial_bytes);
  const size_t thread_floats = attention_scratch_bytes(shape) / sizeof(float);

  // Item of (block index over groups, kv head): which rows, and where its partial results lie.
  auto locate = [&](int block, int kv_head, int worker) {
    AttentionItem it{};
    it.shape = &shape;
    it.kv_head = kv_head;
    it.scratch = static_cast<float*>(scratch.threads) + thread_floats * worker;
    size_t rows_before = 0;
    for (int i = 0; i < n_groups; i++) {
      const int n = (groups[i].n_rows + plan.rows - 1) / plan.rows;
      if (block < n) {
        it.group = &groups[i];
        it.row_begin = block * plan.rows;
        it.row_end = std::min(it.row_begin + plan.rows, groups[i].n_rows);
        rows_before += it.row_begin;
        break;
      }
      block -= n;
      rows_before += groups[i].n_rows;
    }
    if (plan.ranges > 1) {
      it.segment_base = plan.segment_base;
      it.partial_segments = plan.segments;
      const size_t row_floats = static_cast<size_t>(g) * plan.segments * (shape.kv.dim + 2);
      it.partial = static_cast<float*>(scratch.partial) +
                   row_floats * (rows_before * shape.kv.kv_heads + kv_head * (it.row_end - it.row_begin));
      return it;
    }
    int first = INT32_MAX, end = 0;
    for (int r = it.row_begin; r < it.row_end; r++) {
      const AttentionRow& row = it.group->rows[r];
      first = std::min(first, row.first / kAttnSegment);
      end = std::max(end, (row.past + row.n_tail + kAttnSegment - 1) / kAttnSegment);
    }
    it.segment_begin = first;
    it.segment_end = end;
    return it;
  };

  const int heads = shape.kv.kv_heads;
  pool.run(plan.n_blocks * heads * plan.ranges, [&](int task, int worker) {
    const int range = task % plan.ranges;
    AttentionItem it = locate(task / plan.ranges / heads, task / plan.ranges % heads, worker);
    if (kernels == nullptr) {
      if (it.kv_head == 0) {
        for (int r = it.row_begin; r < it.row_end; r++) attention_reference(shape, *it.group, r);
      }
      return;
    }
    if (plan.ranges > 1) {
      it.segment_begin = plan.segment_base + plan.segments * range / plan.ranges;
      it.segment_end = plan.segment_base + plan.segments * (range + 1) / plan.ranges;
    }
    kernels->block(it);
  });
  if (plan.ranges == 1) return;
  pool.run(plan.n_blocks * heads, [&](int task, int worker) {
    const AttentionItem it = locate(task / heads, task % heads, worker);
    for (int q = 0; q < (it.row_end - it.row_begin) * g; q++) kernels->merge(it, q);
  });
}

}  // namespace tnd::cpu
