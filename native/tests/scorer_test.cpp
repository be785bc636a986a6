// The prompt scorer: the worked example of its formula, a double-precision model as oracle, chunks and threads, query
// rows anywhere, memory, and reference values of the demonstration model.
// testdata/scorer_needle.json: three prompts of tests/testdata/golden/tandem-tiny-needle.json.gz as token ids with the
// mean smoothed scores of their first eight 32-token chunks.
// TANDEM_SHARED_MODELS names the folder of the BF16 models, which are not part of the repository.
#include "models/scorer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "cpu/backend.h"
#include "cpu/cpu_features.h"
#include "cpu/score_attention.h"
#include "cpu/score_op.h"
#include "gguf/json.h"
#include "gguf/safetensors.h"
#include "harness.h"
#include "roles/roles.h"
#include "scorer_util.h"

using namespace tnd;
using tnd::test::score_one;

namespace {

// ---- a scorer over a GGUF
// ---------------------------------------------------------------------------------------------

struct Scorer {
  std::unique_ptr<cpu::CpuBackend> backend;
  HParams p;
  std::unique_ptr<ScorerModel> model;
  void* region = nullptr;
  Stats stats;

  Scorer(const gguf::File& file, int threads, int32_t chunk, int32_t max_tokens) {
    backend = std::make_unique<cpu::CpuBackend>(threads);
    CHECK_OK(read_hparams(file, &p));
    Arena arena;
    for (int pass = 0; pass < 2; pass++) {
      WeightLoader w(file, *backend, arena);
      model = std::make_unique<ScorerModel>(p, *backend);
      CHECK_OK(model->load(w, arena, {max_tokens, 32, chunk}));
      if (pass == 1) break;
      CHECK_OK(backend->allocate(arena.total(), &region));
      arena = Arena(region, arena.total());
    }
  }
  std::vector<float> score(const std::vector<int32_t>& ids, const std::vector<int32_t>& query, bool rotated = false) {
    std::vector<float> s(ids.size(), -1.0f);
    CHECK_OK(model->score(ids, query, rotated, nullptr, &stats, s.data()));
    return s;
  }
};

// Whether int8/bf16 attention is in use.
bool fast(const Scorer& s) {
  return cpu::score_attention_available(s.p.head_dim);
}

// ---- a random qwen3 model in memory and the same in double precision
// ----------------------------------------------------

template <typename T>
std::string raw(T v) {
  return std::string(reinterpret_cast<const char*>(&v), sizeof v);
}
std::string text(std::string_view s) {
  return raw<uint64_t>(s.size()) + std::string(s);
}

struct Tiny {
  int layers = 3, hidden = 64, heads = 4, kv = 2, dim = 32, ffn = 96, vocab = 50;
  struct Tensor {
    std::string name;
    int k, n;  // n = 0: vector
    std::vector<float> data;
  };
  std::vector<Tensor> tensors;

  explicit Tiny(uint64_t seed) {
    test::Rng rng(seed);
    auto add = [&](const std::string& name, int k, int n) {
      Tensor t{name + ".weight", k, n, std::vector<float>(size_t(k) * std::max(n, 1))};
      for (float& x : t.data) x = n == 0 ? rng.uniform(0.5f, 2.0f) : rng.normal() * 1.5f / std::sqrt(float(k));
      tensors.push_back(t);
    };
    add("token_embd", hidden, vocab);
    add("output_norm", hidden, 0);
    for (int i = 0; i < layers; i++) {
      const std::string b = "blk." + std::to_string(i) + ".";
      add(b + "attn_norm", hidden, 0);
      add(b + "attn_q_norm", dim, 0);
      add(b + "attn_k_norm", dim, 0);
      add(b + "ffn_norm", hidden, 0);
      add(b + "attn_q", hidden, heads * dim);
      add(b + "attn_k", hidden, kv * dim);
      add(b + "attn_v", hidden, kv * dim);
      add(b + "attn_output", heads * dim, hidden);
      add(b + "ffn_gate", hidden, ffn);
      add(b + "ffn_up", hidden, ffn);
      add(b + "ffn_down", ffn, hidden);
    }
  }
  std::string file() const {
    std::vector<std::string> v;
    auto u32 = [&](const char* k, uint32_t x) {
      v.push_back(text(std::string("qwen3.") + k) + raw<uint32_t>(4) + raw(x));
    };
    auto f32 = [&](const char* k, float x) {
      v.push_back(text(std::string("qwen3.") + k) + raw<uint32_t>(6) + raw(x));
    };
    v.push_back(text("general.architecture") + raw<uint32_t>(8) + text("qwen3"));
    u32("block_count", layers);
    u32("context_length", 2048);
    u32("embedding_length", hidden);
    u32("feed_forward_length", ffn);
    u32("attention.head_count", heads);
    u32("attention.head_count_kv", kv);
    u32("attention.key_length", dim);
    u32("attention.value_length", dim);
    f32("attention.layer_norm_rms_epsilon", 1e-6f);
    f32("rope.freq_base", 1e4f);
    std::string s = "GGUF" + raw<uint32_t>(3) + raw<uint64_t>(tensors.size()) + raw<uint64_t>(v.size()), data;
    for (const auto& x : v) s += x;
    for (const Tensor& t : tensors) {
      s += text(t.name) + raw<uint32_t>(t.n == 0 ? 1 : 2) + raw<uint64_t>(uint64_t(t.k));
      if (t.n > 0) s += raw<uint64_t>(uint64_t(t.n));
      s += raw<uint32_t>(0) + raw<uint64_t>(data.size());
      data.append(reinterpret_cast<const char*>(t.data.data()), t.data.size() * 4);
      data.resize((data.size() + 31) / 32 * 32);
    }
    s.resize((s.size() + 31) / 32 * 32);
    return s + data;
  }

  const std::vector<float>& at(const std::string& name) const {
    for (const Tensor& t : tensors) {
      if (t.name == name + ".weight") return t.data;
    }
    std::abort();
  }
  using Vec = std::vector<double>;
  Vec mul(const std::string& name, const Vec& x) const {
    const auto& w = at(name);
    Vec y(w.size() / x.size());
    for (size_t o = 0; o < y.size(); o++) {
      for (size_t i = 0; i < x.size(); i++) y[o] += double(w[o * x.size() + i]) * x[i];
    }
    return y;
  }
  static void norm(double* x, const std::vector<float>& w) {
    double s = 0;
    for (size_t i = 0; i < w.size(); i++) s += x[i] * x[i];
    const double r = 1 / std::sqrt(s / double(w.size()) + 1e-6);
    for (size_t i = 0; i < w.size(); i++) x[i] *= r * w[i];
  }
  void rope(double* x, int pos) const {
    for (int j = 0; j < dim / 2; j++) {
      const double a = pos * std::pow(1e4, -2.0 * j / dim), c = std::cos(a), s = std::sin(a);
      const double u = x[j], v = x[j + dim / 2];
      x[j] = u * c - v * s;
      x[j + dim / 2] = v * c + u * s;
    }
  }
  std::vector<double> score(const std::vector<int32_t>& ids, const std::vector<int32_t>& query, bool rotated) const {
    const int n = int(ids.size());
    std::vector<Vec> x;
    const auto& table = at("token_embd");
    for (int32_t id : ids) x.emplace_back(&table[size_t(id) * hidden], &table[size_t(id + 1) * hidden]);
    std::vector<Vec> best(query.size(), Vec(size_t(n)));
    for (int l = 0; l < layers; l++) {
      const std::string b = "blk." + std::to_string(l) + ".";
      std::vector<Vec> q, k, v, qr, kr;
      for (int p = 0; p < n; p++) {
        Vec u = x[p];
        norm(u.data(), at(b + "attn_norm"));
        q.push_back(mul(b + "attn_q", u));
        k.push_back(mul(b + "attn_k", u));
        v.push_back(mul(b + "attn_v", u));
        for (int h = 0; h < heads; h++) norm(&q[p][h * dim], at(b + "attn_q_norm"));
        for (int h = 0; h < kv; h++) norm(&k[p][h * dim], at(b + "attn_k_norm"));
        qr.push_back(q[p]);
        kr.push_back(k[p]);
        for (int h = 0; h < heads; h++) rope(&qr[p][h * dim], p);
        for (int h = 0; h < kv; h++) rope(&kr[p][h * dim], p);
      }
      auto attention = [&](const Vec& query_row, const std::vector<Vec>& keys, int h, int pos) {
        Vec a;
        double m = -1e300, sum = 0;
        for (int j = 0; j <= pos; j++) {
          double s = 0;
          for (int d = 0; d < dim; d++) s += query_row[h * dim + d] * keys[j][h / (heads / kv) * dim + d];
          a.push_back(s / std::sqrt(double(dim)));
          m = std::max(m, a.back());
        }
        for (double& s : a) s = std::exp(s - m), sum += s;
        for (double& s : a) s /= sum;
        return a;
      };
      for (size_t t = 0; t < query.size(); t++) {
        for (int h = 0; h < heads; h++) {
          const Vec a = attention(rotated ? qr[query[t]] : q[query[t]], rotated ? kr : k, h, query[t]);
          for (size_t j = 0; j < a.size(); j++) best[t][j] = std::max(best[t][j], a[j]);
        }
      }
      for (int p = 0; p < n; p++) {
        Vec o(size_t(heads) * dim);
        for (int h = 0; h < heads; h++) {
          const Vec a = attention(qr[p], kr, h, p);
          for (int j = 0; j <= p; j++) {
            for (int d = 0; d < dim; d++) o[h * dim + d] += a[j] * v[j][h / (heads / kv) * dim + d];
          }
        }
        const Vec r = mul(b + "attn_output", o);
        for (int i = 0; i < hidden; i++) x[p][i] += r[i];
        Vec u = x[p];
        norm(u.data(), at(b + "ffn_norm"));
        const Vec gate = mul(b + "ffn_gate", u);
        Vec up = mul(b + "ffn_up", u);
        for (int i = 0; i < ffn; i++) up[i] *= gate[i] / (1 + std::exp(-gate[i]));
        const Vec down = mul(b + "ffn_down", up);
        for (int i = 0; i < hidden; i++) x[p][i] += down[i];
      }
    }
    std::vector<double> s(size_t(n), 0.0);
    for (const Vec& row : best) {
      for (int j = 0; j < n; j++) s[j] += row[j] / double(query.size());
    }
    return s;
  }
};

std::unique_ptr<gguf::File> parse(const std::string& bytes) {
  std::unique_ptr<gguf::File> f;
  CHECK_OK(gguf::File::open_memory(bytes.data(), bytes.size(), &f));
  return f;
}

std::unique_ptr<gguf::File> open_model(const std::string& path) {
  std::unique_ptr<gguf::File> f;
  CHECK_OK(gguf::File::open(path.c_str(), &f));
  return f;
}

std::vector<int32_t> random_ids(int n, int vocab, uint64_t seed) {
  test::Rng rng(seed);
  std::vector<int32_t> ids;
  for (int i = 0; i < n; i++) ids.push_back(int32_t(rng.below(vocab)));
  return ids;
}

std::vector<int32_t> range(int first, int n) {
  std::vector<int32_t> r(n);
  std::iota(r.begin(), r.end(), first);
  return r;
}

// Mean over 32-token chunks of scores smoothed by a window of 13 that shrinks at the edges.
std::vector<double> chunk_scores(const std::vector<float>& s) {
  const int n = int(s.size());
  std::vector<double> out;
  for (int c = 0; c < n; c += 32) {
    double sum = 0;
    const int end = std::min(n, c + 32);
    for (int j = c; j < end; j++) {
      const int lo = std::max(0, j - 6), hi = std::min(n - 1, j + 6);
      double w = 0;
      for (int i = lo; i <= hi; i++) w += s[i];
      sum += w / (hi - lo + 1);
    }
    out.push_back(sum / (end - c));
  }
  return out;
}

std::vector<int> ranks(const std::vector<double>& x) {
  std::vector<int> order(x.size()), r(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return x[a] > x[b]; });
  for (size_t i = 0; i < order.size(); i++) r[order[i]] = int(i);
  return r;
}

// Spearman's rank correlation.
double rank_correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const auto ra = ranks(a), rb = ranks(b);
  double d2 = 0;
  for (size_t i = 0; i < ra.size(); i++) d2 += double(ra[i] - rb[i]) * (ra[i] - rb[i]);
  const double n = double(a.size());
  return 1 - 6 * d2 / (n * (n * n - 1));
}

struct Needle {
  std::vector<int32_t> ids;
  std::vector<double> want;  // first chunk scores
  // The last eight tokens of the rendered prompt, as the reference has them.
  std::vector<int32_t> last() const { return range(int(ids.size()) - 8, 8); }
  // The last eight tokens of the last user turn: those before its end-of-turn token.
  std::vector<int32_t> question() const {
    int end = int(ids.size()) - 1;
    while (end > 0 && ids[end] != 8162) end--;
    return range(end - 8, 8);
  }
};

std::vector<Needle> load_needles(const std::string& path) {
  std::vector<Needle> out;
  std::string bytes;
  Json j;
  CHECK_OK(gguf::read_text(path, 4 << 20, &bytes));
  CHECK_OK(j.parse(bytes, path));
  for (const Json::Value* v = j.first(j.root()); v != nullptr; v = j.next(*v)) {
    Needle n;
    for (const Json::Value* x = j.first(*j.get(v, "ids")); x != nullptr; x = j.next(*x))
      n.ids.push_back(int32_t(x->integer));
    for (const Json::Value* x = j.first(*j.get(v, "chunk_scores_head")); x != nullptr; x = j.next(*x)) {
      n.want.push_back(x->number);
    }
    out.push_back(n);
  }
  return out;
}

}  // namespace

// One layer, two heads of size 2, five positions, two query rows: values computed by hand.
TEST(worked_example) {
  const float q[2][2][2] = {{{1, 0}, {0, 2}}, {{0, 1}, {1, 1}}};  // [head][row]
  const float k[2][5][2] = {{{1, 0}, {0, 1}, {2, 0}, {0, 0}, {1, 1}}, {{0, 1}, {1, 0}, {0, 0}, {0, 2}, {1, 0}}};
  float best[2][5] = {};
  for (int h = 0; h < 2; h++) {
    for (int t = 0; t < 2; t++) {
      float s[16] = {};
      for (int j = 0; j < 4 + t; j++) s[j] = (q[h][t][0] * k[h][j][0] + q[h][t][1] * k[h][j][1]) / std::sqrt(2.0f);
      cpu::take_peaks(s, 4 + t, best[t]);
    }
  }
  const float want[2][5] = {{0.249112f, 0.122830f, 0.505229f, 0.505229f, 0},
                            {0.181121f, 0.366388f, 0.089305f, 0.367333f, 0.366388f}};
  const float score[5] = {0.215116f, 0.244609f, 0.297267f, 0.436281f, 0.183194f};
  for (int j = 0; j < 5; j++) {
    CHECK_NEAR(best[0][j], want[0][j], 1e-6);
    CHECK_NEAR(best[1][j], want[1][j], 1e-6);
    CHECK_NEAR((best[0][j] + best[1][j]) / 2, score[j], 1e-6);
  }
}

// Against double precision: exact to float32 without the int8 path, close with it; rotated and not; rows anywhere.
TEST(close_to_double_precision) {
  const Tiny tiny(1);
  const std::string bytes = tiny.file();
  const auto file = parse(bytes);
  const auto ids = random_ids(150, tiny.vocab, 2);
  for (const auto& query : {range(142, 8), range(60, 3), std::vector<int32_t>{0, 15, 16, 149}}) {
    for (bool rotated : {false, true}) {
      const auto want = tiny.score(ids, query, rotated);
      for (cpu::Isa level : {cpu::Isa::kScalar, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
        if (level > cpu::isa_best()) continue;
        cpu::isa_force(level);
        Scorer s(*file, 2, 64, 160);
        const auto got = s.score(ids, query, rotated);
        double err = 0, top = 0;
        for (size_t j = 0; j < want.size(); j++) {
          err = std::max(err, std::fabs(got[j] - want[j]));
          top = std::max(top, want[j]);
          if (want[j] == 0) CHECK_EQ(got[j], 0.0f);
        }
        CHECK_MSG(err < (fast(s) ? 0.06 : 0.004) * top,
                  std::string(cpu::isa_name(level)) + " " + std::to_string(err / top));
      }
      cpu::isa_force(cpu::isa_best());
    }
  }
}

// Chunk size and threads change nothing, also when the query rows straddle a chunk.
TEST(chunks_and_threads_change_nothing) {
  const auto file = open_model(TND_ROOT "/models/tandem-tiny-prefill-q8_0.gguf");
  const auto ids = random_ids(531, 8192, 3);
  for (cpu::Isa level : {cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (level > cpu::isa_best()) continue;
    cpu::isa_force(level);
    std::vector<float> first;
    for (int threads : {1, 2}) {
      for (int chunk : {16, 48, 512, 528, 1024}) {
        Scorer s(*file, threads, chunk, 1024);
        const auto got = s.score(ids, range(508, 8));
        if (first.empty()) first = got;
        CHECK_MSG(std::memcmp(first.data(), got.data(), got.size() * 4) == 0, std::to_string(chunk));
      }
    }
  }
  cpu::isa_force(cpu::isa_best());
}

// Scores of the first eight chunks of three prompts; reference with dequantised weights and float32 activations.
TEST(reference_chunk_scores) {
  const auto file = open_model(TND_ROOT "/models/tandem-tiny-prefill-q8_0.gguf");
  const char* all = std::getenv("TANDEM_NEEDLE_IDS");  // the same file format with all prompts
  const auto needles = load_needles(all != nullptr ? all : TND_TESTDATA "/scorer_needle.json");
  CHECK(needles.size() >= 3);
  Scorer s(*file, 2, 1024, 24576);
  double worst = 0, sum = 0;
  int count = 0;
  for (const Needle& n : needles) {
    const auto got = chunk_scores(s.score(n.ids, n.last()));
    for (size_t c = 0; c < n.want.size(); c++) {
      const double rel = std::fabs(got[c] - n.want[c]) / n.want[c];
      worst = std::max(worst, rel);
      sum += rel;
      count++;
    }
  }
  std::fprintf(stderr, "chunk scores against reference: mean %.2f %%, worst %.2f %%\n", 100 * sum / count, 100 * worst);
  CHECK(sum / count < 0.01);
  CHECK(worst < 0.05);
}

// The int8/bf16 path ranks chunks like the float32 path.
TEST(fast_path_ranks_like_float32) {
  const auto file = open_model(TND_ROOT "/models/tandem-tiny-prefill-q8_0.gguf");
  for (const Needle& n : load_needles(TND_TESTDATA "/scorer_needle.json")) {
    Scorer int8(*file, 2, 1024, 4096);
    if (!fast(int8)) {
      std::fprintf(stderr, "skipped: this processor has no fast path\n");
      return;
    }
    const auto a = chunk_scores(int8.score(n.ids, n.question()));
    cpu::isa_force(cpu::Isa::kAvx2);
    Scorer slow(*file, 2, 1024, 4096);
    CHECK(!fast(slow));
    const auto b = chunk_scores(slow.score(n.ids, n.question()));
    cpu::isa_force(cpu::isa_best());
    const double rho = rank_correlation(a, b);
    CHECK_MSG(rho > 0.99, std::to_string(rho));
    // The best quarter of the chunks agrees but for one in ten.
    const auto ra = ranks(a), rb = ranks(b);
    const int top = int(a.size()) / 4;
    int both = 0;
    for (size_t i = 0; i < a.size(); i++) both += ra[i] < top && rb[i] < top;
    CHECK_MSG(both >= top - top / 10 - 1, std::to_string(both) + " of " + std::to_string(top));
    std::fprintf(stderr, "%zu tokens: rank correlation %.5f, best quarter shared %d of %d\n", n.ids.size(), rho, both,
                 top);
  }
}

// Logits of the model read as a language model, float32 reference on BF16 weights.
TEST(reference_logits_bf16) {
  const char* dir = std::getenv("TANDEM_SHARED_MODELS");
  if (dir == nullptr) {
    std::fprintf(stderr, "skipped: TANDEM_SHARED_MODELS is not set (BF16 models are not in the repository)\n");
    return;
  }
  std::string bytes;
  Json j;
  CHECK_OK(gguf::read_text(TND_ROOT "/tests/testdata/golden/tandem-tiny-bf16.json", 4 << 20, &bytes));
  CHECK_OK(j.parse(bytes, "golden"));
  const auto file = open_model(std::string(dir) + "/tandem-tiny-prefill-bf16.gguf");
  const TensorView* table = file->find("token_embd.weight");
  REQUIRE(table != nullptr);
  for (cpu::Isa level : {cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (level > cpu::isa_best()) continue;
    cpu::isa_force(level);
    Scorer s(*file, 2, 1024, 1024);
    double worst = 0;
    int same = 0, rows = 0;
    for (const Json::Value* v = j.first(*j.get(&j.root(), "prompts")); v != nullptr; v = j.next(*v)) {
      const Json::Value* top = j.get(v, "prefill_top");
      if (top == nullptr) continue;
      std::vector<int32_t> ids;
      for (const Json::Value* x = j.first(*j.get(v, "ids")); x != nullptr; x = j.next(*x))
        ids.push_back(int32_t(x->integer));
      const float* x = s.model->forward(ids, &s.stats);
      std::vector<float> y(ids.size() * size_t(s.p.hidden)), row(s.p.hidden);
      s.backend->norm_rows(x, s.model->output_norm(), s.p.eps, int(ids.size()), s.p.hidden, y.data());
      const Json::Value* want_ids = j.first(*j.get(top, "ids"));
      const Json::Value* want = j.first(*j.get(top, "logits"));
      for (size_t p = 0; p < ids.size() && want_ids != nullptr; p++) {
        const Json::Value *i = j.first(*want_ids), *l = j.first(*want);
        for (bool first = true; i != nullptr; i = j.next(*i), l = j.next(*l), first = false) {
          const uint8_t* src = static_cast<const uint8_t*>(table->data) +
                               row_bytes(DType(table->type), s.p.hidden) * uint64_t(i->integer);
          dequantise_row(DType(table->type), src, row.data(), s.p.hidden);
          double dot = 0;
          for (int d = 0; d < s.p.hidden; d++) dot += double(row[d]) * y[p * s.p.hidden + d];
          worst = std::max(worst, std::fabs(dot - l->number));
          if (first) rows++, same += std::fabs(dot - l->number) < 0.5;
        }
        want_ids = j.next(*want_ids);
        want = j.next(*want);
      }
    }
    std::fprintf(stderr, "%s%s: largest difference of %d rows' logits %.4f\n", cpu::isa_name(level),
                 fast(s) ? ", int8 attention" : "", rows, worst);
    CHECK(rows > 10);
    CHECK(worst < (fast(s) ? 0.5 : 0.02));
  }
  cpu::isa_force(cpu::isa_best());
}

// The role: memory follows the cap and the error says what fits; bad arguments are named.
TEST(role_checks_and_memory) {
  std::atomic<bool> cancel{false};
  Stats stats;
  cpu::CpuBackend backend(2);
  OpenContext c;
  c.options.max_sequences = 1;
  c.options.max_context = 20000;
  c.options.max_batch_rows = 512;
  c.model_path = TND_ROOT "/models/tandem-tiny-prefill-q8_0.gguf";
  c.memory_cap = uint64_t{1} << 30;
  c.backend = &backend;
  c.cancel = &cancel;
  c.stats = &stats;
  std::unique_ptr<ScoreEngine> role;
  CHECK_OK(open_score(c, &role));
  REQUIRE(role != nullptr);
  std::vector<tnd_stat> memory;
  role->memory(&memory);
  uint64_t total = 0;
  for (const tnd_stat& m : memory) total += m.value;
  CHECK(total > (10u << 20) && total < (200u << 20));
  tnd_info info{};
  role->info(&info);
  CHECK_EQ(info.max_context, 20000);
  std::vector<float> scores(64);
  const auto ids = random_ids(64, 8192, 1);
  CHECK_OK(score_one(*role, ids, range(56, 8), 0, scores.data()));
  CHECK_OK(score_one(*role, ids, range(56, 8), TND_SCORE_ROTATED, scores.data()));
  // Several prompts in one call have the scores of calls of their own, and their progress ends at all rows and layers.
  {
    const auto other = random_ids(40, 8192, 7);
    const auto rows = range(56, 8), last = range(32, 8);
    std::vector<float> a(ids.size()), b(other.size()), x(ids.size()), y(other.size());
    CHECK_OK(score_one(*role, ids, rows, 0, a.data()));
    CHECK_OK(score_one(*role, other, last, 0, b.data()));
    tnd_score_prompt prompts[] = {{ids.data(), rows.data(), x.data(), static_cast<int32_t>(ids.size()), 8},
                                  {other.data(), last.data(), y.data(), static_cast<int32_t>(other.size()), 8}};
    struct Seen {
      uint64_t done = 0, total = 0;
      int calls = 0;
    } seen;
    const tnd_progress_fn note = [](void* user, uint64_t done, uint64_t total) {
      Seen& s = *static_cast<Seen*>(user);
      CHECK(done > s.done && done <= total);
      s.done = done;
      s.total = total;
      ++s.calls;
    };
    CHECK_OK(role->score(prompts, 0, note, &seen));
    CHECK(a == x && b == y);
    CHECK(seen.calls >= 4 && seen.done == seen.total);
    CHECK_EQ(seen.total % (ids.size() + other.size()), uint64_t{0});
    prompts[1].n_query = 0;  // nothing is scored when one is refused
    std::fill(x.begin(), x.end(), -1.0f);
    CHECK_EQ(role->score(prompts, 0, nullptr, nullptr).code(), TND_INVALID_ARGUMENT);
    CHECK_EQ(x[0], -1.0f);
  }
  CHECK_EQ(score_one(*role, ids, range(57, 8), 0, scores.data()).code(), TND_INVALID_ARGUMENT);
  CHECK_EQ(score_one(*role, ids, {}, 0, scores.data()).code(), TND_INVALID_ARGUMENT);
  CHECK_EQ(score_one(*role, ids, range(0, 33), 0, scores.data()).code(), TND_INVALID_ARGUMENT);
  CHECK_EQ(score_one(*role, ids, range(0, 8), 4, scores.data()).code(), TND_INVALID_ARGUMENT);
  CHECK_EQ(score_one(*role, std::vector<int32_t>{8192}, range(0, 1), 0, scores.data()).code(), TND_INVALID_ARGUMENT);
  CHECK_EQ(score_one(*role, random_ids(20001, 8192, 1), range(0, 1), 0, scores.data()).code(), TND_RESOURCE_EXHAUSTED);
  cancel = true;
  CHECK_EQ(score_one(*role, ids, range(56, 8), 0, scores.data()).code(), TND_CANCELED);
  cancel = false;
  role.reset();
  // A cap that holds fewer tokens than asked for: refused with the number; unasked: taken.
  c.memory_cap = total / 2;
  const Status s = open_score(c, &role);
  CHECK(s.code() == TND_RESOURCE_EXHAUSTED && s.message().find("tokens fit") != std::string::npos);
  c.options.max_context = 0;
  CHECK_OK(open_score(c, &role));
  REQUIRE(role != nullptr);
  role->info(&info);
  CHECK(info.max_context >= 256 && info.max_context < 20000);
  memory.clear();
  role->memory(&memory);
  uint64_t used = 0;
  for (const tnd_stat& m : memory) used += m.value;
  CHECK(used <= c.memory_cap);
  c.memory_cap = 1 << 20;
  CHECK_EQ(open_score(c, &role).code(), TND_RESOURCE_EXHAUSTED);
}

TEST_MAIN()
