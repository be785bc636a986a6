// Speed of the CPU products: time, bytes of packed weights per second and multiply-adds per second, beside the plain
// read speed of the same bytes.
//
//   matmul_bench                        the suite: the demonstration model, single shapes, one large matrix
//   matmul_bench model                  the demonstration model alone
//   matmul_bench TYPE K N [ROWS...]     one weight, e.g. Q4_K 5120 17408 1 8 64 512
//   options: --threads N (default 2), --isa scalar|avx2|avx512, --ms M (time per figure, default 150),
//            --min (least instead of median time: for a machine with other work)
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cpu/cpu_features.h"
#include "cpu/matmul.h"

namespace {

using tnd::DType;
using tnd::ThreadPool;
using tnd::cpu::MatmulJob;
using tnd::cpu::PackedWeight;

struct Options {
  int threads = 2;
  double ms = 150;
  bool minimum = false;
};

constexpr DType kTypes[] = {DType::kQ4_K, DType::kQ5_K,   DType::kQ6_K,  DType::kQ8_0, DType::kBF16,
                            DType::kF32,  DType::kF16,    DType::kQ4_0,  DType::kQ4_1, DType::kQ5_0,
                            DType::kQ5_1, DType::kIQ4_NL, DType::kIQ4_XS};

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Memory = std::unique_ptr<uint8_t, Free>;

Memory aligned(uint64_t bytes) {
  Memory memory(static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
  if (memory == nullptr) {
    std::fprintf(stderr, "out of memory\n");
    std::exit(1);
  }
  std::memset(memory.get(), 0, bytes);
  return memory;
}

uint64_t random_bits() {
  static uint64_t state = 88172645463325252u;
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

// A weight with random codes and scales near 0.01: encoded from noise where an encoder exists, raw bits otherwise.
struct Weight {
  Memory memory;
  PackedWeight packed;
};

Weight make_weight(DType type, uint64_t k, uint64_t n, ThreadPool& pool) {
  const uint64_t row_size = tnd::row_bytes(type, k);
  std::vector<uint8_t> rows(row_size * n);
  std::vector<float> x(k);
  for (float& v : x) v = static_cast<float>(random_bits() % 2001) / 1000.0f - 1.0f;
  std::vector<uint8_t> row(row_size);
  if (!tnd::quantise_row(type, x.data(), row.data(), k).ok()) {
    for (uint64_t i = 0; i < row_size; ++i)
      row[i] = i % tnd::block_bytes(type) < 2 ? 0x20 : static_cast<uint8_t>(random_bits());
  }
  for (uint64_t o = 0; o < n; ++o) std::memcpy(&rows[o * row_size], row.data(), row_size);
  Weight w{aligned(tnd::cpu::packed_bytes(type, k, n)), {}};
  const tnd::Status status = tnd::cpu::pack_weight(type, rows.data(), k, n, w.memory.get(), &w.packed, &pool);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::exit(1);
  }
  return w;
}

// Median (or least) microseconds of one call over at least options.ms.
template <typename F>
double measure(const Options& options, F&& f) {
  using Clock = std::chrono::steady_clock;
  f();
  std::vector<double> us;
  const auto start = Clock::now();
  do {
    const auto before = Clock::now();
    f();
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - before).count());
  } while (us.size() < 5 || std::chrono::duration<double, std::milli>(Clock::now() - start).count() < options.ms);
  const size_t rank = options.minimum ? 0 : us.size() / 2;
  std::nth_element(us.begin(), us.begin() + static_cast<int64_t>(rank), us.end());
  return us[rank];
}

uint64_t read_all(const uint8_t* p, uint64_t bytes) {
  uint64_t sums[8] = {};
  for (uint64_t i = 0; i + 64 <= bytes; i += 64) {
    for (int j = 0; j < 8; ++j) {
      uint64_t v;
      std::memcpy(&v, p + i + 8 * j, 8);
      sums[j] += v;
    }
  }
  return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

// Time to read the bytes of all weights once, shared out like the products.
double read_us(const Options& options, ThreadPool& pool, const std::vector<Weight>& weights) {
  static std::atomic<uint64_t> sink;  // keeps the loads
  constexpr uint64_t kPart = 64 * 1024;
  return measure(options, [&] {
    for (const Weight& w : weights) {
      pool.run(static_cast<int>((w.packed.bytes + kPart - 1) / kPart), [&](int task, int) {
        const uint64_t begin = static_cast<uint64_t>(task) * kPart;
        sink.store(read_all(w.memory.get() + begin, std::min(kPart, w.packed.bytes - begin)),
                   std::memory_order_relaxed);
      });
    }
  });
}

// One group of weights with the same input, as a layer runs them.
struct Group {
  std::vector<size_t> weights;
};

void bench_groups(const Options& options, const char* name, const std::vector<Weight>& weights,
                  const std::vector<Group>& groups, const std::vector<int>& rows_list) {
  ThreadPool pool(options.threads);
  uint64_t bytes = 0;
  uint64_t macs = 0;
  uint64_t max_k = 0;
  uint64_t max_n = 0;
  tnd::cpu::ActKinds kinds = 0;
  for (const Weight& w : weights) {
    bytes += w.packed.bytes;
    macs += w.packed.k * w.packed.n;
    max_k = std::max(max_k, w.packed.k);
    max_n = std::max(max_n, w.packed.n);
    kinds |= tnd::cpu::act_kind(w.packed.type);
  }
  const double read = read_us(options, pool, weights);
  std::printf("%s: %.2f M weights, %.2f MB packed, plain read %.1f us (%.1f GB/s)\n", name, macs * 1e-6, bytes * 1e-6,
              read, static_cast<double>(bytes) / read * 1e-3);
  for (int rows : rows_list) {
    const uint64_t urows = static_cast<uint64_t>(rows);
    Memory mem = aligned(tnd::cpu::act_bytes(max_k, rows, kinds));
    tnd::cpu::ActBuffer act;
    tnd::cpu::act_init(&act, mem.get(), max_k, rows, kinds);
    std::vector<float> x(max_k * urows);
    for (float& v : x) v = static_cast<float>(random_bits() % 2001) / 1000.0f - 1.0f;
    std::vector<std::vector<float>> y(groups.empty() ? 1 : 6);
    for (auto& out : y) out.resize(max_n * urows);
    double quantise = 0;
    const auto run = [&](bool products) {
      for (const Group& group : groups) {
        MatmulJob jobs[6];
        tnd::cpu::ActKinds wanted = 0;
        const uint64_t k = weights[group.weights[0]].packed.k;
        for (size_t i = 0; i < group.weights.size(); ++i) {
          const PackedWeight& w = weights[group.weights[i]].packed;
          wanted |= tnd::cpu::act_kind(w.type);
          jobs[i] = {.weight = &w, .y = y[i].data(), .y_stride = static_cast<int64_t>(w.n)};
        }
        tnd::cpu::quantise_act(pool, x.data(), static_cast<int64_t>(k), rows, k, wanted, &act);
        if (products) tnd::cpu::matmul(pool, {jobs, group.weights.size()}, act, rows);
      }
    };
    quantise = measure(options, [&] { run(false); });
    const double total = measure(options, [&] { run(true); });
    std::printf("  rows %4d  %9.1f us (of it quantise %6.1f)  %6.1f GB/s  %6.1f GMAC/s  %5.2f x plain read\n", rows,
                total, quantise, static_cast<double>(bytes) / total * 1e-3,
                static_cast<double>(macs) * rows / total * 1e-3, total / read);
  }
}

void bench_single(const Options& options, DType type, uint64_t k, uint64_t n, const std::vector<int>& rows) {
  ThreadPool pool(options.threads);
  std::vector<Weight> weights;
  weights.push_back(make_weight(type, k, n, pool));
  char name[64];
  std::snprintf(name, sizeof name, "%s %llu x %llu", tnd::dtype_name(type), static_cast<unsigned long long>(n),
                static_cast<unsigned long long>(k));
  bench_groups(options, name, weights, {Group{{0}}}, rows);
}

// The matrices of the demonstration target (models/tandem-tiny-target-q4_k_m.gguf), in the order a step uses them.
void bench_model(const Options& options) {
  ThreadPool pool(options.threads);
  std::vector<Weight> weights;
  std::vector<Group> groups;
  const auto group = [&](std::initializer_list<std::pair<DType, std::pair<uint64_t, uint64_t>>> list) {
    Group g;
    for (const auto& [type, shape] : list) {
      g.weights.push_back(weights.size());
      weights.push_back(make_weight(type, shape.first, shape.second, pool));
    }
    groups.push_back(g);
  };
  for (int layer = 0; layer < 8; ++layer) {
    if (layer % 4 == 3) {
      group({{DType::kQ4_K, {512, 2048}}, {DType::kQ4_K, {512, 256}}, {DType::kQ6_K, {512, 256}}});
      group({{DType::kQ4_K, {1024, 512}}});
    } else {
      group({{DType::kQ5_K, {512, 1024}},
             {DType::kQ4_K, {512, 512}},
             {DType::kQ8_0, {512, 4}},
             {DType::kQ8_0, {512, 4}}});
      group({{DType::kQ5_K, {512, 512}}});
    }
    group({{DType::kQ4_K, {512, 1536}}, {DType::kQ4_K, {512, 1536}}});
    group({{layer % 2 == 0 ? DType::kQ6_K : DType::kQ4_K, {1536, 512}}});
  }
  group({{DType::kQ6_K, {512, 8192}}});
  bench_groups(options, "demonstration target, all matrices", weights, groups, {1, 2, 4, 8, 16, 32, 64, 512});
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--threads" && i + 1 < argc) {
      options.threads = std::atoi(argv[++i]);
    } else if (arg == "--ms" && i + 1 < argc) {
      options.ms = std::atof(argv[++i]);
    } else if (arg == "--min") {
      options.minimum = true;
    } else if (arg == "--isa" && i + 1 < argc) {
      const std::string level = argv[++i];
      for (auto isa : {tnd::cpu::Isa::kScalar, tnd::cpu::Isa::kAvx2, tnd::cpu::Isa::kAvx512}) {
        if (level == tnd::cpu::isa_name(isa)) tnd::cpu::isa_force(isa);
      }
    } else {
      words.push_back(arg);
    }
  }
  std::printf("%d threads, %s\n", options.threads, tnd::cpu::isa_name(tnd::cpu::isa()));
  if (words.size() >= 3) {
    std::vector<int> rows;
    for (size_t i = 3; i < words.size(); ++i) rows.push_back(std::atoi(words[i].c_str()));
    if (rows.empty()) rows = {1, 2, 4, 8, 16, 32, 64, 512};
    for (DType type : kTypes) {
      if (words[0] == tnd::dtype_name(type) || words[0] == "all") {
        bench_single(options, type, std::strtoull(words[1].c_str(), nullptr, 10),
                     std::strtoull(words[2].c_str(), nullptr, 10), rows);
      }
    }
    return 0;
  }
  bench_model(options);
  if (!words.empty() && words[0] == "model") return 0;
  for (DType type : kTypes) bench_single(options, type, 1536, 4096, {1, 4, 16, 64, 512});
  bench_single(options, DType::kQ4_K, 5120, 17408, {1, 8, 16, 32, 64, 512});
  return 0;
}
