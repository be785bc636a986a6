// Helpers of the engine tests: a C++ face of the C ABI that fails the test on unexpected statuses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "harness.h"
#include "random_model.h"
#include "tandem/engine.h"

namespace tnd::test {

inline std::string demo_model() {
  return TND_ROOT "/models/tandem-tiny-target-q4_k_m.gguf";
}
inline std::string data_file(const std::string& name) {
  return TND_ROOT "/native/tests/data/" + name;
}

struct EngineOptions {
  int threads = 2;
  int max_context = 512;
  int max_sequences = 4;
  int max_tree_rows = 64;
  int kv_type = TND_KV_DEFAULT;
  int kv_type_v = -2;  // -2 = as kv_type
  int layer_first = 0, layer_last = 0;
  uint64_t cap = 0;
  int max_batch_rows = 0;
  int kv_positions = 0;
  uint64_t host_cap = 0;
  int attention_window = 0;
  std::string tables;  // a draft with the tables of this model; empty = a target
};

// Everything a step returned.
struct StepOut {
  tnd_status status = TND_OK;
  std::vector<int32_t> tokens, top_ids;
  std::vector<float> logprobs, scores, logits, top_logprobs, hidden;
  std::vector<uint16_t> hidden_bf16;
  std::vector<float> features;  // f32 encodings
  std::vector<uint16_t> features_bf16;
};

// A group of a step.
struct GroupIn {
  int32_t sequence = 0;
  std::vector<tnd_row> rows{};
  uint32_t kind = TND_GROUP_DECODE, flags = 0;
  std::vector<int32_t> path{};
  int32_t kept_position = 0, n_kept = 0;
};

// What a step is asked for.
struct StepIn {
  std::vector<GroupIn> groups;
  uint32_t flags = 0;  // added to those of all groups
  std::vector<uint32_t> masks;
  int n_masks = 0;
  int top_stride = 0;
  int feature_encoding = 0;
  int feature_width = 0;
  int hidden_encoding = TND_HIDDEN_F32;
  std::vector<float> hidden;
  std::vector<uint16_t> hidden_bf16;  // as hidden_encoding says
};

class Engine {
 public:
  Engine() = default;
  explicit Engine(const std::string& path, const EngineOptions& o = {}) {
    std::string error;
    if (open(path, o, &error) != TND_OK) report(__FILE__, __LINE__, "open " + path + ": " + error);
  }
  ~Engine() { tnd_close(e_); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  static tnd_open_options make_options(const std::string& path, const EngineOptions& o) {
    tnd_open_options c{};
    c.struct_size = sizeof c;
    c.role = o.tables.empty() ? TND_ROLE_TARGET : TND_ROLE_DRAFT;
    c.model_path = path.c_str();
    c.tables_path = o.tables.empty() ? nullptr : o.tables.c_str();
    c.memory_cap_bytes = o.cap;
    c.threads = o.threads;
    c.max_sequences = o.max_sequences;
    c.max_context = o.max_context;
    c.max_tree_rows = o.max_tree_rows;
    c.max_batch_rows = o.max_batch_rows;
    c.kv_type_k = o.kv_type;
    c.kv_type_v = o.kv_type_v == -2 ? o.kv_type : o.kv_type_v;
    c.layer_first = o.layer_first;
    c.layer_last = o.layer_last;
    c.kv_positions = o.kv_positions;
    c.host_cap_bytes = o.host_cap;
    c.attention_window = o.attention_window;
    return c;
  }

  tnd_status open(const std::string& path, const EngineOptions& o, std::string* error) {
    const tnd_open_options c = make_options(path, o);
    char text[1024];
    const tnd_status s = tnd_open(&c, &e_, text, sizeof text);
    *error = text;
    if (s != TND_OK) return s;
    info_.struct_size = sizeof info_;
    tnd_get_info(e_, &info_);
    return s;
  }

  tnd_engine* handle() const { return e_; }
  // On the emulation a call takes hundreds of times as long as on a CPU: tests run fewer cases there.
  bool emulated() { return std::string(info().backend) == "emu"; }
  const tnd_info& info() {
    tnd_get_info(e_, &info_);
    return info_;
  }
  std::string error() const {
    char text[1024];
    tnd_last_error(e_, text, sizeof text);
    return text;
  }
  // ok reports a failure and says whether the status was TND_OK.
  bool ok(tnd_status s) const {
    if (s != TND_OK) report(__FILE__, __LINE__, "status " + std::to_string(s) + ": " + error());
    return s == TND_OK;
  }

  int32_t sequence() const {
    int32_t s = -1;
    ok(tnd_sequence_create(e_, &s));
    return s;
  }
  int32_t fork(int32_t s) const {
    int32_t f = -1;
    ok(tnd_sequence_fork(e_, s, &f));
    return f;
  }
  int32_t snapshot(int32_t s) const {
    int32_t p = -1;
    ok(tnd_snapshot_create(e_, s, &p));
    return p;
  }
  int32_t length(int32_t s) const {
    int32_t n = -1;
    ok(tnd_sequence_length(e_, s, &n));
    return n;
  }

  StepOut run(const StepIn& in) const {
    StepOut out;
    const size_t vocab = static_cast<size_t>(info_.vocab), hidden = static_cast<size_t>(info_.hidden);
    size_t logits = 0, features = 0;
    std::vector<tnd_group> groups;
    std::vector<tnd_row> rows;
    for (const GroupIn& g : in.groups) {
      groups.push_back(tnd_group{g.sequence, static_cast<int32_t>(g.rows.size()), g.kind, g.flags | in.flags,
                                 g.path.data(), static_cast<int32_t>(g.path.size()), g.kept_position, g.n_kept});
      rows.insert(rows.end(), g.rows.begin(), g.rows.end());
      features += static_cast<size_t>(std::clamp(g.n_kept, 0, 1024));
    }
    const size_t n = rows.size();
    for (const tnd_row& r : rows) {
      logits += (r.want & TND_WANT_LOGITS) != 0;
      features += (r.want & TND_WANT_FEATURES) != 0;
    }
    out.tokens.resize(n);
    out.logprobs.resize(n);
    out.scores.resize(n);
    out.top_ids.resize(n * static_cast<size_t>(in.top_stride));
    out.top_logprobs.resize(out.top_ids.size());
    out.logits.resize(logits * vocab);
    const bool bf16 = in.feature_encoding == TND_FEATURE_RAW_BF16 || in.feature_encoding == TND_FEATURE_FUSED_BF16;
    const size_t width = features * static_cast<size_t>(in.feature_width);
    if (bf16) {
      out.features_bf16.resize(width);
    } else {
      out.features.resize(width);
    }
    const bool half = in.hidden_encoding == TND_HIDDEN_BF16;
    if (info_.layer_last < info_.n_layers) half ? out.hidden_bf16.resize(n * hidden) : out.hidden.resize(n * hidden);
    tnd_step s{};
    s.struct_size = sizeof s;
    s.n_groups = static_cast<int32_t>(groups.size());
    s.n_rows = static_cast<int32_t>(n);
    s.groups = groups.data();
    s.rows = rows.data();
    s.n_masks = in.n_masks;
    s.masks = in.masks.empty() ? nullptr : in.masks.data();
    s.hidden_in = in.hidden.empty() ? nullptr : in.hidden.data();
    s.hidden_out = out.hidden.empty() ? nullptr : out.hidden.data();
    if (half) {
      s.hidden_in = in.hidden_bf16.empty() ? nullptr : in.hidden_bf16.data();
      s.hidden_out = out.hidden_bf16.empty() ? nullptr : out.hidden_bf16.data();
    }
    s.hidden_encoding = in.hidden_encoding;
    s.tokens = out.tokens.data();
    s.logprobs = out.logprobs.data();
    s.scores = out.scores.data();
    s.top_ids = out.top_ids.empty() ? nullptr : out.top_ids.data();
    s.top_logprobs = out.top_logprobs.empty() ? nullptr : out.top_logprobs.data();
    s.top_stride = in.top_stride;
    s.feature_encoding = in.feature_encoding;
    s.logits = out.logits.empty() ? nullptr : out.logits.data();
    s.features = width == 0 ? nullptr
                 : bf16     ? static_cast<void*>(out.features_bf16.data())
                            : static_cast<void*>(out.features.data());
    out.status = tnd_step_run(e_, &s);
    return out;
  }
  StepOut run_ok(const StepIn& in) const {
    StepOut out = run(in);
    ok(out.status);
    return out;
  }

  // Rows of one sequence; parents -1 = tip, positions follow. path: rows that the group commits before.
  GroupIn rows(int32_t sequence, const std::vector<int32_t>& tokens, const std::vector<int32_t>& parents, uint32_t want,
               const std::vector<int32_t>& path = {}) const {
    const int32_t base = length(sequence) + static_cast<int32_t>(path.size());
    GroupIn g;
    g.sequence = sequence;
    g.path = path;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int32_t position = parents[i] < 0 ? base : g.rows[static_cast<size_t>(parents[i])].position + 1;
      g.rows.push_back(tnd_row{tokens[i], position, parents[i], want, 0, 0, -1});
    }
    return g;
  }
  static std::vector<int32_t> chain(size_t n) {
    std::vector<int32_t> p(n);
    for (size_t i = 0; i < n; ++i) p[i] = static_cast<int32_t>(i) - 1;
    return p;
  }
  // Commits tokens in chunks; returns the results of the last chunk, the logits of all.
  StepOut prefill(int32_t sequence, const std::vector<int32_t>& tokens, size_t chunk = 512, uint32_t want = 0,
                  uint32_t kind = TND_GROUP_DECODE) const {
    StepOut out;
    for (size_t at = 0; at < tokens.size(); at += chunk) {
      const size_t n = std::min(chunk, tokens.size() - at);
      StepIn in;
      in.flags = TND_GROUP_COMMIT;
      in.groups = {rows(sequence,
                        std::vector<int32_t>(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                                             tokens.begin() + static_cast<std::ptrdiff_t>(at + n)),
                        chain(n), want)};
      in.groups[0].kind = kind;
      StepOut part = run_ok(in);
      out.tokens = part.tokens;
      out.logits.insert(out.logits.end(), part.logits.begin(), part.logits.end());
      out.logprobs = part.logprobs;
    }
    return out;
  }
  // A step without rows: keeps a path of the pending rows, none of them when it is empty.
  bool commit(int32_t sequence, const std::vector<int32_t>& path) const {
    StepIn in;
    in.groups.resize(1);
    in.groups[0].sequence = sequence;
    in.groups[0].path = path;
    return ok(run(in).status);
  }
  // A step without rows that reads kept features in f32; it drops pending rows.
  StepOut kept(int32_t sequence, int32_t position, int32_t n, int encoding, int width) const {
    StepIn in;
    in.groups.resize(1);
    in.groups[0].sequence = sequence;
    in.groups[0].kept_position = position;
    in.groups[0].n_kept = n;
    in.feature_encoding = encoding;
    in.feature_width = width;
    return run(in);
  }
  std::vector<uint8_t> exported(int32_t sequence) const {
    uint64_t n = 0;
    ok(tnd_sequence_export_size(e_, sequence, &n));
    std::vector<uint8_t> data(n);
    ok(tnd_sequence_export(e_, sequence, data.data(), n));
    return data;
  }
  uint64_t stat(const char* name, bool memory = false) const {
    uint64_t n = 0;
    (memory ? tnd_memory : tnd_stats)(e_, nullptr, &n);
    std::vector<tnd_stat> all(n);
    (memory ? tnd_memory : tnd_stats)(e_, all.data(), &n);
    for (const tnd_stat& s : all) {
      if (std::string(s.name) == name) return s.value;
    }
    report(__FILE__, __LINE__, std::string("no statistic ") + name);
    return 0;
  }

 private:
  tnd_engine* e_ = nullptr;
  tnd_info info_{};
};

inline std::vector<int32_t> random_tokens(Rng* rng, size_t n, int32_t vocab) {
  std::vector<int32_t> t(n);
  for (int32_t& v : t) v = static_cast<int32_t>(rng->below(static_cast<uint64_t>(vocab)));
  return t;
}

// Bitwise equality of float vectors.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// One case of a golden file (data/README.md).
struct Golden {
  std::string name;
  std::vector<int32_t> ids, greedy;
  std::vector<std::vector<int32_t>> top_ids;
  std::vector<std::vector<double>> top_logits;
  std::vector<double> features;
};

inline std::vector<Golden> read_goldens(const std::string& path) {
  std::vector<Golden> all;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream in(line);
    std::string key;
    in >> key;
    if (key == "case") {
      all.emplace_back();
      in >> all.back().name;
      continue;
    }
    Golden& g = all.back();
    if (key == "top") {
      g.top_ids.emplace_back();
      g.top_logits.emplace_back();
      int32_t id;
      double value;
      while (in >> id >> value) {
        g.top_ids.back().push_back(id);
        g.top_logits.back().push_back(value);
      }
    } else if (key == "features") {
      for (double v; in >> v;) g.features.push_back(v);
    } else {
      std::vector<int32_t>& out = key == "ids" ? g.ids : g.greedy;
      for (int32_t v; in >> v;) out.push_back(v);
    }
  }
  if (all.empty()) report(__FILE__, __LINE__, "no goldens in " + path);
  return all;
}

}  // namespace tnd::test
