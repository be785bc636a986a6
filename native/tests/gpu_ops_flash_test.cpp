// Flash attention: close to double precision, and batch invariant to the bit: a row gives the same alone and among 64,
// in a tree and after its path was committed, in chunks of any size, with every block shape, with all families of
// matrix instructions, wherever its pages lie: every run has them in another order. Over keys and values in blocks,
// flash and exact attention have the bits of a cache of halves.
#include <algorithm>
#include <cmath>

#include "core/dtype.h"
#include "core/fp.h"
#include "gpu/attention/attention_flash.cuh"
#include "gpu/attention/kv.h"
#include "gpu_ops_util.h"
#include "harness.h"
#include "kv_rows.h"

using namespace tnd;
using namespace tnd::gpu;
using tnd::test::Rng;
using namespace tnd::gpu_test;

namespace {

// Shared memory: 96, 32, 16 queries a block; up to 64 rows of dim 256 take the form
// of attention_wide.cuh with the first.
constexpr int kWide = 227 << 10, kNarrow = 99 << 10, kSmall = 86 << 10;

struct Shape {
  int dim, kv_heads, q_heads;
};

// One sequence's cache, filled by position.
struct Cache {
  KvShape kv;
  std::vector<uint16_t> k, v;

  Cache(const Shape& s, int capacity) {
    kv = {1, 1, s.kv_heads, s.dim, kv_pages(capacity) * kKvPage};
    k.resize(static_cast<size_t>(s.kv_heads) * static_cast<size_t>(kv.capacity * s.dim));
    v = k;
  }
  // The same with its pages in other places of a larger pool, whose other pages hold large numbers.
  Cache scattered(const std::vector<int32_t>& table, int pages) const {
    Cache c({kv.dim, kv.heads, kv.heads}, pages * kKvPage);
    c.k.assign(c.k.size(), f32_to_f16(60000.0f));
    c.v = c.k;
    const size_t page = static_cast<size_t>(kKvPage * kv.dim);
    for (int h = 0; h < kv.heads; ++h) {
      for (int i = 0; i < kv.capacity / kKvPage; ++i) {
        const int to = table[static_cast<size_t>(i)] * kKvPage;
        std::copy_n(&k[at(h, i * kKvPage)], page, &c.k[c.at(h, to)]);
        std::copy_n(&v[at(h, i * kKvPage)], page, &c.v[c.at(h, to)]);
      }
    }
    return c;
  }
  void fill(Rng* rng, int slots) {
    for (int h = 0; h < kv.heads; ++h) {
      for (int64_t i = 0; i < int64_t{slots} * kv.dim; ++i) {
        k[at(h, 0) + static_cast<size_t>(i)] = f32_to_f16(rng->uniform(-1.7f, 1.7f));
        v[at(h, 0) + static_cast<size_t>(i)] = f32_to_f16(rng->uniform(-1.7f, 1.7f));
      }
    }
  }
  size_t at(int head, int slot) const {
    return (static_cast<size_t>(head) * static_cast<size_t>(kv.capacity) + static_cast<size_t>(slot)) *
           static_cast<size_t>(kv.dim);
  }
  void move(int from, int to) {
    for (int h = 0; h < kv.heads; ++h) {
      std::copy_n(&k[at(h, from)], kv.dim, &k[at(h, to)]);
      std::copy_n(&v[at(h, from)], kv.dim, &v[at(h, to)]);
    }
  }
};

float scale_of(const Shape& s) {
  return 1.0f / std::sqrt(static_cast<float>(s.dim));
}

#if defined(TND_GPU_EMU)
// The slots of a table's positions from `first` on.
void add_slots(const KvShape& kv, const KvCache& cache, const std::vector<int32_t>& table, int first,
               std::vector<emu::Bytes>* out) {
  for (const bool keys : {true, false}) {
    const KvType type = static_cast<KvType>(keys ? kv.k_type : kv.v_type);
    for (int h = 0; h < kv.heads; ++h) {
      for (int at = first; at < static_cast<int>(table.size()) * kKvPage; at = (at / kKvPage + 1) * kKvPage) {
        const KvRow row = kv_row(type, kv, keys ? cache.k : cache.v, h, kv_slot(table.data(), at));
        const uint64_t slots = static_cast<uint64_t>(kKvPage - at % kKvPage);
        out->push_back({row.codes, slots * static_cast<uint64_t>(kv_code_bytes(type, kv.dim))});
        const uint64_t words = static_cast<uint64_t>(kv.dim / kKvBlock * kv_head_words(type));
        if (kv_quantised(type)) out->push_back({row.heads, slots * words * 2});
      }
    }
  }
}
#endif

// Runs a step of rows over a pool. Positions from fresh[sequence] on may be copied behind the wait for earlier work
// only (where sequences have the same pages: from the last of them).
template <class Unit>
Status attend(Device& dev, const Shape& s, const KvShape& kv, const KvCache& cache, PlanBuilder& rows,
              const std::vector<float>& q, int shared, AttentionMode mode,
              [[maybe_unused]] const std::vector<int>& fresh, std::vector<float>* out, bool many_keys = false,
              bool codes = true) {
  const std::vector<AttentionGroupPlan> groups = rows.groups();
  AttentionStep step;
  step.plan({groups, rows.rows.data(), nullptr, nullptr}, rows.count());
  Buffer<int32_t> pages(dev, step.pages);
  Buffer<AttentionRow> plans(dev, step.rows);
  Buffer<int32_t> tails(dev, step.tails.empty() ? std::vector<int32_t>{0} : step.tails);
  Buffer<AttentionTile> bulk(dev, step.bulk), tail(dev, step.tail);
  const uint64_t bytes = attention_scratch_bytes(AttentionMode::kFlash, kv, s.q_heads, rows.count());
  Buffer<uint8_t> scratch(dev, bytes);
  Buffer<float> dq(dev, q);
  std::vector<uint16_t> rounded;
  for (const float x : q) rounded.push_back(f32_to_f16(x));
  Buffer<uint16_t> halves(dev, rounded);
  AttentionArgs a;
  a.mode = mode;
  a.kv = kv, a.q_heads = s.q_heads, a.scale = scale_of(s), a.rows = rows.count();
  a.cache = cache, a.row_plans = plans.data, a.tails = tails.data, a.pages = pages.data;
  a.bulk = bulk.data, a.n_bulk = static_cast<int>(step.bulk.size()), a.bulk_rows = step.bulk_rows;
  a.tail = tail.data, a.n_tail = static_cast<int>(step.tail.size()), a.tail_rows = step.tail_rows;
  a.q = dq.data, a.out = dq.data;
  if (mode == AttentionMode::kFlash) a.q = halves.data;
  a.scratch = scratch.data, a.scratch_bytes = bytes, a.shared_per_block = shared;
  DeviceInfo info;
  CHECK_OK(device_info(0, &info));
  a.wgmma = shared == kWide && has_attention_wgmma(info);
  a.processors = info.processors;
  a.many_keys = many_keys, a.codes = codes;
  if (mode == AttentionMode::kFlash) {
    launch_attention_flash<Unit>(dev.stream, a);
  } else {
    launch_attention(dev.stream, a);
  }
#if defined(TND_GPU_EMU)
  std::vector<emu::Bytes> bytes_behind;
  for (size_t g = 0; g < rows.tables.size(); ++g) {
    int first = fresh[g];
    for (size_t i = 0; i < fresh.size(); ++i) {
      first = rows.tables[i] == rows.tables[g] ? std::max(first, fresh[i]) : first;
    }
    add_slots(kv, cache, rows.tables[g], first, &bytes_behind);
  }
  emu::set_fresh(bytes_behind);
#endif
  const Status status = dev.stream.sync();
#if defined(TND_GPU_EMU)
  emu::set_fresh({});
#endif
  if (status.ok()) *out = dq.down(dev);
  return status;
}

// A pool for sequences of so many positions, and where their pages lie in it.
struct Pool {
  KvShape kv;
  std::vector<std::vector<int32_t>> tables;

  Pool(const KvShape& shape, int positions, int sequences) : kv(shape) {
    static Rng rng(99);
    const int pages = sequences * (kv_pages(positions) + 1);  // with some of nobody's
    kv.capacity = pages * kKvPage;
    tables = random_tables(&rng, pages, sequences);
    for (std::vector<int32_t>& t : tables) t.resize(static_cast<size_t>(kv_pages(positions)));
  }
  std::vector<std::vector<int32_t>> same(const PlanBuilder& rows) const {  // all groups are the first sequence
    return std::vector<std::vector<int32_t>>(rows.firsts.size(), tables[0]);
  }
};

// Attention of groups that are one sequence.
template <class Unit>
std::vector<float> run_on(Device& dev, const Shape& s, const Pool& pool, const KvCache& cache, const PlanBuilder& rows,
                          const std::vector<float>& q, int shared, AttentionMode mode = AttentionMode::kFlash) {
  PlanBuilder plan = rows.scattered(pool.same(rows));
  std::vector<float> out(q.size());
  CHECK_OK(attend<Unit>(dev, s, pool.kv, cache, plan, q, shared, mode, rows.olds, &out));
  if (mode == AttentionMode::kFlash && std::is_same_v<Unit, MmaUnit>) {
    struct Form {
      bool many_keys, codes;
    };
    for (const Form form : {Form{false, false}, Form{true, false}, Form{true, true}}) {
      if ((form.many_keys && shared != kWide) || (form.many_keys == form.codes && !in_blocks(pool.kv))) continue;
      std::vector<float> other(q.size());
      CHECK_OK(
          attend<Unit>(dev, s, pool.kv, cache, plan, q, shared, mode, rows.olds, &other, form.many_keys, form.codes));
      CHECK(same(other, out));
    }
  }
  return out;
}

template <class Unit = MmaUnit>
std::vector<float> run(const Shape& s, const Cache& cache, const PlanBuilder& rows, const std::vector<float>& q,
                       int shared = kWide, AttentionMode mode = AttentionMode::kFlash) {
  Device dev;
  const Pool pool(cache.kv, cache.kv.capacity, 1);
  const Cache in_pool = cache.scattered(pool.tables[0], pool.kv.capacity / kKvPage);
  Buffer<uint16_t> k(dev, in_pool.k), v(dev, in_pool.v);
  return run_on<Unit>(dev, s, pool, {k.data, v.data}, rows, q, shared, mode);
}

// Pools on the device, full of finite nonsense.
struct DevicePool {
  Buffer<uint8_t> k, v;
  DevicePool(Device& dev, const KvShape& kv) : k(dev, nonsense(kv, true)), v(dev, nonsense(kv, false)) {}
  KvCache cache() const { return {k.data, v.data}; }
  static std::vector<uint8_t> nonsense(const KvShape& kv, bool keys) {
    return std::vector<uint8_t>(kv_cache_bytes(kv, keys), 0x55);
  }
};

// Random rows in blocks, and the cache of halves that holds their values.
struct Blocks {
  KvShape kv;
  std::vector<uint8_t> rows;  // portable
  int slots;
  Cache halves;

  Blocks(const Shape& s, KvType k_type, KvType v_type, int n, Rng* rng) : slots(n), halves(s, n) {
    kv = halves.kv;
    kv.k_type = static_cast<int32_t>(k_type), kv.v_type = static_cast<int32_t>(v_type);
    std::vector<float> x(static_cast<size_t>(s.dim));
    for (int slot = 0; slot < n; ++slot) {
      for (const bool keys : {true, false}) {
        for (int h = 0; h < s.kv_heads; ++h) {
          for (float& f : x) f = rng->uniform(-1.7f, 1.7f);
          if (slot % 7 == 3) std::fill_n(x.begin() + 32, 32, 0.0f);
          if (slot % 11 == 5) std::fill(x.begin(), x.end(), 0.0f);
          const KvType type = keys ? k_type : v_type;
          const size_t at = rows.size();
          rows.resize(at + static_cast<size_t>(kv_stored_bytes(type, s.dim)));
          test::encode_kv(type, x.data(), &rows[at], s.dim);
          std::vector<float> decoded(x.size());
          test::decode_kv(type, &rows[at], decoded.data(), s.dim);
          uint16_t* to = &(keys ? halves.k : halves.v)[halves.at(h, slot)];
          for (size_t d = 0; d < x.size(); ++d) to[d] = f32_to_f16(decoded[d]);
        }
      }
    }
  }
  // Attention over the blocks on the device.
  template <class Unit>
  std::vector<float> attend(const Shape& s, const PlanBuilder& plan, const std::vector<float>& q, int shared,
                            AttentionMode mode = AttentionMode::kFlash) const {
    Device dev;
    const Pool pool(kv, slots, 1);
    const DevicePool memory(dev, pool.kv);
    import(dev, pool.kv, memory.cache(), pool.tables[0]);
    return run_on<Unit>(dev, s, pool, memory.cache(), plan, q, shared, mode);
  }
  void import(Device& dev, const KvShape& shape, const KvCache& cache, const std::vector<int32_t>& table) const {
    Buffer<uint8_t> portable(dev, rows);
    Buffer<int32_t> pages(dev, table);
    launch_kv_import(dev.stream, {shape, cache, pages.data, 0, slots, portable.data});
    CHECK_OK(dev.stream.sync());
  }
};

std::vector<float> part(const std::vector<float>& x, int row, int64_t width) {
  return {x.begin() + row * width, x.begin() + (row + 1) * width};
}

double worst_error(const Shape& s, const Cache& c, const PlanBuilder& rows, const std::vector<float>& q,
                   const std::vector<float>& got) {
  double worst = 0;
  const int g = s.q_heads / s.kv_heads;
  for (int r = 0; r < rows.count(); ++r) {
    const AttentionRowPlan& p = rows.rows[static_cast<size_t>(r)];
    for (int h = 0; h < s.q_heads; ++h) {
      std::vector<double> weights;
      std::vector<int> slots;
      double m = -1e300, l = 0;
      const float* query = &q[static_cast<size_t>((r * s.q_heads + h) * s.dim)];
      for (int j = p.first; j < p.past + p.n_tail; ++j) {
        slots.push_back(j < p.past ? j : p.tail[j - p.past]);
        double dot = 0;
        for (int d = 0; d < s.dim; ++d) {
          dot += double{f16_to_f32(f32_to_f16(query[d]))} *
                 f16_to_f32(c.k[c.at(h / g, slots.back()) + static_cast<size_t>(d)]);
        }
        weights.push_back(dot * scale_of(s));
        m = std::max(m, weights.back());
      }
      for (double& w : weights) w = std::exp(w - m), l += w;
      for (int d = 0; d < s.dim; ++d) {
        double o = 0;
        for (size_t j = 0; j < slots.size(); ++j) {
          o += weights[j] / l * f16_to_f32(c.v[c.at(h / g, slots[j]) + static_cast<size_t>(d)]);
        }
        worst = std::max(worst, std::fabs(o - got[static_cast<size_t>((r * s.q_heads + h) * s.dim + d)]));
      }
    }
  }
  return worst;
}

// A tree on `past` positions: all rows together with every block shape,
// and every row alone after its path was committed.
template <class Unit>
void check_tree(const Shape& s, int past, const std::vector<int32_t>& parents, Rng* rng) {
  const std::string what = "dim " + std::to_string(s.dim) + " past " + std::to_string(past);
  const int n = static_cast<int>(parents.size());
  const int64_t width = int64_t{s.q_heads} * s.dim;
  Cache cache(s, (past + n + 15) / 16 * 16);
  cache.fill(rng, past + n);
  PlanBuilder tree;
  tree.tree(past, parents);
  const std::vector<float> q = random_floats(rng, n * width, 1.5f);
  const std::vector<float> got = run<Unit>(s, cache, tree, q);
  CHECK_MSG(worst_error(s, cache, tree, q, got) < 2e-3, what);
  for (const int shared : {kNarrow, kSmall}) CHECK_MSG(same(run<Unit>(s, cache, tree, q, shared), got), what);
  for (int r = 0; r < n; r += std::max(1, n / 5)) {
    const AttentionRowPlan& p = tree.rows[static_cast<size_t>(r)];
    Cache line = cache;
    for (int i = 0; i < p.n_tail; ++i) line.move(p.tail[i], past + i);
    PlanBuilder alone;
    alone.append(past + p.n_tail - 1, 1);
    CHECK_MSG(same(run<Unit>(s, line, alone, part(q, r, width)), part(got, r, width)),
              what + " row " + std::to_string(r));
  }
}

}  // namespace

TEST(trees_equal_their_committed_paths) {
  Rng rng(1);
  // Around the borders: of a tile, of the first segment before a tail, of segment sizes (multiples of 2048 positions
  // from 4096 on).
  for (const int past : {0, 57, 120, 700, 2042}) {
    check_tree<MmaUnit>({64, 1, 3}, past, random_tree(&rng, 23), &rng);
  }
  check_tree<MmaUnit>({256, 1, 6}, 200, random_tree(&rng, 23), &rng);
  check_tree<MmaUnit>({128, 2, 8}, 450, random_tree(&rng, 16), &rng);
  check_tree<MmaUnit>({128, 1, 1}, 4090, random_tree(&rng, 9), &rng);
}

#if defined(TND_GPU_EMU)
template <class MAP>
void check_wmma_trees() {
  Rng rng(2);
  check_tree<WmmaUnit<MAP>>({256, 1, 6}, 250, random_tree(&rng, 9), &rng);
  check_tree<WmmaUnit<MAP>>({128, 1, 4}, 2045, random_tree(&rng, 9), &rng);
  check_tree<WmmaUnit<MAP>>({64, 2, 6}, 130, random_tree(&rng, 23), &rng);
}
TEST(trees_equal_their_committed_paths_on_wmma) {
  check_wmma_trees<Wmma11>();
  check_wmma_trees<Wmma12>();
}
#endif

// A path deeper than the tail: its early tiles are gathered too.
TEST(deep_trees_equal_their_committed_paths) {
  Rng rng(3);
  std::vector<int32_t> parents = chain_of(90);
  parents.insert(parents.begin(), -1);  // a sibling first, so that no slot of the path is its position
  for (size_t i = 1; i < parents.size(); ++i) parents[i] = i == 1 ? -1 : static_cast<int32_t>(i) - 1;
  check_tree<MmaUnit>({64, 1, 2}, 77, parents, &rng);
}

// Rows of a prompt in chunks of any size (more than 64 rows: segments one after the other) equal single rows.
TEST(chunks_equal_single_rows) {
  Rng rng(4);
  for (const Shape& s : {Shape{64, 1, 4}, Shape{128, 1, 2}, Shape{256, 1, 6}}) {
    const int64_t width = int64_t{s.q_heads} * s.dim;
    for (const int start : {0, s.dim == 64 ? 1990 : 250}) {
      const int n = 80;
      Cache cache(s, (start + n + 15) / 16 * 16);
      cache.fill(&rng, start + n);
      PlanBuilder all;
      all.append(start, n);
      const std::vector<float> q = random_floats(&rng, n * width, 1.5f);
      const std::vector<float> got = run(s, cache, all, q);
      CHECK(worst_error(s, cache, all, q, got) < 2e-3);
      CHECK(same(run(s, cache, all, q, kNarrow), got));
      for (const int chunk : {1, 7, 64}) {
        for (int at = 0; at < n; at += chunk * (chunk == 1 ? 23 : 3)) {
          const int rows = std::min(chunk, n - at);
          PlanBuilder some;
          some.append(start + at, rows);
          const std::vector<float> mine(q.begin() + at * width, q.begin() + (at + rows) * width);
          const std::vector<float> want(got.begin() + at * width, got.begin() + (at + rows) * width);
          CHECK_MSG(same(run(s, cache, some, mine), want),
                    std::to_string(start) + " chunk " + std::to_string(chunk) + " at " + std::to_string(at));
        }
      }
    }
  }
}

// More than 64 rows go by units of one segment on Hopper (attention_group.cuh): rows with segments of different
// sizes, windows that begin inside of segments, several sequences, trees, blocks that are partly empty. Other shapes of
// blocks give the same bits.
TEST(prompts_by_units_equal_other_forms) {
  Rng rng(14);
  struct Case {
    const char* name;
    Shape shape;
    PlanBuilder rows;
    int positions;
  };
  std::vector<Case> cases;
  const auto add = [&](const char* name, const Shape& shape, int positions) -> PlanBuilder& {
    cases.push_back({name, shape, PlanBuilder(), positions});
    return cases.back().rows;
  };
  add("sizes of segments", {64, 1, 2}, 4200).append(4060, 90);
  add("one unit and a bit", {128, 1, 3}, 400).append(290, 70);
  add("three warpgroups, the last one empty", {64, 2, 2}, 700).append(600, 66);
  add("heads of 256", {256, 1, 2}, 500).append(330, 75);
  PlanBuilder& windows = add("windows", {64, 1, 4}, 1300);
  windows.block(1100, 40, 700);
  windows.block(900, 30, 130);
  windows.append(200, 20);
  PlanBuilder& trees = add("trees", {64, 1, 6}, 1200);
  for (const int past : {60, 500, 1100}) trees.tree(past, random_tree(&rng, 23));
  for (Case& c : cases) {
    Cache cache(c.shape, c.positions);
    cache.fill(&rng, c.positions);
    const std::vector<float> q = random_floats(&rng, int64_t{c.rows.count()} * c.shape.q_heads * c.shape.dim, 1.5f);
    const std::vector<float> got = run(c.shape, cache, c.rows, q);
    CHECK_MSG(worst_error(c.shape, cache, c.rows, q, got) < 2e-3, c.name);
    CHECK_MSG(same(run(c.shape, cache, c.rows, q, kNarrow), got), c.name);
  }
}

// Blocks with windows (drafts), several sequences in one step, rows that see nothing.
TEST(blocks_windows_and_groups) {
  Rng rng(5);
  const Shape s{128, 1, 4};
  const int64_t width = int64_t{s.q_heads} * s.dim;
  Cache cache(s, 640);
  cache.fill(&rng, 640);
  PlanBuilder mixed;
  mixed.block(500, 16, 1 << 20);
  mixed.block(300, 16, 130);
  mixed.block(90, 8, 20);
  mixed.append(600, 3);
  const std::vector<float> q = random_floats(&rng, mixed.count() * width, 1.5f);
  const std::vector<float> got = run(s, cache, mixed, q);
  CHECK(worst_error(s, cache, mixed, q, got) < 2e-3);
  for (size_t g = 0; g < mixed.firsts.size(); ++g) {
    for (int r = mixed.firsts[g]; r < mixed.firsts[g] + mixed.counts[g]; r += 5) {
      PlanBuilder one;
      one.open(1);
      one.rows.push_back(mixed.rows[static_cast<size_t>(r)]);
      CHECK_MSG(same(run(s, cache, one, part(q, r, width)), part(got, r, width)), "row " + std::to_string(r));
    }
  }
}

// Blocks: plain rows, trees with tails, a long path of gathered tiles, windows, chunks; every block shape and the exact
// kernel; every type that is no half, beside halves, beside another one and alone.
template <class Unit>
void check_blocks(const Shape& s, KvType k_type, KvType v_type, const PlanBuilder& plan, int slots, Rng* rng) {
  const Blocks blocks(s, k_type, v_type, slots, rng);
  const std::vector<float> q = random_floats(rng, plan.count() * int64_t{s.q_heads} * s.dim, 1.5f);
  const std::string what = "dim " + std::to_string(s.dim) + " types " + std::to_string(static_cast<int>(k_type)) + "," +
                           std::to_string(static_cast<int>(v_type));
  const std::vector<float> want = run<Unit>(s, blocks.halves, plan, q);
  for (const int shared : {kWide, kNarrow, kSmall}) {
    CHECK_MSG(same(blocks.attend<Unit>(s, plan, q, shared), want), what + " shared " + std::to_string(shared));
  }
  std::vector<float> exact = run<Unit>(s, blocks.halves, plan, q, kWide, AttentionMode::kExact);
  // By launch_attention, which rotates back.
  if (kv_rotated(v_type)) tq3_unrotate(exact.data(), static_cast<int64_t>(exact.size()));
  CHECK_MSG(same(blocks.attend<Unit>(s, plan, q, kWide, AttentionMode::kExact), exact), what + " exact");
}

TEST(blocks_have_the_bits_of_halves) {
  Rng rng(6);
  constexpr KvType kF16 = KvType::kF16, kQ8 = KvType::kQ8_0, kQ4 = KvType::kQ4_0, kBF16 = KvType::kBF16,
                   kQ41 = KvType::kQ4_1, kQ50 = KvType::kQ5_0, kQ51 = KvType::kQ5_1, kTQ3 = KvType::kTQ3_0;
  PlanBuilder tree, plain, chunk, few, windows;
  tree.tree(150, random_tree(&rng, 19));
  check_blocks<MmaUnit>({256, 1, 6}, kQ8, kQ8, tree, 169, &rng);
  check_blocks<MmaUnit>({128, 2, 4}, kQ4, kQ4, tree, 169, &rng);
  check_blocks<MmaUnit>({128, 1, 6}, kQ4, kQ4, tree, 169, &rng);
  check_blocks<MmaUnit>({256, 1, 6}, kQ8, kQ4, tree, 169, &rng);
  plain.append(300, 1);
  check_blocks<MmaUnit>({128, 1, 3}, kQ8, kQ8, plain, 301, &rng);
  check_blocks<MmaUnit>({256, 1, 4}, kQ4, kQ8, plain, 301, &rng);
  check_blocks<MmaUnit>({128, 1, 2}, kQ8, kF16, plain, 301, &rng);
  chunk.append(60, 70);
  check_blocks<MmaUnit>({64, 1, 4}, kF16, kQ4, chunk, 130, &rng);
  check_blocks<MmaUnit>({64, 1, 2}, kQ8, kQ4, chunk, 130, &rng);
  few.append(140, 20);
  check_blocks<MmaUnit>({256, 1, 6}, kQ8, kQ4, few, 160, &rng);
  windows.block(200, 16, 130);
  windows.block(90, 8, 20);
  check_blocks<MmaUnit>({128, 1, 4}, kQ4, kF16, windows, 216, &rng);
  check_blocks<MmaUnit>({128, 1, 4}, kF16, kQ8, windows, 216, &rng);
  check_blocks<MmaUnit>({256, 1, 6}, kQ51, kQ51, tree, 169, &rng);
  check_blocks<MmaUnit>({128, 2, 4}, kQ50, kQ41, tree, 169, &rng);
  check_blocks<MmaUnit>({256, 1, 4}, kBF16, kBF16, tree, 169, &rng);
  check_blocks<MmaUnit>({256, 1, 4}, kQ41, kQ50, plain, 301, &rng);
  check_blocks<MmaUnit>({128, 1, 2}, kBF16, kF16, plain, 301, &rng);
  check_blocks<MmaUnit>({64, 1, 4}, kQ50, kBF16, chunk, 130, &rng);
  check_blocks<MmaUnit>({64, 1, 2}, kQ51, kQ8, chunk, 130, &rng);
  check_blocks<MmaUnit>({256, 1, 6}, kQ8, kBF16, few, 160, &rng);
  check_blocks<MmaUnit>({128, 1, 4}, kF16, kQ41, windows, 216, &rng);
  check_blocks<MmaUnit>({128, 1, 4}, kBF16, kQ51, windows, 216, &rng);
  check_blocks<MmaUnit>({256, 1, 6}, kTQ3, kTQ3, tree, 169, &rng);
  check_blocks<MmaUnit>({128, 2, 4}, kTQ3, kQ8, plain, 301, &rng);
  check_blocks<MmaUnit>({128, 1, 4}, kBF16, kTQ3, chunk, 130, &rng);
  check_blocks<MmaUnit>({256, 1, 6}, kQ51, kTQ3, few, 160, &rng);
  check_blocks<MmaUnit>({128, 1, 4}, kTQ3, kF16, windows, 216, &rng);
#if defined(TND_GPU_EMU)
  const auto check_wmma = [&]<class MAP>(MAP) {
    check_blocks<WmmaUnit<MAP>>({256, 1, 6}, kQ8, kQ4, tree, 169, &rng);
    check_blocks<WmmaUnit<MAP>>({128, 1, 2}, kQ4, kF16, windows, 216, &rng);
    check_blocks<WmmaUnit<MAP>>({64, 1, 4}, kF16, kQ8, chunk, 130, &rng);
    check_blocks<WmmaUnit<MAP>>({128, 1, 4}, kQ51, kBF16, tree, 169, &rng);
    check_blocks<WmmaUnit<MAP>>({64, 1, 4}, kQ50, kQ41, chunk, 130, &rng);
    check_blocks<WmmaUnit<MAP>>({256, 1, 4}, kTQ3, kTQ3, tree, 169, &rng);
  };
  check_wmma(Wmma11());
  check_wmma(Wmma12());
#endif
}

#if defined(TND_GPU_EMU)
// AMD's blocks of 96 queries, which stay in registers, against blocks of 16: over halves, and over keys and values of
// these types.
template <class Unit>
void check_held(const Shape& s, KvType k_type, KvType v_type, const PlanBuilder& plan, int slots, Rng* rng) {
  constexpr int kLds = 64 << 10;
  const auto least = [](bool blocks, const KvShape& kv) {
    const auto bytes = [&]<int DIM>(std::integral_constant<int, DIM>) {
      return static_cast<int>(blocks ? flash_shared_bytes<Unit, DIM, 1, 1, 1, true>(kv)
                                     : flash_shared_bytes<Unit, DIM, 1, 1, 1, false>(kv));
    };
    return kv.dim == 256   ? bytes(std::integral_constant<int, 256>())
           : kv.dim == 128 ? bytes(std::integral_constant<int, 128>())
                           : bytes(std::integral_constant<int, 64>());
  };
  const Blocks blocks(s, k_type, v_type, slots, rng);
  const std::vector<float> q = random_floats(rng, plan.count() * int64_t{s.q_heads} * s.dim, 1.5f);
  const std::string what = "dim " + std::to_string(s.dim) + " rows " + std::to_string(plan.count()) + " types " +
                           std::to_string(static_cast<int>(k_type)) + "," + std::to_string(static_cast<int>(v_type));
  const std::vector<float> want = run<Unit>(s, blocks.halves, plan, q, least(false, blocks.kv));
  CHECK_MSG(same(run<Unit>(s, blocks.halves, plan, q, kLds), want), what + " halves");
  if (!in_blocks(blocks.kv)) return;
  CHECK_MSG(same(blocks.attend<Unit>(s, plan, q, least(true, blocks.kv)), want), what + " by 16");
  CHECK_MSG(same(blocks.attend<Unit>(s, plan, q, kLds), want), what);
}

TEST(queries_in_registers_have_the_bits_of_others) {
  Rng rng(15);
  constexpr KvType kF16 = KvType::kF16, kQ8 = KvType::kQ8_0, kQ4 = KvType::kQ4_0;
  const auto check = [&]<class MAP>(MAP) {
    using Unit = WmmaUnit<MAP>;
    const KvType types[][2] = {{kQ8, kQ8}, {kQ4, kQ4}, {kF16, kQ8}, {kQ4, kF16}, {kQ8, kQ4}};
    size_t at = 0;
    for (const int rows : {1, 2, 6, 7, 9, 16, 17, 23, 32}) {
      PlanBuilder tree, chain;
      tree.tree(700, random_tree(&rng, rows));  // five segments
      chain.append(700, rows);
      const auto& [k_type, v_type] = types[at++ % std::size(types)];
      check_held<Unit>({256, 1, 6}, k_type, v_type, tree, 700 + rows, &rng);
      check_held<Unit>({128, 1, 8}, v_type, k_type, chain, 700 + rows, &rng);
      check_held<Unit>({64, 2, 8}, k_type, v_type, tree, 700 + rows, &rng);
    }
    // Sequences of other lengths in one step: other sizes of segments, windows, a path of gathered tiles.
    PlanBuilder mixed;
    mixed.tree(4100, random_tree(&rng, 19));
    mixed.append(2040, 16);
    mixed.block(500, 12, 130);
    mixed.tree(20, random_tree(&rng, 9));
    check_held<Unit>({64, 1, 6}, kF16, kF16, mixed, 4200, &rng);
    check_held<Unit>({64, 1, 6}, kQ8, kQ4, mixed, 4200, &rng);
    check_held<Unit>({128, 1, 6}, kQ4, kQ8, mixed, 4200, &rng);
  };
  check(Wmma11());
  check(Wmma12());
}
#endif

// What a plan says of old keys, for chains, trees, drafts with a window and several sequences: no row writes below it,
// and no row has a key below it in another slot.
TEST(old_keys_are_below_the_rows_of_a_step) {
  Rng rng(7);
  for (const int past : {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 300}) {
    PlanBuilder one, chain, tree, block, many;
    one.append(past, 1);
    chain.append(past, 16);
    tree.tree(past, random_tree(&rng, 23));
    block.block(past, 16, 40);
    many.append(past, 3);
    many.tree(past / 2, random_tree(&rng, 9));
    many.block(past + 7, 5, 20);
    many.tree(2 * past, chain_of(6));
    for (PlanBuilder* b : {&one, &chain, &tree, &block, &many}) {
      for (const int too_many : {0, 5}) {  // the plan takes back what a caller says too much
        const std::vector<int> olds = b->olds;
        std::vector<AttentionGroupPlan> groups = b->groups();
        for (AttentionGroupPlan& g : groups) g.old += too_many;
        AttentionStep step;
        step.plan({groups, b->rows.data(), nullptr, nullptr}, b->count());
        for (const std::vector<AttentionTile>* tiles : {&step.bulk, &step.tail}) {
          int rows = 0;
          for (const AttentionTile& t : *tiles) {
            const size_t g = static_cast<size_t>(t.pages / PlanBuilder::kPages);
            CHECK_EQ(t.old, olds[g]);
            rows += t.rows;
            for (int r = b->firsts[g]; r < b->firsts[g] + b->counts[g]; ++r) {
              const AttentionRowPlan& row = b->rows[static_cast<size_t>(r)];
              CHECK(row.slot >= t.old && row.past >= t.old);
            }
          }
          CHECK_EQ(rows, b->count());
        }
      }
    }
  }
}

#if defined(TND_GPU_EMU)
// Several sequences with pages of their own, contexts around the borders of tiles: run_on has the emulation report
// copies that are too early, and a sequence's bits are those of a step of its own in which nothing is old.
template <class Unit>
void check_contexts(const Shape& s, KvType k_type, KvType v_type, int shared, Rng* rng) {
  const int64_t width = int64_t{s.q_heads} * s.dim;
  const int pasts[] = {0, 1, 15, 16, 17, 63, 64, 65, 127, 129, 200};
  for (size_t at = 0; at < std::size(pasts); ++at) {
    const int past = pasts[at], other = pasts[(at + 4) % std::size(pasts)];
    PlanBuilder plain, mixed;
    plain.append(past, 1);
    mixed.append(past, 16);
    mixed.tree(other, random_tree(rng, 13));
    mixed.block(past, 8, 20);
    for (const PlanBuilder* plan : {&plain, &mixed}) {
      const std::vector<float> q = random_floats(rng, plan->count() * width, 1.5f);
      const Blocks blocks(s, k_type, v_type, 224, rng);
      const size_t groups = plan->firsts.size();
      Device dev;
      const Pool pool(blocks.kv, blocks.slots, static_cast<int>(groups));
      const DevicePool memory(dev, pool.kv);
      for (const std::vector<int32_t>& table : pool.tables) blocks.import(dev, pool.kv, memory.cache(), table);
      std::vector<float> got, want;
      PlanBuilder with_old = plan->scattered(pool.tables), fresh = plan->scattered(pool.tables);
      CHECK_OK(
          attend<Unit>(dev, s, pool.kv, memory.cache(), with_old, q, shared, AttentionMode::kFlash, plan->olds, &got));
      fresh.olds.assign(groups, 0);
      CHECK_OK(
          attend<Unit>(dev, s, pool.kv, memory.cache(), fresh, q, shared, AttentionMode::kFlash, fresh.olds, &want));
      CHECK_MSG(same(got, want), "past " + std::to_string(past) + " shared " + std::to_string(shared));
    }
  }
}

TEST(what_is_copied_before_the_wait_is_old) {
  Rng rng(8);
  constexpr KvType kF16 = KvType::kF16, kQ8 = KvType::kQ8_0, kQ4 = KvType::kQ4_0;
  for (const int shared : {kWide, kNarrow, kSmall}) {
    check_contexts<MmaUnit>({64, 1, 4}, kF16, kF16, shared, &rng);
    check_contexts<MmaUnit>({64, 2, 4}, kQ8, kQ4, shared, &rng);
    check_contexts<MmaUnit>({64, 1, 4}, KvType::kQ5_1, KvType::kBF16, shared, &rng);
    check_contexts<MmaUnit>({128, 1, 4}, KvType::kTQ3_0, KvType::kTQ3_0, shared, &rng);
  }
  check_contexts<MmaUnit>({256, 1, 6}, kF16, kF16, kSmall, &rng);
  check_contexts<WmmaUnit<Wmma11>>({64, 1, 4}, kF16, kF16, kWide, &rng);
  check_contexts<WmmaUnit<Wmma12>>({64, 1, 4}, kF16, kF16, kWide, &rng);
}

// The first tile of a tail is asked for before the wait as soon as all its positions are old, in every form of kernel:
// were it not so, the emulation would have nothing to report.
TEST(old_tiles_of_tails_are_copied_before_the_wait) {
  Rng rng(9);
  const auto check = [&](const Shape& s, KvType type, const PlanBuilder& rows, int shared) {
    const Blocks blocks(s, type, type, 224, &rng);
    const std::vector<float> q = random_floats(&rng, rows.count() * int64_t{s.q_heads} * s.dim, 1.5f);
    for (const int old : {128, 191, 192}) {  // the tail begins at 128
      Device dev;
      const Pool pool(blocks.kv, blocks.slots, 1);
      const DevicePool memory(dev, pool.kv);
      blocks.import(dev, pool.kv, memory.cache(), pool.tables[0]);
      PlanBuilder plan = rows.scattered(pool.tables);
      plan.olds = {old};
      std::vector<float> out;
      const Status status =
          attend<MmaUnit>(dev, s, pool.kv, memory.cache(), plan, q, shared, AttentionMode::kFlash, {128}, &out);
      const bool early = status.message().find("before wait_for_previous") != std::string::npos;
      CHECK_MSG(early == (old == 192) && status.ok() == !early, "rows " + std::to_string(rows.count()) + " shared " +
                                                                    std::to_string(shared) + " old " +
                                                                    std::to_string(old) + " " + status.message());
    }
  };
  PlanBuilder plain, chain, tree;
  plain.append(200, 1);
  chain.append(195, 16);
  tree.tree(195, random_tree(&rng, 19));
  for (const PlanBuilder* rows : {&plain, &chain, &tree}) {
    for (const int shared : {kWide, kNarrow, kSmall}) {
      check({256, 1, 6}, KvType::kF16, *rows, shared);
      check({128, 1, 4}, KvType::kQ8_0, *rows, shared);
    }
  }
}
#endif

TEST_MAIN()
