// The causal convolution: golden vectors, the walk over a tree, saved taps; all instruction sets.
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

std::vector<const RowKernels*> tables() {
  std::vector<const RowKernels*> t{&kRowKernelsScalar};
#if defined(__x86_64__)
  if (isa_best() >= Isa::kAvx2) t.push_back(&kRowKernelsAvx2);
  if (isa_best() >= Isa::kAvx512) t.push_back(&kRowKernelsAvx512);
#endif
  return t;
}

// Sixteen equal channels.
std::vector<float> channels(float v) {
  return std::vector<float>(16, v);
}

}  // namespace

TEST(golden_taps) {
  std::vector<float> w;
  for (const float tap : {.1f, .2f, .3f, .4f}) w.insert(w.end(), 16, tap);
  for (const RowKernels* t : tables()) {
    float y[16];
    t->conv_silu(channels(1).data(), channels(2).data(), channels(3).data(), channels(4).data(), w.data(), 16, 16, y);
    for (const float v : y) CHECK_NEAR(v, 2.85772238, 1e-6);
  }
}

// Tree of the worked example: parents -1 0 1 0 2, old state .1 .2 .3, inputs 1..5, taps .5 -.25 1 2.
TEST(golden_tree) {
  const int32_t parents[] = {-1, 0, 1, 0, 2};
  int32_t order[5], parent_in_order[5];
  DeltaRow rows[5];
  TreePlanner planner(5);
  planner.plan(parents, order, parent_in_order, rows);
  constexpr double kWant[] = {2.090417, 4.992193, 7.897072, 9.023914, 12.999971};
  constexpr float kSaved[] = {.1f, .2f, .3f};
  std::vector<float> w;
  for (const float tap : {.5f, -.25f, 1.f, 2.f}) w.insert(w.end(), 16, tap);
  for (const RowKernels* t : tables()) {
    for (int i = 0; i < 5; ++i) {
      const auto input = [&](int32_t index) {
        return channels(index >= 0 ? static_cast<float>(order[index] + 1) : kSaved[3 + index]);
      };
      float y[16];
      t->conv_silu(input(rows[i].taps[2]).data(), input(rows[i].taps[1]).data(), input(rows[i].taps[0]).data(),
                   input(i).data(), w.data(), 16, 16, y);
      CHECK_NEAR(y[0], kWant[order[i]], 2e-6);
    }
  }
}

TEST(planner_orders_and_schedules) {
  Rng rng(5);
  TreePlanner planner(128);
  for (int round = 0; round < 300; ++round) {
    const int n = 1 + static_cast<int>(rng.below(128));
    std::vector<int32_t> parents(static_cast<size_t>(n));
    const uint64_t back = 1 + rng.below(static_cast<uint64_t>(n));
    for (int i = 0; i < n; ++i) {
      const uint64_t reach = std::min<uint64_t>(back, static_cast<uint64_t>(i) + 1);
      parents[static_cast<size_t>(i)] = i - 1 - static_cast<int32_t>(rng.below(reach));
    }
    std::vector<int32_t> order(parents.size()), up(parents.size());
    std::vector<DeltaRow> rows(parents.size());
    planner.plan(parents, order.data(), up.data(), rows.data());
    // Walk the schedule with row ids as states: every row must find its parent's state where it is told.
    std::vector<int32_t> slots(static_cast<size_t>(TreePlanner::saved_states(n)), -7);
    std::vector<bool> seen(parents.size(), false);
    for (int i = 0; i < n; ++i) {
      const size_t at = static_cast<size_t>(i);
      const int32_t row = order[at], parent = parents[static_cast<size_t>(row)];
      CHECK(!seen[static_cast<size_t>(row)]);
      seen[static_cast<size_t>(row)] = true;
      CHECK_EQ(up[at] < 0 ? -1 : order[static_cast<size_t>(up[at])], parent);
      CHECK(up[at] < i);
      CHECK_EQ(rows[at].taps[0], up[at]);
      const int32_t state = rows[at].state_in == kStateCommitted ? -1 : slots[static_cast<size_t>(rows[at].state_in)];
      CHECK_EQ(state, parent);
      if (rows[at].state_out == kStateNone) {
        for (const int32_t p : parents) CHECK(p != row);
      } else {
        REQUIRE(rows[at].state_out >= 0 && rows[at].state_out < TreePlanner::saved_states(n));
        slots[static_cast<size_t>(rows[at].state_out)] = row;
      }
    }
  }
}

TEST(matches_a_double_oracle_on_all_instruction_sets) {
  Rng rng(2);
  constexpr size_t kN = 1024, kStride = 1100;
  std::vector<float> m[4], w(4 * kStride);
  for (auto& v : m) {
    v.resize(kN);
    for (float& x : v) x = rng.normal();
  }
  for (float& x : w) x = rng.normal();
  std::vector<float> first(kN);
  for (const RowKernels* t : tables()) {
    std::vector<float> y(kN);
    t->conv_silu(m[0].data(), m[1].data(), m[2].data(), m[3].data(), w.data(), kStride, kN, y.data());
    if (t == &kRowKernelsScalar) first = y;
    CHECK(std::memcmp(first.data(), y.data(), kN * sizeof(float)) == 0);
  }
  for (size_t c = 0; c < kN; ++c) {
    double sum = 0;
    for (size_t tap = 0; tap < 4; ++tap) sum += static_cast<double>(w[tap * kStride + c]) * m[tap][c];
    CHECK_NEAR(first[c], sum / (1 + std::exp(-sum)), 2e-6 * (1 + std::fabs(sum)));
  }
}

TEST_MAIN()
