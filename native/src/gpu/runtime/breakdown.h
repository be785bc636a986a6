// Where the time of a captured graph goes, kernel by kernel: the graph is timed whole and then once more without the
// launches of each kind. Unlike times of kernels that run alone, this counts what a launch costs in place: overlap with
// its neighbours, caches, the gaps between dependent kernels. For benches: measuring runs the stream's operations many
// times, so their results are invalid afterwards.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// Launches of one kernel with equal grids and equal bytes.
struct LaunchShare {
  std::string kernel;
  Dim3 grid;
  uint64_t bytes = 0;  // Launch::bytes of one launch
  int launches = 0;
  double us = 0;  // by which the graph takes longer with all of them than without
};

struct Breakdown {
  double us = 0;                    // median of the whole graph
  int nodes = 0;                    // of the graph
  std::vector<LaunchShare> shares;  // longest time first
};

// break_down captures what record() launches and measures it, each graph `runs` times. Failures stay in the stream.
Breakdown break_down(Stream& stream, const std::function<void()>& record, int runs);

// show_breakdowns measures every graph that a recorder captures from now on, and passes the result to show. runs 0 ends
// it. Not thread-safe; meant for the start of a bench.
void show_breakdowns(int runs, std::function<void(const Breakdown&)> show);
// breakdown_of_new_graph measures and shows a graph if show_breakdowns() asked for it.
void breakdown_of_new_graph(Stream& stream, const std::function<void()>& record);

}  // namespace tnd::gpu
