// Attention of attention_codes.cuh.
#include "gpu/attention/attention_codes.cuh"

namespace tnd::gpu {

bool launch_flash_codes([[maybe_unused]] Stream& stream, [[maybe_unused]] const FlashArgs& f) {
#if defined(TND_GPU_EMU) || defined(TND_GPU_CUDA)
  constexpr KvType kQ8 = KvType::kQ8_0, kQ4 = KvType::kQ4_0;
  const auto keys = static_cast<KvType>(f.a.kv.k_type), values = static_cast<KvType>(f.a.kv.v_type);
  if (keys == kQ8 && values == kQ8) return launch_codes_dims<kQ8, kQ8>(stream, f);
  if (keys == kQ8 && values == kQ4) return launch_codes_dims<kQ8, kQ4>(stream, f);
  if (keys == kQ4 && values == kQ4) return launch_codes_dims<kQ4, kQ4>(stream, f);
#endif
  return false;
}

}  // namespace tnd::gpu
