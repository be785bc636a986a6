// Kernels on single rows: norms, convolution, the delta rule, gates, rotation and the reductions of the head. They take
// raw pointers, run on the calling thread and exist for scalar, AVX2 and AVX-512 with the same bits (one source,
// row_kernels_impl.h, over the vector type of simd.h).
//
// Contract of reductions: sixteen lanes, lane j takes elements j, j + 16, … ascending; the lanes are folded by 8, 4, 2,
// 1. All lengths are multiples of 16 unless said otherwise; no alignment is needed; n is in elements.
#pragma once

#include <cstdint>

namespace tnd::cpu {

struct RowKernels {
  // y = (x * r) * w, r = 1 / sqrt(sum x^2 / n + eps), sum by fma. y may be x. qwen35.md section 2.
  void (*rms_norm)(const float* x, const float* w, float eps, int64_t n, float* y);
  // y = (x * r) * scale, r = 1 / sqrt(sum x^2 + eps). y may be x. qwen35.md section 3.4.
  void (*l2_norm)(const float* x, float scale, float eps, int64_t n, float* y);
  // y = ((o * r) * w) * silu(z), r as in rms_norm. y may be o. qwen35.md section 3.6.
  void (*gated_norm)(const float* o, const float* w, const float* z, float eps, int64_t n, float* y);
  // y = silu(fma(w3, m0, fma(w2, m1, fma(w1, m2, w0 * m3)))): m0 current input, m3 oldest; tap t of channel c at
  // w[t * w_stride + c]. qwen35.md section 3.2.
  void (*conv_silu)(const float* m3, const float* m2, const float* m1, const float* m0, const float* w,
                    int64_t w_stride, int64_t n, float* y);
  // y = silu(gate) * up; y may be gate or up.
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* y);
  // y = x * sigmoid(gate); y may be x.
  void (*sigmoid_gate)(const float* x, const float* gate, int64_t n, float* y);
  // Rotates pairs (j, j + half): a = x_j, b = x_{j+half}: x_j = fma(-b, sin_j, a cos_j), x_{j+half} = fma(a, sin_j,
  // b cos_j). half a multiple of 16. qwen35.md section 4.
  void (*rope)(float* x, const float* cos, const float* sin, int64_t half);

  // One token of the delta rule on `slices` slices of 32 columns of one head (qwen35.md section 3.5, gpu-notes 5.1):
  //   p = sum_i k_i S_i;  d = beta * fma(-alpha, p, v);  S'_i = fma(k_i, d, alpha * S_i);  o = sum_i q_i S'_i
  // Sums over the 128 key rows: eight partials of 16 rows each, ascending by fma from 0, added as
  // ((0+4)+(2+6)) + ((1+5)+(3+7)).
  //   s_in  [slices, 128, 32]; s_out the same, may be s_in, nullptr = not kept
  //   k, q  [128]; v, d, o [slices * 32], d may be nullptr
  void (*delta_row)(const float* s_in, float* s_out, const float* k, const float* q, const float* v, float alpha,
                    float beta, int slices, float* d, float* o);
  // Replays accepted rows on one slice: for r ascending S_i = fma(k_r[i], d_r, alpha_r * S_i).
  //   s [128, 32]; k, d, alpha: row r at + rows[r] * stride; k [128], d [32], alpha [1]
  void (*delta_apply)(float* s, const int32_t* rows, int n, const float* k, int64_t k_stride, const float* d,
                      int64_t d_stride, const float* alpha, int64_t alpha_stride);

  // Largest of x[0..n) and its lowest index (any n >= 1). NaN is never larger; all NaN or -inf gives index 0.
  float (*argmax)(const float* x, int64_t n, int32_t* index);
  // sum exp((x - max) / temperature) (any n): per block of 1024 the lane contract (missing lanes add 0), blocks added
  // ascending. temperature 1 skips the division.
  float (*sum_exp)(const float* x, int64_t n, float max, float temperature);
  // y = exp((x - max) / temperature) (any n); y may be x.
  void (*exp_scaled)(const float* x, int64_t n, float max, float temperature, float* y);
  // The k largest of x[0..n), descending, ties to the lower index (any n; k <= n). NaN counts as -inf.
  void (*top_k)(const float* x, int64_t n, int k, int32_t* ids, float* values);
};

// row_kernels returns the table of the instruction set in use (cpu_features.h).
const RowKernels& row_kernels();

extern const RowKernels kRowKernelsScalar;
#if defined(__x86_64__)
extern const RowKernels kRowKernelsAvx2;
extern const RowKernels kRowKernelsAvx512;
#endif

}  // namespace tnd::cpu
