// The DFlash draft: masks, incremental K/V, batching, and closeness to reference logits. Its files are tested in
// dflash_test_files.cpp, the same program.
// Reference files: tests/testdata/golden; the BF16 models are not part of the repository: set TANDEM_SHARED_MODELS to
// their folder to run the tests that need them.
#include <cstdlib>
#include <string>
#include <vector>

#include "core/kv_type.h"
#include "dflash_util.h"

using namespace tnd;
using namespace tnd::dflash_test;

// Appending at once, one by one, in bf16 pieces or already fused gives the same cache: same bits but for the encoding.
TEST(incremental_equals_whole) {
  Spec s;
  s.window = 12;
  s.sliding = {true, false};
  TempFile tables(table_file(s).bytes()), file(draft_file(s, 3).bytes());
  for (int kv_type : {0, 1, 30, 8, 7, 6, 3, 2}) {
    Engine e(file.path, tables.path, 2, 512, kv_type, 8, 16);
    CHECK_OK(e.status);
    if (!e.status.ok()) return;
    const int n = 70;
    auto f = random_features(n, e.info.feature_raw, 2);
    for (float& x : f) x = bf16_to_f32(f32_to_bf16(x));
    const int32_t a = e.sequence(), b = e.sequence();
    CHECK_OK(e.append(a, 0, n, TND_FEATURE_RAW_F32, f.data()));
    std::vector<uint16_t> half(f.size());
    for (size_t i = 0; i < f.size(); i++) half[i] = f32_to_bf16(f[i]);
    for (int i = 0; i < n; i++) {
      CHECK_OK(e.append(b, i, 1, TND_FEATURE_RAW_BF16, half.data() + size_t(i) * e.info.feature_raw));
      if (i % 9 == 0) e.propose({{b, 1, i + 1, 8, 4, 1.0f}});  // a block leaves nothing behind
    }
    const auto x = e.propose({{a, 3, n, 8, 8, 1.0f}});
    CHECK(same(x, e.propose({{b, 3, n, 8, 8, 1.0f}})));
    // Truncate and append again.
    CHECK_OK(e.role->sequence_truncate(b, 33));
    CHECK_OK(e.append(b, 33, n - 33, TND_FEATURE_RAW_F32, f.data() + 33 * size_t(e.info.feature_raw)));
    CHECK(same(x, e.propose({{b, 3, n, 8, 8, 1.0f}})));
    CHECK_EQ(e.append(b, n + 1, 1, TND_FEATURE_RAW_F32, f.data()).code(), TND_FAILED_PRECONDITION);
    CHECK_EQ(e.append(b, n, 500, TND_FEATURE_RAW_F32, f.data()).code(), TND_RESOURCE_EXHAUSTED);
    CHECK_EQ(e.append(b, n, 1, 9, f.data()).code(), TND_INVALID_ARGUMENT);
  }
}

// Pieces of several sequences in one call have the bits of single calls, whatever their lengths and encodings, and
// whether they fit into one pass: lengths around the border to the contract of prompts, several pieces of a sequence.
TEST(appends_of_several_sequences) {
  Spec s;
  TempFile tables(table_file(s).bytes()), file(draft_file(s, 5).bytes());
  constexpr int kSequences = 5, kRows = 420;
  Engine joint(file.path, tables.path, kSequences, 1024, 1, 8, 200),
      alone(file.path, tables.path, kSequences, 1024, 1, 8, 200);
  CHECK_OK(joint.status);
  CHECK_OK(alone.status);
  if (!joint.status.ok() || !alone.status.ok()) return;
  const int32_t raw = joint.info.feature_raw, fused = joint.info.feature_fused;
  std::vector<std::vector<float>> wide;
  std::vector<std::vector<uint16_t>> half;
  std::vector<int32_t> sequences, lengths(kSequences, 0);
  for (int i = 0; i < kSequences; i++) {
    sequences.push_back(joint.sequence());
    CHECK_EQ(alone.sequence(), sequences.back());
    wide.push_back(random_features(kRows, raw, 40 + i));
    half.emplace_back();
    for (float x : wide.back()) half.back().push_back(f32_to_bf16(x));
  }
  const int sizes[] = {0, 1, 5, 63, 64, 65, 66, 130, 200, 201};
  test::Rng rng(3);
  for (int call = 0; call < 12; call++) {
    std::vector<tnd_feature_rows> pieces;
    std::vector<int32_t> next = lengths;
    for (int k = 0; k < 2 * kSequences; k++) {
      const auto i = static_cast<size_t>(rng.below(kSequences));
      const int32_t n = std::min(sizes[rng.below(10)], kRows - next[i]);
      const int32_t encoding = 1 + static_cast<int32_t>(rng.below(4));
      const auto from = static_cast<size_t>(next[i]) * static_cast<size_t>(fused_features(encoding) ? fused : raw);
      const void* data =
          bf16_features(encoding) ? static_cast<const void*>(half[i].data() + from) : wide[i].data() + from;
      pieces.push_back({sequences[i], next[i], n, encoding, data});
      next[i] += n;
    }
    // One that is refused leaves the others as they were.
    std::vector<tnd_feature_rows> wrong = pieces;
    wrong.push_back({sequences[0], next[0] + 1, 1, TND_FEATURE_RAW_F32, wide[0].data()});
    CHECK_EQ(joint.role->append(wrong).code(), TND_FAILED_PRECONDITION);
    int32_t length = 0;
    for (size_t i = 0; i < kSequences; i++) {
      CHECK_OK(joint.role->sequence_length(sequences[i], &length));
      CHECK_EQ(length, lengths[i]);
    }
    CHECK_OK(joint.role->append(pieces));
    for (const tnd_feature_rows& p : pieces)
      CHECK_OK(alone.append(p.sequence, p.position, p.n_rows, p.encoding, p.features));
    lengths = next;
    for (const int32_t q : sequences) {
      uint64_t a = 0, b = 0;
      CHECK_OK(joint.role->export_size(q, &a));
      CHECK_OK(alone.role->export_size(q, &b));
      CHECK_EQ(a, b);
      std::vector<uint8_t> x(a), y(b);
      CHECK_OK(joint.role->export_to(q, x.data(), a));
      CHECK_OK(alone.role->export_to(q, y.data(), b));
      CHECK(x == y);
    }
  }
  std::vector<tnd_draft_request> r;
  for (size_t i = 0; i < kSequences; i++) r.push_back({sequences[i], 7, lengths[i], 8, 4, 1.0f});
  CHECK(same(joint.propose(r), alone.propose(r)));
}

// Sliding layers keep their window. Sequences that grow side by side take over each other's pages, and propose what one
// proposes that is made again: from its features, a fork, a snapshot, an export.
TEST(sliding_layers_keep_a_window) {
  for (const std::vector<bool>& sliding : {std::vector<bool>{true, false}, {true, true}}) {
    Spec s;
    s.window = 100;
    s.sliding = sliding;
    TempFile tables(table_file(s).bytes()), file(draft_file(s, 6).bytes());
    constexpr int kSequences = 3, kRows = 1000, kBatch = 96;
    Engine e(file.path, tables.path, kSequences + 1, 2048, 1, 8, kBatch),
        fresh(file.path, tables.path, 1, 2048, 1, 8, kBatch);
    CHECK_OK(e.status);
    CHECK_OK(fresh.status);
    if (!e.status.ok() || !fresh.status.ok()) return;
    const auto stat = [](const Engine& of, const std::string& name) {
      std::vector<tnd_stat> all;
      of.role->memory(&all);
      for (const tnd_stat& v : all) {
        if (v.name == name) return static_cast<int64_t>(v.value);
      }
      return int64_t{-1};
    };
    const auto used = [&](const Engine& of) { return stat(of, "kv_pages") - stat(of, "kv_pages_free"); };
    const int64_t window_pages = kv_pages(s.window - 1 + kKvPage - 1);
    const auto most = [&](int32_t length) { return window_pages + (sliding[1] ? 0 : kv_pages(length)); };
    std::vector<int32_t> sequences, lengths(kSequences, 0);
    std::vector<std::vector<float>> features;
    const int64_t raw = e.info.feature_raw;
    for (int i = 0; i < kSequences; i++) {
      sequences.push_back(e.sequence());
      features.push_back(random_features(kRows, e.info.feature_raw, 60 + i));
    }
    const auto ask = [&](int32_t q, int32_t length) {
      return tnd_draft_request{q, 5, length + 1, 8, 4, 1.0f};  // the features of one position are not known
    };
    test::Rng rng(7);
    const int sizes[] = {1, 7, 64, 65, 96, 250, 400};
    for (int call = 0; call < 12; call++) {
      std::vector<tnd_feature_rows> pieces;
      std::vector<tnd_draft_request> requests;
      for (size_t i = 0; i < kSequences; i++) {
        const int32_t n = std::min(sizes[rng.below(7)], kRows - lengths[i]);
        pieces.push_back({sequences[i], lengths[i], n, TND_FEATURE_RAW_F32, features[i].data() + lengths[i] * raw});
        lengths[i] += n;
        requests.push_back(ask(sequences[i], lengths[i]));
      }
      CHECK_OK(e.role->append(pieces));
      int64_t bound = 0;
      for (const int32_t n : lengths) bound += most(n);
      CHECK(used(e) <= bound);
      const auto all = e.propose(requests);
      for (size_t i = 0; i < kSequences; i++) {
        const int32_t q = fresh.sequence();
        CHECK_OK(fresh.append(q, 0, lengths[i], TND_FEATURE_RAW_F32, features[i].data()));
        const auto one = fresh.propose({ask(q, lengths[i])});
        const size_t per = one.ids.size();
        CHECK(std::equal(one.ids.begin(), one.ids.end(), all.ids.begin() + static_cast<std::ptrdiff_t>(i * per)));
        CHECK(std::memcmp(one.logprobs.data(), all.logprobs.data() + i * per, per * sizeof(float)) == 0);
        CHECK(used(fresh) <= most(lengths[i]));
        CHECK_OK(fresh.role->sequence_free(q));
      }
    }
    const int32_t q = sequences[0], n = lengths[0];
    REQUIRE(n > 600);
    const auto expected = e.propose({ask(q, n)});
    int32_t fork = -1, snapshot = -1;
    CHECK_OK(e.role->sequence_fork(q, &fork));
    CHECK(same(expected, e.propose({ask(fork, n)})));
    CHECK_OK(e.role->snapshot_create(q, &snapshot));
    uint64_t bytes = 0;
    CHECK_OK(e.role->export_size(q, &bytes));
    std::vector<uint8_t> state(bytes);
    CHECK_OK(e.role->export_to(q, state.data(), bytes));
    // A length whose window was released cannot be gone back to, one whose window is there can.
    CHECK_EQ(e.role->sequence_truncate(q, n - 150).code(), TND_FAILED_PRECONDITION);
    CHECK(same(expected, e.propose({ask(q, n)})));
    CHECK_OK(e.role->sequence_truncate(q, n - (n + 1 - s.window) % kKvPage));
    for (const int32_t other : sequences) CHECK_OK(e.role->sequence_free(other));
    CHECK_OK(e.role->sequence_free(fork));
    const int64_t kept = kv_pages(n) - (n + 1 - s.window) / kKvPage;  // of sliding layers
    CHECK_EQ(used(e), kept + (sliding[1] ? 0 : kv_pages(n)));
    CHECK_OK(e.role->snapshot_demote(snapshot));
    CHECK_EQ(used(e), 0);
    const int32_t a = e.sequence(), b = e.sequence();
    CHECK_OK(e.role->snapshot_restore(snapshot, a));
    CHECK_OK(e.role->import_from(b, state.data(), bytes));
    CHECK(same(expected, e.propose({ask(a, n)})));
    CHECK(same(expected, e.propose({ask(b, n)})));
    CHECK_OK(e.role->snapshot_free(snapshot));
  }
}

// Several requests in one call give the bits of single calls; shorter blocks fill less.
TEST(batched_requests) {
  Spec s;
  TempFile tables(table_file(s).bytes()), file(draft_file(s, 4).bytes());
  Engine e(file.path, tables.path, 3);
  CHECK_OK(e.status);
  if (!e.status.ok()) return;
  std::vector<tnd_draft_request> r;
  for (int i = 0; i < 3; i++) {
    const int32_t q = e.sequence();
    const int n = 5 + 40 * i;
    const auto f = random_features(n, e.info.feature_raw, 10 + i);
    CHECK_OK(e.append(q, 0, n, TND_FEATURE_RAW_F32, f.data()));
    r.push_back({q, 20 + i, n, 8 - 2 * i, 8 - i, 0.5f + i});
  }
  const auto all = e.propose(r);
  const size_t per = all.ids.size() / 3;
  for (int i = 0; i < 3; i++) {
    const auto one = e.propose({r[i]});
    for (size_t j = 0; j < per; j++) {
      CHECK_EQ(one.ids[j], all.ids[i * per + j]);
      CHECK_EQ(one.logprobs[j], all.logprobs[i * per + j]);
      const int pos = int(j) / e.stride, rank = int(j) % e.stride;
      CHECK_EQ(one.ids[j] >= 0, pos < r[i].block - 1 && rank < r[i].top_k);
    }
  }
  CHECK_EQ(e.role->propose(std::vector{r[0], r[0]}, nullptr, nullptr).code(), TND_INVALID_ARGUMENT);
}

// Section 11 tests 3 to 5: shifting all positions, the order of MASK rows, and causal sliding blocks.
TEST(positions_and_masks) {
  Spec s;
  TempFile tables(table_file(s).bytes()), full(draft_file(s, 6).bytes());
  {
    // A gap of unknown features shifts the block against the context; without context a shift changes nothing.
    Engine e(full.path, tables.path);
    const int32_t q = e.sequence();
    const auto a = e.propose({{q, 3, 0, 8, 8, 1.0f}}), b = e.propose({{q, 3, 300, 8, 8, 1.0f}});
    CHECK_MSG(max_diff(a, b) < 2e-4f, std::to_string(max_diff(a, b)));
    const auto f = random_features(4, e.info.feature_raw, 7);
    CHECK_OK(e.append(q, 0, 4, TND_FEATURE_RAW_F32, f.data()));
    const auto near = e.propose({{q, 3, 4, 8, 8, 1.0f}}), far = e.propose({{q, 3, 200, 8, 8, 1.0f}});
    CHECK(max_diff(near, far) > 1e-3f);
    // Block length changes a full layer's rows, since every row sees the whole block.
    const auto shorter = e.propose({{q, 3, 4, 4, 8, 1.0f}});
    CHECK(std::memcmp(near.logprobs.data(), shorter.logprobs.data(), 4 * 8) != 0);
  }
  {
    // All layers sliding: rows j see the block causally, so a shorter block gives the same first rows.
    s.window = 10;
    s.sliding = {true, true};
    TempFile slide(draft_file(s, 6).bytes());
    Engine e(slide.path, tables.path);
    CHECK_OK(e.status);
    const int32_t q = e.sequence(), p = e.sequence();
    const int n = 40;
    auto f = random_features(n, e.info.feature_raw, 8);
    CHECK_OK(e.append(q, 0, n, TND_FEATURE_RAW_F32, f.data()));
    const auto whole = e.propose({{q, 3, n, 8, 8, 1.0f}}), part = e.propose({{q, 3, n, 4, 8, 1.0f}});
    for (int i = 0; i < 3 * e.stride; i++) CHECK_EQ(whole.logprobs[i], part.logprobs[i]);
    // Row j sees context p >= n + j - 9: changing row n-9 moves row 0 alone of each layer. Row 1's candidates depend on
    // row 0 only through the causal block of the next layer, so compare with a one-layer draft.
    s.layers = 1;
    s.sliding = {true};
    TempFile single(draft_file(s, 6).bytes());
    Engine o(single.path, tables.path);
    CHECK_OK(o.status);
    const int32_t u = o.sequence(), v = o.sequence();
    CHECK_OK(o.append(u, 0, n, TND_FEATURE_RAW_F32, f.data()));
    for (int row : {n - 9 + 0, n - 9 + 1, n - 9 + 4}) {
      auto g = f;
      for (int i = 0; i < o.info.feature_raw; i++) g[size_t(row) * o.info.feature_raw + i] += 1.0f;
      CHECK_OK(o.role->sequence_truncate(v, 0));
      CHECK_OK(o.append(v, 0, n, TND_FEATURE_RAW_F32, g.data()));
      const auto a = o.propose({{u, 3, n, 8, 8, 1.0f}}), b = o.propose({{v, 3, n, 8, 8, 1.0f}});
      for (int j = 1; j < 8; j++) {
        const bool sees = row >= n + j - 9;
        const bool equal = std::memcmp(&a.logprobs[(j - 1) * o.stride], &b.logprobs[(j - 1) * o.stride], 4 * 8) == 0;
        CHECK_EQ(equal, !sees);
      }
    }
    (void)p;
  }
}

// Permuting two captured layers changes the output: fc reads them in ascending order.
TEST(feature_order_matters) {
  Spec s;
  TempFile tables(table_file(s).bytes()), file(draft_file(s, 6).bytes());
  Engine e(file.path, tables.path);
  const int32_t a = e.sequence(), b = e.sequence();
  auto f = random_features(3, e.info.feature_raw, 8);
  CHECK_OK(e.append(a, 0, 3, TND_FEATURE_RAW_F32, f.data()));
  for (int r = 0; r < 3; r++) std::rotate(&f[r * 128], &f[r * 128 + 64], f.data() + r * 128 + 128);
  CHECK_OK(e.append(b, 0, 3, TND_FEATURE_RAW_F32, f.data()));
  CHECK(!same(e.propose({{a, 3, 3, 8, 8, 1.0f}}), e.propose({{b, 3, 3, 8, 8, 1.0f}})));
}

// Snapshots and exports bring a sequence back bit for bit, also into another engine; damage is found.
TEST(snapshots_and_export) {
  Spec s;
  TempFile tables(table_file(s).bytes()), file(draft_file(s, 6).bytes()), other(draft_file(s, 7).bytes());
  Engine e(file.path, tables.path), twin(file.path, tables.path), stranger(other.path, tables.path);
  const int32_t a = e.sequence();
  const auto f = random_features(60, e.info.feature_raw, 8);
  CHECK_OK(e.append(a, 0, 50, TND_FEATURE_RAW_F32, f.data()));
  const std::vector<tnd_draft_request> ask = {{a, 3, 50, 8, 8, 1.0f}};
  const auto want = e.propose(ask);
  int32_t snap = -1;
  CHECK_OK(e.role->snapshot_create(a, &snap));
  uint64_t bytes = 0;
  CHECK_OK(e.role->export_size(a, &bytes));
  CHECK_EQ(bytes, 64 + 50 * e.info.kv_bytes_per_token);
  REQUIRE(bytes > 64);
  std::vector<uint8_t> data(bytes);
  CHECK_OK(e.role->export_to(a, data.data(), bytes));
  CHECK_EQ(e.role->export_to(a, data.data(), bytes - 1).code(), TND_INVALID_ARGUMENT);

  CHECK_OK(e.role->sequence_truncate(a, 5));
  CHECK_OK(e.append(a, 5, 50, TND_FEATURE_RAW_F32, f.data() + 3));
  CHECK_OK(e.role->snapshot_restore(snap, a));
  CHECK(same(want, e.propose(ask)));
  CHECK_OK(e.role->snapshot_free(snap));
  CHECK_EQ(e.role->snapshot_restore(snap, a).code(), TND_NOT_FOUND);

  const int32_t t = twin.sequence();
  CHECK_OK(twin.role->import_from(t, data.data(), bytes));
  CHECK(same(want, twin.propose({{t, 3, 50, 8, 8, 1.0f}})));
  CHECK_EQ(stranger.role->import_from(stranger.sequence(), data.data(), bytes).code(), TND_FAILED_PRECONDITION);
  for (const size_t at : {size_t{0}, size_t{20}, size_t{40}, size_t{64}, data.size() - 1}) {
    data[at] ^= 4;
    CHECK_EQ(twin.role->import_from(t, data.data(), bytes).code(), TND_DATA_LOSS);
    data[at] ^= 4;
  }
  CHECK_EQ(twin.role->import_from(t, data.data(), 63).code(), TND_DATA_LOSS);
  CHECK_EQ(twin.role->import_from(t, data.data(), bytes - 8).code(), TND_DATA_LOSS);
}

// Memory stays within the cap: a context that does not fit is refused with what would, an open one is cut to fit.
TEST(memory_cap) {
  Spec s;
  TempFile tables(table_file(s).bytes()), file(draft_file(s, 6).bytes());
  auto used = [](const Engine& e, const char* purpose = "_bytes") {
    std::vector<tnd_stat> m;
    e.role->memory(&m);
    uint64_t n = 0;
    for (const tnd_stat& x : m) n += std::strstr(x.name, purpose) != nullptr ? x.value : 0;
    return n;
  };
  Engine big(file.path, tables.path, 2, 4096);
  CHECK_OK(big.status);
  const uint64_t cap = used(big) - used(big, "kv_bytes") / 2;  // the other memory is a backend's own matter
  Engine refused(file.path, tables.path, 2, 4096, 0, 8, 64, cap);
  CHECK_EQ(refused.status.code(), TND_RESOURCE_EXHAUSTED);
  CHECK_MSG(refused.status.message().find("would fit") != std::string::npos, refused.status.message());
  Engine cut(file.path, tables.path, 2, 0, 0, 8, 64, cap);
  CHECK_OK(cut.status);
  if (!cut.status.ok()) return;
  CHECK(cut.info.max_context >= 256 && cut.info.max_context < 4096);
  CHECK(used(cut) <= cap);
  CHECK_EQ(Engine(file.path, tables.path, 2, 0, 0, 8, 64, 100000).status.code(), TND_RESOURCE_EXHAUSTED);
}

TEST(demonstration_draft_opens) {
  const std::string models = TND_ROOT "/models/tandem-tiny-";
  Engine e(models + "draft-q8_0.gguf", models + "target-q4_k_m.gguf", 1, 1024, TND_KV_DEFAULT);
  CHECK_OK(e.status);
  CHECK(e.info.block_size == 16 && e.info.mask_token == 8169 && e.info.n_capture == 3 && e.info.feature_raw == 1536);
  CHECK(e.info.capture_layers[0] == 1 && e.info.capture_layers[1] == 3 && e.info.capture_layers[2] == 5);
  CHECK_EQ(e.warnings.size(), 0u);
}

// The demonstration draft rewritten to the dialect "dflash" as others publish it proposes the same.
TEST(demonstration_draft_as_published) {
  const std::string models = TND_ROOT "/models/tandem-tiny-", tables = models + "target-q4_k_m.gguf";
  std::unique_ptr<gguf::File> source;
  CHECK_OK(gguf::File::open((models + "draft-q8_0.gguf").c_str(), &source));
  REQUIRE(source != nullptr);
  Writer w;
  w.str("general.architecture", "dflash");
  for (const char* key : {"block_count", "context_length", "embedding_length", "feed_forward_length",
                          "attention.head_count", "attention.head_count_kv", "attention.key_length"}) {
    int32_t v = 0;
    CHECK_OK(source->get_i32(std::string("dflash-draft.") + key, 1, 1 << 28, &v));
    w.u32(std::string("dflash.") + key, uint32_t(v));
  }
  for (const char* key : {"attention.layer_norm_rms_epsilon", "rope.freq_base"}) {
    float v = 0;
    CHECK_OK(source->get_f32(std::string("dflash-draft.") + key, &v));
    w.f32(std::string("dflash.") + key, v);
  }
  int32_t window = 0;
  CHECK_OK(source->get_i32_or("dflash-draft.attention.sliding_window", 0, 1 << 28, &window));
  if (window > 0) {
    std::vector<bool> sliding;
    CHECK_OK(source->get_bools("dflash-draft.attention.sliding_window_pattern", &sliding));
    w.u32("dflash.attention.sliding_window", uint32_t(window));
    w.flags("dflash.attention.sliding_window_pattern", sliding);
  }
  w.u32("dflash.block_size", 16);
  w.i32s("dflash.target_layers", {2, 4, 6});
  w.u32("tokenizer.ggml.mask_token_id", 8169);
  for (const TensorView& t : source->tensors()) {
    std::string name(t.name);
    if (name == "dflash_fc.weight") name = "fc.weight";
    if (name == "dflash_hidden_norm.weight") name = "enc.output_norm.weight";
    w.tensors.push_back({name,
                         std::vector<uint64_t>(t.ne, t.ne + t.n_dims),
                         {},
                         t.type,
                         std::string(static_cast<const char*>(t.data), t.bytes)});
  }
  TempFile published(w.bytes());
  std::vector<Engine::Top> tops;
  for (const std::string& path : {models + "draft-q8_0.gguf", published.path}) {
    Engine e(path, tables, 1, 1024, TND_KV_DEFAULT);
    CHECK_OK(e.status);
    if (!e.status.ok()) return;
    const auto f = random_features(40, e.info.feature_raw, 1);
    const int32_t q = e.sequence();
    CHECK_OK(e.append(q, 0, 40, TND_FEATURE_RAW_F32, f.data()));
    tops.push_back(e.propose({{q, 3, 40, 8, 8, 1.0f}}));
  }
  CHECK(same(tops[0], tops[1]));
}

TEST_MAIN()
