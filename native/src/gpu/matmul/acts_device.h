// How kernels write matmul inputs: a warp passes the 256 floats of one row's super-block. acts_store quantises them as
// NUMERICS.md defines and stores them where the products read them (ActsView in matmul.h). For files with kernels.
#pragma once

#include "gpu/matmul/matmul.h"
#include "gpu/matmul/matmul_layout.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// Scale of a group from its largest magnitude, and the reciprocal that makes the codes; in a group that is too small
// for a reciprocal both are zero.
struct GroupScale {
  float a, inverse;
};
TND_DEVICE GroupScale group_scale(float max) {
  if (max >= 0x1p-50f && max <= 0x1p60f) {
    const float a = divide_usual(max, 127.0f);
    return {a, divide_usual(1.0f, a)};
  }
  const float a = max / 127.0f;
  if (a < 1.17549435e-38f) return {0.0f, 0.0f};  // FLT_MIN
  return {a, 1.0f / a};
}

TND_DEVICE float larger_magnitude(float max, float x) {
  const float magnitude = fabsf(x);
  return magnitude > max ? magnitude : max;
}

// Codes of four elements as bytes.
TND_DEVICE uint32_t quantise_four(float x0, float x1, float x2, float x3, float inverse) {
  const float x[4] = {x0, x1, x2, x3};
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float v = x[i] * inverse;
    v = v > -127.0f ? v : -127.0f;  // also takes NaN
    v = v < 127.0f ? v : 127.0f;
    word |= (static_cast<uint32_t>(round_even(v)) & 0xFFu) << 8 * i;
  }
  return word;
}

TND_DEVICE int sum_bytes(uint32_t word, int sum) {
  return dp4a(static_cast<int32_t>(word), 0x01010101, sum);
}

// Words of a pair of elements: the nearest bfloat16, and the nearest to the remainder.
struct PairWords {
  uint32_t hi, lo;
};
TND_DEVICE PairWords pair_words(float x0, float x1) {
  const uint32_t hi = pack_bfloats(x0, x1);
  return {hi, pack_bfloats(x0 - __uint_as_float(hi << 16), x1 - __uint_as_float(hi & 0xFFFF0000u))};
}

// acts_store writes super-block s of a row in all of `forms`. Called by a whole warp: lane i has elements 256 s + 8 i
// to 256 s + 8 i + 7 in x, zeros where the row has ended. Not for rows that need_row_scale.
TND_DEVICE void acts_store(const ActsView& acts, uint32_t forms, int row, int s, const float (&x)[8]) {
  const int lane = static_cast<int>(lane_id());
  float max = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) max = larger_magnitude(max, x[i]);
  const int64_t stride = acts.row_stride;
  // Lane i of 8 in its pair of groups has elements 8i..8i+7: two words in neighbouring pieces.
  const int64_t pair = ((int64_t{s} * 4 + lane / 8) * stride + row) * 64;
  const int first = act_position(lane % 8 * 8);

  // Maxima of the group of 32 (four lanes), then of all lanes; max is exact, so its order is free.
  max = larger_magnitude(max, shfl_xor(max, 1));
  max = larger_magnitude(max, shfl_xor(max, 2));
  if (forms & kFormQ32) {
    const GroupScale g = group_scale(max);
    const uint32_t w0 = quantise_four(x[0], x[1], x[2], x[3], g.inverse);
    const uint32_t w1 = quantise_four(x[4], x[5], x[6], x[7], g.inverse);
    *reinterpret_cast<uint32_t*>(acts.q32 + pair + first) = w0;
    *reinterpret_cast<uint32_t*>(acts.q32 + pair + first + 16) = w1;
    int sum = sum_bytes(w1, sum_bytes(w0, 0));
    sum += shfl_xor(sum, 1);
    sum += shfl_xor(sum, 2);
    if (lane % 4 == 0) {
      const int64_t at = (int64_t{s} * 8 + lane / 4) * stride + row;
      acts.scale32[at] = g.a;
      acts.sum32[at] = static_cast<float>(sum);
    }
  }
  if (forms & kFormQ256) {
#pragma unroll
    for (int mask = 4; mask < TND_WARP; mask *= 2) max = larger_magnitude(max, shfl_xor(max, mask));
    const GroupScale g = group_scale(max);
    const uint32_t w0 = quantise_four(x[0], x[1], x[2], x[3], g.inverse);
    const uint32_t w1 = quantise_four(x[4], x[5], x[6], x[7], g.inverse);
    *reinterpret_cast<uint32_t*>(acts.q256 + pair + first) = w0;
    *reinterpret_cast<uint32_t*>(acts.q256 + pair + first + 16) = w1;
    int sum = sum_bytes(w1, sum_bytes(w0, 0));
    sum += shfl_xor(sum, 1);
    const int64_t at = int64_t{s} * stride + row;
    if (lane % 2 == 0) acts.sum16[at * 16 + sum_position(lane / 2)] = float_to_half(static_cast<float>(sum));
    if (lane == 0) acts.scale256[at] = g.a;
  }
  const bool pairs = (forms & kFormHalf) != 0 && (acts.prompt != Prompt::kNone || acts.paired != 0);
  if ((forms & kFormF32) != 0 || ((forms & kFormHalf) != 0 && !pairs)) {
    float4* to = reinterpret_cast<float4*>(acts.f32 + row * acts.f32_stride + int64_t{s} * kSuper + 8 * lane);
    to[0] = make_float4(x[0], x[1], x[2], x[3]);
    to[1] = make_float4(x[4], x[5], x[6], x[7]);
  }
  if (pairs) {
    const PairWords a = pair_words(x[0], x[1]), b = pair_words(x[2], x[3]);
    const PairWords c = pair_words(x[4], x[5]), d = pair_words(x[6], x[7]);
    const uint4 hi = make_uint4(a.hi, b.hi, c.hi, d.hi), lo = make_uint4(a.lo, b.lo, c.lo, d.lo);
    uint8_t* to = reinterpret_cast<uint8_t*>(acts.pairs);
    if (acts.prompt == Prompt::kPanels) {
      to += (int64_t{s} * 4 + lane / 8) * 2 * stride * 128 + panel_part(row, lane % 8);
      *reinterpret_cast<uint4*>(to) = hi;
      *reinterpret_cast<uint4*>(to + stride * 128) = lo;
    } else {
      to += ((int64_t{s} * 32 + lane) * stride + row) * 32;
      *reinterpret_cast<uint4*>(to + pair_part(row, 0) * 16) = hi;
      *reinterpret_cast<uint4*>(to + pair_part(row, 1) * 16) = lo;
    }
  }
}

// ---- rows with a scale of their own (panels of halves)

inline constexpr uint32_t kScaledForms = kFormQ256 | kFormQ32;

// needs_row_scale says whether these forms are written by store_scaled_row, which sees a whole row.
constexpr bool needs_row_scale(const ActsView& acts, uint32_t forms) {
  return acts.prompt == Prompt::kPanels && (forms & kScaledForms) != 0;
}

// power_of_two is 2^n for the n of normal floats.
TND_DEVICE float power_of_two(int n) {
  return __uint_as_float(static_cast<uint32_t>(n + 127) << 23);
}

// row_scale_exponent returns the power of two that a row with this largest magnitude is multiplied by: it scales the
// maximum to [2^14, 2^15), which costs no precision, and values down to 2^-28 of the largest keep all bits of a half.
TND_DEVICE int row_scale_exponent(float max) {
  const int up = 14 + 127 - static_cast<int>(__float_as_uint(max) >> 23);
  return up < 100 ? up : 100;
}

// store_scaled writes super-block s of a row whose scale is known, as acts_store does.
TND_DEVICE void store_scaled(const ActsView& acts, uint32_t forms, int row, int s, const float (&v)[8], float scale) {
  const int lane = static_cast<int>(lane_id());
  uint8_t* to = reinterpret_cast<uint8_t*>(acts.panels) + (int64_t{s} * 4 + lane / 8) * acts.row_stride * 128;
  const int part = lane % 8 / 2 * 2, at = lane % 2 * 8;
  *reinterpret_cast<uint2*>(to + panel_part(row, part) + at) =
      make_uint2(pack_halves(v[0] * scale, v[2] * scale), pack_halves(v[4] * scale, v[6] * scale));
  *reinterpret_cast<uint2*>(to + panel_part(row, part + 1) + at) =
      make_uint2(pack_halves(v[1] * scale, v[3] * scale), pack_halves(v[5] * scale, v[7] * scale));
  if ((forms & ~kScaledForms) != 0) acts_store(acts, forms & ~kScaledForms, row, s, v);
}

// store_scaled_row writes a row in all of `forms` when it needs_row_scale. Called by a block of one dimension and whole
// warps; eight(s, v) returns the lanes' elements of super-block s in the order of acts_store, the same values each
// time. A warp keeps HELD super-blocks in registers; more are computed twice.
template <int HELD, class EIGHT>
TND_DEVICE void store_scaled_row(const ActsView& acts, uint32_t forms, int row, int supers, EIGHT&& eight) {
  TND_SHARED(float, maxima, [32]);
  const int warp = static_cast<int>(warp_id()), warps = static_cast<int>(blockDim.x) / TND_WARP;
  const int lane = static_cast<int>(lane_id());
  float held[HELD][8];
  float max = 0.0f;
  const auto include = [&](const float(&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) max = larger_magnitude(max, v[i]);
  };
#pragma unroll
  for (int h = 0; h < HELD; ++h) {
    const int s = warp + h * warps;
    if (s >= supers) continue;
    eight(s, held[h]);
    include(held[h]);
  }
  for (int s = warp + HELD * warps; s < supers; s += warps) {
    float v[8];
    eight(s, v);
    include(v);
  }
  max = warp_max(max);
  if (lane == 0) maxima[warp] = max;
  __syncthreads();
  const int up = row_scale_exponent(warp_max(lane < warps ? maxima[lane] : 0.0f));
  const float scale = power_of_two(up);
  if (threadIdx.x == 0) acts.row_unscale[row] = power_of_two(-up);
#pragma unroll
  for (int h = 0; h < HELD; ++h) {
    const int s = warp + h * warps;
    if (s < supers) store_scaled(acts, forms, row, s, held[h], scale);
  }
  for (int s = warp + HELD * warps; s < supers; s += warps) {
    float v[8];
    eight(s, v);
    store_scaled(acts, forms, row, s, v, scale);
  }
}
// scaled_row_threads returns the threads of a block for a row of k elements.
inline unsigned scaled_row_threads(int64_t k) {
  return static_cast<unsigned>(super_blocks(k) < 32 ? super_blocks(k) : 32) * TND_WARP;
}

}  // namespace tnd::gpu
