#include <algorithm>

#include "gpu/delta/delta.h"
#include "gpu/delta/delta_chunk.h"

namespace tnd::gpu {

// Registers hold one state: that of the last row that updated it. A row whose state_in is not that one loads it, so the
// last row that made it saves it. Rows to which no later row returns save nothing: a chain with side branches of one
// row stays in registers.
void DeltaStep::plan(std::span<const DeltaGroup> host, int n_rows, int layers) {
  constexpr int kNone = -1;
  rows.assign(static_cast<size_t>(n_rows), DeltaStepRow());
  n_groups = static_cast<int>(host.size());
  groups.assign(static_cast<size_t>(layers) * host.size(), DeltaStepGroup());
  std::vector<int> writer;  // last row that left its state in a slot
  for (size_t g = 0; g < host.size(); ++g) {
    const DeltaGroup& group = host[g];
    int32_t held = kStateNone;
    int commit_writer = kNone;
    writer.clear();
    for (int i = 0; i < group.count; ++i) {
      const DeltaRow& in = group.rows[i];
      DeltaStepRow& row = rows[static_cast<size_t>(group.first + i)];
      row = DeltaStepRow{{in.taps[0], in.taps[1], in.taps[2]}, kStateNone, kStateNone, 0, static_cast<int32_t>(g)};
      if (in.state_in != held) {
        row.load = in.state_in;
        if (in.state_in >= 0) {
          rows[static_cast<size_t>(group.first + writer[static_cast<size_t>(in.state_in)])].save = in.state_in;
        }
        held = in.state_in;
      }
      if (in.state_out == kStateNone) continue;
      row.update = 1;
      held = in.state_out;
      if (in.state_out == kStateCommitted) {
        commit_writer = i;
        continue;
      }
      if (static_cast<size_t>(in.state_out) >= writer.size()) {
        writer.resize(static_cast<size_t>(in.state_out) + 1, kNone);
      }
      writer[static_cast<size_t>(in.state_out)] = i;
    }
    if (commit_writer != kNone) rows[static_cast<size_t>(group.first + commit_writer)].save = kStateCommitted;
    for (int layer = 0; layer < layers; ++layer) {
      DeltaStepGroup& out = groups[static_cast<size_t>(layer) * host.size() + g];
      out.first = group.first;
      out.count = group.count;
      out.commit = group.commit ? 1 : 0;
      out.state = group.states[layer];
      if (!group.commit) out.replay = group.replay[layer];
    }
  }
}

size_t DeltaChunks::plan(std::span<const DeltaGroup> groups, size_t first, int capacity) {
  chunks.clear();
  chains.clear();
  for (; first < groups.size(); ++first) {
    const DeltaGroup& g = groups[first];
    if (!takes(g)) continue;
    const int count = (g.count + kDeltaChunk - 1) / kDeltaChunk;
    if (static_cast<int>(chunks.size()) + count > capacity) break;
    const int32_t group = static_cast<int32_t>(first);
    chains.push_back({static_cast<int32_t>(chunks.size()), count, group});
    for (int at = 0; at < g.count; at += kDeltaChunk) {
      chunks.push_back({g.first + at, std::min(kDeltaChunk, g.count - at), group});
    }
  }
  return first;
}

DeltaRule delta_rule(std::span<const DeltaStepGroup> groups) {
  const bool few = groups.size() == 1 && groups[0].count > 1 && groups[0].count <= kDeltaRowsAtOnce;
  return few ? launch_delta_columns : launch_delta_slices;
}

}  // namespace tnd::gpu
