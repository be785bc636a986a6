// Products with 16-bit float weights for decoding and verifying, by matrix instructions. Contract: NUMERICS.md, "16-bit
// float weights on matrix instructions": inputs are pairs of bfloat16, k has 32 lanes whose sums are added in a fixed
// order, so that a row's bits do not depend on the number of rows.
//
// A block is eight warps and multiplies units of 32 outputs (pairs of them from 9 rows on), one after the other, with
// all rows of a chunk. A warp owns consecutive lanes of k and streams its weights through its own ring in shared
// memory, by asynchronous copies that continue across units; warps wait for each other only where a unit's sums are
// added. The ring is full before the inputs of the launch are ready (wait_for_previous): by then all weights of a small
// matrix are in flight, and the warp waits for them once. Inputs come through the ring too; where they fit, a block
// copies them once and keeps them.
//
// A matrix of few units would leave most processors idle. Where blocks can form clusters, four then share a unit: each
// warp has one lane instead of four, and sums of four go to the shared memory of the block that adds them. The bits are
// the same.
//
// Two launches of a step become part of this one where the whole model has such weights: the norm of up to eight rows,
// which every block computes for itself, and SwiGLU, where a pair of units is one of gate and one of up.
//
// Bound: memory; up to 16 rows, then the second-level cache, from which every block reads the inputs, and the latency
// of one block a processor. In a step it is latency: 174 launches of a few microseconds. Loops are not unrolled beyond
// an instruction's operands, because in a step little of a kernel's code is still in the instruction caches
// (docs/speed-log/gpu-matmul.md): 8 to 18 KB a kernel instead of 20 to 40, and no slower back to back.
#include "gpu/matmul/matmul_half.cuh"

namespace tnd::gpu {

bool matmul_fuses(const DeviceInfo& device, int rows, int k) {
  return has_matmul_pairs(device) && held_fits(device.shared_per_block, rows, k);
}
bool matmul_fuses_norm(const DeviceInfo& device, int rows, int k) {
  return rows <= kWarps && k <= kMaxNormDim && k % 16 == 0 && matmul_fuses(device, rows, k);
}

void launch_matmul_half(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  if (jobs.jobs[0].type == DType::kF16) return launch_matmul_half_f16(stream, group, jobs);
#if defined(TND_GPU_EMU)
  if (group.unit == 1) return launch_half_type<HalfWmma<Wmma11>, DType::kBF16>(stream, group, jobs);
  if (group.unit == 2) return launch_half_type<HalfWmma<Wmma12>, DType::kBF16>(stream, group, jobs);
#endif
  launch_half_type<std::conditional_t<kHasMma, HalfMma, HalfWmma<DeviceWmma>>, DType::kBF16>(stream, group, jobs);
}

}  // namespace tnd::gpu
