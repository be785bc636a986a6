// Matrix instructions on fragments of one warp: NVIDIA's mma.sync, AMD's WMMA (wave32, gfx11 and gfx12) and, in the
// emulation, software versions of all. Integers are exact everywhere. Float products are exact and summed in f32, but
// order and rounding of those sums are the vendor's: results of mma_f16/bf16 are never part of a bit-exact contract
// (sums that are integers below 2^24 are exact in any order, and those are allowed).
//
// Operand maps. g = lane / 4, t = lane % 4; bytes and halves of a register in ascending index.
//   m16n8k32 s8   A[16][32] row-major: a0 = A[g][4t..4t+3], a1 = A[g+8][4t..], a2 = A[g][16+4t..], a3 = A[g+8][16+4t..]
//                 B[32][8]:            b0 = B[4t..4t+3][g], b1 = B[16+4t..][g]
//                 C, D[16][8]:         d0, d1 = D[g][2t], D[g][2t+1]; d2, d3 = D[g+8][2t], D[g+8][2t+1]
//   m16n8k16 s8   A[16][16]: a0 = A[g][4t..], a1 = A[g+8][4t..];  B[16][8]: b0 = B[4t..][g];  C, D as above
//   m16n8k16 f16, bf16 (f32 sums)
//                 A[16][16]: a0 = A[g][2t, 2t+1], a1 = A[g+8][2t..], a2 = A[g][2t+8..], a3 = A[g+8][2t+8..]
//                 B[16][8]:  b0 = B[2t, 2t+1][g], b1 = B[2t+8, 2t+9][g];  C, D as above
//   wmma 16x16x16 A[16][16]: lane holds row lane % 16, all 16 k ascending (iu8: 4 registers, f16/bf16: 8); lanes 16..31
//   (gfx11)       repeat lanes 0..15.  B[16][16]: the same of column lane % 16.
//                 C, D[16][16]: register i = D[2i + lane / 16][lane % 16]
//   (gfx12)       A: lane holds row lane % 16, the 8 k from 8 * (lane / 16) on, ascending (iu8: 2 registers, f16/bf16:
//                 4).  B: the same of column lane % 16.  C, D: register i = D[8 * (lane / 16) + i][lane % 16]
#pragma once

#include <type_traits>

#include "gpu/runtime/runtime.h"

#if defined(TND_GPU_EMU)
#include "sim/host/mma.h"
#endif

namespace tnd::gpu {

// What the target has. Kernels pick a traits struct by these; the emulation has all. clang's host pass defines no AMD
// processor, so host code must not depend on which WMMA the device has.
#if defined(TND_GPU_EMU)
inline constexpr bool kHasMma = true, kHasWmma11 = true, kHasWmma12 = true;
#elif defined(TND_GPU_CUDA)
inline constexpr bool kHasMma = true, kHasWmma11 = false, kHasWmma12 = false;
#elif defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__) || \
    defined(__gfx1150__) || defined(__gfx1151__)
inline constexpr bool kHasMma = false, kHasWmma11 = true, kHasWmma12 = false;
#elif defined(__gfx1200__) || defined(__gfx1201__)
inline constexpr bool kHasMma = false, kHasWmma11 = false, kHasWmma12 = true;
#else
inline constexpr bool kHasMma = false, kHasWmma11 = false, kHasWmma12 = false;
#endif

// Operand maps of WMMA (see above), the template argument of the kernels' units:
//   kPresent   the target has the instructions
//   kHeld      elements of k in a lane, the first of which is first_k(lane); kHalves registers of 16-bit floats, kBytes
//              registers of bytes
//   row row of D of register i; its column is lane % 16. kRowsFollow: a lane's rows are consecutive
struct Wmma11 {
  static constexpr bool kPresent = kHasWmma11, kRowsFollow = false;
  static constexpr int kHeld = 16, kHalves = kHeld / 2, kBytes = kHeld / 4;
  TND_DEVICE constexpr int first_k(int) { return 0; }
  TND_DEVICE constexpr int row(int lane, int i) { return 2 * i + lane / 16; }
};
struct Wmma12 {
  static constexpr bool kPresent = kHasWmma12, kRowsFollow = true;
  static constexpr int kHeld = 8, kHalves = kHeld / 2, kBytes = kHeld / 4;
  TND_DEVICE constexpr int first_k(int lane) { return lane / 16 * 8; }
  TND_DEVICE constexpr int row(int lane, int i) { return lane / 16 * 8 + i; }
};
// The map of the device. It has one name on all processors and on the host: a kernel is looked up by its name, which
// contains its template arguments.
struct DeviceWmma : std::conditional_t<kHasWmma12, Wmma12, Wmma11> {};

// All functions are declared everywhere, so that traits of one vendor compile for the other; where the instruction is
// missing they do nothing and must not be called.

// In the functions of NVIDIA's instructions d is an operand of its own beside the result, and nothing is volatile: sums
// that start at zero then need no registers set to zero.

// d += A B, 16x8x32, signed bytes.
TND_DEVICE void mma_s8_k32([[maybe_unused]] int32_t (&d)[4], [[maybe_unused]] const uint32_t (&a)[4],
                           [[maybe_unused]] const uint32_t (&b)[2]) {
#if defined(TND_GPU_EMU)
  emu::mma_s8_k32(d, a, b);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, "
      "%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3]));
#elif defined(__CUDA_ARCH__)  // sm_75: m8n8k16 on quarters, same operand maps
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                   : "+r"(d[2 * half]), "+r"(d[2 * half + 1])
                   : "r"(a[half + 2 * k]), "r"(b[k]));
    }
  }
#endif
}

// The same, bytes of A unsigned.
TND_DEVICE void mma_u8_k32([[maybe_unused]] int32_t (&d)[4], [[maybe_unused]] const uint32_t (&a)[4],
                           [[maybe_unused]] const uint32_t (&b)[2]) {
#if defined(TND_GPU_EMU)
  emu::mma_u8_k32(d, a, b);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, "
      "%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3]));
#elif defined(__CUDA_ARCH__)
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                   : "+r"(d[2 * half]), "+r"(d[2 * half + 1])
                   : "r"(a[half + 2 * k]), "r"(b[k]));
    }
  }
#endif
}

// d += A B, 16x8x16, signed bytes.
TND_DEVICE void mma_s8_k16([[maybe_unused]] int32_t (&d)[4], [[maybe_unused]] const uint32_t (&a)[2],
                           [[maybe_unused]] const uint32_t (&b)[1]) {
#if defined(TND_GPU_EMU)
  emu::mma_s8_k16(d, a, b);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3]));
#elif defined(__CUDA_ARCH__)
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(d[2 * half]), "+r"(d[2 * half + 1])
                 : "r"(a[half]), "r"(b[0]));
  }
#endif
}

// d += A B, 16x8x16, halves, sums in f32.
TND_DEVICE void mma_f16_k16([[maybe_unused]] float (&d)[4], [[maybe_unused]] const uint32_t (&a)[4],
                            [[maybe_unused]] const uint32_t (&b)[2]) {
#if defined(TND_GPU_EMU)
  emu::mma_f16_k16(d, a, b);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));
#elif defined(__CUDA_ARCH__)
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
  }
#endif
}

// d += A B, 16x8x16, bfloat16, sums in f32. Not on sm_75 (does nothing there: callers choose f16 by device).
TND_DEVICE void mma_bf16_k16([[maybe_unused]] float (&d)[4], [[maybe_unused]] const uint32_t (&a)[4],
                             [[maybe_unused]] const uint32_t (&b)[2]) {
#if defined(TND_GPU_EMU)
  emu::mma_bf16_k16(d, a, b);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));
#endif
}

// load_matrix_x4 (ldmatrix.x4): lanes 8i..8i+7 name rows 0..7 (16 bytes each, in shared memory) of 8x8 matrix i of
// halves; r[i] = elements [g][2t, 2t+1] of matrix i.
TND_DEVICE void load_matrix_x4([[maybe_unused]] uint32_t (&r)[4], [[maybe_unused]] const void* shared_row) {
#if defined(TND_GPU_EMU)
  emu::load_matrix_x4(r, shared_row);
#elif defined(__CUDA_ARCH__)
  const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(shared_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
#endif
}
// load_matrix_x4_transposed: r[i] = elements [2t, 2t+1][g] of matrix i.
TND_DEVICE void load_matrix_x4_transposed([[maybe_unused]] uint32_t (&r)[4], [[maybe_unused]] const void* shared_row) {
#if defined(TND_GPU_EMU)
  emu::load_matrix_x4_transposed(r, shared_row);
#elif defined(__CUDA_ARCH__)
  const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(shared_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
#endif
}

// The functions of WMMA have a form for operands of gfx11 and one for those of gfx12, which are half as many registers.

#if defined(TND_GPU_HIP)
typedef int tnd_v2i __attribute__((ext_vector_type(2)));
typedef int tnd_v4i __attribute__((ext_vector_type(4)));
typedef int tnd_v8i __attribute__((ext_vector_type(8)));
typedef float tnd_v8f __attribute__((ext_vector_type(8)));
typedef _Float16 tnd_v8h __attribute__((ext_vector_type(8)));
typedef _Float16 tnd_v16h __attribute__((ext_vector_type(16)));
typedef short tnd_v8s __attribute__((ext_vector_type(8)));
typedef short tnd_v16s __attribute__((ext_vector_type(16)));

// Element by element: clang leaves an array in scratch memory if it is written by index and cast as a whole.
template <typename V, int N>
TND_DEVICE V wmma_operand(const uint32_t (&r)[N]) {
  typedef int Words __attribute__((ext_vector_type(N)));
  Words v;
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = static_cast<int>(r[i]);
  return __builtin_bit_cast(V, v);
}
#endif

// d += A B, 16x16x16 bytes; A_SIGNED, B_SIGNED say how the bytes of a and b are read.
template <bool A_SIGNED, bool B_SIGNED>
TND_DEVICE void wmma_iu8([[maybe_unused]] int32_t (&d)[8], [[maybe_unused]] const uint32_t (&a)[4],
                         [[maybe_unused]] const uint32_t (&b)[4]) {
#if defined(TND_GPU_EMU)
  emu::wmma11_iu8(d, a, b, A_SIGNED, B_SIGNED);
#elif defined(__HIP_DEVICE_COMPILE__)
  if constexpr (kHasWmma11) {
    const tnd_v8i r = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(A_SIGNED, __builtin_bit_cast(tnd_v4i, a), B_SIGNED,
                                                                 __builtin_bit_cast(tnd_v4i, b),
                                                                 __builtin_bit_cast(tnd_v8i, d), false);
    for (int i = 0; i < 8; ++i) d[i] = r[i];
  }
#endif
}
template <bool A_SIGNED, bool B_SIGNED>
TND_DEVICE void wmma_iu8([[maybe_unused]] int32_t (&d)[8], [[maybe_unused]] const uint32_t (&a)[2],
                         [[maybe_unused]] const uint32_t (&b)[2]) {
#if defined(TND_GPU_EMU)
  emu::wmma12_iu8(d, a, b, A_SIGNED, B_SIGNED);
#elif defined(__HIP_DEVICE_COMPILE__)
  if constexpr (kHasWmma12) {
    const tnd_v8i r = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(A_SIGNED, __builtin_bit_cast(tnd_v2i, a),
                                                                       B_SIGNED, __builtin_bit_cast(tnd_v2i, b),
                                                                       __builtin_bit_cast(tnd_v8i, d), false);
    for (int i = 0; i < 8; ++i) d[i] = r[i];
  }
#endif
}
// d += A B, 16x16x16 halves, sums in f32.
TND_DEVICE void wmma_f16([[maybe_unused]] float (&d)[8], [[maybe_unused]] const uint32_t (&a)[8],
                         [[maybe_unused]] const uint32_t (&b)[8]) {
#if defined(TND_GPU_EMU)
  emu::wmma11_f16(d, a, b);
#elif defined(__HIP_DEVICE_COMPILE__)
  if constexpr (kHasWmma11) {
    const tnd_v8f r = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(wmma_operand<tnd_v16h>(a), wmma_operand<tnd_v16h>(b),
                                                                 __builtin_bit_cast(tnd_v8f, d));
    for (int i = 0; i < 8; ++i) d[i] = r[i];
  }
#endif
}
TND_DEVICE void wmma_f16([[maybe_unused]] float (&d)[8], [[maybe_unused]] const uint32_t (&a)[4],
                         [[maybe_unused]] const uint32_t (&b)[4]) {
#if defined(TND_GPU_EMU)
  emu::wmma12_f16(d, a, b);
#elif defined(__HIP_DEVICE_COMPILE__)
  if constexpr (kHasWmma12) {
    const tnd_v8f r = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(
        wmma_operand<tnd_v8h>(a), wmma_operand<tnd_v8h>(b), __builtin_bit_cast(tnd_v8f, d));
    for (int i = 0; i < 8; ++i) d[i] = r[i];
  }
#endif
}
// d += A B, 16x16x16 bfloat16, sums in f32.
TND_DEVICE void wmma_bf16([[maybe_unused]] float (&d)[8], [[maybe_unused]] const uint32_t (&a)[8],
                          [[maybe_unused]] const uint32_t (&b)[8]) {
#if defined(TND_GPU_EMU)
  emu::wmma11_bf16(d, a, b);
#elif defined(__HIP_DEVICE_COMPILE__)
  if constexpr (kHasWmma11) {
    const tnd_v8f r = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(wmma_operand<tnd_v16s>(a), wmma_operand<tnd_v16s>(b),
                                                                  __builtin_bit_cast(tnd_v8f, d));
    for (int i = 0; i < 8; ++i) d[i] = r[i];
  }
#endif
}
TND_DEVICE void wmma_bf16([[maybe_unused]] float (&d)[8], [[maybe_unused]] const uint32_t (&a)[4],
                          [[maybe_unused]] const uint32_t (&b)[4]) {
#if defined(TND_GPU_EMU)
  emu::wmma12_bf16(d, a, b);
#elif defined(__HIP_DEVICE_COMPILE__)
  if constexpr (kHasWmma12) {
    const tnd_v8f r = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(
        wmma_operand<tnd_v8s>(a), wmma_operand<tnd_v8s>(b), __builtin_bit_cast(tnd_v8f, d));
    for (int i = 0; i < 8; ++i) d[i] = r[i];
  }
#endif
}

// load_wmma reads a lane's part of its row of A or column of B: 16 halves, the second eight `stride` bytes after the
// first, 16-byte aligned.
template <class MAP>
TND_DEVICE void load_wmma(uint32_t (&r)[MAP::kHalves], const void* first, int stride, int lane) {
  const uint8_t* from = static_cast<const uint8_t*>(first) + MAP::first_k(lane) / 8 * stride;
#pragma unroll
  for (int i = 0; i < MAP::kHeld / 8; ++i) {
    const uint4 v = *reinterpret_cast<const uint4*>(from + i * stride);
    r[4 * i] = v.x, r[4 * i + 1] = v.y, r[4 * i + 2] = v.z, r[4 * i + 3] = v.w;
  }
}

}  // namespace tnd::gpu
