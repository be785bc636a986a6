// Weights, inputs and products on the device for tests of products. Works on the emulation and on cards.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cpu/cpu_features.h"
#include "cpu/matmul.h"
#include "gpu/matmul/matmul.h"
#include "gpu/matmul/matmul_jobs.h"
#include "gpu/matmul/matmul_layout.h"
#include "gpu/matmul/repack.h"
#include "harness.h"
#include "matmul_reference.h"

namespace tnd::gpu_matmul_test {

using gpu::ActsView;
using gpu::DeviceWeight;
using gpu::MatmulGroup;
using gpu::Prompt;
using gpu::Stream;
using test::Rng;
using test::Scales;

inline bool emulated() {
  return std::strcmp(gpu::api_name(), "emu") == 0;
}

// Device memory of a test.
class Memory {
 public:
  explicit Memory(uint64_t bytes) { CHECK_OK(gpu::device_alloc(bytes, &p_)); }
  Memory(Memory&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  ~Memory() { gpu::device_free(p_); }
  template <typename T = void>
  T* get() const {
    return static_cast<T*>(p_);
  }

 private:
  void* p_ = nullptr;
};

struct Device {
  gpu::DeviceInfo info;
  Stream stream;
  Memory scratch;

  Device() : scratch(open(this)) {}
  static uint64_t open(Device* d) {
    CHECK_OK(gpu::use_device(0));
    CHECK_OK(gpu::device_info(0, &d->info));
    CHECK_OK(d->stream.open());
    return gpu::matmul_scratch_bytes(d->info.processors);
  }
  void up(void* to, const void* from, uint64_t bytes) {
    stream.to_device(to, from, bytes);
    CHECK_OK(stream.sync());
  }
  void down(void* to, const void* from, uint64_t bytes) {
    stream.to_host(to, from, bytes);
    CHECK_OK(stream.sync());
  }
};

inline Device& device() {
  static Device d;
  return d;
}

// A weight in file order, packed for the CPU and on the device.
struct Weight {
  std::vector<uint8_t> rows;
  std::unique_ptr<uint8_t, void (*)(void*)> host;
  cpu::PackedWeight packed;
  Memory memory;
  DeviceWeight w;

  Weight(DType type, uint64_t k, uint64_t n, Scales scales, Rng& rng)
      : rows(test::random_weights(type, k, n, scales, rng)),
        host(static_cast<uint8_t*>(std::aligned_alloc(64, (cpu::packed_bytes(type, k, n) + 63) / 64 * 64)), std::free),
        memory(gpu::weight_bytes(type, static_cast<int64_t>(k), static_cast<int64_t>(n))) {
    CHECK_OK(cpu::pack_weight(type, rows.data(), k, n, host.get(), &packed));
    const int64_t kk = static_cast<int64_t>(k), nn = static_cast<int64_t>(n);
    CHECK_OK(gpu::check_weight(type, kk, nn));
    std::vector<uint8_t> staged(gpu::weight_bytes(type, kk, nn));
    const int64_t units = gpu::units(type, nn);
    const int64_t half = units / 2;  // in two parts, as a loader does
    gpu::repack_units(type, rows.data(), kk, nn, 0, half, staged.data());
    gpu::repack_units(type, rows.data(), kk, nn, half, units - half, staged.data() + half * gpu::unit_bytes(type, kk));
    device().up(memory.get(), staged.data(), staged.size());
    w = {type, static_cast<int32_t>(k), static_cast<int32_t>(n), memory.get<const uint8_t>(),
         gpu::half_scale(gpu::largest_weight(type, rows.data(), kk * nn))};
  }
};

// Inputs on the device in the forms that weights need.
struct Inputs {
  Memory x, memory;
  ActsView acts;

  Inputs(const std::vector<float>& rows, int64_t k, int count, uint32_t forms, Prompt prompt = Prompt::kNone,
         bool paired = false)
      : x(rows.size() * sizeof(float)), memory(gpu::acts_bytes(k, count, forms)) {
    device().up(x.get(), rows.data(), rows.size() * sizeof(float));
    gpu::acts_init(&acts, memory.get(), k, count, forms);
    acts.prompt = prompt;
    acts.paired = paired ? 1 : 0;
    gpu::launch_prepare(device().stream, {.x = x.get<const float>(),
                                          .x_stride = k,
                                          .rows = count,
                                          .k = static_cast<int32_t>(k),
                                          .forms = forms,
                                          .acts = acts});
  }
};

// Inputs with large and tiny super-blocks, zero groups and outliers.
inline std::vector<float> random_input(uint64_t k, int rows, Rng& rng) {
  std::vector<float> x(k * static_cast<uint64_t>(rows));
  for (uint64_t i = 0; i < x.size(); ++i) {
    x[i] = rng.normal() * (i / 256 % 5 == 3 ? 1e-3f : 1.0f);
    if (rng.below(200) == 0) x[i] *= 30.0f;
  }
  for (int r = 0; r < rows; ++r) {
    const uint64_t block = static_cast<uint64_t>(r) * k + rng.below((k + 31) / 32) * 32;
    for (uint64_t i = block; i < std::min<uint64_t>(block + 32, static_cast<uint64_t>(r + 1) * k); ++i) x[i] = 0.0f;
  }
  return x;
}

// Products of the CPU's scalar kernels: the definition.
inline std::vector<float> wanted(const cpu::PackedWeight& w, const std::vector<float>& x, int rows) {
  const cpu::Isa before = cpu::isa();
  cpu::isa_force(cpu::Isa::kScalar);
  ThreadPool pool(1);
  const cpu::ActKinds kinds = cpu::act_kind(w.type);
  const uint64_t bytes = cpu::act_bytes(w.k, rows, kinds);
  const std::unique_ptr<void, void (*)(void*)> memory(std::aligned_alloc(64, (bytes + 63) / 64 * 64), std::free);
  cpu::ActBuffer act;
  cpu::act_init(&act, memory.get(), w.k, rows, kinds);
  cpu::quantise_act(pool, x.data(), static_cast<int64_t>(w.k), rows, w.k, kinds, &act);
  std::vector<float> y(w.n * static_cast<uint64_t>(rows));
  const cpu::MatmulJob job{.weight = &w, .y = y.data(), .y_stride = static_cast<int64_t>(w.n)};
  cpu::matmul(pool, {&job, 1}, act, rows);
  cpu::isa_force(before);
  return y;
}

inline MatmulGroup group_of(const ActsView& acts, int rows, int unit) {
  MatmulGroup group{};
  group.rows = rows;
  group.acts = acts;
  group.scratch = device().scratch.get();
  group.processors = device().info.processors;
  group.shared_per_block = device().info.shared_per_block;
  group.unit = unit;
  return group;
}

// Products of the device, `rows` of them; what was not written stays NaN. processors: 0 = those of the device.
inline std::vector<float> product(const Weight& w, const Inputs& in, int rows, int unit, int processors = 0) {
  const uint64_t count = w.packed.n * static_cast<uint64_t>(rows);
  const Memory y(count * sizeof(float));
  device().stream.fill(y.get(), 0xFF, count * sizeof(float));
  MatmulGroup group = group_of(in.acts, rows, unit);
  if (processors > 0) group.processors = processors;
  group.count = 1;
  group.products[0] = {.w = w.w, .y = y.get<float>(), .y_stride = static_cast<int64_t>(w.packed.n)};
  gpu::launch_matmul(device().stream, group);
  std::vector<float> out(count);
  device().down(out.data(), y.get(), count * sizeof(float));
  return out;
}

inline bool same_bits(const float* a, const float* b, uint64_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

// Text of the first difference.
inline std::string difference(DType type, uint64_t k, uint64_t n, int rows, int unit, const std::vector<float>& got,
                              const std::vector<float>& want) {
  std::string text = std::string(dtype_name(type)) + " k " + std::to_string(k) + " n " + std::to_string(n) + " rows " +
                     std::to_string(rows) + " unit " + std::to_string(unit);
  for (uint64_t i = 0; i < got.size(); ++i) {
    if (same_bits(&got[i], &want[i], 1)) continue;
    return text + ": row " + std::to_string(i / n) + " output " + std::to_string(i % n) + " is " +
           std::to_string(got[i]) + ", not " + std::to_string(want[i]);
  }
  return text;
}

inline int units() {
  return emulated() ? 4 : 1;
}

}  // namespace tnd::gpu_matmul_test
