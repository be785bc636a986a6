// Attention of attention_group.cuh over caches of halves.
#include "gpu/attention/attention_group.cuh"

namespace tnd::gpu {

#if defined(TND_GPU_EMU) || defined(TND_CUDA_WGMMA)
namespace {
constexpr int kBeginThreads = 256;

__global__ void __launch_bounds__(kBeginThreads) attention_begin_kernel(int32_t* handed, int n) {
  let_next_start();
  wait_for_previous();
  const int i = static_cast<int>(blockIdx.x * kBeginThreads + threadIdx.x);
  if (i < n) handed[i] = 0;
}
}  // namespace

void launch_attention_begin(Stream& stream, int32_t* handed, int n) {
  launch(stream,
         {.grid = {static_cast<unsigned>((n + kBeginThreads - 1) / kBeginThreads)},
          .block = {kBeginThreads},
          .overlap = true,
          .name = "attention_begin"},
         attention_begin_kernel, handed, n);
}
#endif

template <>
bool launch_flash_group<false>([[maybe_unused]] Stream& stream, [[maybe_unused]] const FlashArgs& f) {
#if defined(TND_GPU_EMU) || defined(TND_CUDA_WGMMA)
  return f.bulk_parts == 1 ? launch_group_dims<false, false>(stream, f) : launch_group_dims<false, true>(stream, f);
#else
  return false;
#endif
}

}  // namespace tnd::gpu
