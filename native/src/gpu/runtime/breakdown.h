// Where the time of a captured graph goes, kernel by kernel: the graph is timed whole and then once more without the
// launches of each kind. Unlike times of kernels that run alone this counts what a launch costs in place: overlap with
// its neighbours, caches, the gaps between dependent kernels. For benches; results of a stream that was measured so
// mean nothing afterwards, since its operations ran many times over.
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
  double us = 0;  // that the graph takes longer with all of them than without
};

struct Breakdown {
  double us = 0;                    // median of the whole graph
  int nodes = 0;                    // of the graph
  std::vector<LaunchShare> shares;  // by falling time
};

// break_down captures what record() launches and measures it, each graph `runs` times. Failures stay in the stream.
Breakdown break_down(Stream& stream, const std::function<void()>& record, int runs);

// Says of every graph that a recorder captures from now on where its time goes: show is called after the measurement.
// runs 0 ends it. Not thread-safe; meant for the start of a bench.
void show_breakdowns(int runs, std::function<void(const Breakdown&)> show);
// breakdown_of_new_graph measures and shows if asked to.
void breakdown_of_new_graph(Stream& stream, const std::function<void()>& record);

}  // namespace tnd::gpu
