#include "cpu/attention.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/dtype.h"
#include "core/fp.h"
#include "cpu/attention_kernel.h"
#include "cpu/cpu_features.h"
#include "cpu/math.h"

namespace tnd::cpu {
namespace {

float load_plain(KvType t, const void* p, size_t i) {
  if (t == KvType::kF32) return static_cast<const float*>(p)[i];
  const uint16_t bits = static_cast<const uint16_t*>(p)[i];
  return t == KvType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

// Bytes of a block of 32 elements.
size_t block_size(KvType t) {
  return static_cast<size_t>(kv_stored_bytes(t, kKvBlock));
}

// Element d of a key; k is the head's cache.
float load_key(const KvLayout& l, const void* k, int32_t slot, int d) {
  const auto* tile = static_cast<const uint8_t*>(k) + static_cast<size_t>(slot / 16) * 16 * l.k_row_bytes();
  const int lane = slot % 16;
  if (!kv_quantised(l.k_type)) return load_plain(l.k_type, tile, static_cast<size_t>(d) * 16 + lane);
  const uint8_t* block = tile + static_cast<size_t>(d / kKvBlock) * 16 * block_size(l.k_type);
  return tile_element(l.k_type, block, lane, d % kKvBlock);
}

// Element d of a value row; v is the head's cache.
float load_value(const KvLayout& l, const void* v, int32_t slot, int d) {
  const auto* row = static_cast<const uint8_t*>(v) + static_cast<size_t>(slot) * l.v_row_bytes();
  if (!kv_quantised(l.v_type)) return load_plain(l.v_type, row, static_cast<size_t>(d));
  const uint8_t* block = row + static_cast<size_t>(d / kKvBlock) * block_size(l.v_type);
  return block_element(l.v_type, block, d % kKvBlock);
}

template <size_t N>
using Bytes = std::integral_constant<size_t, N>;

// Calls f(place in the head's cache, place in the row, Bytes) for the pieces of a slot's key.
template <typename F>
void for_key(const KvLayout& l, int32_t slot, F&& f) {
  const size_t tile = static_cast<size_t>(slot / 16) * 16 * l.k_row_bytes(), lane = slot % 16, dim = l.dim;
  const auto plain = [&](auto size) {
    for (size_t d = 0; d < dim; d++) f(tile + (d * 16 + lane) * size, d * size, size);
  };
  if (l.k_type == KvType::kF32) return plain(Bytes<4>());
  if (!kv_quantised(l.k_type)) return plain(Bytes<2>());
  const size_t block = block_size(l.k_type), halves = static_cast<size_t>(kv_block_halves(l.k_type)) * 2;
  for (size_t b = 0; b < dim / kKvBlock; b++) {
    const size_t at = tile + b * 16 * block, row = b * block;
    for (size_t i = 0; i < halves; i += 2) f(at + i * 16 + 2 * lane, row + i, Bytes<2>());
    for (size_t i = halves; i < block; i++) f(at + i * 16 + lane, row + i, Bytes<1>());
  }
}

void write_key(const KvLayout& l, void* k, int32_t slot, const void* row) {
  auto* cache = static_cast<uint8_t*>(k);
  const auto* src = static_cast<const uint8_t*>(row);
  for_key(l, slot, [&](size_t at, size_t from, auto n) { std::memcpy(cache + at, src + from, n); });
}

void read_key(const KvLayout& l, const void* k, int32_t slot, void* row) {
  const auto* cache = static_cast<const uint8_t*>(k);
  auto* dst = static_cast<uint8_t*>(row);
  for_key(l, slot, [&](size_t at, size_t to, auto n) { std::memcpy(dst + to, cache + at, n); });
}

// Returns one head's row in portable form: x itself, or its encoding in `room`.
const void* encode_row(KvType t, const float* x, int dim, void* room) {
  if (t == KvType::kF32) return x;
  if (t == KvType::kF16) {
    auto* half = static_cast<uint16_t*>(room);
    if (const AttentionKernels* kernels = attention_kernels(); kernels != nullptr) {
      kernels->to_half(x, half, dim);
    } else {
      for (int d = 0; d < dim; d++) half[d] = f32_to_f16(x[d]);
    }
    return room;
  }
  float kept[kAttnMaxDim];
  for (int d = 0; d < dim; d++) {
    const float v = x[d] > kKvLargest ? kKvLargest : x[d] < -kKvLargest ? -kKvLargest : x[d];
    kept[d] = v == v ? v : 0.0f;
  }
  if (t == KvType::kTQ3_0) {
    tq3_encode(kept, room, dim);
    return room;
  }
  (void)quantise_row(static_cast<DType>(t), kept, room, static_cast<uint64_t>(dim));  // whole blocks: cannot fail
  return room;
}

// A head's part of a cache.
void* k_head(const KvLayout& l, void* k, int head) {
  return static_cast<char*>(k) + l.k_head_bytes() * head;
}
void* v_row(const KvLayout& l, void* v, int head, int32_t slot) {
  return static_cast<char*>(v) + l.v_head_bytes() * head + l.v_row_bytes() * slot;
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
  alignas(16) uint8_t room[kAttnMaxDim * sizeof(float)];
  for (int h = 0; h < l.kv_heads; h++) {
    const size_t at = static_cast<size_t>(h) * l.dim;
    write_key(l, k_head(l, k_cache, h), slot, encode_row(l.k_type, k + at, l.dim, room));
    std::memcpy(v_row(l, v_cache, h, slot), encode_row(l.v_type, v + at, l.dim, room), l.v_row_bytes());
  }
}

void kv_move(const KvLayout& l, void* k_cache, void* v_cache, int32_t from, int32_t to) {
  if (from == to) return;
  uint8_t room[kAttnMaxDim * sizeof(float)];
  for (int h = 0; h < l.kv_heads; h++) {
    read_key(l, k_head(l, k_cache, h), from, room);
    write_key(l, k_head(l, k_cache, h), to, room);
    std::memcpy(v_row(l, v_cache, h, to), v_row(l, v_cache, h, from), l.v_row_bytes());
  }
}

void kv_export(const KvLayout& l, const void* k_cache, const void* v_cache, int32_t slot, void* row) {
  auto* k = static_cast<uint8_t*>(row);
  uint8_t* v = k + l.kv_heads * l.k_row_bytes();
  for (int h = 0; h < l.kv_heads; h++) {
    read_key(l, k_head(l, const_cast<void*>(k_cache), h), slot, k + h * l.k_row_bytes());
    std::memcpy(v + h * l.v_row_bytes(), v_row(l, const_cast<void*>(v_cache), h, slot), l.v_row_bytes());
  }
}

void kv_import(const KvLayout& l, void* k_cache, void* v_cache, int32_t slot, const void* row) {
  const auto* k = static_cast<const uint8_t*>(row);
  const uint8_t* v = k + l.kv_heads * l.k_row_bytes();
  for (int h = 0; h < l.kv_heads; h++) {
    write_key(l, k_head(l, k_cache, h), slot, k + h * l.k_row_bytes());
    std::memcpy(v_row(l, v_cache, h, slot), v + h * l.v_row_bytes(), l.v_row_bytes());
  }
}

// The contract of attention.h, word for word.
void attention_reference(const AttentionShape& shape, const AttentionGroup& group, int32_t r) {
  const KvLayout& kv = shape.kv;
  const AttentionRow& row = group.rows[r];
  const int dim = kv.dim, g = shape.q_heads / kv.kv_heads;
  const int end = row.past + row.n_tail;
  auto slot_of = [&](int j) { return j < row.past ? kv_slot(group.pages, j) : row.tail[j - row.past]; };
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
          s = __builtin_fmaf(q[d], load_key(kv, k, slot_of(j), d), s);
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
        for (int d = 0; d < dim; d++) o[d] = __builtin_fmaf(p[j - start], load_value(kv, v, slot_of(j), d), o[d]);
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

// How a call is divided: blocks of `rows` rows of each group for every kv head, and segment ranges when partial results
// are merged afterwards.
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
  // Few rows: divide the keys, at least two segments a range, when the partial results fit.
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
