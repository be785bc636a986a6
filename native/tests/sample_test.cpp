// Token choice: generator, reductions, log-probabilities and the sampler against an independent slow implementation
// written from docs/sampling.md.
#include "cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "core/draw.h"
#include "cpu/cpu_features.h"
#include "cpu/math.h"
#include "cpu/row_kernels.h"
#include "harness.h"

using namespace tnd;
using namespace tnd::cpu;
using tnd::test::Rng;

namespace {

constexpr float kInf = __builtin_inff();

std::vector<const RowKernels*> tables() {
  std::vector<const RowKernels*> t{&kRowKernelsScalar};
#if defined(__x86_64__)
  if (isa_best() >= Isa::kAvx2) t.push_back(&kRowKernelsAvx2);
  if (isa_best() >= Isa::kAvx512) t.push_back(&kRowKernelsAvx512);
#endif
  return t;
}

struct Scratch {
  explicit Scratch(int64_t vocab) : memory(SampleScratch::bytes(vocab) / 4 + 64) {
    void* p = memory.data();
    uint64_t at = reinterpret_cast<uint64_t>(p);
    scratch.init(reinterpret_cast<void*>((at + 63) / 64 * 64), vocab);
  }
  std::vector<uint32_t> memory;
  SampleScratch scratch;
};

// The slow sampler: maps and sorted lists, one step of docs/sampling.md after the other.
int32_t slow_choice(const std::vector<float>& logits, const SamplerParams& s, const std::vector<int32_t>& window,
                    const std::vector<bool>& allowed, int32_t position) {
  std::vector<float> x = logits;
  for (size_t i = 0; i < s.bias_tokens.size(); ++i) x[static_cast<size_t>(s.bias_tokens[i])] += s.bias_values[i];
  std::map<int32_t, int> counts;
  for (const int32_t t : window) ++counts[t];
  for (const auto& [token, count] : counts) {
    float& v = x[static_cast<size_t>(token)];
    if (s.repetition_penalty != 1.0f) v = v > 0 ? v / s.repetition_penalty : v * s.repetition_penalty;
    v -= s.frequency_penalty * static_cast<float>(count);
    v -= s.presence_penalty;
  }
  std::vector<int32_t> ids;
  for (size_t i = 0; i < x.size(); ++i) {
    if (allowed[i]) ids.push_back(static_cast<int32_t>(i));
  }
  if (ids.empty()) return -1;
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)]; });
  if (s.temperature <= 0) return ids[0];
  const float max = x[static_cast<size_t>(ids[0])], t = std::max(s.temperature, 0.001f);
  if (s.top_k > 0 && static_cast<size_t>(s.top_k) < ids.size()) ids.resize(static_cast<size_t>(s.top_k));
  std::map<int32_t, float> w;  // ascending ids
  for (const int32_t id : ids)
    w[id] = exp_f32(t == 1.0f ? x[static_cast<size_t>(id)] - max : (x[static_cast<size_t>(id)] - max) / t);
  if (s.top_p < 1) {
    std::map<int32_t, double> sums;
    for (const auto& [id, v] : w) sums[id / 1024] += v;
    double total = 0;
    for (const auto& [block, sum] : sums) total += sum;
    const double wanted = static_cast<double>(s.top_p) * total;
    double sum = 0;
    size_t kept = 0;
    while (kept < ids.size() && (kept == 0 || sum < wanted)) sum += w[ids[kept++]];
    for (size_t i = kept; i < ids.size(); ++i) w.erase(ids[i]);
  }
  for (auto i = w.begin(); i != w.end();) i = i->second < s.min_p ? w.erase(i) : std::next(i);
  std::map<int32_t, double> blocks;
  for (const auto& [id, v] : w) blocks[id / 1024] += v;
  double total = 0;
  for (const auto& [block, v] : blocks) total += v;
  const double target = uniform_draw(s.seed, s.choice, position) * total;
  double before = 0;
  int32_t last = -1;
  for (const auto& [block, v] : blocks) {
    if (before + v > target) {
      double running = 0;
      for (const auto& [id, weight] : w) {
        if (id / 1024 != block || weight == 0) continue;
        running += weight;
        last = id;
        if (before + running > target) return id;
      }
    }
    before += v;
  }
  return last;
}

}  // namespace

// Known answers published with the generator's reference code.
TEST(philox_known_answers) {
  struct Case {
    uint32_t counter[4], key[2], want[4];
  };
  constexpr Case kCases[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Case& c : kCases) {
    uint32_t out[4];
    philox4x32(c.counter, c.key, out);
    for (int i = 0; i < 4; ++i) CHECK_EQ(out[i], c.want[i]);
  }
  // The examples of docs/sampling.md.
  std::printf("uniform_draw(0,0,0) = %.17g, (42,0,7) = %.17g, (0x123456789abcdef,3,100) = %.17g\n",
              uniform_draw(0, 0, 0), uniform_draw(42, 0, 7), uniform_draw(0x123456789abcdefu, 3, 100));
  double sum = 0;
  for (int i = 0; i < 100000; ++i) {
    const double u = uniform_draw(5, 1, i);
    CHECK(u >= 0 && u < 1);
    sum += u;
  }
  CHECK_NEAR(sum / 100000, 0.5, 0.005);
}

TEST(reductions_on_all_instruction_sets) {
  Rng rng(8);
  for (const int64_t n : {1, 5, 16, 17, 512, 1023, 1024, 1025, 8192, 20001}) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = std::round(rng.normal() * 20) / 4;  // many ties
    if (n > 20) x[7] = kInf * 0 /* NaN */, x[11] = -kInf;
    // Oracle: stable order by value, NaN last.
    std::vector<int32_t> order(x.size());
    for (size_t i = 0; i < x.size(); ++i) order[i] = static_cast<int32_t>(i);
    const auto key = [&](int32_t i) {
      const float v = x[static_cast<size_t>(i)];
      return v == v ? v : -kInf;
    };
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) > key(b); });
    const float max = key(order[0]);
    double sum = 0;
    for (const float v : x) sum += v == v ? std::exp(static_cast<double>(v) - max) : 0;
    std::vector<float> sums, first_weights;
    for (const RowKernels* t : tables()) {
      int32_t at = -1;
      CHECK_EQ(t->argmax(x.data(), n, &at), max);
      CHECK_EQ(at, order[0]);
      const int k = static_cast<int>(std::min<int64_t>(n, 40));
      std::vector<int32_t> ids(static_cast<size_t>(k));
      std::vector<float> values(static_cast<size_t>(k));
      t->top_k(x.data(), n, k, ids.data(), values.data());
      for (int i = 0; i < k; ++i) CHECK_EQ(ids[static_cast<size_t>(i)], order[static_cast<size_t>(i)]);
      std::vector<float> clean = x;
      for (float& v : clean) v = v == v ? v : -kInf;
      sums.push_back(t->sum_exp(clean.data(), n, max, 1.0f));
      CHECK_NEAR(sums.back(), sum, 1e-5 * sum);
      CHECK_EQ(sums.back(), sums.front());
      const float hot = t->sum_exp(clean.data(), n, max, 2.0f);
      CHECK(hot >= sums.back());
      std::vector<float> w(x.size());
      t->exp_scaled(clean.data(), n, max, 0.7f, w.data());
      if (first_weights.empty()) first_weights = w;
      CHECK(first_weights == w);
    }
  }
  float all[16];
  std::fill(all, all + 16, -kInf);
  for (const RowKernels* t : tables()) {
    int32_t at = -1;
    CHECK_EQ(t->argmax(all, 16, &at), -kInf);
    CHECK_EQ(at, 0);
  }
}

TEST(sampler_matches_the_slow_one) {
  Rng rng(9);
  const std::vector<float> temperatures{0, 0.0001f, 0.3f, 1, 1.7f}, top_ps{1, 0.95f, 0.5f, 0.01f},
      min_ps{0, 0.05f, 0.9f};
  const std::vector<int> top_ks{0, 1, 5, 50, 5000};
  for (int round = 0; round < 1500; ++round) {
    const size_t vocab = round % 3 == 0 ? 40 : round % 3 == 1 ? 1500 : 4100;
    std::vector<float> logits(vocab);
    const float spread = rng.below(2) == 0 ? 1.0f : 6.0f;
    for (float& v : logits) v = rng.below(4) == 0 ? std::round(rng.normal() * spread) : rng.normal() * spread;
    SamplerParams s;
    s.temperature = temperatures[rng.below(5)];
    s.top_k = top_ks[rng.below(5)];
    s.top_p = top_ps[rng.below(4)];
    s.min_p = min_ps[rng.below(3)];
    if (rng.below(2) == 0) {
      s.repetition_penalty = 1.3f;
      s.frequency_penalty = 0.3f;
      s.presence_penalty = -0.2f;
    }
    s.seed = rng.next();
    s.choice = static_cast<int32_t>(rng.below(3));
    std::vector<int32_t> bias_tokens;
    std::vector<float> bias_values;
    for (uint64_t i = rng.below(4); i > 0; --i) {
      bias_tokens.push_back(static_cast<int32_t>(rng.below(vocab)));
      bias_values.push_back(rng.uniform(-5, 5));
    }
    s.bias_tokens = bias_tokens;
    s.bias_values = bias_values;
    std::vector<int32_t> window(rng.below(30));
    for (int32_t& t : window) t = static_cast<int32_t>(rng.below(std::min<size_t>(vocab, 60)));
    std::vector<TokenCount> history;
    for (const int32_t t : window) {
      auto at = std::find_if(history.begin(), history.end(), [&](const TokenCount& h) { return h.token == t; });
      if (at == history.end()) {
        history.push_back({t, 1});
      } else {
        ++at->count;
      }
    }
    const bool plain = s.repetition_penalty == 1.0f && s.frequency_penalty == 0 && s.presence_penalty == 0;
    std::vector<bool> allowed(vocab, true);
    std::vector<uint32_t> mask((vocab + 31) / 32, ~0u), never((vocab + 31) / 32, 0u);
    const bool use_mask = rng.below(3) == 0, use_never = rng.below(2) == 0;
    for (size_t i = 0; i < vocab; ++i) {
      if (use_mask && rng.below(3) != 0) {
        mask[i / 32] &= ~(1u << (i % 32));
        allowed[i] = false;
      }
      if (use_never && rng.below(50) == 0) {
        never[i / 32] |= 1u << (i % 32);
        allowed[i] = false;
      }
    }
    HeadRow row;
    row.sampler = &s;
    if (!plain) row.history = history;
    row.mask = use_mask ? mask.data() : nullptr;
    row.output_position = static_cast<int32_t>(rng.below(1000)) - 5;
    Scratch scratch(static_cast<int64_t>(vocab));
    const std::vector<float> before = logits;
    const int32_t got = choose_token(logits.data(), static_cast<int64_t>(vocab), row,
                                     use_never ? never.data() : nullptr, &scratch.scratch);
    const int32_t want = slow_choice(logits, s, plain ? std::vector<int32_t>() : window, allowed, row.output_position);
    CHECK_MSG(got == want,
              "round " + std::to_string(round) + ": " + std::to_string(got) + " against " + std::to_string(want));
    CHECK(before == logits);
  }
}

// Large vocabularies, where nucleus and top_k are found by selection: flat, steep and level rows, ties across the cut,
// goals that rounding decides (level rows and top_p of 0.5), and values too large for the temperature's buckets.
TEST(selection_matches_the_slow_one) {
  Rng rng(17);
  const std::vector<float> top_ps{1, 0.999999f, 0.95f, 0.5f, 1e-6f}, temperatures{1, 0.7f, 0.001f, 5};
  const std::vector<int> top_ks{0, 256, 257, 1000, 20000, 1 << 20};
  for (int round = 0; round < 240; ++round) {
    const size_t vocab = round == 0 ? 151936 : 20000 + rng.below(5000);
    std::vector<float> logits(vocab);
    const uint64_t kind = rng.below(6);
    const float offset = kind == 5 ? 3e6f : 0.0f;
    for (size_t i = 0; i < vocab; ++i) {
      float v = rng.normal();
      if (kind == 1) v += 18 - 2 * std::log(static_cast<float>((i * 7919) % vocab + 1));
      if (kind == 2) v = 1.5f;
      if (kind == 3) v = std::round(v * 4) / 4;
      if (kind == 4) v = v > 0 ? 0.0f : -0.0f;
      logits[i] = v + offset;
    }
    SamplerParams s;
    s.temperature = temperatures[rng.below(4)];
    s.top_p = top_ps[rng.below(5)];
    s.top_k = top_ks[rng.below(6)];
    s.min_p = rng.below(3) == 0 ? 0.2f : 0.0f;
    s.seed = rng.next();
    std::vector<bool> allowed(vocab, true);
    std::vector<uint32_t> mask((vocab + 31) / 32, ~0u);
    const bool use_mask = rng.below(3) == 0;
    for (size_t i = 0; use_mask && i < vocab; ++i) {
      if (rng.below(2) == 0) continue;
      mask[i / 32] &= ~(1u << (i % 32));
      allowed[i] = false;
    }
    HeadRow row;
    row.sampler = &s;
    row.mask = use_mask ? mask.data() : nullptr;
    row.output_position = round;
    Scratch scratch(static_cast<int64_t>(vocab));
    const int32_t got = choose_token(logits.data(), static_cast<int64_t>(vocab), row, nullptr, &scratch.scratch);
    const int32_t want = slow_choice(logits, s, {}, allowed, row.output_position);
    CHECK_MSG(got == want, "round " + std::to_string(round) + ", kind " + std::to_string(kind) + ": " +
                               std::to_string(got) + " against " + std::to_string(want));
  }
}

// 200,000 draws at temperature 1 follow the softmax (chi-square, 9 degrees of freedom, 0.1 % limit 27.9).
TEST(draws_follow_the_distribution) {
  const std::vector<float> logits{0, 1, 2, 0.5f, -1, 1.5f, 0.25f, -2, 0.75f, 1.25f};
  double total = 0;
  for (const float v : logits) total += std::exp(static_cast<double>(v));
  SamplerParams s;
  s.temperature = 1;
  s.seed = 99;
  HeadRow row;
  row.sampler = &s;
  Scratch scratch(10);
  std::vector<int> counts(10, 0);
  constexpr int kDraws = 200000;
  for (int i = 0; i < kDraws; ++i) {
    row.output_position = i;
    ++counts[static_cast<size_t>(choose_token(logits.data(), 10, row, nullptr, &scratch.scratch))];
  }
  double chi = 0;
  for (size_t i = 0; i < 10; ++i) {
    const double want = kDraws * std::exp(static_cast<double>(logits[i])) / total;
    chi += (counts[i] - want) * (counts[i] - want) / want;
  }
  CHECK_MSG(chi < 27.9, std::to_string(chi));
}

TEST(log_probabilities) {
  Rng rng(10);
  std::vector<float> logits(3000);
  for (float& v : logits) v = rng.normal() * 4;
  for (const float t : {1.0f, 0.5f, 2.0f}) {
    const LogSoftmax log_softmax(logits.data(), 3000, t);
    double sum = 0;
    for (const float v : logits) sum += std::exp(static_cast<double>(v) / t);
    for (size_t i = 0; i < 3000; i += 97) CHECK_NEAR(log_softmax(logits[i]), logits[i] / t - std::log(sum), 2e-5);
  }
  HeadRow row;  // nothing allowed
  std::vector<uint32_t> none(94, 0u);
  row.mask = none.data();
  int32_t token = 5;
  float logprob = 1;
  row.token = &token;
  row.logprob = &logprob;
  Scratch scratch(3000);
  finish_row(logits.data(), 3000, row, nullptr, &scratch.scratch);
  CHECK_EQ(token, -1);
  CHECK_EQ(logprob, -kInf);
}

TEST_MAIN()
