// The attention contract of the CPU (cpu/attention.h), bit for bit, on any device. A block computes up to four query
// heads of one row that share a key/value head, segment after segment; in a segment a thread is a key, then a
// dimension. Bound: one fma chain per key over the head size. It is built for exactness, not for speed at long context.
#include "gpu/attention/attention_device.cuh"
#include "gpu/attention/attention_exact.h"
#include "gpu/math/norm_device.cuh"

namespace tnd::gpu {
namespace {

constexpr int kSegment = 256;  // positions, part of the contract
constexpr int kThreads = kSegment;
constexpr int kHeads = 4;  // query heads of a block, one warp each for the softmax
constexpr int kMaxDim = 512;

struct Shared {
  float q[kHeads][kMaxDim];
  float run[kHeads][kMaxDim];
  float p[kHeads][kSegment];
  float m[kHeads], l[kHeads];          // of the segment
  float m_run[kHeads], l_run[kHeads];  // l_run < 0: nothing yet
};

__global__ void __launch_bounds__(kThreads, 1) attention_exact_kernel(AttentionArgs a) {
  TND_SHARED(Shared, shared, [1]);
  if (static_cast<int>(blockIdx.y) >= rows_in_use(a.live, a.rows)) return;
  Shared& s = shared[0];
  const int g = a.q_heads / a.kv.heads, dim = a.kv.dim;
  const int parts = (g + kHeads - 1) / kHeads;
  const int kv_head = static_cast<int>(blockIdx.x) / parts, first_head = static_cast<int>(blockIdx.x) % parts * kHeads;
  const int heads = g - first_head < kHeads ? g - first_head : kHeads;
  const int64_t out_row = int64_t{blockIdx.y} * a.q_heads + kv_head * g + first_head;
  const AttentionRow row = a.row_plans[blockIdx.y];
  const int tid = static_cast<int>(threadIdx.x);
  const int end = row.past + row.n_tail;
  const KvType k_type = static_cast<KvType>(a.kv.k_type), v_type = static_cast<KvType>(a.kv.v_type);

  for (int i = tid; i < kHeads * dim; i += kThreads) {
    const int h = i / dim;
    s.q[h][i % dim] = h < heads ? static_cast<const float*>(a.q)[out_row * dim + i] : 0.0f;
    s.run[h][i % dim] = 0.0f;
  }
  if (tid < kHeads) s.l_run[tid] = -1.0f;
  __syncthreads();

  for (int start = row.first / kSegment * kSegment; start < end; start += kSegment) {
    const int lo = row.first > start ? row.first - start : 0;
    const int hi = end - start < kSegment ? end - start : kSegment;
    if (lo >= hi) continue;
    if (tid >= lo && tid < hi) {
      const KvRow key = kv_row(k_type, a.kv, a.cache.k, kv_head, slot_of(a, row, start + tid));
      float dot[kHeads] = {};
      for (int d = 0; d < dim; ++d) {
        const float k = kv_load(k_type, key, d);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) dot[h] = fmaf(s.q[h][d], k, dot[h]);
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) s.p[h][tid] = a.scale * dot[h];
    }
    __syncthreads();
    if (tid / TND_WARP < kHeads) {
      const int h = tid / TND_WARP, lane = tid % TND_WARP;
      float m = -__builtin_inff();
      for (int j = lo + lane; j < hi; j += TND_WARP) m = s.p[h][j] > m ? s.p[h][j] : m;
      m = warp_max(m);
      for (int j = lo + lane; j < hi; j += TND_WARP) s.p[h][j] = exp_f32(s.p[h][j] - m);
      sync_warp();
      float l = 0.0f;
      for (int j = lane % 16; j < hi; j += 16) {
        if (j >= lo) l += s.p[h][j];
      }
      l = fold_16(l);
      if (lane == 0) s.m[h] = m, s.l[h] = l;
    }
    __syncthreads();
    for (int i = tid; i < heads * dim; i += kThreads) {
      const int h = i / dim, d = i % dim;
      float o = 0.0f;
      for (int j = lo; j < hi; ++j) {
        const KvRow value = kv_row(v_type, a.kv, a.cache.v, kv_head, slot_of(a, row, start + j));
        o = fmaf(s.p[h][j], kv_load(v_type, value, d), o);
      }
      if (s.l_run[h] < 0.0f) {
        s.run[h][d] = o;
      } else {
        const float top = s.m_run[h] > s.m[h] ? s.m_run[h] : s.m[h];
        s.run[h][d] = fmaf(s.run[h][d], exp_f32(s.m_run[h] - top), o * exp_f32(s.m[h] - top));
      }
    }
    __syncthreads();
    if (tid < heads) {
      if (s.l_run[tid] < 0.0f) {
        s.m_run[tid] = s.m[tid];
        s.l_run[tid] = s.l[tid];
      } else {
        const float top = s.m_run[tid] > s.m[tid] ? s.m_run[tid] : s.m[tid];
        s.l_run[tid] = fmaf(s.l_run[tid], exp_f32(s.m_run[tid] - top), s.l[tid] * exp_f32(s.m[tid] - top));
        s.m_run[tid] = top;
      }
    }
    __syncthreads();
  }

  for (int i = tid; i < heads * dim; i += kThreads) {
    const int h = i / dim, d = i % dim;
    float o = s.l_run[h] < 0.0f ? 0.0f : s.run[h][d] / s.l_run[h];
    if (a.gate != nullptr) {
      o *= sigmoid_f32(a.gate[blockIdx.y * a.gate_row + (kv_head * g + first_head + h) * a.gate_head + d]);
    }
    a.out[out_row * dim + i] = o;
  }
}

}  // namespace

void launch_attention_exact(Stream& stream, const AttentionArgs& args) {
  const int parts = (args.q_heads / args.kv.heads + kHeads - 1) / kHeads;
  const Dim3 grid{static_cast<unsigned>(args.kv.heads * parts), static_cast<unsigned>(args.rows)};
  launch(stream, {.grid = grid, .block = {kThreads}, .name = "attention_exact"}, attention_exact_kernel, args);
}

}  // namespace tnd::gpu
