// Pages of keys and values: how a pool is planned, what forks and snapshots share, when a page is copied before it is
// written, what demotion moves, and that a call for which there are no pages changes nothing.
#include <cstdlib>
#include <cstring>

#include "core/kv_type.h"
#include "engine_util.h"
#include "roles/kv_plan.h"

using namespace tnd::test;
using tnd::kKvPage;
using tnd::kv_pages;

namespace {

// A recurrent target and, but for the emulation, a dense one.
std::vector<std::pair<std::string, int32_t>> models() {
  std::vector<std::pair<std::string, int32_t>> all{{random_model("ratio3"), 512}};
  if (!Engine(all[0].first).emulated()) all.push_back({TND_ROOT "/models/tandem-tiny-prefill-q8_0.gguf", 8192});
  return all;
}

std::vector<float> logits_after(const Engine& e, int32_t s, const std::vector<int32_t>& tokens) {
  return e.prefill(s, tokens, 512, TND_WANT_LOGITS).logits;
}

// Logits of `last` behind `first` in a sequence of its own.
std::vector<float> cold(const Engine& e, const std::vector<int32_t>& first, const std::vector<int32_t>& last) {
  const int32_t s = e.sequence();
  e.prefill(s, first);
  std::vector<float> logits = logits_after(e, s, last);
  e.ok(tnd_sequence_free(e.handle(), s));
  return logits;
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<float> joined_logits(std::vector<float> a, const std::vector<float>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string demo_draft() {
  return TND_ROOT "/models/tandem-tiny-draft-q8_0.gguf";
}

EngineOptions draft_options(int sequences, int positions) {
  EngineOptions o;
  o.tables = demo_model();
  o.max_sequences = sequences;
  o.max_context = 256;
  o.kv_positions = positions;
  return o;
}

int64_t used(const Engine& e) {
  return static_cast<int64_t>(e.stat("kv_pages", true)) - static_cast<int64_t>(e.stat("kv_pages_free", true));
}
int64_t shared(const Engine& e) {
  return static_cast<int64_t>(e.stat("kv_pages_shared", true));
}

}  // namespace

// Sequences of together plan.positions find their pages, however they are cut; nothing is planned that nobody can use.
TEST(a_pool_holds_its_positions) {
  Rng rng(1);
  for (int i = 0; i < 2000; ++i) {
    const int32_t sequences = 1 + static_cast<int32_t>(rng.below(9)),
                  pending = 1 + static_cast<int32_t>(rng.below(128));
    tnd::KvPlan plan;
    plan.max_context = 1 + static_cast<int32_t>(rng.below(1000));
    plan.sequences = sequences;
    plan.positions = plan.max_context +
                     static_cast<int32_t>(rng.below(static_cast<uint64_t>(plan.max_context) * (sequences - 1) + 1));
    const int32_t slots = tnd::pool_slots(plan, {.pending = pending});
    CHECK_EQ(slots % kKvPage, 0);
    CHECK(slots <= sequences * tnd::table_pages(plan, pending) * kKvPage);
    int32_t left = plan.positions, needed = 0;
    for (int32_t s = 0; s < sequences; ++s) {
      const int32_t most = std::min(left, plan.max_context);
      const int32_t n = s + 1 == sequences ? most : static_cast<int32_t>(rng.below(static_cast<uint64_t>(most) + 1));
      left -= n;
      needed += kv_pages(n + pending);
    }
    CHECK(needed * kKvPage <= slots);
  }
}

// An automatic type is the first of the ladder with which the request fits; a given type stays. An automatic context is
// reduced before it is kept in few bits.
TEST(types_are_chosen_by_memory) {
  constexpr uint64_t kWeights = 1 << 20;
  constexpr int32_t kContext = 4096, kHeads = 2;
  tnd::KvShape kv;
  tnd::KvWish wish;
  wish.model_context = kContext;
  wish.measure = [&](const tnd::KvPlan& plan, tnd::Arena* arena) {
    arena->take(tnd::Purpose::kWeights, kWeights);
    for (const int32_t type : {kv.k_type, kv.v_type}) {
      const int64_t row = kv.heads * tnd::kv_stored_bytes(static_cast<tnd::KvType>(type), kv.dim);
      arena->take(tnd::Purpose::kKv, static_cast<uint64_t>(row * plan.positions));
    }
    return tnd::Status();
  };
  const auto needs = [&](int32_t k, int32_t v, int32_t dim) {
    tnd::Arena arena;
    kv.k_type = k, kv.v_type = v, kv.heads = kHeads, kv.dim = dim;
    CHECK(wish.measure({kContext, kContext, 1}, &arena).ok());
    return arena.total();
  };
  tnd::KvPlan plan;
  const auto choose = [&](uint64_t cap, int32_t k, int32_t v, int32_t context, int32_t dim = 256) {
    tnd::OpenContext c;
    c.memory_cap = cap;
    c.options.kv_type_k = k, c.options.kv_type_v = v;
    c.options.max_context = context;
    c.options.max_sequences = 1;
    return tnd::plan_kv_types(c, wish, kHeads, dim, &kv, &plan);
  };
  for (const int32_t type : {1, 8, 7, 6, 3, 2, 42}) {
    CHECK(choose(needs(type, type, 256), TND_KV_AUTO, TND_KV_AUTO, kContext).ok());
    CHECK_EQ(kv.k_type, type);
    CHECK_EQ(kv.v_type, type);
    CHECK_EQ(plan.max_context, kContext);
    CHECK(choose(needs(1, type, 256), TND_KV_DEFAULT, TND_KV_AUTO, kContext).ok());
    CHECK_EQ(kv.k_type, 1);
    CHECK_EQ(kv.v_type, type);
    CHECK(choose(needs(type, 8, 256), TND_KV_AUTO, 8, kContext).ok());
    CHECK_EQ(kv.k_type, type);
    CHECK_EQ(kv.v_type, 8);
  }
  const tnd::Status refused = choose(needs(42, 42, 256) - 64, TND_KV_AUTO, TND_KV_AUTO, kContext);
  CHECK_EQ(refused.code(), TND_RESOURCE_EXHAUSTED);
  CHECK(refused.message().find("max_context 4095 would fit") != std::string::npos);

  // Heads that no quantised type takes, and heads that only the one with rotation does not take.
  CHECK_EQ(choose(needs(1, 1, 80) - 64, TND_KV_AUTO, TND_KV_AUTO, kContext, 80).code(), TND_RESOURCE_EXHAUSTED);
  CHECK_EQ(kv.k_type, 1);
  CHECK_EQ(choose(needs(2, 2, 64) - 64, TND_KV_AUTO, TND_KV_AUTO, kContext, 64).code(), TND_RESOURCE_EXHAUSTED);
  CHECK_EQ(kv.k_type, 2);

  CHECK(choose(needs(1, 1, 256), TND_KV_AUTO, TND_KV_AUTO, 0).ok());
  CHECK_EQ(kv.k_type, 1);
  CHECK(choose(needs(42, 42, 256), TND_KV_AUTO, TND_KV_AUTO, 0).ok());
  CHECK_EQ(kv.k_type, 8);
  CHECK(plan.max_context < kContext && plan.max_context > kContext / 3);
}

TEST(options_of_the_pool) {
  EngineOptions o;
  o.max_context = 256;
  o.max_sequences = 3;
  o.max_tree_rows = 16;
  Engine whole(random_model("ratio3"), o);
  REQUIRE(whole.handle() != nullptr);
  CHECK_EQ(whole.info().kv_positions, 3 * 256);
  CHECK_EQ(whole.info().kv_page, kKvPage);
  CHECK_EQ(whole.stat("kv_pages", true), uint64_t{3 * 5});
  const uint64_t planned = whole.stat("total_bytes", true);
  o.kv_positions = 300;
  Engine less(random_model("ratio3"), o);
  REQUIRE(less.handle() != nullptr);
  CHECK_EQ(less.info().kv_positions, 300);
  CHECK_EQ(less.info().max_context, 256);
  CHECK_EQ(less.stat("kv_pages", true), static_cast<uint64_t>(kv_pages(300 + 3 * (16 + 63))));
  CHECK(less.stat("kv_bytes", true) < whole.stat("kv_bytes", true));

  const auto refused = [&](const EngineOptions& bad, tnd_status status, const char* text) {
    Engine e;
    std::string error;
    CHECK_EQ(e.open(random_model("ratio3"), bad, &error), status);
    CHECK_MSG(error.find(text) != std::string::npos, error);
    return error;
  };
  EngineOptions bad = o;
  bad.kv_positions = 255;
  refused(bad, TND_INVALID_ARGUMENT, "kv_positions is 255, must be 0 or at least max_context, 256");
  bad.kv_positions = -1;
  refused(bad, TND_INVALID_ARGUMENT, "kv_positions is -1");
  // A pool that was asked for and does not fit is refused; an automatic one is as large as fits, with the context
  // as asked.
  bad = o;
  bad.kv_positions = 3 * 256;
  bad.cap = planned - 1;
  const std::string error = refused(bad, TND_RESOURCE_EXHAUSTED, "kv_positions ");
  bad.kv_positions = std::atoi(error.c_str() + error.rfind("kv_positions ") + 13);
  CHECK(bad.kv_positions >= 256 && bad.kv_positions < 3 * 256);
  Engine advised(random_model("ratio3"), bad);
  REQUIRE(advised.handle() != nullptr);
  bad.kv_positions = 0;
  Engine reduced(random_model("ratio3"), bad);
  REQUIRE(reduced.handle() != nullptr);
  CHECK_EQ(reduced.info().max_context, 256);
  CHECK(reduced.info().kv_positions >= advised.info().kv_positions && reduced.info().kv_positions < 3 * 256);
  // The context of the model does not shrink with the number of sequences, the pool does.
  bad.max_context = 0;
  bad.max_sequences = 2;
  Engine two(random_model("ratio3"), bad);
  REQUIRE(two.handle() != nullptr);
  CHECK(two.info().kv_positions >= two.info().max_context);
}

// An automatic number of sequences is the largest whose sequences after the first cost, besides pages and with the
// features of 8 layers, at most a quarter of what one with a full context leaves of the cap.
TEST(as_many_sequences_as_leave_room) {
  const std::string tables = demo_model();
  for (const bool draft : {false, true}) {
    const std::string path = draft ? demo_draft() : random_model("ratio3");
    EngineOptions o;
    o.max_context = 256;
    o.max_tree_rows = 16;
    if (draft) o.tables = tables;
    const int32_t pending = draft ? 16 : o.max_tree_rows;  // the demonstration draft's block
    // What an engine with n sequences and a pool of so many positions takes in all, and besides pages; both with what a
    // target may take later for features: of the widest step, 512 rows, and of 32 kept rows of each sequence.
    struct Cost {
      uint64_t all = 0, besides = 0;
    };
    const auto cost = [&](int n, int positions) {
      EngineOptions fixed = o;
      fixed.max_sequences = n;
      fixed.kv_positions = positions;
      Engine e(path, fixed);
      Cost c;
      if (e.handle() == nullptr) return c;
      for (const char* name : {"weights_bytes", "state_bytes", "replay_bytes", "scratch_bytes"}) {
        c.besides += e.stat(name, true);
      }
      if (!draft) c.besides += uint64_t{8} * (512 + 32 * n) * static_cast<uint64_t>(e.info().hidden) * sizeof(float);
      c.all = c.besides + e.stat("kv_bytes", true);
      return c;
    };
    const auto automatic = [&](uint64_t cap) {
      EngineOptions free = o;
      free.max_sequences = 0;
      free.cap = cap;
      auto e = std::make_unique<Engine>(path, free);
      if (e->handle() == nullptr) report(__FILE__, __LINE__, "an automatic engine does not open");
      return e;
    };

    const auto plenty = automatic(0);
    CHECK_EQ(plenty->info().max_sequences, 32);
    CHECK_EQ(plenty->info().max_context, 256);
    CHECK_EQ(plenty->info().kv_positions, 4 * 256);
    CHECK_EQ(plenty->stat("kv_pages", true),
             static_cast<uint64_t>(std::min(kv_pages(4 * 256 + 32 * (pending + 63)), 32 * kv_pages(256 + pending))));

    // The largest number that costs no more than a quarter of what one leaves; the pool takes half of the rest.
    const Cost one = cost(1, 256);
    const int like = draft ? 20 : 5;
    const uint64_t cap = one.all + 4 * (cost(like, 256).besides - one.besides);
    REQUIRE(cap > one.all);
    for (uint64_t less = 0; less < 2; ++less) {
      const auto enough = [&](const Cost& c) {
        return c.besides - one.besides <= (cap - less - one.all) / 4 && c.all <= cap - less;
      };
      const auto e = automatic(cap - less);
      const int n = e->info().max_sequences;
      if (!draft) CHECK_EQ(n, like - static_cast<int>(less));
      CHECK(n > 1 && n < 32);
      const Cost chosen = cost(n, 256);
      CHECK(enough(chosen) && !enough(cost(n + 1, 256)));
      CHECK_EQ(e->info().max_context, 256);
      const int32_t positions = e->info().kv_positions;
      const uint64_t room = chosen.all + (cap - less - chosen.all) / 2;
      const int32_t most = std::min(n, 4) * 256;
      CHECK_MSG(positions >= 256 && positions <= most, std::to_string(positions) + " for " + std::to_string(n));
      CHECK(cost(n, positions).all <= room);
      CHECK_MSG(positions == most || cost(n, positions + 1).all > room, std::to_string(n) + " sequences");
      for (int i = 0; i < n; ++i) e->sequence();
      int32_t further = -1;
      CHECK_EQ(tnd_sequence_create(e->handle(), &further), TND_RESOURCE_EXHAUSTED);
    }

    // One sequence at least, and then all memory is its context's.
    o.max_context = 0;
    const auto least = automatic(one.all);
    CHECK_EQ(least->info().max_sequences, 1);
    CHECK(least->info().max_context >= 256);
    CHECK_EQ(least->info().kv_positions, least->info().max_context);
    // A pool that was asked for is not given up for sequences.
    o.max_context = 256;
    o.kv_positions = 4 * 256;
    const auto pool = automatic(cost(3, 4 * 256).all);
    CHECK_EQ(pool->info().kv_positions, 4 * 256);
    CHECK(pool->info().max_sequences >= 1 && pool->info().max_sequences <= 3);
  }
}

// An automatic context is the model's own, or the longest that fits beside the features of 8 layers that a target may
// keep later: it follows the types of keys and values and the number of sequences.
TEST(as_much_context_as_leaves_room) {
  EngineOptions o;
  o.max_context = 0;
  o.max_tree_rows = 16;
  Engine whole(demo_model(), o);
  REQUIRE(whole.handle() != nullptr);
  const int32_t asked = 2000, trained = whole.info().max_context;
  REQUIRE(trained > asked + kKvPage);
  for (const int sequences : {4, 1, 0}) {
    const int n = std::max(sequences, 1);
    const uint64_t features = uint64_t{8} * (512 + 32 * static_cast<uint64_t>(n)) *
                              static_cast<uint64_t>(whole.info().hidden) * sizeof(float);
    for (const int32_t type : {int32_t{TND_KV_DEFAULT}, 8, 2}) {  // F16, Q8_0, Q4_0
      EngineOptions fixed = o;
      fixed.kv_type = type;
      fixed.max_sequences = n;
      fixed.max_context = fixed.kv_positions = asked;
      Engine like(demo_model(), fixed);
      REQUIRE(like.handle() != nullptr);
      EngineOptions automatic = o;
      automatic.kv_type = type;
      automatic.max_sequences = sequences;
      automatic.cap = like.stat("total_bytes", true) + features;
      Engine e(demo_model(), automatic);
      REQUIRE(e.handle() != nullptr);
      const int32_t context = e.info().max_context;
      CHECK_MSG(context >= asked && context < asked + kKvPage, std::to_string(context));
      CHECK_EQ(e.info().kv_positions, context);
      CHECK_EQ(e.info().max_sequences, n);
      CHECK(e.stat("total_bytes", true) + features <= automatic.cap);
      std::vector<int32_t> layers;
      for (int32_t i = 0; i < std::min(8, e.info().n_layers); ++i) layers.push_back(i);
      CHECK_EQ(tnd_capture_set(e.handle(), layers.data(), static_cast<int32_t>(layers.size())), TND_OK);
      // The same memory holds more of a smaller type.
      automatic.kv_type = 2;
      Engine more(demo_model(), automatic);
      REQUIRE(more.handle() != nullptr);
      CHECK(type == 2 ? more.info().max_context == context : more.info().max_context > context + context / 4);
      CHECK(more.info().max_context <= trained);
      // Without room for features a context is still better than none.
      fixed.max_context = fixed.kv_positions = kKvPage;
      Engine small(demo_model(), fixed);
      REQUIRE(small.handle() != nullptr);
      automatic.kv_type = type;
      automatic.cap = small.stat("total_bytes", true);
      Engine least(demo_model(), automatic);
      REQUIRE(least.handle() != nullptr);
      CHECK(least.info().max_context >= kKvPage && least.info().max_context < 2 * kKvPage);
    }
  }
}

// A fork is a copy that shares what is complete; either side copies the page of its tip before it writes there.
TEST(forks_share_pages_and_copy_before_they_write) {
  for (const auto& [path, vocab] : models()) {
    Engine e(path);
    REQUIRE(e.handle() != nullptr);
    Rng rng(3);
    const std::vector<size_t> lengths = e.emulated() ? std::vector<size_t>{66} : std::vector<size_t>{100, 128, 1};
    for (const size_t n : lengths) {
      const bool whole = n % kKvPage == 0;
      const int64_t pages = kv_pages(static_cast<int64_t>(n));
      const std::vector<int32_t> text = random_tokens(&rng, n, vocab), left = random_tokens(&rng, 30, vocab),
                                 right = random_tokens(&rng, 40, vocab);
      const std::vector<float> want_left = cold(e, text, left), want_right = cold(e, text, right);
      for (const bool original_first : {true, false}) {
        const int32_t s = e.sequence();
        e.prefill(s, text);
        const std::vector<uint8_t> state = e.exported(s);
        const int32_t f = e.fork(s);
        CHECK_EQ(e.length(f), static_cast<int32_t>(n));
        CHECK(e.exported(f) == state);
        CHECK_EQ(used(e), pages);
        CHECK_EQ(shared(e), pages);
        const int32_t one = original_first ? s : f, two = original_first ? f : s;
        CHECK(same_bits(logits_after(e, one, left), want_left));
        CHECK_EQ(shared(e), pages - (whole ? 0 : 1));
        CHECK(e.exported(two) == state);
        CHECK(same_bits(logits_after(e, two, right), want_right));
        const int64_t after = used(e);
        e.ok(tnd_sequence_free(e.handle(), one));
        CHECK(used(e) < after && shared(e) == 0);
        CHECK(same_bits(logits_after(e, two, left), cold(e, joined(text, right), left)));
        e.ok(tnd_sequence_free(e.handle(), two));
        CHECK_EQ(used(e), 0);
      }
    }
    CHECK_EQ(tnd_sequence_fork(e.handle(), 0, nullptr), TND_INVALID_ARGUMENT);
    int32_t f = 0;
    CHECK_EQ(tnd_sequence_fork(e.handle(), 0, &f), TND_NOT_FOUND);
    for (int i = 0; i < 4; ++i) e.sequence();
    CHECK_EQ(tnd_sequence_fork(e.handle(), 0, &f), TND_RESOURCE_EXHAUSTED);
  }
}

// Rows that wait behind a shared tip move within a copy of its page; those who share it keep theirs.
TEST(pending_rows_move_in_a_page_of_their_own) {
  for (const auto& [path, vocab] : models()) {
    Engine e(path);
    REQUIRE(e.handle() != nullptr);
    Rng rng(5);
    // The tree crosses a page, or does not.
    const std::vector<size_t> lengths = e.emulated() ? std::vector<size_t>{60} : std::vector<size_t>{60, 70, 126};
    for (const size_t n : lengths) {
      const std::vector<int32_t> text = random_tokens(&rng, n, vocab), tree = random_tokens(&rng, 6, vocab),
                                 more = random_tokens(&rng, 9, vocab);
      const std::vector<int32_t> parents{-1, -1, 1, 1, 3, 4}, route{1, 3, 4, 5};
      std::vector<int32_t> taken = text;
      for (const int32_t row : route) taken.push_back(tree[static_cast<size_t>(row)]);
      const std::vector<float> want = cold(e, taken, more);
      const int32_t s = e.sequence();
      e.prefill(s, text);
      StepIn in;
      in.groups = {e.rows(s, tree, parents, 0)};
      e.run_ok(in);
      const std::vector<uint8_t> before = e.exported(s);
      const int32_t snapshot = e.snapshot(s), f = e.fork(s);
      in.groups = {e.rows(s, more, Engine::chain(more.size()), TND_WANT_LOGITS, route)};
      in.groups[0].flags = TND_GROUP_COMMIT;
      CHECK(same_bits(e.run_ok(in).logits, want));
      CHECK(e.exported(f) == before);
      const std::vector<uint8_t> after = e.exported(s);
      CHECK(same_bits(logits_after(e, f, more), cold(e, text, more)));
      CHECK(e.exported(s) == after);
      e.ok(tnd_snapshot_restore(e.handle(), snapshot, f));
      CHECK(e.exported(f) == before);
      e.ok(tnd_snapshot_free(e.handle(), snapshot));
      for (const int32_t x : {s, f}) e.ok(tnd_sequence_free(e.handle(), x));
      CHECK_EQ(used(e), 0);
    }
  }
}

// Pages that only snapshots hold leave the pool, once for all who hold them, and come back as they were.
TEST(demoted_pages_come_back) {
  for (const auto& [path, vocab] : models()) {
    Engine e(path);
    REQUIRE(e.handle() != nullptr);
    Rng rng(7);
    const std::vector<int32_t> text = random_tokens(&rng, 150, vocab), more = random_tokens(&rng, 20, vocab);
    const std::vector<float> want = cold(e, text, more);
    int32_t s = e.sequence();
    e.prefill(s, text);
    const std::vector<uint8_t> state = e.exported(s);
    const int32_t one = e.snapshot(s);
    CHECK_EQ(used(e), 3);
    e.ok(tnd_snapshot_demote(e.handle(), one));  // the sequence holds them all
    CHECK_EQ(used(e), 3);
    CHECK_EQ(e.stat("demoted_bytes", true), uint64_t{0});
    CHECK(same_bits(logits_after(e, s, more), want));
    const int32_t two = e.snapshot(s);
    CHECK_EQ(used(e), 4);
    e.ok(tnd_sequence_free(e.handle(), s));
    CHECK_EQ(used(e), 4);
    e.ok(tnd_snapshot_demote(e.handle(), one));
    CHECK_EQ(used(e), 1);
    const uint64_t bytes = e.stat("demoted_bytes", true);
    CHECK_EQ(bytes, 3 * static_cast<uint64_t>(kKvPage) * e.info().kv_bytes_per_token);
    e.ok(tnd_snapshot_demote(e.handle(), two));  // two of its pages went with the other
    CHECK_EQ(used(e), 0);
    CHECK_EQ(e.stat("demoted_bytes", true), bytes / 3 * 4);
    s = e.sequence();
    const int32_t t = e.sequence();
    e.ok(tnd_snapshot_restore(e.handle(), one, s));
    CHECK(e.exported(s) == state);
    CHECK_EQ(used(e), 3);
    e.ok(tnd_snapshot_restore(e.handle(), two, t));
    CHECK_EQ(used(e), 4);
    CHECK_EQ(shared(e), 4);
    CHECK(same_bits(logits_after(e, s, more), want));
    CHECK(same_bits(logits_after(e, t, more), cold(e, joined(text, more), more)));
    CHECK_EQ(e.stat("demoted_bytes", true), bytes / 3 * 4);
    for (const int32_t x : {s, t}) e.ok(tnd_sequence_free(e.handle(), x));
    for (const int32_t p : {one, two}) e.ok(tnd_snapshot_demote(e.handle(), p));
    CHECK_EQ(used(e), 0);
    // The only holder of a page writes to it: its host copy is another page's now.
    s = e.sequence();
    e.ok(tnd_snapshot_restore(e.handle(), one, s));
    for (const int32_t p : {one, two}) e.ok(tnd_snapshot_free(e.handle(), p));
    CHECK(same_bits(logits_after(e, s, more), want));
    CHECK_EQ(e.stat("demoted_bytes", true), bytes / 3 * 2);
    const std::vector<uint8_t> longer = e.exported(s);
    const int32_t three = e.snapshot(s);
    e.ok(tnd_sequence_free(e.handle(), s));
    e.ok(tnd_snapshot_demote(e.handle(), three));
    s = e.sequence();
    e.ok(tnd_snapshot_restore(e.handle(), three, s));
    CHECK(e.exported(s) == longer);
    e.ok(tnd_snapshot_free(e.handle(), three));
    e.ok(tnd_sequence_free(e.handle(), s));
    CHECK_EQ(used(e), 0);
    CHECK_EQ(e.stat("demoted_bytes", true), uint64_t{0});
    CHECK_EQ(tnd_snapshot_demote(e.handle(), three), TND_NOT_FOUND);
  }
}

// Host memory of snapshots has a cap of its own; copies of pages that sequences hold give way.
TEST(host_memory_has_a_cap) {
  Engine probe(random_model("ratio3"));
  REQUIRE(probe.handle() != nullptr);
  const uint64_t page = static_cast<uint64_t>(kKvPage) * probe.info().kv_bytes_per_token,
                 state = probe.info().state_bytes_per_sequence + 64 * sizeof(int32_t);
  EngineOptions o;
  o.host_cap = 2 * state + page;
  Engine e(random_model("ratio3"), o);
  REQUIRE(e.handle() != nullptr);
  Rng rng(9);
  const uint64_t total = e.stat("total_bytes", true);
  const std::vector<int32_t> text = random_tokens(&rng, 64, 512);
  int32_t a = e.sequence(), b = e.sequence();
  e.prefill(a, text);
  e.prefill(b, random_tokens(&rng, 64, 512));
  const std::vector<uint8_t> before = e.exported(a);
  const int32_t one = e.snapshot(a), two = e.snapshot(b);
  CHECK_EQ(e.stat("snapshot_bytes", true), 2 * state);
  CHECK_EQ(e.stat("total_bytes", true), total);  // not of the memory cap
  for (const int32_t s : {a, b}) e.ok(tnd_sequence_free(e.handle(), s));
  e.ok(tnd_snapshot_demote(e.handle(), one));
  CHECK_EQ(tnd_snapshot_demote(e.handle(), two), TND_RESOURCE_EXHAUSTED);
  CHECK_MSG(e.error().find("0 are left (host_cap_bytes)") != std::string::npos, e.error());
  CHECK_EQ(used(e), 1);
  a = e.sequence();
  e.ok(tnd_snapshot_restore(e.handle(), one, a));
  e.ok(tnd_snapshot_demote(e.handle(), two));  // in place of the copy of a's page
  CHECK_EQ(e.stat("demoted_bytes", true), page);
  CHECK_EQ(used(e), 1);
  CHECK(e.exported(a) == before);
  int32_t three = -1;
  CHECK_EQ(tnd_snapshot_create(e.handle(), a, &three), TND_RESOURCE_EXHAUSTED);
  CHECK_MSG(e.error().find("host_cap_bytes") != std::string::npos, e.error());
  e.ok(tnd_snapshot_free(e.handle(), two));
  e.ok(tnd_snapshot_create(e.handle(), a, &three));
}

// A step, a restored snapshot and an import for which there are no pages are refused and change nothing.
TEST(a_pool_without_pages_refuses) {
  EngineOptions o;
  o.max_context = 256;
  o.max_sequences = 4;
  o.max_tree_rows = 16;
  o.kv_positions = 256;
  for (const auto& [path, vocab] : models()) {
    Engine e(path, o);
    REQUIRE(e.handle() != nullptr);
    const int64_t all = static_cast<int64_t>(e.stat("kv_pages", true));
    REQUIRE(all == kv_pages(256 + 4 * (16 + 63)));  // 9
    Rng rng(11);
    const std::vector<int32_t> text = random_tokens(&rng, 256, vocab);
    const int32_t a = e.sequence(), b = e.sequence(), c = e.sequence();
    e.prefill(a, text);                                // 4 pages
    e.prefill(b, {text.begin(), text.begin() + 190});  // 3
    e.prefill(c, {text.begin(), text.begin() + 100});  // 2
    const int32_t snapshot = e.snapshot(b);
    StepIn in;
    in.groups = {e.rows(c, {1, 2, 3}, {-1, 0, 0}, 0)};
    e.run_ok(in);
    CHECK_EQ(used(e), all);
    std::vector<std::vector<uint8_t>> states;
    for (const int32_t s : {a, b, c}) states.push_back(e.exported(s));
    const auto unchanged = [&] {
      for (const int32_t s : {a, b, c}) CHECK(e.exported(s) == states[static_cast<size_t>(s)]);
      CHECK_EQ(used(e), all);
    };
    // The second group would copy the page of its tip, which a snapshot holds; the first commits and goes on.
    in.groups = {e.rows(c, {4}, {-1}, TND_WANT_LOGITS, {0, 2}), e.rows(b, {5}, {-1}, TND_WANT_LOGITS)};
    CHECK_EQ(e.run(in).status, TND_RESOURCE_EXHAUSTED);
    CHECK_MSG(e.error().find("groups[1].n_rows is 1: sequence 1 of 190 positions needs 1 more pages of 64 positions, 0 "
                             "are free (kv_positions)") != std::string::npos,
              e.error());
    unchanged();
    const std::vector<int32_t> tail = random_tokens(&rng, 40, vocab);
    in.groups = {e.rows(c, tail, Engine::chain(tail.size()), 0)};
    in.groups[0].flags = TND_GROUP_COMMIT;
    CHECK_EQ(e.run(in).status, TND_RESOURCE_EXHAUSTED);
    unchanged();
    // Pages that one group releases are available to another one in the same step, except for copies, which come first.
    e.ok(tnd_snapshot_free(e.handle(), snapshot));
    in.groups = {e.rows(b, {5}, {-1}, TND_WANT_LOGITS), e.rows(c, {4}, {-1}, TND_WANT_LOGITS, {0, 2})};
    const std::vector<float> got = e.run_ok(in).logits;
    const std::vector<int32_t> path_text = joined({text.begin(), text.begin() + 100}, {1, 3});
    e.ok(tnd_sequence_free(e.handle(), a));
    const std::vector<float> want =
        joined_logits(cold(e, {text.begin(), text.begin() + 190}, {5}), cold(e, path_text, {4}));
    CHECK(same_bits(got, want));
    // Import and restore.
    const int32_t p = e.snapshot(b);
    const std::vector<uint8_t> data = e.exported(b);
    e.ok(tnd_sequence_free(e.handle(), b));
    e.ok(tnd_snapshot_demote(e.handle(), p));
    const int32_t full = e.sequence(), empty = e.sequence();
    e.prefill(full, text);
    const int32_t held = e.snapshot(full);
    e.ok(tnd_sequence_truncate(e.handle(), full, 0));
    e.prefill(full, {text.begin(), text.begin() + 100});
    CHECK_EQ(used(e), all - 1);
    CHECK_EQ(tnd_snapshot_restore(e.handle(), p, empty), TND_RESOURCE_EXHAUSTED);
    CHECK_MSG(e.error().find("3 of its pages of 64 positions left the pool, 1 are free") != std::string::npos,
              e.error());
    CHECK_EQ(tnd_sequence_import(e.handle(), empty, data.data(), data.size()), TND_RESOURCE_EXHAUSTED);
    CHECK_MSG(e.error().find("190 positions need 3 pages of 64 positions, 1 are free") != std::string::npos, e.error());
    CHECK_EQ(e.length(empty), 0);
    CHECK_EQ(used(e), all - 1);
    // A sequence's own pages count as free for what takes its place.
    e.ok(tnd_snapshot_restore(e.handle(), p, full));
    CHECK(e.exported(full) == data);
    CHECK_EQ(tnd_sequence_import(e.handle(), full, data.data(), data.size()), TND_RESOURCE_EXHAUSTED);
    CHECK(e.exported(full) == data);  // pages that a snapshot holds, too, stay
    e.ok(tnd_snapshot_free(e.handle(), p));
    e.ok(tnd_sequence_import(e.handle(), full, data.data(), data.size()));
    CHECK(e.exported(full) == data);
    e.ok(tnd_snapshot_free(e.handle(), held));
    for (const int32_t s : {c, full, empty}) e.ok(tnd_sequence_free(e.handle(), s));
    CHECK_EQ(used(e), 0);
  }
}

// Sequences that share the page of their tip and write to it in one step need a copy less than they are: the last one
// keeps it.
TEST(siblings_in_one_step_need_one_copy_less) {
  EngineOptions o;
  o.max_context = 128;
  o.max_sequences = 3;
  o.max_tree_rows = 16;
  o.kv_positions = 128;
  Engine e(random_model("ratio3"), o);
  REQUIRE(e.handle() != nullptr);
  REQUIRE(e.stat("kv_pages", true) == 6);
  Rng rng(15);
  const std::vector<int32_t> text = random_tokens(&rng, 100, 512);
  const std::vector<float> want = joined_logits(cold(e, text, {1}), cold(e, text, {2}));
  const int32_t a = e.sequence(), c = e.sequence();
  e.prefill(a, text);
  e.prefill(c, random_tokens(&rng, 128, 512));
  const int32_t snapshot = e.snapshot(c);
  e.ok(tnd_sequence_truncate(e.handle(), c, 0));
  e.prefill(c, {3});
  const int32_t b = e.fork(a);
  CHECK_EQ(used(e), 5);
  StepIn in;
  in.groups = {e.rows(a, {1}, {-1}, TND_WANT_LOGITS), e.rows(b, {2}, {-1}, TND_WANT_LOGITS)};
  CHECK(same_bits(e.run_ok(in).logits, want));
  CHECK_EQ(used(e), 6);
  e.ok(tnd_snapshot_free(e.handle(), snapshot));
}

// Pieces of several draft sequences in one call keep the contract of each: those of more than kPromptRows rows that of
// prompts, the others that of decoding.
TEST(joint_appends_keep_the_contract_of_each_piece) {
  Engine e(demo_draft(), draft_options(4, 0));
  REQUIRE(e.handle() != nullptr);
  const tnd_info& info = e.info();
  Rng rng(17);
  std::vector<float> features(static_cast<size_t>(130 * info.feature_raw));
  for (float& f : features) f = rng.normal();
  // States after appends of the numbers of rows to sequences of their own, in one call or in several.
  const auto states = [&](std::vector<int32_t> rows, bool joint) {
    std::vector<tnd_feature_rows> pieces;
    std::vector<std::vector<uint8_t>> out;
    for (const int32_t n : rows) {
      pieces.push_back({0, 0, n, TND_FEATURE_RAW_F32, features.data()});
      e.ok(tnd_sequence_create(e.handle(), &pieces.back().sequence));
    }
    for (size_t i = 0; i < (joint ? 1 : pieces.size()); ++i) {
      e.ok(tnd_draft_append(e.handle(), &pieces[i], joint ? static_cast<int32_t>(pieces.size()) : 1));
    }
    for (const tnd_feature_rows& piece : pieces) {
      uint64_t bytes = 0;
      e.ok(tnd_sequence_export_size(e.handle(), piece.sequence, &bytes));
      out.emplace_back(bytes);
      e.ok(tnd_sequence_export(e.handle(), piece.sequence, out.back().data(), bytes));
      e.ok(tnd_sequence_free(e.handle(), piece.sequence));
    }
    return out;
  };
  const std::vector<int32_t> rows = {5, 130, 9, 65};
  CHECK(states(rows, true) == states(rows, false));
  // In the emulation of a large card the contracts differ: the same rows in pieces of both have other bits. Products of
  // Q8_0 have the same bits in both on cards with 99 KiB a block.
  if (std::strcmp(info.backend, "emu") == 0 && std::getenv("TND_EMU_SHARED") == nullptr) {
    int32_t s = 0;
    e.ok(tnd_sequence_create(e.handle(), &s));
    for (int32_t at = 0; at < 65; at += 13) {
      const tnd_feature_rows piece{s, at, 13, TND_FEATURE_RAW_F32,
                                   features.data() + static_cast<size_t>(at * info.feature_raw)};
      e.ok(tnd_draft_append(e.handle(), &piece, 1));
    }
    uint64_t bytes = 0;
    e.ok(tnd_sequence_export_size(e.handle(), s, &bytes));
    std::vector<uint8_t> decode(bytes);
    e.ok(tnd_sequence_export(e.handle(), s, decode.data(), bytes));
    CHECK(decode != states({65}, false)[0]);
  }
}

// Drafts share pages like targets: forks and snapshots propose the same, an append or a block of one of them changes no
// other, and a pool without pages refuses both.
TEST(drafts_share_pages) {
  Engine e(demo_draft(), draft_options(3, 256));
  REQUIRE(e.handle() != nullptr);
  const tnd_info& info = e.info();
  Rng rng(13);
  std::vector<float> features(static_cast<size_t>(256 * info.feature_raw));
  for (float& f : features) f = rng.normal();
  // In pieces that have the contract of decoding.
  const auto append = [&](int32_t s, int32_t from, int32_t n) -> tnd_status {
    for (const int32_t end = from + n; from < end; from += 50) {
      const float* rows = features.data() + static_cast<size_t>(from) * static_cast<size_t>(info.feature_raw);
      const tnd_feature_rows piece{s, from, std::min(50, end - from), TND_FEATURE_RAW_F32, rows};
      const tnd_status status = tnd_draft_append(e.handle(), &piece, 1);
      if (status != TND_OK) return status;
    }
    return TND_OK;
  };
  const size_t size = static_cast<size_t>((info.block_size - 1) * info.max_top_k);
  std::vector<int32_t> ids(size);
  std::vector<float> logprobs(size);
  const auto propose = [&](int32_t s, int32_t position) {
    const tnd_draft_request request{s, 7, position, info.block_size, 8, 1.0f};
    return tnd_draft_propose(e.handle(), &request, 1, ids.data(), logprobs.data());
  };
  const auto proposal = [&](int32_t s, int32_t position) {
    e.ok(propose(s, position));
    return logprobs;
  };
  int32_t a = -1, f = -1, c = -1, p = -1;
  e.ok(tnd_sequence_create(e.handle(), &a));
  e.ok(append(a, 0, 70));
  CHECK_EQ(used(e), 2);
  const std::vector<float> at70 = proposal(a, 70);
  CHECK_EQ(used(e), 2);
  e.ok(tnd_sequence_fork(e.handle(), a, &f));
  e.ok(tnd_snapshot_create(e.handle(), a, &p));
  CHECK_EQ(used(e), 2);
  CHECK(same_bits(proposal(f, 70), at70));  // the block is written to a copy
  CHECK_EQ(used(e), 3);
  e.ok(append(f, 70, 60));
  const std::vector<float> at130 = proposal(f, 130);
  CHECK(same_bits(proposal(a, 70), at70));
  e.ok(append(a, 70, 60));
  CHECK(same_bits(proposal(a, 130), at130));
  e.ok(tnd_sequence_free(e.handle(), f));
  e.ok(tnd_sequence_truncate(e.handle(), a, 0));
  CHECK_EQ(used(e), 2);
  e.ok(tnd_snapshot_demote(e.handle(), p));
  CHECK_EQ(used(e), 0);
  e.ok(tnd_snapshot_restore(e.handle(), p, a));
  CHECK(same_bits(proposal(a, 70), at70));
  e.ok(tnd_snapshot_free(e.handle(), p));
  // Eight pages: 2, 4 and 2.
  e.ok(tnd_sequence_create(e.handle(), &f));
  e.ok(append(f, 0, 250));
  e.ok(tnd_sequence_create(e.handle(), &c));
  e.ok(append(c, 0, 128));
  CHECK_EQ(used(e), 8);
  CHECK_EQ(propose(c, 128), TND_RESOURCE_EXHAUSTED);
  CHECK_MSG(e.error().find("request 0: 128 positions need 1 more pages of 64 positions, 0 are free") == 0, e.error());
  CHECK_EQ(append(c, 128, 1), TND_RESOURCE_EXHAUSTED);
  int32_t length = 0;
  e.ok(tnd_sequence_length(e.handle(), c, &length));
  CHECK_EQ(length, 128);
  CHECK(same_bits(proposal(a, 70), at70));
  e.ok(tnd_sequence_free(e.handle(), f));
  e.ok(append(c, 128, 2));
  CHECK(same_bits(proposal(c, 130), at130));
}

TEST_MAIN()
