// Host side of runtime.h on CUDA and HIP, whose APIs differ in names only.
// The emulation has its own: native/sim/host/runtime_emu.cpp.
#include <atomic>

#include "gpu/runtime/card.h"
#include "gpu/runtime/runtime.h"

#if !defined(TND_GPU_EMU)

#if defined(TND_GPU_CUDA)
#define VENDOR(name) cuda##name
#else
#define VENDOR(name) hip##name
#endif

namespace tnd::gpu {
namespace {

using VendorStream = VENDOR(Stream_t);
using VendorEvent = VENDOR(Event_t);
using VendorGraph = VENDOR(GraphExec_t);

VendorStream stream_of(void* native) {
  return static_cast<VendorStream>(native);
}

Status check_call(VENDOR(Error_t) code, const char* what) {
  if (code == VENDOR(Success)) return Status();
  (void)VENDOR(GetLastError)();  // or the next launch reports it again
  return errorf(code == VENDOR(ErrorMemoryAllocation) ? TND_RESOURCE_EXHAUSTED : TND_INTERNAL, "%s: %s (%s %d)", what,
                VENDOR(GetErrorString)(code), api_name(), static_cast<int>(code));
}

#if defined(TND_GPU_CUDA)
constexpr int kDevices = 64;  // about which answers are kept

// Never launched: all kernels of the library are compiled for the same processors, so this one stands for them.
__global__ void code_kernel() {}

// The compute capability that the current device's code of a kernel was made for, 86 for 8.6; 0 if there is none.
int code_of(const void* kernel) {
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess) return attributes.ptxVersion;
  (void)cudaGetLastError();
  return 0;
}
#endif

}  // namespace

const char* api_name() {
#if defined(TND_GPU_CUDA)
  return "cuda";
#else
  return "hip";
#endif
}

int device_count() {
  int n = 0;
  if (VENDOR(GetDeviceCount)(&n) == VENDOR(Success)) return n;
  (void)VENDOR(GetLastError)();
  return 0;
}

Status device_info(int device, DeviceInfo* out) {
#if defined(TND_GPU_CUDA)
  cudaDeviceProp p;
#else
  hipDeviceProp_t p;
#endif
  TND_TRY(check_call(VENDOR(GetDeviceProperties)(&p, device), "device properties"));
  *out = DeviceInfo();
  out->name = p.name;
  out->major = p.major;
  out->minor = p.minor;
  out->processors = p.multiProcessorCount;
#if defined(TND_GPU_CUDA)
  out->shared_per_block = static_cast<int>(p.sharedMemPerBlockOptin);
#else
  out->shared_per_block = static_cast<int>(p.sharedMemPerBlock);
#endif
  out->l2_bytes = p.l2CacheSize;
  out->total_bytes = p.totalGlobalMem;
#if defined(TND_GPU_HIP)
  if (p.warpSize != TND_WARP) {
    return errorf(TND_UNIMPLEMENTED, "%s has waves of %d lanes, these kernels are for 32", p.name, p.warpSize);
  }
#endif
  return impersonate(out);
}

Status check_code([[maybe_unused]] const DeviceInfo& device) {
#if defined(TND_GPU_CUDA)
  if (code_of(reinterpret_cast<const void*>(code_kernel)) == 0) return no_code_for(device);
#endif
  return Status();
}

Status use_device(int device) {
  return check_call(VENDOR(SetDevice)(device), "choosing the device");
}

bool device_overlaps() {
#if defined(TND_GPU_CUDA)
  static std::atomic<int> known[kDevices];  // code, one more than the answer
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kDevices) return false;
  int code = known[device].load(std::memory_order_relaxed) - 1;
  if (code < 0) {
    code = code_of(reinterpret_cast<const void*>(code_kernel));
    known[device].store(code + 1, std::memory_order_relaxed);
  }
  return code_starts_early(code);
#else
  return false;
#endif
}

int clusters_at_once([[maybe_unused]] int blocks, [[maybe_unused]] int threads, [[maybe_unused]] const void* kernel) {
#if defined(TND_GPU_CUDA)
  static std::atomic<int> known[kDevices][9];  // one more than the answer
  int device = 0, major = 0, shared = 0;
  if (plain_launches() || cudaGetDevice(&device) != cudaSuccess || device >= kDevices || blocks > 8) return 0;
  if (const int n = known[device][blocks].load(std::memory_order_relaxed); n != 0) return n - 1;
  int n = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
      code_forms_clusters(major, code_of(kernel)) &&
      cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared) == cudaSuccess) {
    cudaLaunchConfig_t config{};
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.gridDim = dim3(static_cast<unsigned>(blocks) * 64);
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared);
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&n, kernel, &config) != cudaSuccess) n = 0;
  }
  (void)cudaGetLastError();
  known[device][blocks].store(n + 1, std::memory_order_relaxed);
  return n;
#else
  return 0;
#endif
}
Status memory_free(uint64_t* free_bytes) {
  size_t left = 0, total = 0;
  TND_TRY(check_call(VENDOR(MemGetInfo)(&left, &total), "free memory"));
  *free_bytes = left;
  return Status();
}

Status device_alloc(uint64_t bytes, void** out) {
  const Status status = check_call(VENDOR(Malloc)(out, bytes > 0 ? bytes : 1), "allocation");
  if (status.ok()) return status;
  uint64_t left = 0;
  (void)memory_free(&left);
  return errorf(status.code(), "%llu bytes of device memory, %llu are free: %s", static_cast<unsigned long long>(bytes),
                static_cast<unsigned long long>(left), status.message().c_str());
}
void device_free(void* p) {
  if (p != nullptr) (void)VENDOR(Free)(p);
}
Status host_alloc(uint64_t bytes, void** out) {
#if defined(TND_GPU_CUDA)
  return check_call(cudaHostAlloc(out, bytes > 0 ? bytes : 1, cudaHostAllocDefault), "pinned host memory");
#else
  // Kernels read plans from this memory and set flags in it that the host polls, while they run: what is coherent only
  // at the end of a kernel would not do, whatever HIP_HOST_COHERENT says.
  constexpr unsigned kFlags = hipHostMallocCoherent | hipHostMallocMapped;
  return check_call(hipHostMalloc(out, bytes > 0 ? bytes : 1, kFlags), "pinned host memory");
#endif
}
void host_free(void* p) {
#if defined(TND_GPU_CUDA)
  if (p != nullptr) (void)cudaFreeHost(p);
#else
  if (p != nullptr) (void)hipHostFree(p);
#endif
}

// ---- streams

Stream::~Stream() {
  if (native_ != nullptr) (void)VENDOR(StreamDestroy)(stream_of(native_));
}
Status Stream::open() {
  VendorStream stream = nullptr;
  TND_TRY(check_call(VENDOR(StreamCreateWithFlags)(&stream, VENDOR(StreamNonBlocking)), "stream"));
  native_ = stream;
  return Status();
}
void Stream::to_device(void* dst, const void* host, uint64_t bytes) {
  if (failed()) return;
  check(VENDOR(MemcpyAsync)(dst, host, bytes, VENDOR(MemcpyHostToDevice), stream_of(native_)), "copy to the device");
}
void Stream::to_host(void* host, const void* src, uint64_t bytes) {
  if (failed()) return;
  check(VENDOR(MemcpyAsync)(host, src, bytes, VENDOR(MemcpyDeviceToHost), stream_of(native_)), "copy to the host");
}
void Stream::copy(void* dst, const void* src, uint64_t bytes) {
  if (failed()) return;
  check(VENDOR(MemcpyAsync)(dst, src, bytes, VENDOR(MemcpyDeviceToDevice), stream_of(native_)), "copy on the device");
}
void Stream::fill(void* dst, uint8_t value, uint64_t bytes) {
  if (failed()) return;
  check(VENDOR(MemsetAsync)(dst, value, bytes, stream_of(native_)), "fill");
}
Status Stream::sync() {
  if (!failed()) check(VENDOR(StreamSynchronize)(stream_of(native_)), "the device");
  return fault_;
}

Status Stream::wait(const uint64_t* done, uint64_t number) {
  constexpr int kSpins = 1024;  // polls of the flag between two checks for a fault of the device
  const auto is_done = [&] { return __atomic_load_n(done, __ATOMIC_ACQUIRE) == number; };
  while (!failed()) {
    for (int i = 0; i < kSpins; ++i) {
      if (is_done()) return Status();
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    const auto code = VENDOR(StreamQuery)(stream_of(native_));
    if (code != VENDOR(ErrorNotReady)) break;
  }
  return sync();
}

bool Stream::overlaps(const Launch& l) {
  const bool held = std::exchange(holds_, false);
  return l.overlap && !held && !plain_launches() && device_overlaps();
}

void Stream::begin_capture() {
  if (failed()) return;
  check(VENDOR(StreamBeginCapture)(stream_of(native_), VENDOR(StreamCaptureModeThreadLocal)), "graph capture");
}
void Stream::end_capture(Graph* out) {
  VENDOR(Graph_t) graph = nullptr;
  check(VENDOR(StreamEndCapture)(stream_of(native_), &graph), "graph capture");
  if (graph == nullptr) return;
  size_t nodes = 0;
  VendorGraph exec = nullptr;
  check(VENDOR(GraphGetNodes)(graph, nullptr, &nodes), "graph nodes");
#if defined(TND_GPU_CUDA)
  if (!failed()) check(cudaGraphInstantiate(&exec, graph, 0), "graph");
#else
  if (!failed()) check(hipGraphInstantiate(&exec, graph, nullptr, nullptr, 0), "graph");
#endif
  (void)VENDOR(GraphDestroy)(graph);
  Graph made;
  made.native_ = exec;
  made.nodes_ = static_cast<int>(nodes);
  *out = std::move(made);
}
void Stream::run(const Graph& graph) {
  if (failed()) return;
  check(VENDOR(GraphLaunch)(static_cast<VendorGraph>(graph.native_), stream_of(native_)), "graph launch");
}

void Stream::check(int code, const char* what) {
  if (code != 0) fail(check_call(static_cast<VENDOR(Error_t)>(code), what));
}
void Stream::fail(Status status) {
  if (fault_.ok()) std::swap(fault_, status);
}

Graph::~Graph() {
  if (native_ != nullptr) (void)VENDOR(GraphExecDestroy)(static_cast<VendorGraph>(native_));
}

// ---- events

Event::Event() {
  VendorEvent event = nullptr;
  if (VENDOR(EventCreate)(&event) == VENDOR(Success)) native_ = event;
}
Event::~Event() {
  if (native_ != nullptr) (void)VENDOR(EventDestroy)(static_cast<VendorEvent>(native_));
}
void Event::record(Stream& stream) {
  if (stream.failed()) return;
  stream.check(VENDOR(EventRecord)(static_cast<VendorEvent>(native_), stream_of(stream.native())), "event");
}
float elapsed_ms(const Event& from, const Event& to) {
  float ms = 0;
  const auto code =
      VENDOR(EventElapsedTime)(&ms, static_cast<VendorEvent>(from.native()), static_cast<VendorEvent>(to.native()));
  return code == VENDOR(Success) ? ms : -1.0f;
}

}  // namespace tnd::gpu

#endif  // not emulated
