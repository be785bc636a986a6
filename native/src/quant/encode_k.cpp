#include "quant/encode_k.h"

#include <cmath>
#include <cstring>

#include "core/fp.h"
#include "quant/tables.h"

namespace tnd {
namespace {

int clamp_int(int v, int lo, int hi) {
  return v < lo ? lo : v > hi ? hi : v;
}

// How the group search scans candidate steps: inverse step = (first + step * t + N) / range, t = 0..tries.
struct Search {
  int top;  // N, the largest code
  float first;
  float step;
  int tries;
};
constexpr Search kSearchQ4{15, -1.0f, 0.1f, 20};
constexpr Search kSearchQ5{31, -0.5f, 0.1f, 15};

// Fits x[32] ~ scale * code - min with code in 0..top, minimising the error weighted by w. Returns the scale.
float search_group(const float* x, const float* w, const Search& search, uint8_t* code, float* min_out) {
  constexpr int kN = 32;
  const float top = static_cast<float>(search.top);
  float lo = x[0];
  float hi = x[0];
  float sum_w = w[0];
  float sum_x = w[0] * x[0];
  for (int i = 1; i < kN; ++i) {
    if (x[i] < lo) lo = x[i];
    if (x[i] > hi) hi = x[i];
    sum_w += w[i];
    sum_x += w[i] * x[i];
  }
  if (lo > 0.0f) lo = 0.0f;
  if (hi == lo) {
    std::memset(code, 0, kN);
    *min_out = -lo;
    return 0.0f;
  }
  float inverse = top / (hi - lo);
  float scale = 1.0f / inverse;
  float best = 0.0f;
  for (int i = 0; i < kN; ++i) {
    code[i] = static_cast<uint8_t>(clamp_int(round_even(inverse * (x[i] - lo)), 0, search.top));
    const float diff = scale * static_cast<float>(code[i]) + lo - x[i];
    best += w[i] * (diff * diff);
  }
  for (int t = 0; t <= search.tries; ++t) {
    uint8_t trial[kN];
    inverse = (search.first + search.step * static_cast<float>(t) + top) / (hi - lo);
    float sum_l = 0.0f;
    float sum_ll = 0.0f;
    float sum_xl = 0.0f;
    for (int i = 0; i < kN; ++i) {
      trial[i] = static_cast<uint8_t>(clamp_int(round_even(inverse * (x[i] - lo)), 0, search.top));
      const float l = static_cast<float>(trial[i]);
      sum_l += w[i] * l;
      sum_ll += w[i] * l * l;
      sum_xl += w[i] * l * x[i];
    }
    const float det = sum_w * sum_ll - sum_l * sum_l;
    if (!(det > 0.0f)) continue;
    float a = (sum_w * sum_xl - sum_x * sum_l) / det;
    float b = (sum_ll * sum_x - sum_l * sum_xl) / det;
    if (b > 0.0f) {
      b = 0.0f;
      a = sum_xl / sum_ll;
    }
    float error = 0.0f;
    for (int i = 0; i < kN; ++i) {
      const float diff = a * static_cast<float>(trial[i]) + b - x[i];
      error += w[i] * (diff * diff);
    }
    if (error < best) {
      std::memcpy(code, trial, kN);
      best = error;
      scale = a;
      lo = b;  // later candidates are rounded from the fitted offset: the golden blocks need this
    }
  }
  *min_out = -lo;
  return scale;
}

// The common part of Q4_K and Q5_K: fills d, dmin and the 12 scale bytes of the block and the 256 codes.
void encode_k45(const float* x, const Search& search, uint8_t* block, uint8_t* code) {
  float scale[8];
  float min[8];
  float max_scale = 0.0f;
  float max_min = 0.0f;
  for (int j = 0; j < 8; ++j) {
    const float* group = x + 32 * j;
    float sum_squares = 0.0f;
    for (int i = 0; i < 32; ++i) sum_squares += group[i] * group[i];
    const float rms = std::sqrt(sum_squares / 32.0f);
    float w[32];
    for (int i = 0; i < 32; ++i) w[i] = rms + std::fabs(group[i]);
    scale[j] = search_group(group, w, search, code + 32 * j, &min[j]);
    if (scale[j] > max_scale) max_scale = scale[j];
    if (min[j] > max_min) max_min = min[j];
  }
  const float inverse_scale = max_scale > 0.0f ? 63.0f / max_scale : 0.0f;
  const float inverse_min = max_min > 0.0f ? 63.0f / max_min : 0.0f;
  uint8_t ls[8];
  uint8_t lm[8];
  for (int j = 0; j < 8; ++j) {
    ls[j] = static_cast<uint8_t>(clamp_int(round_even(inverse_scale * scale[j]), 0, 63));
    lm[j] = static_cast<uint8_t>(clamp_int(round_even(inverse_min * min[j]), 0, 63));
  }
  const uint16_t d_half = f32_to_f16(max_scale / 63.0f);
  const uint16_t dmin_half = f32_to_f16(max_min / 63.0f);
  store_u16(block, d_half);
  store_u16(block + 2, dmin_half);
  k4_pack_scales(ls, lm, block + 4);

  // The codes once more, now against the scales as they will be decoded.
  const float d = f16_to_f32(d_half);
  const float dmin = f16_to_f32(dmin_half);
  for (int j = 0; j < 8; ++j) {
    const float group_d = d * static_cast<float>(ls[j]);
    if (group_d == 0.0f) continue;
    const float group_m = dmin * static_cast<float>(lm[j]);
    for (int i = 32 * j; i < 32 * j + 32; ++i) {
      code[i] = static_cast<uint8_t>(clamp_int(round_even((x[i] + group_m) / group_d), 0, search.top));
    }
  }
}

void pack_k45_nibbles(const uint8_t* code, uint8_t* qs) {
  for (int pair = 0; pair < 4; ++pair) {
    for (int l = 0; l < 32; ++l) {
      qs[32 * pair + l] = static_cast<uint8_t>((code[64 * pair + l] & 15) | (code[64 * pair + 32 + l] & 15) << 4);
    }
  }
}

// Magnitudes below this count as zero in Q6_K groups and blocks.
constexpr float kTinyGroup = 1e-15f;

// Fits x[16] ~ scale * code with code in -32..31 (stored + 32). Returns the signed scale.
float search_q6(const float* x, uint8_t* code) {
  constexpr int kN = 16;
  float extreme = 0.0f;
  for (int i = 0; i < kN; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  if (std::fabs(extreme) < kTinyGroup) {
    std::memset(code, 0, kN);
    return 0.0f;
  }
  float scale = 0.0f;
  float best = 0.0f;
  const auto attempt = [&](float inverse, bool first) {
    int trial[kN];
    float sum_xl = 0.0f;
    float sum_ll = 0.0f;
    for (int i = 0; i < kN; ++i) {
      trial[i] = clamp_int(round_even(inverse * x[i]), -32, 31);
      const float w = x[i] * x[i];
      const float l = static_cast<float>(trial[i]);
      sum_xl += w * x[i] * l;
      sum_ll += w * l * l;
    }
    const bool accept = first || (sum_ll > 0.0f && sum_xl * sum_xl > best * sum_ll);
    if (!accept) return;
    for (int i = 0; i < kN; ++i) code[i] = static_cast<uint8_t>(trial[i] + 32);
    scale = sum_ll != 0.0f ? sum_xl / sum_ll : 0.0f;
    best = scale * sum_xl;
  };
  attempt(-32.0f / extreme, true);
  for (int t = -9; t <= 9; ++t) {
    if (t != 0) attempt(-(32.0f + 0.1f * static_cast<float>(t)) / extreme, false);
  }
  return scale;
}

}  // namespace

void encode_q4_k(const float* x, uint8_t* block) {
  uint8_t code[256];
  encode_k45(x, kSearchQ4, block, code);
  pack_k45_nibbles(code, block + 16);
}

void encode_q5_k(const float* x, uint8_t* block) {
  uint8_t code[256];
  encode_k45(x, kSearchQ5, block, code);
  for (int l = 0; l < 32; ++l) {
    uint8_t bits = 0;
    for (int j = 0; j < 8; ++j) bits = static_cast<uint8_t>(bits | (code[32 * j + l] >> 4) << j);
    block[16 + l] = bits;
  }
  pack_k45_nibbles(code, block + 48);
}

void encode_q6_k(const float* x, uint8_t* block) {
  uint8_t code[256];
  float scale[16];
  float extreme = 0.0f;
  for (int g = 0; g < 16; ++g) {
    scale[g] = search_q6(x + 16 * g, code + 16 * g);
    if (std::fabs(scale[g]) > std::fabs(extreme)) extreme = scale[g];
  }
  std::memset(block, 0, 210);
  if (std::fabs(extreme) < kTinyGroup) return;
  const float inverse = -128.0f / extreme;
  const uint16_t d_half = f32_to_f16(1.0f / inverse);
  const float d = f16_to_f32(d_half);
  store_u16(block + 208, d_half);
  for (int g = 0; g < 16; ++g) {
    const int stored = clamp_int(round_even(inverse * scale[g]), -128, 127);
    block[192 + g] = static_cast<uint8_t>(static_cast<int8_t>(stored));
    const float group_d = d * static_cast<float>(stored);
    if (group_d == 0.0f) continue;
    for (int i = 16 * g; i < 16 * g + 16; ++i) {
      code[i] = static_cast<uint8_t>(clamp_int(round_even(x[i] / group_d), -32, 31) + 32);
    }
  }
  for (int half = 0; half < 2; ++half) {
    const uint8_t* c = code + 128 * half;
    for (int l = 0; l < 32; ++l) {
      block[64 * half + l] = static_cast<uint8_t>((c[l] & 15) | (c[l + 64] & 15) << 4);
      block[64 * half + 32 + l] = static_cast<uint8_t>((c[l + 32] & 15) | (c[l + 96] & 15) << 4);
      block[128 + 32 * half + l] =
          static_cast<uint8_t>(c[l] >> 4 | (c[l + 32] >> 4) << 2 | (c[l + 64] >> 4) << 4 | (c[l + 96] >> 4) << 6);
    }
  }
}

}  // namespace tnd
