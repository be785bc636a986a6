// Attention of attention_group.cuh over caches in blocks of codes.
#include "gpu/attention/attention_group.cuh"

namespace tnd::gpu {

template <>
bool launch_flash_group<true>([[maybe_unused]] Stream& stream, [[maybe_unused]] const FlashArgs& f) {
#if defined(TND_GPU_EMU) || defined(TND_CUDA_WGMMA)
  if (!kv_quantised(static_cast<KvType>(f.a.kv.k_type)) || !kv_quantised(static_cast<KvType>(f.a.kv.v_type))) {
    return false;
  }
  return f.bulk_parts == 1 ? launch_group_dims<true, false>(stream, f) : launch_group_dims<true, true>(stream, f);
#else
  return false;
#endif
}

}  // namespace tnd::gpu
