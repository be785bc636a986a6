// Operations of a GPU step against the CPU backend: norms, SwiGLU, convolution, the delta rule over trees and chains,
// commits, head norms with rotation and append, attention of the exact contract and moves of cached rows have the CPU's
// bits. (Flash attention: gpu_ops_flash_test.cpp.)
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/backend.h"
#include "cpu/matmul_layout.h"
#include "cpu/row_kernels.h"
#include "gpu/attention/attention.h"
#include "gpu/attention/kv.h"
#include "gpu/attention/rope.h"
#include "gpu/attention/score_attention.h"
#include "gpu/delta/delta.h"
#include "gpu/norm/norm.h"
#include "gpu/norm/swiglu.h"
#include "gpu_ops_util.h"
#include "harness.h"
#include "roles/tree.h"

using namespace tnd;
using namespace tnd::gpu;
using tnd::test::Rng;
using namespace tnd::gpu_test;

namespace {

// The CPU backend with scratch for a step, and what it leaves in a matmul input.
struct Oracle {
  cpu::CpuBackend backend{2};
  void* base = nullptr;
  void* acts_base = nullptr;
  std::unique_ptr<Acts> acts;

  Oracle(const ScratchLimits& limits, int64_t width) {
    Arena measure;
    backend.plan_scratch(measure, limits);
    CHECK_OK(backend.allocate(measure.total(), &base));
    Arena arena(base, measure.total());
    backend.plan_scratch(arena, limits);
    Arena acts_measure;
    (void)backend.acts(acts_measure, width, limits.rows, cpu::kActF32);
    CHECK_OK(backend.allocate(acts_measure.total(), &acts_base));
    Arena acts_arena(acts_base, acts_measure.total());
    acts = backend.acts(acts_arena, width, limits.rows, cpu::kActF32);
  }
  std::vector<float> rows(int n, int64_t width) const {
    const auto* blocks = static_cast<const cpu::ActF32*>(static_cast<const cpu::CpuActs&>(*acts).buffer.f32);
    const int64_t supers = (width + 255) / 256;
    std::vector<float> out;
    for (int r = 0; r < n; ++r) {
      for (int64_t i = 0; i < width; ++i) out.push_back(blocks[r / 16 * supers + i / 256].x[r % 16][i % 256]);
    }
    return out;
  }
};

// ---- DeltaNet

struct DeltaCase {
  DeltaShape shape;
  std::vector<std::vector<int32_t>> parents;  // by group; empty rows of `commit` groups are chains
  std::vector<bool> commit;
};

// One layer of state, replay and inputs of a case, for both sides.
struct DeltaData {
  DeltaLayer layer;  // host pointers
  std::vector<float> conv, a, dt, norm, qkv, z, alpha, beta;
  std::vector<std::vector<float>> taps, s;            // by group
  std::vector<std::vector<float>> conv_in, k, d, al;  // replay by group
  std::vector<DeltaRow> rows;
  std::vector<DeltaState> states;
  std::vector<DeltaReplay> replay;
  std::vector<DeltaGroup> groups;
  int n = 0, slots = 0;

  DeltaData(const DeltaCase& c, Rng* rng) {
    const DeltaShape& sh = c.shape;
    layer.shape = sh;
    layer.eps = 1e-6f;
    conv = random_floats(rng, 4 * sh.conv_dim(), 0.5f);
    a = random_floats(rng, sh.nv, 1.0f);
    for (float& x : a) x = -std::fabs(x);
    dt = random_floats(rng, sh.nv, 1.0f);
    norm = random_floats(rng, kDeltaDim, 1.0f);
    layer.conv = conv.data(), layer.a = a.data(), layer.dt = dt.data(), layer.norm = norm.data();
    const size_t groups_n = c.parents.size();
    int most = 1;
    for (const auto& p : c.parents) {
      n += static_cast<int>(p.size());
      most = std::max(most, static_cast<int>(p.size()));
    }
    slots = TreePlanner::saved_states(most);
    rows.resize(static_cast<size_t>(n));
    qkv = random_floats(rng, int64_t{n} * sh.conv_dim(), 1.0f);
    z = random_floats(rng, int64_t{n} * sh.value_dim(), 1.0f);
    alpha = random_floats(rng, int64_t{n} * sh.nv, 1.0f);
    beta = random_floats(rng, int64_t{n} * sh.nv, 1.0f);
    int first = 0;
    for (size_t g = 0; g < groups_n; ++g) {
      const int count = static_cast<int>(c.parents[g].size());
      DeltaRow* to = rows.data() + first;
      if (c.commit[g]) {
        chain_rows(count, to);
      } else {
        TreePlanner planner(count);
        std::vector<int32_t> order(static_cast<size_t>(count)), up(static_cast<size_t>(count));
        planner.plan(c.parents[g], order.data(), up.data(), to);
      }
      taps.push_back(random_floats(rng, sh.taps_elems(), 1.0f));
      s.push_back(random_floats(rng, sh.state_elems(), 0.3f));
      conv_in.emplace_back(static_cast<size_t>(int64_t{count} * sh.conv_dim()));
      k.emplace_back(static_cast<size_t>(int64_t{count} * sh.key_dim()));
      d.emplace_back(static_cast<size_t>(int64_t{count} * sh.value_dim()));
      al.emplace_back(static_cast<size_t>(int64_t{count} * sh.nv));
      first += count;
    }
    first = 0;
    for (size_t g = 0; g < groups_n; ++g) {
      states.push_back({taps[g].data(), s[g].data()});
      replay.push_back({conv_in[g].data(), k[g].data(), d[g].data(), al[g].data()});
    }
    for (size_t g = 0; g < groups_n; ++g) {
      const int count = static_cast<int>(c.parents[g].size());
      groups.push_back({first, count, c.commit[g], rows.data() + first, &states[g], &replay[g]});
      first += count;
    }
  }
};

void check_delta(const DeltaCase& c, int shared_per_block, uint64_t seed, const char* what, DeltaRule rule,
                 int processors) {
  Rng rng(seed);
  DeltaData h(c, &rng);
  const DeltaShape& sh = c.shape;
  Device dev;
  // Device copies first: the oracle changes the host's state.
  DeltaArgs args;
  args.w = h.layer;
  Buffer<float> conv_w(dev, h.conv), a(dev, h.a), dt(dev, h.dt), norm(dev, h.norm), qkv(dev, h.qkv), z(dev, h.z),
      alpha(dev, h.alpha), beta(dev, h.beta);
  args.w.conv = conv_w.data, args.w.a = a.data, args.w.dt = dt.data, args.w.norm = norm.data;
  args.io = {qkv.data, z.data, alpha.data, beta.data};
  std::vector<std::unique_ptr<Buffer<float>>> keep;
  const auto up = [&](const std::vector<float>& v) {
    keep.push_back(std::make_unique<Buffer<float>>(dev, v));
    return keep.back()->data;
  };
  std::vector<DeltaState> states;
  std::vector<DeltaReplay> replay;
  for (size_t g = 0; g < c.parents.size(); ++g) {
    states.push_back({up(h.taps[g]), up(h.s[g])});
    replay.push_back({up(h.conv_in[g]), up(h.k[g]), up(h.d[g]), up(h.al[g])});
  }
  std::vector<DeltaGroup> groups = h.groups;
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g].states = &states[g];
    groups[g].replay = &replay[g];
  }
  DeltaStep step;
  step.plan(groups, h.n, 1);
  Buffer<DeltaStepRow> row_plans(dev, step.rows);
  Buffer<DeltaStepGroup> group_plans(dev, step.groups);
  Buffer<float> conv(dev, static_cast<size_t>(int64_t{h.n} * sh.conv_dim())),
      gates(dev, static_cast<size_t>(int64_t{h.n} * 2 * sh.nv)),
      mixed(dev, static_cast<size_t>(int64_t{h.n} * sh.value_dim())),
      saved(dev, static_cast<size_t>(static_cast<int64_t>(groups.size()) * h.slots * sh.state_elems()));
  args.rows = h.n;
  args.groups = static_cast<int>(groups.size());
  args.row_plans = row_plans.data;
  args.group_plans = group_plans.data;
  args.conv = conv.data, args.gates = gates.data, args.mixed = mixed.data, args.saved = saved.data;
  args.state_slots = h.slots;
  args.shared_per_block = shared_per_block;
  args.processors = processors;
  launch_delta_conv(dev.stream, args);
  rule(dev.stream, args);
  launch_gated_norm(dev.stream, {mixed.data, norm.data, z.data, h.layer.eps, h.n, sh.nv, mixed.data, {}, 0});

  ScratchLimits limits;
  limits.rows = h.n;
  limits.max_k = sh.value_dim();
  limits.forms = cpu::kActF32;
  limits.delta = sh;
  limits.state_slots = h.slots;
  Oracle oracle(limits, sh.value_dim());
  oracle.backend.delta_mixer(h.layer, 0, h.groups, h.n, {h.qkv.data(), h.z.data(), h.alpha.data(), h.beta.data()},
                             cpu::kActF32, oracle.acts.get());
  CHECK_MSG(same(mixed.down(dev), oracle.rows(h.n, sh.value_dim())), std::string(what) + ": output");

  const auto check_group = [&](size_t g, const char* part) {
    const auto equal = [&](const float* device, const std::vector<float>& host, const char* name) {
      CHECK_MSG(same(download(dev, device, host.size()), host), std::string(what) + ": " + part + " " + name);
    };
    equal(states[g].taps, h.taps[g], "taps");
    equal(states[g].s, h.s[g], "state");
    if (c.commit[g]) return;
    equal(replay[g].conv_in, h.conv_in[g], "replay input");
    equal(replay[g].k, h.k[g], "replay k");
    equal(replay[g].d, h.d[g], "replay d");
    equal(replay[g].alpha, h.al[g], "replay alpha");
  };
  for (size_t g = 0; g < groups.size(); ++g) check_group(g, "step");

  // Commit of some ascending rows of the pending groups.
  for (size_t g = 0; g < groups.size(); ++g) {
    if (c.commit[g]) continue;
    std::vector<int32_t> path;
    for (int32_t i = 0; i < groups[g].count; ++i) {
      if (rng.below(3) != 0) path.push_back(i);
    }
    Buffer<int32_t> path_d(dev, path.empty() ? std::vector<int32_t>{0} : path),
        count(dev, std::vector<int32_t>{static_cast<int32_t>(path.size())});
    Buffer<DeltaState> state_d(dev, std::vector<DeltaState>{states[g]});
    Buffer<DeltaReplay> replay_d(dev, std::vector<DeltaReplay>{replay[g]});
    launch_delta_commit(dev.stream, {sh, 1, state_d.data, replay_d.data, path_d.data, count.data});
    oracle.backend.delta_commit(sh, {&h.states[g], 1}, {&h.replay[g], 1}, path);
    check_group(g, "commit");
  }
}

// ---- attention

struct AttentionCase {
  int dim, kv_heads, q_heads, rope_dims;
  bool gated, norms;
  KvType k_type, v_type;
};

}  // namespace

TEST(norms_and_swiglu_have_the_bits_of_the_cpu) {
  Rng rng(1);
  const cpu::RowKernels& cpu_kernels = cpu::kRowKernelsScalar;
  Device dev;
  for (const int dim : {16, 48, 256, 5120, 12304}) {
    const int rows = dim > 1000 ? 2 : 5;
    const size_t n = static_cast<size_t>(rows) * static_cast<size_t>(dim);
    const std::vector<float> x = random_floats(&rng, static_cast<int64_t>(n), 2.0f), w = random_floats(&rng, dim, 1.0f),
                             u = random_floats(&rng, static_cast<int64_t>(n), 3.0f);
    Buffer<float> dx(dev, x), dw(dev, w), du(dev, u), dy(dev, n);
    NormArgs a;
    a.x = dx.data, a.x_stride = dim, a.w = dw.data, a.eps = 1e-6f, a.rows = rows, a.dim = dim, a.y = dy.data;
    launch_norm(dev.stream, a);
    std::vector<float> want(n);
    for (int r = 0; r < rows; ++r)
      cpu_kernels.rms_norm(&x[static_cast<size_t>(r * dim)], w.data(), 1e-6f, dim, &want[static_cast<size_t>(r * dim)]);
    CHECK_MSG(same(dy.down(dev), want), "norm " + std::to_string(dim));
    // Gates of all magnitudes: of some the exponential or the division takes a way of its own.
    std::vector<float> gates = x;
    constexpr float kUnusual[] = {
        0.0f,    -0.0f,    0x1p-149f, -0x1p-149f, 0x1.234566p-127f, -0x1p-61f, 1e-10f,   -39.9f,
        -40.0f,  -40.1f,   40.1f,     60.0f,      -60.0f,           88.8f,     -88.8f,   -103.0f,
        -200.0f, 0x1p100f, -0x1p100f, 3e38f,      -3e38f,           17.0f,     -16.999f, 0.5f};
    for (size_t i = 0; i < n / 2; i += 7) gates[i] = kUnusual[i / 7 % std::size(kUnusual)];
    Buffer<float> dg(dev, gates);
    SwigluArgs s;
    s.gate = dg.data, s.up = du.data, s.stride = dim, s.rows = rows, s.dim = dim, s.y = dy.data;
    launch_swiglu(dev.stream, s);
    for (int r = 0; r < rows; ++r)
      cpu_kernels.swiglu(&gates[static_cast<size_t>(r * dim)], &u[static_cast<size_t>(r * dim)], dim,
                         &want[static_cast<size_t>(r * dim)]);
    CHECK_MSG(same(dy.down(dev), want), "swiglu " + std::to_string(dim));
  }
}

// Both forms of the recurrence, the second one on cards of two sizes.
constexpr struct {
  const char* name;
  DeltaRule launch;
  int processors;
} kDeltaRules[] = {
    {"slices", launch_delta_slices, 2},
    {"columns", launch_delta_columns, 2},
    {"columns, many processors", launch_delta_columns, 99},
};

TEST(delta_step_has_the_bits_of_the_cpu) {
  Rng rng(2);
  constexpr int kShared[] = {0, 60 << 10, 200 << 10};  // all put-aside states in memory, some, all in shared memory
  constexpr DeltaShape kShapes[] = {{1, 3}, {2, 2}, {1, 4}, {2, 4}, {1, 5}, {1, 6}};
  for (int round = 0; round < 6; ++round) {
    DeltaCase c;
    const int n = static_cast<int>(std::vector<int>{1, 5, 9, 23, 40, 64}[static_cast<size_t>(round)]);
    c.parents = {random_tree(&rng, n), chain_of(3 + round), random_tree(&rng, 2)};
    c.commit = {false, true, false};
    for (const auto& rule : kDeltaRules) {
      for (const int other : {0, 3}) {
        c.shape = kShapes[(round + other) % 6];
        check_delta(c, kShared[round % 3], 100 + static_cast<uint64_t>(round),
                    (std::string(rule.name) + ", rows " + std::to_string(n)).c_str(), rule.launch, rule.processors);
      }
    }
  }
}

// Chains of lengths around the tile of rows and around what is there at once, committed; with few states put aside and
// room for all.
TEST(delta_chains_have_the_bits_of_the_cpu) {
  for (const int n : {1, 2, 3, 7, 8, 9, 23, 24, 25, 32, 33}) {
    DeltaCase c;
    c.shape = {1, 2 + n % 2};
    c.parents = {chain_of(n)};
    c.commit = {true};
    for (const auto& rule : kDeltaRules) {
      for (const int shared : {100 << 10, 227 << 10}) {
        check_delta(c, shared, 300 + static_cast<uint64_t>(n),
                    (std::string(rule.name) + ", chain " + std::to_string(n)).c_str(), rule.launch, rule.processors);
      }
    }
  }
}

TEST(few_rows_of_one_sequence_take_the_delta_rule_by_columns) {
  const auto rule = [](std::vector<int> counts) {
    std::vector<DeltaStepGroup> groups(counts.size());
    for (size_t g = 0; g < counts.size(); ++g) groups[g].count = counts[g];
    return delta_rule(groups);
  };
  CHECK(rule({1}) == launch_delta_slices);
  CHECK(rule({2}) == launch_delta_columns);
  CHECK(rule({24}) == launch_delta_columns);
  CHECK(rule({25}) == launch_delta_slices);
  CHECK(rule({2, 2}) == launch_delta_slices);
}

// Head norms, rotation, append and exact attention against the CPU backend: trees, chains, windows, blocks. Attention
// over values in blocks and BF16 rounds them to halves here, so that of it only the cache is compared
// (gpu_ops_flash_test has the rest).
TEST(exact_attention_has_the_bits_of_the_cpu) {
  Rng rng(3);
  const AttentionCase cases[] = {{256, 1, 6, 64, true, true, KvType::kF16, KvType::kF16},
                                 {128, 2, 4, 128, false, true, KvType::kF32, KvType::kF32},
                                 {64, 1, 5, 32, false, false, KvType::kF16, KvType::kF16},
                                 {256, 1, 4, 64, true, true, KvType::kQ8_0, KvType::kQ4_0},
                                 {128, 2, 4, 128, false, true, KvType::kQ4_0, KvType::kF16},
                                 {64, 1, 3, 32, false, false, KvType::kF32, KvType::kQ8_0},
                                 {256, 1, 4, 64, true, true, KvType::kQ5_1, KvType::kQ5_0},
                                 {128, 2, 4, 128, false, true, KvType::kQ5_0, KvType::kQ4_1},
                                 {64, 1, 3, 32, false, false, KvType::kQ4_1, KvType::kQ5_1},
                                 {128, 1, 4, 128, true, true, KvType::kBF16, KvType::kBF16},
                                 {256, 1, 4, 64, true, true, KvType::kTQ3_0, KvType::kTQ3_0},
                                 {128, 2, 3, 128, false, true, KvType::kQ5_1, KvType::kTQ3_0},
                                 {512, 1, 2, 64, false, false, KvType::kTQ3_0, KvType::kQ8_0}};
  for (const AttentionCase& c : cases) {
    Device dev;
    const int capacity = 336, prefix = 277, pages = 2 * kv_pages(capacity);  // of two sequences
    AttentionLayer layer;
    layer.q_heads = c.q_heads;
    layer.kv = {static_cast<int32_t>(c.k_type), static_cast<int32_t>(c.v_type), c.kv_heads, c.dim, pages * kKvPage};
    const std::vector<std::vector<int32_t>> tables = random_tables(&rng, pages, 2);
    const auto rounded = [](KvType type) { return kv_quantised(type) || type == KvType::kBF16; };
    const bool blocks = rounded(c.k_type) || rounded(c.v_type);
    layer.rope_dims = c.rope_dims, layer.gated = c.gated;
    layer.scale = 1.0f / std::sqrt(static_cast<float>(c.dim)), layer.eps = 1e-6f;
    const std::vector<float> q_norm = random_floats(&rng, c.dim, 1.0f), k_norm = random_floats(&rng, c.dim, 1.0f);
    if (c.norms) layer.q_norm = q_norm.data(), layer.k_norm = k_norm.data();
    const int64_t q_width = int64_t{c.q_heads} * c.dim * (c.gated ? 2 : 1), out_width = int64_t{c.q_heads} * c.dim,
                  kv_width = int64_t{c.kv_heads} * c.dim;
    // A prefix of rows that only append, then a tree, a chain and a windowed block on the two sequences.
    PlanBuilder appended, seen;
    for (int g = 0; g < 2; ++g) appended.append(0, prefix - 20 * g);
    seen.tree(prefix, random_tree(&rng, 13));
    seen.block(prefix - 20, 5, 40);
    PlanBuilder first = appended.scattered(tables), second = seen.scattered(tables);
    std::vector<PlanBuilder*> steps{&first, &second};

    ScratchLimits limits;
    limits.rows = first.count() + second.count();
    limits.max_k = q_width;
    limits.forms = cpu::kActF32;
    limits.attention = layer;
    limits.max_context = capacity;
    Oracle oracle(limits, out_width);
    std::vector<std::unique_ptr<Buffer<uint8_t>>> gpu_mem;
    KvCache cpu_cache, gpu_cache;
    for (const bool keys : {true, false}) {
      void* base = nullptr;
      CHECK_OK(oracle.backend.allocate(oracle.backend.kv_bytes(layer.kv, keys), &base));
      gpu_mem.push_back(std::make_unique<Buffer<uint8_t>>(
          dev, std::vector<uint8_t>(static_cast<size_t>(kv_cache_bytes(layer.kv, keys)), 0)));
      (keys ? cpu_cache.k : cpu_cache.v) = base;
      (keys ? gpu_cache.k : gpu_cache.v) = gpu_mem.back()->data;
    }
    Buffer<KvCache> caches(dev, std::vector<KvCache>{gpu_cache});
    Buffer<float> dq_norm(dev, q_norm), dk_norm(dev, k_norm);
    for (PlanBuilder* step : steps) {
      const int n = step->count();
      const bool attend = step == &second;
      std::vector<float> q = random_floats(&rng, n * q_width, 1.0f), k = random_floats(&rng, n * kv_width, 1.0f),
                         v = random_floats(&rng, n * kv_width, 1.0f),
                         rope = random_floats(&rng, int64_t{n} * c.rope_dims, 1.0f);
      if (rounded(c.v_type)) {  // zeros of both signs, also as minimum and maximum, what is not stored, equal values
        const auto nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
        const float odd[][4] = {{0.0f, -0.0f, 3.0f, 0.0f},  {-0.0f, 0.0f, 1e-3f, 2.0f}, {0.0f, -0.0f, -3.0f, -1.0f},
                                {-0.0f, -0.0f, 0.0f, 0.0f}, {nan, 1.0f, -2.0f, 0.5f},   {inf, -1e9f, 64001.0f, 5.0f},
                                {7.7f, 7.7f, 7.7f, 7.7f},   {1e-40f, -1e-40f, 0, 0},    {6e4f, 59999.0f, -6e4f, 6e4f}};
        for (size_t i = 0; i < std::size(odd); ++i) {
          for (size_t d = 0; d < kKvBlock; ++d) v[i * kKvBlock + d] = odd[i][(d + d / 5) % 4];
        }
      }
      Buffer<float> dq(dev, q), dk(dev, k), dv(dev, v), drope(dev, rope),
          query(dev, static_cast<size_t>(n * out_width)), out(dev, static_cast<size_t>(n * out_width));
      const std::vector<AttentionGroupPlan> groups = step->groups();
      const AttentionPlan plan{groups, step->rows.data(), &cpu_cache, rope.data()};
      AttentionStep device_step;
      device_step.plan(plan, n);
      Buffer<AttentionRow> rows(dev, device_step.rows);
      Buffer<int32_t> tails(dev, device_step.tails.empty() ? std::vector<int32_t>{0} : device_step.tails);
      Buffer<int32_t> page_table(dev, device_step.pages);
      HeadsArgs heads;
      heads.kv = layer.kv, heads.q_heads = c.q_heads, heads.rope_dims = c.rope_dims, heads.gated = c.gated;
      heads.eps = layer.eps;
      if (c.norms) heads.q_norm = dq_norm.data, heads.k_norm = dk_norm.data;
      heads.rows = n, heads.row_plans = rows.data, heads.cache = gpu_cache, heads.rope = drope.data;
      heads.q = attend ? dq.data : nullptr, heads.q_out = query.data, heads.k = dk.data, heads.v = dv.data;
      launch_heads(dev.stream, heads);
      if (attend) {
        HeadsArgs rounded = heads;  // queries alone, in the form of flash attention
        Buffer<uint16_t> halves(dev, static_cast<size_t>(n * out_width));
        rounded.q_out = halves.data, rounded.q_halves = true, rounded.k = nullptr;
        launch_heads(dev.stream, rounded);
        const std::vector<float> plain = query.down(dev);
        const std::vector<uint16_t> got = halves.down(dev);
        CHECK(
            std::equal(got.begin(), got.end(), plain.begin(), [](uint16_t h, float x) { return h == f32_to_f16(x); }));
        AttentionArgs a;
        a.mode = AttentionMode::kExact;
        a.kv = layer.kv, a.q_heads = c.q_heads, a.scale = layer.scale, a.rows = n;
        a.cache = gpu_cache, a.row_plans = rows.data, a.tails = tails.data, a.pages = page_table.data;
        a.q = query.data, a.out = out.data;
        if (c.gated) a.gate = dq.data + c.dim, a.gate_row = q_width, a.gate_head = 2 * c.dim;
        launch_attention(dev.stream, a);
      }
      const AttentionIo io{attend ? q.data() : nullptr, k.data(), v.data()};
      oracle.backend.attention(layer, 0, plan, n, io, cpu::kActF32, oracle.acts.get());
      CHECK(same(dk.down(dev), k));
      if (attend && !blocks) CHECK_MSG(same(out.down(dev), oracle.rows(n, out_width)), "dim " + std::to_string(c.dim));
    }
    // Caches: moves, then all rows in portable form; and back into an empty cache.
    std::vector<int32_t> from, to;
    for (const int row : {0, 2, 3, 7, 8, 9, 10, 11, 12}) {
      from.push_back(kv_slot(tables[0].data(), prefix + row));
      to.push_back(kv_slot(tables[0].data(), prefix + static_cast<int32_t>(to.size())));
    }
    Buffer<int32_t> dfrom(dev, from), dto(dev, to), count(dev, std::vector<int32_t>{static_cast<int32_t>(from.size())});
    launch_kv_move(dev.stream, {layer.kv, caches.data, 1, dfrom.data, dto.data, count.data});
    oracle.backend.kv_move(layer.kv, {&cpu_cache, 1}, from, to);
    const int n = prefix + 9;
    const size_t bytes = static_cast<size_t>(n) * kv_row_size(layer.kv);
    CHECK_EQ(kv_row_size(layer.kv), oracle.backend.kv_row_bytes(layer.kv));
    std::vector<uint8_t> want(bytes);
    oracle.backend.kv_export(layer.kv, cpu_cache, tables[0].data(), n, want.data());
    Buffer<int32_t> mine(dev, tables[0]), other(dev, tables[1]);
    Buffer<uint8_t> rows(dev, bytes);
    launch_kv_export(dev.stream, {layer.kv, gpu_cache, mine.data, 0, n, rows.data});
    CHECK(rows.down(dev) == want);
    launch_kv_import(dev.stream, {layer.kv, gpu_cache, other.data, 0, n, rows.data});
    Buffer<uint8_t> again(dev, bytes);
    launch_kv_export(dev.stream, {layer.kv, gpu_cache, other.data, 0, n, again.data});
    CHECK(again.down(dev) == want);
  }
}

// Queries of keys in TQ3_0 are rotated as the CPU rotates them, and what its values give is rotated back before the
// gate.
TEST(rotations_have_the_bits_of_the_cpu) {
  Rng rng(12);
  Device dev;
  constexpr int kRows = 3, kHeads = 5;
  for (const int dim : {128, 256}) {
    const int64_t width = kHeads * dim;
    AttentionArgs a;
    a.kv = {1, static_cast<int32_t>(KvType::kTQ3_0), 1, dim, kKvPage};
    a.q_heads = kHeads, a.rows = kRows;
    const std::vector<float> x = random_floats(&rng, kRows * width, 2.0f),
                             gate = random_floats(&rng, kRows * 2 * width, 3.0f);
    Buffer<float> out(dev, x), gates(dev, gate);
    a.out = out.data;
    std::vector<float> want = x;
    tq3_unrotate(want.data(), kRows * width);
    launch_unrotate(dev.stream, a);
    CHECK(same(out.down(dev), want));
    a.gate = gates.data + dim, a.gate_row = 2 * width, a.gate_head = 2 * dim;
    tq3_unrotate(want.data(), kRows * width);
    for (size_t i = 0; i < want.size(); ++i) {
      want[i] *= sigmoid_f32(gate[i / static_cast<size_t>(dim) * 2 * static_cast<size_t>(dim) +
                                  static_cast<size_t>(dim) + i % static_cast<size_t>(dim)]);
    }
    launch_unrotate(dev.stream, a);
    CHECK(same(out.down(dev), want));

    HeadsArgs heads;
    heads.kv = {static_cast<int32_t>(KvType::kTQ3_0), 1, 1, dim, kKvPage};
    heads.q_heads = kHeads, heads.rows = kRows;
    Buffer<float> q(dev, x), rotated(dev, x.size());
    heads.q = q.data, heads.q_out = rotated.data;
    std::vector<float> queries = x;
    tq3_rotate(queries.data(), kRows * width);
    launch_heads(dev.stream, heads);
    CHECK(same(rotated.down(dev), queries));
  }
}

// Kernels that prepare their output as matmul input give what preparing their plain output gives.
TEST(prepared_outputs_equal_prepared_rows) {
  Rng rng(4);
  Device dev;
  constexpr int kRows = 5;
  constexpr uint32_t kForms = kFormQ256 | kFormQ32 | kFormF32;
  const auto check = [&](int width, const auto& compute, const char* what) {
    for (const Prompt prompt : {Prompt::kNone, Prompt::kPanels}) {
      constexpr int kMaxRows = 70;  // panels are for more rows than 64
      const size_t bytes = acts_bytes(width, kMaxRows, kForms);
      Buffer<uint8_t> one(dev, std::vector<uint8_t>(bytes, 0)), two(dev, std::vector<uint8_t>(bytes, 0));
      Buffer<float> y(dev, static_cast<size_t>(kRows * width));
      ActsView fused, apart;
      acts_init(&fused, one.data, width, kMaxRows, kForms);
      acts_init(&apart, two.data, width, kMaxRows, kForms);
      fused.prompt = apart.prompt = prompt;
      compute(y.data, fused, kForms);
      compute(y.data, fused, uint32_t{0});
      launch_prepare(dev.stream, {y.data, width, kRows, width, kForms, apart});
      const std::vector<uint8_t> got = one.down(dev);
      CHECK_MSG(got == two.down(dev), what);
      CHECK(std::count(got.begin(), got.end(), 0) <
            static_cast<long>(got.size() - bytes / kMaxRows));  // something was written
    }
  };
  const int width = 1536;  // 12 heads of 128, 6 of 256
  const size_t n = static_cast<size_t>(kRows * width);
  const std::vector<float> values = random_floats(&rng, static_cast<int64_t>(n), 2.0f);
  std::vector<uint16_t> rounded;
  for (const float v : values) rounded.push_back(f32_to_f16(v));
  Buffer<uint16_t> halves(dev, rounded);
  Buffer<float> x(dev, values), z(dev, random_floats(&rng, static_cast<int64_t>(n), 2.0f)),
      w(dev, random_floats(&rng, width, 1.0f));
  check(
      width,
      [&](float* y, const ActsView& acts, uint32_t forms) {
        launch_norm(dev.stream, {x.data, width, w.data, 1e-6f, kRows, width, y, acts, forms});
      },
      "norm");
  check(
      width,
      [&](float* y, const ActsView& acts, uint32_t forms) {
        launch_swiglu(dev.stream, {x.data, z.data, width, kRows, width, y, acts, forms});
      },
      "swiglu");
  check(
      width,
      [&](float* y, const ActsView& acts, uint32_t forms) {
        launch_gated_norm(dev.stream, {x.data, w.data, z.data, 1e-6f, kRows, width / 128, y, acts, forms});
      },
      "gated norm");
  for (const AttentionMode mode : {AttentionMode::kExact, AttentionMode::kFlash}) {
    for (const int dim : {64, 128, 256}) {
      AttentionArgs a;
      a.mode = mode;
      a.kv = {1, 1, 1, dim, kKvPage};
      a.q_heads = width / dim, a.scale = 0.1f, a.rows = kRows;
      std::vector<uint16_t> cache(static_cast<size_t>(kKvPage * dim));
      for (uint16_t& h : cache) h = f32_to_f16(rng.uniform(-1.0f, 1.0f));
      Buffer<uint16_t> kv(dev, cache);
      PlanBuilder rows;
      rows.append(20, kRows);
      const int32_t page = 0;
      const AttentionGroupPlan group{0, kRows, &page, 1};
      AttentionStep step;
      step.plan({{&group, 1}, rows.rows.data(), nullptr, nullptr}, kRows);
      Buffer<int32_t> pages(dev, step.pages);
      Buffer<AttentionRow> plans(dev, step.rows);
      Buffer<AttentionTile> bulk(dev, step.bulk), tail(dev, step.tail);
      a.scratch_bytes = attention_scratch_bytes(mode, a.kv, a.q_heads, kRows);
      Buffer<uint8_t> scratch(dev, std::max<uint64_t>(a.scratch_bytes, 1));
      a.cache = {kv.data, kv.data}, a.pages = pages.data, a.row_plans = plans.data, a.bulk = bulk.data,
      a.tail = tail.data;
      a.n_bulk = a.n_tail = 1, a.bulk_rows = step.bulk_rows, a.tail_rows = step.tail_rows;
      a.q = x.data, a.gate = z.data, a.gate_row = width, a.gate_head = dim;
      if (mode == AttentionMode::kFlash) a.q = halves.data;
      a.scratch = scratch.data, a.shared_per_block = 99 << 10;
      check(
          width,
          [&](float* y, const ActsView& acts, uint32_t forms) {
            a.out = y, a.acts = acts, a.forms = forms;
            launch_attention(dev.stream, a);
          },
          "attention");
    }
  }
}

// Scores of query rows against keys and their peaks: the steps of the scorer, with the CPU's row kernels.
TEST(score_peaks_have_the_bits_of_the_cpu) {
  Rng rng(5);
  Device dev;
  const cpu::RowKernels& kernels = cpu::kRowKernelsScalar;
  constexpr int kQueries = 3, kQHeads = 4, kKvHeads = 2, kDim = 64, kRows = 2100, kStride = 2112;
  const std::vector<int32_t> visible{17, 1024, 2100};
  const std::vector<float> raw_query = random_floats(&rng, kQueries * kQHeads * kDim, 1.0f),
                           raw_k = random_floats(&rng, int64_t{kRows} * kKvHeads * kDim, 1.0f),
                           norm = random_floats(&rng, kDim, 1.0f);
  std::vector<float> query = raw_query, k = raw_k, dots(kQueries * kQHeads * kStride), best(kQueries * kStride);
  const auto norm_heads = [&](std::vector<float>* x) {
    for (size_t i = 0; i < x->size(); i += kDim) kernels.rms_norm(&(*x)[i], norm.data(), 1e-6f, kDim, &(*x)[i]);
  };
  norm_heads(&query);
  norm_heads(&k);
  for (float& b : best) b = rng.uniform(0.0f, 1e-3f);
  Buffer<float> dq(dev, raw_query), dk(dev, raw_k), dnorm(dev, norm), ddots(dev, dots.size()), dbest(dev, best),
      scratch(dev, static_cast<size_t>(score_scratch_floats(kQueries, kQHeads, kRows)));
  Buffer<int32_t> dvisible(dev, visible);
  HeadsArgs heads;  // queries alone, then keys alone: norms only
  heads.kv = {1, 1, kKvHeads, kDim, 16};
  heads.q_heads = kQHeads, heads.eps = 1e-6f, heads.q_norm = heads.k_norm = dnorm.data;
  heads.rows = kQueries, heads.q = dq.data, heads.q_out = dq.data;
  launch_heads(dev.stream, heads);
  heads.rows = kRows, heads.q = nullptr, heads.k = dk.data;
  launch_heads(dev.stream, heads);
  CHECK(same(dk.down(dev), k));
  constexpr int kChunk = 1000;
  for (int first = 0; first < kRows; first += kChunk) {
    launch_score_dots(dev.stream, {dq.data, dk.data + int64_t{first} * kKvHeads * kDim, kQueries, kQHeads, kKvHeads,
                                   kDim, std::min(kChunk, kRows - first), first, 0.125f, ddots.data, kStride});
  }
  launch_score_peaks(dev.stream,
                     {ddots.data, dbest.data, kStride, kQueries, kQHeads, dvisible.data, kRows, scratch.data});

  for (int t = 0; t < kQueries; ++t) {
    for (int h = 0; h < kQHeads; ++h) {
      float* s = &dots[static_cast<size_t>((t * kQHeads + h) * kStride)];
      for (int j = 0; j < kRows; ++j) {
        float lanes[16] = {};
        for (int d = 0; d < kDim; ++d) {
          lanes[d % 16] += query[static_cast<size_t>((t * kQHeads + h) * kDim + d)] *
                           k[static_cast<size_t>((j * kKvHeads + h / 2) * kDim + d)];
        }
        for (int w = 8; w > 0; w /= 2) {
          for (int i = 0; i < w; ++i) lanes[i] += lanes[i + w];
        }
        s[j] = 0.125f * lanes[0];
      }
      const int n = visible[static_cast<size_t>(t)];
      int32_t at = 0;
      const float max = kernels.argmax(s, n, &at);
      const float inverse = 1.0f / kernels.sum_exp(s, n, max, 1.0f);
      kernels.exp_scaled(s, n, max, 1.0f, s);
      float* b = &best[static_cast<size_t>(t * kStride)];
      for (int j = 0; j < n; ++j) b[j] = std::max(b[j], s[j] * inverse);
    }
  }
  CHECK(same(dbest.down(dev), best));
}

TEST_MAIN()
