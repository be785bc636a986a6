// One vocabulary over CUDA, HIP and the host emulation (native/sim/host/emu.h). No other file of src/gpu names a
// vendor.
//
// This header is the host side and needs no vendor compiler: memory, streams, graphs, events. Files that hold kernels
// (*.cu) are compiled by nvcc (--fmad=false --expt-relaxed-constexpr), by clang (-x hip -ffp-contract=off) or, for the
// emulation, by the host compiler (-x c++ -DTND_GPU_EMU -ffp-contract=off -Wno-unknown-pragmas); there it also declares
// launch() and includes runtime_device.h, the functions that kernels call; matrix instructions are in runtime_mma.h.
//
// How an operation is written:
//   struct NormArgs { const float* x; ...; int rows; };               device pointers and numbers, trivially copyable
//   void launch_norm(Stream& stream, const NormArgs& args);           in norm.h, for the backend
//   __global__ void norm_f32_kernel(NormArgs args) {...}              in norm.cu
//   void launch_norm(Stream& stream, const NormArgs& a) {
//     launch(stream, {.grid = {unsigned(a.rows)}, .block = {256}, .name = "norm"}, norm_f32_kernel, a);
//   }
// A launch function allocates nothing, never waits, and reads no device memory and no host memory but its arguments.
// The backend may call it under stream capture, and replay the launches later with other contents at the same pointers.
// Lengths that change from step to step are therefore read by the kernel from device memory; the host side has upper
// bounds only. The stream keeps failures, and Stream::sync returns them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "core/status.h"

#if defined(__CUDACC__)
#define TND_GPU_CUDA 1
#include <cuda_runtime.h>
#elif defined(__HIP__)
#define TND_GPU_HIP 1
#include <hip/hip_runtime.h>
#endif
#if defined(TND_GPU_CUDA) || defined(TND_GPU_HIP) || defined(TND_GPU_EMU)
#define TND_GPU_KERNELS 1  // this file may hold kernels
#endif

namespace tnd::gpu {

// ---- devices

struct DeviceInfo {
  std::string name;          // of the card
  int major = 0, minor = 0;  // CUDA: compute capability; HIP: 11.0 for gfx1100; emulation 0
  int processors = 0;        // SMs; on AMD as the driver counts: WGPs on RDNA
  int shared_per_block = 0;  // bytes that a block may ask for (opt-in limit)
  int l2_bytes = 0;
  uint64_t total_bytes = 0;
};

const char* api_name();  // "cuda", "hip", "emu"
int device_count();      // 0 when there is no driver
Status device_info(int device, DeviceInfo* out);
// use_device makes `device` current for the calling thread (vendor state is per thread, engines are not).
Status use_device(int device);
// The functions below work on the current device.
Status memory_free(uint64_t* free_bytes);
// device_alloc returns memory at a 256-byte boundary with unspecified contents (the emulation fills it with a pattern).
Status device_alloc(uint64_t bytes, void** out);
void device_free(void* p);
// device_overlaps says whether the current device can start a kernel early (Launch::overlap).
bool device_overlaps();
// plain_launches says whether the environment asks for launches that tools for checking memory accesses can follow
// (TANDEM_GPU_LAUNCHES=plain): one after the other, without graphs, clusters and early starts. Slower, same bits.
inline bool plain_launches() {
  static const bool plain = [] {
    const char* const wish = std::getenv("TANDEM_GPU_LAUNCHES");
    return wish != nullptr && std::strcmp(wish, "plain") == 0;
  }();
  return plain;
}
// clusters_at_once returns how many clusters of `blocks` blocks (Launch::cluster) the current device runs at a time if
// each block takes all shared memory of a processor. It is 0 without clusters, on cards that are not Hopper, and with
// plain_launches(). kernel: the kernel that is asked for, with blocks of `threads`.
int clusters_at_once(int blocks, int threads, const void* kernel);
// host_alloc returns pinned host memory: copies read and write it in the background.
Status host_alloc(uint64_t bytes, void** out);
void host_free(void* p);

// ---- streams and graphs

class Graph;
struct Launch;

// LaunchFilter sees every launch before it is made and may leave it out. For measuring (breakdown.h).
class LaunchFilter {
 public:
  virtual bool keep(const Launch& l) = 0;

 protected:
  ~LaunchFilter() = default;
};

// Stream is a queue of work. None of its calls returns an error at once. The first failure is kept with its place and
// later work is dropped; sync returns that failure from then on (a faulted device stays faulted).
class Stream {
 public:
  Stream() = default;
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  Status open();

  // Copies in order with launches. Host memory is pinned (host_alloc) and stays untouched until sync.
  void to_device(void* dst, const void* host, uint64_t bytes);
  void to_host(void* host, const void* src, uint64_t bytes);
  void copy(void* dst, const void* src, uint64_t bytes);  // within the device, no overlap
  void fill(void* dst, uint8_t value, uint64_t bytes);
  Status sync();
  // wait is a sync that ends when a launched kernel has set *done (pinned host memory) to number. It returns a few
  // microseconds earlier than sync.
  Status wait(const uint64_t* done, uint64_t number);

  // no_overlap makes the next launch wait for all work before it, even with Launch::overlap. Later launches may rely on
  // that, too.
  void no_overlap() { holds_ = true; }
  bool overlaps(const Launch& l);  // for launch(): ends no_overlap

  // prefer_shared sets how later launches that overlap divide a processor's memory: all of it shared, or as much as
  // their kernel needs. A processor changes the division only when it is empty. Where a product takes all of it, blocks
  // of the small kernels around it start on processors that still run blocks only if they ask for the same.
  void prefer_shared(bool all) { prefers_shared_ = all; }
  bool prefers_shared() const { return prefers_shared_; }

  // Work between begin_capture and end_capture is recorded, not run.
  void begin_capture();
  void end_capture(Graph* out);
  void run(const Graph& graph);

  bool failed() const { return !fault_.ok(); }
  // check records the failure of a call (vendor code, 0 = success); what names the call or kernel.
  void check(int code, const char* what);
  void fail(Status status);
  void* native() const { return native_; }

  void set_filter(LaunchFilter* filter) { filter_ = filter; }  // nullptr: all launches are made
  bool makes(const Launch& l) const;

 private:
  void* native_ = nullptr;
  LaunchFilter* filter_ = nullptr;
  bool holds_ = false;
  bool prefers_shared_ = false;
  Status fault_;
};

// Graph is recorded work that is submitted as one.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& o) noexcept : native_(std::exchange(o.native_, nullptr)), nodes_(o.nodes_) {}
  Graph& operator=(Graph&& o) noexcept {
    std::swap(native_, o.native_);
    nodes_ = o.nodes_;
    return *this;
  }
  explicit operator bool() const { return native_ != nullptr; }
  int nodes() const { return nodes_; }

 private:
  friend class Stream;
  void* native_ = nullptr;
  int nodes_ = 0;
};

// Event marks a point of a stream; elapsed_ms(a, b) needs both synchronised. For benches.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(Stream& stream);
  void* native() const { return native_; }

 private:
  void* native_ = nullptr;
};
float elapsed_ms(const Event& from, const Event& to);

// ---- launches

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr uint64_t count() const { return uint64_t{x} * y * z; }
};

// Most shared memory of a block, static and dynamic, that a kernel may use without an attribute.
inline constexpr unsigned kSharedUnasked = 48 * 1024;

struct Launch {
  Dim3 grid;                  // blocks; an empty grid launches nothing
  Dim3 block;                 // threads
  unsigned shared_bytes = 0;  // of dynamic shared memory (TND_DYNAMIC_SHARED)
  unsigned static_bytes = 0;  // at least the kernel's TND_SHARED, if the sum may exceed kSharedUnasked
  unsigned cluster = 1;       // neighbouring blocks (in x) that run together and share their shared memory
                              // (runtime_cluster.h); grid.x is a multiple. 1 where clusters_at_once() is 0
  bool overlap = false;  // the kernel calls wait_for_previous() before it touches what earlier work writes, and so may
                         // start while that runs (programmatic dependent launch; elsewhere ignored)
  uint64_t bytes = 0;    // of weights that it reads; for measuring, where one kernel does very different work
  const char* name = "kernel";  // for messages
};

inline bool Stream::makes(const Launch& l) const {
  return filter_ == nullptr || filter_->keep(l);
}

}  // namespace tnd::gpu

#if defined(TND_GPU_KERNELS)
#if defined(TND_GPU_EMU)
#include "sim/host/emu.h"
#endif
#include "gpu/runtime/runtime_device.h"

namespace tnd::gpu {

// launch runs kernel(args...) over a grid. Arguments are converted to the kernel's parameter types and copied.
template <typename... P, typename... A>
void launch(Stream& stream, const Launch& l, void (*kernel)(P...), A&&... args) {
  static_assert(sizeof...(P) == sizeof...(A), "number of kernel arguments");
  if (stream.failed() || l.grid.count() == 0 || !stream.makes(l)) return;
#if defined(TND_GPU_EMU)
  emu::launch(stream, l, [kernel, ... copy = static_cast<P>(args)] { kernel(copy...); });
#else
  const bool asks = l.shared_bytes + l.static_bytes > kSharedUnasked;
#if defined(TND_GPU_CUDA)
  if (asks) {
    stream.check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(l.shared_bytes)),
                 l.name);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(l.grid.x, l.grid.y, l.grid.z);
  config.blockDim = dim3(l.block.x, l.block.y, l.block.z);
  config.dynamicSmemBytes = l.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.native());
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (stream.overlaps(l)) {
    stream.check(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributePreferredSharedMemoryCarveout,
                             stream.prefers_shared() ? cudaSharedmemCarveoutMaxShared : cudaSharedmemCarveoutDefault),
        l.name);
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    config.numAttrs = 1;
  }
  if (l.cluster > 1) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim.x = l.cluster;
    a.val.clusterDim.y = a.val.clusterDim.z = 1;
  }
  stream.check(cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...), l.name);
#else
  if (asks) {
    stream.check(hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), hipFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(l.shared_bytes)),
                 l.name);
  }
  // clang-format off: it would read the brackets of the launch as a template's and split them.
  [&](P... values) {
    void* pointers[] = {static_cast<void*>(&values)..., nullptr};
    stream.check(hipLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(l.grid.x, l.grid.y, l.grid.z),
                                 dim3(l.block.x, l.block.y, l.block.z), pointers, l.shared_bytes,
                                 static_cast<hipStream_t>(stream.native())),
                 l.name);
  }(static_cast<P>(args)...);
#endif
#endif
}

}  // namespace tnd::gpu
#endif  // TND_GPU_KERNELS
