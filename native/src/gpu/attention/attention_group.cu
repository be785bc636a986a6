// Attention of attention_group.cuh over caches of halves.
#include "gpu/attention/attention_group.cuh"

namespace tnd::gpu {

template <>
bool launch_flash_group<false>([[maybe_unused]] Stream& stream, [[maybe_unused]] const FlashArgs& f) {
#if defined(TND_GPU_EMU) || defined(TND_CUDA_WGMMA)
  return f.bulk_parts == 1 ? launch_group_dims<false, false>(stream, f) : launch_group_dims<false, true>(stream, f);
#else
  return false;
#endif
}

}  // namespace tnd::gpu
