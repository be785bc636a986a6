// Targets with an attention window: what a row sees, that its bits depend on nothing else, and that pages before the
// window are free for others.
#include <algorithm>

#include "core/kv_type.h"
#include "engine_models.h"

using namespace tnd::test;

namespace {

constexpr int kWindow = 128;

EngineOptions windowed(int window, int context = 512) {
  EngineOptions o;
  o.attention_window = window;
  o.max_context = context;
  return o;
}

// Logits of the last of the tokens, read in pieces of 64.
std::vector<float> last_logits(Engine& e, const std::vector<int32_t>& tokens) {
  const int32_t s = e.sequence();
  const std::vector<int32_t> before(tokens.begin(), tokens.end() - 1);
  e.prefill(s, before, 64, 0);
  const std::vector<float> out = e.prefill(s, {tokens.back()}, 1, kLogits).logits;
  e.ok(tnd_sequence_free(e.handle(), s));
  return out;
}

uint64_t used_pages(const Engine& e) {
  return e.stat("kv_pages", true) - e.stat("kv_pages_free", true);
}

// Most pages that n positions in a row touch.
int pages_of(int n) {
  return tnd::kv_pages(n + tnd::kKvPage - 1);
}

// A sequence of an engine and the text that it is given, in random pieces, chains and trees, with what came out.
struct Reader {
  const Engine* e;
  Rng rng;
  std::vector<int32_t> text;
  int32_t s = e->sequence();
  size_t at = 0;
  std::vector<float> logits{};

  bool done() const { return at == text.size(); }
  // Reads a random number of tokens, at most `most`.
  void read(size_t most) {
    const size_t n = 1 + rng.below(std::min(most, text.size() - at));
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at);
    const std::vector<int32_t> part(begin, begin + static_cast<std::ptrdiff_t>(n));
    at += n;
    std::vector<float> more;
    if (n > 16 || rng.below(3) == 0) {
      more = e->prefill(s, part, n, kLogits).logits;
    } else {
      // The tokens as a chain, each with a sibling before it that is dropped.
      std::vector<int32_t> tokens, parents, path;
      for (size_t i = 0; i < n; ++i) {
        const int32_t parent = i == 0 ? -1 : path.back();
        tokens.insert(tokens.end(), {(part[i] + 1) % 512, part[i]});
        parents.insert(parents.end(), {parent, parent});
        path.push_back(static_cast<int32_t>(2 * i + 1));
      }
      StepIn in;
      in.groups = {e->rows(s, tokens, parents, kLogits)};
      const StepOut out = e->run_ok(in);
      const std::ptrdiff_t vocab = static_cast<std::ptrdiff_t>(out.logits.size() / tokens.size());
      for (const int32_t row : path) {
        more.insert(more.end(), out.logits.begin() + row * vocab, out.logits.begin() + (row + 1) * vocab);
      }
      e->commit(s, path);
    }
    logits.insert(logits.end(), more.begin(), more.end());
  }
};

}  // namespace

TEST(a_window_as_long_as_the_context_changes_no_bits) {
  for (const Model& m : models()) {
    Rng rng(70);
    const std::vector<int32_t> tokens = random_tokens(&rng, 200, m.vocab);
    Engine all(m.path), window(m.path, windowed(512));
    REQUIRE(all.handle() != nullptr && window.handle() != nullptr);
    CHECK_MSG(same_bits(last_logits(all, tokens), last_logits(window, tokens)), m.label);
  }
}

// Of a dense model the last row depends on the window of each layer: tokens before all of them change nothing.
TEST(tokens_before_the_windows_change_nothing) {
  for (const Model& m : models()) {
    Engine narrow(m.path, windowed(kWindow, 2048)), all(m.path, windowed(0, 2048));
    REQUIRE(narrow.handle() != nullptr && all.handle() != nullptr);
    if (narrow.info().recurrent != 0) continue;
    const int seen = narrow.info().n_layers * (kWindow - 1) + 1;
    REQUIRE(seen + 8 <= 2048);
    Rng rng(71);
    std::vector<int32_t> tokens = random_tokens(&rng, static_cast<size_t>(seen) + 8, m.vocab);
    const std::vector<float> one = last_logits(narrow, tokens), whole = last_logits(all, tokens);
    CHECK_MSG(!same_bits(one, whole), std::string(m.label) + ": the window must change something");
    for (size_t i = 0; i < 8; ++i) tokens[i] = (tokens[i] + 1) % m.vocab;
    CHECK_MSG(same_bits(last_logits(narrow, tokens), one), std::string(m.label) + ": tokens before the windows");
    CHECK_MSG(!same_bits(last_logits(all, tokens), whole), std::string(m.label) + ": without a window they are seen");
    int32_t& oldest = tokens[tokens.size() - kWindow];  // that the last row itself reads
    oldest = (oldest + 1) % m.vocab;
    CHECK_MSG(!same_bits(last_logits(narrow, tokens), one), std::string(m.label) + ": tokens in the window are seen");
  }
}

TEST(pieces_and_chains_with_a_window_equal_single_steps) {
  for (const Model& m : models()) {
    Rng rng(72);
    Engine e(m.path, windowed(kWindow));
    REQUIRE(e.handle() != nullptr);
    const std::vector<int32_t> tokens = random_tokens(&rng, 170, m.vocab);
    const std::vector<float> expected = one_by_one(e, e.sequence(), tokens);
    for (const size_t chunk : {size_t{16}, size_t{64}, size_t{170}}) {
      const int32_t s = e.sequence();
      CHECK_MSG(same_bits(e.prefill(s, tokens, chunk, kLogits).logits, expected),
                std::string(m.label) + " pieces of " + std::to_string(chunk));
      e.ok(tnd_sequence_free(e.handle(), s));
    }
    CHECK_MSG(same_bits(as_chains(e, e.sequence(), tokens, 16), expected), std::string(m.label) + " chains");
  }
}

TEST(states_of_another_window_are_refused) {
  const Model m = models().front();
  Engine narrow(m.path, windowed(kWindow)), all(m.path);
  REQUIRE(narrow.handle() != nullptr && all.handle() != nullptr);
  CHECK(std::string(narrow.info().numerics) == std::string(all.info().numerics) + " window=128");
  Rng rng(73);
  const int32_t from = narrow.sequence(), to = all.sequence();
  narrow.prefill(from, random_tokens(&rng, 10, m.vocab), 10, 0);
  const std::vector<uint8_t> state = narrow.exported(from);
  CHECK_EQ(tnd_sequence_import(all.handle(), to, state.data(), state.size()), TND_FAILED_PRECONDITION);
  for (const int window : {-1, 1, 127}) {
    Engine bad;
    std::string error;
    CHECK_EQ(bad.open(m.path, windowed(window), &error), TND_INVALID_ARGUMENT);
    CHECK_MSG(error.find("attention_window") != std::string::npos, error);
  }
}

// Readers take turns and so take over each other's pages: each has the logits that it has alone. Pages in use stay
// bounded however long the texts are.
TEST(pages_before_the_window_are_freed) {
  for (const Model& m : models()) {
    EngineOptions o = windowed(kWindow, 2048);
    o.max_sequences = 3;
    o.max_batch_rows = 64;
    Engine e(m.path, o), alone(m.path, o), all(m.path, [&] {
      EngineOptions whole = o;
      whole.attention_window = 0;
      return whole;
    }());
    REQUIRE(e.handle() != nullptr && alone.handle() != nullptr && all.handle() != nullptr);
    CHECK_EQ(e.info().kv_positions, all.info().kv_positions);
    const int most = pages_of(kWindow - 1 + o.max_tree_rows);  // of a sequence between steps
    const int slots = 3 * (kWindow - 1 + o.max_tree_rows + 2 * (tnd::kKvPage - 1)) + o.max_batch_rows;
    CHECK_EQ(e.stat("kv_pages", true), static_cast<uint64_t>(tnd::kv_pages(slots)));
    CHECK(4 * e.stat("kv_bytes", true) < all.stat("kv_bytes", true));
    CHECK(e.stat("total_bytes", true) < all.stat("total_bytes", true));

    const size_t n = e.emulated() ? 300 : 700;
    Rng rng(74);
    std::vector<Reader> readers;
    for (uint64_t i = 0; i < 3; ++i) readers.push_back({&e, Rng(80 + i), random_tokens(&rng, n + 40 * i, 512)});
    for (bool more = true; more;) {
      more = false;
      for (Reader& r : readers) {
        if (!r.done()) r.read(64);
        more |= !r.done();
        CHECK(used_pages(e) <= static_cast<uint64_t>(3 * most));
      }
    }
    for (uint64_t i = 0; i < 3; ++i) {
      const Reader& r = readers[i];
      CHECK_EQ(e.length(r.s), static_cast<int32_t>(n + 40 * i));
      const int32_t s = alone.sequence();
      CHECK_MSG(same_bits(alone.prefill(s, r.text, 64, kLogits).logits, r.logits), m.label);
      CHECK_EQ(used_pages(alone),
               static_cast<uint64_t>(tnd::kv_pages(alone.length(s)) - (alone.length(s) + 1 - kWindow) / tnd::kKvPage));
      CHECK(alone.exported(s) == e.exported(r.s));
      alone.ok(tnd_sequence_free(alone.handle(), s));
      e.ok(tnd_sequence_free(e.handle(), r.s));
    }
    CHECK_EQ(used_pages(e), uint64_t{0});
  }
}

// A snapshot holds the pages that rows after it read, and no others; everything that is made of it has its bits.
TEST(states_hold_what_a_window_reads) {
  for (const Model& m : models()) {
    EngineOptions o = windowed(kWindow, 2048);
    Engine e(m.path, o), other(m.path, o);
    REQUIRE(e.handle() != nullptr && other.handle() != nullptr);
    Rng rng(75);
    const std::vector<int32_t> more = random_tokens(&rng, 90, m.vocab);
    for (const size_t n : {size_t{127}, size_t{128}, size_t{191}, size_t{256}, size_t{400}}) {
      const int32_t s = e.sequence(), length = static_cast<int32_t>(n);
      e.prefill(s, random_tokens(&rng, n, m.vocab), 64);
      const int32_t p = e.snapshot(s), fork = e.fork(s);
      const std::vector<uint8_t> state = e.exported(s);
      const std::vector<float> expected = e.prefill(s, more, 64, kLogits).logits;
      CHECK_MSG(same_bits(as_chains(e, fork, more, 16), expected), std::string(m.label) + " fork");
      e.ok(tnd_sequence_free(e.handle(), fork));
      e.ok(tnd_sequence_free(e.handle(), s));
      const int held = tnd::kv_pages(length) - std::max(0, length + 1 - kWindow) / tnd::kKvPage;
      CHECK_EQ(used_pages(e), static_cast<uint64_t>(held));
      for (const bool demoted : {false, true}) {
        if (demoted) e.ok(tnd_snapshot_demote(e.handle(), p));
        if (demoted) CHECK_EQ(used_pages(e), uint64_t{0});
        const int32_t t = e.sequence();
        e.prefill(t, random_tokens(&rng, 200, m.vocab), 64);  // is replaced
        e.ok(tnd_snapshot_restore(e.handle(), p, t));
        CHECK(e.exported(t) == state);
        CHECK_MSG(same_bits(e.prefill(t, more, 64, kLogits).logits, expected), std::string(m.label) + " restored");
        e.ok(tnd_sequence_free(e.handle(), t));
      }
      const int32_t t = other.sequence();
      other.ok(tnd_sequence_import(other.handle(), t, state.data(), state.size()));
      CHECK_EQ(used_pages(other), static_cast<uint64_t>(held));
      CHECK_MSG(same_bits(other.prefill(t, more, 64, kLogits).logits, expected), std::string(m.label) + " imported");
      other.ok(tnd_sequence_free(other.handle(), t));
      e.ok(tnd_snapshot_free(e.handle(), p));
    }
  }
}

// Forks that release a page together make room for each other.
TEST(forks_release_pages_together) {
  EngineOptions o = windowed(kWindow, 1024);
  o.max_sequences = 4;
  o.max_tree_rows = 1;
  o.max_batch_rows = 64;
  const Model m = models()[1];
  Engine e(m.path, o);
  REQUIRE(e.handle() != nullptr);
  Rng rng(76);
  std::vector<int32_t> s{e.sequence()};
  e.prefill(s[0], random_tokens(&rng, 256, m.vocab), 64);
  for (int i = 1; i < 4; ++i) s.push_back(e.fork(s[0]));
  for (int round = 0; round < 400; ++round) {
    StepIn in;
    in.flags = TND_GROUP_COMMIT;
    for (const int32_t q : s) in.groups.push_back(e.rows(q, random_tokens(&rng, 1, m.vocab), {-1}, 0));
    REQUIRE(e.ok(e.run(in).status));
  }
}

TEST(a_window_bounds_what_a_step_reads) {
  const Model m = models()[1];
  EngineOptions o = windowed(kWindow, 1024);
  Engine e(m.path, o), all(m.path, windowed(0, 1024));
  REQUIRE(e.handle() != nullptr && all.handle() != nullptr);
  Rng rng(77);
  const std::vector<int32_t> text = random_tokens(&rng, 500, m.vocab);
  const auto bytes = [&](Engine& engine) {
    const int32_t s = engine.sequence();
    engine.prefill(s, text, 64);
    const uint64_t before = engine.stat("kv_bytes_read");
    engine.prefill(s, {1}, 1);
    return engine.stat("kv_bytes_read") - before;
  };
  CHECK_EQ(bytes(e), kWindow * e.info().kv_bytes_per_token);
  CHECK_EQ(bytes(all), 501 * all.info().kv_bytes_per_token);
}

// Of a dense model: what a row at the new tip reads is there, or the call changes nothing.
TEST(a_sequence_is_cut_within_its_pages) {
  for (const Model& m : models()) {
    Engine e(m.path, windowed(kWindow, 1024));
    REQUIRE(e.handle() != nullptr);
    if (e.info().recurrent != 0) continue;
    Rng rng(78);
    const std::vector<int32_t> text = random_tokens(&rng, 400, m.vocab), more = random_tokens(&rng, 30, m.vocab);
    const int32_t s = e.sequence(), t = e.sequence();
    e.prefill(s, text, 64);
    const std::vector<uint8_t> state = e.exported(s);
    CHECK_EQ(tnd_sequence_truncate(e.handle(), s, 382), TND_FAILED_PRECONDITION);  // reads from position 255 on
    CHECK(e.exported(s) == state);
    e.ok(tnd_sequence_truncate(e.handle(), s, 383));  // from 256 on, as at 400
    e.prefill(t, std::vector<int32_t>(text.begin(), text.begin() + 383), 64);
    CHECK(e.exported(s) == e.exported(t));
    CHECK(same_bits(e.prefill(s, more, 64, kLogits).logits, e.prefill(t, more, 64, kLogits).logits));
    e.ok(tnd_sequence_truncate(e.handle(), s, 0));
    CHECK_EQ(e.length(s), 0);
  }
}
