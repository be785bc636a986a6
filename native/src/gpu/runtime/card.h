// What a card and the code that its driver chose can do together, and the environment that makes a card look smaller.
// Host side, without a vendor: runtime.cu and the emulation share it.
#pragma once

#include <cstdlib>

#include "core/status.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// A kernel's code is made for a compute capability, 86 for 8.6, which may be older than the card: drivers compile
// compute_86 for Hopper, too. What kernels do under __CUDA_ARCH__ >= 900 is then missing from it, so launches that
// rely on that ask the code, not the card alone.
constexpr int kCodeOfHopper = 90;
// code_forms_clusters: the code's kernels for clusters are not empty, and the card is one that they were made for.
constexpr bool code_forms_clusters(int major, int code) {
  return major == 9 && code >= kCodeOfHopper;
}
// code_starts_early: the code's kernels wait for the previous one themselves (Launch::overlap).
constexpr bool code_starts_early(int code) {
  return code >= kCodeOfHopper;
}

// check_code fails if this library has no code that the current device, whose info is given, can run.
Status check_code(const DeviceInfo& device);
// no_code_for is that failure.
inline Status no_code_for(const DeviceInfo& device) {
  return errorf(TND_UNIMPLEMENTED,
                "%s has compute capability %d.%d, and libtandem_cuda.so holds no code for it: build the library with "
                "CUDA_ARCHS=%d%d",
                device.name.c_str(), device.major, device.minor, device.major, device.minor);
}

// Lowers *value to what the environment names; there it must be a number from 1 to *value.
inline Status lower(const char* name, const char* text, int* value) {
  if (text == nullptr || text[0] == '\0') return Status();
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  if (*end != '\0' || number < 1 || number > *value) {
    return errorf(TND_INVALID_ARGUMENT, "%s is \"%s\", must be a number from 1 to %d, what the card has", name, text,
                  *value);
  }
  *value = static_cast<int>(number);
  return Status();
}

// impersonate gives a card the shared memory (TANDEM_GPU_SHARED, bytes a block) and the processors
// (TANDEM_GPU_PROCESSORS) of a smaller one, for which kernels and their shapes are then chosen. For tests: with code of
// compute_86 a data-centre card so runs what a GeForce card runs. Same bits. Processors are what the driver counts:
// SMs, and on gfx10 and later pairs of CUs (WGPs), 48 of a 7900 XTX.
inline Status impersonate(DeviceInfo* device) {
  TND_TRY(lower("TANDEM_GPU_SHARED", std::getenv("TANDEM_GPU_SHARED"), &device->shared_per_block));
  return lower("TANDEM_GPU_PROCESSORS", std::getenv("TANDEM_GPU_PROCESSORS"), &device->processors);
}

}  // namespace tnd::gpu
