// Matrix instructions of a warpgroup (wgmma), which only Hopper's multiprocessors have (sm_90a); what later ones have
// too is in runtime_cluster.h. Everything is declared on every target, and does nothing where kHasWgmma is false. The
// emulation has none of it.
//
// Operand maps of m64nNk16, warp w of the warpgroup, g = lane / 4, t = lane % 4:
//   A (registers)  rows 16w + 0..15 as in mma.sync m16n8k16: a0 = A[g][2t, 2t+1], a1 = A[g+8][2t..], a2 = A[g][2t+8..],
//                  a3 = A[g+8][2t+8..]
//   B (shared)     [n][k], rows of 64 elements = 128 bytes, 16-byte parts swapped: panel_part() in matmul_layout.h
//   D              d[4j], d[4j+1] = D[16w+g][8j+2t, 8j+2t+1]; d[4j+2], d[4j+3] = D[16w+g+8][..]
#pragma once

#include "gpu/runtime/runtime_cluster.h"

namespace tnd::gpu {

#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TND_WGMMA_CODE 1
inline constexpr bool kHasWgmma = true;
#else
inline constexpr bool kHasWgmma = false;
#endif

// ---- matrix instructions of a warpgroup

// take_registers and give_registers raise and lower the registers of every thread of a warpgroup. All its threads
// call them.
template <int N>
TND_DEVICE void take_registers() {
#if defined(TND_WGMMA_CODE)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <int N>
TND_DEVICE void give_registers() {
#if defined(TND_WGMMA_CODE)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

// wgmma_fence stands between other accesses to operands in registers and the products that use them.
TND_DEVICE void wgmma_fence() {
#if defined(TND_WGMMA_CODE)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
TND_DEVICE void wgmma_commit() {
#if defined(TND_WGMMA_CODE)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// wgmma_wait<N> waits until at most N committed groups are in flight: registers of the others may be used again.
template <int N>
TND_DEVICE void wgmma_wait() {
#if defined(TND_WGMMA_CODE)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

// wgmma_operand describes B at `shared`, whose rows of 128 bytes are swizzled; k16 step i of a row is
// operand + i * kWgmmaStep.
inline constexpr uint64_t kWgmmaStep = 32 >> 4;
TND_DEVICE uint64_t wgmma_operand([[maybe_unused]] const void* shared) {
#if defined(TND_WGMMA_CODE)
  constexpr uint64_t kGroups = uint64_t{1024 >> 4} << 32, kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | kGroups | uint64_t{1} << 16 | (shared_address(shared) >> 4 & 0x3FFF);
#else
  return 0;
#endif
}

// Wgmma<N>::multiply<BF16>(d, a, b): d += A B for 64 rows, N columns and 16 elements of k, in the background.
template <int N>
struct Wgmma;

#if defined(TND_WGMMA_CODE)
// clang-format off: lists of registers.
#define TND_SUMS4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TND_SUMS8(i) TND_SUMS4(i), TND_SUMS4(i + 4)
#define TND_WGMMA_MULTIPLY(n) \
  template <bool BF16> \
  TND_DEVICE void multiply(float (&d)[n], const uint32_t (&a)[4], uint64_t b) { \
    if constexpr (BF16) { \
      TND_WGMMA("bf16"); \
    } else { \
      TND_WGMMA("f16"); \
    } \
  }
#define TND_WGMMA(type) \
  asm volatile("{.reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n40k16.f32." type "." type " {" \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
               "%16, %17, %18, %19" \
               "}, {%20, %21, %22, %23}, %24, add, 1, 1, 0;}" \
               : TND_SUMS8(0), TND_SUMS8(8), TND_SUMS4(16) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
template <>
struct Wgmma<40> {
  TND_WGMMA_MULTIPLY(20)
};
#undef TND_WGMMA
#define TND_WGMMA(type) \
  asm volatile("{.reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
               "}, {%32, %33, %34, %35}, %36, add, 1, 1, 0;}" \
               : TND_SUMS8(0), TND_SUMS8(8), TND_SUMS8(16), TND_SUMS8(24) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
template <>
struct Wgmma<64> {
  TND_WGMMA_MULTIPLY(32)
};
#undef TND_WGMMA
#define TND_WGMMA(type) \
  asm volatile("{.reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63" \
               "}, {%64, %65, %66, %67}, %68, add, 1, 1, 0;}" \
               : TND_SUMS8(0), TND_SUMS8(8), TND_SUMS8(16), TND_SUMS8(24), TND_SUMS8(32), TND_SUMS8(40), \
               TND_SUMS8(48), TND_SUMS8(56) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
template <>
struct Wgmma<128> {
  TND_WGMMA_MULTIPLY(64)
};
#undef TND_WGMMA
#define TND_WGMMA(type) \
  asm volatile("{.reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n176k16.f32." type "." type " {" \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
               "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
               "%80, %81, %82, %83, %84, %85, %86, %87" \
               "}, {%88, %89, %90, %91}, %92, add, 1, 1, 0;}" \
               : TND_SUMS8(0), TND_SUMS8(8), TND_SUMS8(16), TND_SUMS8(24), TND_SUMS8(32), TND_SUMS8(40), \
               TND_SUMS8(48), TND_SUMS8(56), TND_SUMS8(64), TND_SUMS8(72), TND_SUMS8(80) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
template <>
struct Wgmma<176> {
  TND_WGMMA_MULTIPLY(88)
};
#undef TND_WGMMA
#define TND_WGMMA(type) \
  asm volatile("{.reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
               "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
               "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
               "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
               "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127" \
               "}, {%128, %129, %130, %131}, %132, add, 1, 1, 0;}" \
               : TND_SUMS8(0), TND_SUMS8(8), TND_SUMS8(16), TND_SUMS8(24), TND_SUMS8(32), TND_SUMS8(40), \
               TND_SUMS8(48), TND_SUMS8(56), TND_SUMS8(64), TND_SUMS8(72), TND_SUMS8(80), TND_SUMS8(88), \
               TND_SUMS8(96), TND_SUMS8(104), TND_SUMS8(112), TND_SUMS8(120) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
template <>
struct Wgmma<256> {
  TND_WGMMA_MULTIPLY(128)
};
#undef TND_WGMMA
#undef TND_WGMMA_MULTIPLY
#undef TND_SUMS8
#undef TND_SUMS4
// clang-format on
#else
template <int N>
struct Wgmma {
  template <bool BF16>
  TND_DEVICE void multiply(float (&)[N / 2], const uint32_t (&)[4], uint64_t) {}
};
#endif

}  // namespace tnd::gpu
