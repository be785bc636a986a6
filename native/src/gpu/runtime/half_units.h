// Says whether a device has the matrix instructions over 16-bit floats that the kernels of this build use
// (runtime_mma.h): mma.sync from sm_80 on, WMMA of gfx11 and gfx12. For files that hold kernels.
#pragma once

#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

inline bool has_half_units(const DeviceInfo& device) {
#if defined(TND_GPU_HIP)
  return device.major == 11 || device.major == 12;
#else
  return device.major >= 8;
#endif
}

}  // namespace tnd::gpu
