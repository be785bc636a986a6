// One head of a row from projections to attention's input, as rope.h says. For files with kernels.
#pragma once

#include "gpu/attention/kv_device.cuh"
#include "gpu/attention/rope.h"
#include "gpu/attention/tq3_device.cuh"
#include "gpu/math/norm_device.cuh"

namespace tnd::gpu {

// heads_head computes head `index` of a row (queries, keys, values) in sixteen lanes; those whose index is beyond the
// heads write nothing. Called by whole warps. x: shared memory of the sixteen lanes, [dim].
template <int DIM, bool ROTATED>
TND_DEVICE void heads_head(const HeadsArgs& a, int64_t row, int index, float* x) {
  constexpr int kMostPer = (DIM > 0 ? DIM : 512) / 16;  // elements of a lane
  const int dim = DIM > 0 ? DIM : a.kv.dim, lane = threadIdx.x % 16;
  const int q_heads = a.q != nullptr ? a.q_heads : 0;
  const int all = q_heads + (a.k == nullptr ? 0 : a.cache.k == nullptr ? 1 : 2) * a.kv.heads;
  const bool live = index < all;
  const int head = live ? index : 0;  // idle lanes run too: shuffles need whole warps

  const bool is_q = head < q_heads, is_k = !is_q && head < q_heads + a.kv.heads;
  const int kv_head = (head - q_heads) % a.kv.heads;
  const int64_t q_step = a.gated ? 2 * dim : dim;
  const float* src = is_q   ? a.q + (row * a.q_heads + head) * q_step
                     : is_k ? a.k + (row * a.kv.heads + kv_head) * dim
                            : a.v + (row * a.kv.heads + kv_head) * dim;
  // Weights and plans were written before the previous launch began.
  const float* w = is_q ? a.q_norm : is_k ? a.k_norm : nullptr;
  float weights[kMostPer], values[kMostPer];
#pragma unroll
  for (int i = 0; i < kMostPer; ++i) weights[i] = w != nullptr && lane + 16 * i < dim ? w[lane + 16 * i] : 1.0f;
  const KvType type = static_cast<KvType>(is_k ? a.kv.k_type : a.kv.v_type);
  KvRow cell{};
  if (a.cache.k != nullptr && live && !is_q) {
    cell = kv_row(type, a.kv, is_k ? a.cache.k : a.cache.v, kv_head, a.row_plans[row].slot);
  }
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < kMostPer; ++i) values[i] = lane + 16 * i < dim ? src[lane + 16 * i] : 0.0f;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kMostPer; ++i) sum = fmaf(values[i], values[i], sum);  // zeros beyond the end do not change it
  const float r = 1.0f / sqrtf(fold_16(sum) / static_cast<float>(dim) + a.eps);
#pragma unroll
  for (int i = 0; i < kMostPer; ++i) {
    if (lane + 16 * i < dim) x[lane + 16 * i] = w != nullptr ? values[i] * r * weights[i] : values[i];
  }
  const int half = a.rope_dims / 2;
  sync_warp();  // pairs may lie in other lanes when half is no multiple of 16
  if ((is_q || is_k) && a.rope != nullptr) {
    const float* cos = a.rope + row * a.rope_dims;
    const float* sin = cos + half;
    for (int j = lane; j < half; j += 16) {
      const float u = x[j], v = x[half + j], c = cos[j], s = sin[j];
      x[j] = fmaf(-v, s, u * c);
      x[half + j] = fmaf(u, s, v * c);
    }
  }
  sync_warp();
  const KvType k_type = static_cast<KvType>(a.kv.k_type), v_type = static_cast<KvType>(a.kv.v_type);
  if constexpr (ROTATED) {
    for (int group = 0; group < dim / kTq3Group; ++group) {
      float* from = x + group * kTq3Group + lane;
      float g[kTq3Per];
      if (kv_rotated(k_type)) {
#pragma unroll
        for (int i = 0; i < kTq3Per; ++i) g[i] = from[16 * i];
        tq3_transform(g, false);
#pragma unroll
        for (int i = 0; i < kTq3Per; ++i) {
          if (is_q) from[16 * i] = g[i];
        }
      }
      if (a.cache.k == nullptr) continue;
#pragma unroll
      for (int i = 0; i < kTq3Per; ++i) g[i] = kv_clean(from[16 * i]);
      const Tq3Codes codes = tq3_encode_group(g);
      if (cell.codes != nullptr && kv_rotated(type)) tq3_store_group(cell.codes, cell.heads, group, codes);
    }
  }
  const auto coded = [](KvType t) { return kv_quantised(t) && !(ROTATED && kv_rotated(t)); };
  const bool blocks = coded(k_type) || coded(v_type);
  const bool minima = kv_has_minimum(k_type) || kv_has_minimum(v_type);
  const bool fifths = kv_has_fifth_bits(k_type) || kv_has_fifth_bits(v_type);
  for (int b = 0; a.cache.k != nullptr && blocks && b < dim / kKvBlock; ++b) {  // whole warps find the scales
    const float u = kv_clean(x[b * kKvBlock + lane]), v = kv_clean(x[b * kKvBlock + 16 + lane]);
    const KvCodes codes = kv_encode(type, u, v, minima, fifths);
    if (cell.codes != nullptr && coded(type)) kv_store_block(type, cell, b, codes);
  }
  if (!live) return;
  if (is_q) {
    const int64_t at = (row * a.q_heads + head) * dim;
#pragma unroll 4
    for (int i = lane; i < dim; i += 16) {
      if (a.q_halves) {
        static_cast<uint16_t*>(a.q_out)[at + i] = half_saturated(x[i]);
      } else {
        static_cast<float*>(a.q_out)[at + i] = x[i];
      }
    }
    return;
  }
  if (is_k) {
    float* out = a.k + (row * a.kv.heads + kv_head) * dim;
    for (int i = lane; i < dim; i += 16) out[i] = x[i];
  }
  if (a.cache.k == nullptr || kv_quantised(type)) return;
  for (int i = lane; i < dim; i += 16) kv_store_plain(type, cell, i, x[i]);
}

}  // namespace tnd::gpu
