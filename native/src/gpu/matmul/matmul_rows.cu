// Products for 1 to 64 rows: weights are read once, at the speed of memory.
//
// A block is four warps, the four lanes of the contract; it takes units of 16 outputs, one after the other. A warp
// multiplies its super-blocks of the unit by all rows at once with int8 matrix instructions (8 columns cost as much as
// one) and writes its sums to shared memory, where the block adds the lanes. Each warp has its own ring of
// super-blocks, which asynchronous copies fill across units. So warps wait for each other only at the end of a unit,
// and the ring is full before the inputs of the launch are ready (wait_for_previous).
//
// Bytes: the weights once; activations come from L1 and L2 (columns that do not exist are not read). Instructions per
// 16 outputs x 32 elements and warp, sm_90, from the disassembly: docs/speed-log/gpu-matmul.md. More than 64 rows
// (where the kernels of matmul_tiles.cu cannot run) are split into chunks of columns, the grid's second dimension.
#include <algorithm>

#include "gpu/matmul/matmul_rows.cuh"

namespace tnd::gpu {
namespace {

template <class U, KernelSet SET, int COLS>
__global__ void __launch_bounds__(kThreads, blocks_per_processor(COLS))
    matmul_rows_kernel(MatmulJobs args, RingDepths depths) {
  let_next_start();
  TND_DYNAMIC_SHARED(uint8_t, smem);
  constexpr int kCols = COLS > U::kCols ? COLS : U::kCols;
  float* const red = reinterpret_cast<float*>(smem);
  uint8_t* const rings = smem + red_bytes(kCols);
  int block = static_cast<int>(blockIdx.x);
  int index = 0;
  while (block >= args.jobs[index].blocks) block -= args.jobs[index++].blocks;
  const MatmulJob& job = args.jobs[index];
  const int depth = depth_of(depths, index);
  const BlockUnits units{block, job.units, job.blocks};
  if constexpr (SET == KernelSet::kCommon) {
    switch (job.type) {
      case DType::kQ4_K:
        return multiply_units<U, TypeQ4K, kCols>(args, job, depth, units, red, rings);
      case DType::kQ5_K:
        return multiply_units<U, TypeQ5K, kCols>(args, job, depth, units, red, rings);
      case DType::kQ6_K:
        return multiply_units<U, TypeQ6K, kCols>(args, job, depth, units, red, rings);
      default:
        return multiply_units<U, TypeQ80, kCols>(args, job, depth, units, red, rings);
    }
  } else {
    switch (job.type) {
      case DType::kQ4_0:
        return multiply_units<U, TypeQ40, kCols>(args, job, depth, units, red, rings);
      case DType::kQ4_1:
        return multiply_units<U, TypeQ41, kCols>(args, job, depth, units, red, rings);
      case DType::kQ5_0:
        return multiply_units<U, TypeQ50, kCols>(args, job, depth, units, red, rings);
      case DType::kQ5_1:
        return multiply_units<U, TypeQ51, kCols>(args, job, depth, units, red, rings);
      case DType::kIQ4_NL:
        return multiply_units<U, TypeIQ4NL, kCols>(args, job, depth, units, red, rings);
      default:
        return multiply_units<U, TypeIQ4XS, kCols>(args, job, depth, units, red, rings);
    }
  }
}

template <class U>
int shared_bytes(const MatmulJobs& jobs, const RingDepths& depths, int cols) {
  int ring = 0;
  for (int i = 0; i < jobs.count; ++i) {
    ring = std::max(ring, ring_bytes(super_bytes(jobs.jobs[i].type), depth_of(depths, i)));
  }
  return red_bytes(cols) + (U::kRing ? ring : 0);
}

// Bytes that each of `blocks` blocks of a processor may have. The system takes 1 KB more for each block;
// shared_per_block is 1 KB less than a processor has.
int share_of_processor(const MatmulGroup& group, int blocks) {
  return (group.shared_per_block + 1024) / blocks - 1024;
}

// The deepest rings of the jobs with which two blocks fit a processor: two warps a scheduler hide more than a deeper
// ring of one. A job that does not fit at all has its usual ring; it then runs with one block (take_large).
RingDepths depths_of(const MatmulGroup& group, const MatmulJobs& jobs, int cols) {
  const int room = share_of_processor(group, 2) - red_bytes(cols);
  RingDepths depths;
  for (int i = 0; i < jobs.count; ++i) {
    const int super = super_bytes(jobs.jobs[i].type), most = stages(super);
    const int fit = room / (kLanes * super);
    depths.bits |= static_cast<uint32_t>(fit < kFewestStages ? most : std::min(fit, most)) << (4 * i);
  }
  return depths;
}

// Takes out of `jobs` those whose rings leave room for one block a processor only, if there are others.
template <class U>
MatmulJobs take_large(const MatmulGroup& group, MatmulJobs* jobs, int cols) {
  MatmulJobs large = *jobs, others = *jobs;
  large.count = others.count = 0;
  const int room = share_of_processor(group, 2) - red_bytes(cols);
  for (int i = 0; i < jobs->count; ++i) {
    const bool fits = !U::kRing || ring_bytes(super_bytes(jobs->jobs[i].type), kFewestStages) <= room;
    MatmulJobs& to = fits ? others : large;
    to.jobs[to.count++] = jobs->jobs[i];
  }
  if (others.count == 0) return others;
  *jobs = others;
  return large;
}

template <class U, KernelSet SET, int COLS>
void launch_columns(Stream& stream, const MatmulGroup& group, MatmulJobs jobs) {
  constexpr int kCols = COLS > U::kCols ? COLS : U::kCols;
  if (const MatmulJobs large = take_large<U>(group, &jobs, kCols); large.count != 0) {
    launch_columns<U, SET, COLS>(stream, group, large);
  }
  const RingDepths depths = depths_of(group, jobs, kCols);
  const int shared = shared_bytes<U>(jobs, depths, kCols);
  const int fit = std::clamp((group.shared_per_block + 1024) / (shared + 1024), 1, blocks_per_processor(COLS));
  const int blocks = share_blocks(&jobs, fit * std::max(group.processors, 1));
  launch(stream,
         {.grid = {static_cast<unsigned>(blocks), static_cast<unsigned>((jobs.rows + kCols - 1) / kCols)},
          .block = {kThreads},
          .shared_bytes = static_cast<unsigned>(shared),
          .overlap = true,
          .bytes = weight_bytes_of(jobs),
          .name = "matmul_rows"},
         matmul_rows_kernel<U, SET, COLS>, jobs, depths);
}

template <class U, KernelSet SET>
void launch_set(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  if (jobs.rows <= 8) return launch_columns<U, SET, 8>(stream, group, jobs);
  if (jobs.rows <= 16) return launch_columns<U, SET, 16>(stream, group, jobs);
  if constexpr (U::kCols == 8) {
    if (jobs.rows <= 24) return launch_columns<U, SET, 24>(stream, group, jobs);
  }
  if constexpr (U::kCols == 8) {
    // sm_75 has no room for 64 rows of Q8_0.
    if (jobs.rows > 32 && shared_bytes<U>(jobs, depths_of(group, jobs, 64), 64) <= group.shared_per_block) {
      return launch_columns<U, SET, 64>(stream, group, jobs);
    }
  }
  launch_columns<U, SET, 32>(stream, group, jobs);
}

template <class U>
void launch_unit(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs, KernelSet set) {
  if (set == KernelSet::kCommon) return launch_set<U, KernelSet::kCommon>(stream, group, jobs);
  return launch_set<U, KernelSet::kOther>(stream, group, jobs);
}

}  // namespace

void launch_matmul_rows(Stream& stream, const MatmulGroup& group, MatmulJobs jobs, KernelSet set) {
#if defined(TND_GPU_EMU)
  if (group.unit == 1) return launch_unit<WmmaUnit<Wmma11>>(stream, group, jobs, set);
  if (group.unit == 2) return launch_unit<WmmaUnit<Wmma12>>(stream, group, jobs, set);
  if (group.unit == 3) return launch_unit<DotUnit>(stream, group, jobs, set);
#endif
  launch_unit<DeviceUnit>(stream, group, jobs, set);
}

}  // namespace tnd::gpu
