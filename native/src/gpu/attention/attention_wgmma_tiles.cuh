// Tiles of attention_wgmma.cu in shared memory, 64 rows of DIM halves (queries, keys or values), and the products with
// them. Sums lie in registers as m64nNk16 leaves them: s[j] and o[j] are columns 8 j to 8 j + 7 of the warp's sixteen
// queries, elements 0 and 1 of query lane / 4, columns 2 t and 2 t + 1 (t = lane % 4), elements 2 and 3 of query
// lane / 4 + 8; weights p are A fragments of sixteen keys each. The emulation multiplies by mma.sync, whose sums have
// the same bits: gpu_ops_bench compares both on a card.
#pragma once

#include "gpu/attention/attention.h"
#include "gpu/attention/attention_unit.cuh"
#include "gpu/runtime/hopper.h"

namespace tnd::gpu {

#if defined(TND_GPU_EMU) || defined(TND_CUDA_WGMMA)

#if defined(TND_GPU_EMU)
inline constexpr bool kGroupTiles = true;
#else
inline constexpr bool kGroupTiles = kHasWgmma;  // elsewhere kernels are empty
#endif
inline constexpr unsigned kGroupAlign = 1024;  // of tiles
inline constexpr int kKeyBlocks = kAttentionTile / 8, kKeySteps = kAttentionTile / 16;

#if defined(TND_WGMMA_CODE)
// clang-format off: lists of registers.
#define TND_BLOCK(x, i) "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])
#define TND_BLOCKS4(x, i) TND_BLOCK(x, i), TND_BLOCK(x, i + 1), TND_BLOCK(x, i + 2), TND_BLOCK(x, i + 3)
#define TND_BLOCKS8(x, i) TND_BLOCKS4(x, i), TND_BLOCKS4(x, i + 4)
// s (+)= q k^T, 64 x 64 x 16, both operands in shared memory, rows of k.
TND_DEVICE void wgmma_keys(float (&s)[8][4], uint64_t q, uint64_t k, int add) {
  asm volatile("{.reg .pred add; setp.ne.b32 add, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
               "}, %32, %33, add, 1, 1, 0, 0;}"
               : TND_BLOCKS8(s, 0) : "l"(q), "l"(k), "r"(add));
}
// o += p v, 64 x DIM x 16: v in shared memory, rows of n.
TND_DEVICE void wgmma_values(float (&o)[8][4], const uint32_t (&p)[4], uint64_t v) {
  asm volatile("{.reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
               "}, {%32, %33, %34, %35}, %36, add, 1, 1, 1;}"
               : TND_BLOCKS8(o, 0) : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v));
}
TND_DEVICE void wgmma_values(float (&o)[16][4], const uint32_t (&p)[4], uint64_t v) {
  asm volatile("{.reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
               "}, {%64, %65, %66, %67}, %68, add, 1, 1, 1;}"
               : TND_BLOCKS8(o, 0), TND_BLOCKS8(o, 8)
               : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v));
}
TND_DEVICE void wgmma_values(float (&o)[32][4], const uint32_t (&p)[4], uint64_t v) {
  asm volatile("{.reg .pred add; setp.ne.b32 add, 1, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
               "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
               "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
               "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
               "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
               "}, {%128, %129, %130, %131}, %132, add, 1, 1, 1;}"
               : TND_BLOCKS8(o, 0), TND_BLOCKS8(o, 8), TND_BLOCKS8(o, 16), TND_BLOCKS8(o, 24)
               : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v));
}
#undef TND_BLOCKS8
#undef TND_BLOCKS4
#undef TND_BLOCK
// clang-format on
#endif

// Makes the thread's writes to shared memory visible to wgmma of the block; a barrier follows.
TND_DEVICE void show_to_wgmma() {
#if defined(TND_WGMMA_CODE)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// copy_async_arrive arrives at the barrier for the calling lane when its copies of copy_async_16 so far are there; it
// waits for nothing. Who waits at the barrier calls show_to_wgmma() before wgmma reads them.
TND_DEVICE void copy_async_arrive(Barrier* b) {
#if defined(TND_GPU_EMU)
  copy_async_commit();
  copy_async_wait<0>();
  barrier_arrive(b);
#elif defined(TND_CLUSTER_CODE)
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(b)) : "memory");
#endif
}

// settled stands between wgmma_wait() and the first use of sums that were in the background.
template <int N>
TND_DEVICE void settled([[maybe_unused]] float (&sums)[N][4]) {
#if defined(TND_WGMMA_CODE)
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(sums[i][e])::"memory");
  }
#endif
}

// Panels of 64 columns: [panel][64 rows][128 bytes], the 16-byte parts of a row swapped by its index as wgmma reads
// them (swizzle of 128 bytes), at a 1024-byte boundary.
template <int DIM>
struct GroupTiles {
  static constexpr int kStride = 64;  // halves between rows eight apart, divided by eight
  static constexpr int kPanelBytes = kAttentionTile * 128, kBytes = DIM / 64 * kPanelBytes;

  TND_DEVICE uint8_t* aligned(uint8_t* shared) { return shared + (-shared_address(shared) & (kGroupAlign - 1)); }
  // Part `unit` of 16 bytes of a row.
  TND_DEVICE uint16_t* cell(uint16_t* tile, unsigned row, unsigned unit) {
    return tile + unit / 8 * (kPanelBytes / 2) + row * 64 + ((unit ^ row) % 8) * 8;
  }

#if defined(TND_WGMMA_CODE)
  // s = q k^T
  TND_DEVICE void multiply_keys(float (&s)[kKeyBlocks][4], uint16_t* queries, uint16_t* keys, int) {
    uint64_t q = wgmma_operand(queries), k = wgmma_operand(keys);
    wgmma_fence();
#pragma unroll 1
    for (int panel = 0; panel < DIM / 64; ++panel, q += kPanelBytes >> 4, k += kPanelBytes >> 4) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        wgmma_keys(s, q + kWgmmaStep * step, k + kWgmmaStep * step, panel + step);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
  }
  // o += p v
  TND_DEVICE void multiply_values(float (&o)[DIM / 8][4], uint32_t (&p)[kKeySteps][4], uint16_t* values) {
    begin_values(o, p, values);
    wgmma_wait<0>();
  }
  // The same in the background, a group for wgmma_wait() each, without loops.
  TND_DEVICE void begin_keys(float (&s)[kKeyBlocks][4], uint16_t* queries, uint16_t* keys, int) {
    // Only the low words of operands differ. In a loop the compiler would keep all of them in registers.
    const uint64_t q = wgmma_operand(queries), k = wgmma_operand(keys);
    uint32_t q_low = static_cast<uint32_t>(q), k_low = static_cast<uint32_t>(k);
    asm volatile("" : "+r"(q_low), "+r"(k_low));
    const uint64_t high = q >> 32 << 32;
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < DIM / 64; ++panel) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint32_t at = static_cast<uint32_t>(panel * (kPanelBytes >> 4) + step * static_cast<int>(kWgmmaStep));
        wgmma_keys(s, high | (q_low + at), high | (k_low + at), panel + step);
      }
    }
    wgmma_commit();
  }
  TND_DEVICE void begin_values(float (&o)[DIM / 8][4], uint32_t (&p)[kKeySteps][4], uint16_t* values) {
    // Sixteen rows of keys are two groups of eight, 1024 bytes apart; panels of columns are kPanelBytes apart.
    constexpr uint64_t kAnyPanel = uint64_t{0x3FFF} << 16, kPanels = uint64_t{kPanelBytes >> 4} << 16;
    const uint64_t v = (wgmma_operand(values) & ~kAnyPanel) | kPanels;
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < kKeySteps; ++n) wgmma_values(o, p[n], v + (2048 >> 4) * n);
    wgmma_commit();
  }
#elif defined(TND_GPU_EMU)
  TND_DEVICE void multiply_keys(float (&s)[kKeyBlocks][4], uint16_t* queries, uint16_t* keys, int warp) {
    const unsigned lane = lane_id(), row = static_cast<unsigned>(warp) * 16 + lane % 16;
    for (float(&block)[4] : s) {
      for (float& sum : block) sum = 0.0f;
    }
    for (unsigned step = 0; step < DIM / 16; ++step) {
      uint32_t q[4], k[4];
      load_matrix_x4(q, cell(queries, row, step * 2 + lane / 16));
      for (unsigned n = 0; n < kKeySteps; ++n) {
        load_matrix_x4(k, cell(keys, n * 16 + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
        multiply_both(s[2 * n], s[2 * n + 1], q, k);
      }
    }
  }
  TND_DEVICE void multiply_values(float (&o)[DIM / 8][4], uint32_t (&p)[kKeySteps][4], uint16_t* values) {
    const unsigned lane = lane_id();
    for (unsigned n = 0; n < kKeySteps; ++n) {
      for (unsigned j = 0; j < DIM / 8; j += 2) {
        uint32_t v[4];
        load_matrix_x4_transposed(v, cell(values, n * 16 + lane % 16, j + lane / 16));
        multiply_both(o[j], o[j + 1], p[n], v);
      }
    }
  }
  TND_DEVICE void begin_keys(float (&s)[kKeyBlocks][4], uint16_t* queries, uint16_t* keys, int warp) {
    multiply_keys(s, queries, keys, warp);
  }
  TND_DEVICE void begin_values(float (&o)[DIM / 8][4], uint32_t (&p)[kKeySteps][4], uint16_t* values) {
    multiply_values(o, p, values);
  }

 private:
  TND_DEVICE void multiply_both(float (&low)[4], float (&high)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
    mma_f16_k16(low, a, first);
    mma_f16_k16(high, a, second);
  }
#endif
};

#endif

}  // namespace tnd::gpu
