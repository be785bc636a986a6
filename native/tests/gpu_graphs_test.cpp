// Steps as a worker sends them replay graphs: recorded steps of the policy `auto` (data/steps) with one and four
// requests, and of a draft's proposals, run on small random models with samplers of their own. Nearly all submissions
// are graphs that were captured before, and what comes out has the bits of an engine that captures none.
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "engine_util.h"
#include "gpu/step/backend_gpu.h"
#include "harness.h"
#include "roles/roles.h"
#include "small_target.h"

using namespace tnd;
using namespace tnd::test;
using tnd::bench::Mix;
using tnd::bench::SyntheticModel;
using tnd::bench::SyntheticShape;

namespace {

constexpr int32_t kVocab = 160, kContext = 2048;

// One item of a line of a recording (api/step_log.h): a group, a piece of an append or a request.
struct Item {
  std::map<std::string, std::string> fields;

  int32_t number(const std::string& name) const {
    const auto found = fields.find(name);
    return found == fields.end() ? 0 : std::stoi(found->second);
  }
  // The numbers of a list like 0.2.5.
  std::vector<int32_t> numbers(const std::string& name) const {
    std::vector<int32_t> out;
    const auto found = fields.find(name);
    std::istringstream in(found == fields.end() ? "" : found->second);
    for (std::string n; std::getline(in, n, '.');) out.push_back(std::stoi(n));
    return out;
  }
};
struct Line {
  std::string call;  // step, append, propose
  std::vector<Item> items;
};

Line parse_line(const std::string& text) {
  std::istringstream in(text);
  Line line;
  in >> line.call;
  for (std::string word; in >> word;) {
    const size_t at = word.find('=');
    if (at == std::string::npos) {
      line.items.emplace_back();
    } else {
      line.items.back().fields[word.substr(0, at)] = word.substr(at + 1);
    }
  }
  return line;
}

std::vector<Line> read_lines(const std::string& name) {
  std::vector<Line> lines;
  std::ifstream file(data_file("steps/" + name));
  for (std::string text; std::getline(file, text);) {
    if (!text.empty() && text[0] != '#') lines.push_back(parse_line(text));
  }
  CHECK_MSG(!lines.empty(), name + " is missing or empty");
  return lines;
}

// The draft of a small target.
SyntheticShape draft_shape() {
  SyntheticShape s = small_target(Mix::kQ8_0, kVocab, kContext);
  s.arch = "dflash-draft";
  s.name = "small draft";
  s.layers = 2;
  s.delta_key_heads = s.delta_value_heads = s.vocab = 0;
  s.target_layers = {0, 2};
  return s;
}

struct Models {
  std::unique_ptr<SyntheticModel> target, draft;
  explicit Models(Mix mix)
      : target(make_synthetic(small_target(mix, kVocab, kContext))), draft(make_synthetic(draft_shape())) {}
};

// An engine that runs recorded calls and keeps all that comes back.
class Replay {
 public:
  enum class Mode { kGraphs, kLaunches, kRecordOnly };  // the last one launches nothing
  Replay(const Models& models, bool draft, Mode mode) {
    CHECK_OK(make_backend(nullptr, 1, &made_));
    backend()->use_graphs(mode != Mode::kLaunches);
    OpenContext c;
    c.model_path = draft ? models.draft->path() : models.target->path();
    if (draft) c.tables_path = models.target->path();
    c.options.max_sequences = 8;
    c.options.max_context = kContext;
    c.options.max_tree_rows = 64;
    c.options.max_batch_rows = 512;
    c.options.max_top_k = 64;
    c.options.kv_type_k = c.options.kv_type_v = TND_KV_DEFAULT;
    c.memory_cap = made_->free_bytes();
    c.backend = made_.get();
    c.cancel = &cancel_;
    c.stats = &stats_;
    made_->count_in(&stats_);
    CHECK_OK(draft ? open_draft(c, &draft_) : open_target(c, &target_));
    if (!ok()) return;
    if (!draft) CHECK_OK(target_->fuse_load(models.draft->path().c_str()));
    sequences().info(&info_);
    if (mode == Mode::kRecordOnly) backend()->set_filter(&nothing_);
  }
  bool ok() const { return draft_ != nullptr || target_ != nullptr; }
  uint64_t get(Counter c) const { return stats_.get(c); }

  void run(const Line& line) {
    if (line.call == "step") return step(line);
    if (line.call == "append") return append(line);
    if (line.call == "propose") return propose(line);
    CHECK_MSG(false, "a line begins with " + line.call);
  }

  std::vector<int32_t> numbers;  // that came back
  std::vector<float> values;

 private:
  struct Known {
    int32_t handle = -1, length = 0;
  };
  SequenceEngine& sequences() { return draft_ != nullptr ? static_cast<SequenceEngine&>(*draft_) : *target_; }
  gpu::GpuBackend* backend() const { return static_cast<gpu::GpuBackend*>(made_.get()); }

  // The sequence of a recorded one, made again where the recording begins it again; `length` committed positions.
  Known& sequence(int32_t recorded, int32_t length) {
    Known& k = known_[recorded];
    if (k.handle >= 0 && k.length == length) return k;
    if (k.handle >= 0) CHECK_OK(sequences().sequence_free(k.handle));
    CHECK_OK(sequences().sequence_create(&k.handle));
    k.length = 0;
    return k;
  }

  void set_sampler(const Known& k, int32_t recorded) {
    tnd_sampler s{};
    s.struct_size = sizeof s;
    s.temperature = 0.8f;
    s.top_k = recorded % 2 == 0 ? 20 : 0;
    s.top_p = 0.9f;
    s.repetition_penalty = 1.1f;
    s.presence_penalty = 0.2f;
    s.penalty_window = 64;
    s.seed = 7;
    s.frequency_penalty = 0.1f;
    CHECK_OK(target_->sequence_sampler(k.handle, s));
  }

  int32_t token() { return static_cast<int32_t>(rng_.below(kVocab)); }

  // Brings a sequence that was restored in the recording to its length.
  void read_prompt(Known* k, int32_t length) {
    while (k->length < length) {
      const int32_t n = std::min(length - k->length, 64);
      std::vector<tnd_row> rows(static_cast<size_t>(n));
      for (int32_t i = 0; i < n; ++i) rows[static_cast<size_t>(i)] = {token(), k->length + i, i - 1, 0, 0, 0, -1};
      const tnd_group group{k->handle, n, TND_GROUP_PROMPT, TND_GROUP_COMMIT, nullptr, 0, 0, 0};
      tnd_step step{};
      step.n_groups = 1;
      step.groups = &group;
      step.n_rows = n;
      step.rows = rows.data();
      CHECK_OK(target_->step(step));
      k->length += n;
    }
  }

  void add_rows(const Item& item, std::vector<tnd_row>* out) {
    const int32_t n = item.number("rows"), at = item.number("at");
    std::vector<int32_t> parents;
    if (item.fields.at("parents") == "chain") {
      for (int32_t i = 0; i < n; ++i) parents.push_back(i - 1);
    } else {
      parents = item.numbers("parents");
    }
    const size_t first = out->size();
    std::istringstream runs(item.fields.at("want"));
    for (std::string run; std::getline(runs, run, ',');) {
      int32_t count = 0, top = 0;
      uint32_t want = 0;
      std::sscanf(run.c_str(), "%dx%u/%d", &count, &want, &top);
      for (int32_t i = 0; i < count; ++i) {
        const int32_t parent = parents[out->size() - first];
        const int32_t position = parent < 0 ? at : (*out)[first + static_cast<size_t>(parent)].position + 1;
        out->push_back({token(), position, parent, want & ~static_cast<uint32_t>(TND_WANT_LOGITS), top, 0, -1});
      }
    }
    CHECK_EQ(out->size() - first, static_cast<size_t>(n));
  }

  void step(const Line& line) {
    std::vector<tnd_group> groups;
    std::vector<tnd_row> rows;
    std::vector<std::vector<int32_t>> paths(line.items.size());
    size_t features = 0;
    for (size_t i = 0; i < line.items.size(); ++i) {
      const Item& item = line.items[i];
      paths[i] = item.numbers("path");
      const int32_t recorded = item.number("seq"), n = item.number("rows");
      const int32_t path = static_cast<int32_t>(paths[i].size());
      const bool fresh = known_[recorded].handle < 0, commit = item.number("commit") != 0;
      const int32_t length = n > 0 ? item.number("at") - path : known_[recorded].length;
      Known& k = sequence(recorded, length);
      if (fresh || k.length != length) {
        set_sampler(k, recorded);
        read_prompt(&k, length);
      }
      tnd_group g{};
      g.sequence = k.handle;
      g.n_rows = n;
      g.kind = item.fields.at("kind") == "p" ? TND_GROUP_PROMPT : TND_GROUP_DECODE;
      if (n == 0) g.kind = TND_GROUP_DECODE;
      g.flags = commit ? TND_GROUP_COMMIT : 0;
      g.path = paths[i].data();
      g.n_path = path;
      if (item.fields.count("kept") != 0) {
        std::sscanf(item.fields.at("kept").c_str(), "%d+%d", &g.kept_position, &g.n_kept);
        features += static_cast<size_t>(g.n_kept);
      }
      if (n > 0) add_rows(item, &rows);
      k.length += path + (commit ? n : 0);
      groups.push_back(g);
    }
    constexpr int32_t kTop = 64;
    std::vector<int32_t> tokens(rows.size(), -1), ids(rows.size() * kTop, -1);
    std::vector<float> logprobs(rows.size()), tops(ids.size()), scores(rows.size());
    for (const tnd_row& row : rows) features += (row.want & TND_WANT_FEATURES) != 0 ? 1 : 0;
    std::vector<float> fused(features * static_cast<size_t>(info_.feature_fused));
    tnd_step step{};
    step.n_groups = static_cast<int32_t>(groups.size());
    step.groups = groups.data();
    step.n_rows = static_cast<int32_t>(rows.size());
    step.rows = rows.data();
    step.tokens = tokens.data();
    step.logprobs = logprobs.data();
    step.scores = scores.data();
    step.top_stride = kTop;
    step.top_ids = ids.data();
    step.top_logprobs = tops.data();
    step.feature_encoding = TND_FEATURE_FUSED_F32;
    step.features = fused.data();
    CHECK_OK(target_->step(step));
    keep(tokens, ids, {&logprobs, &tops, &scores, &fused});
  }

  void append(const Line& line) {
    std::vector<std::vector<float>> features;
    const auto piece = [&](Known* k, int32_t n) {
      features.emplace_back(static_cast<size_t>(n) * static_cast<size_t>(info_.hidden));
      for (float& f : features.back()) f = rng_.normal();
      k->length += n;
      return tnd_feature_rows{k->handle, k->length - n, n, TND_FEATURE_FUSED_F32, features.back().data()};
    };
    std::vector<tnd_feature_rows> pieces;
    for (const Item& item : line.items) {
      Known& k = sequence(item.number("seq"), item.number("at"));
      while (k.length < item.number("at")) {  // it was restored in the recording
        const tnd_feature_rows rows = piece(&k, std::min(item.number("at") - k.length, 64));
        CHECK_OK(draft_->append(std::span<const tnd_feature_rows>(&rows, 1)));
      }
      pieces.push_back(piece(&k, item.number("n")));
    }
    CHECK_OK(draft_->append(pieces));
  }

  void propose(const Line& line) {
    std::vector<tnd_draft_request> requests;
    for (const Item& r : line.items) {
      const Known& k = known_[r.number("seq")];
      if (k.handle < 0) continue;  // recorded with nothing appended
      requests.push_back(
          {k.handle, token(), std::max(r.number("at"), k.length), r.number("block"), r.number("top"), 1.0f});
    }
    if (requests.empty()) return;
    const size_t room = requests.size() * static_cast<size_t>((info_.block_size - 1) * info_.max_top_k);
    std::vector<int32_t> ids(room);
    std::vector<float> logprobs(room);
    CHECK_OK(draft_->propose(requests, ids.data(), logprobs.data()));
    keep(ids, {}, {&logprobs});
  }

  void keep(const std::vector<int32_t>& a, const std::vector<int32_t>& b,
            std::vector<const std::vector<float>*> floats) {
    numbers.insert(numbers.end(), a.begin(), a.end());
    numbers.insert(numbers.end(), b.begin(), b.end());
    for (const auto* f : floats) values.insert(values.end(), f->begin(), f->end());
  }

  struct Nothing final : gpu::LaunchFilter {
    bool keep(const gpu::Launch&) override { return false; }
  };

  Nothing nothing_;
  std::unique_ptr<Backend> made_;
  std::atomic<bool> cancel_{false};
  Stats stats_;
  std::unique_ptr<TargetEngine> target_;  // one of the two
  std::unique_ptr<DraftEngine> draft_;
  tnd_info info_{};
  std::map<int32_t, Known> known_;
  Rng rng_{5};
};

// Whether a call is of a prompt: those run once and need no graph.
bool of_prompt(const Line& line) {
  for (const Item& item : line.items) {
    const auto kind = item.fields.find("kind");
    if (kind != item.fields.end() && kind->second == "p") return true;
    if (line.call == "append" && item.number("n") > kPromptRows) return true;
  }
  return false;
}

// The rate over a whole recording, whose kernels need not run for that.
void check_rate(const std::string& name, bool draft, Mix mix) {
  const std::vector<Line> lines = read_lines(name);
  const Models models(mix);
  REQUIRE(models.target != nullptr && models.draft != nullptr);
  Replay engine(models, draft, Replay::Mode::kRecordOnly);
  REQUIRE(engine.ok());
  const auto runs = [&] { return engine.get(Counter::kGraphRuns) + engine.get(Counter::kListRuns); };
  const auto replays = [&] { return engine.get(Counter::kGraphRuns) - engine.get(Counter::kGraphCaptures); };
  uint64_t hits = 0, all = 0;
  for (const Line& line : lines) {
    const uint64_t runs_before = runs(), replays_before = replays();
    engine.run(line);
    if (!of_prompt(line)) all += runs() - runs_before, hits += replays() - replays_before;
  }
  const double rate = all > 0 ? static_cast<double>(hits) / static_cast<double>(all) : 0;
  std::fprintf(stderr, "%s: %zu calls, %llu of %llu submissions are graphs of before (%.1f %%)\n", name.c_str(),
               lines.size(), static_cast<unsigned long long>(hits), static_cast<unsigned long long>(all), 100 * rate);
  if (!gpu::plain_launches()) CHECK(rate >= 0.95);
}

// What the first `calls` calls give, with graphs and without.
void check_bits(const std::string& name, bool draft, Mix mix, size_t calls) {
  std::vector<Line> lines = read_lines(name);
  lines.resize(std::min(lines.size(), calls));
  const Models models(mix);
  REQUIRE(models.target != nullptr && models.draft != nullptr);
  Replay graphs(models, draft, Replay::Mode::kGraphs), launches(models, draft, Replay::Mode::kLaunches);
  REQUIRE(graphs.ok() && launches.ok());
  for (const Line& line : lines) {
    graphs.run(line);
    launches.run(line);
  }
  CHECK(graphs.numbers == launches.numbers);
  CHECK(same_bits(graphs.values, launches.values));
  CHECK_EQ(launches.get(Counter::kGraphRuns), uint64_t{0});
  if (!gpu::plain_launches()) CHECK(graphs.get(Counter::kGraphRuns) > calls / 2);
}

}  // namespace

TEST(steps_of_one_request_are_graphs) {
  check_rate("target_1.txt", false, Mix::kQ4KM);
  check_bits("target_1.txt", false, Mix::kQ4KM, 150);
}

TEST(steps_of_four_requests_are_graphs) {
  check_rate("target_4.txt", false, Mix::kQ4KM);
  check_bits("target_4.txt", false, Mix::kQ4KM, 120);
}

TEST(steps_of_16_bit_weights_are_graphs) {
  check_rate("target_4.txt", false, Mix::kBF16);
  check_bits("target_4.txt", false, Mix::kBF16, 60);
}

TEST(proposals_are_graphs) {
  for (const char* name : {"draft_1.txt", "draft_4.txt"}) {
    check_rate(name, true, Mix::kQ8_0);
    check_bits(name, true, Mix::kQ8_0, 60);
  }
}

// Appends to several sequences are one graph for all with as many rows, whichever pieces these are of.
TEST(joint_appends_are_graphs) {
  const Models models(Mix::kQ8_0);
  REQUIRE(models.target != nullptr && models.draft != nullptr);
  Replay graphs(models, true, Replay::Mode::kGraphs), launches(models, true, Replay::Mode::kLaunches);
  REQUIRE(graphs.ok() && launches.ok());
  const auto run = [&](const char* text) {
    graphs.run(parse_line(text));
    launches.run(parse_line(text));
  };
  run("append p seq=0 at=0 n=3 p seq=1 at=0 n=5");
  run("append p seq=0 at=3 n=5 p seq=1 at=5 n=2");
  run("append p seq=1 at=7 n=6");
  run("append p seq=0 at=8 n=1 p seq=1 at=13 n=4 p seq=2 at=0 n=2");
  if (!gpu::plain_launches()) {
    CHECK_EQ(graphs.get(Counter::kListRuns), uint64_t{1});
    CHECK_EQ(graphs.get(Counter::kGraphRuns), uint64_t{3});
  }
  run("propose r seq=0 at=9 block=4 top=8 r seq=1 at=17 block=4 top=8 r seq=2 at=2 block=4 top=8");
  CHECK(graphs.numbers == launches.numbers);
  CHECK(same_bits(graphs.values, launches.values));
}

TEST_MAIN()
