// Copy bandwidth and bf16 matrix rate of a GPU. The rate is that of the vendor's BLAS where it can be opened (what a
// prefill could reach), else of bare matrix instructions (what nothing can exceed).
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "gpu/runtime/breakdown.h"
#include "gpu/runtime/timeline.h"
#include "gpu_probe.h"
#include "rates.h"

namespace tnd::bench {
namespace {

using namespace tnd::gpu;

// N of "cuda:N", 0 if there is none.
int device_index(const char* device) {
  const char* colon =
      device == nullptr ? nullptr : std::char_traits<char>::find(device, std::char_traits<char>::length(device), ':');
  return colon == nullptr ? 0 : std::atoi(colon + 1);
}

// cuBLAS by hand: these calls and numbers are part of its stable ABI.
double cublas_bf16_tops(Stream& stream, void* mem, std::string* how) {
  void* library = nullptr;
  for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) return 0;
  using Create = int (*)(void**);
  using SetStream = int (*)(void*, void*);
  using Gemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
                       const void*, void*, int, int, int, int);
  const auto create = reinterpret_cast<Create>(dlsym(library, "cublasCreate_v2"));
  const auto set_stream = reinterpret_cast<SetStream>(dlsym(library, "cublasSetStream_v2"));
  const auto gemm = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx"));
  void* handle = nullptr;
  if (create == nullptr || set_stream == nullptr || gemm == nullptr || create(&handle) != 0) return 0;
  if (set_stream(handle, stream.native()) != 0) return 0;
  constexpr int kN = 8192, kBF16 = 14, kCompute32F = 68, kTranspose = 1, kPlain = 0, kDefault = -1;
  const float one = 1, zero = 0;
  auto* a = static_cast<uint16_t*>(mem);
  uint16_t *b = a + int64_t{kN} * kN, *c = b + int64_t{kN} * kN;
  std::vector<double> times;
  Event from, to;
  for (int i = 0; i < 6; ++i) {
    from.record(stream);
    const int code = gemm(handle, kTranspose, kPlain, kN, kN, kN, &one, a, kBF16, kN, b, kBF16, kN, &zero, c, kBF16, kN,
                          kCompute32F, kDefault);
    to.record(stream);
    if (code != 0 || !stream.sync().ok()) return 0;
    if (i > 1) times.push_back(double{elapsed_ms(from, to)});
  }
  std::sort(times.begin(), times.end());
  *how = "cuBLAS bf16, 8192 x 8192 x 8192";
  return 2.0 * kN * kN * kN / times[times.size() / 2] / 1e9;
}

}  // namespace

bool show_breakdowns(int runs, const Rates& rates) {
  gpu::show_breakdowns(runs, [copy_gbs = rates.copy_gbs](const gpu::Breakdown& b) {
    double parts = 0;
    for (const gpu::LaunchShare& s : b.shares) parts += s.us;
    std::printf("    graph of %d nodes: %.1f us, its kinds of launches %.1f\n", b.nodes, b.us, parts);
    for (const gpu::LaunchShare& s : b.shares) {
      std::printf("      %-18s %5u x %3u blocks  %4d x %8.2f us = %8.1f us  %4.1f %%", s.kernel.c_str(), s.grid.x,
                  s.grid.y * s.grid.z, s.launches, s.us / s.launches, s.us, 100 * s.us / b.us);
      if (s.bytes > 0) {
        const double mb = static_cast<double>(s.bytes) / 1e6;
        std::printf("  %8.2f MB  %3.0f %% of copy", mb, 100 * mb * s.launches / s.us / copy_gbs * 1e3);
      }
      std::printf("\n");
    }
  });
  return true;
}

std::string show_timeline(const char* device, const std::function<double()>& step) {
  const int index = device_index(device);
  std::vector<TimelineShare> shares;
  Status s = use_device(index);
  if (s.ok()) s = timeline_start(index);
  if (s.ok()) s = timeline_stop(1e3 * step(), &shares);
  if (!s.ok()) return s.message();
  std::printf(
      "      us until the next launch's first block goes, medians; how long blocks had waited by then; processors that "
      "had some\n");
  for (const TimelineShare& share : shares) {
    std::printf("      %-18s after %-18s %4d blocks x %2d warps  %4d x %7.2f us = %8.1f us  waited %7.2f us  on %3d\n",
                share.kernel.c_str(), share.before.c_str(), share.blocks, share.warps, share.launches, share.us,
                share.us * share.launches, share.waited, share.processors);
  }
  return "";
}

Rates measure_rates(const char* device, int) {
  Rates r;
  const int index = device_index(device);
  constexpr uint64_t kBytes = uint64_t{1} << 30;
  Stream stream;
  DeviceInfo info;
  void *mem = nullptr, *noise = nullptr;
  if (!use_device(index).ok() || !device_info(index, &info).ok() || !stream.open().ok() ||
      !device_alloc(kBytes, &mem).ok() || !host_alloc(kBytes / 16, &noise).ok()) {
    r.matmul_how = "the device gave no memory";
    return r;
  }
  // Random bf16 values near one: constant data would cost less power and so show a higher clock.
  auto* values = static_cast<uint16_t*>(noise);
  uint32_t random = 1;
  for (uint64_t i = 0; i < kBytes / 32; ++i) {
    random = random * 1664525u + 1013904223u;
    values[i] = static_cast<uint16_t>(0x3F00u | (random >> 8 & 0x80FFu));
  }
  for (uint64_t at = 0; at < kBytes; at += kBytes / 16)
    stream.to_device(static_cast<char*>(mem) + at, noise, kBytes / 16);
  r.copy_gbs = copy_gbs(stream, mem, kBytes / 2, 8 * info.processors);
  r.matmul_tops = cublas_bf16_tops(stream, mem, &r.matmul_how);
  if (r.matmul_tops == 0) {
    r.matmul_how = "not measured";
    for (const Mma kind : {Mma::kBF16, Mma::kWmmaBF16, Mma::kWmma12BF16}) {
      if (!mma_present(kind, info)) continue;
      r.matmul_tops = mma_tops(stream, kind, mem, 8 * info.processors);
      r.matmul_how = mma_name(kind);
      break;
    }
  }
  host_free(noise);
  device_free(mem);
  return r;
}

}  // namespace tnd::bench
