// First contact with a card: five minutes that tell what the kernels can expect of it, whether its matrix instructions
// are what they take them for, and which of two forms of a kernel suit it. Needs nothing but the driver. Prints a block
// of text to send back.
//   gpu_tester_cuda [device]      gpu_tester_hip [device]
//   gpu_tester_emu --check        operand maps only, as a test of the emulation and of this program
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "core/dtype.h"
#include "gpu/delta/delta.h"
#include "gpu/matmul/matmul.h"
#include "gpu/matmul/matmul_layout.h"
#include "gpu/matmul/repack.h"
#include "gpu/runtime/card.h"
#include "gpu_probe.h"
#include "roles/tree.h"

namespace {

using namespace tnd;
using namespace tnd::bench;

void require(const Status& s) {
  if (s.ok()) return;
  std::printf("failed: %s\n", s.message().c_str());
  std::exit(1);
}

// Numbers in [0, 1), the same in every run.
class Random {
 public:
  float next() {
    state_ = state_ * 1664525u + 1013904223u;
    return static_cast<float>(state_ >> 8) * 0x1p-24f;
  }

 private:
  uint32_t state_ = 1;
};

bool check_maps(gpu::Stream& stream, const gpu::DeviceInfo& info, void* mem) {
  bool good = true;
  for (const Mma kind : kAllMma) {
    if (!mma_present(kind, info)) continue;
    const std::string text = check_map(stream, kind, mem);
    std::printf("map   %-20s %s\n", mma_name(kind), text.empty() ? "as documented" : ("WRONG:" + text).c_str());
    good &= text.empty();
  }
  return good;
}

void bandwidth(gpu::Stream& stream, void* mem, uint64_t bytes, int processors) {
  for (const int per : {1, 2, 4, 8, 16}) {
    const int blocks = per * processors;
    std::printf("bandwidth, %2d blocks of 256 a processor: read %7.1f GB/s   copy %7.1f GB/s\n", per,
                read_gbs(stream, mem, bytes, blocks), copy_gbs(stream, mem, bytes / 2, blocks));
  }
  // Smaller sets show the caches: a kernel that beats the last line of the sweep reads them.
  for (uint64_t size = uint64_t{1} << 20; size <= bytes; size *= 4) {
    std::printf("read %5llu MB again and again: %7.1f GB/s\n", static_cast<unsigned long long>(size >> 20),
                read_gbs(stream, mem, size, 8 * processors));
  }
}

// Device memory that ends with a block of the program.
class Memory {
 public:
  explicit Memory(uint64_t bytes) { require(gpu::device_alloc(bytes, &p_)); }
  ~Memory() { gpu::device_free(p_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <typename T>
  T* at(uint64_t byte = 0) const {
    return reinterpret_cast<T*>(static_cast<uint8_t*>(p_) + byte);
  }

 private:
  void* p_ = nullptr;
};

// Weight bytes of random codes: the pattern of a few outputs, repacked and repeated on the device.
class Weight {
 public:
  Weight(gpu::Stream& stream, DType type, int32_t k, int32_t n) {
    w_.type = type;
    w_.k = k;
    w_.n = n;
    const uint64_t total = gpu::weight_bytes(type, k, n);
    constexpr int kOuts = 128;  // whole units of every type
    std::vector<float> values(static_cast<size_t>(kOuts) * static_cast<size_t>(k));
    Random random;
    for (float& v : values) v = (random.next() - 0.5f) * 0.05f;
    std::vector<uint8_t> file(row_bytes(type, static_cast<uint64_t>(k)) * kOuts);
    for (int i = 0; i < kOuts; ++i) {
      require(quantise_row(type, &values[static_cast<size_t>(i) * static_cast<size_t>(k)],
                           &file[row_bytes(type, static_cast<uint64_t>(k)) * static_cast<size_t>(i)],
                           static_cast<uint64_t>(k)));
    }
    const uint64_t part = gpu::weight_bytes(type, k, kOuts);
    void* pinned = nullptr;
    require(gpu::host_alloc(part, &pinned));
    gpu::repack_units(type, file.data(), k, kOuts, 0, gpu::units(type, kOuts), static_cast<uint8_t*>(pinned));
    mem_.emplace(total);
    for (uint64_t at = 0; at < total; at += part) {
      stream.to_device(mem_->at<uint8_t>(at), pinned, std::min(part, total - at));
    }
    require(stream.sync());
    gpu::host_free(pinned);
    w_.data = mem_->at<uint8_t>();
    bytes_ = total;
  }
  const gpu::DeviceWeight& get() const { return w_; }
  uint64_t bytes() const { return bytes_; }

 private:
  gpu::DeviceWeight w_;
  std::optional<Memory> mem_;
  uint64_t bytes_ = 0;
};

// The table that figures of other engines can be laid beside: gate and up of the 27B as one matrix.
void matmul_table(gpu::Stream& stream, const gpu::DeviceInfo& info, double copy) {
  constexpr int kK = 5120, kN = 69632, kRows = 512, kCopies = 3;
  for (const DType type : {DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kQ8_0, DType::kBF16}) {
    const uint32_t forms = gpu::act_form(type);
    const int n = type == DType::kBF16 ? kN / 4 : kN;
    std::unique_ptr<Weight> weights[kCopies];  // a ring larger than any cache
    for (auto& w : weights) w = std::make_unique<Weight>(stream, type, kK, n);
    const Memory acts(gpu::acts_bytes(kK, kRows, forms)), x(uint64_t{kRows} * kK * 4),
        y(uint64_t{kRows} * static_cast<uint64_t>(n) * 4),
        scratch(std::max<uint64_t>(gpu::matmul_scratch_bytes(info.processors), 256));
    stream.fill(x.at<void>(), 0x3C, uint64_t{kRows} * kK * 4);
    gpu::PrepareArgs prepare;
    prepare.x = x.at<float>();
    prepare.x_stride = kK;
    prepare.k = kK;
    prepare.forms = forms;
    gpu::acts_init(&prepare.acts, acts.at<void>(), kK, kRows, forms);
    for (const int rows : {1, 2, 4, 8, 16, 23, 32, 64, 512}) {
      prepare.rows = rows;
      prepare.acts.prompt = rows > 64 ? gpu::prompt_inputs(info) : gpu::Prompt::kNone;
      prepare.acts.paired = gpu::has_matmul_pairs(info) ? 1 : 0;
      gpu::launch_prepare(stream, prepare);
      gpu::MatmulGroup group;
      group.count = 1;
      group.rows = rows;
      group.acts = prepare.acts;
      group.scratch = scratch.at<void>();
      group.processors = info.processors;
      group.shared_per_block = info.shared_per_block;
      group.products[0].y = y.at<float>();
      group.products[0].y_stride = n;
      const auto run = [&](int i) {
        group.products[0].w = weights[i % kCopies]->get();
        gpu::launch_matmul(stream, group);
      };
      gpu::Event from, to;
      run(0);
      constexpr int kRuns = 30;
      from.record(stream);
      for (int i = 1; i <= kRuns; ++i) run(i);
      to.record(stream);
      require(stream.sync());
      const double us = 1e3 * double{gpu::elapsed_ms(from, to)} / kRuns;
      std::printf("matmul %-5s %5d x %d, %3d rows: %8.1f us   %5.1f %% of copy   %7.1f TOP/s\n", dtype_name(type), n,
                  kK, rows, us, 100 * static_cast<double>(weights[0]->bytes()) / us / 1e3 / copy,
                  2e-6 * rows * n * kK / us);
    }
  }
}

// Both forms of the delta rule, as in a layer of the 27B; which one a step takes is in gpu/delta/delta.h.
bool delta_table(gpu::Stream& stream, const gpu::DeviceInfo& info) {
  constexpr DeltaShape kShape{16, 48};
  constexpr int kLayers = 24, kMost = 23, kRuns = 10;  // states of all layers are larger than caches of 64 MB
  constexpr uint64_t kState = kShape.state_elems() * sizeof(float), kRow = kShape.conv_dim() * sizeof(float),
                     kOut = kShape.value_dim() * sizeof(float), kGates = 2 * kShape.nv * sizeof(float);
  const int slots = TreePlanner::saved_states(kMost);
  const Memory states(kLayers * kState), conv(kMost * kRow), gates(kMost * kGates), mixed(kMost * kOut),
      replay(kMost * kOut), saved(static_cast<uint64_t>(slots) * kState), rows(kMost * sizeof(gpu::DeltaStepRow)),
      groups(kLayers * sizeof(gpu::DeltaStepGroup));
  void* pinned = nullptr;
  require(gpu::host_alloc(kState, &pinned));
  const auto send_pinned = [&](void* to, uint64_t bytes) {
    stream.to_device(to, pinned, bytes);
    require(stream.sync());
  };
  Random random;
  // Floats in [from, from + width).
  const auto upload_random = [&](float* to, uint64_t bytes, float from, float width) {
    for (uint64_t i = 0; i < bytes / sizeof(float); ++i) static_cast<float*>(pinned)[i] = from + width * random.next();
    send_pinned(to, bytes);
  };
  const auto upload = [&](void* to, const void* from, uint64_t bytes) {
    std::memcpy(pinned, from, bytes);
    send_pinned(to, bytes);
  };
  for (int i = 0; i < kLayers; ++i) upload_random(states.at<float>(i * kState), kState, -0.1f, 0.2f);
  upload_random(conv.at<float>(), kMost * kRow, -0.1f, 0.2f);
  upload_random(gates.at<float>(), kMost * kGates, 0.5f, 0.5f);

  gpu::DeltaArgs a;
  a.w.shape = kShape;
  a.groups = 1;
  a.row_plans = rows.at<gpu::DeltaStepRow>();
  a.conv = conv.at<float>(), a.gates = gates.at<float>(), a.mixed = mixed.at<float>(), a.saved = saved.at<float>();
  a.state_slots = slots;
  a.shared_per_block = info.shared_per_block;
  a.processors = info.processors;
  bool same = true;
  // A chain, and a tree with a twig at every second node.
  for (const auto& [name, n, tree] :
       {std::tuple{"1 row", 1, false}, {"chain of 16", 16, false}, {"tree of 23", 23, true}}) {
    std::vector<int32_t> parents, order(kMost), up(kMost);
    for (int i = 0; i < n; ++i) parents.push_back(tree && i % 3 == 2 ? i - 2 : i - 1);
    std::vector<DeltaRow> plan(static_cast<size_t>(n));
    TreePlanner(n).plan(parents, order.data(), up.data(), plan.data());
    std::vector<DeltaState> state;
    for (int i = 0; i < kLayers; ++i) state.push_back({nullptr, states.at<float>(i * kState)});
    std::vector<DeltaReplay> kept(kLayers);
    for (DeltaReplay& r : kept) r.d = replay.at<float>();
    const DeltaGroup group{0, n, false, plan.data(), state.data(), kept.data()};
    gpu::DeltaStep step;
    step.plan({&group, 1}, n, kLayers);
    upload(rows.at<void>(), step.rows.data(), step.rows.size() * sizeof(step.rows[0]));
    upload(groups.at<void>(), step.groups.data(), step.groups.size() * sizeof(step.groups[0]));
    a.rows = n;
    double us[2];
    std::vector<uint8_t> out[2];
    for (const int form : {0, 1}) {
      const gpu::DeltaRule rule = form == 0 ? gpu::launch_delta_slices : gpu::launch_delta_columns;
      const auto layers = [&] {
        for (int i = 0; i < kLayers; ++i) {
          a.group_plans = groups.at<gpu::DeltaStepGroup>() + i;
          rule(stream, a);
        }
      };
      layers();
      gpu::Event from, to;
      from.record(stream);
      for (int i = 0; i < kRuns; ++i) layers();
      to.record(stream);
      require(stream.sync());
      us[form] = 1e3 * double{gpu::elapsed_ms(from, to)} / (kRuns * kLayers);
      const uint64_t bytes = static_cast<uint64_t>(n) * kOut;
      for (const Memory* result : {&mixed, &replay}) {
        stream.to_host(pinned, result->at<void>(), bytes);
        require(stream.sync());
        const auto* const from_device = static_cast<const uint8_t*>(pinned);
        out[form].insert(out[form].end(), from_device, from_device + bytes);
      }
    }
    const bool equal = out[0] == out[1];
    std::printf("delta rule of a layer, %-11s: slices %7.1f us, columns %7.1f us, %s\n", name, us[0], us[1],
                equal ? "same bits" : "WRONG: bits differ");
    same &= equal;
  }
  gpu::host_free(pinned);
  return same;
}

}  // namespace

int main(int argc, char** argv) {
  const bool check_only = argc == 2 && std::strcmp(argv[1], "--check") == 0;
  char* end = nullptr;
  const int device = argc == 2 && !check_only ? static_cast<int>(std::strtol(argv[1], &end, 10)) : 0;
  if (argc > 2 || (end != nullptr && (end == argv[1] || *end != '\0'))) {
    std::fprintf(stderr,
                 "usage: %s [device number]   five minutes; prints a block of text to send back\n"
                 "       %s --check           the maps of matrix instructions only\n",
                 argv[0], argv[0]);
    return 2;
  }
  if (device < 0 || device >= gpu::device_count()) {
    std::printf("there is no %s device %d: the driver shows %d\n", gpu::api_name(), device, gpu::device_count());
    return 1;
  }
  gpu::DeviceInfo info;
  require(gpu::device_info(device, &info));
  require(gpu::use_device(device));
  require(gpu::check_code(info));
  gpu::Stream stream;
  require(stream.open());
  void* mem = nullptr;
  if (check_only) {
    require(gpu::device_alloc(16 << 10, &mem));
    const bool good = check_maps(stream, info, mem);
    gpu::device_free(mem);
    return good ? 0 : 1;
  }
  uint64_t free_bytes = 0;
  require(gpu::memory_free(&free_bytes));
  std::printf(
      "---- send from here ----\n%s:%d %s, %d.%d, %d processors, %.1f of %.1f GB free, L2 %.1f MB, %d bytes shared a "
      "block\n",
      gpu::api_name(), device, info.name.c_str(), info.major, info.minor, info.processors,
      static_cast<double>(free_bytes) / 1e9, static_cast<double>(info.total_bytes) / 1e9,
      static_cast<double>(info.l2_bytes) / 1e6, info.shared_per_block);
  const uint64_t bytes = uint64_t{1} << 30;
  require(gpu::device_alloc(bytes, &mem));
  stream.fill(mem, 0x5A, bytes);
  require(stream.sync());
  const bool good = check_maps(stream, info, mem);
  bandwidth(stream, mem, bytes, info.processors);
  for (const int nodes : {1, 16, 128, 512}) {
    std::printf("graph of %3d dependent nodes: %6.2f us a node\n", nodes, node_us(stream, mem, nodes));
  }
  for (const Mma kind : kAllMma) {
    if (!mma_present(kind, info)) continue;
    std::printf("rate  %-20s %7.1f TOP/s\n", mma_name(kind), mma_tops(stream, kind, mem, 8 * info.processors));
  }
  const double copy = copy_gbs(stream, mem, bytes / 2, 8 * info.processors);
  gpu::device_free(mem);
  matmul_table(stream, info, copy);
  require(stream.sync());
  const bool same = delta_table(stream, info);
  std::printf("---- to here ----\n");
  return good && same ? 0 : 1;
}
