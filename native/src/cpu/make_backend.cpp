// make_backend of libtandem_cpu.so. Other libraries link the rest of this folder for their host side and define
// their own.
#include <algorithm>
#include <cstring>
#include <thread>

#include "cpu/backend.h"

namespace tnd {

Status make_backend(const char* device, int32_t threads, std::unique_ptr<Backend>* out) {
  if (device != nullptr && std::strcmp(device, "cpu") != 0 && device[0] != '\0') {
    return errorf(TND_INVALID_ARGUMENT, "device \"%.64s\": this library has only \"cpu\"", device);
  }
  constexpr int32_t kMaxThreads = 256;
  if (threads < 0 || threads > kMaxThreads) {
    return errorf(TND_INVALID_ARGUMENT, "threads is %d, must be 0..%d", threads, kMaxThreads);
  }
  if (threads == 0) threads = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  *out = std::make_unique<cpu::CpuBackend>(threads);
  return Status();
}

}  // namespace tnd
