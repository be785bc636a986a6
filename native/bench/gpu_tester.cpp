// First contact with a card: five minutes that tell what the kernels can expect of it and whether its matrix
// instructions are what they take them for. Needs nothing but the driver. Prints a block of text to send back.
//   gpu_tester_cuda [device]      gpu_tester_hip [device]
//   gpu_tester_emu --check        operand maps only, as a test of the emulation and of this program
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/dtype.h"
#include "gpu/matmul.h"
#include "gpu/matmul_layout.h"
#include "gpu/repack.h"
#include "gpu_probe.h"

namespace {

using namespace tnd;
using namespace tnd::bench;

void require(const Status& s) {
  if (s.ok()) return;
  std::printf("failed: %s\n", s.message().c_str());
  std::exit(1);
}

bool check_maps(gpu::Stream& stream, void* mem) {
  bool good = true;
  for (const Mma kind : kAllMma) {
    if (!mma_present(kind)) continue;
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
    uint32_t random = 1;
    for (float& v : values) {
      random = random * 1664525u + 1013904223u;
      v = (static_cast<float>(random >> 8) * 0x1p-24f - 0.5f) * 0.05f;
    }
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
    require(gpu::device_alloc(total, &mem_));
    for (uint64_t at = 0; at < total; at += part) {
      stream.to_device(static_cast<uint8_t*>(mem_) + at, pinned, std::min(part, total - at));
    }
    require(stream.sync());
    gpu::host_free(pinned);
    w_.data = static_cast<const uint8_t*>(mem_);
    bytes_ = total;
  }
  ~Weight() { gpu::device_free(mem_); }
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;
  const gpu::DeviceWeight& get() const { return w_; }
  uint64_t bytes() const { return bytes_; }

 private:
  gpu::DeviceWeight w_;
  void* mem_ = nullptr;
  uint64_t bytes_ = 0;
};

// The table that figures of other engines can be laid beside: gate and up of the 27B as one matrix.
void matmul_table(gpu::Stream& stream, const gpu::DeviceInfo& info, double copy) {
  constexpr int kK = 5120, kN = 69632, kRows = 512, kCopies = 3;
  void *acts_mem = nullptr, *x = nullptr, *y = nullptr, *scratch = nullptr;
  for (const DType type : {DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kQ8_0, DType::kBF16}) {
    const uint32_t forms = gpu::act_form(type);
    const int n = type == DType::kBF16 ? kN / 4 : kN;
    std::unique_ptr<Weight> weights[kCopies];  // a ring larger than any cache
    for (auto& w : weights) w = std::make_unique<Weight>(stream, type, kK, n);
    require(gpu::device_alloc(gpu::acts_bytes(kK, kRows, forms), &acts_mem));
    require(gpu::device_alloc(uint64_t{kRows} * kK * 4, &x));
    require(gpu::device_alloc(uint64_t{kRows} * static_cast<uint64_t>(n) * 4, &y));
    require(gpu::device_alloc(std::max<uint64_t>(gpu::matmul_scratch_bytes(info.processors), 256), &scratch));
    stream.fill(x, 0x3C, uint64_t{kRows} * kK * 4);
    gpu::PrepareArgs prepare;
    prepare.x = static_cast<const float*>(x);
    prepare.x_stride = kK;
    prepare.k = kK;
    prepare.forms = forms;
    gpu::acts_init(&prepare.acts, acts_mem, kK, kRows, forms);
    for (const int rows : {1, 2, 4, 8, 16, 23, 32, 64, 512}) {
      prepare.rows = rows;
      prepare.acts.prompt = rows > 64 ? gpu::prompt_inputs(info) : gpu::Prompt::kNone;
      prepare.acts.paired = gpu::has_matmul_pairs(info) ? 1 : 0;
      gpu::launch_prepare(stream, prepare);
      gpu::MatmulGroup group;
      group.count = 1;
      group.rows = rows;
      group.acts = prepare.acts;
      group.scratch = scratch;
      group.processors = info.processors;
      group.shared_per_block = info.shared_per_block;
      group.products[0].y = static_cast<float*>(y);
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
    for (void* p : {acts_mem, x, y, scratch}) gpu::device_free(p);
  }
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
  gpu::Stream stream;
  require(stream.open());
  void* mem = nullptr;
  if (check_only) {
    require(gpu::device_alloc(16 << 10, &mem));
    const bool good = check_maps(stream, mem);
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
  const bool good = check_maps(stream, mem);
  bandwidth(stream, mem, bytes, info.processors);
  for (const int nodes : {1, 16, 128, 512}) {
    std::printf("graph of %3d dependent nodes: %6.2f us a node\n", nodes, node_us(stream, mem, nodes));
  }
  for (const Mma kind : kAllMma) {
    if (!mma_present(kind)) continue;
    std::printf("rate  %-20s %7.1f TOP/s\n", mma_name(kind), mma_tops(stream, kind, mem, 8 * info.processors));
  }
  const double copy = copy_gbs(stream, mem, bytes / 2, 8 * info.processors);
  gpu::device_free(mem);
  matmul_table(stream, info, copy);
  require(stream.sync());
  std::printf("---- to here ----\n");
  return good ? 0 : 1;
}
