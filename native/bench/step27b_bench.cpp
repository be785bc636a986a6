// Times the phases of a round at true shapes with synthetic weights (synthetic_model.h), through the C ABI: prefill, a
// plain token, chains of 8 and 16 rows, a tree of 23 rows with its commit, at several contexts; drafter and scorer.
// Each line gives ms, the bytes it must move and its operations, as shares of the copy bandwidth and of the matrix rate
// that the device was measured to have in the same run. step27b_bench runs on the CPU, step27b_cuda and step27b_hip on
// GPUs; --help lists the options.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "bench_engine.h"
#include "kv_types.h"
#include "rates.h"
#include "synthetic_model.h"
#include "tandem/engine.h"

namespace {

using tnd::bench::median;
using tnd::bench::Rates;
using tnd::bench::SyntheticModel;
using tnd::bench::SyntheticShape;

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::exit(1);
}

struct Option {
  const char *name, *value, *help;
};
constexpr Option kOptions[] = {
    {"model", "27b", "27b (Q4_K_M), 0.8b (BF16), or none: the scorer alone"},
    {"device", "", "cuda:N or hip:N; none in step27b_bench"},
    {"layers", "0", "fewer layers than the model has; 0: all"},
    {"vocab", "0", "a smaller vocabulary; 0: the model's"},
    {"contexts", "1024,32768", "positions before the steps that are timed"},
    {"prefill", "8192", "tokens of the prompt that is timed"},
    {"kv", "f16", "type of the target's cache, as f16 or q8_0"},
    {"kv-draft", "f16", "cache of the drafter"},
    {"cap", "24", "GiB of device memory"},
    {"batch", "512", "rows of a prompt's chunk"},
    {"sequences", "", "numbers of sequences that decode together, each with the first context, such as 4,8,16"},
    {"runs", "20", "steps whose median is shown"},
    {"temperature", "0.7", "of the sampler of every row; 0: argmax"},
    {"top-p", "0.95", "of the sampler; 1: off"},
    {"top-k", "20", "of the sampler; 0: off"},
    {"threads", "0", "of the CPU; 0: two"},
    {"draft", "1", "0: no drafter"},
    {"together", "0", "1: target and drafter in one cap, both for the longest context, and rounds of both"},
    {"score", "", "lengths of prompts for the scorer (Qwen3-0.6B in BF16), such as 8192,32768"},
    {"breakdown", "0", "runs of a graph for what each kind of launch costs; 0: none"},
    {"timeline", "0", "1: when launches ran, in one more step of each kind; needs a build with TND_TIMELINE"},
    {"plan", "0", "1: print the memory that everything takes, and end"},
};

struct Options {
  std::map<std::string, std::string> values;
  Options() {
    for (const Option& o : kOptions) values[o.name] = o.value;
  }
  int number(const char* key) const { return std::atoi(values.at(key).c_str()); }
  float temperature() const { return real("temperature", 0, 2); }
  float top_p() const { return real("top-p", 1e-6f, 1); }
  float real(const char* key, float least, float most) const {
    char* end = nullptr;
    const float value = std::strtof(text(key).c_str(), &end);
    if (text(key).empty() || *end != '\0' || !(value >= least && value <= most)) {
      fail(std::string("--") + key + ": " + text(key));
    }
    return value;
  }
  const std::string& text(const char* key) const { return values.at(key); }
  std::vector<int> numbers(const char* key) const {  // ascending
    std::vector<int> all;
    for (const char* at = text(key).c_str(); *at != '\0';) {
      char* end = nullptr;
      all.push_back(static_cast<int>(std::strtol(at, &end, 10)));
      if (end == at || all.back() <= 0) fail(std::string("--") + key + ": " + text(key));
      at = *end == ',' ? end + 1 : end;
    }
    std::sort(all.begin(), all.end());
    return all;
  }
};

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void check(tnd_engine* e, tnd_status s, const char* what) {
  if (s == TND_OK) return;
  char text[512] = "";
  tnd_last_error(e, text, sizeof text);
  fail(std::string(what) + ": status " + std::to_string(s) + ": " + text);
}

// A line of the table. bytes and operations are what the phase cannot do without.
void line(const Rates& rates, const std::string& name, double ms, double bytes, double operations, double per_second) {
  std::printf("%-28s %9.3f ms  %8.3f GB  %5.1f %% of copy  %9.3f TOP", name.c_str(), ms, bytes / 1e9,
              100 * bytes / 1e6 / ms / rates.copy_gbs, operations / 1e12);
  if (rates.matmul_tops > 0) std::printf("  %5.1f %% of matmul", 100 * operations / 1e9 / ms / rates.matmul_tops);
  std::printf("  %10.1f /s\n", per_second);
  std::fflush(stdout);
}

struct Stats {
  std::map<std::string, uint64_t> values;
  explicit Stats(tnd_engine* e) {
    uint64_t n = 0;
    tnd_stats(e, nullptr, &n);
    std::vector<tnd_stat> all(n);
    tnd_stats(e, all.data(), &n);
    for (const tnd_stat& s : all) values[s.name] = s.value;
  }
  // print shows the phases since `before`, ms a call. A captured graph has no phases but its whole.
  void print(const Stats& before, int calls) const {
    std::printf("   ");
    for (const auto& [name, value] : values) {
      const uint64_t ns = value - before.values.at(name);
      if (name.ends_with("_ns") && ns > 0) {
        std::printf(" %s %.3f", name.substr(0, name.size() - 3).c_str(), static_cast<double>(ns) / 1e6 / calls);
      }
    }
    std::printf(" ms\n");
  }
};

tnd_open_options open_options(const Options& o, uint32_t role, const SyntheticModel& model, const std::string& tables,
                              int context) {
  const char* flag = role == TND_ROLE_DRAFT ? "kv-draft" : "kv";
  const int32_t type = kv_type_of(o.text(flag).c_str());
  if (type < 0) fail(std::string("--") + flag + ": " + o.text(flag) + " is none of " + tnd::kKvTypeNames);
  tnd_open_options c{};
  c.struct_size = sizeof c;
  c.role = role;
  c.model_path = model.path().c_str();
  c.tables_path = tables.empty() ? nullptr : tables.c_str();
  c.device = o.text("device").empty() ? nullptr : o.text("device").c_str();
  c.memory_cap_bytes = static_cast<uint64_t>(o.number("cap")) << 30;
  c.threads = o.number("threads");
  c.max_sequences = 1;
  if (role == TND_ROLE_TARGET) {
    for (const int n : o.numbers("sequences")) c.max_sequences = std::max(c.max_sequences, n);
  }
  c.max_context = context;
  c.max_tree_rows = 23;
  c.max_batch_rows = o.number("batch");
  c.kv_type_k = c.kv_type_v = role == TND_ROLE_SCORE ? TND_KV_DEFAULT : type;
  return c;
}

// Prints what an engine would take: the words with which it refuses a cap of one byte.
void print_plan(const Options& o, uint32_t role, const SyntheticModel& model, const std::string& tables, int context) {
  tnd_open_options c = open_options(o, role, model, tables, context);
  c.memory_cap_bytes = 1;
  tnd_engine* e = nullptr;
  char error[1024];
  if (tnd_open(&c, &e, error, sizeof error) != TND_RESOURCE_EXHAUSTED) fail(error);
  std::printf("%s, %d positions: %s\n", role == TND_ROLE_DRAFT ? "draft" : "target", context, error);
}

// Bytes of device memory that an engine has planned, and so allocated.
uint64_t planned_bytes(const std::map<std::string, uint64_t>& memory) {
  uint64_t sum = 0;
  for (const auto& [name, bytes] : memory) {
    if (name != "total_bytes" && name != "cap_bytes") sum += bytes;
  }
  return sum;
}

std::map<std::string, uint64_t> memory_of(tnd_engine* e) {
  uint64_t n = 0;
  tnd_memory(e, nullptr, &n);
  std::vector<tnd_stat> entries(n);
  tnd_memory(e, entries.data(), &n);
  std::map<std::string, uint64_t> all;
  for (const tnd_stat& m : entries) all[m.name] = m.value;
  return all;
}

// Opens an engine beside others that have `taken` bytes of the cap.
tnd_engine* open(const Options& o, uint32_t role, const SyntheticModel& model, const std::string& tables, int context,
                 uint64_t taken = 0) {
  tnd_open_options c = open_options(o, role, model, tables, context);
  c.memory_cap_bytes -= std::min(c.memory_cap_bytes - 1, taken);
  tnd_engine* e = nullptr;
  char error[1024];
  const double start = now_ms();
  if (tnd_open(&c, &e, error, sizeof error) != TND_OK) fail(error);
  tnd_info info{};
  info.struct_size = sizeof info;
  tnd_get_info(e, &info);
  std::printf("%s on %s, opened in %.1f s, context %d\n", info.name, info.device, (now_ms() - start) / 1e3,
              info.max_context);
  std::printf("   ");
  for (const auto& [name, bytes] : memory_of(e)) {
    if (bytes > 0) std::printf(" %s %.1f MB", name.c_str(), static_cast<double>(bytes) / 1e6);
  }
  std::printf("\n");
  return e;
}

// The target with what its phases cost at least.
class Target {
 public:
  Target(const Options& o, const SyntheticShape& shape, const SyntheticModel& model, int context, uint64_t taken = 0)
      : shape_(shape), model_(model), e_(open(o, TND_ROLE_TARGET, model, "", context, taken)) {
    tnd_info info{};
    info.struct_size = sizeof info;
    tnd_get_info(e_, &info);
    kv_bytes_ = static_cast<double>(info.kv_bytes_per_token);
    state_bytes_ = static_cast<double>(info.state_bytes_per_sequence);
    prompt_rows_ = info.prompt_rows;
    sampler_.struct_size = sizeof sampler_;  // every row is sampled as a chat would
    sampler_.temperature = o.temperature();
    sampler_.top_p = o.top_p();
    sampler_.top_k = o.number("top-k");
    sampler_.repetition_penalty = 1;
    sampler_.seed = 7;
    create();
  }
  ~Target() { tnd_close(e_); }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  tnd_engine* engine() const { return e_; }
  int length() const { return length_; }

  // From now on every row of a round also gives its features, fused for the draft of the file.
  void fuse(const SyntheticShape& draft, const std::string& path) {
    check(e_, tnd_capture_set(e_, draft.target_layers.data(), static_cast<int32_t>(draft.target_layers.size())),
          "capture");
    check(e_, tnd_fuse_load(e_, path.c_str()), "fuse");
    feature_width_ = draft.hidden;
  }
  // features [rows of the last round, hidden of the draft] in BF16.
  const std::vector<uint16_t>& features() const { return features_; }

  void reset() {
    check(e_, tnd_sequence_truncate(e_, sequence_, 0), "truncate");
    length_ = 0;
  }

  // Weights, state read and written once, the cache read once and the rows' own K/V written.
  double bytes(int rows, int sequences = 1) const {
    return static_cast<double>(model_.read_bytes()) + sequences * (2 * state_bytes_ + kv_bytes_ * length_) +
           kv_bytes_ * rows;
  }
  double operations(int rows) const {
    double attention = 0;
    for (int i = 0; i < shape_.layers; ++i) {
      if (!shape_.recurrent(i)) attention += 4.0 * shape_.q_heads * shape_.head_dim * (length_ + rows * 0.5);
    }
    return rows * (2.0 * static_cast<double>(model_.macs()) + attention);
  }
  double prefill_operations(int tokens) const {
    return operations(tokens) - 2.0 * static_cast<double>(model_.head_macs()) * (tokens - 1);
  }

  // Commits tokens in chunks; ms.
  double prefill(int tokens, int chunk) {
    const double start = now_ms();
    for (int done = 0; done < tokens;) {
      const int n = std::min(chunk, tokens - done);
      make_rows(n, [](int i) { return i - 1; });
      for (int i = 0; i + 1 < n; ++i) rows_[static_cast<size_t>(i)].want = 0;
      step(n > prompt_rows_ && prompt_rows_ > 0 ? TND_GROUP_PROMPT : TND_GROUP_DECODE, TND_GROUP_COMMIT);
      length_ += n;
      done += n;
    }
    return now_ms() - start;
  }

  double plain() {
    const double start = now_ms();
    make_rows(1, [](int) { return -1; });
    step(TND_GROUP_DECODE, TND_GROUP_COMMIT);
    ++length_;
    return now_ms() - start;
  }

  // Adds sequences of as many positions as the first one has, until there are n.
  void add_sequences(int n, int chunk) {
    const Sequence first{sequence_, length_};
    while (static_cast<int>(others_.size()) + 1 < n) {
      create();
      length_ = 0;
      prefill(first.length, chunk);
      others_.push_back({sequence_, length_});
      sequence_ = first.id, length_ = first.length;
    }
  }
  // A token of each of n sequences in one step; ms.
  double together(int n) {
    const double start = now_ms();
    rows_.clear();
    std::vector<tnd_group> groups;
    for (int i = 0; i < n; ++i) {
      const Sequence of = i == 0 ? Sequence{sequence_, length_} : others_[static_cast<size_t>(i - 1)];
      rows_.push_back(tnd_row{token(), of.length, -1, TND_WANT_TOKEN, 0, 0, -1});
      groups.push_back(tnd_group{of.id, 1, TND_GROUP_DECODE, TND_GROUP_COMMIT, nullptr, 0, 0, 0});
    }
    tokens_.resize(rows_.size());
    step(groups);
    ++length_;
    for (int i = 1; i < n; ++i) ++others_[static_cast<size_t>(i - 1)].length;
    return now_ms() - start;
  }

  // A step of n rows of which `keep` stay; tree: every second row hangs off its grandparent.
  double round(int n, bool tree, int keep) {
    const double start = now_ms();
    make_rows(n, [tree](int i) { return tree && i >= 4 && i % 2 == 0 ? i - 3 : i - 1; });
    if (feature_width_ > 0) {
      for (tnd_row& row : rows_) row.want |= TND_WANT_FEATURES;
      features_.resize(rows_.size() * static_cast<size_t>(feature_width_));
    }
    step(TND_GROUP_DECODE, 0);
    std::vector<int32_t> path;  // the first branch
    for (int32_t row = 0, i = 0; i < keep && row >= 0; ++i) {
      path.push_back(row);
      int32_t child = -1;
      for (int32_t j = row + 1; j < n && child < 0; ++j) {
        if (rows_[static_cast<size_t>(j)].parent == row) child = j;
      }
      row = child;
    }
    rows_.clear();
    step(0, 0, path);
    length_ += static_cast<int>(path.size());
    return now_ms() - start;
  }

 private:
  struct Sequence {
    int32_t id;
    int length;
  };

  void create() {
    check(e_, tnd_sequence_create(e_, &sequence_), "sequence");
    check(e_, tnd_sequence_sampler(e_, sequence_, &sampler_), "sampler");
  }
  int32_t token() {
    random_ = random_ * 1664525u + 1013904223u;
    return static_cast<int32_t>((random_ >> 8) % static_cast<uint32_t>(shape_.vocab));
  }

  template <typename Parent>
  void make_rows(int n, Parent parent) {
    rows_.resize(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      const int p = parent(i);
      const int position = p < 0 ? length_ : rows_[static_cast<size_t>(p)].position + 1;
      rows_[static_cast<size_t>(i)] = tnd_row{token(), position, p, TND_WANT_TOKEN, 0, 0, -1};
    }
    tokens_.resize(rows_.size());
  }

  // Commits a path of the pending rows, then runs rows_.
  void step(uint32_t kind, uint32_t flags, const std::vector<int32_t>& path = {}) {
    step({{sequence_, static_cast<int32_t>(rows_.size()), kind, flags, path.data(), static_cast<int32_t>(path.size()),
           0, 0}});
  }
  void step(const std::vector<tnd_group>& groups) {
    tnd_step s{};
    s.struct_size = sizeof s;
    s.n_groups = static_cast<int32_t>(groups.size());
    s.groups = groups.data();
    s.n_rows = static_cast<int32_t>(rows_.size());
    s.rows = rows_.data();
    s.tokens = tokens_.data();
    s.feature_encoding = TND_FEATURE_FUSED_BF16;
    s.features = features_.data();
    check(e_, tnd_step_run(e_, &s), "step");
  }

  const SyntheticShape& shape_;
  const SyntheticModel& model_;
  tnd_engine* e_;
  tnd_sampler sampler_{};
  int32_t sequence_ = -1;
  int length_ = 0;
  std::vector<Sequence> others_;
  double kv_bytes_ = 0, state_bytes_ = 0;
  int32_t prompt_rows_ = 0;
  uint32_t random_ = 1;
  int feature_width_ = 0;
  std::vector<tnd_row> rows_;
  std::vector<int32_t> tokens_;
  std::vector<uint16_t> features_;
};

// The drafter, its cache filled with features of ones.
class Drafter {
 public:
  static constexpr int kBlock = 16;

  Drafter(const Options& o, const SyntheticShape& shape, const SyntheticModel& model, const std::string& tables,
          int context)
      : shape_(shape), e_(open(o, TND_ROLE_DRAFT, model, tables, context)) {
    check(e_, tnd_sequence_create(e_, &sequence_), "sequence");
    tnd_info info{};
    info.struct_size = sizeof info;
    tnd_get_info(e_, &info);
    kv_bytes_ = static_cast<double>(info.kv_bytes_per_token);
    ids_.resize(static_cast<size_t>((kBlock - 1) * info.max_top_k));
    logprobs_.resize(ids_.size());
  }
  ~Drafter() { tnd_close(e_); }
  Drafter(const Drafter&) = delete;
  Drafter& operator=(const Drafter&) = delete;

  uint64_t memory() const { return planned_bytes(memory_of(e_)); }
  int length() const { return length_; }
  double cache_bytes() const { return kv_bytes_ * length_; }

  void fill(int length) {
    constexpr int kAtOnce = 4096;
    const std::vector<uint16_t> ones(static_cast<size_t>(kAtOnce) * static_cast<size_t>(shape_.hidden), 0x3F80);
    while (length_ < length) append(std::min(kAtOnce, length - length_), ones.data());
  }
  // ms.
  double append(int n, const uint16_t* features) {
    const double start = now_ms();
    const tnd_feature_rows piece{sequence_, length_, n, TND_FEATURE_FUSED_BF16, features};
    check(e_, tnd_draft_append(e_, &piece, 1), "append");
    length_ += n;
    return now_ms() - start;
  }
  double propose() {
    const double start = now_ms();
    const tnd_draft_request request{sequence_, 1, length_, kBlock, 8, 1.0f};
    check(e_, tnd_draft_propose(e_, &request, 1, ids_.data(), logprobs_.data()), "propose");
    return now_ms() - start;
  }

 private:
  const SyntheticShape& shape_;
  tnd_engine* e_;
  int32_t sequence_ = -1;
  int length_ = 0;
  double kv_bytes_ = 0;
  std::vector<int32_t> ids_;
  std::vector<float> logprobs_;
};

// Runs and prints one kind of step. Returns its median ms.
template <typename F>
double phase(const Options& o, const Rates& rates, Target& t, const std::string& name, int rows, int tokens, F&& run,
             int sequences = 1) {
  for (int i = 0; i < 3; ++i) run();
  const Stats before(t.engine());
  std::vector<double> times;
  for (int i = 0; i < o.number("runs"); ++i) times.push_back(run());
  const double ms = median(times);
  line(rates, name, ms, t.bytes(rows, sequences), t.operations(rows), 1e3 / ms * tokens);
  Stats(t.engine()).print(before, o.number("runs"));
  if (o.number("timeline") > 0) {
    const std::string fault = tnd::bench::show_timeline(o.text("device").c_str(), run);
    if (!fault.empty()) fail("--timeline: " + fault);
  }
  return ms;
}

SyntheticShape draft_shape(const Options& o, const SyntheticShape& target) {
  SyntheticShape shape = tnd::bench::dflash_27b_q8_0();
  if (o.number("layers") > 0) shape.layers = std::min(shape.layers, o.number("layers"));
  for (int32_t& id : shape.target_layers) id = id * (target.layers - 1) / 63;
  shape.target_layers.erase(std::unique(shape.target_layers.begin(), shape.target_layers.end()),
                            shape.target_layers.end());
  return shape;
}

void run_target(const Options& o, const Rates& rates, const SyntheticShape& shape, const SyntheticModel& model) {
  const std::vector<int> contexts = o.numbers("contexts");
  const int reserve = (o.number("runs") + 4) * 16;
  const int longest = std::max(contexts.empty() ? 0 : contexts.back(), o.number("prefill"));
  const int room = longest + reserve * 3 + 64;
  std::unique_ptr<SyntheticModel> draft_model;
  std::unique_ptr<Drafter> drafter;
  const SyntheticShape draft = draft_shape(o, shape);
  if (o.number("together") > 0) {
    const tnd::Status made = SyntheticModel::make(draft, 8, &draft_model);
    if (!made.ok()) fail(made.message());
    drafter = std::make_unique<Drafter>(o, draft, *draft_model, model.path(), room);
  }
  Target t(o, shape, model, room, drafter ? drafter->memory() : 0);
  if (const int tokens = o.number("prefill"); tokens > 0) {
    t.prefill(std::min(tokens, o.number("batch")), o.number("batch"));  // first touch of everything
    t.reset();
    const double operations = t.prefill_operations(tokens), bytes = t.bytes(tokens);
    const Stats before(t.engine());
    const double ms = t.prefill(tokens, o.number("batch"));
    line(rates, "prefill " + std::to_string(tokens), ms, bytes, operations, tokens / ms * 1e3);
    Stats(t.engine()).print(before, 1);
    t.reset();
  }
  for (const int context : contexts) {
    if (context > t.length()) t.prefill(context - t.length(), o.number("batch"));
    std::printf("context %d\n", t.length());
    const double plain = phase(o, rates, t, "plain, 1 row", 1, 1, [&] { return t.plain(); });
    const double few = phase(o, rates, t, "chain, 8 rows, 4 kept", 8, 4, [&] { return t.round(8, false, 4); });
    const double chain = phase(o, rates, t, "chain, 16 rows, 8 kept", 16, 8, [&] { return t.round(16, false, 8); });
    const double tree = phase(o, rates, t, "tree, 23 rows, 8 kept", 23, 8, [&] { return t.round(23, true, 8); });
    std::printf("    chain of 8 / plain %.3f   chain / plain %.3f   tree / plain %.3f\n", few / plain, chain / plain,
                tree / plain);
    for (const int n : context == contexts.front() ? o.numbers("sequences") : std::vector<int>()) {
      t.add_sequences(n, o.number("batch"));
      const double all =
          phase(o, rates, t, "plain, " + std::to_string(n) + " sequences", n, n, [&] { return t.together(n); }, n);
      std::printf("    %d sequences / 1: %.2f x the tokens\n", n, n * plain / all);
    }
    if (!drafter) continue;
    t.fuse(draft, draft_model->path());  // steps at later contexts then pay for features, too
    drafter->fill(t.length());
    std::printf("target and drafter have %.1f MB\n",
                static_cast<double>(drafter->memory() + planned_bytes(memory_of(t.engine()))) / 1e6);
    const double round = phase(o, rates, t, "tree, append, proposal", 23, 8, [&] {
      const double start = now_ms();
      t.round(23, true, 8);
      drafter->append(8, t.features().data());
      drafter->propose();
      return now_ms() - start;
    });
    std::printf("    round / plain %.3f\n", round / plain);
  }
}

// Memory of target and drafter at the longest context, from files without contents.
void plan(const Options& o, const SyntheticShape& shape) {
  const std::vector<int> contexts = o.numbers("contexts");
  const int longest = contexts.empty() ? 0 : contexts.back();
  const auto make = [](const SyntheticShape& s) {
    std::unique_ptr<SyntheticModel> model;
    const tnd::Status made = SyntheticModel::make(s, 0, &model);
    if (!made.ok()) fail(made.message());
    return model;
  };
  const std::unique_ptr<SyntheticModel> target = make(shape);
  print_plan(o, TND_ROLE_TARGET, *target, "", longest);
  if (o.number("draft") == 0 || shape.hidden != 5120) return;
  const std::unique_ptr<SyntheticModel> draft = make(draft_shape(o, shape));
  print_plan(o, TND_ROLE_DRAFT, *draft, target->path(), longest);
}

void run_draft(const Options& o, const Rates& rates, const SyntheticShape& target, const SyntheticModel& tables) {
  const SyntheticShape shape = draft_shape(o, target);
  std::unique_ptr<SyntheticModel> model;
  const tnd::Status made = SyntheticModel::make(shape, 8, &model);
  if (!made.ok()) fail(made.message());
  constexpr int kContext = 4096;
  Drafter d(o, shape, *model, tables.path(), kContext + 1024);
  d.fill(kContext);
  const std::vector<uint16_t> features(size_t{8} * static_cast<size_t>(shape.hidden), 0x3F80);
  std::vector<double> times, appends;
  for (int i = 0; i < o.number("runs") + 3; ++i) {
    appends.push_back(d.append(8, features.data()));
    times.push_back(d.propose());
  }
  // fc is not read by a proposal; the head is the target's.
  const double fc = static_cast<double>(shape.target_layers.size()) * shape.hidden * shape.hidden;
  double head_bytes = 0, head_macs = 0;
  for (const tnd::bench::SyntheticTensor& t : tnd::bench::synthetic_tensors(target)) {
    if (t.name != (target.tied ? "token_embd.weight" : "output.weight")) continue;
    head_bytes = static_cast<double>(t.bytes());
    head_macs = static_cast<double>(t.elements());
  }
  const double bytes = static_cast<double>(model->read_bytes()) - fc * 34 / 32 + head_bytes + d.cache_bytes();
  const double operations = 2.0 * Drafter::kBlock * (static_cast<double>(model->macs()) - fc + head_macs);
  line(rates, "draft append, 8 positions", median(appends), 0, 0, 1e3 / median(appends));
  line(rates, "draft propose, block 16", median(times), bytes, operations, 1e3 / median(times));
}

// The rule of use takes eight scoring rows. Least bytes: the weights of the layers once, and the residual stream in and
// out of every layer. The last layer makes keys only.
void run_score(const Options& o, const Rates& rates) {
  SyntheticShape shape = tnd::bench::qwen3_06b_bf16();
  if (o.number("layers") > 0) shape.layers = std::min(shape.layers, o.number("layers"));
  if (o.number("vocab") > 0) shape.vocab = o.number("vocab");
  std::unique_ptr<SyntheticModel> model;
  const tnd::Status made = SyntheticModel::make(shape, 8, &model);
  if (!made.ok()) fail(made.message());
  const std::vector<int> lengths = o.numbers("score");
  tnd_engine* e = open(o, TND_ROLE_SCORE, *model, "", lengths.back());
  const double table = 2.0 * static_cast<double>(model->head_macs());  // bytes in BF16
  const double layer_macs = static_cast<double>(model->macs() - model->head_macs()) / shape.layers;
  const double key_macs = static_cast<double>(shape.hidden) * shape.kv_heads * shape.head_dim;
  for (const int n : lengths) {
    std::vector<int32_t> ids(static_cast<size_t>(n)), query;
    for (int i = 0; i < n; ++i) ids[static_cast<size_t>(i)] = static_cast<int32_t>(int64_t{i} * 7919 % shape.vocab);
    for (int i = std::max(0, n - 24); i < std::max(1, n - 16); ++i) query.push_back(i);
    std::vector<float> scores(ids.size());
    const auto run = [&] {
      const double start = now_ms();
      const tnd_score_prompt prompt{ids.data(), query.data(), scores.data(), n, static_cast<int32_t>(query.size())};
      check(e, tnd_score(e, &prompt, 1, 0, nullptr, nullptr), "score");
      return now_ms() - start;
    };
    run();
    const Stats before(e);
    std::vector<double> times;
    for (int i = 0; i < 3; ++i) times.push_back(run());
    const double tokens = n, whole = shape.layers - 1;
    const double bytes = static_cast<double>(model->read_bytes()) - table + 8.0 * shape.hidden * tokens * whole;
    const double attention = 2.0 * shape.q_heads * shape.head_dim * tokens * tokens;
    line(rates, "score " + std::to_string(n), median(times), bytes,
         2 * tokens * (layer_macs * whole + key_macs) + attention * whole, tokens / median(times) * 1e3);
    Stats(e).print(before, 3);
  }
  tnd_close(e);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
    std::printf("usage: %s [--option value]...\n", argv[0]);
    for (const Option& option : kOptions) std::printf("  --%-11s %s [%s]\n", option.name, option.help, option.value);
    std::printf("--layers 4 --vocab 8192 makes it small.\n");
    return 0;
  }
  for (int i = 1; i < argc; i += 2) {
    const std::string key = std::strncmp(argv[i], "--", 2) == 0 ? argv[i] + 2 : "";
    if (o.values.count(key) == 0 || i + 1 == argc) {
      fail("unknown option or missing value (--help lists them): " + std::string(argv[i]));
    }
    o.values[key] = argv[i + 1];
  }
  SyntheticShape shape = o.text("model") == "27b"    ? tnd::bench::qwen35_27b_q4_k_m()
                         : o.text("model") == "0.8b" ? tnd::bench::qwen35_08b_bf16()
                                                     : SyntheticShape();
  o.temperature();  // a wrong one ends the program here, not after the model was made
  o.top_p();
  const bool target = shape.layers > 0;
  if (!target && o.text("model") != "none") fail("--model: 27b, 0.8b or none");
  if (o.number("layers") > 0) shape.layers = o.number("layers");
  if (o.number("vocab") > 0) shape.vocab = o.number("vocab");
  if (o.number("together") > 0 && shape.hidden != 5120) fail("--together: there is a drafter for the 27B only");
  if (o.number("plan") > 0 && target) {
    plan(o, shape);
    return 0;
  }
  const int threads = std::max(1, o.number("threads") > 0 ? o.number("threads") : 2);
  const Rates rates = tnd::bench::measure_rates(o.text("device").c_str(), threads);
  std::printf("copy %.1f GB/s, matmul %.1f TOP/s (%s)\n", rates.copy_gbs, rates.matmul_tops, rates.matmul_how.c_str());

  if (o.number("breakdown") > 0 && !tnd::bench::show_breakdowns(o.number("breakdown"), rates)) {
    fail("--breakdown: the CPU runs no graphs");
  }
  if (target) {
    const double start = now_ms();
    std::unique_ptr<SyntheticModel> model;
    const tnd::Status made = SyntheticModel::make(shape, 16, &model);
    if (!made.ok()) fail(made.message());
    std::printf("%s: %.3f GB of tensors, %.3f GB a step, %.3f G multiply-adds a row, made in %.1f s\n",
                shape.name.c_str(), static_cast<double>(model->tensor_bytes()) / 1e9,
                static_cast<double>(model->read_bytes()) / 1e9, static_cast<double>(model->macs()) / 1e9,
                (now_ms() - start) / 1e3);
    run_target(o, rates, shape, *model);
    if (o.number("draft") > 0 && o.number("together") == 0 && shape.hidden == 5120) run_draft(o, rates, shape, *model);
  }
  if (!o.text("score").empty()) run_score(o, rates);
  return 0;
}
