// Counters of an engine: written by the thread inside a call, readable from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tnd {

enum class Counter : int {
  kSteps,
  kRows,
  kCommits,
  kCommittedRows,
  kHeadRows,
  kStepNs,
  kEmbedNs,
  kNormNs,
  kMatmulNs,
  kDeltaNs,
  kAttentionNs,
  kSwigluNs,
  kHeadNs,
  kFeatureNs,
  kCommitNs,
  kWeightBytesRead,
  kKvBytesRead,
  kDraftAppends,
  kDraftProposals,
  kDraftNs,
  kScoreCalls,
  kScoreNs,
  kGraphRuns,      // submissions to a GPU that ran as a graph,
  kGraphCaptures,  // those of them that captured it first,
  kListRuns,       // and those that ran launch by launch
  kCount
};

inline const char* counter_name(Counter c) {
  constexpr const char* kNames[] = {
      "steps",           "rows",       "commits",     "committed_rows",    "head_rows",     "step_ns",
      "embed_ns",        "norm_ns",    "matmul_ns",   "delta_ns",          "attention_ns",  "swiglu_ns",
      "head_ns",         "feature_ns", "commit_ns",   "weight_bytes_read", "kv_bytes_read", "draft_appends",
      "draft_proposals", "draft_ns",   "score_calls", "score_ns",          "graph_runs",    "graph_captures",
      "list_runs"};
  static_assert(sizeof kNames / sizeof kNames[0] == static_cast<size_t>(Counter::kCount));
  return kNames[static_cast<int>(c)];
}

struct Stats {
  std::atomic<uint64_t> values[static_cast<int>(Counter::kCount)]{};

  // One writer at a time (the submitter), so load and store suffice.
  void add(Counter c, uint64_t n) {
    auto& v = values[static_cast<int>(c)];
    v.store(v.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  uint64_t get(Counter c) const { return values[static_cast<int>(c)].load(std::memory_order_relaxed); }
};

// PhaseTimer adds the time since the last mark to a counter: about 20 ns a mark.
class PhaseTimer {
 public:
  explicit PhaseTimer(Stats* stats) : stats_(stats), last_(now()) {}
  void mark(Counter c) {
    const int64_t t = now();
    stats_->add(c, static_cast<uint64_t>(t - last_));
    last_ = t;
  }
  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

 private:
  Stats* stats_;
  int64_t last_;
};

}  // namespace tnd
