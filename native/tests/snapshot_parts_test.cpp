// Snapshots piece by piece: what is read of one and written to another engine is the same state, bit for bit; damaged
// and foreign bytes are refused; sharing a base takes no pages twice.
#include <algorithm>
#include <cstring>

#include "core/crc32c.h"
#include "engine_util.h"

using namespace tnd::test;

namespace {

struct Piece {
  int32_t part;
  uint64_t offset;
  std::vector<uint8_t> data;
  uint32_t crc;
};

struct Parts {
  tnd_snapshot_layout layout{};
  std::vector<Piece> pieces;
};

tnd_snapshot_layout describe(const Engine& e, int32_t snapshot) {
  tnd_snapshot_layout l{};
  l.struct_size = sizeof l;
  e.ok(tnd_snapshot_describe(e.handle(), snapshot, &l));
  return l;
}

// Reads a snapshot from page `first` or its own first on, the state in uneven pieces, pages `blocks` blocks at a time.
Parts read(const Engine& e, int32_t snapshot, int32_t first = 0, uint64_t blocks = 1) {
  Parts all{describe(e, snapshot), {}};
  const auto take = [&](int32_t part, uint64_t size, uint64_t step) {
    for (uint64_t at = 0; at < size; at += step) {
      Piece p{part, at, std::vector<uint8_t>(std::min(step, size - at)), 0};
      e.ok(tnd_snapshot_read(e.handle(), snapshot, part, at, p.data.data(), p.data.size(), &p.crc));
      all.pieces.push_back(std::move(p));
    }
  };
  take(TND_PART_STATE, all.layout.state_bytes, 1001);
  for (int32_t page = std::max(first, all.layout.first_page); page < all.layout.pages; ++page) {
    take(page, all.layout.page_bytes, blocks * all.layout.block_bytes);
  }
  return all;
}

tnd_status write(const Engine& e, int32_t snapshot, const Piece& p) {
  return tnd_snapshot_write(e.handle(), snapshot, p.part, p.offset, p.data.data(), p.data.size(), p.crc);
}

int32_t begin(const Engine& e, const Parts& parts, int32_t base = -1, int32_t shared = 0) {
  int32_t p = -1;
  e.ok(tnd_snapshot_begin(e.handle(), &parts.layout, base, shared, &p));
  return p;
}

int32_t written(const Engine& e, const Parts& parts, int32_t base = -1, int32_t shared = 0) {
  const int32_t p = begin(e, parts, base, shared);
  for (const Piece& piece : parts.pieces) e.ok(write(e, p, piece));
  e.ok(tnd_snapshot_finish(e.handle(), p));
  return p;
}

uint64_t free_pages(const Engine& e) {
  return e.stat("kv_pages_free", true);
}

std::vector<float> logits(const Engine& e, int32_t s, const std::vector<int32_t>& tokens) {
  return e.prefill(s, tokens, 512, TND_WANT_LOGITS).logits;
}

}  // namespace

TEST(parts_are_the_state) {
  for (const int32_t type : {0, 1, 30, 8, 7, 6, 3, 42}) {
    EngineOptions o;
    o.kv_type = type;
    Engine e(random_model("ratio3"), o), other(random_model("ratio3"), o);
    REQUIRE(e.handle() != nullptr && other.handle() != nullptr);
    Rng rng(11);
    for (const size_t n : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{150}}) {
      const std::vector<int32_t> text = random_tokens(&rng, n, 512), more = random_tokens(&rng, 20, 512);
      const int32_t s = e.sequence(), t = other.sequence();
      e.prefill(s, text);
      const std::vector<uint8_t> state = e.exported(s);
      const int32_t p = e.snapshot(s);
      const Parts parts = read(e, p);
      CHECK_EQ(parts.layout.length, static_cast<int32_t>(n));
      const int32_t q = written(other, parts);
      other.ok(tnd_snapshot_restore(other.handle(), q, t));
      CHECK(other.exported(t) == state);
      CHECK(same_bits(logits(other, t, more), logits(e, s, more)));
      // What was written is read back the same, also from host memory.
      for (const bool demoted : {false, true}) {
        if (demoted) other.ok(tnd_sequence_free(other.handle(), t));
        if (demoted) other.ok(tnd_snapshot_demote(other.handle(), q));
        const Parts again = read(other, q, 0, 2);
        size_t bytes = 0;
        for (const Piece& x : again.pieces) bytes += x.data.size();
        std::vector<uint8_t> a, b;
        for (const Piece& x : parts.pieces) a.insert(a.end(), x.data.begin(), x.data.end());
        for (const Piece& x : again.pieces) b.insert(b.end(), x.data.begin(), x.data.end());
        CHECK(a == b);
      }
      e.ok(tnd_snapshot_free(e.handle(), p));
      other.ok(tnd_snapshot_free(other.handle(), q));
      e.ok(tnd_sequence_free(e.handle(), s));
      CHECK_EQ(free_pages(other), other.stat("kv_pages", true));
    }
  }
}

// A longer state shares the full pages of a shorter one of the same text; both outlive each other.
TEST(parts_share_a_base) {
  Engine e(random_model("ratio3"));
  REQUIRE(e.handle() != nullptr);
  Rng rng(12);
  const std::vector<int32_t> text = random_tokens(&rng, 100, 512), next = random_tokens(&rng, 90, 512);
  const int32_t s = e.sequence();
  e.prefill(s, text);
  const int32_t base = e.snapshot(s);
  e.prefill(s, next);
  const std::vector<uint8_t> state = e.exported(s);
  const int32_t p = e.snapshot(s);
  const Parts parts = read(e, p, 1);
  e.ok(tnd_snapshot_free(e.handle(), p));
  e.ok(tnd_sequence_free(e.handle(), s));
  const uint64_t before = free_pages(e);
  const int32_t q = written(e, parts, base, 1);
  CHECK_EQ(before - free_pages(e), uint64_t{2});
  int32_t none = 0;
  CHECK_EQ(tnd_snapshot_begin(e.handle(), &parts.layout, base, 2, &none), TND_INVALID_ARGUMENT);
  CHECK_EQ(tnd_snapshot_begin(e.handle(), &parts.layout, base, -1, &none), TND_INVALID_ARGUMENT);
  CHECK_EQ(tnd_snapshot_begin(e.handle(), &parts.layout, 77, 1, &none), TND_NOT_FOUND);
  e.ok(tnd_snapshot_free(e.handle(), base));
  const int32_t t = e.sequence();
  e.ok(tnd_snapshot_restore(e.handle(), q, t));
  CHECK(e.exported(t) == state);
}

// With a window a state has the pages that later rows read; the others are no parts. A base shares what it has.
TEST(parts_of_a_window) {
  EngineOptions o;
  o.attention_window = 128;
  Engine e(random_model("ratio3"), o), other(random_model("ratio3"), o);
  REQUIRE(e.handle() != nullptr && other.handle() != nullptr);
  Rng rng(15);
  const std::vector<int32_t> more = random_tokens(&rng, 20, 512);
  const int32_t s = e.sequence();
  e.prefill(s, random_tokens(&rng, 300, 512), 64);
  const int32_t base = e.snapshot(s);  // pages 2 to 4
  e.prefill(s, random_tokens(&rng, 40, 512), 40);
  const int32_t longer = e.snapshot(s);  // 3 to 5
  e.prefill(s, random_tokens(&rng, 80, 512), 40);
  const int32_t longest = e.snapshot(s);  // 4 to 6
  const Parts parts = read(e, base);
  const int32_t first[] = {2, 3, 4};
  for (int i = 0; i < 3; ++i) {
    const int32_t p = i == 0 ? base : i == 1 ? longer : longest;
    const tnd_snapshot_layout l = describe(e, p);
    CHECK_EQ(l.first_page, first[i]);
    CHECK_EQ(l.pages, first[i] + 3);
    std::vector<uint8_t> block(l.block_bytes);
    for (const int32_t page : {0, l.first_page - 1, l.pages}) {
      CHECK_EQ(tnd_snapshot_read(e.handle(), p, page, 0, block.data(), block.size(), nullptr), TND_INVALID_ARGUMENT);
      CHECK_MSG(e.error().find("part") != std::string::npos, e.error());
    }
  }
  const auto same = [&](int32_t snapshot, int32_t theirs) {
    const int32_t a = e.sequence(), b = other.sequence();
    e.ok(tnd_snapshot_restore(e.handle(), snapshot, a));
    other.ok(tnd_snapshot_restore(other.handle(), theirs, b));
    CHECK(e.exported(a) == other.exported(b));
    CHECK(same_bits(logits(e, a, more), logits(other, b, more)));
    e.ok(tnd_sequence_free(e.handle(), a));
    other.ok(tnd_sequence_free(other.handle(), b));
  };
  const uint64_t all = free_pages(other);
  const int32_t their_base = written(other, parts);
  CHECK_EQ(all - free_pages(other), uint64_t{3});
  same(base, their_base);
  const int32_t their_longer = written(other, read(e, longer, 4), their_base, 4);  // page 3 is the base's
  CHECK_EQ(all - free_pages(other), uint64_t{5});
  same(longer, their_longer);
  const int32_t their_longest = written(other, read(e, longest, 1), their_base, 1);  // of page 0 nothing is kept
  CHECK_EQ(all - free_pages(other), uint64_t{8});
  same(longest, their_longest);
  int32_t none = 0;
  CHECK_EQ(tnd_snapshot_begin(other.handle(), &parts.layout, their_longest, 4, &none), TND_INVALID_ARGUMENT);
  CHECK_MSG(other.error().find("shared_pages") != std::string::npos, other.error());
  for (const int32_t wrong : {0, 1, 3, -1}) {
    tnd_snapshot_layout l = parts.layout;
    l.first_page = wrong;
    CHECK_EQ(tnd_snapshot_begin(other.handle(), &l, -1, 0, &none), TND_INVALID_ARGUMENT);
    CHECK_MSG(other.error().find("first_page") != std::string::npos, other.error());
  }
  for (const int32_t p : {their_base, their_longer, their_longest}) other.ok(tnd_snapshot_free(other.handle(), p));
  CHECK_EQ(free_pages(other), all);
}

TEST(bad_parts_are_refused) {
  Engine e(random_model("ratio3"));
  REQUIRE(e.handle() != nullptr);
  Rng rng(13);
  const int32_t s = e.sequence();
  e.prefill(s, random_tokens(&rng, 70, 512));
  const std::vector<uint8_t> state = e.exported(s);
  const int32_t p = e.snapshot(s);
  const Parts parts = read(e, p);
  const uint64_t before = free_pages(e);
  int32_t q = -1;
  const auto refused = [&](const tnd_snapshot_layout& l, tnd_status status) {
    CHECK_EQ(tnd_snapshot_begin(e.handle(), &l, -1, 0, &q), status);
    CHECK_EQ(free_pages(e), before);
  };
  tnd_snapshot_layout l = parts.layout;
  l.identity ^= 1;
  refused(l, TND_FAILED_PRECONDITION);
  l = parts.layout;
  l.kv_type_v = 8;
  refused(l, TND_FAILED_PRECONDITION);
  for (const auto field :
       {&tnd_snapshot_layout::state_bytes, &tnd_snapshot_layout::page_bytes, &tnd_snapshot_layout::block_bytes}) {
    l = parts.layout;
    l.*field += 1;
    refused(l, TND_INVALID_ARGUMENT);
  }
  l = parts.layout;
  l.pages += 1;
  refused(l, TND_INVALID_ARGUMENT);
  l = parts.layout;
  l.first_page = 1;
  refused(l, TND_INVALID_ARGUMENT);
  l = parts.layout;
  l.length = -1;
  refused(l, TND_INVALID_ARGUMENT);
  l.length = 1 << 30;
  refused(l, TND_RESOURCE_EXHAUSTED);

  // Order, ranges and checksums of writes; an unfinished snapshot is of no use but to be written and freed.
  q = begin(e, parts);
  CHECK_EQ(write(e, q, parts.pieces[1]), TND_FAILED_PRECONDITION);
  for (size_t i = 0; i < parts.pieces.size(); ++i) {
    Piece bad = parts.pieces[i];
    bad.data[bad.data.size() / 2] ^= 4;
    CHECK_EQ(write(e, q, bad), TND_DATA_LOSS);
    CHECK_EQ(tnd_snapshot_finish(e.handle(), q), TND_FAILED_PRECONDITION);
    e.ok(write(e, q, parts.pieces[i]));
    CHECK(write(e, q, parts.pieces[i]) != TND_OK);
  }
  CHECK_EQ(tnd_snapshot_restore(e.handle(), q, s), TND_FAILED_PRECONDITION);
  CHECK_EQ(tnd_snapshot_demote(e.handle(), q), TND_FAILED_PRECONDITION);
  tnd_snapshot_layout out{};
  out.struct_size = sizeof out;
  CHECK_EQ(tnd_snapshot_describe(e.handle(), q, &out), TND_FAILED_PRECONDITION);
  e.ok(tnd_snapshot_finish(e.handle(), q));
  CHECK_EQ(tnd_snapshot_finish(e.handle(), q), TND_FAILED_PRECONDITION);
  CHECK_EQ(write(e, q, parts.pieces.back()), TND_FAILED_PRECONDITION);
  e.ok(tnd_snapshot_restore(e.handle(), q, s));
  CHECK(e.exported(s) == state);
  e.ok(tnd_snapshot_free(e.handle(), q));

  uint8_t byte = 0;
  uint32_t crc = 0;
  const auto unread = [&](int32_t part, uint64_t offset, uint64_t bytes) {
    CHECK_EQ(tnd_snapshot_read(e.handle(), p, part, offset, &byte, bytes, &crc), TND_INVALID_ARGUMENT);
  };
  unread(-2, 0, 1);
  unread(2, 0, parts.layout.block_bytes);
  unread(0, 1, parts.layout.block_bytes);
  unread(0, 0, 1);
  unread(0, parts.layout.page_bytes, parts.layout.block_bytes);
  unread(TND_PART_STATE, parts.layout.state_bytes, 1);
  unread(TND_PART_STATE, 0, 0);
  CHECK_EQ(tnd_snapshot_read(e.handle(), 99, 0, 0, &byte, 1, &crc), TND_NOT_FOUND);

  // A token that the model does not have.
  Parts foreign = parts;
  const int32_t token = 512;
  std::memcpy(foreign.pieces[0].data.data() + 4, &token, sizeof token);
  e.ok(tnd_snapshot_free(e.handle(), p));
  q = begin(e, foreign);
  foreign.pieces[0].crc = tnd::crc32c(foreign.pieces[0].data.data(), foreign.pieces[0].data.size());
  for (const Piece& piece : foreign.pieces) e.ok(write(e, q, piece));
  CHECK_EQ(tnd_snapshot_finish(e.handle(), q), TND_DATA_LOSS);
  CHECK_EQ(tnd_snapshot_restore(e.handle(), q, s), TND_FAILED_PRECONDITION);
  e.ok(tnd_snapshot_free(e.handle(), q));
}

// A pool or host memory without room refuses at once and changes nothing.
TEST(parts_need_room) {
  EngineOptions o;
  o.max_context = 256;
  o.max_sequences = 1;
  o.max_tree_rows = 16;
  Engine e(random_model("ratio3"), o);
  REQUIRE(e.handle() != nullptr);
  Rng rng(14);
  const int32_t s = e.sequence();
  e.prefill(s, random_tokens(&rng, 190, 512));
  const Parts parts = read(e, e.snapshot(s));
  const uint64_t before = free_pages(e);
  REQUIRE(before < static_cast<uint64_t>(parts.layout.pages));
  int32_t q = -1;
  CHECK_EQ(tnd_snapshot_begin(e.handle(), &parts.layout, -1, 0, &q), TND_RESOURCE_EXHAUSTED);
  CHECK_EQ(free_pages(e), before);
  e.ok(tnd_sequence_free(e.handle(), s));
  o.host_cap = parts.layout.state_bytes - 1;
  Engine small(random_model("ratio3"), o);
  REQUIRE(small.handle() != nullptr);
  CHECK_EQ(tnd_snapshot_begin(small.handle(), &parts.layout, -1, 0, &q), TND_RESOURCE_EXHAUSTED);
  CHECK_EQ(free_pages(small), small.stat("kv_pages", true));
}

TEST_MAIN()
