// Hopper's means for threads and blocks that work together: clusters of blocks (Launch::cluster), barriers in shared
// memory and bulk copies. Kernels that use them are launched where clusters_at_once() is not 0, or where hopper.h
// works; elsewhere the functions do nothing.
//
// A barrier counts arrivals and bytes. It is in a phase, first in phase 0. The next phase begins when as many threads
// as barrier_init() set have arrived and all bytes that they announced have been copied. barrier_wait(b, parity)
// returns when the phase of that parity is over; writes before the arrivals, and those of the copies, are then visible.
#pragma once

#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// Says whether the target has all this; the emulation does.
#if defined(TND_GPU_EMU) || (defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900)
inline constexpr bool kHasClusters = true;
#else
inline constexpr bool kHasClusters = false;
#endif

using Barrier = uint64_t;  // 8-byte aligned, in shared memory

#if defined(TND_GPU_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define TND_CLUSTER_CODE 1
#endif

TND_DEVICE uint32_t shared_address([[maybe_unused]] const void* p) {
#if defined(TND_CLUSTER_CODE)
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
#else
  return 0;
#endif
}

// kept_place returns its argument, an address in shared memory, as a number that compilers keep in a register.
// Otherwise they compute it again, from the block's number in its cluster, wherever registers are short.
TND_DEVICE uint8_t* kept_place(uint8_t* shared) {
#if defined(TND_CLUSTER_CODE)
  uint32_t at;
  asm volatile("mov.u32 %0, %1;" : "=r"(at) : "r"(shared_address(shared)));
  return static_cast<uint8_t*>(__cvta_shared_to_generic(at));
#else
  return shared;
#endif
}

// barrier_init is called by one thread, then barriers_made by that thread; a barrier between threads follows before
// others use it, one of the cluster before other blocks do.
TND_DEVICE void barrier_init([[maybe_unused]] Barrier* b, [[maybe_unused]] int count) {
#if defined(TND_GPU_EMU)
  emu::barrier_init(b, count);
#elif defined(TND_CLUSTER_CODE)
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
#endif
}
TND_DEVICE void barriers_made() {
#if defined(TND_CLUSTER_CODE)
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// barrier_arrive and barrier_expect arrive at a barrier of the same block; barrier_expect also announces bytes.
TND_DEVICE void barrier_arrive([[maybe_unused]] Barrier* b) {
#if defined(TND_GPU_EMU)
  emu::barrier_arrive(b, 0);
#elif defined(TND_CLUSTER_CODE)
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
#endif
}
TND_DEVICE void barrier_expect([[maybe_unused]] Barrier* b, [[maybe_unused]] uint32_t bytes) {
#if defined(TND_GPU_EMU)
  emu::barrier_arrive(b, static_cast<int>(bytes));
#elif defined(TND_CLUSTER_CODE)
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
               : "memory");
#endif
}
TND_DEVICE void barrier_wait([[maybe_unused]] const Barrier* b, [[maybe_unused]] uint32_t parity) {
#if defined(TND_GPU_EMU)
  emu::barrier_wait(b, parity);
#elif defined(TND_CLUSTER_CODE)
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n"
      "}" ::"r"(shared_address(b)),
      "r"(parity)
      : "memory");
#endif
}
// one_of_warp is true in one lane of a whole warp. After a comparison of lane numbers the compiler loops over lanes to
// issue a bulk copy; after this it does not.
TND_DEVICE bool one_of_warp() {
#if defined(TND_CLUSTER_CODE)
  uint32_t one;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}"
      : "=r"(one));
  return one != 0;
#else
  return lane_id() == 0;
#endif
}
// bulk_copy copies from global memory to this block's shared memory in the background and then counts the bytes at the
// barrier. Addresses and bytes are multiples of 16. It is called by one thread, after a barrier that ends all reads of
// the destination.
TND_DEVICE void bulk_copy([[maybe_unused]] void* shared, [[maybe_unused]] const void* global,
                          [[maybe_unused]] uint32_t bytes, [[maybe_unused]] Barrier* b) {
#if defined(TND_GPU_EMU)
  emu::bulk_copy(shared, global, bytes, b);
#elif defined(TND_CLUSTER_CODE)
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(b))
               : "memory");
#endif
}

// bulk_copy_once is bulk_copy of data that is not read again soon: its lines leave the second-level cache first.
TND_DEVICE void bulk_copy_once(void* shared, const void* global, uint32_t bytes, Barrier* b) {
#if defined(TND_CLUSTER_CODE)
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(b)), "l"(policy)
      : "memory");
#else
  bulk_copy(shared, global, bytes, b);
#endif
}

// ---- other blocks of the cluster

TND_DEVICE int cluster_rank() {
#if defined(TND_GPU_EMU)
  return emu::cluster_rank();
#elif defined(TND_CLUSTER_CODE)
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
#else
  return 0;
#endif
}
// cluster_arrive and cluster_wait are the halves of a barrier of all threads of the cluster; threads that have ended
// count. Called by whole warps. cluster_arrive waits until all accesses of the thread, asynchronous copies too, are
// visible to the cluster. cluster_arrive_relaxed waits for nothing: after it, other blocks may assume only that this
// block runs and that its barriers are initialised.
TND_DEVICE void cluster_arrive() {
#if defined(TND_GPU_EMU)
  emu::cluster_arrive();
#elif defined(TND_CLUSTER_CODE)
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
TND_DEVICE void cluster_arrive_relaxed() {
#if defined(TND_GPU_EMU)
  emu::cluster_arrive();
#elif defined(TND_CLUSTER_CODE)
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
TND_DEVICE void cluster_wait() {
#if defined(TND_GPU_EMU)
  emu::cluster_wait();
#elif defined(TND_CLUSTER_CODE)
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// BlockMemory is shared memory of another block of the cluster (or of this one), at the place where `own` lies in
// this one.
struct BlockMemory {
#if defined(TND_CLUSTER_CODE)
  uint32_t at;
#else
  uint8_t* at;
#endif
};
TND_DEVICE BlockMemory of_block([[maybe_unused]] void* own, [[maybe_unused]] int rank) {
#if defined(TND_GPU_EMU)
  return {static_cast<uint8_t*>(emu::of_block(own, rank))};
#elif defined(TND_CLUSTER_CODE)
  BlockMemory m;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(m.at) : "r"(shared_address(own)), "r"(rank));
  return m;
#else
  return {static_cast<uint8_t*>(own)};
#endif
}
// store_quad writes four floats to it; a barrier of the cluster makes them visible.
TND_DEVICE void store_quad([[maybe_unused]] const BlockMemory& to, [[maybe_unused]] int offset,
                           [[maybe_unused]] const float4& v) {
#if defined(TND_GPU_EMU)
  *reinterpret_cast<float4*>(to.at + offset) = v;
#elif defined(TND_CLUSTER_CODE)
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to.at + offset), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
#endif
}
// send_quad writes four floats to it in the background and then counts their bytes at a barrier of that block.
TND_DEVICE void send_quad([[maybe_unused]] const BlockMemory& to, [[maybe_unused]] int offset,
                          [[maybe_unused]] const float (&v)[4], [[maybe_unused]] const BlockMemory& barrier) {
#if defined(TND_GPU_EMU)
  emu::send(to.at + offset, v, sizeof v, reinterpret_cast<Barrier*>(barrier.at));
#elif defined(TND_CLUSTER_CODE)
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   to.at + offset),
               "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier.at)
               : "memory");
#endif
}

}  // namespace tnd::gpu
