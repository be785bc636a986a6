// What the device can do at best, measured in the same run as what is compared with it.
#pragma once

#include <functional>
#include <string>

namespace tnd::bench {

struct Rates {
  double copy_gbs = 0;     // bytes read and written a second / 1e9, of a copy far larger than any cache
  double matmul_tops = 0;  // bf16 matrix product, 1e12 operations (two a multiply-add) a second; 0 = not measured
  std::string matmul_how;  // what was measured
};

// show_breakdowns prints, for every kind of step that follows, where its time goes kernel by kernel
// (gpu/runtime/breakdown.h), each graph measured `runs` times. A kind whose output steers others shows a wrong, even
// negative time. From then on the engine's results mean nothing, nor do times that hold a measurement. False on the
// CPU, which has no graphs.
bool show_breakdowns(int runs, const Rates& rates);

// show_timeline runs a step, which returns its ms, and prints when its launches ran (gpu/runtime/timeline.h). The
// engine is idle before and after. Returns why it cannot, or an empty string.
std::string show_timeline(const char* device, const std::function<double()>& step);

// measure_rates needs half a second and, on a GPU, 1 GiB of its memory. device as in tnd_open_options.
Rates measure_rates(const char* device, int threads);

}  // namespace tnd::bench
