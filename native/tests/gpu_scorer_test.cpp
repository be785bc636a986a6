// The prompt scorer on a GPU backend against the CPU: the same bits where attention has the CPU's contract, close
// scores and the same ranks where it uses matrix units; chunks, memory and errors of the role.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cpu/backend.h"
#include "cpu/cpu_features.h"
#include "harness.h"
#include "models/scorer.h"
#include "roles/roles.h"
#include "scorer_util.h"
#include "synthetic_model.h"

using namespace tnd;
using namespace tnd::test;

namespace {

using bench::Mix;
using bench::SyntheticModel;

constexpr int kMaxTokens = 300;

std::unique_ptr<SyntheticModel> small_model(int head_dim, Mix mix) {
  bench::SyntheticShape s;
  s.arch = "qwen3";
  s.name = "small scorer";
  s.mix = mix;
  s.layers = 3;
  s.hidden = 64;
  s.ffn = 96;
  s.q_heads = 4;
  s.kv_heads = 2;
  s.head_dim = s.rope_dims = head_dim;
  s.vocab = 96;
  s.tied = true;
  s.rope_theta = 1e4f;
  s.context_length = 2048;
  std::unique_ptr<SyntheticModel> model;
  CHECK_OK(SyntheticModel::make(s, 1, &model));
  return model;
}

std::unique_ptr<Backend> gpu_backend() {
  std::unique_ptr<Backend> backend;
  CHECK_OK(make_backend(nullptr, 1, &backend));
  return backend;
}
std::unique_ptr<Backend> cpu_backend() {
  return std::make_unique<cpu::CpuBackend>(2);
}

// A model with a backend of its own, as an engine has it.
struct Scorer {
  std::unique_ptr<Backend> backend;
  HParams p;
  std::unique_ptr<ScorerModel> model;
  void* region = nullptr;
  Stats stats;

  Scorer(const std::string& path, std::unique_ptr<Backend> device, int32_t chunk, int32_t max_tokens = kMaxTokens)
      : backend(std::move(device)) {
    std::unique_ptr<gguf::File> file;
    CHECK_OK(gguf::File::open(path.c_str(), &file));
    CHECK_OK(read_hparams(*file, &p));
    Arena arena;
    for (int pass = 0; pass < 2; ++pass) {
      WeightLoader w(*file, *backend, arena);
      model = std::make_unique<ScorerModel>(p, *backend);
      CHECK_OK(model->load(w, arena, {max_tokens, 8, chunk}));
      if (pass == 1) break;
      CHECK_OK(backend->allocate(arena.total(), &region));
      arena = Arena(region, arena.total());
    }
  }
  std::vector<float> score(const std::vector<int32_t>& ids, const std::vector<int32_t>& query, bool rotated) {
    std::vector<float> s(ids.size(), -1.0f);
    CHECK_OK(model->score(ids, query, rotated, nullptr, &stats, s.data()));
    return s;
  }
};

// The CPU's float32 attention over F16 keys and values, without the coarser one of AVX-512.
struct PlainCpu {
  PlainCpu() { cpu::isa_force(std::min(cpu::isa_best(), cpu::Isa::kAvx2)); }
  ~PlainCpu() { cpu::isa_force(cpu::isa_best()); }
};

std::vector<int32_t> random_ids(int n, int vocab, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab)));
  return ids;
}

std::vector<int32_t> range(int first, int n) {
  std::vector<int32_t> r(static_cast<size_t>(n));
  std::iota(r.begin(), r.end(), first);
  return r;
}

// Rank of every chunk of `size` positions by its mean score.
std::vector<int> ranks(const std::vector<float>& s, int size) {
  std::vector<double> mean;
  for (size_t c = 0; c < s.size(); c += static_cast<size_t>(size)) {
    const size_t n = std::min(static_cast<size_t>(size), s.size() - c);
    mean.push_back(std::accumulate(&s[c], &s[c] + n, 0.0) / static_cast<double>(n));
  }
  std::vector<int> rank(mean.size());
  for (size_t i = 0; i < mean.size(); ++i) {
    rank[i] = static_cast<int>(std::count_if(mean.begin(), mean.end(), [&](double m) { return m > mean[i]; }));
  }
  return rank;
}

// Spearman's rank correlation. Of twenty chunks or fewer, 0.999 means that none changed its rank.
double rank_correlation(const std::vector<int>& a, const std::vector<int>& b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += double(a[i] - b[i]) * (a[i] - b[i]);
  const double n = static_cast<double>(a.size());
  return 1 - 6 * squares / (n * (n * n - 1));
}

// Largest difference as a share of the largest score.
double difference(const std::vector<float>& got, const std::vector<float>& want) {
  double most = 0, top = 0;
  for (size_t j = 0; j < want.size(); ++j) {
    most = std::max(most, static_cast<double>(std::fabs(got[j] - want[j])));
    top = std::max(top, static_cast<double>(want[j]));
  }
  return most / top;
}

const std::vector<std::vector<int32_t>> kQueries = {range(142, 8), range(60, 3), {0, 15, 16, 149}};

// Heads of 32 have attention of the CPU's contract on every device: all of a score has one set of bits.
TEST(bits_of_the_cpu) {
  const auto file = small_model(32, Mix::kQ8_0);
  const auto ids = random_ids(150, 96, 2);
  const PlainCpu cpu;
  Scorer got(file->path(), gpu_backend(), 64), want(file->path(), cpu_backend(), 48);
  for (const auto& query : kQueries) {
    for (const bool rotated : {false, true}) {
      const auto a = got.score(ids, query, rotated), b = want.score(ids, query, rotated);
      CHECK_MSG(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0, std::to_string(difference(a, b)));
      CHECK(*std::max_element(b.begin(), b.end()) > 0);
    }
  }
}

// Heads of 64 and 128 use matrix units of halves: the rounding of a half in a score, nothing in a chunk's size. The CPU
// multiplies quantised weights with inputs of eight bits, a prompt on a GPU may do better: that is most of what they
// differ by.
TEST(close_to_the_cpu_with_matrix_units) {
  for (const auto& [dim, mix] : {std::pair(64, Mix::kQ8_0), {128, Mix::kBF16}}) {
    const auto file = small_model(dim, mix);
    const auto ids = random_ids(150, 96, 3);
    const PlainCpu cpu;
    Scorer want(file->path(), cpu_backend(), 64);
    for (const bool rotated : {false, true}) {
      std::vector<float> first;
      for (const int chunk : {75, 160}) {  // a last chunk of 64 rows or fewer would be no prompt to products
        Scorer s(file->path(), gpu_backend(), chunk);
        const auto got = s.score(ids, kQueries[0], rotated);
        if (first.empty()) first = got;
        CHECK_MSG(std::memcmp(first.data(), got.data(), got.size() * sizeof(float)) == 0, std::to_string(chunk));
      }
      const auto plain = want.score(ids, kQueries[0], rotated);
      const double off = difference(first, plain);
      std::fprintf(stderr, "heads of %d%s: largest difference %.2e of the largest score\n", dim,
                   rotated ? ", rotated" : "", off);
      CHECK_MSG(off < (mix == Mix::kQ8_0 ? 0.02 : 0.004), std::to_string(off));
      CHECK(rank_correlation(ranks(first, 16), ranks(plain, 16)) > 0.999);
    }
  }
}

// The demonstration scorer ranks the chunks of a prompt as on the CPU.
TEST(ranks_of_the_demonstration_scorer) {
#if defined(TND_GPU_EMU)
  constexpr int kTokens = 160, kChunk = 16;
#else
  constexpr int kTokens = 4000, kChunk = 32;
#endif
  const std::string path = TND_ROOT "/models/tandem-tiny-prefill-q8_0.gguf";
  const auto ids = random_ids(kTokens, 8000, 4);
  const PlainCpu cpu;
  Scorer got(path, gpu_backend(), 1024, kTokens), want(path, cpu_backend(), 1024, kTokens);
  const auto query = range(kTokens - 8, 8);
  const auto a = got.score(ids, query, false), b = want.score(ids, query, false);
  const double off = difference(a, b);
  std::fprintf(stderr, "%d tokens: largest difference %.2e of the largest score\n", kTokens, off);
  // The CPU's inputs of eight bits again; what counts is the order.
  CHECK_MSG(off < 0.04, std::to_string(off));
  const double rho = rank_correlation(ranks(a, kChunk), ranks(b, kChunk));
  CHECK_MSG(rho > 0.999, std::to_string(rho));
}

// The role opens on the device, keeps to its cap, and says what does not fit.
TEST(role_checks_and_memory) {
  const auto file = small_model(64, Mix::kQ8_0);
  auto gpu = gpu_backend();
  std::atomic<bool> cancel{false};
  Stats stats;
  OpenContext c;
  c.options.max_sequences = 1;
  c.options.max_context = 600;
  c.model_path = file->path();
  c.memory_cap = uint64_t{1} << 30;
  c.backend = gpu.get();
  c.cancel = &cancel;
  c.stats = &stats;
  std::unique_ptr<ScoreEngine> role;
  CHECK_OK(open_score(c, &role));
  REQUIRE(role != nullptr);
  std::vector<tnd_stat> memory;
  role->memory(&memory);
  uint64_t total = 0;
  for (const tnd_stat& m : memory) total += m.value;
  const auto ids = random_ids(40, 96, 1);
  std::vector<float> scores(ids.size(), -1.0f);
  CHECK_OK(score_one(*role, ids, range(32, 8), 0, scores.data()));
  for (const float s : scores) CHECK(s >= 0 && s <= 1);
  const Status longer = score_one(*role, random_ids(601, 96, 1), range(0, 1), 0, scores.data());
  CHECK_EQ(longer.code(), TND_RESOURCE_EXHAUSTED);
  CHECK_MSG(longer.message().find("601 tokens") != std::string::npos &&
                longer.message().find("600 (max_context)") != std::string::npos,
            longer.message());
  CHECK_EQ(score_one(*role, ids, range(33, 8), 0, scores.data()).code(), TND_INVALID_ARGUMENT);
  cancel = true;
  CHECK_EQ(score_one(*role, ids, range(32, 8), 0, scores.data()).code(), TND_CANCELED);
  cancel = false;  // what a cancelled call left behind does not reach the next one
  std::vector<float> again(ids.size());
  CHECK_OK(score_one(*role, ids, range(32, 8), 0, again.data()));
  CHECK(again == scores);
  role.reset();

  gpu = gpu_backend();
  c.backend = gpu.get();
  c.memory_cap = total - 1;
  const Status s = open_score(c, &role);
  CHECK_EQ(s.code(), TND_RESOURCE_EXHAUSTED);
  CHECK_MSG(s.message().find("prompts of 600 tokens") != std::string::npos &&
                s.message().find("the cap is " + std::to_string(total - 1)) != std::string::npos,
            s.message());
  c.options.max_context = 0;  // as many as fit
  CHECK_OK(open_score(c, &role));
  REQUIRE(role != nullptr);
  tnd_info info{};
  role->info(&info);
  CHECK(info.max_context >= 256 && info.max_context < 600);
  memory.clear();
  role->memory(&memory);
  uint64_t used = 0;
  for (const tnd_stat& m : memory) used += m.value;
  CHECK(used <= c.memory_cap);
}

}  // namespace

TEST_MAIN()
