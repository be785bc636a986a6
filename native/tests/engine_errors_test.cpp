// What the C ABI refuses, with which status and which words; and the memory cap.
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "engine_util.h"

using namespace tnd::test;

TEST(errors_name_what_is_wrong) {
  const std::string path = demo_model();
  EngineOptions o;
  o.max_context = 40;
  o.max_sequences = 2;
  o.max_tree_rows = 8;
  o.max_batch_rows = 16;
  Engine e(path, o);
  REQUIRE(e.handle() != nullptr);
  const int32_t s = e.sequence(), t = e.sequence();
  int32_t none = -1;
  CHECK_EQ(tnd_sequence_create(e.handle(), &none), TND_RESOURCE_EXHAUSTED);
  CHECK(e.error().find("max_sequences") != std::string::npos);

  const auto refused = [&](StepIn in, tnd_status status, const char* text) {
    const StepOut out = e.run(in);
    CHECK_EQ(out.status, status);
    CHECK_MSG(e.error().find(text) != std::string::npos, e.error());
    CHECK_EQ(e.length(s), 0);
  };
  const auto one = [&](auto change) {
    StepIn in;
    in.groups = {e.rows(s, {1, 2, 3}, {-1, 0, 1}, 0)};
    change(in);
    return in;
  };
  refused(one([](StepIn& in) { in.groups.clear(); }), TND_INVALID_ARGUMENT, "n_groups");
  refused(one([](StepIn& in) { in.groups[0].rows.resize(17); }), TND_INVALID_ARGUMENT, "max_batch_rows");
  refused(one([](StepIn& in) { in.groups[0].rows[1].token = 8192; }), TND_INVALID_ARGUMENT, "groups[0].rows[1].token");
  refused(one([](StepIn& in) { in.groups[0].rows[1].token = -1; }), TND_INVALID_ARGUMENT, "groups[0].rows[1].token");
  refused(one([](StepIn& in) { in.groups[0].rows[2].parent = 2; }), TND_INVALID_ARGUMENT, "groups[0].rows[2].parent");
  refused(one([](StepIn& in) { in.groups[0].rows[2].parent = -2; }), TND_INVALID_ARGUMENT, "groups[0].rows[2].parent");
  refused(one([](StepIn& in) { in.groups[0].rows[2].position = 5; }), TND_INVALID_ARGUMENT,
          "groups[0].rows[2].position");
  refused(one([](StepIn& in) { in.groups[0].rows[2].want = 64; }), TND_INVALID_ARGUMENT, "groups[0].rows[2].want");
  refused(one([](StepIn& in) { in.groups[0].rows[2].mask = 0; }), TND_INVALID_ARGUMENT, "groups[0].rows[2].mask");
  refused(one([](StepIn& in) { in.groups[0].sequence = 9; }), TND_NOT_FOUND, "groups[0].sequence: sequence 9");
  refused(one([](StepIn& in) { in.groups.push_back(in.groups[0]); }), TND_INVALID_ARGUMENT, "groups[1].sequence is 0");
  refused(one([](StepIn& in) { in.flags = 8; }), TND_INVALID_ARGUMENT, "groups[0].flags is 8");
  refused(one([](StepIn& in) { in.groups[0].kind = 2; }), TND_INVALID_ARGUMENT, "groups[0].kind is 2");
  refused(one([](StepIn& in) { in.groups[0].kind = TND_GROUP_PROMPT; }), TND_INVALID_ARGUMENT,
          "needs TND_GROUP_COMMIT");
  refused(one([&](StepIn& in) { in.groups.push_back(GroupIn{.sequence = t, .flags = TND_GROUP_COMMIT}); }),
          TND_INVALID_ARGUMENT, "groups[1].flags is 1 without rows");
  refused(one([&](StepIn& in) { in.groups.push_back(GroupIn{.sequence = t, .kind = TND_GROUP_PROMPT}); }),
          TND_INVALID_ARGUMENT, "groups[1].kind is 1 without rows");
  refused(one([](StepIn& in) { in.hidden_encoding = 7; }), TND_INVALID_ARGUMENT, "hidden_encoding is 7");
  refused(one([](StepIn& in) { in.groups[0].rows[0].want = TND_WANT_FEATURES; }), TND_FAILED_PRECONDITION, "captured");
  refused(one([](StepIn& in) { in.hidden.resize(512 * 3); }), TND_INVALID_ARGUMENT, "hidden_in");
  refused(one([](StepIn& in) {
            in.groups[0].rows[0].want = TND_WANT_TOP;
            in.groups[0].rows[0].top_k = 65;
            in.top_stride = 70;
          }),
          TND_INVALID_ARGUMENT, "top_k");
  refused(one([](StepIn& in) {
            in.groups[0].rows[0].want = TND_WANT_SCORE;
            in.groups[0].rows[0].score = -3;
          }),
          TND_INVALID_ARGUMENT, "score");
  refused(one([](StepIn& in) {
            in.n_masks = 1;
            in.masks.assign(256, 0);
          }),
          TND_INVALID_ARGUMENT, "masks[0]");
  refused(one([](StepIn& in) {
            in.flags = TND_GROUP_COMMIT;
            in.groups[0].rows[2].parent = 0;
            in.groups[0].rows[2].position = 1;
          }),
          TND_INVALID_ARGUMENT, "chain");
  {
    StepIn in;
    in.groups = {e.rows(s, std::vector<int32_t>(9, 1), Engine::chain(9), 0)};
    refused(in, TND_INVALID_ARGUMENT, "max_tree_rows");
    // Two trees that are wider together are no more than a batch.
    in.groups = {e.rows(s, std::vector<int32_t>(8, 1), Engine::chain(8), 0),
                 e.rows(t, std::vector<int32_t>(8, 1), Engine::chain(8), 0)};
    CHECK(e.ok(e.run(in).status));
    e.commit(s, {});
  }
  {  // Numbers of rows that do not add up.
    const tnd_row row{1, 0, -1, 0, 0, 0, -1};
    tnd_group group{s, 1, 0, 0, nullptr, 0, 0, 0};
    tnd_step step{};
    step.struct_size = sizeof step;
    step.n_groups = 1;
    step.groups = &group;
    step.rows = &row;
    const auto wrong = [&](int32_t of_group, int32_t of_step, const char* text) {
      group.n_rows = of_group;
      step.n_rows = of_step;
      CHECK_EQ(tnd_step_run(e.handle(), &step), TND_INVALID_ARGUMENT);
      CHECK_MSG(e.error().find(text) != std::string::npos, e.error());
    };
    wrong(2, 1, "groups[0].n_rows is 2");
    wrong(-1, 1, "groups[0].n_rows is -1");
    wrong(0, 1, "n_rows is 1, the groups have 0");
    wrong(1, -1, "n_rows is -1");
    group.n_path = 1;
    wrong(1, 1, "groups[0].n_path is 1, but path is NULL");
    group.n_path = -1;
    wrong(1, 1, "groups[0].n_path is -1");
    group.n_path = 0;
    group.n_kept = -1;
    wrong(1, 1, "groups[0].n_kept is -1");
    step.n_groups = -1;
    wrong(1, 1, "n_groups is -1");
    step.n_groups = 1;
    step.groups = nullptr;
    wrong(1, 1, "n_groups");
  }
  tnd_step step{};
  step.struct_size = 3;
  CHECK_EQ(tnd_step_run(e.handle(), &step), TND_INVALID_ARGUMENT);
  CHECK_EQ(tnd_step_run(e.handle(), nullptr), TND_INVALID_ARGUMENT);
  CHECK_EQ(tnd_step_run(nullptr, nullptr), TND_INVALID_ARGUMENT);

  // Commit.
  const auto keeping = [&](int32_t sequence, const std::vector<int32_t>& of) {
    StepIn in;
    in.groups = {GroupIn{.sequence = sequence, .path = of}};
    return in;
  };
  refused(keeping(s, {0, 1}), TND_FAILED_PRECONDITION, "no pending rows");
  StepIn in;
  in.groups = {e.rows(s, {1, 2, 3}, {-1, 0, 0}, TND_WANT_TOKEN)};
  e.run_ok(in);
  refused(keeping(s, {0, 1, 2}), TND_INVALID_ARGUMENT, "groups[0].path[2] is 2: no child of the row before it");
  refused(keeping(s, {1}), TND_INVALID_ARGUMENT, "groups[0].path[0] is 1: no child of the tip");
  refused(keeping(s, {0, 7}), TND_INVALID_ARGUMENT, "groups[0].path[1] is 7: the last step left no such row");
  refused(keeping(s, {0, 1, 2, 3}), TND_INVALID_ARGUMENT, "groups[0].n_path is 4");
  refused(keeping(9, {0, 1}), TND_NOT_FOUND, "sequence 9");
  CHECK(e.commit(s, {0, 2}));  // refused paths leave the rows pending
  CHECK_EQ(e.length(s), 2);
  CHECK_EQ(e.run(keeping(s, {0})).status, TND_FAILED_PRECONDITION);
  CHECK(e.commit(s, {}));

  // Context.
  e.prefill(s, std::vector<int32_t>(38, 5), 16);
  in.groups = {GroupIn{.sequence = s, .rows = {tnd_row{1, 40, -1, 0, 0, 0, -1}}}};
  CHECK_EQ(e.run(in).status, TND_RESOURCE_EXHAUSTED);
  CHECK(e.error().find("max_context") != std::string::npos);

  // Other roles' calls, handles.
  CHECK_EQ(tnd_draft_append(e.handle(), nullptr, 0), TND_FAILED_PRECONDITION);
  CHECK_EQ(tnd_score(e.handle(), nullptr, 0, 0, nullptr, nullptr), TND_FAILED_PRECONDITION);
  CHECK(e.error().find("role: tnd_score is not for a target") != std::string::npos);
  CHECK_EQ(tnd_fuse_load(e.handle(), "no/such/file.gguf"), TND_NOT_FOUND);
  CHECK_EQ(tnd_sequence_free(e.handle(), 7), TND_NOT_FOUND);
  CHECK(e.ok(tnd_sequence_free(e.handle(), t)));
  CHECK_EQ(tnd_sequence_free(e.handle(), t), TND_NOT_FOUND);
  tnd_close(nullptr);
  CHECK_EQ(tnd_abi_version(), TND_ABI_VERSION);
}

// Kept features and those of the step's rows are bounded together.
TEST(a_step_returns_at_most_max_batch_rows_features) {
  EngineOptions o;
  o.max_tree_rows = 16;
  o.max_batch_rows = 16;
  Engine e(demo_model(), o);
  REQUIRE(e.handle() != nullptr);
  const int32_t layer = 0;
  REQUIRE(e.ok(tnd_capture_set(e.handle(), &layer, 1)));
  const int32_t s = e.sequence();
  StepIn in;
  in.flags = TND_GROUP_COMMIT;
  in.feature_encoding = TND_FEATURE_RAW_F32;
  in.feature_width = e.info().feature_raw;
  in.groups = {e.rows(s, std::vector<int32_t>(16, 5), Engine::chain(16), TND_WANT_KEEP)};
  e.run_ok(in);
  const auto beside = [&](int32_t kept, uint32_t want) {
    in.groups = {e.rows(s, {5}, {-1}, want)};
    in.groups[0].n_kept = kept;
    return e.run(in).status;
  };
  CHECK_EQ(beside(16, TND_WANT_FEATURES), TND_INVALID_ARGUMENT);
  const char* text =
      "n_kept of the groups and their rows that want features are 17 together, at most 16 (max_batch_rows)";
  CHECK_MSG(e.error().find(text) != std::string::npos, e.error());
  CHECK_EQ(e.length(s), 16);
  CHECK_EQ(beside(15, TND_WANT_FEATURES), TND_OK);
  CHECK_EQ(beside(16, TND_WANT_TOKEN), TND_OK);
}

TEST(sampler_settings_are_checked) {
  Engine e(demo_model());
  REQUIRE(e.handle() != nullptr);
  const int32_t s = e.sequence();
  const auto status = [&](auto change) {
    tnd_sampler p{};
    p.struct_size = sizeof p;
    p.top_p = 1;
    p.repetition_penalty = 1;
    change(p);
    return tnd_sequence_sampler(e.handle(), s, &p);
  };
  const float nan = std::nanf("");
  CHECK_EQ(status([](tnd_sampler&) {}), TND_OK);
  CHECK_EQ(status([](tnd_sampler& p) { p.temperature = -1; }), TND_INVALID_ARGUMENT);
  CHECK_EQ(status([&](tnd_sampler& p) { p.temperature = nan; }), TND_INVALID_ARGUMENT);
  CHECK_EQ(status([](tnd_sampler& p) { p.top_p = 0; }), TND_INVALID_ARGUMENT);
  CHECK_EQ(status([](tnd_sampler& p) { p.top_p = 1.5f; }), TND_INVALID_ARGUMENT);
  CHECK_EQ(status([](tnd_sampler& p) { p.min_p = 2; }), TND_INVALID_ARGUMENT);
  CHECK_EQ(status([](tnd_sampler& p) { p.repetition_penalty = 0; }), TND_INVALID_ARGUMENT);
  CHECK_EQ(status([](tnd_sampler& p) { p.repetition_penalty = 1e-21f; }), TND_INVALID_ARGUMENT);
  CHECK_EQ(status([](tnd_sampler& p) { p.repetition_penalty = 1e-20f; }), TND_OK);
  CHECK_EQ(status([&](tnd_sampler& p) { p.frequency_penalty = nan; }), TND_INVALID_ARGUMENT);
  CHECK_EQ(status([](tnd_sampler& p) { p.penalty_window = 9000; }), TND_INVALID_ARGUMENT);
  CHECK_EQ(status([](tnd_sampler& p) { p.prompt_tokens = -1; }), TND_INVALID_ARGUMENT);
  CHECK_EQ(status([](tnd_sampler& p) { p.n_bias = 1; }), TND_INVALID_ARGUMENT);
  const int32_t token = 8192;
  const float value = 1;
  CHECK_EQ(status([&](tnd_sampler& p) {
             p.n_bias = 1;
             p.bias_tokens = &token;
             p.bias_values = &value;
           }),
           TND_INVALID_ARGUMENT);
  CHECK(e.error().find("bias_tokens") != std::string::npos);
}

TEST(open_refuses_what_cannot_work) {
  const auto open = [](const std::string& path, auto change, const char* text) {
    EngineOptions o;
    tnd_open_options c = Engine::make_options(path, o);
    change(c);
    tnd_engine* e = nullptr;
    char error[1024] = "";
    const tnd_status s = tnd_open(&c, &e, error, sizeof error);
    CHECK_MSG(std::string(error).find(text) != std::string::npos, error);
    CHECK(e == nullptr || s == TND_OK);
    tnd_close(e);
    return s;
  };
  const std::string good = demo_model();
  const auto nothing = [](tnd_open_options&) {};
  CHECK_EQ(open("no/such.gguf", nothing, "no/such.gguf"), TND_NOT_FOUND);
  CHECK_EQ(open("", nothing, "model_path"), TND_INVALID_ARGUMENT);
  CHECK_EQ(open(TND_ROOT "/native/tests/data/README.md", nothing, "README.md"), TND_INVALID_ARGUMENT);
  CHECK_EQ(open(TND_ROOT "/models/tandem-tiny-draft-q8_0.gguf", nothing, "architecture"), TND_UNIMPLEMENTED);
  CHECK_EQ(open(good, [](tnd_open_options& c) { c.role = 9; }, "role"), TND_INVALID_ARGUMENT);
  CHECK_EQ(open(good, [](tnd_open_options& c) { c.device = "abacus:0"; }, "abacus:0"), TND_INVALID_ARGUMENT);
  CHECK_EQ(open(good, [](tnd_open_options& c) { c.threads = -1; }, "threads"), TND_INVALID_ARGUMENT);
  CHECK_EQ(open(good, [](tnd_open_options& c) { c.max_tree_rows = 129; }, "max_tree_rows"), TND_INVALID_ARGUMENT);
  CHECK_EQ(open(good, [](tnd_open_options& c) { c.max_batch_rows = 8; }, "max_batch_rows"), TND_INVALID_ARGUMENT);
  CHECK_EQ(open(good, [](tnd_open_options& c) { c.kv_type_k = 9; }, "kv_type_k 9"), TND_UNIMPLEMENTED);
  CHECK_EQ(open(good, [](tnd_open_options& c) { c.kv_type_k = -3; }, "kv_type_k -3"), TND_UNIMPLEMENTED);
  CHECK_EQ(open(good, [](tnd_open_options& c) { c.kv_type_v = 31; }, "Q5_1 (7)"), TND_UNIMPLEMENTED);
  CHECK_EQ(open(good, [](tnd_open_options& c) { c.layer_last = 9; }, "layer_last"), TND_INVALID_ARGUMENT);
  CHECK_EQ(open(good, [](tnd_open_options& c) { c.layer_first = 8; }, "layer_first"), TND_INVALID_ARGUMENT);
  CHECK_EQ(open(good, [](tnd_open_options& c) { c.max_top_k = 5000; }, "max_top_k"), TND_INVALID_ARGUMENT);
  CHECK_EQ(open(good, [](tnd_open_options& c) { c.struct_size = 4; }, "struct_size"), TND_INVALID_ARGUMENT);
  CHECK_EQ(
      open(good, [](tnd_open_options& c) { c.memory_cap_bytes = 1 << 20; }, "weights_bytes"), TND_RESOURCE_EXHAUSTED);
}

// The cap is kept; a context chosen by the engine shrinks, a context that was asked for is refused with advice.
TEST(memory_cap_is_kept) {
  EngineOptions o;
  o.max_sequences = 1;
  o.max_context = 4096;
  Engine e(demo_model(), o);
  REQUIRE(e.handle() != nullptr);
  const uint64_t planned = e.stat("total_bytes", true);
  CHECK_EQ(e.stat("weights_bytes", true) + e.stat("kv_bytes", true) + e.stat("state_bytes", true) +
               e.stat("replay_bytes", true) + e.stat("scratch_bytes", true),
           planned);
  o.cap = planned - 1;
  Engine less;
  std::string error;
  CHECK_EQ(less.open(demo_model(), o, &error), TND_RESOURCE_EXHAUSTED);
  const size_t at = error.find("max_context ");
  REQUIRE(at != std::string::npos);
  o.max_context = std::atoi(error.c_str() + at + 12);
  CHECK(o.max_context < 4096 && o.max_context > 3900);
  Engine fits;
  CHECK_EQ(fits.open(demo_model(), o, &error), TND_OK);
  CHECK(fits.stat("total_bytes", true) <= o.cap);
  // Nothing is left for a snapshot or features.
  o.host_cap = 1000;
  Engine full;
  CHECK_EQ(full.open(demo_model(), o, &error), TND_OK);
  const int32_t s = full.sequence();
  full.prefill(s, std::vector<int32_t>(500, 7));
  int32_t snapshot = -1;
  CHECK_EQ(tnd_snapshot_create(full.handle(), s, &snapshot), TND_RESOURCE_EXHAUSTED);
  const int32_t layers[] = {1, 2, 3};
  CHECK_EQ(tnd_capture_set(full.handle(), layers, 3), TND_RESOURCE_EXHAUSTED);
  // A context that the engine chooses leaves room for features: of steps of few rows, for a model as small as this has
  // smaller keys and values than features of large ones.
  EngineOptions narrow;
  narrow.max_sequences = 1;
  narrow.max_context = 4096;
  narrow.max_batch_rows = 64;
  Engine whole(demo_model(), narrow);
  REQUIRE(whole.handle() != nullptr);
  o = narrow;
  o.cap = whole.stat("total_bytes", true) - 1;
  o.host_cap = 1000;
  o.max_context = 0;
  Engine automatic;
  CHECK_EQ(automatic.open(demo_model(), o, &error), TND_OK);
  CHECK(automatic.info().max_context >= 16 && automatic.info().max_context < 3900);
  CHECK_EQ(tnd_capture_set(automatic.handle(), layers, 3), TND_OK);
}

// tnd_info names the arithmetic; a caller whose struct ends before that gets what it knows and no byte more.
TEST(info_states_the_arithmetic) {
  Engine e(demo_model());
  REQUIRE(e.handle() != nullptr);
  tnd_info info{};
  info.struct_size = sizeof info;
  CHECK_EQ(tnd_get_info(e.handle(), &info), TND_OK);
  const std::string numerics = info.numerics;
  CHECK_MSG(numerics.rfind(std::string(info.backend) + " ", 0) == 0, numerics);
  for (const char* set : {" matmul=", " float=", " prompt=", " attention=", " delta=", " sample="}) {
    CHECK_MSG(numerics.find(set) != std::string::npos, numerics + " lacks" + set);
  }
  CHECK_MSG(numerics.find("avx") == std::string::npos, numerics);  // kernels of all instruction sets agree
  if (std::string(info.backend) == "cpu") CHECK_EQ(info.prompt_rows, 0);

  tnd_info old{};
  std::memset(static_cast<void*>(&old), 0x55, sizeof old);
  old.struct_size = offsetof(tnd_info, numerics);
  CHECK_EQ(tnd_get_info(e.handle(), &old), TND_OK);
  CHECK_EQ(old.vocab, info.vocab);
  CHECK_EQ(old.state_bytes_per_sequence, info.state_bytes_per_sequence);
  CHECK_EQ(static_cast<int>(old.numerics[0]), 0x55);
}

TEST_MAIN()
