// What the C ABI promises of a target: the same bits for single steps, chains, trees, prefill chunks, threads and
// instruction sets; commit equals sequential decoding; snapshots and exports restore every bit.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "core/crc32c.h"
#include "core/fp.h"
#include "cpu/cpu_features.h"
#include "engine_util.h"

using namespace tnd::test;

namespace {

constexpr uint32_t kLogits = TND_WANT_LOGITS | TND_WANT_TOKEN;

struct Model {
  const char* label;
  std::string path;
  int32_t vocab;
};
std::vector<Model> models() {
  return {{"q4_k_m", demo_model(), 8192},
          {"ratio3", random_model("ratio3"), 512},
          {"onelayer", random_model("onelayer"), 512},
          {"qwen3", TND_ROOT "/models/tandem-tiny-prefill-q8_0.gguf", 8192}};
}

// Logits of every row of tokens, decoded one by one: step, commit, step, …
std::vector<float> one_by_one(const Engine& e, int32_t s, const std::vector<int32_t>& tokens) {
  std::vector<float> logits;
  for (const int32_t token : tokens) {
    StepIn in;
    in.groups = {e.rows(s, {token}, {-1}, kLogits)};
    const StepOut out = e.run_ok(in);
    logits.insert(logits.end(), out.logits.begin(), out.logits.end());
    e.commit(s, {0});
  }
  return logits;
}

std::vector<int32_t> random_tree(Rng* rng, int n) {
  std::vector<int32_t> parents;
  const uint64_t shape = rng->below(4);  // bushy, deep, chain with twigs, several roots
  for (int i = 0; i < n; ++i) {
    int32_t p = i - 1;
    if (i > 0 && shape == 0) p = static_cast<int32_t>(rng->below(static_cast<uint64_t>(i)));
    if (i > 0 && shape == 1)
      p = i - 1 - static_cast<int32_t>(rng->below(std::min<uint64_t>(3, static_cast<uint64_t>(i))));
    if (i > 0 && shape == 2 && rng->below(4) == 0) p = static_cast<int32_t>(rng->below(static_cast<uint64_t>(i)));
    if (i > 0 && shape == 3) p = static_cast<int32_t>(rng->below(static_cast<uint64_t>(i) + 1)) - 1;
    parents.push_back(p);
  }
  return parents;
}

std::vector<int32_t> path_to(const std::vector<int32_t>& parents, int32_t row) {
  std::vector<int32_t> path;
  for (; row >= 0; row = parents[static_cast<size_t>(row)]) path.push_back(row);
  std::reverse(path.begin(), path.end());
  return path;
}

std::vector<int32_t> pick(const std::vector<int32_t>& values, const std::vector<int32_t>& at) {
  std::vector<int32_t> out;
  for (const int32_t i : at) out.push_back(values[static_cast<size_t>(i)]);
  return out;
}

}  // namespace

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
      std::vector<float> logits;
      for (size_t at = 0; at < tokens.size(); at += chunk) {
        const size_t n = std::min(chunk, tokens.size() - at);
        StepIn in;
        in.groups = {e.rows(c,
                            std::vector<int32_t>(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                                                 tokens.begin() + static_cast<std::ptrdiff_t>(at + n)),
                            Engine::chain(n), kLogits)};
        const StepOut part = e.run_ok(in);
        logits.insert(logits.end(), part.logits.begin(), part.logits.end());
        std::vector<int32_t> all(n);
        for (size_t i = 0; i < n; ++i) all[i] = static_cast<int32_t>(i);
        e.commit(c, all);
      }
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

TEST(snapshots_exports_and_truncation) {
  const Model m = models()[0];
  Rng rng(13);
  Engine e(m.path), other(m.path);
  REQUIRE(e.handle() != nullptr && other.handle() != nullptr);
  const int32_t s = e.sequence();
  e.prefill(s, random_tokens(&rng, 30, m.vocab));
  const std::vector<uint8_t> before = e.exported(s);
  int32_t snapshot = -1;
  REQUIRE(e.ok(tnd_snapshot_create(e.handle(), s, &snapshot)));
  CHECK(e.stat("snapshot_bytes", true) > 0);
  const std::vector<int32_t> more = random_tokens(&rng, 4, m.vocab);
  const std::vector<float> expected = one_by_one(e, s, more);

  const int32_t t = e.sequence();
  CHECK(e.ok(tnd_snapshot_restore(e.handle(), snapshot, t)));
  CHECK(e.exported(t) == before);
  CHECK(same_bits(one_by_one(e, t, more), expected));
  CHECK(e.ok(tnd_snapshot_free(e.handle(), snapshot)));
  CHECK_EQ(tnd_snapshot_restore(e.handle(), snapshot, t), TND_NOT_FOUND);
  CHECK_EQ(tnd_snapshot_free(e.handle(), snapshot), TND_NOT_FOUND);
  CHECK_EQ(e.stat("snapshot_bytes", true), uint64_t{0});

  const int32_t u = other.sequence();  // another engine of the same model
  CHECK(other.ok(tnd_sequence_import(other.handle(), u, before.data(), before.size())));
  CHECK_EQ(other.length(u), 30);
  CHECK(same_bits(one_by_one(other, u, more), expected));

  CHECK_EQ(tnd_sequence_truncate(e.handle(), s, 10), TND_FAILED_PRECONDITION);
  CHECK_EQ(tnd_sequence_truncate(e.handle(), s, 35), TND_INVALID_ARGUMENT);
  CHECK(e.ok(tnd_sequence_truncate(e.handle(), s, 34)));
  CHECK(e.ok(tnd_sequence_truncate(e.handle(), s, 0)));
  CHECK_EQ(e.length(s), 0);
  const int32_t fresh = e.sequence();
  CHECK(e.exported(s) == e.exported(fresh));
}

// Keys and values in blocks keep what the other types keep: the same bits for single steps, chains, prefill chunks and
// trees, the same state after a commit (rows are moved as they are), snapshots and exports that bring back every bit.
TEST(blocks_keep_every_promise) {
  struct Case {
    size_t model;
    int k, v;
  };
  [[maybe_unused]] constexpr int kF16 = 1, kQ4 = 2, kQ8 = 8;
#if defined(TND_GPU_EMU)
  const Case cases[] = {{1, kQ8, kQ4}};
#else
  const Case cases[] = {{0, kQ8, kQ8}, {0, kQ4, kQ4}, {1, kQ8, kQ4}, {1, kF16, kQ8}, {3, kQ8, kQ8}, {3, kQ4, 0}};
#endif
  for (const Case& c : cases) {
    const Model m = models()[c.model];
    const std::string where = std::string(m.label) + " types " + std::to_string(c.k) + "," + std::to_string(c.v);
    EngineOptions o;
    o.kv_type = c.k, o.kv_type_v = c.v;
    Engine e(m.path, o), twin(m.path, o);
    REQUIRE(e.handle() != nullptr && twin.handle() != nullptr);
    CHECK_EQ(e.info().kv_type_k, c.k);
    CHECK_EQ(e.info().kv_type_v, c.v);
    Rng rng(29);
    const std::vector<int32_t> prompt = random_tokens(&rng, 33, m.vocab);
    const int32_t line = e.sequence(), tree = e.sequence();
    const std::vector<float> expected = one_by_one(e, line, prompt);
    CHECK_MSG(same_bits(e.prefill(tree, prompt, 7, kLogits).logits, expected), where + " prefill");
    const std::vector<uint8_t> state = e.exported(line);
    CHECK_MSG(e.exported(tree) == state, where + " state");

    int32_t snapshot = -1;
    e.ok(tnd_snapshot_create(e.handle(), line, &snapshot));
    const std::vector<int32_t> parents = {-1, 0, 1, 0, 3, 3, 5, 1, -1}, path = {0, 3, 5, 6};
    const std::vector<int32_t> tokens = random_tokens(&rng, parents.size(), m.vocab);
    StepIn in;
    in.groups = {e.rows(tree, tokens, parents, kLogits)};
    const StepOut out = e.run_ok(in);
    const std::vector<float> plain = one_by_one(e, line, pick(tokens, path));
    for (size_t i = 0; i < path.size(); ++i) {
      CHECK_MSG(std::memcmp(out.logits.data() + static_cast<size_t>(path[i]) * static_cast<size_t>(m.vocab),
                            plain.data() + i * static_cast<size_t>(m.vocab),
                            static_cast<size_t>(m.vocab) * sizeof(float)) == 0,
                where + " row " + std::to_string(path[i]));
    }
    e.commit(tree, path);
    CHECK_MSG(e.exported(tree) == e.exported(line), where + " commit");
    e.ok(tnd_snapshot_restore(e.handle(), snapshot, tree));
    CHECK_MSG(e.exported(tree) == state, where + " snapshot");

    const int32_t far = twin.sequence();
    CHECK(twin.ok(tnd_sequence_import(twin.handle(), far, state.data(), state.size())));
    CHECK_MSG(same_bits(one_by_one(twin, far, pick(tokens, path)), plain), where + " import");
  }
}

// A dense model can be cut anywhere, and then goes on as if the rest had never been.
TEST(dense_sequences_can_be_truncated) {
  const Model m = models()[3];
  Rng rng(19);
  Engine e(m.path);
  REQUIRE(e.handle() != nullptr);
  const std::vector<int32_t> prompt = random_tokens(&rng, 40, m.vocab), more = random_tokens(&rng, 5, m.vocab);
  const int32_t a = e.sequence(), b = e.sequence();
  e.prefill(a, prompt);
  REQUIRE(e.ok(tnd_sequence_truncate(e.handle(), a, 23)));
  e.prefill(b, std::vector<int32_t>(prompt.begin(), prompt.begin() + 23));
  CHECK(e.exported(a) == e.exported(b));
  CHECK(same_bits(one_by_one(e, a, more), one_by_one(e, b, more)));
}

TEST(damaged_and_foreign_exports_are_refused) {
  const Model m = models()[0];
  Rng rng(17);
  Engine e(m.path);
  EngineOptions f32;
  f32.kv_type = 0;
  Engine other_kv(m.path, f32), other_model(models()[2].path);
  EngineOptions tiny;
  tiny.max_context = 8;
  Engine small(m.path, tiny);
  REQUIRE(e.handle() != nullptr && other_kv.handle() != nullptr && other_model.handle() != nullptr);
  const int32_t s = e.sequence();
  e.prefill(s, random_tokens(&rng, 12, m.vocab));
  const std::vector<uint8_t> good = e.exported(s);
  const int32_t t = e.sequence();
  const auto import = [&](Engine& to, const std::vector<uint8_t>& data) {
    const int32_t q = to.sequence();
    const tnd_status status = tnd_sequence_import(to.handle(), q, data.data(), data.size());
    CHECK_EQ(to.length(q), status == TND_OK ? 12 : 0);  // a refused import changes nothing
    to.ok(tnd_sequence_free(to.handle(), q));
    return status;
  };
  for (int i = 0; i < 200; ++i) {  // any flipped bit is found
    std::vector<uint8_t> bad = good;
    bad[rng.below(i < 100 ? 64 : bad.size())] ^= static_cast<uint8_t>(1u << rng.below(8));
    CHECK_EQ(import(e, bad), TND_DATA_LOSS);
  }
  for (const size_t n : {size_t{0}, size_t{10}, size_t{63}, size_t{64}, good.size() - 1}) {
    CHECK_EQ(import(e, std::vector<uint8_t>(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(n))),
             TND_DATA_LOSS);
  }
  CHECK_EQ(import(other_kv, good), TND_FAILED_PRECONDITION);
  CHECK(other_kv.error().find("kv_type F16 for keys") != std::string::npos);
  CHECK_EQ(import(other_model, good), TND_FAILED_PRECONDITION);
  CHECK_EQ(import(small, good), TND_RESOURCE_EXHAUSTED);
  CHECK_EQ(import(e, good), TND_OK);
  std::vector<uint8_t> room(good.size() + 1);
  CHECK_EQ(tnd_sequence_export(e.handle(), s, room.data(), room.size()), TND_INVALID_ARGUMENT);
  e.ok(tnd_sequence_free(e.handle(), t));
  CHECK_EQ(tnd::crc32c("123456789", 9), 0xE3069283u);
  CHECK_EQ(tnd::crc32c("6789", 4, tnd::crc32c("12345", 5)), 0xE3069283u);
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

TEST(features_are_residual_streams) {
  const Model m = models()[0];
  Rng rng(31);
  Engine e(m.path);
  EngineOptions front_options;
  front_options.layer_last = 4;
  Engine front(m.path, front_options);
  REQUIRE(e.handle() != nullptr && front.handle() != nullptr);
  const std::vector<int32_t> layers{1, 3};
  REQUIRE(e.ok(tnd_capture_set(e.handle(), layers.data(), 2)));
  CHECK_EQ(e.info().n_capture, 2);
  CHECK_EQ(e.info().feature_raw, 1024);
  const std::vector<int32_t> tokens = random_tokens(&rng, 6, m.vocab);
  const int32_t s = e.sequence(), f = front.sequence();
  StepIn in;
  in.flags = TND_GROUP_COMMIT;
  in.groups = {e.rows(s, tokens, Engine::chain(6), TND_WANT_FEATURES)};
  in.groups[0].rows[2].want = 0;
  in.feature_encoding = TND_FEATURE_RAW_F32;
  in.feature_width = 1024;
  const StepOut full = e.run_ok(in);
  StepIn shard;
  shard.flags = TND_GROUP_COMMIT;
  shard.groups = {front.rows(f, tokens, Engine::chain(6), 0)};
  const StepOut hidden = front.run_ok(shard);
  for (size_t i = 0, row = 0; row < 6; ++row) {  // layer 3 is what the shard of layers 0..3 hands on
    if (row == 2) continue;
    CHECK(std::memcmp(full.features.data() + i * 1024 + 512, hidden.hidden.data() + row * 512, 512 * 4) == 0);
    ++i;
  }
  e.ok(tnd_sequence_truncate(e.handle(), s, 0));
  in.feature_encoding = TND_FEATURE_RAW_BF16;
  const StepOut rounded = e.run_ok(in);
  for (size_t i = 0; i < full.features.size(); ++i) {
    uint32_t bits = static_cast<uint32_t>(rounded.features_bf16[i]) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    CHECK(std::fabs(value - full.features[i]) <= std::fabs(full.features[i]) * 0x1p-8f);
  }
  // Fused by the draft's own fc.
  REQUIRE(e.ok(tnd_fuse_load(e.handle(), TND_ROOT "/models/tandem-tiny-draft-q8_0.gguf")));
  CHECK_EQ(e.info().n_capture, 3);
  CHECK_EQ(e.info().capture_layers[2], 5);
  const int width = e.info().feature_fused;
  CHECK_EQ(width, 512);
  e.ok(tnd_sequence_truncate(e.handle(), s, 0));
  in.feature_encoding = TND_FEATURE_FUSED_F32;
  in.feature_width = width;
  const StepOut fused = e.run_ok(in);
  for (size_t row = 0; row < 5; ++row) {  // rms-normed, then weighted: finite and not zero
    double sum = 0;
    for (size_t j = 0; j < 512; ++j) sum += std::fabs(fused.features[row * 512 + j]);
    CHECK(sum > 1 && sum < 1e5);
  }
  CHECK(e.ok(tnd_capture_set(e.handle(), nullptr, 0)));
  CHECK_EQ(e.info().feature_fused, 0);
  const int32_t bad[] = {3, 1};
  CHECK_EQ(tnd_capture_set(e.handle(), bad, 2), TND_INVALID_ARGUMENT);
  e.ok(tnd_sequence_truncate(e.handle(), s, 0));
  CHECK_EQ(e.run(in).status, TND_FAILED_PRECONDITION);
}

// Shards give the raw features of their layers; fused where fc is they have the bits of an engine with all layers.
TEST(features_are_fused_for_shards) {
  const std::string draft = TND_ROOT "/models/tandem-tiny-draft-q8_0.gguf";  // reads layers 1, 3 and 5
  EngineOptions o;
  o.max_context = 64;
  o.max_tree_rows = 8;
  o.max_batch_rows = 16;
  Engine whole(demo_model(), o);
  EngineOptions front_options = o, back_options = o;
  front_options.layer_last = back_options.layer_first = 4;
  Engine front(demo_model(), front_options), back(demo_model(), back_options);
  REQUIRE(whole.handle() != nullptr && front.handle() != nullptr && back.handle() != nullptr);
  const int32_t layers[] = {1, 3};
  REQUIRE(whole.ok(tnd_fuse_load(whole.handle(), draft.c_str())));
  REQUIRE(front.ok(tnd_capture_set(front.handle(), layers, 2)));
  REQUIRE(back.ok(tnd_fuse_load(back.handle(), draft.c_str())));
  CHECK_EQ(back.info().n_capture, 1);
  CHECK_EQ(back.info().capture_layers[0], 5);
  CHECK_EQ(back.info().feature_fused, 512);
  front.info();
  Rng rng(33);
  constexpr size_t kRows = 5, kHidden = 512;
  const std::vector<int32_t> tokens = random_tokens(&rng, kRows, 8192);
  for (const uint32_t kind : {TND_GROUP_DECODE, TND_GROUP_PROMPT}) {
    const auto step = [&](Engine& e, int encoding, size_t width, const std::vector<float>& hidden) {
      StepIn in;
      in.groups = {e.rows(e.sequence(), tokens, Engine::chain(kRows), TND_WANT_FEATURES)};
      in.groups[0].kind = kind;
      in.groups[0].flags = TND_GROUP_COMMIT;
      in.feature_encoding = encoding;
      in.feature_width = static_cast<int>(width);
      in.hidden = hidden;
      return e.run(in);
    };
    const StepOut want = step(whole, TND_FEATURE_FUSED_F32, kHidden, {});
    const StepOut first = step(front, TND_FEATURE_RAW_F32, 2 * kHidden, {});
    CHECK_EQ(step(back, TND_FEATURE_FUSED_F32, kHidden, first.hidden).status, TND_FAILED_PRECONDITION);
    const StepOut second = step(back, TND_FEATURE_RAW_F32, kHidden, first.hidden);
    REQUIRE(want.status == TND_OK && first.status == TND_OK && second.status == TND_OK);
    std::vector<float> raw, fused(kRows * kHidden);
    for (size_t r = 0; r < kRows; ++r) {
      const auto add = [&](const std::vector<float>& from, size_t width) {
        raw.insert(raw.end(), from.begin() + static_cast<std::ptrdiff_t>(r * width),
                   from.begin() + static_cast<std::ptrdiff_t>((r + 1) * width));
      };
      add(first.features, 2 * kHidden);
      add(second.features, kHidden);
    }
    for (Engine* e : {&back, &whole}) {
      std::fill(fused.begin(), fused.end(), 0.0f);
      CHECK(e->ok(
          tnd_fuse(e->handle(), kRows, kind, TND_FEATURE_RAW_F32, raw.data(), TND_FEATURE_FUSED_F32, fused.data())));
      CHECK(same_bits(fused, want.features));
    }
    std::vector<uint16_t> half(raw.size()), rounded(fused.size());
    for (size_t i = 0; i < raw.size(); ++i) half[i] = tnd::f32_to_bf16(raw[i]);
    CHECK(back.ok(tnd_fuse(back.handle(), kRows, kind, TND_FEATURE_RAW_BF16, half.data(), TND_FEATURE_FUSED_BF16,
                           rounded.data())));
    double wrong = 0, all = 0;
    for (size_t i = 0; i < fused.size(); ++i) {
      const double d = double{tnd::bf16_to_f32(rounded[i])} - want.features[i];
      wrong += d * d;
      all += double{want.features[i]} * want.features[i];
    }
    CHECK(wrong > 0 && wrong < 1e-3 * all);
    const auto refused = [&](int32_t n, uint32_t as, int32_t from, int32_t to, const char* text) {
      CHECK_EQ(tnd_fuse(back.handle(), n, as, from, raw.data(), to, fused.data()), TND_INVALID_ARGUMENT);
      CHECK_MSG(back.error().find(text) != std::string::npos, back.error());
    };
    refused(0, kind, TND_FEATURE_RAW_F32, TND_FEATURE_FUSED_F32, "n is 0");
    refused(17, kind, TND_FEATURE_RAW_F32, TND_FEATURE_FUSED_F32, "n is 17");
    refused(1, 2, TND_FEATURE_RAW_F32, TND_FEATURE_FUSED_F32, "kind is 2");
    refused(1, kind, TND_FEATURE_FUSED_F32, TND_FEATURE_FUSED_F32, "raw_encoding is 4");
    refused(1, kind, TND_FEATURE_RAW_F32, TND_FEATURE_RAW_F32, "fused_encoding is 3");
  }
  float value = 0;
  CHECK_EQ(tnd_fuse(front.handle(), 1, 0, TND_FEATURE_RAW_F32, &value, TND_FEATURE_FUSED_F32, &value),
           TND_FAILED_PRECONDITION);
  CHECK_EQ(tnd_fuse(back.handle(), 1, 0, TND_FEATURE_RAW_F32, nullptr, TND_FEATURE_FUSED_F32, &value),
           TND_INVALID_ARGUMENT);
}

// Features read later have the bits of features in the step's own results, whether rows were committed one by one or as
// paths of trees; what has lost its place or its position is refused.
TEST(features_are_kept_for_later) {
  const Model m = models()[0];
  Rng rng(32);
  EngineOptions o;
  o.max_context = 128;
  o.max_batch_rows = 64;
  Engine e(m.path, o);
  REQUIRE(e.handle() != nullptr);
  REQUIRE(e.ok(tnd_fuse_load(e.handle(), TND_ROOT "/models/tandem-tiny-draft-q8_0.gguf")));
  const size_t width = static_cast<size_t>(e.info().feature_fused);
  CHECK_EQ(e.stat("feature_bytes", true) % sizeof(float), 0u);
  const int32_t s = e.sequence(), t = e.sequence();
  const auto read = [&](int32_t sequence, int32_t position, int32_t n, std::vector<float>* out) {
    const StepOut step = e.kept(sequence, position, n, TND_FEATURE_FUSED_F32, static_cast<int>(width));
    *out = step.features;
    return step.status;
  };
  std::vector<float> got;
  const auto refused = [&](int32_t sequence, int32_t position, int32_t n) {
    CHECK_EQ(read(sequence, position, n, &got), TND_FAILED_PRECONDITION);
  };
  const std::vector<int32_t> tokens = random_tokens(&rng, 48, m.vocab);
  StepIn in;
  in.flags = TND_GROUP_COMMIT;
  in.feature_encoding = TND_FEATURE_FUSED_F32;
  in.feature_width = static_cast<int>(width);
  in.groups = {e.rows(s, tokens, Engine::chain(tokens.size()), TND_WANT_FEATURES)};
  const std::vector<float> now = e.run_ok(in).features;
  const auto want = [&](size_t position, size_t n) {
    return std::vector<float>(now.begin() + static_cast<std::ptrdiff_t>(position * width),
                              now.begin() + static_cast<std::ptrdiff_t>((position + n) * width));
  };
  // One by one; another sequence's rows are in places of their own.
  const auto plain = [&](int32_t sequence, int32_t token, uint32_t wants) {
    StepIn one;
    one.flags = TND_GROUP_COMMIT;
    one.groups = {e.rows(sequence, {token}, {-1}, wants)};
    e.run_ok(one);
  };
  e.ok(tnd_sequence_truncate(e.handle(), s, 0));
  refused(s, 0, 1);
  for (int i = 0; i < 5; ++i) {
    plain(s, tokens[static_cast<size_t>(i)], TND_WANT_KEEP | TND_WANT_TOKEN);
    plain(t, 77, TND_WANT_KEEP);
  }
  REQUIRE(e.ok(read(s, 0, 5, &got)));
  CHECK(same_bits(got, want(0, 5)));
  REQUIRE(e.ok(read(s, 3, 1, &got)));  // again
  CHECK(same_bits(got, want(3, 1)));
  refused(s, 0, 6);
  refused(s, -1, 2);
  // A chain that is partly taken, then a tree whose path is not its first rows; a row may also be a result.
  StepIn tree;
  tree.groups = {e.rows(s, {tokens[5], tokens[6], 3}, Engine::chain(3), TND_WANT_KEEP)};
  e.run_ok(tree);
  refused(s, 5, 1);  // pending
  e.commit(s, {0, 1});
  tree.groups = {e.rows(s, {1, tokens[7], 2, tokens[8]}, {-1, -1, 0, 1}, 0)};
  tree.groups[0].rows[1].want = TND_WANT_KEEP;
  tree.groups[0].rows[3].want = TND_WANT_KEEP | TND_WANT_FEATURES;
  tree.feature_encoding = TND_FEATURE_FUSED_F32;
  tree.feature_width = in.feature_width;
  CHECK(same_bits(e.run_ok(tree).features, want(8, 1)));
  e.commit(s, {1, 3});
  REQUIRE(e.ok(read(s, 0, 9, &got)));
  CHECK(same_bits(got, want(0, 9)));
  // Rows that were dropped leave nothing; rows that are not kept make a gap.
  tree.groups = {e.rows(s, {1}, {-1}, TND_WANT_KEEP)};
  e.run_ok(tree);
  plain(s, tokens[9], 0);
  refused(s, 9, 1);
  REQUIRE(e.ok(read(s, 0, 9, &got)));
  plain(s, tokens[10], TND_WANT_KEEP);
  refused(s, 8, 3);
  // The newest stay, and no more: also a dropped row takes a place.
  for (size_t i = 11; i < tokens.size(); ++i) plain(s, tokens[i], TND_WANT_KEEP);
  const int32_t end = static_cast<int32_t>(tokens.size()), first = end - TND_KEPT_ROWS;
  REQUIRE(e.ok(read(s, first, TND_KEPT_ROWS, &got)));
  CHECK(same_bits(got, want(static_cast<size_t>(first), TND_KEPT_ROWS)));
  refused(s, first - 1, TND_KEPT_ROWS);
  tree.groups = {e.rows(s, {1, 2}, Engine::chain(2), TND_WANT_KEEP)};
  e.run_ok(tree);
  e.commit(s, {});
  refused(s, first + 1, 1);
  REQUIRE(e.ok(read(s, first + 2, TND_KEPT_ROWS - 2, &got)));
  CHECK(same_bits(got, want(static_cast<size_t>(first) + 2, TND_KEPT_ROWS - 2)));
  // A snapshot has none.
  int32_t snapshot = -1;
  e.ok(tnd_snapshot_create(e.handle(), s, &snapshot));
  e.ok(tnd_snapshot_restore(e.handle(), snapshot, s));
  refused(s, end - 1, 1);
  // What can never work.
  const int32_t length = e.length(s);
  tree.groups = {e.rows(s, {1, 2}, {-1, -1}, TND_WANT_KEEP)};  // both at one position
  CHECK_EQ(e.run(tree).status, TND_INVALID_ARGUMENT);
  CHECK_EQ(e.length(s), length);
  CHECK_EQ(read(s, 0, -1, &got), TND_INVALID_ARGUMENT);
  CHECK_EQ(read(9, 0, 1, &got), TND_NOT_FOUND);
  CHECK_EQ(e.kept(t, 0, 1, 9, 1).status, TND_INVALID_ARGUMENT);
  CHECK_EQ(e.kept(t, 0, 1, TND_FEATURE_FUSED_F32, 0).status, TND_INVALID_ARGUMENT);  // nowhere to write to
  REQUIRE(e.ok(read(t, 0, 5, &got)));
  // Other layers.
  const int32_t layer = 0;
  REQUIRE(e.ok(tnd_capture_set(e.handle(), &layer, 1)));
  refused(t, 0, 1);  // by its encoding
  CHECK_EQ(e.kept(t, 0, 1, TND_FEATURE_RAW_BF16, 512).status, TND_FAILED_PRECONDITION);
  REQUIRE(e.ok(tnd_capture_set(e.handle(), nullptr, 0)));
  tree.groups = {e.rows(s, {1}, {-1}, TND_WANT_KEEP)};
  CHECK_EQ(e.run(tree).status, TND_FAILED_PRECONDITION);
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
