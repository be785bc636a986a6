// Groups of a step: the results and the state of a group depend on the group alone, not on the other groups, their
// order, the number of rows, or on sequences that share its pages. A step that is refused changes nothing.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <thread>

#include "core/fp.h"
#include "engine_util.h"
#include "small_target.h"

using namespace tnd::test;
using tnd::bench::Mix;
using tnd::bench::SyntheticModel;

namespace {

constexpr int32_t kVocab = 160, kContext = 1024;
constexpr int kSequences = 16, kMaxRows = 320, kMaxTree = 16;

std::unique_ptr<SyntheticModel> small_model(Mix mix) {
  return tnd::test::make_synthetic(tnd::test::small_target(mix, kVocab, kContext));
}

EngineOptions options(int layer_first = 0, int layer_last = 0) {
  EngineOptions o;
  o.max_sequences = kSequences;
  o.max_context = kContext;
  o.max_tree_rows = kMaxTree;
  o.max_batch_rows = kMaxRows;
  o.layer_first = layer_first;
  o.layer_last = layer_last;
  return o;
}

// What a caller knows of a sequence.
struct Known {
  int32_t length = 0;
  std::vector<int32_t> parents;  // of the pending rows
  std::vector<bool> keeps;
  int32_t kept_first = 0, kept_next = 0;

  void keep(int32_t position) {
    if (position != kept_next || kept_first > position) kept_first = position;
    kept_next = position + 1;
  }
};

// Random steps of a shard, run by two engines: by one as they are, by the other group by group. What one shares by
// forks and snapshots, some of them demoted, are copies in the other: exports, imported.
class Twins {
 public:
  Twins(const std::string& path, const EngineOptions& o, uint64_t seed)
      : together_(path, o), apart_(path, o), rng_(seed), known_(kSequences) {
    const int32_t layer = together_.info().layer_first;
    for (Engine* e : {&together_, &apart_}) {
      e->ok(tnd_capture_set(e->handle(), &layer, 1));
      e->info();
      for (int i = 0; i < kSequences; ++i) CHECK_EQ(e->sequence(), i);
    }
    head_ = together_.info().layer_last == together_.info().n_layers;
    shard_ = together_.info().layer_first > 0;
  }

  bool emulated() { return together_.emulated(); }

  void round(const std::string& where) {
    StepIn in;
    in.feature_encoding = TND_FEATURE_RAW_F32;
    in.feature_width = together_.info().hidden;
    std::vector<int32_t> order(kSequences);
    for (int i = 0; i < kSequences; ++i) order[static_cast<size_t>(i)] = i;
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng_.below(i)]);
    const size_t groups = 1 + rng_.below(kSequences);
    int32_t left = kMaxRows;
    for (size_t i = 0; i < groups; ++i) in.groups.push_back(group(order[i], &left));
    size_t rows = 0;
    for (const GroupIn& g : in.groups) rows += g.rows.size();
    if (shard_) {
      in.hidden.resize(rows * static_cast<size_t>(together_.info().hidden));
      for (float& v : in.hidden) v = rng_.normal();
    }
    const StepOut got = together_.run_ok(in);

    StepOut want;
    std::vector<float> later;  // features of rows come behind those that were kept
    size_t at = 0;
    for (const GroupIn& g : in.groups) {
      StepIn one = in;
      one.groups = {g};
      if (shard_) {
        const size_t width = static_cast<size_t>(together_.info().hidden);
        one.hidden.assign(in.hidden.begin() + static_cast<std::ptrdiff_t>(at * width),
                          in.hidden.begin() + static_cast<std::ptrdiff_t>((at + g.rows.size()) * width));
        if (g.rows.empty()) one.hidden.clear();
      }
      at += g.rows.size();
      const StepOut part = apart_.run_ok(one);
      const auto append = [](auto* to, const auto& from) { to->insert(to->end(), from.begin(), from.end()); };
      append(&want.tokens, part.tokens);
      append(&want.logprobs, part.logprobs);
      append(&want.logits, part.logits);
      append(&want.hidden, part.hidden);
      const auto kept = part.features.begin() + std::ptrdiff_t{g.n_kept} * in.feature_width;
      want.features.insert(want.features.end(), part.features.begin(), kept);
      later.insert(later.end(), kept, part.features.end());
    }
    want.features.insert(want.features.end(), later.begin(), later.end());
    CHECK_MSG(got.tokens == want.tokens, where + " tokens");
    CHECK_MSG(same_bits(got.logprobs, want.logprobs), where + " logprobs");
    CHECK_MSG(same_bits(got.logits, want.logits), where + " logits");
    CHECK_MSG(same_bits(got.features, want.features), where + " features");
    CHECK_MSG(same_bits(got.hidden, want.hidden), where + " hidden");
  }

  // A sequence becomes another one's fork, or gets a snapshot of earlier; a new snapshot is kept.
  void share() {
    const auto pick = [&] { return static_cast<int32_t>(below(kSequences)); };
    const auto forget = [](Known* k) {
      k->parents.clear();
      k->keeps.clear();
      k->kept_first = k->kept_next = 0;
    };
    const int32_t from = pick();
    int32_t to = pick();
    if (to == from) to = (from + 1) % kSequences;
    const auto import = [&](const std::vector<uint8_t>& data) {
      apart_.ok(tnd_sequence_import(apart_.handle(), to, data.data(), data.size()));
    };
    if (below(2) == 0) {
      together_.ok(tnd_sequence_free(together_.handle(), to));
      CHECK_EQ(together_.fork(from), to);
      import(apart_.exported(from));
      known_[static_cast<size_t>(to)] = known_[static_cast<size_t>(from)];
      forget(&known_[static_cast<size_t>(to)]);
    } else if (!saved_.empty()) {
      Saved& s = saved_[below(saved_.size())];
      if (below(2) == 0) together_.ok(tnd_snapshot_demote(together_.handle(), s.snapshot));
      together_.ok(tnd_snapshot_restore(together_.handle(), s.snapshot, to));
      import(s.data);
      known_[static_cast<size_t>(to)] = s.known;
      forget(&known_[static_cast<size_t>(to)]);
    }
    if (below(3) == 0) {
      saved_.push_back({together_.snapshot(from), apart_.exported(from), known_[static_cast<size_t>(from)]});
    }
    if (saved_.size() > 6) {
      together_.ok(tnd_snapshot_free(together_.handle(), saved_[0].snapshot));
      saved_.erase(saved_.begin());
    }
  }

  // Nothing is held when all is freed.
  void finish() {
    for (const Saved& s : saved_) together_.ok(tnd_snapshot_free(together_.handle(), s.snapshot));
    for (int32_t s = 0; s < kSequences; ++s) together_.ok(tnd_sequence_free(together_.handle(), s));
    CHECK_EQ(together_.stat("kv_pages_free", true), together_.stat("kv_pages", true));
    for (const char* name : {"kv_pages_shared", "snapshot_bytes", "demoted_bytes"}) {
      CHECK_EQ(together_.stat(name, true), uint64_t{0});
    }
  }

  // The states, as far as they can be seen.
  void compare(const std::string& where) {
    for (int32_t s = 0; s < kSequences; ++s) {
      CHECK_EQ(together_.length(s), known_[static_cast<size_t>(s)].length);
      CHECK_MSG(together_.exported(s) == apart_.exported(s), where + " state of " + std::to_string(s));
    }
  }

 private:
  uint64_t below(uint64_t n) { return rng_.below(n); }

  GroupIn group(int32_t sequence, int32_t* left) {
    Known& k = known_[static_cast<size_t>(sequence)];
    GroupIn g;
    g.sequence = sequence;
    if (!k.parents.empty() && below(4) != 0) {
      for (auto row = static_cast<int32_t>(below(k.parents.size())); row >= 0;
           row = k.parents[static_cast<size_t>(row)]) {
        g.path.insert(g.path.begin(), row);
      }
    }
    for (const int32_t row : g.path) {
      if (k.keeps[static_cast<size_t>(row)]) k.keep(k.length);
      ++k.length;
    }
    k.parents.clear();
    k.keeps.clear();
    if (k.kept_first < k.kept_next && below(2) == 0) {
      const int32_t from = std::max(k.kept_first, k.kept_next - 6);
      g.kept_position = from + static_cast<int32_t>(below(static_cast<uint64_t>(k.kept_next - from)));
      g.n_kept = 1 + static_cast<int32_t>(below(static_cast<uint64_t>(k.kept_next - g.kept_position)));
    }
    // A piece of a prompt of either contract, a plain row, a chain, a tree, or nothing.
    const uint64_t kind = below(8);
    int32_t n = 0;
    if (kind < 2) {
      const uint64_t most = kind == 0 && below(3) == 0 ? 200 : 70;
      n = 1 + static_cast<int32_t>(below(most));
      g.flags = TND_GROUP_COMMIT;
      g.kind = kind == 0 || below(2) == 0 ? TND_GROUP_PROMPT : TND_GROUP_DECODE;
    } else if (kind < 7) {
      n = kind < 4 ? 1 : 2 + static_cast<int32_t>(below(kMaxTree - 1));
      if (kind == 2) g.flags = TND_GROUP_COMMIT;
    }
    n = std::min({n, *left, 1000 - k.length});
    if (n == 0) g.kind = g.flags = 0;
    *left -= n;
    const bool tree = kind >= 5, keep = n <= kMaxTree && below(2) == 0;
    const bool commit = g.flags != 0;
    std::map<int32_t, bool> taken;  // places of kept rows
    for (int32_t i = 0; i < n; ++i) {
      int32_t parent = i - 1;
      if (tree && below(2) == 0) parent = static_cast<int32_t>(below(static_cast<uint64_t>(i) + 1)) - 1;
      const int32_t position = parent < 0 ? k.length : g.rows[static_cast<size_t>(parent)].position + 1;
      uint32_t want = 0;
      if (head_ && (n <= kMaxTree || below(8) == 0 || i + 1 == n)) want |= TND_WANT_LOGITS | TND_WANT_TOKEN;
      if (below(3) == 0) want |= TND_WANT_FEATURES;
      if (keep && !taken[position % TND_KEPT_ROWS]) {
        taken[position % TND_KEPT_ROWS] = true;
        want |= TND_WANT_KEEP;
        k.kept_first = std::max(k.kept_first, position - TND_KEPT_ROWS + 1);
      }
      g.rows.push_back(tnd_row{static_cast<int32_t>(below(kVocab)), position, parent, want, 0, 0, -1});
      if (!commit) {
        k.parents.push_back(parent);
        k.keeps.push_back((want & TND_WANT_KEEP) != 0);
      }
    }
    if (commit) {
      for (const tnd_row& row : g.rows) {
        if ((row.want & TND_WANT_KEEP) != 0) k.keep(row.position);
        ++k.length;
      }
    }
    return g;
  }

  struct Saved {
    int32_t snapshot;
    std::vector<uint8_t> data;
    Known known;
  };

  Engine together_, apart_;
  Rng rng_;
  std::vector<Saved> saved_;
  std::vector<Known> known_;
  bool head_ = false, shard_ = false;
};

}  // namespace

// Paths, kept features, pieces of prompts, trees, chains and plain rows of up to 16 sequences in one call.
TEST(groups_have_the_bits_of_groups_alone) {
  for (const auto& [mix, window] :
       {std::pair{Mix::kQ4KM, 0}, std::pair{Mix::kBF16, 0}, std::pair{Mix::kQ8_0, 0}, std::pair{Mix::kQ4KM, 128}}) {
    const auto model = small_model(mix);
    REQUIRE(model != nullptr);
    const std::string name = (mix == Mix::kQ4KM   ? "q4_k_m"
                              : mix == Mix::kBF16 ? "bf16"
                                                  : "q8_0") +
                             (window != 0 ? " window " + std::to_string(window) : std::string());
    EngineOptions o = options();
    o.attention_window = window;
    Twins twins(model->path(), o, 41 + static_cast<uint64_t>(mix));
    const int rounds = twins.emulated() ? 8 : 60;
    for (int i = 0; i < rounds; ++i) {
      const std::string where = name + " round " + std::to_string(i);
      twins.round(where);
      twins.share();
      if (i % 4 == 3) twins.compare(where);
    }
    twins.finish();
  }
}

// Shards hand on the residual streams of all rows in the caller's order.
TEST(groups_of_shards_have_the_bits_of_groups_alone) {
  const auto model = small_model(Mix::kQ4KM);
  REQUIRE(model != nullptr);
  for (const auto& [first, last] : {std::pair{0, 2}, std::pair{1, 3}, std::pair{2, 4}}) {
    Twins twins(model->path(), options(first, last), 50 + static_cast<uint64_t>(first));
    for (int i = 0; i < 3; ++i) {
      const std::string where =
          "layers " + std::to_string(first) + ".." + std::to_string(last) + " round " + std::to_string(i);
      twins.round(where);
      twins.compare(where);
    }
  }
}

// Residual streams of half the bytes are the others, rounded; taken in they are what they stand for.
TEST(shards_may_hand_on_bfloat16) {
  const auto model = small_model(Mix::kQ8_0);
  REQUIRE(model != nullptr);
  Engine front(model->path(), options(0, 2)), back(model->path(), options(2, 4));
  REQUIRE(front.handle() != nullptr && back.handle() != nullptr);
  Rng rng(59);
  // A tree, whose rows are in another order inside, beside a prompt's piece, which comes first inside.
  const std::vector<int32_t> parents = {-1, 0, 0, 1, 2, 1}, tokens = random_tokens(&rng, 6, kVocab),
                             piece = random_tokens(&rng, 9, kVocab);
  const auto step = [&](const Engine& e, uint32_t want) {
    const int32_t tree = e.sequence(), prompt = e.sequence();
    StepIn in;
    in.groups = {e.rows(tree, tokens, parents, want), e.rows(prompt, piece, Engine::chain(piece.size()), want)};
    in.groups[1].kind = TND_GROUP_PROMPT;
    in.groups[1].flags = TND_GROUP_COMMIT;
    return in;
  };
  StepIn in = step(front, 0);
  const std::vector<float> full = front.run_ok(in).hidden;
  in = step(front, 0);
  in.hidden_encoding = TND_HIDDEN_BF16;
  const std::vector<uint16_t> half = front.run_ok(in).hidden_bf16;
  REQUIRE(full.size() == 15 * 256 && half.size() == full.size());
  std::vector<float> widened;
  for (size_t i = 0; i < half.size(); ++i) {
    CHECK_EQ(half[i], tnd::f32_to_bf16(full[i]));
    widened.push_back(tnd::bf16_to_f32(half[i]));
  }
  in = step(back, TND_WANT_LOGITS);
  in.hidden = widened;
  const std::vector<float> want = back.run_ok(in).logits;
  in = step(back, TND_WANT_LOGITS);
  in.hidden_encoding = TND_HIDDEN_BF16;
  in.hidden_bf16 = half;
  CHECK(same_bits(back.run_ok(in).logits, want));
  in = step(back, TND_WANT_LOGITS);
  in.hidden = full;
  CHECK(!same_bits(back.run_ok(in).logits, want));
}

// A prompt's piece that is cut at multiples of 64 of its rows is the whole piece, wherever it begins.
TEST(prompts_may_be_cut_at_multiples_of_64) {
  for (const Mix mix : {Mix::kQ4KM, Mix::kBF16}) {
    const auto model = small_model(mix);
    REQUIRE(model != nullptr);
    Engine e(model->path(), options());
    REQUIRE(e.handle() != nullptr);
    Rng rng(61);
    for (const size_t before : {size_t{0}, size_t{37}}) {
      const std::vector<int32_t> head = random_tokens(&rng, before, kVocab);
      const std::vector<int32_t> tokens = random_tokens(&rng, 129 + rng.below(180), kVocab);
      const int32_t whole = e.sequence(), cut = e.sequence(), beside = e.sequence();
      for (const int32_t s : {whole, cut}) e.prefill(s, head, 512, 0);
      const std::vector<float> want = e.prefill(whole, tokens, 512, TND_WANT_LOGITS, TND_GROUP_PROMPT).logits;
      std::vector<float> got;
      for (size_t at = 0; at < tokens.size();) {
        const size_t n = std::min(64 * (1 + rng.below(2)), tokens.size() - at);
        StepIn in;
        in.groups = {e.rows(
            cut,
            {tokens.begin() + static_cast<std::ptrdiff_t>(at), tokens.begin() + static_cast<std::ptrdiff_t>(at + n)},
            Engine::chain(n), TND_WANT_LOGITS)};
        in.groups[0].kind = TND_GROUP_PROMPT;
        in.groups[0].flags = TND_GROUP_COMMIT;
        if (rng.below(2) == 0) in.groups.push_back(e.rows(beside, {1, 2}, Engine::chain(2), 0));
        const StepOut out = e.run_ok(in);
        got.insert(got.end(), out.logits.begin(), out.logits.end());
        at += n;
      }
      CHECK(same_bits(got, want));
      CHECK(e.exported(cut) == e.exported(whole));
      for (const int32_t s : {whole, cut, beside}) e.ok(tnd_sequence_free(e.handle(), s));
    }
  }
}

// Contracts are what groups state: with prompts of their own a device gives other bits, for one row and for many, and a
// device without gives the same.
TEST(contracts_are_stated) {
  const auto model = small_model(Mix::kBF16);
  REQUIRE(model != nullptr);
  Engine e(model->path(), options());
  REQUIRE(e.handle() != nullptr);
  Rng rng(67);
  const bool own = e.info().prompt_rows > 0;
  if (std::string(e.info().backend) == "cpu") CHECK(!own);
  // The rows of every length are one text: its single steps are run once, from length to length.
  const std::vector<int32_t> text = random_tokens(&rng, 130, kVocab);
  const int32_t single = e.sequence();
  std::vector<float> one_by_one;
  size_t read = 0;
  for (const size_t n : {size_t{1}, size_t{9}, size_t{64}, size_t{65}, text.size()}) {
    const auto at = [&](size_t i) { return text.begin() + static_cast<std::ptrdiff_t>(i); };
    const std::vector<int32_t> tokens(at(0), at(n));
    const int32_t prompt = e.sequence(), decode = e.sequence();
    const std::vector<float> as_prompt = e.prefill(prompt, tokens, 512, TND_WANT_LOGITS, TND_GROUP_PROMPT).logits;
    const std::vector<float> as_rows = e.prefill(decode, tokens, 512, TND_WANT_LOGITS).logits;
    const std::vector<float> more = e.prefill(single, {at(read), at(n)}, 1, TND_WANT_LOGITS).logits;
    one_by_one.insert(one_by_one.end(), more.begin(), more.end());
    read = n;
    CHECK(same_bits(one_by_one, as_rows));
    CHECK(e.exported(single) == e.exported(decode));
    CHECK_MSG(same_bits(as_prompt, as_rows) == !own, "rows " + std::to_string(n));
    for (const int32_t s : {prompt, decode}) e.ok(tnd_sequence_free(e.handle(), s));
  }
}

// Fused features of a step's rows have the contract of their group, those that were kept that of decoding.
TEST(fused_features_have_the_contract_of_their_group) {
  EngineOptions o;
  o.max_context = 64;
  o.max_tree_rows = 8;
  o.max_batch_rows = 24;
  Engine e(demo_model(), o);
  REQUIRE(e.handle() != nullptr);
  REQUIRE(e.ok(tnd_fuse_load(e.handle(), TND_ROOT "/models/tandem-tiny-draft-q8_0.gguf")));
  const size_t width = static_cast<size_t>(e.info().feature_fused);
  StepIn in;
  in.feature_encoding = TND_FEATURE_FUSED_F32;
  in.feature_width = static_cast<int>(width);
  Rng rng(71);
  const std::vector<int32_t> a = random_tokens(&rng, 3, 8192), b = random_tokens(&rng, 6, 8192);
  const auto prompt = [&](int32_t s) {
    GroupIn g = e.rows(s, b, Engine::chain(b.size()), TND_WANT_FEATURES);
    g.kind = TND_GROUP_PROMPT;
    g.flags = TND_GROUP_COMMIT;
    g.rows[2].want = 0;
    return g;
  };
  const int32_t one = e.sequence(), two = e.sequence(), three = e.sequence();
  in.groups = {e.rows(one, a, Engine::chain(a.size()), TND_WANT_FEATURES | TND_WANT_KEEP)};
  const std::vector<float> of_rows = e.run_ok(in).features;
  in.groups = {prompt(two)};
  const std::vector<float> of_prompt = e.run_ok(in).features;
  // Rows, the prompt and a path whose features are read, in one step and this order.
  e.ok(tnd_sequence_truncate(e.handle(), two, 0));
  in.groups = {e.rows(three, a, Engine::chain(a.size()), TND_WANT_FEATURES), prompt(two),
               GroupIn{.sequence = one, .path = {0, 1}, .kept_position = 0, .n_kept = 2}};
  const std::vector<float> all = e.run_ok(in).features;
  std::vector<float> want(of_rows.begin(), of_rows.begin() + static_cast<std::ptrdiff_t>(2 * width));
  want.insert(want.end(), of_rows.begin(), of_rows.end());
  want.insert(want.end(), of_prompt.begin(), of_prompt.end());
  CHECK(same_bits(all, want));
}

// A step whose last group is wrong leaves all sequences as they were: lengths, states, pending rows, kept features.
TEST(a_refused_step_changes_nothing) {
  const auto model = small_model(Mix::kQ8_0);
  REQUIRE(model != nullptr);
  constexpr int32_t kContext = 200;
  EngineOptions o = options();
  o.max_context = kContext;
  Engine e(model->path(), o), twin(model->path(), o);
  REQUIRE(e.handle() != nullptr && twin.handle() != nullptr);
  const int32_t layer = 1, width = e.info().hidden;
  Rng rng(73);
  const std::vector<int32_t> tokens = random_tokens(&rng, 20, kVocab);
  StepIn pending;
  for (Engine* x : {&e, &twin}) {
    x->ok(tnd_capture_set(x->handle(), &layer, 1));
    for (int32_t s = 0; s < 3; ++s) {
      CHECK_EQ(x->sequence(), s);
      x->prefill(s, tokens, 512, 0);
    }
    pending.groups.clear();
    for (int32_t s = 0; s < 3; ++s) pending.groups.push_back(x->rows(s, {1, 2, 3}, {-1, 0, 0}, TND_WANT_KEEP));
    for (GroupIn& g : pending.groups) g.rows[1].want = 0;  // takes the place of its sibling
    x->run_ok(pending);
  }
  // Commits, reads, a prompt's piece and a tree: right as it is.
  StepIn good;
  good.feature_encoding = TND_FEATURE_RAW_F32;
  good.feature_width = width;
  good.groups = {e.rows(0, tokens, Engine::chain(20), TND_WANT_LOGITS, {0, 2}),
                 e.rows(1, {4, 5, 6}, {-1, 0, 0}, TND_WANT_LOGITS, {0}),
                 e.rows(2, {7, 8}, {-1, -1}, TND_WANT_LOGITS | TND_WANT_FEATURES, {0, 2})};
  good.groups[0].kind = TND_GROUP_PROMPT;
  good.groups[0].flags = TND_GROUP_COMMIT;
  good.groups[0].kept_position = 20, good.groups[0].n_kept = 2;
  good.groups[2].kept_position = 21, good.groups[2].n_kept = 1;
  std::vector<std::vector<uint8_t>> states;
  for (int32_t s = 0; s < 3; ++s) states.push_back(e.exported(s));
  const auto refused = [&](tnd_status status, const char* text, auto change) {
    StepIn bad = good;
    change(bad, bad.groups[2]);
    CHECK_EQ(e.run(bad).status, status);
    CHECK_MSG(e.error().find(text) != std::string::npos, e.error());
    for (int32_t s = 0; s < 3; ++s) {
      CHECK_EQ(e.length(s), 20);
      CHECK_MSG(e.exported(s) == states[static_cast<size_t>(s)], text);
    }
  };
  refused(TND_NOT_FOUND, "groups[2].sequence", [](StepIn&, GroupIn& g) { g.sequence = 5; });
  refused(TND_INVALID_ARGUMENT, "groups[2].sequence is 0", [](StepIn&, GroupIn& g) { g.sequence = 0; });
  refused(TND_INVALID_ARGUMENT, "groups[2].path[2] is 1", [](StepIn&, GroupIn& g) { g.path = {0, 2, 1}; });
  refused(TND_INVALID_ARGUMENT, "groups[2].path[0] is 3", [](StepIn&, GroupIn& g) { g.path = {3}; });
  refused(TND_FAILED_PRECONDITION, "groups[2].kept_position is 21", [](StepIn&, GroupIn& g) { g.n_kept = 2; });
  refused(TND_FAILED_PRECONDITION, "groups[2].kept_position is 2", [](StepIn&, GroupIn& g) { g.kept_position = 2; });
  refused(TND_INVALID_ARGUMENT, "groups[2].n_kept is -1", [](StepIn&, GroupIn& g) { g.n_kept = -1; });
  refused(TND_INVALID_ARGUMENT, "groups[2].rows[1].position", [](StepIn&, GroupIn& g) { g.rows[1].position = 20; });
  refused(TND_INVALID_ARGUMENT, "groups[2].rows[1].token", [](StepIn&, GroupIn& g) { g.rows[1].token = kVocab; });
  refused(TND_INVALID_ARGUMENT, "groups[2].rows[0].mask", [](StepIn&, GroupIn& g) { g.rows[0].mask = 0; });
  refused(TND_INVALID_ARGUMENT, "masks[0] allows no token", [](StepIn& in, GroupIn&) {
    in.n_masks = 1;
    in.masks.assign((kVocab + 31) / 32, 0);
  });
  refused(TND_INVALID_ARGUMENT, "groups[2].kind", [](StepIn&, GroupIn& g) { g.kind = TND_GROUP_PROMPT; });
  refused(TND_INVALID_ARGUMENT, "feature_encoding", [](StepIn& in, GroupIn&) { in.feature_encoding = 9; });
  refused(TND_FAILED_PRECONDITION, "tnd_fuse_load",
          [](StepIn& in, GroupIn&) { in.feature_encoding = TND_FEATURE_FUSED_F32; });
  refused(TND_INVALID_ARGUMENT, "features is NULL", [](StepIn& in, GroupIn&) { in.feature_width = 0; });
  refused(TND_INVALID_ARGUMENT, "hidden_in", [&](StepIn& in, GroupIn&) { in.hidden.resize(25 * 256); });
  refused(TND_RESOURCE_EXHAUSTED, "max_context", [](StepIn&, GroupIn& g) {
    g.rows.assign(kContext - 21, g.rows[0]);
    g.flags = TND_GROUP_COMMIT;
    for (int32_t i = 0; i < kContext - 21; ++i) {
      g.rows[static_cast<size_t>(i)].parent = i - 1;
      g.rows[static_cast<size_t>(i)].position = 22 + i;
    }
  });
  // All of it is still there.
  const StepOut got = e.run_ok(good), want = twin.run_ok(good);
  CHECK(same_bits(got.logits, want.logits) && same_bits(got.features, want.features));
  for (int32_t s = 0; s < 3; ++s) CHECK(e.exported(s) == twin.exported(s));
}

// Kept features are read as many at a time as a step has rows.
TEST(kept_features_have_a_limit) {
  const auto model = small_model(Mix::kQ8_0);
  REQUIRE(model != nullptr);
  EngineOptions o = options();
  o.max_tree_rows = 8;
  o.max_batch_rows = 12;
  Engine e(model->path(), o);
  REQUIRE(e.handle() != nullptr);
  const int32_t layer = 1, s = e.sequence(), t = e.sequence(), width = e.info().hidden;
  e.ok(tnd_capture_set(e.handle(), &layer, 1));
  for (const int32_t sequence : {s, t}) {
    for (int i = 0; i < 2; ++i) e.prefill(sequence, std::vector<int32_t>(10, 3), 10, TND_WANT_KEEP);
  }
  CHECK_EQ(e.kept(s, 4, 12, TND_FEATURE_RAW_F32, width).status, TND_OK);
  CHECK_EQ(e.kept(s, 4, 13, TND_FEATURE_RAW_F32, width).status, TND_INVALID_ARGUMENT);
  StepIn in;
  in.feature_encoding = TND_FEATURE_RAW_F32;
  in.feature_width = width;
  in.groups = {GroupIn{.sequence = s, .kept_position = 0, .n_kept = 6},
               GroupIn{.sequence = t, .kept_position = 1, .n_kept = 7}};
  CHECK_EQ(e.run(in).status, TND_INVALID_ARGUMENT);
  CHECK_MSG(e.error().find("features are 13 together, at most 12 (max_batch_rows)") != std::string::npos, e.error());
  in.groups[1].n_kept = 6;
  CHECK_EQ(e.run(in).status, TND_OK);
}

// A cancelled step has committed the paths of all its groups and breaks the sequences of those that commit their rows.
TEST(a_cancelled_step_breaks_committing_groups_only) {
  const auto model = small_model(Mix::kQ8_0);
  REQUIRE(model != nullptr);
  Engine e(model->path(), options());
  REQUIRE(e.handle() != nullptr);
  const int32_t a = e.sequence(), b = e.sequence();
  bool cancelled = false;
  for (int attempt = 0; attempt < 200 && !cancelled; ++attempt) {
    for (const int32_t s : {a, b}) e.ok(tnd_sequence_truncate(e.handle(), s, 0));
    StepIn in;
    in.groups = {e.rows(b, {1, 2}, Engine::chain(2), 0)};
    e.run_ok(in);
    in.groups = {e.rows(a, std::vector<int32_t>(256, 4), Engine::chain(256), 0),
                 e.rows(b, {3, 4, 5}, Engine::chain(3), 0, {0, 1})};
    in.groups[0].flags = TND_GROUP_COMMIT;
    in.groups[0].kind = TND_GROUP_PROMPT;
    std::atomic<bool> started{false}, stop{false};
    std::thread other([&] {
      started.store(true);
      while (!stop.load()) tnd_cancel(e.handle());
    });
    while (!started.load()) std::this_thread::yield();  // a step takes less time than a thread's start may
    const tnd_status status = e.run(in).status;
    stop.store(true);
    other.join();
    cancelled = status == TND_CANCELED;
    CHECK(cancelled || status == TND_OK);
  }
  REQUIRE(cancelled);
  StepIn in;
  in.groups = {GroupIn{.sequence = a}};
  CHECK_EQ(e.run(in).status, TND_FAILED_PRECONDITION);
  CHECK_EQ(e.length(b), 2);
  in.groups = {GroupIn{.sequence = b, .path = {0}}};
  CHECK_EQ(e.run(in).status, TND_FAILED_PRECONDITION);  // nothing is pending
  in.groups = {e.rows(b, {3}, {-1}, TND_WANT_LOGITS)};
  const StepOut got = e.run_ok(in);
  const int32_t c = e.sequence();
  e.prefill(c, {1, 2});
  in.groups = {e.rows(c, {3}, {-1}, TND_WANT_LOGITS)};
  CHECK(same_bits(got.logits, e.run_ok(in).logits));
}

TEST_MAIN()
