#include "sim/host/mma.h"

#include "core/fp.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tnd::gpu::emu {
namespace {

constexpr int kLanes = 32;

// Operands of one lane: registers in and out.
struct Operands {
  void* d;
  const uint32_t* a;
  const uint32_t* b;
  bool a_signed = true, b_signed = true;
};
const Operands& of(void* const operands[kLanes], int lane) {
  return *static_cast<const Operands*>(operands[lane]);
}

float half_value(uint16_t h) {
  return half_to_float(h);
}

int32_t byte_of(uint32_t word, int i, bool is_signed) {
  const uint32_t b = word >> (8 * i) & 0xFFu;
  return is_signed ? static_cast<int8_t>(b) : static_cast<int32_t>(b);
}

#if !defined(__AVX2__)
// m16n8: rows of A and columns of B as K consecutive values, C and D in place.
template <int K, typename T, typename ACC>
void multiply_16x8(void* const operands[kLanes], const T (&a)[16][K], const T (&b)[8][K]) {
  for (int lane = 0; lane < kLanes; ++lane) {
    ACC* d = static_cast<ACC*>(of(operands, lane).d);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const T* row = a[g + (i / 2) * 8];
      const T* column = b[2 * t + i % 2];
      ACC sum = d[i];
      for (int k = 0; k < K; ++k) sum += static_cast<ACC>(row[k]) * static_cast<ACC>(column[k]);
      d[i] = sum;
    }
  }
}
#endif

#if defined(__AVX2__)
// As below, with pairs of k in 16 bits: one instruction for eight columns. Most of the emulation's time is
// matrix products.
template <int K, bool A_SIGNED>
void apply_bytes(void* const operands[kLanes]) {
  alignas(32) int32_t a[16][K / 2];  // pairs of k
  alignas(32) int32_t b[K / 2][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const Operands& o = of(operands, lane);
    const int g = lane / 4, t = lane % 4;
    const auto widen = [](uint32_t word) { return _mm_cvtepi8_epi16(_mm_cvtsi32_si128(static_cast<int>(word))); };
    const auto widen_a = [&](uint32_t word) {
      return A_SIGNED ? widen(word) : _mm_cvtepu8_epi16(_mm_cvtsi32_si128(static_cast<int>(word)));
    };
    for (int half = 0; half < K / 16; ++half) {
      const int pair = 8 * half + 2 * t;
      _mm_storel_epi64(reinterpret_cast<__m128i*>(&a[g][pair]), widen_a(o.a[2 * half]));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(&a[g + 8][pair]), widen_a(o.a[2 * half + 1]));
      const __m128i column = widen(o.b[half]);
      b[pair][g] = _mm_extract_epi32(column, 0);
      b[pair + 1][g] = _mm_extract_epi32(column, 1);
    }
  }
  alignas(32) int32_t d[16][8];
  for (int row = 0; row < 16; ++row) {
    __m256i sum = _mm256_setzero_si256();
    for (int pair = 0; pair < K / 2; ++pair) {
      const __m256i column = _mm256_load_si256(reinterpret_cast<const __m256i*>(b[pair]));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_set1_epi32(a[row][pair]), column));
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(d[row]), sum);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    auto* to = static_cast<int32_t*>(of(operands, lane).d);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) to[i] += d[g + i / 2 * 8][2 * t + i % 2];
  }
}
#else
template <int K, bool A_SIGNED>
void apply_bytes(void* const operands[kLanes]) {
  int16_t a[16][K];
  int16_t b[8][K];
  for (int lane = 0; lane < kLanes; ++lane) {
    const Operands& o = of(operands, lane);
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < K / 16; ++half) {
      for (int i = 0; i < 4; ++i) {
        const int k = 16 * half + 4 * t + i;
        a[g][k] = static_cast<int16_t>(byte_of(o.a[2 * half], i, A_SIGNED));
        a[g + 8][k] = static_cast<int16_t>(byte_of(o.a[2 * half + 1], i, A_SIGNED));
        b[g][k] = static_cast<int16_t>(byte_of(o.b[half], i, true));
      }
    }
  }
  multiply_16x8<K, int16_t, int32_t>(operands, a, b);
}
#endif

// Sums ascend in k from C; products of halves are exact.
void multiply_half(void* const operands[kLanes], const float (&a)[16][16], const float (&b)[16][8]) {
  float d[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const float* c = static_cast<const float*>(of(operands, lane).d);
    for (int i = 0; i < 4; ++i) d[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2] = c[i];
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    float* to = static_cast<float*>(of(operands, lane).d);
    for (int i = 0; i < 4; ++i) to[i] = d[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
  }
}

template <float (*DECODE)(uint16_t)>
void apply_half(void* const operands[kLanes]) {
  float a[16][16];
  float b[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const Operands& o = of(operands, lane);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 2; ++i) {
      const auto half = [&](uint32_t word) { return DECODE(static_cast<uint16_t>(word >> (16 * i))); };
      a[g][2 * t + i] = half(o.a[0]);
      a[g + 8][2 * t + i] = half(o.a[1]);
      a[g][2 * t + 8 + i] = half(o.a[2]);
      a[g + 8][2 * t + 8 + i] = half(o.a[3]);
      b[2 * t + i][g] = half(o.b[0]);
      b[2 * t + 8 + i][g] = half(o.b[1]);
    }
  }
  multiply_half(operands, a, b);
}

struct MatrixOperands {
  uint32_t* r;
  const void* row;
};
template <bool TRANSPOSED>
void apply_load_matrix(void* const operands[kLanes]) {
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t m[8][8];
    for (int row = 0; row < 8; ++row) {
      std::memcpy(m[row], static_cast<const MatrixOperands*>(operands[matrix * 8 + row])->row, sizeof m[row]);
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const int g = lane / 4, t = lane % 4;
      const uint16_t low = TRANSPOSED ? m[2 * t][g] : m[g][2 * t];
      const uint16_t high = TRANSPOSED ? m[2 * t + 1][g] : m[g][2 * t + 1];
      static_cast<MatrixOperands*>(operands[lane])->r[matrix] = uint32_t{high} << 16 | low;
    }
  }
}

// WMMA: lane % 16 is the row of A and the column of B. On gfx11 lanes 16..31 repeat lanes 0..15, which is checked; on
// gfx12 they hold the second eight k.
template <int GFX, typename ACC, typename T>
void multiply_wmma(void* const operands[kLanes], const T (&a)[16][16], const T (&b)[16][16]) {
  for (int lane = 0; lane < kLanes; ++lane) {
    ACC* d = static_cast<ACC*>(of(operands, lane).d);
    for (int i = 0; i < 8; ++i) {
      const T* row = a[GFX == 11 ? 2 * i + lane / 16 : lane / 16 * 8 + i];
      const T* column = b[lane % 16];
      ACC sum = d[i];
      for (int k = 0; k < 16; ++k) sum += static_cast<ACC>(row[k]) * static_cast<ACC>(column[k]);
      d[i] = sum;
    }
  }
}
// The hardware reads either copy, so the emulation makes results wrong when they differ.
bool copies_agree(void* const operands[kLanes], int lane, int registers) {
  const size_t bytes = static_cast<size_t>(registers) * 4;
  return std::memcmp(of(operands, lane).a, of(operands, lane + 16).a, bytes) == 0 &&
         std::memcmp(of(operands, lane).b, of(operands, lane + 16).b, bytes) == 0;
}

// The lane that holds element k of row or column i, and where in it.
struct Held {
  int lane, at;
};
template <int GFX>
Held held(int i, int k) {
  return GFX == 11 ? Held{i, k} : Held{i + k / 8 * 16, k % 8};
}

template <int GFX>
void apply_wmma_iu8(void* const operands[kLanes]) {
  int32_t a[16][16], b[16][16];
  for (int i = 0; i < 16; ++i) {
    const bool agree = GFX != 11 || copies_agree(operands, i, 4);
    for (int k = 0; k < 16; ++k) {
      const Held h = held<GFX>(i, k);
      const Operands& o = of(operands, h.lane);
      a[i][k] = agree ? byte_of(o.a[h.at / 4], h.at % 4, o.a_signed) : INT16_MIN;
      b[i][k] = byte_of(o.b[h.at / 4], h.at % 4, o.b_signed);
    }
  }
  multiply_wmma<GFX, int32_t>(operands, a, b);
}

template <int GFX, float (*DECODE)(uint16_t)>
void apply_wmma_half(void* const operands[kLanes]) {
  float a[16][16], b[16][16];
  for (int i = 0; i < 16; ++i) {
    const bool agree = GFX != 11 || copies_agree(operands, i, 8);
    for (int k = 0; k < 16; ++k) {
      const Held h = held<GFX>(i, k);
      const Operands& o = of(operands, h.lane);
      a[i][k] = agree ? DECODE(static_cast<uint16_t>(o.a[h.at / 2] >> (16 * (h.at % 2)))) : __builtin_nanf("");
      b[i][k] = DECODE(static_cast<uint16_t>(o.b[h.at / 2] >> (16 * (h.at % 2))));
    }
  }
  multiply_wmma<GFX, float>(operands, a, b);
}

void run(Apply apply, void* d, const uint32_t* a, const uint32_t* b, bool a_signed = true, bool b_signed = true) {
  Operands o{d, a, b, a_signed, b_signed};
  warp_collective(apply, &o);
}

}  // namespace

void mma_s8_k32(int32_t* d, const uint32_t* a, const uint32_t* b) {
  run(apply_bytes<32, true>, d, a, b);
}
void mma_u8_k32(int32_t* d, const uint32_t* a, const uint32_t* b) {
  run(apply_bytes<32, false>, d, a, b);
}
void mma_s8_k16(int32_t* d, const uint32_t* a, const uint32_t* b) {
  run(apply_bytes<16, true>, d, a, b);
}
void mma_f16_k16(float* d, const uint32_t* a, const uint32_t* b) {
  run(apply_half<half_value>, d, a, b);
}
void mma_bf16_k16(float* d, const uint32_t* a, const uint32_t* b) {
  run(apply_half<bf16_to_f32>, d, a, b);
}
void load_matrix_x4(uint32_t* r, const void* shared_row) {
  MatrixOperands o{r, shared_row};
  warp_collective(apply_load_matrix<false>, &o);
}
void load_matrix_x4_transposed(uint32_t* r, const void* shared_row) {
  MatrixOperands o{r, shared_row};
  warp_collective(apply_load_matrix<true>, &o);
}
void wmma11_iu8(int32_t* d, const uint32_t* a, const uint32_t* b, bool a_signed, bool b_signed) {
  run(apply_wmma_iu8<11>, d, a, b, a_signed, b_signed);
}
void wmma11_f16(float* d, const uint32_t* a, const uint32_t* b) {
  run(apply_wmma_half<11, half_value>, d, a, b);
}
void wmma11_bf16(float* d, const uint32_t* a, const uint32_t* b) {
  run(apply_wmma_half<11, bf16_to_f32>, d, a, b);
}
void wmma12_iu8(int32_t* d, const uint32_t* a, const uint32_t* b, bool a_signed, bool b_signed) {
  run(apply_wmma_iu8<12>, d, a, b, a_signed, b_signed);
}
void wmma12_f16(float* d, const uint32_t* a, const uint32_t* b) {
  run(apply_wmma_half<12, half_value>, d, a, b);
}
void wmma12_bf16(float* d, const uint32_t* a, const uint32_t* b) {
  run(apply_wmma_half<12, bf16_to_f32>, d, a, b);
}

}  // namespace tnd::gpu::emu
