// Attention with AVX2 and FMA: 8 lanes, up to 6 queries x 2 vectors of sums in registers.
#include <immintrin.h>

#include "cpu/attention_kernel.h"
#include "cpu/math.h"

namespace tnd::cpu {
namespace {

struct Bf16 {
  uint16_t bits;
};

struct V {
  using T = __m256;
  static constexpr int W = 8;
  static constexpr int kMaxQueries = 6;
  static T zero() { return _mm256_setzero_ps(); }
  static T set(float x) { return _mm256_set1_ps(x); }
  static T load(const float* p) { return _mm256_loadu_ps(p); }
  static T load(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static T load(const Bf16* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static T codes8(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  using I = __m256i;
  static I bytes(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static I nibbles(const uint8_t* p, int shift) {
    return _mm256_and_si256(_mm256_srl_epi32(bytes(p), _mm_cvtsi32_si128(shift)), _mm256_set1_epi32(15));
  }
  static I fifths(const uint8_t* p, int shift) {
    return _mm256_slli_epi32(
        _mm256_and_si256(_mm256_srl_epi32(bytes(p), _mm_cvtsi32_si128(shift)), _mm256_set1_epi32(1)), 4);
  }
  static I fifths(uint32_t bits) {
    const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lanes), lanes);
    return _mm256_and_si256(set, _mm256_set1_epi32(16));
  }
  static I pairs(const uint8_t* p, int shift) {
    return _mm256_and_si256(_mm256_srl_epi32(bytes(p), _mm_cvtsi32_si128(shift)), _mm256_set1_epi32(3));
  }
  static I pairs(uint32_t bits) {
    const __m256i shifts = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(bits)), shifts), _mm256_set1_epi32(3));
  }
  static T rotated(I pairs, I fifths) {
    const __m256 values = _mm256_setr_ps(tq3_value(0), tq3_value(1), tq3_value(2), tq3_value(3), tq3_value(4),
                                         tq3_value(5), tq3_value(6), tq3_value(7));
    return _mm256_permutevar8x32_ps(values, join(pairs, _mm256_srli_epi32(fifths, 2)));
  }
  static I join(I a, I b) { return _mm256_or_si256(a, b); }
  static T number(I code, int excess) { return _mm256_cvtepi32_ps(_mm256_sub_epi32(code, _mm256_set1_epi32(excess))); }
  static T half(const uint8_t* p) {
    short h;
    __builtin_memcpy(&h, p, sizeof h);
    return _mm256_cvtph_ps(_mm_set1_epi16(h));
  }
  static T load_one(const float* p) { return _mm256_broadcast_ss(p); }
  static void store(float* p, T x) { _mm256_storeu_ps(p, x); }
  static T fma(T a, T b, T c) { return _mm256_fmadd_ps(a, b, c); }
  static T add(T a, T b) { return _mm256_add_ps(a, b); }
  static T sub(T a, T b) { return _mm256_sub_ps(a, b); }
  static T mul(T a, T b) { return _mm256_mul_ps(a, b); }
  static T div(T a, T b) { return _mm256_div_ps(a, b); }
  static T max(T a, T b) { return _mm256_max_ps(a, b); }
  static float max_lane(T a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    return _mm_cvtss_f32(m);
  }
  static T exp(T a) { return exp_ps(a); }
};

#include "cpu/attention_vector.h"

void to_half(const float* x, uint16_t* y, int n) {
  for (int i = 0; i < n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  }
}

}  // namespace

const AttentionKernels kAttentionAvx2 = {block, merge, to_half};

}  // namespace tnd::cpu
