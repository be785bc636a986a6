// The calls of HIP that the engine makes, over the simulator. Calls run their work before they return, so streams are
// always idle. A library that was linked with HIP runs with this one loaded before it:
//   LD_PRELOAD=native/build/libamdsim.so TANDEM_ENGINE_LIB=native/build/libtandem_hip.so …
// Environment:
//   TANDEM_AMDSIM_PROCESSOR whose code of the library runs: gfx1100 (the default), gfx1030, gfx1151, gfx1201, …
//   TANDEM_AMDSIM_MEMORY bytes of device memory, by default 2 GiB
//   TANDEM_AMDSIM_THREADS threads of the host that run work groups, by default all
//   TANDEM_AMDSIM_COUNTS     file that gets a line a kernel at the end: name, launches, waves, then its instructions:
//                            scalar, vector, vector of words' products or 64 bits, matrix, shared memory, memory
//   TANDEM_AMDSIM_LLVM       folder of llvm-objdump and llvm-readelf
#include <hip/hip_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/amd/device.h"

using tnd::amdsim::CodeObject;
using tnd::amdsim::Grid;
using tnd::amdsim::Kernel;
using tnd::amdsim::Memory;

namespace {

// The same for every processor.
constexpr uint32_t kSharedPerBlock = 64 * 1024;
constexpr uint32_t kThreadsPerBlock = 1024;

std::string processor() {
  const char* name = std::getenv("TANDEM_AMDSIM_PROCESSOR");
  return name != nullptr ? name : "gfx1100";
}
uint64_t memory_bytes() {
  const char* text = std::getenv("TANDEM_AMDSIM_MEMORY");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : uint64_t{2} << 30;
}

// A kernel by the address of its stub on the host.
struct Function {
  CodeObject* object;
  std::string name;
};
struct Registry {
  std::mutex lock;
  std::unordered_map<const void*, Function> functions;
  std::unordered_map<const void*, uint64_t> allocations;
  uint64_t used = 0;
};
Registry& registry() {
  static Registry* all = new Registry();
  return *all;
}

thread_local hipError_t last_error = hipSuccess;
hipError_t report(hipError_t code) {
  if (code != hipSuccess) last_error = code;
  return code;
}

using Work = std::function<void()>;
struct Recorded {
  std::vector<Work> work;
};

hipError_t allocate(void** out, size_t bytes) {
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  if (all.used + bytes > memory_bytes()) return report(hipErrorOutOfMemory);
  void* p = nullptr;
  if (posix_memalign(&p, 256, bytes + 256) != 0) return report(hipErrorOutOfMemory);
  std::memset(p, 0xA5, bytes);  // contents are unspecified
  all.allocations[p] = bytes;
  all.used += bytes;
  Memory::of_device().add(p, bytes);
  *out = p;
  return hipSuccess;
}
hipError_t release(void* p) {
  if (p == nullptr) return hipSuccess;
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  const auto found = all.allocations.find(p);
  if (found == all.allocations.end()) return report(hipErrorInvalidValue);
  all.used -= found->second;
  all.allocations.erase(found);
  Memory::of_device().remove(p);
  std::free(p);
  return hipSuccess;
}

// The configuration of a launch, kept between the two calls of a kernel's stub.
struct Configuration {
  dim3 blocks, threads;
  size_t shared = 0;
  hipStream_t stream = nullptr;
};
thread_local Configuration pushed;

}  // namespace

struct ihipStream_t {
  std::unique_ptr<Recorded> recording;
};
struct ihipEvent_t {
  std::chrono::steady_clock::time_point at;
};
struct ihipGraph : Recorded {};
struct hipGraphExec : Recorded {};

namespace {

hipError_t submit(hipStream_t stream, Work work) {
  if (stream != nullptr && stream->recording != nullptr) {
    stream->recording->work.push_back(std::move(work));
  } else {
    work();
  }
  return hipSuccess;
}

}  // namespace

extern "C" {

struct FatBinary {
  uint32_t magic, version;
  const uint8_t* bundle;
  void* unused;
};

void** __hipRegisterFatBinary(const void* data) {
  auto* object = tnd::amdsim::object_of(static_cast<const FatBinary*>(data)->bundle, processor()).release();
  return reinterpret_cast<void**>(object);
}
void __hipUnregisterFatBinary(void** modules) {
  const char* path = std::getenv("TANDEM_AMDSIM_COUNTS");
  if (path == nullptr || modules == nullptr) return;
  if (FILE* to = std::fopen(path, "a"); to != nullptr) {
    reinterpret_cast<CodeObject*>(modules)->print_counts(to);
    std::fclose(to);
  }
}
void __hipRegisterFunction(void** modules, const void* stub, char*, const char* name, unsigned, void*, void*, void*,
                           void*, int*) {
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  all.functions[stub] = {reinterpret_cast<CodeObject*>(modules), name};
}
hipError_t __hipPushCallConfiguration(dim3 blocks, dim3 threads, size_t shared, hipStream_t stream) {
  pushed = {blocks, threads, shared, stream};
  return hipSuccess;
}
hipError_t __hipPopCallConfiguration(dim3* blocks, dim3* threads, size_t* shared, hipStream_t* stream) {
  *blocks = pushed.blocks, *threads = pushed.threads, *shared = pushed.shared, *stream = pushed.stream;
  return hipSuccess;
}

hipError_t hipGetDeviceCount(int* count) {
  *count = 1;
  return hipSuccess;
}
hipError_t hipSetDevice(int device) {
  return device == 0 ? hipSuccess : report(hipErrorInvalidDevice);
}
hipError_t hipGetDeviceProperties(hipDeviceProp_t* p, int device) {
  if (device != 0) return report(hipErrorInvalidDevice);
  *p = hipDeviceProp_t();
  const std::string name = processor();  // gfx1100: 11, 0, 0; gfx1201: 12, 0, 1
  std::snprintf(p->name, sizeof p->name, "simulated %s", name.c_str());
  std::snprintf(p->gcnArchName, sizeof p->gcnArchName, "%s", name.c_str());
  const int number = std::atoi(name.c_str() + 3);
  p->major = number / 100;
  p->minor = number / 10 % 10;
  p->warpSize = 32;
  p->multiProcessorCount = 4;
  p->sharedMemPerBlock = kSharedPerBlock;
  p->maxThreadsPerBlock = kThreadsPerBlock;
  p->l2CacheSize = 6 << 20;
  p->totalGlobalMem = memory_bytes();
  return hipSuccess;
}
hipError_t hipGetLastError() {
  return std::exchange(last_error, hipSuccess);
}
const char* hipGetErrorString(hipError_t code) {
  switch (code) {
    case hipSuccess:
      return "no error";
    case hipErrorOutOfMemory:
      return "out of memory";
    case hipErrorInvalidDeviceFunction:
      return "the library has no code for this processor, or not this kernel";
    case hipErrorInvalidConfiguration:
      return "invalid configuration of a launch";
    default:
      return "error of the simulator";
  }
}
hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total) {
  Registry& all = registry();
  const std::lock_guard guard(all.lock);
  *total = memory_bytes();
  *free_bytes = memory_bytes() - all.used;
  return hipSuccess;
}
hipError_t hipMalloc(void** out, size_t bytes) {
  return allocate(out, bytes);
}
hipError_t hipFree(void* p) {
  return release(p);
}
hipError_t hipHostMalloc(void** out, size_t bytes, unsigned) {
  return allocate(out, bytes);
}
hipError_t hipHostFree(void* p) {
  return release(p);
}
hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind, hipStream_t stream) {
  return submit(stream, [=] { std::memmove(to, from, bytes); });
}
hipError_t hipMemsetAsync(void* to, int value, size_t bytes, hipStream_t stream) {
  return submit(stream, [=] { std::memset(to, value, bytes); });
}

hipError_t hipStreamCreateWithFlags(hipStream_t* out, unsigned) {
  *out = new ihipStream_t();
  return hipSuccess;
}
hipError_t hipStreamDestroy(hipStream_t stream) {
  delete stream;
  return hipSuccess;
}
hipError_t hipStreamSynchronize(hipStream_t) {
  return hipSuccess;
}
hipError_t hipStreamQuery(hipStream_t) {
  return hipSuccess;
}
hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode) {
  stream->recording = std::make_unique<Recorded>();
  return hipSuccess;
}
hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* out) {
  auto* graph = new ihipGraph();
  graph->work = std::move(stream->recording->work);
  stream->recording.reset();
  *out = graph;
  return hipSuccess;
}
hipError_t hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t*, size_t* count) {
  *count = graph->work.size();
  return hipSuccess;
}
hipError_t hipGraphInstantiate(hipGraphExec_t* out, hipGraph_t graph, hipGraphNode_t*, char*, size_t) {
  auto* exec = new hipGraphExec();
  exec->work = graph->work;
  *out = exec;
  return hipSuccess;
}
hipError_t hipGraphDestroy(hipGraph_t graph) {
  delete graph;
  return hipSuccess;
}
hipError_t hipGraphExecDestroy(hipGraphExec_t exec) {
  delete exec;
  return hipSuccess;
}
hipError_t hipGraphLaunch(hipGraphExec_t exec, hipStream_t stream) {
  for (const Work& work : exec->work) (void)submit(stream, work);
  return hipSuccess;
}

hipError_t hipEventCreate(hipEvent_t* out) {
  *out = new ihipEvent_t();
  return hipSuccess;
}
hipError_t hipEventDestroy(hipEvent_t event) {
  delete event;
  return hipSuccess;
}
hipError_t hipEventRecord(hipEvent_t event, hipStream_t) {
  event->at = std::chrono::steady_clock::now();
  return hipSuccess;
}
hipError_t hipEventElapsedTime(float* ms, hipEvent_t from, hipEvent_t to) {
  *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return hipSuccess;
}

hipError_t hipFuncSetAttribute(const void*, hipFuncAttribute, int) {
  return hipSuccess;
}
hipError_t hipLaunchKernel(const void* stub, dim3 blocks, dim3 threads, void** arguments, size_t shared,
                           hipStream_t stream) {
  Function function;
  {
    Registry& all = registry();
    const std::lock_guard guard(all.lock);
    const auto found = all.functions.find(stub);
    if (found == all.functions.end()) return report(hipErrorInvalidDeviceFunction);
    function = found->second;
  }
  const Kernel* kernel = function.object != nullptr ? function.object->find(function.name) : nullptr;
  if (kernel == nullptr) {
    std::fprintf(stderr, "amdsim: no code for %s of kernel %s\n", processor().c_str(), function.name.c_str());
    return report(hipErrorInvalidDeviceFunction);
  }
  const uint64_t count = uint64_t{threads.x} * threads.y * threads.z;
  if (count == 0 || count > kThreadsPerBlock || blocks.x == 0 || blocks.y == 0 || blocks.z == 0 ||
      kernel->shared_bytes + shared > kSharedPerBlock) {
    std::fprintf(stderr, "amdsim: %llu threads and %llu bytes of shared memory for %s\n",
                 static_cast<unsigned long long>(count), static_cast<unsigned long long>(kernel->shared_bytes + shared),
                 function.name.c_str());
    return report(hipErrorInvalidConfiguration);
  }
  // Arguments are read when the launch is recorded, as by a card.
  std::vector<std::vector<uint8_t>> values;
  for (const Kernel::Argument& argument : kernel->arguments) {
    if (argument.kind.rfind("hidden_", 0) == 0) continue;
    const auto* from = static_cast<const uint8_t*>(arguments[values.size()]);
    values.emplace_back(from, from + argument.bytes);
  }
  return submit(stream, [kernel, blocks, threads, shared, values = std::move(values)] {
    std::vector<void*> pointers;
    for (const std::vector<uint8_t>& value : values) pointers.push_back(const_cast<uint8_t*>(value.data()));
    tnd::amdsim::run_grid(*kernel, Grid{blocks.x, blocks.y, blocks.z}, Grid{threads.x, threads.y, threads.z},
                          pointers.data(), static_cast<uint32_t>(shared));
  });
}

}  // extern "C"
