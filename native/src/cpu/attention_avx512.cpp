// Attention with AVX-512: 16 lanes, up to 12 queries x 2 vectors of sums in registers.
#include <immintrin.h>

#include "cpu/attention_kernel.h"
#include "cpu/math.h"

namespace tnd::cpu {
namespace {

struct V {
  using T = __m512;
  static constexpr int W = 16;
  static constexpr int kMaxQueries = 12;
  static T zero() { return _mm512_setzero_ps(); }
  static T set(float x) { return _mm512_set1_ps(x); }
  static T load(const float* p) { return _mm512_loadu_ps(p); }
  static T load(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static T codes8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static T codes4(const uint8_t* p, int shift) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i n = _mm512_and_si512(_mm512_srl_epi32(bytes, _mm_cvtsi32_si128(shift)), _mm512_set1_epi32(15));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(n, _mm512_set1_epi32(8)));
  }
  static T half(const uint8_t* p) {
    short h;
    __builtin_memcpy(&h, p, sizeof h);
    return _mm512_cvtph_ps(_mm256_set1_epi16(h));
  }
  static T load_one(const float* p) { return _mm512_set1_ps(*p); }
  static void store(float* p, T x) { _mm512_storeu_ps(p, x); }
  static T fma(T a, T b, T c) { return _mm512_fmadd_ps(a, b, c); }
  static T add(T a, T b) { return _mm512_add_ps(a, b); }
  static T sub(T a, T b) { return _mm512_sub_ps(a, b); }
  static T mul(T a, T b) { return _mm512_mul_ps(a, b); }
  static T div(T a, T b) { return _mm512_div_ps(a, b); }
  static T max(T a, T b) { return _mm512_max_ps(a, b); }
  static float max_lane(T a) { return _mm512_reduce_max_ps(a); }
  static T exp(T a) { return exp_ps(a); }
};

#include "cpu/attention_vector.h"

void to_half(const float* x, uint16_t* y, int n) {
  for (int i = 0; i < n; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i),
                        _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
}

}  // namespace

const AttentionKernels kAttentionAvx512 = {block, merge, to_half};

}  // namespace tnd::cpu
