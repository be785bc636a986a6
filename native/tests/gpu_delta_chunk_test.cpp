// The chunked delta rule of prompts against the rule in double precision, beside the error of the recurrence: outputs
// and, above all, the final state.
#include <algorithm>
#include <cmath>

#include "core/elementary.h"
#include "gpu/delta/delta_chunk.h"
#include "gpu_ops_util.h"
#include "harness.h"
#if defined(TND_GPU_EMU)
#include "gpu/delta/delta_chunk.cuh"
#endif

using namespace tnd;
using namespace tnd::gpu;
using tnd::test::Rng;
using namespace tnd::gpu_test;

namespace {

struct Case {
  DeltaShape shape{1, 2};
  std::vector<int> counts;           // rows of each chain
  bool prior = true;                 // a state from before
  float least = 1e-4f, most = 2.0f;  // log decays, uniform in their logarithm
  float value_scale = 1.0f;
  bool one_key = false;  // all keys of a head nearly the same: the worst for the inverse
  double times = 8;      // error of the recurrence that is allowed
};

// Inputs of the rule as launch_delta_conv leaves them, and states.
struct Data {
  Case c;
  int n = 0;
  std::vector<float> conv, gates, qkv, alpha, g, a, dt;  // g [n, nv]: log decays as the kernels compute them
  std::vector<std::vector<float>> taps, s;               // by chain

  Data(const Case& the_case, uint64_t seed) : c(the_case) {
    Rng rng(seed);
    const DeltaShape& sh = c.shape;
    for (const int count : c.counts) n += count;
    qkv = random_floats(&rng, int64_t{n} * sh.conv_dim(), 1.0f);
    conv = random_floats(&rng, int64_t{n} * sh.conv_dim(), c.value_scale);
    const std::vector<float> shared_key = random_floats(&rng, kDeltaDim, 1.0f);
    for (int row = 0; row < n; ++row) {
      for (int h = 0; h < 2 * sh.nk; ++h) {
        float* x = &conv[static_cast<size_t>(int64_t{row} * sh.conv_dim() + h * kDeltaDim)];
        double sum = 0;
        for (int i = 0; i < kDeltaDim; ++i) {
          x[i] = rng.uniform(-1.0f, 1.0f) + (c.one_key ? 20.0f * shared_key[static_cast<size_t>(i)] : 0.0f);
          sum += double{x[i]} * x[i];
        }
        const double scale = (h < sh.nk ? 0.08838834764831845 : 1.0) / std::sqrt(sum);
        for (int i = 0; i < kDeltaDim; ++i) x[i] = static_cast<float>(x[i] * scale);
      }
    }
    a.assign(static_cast<size_t>(sh.nv), -1.0f);
    dt.assign(static_cast<size_t>(sh.nv), 0.25f);
    gates.resize(static_cast<size_t>(n * 2 * sh.nv));
    for (int row = 0; row < n; ++row) {
      for (int h = 0; h < sh.nv; ++h) {
        const double decay = c.least * std::pow(double{c.most} / c.least, rng.uniform(0.0f, 1.0f));
        const float x = static_cast<float>(decay > 20 ? decay : std::log(std::expm1(decay))) - 0.25f;
        alpha.push_back(x);
        g.push_back(-softplus_f32(x + 0.25f));
        gates[static_cast<size_t>(row * 2 * sh.nv + h)] = exp_f32(g.back());
        gates[static_cast<size_t>((row * 2 + 1) * sh.nv + h)] = rng.uniform(0.0f, 1.0f);
      }
    }
    for (size_t i = 0; i < c.counts.size(); ++i) {
      taps.push_back(random_floats(&rng, sh.taps_elems(), 1.0f));
      s.push_back(random_floats(&rng, sh.state_elems(), c.prior ? 0.3f * c.value_scale : 0.0f));
    }
  }
};

struct Result {
  std::vector<float> mixed;
  std::vector<std::vector<float>> taps, s;
};

size_t state_at(int head, int key, int column) {
  return static_cast<size_t>(((head * 4 + column / kDeltaSlice) * kDeltaDim + key) * kDeltaSlice +
                             column % kDeltaSlice);
}

// The rule in double precision: outputs and states.
struct Truth {
  std::vector<double> mixed;
  std::vector<std::vector<double>> s;
};
Truth truth(const Data& d) {
  const DeltaShape& sh = d.c.shape;
  Truth t;
  t.mixed.resize(static_cast<size_t>(d.n) * static_cast<size_t>(sh.value_dim()));
  int first = 0;
  for (size_t chain = 0; chain < d.c.counts.size(); ++chain) {
    t.s.emplace_back(d.s[chain].begin(), d.s[chain].end());
    for (int head = 0; head < sh.nv; ++head) {
      std::vector<double> s(kDeltaDim * kDeltaDim);
      for (int i = 0; i < kDeltaDim; ++i) {
        for (int j = 0; j < kDeltaDim; ++j)
          s[static_cast<size_t>(i * kDeltaDim + j)] = t.s[chain][state_at(head, i, j)];
      }
      for (int row = first; row < first + d.c.counts[chain]; ++row) {
        const float* q = &d.conv[static_cast<size_t>(int64_t{row} * sh.conv_dim() + head % sh.nk * kDeltaDim)];
        const float* k = q + sh.key_dim();
        const float* v =
            &d.conv[static_cast<size_t>(int64_t{row} * sh.conv_dim() + 2 * sh.key_dim() + head * kDeltaDim)];
        const double decay = std::exp(double{d.g[static_cast<size_t>(row * sh.nv + head)]});
        const double beta = d.gates[static_cast<size_t>((row * 2 + 1) * sh.nv + head)];
        double p[kDeltaDim] = {}, o[kDeltaDim] = {};
        for (int i = 0; i < kDeltaDim; ++i) {
          double* line = &s[static_cast<size_t>(i * kDeltaDim)];
          for (int j = 0; j < kDeltaDim; ++j) p[j] += (line[j] *= decay) * k[i];
        }
        for (int j = 0; j < kDeltaDim; ++j) p[j] = beta * (v[j] - p[j]);
        for (int i = 0; i < kDeltaDim; ++i) {
          double* line = &s[static_cast<size_t>(i * kDeltaDim)];
          for (int j = 0; j < kDeltaDim; ++j) o[j] += (line[j] += p[j] * k[i]) * q[i];
        }
        for (int j = 0; j < kDeltaDim; ++j) {
          t.mixed[static_cast<size_t>(int64_t{row} * sh.value_dim() + head * kDeltaDim + j)] = o[j];
        }
      }
      for (int i = 0; i < kDeltaDim; ++i) {
        for (int j = 0; j < kDeltaDim; ++j)
          t.s[chain][state_at(head, i, j)] = s[static_cast<size_t>(i * kDeltaDim + j)];
      }
    }
    first += d.c.counts[chain];
  }
  return t;
}

// Length of the error by that of the truth.
double error(const std::vector<float>& got, const std::vector<double>& want) {
  double wrong = 0, all = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    wrong += (got[i] - want[i]) * (got[i] - want[i]);
    all += want[i] * want[i];
  }
  return std::sqrt(wrong / all);  // NaN and inf show
}

// Runs `rule(args of the recurrence, args of the chunked form)` on the data; chains begin at rows [from, …) of each.
template <typename Rule>
Result run(const Data& d, const Rule& rule) {
  const DeltaShape& sh = d.c.shape;
  Device dev;
  Buffer<float> conv(dev, d.conv), gates(dev, d.gates), qkv(dev, d.qkv), alpha(dev, d.alpha), a(dev, d.a),
      dt(dev, d.dt), mixed(dev, static_cast<size_t>(d.n * sh.value_dim()));
  std::vector<std::unique_ptr<Buffer<float>>> keep;
  std::vector<DeltaState> states;
  std::vector<DeltaRow> rows(static_cast<size_t>(d.n));
  std::vector<DeltaGroup> groups;
  int first = 0;
  const auto up = [&](const std::vector<float>& v) {
    keep.push_back(std::make_unique<Buffer<float>>(dev, v));
    return keep.back()->data;
  };
  for (size_t i = 0; i < d.c.counts.size(); ++i) {
    states.push_back({up(d.taps[i]), up(d.s[i])});
    for (int r = 0; r < d.c.counts[i]; ++r) {
      rows[static_cast<size_t>(first + r)] = {{r - 1, r - 2, r - 3}, kStateCommitted, kStateCommitted};
    }
    groups.push_back({first, d.c.counts[i], true, rows.data() + first, nullptr, nullptr, true});
    first += d.c.counts[i];
  }
  for (size_t i = 0; i < groups.size(); ++i) groups[i].states = &states[i];
  DeltaStep step;
  step.plan(groups, d.n, 1);
  DeltaChunks chunks;
  const int capacity = 64;
  CHECK(chunks.plan(groups, 0, capacity) == groups.size());
  Buffer<DeltaStepRow> row_plans(dev, step.rows);
  Buffer<DeltaStepGroup> group_plans(dev, step.groups);
  Buffer<DeltaChunk> chunk_plans(dev, chunks.chunks);
  Buffer<DeltaChain> chain_plans(dev, chunks.chains);
  Buffer<uint8_t> scratch(dev, delta_chunk_scratch_bytes(sh, static_cast<int>(chunks.chunks.size())));
  DeltaArgs r;
  r.w.shape = sh, r.w.a = a.data, r.w.dt = dt.data;
  r.io.qkv = qkv.data, r.io.alpha = alpha.data;
  r.rows = d.n, r.groups = static_cast<int>(groups.size());
  r.row_plans = row_plans.data, r.group_plans = group_plans.data;
  r.conv = conv.data, r.gates = gates.data, r.mixed = mixed.data;
  DeltaChunkArgs c;
  c.w = r.w, c.io = r.io, c.group_plans = r.group_plans;
  c.chunks = chunk_plans.data, c.chains = chain_plans.data;
  c.n_chunks = static_cast<int>(chunks.chunks.size()), c.n_chains = static_cast<int>(chunks.chains.size());
  c.conv = conv.data, c.gates = gates.data, c.mixed = mixed.data, c.scratch = scratch.data;
  rule(dev.stream, r, c);
  Result out{mixed.down(dev), {}, {}};
  for (size_t i = 0; i < states.size(); ++i) {
    out.taps.push_back(download(dev, states[i].taps, d.taps[i].size()));
    out.s.push_back(download(dev, states[i].s, d.s[i].size()));
  }
  return out;
}

constexpr auto recurrence = [](Stream& stream, const DeltaArgs& r, const DeltaChunkArgs&) {
  launch_delta_slices(stream, r);
};
// The chunked form with rings of three places or, where there is room, of seven.
auto chunked(int shared_per_block) {
  return [shared_per_block](Stream& stream, const DeltaArgs&, DeltaChunkArgs c) {
    c.shared_per_block = shared_per_block;
    launch_delta_prepare(stream, c);
    launch_delta_states(stream, c);
  };
}
constexpr int kNarrow = 64 << 10, kWide = 200 << 10;

#if defined(TND_GPU_EMU)
template <class MAP>
constexpr auto waves = [](Stream& stream, const DeltaArgs&, DeltaChunkArgs c) {
  c.shared_per_block = kNarrow;
  launch_delta_prepare_on<DeltaWmma<MAP>>(stream, c);
  launch_delta_states_on<DeltaWmma<MAP>>(stream, c);
};
#endif

constexpr double kTolerance = 2e-5;  // of MODEL_qwen35.md

void check(const Data& d, const Truth& want, const Result& exact, const Result& got, const std::string& what) {
  const auto close = [&](const std::vector<float>& g, const std::vector<float>& e, const std::vector<double>& w,
                         const std::string& part) {
    const double mine = error(g, w), other = error(e, w);
    CHECK_MSG(mine <= kTolerance && mine <= d.c.times * other, what + ": " + part + ": " + std::to_string(mine * 1e6) +
                                                                   "e-6, recurrence " + std::to_string(other * 1e6) +
                                                                   "e-6");
  };
  close(got.mixed, exact.mixed, want.mixed, "outputs");
  for (size_t i = 0; i < d.c.counts.size(); ++i) {
    close(got.s[i], exact.s[i], want.s[i], "state of chain " + std::to_string(i));
    CHECK_MSG(same(got.taps[i], exact.taps[i]), what + ": taps");
  }
}

}  // namespace

TEST(outputs_and_states_are_as_close_as_those_of_the_recurrence) {
  struct Named {
    const char* name;
    Case c;
  };
  const Named cases[] = {
      {"65 rows", {.counts = {65}}},
      {"128 rows without a state", {.counts = {128}, .prior = false}},
      {"200 rows", {.shape = {2, 2}, .counts = {200}}},
      {"three chains", {.shape = {1, 1}, .counts = {70, 128, 65}}},
      {"hardly any decay", {.shape = {1, 1}, .counts = {200}, .least = 1e-7f, .most = 1e-5f}},
      {"decays to nothing", {.shape = {1, 1}, .counts = {130}, .least = 1e-3f, .most = 1e4f}},
      {"large values", {.shape = {1, 1}, .counts = {128}, .value_scale = 1e6f}},
      {"small values", {.shape = {1, 1}, .counts = {128}, .value_scale = 1e-9f}},
      // Here U and W S are alike and large, V' and o small: what the triangular form loses and the recurrence does not.
      {"one key", {.shape = {1, 1}, .counts = {128}, .least = 1e-4f, .most = 1e-2f, .one_key = true, .times = 32}},
  };
  uint64_t seed = 1;
  for (const Named& n : cases) {
    const Data d(n.c, seed++);
    const Truth want = truth(d);
    const Result exact = run(d, recurrence);
    check(d, want, exact, run(d, chunked(kWide)), n.name);
  }
}

// Rows in one piece and in two: the chunks of 64 begin elsewhere, results differ by rounding only.
TEST(pieces_of_a_prompt_agree) {
  const Data whole({.shape = {1, 1}, .counts = {612}}, 21);
  const Truth want = truth(whole);
  const Result one = run(whole, chunked(kWide));
  const auto rows = [&](const std::vector<float>& v, int first, int count) {
    const size_t width = v.size() / 612;
    return std::vector<float>(v.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(first) * width),
                              v.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(first + count) * width));
  };
  std::vector<float> mixed, state = whole.s[0], taps = whole.taps[0];
  for (const auto& [first, count] : {std::pair{0, 512}, {512, 100}}) {
    Data part = whole;
    part.c.counts = {count};
    part.n = count;
    for (auto* v : {&part.conv, &part.gates, &part.qkv, &part.alpha, &part.g}) *v = rows(*v, first, count);
    part.s = {state}, part.taps = {taps};
    const Result r = run(part, chunked(kWide));
    mixed.insert(mixed.end(), r.mixed.begin(), r.mixed.end());
    state = r.s[0], taps = r.taps[0];
  }
  CHECK(same(taps, one.taps[0]));
  CHECK(error(one.mixed, want.mixed) <= kTolerance && error(mixed, want.mixed) <= kTolerance);
  CHECK(error(one.s[0], want.s[0]) <= kTolerance && error(state, want.s[0]) <= kTolerance);
}

// Rings of three places and of seven; and in the emulation, whose instructions all add in
// the same order, all families.
TEST(rings_and_instructions_do_not_matter) {
  const Data d({.shape = {1, 1}, .counts = {200}}, 22);
  const Result a = run(d, chunked(kWide)), b = run(d, chunked(kNarrow));
  CHECK(same(a.mixed, b.mixed) && same(a.s[0], b.s[0]));
#if defined(TND_GPU_EMU)
  for (const Result& w : {run(d, waves<Wmma11>), run(d, waves<Wmma12>)}) {
    CHECK(same(a.mixed, w.mixed) && same(a.s[0], w.s[0]));
  }
#endif
}

// Infinite decays, numbers that are none: rows before them and other chains are as if they were not there.
TEST(what_is_not_finite_stays_behind_its_row) {
  const Data d({.shape = {1, 1}, .counts = {70, 66}}, 23);
  Data broken = d;
  broken.alpha[10] = INFINITY;  // e^-inf: the state is forgotten, nothing else
  broken.conv[static_cast<size_t>(64 * d.c.shape.conv_dim() + 2 * d.c.shape.key_dim())] = NAN;
  broken.g[10] = -INFINITY;
  const Result clean = run(d, chunked(kWide)), got = run(broken, chunked(kWide));
  const Truth want = truth(broken);
  const size_t width = kDeltaDim;
  const std::vector<float> before(got.mixed.begin(), got.mixed.begin() + 64 * kDeltaDim);
  CHECK(error(before, {want.mixed.begin(), want.mixed.begin() + 64 * kDeltaDim}) <= kTolerance);
  CHECK(std::equal(got.mixed.begin() + static_cast<ptrdiff_t>(70 * width), got.mixed.end(),
                   clean.mixed.begin() + static_cast<ptrdiff_t>(70 * width)));
  CHECK(same(got.s[1], clean.s[1]));
}

// Groups of decoding are not for the chunked form, however long; those of prompts go in as many rounds as it takes.
TEST(plans_take_prompts_as_far_as_there_is_room) {
  std::vector<DeltaGroup> groups(5);
  const int counts[] = {64, 65, 300, 200, 130};
  for (int i = 0, first = 0; i < 5; first += counts[i++]) {
    groups[static_cast<size_t>(i)] = {first, counts[i], i != 3, nullptr, nullptr, nullptr, i != 3 && i != 0};
  }
  CHECK(delta_chunk_capacity(1) == 1 && delta_chunk_capacity(64) == 1 && delta_chunk_capacity(65) == 2 &&
        delta_chunk_capacity(512) == 8);
  DeltaChunks plan;
  CHECK(plan.plan(groups, 0, 8) == 4);
  CHECK(plan.chains.size() == 2 && plan.chunks.size() == 7);
  CHECK(plan.chains[1].group == 2 && plan.chains[1].first == 2 && plan.chains[1].count == 5);
  CHECK(plan.chunks[1].first == 64 + 64 && plan.chunks[1].count == 1 && plan.chunks[6].count == 300 - 4 * 64);
  CHECK(plan.plan(groups, 4, 8) == 5);
  CHECK(plan.chains.size() == 1 && plan.chunks.size() == 3 && plan.chunks[0].first == 64 + 65 + 300 + 200);
  CHECK(plan.plan(groups, 5, 8) == 5 && plan.chains.empty());
}

TEST_MAIN()
