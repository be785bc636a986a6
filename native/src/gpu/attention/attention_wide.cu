// attention_wide.cuh over caches of halves. Separate files, because the kernels take long to compile.
#include "gpu/attention/attention_wide.cuh"

namespace tnd::gpu {

template <>
bool launch_flash_wide<false>(Stream& stream, const FlashArgs& f) {
  return launch_wide_dims<false>(stream, f);
}

}  // namespace tnd::gpu
