// Flash attention over keys and values in blocks: a file of its own, because the kernels take long to compile.
#include "gpu/attention/attention_flash.cuh"

namespace tnd::gpu {

template void launch_flash_items<FlashUnit, true>(Stream&, const FlashArgs&);

}  // namespace tnd::gpu
