// Features that a target hands to drafts: residual streams, fused ones, and those kept for later.
#include <algorithm>
#include <cmath>

#include "core/fp.h"
#include "engine_models.h"

using namespace tnd::test;

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
