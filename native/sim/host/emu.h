// Host emulation of the GPU, included by gpu/runtime/runtime.h: kernels (*.cu) compiled as C++, the threads of a block
// run as fibers on one host thread.
//
// Purpose: it tests the same kernel source on machines without a GPU, and more strictly than a GPU would.
//   - __syncthreads, warp functions and matrix instructions wait for all threads that take part. A block in which some
//     can never arrive fails with a message instead of hanging.
//   - Blocks run in a shuffled order on several host threads, warps and lanes of a block in a shuffled order between
//     barriers (seed: TND_EMU_SEED). Results must not depend on it.
//   - Shared memory and fresh device memory hold a pattern (NaN as a float); shared memory, dynamic and static, and
//     device memory end in guard bytes that are checked after every block or at release; large overruns hit a page
//     without access. Sanitised builds (TND_SANITIZE) check every access.
//   - copy_async and bulk copies deliver when waited for, and the destination holds the pattern until then.
//   - Blocks of a cluster run together, in one host thread.
//   - A thread that starts to copy bytes named by set_fresh in the background before it calls wait_for_previous()
//     is reported.
//   - Launches and copies of a stream run at sync, not before: host memory must live as long as the contract says.
// It is not a timing model. Lanes of a warp run one after the other between collectives, blocks to their end: kernels
// that wait for another block of the grid (persistent ones with a grid barrier) cannot run here.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

// Built-in vector types, as far as kernels use them.
struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline int2 make_int2(int x, int y) {
  return {x, y};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline int4 make_int4(int x, int y, int z, int w) {
  return {x, y, z, w};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

namespace tnd::gpu::emu {

// State of the running thread that kernels read.
struct Thread {
  Dim3 thread_idx, block_idx, block_dim, grid_dim;
  unsigned lane = 0;
  bool waited = false;  // called wait_for_previous()
};
extern thread_local Thread* current_thread __attribute__((tls_model("initial-exec")));
inline const Thread& self() {
  return *current_thread;
}
inline void wait_for_previous() {
  current_thread->waited = true;
}

// launch queues a kernel: body runs once per thread.
void launch(Stream& stream, const Launch& l, std::function<void()> body);

// set_threads chooses how many host threads run blocks, 0 = one per core; set_seed the order of blocks and warps.
void set_threads(int threads);
void set_seed(uint64_t seed);

// set_fresh names device memory that counts as written by earlier launches of a step; empty = none.
// Not while a stream synchronises.
struct Bytes {
  const void* begin;
  uint64_t count;
};
void set_fresh(std::vector<Bytes> fresh);

// ---- collectives

// A collective of a warp: every lane passes a pointer to its operands, and the last one runs `apply` on all 32.
using Apply = void (*)(void* const operands[32]);
void warp_collective(Apply apply, void* operands);
void sync_block();

template <typename T>
struct ShflOperands {
  T value;
  T result;
  int lane;
};
template <typename T>
void apply_shfl(void* const operands[32]) {
  for (int i = 0; i < 32; ++i) {
    auto* mine = static_cast<ShflOperands<T>*>(operands[i]);
    mine->result = static_cast<ShflOperands<T>*>(operands[mine->lane & 31])->value;
  }
}
template <typename T>
T shfl(T value, int lane) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  ShflOperands<T> o{value, value, lane};
  warp_collective(apply_shfl<T>, &o);
  return o.result;
}
uint32_t ballot(bool value);
void sync_warp();

// ---- shared memory

// static_memory returns the block's memory for a declaration (key: an address unique to it), allocated at first use.
void* static_memory(const void* key, uint64_t bytes, uint64_t align);
template <typename T>
T& static_shared(const void* key) {
  return *static_cast<T*>(static_memory(key, sizeof(T), alignof(T) < 16 ? 16 : alignof(T)));
}
void* dynamic_shared();

void copy_async(void* shared, const void* global, int bytes);
void copy_async_commit();
void copy_async_wait(int newest);

// ---- clusters (runtime_cluster.h)

void barrier_init(uint64_t* barrier, int count);
void barrier_arrive(uint64_t* barrier, int bytes);
void barrier_wait(const uint64_t* barrier, uint32_t parity);
void send(void* shared, const void* from, uint32_t bytes, uint64_t* barrier);
void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier);
void cluster_arrive();
void cluster_wait();
int cluster_rank();
void* of_block(void* shared, int rank);

}  // namespace tnd::gpu::emu

#define threadIdx (::tnd::gpu::emu::self().thread_idx)
#define blockIdx (::tnd::gpu::emu::self().block_idx)
#define blockDim (::tnd::gpu::emu::self().block_dim)
#define gridDim (::tnd::gpu::emu::self().grid_dim)

inline void __syncthreads() {
  ::tnd::gpu::emu::sync_block();
}
inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_system() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_block() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
  return __builtin_popcountll(x);
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline float __int_as_float(int x) {
  return __builtin_bit_cast(float, x);
}
inline int __float_as_int(float x) {
  return __builtin_bit_cast(int, x);
}
inline unsigned __float_as_uint(float x) {
  return __builtin_bit_cast(unsigned, x);
}
inline float __uint_as_float(unsigned x) {
  return __builtin_bit_cast(float, x);
}

// Integer atomics on global or shared memory; they return the old value.
template <typename T>
inline T atomicAdd(T* p, T v) {
  static_assert(!std::is_floating_point_v<T>, "float atomics have no fixed order");
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
template <typename T>
inline T atomicOr(T* p, T v) {
  return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}
template <typename T>
inline T atomicAnd(T* p, T v) {
  return __atomic_fetch_and(p, v, __ATOMIC_RELAXED);
}
template <typename T>
inline T atomicExch(T* p, T v) {
  return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);
}
template <typename T>
inline T atomicCAS(T* p, T expected, T v) {
  __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <typename T>
inline T atomicMax(T* p, T v) {
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (old < v && !__atomic_compare_exchange_n(p, &old, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
template <typename T>
inline T atomicMin(T* p, T v) {
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (v < old && !__atomic_compare_exchange_n(p, &old, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
