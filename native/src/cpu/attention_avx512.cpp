// Attention with AVX-512: 16 lanes, up to 12 queries x 2 vectors of sums in registers.
#include <immintrin.h>

#include "cpu/attention_kernel.h"
#include "cpu/math.h"

namespace tnd::cpu {
namespace {

struct Bf16 {
  uint16_t bits;
};

struct V {
  using T = __m512;
  static constexpr int W = 16;
  static constexpr int kMaxQueries = 12;
  static T zero() { return _mm512_setzero_ps(); }
  static T set(float x) { return _mm512_set1_ps(x); }
  static T load(const float* p) { return _mm512_loadu_ps(p); }
  static T load(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static T load(const Bf16* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static T codes8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  using I = __m512i;
  static I bytes(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static I nibbles(const uint8_t* p, int shift) {
    return _mm512_and_si512(_mm512_srl_epi32(bytes(p), _mm_cvtsi32_si128(shift)), _mm512_set1_epi32(15));
  }
  static I fifths(const uint8_t* p, int shift) {
    return _mm512_slli_epi32(
        _mm512_and_si512(_mm512_srl_epi32(bytes(p), _mm_cvtsi32_si128(shift)), _mm512_set1_epi32(1)), 4);
  }
  static I fifths(uint32_t bits) { return _mm512_maskz_mov_epi32(static_cast<__mmask16>(bits), _mm512_set1_epi32(16)); }
  static I pairs(const uint8_t* p, int shift) {
    return _mm512_and_si512(_mm512_srl_epi32(bytes(p), _mm_cvtsi32_si128(shift)), _mm512_set1_epi32(3));
  }
  static I pairs(uint32_t bits) {
    const __m512i shifts = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_and_si512(_mm512_srlv_epi32(_mm512_set1_epi32(static_cast<int>(bits)), shifts), _mm512_set1_epi32(3));
  }
  static T rotated(I pairs, I fifths) {
    const __m256 half = _mm256_setr_ps(tq3_value(0), tq3_value(1), tq3_value(2), tq3_value(3), tq3_value(4),
                                       tq3_value(5), tq3_value(6), tq3_value(7));
    return _mm512_permutexvar_ps(join(pairs, _mm512_srli_epi32(fifths, 2)), _mm512_castps256_ps512(half));
  }
  static I join(I a, I b) { return _mm512_or_si512(a, b); }
  static T number(I code, int excess) { return _mm512_cvtepi32_ps(_mm512_sub_epi32(code, _mm512_set1_epi32(excess))); }
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
