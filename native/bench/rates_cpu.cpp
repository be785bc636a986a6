// Copy bandwidth of the host. There is no matrix unit whose rate would be a bound here: SPEED.md has the kernels'.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "rates.h"

namespace tnd::bench {

bool show_breakdowns(int, const Rates&) {
  return false;
}

std::string show_timeline(const char*, const std::function<double()>&) {
  return "the CPU has no launches";
}

Rates measure_rates(const char*, int threads) {
  constexpr size_t kBytes = size_t{256} << 20;
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  double best = 0;
  for (int run = 0; run < 4; ++run) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> team;
    const size_t part = kBytes / static_cast<size_t>(threads);
    for (int i = 0; i < threads; ++i) {
      team.emplace_back([&, at = part * static_cast<size_t>(i)] { std::memcpy(&to[at], &from[at], part); });
    }
    for (std::thread& t : team) t.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * static_cast<double>(kBytes) / seconds.count() / 1e9);
  }
  Rates r;
  r.copy_gbs = best;
  r.matmul_how = "not measured";
  return r;
}

}  // namespace tnd::bench
