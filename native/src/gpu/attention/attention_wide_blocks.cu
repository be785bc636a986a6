// attention_wide.cuh over keys and values in blocks.
#include "gpu/attention/attention_wide.cuh"

namespace tnd::gpu {

template <>
bool launch_flash_wide<true>(Stream& stream, const FlashArgs& f) {
  return launch_wide_dims<true>(stream, f);
}

}  // namespace tnd::gpu
