// The names that kernels use on every platform: CUDA's own where all platforms have them (threadIdx, __syncthreads,
// atomicAdd, __threadfence, __ffs, __popc, __clz, uint4, float4, …), and the functions below where they differ.
// Included by runtime.h in files that hold kernels.
//
// Rules that keep one source right everywhere:
//   - A warp is TND_WARP = 32 lanes. Warp functions are called by all 32 lanes of a warp together; the emulation
//     reports a lane that is missing. Lanes are not in lockstep between them: exchange through memory needs
//     sync_warp().
//   - __syncthreads() is called by all threads of the block; the emulation reports one that is missing.
//   - Floating point is IEEE with explicit fmaf, built without contraction. Elementary functions are those of
//     core/elementary.h (exp_f32 and so on), never the vendor's.
//   - Shared memory is declared with TND_SHARED and TND_DYNAMIC_SHARED.
//   - Float atomics are not used (order); integer ones are.
#pragma once

#include <cstdint>

#include "core/elementary.h"
#include "core/fp.h"
#if defined(TND_TIMELINE)
#include "gpu/runtime/timeline_device.h"
#endif

#if defined(TND_GPU_CUDA)
#include <cuda_fp16.h>
#endif

#define TND_WARP 32

// TND_DEVICE marks functions that kernels call. TND_OUTLINE marks large ones that are compiled once, not inlined: a
// kernel that runs once a step fetches its instructions from memory.
#if defined(TND_GPU_EMU)
#define TND_DEVICE static inline __attribute__((always_inline))
#define TND_OUTLINE static __attribute__((noinline))
#else
#define TND_DEVICE static __device__ __forceinline__
#define TND_OUTLINE static __device__ __noinline__
#endif

// TND_SHARED(float, rows, [8][33]) declares static shared memory `rows`; TND_DYNAMIC_SHARED(uint8_t, smem) names the
// dynamic one, 128-byte aligned, as a pointer. Contents are unspecified at the start of a block.
#if defined(TND_GPU_EMU)
#define TND_SHARED(type, name, dims)       \
  using name##_shared_t = type dims;       \
  static const char name##_shared_key = 0; \
  name##_shared_t& name = ::tnd::gpu::emu::static_shared<name##_shared_t>(&name##_shared_key)
#define TND_DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(::tnd::gpu::emu::dynamic_shared())
#else
#define TND_SHARED(type, name, dims) __shared__ type name dims
#define TND_DYNAMIC_SHARED(type, name)                                 \
  extern __shared__ __align__(128) unsigned char tnd_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(tnd_dynamic_shared)
#endif

namespace tnd::gpu {

// rows_in_use returns the number of rows of an operation that was recorded for up to `most`: *live of the step's plan,
// which was written before the previous launch began; all where live is nullptr.
TND_DEVICE int rows_in_use(const int32_t* live, int most) {
  return live != nullptr ? *live : most;
}

TND_DEVICE unsigned lane_id() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % TND_WARP;
}
TND_DEVICE unsigned warp_id() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) / TND_WARP;
}

// ---- warp functions: T is a 32-bit type, or a 64-bit one for shfl*

#if defined(TND_GPU_EMU)
template <typename T>
TND_DEVICE T shfl(T value, int lane) {
  return emu::shfl(value, lane);
}
template <typename T>
TND_DEVICE T shfl_xor(T value, int mask) {
  return emu::shfl(value, static_cast<int>(lane_id()) ^ mask);
}
template <typename T>
TND_DEVICE T shfl_down(T value, int delta) {
  const int lane = static_cast<int>(lane_id()) + delta;
  return emu::shfl(value, lane < TND_WARP ? lane : static_cast<int>(lane_id()));
}
template <typename T>
TND_DEVICE T shfl_up(T value, int delta) {
  const int lane = static_cast<int>(lane_id()) - delta;
  return emu::shfl(value, lane >= 0 ? lane : static_cast<int>(lane_id()));
}
TND_DEVICE uint32_t ballot(bool value) {
  return emu::ballot(value);
}
TND_DEVICE void sync_warp() {
  emu::sync_warp();
}
#elif defined(TND_GPU_CUDA)
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;
template <typename T>
TND_DEVICE T shfl(T value, int lane) {
  return __shfl_sync(kAllLanes, value, lane);
}
template <typename T>
TND_DEVICE T shfl_xor(T value, int mask) {
  return __shfl_xor_sync(kAllLanes, value, mask);
}
template <typename T>
TND_DEVICE T shfl_down(T value, int delta) {
  return __shfl_down_sync(kAllLanes, value, delta);
}
template <typename T>
TND_DEVICE T shfl_up(T value, int delta) {
  return __shfl_up_sync(kAllLanes, value, delta);
}
TND_DEVICE uint32_t ballot(bool value) {
  return __ballot_sync(kAllLanes, value);
}
TND_DEVICE void sync_warp() {
  __syncwarp();
}
#else
template <typename T>
TND_DEVICE T shfl(T value, int lane) {
  return __shfl(value, lane, TND_WARP);
}
template <typename T>
TND_DEVICE T shfl_xor(T value, int mask) {
  return __shfl_xor(value, mask, TND_WARP);
}
template <typename T>
TND_DEVICE T shfl_down(T value, int delta) {
  return __shfl_down(value, delta, TND_WARP);
}
template <typename T>
TND_DEVICE T shfl_up(T value, int delta) {
  return __shfl_up(value, delta, TND_WARP);
}
TND_DEVICE uint32_t ballot(bool value) {
  return static_cast<uint32_t>(__ballot(value));
}
TND_DEVICE void sync_warp() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}
#endif

// one_warp_id is warp_id() in a form that is visibly the same in all lanes: compilers then compute values that derive
// from it (addresses, loops, indices of arguments) once a warp. Called by whole warps.
TND_DEVICE int one_warp_id() {
  return shfl(static_cast<int>(warp_id()), 0);
}

TND_DEVICE bool any_lane(bool value) {
  return ballot(value) != 0;
}
TND_DEVICE bool all_lanes(bool value) {
  return ballot(!value) == 0;
}
// warp_sum and warp_max combine all lanes in one fixed order: xor 16, 8, 4, 2, 1. Every lane gets the result.
TND_DEVICE float warp_sum(float v) {
#pragma unroll
  for (int mask = TND_WARP / 2; mask > 0; mask /= 2) v += shfl_xor(v, mask);
  return v;
}
TND_DEVICE float warp_max(float v) {
#pragma unroll
  for (int mask = TND_WARP / 2; mask > 0; mask /= 2) {
    const float other = shfl_xor(v, mask);
    v = other > v ? other : v;
  }
  return v;
}

// ---- pointers

// device_pointer returns p, marked as a pointer into device memory. clang infers that for a kernel's arguments only.
// Pointers that were read from memory it follows by generic instructions, which check for shared memory, too, and whose
// waits are for both. The cast goes through an integer, since clang would remove a cast there and back before using it.
template <typename T>
TND_DEVICE T* device_pointer(T* p) {
#if defined(__HIP_DEVICE_COMPILE__)
  return (T*)(__attribute__((address_space(1))) T*)reinterpret_cast<uint64_t>(p);
#else
  return p;
#endif
}

// ---- integers

// mul24 is a * b of numbers of at most 24 bits, sign included: on AMD a product of words takes four times as long.
TND_DEVICE int32_t mul24(int32_t a, int32_t b) {
#if defined(__HIP_DEVICE_COMPILE__)
  const auto small = [](int32_t x) { return static_cast<int32_t>(static_cast<uint32_t>(x) << 8) >> 8; };
  return small(a) * small(b);
#else
  return a * b;
#endif
}
// dp4a adds the four products of signed bytes to c; dp4a_us has unsigned bytes in a.
TND_DEVICE int32_t dp4a(int32_t a, int32_t b, int32_t c) {
#if defined(TND_GPU_CUDA)
  return __dp4a(a, b, c);
#elif defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__) || \
    defined(__gfx1150__) || defined(__gfx1151__) || defined(__gfx1200__) || defined(__gfx1201__)
  return __builtin_amdgcn_sudot4(true, a, true, b, c, false);
#elif defined(__gfx1030__) || defined(__gfx1031__) || defined(__gfx1032__)
  return __builtin_amdgcn_sdot4(a, b, c, false);
#else
  for (int i = 0; i < 32; i += 8) c += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return c;
#endif
}
TND_DEVICE int32_t dp4a_us(uint32_t a, int32_t b, int32_t c) {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__)
  int32_t d;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#elif defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__) || \
    defined(__gfx1150__) || defined(__gfx1151__) || defined(__gfx1200__) || defined(__gfx1201__)
  return __builtin_amdgcn_sudot4(false, static_cast<int32_t>(a), true, b, c, false);
#else
  for (int i = 0; i < 32; i += 8) c += static_cast<uint8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return c;
#endif
}
// byte_perm picks four bytes out of the eight of {y, x}: nibble i of selector names the byte (0..3 of x, 4..7 of y).
TND_DEVICE uint32_t byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__)
  return __byte_perm(x, y, selector);
#else
  // AMD: v_perm_b32 has one byte per selector; its operand 0 holds bytes 4..7.
  const uint32_t spread =
      (selector & 7u) | (selector & 0x70u) << 4 | (selector & 0x700u) << 8 | (selector & 0x7000u) << 12;
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_perm(y, x, spread);
#else
  const uint64_t both = uint64_t{y} << 32 | x;
  uint32_t r = 0;
  for (int i = 0; i < 32; i += 8) r |= static_cast<uint32_t>(both >> ((spread >> i & 7u) * 8) & 0xFFu) << i;
  return r;
#endif
#endif
}

// ---- 16-bit floats as bits: the same values as core/fp.h (NaN payloads aside)

TND_DEVICE float half_to_float(uint16_t h) {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(h));
#elif defined(__HIP_DEVICE_COMPILE__) || (defined(TND_GPU_EMU) && defined(__F16C__))
  return static_cast<float>(__builtin_bit_cast(_Float16, h));
#else
  return f16_to_f32(h);
#endif
}
TND_DEVICE uint16_t float_to_half(float f) {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__)
  return __half_as_ushort(__float2half_rn(f));
#elif defined(__HIP_DEVICE_COMPILE__)
  return __builtin_bit_cast(uint16_t, static_cast<_Float16>(f));
#else
  return f32_to_f16(f);
#endif
}
// pack_halves rounds two floats to halves, the first in the low bits.
TND_DEVICE uint32_t pack_halves(float low, float high) {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__)
  const __half2 both = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(both);
#else
  return static_cast<uint32_t>(float_to_half(high)) << 16 | float_to_half(low);
#endif
}
// fma_halves computes a * b + c on two halves at once, each rounded once.
TND_DEVICE uint32_t fma_halves(uint32_t a, uint32_t b, uint32_t c) {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__)
  const __half2 r = __hfma2(reinterpret_cast<const __half2&>(a), reinterpret_cast<const __half2&>(b),
                            reinterpret_cast<const __half2&>(c));
  return reinterpret_cast<const uint32_t&>(r);
#else
  // A product of halves is exact in f32, and so is the sum where the result is a half; callers guarantee that.
  const auto one = [&](int at) {
    const auto half = [&](uint32_t v) { return half_to_float(static_cast<uint16_t>(v >> at)); };
    return fmaf(half(a), half(b), half(c));
  };
  return pack_halves(one(0), one(16));
#endif
}
// pack_bfloats rounds two floats to bfloat16, to nearest even; x0 is in the lower half. NaN becomes some NaN.
TND_DEVICE uint32_t pack_bfloats(float x0, float x1) {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(x1), "f"(x0));
  return r;
#else
  return static_cast<uint32_t>(f32_to_bf16(x1)) << 16 | f32_to_bf16(x0);
#endif
}
TND_DEVICE float bfloat_to_float(uint16_t b) {
  return bf16_to_f32(b);
}
// half2_multiply and half2_subtract work on two halves each, rounded to nearest even, subnormals kept.
#if defined(__HIP_DEVICE_COMPILE__)
typedef _Float16 tnd_v2h __attribute__((ext_vector_type(2)));
#endif
TND_DEVICE uint32_t half2_multiply(uint32_t a, uint32_t b) {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__)
  uint32_t r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
#elif defined(__HIP_DEVICE_COMPILE__)
  return __builtin_bit_cast(uint32_t, __builtin_bit_cast(tnd_v2h, a) * __builtin_bit_cast(tnd_v2h, b));
#else
  const auto one = [&](int shift) {
    const float x = half_to_float(static_cast<uint16_t>(a >> shift)),
                y = half_to_float(static_cast<uint16_t>(b >> shift));
    return static_cast<uint32_t>(float_to_half(x * y)) << shift;  // the product of two halves is exact in f32
  };
  return one(0) | one(16);
#endif
}
TND_DEVICE uint32_t half2_subtract(uint32_t a, uint32_t b) {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__)
  uint32_t r;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
#elif defined(__HIP_DEVICE_COMPILE__)
  return __builtin_bit_cast(uint32_t, __builtin_bit_cast(tnd_v2h, a) - __builtin_bit_cast(tnd_v2h, b));
#else
  const auto one = [&](int shift) {
    const float x = half_to_float(static_cast<uint16_t>(a >> shift)),
                y = half_to_float(static_cast<uint16_t>(b >> shift));
    return static_cast<uint32_t>(float_to_half(x - y)) << shift;  // f32 has more than twice the bits: one rounding
  };
  return one(0) | one(16);
#endif
}

// ---- division

// divide_usual is n / d for magnitudes of n, d and the quotient from 2^-60 to 2^60. It does what the compiler's
// division does for these, without the branch for others, so that several of them run side by side.
TND_DEVICE float divide_usual(float n, float d) {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__)
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
  r = fmaf(r, fmaf(-d, r, 1.0f), r);
  const float q = n * r;
  return fmaf(r, fmaf(-d, q, n), q);
#else
  return n / d;
#endif
}

// ---- memory

// load_once reads 16 bytes of global memory that are not read again soon (weights): evicted first. 16-byte aligned, not
// written by the same kernel.
TND_DEVICE uint4 load_once(const void* p) {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__)
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
#else
  return *static_cast<const uint4*>(p);
#endif
}

// store_result writes to global memory what this kernel does not read. After a plain store through a pointer that was
// itself read from memory, the compiler must assume that it wrote to shared memory, and moves no read of shared
// memory across.
TND_DEVICE void store_result(float* p, float v) {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__)
  asm volatile("st.global.f32 [%0], %1;" ::"l"(p), "f"(v));
#else
  *p = v;
#endif
}

// copy_async_16 copies 16 aligned bytes from global to shared memory in the background, copy_async_commit ends a group
// of the thread's copies, copy_async_wait<N> waits until at most the N newest groups are outstanding; other threads see
// them after a barrier that follows the wait. The emulation delivers at the wait and shows a pattern before it. Where
// there is no such instruction (HIP, before sm_80) the copy happens at once. bytes < 16 fills the rest with zeros.
TND_DEVICE void copy_async_16(void* shared, const void* global, int bytes = 16) {
#if defined(TND_GPU_EMU)
  emu::copy_async(shared, global, bytes);
#elif defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
#else
  uint4 v = make_uint4(0, 0, 0, 0);
  if (bytes == 16) {
    v = *static_cast<const uint4*>(global);
  } else {
    for (int i = 0; i < bytes; ++i) {
      reinterpret_cast<unsigned char*>(&v)[i] = static_cast<const unsigned char*>(global)[i];
    }
  }
  *static_cast<uint4*>(shared) = v;
#endif
}
TND_DEVICE void copy_async_commit() {
#if defined(TND_GPU_EMU)
  emu::copy_async_commit();
#elif defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N>
TND_DEVICE void copy_async_wait() {
#if defined(TND_GPU_EMU)
  emu::copy_async_wait(N);
#elif defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// keep_order keeps clang from moving instructions across it: otherwise unrolled loops of matrix products load the
// operands of many steps first, and spill. It has no effect with other compilers.
TND_DEVICE void keep_order() {
#if defined(__HIP_DEVICE_COMPILE__)
  asm volatile("" ::: "memory");
  __builtin_amdgcn_sched_barrier(0);
#endif
}

// no_sink is an optimisation barrier: clang computes v here instead of moving the computation into the later branch
// that uses it, where its operands (of a matrix product, or both factors of a scaled sum) would have to stay alive. It
// has no effect with other compilers.
TND_DEVICE void no_sink([[maybe_unused]] float& v) {
#if defined(__HIP_DEVICE_COMPILE__)
  asm volatile("" : "+v"(v));
#endif
}

// no_hoist is an optimisation barrier: clang computes values derived from the result where they are used instead of
// hoisting them out of a loop. It has no effect with other compilers.
TND_DEVICE int no_hoist(int n) {
#if defined(__HIP_DEVICE_COMPILE__)
  asm volatile("" : "+v"(n));
#endif
  return n;
}

// ---- overlapping launches (Launch::overlap)

// wait_for_previous waits until the work before this kernel is complete and visible; weights may be fetched before it.
TND_DEVICE void wait_for_previous() {
#if defined(TND_TIMELINE)
  const TimelineCame came = timeline_came();
#endif
#if defined(TND_GPU_EMU)
  emu::wait_for_previous();
#elif defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
#if defined(TND_TIMELINE)
  timeline_note(came);
#endif
}
// let_next_start allows the next overlapping kernel to be scheduled once every block has called it or ended.
TND_DEVICE void let_next_start() {
#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace tnd::gpu
