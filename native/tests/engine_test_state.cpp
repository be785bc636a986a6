// Snapshots, exports, truncation and cached keys and values in blocks: what is kept comes back with every bit.
#include <algorithm>

#include "core/crc32c.h"
#include "engine_models.h"

using namespace tnd::test;

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
  constexpr int kF16 = 1, kBF16 = 30, kQ4 = 2, kQ41 = 3, kQ50 = 6, kQ51 = 7, kQ8 = 8, kTQ3 = 42;
  std::vector<Case> cases{{1, kQ8, kQ4}, {1, kQ51, kBF16}, {1, kQ50, kQ41}};
  if (!Engine(models()[1].path).emulated()) {
    cases.insert(cases.end(), {{0, kQ8, kQ8}, {0, kQ4, kQ4}, {1, kF16, kQ8}, {3, kQ8, kQ8}, {3, kQ4, 0}});
    cases.insert(cases.end(), {{0, kTQ3, kTQ3}, {0, kQ8, kTQ3}, {3, kTQ3, kQ51}});
    cases.insert(cases.end(), {{0, kQ51, kQ51}, {1, kBF16, kQ8}, {3, kQ41, kQ50}, {3, kBF16, kBF16}});
  }
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
