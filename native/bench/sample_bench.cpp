// Time of a token's choice at a vocabulary of 151,936 for every sampler, over flat and steep logits, for the single row
// of a plain step and for the 16 rows of a tree on all threads. Usage: sample_bench [threads] [repetitions]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "core/thread_pool.h"
#include "cpu/cpu_features.h"
#include "cpu/sample.h"

using namespace tnd;
using namespace tnd::cpu;

namespace {

constexpr int64_t kVocab = 151936;
constexpr int kTreeRows = 16;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// flat: a nucleus of tens of thousands; steep: one of some dozens, as trained models have; level: all alike.
std::vector<float> logits_of(const char* kind, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(kVocab));
  for (float& v : x) v = normal(rng);
  if (kind[0] == 's') {
    std::vector<size_t> order(x.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), rng);
    for (size_t i = 0; i < order.size(); ++i) x[order[i]] += 18.0f - 2.0f * std::log(static_cast<float>(i + 1));
  }
  if (kind[0] == 'l') std::fill(x.begin(), x.end(), 1.5f);
  return x;
}

struct Case {
  const char* name;
  float temperature, top_p, min_p;
  int32_t top_k;
};

constexpr Case kCases[] = {
    {"argmax", 0, 1, 0, 0},
    {"temperature", 1, 1, 0, 0},
    {"min_p 0.05", 1, 1, 0.05f, 0},
    {"top_k 20", 1, 1, 0, 20},
    {"top_k 20 top_p", 1, 0.95f, 0, 20},
    {"top_k 1000", 1, 1, 0, 1000},
    {"top_k 50000 top_p", 1, 0.95f, 0, 50000},
    {"top_p 0.95", 1, 0.95f, 0, 0},
    {"top_p 0.99", 1, 0.99f, 0, 0},
    {"top_p 0.5", 1, 0.5f, 0, 0},
    {"top_p T 0.7", 0.7f, 0.95f, 0, 0},
};

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 15;
  ThreadPool pool(threads);
  std::vector<std::vector<uint64_t>> memory;
  std::vector<SampleScratch> scratch(static_cast<size_t>(threads));
  for (SampleScratch& s : scratch) {
    memory.emplace_back(SampleScratch::bytes(kVocab) / 8 + 16);
    const auto at = reinterpret_cast<uintptr_t>(memory.back().data());
    s.init(reinterpret_cast<void*>((at + 63) / 64 * 64), kVocab);
  }
  std::printf("median microseconds, %d threads, %s\n%-20s", threads, isa_name(isa()), "");
  for (const char* kind : {"flat", "steep", "level"}) std::printf("%10s 1 %9s %d", kind, kind, kTreeRows);
  std::printf("\n");
  for (const Case& c : kCases) {
    std::printf("%-20s", c.name);
    for (const char* kind : {"flat", "steep", "level"}) {
      std::vector<std::vector<float>> rows;
      for (unsigned i = 0; i < kTreeRows; ++i) rows.push_back(logits_of(kind, i));
      SamplerParams p;
      p.temperature = c.temperature;
      p.top_p = c.top_p;
      p.min_p = c.min_p;
      p.top_k = c.top_k;
      p.seed = 7;
      for (const int n : {1, kTreeRows}) {
        std::vector<double> times;
        for (int r = 0; r < repetitions; ++r) {
          const double begin = now();
          pool.run(n, [&](int i, int worker) {
            HeadRow row;
            row.sampler = &p;
            row.output_position = i + r * kTreeRows;
            choose_token(rows[static_cast<size_t>(i)].data(), kVocab, row, nullptr,
                         &scratch[static_cast<size_t>(worker)]);
          });
          times.push_back(now() - begin);
        }
        std::nth_element(times.begin(), times.begin() + repetitions / 2, times.end());
        std::printf("%12.0f", 1e6 * times[static_cast<size_t>(repetitions / 2)]);
      }
    }
    std::printf("\n");
  }
  return 0;
}
