// Opening a GPU backend, its memory, and the loading of weights.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "gguf/gguf.h"
#include "gpu/matmul/matmul_layout.h"
#include "gpu/matmul/repack.h"
#include "gpu/runtime/card.h"
#include "gpu/step/backend_gpu.h"

namespace tnd::gpu {
namespace {

constexpr uint64_t kStageBytes = uint64_t{16} << 20;
constexpr uint64_t kDeviceAlign = 256;

}  // namespace

GpuBackend::GpuBackend(int device, const DeviceInfo& info, int threads)
    : device_(device), info_(info), threads_(threads), recorder_(&stream_, device) {}

GpuBackend::~GpuBackend() {
  if (!use_device(device_).ok()) return;
  for (const auto& [base, bytes] : regions_) device_free(base);
  host_free(stage_);
}

Status GpuBackend::open() {
  TND_TRY(use_device(device_));
  TND_TRY(stream_.open());
  void* stage = nullptr;
  TND_TRY(host_alloc(kStageBytes, &stage));
  stage_ = static_cast<uint8_t*>(stage);
  return Status();
}

std::string GpuBackend::device() const {
  std::string text = info_.name + " (" + api_name() + ":" + std::to_string(device_);
  if (info_.major > 0) text += ", " + std::to_string(info_.major) + "." + std::to_string(info_.minor);
  return text + ")";
}

// The kind of device is part of it: the order of sums inside a matrix instruction is the vendor's.
std::string GpuBackend::numerics() const {
  std::string text = std::string(api_name()) + " " + std::to_string(info_.major) + "." + std::to_string(info_.minor);
  text += " matmul=1 float=";
  text += has_matmul_pairs(info_) ? "pairs1" : "1";
  text += " prompt=";
  switch (prompt_inputs(info_)) {
    case Prompt::kNone:
      text += "decode";
      break;
    case Prompt::kPairs:
      text += "pairs1";
      break;
    case Prompt::kPanels:
      text += "panels1";
      break;
  }
  text += " attention=1 delta=";
  text += delta_chunked(info_) ? "chunk1" : "1";
  return text + " sample=1";
}

uint64_t GpuBackend::free_bytes() const {
  uint64_t bytes = 0;
  return use_device(device_).ok() && memory_free(&bytes).ok() ? bytes : 0;
}

Status GpuBackend::allocate(uint64_t bytes, void** base) {
  TND_TRY(recorder_.flush());
  TND_TRY(device_alloc(bytes, base));
  regions_[*base] = bytes;
  stream_.fill(*base, 0, bytes);
  return stream_.sync();
}

void GpuBackend::release(void* base) {
  const auto it = regions_.find(base);
  if (it == regions_.end()) return;
  // Recorded operations may point there; a failure stays in the stream, and the next sync returns it.
  (void)recorder_.flush();
  device_free(base);
  regions_.erase(it);
}

void GpuBackend::to_device(void* dst, const void* host, uint64_t bytes) {
  if (!recorder_.flush().ok()) return;
  for (uint64_t at = 0; at < bytes; at += kStageBytes) {
    const uint64_t n = std::min(kStageBytes, bytes - at);
    std::memcpy(stage_, static_cast<const uint8_t*>(host) + at, n);
    stream_.to_device(static_cast<uint8_t*>(dst) + at, stage_, n);
    if (!stream_.sync().ok()) return;
  }
}

void GpuBackend::to_host(void* host, const void* src, uint64_t bytes) {
  if (!recorder_.flush().ok()) return;
  for (uint64_t at = 0; at < bytes; at += kStageBytes) {
    const uint64_t n = std::min(kStageBytes, bytes - at);
    stream_.to_host(stage_, static_cast<const uint8_t*>(src) + at, n);
    if (!stream_.sync().ok()) return;
    std::memcpy(static_cast<uint8_t*>(host) + at, stage_, n);
  }
}

// Weights are brought into device order by the host's threads, piece by piece in the staging buffer.
Status GpuBackend::matrix(const TensorView& t, Arena& arena, std::unique_ptr<Matrix>* out) {
  const int name_len = static_cast<int>(t.name.size());
  if (!dtype_known(static_cast<int32_t>(t.type)) || !dtype_matmul(static_cast<DType>(t.type))) {
    return errorf(TND_UNIMPLEMENTED, "tensor %.*s: the GPU backend has no matmul for type %s", name_len, t.name.data(),
                  gguf::type_label(t.type).c_str());
  }
  const DType type = static_cast<DType>(t.type);
  const int64_t k = static_cast<int64_t>(t.ne[0]), n = static_cast<int64_t>(t.ne[1]);
  const Status usable = check_weight(type, k, n);
  if (!usable.ok()) {
    return errorf(usable.code(), "tensor %.*s: %s", name_len, t.name.data(), usable.message().c_str());
  }
  auto m = std::make_unique<GpuMatrix>();
  m->type = type;
  m->k = k;
  m->n = n;
  auto* dst = static_cast<uint8_t*>(take_aligned(arena, Purpose::kWeights, weight_bytes(type, k, n), kDeviceAlign));
  m->weight = DeviceWeight{type, static_cast<int32_t>(k), static_cast<int32_t>(n), dst};
  if (!arena.measuring()) {
    TND_TRY(recorder_.flush());
    if (packers_ == nullptr) packers_ = std::make_unique<ThreadPool>(threads_, 0);
    const int64_t unit = unit_bytes(type, k), units = static_cast<int64_t>(weight_bytes(type, k, n)) / unit;
    const int64_t fit = static_cast<int64_t>(kStageBytes) / unit;
    if (fit == 0) {
      return errorf(TND_UNIMPLEMENTED, "tensor %.*s: rows of %lld values are too long", name_len, t.name.data(),
                    static_cast<long long>(k));
    }
    const int64_t outs = unit_outs(type);
    const uint64_t row = row_bytes(type, t.ne[0]);
    std::vector<float> largest;  // of tasks
    float most = 0.0f;
    for (int64_t first = 0; first < units; first += fit) {
      const int64_t count = std::min(fit, units - first);
      const int64_t per_task = (count + 4 * threads_ - 1) / (4 * threads_);
      const int64_t tasks = (count + per_task - 1) / per_task;
      largest.assign(static_cast<size_t>(tasks), 0.0f);
      packers_->run(static_cast<int>(tasks), [&](int task, int) {
        const int64_t at = task * per_task, taken = std::min(per_task, count - at);
        const int64_t out = (first + at) * outs, rows = std::min(taken * outs, n - out);
        const uint8_t* from = static_cast<const uint8_t*>(t.data) + static_cast<uint64_t>(out) * row;
        largest[static_cast<size_t>(task)] = largest_weight(type, from, rows * k);
        repack_units(type, t.data, k, n, first + at, taken, stage_ + at * unit);
      });
      most = std::max(most, *std::max_element(largest.begin(), largest.end()));
      stream_.to_device(dst + first * unit, stage_, static_cast<uint64_t>(count * unit));
      TND_TRY(stream_.sync());
    }
    m->weight.scale = half_scale(most);
  }
  *out = std::move(m);
  return Status();
}

}  // namespace tnd::gpu

namespace tnd {

// Devices are named "<api>:<number>"; NULL, "" and "<api>" mean the first.
Status make_backend(const char* device, int32_t threads, std::unique_ptr<Backend>* out) {
  using namespace gpu;
  const std::string api = api_name();
  const int count = device_count();
  const std::string exists = count == 0   ? "no " + api + " device or no driver for it"
                             : count == 1 ? "only " + api + ":0"
                                          : api + ":0 to " + api + ":" + std::to_string(count - 1);
  int index = 0;
  if (device != nullptr && device[0] != '\0' && api != device) {
    const std::string prefix = api + ":";
    char* end = nullptr;
    const bool ours = std::strncmp(device, prefix.c_str(), prefix.size()) == 0;
    const char* digits = device + (ours ? prefix.size() : 0);
    const long number = std::strtol(digits, &end, 10);
    if (!ours || digits[0] < '0' || digits[0] > '9' || *end != '\0' || number >= count) {
      return errorf(TND_INVALID_ARGUMENT, "device \"%.64s\": there is %s", device, exists.c_str());
    }
    index = static_cast<int>(number);
  }
  if (count == 0) return errorf(TND_FAILED_PRECONDITION, "there is %s", exists.c_str());
  constexpr int32_t kMaxThreads = 256;
  if (threads < 0 || threads > kMaxThreads) {
    return errorf(TND_INVALID_ARGUMENT, "threads is %d, must be 0..%d", threads, kMaxThreads);
  }
  if (threads == 0) threads = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  DeviceInfo info;
  TND_TRY(device_info(index, &info));
  TND_TRY(use_device(index));
  TND_TRY(check_code(info));
  auto backend = std::make_unique<GpuBackend>(index, info, threads);
  TND_TRY(backend->open());
  *out = std::move(backend);
  return Status();
}

}  // namespace tnd
