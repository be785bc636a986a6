#include "gpu/runtime/breakdown.h"

#include <algorithm>
#include <utility>

namespace tnd::gpu {
namespace {

bool same(const LaunchShare& s, const Launch& l) {
  return s.kernel == l.name && s.bytes == l.bytes && s.grid.x == l.grid.x && s.grid.y == l.grid.y &&
         s.grid.z == l.grid.z;
}

// Counts kinds of launches.
class Census final : public LaunchFilter {
 public:
  std::vector<LaunchShare> shares;
  bool keep(const Launch& l) override {
    const auto it = std::find_if(shares.begin(), shares.end(), [&](const LaunchShare& s) { return same(s, l); });
    if (it == shares.end()) {
      shares.push_back(LaunchShare{l.name, l.grid, l.bytes, 1, 0});
    } else {
      ++it->launches;
    }
    return true;
  }
};

class LeaveOut final : public LaunchFilter {
 public:
  explicit LeaveOut(const LaunchShare& share) : share_(share) {}
  bool keep(const Launch& l) override { return !same(share_, l); }

 private:
  const LaunchShare& share_;
};

// Median time of a graph of the launches of record() that the filter lets through, us. The graph may be empty.
double time_graph(Stream& stream, LaunchFilter* filter, const std::function<void()>& record, int runs, int* nodes) {
  Graph graph;
  stream.set_filter(filter);
  stream.begin_capture();
  record();
  stream.end_capture(&graph);
  stream.set_filter(nullptr);
  *nodes = graph.nodes();
  if (graph.nodes() == 0 || !stream.sync().ok()) return 0;
  stream.run(graph);
  std::vector<double> times;
  Event start, end;
  for (int i = 0; i < runs; ++i) {
    start.record(stream);
    stream.run(graph);
    end.record(stream);
    if (!stream.sync().ok()) return 0;
    times.push_back(1e3 * static_cast<double>(elapsed_ms(start, end)));
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

int shown_runs = 0;
std::function<void(const Breakdown&)> shown;

}  // namespace

Breakdown break_down(Stream& stream, const std::function<void()>& record, int runs) {
  Breakdown b;
  Census census;
  b.us = time_graph(stream, &census, record, std::max(runs, 1), &b.nodes);
  b.shares = std::move(census.shares);
  for (LaunchShare& share : b.shares) {
    LeaveOut without(share);
    int nodes = 0;
    share.us = b.us - time_graph(stream, &without, record, std::max(runs, 1), &nodes);
  }
  std::stable_sort(b.shares.begin(), b.shares.end(),
                   [](const LaunchShare& x, const LaunchShare& y) { return x.us > y.us; });
  return b;
}

void show_breakdowns(int runs, std::function<void(const Breakdown&)> show) {
  shown_runs = runs;
  shown = std::move(show);
}

void breakdown_of_new_graph(Stream& stream, const std::function<void()>& record) {
  if (shown_runs > 0 && !stream.failed()) shown(break_down(stream, record, shown_runs));
}

}  // namespace tnd::gpu
