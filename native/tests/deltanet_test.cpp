// The gated delta rule: golden vectors, a double-precision oracle, tree schedule,
// replay of accepted rows, instruction sets.
#include <cmath>
#include <vector>

#include "cpu/cpu_features.h"
#include "cpu/row_kernels.h"
#include "harness.h"
#include "roles/tree.h"

using namespace tnd;
using namespace tnd::cpu;
using tnd::test::Rng;

namespace {

constexpr int kDim = 128, kCols = 32;

std::vector<const RowKernels*> tables() {
  std::vector<const RowKernels*> t{&kRowKernelsScalar};
#if defined(__x86_64__)
  if (isa_best() >= Isa::kAvx2) t.push_back(&kRowKernelsAvx2);
  if (isa_best() >= Isa::kAvx512) t.push_back(&kRowKernelsAvx512);
#endif
  return t;
}

// One slice of state: 128 key rows, 32 columns. Small cases live in its corner, the rest is zero.
using Slice = std::vector<float>;

struct Token {
  std::vector<float> q = std::vector<float>(kDim), k = std::vector<float>(kDim), v = std::vector<float>(kCols);
  float alpha = 0, beta = 0;
};

Token small_token(double q0, double q1, double k0, double k1, double v0, double v1, double g, double beta) {
  Token t;
  t.q[0] = static_cast<float>(q0);
  t.q[1] = static_cast<float>(q1);
  t.k[0] = static_cast<float>(k0);
  t.k[1] = static_cast<float>(k1);
  t.v[0] = static_cast<float>(v0);
  t.v[1] = static_cast<float>(v1);
  t.alpha = static_cast<float>(std::exp(g));
  t.beta = static_cast<float>(beta);
  return t;
}

Token random_token(Rng* rng) {
  Token t;
  double q = 0, k = 0;
  for (int i = 0; i < kDim; ++i) {
    t.q[static_cast<size_t>(i)] = rng->normal();
    t.k[static_cast<size_t>(i)] = rng->normal();
    q += t.q[static_cast<size_t>(i)] * t.q[static_cast<size_t>(i)];
    k += t.k[static_cast<size_t>(i)] * t.k[static_cast<size_t>(i)];
  }
  for (float& x : t.q) x = static_cast<float>(x / std::sqrt(q) * 0.08838834764831845);
  for (float& x : t.k) x = static_cast<float>(x / std::sqrt(k));
  for (float& x : t.v) x = rng->normal();
  t.alpha = rng->uniform(0.5f, 1.0f);
  t.beta = rng->uniform(0.0f, 1.0f);
  return t;
}

}  // namespace

TEST(golden_recurrence) {
  const Token tokens[] = {small_token(.6, .8, 1, 0, 1, 2, -.1, .5), small_token(1, 0, .6, .8, -1, .5, -.5, 1),
                          small_token(0, 1, .8, -.6, .25, 4, -2, .25)};
  constexpr double kD[][2] = {{.5, 1}, {-1.1819592, .1360816}, {.0542915, .983583}};
  constexpr double kO[][2] = {{.3, .6}, {-.40591019, .68817962}, {-.16054353, -.57541649}};
  constexpr double kS[][4] = {
      {.5, 1, 0, 0}, {-.40591019, .68817962, -.94556736, .10886528}, {-.01150077, .88000138, -.16054353, -.57541649}};
  for (const RowKernels* t : tables()) {
    Slice s(kDim * kCols);
    for (int i = 0; i < 3; ++i) {
      float d[kCols], o[kCols];
      t->delta_row(s.data(), s.data(), tokens[i].k.data(), tokens[i].q.data(), tokens[i].v.data(), tokens[i].alpha,
                   tokens[i].beta, 1, d, o);
      for (int c = 0; c < 2; ++c) {
        CHECK_NEAR(d[c], kD[i][c], 1e-6);
        CHECK_NEAR(o[c], kO[i][c], 1e-6);
        CHECK_NEAR(s[static_cast<size_t>(c)], kS[i][c], 1e-6);
        CHECK_NEAR(s[static_cast<size_t>(kCols + c)], kS[i][2 + c], 1e-6);
      }
    }
  }
}

TEST(golden_tree) {
  const int32_t parents[] = {-1, 0, 1, 0, 2};
  const double scale = 1 / std::sqrt(2.0);
  const auto token = [&](double q0, double q1, double k0, double k1, double v0, double v1, double g, double beta) {
    return small_token(q0 * scale, q1 * scale, k0, k1, v0, v1, g, beta);
  };
  const Token tokens[] = {token(1, 0, .6, .8, 1, 2, -.1, .5), token(.6, .8, 1, 0, .5, -1, -.2, .9),
                          token(0, 1, .8, .6, -1, 1, -.05, .7), token(.8, .6, 0, 1, 2, 0, -.3, .6),
                          token(.8, -.6, .6, -.8, .25, .75, -.15, .8)};
  constexpr double kO[][2] = {
      {0.474457, 0.501042}, {0.349195, -0.129193}, {-0.291059, 0.690085}, {0.826943, 0.358844}, {0.055541, 0.413587}};
  int32_t order[5], up[5];
  DeltaRow rows[5];
  TreePlanner planner(5);
  planner.plan(parents, order, up, rows);
  for (const RowKernels* t : tables()) {
    Slice committed(kDim * kCols);
    committed[0] = 0.5f;
    committed[kCols + 1] = -0.5f;
    const Slice before = committed;
    std::vector<Slice> saved(static_cast<size_t>(TreePlanner::saved_states(5)), Slice(kDim * kCols));
    for (int i = 0; i < 5; ++i) {
      const Token& k = tokens[order[i]];
      const float* in = rows[i].state_in < 0 ? committed.data() : saved[static_cast<size_t>(rows[i].state_in)].data();
      float* out = rows[i].state_out < 0 ? nullptr : saved[static_cast<size_t>(rows[i].state_out)].data();
      float o[kCols];
      t->delta_row(in, out, k.k.data(), k.q.data(), k.v.data(), k.alpha, k.beta, 1, nullptr, o);
      CHECK_NEAR(o[0], kO[order[i]][0], 1e-6);
      CHECK_NEAR(o[1], kO[order[i]][1], 1e-6);
    }
    CHECK(committed == before);
  }
}

// 300 tokens against double precision; replay of d gives the state bit for bit; all instruction sets agree.
TEST(recurrence_and_replay) {
  Rng rng(4);
  constexpr int kTokens = 300;
  std::vector<Token> tokens;
  for (int i = 0; i < kTokens; ++i) tokens.push_back(random_token(&rng));
  std::vector<double> exact(kDim * kCols);
  Slice first_state;
  std::vector<float> first_out;
  for (const RowKernels* t : tables()) {
    Slice s(kDim * kCols), replayed(kDim * kCols);
    std::vector<float> k, d, alpha, out;
    for (const Token& token : tokens) {
      float dd[kCols], o[kCols];
      Slice next(kDim * kCols);
      t->delta_row(s.data(), next.data(), token.k.data(), token.q.data(), token.v.data(), token.alpha, token.beta, 1,
                   dd, o);
      float unsaved[kCols];  // a leaf computes the same without keeping its state
      t->delta_row(s.data(), nullptr, token.k.data(), token.q.data(), token.v.data(), token.alpha, token.beta, 1,
                   nullptr, unsaved);
      CHECK(std::memcmp(o, unsaved, sizeof o) == 0);
      t->delta_row(s.data(), s.data(), token.k.data(), token.q.data(), token.v.data(), token.alpha, token.beta, 1,
                   nullptr, unsaved);
      CHECK(s == next);
      k.insert(k.end(), token.k.begin(), token.k.end());
      d.insert(d.end(), dd, dd + kCols);
      alpha.push_back(token.alpha);
      out.insert(out.end(), o, o + kCols);
      if (t != &kRowKernelsScalar) continue;
      for (int c = 0; c < kCols; ++c) {  // the rule as written: decay, read, correct, write, read out
        double m = 0;
        for (int i = 0; i < kDim; ++i) {
          exact[static_cast<size_t>(i * kCols + c)] *= token.alpha;
          m += exact[static_cast<size_t>(i * kCols + c)] * token.k[static_cast<size_t>(i)];
        }
        const double delta = token.beta * (token.v[static_cast<size_t>(c)] - m);
        double y = 0;
        for (int i = 0; i < kDim; ++i) {
          exact[static_cast<size_t>(i * kCols + c)] += token.k[static_cast<size_t>(i)] * delta;
          y += exact[static_cast<size_t>(i * kCols + c)] * token.q[static_cast<size_t>(i)];
        }
        CHECK_NEAR(o[c], y, 2e-6);
      }
    }
    std::vector<int32_t> rows;
    for (int i = 0; i < kTokens; ++i) rows.push_back(i);
    for (int at = 0; at < kTokens; at += 7) {  // accepted in pieces
      const int n = std::min(7, kTokens - at);
      t->delta_apply(replayed.data(), rows.data() + at, n, k.data(), kDim, d.data(), kCols, alpha.data(), 1);
    }
    CHECK(std::memcmp(s.data(), replayed.data(), s.size() * sizeof(float)) == 0);
    if (first_state.empty()) {
      first_state = s;
      first_out = out;
      for (size_t i = 0; i < s.size(); ++i) CHECK_NEAR(s[i], exact[i], 2e-6);
    }
    CHECK(std::memcmp(s.data(), first_state.data(), s.size() * sizeof(float)) == 0);
    CHECK(std::memcmp(out.data(), first_out.data(), out.size() * sizeof(float)) == 0);
  }
}

// Several slices in one call are the slices one by one.
TEST(slices_are_independent) {
  Rng rng(6);
  const Token token = random_token(&rng);
  constexpr int kSlices = 4;
  Slice s(kSlices * kDim * kCols);
  std::vector<float> v(kSlices * kCols);
  for (float& x : s) x = rng.normal();
  for (float& x : v) x = rng.normal();
  for (const RowKernels* t : tables()) {
    Slice whole = s, parts = s;
    std::vector<float> d(v.size()), o(v.size()), d2(v.size()), o2(v.size());
    t->delta_row(whole.data(), whole.data(), token.k.data(), token.q.data(), v.data(), token.alpha, token.beta, kSlices,
                 d.data(), o.data());
    for (int i = 0; i < kSlices; ++i) {
      float* part = parts.data() + i * kDim * kCols;
      t->delta_row(part, part, token.k.data(), token.q.data(), v.data() + i * kCols, token.alpha, token.beta, 1,
                   d2.data() + i * kCols, o2.data() + i * kCols);
    }
    CHECK(whole == parts && d == d2 && o == o2);
  }
}

TEST_MAIN()
