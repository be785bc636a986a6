// Flash attention over keys and values in blocks. It has its own file because the kernels take long to compile.
#include "gpu/attention/attention_flash.cuh"

namespace tnd::gpu {

template void launch_flash_items<FlashUnit, true>(Stream&, const FlashArgs&);

}  // namespace tnd::gpu
