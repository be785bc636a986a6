// Attention: closeness to a double-precision oracle, and equality of bits between the scalar contract, AVX2 and
// AVX-512, thread counts, batch splits, the same tree as pending rows or as committed chain, and any order of pages.
#include "cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/fp.h"
#include "cpu/cpu_features.h"
#include "harness.h"
#include "kv_rows.h"

using namespace tnd;
using namespace tnd::cpu;

namespace {

struct AlignedFree {
  void operator()(void* p) const { std::free(p); }
};
using Aligned = std::unique_ptr<void, AlignedFree>;

Aligned aligned(size_t bytes) {
  const size_t rounded = (bytes + 63) & ~size_t{63};
  void* p = std::aligned_alloc(64, rounded == 0 ? 64 : rounded);
  std::memset(p, 0, rounded);
  return Aligned(p);
}

// A sequence that has a whole pool, with its rows kept for the oracle. Slots are counted by position; `pages` maps them
// to the pool.
struct Cache {
  KvLayout layout;
  Aligned k, v;
  std::vector<int32_t> pages;
  std::vector<std::vector<float>> k_rows, v_rows;  // by slot

  Cache(int dim, int kv_heads, int capacity, KvType type) : Cache(dim, kv_heads, capacity, type, type) {}
  Cache(int dim, int kv_heads, int capacity, KvType k_type, KvType v_type) {
    layout = {k_type, v_type, dim, kv_heads, kv_pages(capacity) * kKvPage};
    for (int32_t page = 0; page < kv_pages(capacity); page++) pages.push_back(page);
    k = aligned(layout.k_bytes());
    v = aligned(layout.v_bytes());
    k_rows.resize(capacity);
    v_rows.resize(capacity);
  }
  void put(int slot, const std::vector<float>& kr, const std::vector<float>& vr) {
    kv_store(layout, k.get(), v.get(), place(slot), kr.data(), vr.data());
    k_rows[slot] = stored(layout.k_type, kr);
    v_rows[slot] = stored(layout.v_type, vr);
  }
  // What the type keeps of a row, by the encoders and decoders of weights.
  static std::vector<float> stored(KvType type, const std::vector<float>& x) {
    const auto n = static_cast<int64_t>(x.size());
    std::vector<uint8_t> blocks(static_cast<size_t>(kv_stored_bytes(type, n)));
    std::vector<float> y(x.size());
    test::encode_kv(type, x.data(), blocks.data(), n);
    test::decode_kv(type, blocks.data(), y.data(), n);
    return y;
  }
  std::vector<uint8_t> row(int slot) const {
    std::vector<uint8_t> out(layout.row_bytes());
    kv_export(layout, k.get(), v.get(), place(slot), out.data());
    return out;
  }
  int32_t place(int slot) const { return kv_slot(pages.data(), slot); }
  // The same sequence in a larger pool: its pages in random places, the others full of rows that must have no effect.
  Cache scattered(test::Rng& rng) const {
    const int mine = static_cast<int>(pages.size()), all = 2 * mine + 1;
    Cache c(layout.dim, layout.kv_heads, all * kKvPage, layout.k_type, layout.v_type);
    std::memset(c.k.get(), 0xFF, c.layout.k_bytes());  // NaN in every type
    std::memset(c.v.get(), 0xFF, c.layout.v_bytes());
    for (int i = 0; i < all; i++) {
      std::swap(c.pages[i], c.pages[rng.below(static_cast<uint64_t>(i) + 1)]);
    }
    for (int slot = 0; slot < mine * kKvPage; slot++) {
      kv_import(c.layout, c.k.get(), c.v.get(), c.place(slot), row(slot).data());
    }
    return c;
  }
  AttentionGroup group(const AttentionRow* rows, int n) const { return {k.get(), v.get(), pages.data(), rows, n}; }
};

std::vector<float> random_row(test::Rng& rng, int n, float scale) {
  std::vector<float> x(n);
  for (float& f : x) f = scale * rng.normal();
  return x;
}

struct Runner {
  AttentionShape shape;
  ThreadPool pool;
  Aligned scratch, partial;
  AttentionScratch s;
  Runner(const AttentionShape& sh, int threads, bool with_partial) : shape(sh), pool(threads) {
    scratch = aligned(attention_scratch_bytes(shape) * threads);
    s.threads = scratch.get();
    if (with_partial) {
      s.partial_bytes = attention_partial_bytes(shape, shape.kv.capacity);
      partial = aligned(s.partial_bytes);
      s.partial = partial.get();
    }
  }
  void run(const std::vector<AttentionGroup>& groups) {
    attention(pool, shape, groups.data(), static_cast<int>(groups.size()), s);
  }
};

void oracle(const Cache& c, const AttentionShape& shape, const AttentionRow& row, std::vector<double>* out) {
  const int dim = c.layout.dim, g = shape.q_heads / c.layout.kv_heads;
  out->assign(size_t(shape.q_heads) * dim, 0.0);
  for (int h = 0; h < shape.q_heads; h++) {
    std::vector<double> s;
    std::vector<int> slots;
    for (int j = row.first; j < row.past + row.n_tail; j++) slots.push_back(j < row.past ? j : row.tail[j - row.past]);
    double m = -1e300, l = 0;
    for (int slot : slots) {
      double dot = 0;
      for (int d = 0; d < dim; d++) dot += double(row.q[h * dim + d]) * c.k_rows[slot][h / g * dim + d];
      s.push_back(dot * shape.scale);
      m = std::max(m, s.back());
    }
    for (double& x : s) x = std::exp(x - m), l += x;
    for (size_t i = 0; i < slots.size(); i++) {
      for (int d = 0; d < dim; d++) (*out)[h * dim + d] += s[i] / l * c.v_rows[slots[i]][h / g * dim + d];
    }
  }
}

const Isa kLevels[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512};

struct Shape {
  int dim, kv_heads, q_heads;
  KvType type;
};
// All types of the table.
#define TND_ROW(name, id, codes, words, block) KvType::k##name,
const KvType kTypes[] = {TND_KV_TYPES(TND_ROW, TND_ROW)};
#undef TND_ROW
const Shape kShapes[] = {
    {256, 1, 4, KvType::kF16},  {256, 2, 12, KvType::kF16},  {128, 2, 4, KvType::kF32},  {128, 2, 16, KvType::kF16},
    {64, 1, 1, KvType::kF32},   {80, 2, 6, KvType::kF16},    {112, 1, 7, KvType::kF32},  {256, 1, 6, KvType::kQ8_0},
    {96, 2, 4, KvType::kQ4_0},  {80, 2, 4, KvType::kBF16},   {128, 1, 8, KvType::kQ5_1}, {64, 2, 4, KvType::kQ5_0},
    {256, 1, 4, KvType::kQ4_1}, {256, 1, 6, KvType::kTQ3_0},
};

}  // namespace

// Prefill chunk, plain rows, a window and rows that see nothing, against double precision.
TEST(close_to_double_precision) {
  test::Rng rng(1);
  for (const Shape& sh : kShapes) {
    const int n = 700;
    Cache c(sh.dim, sh.kv_heads, 704, sh.type);
    for (int i = 0; i < n; i++) {
      c.put(i, random_row(rng, sh.kv_heads * sh.dim, 1.0f), random_row(rng, sh.kv_heads * sh.dim, 1.0f));
    }
    AttentionShape shape{c.layout, sh.q_heads, 1.0f / std::sqrt(float(sh.dim))};
    Runner run(shape, 2, true);
    for (int start : {0, 5, 250, 600}) {
      const int rows = 37;
      std::vector<std::vector<float>> q, out;
      std::vector<AttentionRow> r(rows);
      for (int i = 0; i < rows; i++) {
        q.push_back(random_row(rng, sh.q_heads * sh.dim, 1.0f));
        out.emplace_back(q[0].size());
      }
      for (int i = 0; i < rows; i++) {
        r[i].q = q[i].data();
        r[i].out = out[i].data();
        r[i].past = start + i + 1;
        r[i].first = i % 3 == 2 ? std::max(0, r[i].past - 300) : 0;
      }
      run.run({c.group(r.data(), rows)});
      for (int i = 0; i < rows; i++) {
        std::vector<double> want;
        oracle(c, shape, r[i], &want);
        double err = 0;
        for (size_t d = 0; d < want.size(); d++) err = std::max(err, std::fabs(want[d] - out[i][d]));
        CHECK_MSG(err < 3e-6, std::to_string(err));
      }
    }
  }
}

// Every instruction set, thread count and partial buffer gives the bits of attention_reference.
TEST(same_bits_everywhere) {
  test::Rng rng(2);
  for (const Shape& sh : kShapes) {
    const int n = 900;
    Cache c(sh.dim, sh.kv_heads, 1024, sh.type);
    for (int i = 0; i < n; i++) {
      c.put(i, random_row(rng, sh.kv_heads * sh.dim, 1.0f), random_row(rng, sh.kv_heads * sh.dim, 1.0f));
    }
    AttentionShape shape{c.layout, sh.q_heads, 1.0f / std::sqrt(float(sh.dim))};
    // A mixed batch: prefill rows, tree rows with scattered tails (crossing a segment), a window that cuts the tail.
    std::vector<AttentionRow> r;
    std::vector<std::vector<int32_t>> tails;
    for (int i = 0; i < 5; i++) r.push_back({nullptr, nullptr, 0, 254 + i, 0, nullptr});
    for (int i = 0; i < 9; i++) {
      std::vector<int32_t> t;
      for (int j = 0; j <= i * 3; j++) t.push_back(600 + (j * 7 + i * 13) % 300);
      tails.push_back(t);
    }
    for (int i = 0; i < 9; i++) r.push_back({nullptr, nullptr, 0, 505, int(tails[i].size()), tails[i].data()});
    for (int i = 3; i < 9; i++) r.push_back({nullptr, nullptr, 509, 505, int(tails[i].size()), tails[i].data()});
    r.push_back({nullptr, nullptr, 0, 0, 3, tails[4].data()});
    r.push_back({nullptr, nullptr, 10, 10, 0, nullptr});  // sees nothing
    r.push_back({nullptr, nullptr, 300, 512, 20, tails[8].data()});
    const int rows = int(r.size());
    std::vector<std::vector<float>> q, want;
    for (int i = 0; i < rows; i++) {
      q.push_back(random_row(rng, sh.q_heads * sh.dim, 1.5f));
      want.emplace_back(q[0].size());
      r[i].q = q[i].data();
      r[i].out = want[i].data();
    }
    for (int i = 0; i < rows; i++) attention_reference(shape, c.group(r.data(), rows), i);
    for (Isa level : kLevels) {
      if (level > isa_best()) continue;
      isa_force(level);
      for (const auto& [threads, partial] : {std::pair{1, true}, {2, false}, {2, true}, {5, true}}) {
        if (level == Isa::kScalar && threads == 2) continue;  // the scalar path is most of the time
        Runner run(shape, threads, partial);
        std::vector<std::vector<float>> out(rows, std::vector<float>(want[0].size(), -7.0f));
        // All rows at once, then each alone (split over threads when there is a partial buffer).
        for (int mode = 0; mode < 2; mode++) {
          for (int i = 0; i < rows; i++) r[i].out = out[i].data();
          if (mode == 0) {
            run.run({c.group(r.data(), rows)});
          } else {
            for (int i = 0; i < rows; i++) run.run({c.group(r.data() + i, 1)});
          }
          for (int i = 0; i < rows; i++) {
            CHECK_MSG(std::memcmp(out[i].data(), want[i].data(), want[i].size() * 4) == 0,
                      std::string(isa_name(level)) + " threads " + std::to_string(threads) + " row " +
                          std::to_string(i) + " mode " + std::to_string(mode) + " dim " + std::to_string(sh.dim));
          }
        }
      }
    }
    isa_force(isa_best());
  }
}

// Attention over any pair of types has the bits of attention over an F32 cache that holds the decoded values, for plain
// rows, windows and trees, with one group of queries in registers and with several.
TEST(every_pair_of_types_equals_its_decoded_values) {
  test::Rng rng(6);
  constexpr int kDims[] = {128, 256, 64, 96};
  int round = 0;
  for (const KvType k_type : kTypes) {
    for (const KvType v_type : kTypes) {
      const bool rotated = kv_rotated(k_type) || kv_rotated(v_type);  // whole groups of 128
      const int dim = kDims[round++ % (rotated ? 2 : 4)], heads = 2, q_heads = 6, n = 300, pending = 24;
      Cache c(dim, heads, 336, k_type, v_type), plain(dim, heads, 336, KvType::kF32);
      for (int i = 0; i < n + pending; i++) {
        c.put(i, random_row(rng, heads * dim, 1.0f), random_row(rng, heads * dim, 1.0f));
        plain.put(i, c.k_rows[i], c.v_rows[i]);
      }
      AttentionShape shape{c.layout, q_heads, 1.0f / std::sqrt(float(dim))};
      AttentionShape plain_shape{plain.layout, q_heads, shape.scale};
      std::vector<int32_t> tail;
      for (int i = 0; i < 12; i++) tail.push_back(n + 2 * i + i % 2);
      std::vector<AttentionRow> rows;
      for (int i = 0; i < 9; i++) rows.push_back({nullptr, nullptr, i % 2 * 40, n - 9 + i, 0, nullptr});
      for (int i = 0; i < 6; i++) rows.push_back({nullptr, nullptr, 0, n, 2 * i + 1, tail.data()});
      std::vector<std::vector<float>> q, want(rows.size()), got(rows.size());
      for (size_t i = 0; i < rows.size(); i++) {
        q.push_back(random_row(rng, q_heads * dim, 1.5f));
        want[i].resize(q[i].size());
      }
      for (size_t i = 0; i < rows.size(); i++) rows[i].q = q[i].data(), rows[i].out = want[i].data();
      const int count = static_cast<int>(rows.size());
      for (int i = 0; i < count; i++) {
        attention_reference(plain_shape, plain.group(rows.data(), count), i);
      }
      for (const Isa level : kLevels) {
        if (level > isa_best()) continue;
        isa_force(level);
        Runner run(shape, 2, false);
        for (const bool alone : {false, true}) {
          if (level == Isa::kScalar && alone != (round % 2 == 0)) continue;  // it is most of the time
          for (int i = 0; i < count; i++) got[i].assign(want[i].size(), -7.0f), rows[i].out = got[i].data();
          if (!alone) run.run({c.group(rows.data(), count)});
          for (int i = 0; alone && i < count; i++) run.run({c.group(rows.data() + i, 1)});
          for (int i = 0; i < count; i++) {
            CHECK_MSG(std::memcmp(got[i].data(), want[i].data(), want[i].size() * 4) == 0,
                      std::string(isa_name(level)) + " types " + std::to_string(int(k_type)) + "," +
                          std::to_string(int(v_type)) + " row " + std::to_string(i) + (alone ? " alone" : ""));
          }
        }
      }
      isa_force(isa_best());
      // Moved rows keep their bytes, and the portable form is the encoders' own.
      const std::vector<uint8_t> before = c.row(n + 5);
      kv_move(c.layout, c.k.get(), c.v.get(), n + 5, n + 2);
      CHECK(c.row(n + 2) == before);
      std::vector<float> decoded(size_t(heads) * dim);
      test::decode_kv(k_type, before.data(), decoded.data(), heads * dim);
      CHECK(decoded == c.k_rows[n + 5]);
      test::decode_kv(v_type, before.data() + heads * c.layout.k_row_bytes(), decoded.data(), heads * dim);
      CHECK(decoded == c.v_rows[n + 5]);
    }
  }
}

std::string hex_of(const std::vector<uint8_t>& bytes) {
  std::string out;
  for (const uint8_t byte : bytes) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", byte);
    out += text;
  }
  return out;
}

// The blocks of docs/spec/kv-cache.md, through a cache.
TEST(blocks_have_the_bytes_of_the_specification) {
  const std::pair<KvType, const char*> golden[] = {
      {KvType::kQ4_0, "0034730c953fc851ea841da63fd962fb842e"},
      {KvType::kQ4_1, "113400c0730c952ec851ea731da63fc862fb841d"},
      {KvType::kQ5_0, "00305aad546ae6083b5d80a2d5f72a4c7f91c4e6193b"},
      {KvType::kQ5_1, "df2f00c05aad546ae6083b5d80a2d5f72a4c7f91c4e6193b"},
      {KvType::kQ8_0, "0824ad40d467fc9124b94be073089d30c457ec8114a93cd063f88d20b547dc6f0499"}};
  for (const auto& [type, hex] : golden) {
    for (const int dim : {128, 256}) {
      std::vector<float> x(dim);
      for (int j = 0; j < dim; j++) x[j] = float((37 * (j % 32) + 11) % 64 - 32) / 16;
      Cache c(dim, 1, 32, type);
      c.put(21, x, x);
      const std::string got = hex_of(c.row(21));
      std::string want;
      for (int block = 0; block < 2 * dim / kKvBlock; block++) want += hex;
      CHECK_MSG(got == want, got);
    }
  }
}

// The group of docs/spec/kv-cache.md section 3.7, through a cache, and what its rotation gives back.
TEST(rotated_groups_have_the_bytes_of_the_specification) {
  const std::string want =
      "684ea6a6880fa0dce85fb6411b85684ea14b2512134abf1ce1ebccc1684e4fb81c72546e500c8d2adfd7684e8edeb68f4e4576424c2293f"
      "2";
  for (const int dim : {128, 256}) {
    std::vector<float> x(dim);
    for (int j = 0; j < dim; j++) x[j] = float((37 * (j % 128) + 11) % 128 - 64) / 16;
    Cache c(dim, 1, 32, KvType::kTQ3_0);
    c.put(21, x, x);
    const std::string got = hex_of(c.row(21));
    std::string all;
    for (int group = 0; group < 2 * dim / kTq3Group; group++) all += want;
    CHECK_MSG(got == all, got);
    std::vector<float> y = c.v_rows[21];
    tq3_unrotate(y.data(), dim);
    const float back[] = {-3.4221f, -0.0795f, 1.6066f, 3.6877f};
    double dot = 0, xx = 0, yy = 0;
    for (int j = 0; j < dim; j++) {
      if (j < 4) CHECK(std::fabs(y[j] - back[j]) < 1e-4f);
      dot += double(x[j]) * y[j], xx += double(x[j]) * x[j], yy += double(y[j]) * y[j];
    }
    CHECK(std::fabs(dot / std::sqrt(xx * yy) - 0.985433) < 1e-6);
  }
  // Zeros have index 4 in every block, and a rotation is taken back.
  Cache zeros(128, 1, 16, KvType::kTQ3_0);
  zeros.put(0, std::vector<float>(128, 0.0f), std::vector<float>(128, -0.0f));
  const std::vector<uint8_t> row = zeros.row(0);
  for (size_t i = 0; i < row.size(); i++) CHECK_EQ(int(row[i]), i % 14 < 10 ? 0 : 255);
  test::Rng rng(9);
  const std::vector<float> x = random_row(rng, 256, 3.0f);
  std::vector<float> y = x;
  tq3_rotate(y.data(), 256);
  double changed = 0, worst = 0;
  for (size_t i = 0; i < x.size(); i++) changed = std::max(changed, std::fabs(double(x[i]) - y[i]));
  tq3_unrotate(y.data(), 256);
  for (size_t i = 0; i < x.size(); i++) worst = std::max(worst, std::fabs(double(x[i]) - y[i]));
  CHECK(changed > 1 && worst < 1e-5);
}

// Whatever comes in, what attention reads is finite, on GPUs also as a half.
TEST(blocks_of_absurd_rows_are_finite) {
  const float absurd[] = {1e30f,  -1e30f, __builtin_inff(), -__builtin_inff(), __builtin_nanf(""), 65504.0f,
                          1e-42f, 0.0f};
  for (const KvType type : kTypes) {
    if (!kv_quantised(type)) continue;
    for (size_t first = 0; first < std::size(absurd); first++) {
      std::vector<float> x(128, absurd[first]);
      for (size_t j = 0; j < x.size(); j += 3) x[j] = absurd[(first + j) % std::size(absurd)];
      Cache c(128, 1, 16, type);
      kv_store(c.layout, c.k.get(), c.v.get(), 3, x.data(), x.data());
      std::vector<float> y(128);
      test::decode_kv(type, c.row(3).data(), y.data(), 128);
      for (const float v : y) CHECK((f32_to_f16(v) & 0x7C00u) != 0x7C00u);
    }
  }
}

// A tree whose rows wait at slots behind the past gives the bits of the same path committed and continued as a chain.
TEST(tree_equals_chain) {
  test::Rng rng(3);
  for (const Shape& sh : kShapes) {
    const int n = 250, depth = 12;
    Cache tree(sh.dim, sh.kv_heads, 512, sh.type), chain(sh.dim, sh.kv_heads, 512, sh.type);
    auto kv = [&] { return random_row(rng, sh.kv_heads * sh.dim, 1.0f); };
    for (int i = 0; i < n; i++) {
      const auto k = kv(), v = kv();
      tree.put(i, k, v);
      chain.put(i, k, v);
    }
    for (int i = n; i < n + 64; i++) tree.put(i, kv(), kv());  // unrelated rows of the tree
    std::vector<int32_t> path;
    std::vector<AttentionRow> rows(depth);
    std::vector<std::vector<float>> q, a(depth), b(depth);
    for (int d = 0; d < depth; d++) {
      const auto k = kv(), v = kv();
      path.push_back(n + 5 * d + 3);
      tree.put(path[d], k, v);
      chain.put(n + d, k, v);
      q.push_back(random_row(rng, sh.q_heads * sh.dim, 1.0f));
      a[d].resize(q[0].size());
      b[d].resize(q[0].size());
    }
    AttentionShape shape{tree.layout, sh.q_heads, 1.0f / std::sqrt(float(sh.dim))};
    Runner run(shape, 2, true);
    for (int d = 0; d < depth; d++) rows[d] = {q[d].data(), a[d].data(), 0, n, d + 1, path.data()};
    run.run({tree.group(rows.data(), depth)});
    for (int d = 0; d < depth; d++) {
      AttentionRow row{q[d].data(), b[d].data(), 0, n + d + 1, 0, nullptr};
      run.run({chain.group(&row, 1)});
      CHECK(std::memcmp(a[d].data(), b[d].data(), a[d].size() * 4) == 0);
    }
    // Commit the path in the tree's cache, then ask again.
    for (int d = 0; d < depth; d++) kv_move(tree.layout, tree.k.get(), tree.v.get(), path[d], n + d);
    for (int d = 0; d < depth; d++) rows[d] = {q[d].data(), b[d].data(), 0, n + d + 1, 0, nullptr};
    run.run({tree.group(rows.data(), depth)});
    for (int d = 0; d < depth; d++) CHECK(std::memcmp(a[d].data(), b[d].data(), a[d].size() * 4) == 0);
  }
}

// Where pages lie changes no bit: chunks, trees whose tails cross pages, windows that begin inside one, rows that see
// nothing, of every type and instruction set.
TEST(pages_in_any_order_have_the_same_bits) {
  test::Rng rng(7);
  for (const Shape& sh : kShapes) {
    const int n = 700;
    Cache c(sh.dim, sh.kv_heads, n, sh.type);
    for (int i = 0; i < n; i++) {
      c.put(i, random_row(rng, sh.kv_heads * sh.dim, 1.0f), random_row(rng, sh.kv_heads * sh.dim, 1.0f));
    }
    AttentionShape shape{c.layout, sh.q_heads, 1.0f / std::sqrt(float(sh.dim))};
    std::vector<int32_t> tail;
    for (int i = 0; i < 30; i++) tail.push_back(640 + i * 17 % 60);
    std::vector<AttentionRow> rows;
    for (int i = 0; i < 10; i++) rows.push_back({nullptr, nullptr, i % 5 == 4 ? 70 + i : 0, 500 + i, 0, nullptr});
    for (int i = 0; i < 6; i++) rows.push_back({nullptr, nullptr, i % 4 == 3 ? 150 : 0, 625, 1 + 5 * i, nullptr});
    rows.push_back({nullptr, nullptr, 0, 64, 0, nullptr});
    rows.push_back({nullptr, nullptr, 10, 10, 0, nullptr});
    const int count = static_cast<int>(rows.size());
    std::vector<std::vector<float>> q, want(rows.size()), got(rows.size());
    for (int i = 0; i < count; i++) {
      q.push_back(random_row(rng, sh.q_heads * sh.dim, 1.5f));
      want[i].resize(q[i].size());
      rows[i].q = q[i].data(), rows[i].out = want[i].data(), rows[i].tail = tail.data();
    }
    for (int i = 0; i < count; i++) attention_reference(shape, c.group(rows.data(), count), i);
    const Cache far = c.scattered(rng);
    const AttentionShape far_shape{far.layout, sh.q_heads, shape.scale};
    std::vector<int32_t> far_tail;
    for (const int32_t slot : tail) far_tail.push_back(far.place(slot));
    for (AttentionRow& row : rows) row.tail = far_tail.data();
    const auto check = [&](const std::string& what) {
      for (int i = 0; i < count; i++) {
        CHECK_MSG(std::memcmp(got[i].data(), want[i].data(), want[i].size() * 4) == 0,
                  what + " dim " + std::to_string(sh.dim) + " row " + std::to_string(i));
      }
    };
    for (int i = 0; i < count; i++) got[i].assign(want[i].size(), -7.0f), rows[i].out = got[i].data();
    for (int i = 0; i < count; i++) attention_reference(far_shape, far.group(rows.data(), count), i);
    check("reference");
    for (const Isa level : kLevels) {
      if (level > isa_best()) continue;
      isa_force(level);
      Runner run(far_shape, 2, true);
      for (const bool alone : {false, true}) {
        for (int i = 0; i < count; i++) got[i].assign(want[i].size(), -7.0f);
        if (!alone) run.run({far.group(rows.data(), count)});
        for (int i = 0; alone && i < count; i++) run.run({far.group(rows.data() + i, 1)});
        check(std::string(isa_name(level)) + (alone ? " alone" : ""));
      }
    }
    isa_force(isa_best());
  }
}

// Several sequences in one call, blocks that share their tail, and export/import of cached rows.
TEST(groups_and_rows) {
  test::Rng rng(4);
  const int dim = 128;
  std::vector<Cache> caches;
  for (int s = 0; s < 3; s++) {
    caches.emplace_back(dim, 2, 128, KvType::kF16);
    for (int i = 0; i < 100; i++) caches[s].put(i, random_row(rng, 2 * dim, 1.0f), random_row(rng, 2 * dim, 1.0f));
  }
  AttentionShape shape{caches[0].layout, 4, 1.0f / std::sqrt(float(dim))};
  Runner run(shape, 2, true);
  std::vector<int32_t> block;
  for (int i = 0; i < 16; i++) block.push_back(80 + i);
  std::vector<std::vector<float>> q, out;
  std::vector<AttentionRow> rows;
  for (int i = 0; i < 48; i++) {
    q.push_back(random_row(rng, 4 * dim, 1.0f));
    out.emplace_back(4 * dim);
  }
  for (int i = 0; i < 48; i++) rows.push_back({q[i].data(), out[i].data(), 0, 60 + i / 16, 16, block.data()});
  std::vector<AttentionGroup> groups;
  for (int s = 0; s < 3; s++) groups.push_back(caches[s].group(rows.data() + 16 * s, 16));
  run.run(groups);
  for (int i = 0; i < 48; i++) {
    std::vector<double> want;
    oracle(caches[i / 16], shape, rows[i], &want);
    for (size_t d = 0; d < want.size(); d++) CHECK_NEAR(want[d], out[i][d], 3e-6);
  }
  const KvLayout& l = caches[0].layout;
  std::vector<uint8_t> row(l.row_bytes()), again(l.row_bytes());
  kv_export(l, caches[0].k.get(), caches[0].v.get(), 17, row.data());
  kv_import(l, caches[1].k.get(), caches[1].v.get(), 99, row.data());
  kv_export(l, caches[1].k.get(), caches[1].v.get(), 99, again.data());
  CHECK(row == again);
  CHECK_EQ(load_u16(row.data() + 2 * 5), f32_to_f16(caches[0].k_rows[17][5]));
}

// Cached bits do not depend on the instruction set, also at the edges of the half format.
TEST(stored_rows_have_the_same_bits) {
  test::Rng rng(5);
  const float edges[] = {0.0f,  -0.0f,   65504.0f, 65519.9f, 65520.0f,   -1e9f,
                         6e-8f, 2.9e-8f, 3e-8f,    1e-40f,   1.0009766f, 1.0004883f};
  std::vector<float> k = random_row(rng, 2 * 80, 1.0f), v = random_row(rng, 2 * 80, 1.0f);
  for (size_t i = 0; i < std::size(edges); i++) k[i * 13] = v[i * 11] = edges[i];
  for (KvType type : {KvType::kF32, KvType::kF16}) {
    isa_force(Isa::kScalar);
    Cache want(80, 2, 32, type);
    want.put(19, k, v);
    for (Isa level : kLevels) {
      if (level > isa_best()) continue;
      isa_force(level);
      Cache got(80, 2, 32, type);
      got.put(19, k, v);
      CHECK(std::memcmp(got.k.get(), want.k.get(), want.layout.k_bytes()) == 0);
      CHECK(std::memcmp(got.v.get(), want.v.get(), want.layout.v_bytes()) == 0);
    }
    isa_force(isa_best());
  }
}

TEST_MAIN()
