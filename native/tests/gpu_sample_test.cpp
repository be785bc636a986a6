// Head of the GPU backend against the CPU's: tokens, log-probabilities, top lists, scores and logits by memcmp, for
// every combination of sampler settings. The head's weight holds the wanted logits as columns and the inputs are unit
// vectors, so that both backends choose from the same given logits.
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "core/backend.h"
#include "core/tensor_view.h"
#include "cpu/backend.h"
#include "harness.h"

using namespace tnd;
using tnd::test::Rng;

namespace {

constexpr int kRows = 32;  // = inputs of the weight
constexpr float kInf = std::numeric_limits<float>::infinity();

// Side is one backend with a weight [vocab, kRows] and unit vectors as inputs.
struct Side {
  Backend* backend;
  void* region = nullptr;
  float* x = nullptr;
  std::unique_ptr<Matrix> weight;

  Side(Backend* b, const std::vector<float>& columns, int64_t vocab, int head_rows) : backend(b) {
    TensorView t;
    t.name = "output.weight";
    t.type = static_cast<uint32_t>(DType::kF32);
    t.n_dims = 2;
    t.ne[0] = kRows;
    t.ne[1] = static_cast<uint64_t>(vocab);
    t.ne[2] = t.ne[3] = 1;
    t.data = columns.data();
    t.bytes = columns.size() * sizeof(float);
    const auto plan = [&](Arena& arena) {
      CHECK_OK(backend->matrix(t, arena, &weight));
      x = arena.take_array<float>(Purpose::kScratch, kRows * kRows);
      ScratchLimits limits;
      limits.rows = kRows;
      limits.head_rows = head_rows;
      limits.vocab = vocab;
      limits.max_k = kRows;
      limits.forms = backend->forms(*weight);
      limits.max_top_k = 1024;
      backend->plan_scratch(arena, limits);
    };
    Arena measured;
    plan(measured);
    CHECK_OK(backend->allocate(measured.total(), &region));
    Arena arena(region, measured.total());
    plan(arena);
    std::vector<float> unit(kRows * kRows, 0.0f);
    for (int i = 0; i < kRows; ++i) unit[static_cast<size_t>(i * kRows + i)] = 1.0f;
    backend->upload(x, unit.data(), kRows * kRows);
    CHECK_OK(backend->sync());
  }
  ~Side() { backend->release(region); }
  Side(const Side&) = delete;
};

struct Outputs {
  std::vector<int32_t> tokens, top_ids;
  std::vector<float> logprobs, scores, top_logprobs, logits;
};

// What is wanted of the rows, and the lists behind it.
struct Wants {
  std::vector<HeadRow> rows;
  std::vector<SamplerParams> samplers;
  std::vector<std::vector<int32_t>> bias_tokens;
  std::vector<std::vector<float>> bias_values;
  std::vector<std::vector<TokenCount>> histories;
  std::vector<std::vector<uint32_t>> masks;
};

Outputs run(Side* side, const Wants& wants, const std::vector<uint32_t>& never, int64_t vocab, int top_stride) {
  const size_t n = wants.rows.size();
  Outputs out;
  out.tokens.assign(n, -7);
  out.logprobs.assign(n, -7);
  out.scores.assign(n, -7);
  out.top_ids.assign(n * static_cast<size_t>(top_stride), -7);
  out.top_logprobs.assign(n * static_cast<size_t>(top_stride), -7);
  out.logits.assign(n * static_cast<size_t>(vocab), -7);
  std::vector<HeadRow> rows = wants.rows;
  for (size_t i = 0; i < n; ++i) {
    HeadRow& r = rows[i];
    if (r.token != nullptr) r.token = &out.tokens[i];
    if (r.logprob != nullptr) r.logprob = &out.logprobs[i];
    if (r.score != nullptr) r.score = &out.scores[i];
    if (r.logits != nullptr) r.logits = &out.logits[i * static_cast<size_t>(vocab)];
    if (r.top_k > 0) {
      r.top_ids = &out.top_ids[i * static_cast<size_t>(top_stride)];
      r.top_logprobs = &out.top_logprobs[i * static_cast<size_t>(top_stride)];
    }
  }
  HeadArgs args;
  args.x = side->x;
  args.w = side->weight.get();
  args.never = never.empty() ? nullptr : never.data();
  args.rows = rows;
  side->backend->head(args);
  CHECK_OK(side->backend->sync());
  return out;
}

template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

void compare(const Outputs& cpu, const Outputs& gpu, const Wants& wants, const std::string& name) {
  for (size_t i = 0; i < cpu.tokens.size(); ++i) {
    const SamplerParams& s = wants.samplers[i];
    CHECK_MSG(cpu.tokens[i] == gpu.tokens[i],
              name + " row " + std::to_string(i) + ": token " + std::to_string(gpu.tokens[i]) + " against " +
                  std::to_string(cpu.tokens[i]) + " (T " + std::to_string(s.temperature) + " top_k " +
                  std::to_string(s.top_k) + " top_p " + std::to_string(s.top_p) + " min_p " + std::to_string(s.min_p) +
                  ")");
  }
  CHECK_MSG(same(cpu.logprobs, gpu.logprobs), name);
  CHECK_MSG(same(cpu.scores, gpu.scores), name);
  CHECK_MSG(same(cpu.top_ids, gpu.top_ids), name);
  CHECK_MSG(same(cpu.top_logprobs, gpu.top_logprobs), name);
  CHECK_MSG(same(cpu.logits, gpu.logits), name);
}

// Shapes of logits: wide and narrow, with ties, flat, and with forbidden values in them.
std::vector<float> make_logits(Rng* rng, int64_t vocab) {
  std::vector<float> columns(static_cast<size_t>(vocab * kRows));
  for (int r = 0; r < kRows; ++r) {
    const int kind = r % 6;
    for (int64_t i = 0; i < vocab; ++i) {
      float v = rng->normal() * (kind == 0 ? 1.0f : 6.0f);
      if (kind == 2) v = std::round(v);
      if (kind == 3) v = 0.5f;
      if (kind == 4) v = std::round(v * 0.2f) * 0.0f;  // zeros of both signs
      if (kind == 5 && rng->below(3) == 0) v = -1e30f;
      columns[static_cast<size_t>(i * kRows + r)] = v;
    }
  }
  return columns;
}

Wants make_wants(Rng* rng, int64_t vocab, int top_stride) {
  const float temperatures[] = {0, 0.0001f, 0.3f, 1, 1.7f}, top_ps[] = {1, 0.95f, 0.5f, 0.01f},
              min_ps[] = {0, 0.05f, 0.9f};
  const int top_ks[] = {0, 1, 5, 50, 2000, 5000};
  static int32_t some_int;
  static float some_float;
  Wants w;
  w.rows.resize(kRows);
  w.samplers.resize(kRows);
  w.bias_tokens.resize(kRows);
  w.bias_values.resize(kRows);
  w.histories.resize(kRows);
  w.masks.resize(kRows);
  const auto token = [&] { return static_cast<int32_t>(rng->below(static_cast<uint64_t>(vocab))); };
  for (size_t i = 0; i < kRows; ++i) {
    HeadRow& r = w.rows[i];
    r.row = static_cast<int32_t>(kRows - 1 - i);
    SamplerParams& s = w.samplers[i];
    s.temperature = temperatures[rng->below(5)];
    s.top_p = top_ps[rng->below(4)];
    s.min_p = min_ps[rng->below(3)];
    s.top_k = top_ks[rng->below(6)];
    s.seed = rng->next();
    s.choice = static_cast<int32_t>(rng->below(3));
    if (rng->below(2) == 0) {
      s.repetition_penalty = 1.3f;
      s.frequency_penalty = 0.3f;
      s.presence_penalty = -0.2f;
      for (int32_t t = token(); t < vocab && w.histories[i].size() < 40; t += 1 + static_cast<int32_t>(rng->below(9))) {
        w.histories[i].push_back(TokenCount{t, 1 + static_cast<int32_t>(rng->below(4))});
      }
    }
    if (rng->below(3) == 0) {
      for (int j = 0; j < 20; ++j) {
        w.bias_tokens[i].push_back(j % 5 == 4 ? w.bias_tokens[i][static_cast<size_t>(j) / 2] : token());
        w.bias_values[i].push_back(rng->normal() * 4.0f);
      }
      s.bias_tokens = w.bias_tokens[i];
      s.bias_values = w.bias_values[i];
    }
    if (rng->below(3) == 0) {
      w.masks[i].assign(static_cast<size_t>(vocab + 31) / 32, 0);
      for (uint32_t& word : w.masks[i]) word = static_cast<uint32_t>(rng->next() & rng->next());
      w.masks[i][0] |= 2;
    }
    const uint64_t kind = rng->below(8);
    if (kind != 0) {
      r.token = &some_int;
      if (kind != 1) r.logprob = &some_float;
      r.sampler = kind == 2 ? nullptr : &s;
      r.history = w.histories[i];
      if (!w.masks[i].empty()) r.mask = w.masks[i].data();
      r.output_position = static_cast<int32_t>(rng->below(1000)) - 10;
    }
    if (rng->below(2) == 0) {
      r.score = &some_float;
      r.score_token = token();
    }
    if (rng->below(2) == 0) {
      r.top_k = 1 + static_cast<int32_t>(rng->below(static_cast<uint64_t>(std::min<int64_t>(top_stride, vocab))));
      r.top_temperature = rng->below(2) == 0 ? 1.0f : 0.7f;
    }
    if (rng->below(8) == 0) r.logits = &some_float;
  }
  return w;
}

void compare_heads(int64_t vocab, int rounds, int top_stride, uint64_t seed) {
  Rng rng(seed);
  std::unique_ptr<Backend> gpu;
  CHECK_OK(make_backend(nullptr, 2, &gpu));
  cpu::CpuBackend cpu(2);
  const std::vector<float> columns = make_logits(&rng, vocab);
  Side a(&cpu, columns, vocab, kRows), b(gpu.get(), columns, vocab, 20);
  for (int round = 0; round < rounds; ++round) {
    std::vector<uint32_t> never;
    if (round % 2 == 1) {
      never.assign(static_cast<size_t>(vocab + 31) / 32, 0);
      for (uint32_t& word : never) word = static_cast<uint32_t>(rng.next() & rng.next() & rng.next());
      never[0] &= ~2u;
    }
    const Wants wants = make_wants(&rng, vocab, top_stride);
    compare(run(&a, wants, never, vocab, top_stride), run(&b, wants, never, vocab, top_stride), wants,
            "vocab " + std::to_string(vocab) + " round " + std::to_string(round));
  }
}

TEST(heads_agree_small_vocabulary) {
  compare_heads(40, 6, 40, 1);
}
TEST(heads_agree_odd_vocabulary) {
  compare_heads(1500, 6, 64, 2);
}
TEST(heads_agree_long_lists) {
  compare_heads(4101, 4, 1024, 3);
}
TEST(heads_agree_many_blocks) {
  compare_heads(20000, 3, 64, 4);
}

// Nuclei of thousands of tokens: with ties at their end, with an end that rounding decides, and cut by top_k.
TEST(long_nuclei) {
  constexpr int64_t kVocab = 6000;
  Rng rng(5);
  std::vector<float> columns(kVocab * kRows);
  for (size_t i = 0; i < columns.size(); ++i) {
    const int kind = static_cast<int>(i % kRows) % 4;  // alike, three values, some thousand values, all different
    const float v = rng.normal();
    columns[i] = kind == 0   ? 0.25f
                 : kind == 1 ? std::round(v * 0.5f)
                 : kind == 2 ? std::round(v * 1000.0f) / 1000.0f
                             : v;
  }
  std::unique_ptr<Backend> gpu;
  CHECK_OK(make_backend(nullptr, 2, &gpu));
  cpu::CpuBackend cpu(2);
  Side a(&cpu, columns, kVocab, kRows), b(gpu.get(), columns, kVocab, kRows);
  int32_t some = 0;
  for (const float top_p : {0.5f, 0.50001f, 0.7f, 0.97f, 0.9999999f}) {
    Wants wants;
    wants.rows.resize(kRows);
    wants.samplers.resize(kRows);
    for (size_t i = 0; i < kRows; ++i) {
      SamplerParams& s = wants.samplers[i];
      s.temperature = i % 8 < 4 ? 1.0f : 1.7f;
      s.top_p = top_p;
      s.top_k = i < kRows / 2 ? 0 : 5000;
      s.min_p = i % 5 == 4 ? 0.3f : 0.0f;
      s.seed = 100 + i;
      wants.rows[i].row = static_cast<int32_t>(i);
      wants.rows[i].token = &some;
      wants.rows[i].sampler = &s;
      wants.rows[i].output_position = static_cast<int32_t>(i);
    }
    const Outputs of_cpu = run(&a, wants, {}, kVocab, 1), of_gpu = run(&b, wants, {}, kVocab, 1);
    compare(of_cpu, of_gpu, wants, "top_p " + std::to_string(top_p));
  }
}

// Nothing but -inf: the choice is token 0 when nothing was asked for but the largest logit, else -1.
TEST(no_finite_logit) {
  constexpr int64_t kVocab = 100;
  std::vector<float> columns(kVocab * kRows, 1.0f);
  std::unique_ptr<Backend> gpu;
  CHECK_OK(make_backend(nullptr, 1, &gpu));
  cpu::CpuBackend cpu(1);
  Side a(&cpu, columns, kVocab, kRows), b(gpu.get(), columns, kVocab, kRows);
  std::vector<uint32_t> never((kVocab + 31) / 32, ~0u);
  int32_t some = 0;
  Wants wants;
  wants.rows.resize(2);
  wants.samplers.resize(2);
  wants.samplers[1].temperature = 1;
  for (size_t i = 0; i < 2; ++i) {
    wants.rows[i].token = &some;
    wants.rows[i].sampler = &wants.samplers[i];
  }
  const Outputs of_cpu = run(&a, wants, never, kVocab, 1), of_gpu = run(&b, wants, never, kVocab, 1);
  CHECK_EQ(of_gpu.tokens[0], -1);
  CHECK_EQ(of_gpu.tokens[1], -1);
  compare(of_cpu, of_gpu, wants, "nothing allowed");
}

}  // namespace

TEST_MAIN()
