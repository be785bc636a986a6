// What the C ABI promises of a target: the same bits for single steps, chains, trees, prefill chunks, threads and
// instruction sets; commit equals sequential decoding. More in engine_test_<part>.cpp, which are the same program.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "cpu/cpu_features.h"
#include "engine_models.h"

using namespace tnd::test;

TEST(chains_and_chunks_equal_single_steps) {
  for (const Model& m : models()) {
    Rng rng(7);
    Engine e(m.path);
    REQUIRE(e.handle() != nullptr);
    const std::vector<int32_t> tokens = random_tokens(&rng, 45, m.vocab);
    const int32_t plain = e.sequence();
    const std::vector<float> expected = one_by_one(e, plain, tokens);
    const std::vector<uint8_t> state = e.exported(plain);
    for (const size_t chunk : {size_t{1}, size_t{2}, size_t{7}, size_t{16}, size_t{64}}) {
      const int32_t s = e.sequence();
      const StepOut out = e.prefill(s, tokens, chunk, kLogits);
      CHECK_MSG(same_bits(out.logits, expected), std::string(m.label) + " prefill chunk " + std::to_string(chunk));
      CHECK_MSG(e.exported(s) == state, std::string(m.label) + " state after chunk " + std::to_string(chunk));
      e.ok(tnd_sequence_free(e.handle(), s));

      const int32_t c = e.sequence();  // the same as verified chains
      const std::vector<float> logits = as_chains(e, c, tokens, chunk);
      CHECK_MSG(same_bits(logits, expected), std::string(m.label) + " chain of " + std::to_string(chunk));
      CHECK_MSG(e.exported(c) == state, std::string(m.label) + " state after chains of " + std::to_string(chunk));
      e.ok(tnd_sequence_free(e.handle(), c));
    }
  }
}

// Random trees: every row equals the sequential decoding of its path, before and after commit.
TEST(trees_equal_sequential_decoding) {
  for (const Model& m : models()) {
    Rng rng(11);
    EngineOptions o;
    o.max_tree_rows = 128;
    Engine e(m.path, o);
    REQUIRE(e.handle() != nullptr);
    const std::vector<int32_t> prompt = random_tokens(&rng, 37, m.vocab);
    const int32_t tree = e.sequence(), line = e.sequence();
    for (const int n : {1, 2, 3, 5, 9, 17, 33, 64, 128}) {
      e.ok(tnd_sequence_truncate(e.handle(), tree, 0));
      e.prefill(tree, prompt);
      int32_t snapshot = -1;
      e.ok(tnd_snapshot_create(e.handle(), tree, &snapshot));
      const std::vector<int32_t> parents = random_tree(&rng, n);
      const std::vector<int32_t> tokens = random_tokens(&rng, static_cast<size_t>(n), m.vocab);
      StepIn in;
      in.groups = {e.rows(tree, tokens, parents, kLogits)};
      const StepOut out = e.run_ok(in);

      // Leaves cover all rows.
      std::vector<bool> inner(static_cast<size_t>(n), false);
      for (const int32_t p : parents) {
        if (p >= 0) inner[static_cast<size_t>(p)] = true;
      }
      int checked = 0;
      for (int32_t leaf = n - 1; leaf >= 0 && checked < 12; --leaf) {
        if (inner[static_cast<size_t>(leaf)]) continue;
        ++checked;
        const std::vector<int32_t> path = path_to(parents, leaf);
        e.ok(tnd_snapshot_restore(e.handle(), snapshot, line));
        const std::vector<float> expected = one_by_one(e, line, pick(tokens, path));
        for (size_t i = 0; i < path.size(); ++i) {
          const float* got = out.logits.data() + static_cast<size_t>(path[i]) * static_cast<size_t>(m.vocab);
          CHECK_MSG(std::memcmp(got, expected.data() + i * static_cast<size_t>(m.vocab),
                                static_cast<size_t>(m.vocab) * sizeof(float)) == 0,
                    std::string(m.label) + " rows " + std::to_string(n) + " row " + std::to_string(path[i]));
        }
      }
      // Commit of a random path, maybe a part of one.
      std::vector<int32_t> path = path_to(parents, static_cast<int32_t>(rng.below(static_cast<uint64_t>(n))));
      e.commit(tree, path);
      e.ok(tnd_snapshot_restore(e.handle(), snapshot, line));
      one_by_one(e, line, pick(tokens, path));
      CHECK_EQ(e.length(tree), e.length(line));
      CHECK_MSG(e.exported(tree) == e.exported(line), std::string(m.label) + " commit of " + std::to_string(n));
      // And it goes on alike.
      const std::vector<int32_t> more = random_tokens(&rng, 3, m.vocab);
      CHECK(same_bits(one_by_one(e, tree, more), one_by_one(e, line, more)));
      e.ok(tnd_snapshot_free(e.handle(), snapshot));
    }
  }
}

// The emulation of a GPU has no instruction sets: two engines there differ in the order of blocks and lanes.
TEST(bits_do_not_depend_on_threads_or_instruction_set) {
  for (const Model& m : models()) {
    std::vector<float> expected;
    std::vector<uint8_t> state;
    for (const int level : {2, 1, 0}) {
      if (level > static_cast<int>(tnd::cpu::isa_best())) continue;
      tnd::cpu::isa_force(static_cast<tnd::cpu::Isa>(level));
      for (const int threads : {1, 2, 3}) {
        if (level == 0 && threads != 2) continue;  // the scalar kernels are slow
        EngineOptions o;
        o.threads = threads;
        Engine e(m.path, o);
        REQUIRE(e.handle() != nullptr);
        if (e.emulated() && (level != static_cast<int>(tnd::cpu::isa_best()) || threads == 3)) continue;
        Rng rng(3);
        const int32_t s = e.sequence();
        const std::vector<int32_t> prompt = random_tokens(&rng, 21, m.vocab);
        e.prefill(s, prompt, 8);
        StepIn in;
        in.groups = {e.rows(s, random_tokens(&rng, 6, m.vocab), {-1, 0, 1, 0, 3, 1}, kLogits)};
        const StepOut out = e.run_ok(in);
        e.commit(s, {0, 1, 5});
        const std::vector<uint8_t> exported = e.exported(s);
        if (expected.empty()) {
          expected = out.logits;
          state = exported;
        }
        const std::string where =
            std::string(m.label) + " isa " + std::to_string(level) + " threads " + std::to_string(threads);
        CHECK_MSG(same_bits(out.logits, expected), where);
        CHECK_MSG(exported == state, where + ": state");
      }
    }
    tnd::cpu::isa_force(tnd::cpu::isa_best());
  }
}

// Rows of several sequences in one step equal each sequence alone.
TEST(sequences_do_not_touch_each_other) {
  const Model m = models()[0];
  Rng rng(5);
  Engine e(m.path);
  REQUIRE(e.handle() != nullptr);
  const int32_t a = e.sequence(), b = e.sequence(), c = e.sequence(), alone = e.sequence();
  const std::vector<int32_t> prompt_a = random_tokens(&rng, 19, m.vocab), prompt_b = random_tokens(&rng, 33, m.vocab);
  e.prefill(a, prompt_a);
  e.prefill(b, prompt_b);
  const std::vector<int32_t> ta = random_tokens(&rng, 4, m.vocab), tb = random_tokens(&rng, 3, m.vocab),
                             tc = random_tokens(&rng, 1, m.vocab);
  StepIn in;  // a0 a1 a2 a3 b0 b1 b2 c0
  in.groups = {e.rows(a, ta, {-1, 0, 0, 1}, kLogits), e.rows(b, tb, {-1, -1, 1}, kLogits),
               e.rows(c, tc, {-1}, kLogits)};
  const StepOut mixed = e.run_ok(in);
  const auto row = [&](const StepOut& o, size_t i) {
    return std::vector<float>(o.logits.begin() + static_cast<std::ptrdiff_t>(i * 8192),
                              o.logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * 8192));
  };
  StepIn paths;  // in one step
  paths.groups.resize(3);
  paths.groups[0].sequence = c, paths.groups[0].path = {0};
  paths.groups[1].sequence = a, paths.groups[1].path = {0, 1, 3};
  paths.groups[2].sequence = b, paths.groups[2].path = {1, 2};
  e.run_ok(paths);
  const auto check = [&](int32_t sequence, const std::vector<int32_t>& prompt, const std::vector<int32_t>& tokens,
                         const std::vector<size_t>& at) {
    e.ok(tnd_sequence_truncate(e.handle(), alone, 0));
    if (!prompt.empty()) e.prefill(alone, prompt);
    const std::vector<float> expected = one_by_one(e, alone, tokens);
    for (size_t i = 0; i < at.size(); ++i) {
      CHECK(std::memcmp(row(mixed, at[i]).data(), expected.data() + i * 8192, 8192 * sizeof(float)) == 0);
    }
    CHECK(e.exported(sequence) == e.exported(alone));
  };
  check(a, prompt_a, {ta[0], ta[1], ta[3]}, {0, 1, 3});
  check(b, prompt_b, {tb[1], tb[2]}, {5, 6});
  check(c, {}, tc, {7});
}

// Prefill chunks of several sequences in one committing step.
TEST(sequences_can_be_committed_together) {
  for (const Model& m : models()) {
    Rng rng(37);
    Engine e(m.path);
    REQUIRE(e.handle() != nullptr);
    const int32_t a = e.sequence(), b = e.sequence(), alone = e.sequence();
    const std::vector<int32_t> ta = random_tokens(&rng, 12, m.vocab), tb = random_tokens(&rng, 5, m.vocab);
    StepIn in;
    in.flags = TND_GROUP_COMMIT;
    in.groups = {e.rows(a, ta, Engine::chain(12), kLogits), e.rows(b, tb, Engine::chain(5), kLogits)};
    const uint64_t committed = e.stat("committed_rows");
    const StepOut mixed = e.run_ok(in);
    CHECK_EQ(e.stat("committed_rows") - committed, uint64_t{17});
    const auto check = [&](int32_t s, const std::vector<int32_t>& tokens, size_t at) {
      e.ok(tnd_sequence_truncate(e.handle(), alone, 0));
      const std::vector<float> expected = one_by_one(e, alone, tokens);
      const size_t width = static_cast<size_t>(m.vocab);
      CHECK(std::memcmp(mixed.logits.data() + at * width, expected.data(), expected.size() * sizeof(float)) == 0);
      CHECK(e.exported(s) == e.exported(alone));
    };
    check(a, ta, 0);
    check(b, tb, 12);
  }
}

// Two shards in a row give what one engine gives, tree or chain.
TEST(layer_shards_equal_the_whole) {
  const Model m = models()[0];
  Engine whole(m.path);
  EngineOptions front_options, back_options;
  front_options.layer_last = 3;
  back_options.layer_first = 3;
  Engine front(m.path, front_options), back(m.path, back_options);
  REQUIRE(whole.handle() != nullptr && front.handle() != nullptr && back.handle() != nullptr);
  Rng rng(9);
  const int32_t s = whole.sequence(), f = front.sequence(), b = back.sequence();
  const std::vector<int32_t> prompt = random_tokens(&rng, 20, m.vocab), tokens = random_tokens(&rng, 5, m.vocab);
  const auto through = [&](const std::vector<int32_t>& t, const std::vector<int32_t>& parents, uint32_t flags) {
    StepIn in;
    in.flags = flags;
    in.groups = {front.rows(f, t, parents, 0)};
    StepIn second;
    second.hidden = front.run_ok(in).hidden;
    second.flags = flags;
    second.groups = {back.rows(b, t, parents, kLogits)};
    return back.run_ok(second).logits;
  };
  CHECK(same_bits(through(prompt, Engine::chain(20), TND_GROUP_COMMIT), whole.prefill(s, prompt, 512, kLogits).logits));
  const std::vector<int32_t> parents{-1, 0, 0, 2, 1};
  StepIn in;
  in.groups = {whole.rows(s, tokens, parents, kLogits)};
  CHECK(same_bits(through(tokens, parents, 0), whole.run_ok(in).logits));
  for (const auto& [e, sequence] : {std::pair<Engine*, int32_t>{&whole, s}, {&front, f}, {&back, b}}) {
    CHECK(e->commit(sequence, {0, 2, 3}));
  }
  CHECK(same_bits(through({1}, {-1}, 0), one_by_one(whole, s, {1})));
  CHECK_EQ(front.info().layer_last, 3);
  CHECK_EQ(back.info().layer_first, 3);
}

// A sampled tree chooses at each row what sequential sampling chooses on that path.
TEST(sampling_follows_the_path_of_a_row) {
  const Model m = models()[0];
  Rng rng(23);
  Engine e(m.path);
  REQUIRE(e.handle() != nullptr);
  const int32_t tree = e.sequence(), line = e.sequence();
  const std::vector<int32_t> prompt = random_tokens(&rng, 15, m.vocab);
  const int32_t bias_token = 77;
  const float bias_value = 2.5f;
  tnd_sampler p{};
  p.struct_size = sizeof p;
  p.temperature = 1.1f;
  p.top_k = 50;
  p.top_p = 0.95f;
  p.min_p = 0.01f;
  p.repetition_penalty = 1.3f;
  p.frequency_penalty = 0.4f;
  p.presence_penalty = 0.2f;
  p.penalty_window = 9;
  p.prompt_tokens = 15;
  p.seed = 0x123456789ABCDEFu;
  p.choice = 3;
  p.n_bias = 1;
  p.bias_tokens = &bias_token;
  p.bias_values = &bias_value;
  REQUIRE(e.ok(tnd_sequence_sampler(e.handle(), tree, &p)));
  REQUIRE(e.ok(tnd_sequence_sampler(e.handle(), line, &p)));
  e.prefill(tree, prompt);
  int32_t snapshot = -1;
  e.ok(tnd_snapshot_create(e.handle(), tree, &snapshot));
  const std::vector<int32_t> parents = random_tree(&rng, 24);
  std::vector<int32_t> tokens = random_tokens(&rng, 24, 6);  // few tokens: many repetitions on a path
  StepIn in;
  in.groups = {e.rows(tree, tokens, parents, TND_WANT_TOKEN)};
  const StepOut out = e.run_ok(in);
  for (int32_t row = 0; row < 24; ++row) {
    const std::vector<int32_t> path = path_to(parents, row);
    e.ok(tnd_snapshot_restore(e.handle(), snapshot, line));
    const StepOut single = e.prefill(line, pick(tokens, path), 1, TND_WANT_TOKEN);
    CHECK_EQ(single.tokens.back(), out.tokens[static_cast<size_t>(row)]);
    CHECK_EQ(single.logprobs.back(), out.logprobs[static_cast<size_t>(row)]);
  }
}

TEST(wanted_outputs_and_masks) {
  const Model m = models()[0];
  Rng rng(29);
  Engine e(m.path);
  REQUIRE(e.handle() != nullptr);
  const int32_t s = e.sequence();
  StepIn in;
  in.groups = {e.rows(s, random_tokens(&rng, 5, m.vocab), Engine::chain(5), 0)};
  in.top_stride = 6;
  in.groups[0].rows[0].want = TND_WANT_TOP | TND_WANT_LOGITS;
  in.groups[0].rows[0].top_k = 6;
  in.groups[0].rows[1].want = TND_WANT_TOP;
  in.groups[0].rows[1].top_k = 2;
  in.groups[0].rows[3].want = TND_WANT_TOKEN | TND_WANT_SCORE | TND_WANT_LOGITS;
  in.groups[0].rows[3].score = 123;
  in.groups[0].rows[4].want = TND_WANT_TOKEN;
  in.groups[0].rows[4].mask = 0;
  in.n_masks = 1;
  in.masks.assign(256, 0);
  in.masks[100 / 32] = 1u << (100 % 32);
  const StepOut out = e.run_ok(in);
  CHECK_EQ(out.tokens[0], -1);
  CHECK_EQ(out.tokens[4], 100);
  CHECK_EQ(out.top_ids[6 + 2], -1);
  CHECK_EQ(out.top_ids[12], -1);
  const float* first = out.logits.data();
  const float* fourth = first + 8192;
  CHECK_EQ(out.top_ids[0], static_cast<int32_t>(std::max_element(first, first + 8192) - first));
  CHECK_EQ(out.tokens[3], static_cast<int32_t>(std::max_element(fourth, fourth + 8192) - fourth));
  CHECK_NEAR(out.scores[3] - out.logprobs[3], fourth[123] - fourth[out.tokens[3]], 1e-5);
  for (int i = 1; i < 6; ++i)
    CHECK(out.top_logprobs[static_cast<size_t>(i)] <= out.top_logprobs[static_cast<size_t>(i) - 1]);
}

// A cancelled committing step breaks its sequence until it is rebuilt; a cancelled pending step harms nothing.
TEST(cancel_stops_at_the_next_layer) {
  EngineOptions o;
  o.max_context = 4096;
  Engine e(demo_model(), o);
  REQUIRE(e.handle() != nullptr);
  const int32_t s = e.sequence();
  e.prefill(s, std::vector<int32_t>(10, 3));
  int32_t snapshot = -1;
  e.ok(tnd_snapshot_create(e.handle(), s, &snapshot));
  bool cancelled = false;
  for (int attempt = 0; attempt < 50 && !cancelled; ++attempt) {
    std::atomic<bool> stop{false};
    std::thread other([&] {
      while (!stop.load()) tnd_cancel(e.handle());
    });
    StepIn in;
    in.flags = TND_GROUP_COMMIT;
    in.groups = {e.rows(s, std::vector<int32_t>(256, 4), Engine::chain(256), 0)};
    const tnd_status status = e.run(in).status;
    stop.store(true);
    other.join();
    cancelled = status == TND_CANCELED;
    CHECK(cancelled || status == TND_OK);
    if (!cancelled) e.ok(tnd_snapshot_restore(e.handle(), snapshot, s));
  }
  CHECK(cancelled);
  StepIn in;
  in.groups = {GroupIn{.sequence = s, .rows = {tnd_row{1, 10, -1, 0, 0, 0, -1}}}};
  CHECK_EQ(e.run(in).status, TND_FAILED_PRECONDITION);
  int32_t broken = -1;
  CHECK_EQ(tnd_snapshot_create(e.handle(), s, &broken), TND_FAILED_PRECONDITION);
  CHECK(e.ok(tnd_snapshot_restore(e.handle(), snapshot, s)));
  CHECK_EQ(e.run(in).status, TND_OK);
}

TEST_MAIN()
