// What drafting while the target verifies could bring, by the texts of a file of golden prompts. Usage:
//   overlap_bench MODELS_DIR GOLDEN.json [first_row,further_row,proposal]...
// MODELS_DIR holds tandem-tiny-{target-q4_k_m,draft-q8_0}.gguf. The rounds of greedy chains are replayed over each
// text, with several ways to propose the next chain before the features of the rows that are being verified exist:
//   after the chain   a block whose anchor is the last drafted token: a gap of a chain without features before it
//   rest              chains of fewer rows than the block: the rest of a block that was asked for one round earlier
//   oracle            the proposal that the draft would make with the features, if the whole chain is accepted
// A chain that was proposed early is used when the one before was accepted and its first token is what the target chose
// then; else the draft is asked as usual. Early proposals are counted as free, so the ratios of time are what is
// possible at best. They are given for the engines alone, on a thread each (processor time, medians), and for the times
// of other layouts: microseconds of a step of one row, of each further row, and of a proposal that is waited for.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bench_engine.h"
#include "gguf/json.h"
#include "gguf/safetensors.h"
#include "tandem/engine.h"

using namespace tnd;
using namespace tnd::bench;

namespace {

constexpr int32_t kPrompt = 256;  // rows of a step that reads a prompt

// An engine with one sequence, on a thread.
struct Alone : Engine {
  int32_t sequence = 0;

  Alone(uint32_t role, const std::string& model, const std::string& tables)
      : Engine(role, model, tables, 1024, 1, 1, kPrompt) {
    check(tnd_sequence_create(e, &sequence));
  }
};

// Both engines and one text.
class Pair {
 public:
  explicit Pair(const std::string& dir)
      : target_(TND_ROLE_TARGET, dir + "/tandem-tiny-target-q4_k_m.gguf", ""),
        draft_(TND_ROLE_DRAFT, dir + "/tandem-tiny-draft-q8_0.gguf", dir + "/tandem-tiny-target-q4_k_m.gguf") {
    tnd_info info{};
    info.struct_size = sizeof info;
    draft_.check(tnd_get_info(draft_.e, &info));
    target_.check(tnd_capture_set(target_.e, info.capture_layers, info.n_capture));
    width_ = static_cast<size_t>(info.feature_raw);
    block_ = info.block_size;
  }

  int block() const { return block_; }

  // read generates the answer to a prompt of at most `tokens` tokens, greedily, up to one that is end.
  void read(const std::vector<int32_t>& prompt, size_t tokens, int32_t end) {
    target_.check(tnd_sequence_truncate(target_.e, target_.sequence, 0));
    draft_.check(tnd_sequence_truncate(draft_.e, draft_.sequence, 0));
    appended_ = 0;
    features_.clear();
    path_.clear();
    blocks_.clear();
    text_ = prompt;
    first_ = static_cast<int>(prompt.size());
    int32_t next = 0;
    for (int at = 0; at < first_; at += kPrompt) next = step(at, std::min(kPrompt, first_ - at), true);
    text_.push_back(next);
    while (text_.size() < prompt.size() + tokens && text_.back() != end) {
      text_.push_back(step(static_cast<int>(text_.size()) - 1, 1, true));
    }
  }

  int first() const { return first_; }  // position of the first token of the answer
  int end() const { return static_cast<int>(text_.size()); }
  int32_t token(int position) const { return text_[static_cast<size_t>(position)]; }

  // right is how many tokens of a chain are those from a position on.
  int right(const std::vector<int32_t>& chain, int position) const {
    int n = 0;
    while (n < static_cast<int>(chain.size()) && position + n < end() &&
           chain[static_cast<size_t>(n)] == token(position + n))
      n++;
    return n;
  }

  // propose returns the draft's block after an anchor at a position, which has the features of the positions before
  // `known`.
  const std::vector<int32_t>& propose(int32_t anchor, int position, int known) {
    const auto [found, added] = blocks_.try_emplace({anchor, position, known});
    if (added) found->second = ask(anchor, position, known);
    return found->second;
  }

  // step_us times a step of a chain of so many rows that commits one of as many before it.
  double step_us(int rows) {
    target_.check(tnd_sequence_truncate(target_.e, target_.sequence, 0));
    path_.clear();
    for (int at = 0; at < first_; at += kPrompt) step(at, std::min(kPrompt, first_ - at), true);
    step(first_, rows, false);
    const double begin = cpu_us();
    step(first_ + rows, rows, false);
    return cpu_us() - begin;
  }

  // draft_us times a proposal with the features of so many rows.
  double draft_us(int rows) {
    append(first_);
    const double begin = cpu_us();
    ask(token(first_ + rows), first_ + rows, first_ + rows);
    return cpu_us() - begin;
  }

 private:
  std::vector<int32_t> ask(int32_t anchor, int position, int known) {
    append(known);
    std::vector<int32_t> ids(static_cast<size_t>(block_ - 1) * 8);
    std::vector<float> logprobs(ids.size());
    const tnd_draft_request r{draft_.sequence, anchor, position, block_, 1, 1.0f};
    draft_.check(tnd_draft_propose(draft_.e, &r, 1, ids.data(), logprobs.data()));
    std::vector<int32_t> chain;
    for (size_t i = 0; i < ids.size(); i += 8) chain.push_back(ids[i]);
    return chain;
  }

  // step runs rows of the text from a position on and returns what the target chooses after the last. Those of the step
  // before that were not committed are committed first. Features of committed rows are kept.
  int32_t step(int position, int n, bool commit) {
    std::vector<tnd_row> rows(static_cast<size_t>(n));
    for (int i = 0; i < n; i++) {
      rows[static_cast<size_t>(i)] = {
          token(position + i), position + i, i - 1, TND_WANT_TOKEN | TND_WANT_FEATURES, 0, 0, -1};
    }
    std::vector<int32_t> chosen(rows.size());
    std::vector<float> logprobs(rows.size());
    std::vector<uint16_t> features(rows.size() * width_);
    const tnd_group group{target_.sequence,
                          n,
                          TND_GROUP_DECODE,
                          commit ? TND_GROUP_COMMIT : 0,
                          path_.data(),
                          static_cast<int32_t>(path_.size()),
                          0,
                          0};
    tnd_step s{};
    s.struct_size = sizeof s;
    s.n_groups = 1;
    s.groups = &group;
    s.n_rows = n;
    s.rows = rows.data();
    s.tokens = chosen.data();
    s.logprobs = logprobs.data();
    s.features = features.data();
    s.feature_encoding = TND_FEATURE_RAW_BF16;
    target_.check(tnd_step_run(target_.e, &s));
    path_.clear();
    for (int i = 0; i < n && !commit; i++) path_.push_back(i);
    if (commit && features_.size() == static_cast<size_t>(position) * width_)
      features_.insert(features_.end(), features.begin(), features.end());
    return chosen.back();
  }

  // append gives the draft the features of the positions before end, and takes those from there on away.
  void append(int end) {
    if (end < appended_) draft_.check(tnd_sequence_truncate(draft_.e, draft_.sequence, end));
    appended_ = std::min(appended_, end);
    while (appended_ < end) {
      const int n = std::min(kPrompt, end - appended_);
      const tnd_feature_rows piece{draft_.sequence, appended_, n, TND_FEATURE_RAW_BF16,
                                   &features_[static_cast<size_t>(appended_) * width_]};
      draft_.check(tnd_draft_append(draft_.e, &piece, 1));
      appended_ += n;
    }
  }

  Alone target_, draft_;
  size_t width_ = 0;  // of a feature row
  int block_ = 0;
  std::vector<int32_t> text_, path_;
  std::vector<uint16_t> features_;  // [positions of the text that were committed, width_]
  int first_ = 0, appended_ = 0;
  std::map<std::tuple<int32_t, int, int>, std::vector<int32_t>> blocks_;  // by anchor, position and known features
};

enum class Way { kNone, kOracle, kAfter, kRest };

// Rounds of texts with one way of proposing early.
struct Rounds {
  Rounds(std::string called, Way by, int most) : name(std::move(called)), way(by), width(most) {}

  std::string name;
  Way way;
  int width;  // most rows of a chain

  int tokens = 0, rounds = 0, rows = 0, waits = 0;
  int whole = 0;    // rounds whose chain was accepted whole, with a token to come
  int guessed = 0;  // of them those after which the first token of the early chain was right
  int right = 0;    // tokens of those chains that were right, after the first

  // early returns a chain for the tokens after a chain that is being verified, with its anchor at a position.
  std::vector<int32_t> early(Pair& p, int position, const std::vector<int32_t>& chain) const {
    const int next = position + 1 + static_cast<int>(chain.size());
    switch (way) {
      case Way::kOracle: {
        if (next >= p.end()) return {};
        std::vector<int32_t> out = p.propose(p.token(next), next, next);
        out.insert(out.begin(), p.token(next));
        return out;
      }
      case Way::kAfter:
        return p.propose(chain.back(), next - 1, position);
      case Way::kRest: {
        const std::vector<int32_t> block = p.propose(p.token(position), position, position);
        return {block.begin() + static_cast<long>(chain.size()), block.end()};
      }
      case Way::kNone:
        break;
    }
    return {};
  }

  void replay(Pair& p) {
    std::vector<int32_t> chain;
    for (int position = p.first(); position < p.end() - 1;) {
      if (chain.empty()) {
        chain = p.propose(p.token(position), position, position);
        waits++;
      }
      chain.resize(std::min(chain.size(), static_cast<size_t>(width) - 1));
      const int verified = 1 + static_cast<int>(chain.size()), accepted = p.right(chain, position + 1);
      rounds++;
      rows += verified;
      std::vector<int32_t> next = early(p, position, chain);
      position += accepted + 1;
      chain.clear();
      if (accepted + 1 < verified || position >= p.end() - 1) continue;
      whole++;
      if (next.size() < 2 || next[0] != p.token(position)) continue;
      guessed++;
      chain.assign(next.begin() + 1, next.end());
      right += p.right(chain, position + 1);
    }
    tokens += p.end() - p.first();
  }
};

std::vector<int32_t> ints(const Json& j, const Json::Value* v) {
  std::vector<int32_t> out;
  for (const Json::Value* x = j.first(*v); x != nullptr; x = j.next(*x))
    out.push_back(static_cast<int32_t>(x->integer));
  return out;
}

std::vector<Rounds> ways(int block) {
  std::vector<Rounds> out;
  out.emplace_back("without", Way::kNone, block);
  out.emplace_back("oracle", Way::kOracle, block);
  out.emplace_back("after the chain", Way::kAfter, block);
  for (int width = block / 4; width <= 3 * block / 4; width += block / 8) {
    out.emplace_back("without, chains of " + std::to_string(width), Way::kNone, width);
    out.emplace_back("rest, chains of " + std::to_string(width), Way::kRest, width);
  }
  return out;
}

// Times of a layout, us.
struct Prices {
  double first = 0, further = 0, proposal = 0;  // rows of a step; a proposal that is waited for

  double of(const Rounds& r) const { return r.rounds * first + (r.rows - r.rounds) * further + r.waits * proposal; }
};

bool parse(const char* text, Prices* out) {
  int end = 0;
  return std::sscanf(text, "%lf,%lf,%lf%n", &out->first, &out->further, &out->proposal, &end) == 3 && text[end] == 0 &&
         out->first > 0;
}

// print shows the rounds of a kind of texts, with their time in each layout as a share of that without.
void print(const std::string& kind, const std::vector<Rounds>& all, const std::vector<Prices>& layouts) {
  std::printf("\n%s, %d tokens\n| early proposal | rounds | rows | waits | accepted whole | guessed | right after it |",
              kind.c_str(), all[0].tokens);
  for (size_t i = 0; i < layouts.size(); i++) std::printf(" time %zu |", i);
  std::printf("\n");
  for (const Rounds& r : all) {
    std::printf("| %s | %d | %d | %d | %d | %d | %.1f |", r.name.c_str(), r.rounds, r.rows, r.waits, r.whole, r.guessed,
                r.guessed > 0 ? double(r.right) / r.guessed : 0);
    for (const Prices& p : layouts) std::printf(" %.2f |", p.of(r) / p.of(all[0]));
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Prices> layouts(1);
  for (int i = 3; i < argc; i++) {
    if (!parse(argv[i], &layouts.emplace_back())) argc = 0;
  }
  if (argc < 3) {
    std::fprintf(stderr, "overlap_bench MODELS_DIR GOLDEN.json [first_row,further_row,proposal]...\n");
    return 2;
  }
  std::string text;
  Json j;
  Status s = gguf::read_text(argv[2], 4 << 20, &text);
  if (s.ok()) s = j.parse(text, argv[2]);
  if (!s.ok()) {
    std::fprintf(stderr, "%s\n", s.message().c_str());
    return 1;
  }
  Pair pair(argv[1]);
  const int block = pair.block();
  std::map<std::string, std::vector<Rounds>> kinds;
  std::vector<double> one, whole, proposals;
  for (const Json::Value* v = j.first(*j.get(&j.root(), "cases")); v != nullptr; v = j.next(*v)) {
    const std::vector<int32_t> answer = ints(j, j.get(v, "greedy"));
    pair.read(ints(j, j.get(v, "ids")), answer.size(), answer.back());
    std::vector<Rounds>& all = kinds.try_emplace(std::string(j.get(v, "kind")->text), ways(block)).first->second;
    for (Rounds& rounds : all) rounds.replay(pair);
    if (pair.end() - pair.first() <= 2 * block) continue;
    for (int turn = 0; turn < 5; turn++) {
      one.push_back(pair.step_us(1));
      whole.push_back(pair.step_us(block));
      proposals.push_back(pair.draft_us(block));
    }
  }
  layouts[0] = {median(one), (median(whole) - median(one)) / (block - 1), median(proposals)};
  for (size_t i = 0; i < layouts.size(); i++) {
    const Prices& p = layouts[i];
    const double verify = p.first + (block - 1) * p.further;
    std::printf("layout %zu: step of 1 row %.0f us, of %d rows %.0f, proposal %.0f = %.0f %% of a round\n", i, p.first,
                block, verify, p.proposal, 100 * p.proposal / (verify + p.proposal));
  }
  for (const auto& [kind, all] : kinds) print(kind, all, layouts);
}
