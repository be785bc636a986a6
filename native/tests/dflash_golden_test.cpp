// The demonstration pair through the C ABI against reference files (tests/testdata/golden): the draft's logits, and the
// number of tokens that chain drafts of block 16 get accepted by the target.
// The BF16 models are not part of the repository: set TANDEM_SHARED_MODELS to their folder for the exact comparison.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "gguf/json.h"
#include "gguf/safetensors.h"
#include "harness.h"
#include "tandem/engine.h"

using namespace tnd;

namespace {

constexpr int kBlock = 16;

struct Handle {
  tnd_engine* e = nullptr;
  Handle(uint32_t role, const std::string& model, const std::string& tables, int32_t context) {
    tnd_open_options o{};
    o.struct_size = sizeof o;
    o.role = role;
    o.model_path = model.c_str();
    o.tables_path = tables.empty() ? nullptr : tables.c_str();
    o.max_sequences = 1;
    o.max_context = context;
    o.max_tree_rows = 16;
    o.max_batch_rows = 256;
    o.kv_type_k = o.kv_type_v = TND_KV_DEFAULT;
    o.max_top_k = 8;
    char error[1024] = "";
    const tnd_status s = tnd_open(&o, &e, error, sizeof error);
    CHECK_MSG(s == TND_OK, error);
  }
  ~Handle() { tnd_close(e); }
  std::string error() const {
    char text[1024] = "";
    tnd_last_error(e, text, sizeof text);
    return text;
  }
};

#define CALL(handle, expr) CHECK_MSG((expr) == TND_OK, (handle).error())

std::vector<int32_t> ints(const Json& j, const Json::Value* v) {
  std::vector<int32_t> out;
  if (v == nullptr) return out;
  for (const Json::Value* x = j.first(*v); x != nullptr; x = j.next(*x)) out.push_back(int32_t(x->integer));
  return out;
}

std::vector<double> numbers(const Json& j, const Json::Value* v) {
  std::vector<double> out;
  if (v == nullptr) return out;
  for (const Json::Value* x = j.first(*v); x != nullptr; x = j.next(*x)) out.push_back(x->number);
  return out;
}

// Target and draft of one conversation.
struct Pair {
  Handle target, draft;
  int32_t seq = -1, dseq = -1;
  int32_t feature_width = 0;
  std::vector<uint16_t> features;
  std::vector<int32_t> path;  // committed by the next chain

  Pair(const std::string& target_path, const std::string& draft_path, int32_t context)
      : target(TND_ROLE_TARGET, target_path, "", context), draft(TND_ROLE_DRAFT, draft_path, target_path, context) {
    if (target.e == nullptr || draft.e == nullptr) return;
    tnd_info info{};
    info.struct_size = sizeof info;
    CALL(draft, tnd_get_info(draft.e, &info));
    CALL(target, tnd_capture_set(target.e, info.capture_layers, info.n_capture));
    feature_width = info.feature_raw;
    CALL(target, tnd_sequence_create(target.e, &seq));
    CALL(draft, tnd_sequence_create(draft.e, &dseq));
  }

  // Runs rows of tokens from `position`, a chain, behind the path that is committed first; commit says whether they are
  // kept. Returns the argmax of each row.
  std::vector<int32_t> chain(const std::vector<int32_t>& tokens, int32_t position, bool commit) {
    const int n = int(tokens.size());
    std::vector<tnd_row> rows(tokens.size());
    for (int i = 0; i < n; i++) {
      rows[i] = {tokens[i], position + i, i - 1, TND_WANT_TOKEN | TND_WANT_FEATURES, 0, 0, -1};
    }
    std::vector<int32_t> out(tokens.size());
    std::vector<float> logprobs(tokens.size());
    features.resize(tokens.size() * size_t(feature_width));
    const tnd_group group{seq, n, TND_GROUP_DECODE, commit ? TND_GROUP_COMMIT : 0, path.data(), int32_t(path.size()),
                          0,   0};
    path.clear();
    tnd_step step{};
    step.struct_size = sizeof step;
    step.n_groups = 1;
    step.groups = &group;
    step.n_rows = n;
    step.rows = rows.data();
    step.tokens = out.data();
    step.logprobs = logprobs.data();
    step.features = features.data();
    step.feature_encoding = TND_FEATURE_RAW_BF16;
    CALL(target, tnd_step_run(target.e, &step));
    return out;
  }
  void append(int32_t position, int32_t n) {
    const tnd_feature_rows piece{dseq, position, n, TND_FEATURE_RAW_BF16, features.data()};
    CALL(draft, tnd_draft_append(draft.e, &piece, 1));
  }
  // Reads a prompt into both; returns the first token.
  int32_t prefill(const std::vector<int32_t>& ids) {
    CALL(target, tnd_sequence_truncate(target.e, seq, 0));
    CALL(draft, tnd_sequence_truncate(draft.e, dseq, 0));
    path.clear();
    int32_t last = -1;
    for (size_t at = 0; at < ids.size(); at += 256) {
      const std::vector<int32_t> part(ids.begin() + long(at), ids.begin() + long(std::min(ids.size(), at + 256)));
      last = chain(part, int32_t(at), true).back();
      append(int32_t(at), int32_t(part.size()));
    }
    return last;
  }
};

// One conversation with chain drafts; returns accepted + bonus tokens per round and the emitted tokens.
std::vector<int> speculate(Pair& p, const std::vector<int32_t>& prompt, size_t want, std::vector<int32_t>* text) {
  std::vector<int> lengths;
  int32_t anchor = p.prefill(prompt);
  int32_t n = int32_t(prompt.size());
  text->assign(1, anchor);
  std::vector<int32_t> ids((kBlock - 1) * 8);
  std::vector<float> logprobs(ids.size());
  constexpr int32_t kEnd = 8162;
  while (text->size() < want && anchor != kEnd) {
    const tnd_draft_request r{p.dseq, anchor, n, kBlock, 1, 1.0f};
    CALL(p.draft, tnd_draft_propose(p.draft.e, &r, 1, ids.data(), logprobs.data()));
    std::vector<int32_t> rows = {anchor};
    for (int j = 0; j < kBlock - 1; j++) rows.push_back(ids[size_t(j) * 8]);
    const auto y = p.chain(rows, n, false);
    int a = 0;
    while (a < kBlock - 1 && rows[size_t(a) + 1] == y[size_t(a)]) a++;
    for (int i = 0; i <= a; i++) p.path.push_back(i);
    p.append(n, a + 1);
    lengths.push_back(a + 1);
    n += a + 1;
    anchor = y[size_t(a)];
    for (int i = 0; i <= a; i++) text->push_back(y[size_t(i)]);
    if (std::find(text->begin(), text->end(), kEnd) != text->end()) break;
  }
  return lengths;
}

bool load_json(const char* name, std::string* text, Json* j) {
  const std::string path = std::string(TND_ROOT "/tests/testdata/golden/") + name;
  const Status s = gguf::read_text(path, 4 << 20, text);
  if (!s.ok()) {
    std::fprintf(stderr, "skipped: %s\n", s.message().c_str());
    return false;
  }
  CHECK_OK(j->parse(*text, path));
  return true;
}

}  // namespace

// Largest logits of block rows 1..15 right after four prompts, float32 reference on the BF16 weights.
TEST(draft_logits_of_the_bf16_pair) {
  const char* dir = std::getenv("TANDEM_SHARED_MODELS");
  if (dir == nullptr) {
    std::fprintf(stderr, "skipped: TANDEM_SHARED_MODELS is not set (BF16 models are not in the repository)\n");
    return;
  }
  std::string text;
  Json j;
  if (!load_json("tandem-tiny-bf16.json", &text, &j)) return;
  Pair p(std::string(dir) + "/tandem-tiny-target-bf16.gguf", std::string(dir) + "/tandem-tiny-draft-bf16.gguf", 512);
  if (p.draft.e == nullptr || p.target.e == nullptr) return;
  const Json::Value* prompts = j.get(&j.root(), "prompts");
  double worst = 0;
  int first = 0, total = 0;
  for (const Json::Value* v = j.first(*prompts); v != nullptr; v = j.next(*v)) {
    const Json::Value* top = j.get(v, "draft_top");
    if (top == nullptr) continue;
    const auto ids = ints(j, j.get(v, "ids"));
    const int32_t anchor = p.prefill(ids);
    CHECK_EQ(anchor, int32_t(j.get(v, "draft_first_token")->integer));
    std::vector<int32_t> got((kBlock - 1) * 8);
    std::vector<float> logprobs(got.size());
    const tnd_draft_request r{p.dseq, anchor, int32_t(ids.size()), kBlock, 8, 1.0f};
    CALL(p.draft, tnd_draft_propose(p.draft.e, &r, 1, got.data(), logprobs.data()));
    const Json::Value* id_row = j.first(*j.get(top, "ids"));
    const Json::Value* logit_row = j.first(*j.get(top, "logits"));
    for (int pos = 0; pos < kBlock - 1 && id_row != nullptr; pos++) {
      const auto want_ids = ints(j, id_row);
      const auto want = numbers(j, logit_row);
      // Log-probabilities differ from logits by one constant per row: compare differences to the first.
      for (size_t k = 0; k < want.size(); k++) {
        const auto at = std::find(got.begin() + pos * 8, got.begin() + pos * 8 + 8, want_ids[k]);
        if (at == got.begin() + pos * 8 + 8) continue;
        const auto lead = std::find(got.begin() + pos * 8, got.begin() + pos * 8 + 8, want_ids[0]);
        if (lead == got.begin() + pos * 8 + 8) continue;
        const double d =
            (logprobs[size_t(at - got.begin())] - logprobs[size_t(lead - got.begin())]) - (want[k] - want[0]);
        worst = std::max(worst, std::fabs(d));
      }
      first += got[size_t(pos) * 8] == want_ids[0];
      total++;
      id_row = j.next(*id_row);
      logit_row = j.next(*logit_row);
    }
  }
  std::fprintf(stderr, "first candidates equal %d of %d, largest difference of logits %.4f\n", first, total, worst);
  CHECK(total >= 15);
  CHECK(first >= total - total / 20);
  // F16 K/V and bf16 features against float32: logits of order 10 to 20.
  CHECK_MSG(worst < 0.15, std::to_string(worst));
}

// Mean accepted length over the 40 cases of the quantised trio, within 5 % of the reference.
TEST(chain_acceptance_of_the_quantised_pair) {
  std::string text;
  Json j;
  if (!load_json("tandem-tiny-q4km.json", &text, &j)) return;
  const std::string models = TND_ROOT "/models/tandem-tiny-";
  Pair p(models + "target-q4_k_m.gguf", models + "draft-q8_0.gguf", 2048);
  if (p.draft.e == nullptr || p.target.e == nullptr) return;
  double want_tokens = 0, want_rounds = 0, tokens = 0, rounds = 0;
  int same_text = 0, cases = 0;
  for (const Json::Value* v = j.first(*j.get(&j.root(), "cases")); v != nullptr; v = j.next(*v)) {
    const auto prompt = ints(j, j.get(v, "ids"));
    const auto greedy = ints(j, j.get(v, "greedy"));
    const auto want = ints(j, j.get(v, "accept_lengths"));
    std::vector<int32_t> emitted;
    const auto got = speculate(p, prompt, greedy.size(), &emitted);
    for (int a : got) tokens += a, rounds += 1;
    for (int a : want) want_tokens += a, want_rounds += 1;
    const size_t n = std::min(emitted.size(), greedy.size());
    same_text += std::equal(greedy.begin(), greedy.begin() + long(n), emitted.begin());
    cases++;
  }
  const double mean = tokens / rounds, want_mean = want_tokens / want_rounds;
  std::fprintf(stderr, "%d cases: mean acceptance %.3f, reference %.3f; %d texts equal the reference\n", cases, mean,
               want_mean, same_text);
  CHECK_EQ(cases, 40);
  CHECK_NEAR(mean / want_mean, 1.0, 0.05);
  CHECK(same_text >= 30);
}

// With a draft or without, the target says the same: speculation changes the speed only.
TEST(speculation_equals_plain_decoding) {
  std::string text;
  Json j;
  if (!load_json("tandem-tiny-q4km.json", &text, &j)) return;
  const std::string models = TND_ROOT "/models/tandem-tiny-";
  Pair p(models + "target-q4_k_m.gguf", models + "draft-q8_0.gguf", 2048);
  if (p.draft.e == nullptr || p.target.e == nullptr) return;
  int cases = 0;
  for (const Json::Value* v = j.first(*j.get(&j.root(), "cases")); v != nullptr; v = j.next(*v)) {
    if (cases++ % 3 != 0) continue;
    const auto prompt = ints(j, j.get(v, "ids"));
    std::vector<int32_t> fast, plain;
    speculate(p, prompt, 64, &fast);
    plain.push_back(p.prefill(prompt));
    for (int32_t n = int32_t(prompt.size()); plain.size() < fast.size(); n++) {
      plain.push_back(p.chain({plain.back()}, n, true)[0]);
    }
    CHECK(plain == fast);
  }
}

// Features fused by the target give the bits of raw features fused by the draft; rounded to bf16 they stay close.
TEST(fused_features_equal_raw) {
  const std::string models = TND_ROOT "/models/tandem-tiny-", draft_path = models + "draft-q8_0.gguf";
  Pair p(models + "target-q4_k_m.gguf", draft_path, 512);
  if (p.draft.e == nullptr || p.target.e == nullptr) return;
  CALL(p.target, tnd_fuse_load(p.target.e, draft_path.c_str()));
  tnd_info info{};
  info.struct_size = sizeof info;
  CALL(p.draft, tnd_get_info(p.draft.e, &info));
  const int n = 40;
  std::vector<tnd_row> rows(n);
  for (int i = 0; i < n; i++) rows[size_t(i)] = {100 + 37 * i, i, i - 1, TND_WANT_FEATURES, 0, 0, -1};
  std::vector<float> f(size_t(n) * size_t(info.feature_raw));
  std::vector<int32_t> ids((kBlock - 1) * 8), first;
  std::vector<float> logprobs(ids.size()), first_logprobs;
  for (int encoding : {TND_FEATURE_RAW_F32, TND_FEATURE_FUSED_F32, TND_FEATURE_RAW_BF16, TND_FEATURE_FUSED_BF16}) {
    CALL(p.target, tnd_sequence_truncate(p.target.e, p.seq, 0));
    const tnd_group group{p.seq, n, TND_GROUP_DECODE, TND_GROUP_COMMIT, nullptr, 0, 0, 0};
    tnd_step step{};
    step.struct_size = sizeof step;
    step.n_groups = 1;
    step.groups = &group;
    step.n_rows = n;
    step.rows = rows.data();
    step.features = f.data();
    step.feature_encoding = encoding;
    CALL(p.target, tnd_step_run(p.target.e, &step));
    CALL(p.draft, tnd_sequence_truncate(p.draft.e, p.dseq, 0));
    const tnd_feature_rows piece{p.dseq, 0, n, encoding, f.data()};
    CALL(p.draft, tnd_draft_append(p.draft.e, &piece, 1));
    const tnd_draft_request r{p.dseq, 77, n, kBlock, 8, 1.0f};
    CALL(p.draft, tnd_draft_propose(p.draft.e, &r, 1, ids.data(), logprobs.data()));
    if (first.empty()) first = ids, first_logprobs = logprobs;
    if (encoding == TND_FEATURE_FUSED_F32) CHECK(first == ids && first_logprobs == logprobs);
    for (size_t i = 0; i < ids.size(); i += 8) CHECK_NEAR(first_logprobs[i], logprobs[i], 0.1);
  }
}

TEST_MAIN()
