// Synthetic models: their sizes are those that docs/spec/gguf.md §6, dflash.md §2.5 and qwen35.md state, the ordinary
// loader runs them, and what their memory plans hold on a card of 24 GiB is what docs/spec/kv-cache.md §4 states.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>

#include "core/arena.h"
#include "engine_util.h"
#include "synthetic_model.h"

using namespace tnd;
using namespace tnd::bench;

namespace {

struct Sum {
  uint64_t tensors = 0, bytes = 0, elements = 0;
  std::map<DType, int> types;
};

Sum sum(const SyntheticShape& s) {
  Sum all;
  for (const SyntheticTensor& t : synthetic_tensors(s)) {
    ++all.tensors;
    all.bytes += t.bytes();
    all.elements += t.elements();
    ++all.types[t.type];
  }
  return all;
}

// A shape of true widths that is quick to make.
SyntheticShape small(SyntheticShape s) {
  s.layers = std::min(s.layers, 4);
  if (s.vocab > 0) s.vocab = 512;
  return s;
}

}  // namespace

TEST(sizes_are_those_of_the_published_files) {
  const Sum target = sum(qwen35_27b_q4_k_m());
  CHECK_EQ(target.tensors, 851u);
  CHECK_EQ(target.bytes, 16'729'819'136u);
  CHECK_EQ(target.elements, 26'895'998'464u);
  CHECK_EQ(target.types.at(DType::kF32), 353);
  CHECK_EQ(target.types.at(DType::kQ8_0), 96);
  CHECK_EQ(target.types.at(DType::kQ4_K), 263);
  CHECK_EQ(target.types.at(DType::kQ5_K), 96);
  CHECK_EQ(target.types.at(DType::kQ6_K), 43);
  const Sum draft = sum(dflash_27b_q8_0());
  CHECK_EQ(draft.tensors, 58u);
  CHECK_EQ(draft.bytes, 1'838'535'680u);
  CHECK_EQ(draft.elements, 1'730'213'120u);
  CHECK_EQ(sum(qwen35_08b_bf16()).elements, 752'393'024u);
  CHECK_EQ(sum(qwen3_06b_bf16()).elements, 596'049'920u);
}

TEST(the_loader_runs_them) {
  for (const SyntheticShape& full : {qwen35_08b_bf16(), qwen3_06b_bf16()}) {
    for (const Mix mix : {Mix::kQ4KM, Mix::kBF16, Mix::kQ8_0}) {
      SyntheticShape shape = small(full);
      shape.mix = mix;
      std::unique_ptr<SyntheticModel> model;
      const Status s = SyntheticModel::make(shape, 2, &model);
      CHECK_EQ(s.message(), std::string());
      REQUIRE(s.ok());
      test::EngineOptions options;
      options.max_context = 64;
      test::Engine engine(model->path(), options);
      REQUIRE(engine.handle() != nullptr);
      CHECK_EQ(engine.info().vocab, 512);
      CHECK_EQ(std::string(engine.info().name), shape.name);
      test::StepIn in;
      std::vector<int32_t> tokens;
      for (int32_t i = 0; i < 8; ++i) tokens.push_back(i * 37);
      in.groups = {engine.rows(engine.sequence(), tokens, test::Engine::chain(8), TND_WANT_TOKEN | TND_WANT_LOGITS)};
      const test::StepOut out = engine.run(in);
      REQUIRE(out.status == TND_OK);
      // Random, but neither constant nor overflowing: a spread that a softmax can live with.
      double sum = 0, squares = 0;
      for (const float v : out.logits) {
        REQUIRE(std::isfinite(v));
        sum += v;
        squares += double(v) * v;
      }
      const double n = static_cast<double>(out.logits.size()), deviation = std::sqrt(squares / n - sum / n * (sum / n));
      CHECK(deviation > 0.3 && deviation < 3);
    }
  }
}

TEST(a_draft_opens_with_the_tables_of_its_target) {
  SyntheticShape target = small(qwen35_27b_q4_k_m()), draft = small(dflash_27b_q8_0());
  target.hidden = draft.hidden = 1024;
  target.ffn = draft.ffn = 2048;
  draft.layers = 2;
  draft.target_layers = {0, 2};
  std::unique_ptr<SyntheticModel> tables, model;
  REQUIRE(SyntheticModel::make(target, 2, &tables).ok());
  REQUIRE(SyntheticModel::make(draft, 2, &model).ok());
  tnd_open_options o = test::Engine::make_options(model->path(), {});
  o.role = TND_ROLE_DRAFT;
  o.tables_path = tables->path().c_str();
  o.max_sequences = 1;
  tnd_engine* e = nullptr;
  char error[1024];
  CHECK_EQ(tnd_open(&o, &e, error, sizeof error), TND_OK);
  CHECK_EQ(std::string(error), std::string());
  tnd_close(e);
}

namespace {

// A memory plan, read off the refusal of a cap that it exceeds: no weights are needed for it.
struct Plan {
  uint64_t total = 0;
  std::map<std::string, uint64_t> parts;
  int32_t fits = 0;  // max_context or kv_positions that would fit
};

Plan plan_of(const SyntheticModel& model, const test::EngineOptions& options) {
  tnd_open_options o = test::Engine::make_options(model.path(), options);
  tnd_engine* e = nullptr;
  char text[1024];
  CHECK_EQ(tnd_open(&o, &e, text, sizeof text), TND_RESOURCE_EXHAUSTED);
  tnd_close(e);
  Plan plan;
  std::istringstream in(text);
  std::string word, name;
  for (std::string before; in >> word; before = word) {
    const uint64_t number = std::strtoull(word.c_str(), nullptr, 10);
    if (before == "needs") plan.total = number;
    if (before.ends_with("_bytes") || before.starts_with("(")) {
      plan.parts[before.substr(before.starts_with("(") ? 1 : 0)] = number;
    }
    if (before == "max_context" || before == "kv_positions") plan.fits = static_cast<int32_t>(number);
  }
  CHECK_MSG(plan.total > 0, text);
  std::printf("    %s\n", text);
  return plan;
}

constexpr uint64_t kGiB = uint64_t{1} << 30;

// What an arena puts behind a layer's keys and behind its values: nothing, unless AddressSanitizer watches.
uint64_t guards_of_a_layer() {
  Arena arena;
  for (int i = 0; i < 2; ++i) arena.take(Purpose::kKv, Arena::kAlign);
  return arena.total() - 2 * Arena::kAlign;
}

}  // namespace

// The 27B target in Q4_K_M: what fits 24 GiB, from files without contents. Rows of a tree as the recommended budget
// of 22 has them.
TEST(plans_of_24_gib) {
  std::unique_ptr<SyntheticModel> target;
  REQUIRE(SyntheticModel::make(qwen35_27b_q4_k_m(), 0, &target).ok());
  test::EngineOptions o;
  o.max_tree_rows = 23;
  o.max_batch_rows = 512;
  o.max_sequences = 1;
  o.max_context = 262144;
  o.kv_type = 42;  // TQ3_0
  o.cap = 1;
  const Plan whole = plan_of(*target, o);
  // 16 layers of 262,144 positions, and the page that rows behind the tip may begin.
  CHECK_EQ(whole.parts.at("kv_bytes"), uint64_t{14336} * (262144 + 64) + 16 * guards_of_a_layer());
  CHECK(whole.total < 21 * kGiB);

  // Eight sequences of 32K in Q8_0 have 262,144 positions, of which some must be those of other sequences.
  o.max_sequences = 8;
  o.max_context = 32768;
  o.kv_type = 8;
  o.kv_positions = 8 * 32768;
  o.cap = 24 * kGiB;
  const Plan apart = plan_of(*target, o);
  CHECK(apart.total > o.cap);
  CHECK(apart.fits > 32768 && apart.fits < 8 * 32768);
  o.kv_positions = apart.fits;
  o.cap = 1;
  CHECK(plan_of(*target, o).total <= 24 * kGiB);
  std::printf("    %d of %d positions, or %d of each sequence's, are shared\n", 8 * 32768 - apart.fits, 8 * 32768,
              (8 * 32768 - apart.fits + 6) / 7);
}

// The 27B drafter at 256K for one sequence: with four sliding layers of five, as that of Qwen3.6 has, and without.
TEST(plans_of_drafts) {
  std::unique_ptr<SyntheticModel> target, full, sliding;
  SyntheticShape shape = dflash_27b_q8_0();
  REQUIRE(SyntheticModel::make(qwen35_27b_q4_k_m(), 0, &target).ok());
  REQUIRE(SyntheticModel::make(shape, 0, &full).ok());
  shape.sliding = {true, true, true, true, false};
  shape.window = 2048;
  REQUIRE(SyntheticModel::make(shape, 0, &sliding).ok());
  test::EngineOptions o;
  o.tables = target->path();
  o.max_batch_rows = 512;
  o.max_sequences = 1;
  o.cap = 1;
  o.kv_type = 1;  // F16: 4,096 bytes a position and layer
  for (const int32_t context : {32768, 262144}) {
    o.max_context = context;
    const Plan before = plan_of(*full, o), after = plan_of(*sliding, o);
    const uint64_t layer =
        uint64_t{4096} * static_cast<uint64_t>(context + 64) + guards_of_a_layer();  // the block begins a page
    CHECK_EQ(before.parts.at("kv_bytes"), 5 * layer);
    // The window's positions before the tip, the block, a piece that is appended, and pages that are partly used.
    const uint64_t ring = uint64_t{4096} * ((2048 - 1 + 16 + 126 + 512 + 63) / 64 * 64) + guards_of_a_layer();
    CHECK_EQ(after.parts.at("kv_bytes"), layer + 4 * ring);
    CHECK_EQ(before.total - after.total, 4 * (layer - ring));
  }
}

TEST_MAIN()
