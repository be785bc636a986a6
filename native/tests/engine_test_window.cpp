// Targets with an attention window: what a row sees, and that its bits depend on nothing else.
#include <algorithm>

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
