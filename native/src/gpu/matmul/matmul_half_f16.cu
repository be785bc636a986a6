// matmul_half.cu for F16 weights, which are split into two bfloat16 each when they are read.
#include "gpu/matmul/matmul_half.cuh"

namespace tnd::gpu {

void launch_matmul_half_f16(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
#if defined(TND_GPU_EMU)
  if (group.unit == 1) return launch_half_type<HalfWmma<Wmma11>, DType::kF16>(stream, group, jobs);
  if (group.unit == 2) return launch_half_type<HalfWmma<Wmma12>, DType::kF16>(stream, group, jobs);
#endif
  launch_half_type<std::conditional_t<kHasMma, HalfMma, HalfWmma<DeviceWmma>>, DType::kF16>(stream, group, jobs);
}

}  // namespace tnd::gpu
