// The GPU backend as a whole: names of devices, memory, transfers of every size, and the step as a replayed graph.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/fp.h"
#include "engine_util.h"
#include "gpu/delta/delta_chunk.h"
#include "gpu/step/backend_gpu.h"
#include "harness.h"
#include "matmul_reference.h"
#include "roles/roles.h"
#include "roles/tree.h"

using namespace tnd;
using namespace tnd::test;

namespace {

// Of n steps whose lists were seen before, those that run as graphs and those that do not (gpu::plain_launches).
uint64_t graphs_of(uint64_t n) {
  return gpu::plain_launches() ? 0 : n;
}
uint64_t lists_of(uint64_t n) {
  return n - graphs_of(n);
}

// The demonstration target on the device.
struct Demo {
  std::unique_ptr<Backend> made;
  std::atomic<bool> cancel{false};
  Stats stats;
  std::unique_ptr<TargetEngine> role;  // nullptr when it did not open

  Demo(int sequences, int context, int tree_rows, int batch_rows) {
    CHECK_OK(make_backend(nullptr, 1, &made));
    OpenContext c;
    c.model_path = demo_model();
    c.options.max_sequences = sequences;
    c.options.max_context = context;
    c.options.max_tree_rows = tree_rows;
    c.options.max_batch_rows = batch_rows;
    c.options.max_top_k = 4;
    c.options.kv_type_k = c.options.kv_type_v = TND_KV_DEFAULT;
    c.memory_cap = made->free_bytes();
    c.backend = made.get();
    c.cancel = &cancel;
    c.stats = &stats;
    CHECK_OK(open_target(c, &role));
  }
  gpu::GpuBackend* backend() const { return static_cast<gpu::GpuBackend*>(made.get()); }
};

Status open(const char* name) {
  std::unique_ptr<Backend> backend;
  return make_backend(name, 1, &backend);
}

// A backend with memory of its own and scratch for a few rows.
struct WithMemory {
  std::unique_ptr<Backend> made;
  gpu::GpuBackend* backend = nullptr;
  void *base = nullptr, *scratch = nullptr;

  WithMemory(uint64_t bytes, int rows, int max_k) {
    CHECK_OK(make_backend(nullptr, 1, &made));
    backend = static_cast<gpu::GpuBackend*>(made.get());
    CHECK_OK(backend->allocate(bytes, &base));
    ScratchLimits limits;
    limits.rows = rows;
    limits.max_k = max_k;
    Arena measured;
    backend->plan_scratch(measured, limits);
    CHECK_OK(backend->allocate(measured.total(), &scratch));
    Arena arena(scratch, measured.total());
    backend->plan_scratch(arena, limits);
  }
  ~WithMemory() {
    backend->release(scratch);
    backend->release(base);
  }
};

TEST(devices_are_named) {
  const std::string api = gpu::api_name();
  CHECK_OK(open(nullptr));
  CHECK_OK(open(""));
  CHECK_OK(open(api.c_str()));
  CHECK_OK(open((api + ":0").c_str()));
  for (const char* wrong : {"cpu", "metal:0", ":0"}) {
    const Status s = open(wrong);
    CHECK_EQ(s.code(), TND_INVALID_ARGUMENT);
    const std::string named = std::string("\"").append(wrong).append("\": there is");  // gcc 12 misreads a sum of them
    CHECK_MSG(s.message().find(named) != std::string::npos, s.message());
  }
  for (const std::string& wrong : {api + ":", api + ":0x", api + ":-1", api + ":99", api + " :0"}) {
    CHECK_EQ(open(wrong.c_str()).code(), TND_INVALID_ARGUMENT);
  }
  std::unique_ptr<Backend> backend;
  CHECK_EQ(make_backend(nullptr, -1, &backend).code(), TND_INVALID_ARGUMENT);
}

TEST(memory_is_zeroed_and_counted) {
  std::unique_ptr<Backend> backend;
  CHECK_OK(make_backend(nullptr, 1, &backend));
  CHECK(backend->free_bytes() > (1u << 20));
  constexpr int64_t kFloats = 100001;
  void* base = nullptr;
  CHECK_OK(backend->allocate(kFloats * sizeof(float), &base));
  std::vector<float> host(kFloats, 1.0f);
  backend->download(host.data(), static_cast<float*>(base), kFloats);
  CHECK_OK(backend->sync());
  for (const float v : host) REQUIRE(v == 0.0f);
  backend->release(base);
  void* none = nullptr;
  const Status s = backend->allocate(uint64_t{1} << 52, &none);
  CHECK_EQ(s.code(), TND_RESOURCE_EXHAUSTED);
}

// Transfers below and above the buffers of a step, in order with operations and with each other.
TEST(transfers_keep_their_order) {
  constexpr int64_t kMost = 6 << 20;
  const WithMemory memory(2 * kMost * sizeof(float), 16, 64);
  Backend* const backend = memory.backend;
  float* const a = static_cast<float*>(memory.base);
  float* const b = a + kMost;

  Rng rng(3);
  for (const int64_t n : {int64_t{1}, int64_t{1000}, int64_t{200000}, kMost}) {
    std::vector<float> x(static_cast<size_t>(n)), y(x.size()), z(x.size());
    for (float& v : x) v = rng.uniform(-1, 1);
    std::vector<uint16_t> rounded(x.size());
    const std::vector<int32_t> rows{0};
    backend->upload(a, x.data(), n);
    backend->copy_rows(a, n, rows, {}, b, n);
    backend->zero(a, (n + 1) / 2);
    backend->download(y.data(), a, n);
    backend->download(z.data(), b, n);
    backend->download_bf16(rounded.data(), b, n);
    CHECK_OK(backend->sync());
    CHECK(same_bits(x, z));
    for (int64_t i = 0; i < n; ++i) {
      const size_t at = static_cast<size_t>(i);
      REQUIRE(y[at] == (i < (n + 1) / 2 ? 0.0f : x[at]));
      REQUIRE(rounded[at] == f32_to_bf16(x[at]));
    }
    std::vector<uint8_t> unaligned(1 + 2 * x.size());
    std::memcpy(unaligned.data() + 1, rounded.data(), 2 * x.size());
    backend->upload_bf16(b, unaligned.data() + 1, n);
    backend->zero(a, n);
    backend->download(z.data(), b, n);
    CHECK_OK(backend->sync());
    for (size_t i = 0; i < x.size(); ++i) REQUIRE(z[i] == bf16_to_f32(rounded[i]));
  }
}

// Decode steps and commits of one engine are graphs from their second time on; a graph gives what the launches give.
TEST(repeated_steps_are_graphs) {
  constexpr int kDim = 64, kRows = 5;
  const WithMemory memory(1 << 16, kRows, kDim);
  gpu::GpuBackend* const backend = memory.backend;
  float* const x = static_cast<float*>(memory.base);
  Rng rng(9);
  for (int round = 0; round < 4; ++round) {
    std::vector<float> in(kDim * kRows), out(in.size());
    for (float& v : in) v = rng.uniform(-1, 1);
    std::vector<int32_t> rows(kRows);
    for (int32_t& r : rows) r = static_cast<int32_t>(rng.below(kRows));
    float* const y = x + kDim * kRows;
    backend->upload(x, in.data(), kDim * kRows);
    backend->copy_rows(x, kDim, rows, {}, y, kDim);
    backend->download(out.data(), y, kDim * kRows);
    CHECK_OK(backend->sync());
    for (int i = 0; i < kRows * kDim; ++i) {
      REQUIRE(out[static_cast<size_t>(i)] ==
              in[static_cast<size_t>(rows[static_cast<size_t>(i / kDim)] * kDim + i % kDim)]);
    }
  }
  CHECK_EQ(backend->recorder().graph_runs(), graphs_of(3));
  CHECK_EQ(backend->recorder().most_nodes(), gpu::plain_launches() ? 0 : 5);  // with plan and results
}

// Work that is started and not waited for keeps its plan while the host records what follows, several times over.
TEST(started_work_keeps_its_plan) {
  constexpr int kDim = 64, kRows = 5, kStarts = 3;
  const WithMemory memory(1 << 18, kRows, kDim);
  gpu::GpuBackend* const backend = memory.backend;
  float* const x = static_cast<float*>(memory.base);
  Rng rng(10);
  for (int round = 0; round < 4; ++round) {
    std::vector<float> in(kDim * kRows * (kStarts + 1)), out(in.size());
    for (float& v : in) v = rng.uniform(-1, 1);
    for (int i = 0; i <= kStarts; ++i) {
      const auto at = static_cast<size_t>(i * kDim * kRows);
      backend->upload(x + at, in.data() + at, kDim * kRows);
      if (i < kStarts) CHECK_OK(backend->start());
    }
    backend->download(out.data(), x, static_cast<int64_t>(out.size()));
    CHECK_OK(backend->sync());
    CHECK(same_bits(in, out));
    // With results to hand out it waits.
    std::fill(out.begin(), out.end(), 0.0f);
    backend->download(out.data(), x, static_cast<int64_t>(out.size()));
    CHECK_OK(backend->start());
    CHECK(same_bits(in, out));
  }
  CHECK_EQ(backend->recorder().graph_runs(), graphs_of(3 * (kStarts + 2)));
}

// Rounds of a model (the commit of a path and a tree step) are the same two graphs whatever the position, the tokens
// and the path, and nothing is captured again.
TEST(rounds_of_a_model_are_graphs) {
  Demo demo(1, 300, 16, 16);
  gpu::GpuBackend* const backend = demo.backend();
  TargetEngine* const role = demo.role.get();
  REQUIRE(role != nullptr);
  int32_t sequence = -1;
  CHECK_OK(role->sequence_create(&sequence));
  tnd_info info{};
  role->info(&info);

  Rng rng(4);
  constexpr int kRows = 6, kWarm = 3, kRounds = 9;
  uint64_t lists = 0, graphs = 0;
  std::vector<int32_t> path;
  for (int round = 0; round < kRounds; ++round) {
    int32_t length = 0;
    CHECK_OK(role->sequence_length(sequence, &length));
    length += static_cast<int32_t>(path.size());
    const int32_t parents[kRows] = {-1, 0, 0, 1, static_cast<int32_t>(rng.below(4)), 2};
    tnd_row rows[kRows];
    for (int i = 0; i < kRows; ++i) {
      const int32_t position = parents[i] < 0 ? length : rows[parents[i]].position + 1;
      rows[i] = tnd_row{static_cast<int32_t>(rng.below(static_cast<uint64_t>(info.vocab))),
                        position,
                        parents[i],
                        TND_WANT_TOKEN,
                        0,
                        0,
                        -1};
    }
    int32_t tokens[kRows];
    float logprobs[kRows];
    const tnd_group group{sequence, kRows, TND_GROUP_DECODE, 0, path.data(), static_cast<int32_t>(path.size()), 0, 0};
    tnd_step step{};
    step.n_groups = 1;
    step.groups = &group;
    step.n_rows = kRows;
    step.rows = rows;
    step.tokens = tokens;
    step.logprobs = logprobs;
    CHECK_OK(role->step(step));
    path.assign(1, 0);
    if (round % 2 != 0) path.push_back(2), path.push_back(5);
    if (round == kWarm) {
      lists = backend->recorder().list_runs();
      graphs = backend->recorder().graph_runs();
    }
  }
  CHECK_EQ(backend->recorder().list_runs(), lists + lists_of(2 * (kRounds - 1 - kWarm)));
  CHECK_EQ(backend->recorder().graph_runs(), graphs + graphs_of(2 * (kRounds - 1 - kWarm)));
  std::fprintf(stderr, "%d layers: %d nodes in a step of %d rows\n", info.n_layers, backend->recorder().most_nodes(),
               kRows);
}

// Plain steps whose features are kept are one graph wherever they are kept, and have the launches of steps without a
// fused product; reading so many rows is one graph as well.
TEST(steps_that_keep_features_are_graphs) {
  Demo demo(2, 100, 4, 8);
  gpu::GpuBackend* const backend = demo.backend();
  TargetEngine* const role = demo.role.get();
  REQUIRE(role != nullptr);
  CHECK_OK(role->fuse_load(TND_ROOT "/models/tandem-tiny-draft-q8_0.gguf"));
  tnd_info info{};
  role->info(&info);
  const size_t width = static_cast<size_t>(info.feature_fused);
  int32_t sequences[2];
  for (int32_t& s : sequences) CHECK_OK(role->sequence_create(&s));
  constexpr int kWarm = 3, kRounds = 8, kRead = 4;
  uint64_t lists = 0, graphs = 0;
  std::vector<float> now(size_t{kRounds} * width), later(now.size());
  const auto plain = [&](int32_t sequence, int32_t position, uint32_t want, float* features) {
    const tnd_row row{100 + 7 * position, position, -1, TND_WANT_TOKEN | want, 0, 0, -1};
    int32_t token;
    float logprob;
    const tnd_group group{sequence, 1, TND_GROUP_DECODE, TND_GROUP_COMMIT, nullptr, 0, 0, 0};
    tnd_step step{};
    step.n_groups = 1;
    step.groups = &group;
    step.n_rows = 1;
    step.rows = &row;
    step.tokens = &token;
    step.logprobs = &logprob;
    step.feature_encoding = TND_FEATURE_FUSED_F32;
    step.features = features;
    CHECK_OK(role->step(step));
  };
  for (int round = 0; round < kRounds; ++round) {
    plain(sequences[round % 2], round / 2, TND_WANT_KEEP, nullptr);
    if (round == kWarm) {
      lists = backend->recorder().list_runs();
      graphs = backend->recorder().graph_runs();
    }
  }
  CHECK_EQ(backend->recorder().list_runs(), lists + lists_of(kRounds - 1 - kWarm));
  CHECK_EQ(backend->recorder().graph_runs(), graphs + graphs_of(kRounds - 1 - kWarm));
  const int nodes = backend->recorder().most_nodes();
  const auto read = [&](int32_t sequence) {
    const tnd_group group{sequence, 0, 0, 0, nullptr, 0, 0, kRead};
    tnd_step step{};
    step.n_groups = 1;
    step.groups = &group;
    step.feature_encoding = TND_FEATURE_FUSED_F32;
    step.features = later.data();
    CHECK_OK(role->step(step));
  };
  for (const int32_t s : sequences) read(s);
  lists = backend->recorder().list_runs();
  read(sequences[0]);
  CHECK_EQ(backend->recorder().list_runs(), lists + lists_of(1));
  CHECK_OK(role->sequence_truncate(sequences[0], 0));
  for (int32_t i = 0; i < kRead; ++i) {
    plain(sequences[0], i, TND_WANT_FEATURES, now.data() + static_cast<size_t>(i) * width);
  }
  CHECK(std::memcmp(now.data(), later.data(), kRead * width * sizeof(float)) == 0);
  CHECK(gpu::plain_launches() || backend->recorder().most_nodes() > nodes);
}

// Products with BF16 weights add in the order of the CPU where the device has no matrix instructions for them. Else
// they add in one order for any number of rows of decoding, and in another for any number of rows of prompts, alone or
// in one step: all are close, and other bits (else this test would not see the difference).
TEST(prompts_have_products_of_their_own) {
  std::unique_ptr<Backend> made;
  CHECK_OK(make_backend(nullptr, 1, &made));
  gpu::DeviceInfo info;
  CHECK_OK(gpu::device_info(0, &info));
  const bool own = gpu::has_matmul_pairs(info);
  constexpr int kK = 192, kN = 40, kRows = 70;
  Rng rng(11);
  const auto file = random_weights(DType::kBF16, kK, kN, Scales::kOrdinary, rng);
  TensorView tensor;
  tensor.name = "w";
  tensor.type = static_cast<uint32_t>(DType::kBF16);
  tensor.n_dims = 2;
  tensor.ne[0] = kK;
  tensor.ne[1] = kN;
  tensor.data = file.data();
  tensor.bytes = file.size();
  ScratchLimits limits;
  limits.rows = kRows;
  limits.max_k = kK;
  std::unique_ptr<Matrix> w;
  std::unique_ptr<Acts> acts;
  float *x = nullptr, *y = nullptr;
  const auto plan = [&](Arena& arena) {
    CHECK_OK(made->matrix(tensor, arena, &w));
    acts = made->acts(arena, kK, kRows, made->forms(*w));
    x = arena.take_array<float>(Purpose::kScratch, kRows * kK);
    y = arena.take_array<float>(Purpose::kScratch, kRows * kN);
    made->plan_scratch(arena, limits);
  };
  Arena measured;
  plan(measured);
  void* base = nullptr;
  CHECK_OK(made->allocate(measured.total(), &base));
  Arena arena(base, measured.total());
  plan(arena);

  std::vector<float> in(kRows * kK), want(kRows * kN);
  for (float& v : in) v = rng.normal();
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t o = 0; o < kN; ++o) {
      want[r * kN + o] = reference_product(DType::kBF16, &file[o * kK * 2], &in[r * kK], kK);
    }
  }
  made->upload(x, in.data(), kRows * kK);
  // The first `prompt` of `rows` rows from row `first` of x.
  const auto product = [&](int prompt, int rows, int first = 0) {
    made->begin_step(prompt, rows);
    made->prepare(x + first * kK, kK, rows, kK, made->forms(*w), acts.get());
    const Product p{w.get(), y, kN, nullptr};
    made->matmul({&p, 1}, *acts, rows);
    std::vector<float> out(static_cast<size_t>(rows * kN));
    made->download(out.data(), y, rows * kN);
    CHECK_OK(made->sync());
    return out;
  };
  // Rows [from, from + rows) of a product are rows [of, of + rows) of another one.
  const auto same = [&](const std::vector<float>& a, int from, const std::vector<float>& b, int of, int rows) {
    return std::memcmp(a.data() + from * kN, b.data() + of * kN, static_cast<size_t>(rows * kN) * sizeof(float)) == 0;
  };
  const auto step = product(0, kRows), prompt = product(kRows, kRows);
  for (const int rows : {1, 17, kPromptRows, kRows}) {
    CHECK(same(product(0, rows), 0, step, 0, rows));
    CHECK(same(product(rows, rows), 0, prompt, 0, rows));
  }
  CHECK(same(product(kRows + 1, kRows), 0, prompt, 0, kRows));
  for (const int first : {1, 6, 63, 64, 65, 69}) {  // both in one step, and what is alone there
    const auto mixed = product(first, kRows);
    const int rest = kRows - first;
    CHECK(same(mixed, 0, prompt, 0, first));
    CHECK(same(mixed, first, step, first, rest));
    CHECK(same(product(0, rest, first), 0, step, first, rest));
    CHECK(same(product(rest, rest, first), 0, prompt, first, rest));
  }
  CHECK_EQ(same_bits(step, want), !own);
  CHECK_EQ(same_bits(prompt, step), gpu::prompt_inputs(info) == gpu::Prompt::kNone);
  for (size_t i = 0; i < want.size(); ++i) {
    CHECK_NEAR(step[i], want[i], 1e-3);
    CHECK_NEAR(prompt[i], want[i], 1e-3);
  }
  made->release(base);
}

// Chains of a prompt's step go through the chunked delta rule, in as many rounds as its scratch asks for; of any other
// step through the recurrence, whose results they have but for rounding.
TEST(long_chains_of_prompts_are_chunked) {
  constexpr DeltaShape kShape{1, 2};
  constexpr int kCounts[] = {70, 130, 66}, kRows = 70 + 130 + 66;
  std::unique_ptr<Backend> backend;
  CHECK_OK(make_backend(nullptr, 1, &backend));
  ScratchLimits limits;
  limits.rows = kRows;
  limits.max_k = kShape.value_dim();
  limits.delta = kShape;
  limits.forms = gpu::kFormQ256;
  Arena measured;
  backend->plan_scratch(measured, limits);
  (void)backend->acts(measured, kShape.value_dim(), kRows, limits.forms);
  void* scratch = nullptr;
  CHECK_OK(backend->allocate(measured.total(), &scratch));
  Arena arena(scratch, measured.total());
  backend->plan_scratch(arena, limits);
  const std::unique_ptr<Acts> out = backend->acts(arena, kShape.value_dim(), kRows, limits.forms);

  Rng rng(31);
  void* base = nullptr;
  const int64_t state = kShape.state_elems(), taps = kShape.taps_elems(), value_dim = kShape.value_dim();
  const int64_t inputs =
      4 * kShape.conv_dim() + 2 * kShape.nv + kDeltaDim + kRows * (kShape.conv_dim() + value_dim + 2 * kShape.nv);
  CHECK_OK(backend->allocate(static_cast<uint64_t>(inputs + 3 * (state + taps)) * sizeof(float), &base));
  auto* at = static_cast<float*>(base);
  const auto random = [&](int64_t n, float low, float high) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = rng.uniform(low, high);
    backend->upload(at, x.data(), n);
    CHECK_OK(backend->sync());
    return std::exchange(at, at + n);
  };
  DeltaLayer layer;
  layer.shape = kShape;
  layer.conv = random(4 * kShape.conv_dim(), -0.5f, 0.5f);
  layer.a = random(kShape.nv, -0.2f, -0.01f);
  layer.dt = random(kShape.nv, -1.0f, 1.0f);
  layer.norm = random(kDeltaDim, 0.5f, 1.5f);
  layer.eps = 1e-6f;
  DeltaIo io;
  io.qkv = random(kRows * kShape.conv_dim(), -1.0f, 1.0f);
  io.z = random(kRows * value_dim, -1.0f, 1.0f);
  io.alpha = random(kRows * kShape.nv, -1.0f, 1.0f);
  io.beta = random(kRows * kShape.nv, -1.0f, 1.0f);
  std::vector<DeltaState> states(3);
  std::vector<DeltaRow> rows(kRows);
  std::vector<DeltaGroup> groups;
  int first = 0;
  for (size_t i = 0; i < 3; ++i) {
    chain_rows(kCounts[i], rows.data() + first);
    groups.push_back({first, kCounts[i], true, rows.data() + first, &states[i], nullptr});
    first += kCounts[i];
  }
  std::vector<float> got[2];
  float* const kept = at;
  for (const bool prompt : {false, true}) {
    at = kept;
    rng = Rng(32);
    for (DeltaState& s : states) s.s = random(state, -0.5f, 0.5f), s.taps = random(taps, -1.0f, 1.0f);
    backend->begin_step(prompt ? kRows : 0, kRows);
    for (DeltaGroup& g : groups) g.prompt = prompt;
    backend->delta_mixer(layer, 0, groups, kRows, io, limits.forms, out.get());
    std::vector<float>& to = got[prompt ? 1 : 0];
    to.resize(static_cast<size_t>(3 * (state + taps)));
    backend->download(to.data(), kept, 3 * (state + taps));
    CHECK_OK(backend->sync());
  }
  double wrong = 0, all = 0;
  for (size_t i = 0; i < got[0].size(); ++i) {
    const double d = double{got[1][i]} - got[0][i];
    wrong += d * d;
    all += double{got[0][i]} * got[0][i];
  }
  gpu::DeviceInfo info;
  CHECK_OK(gpu::device_info(0, &info));
  CHECK_EQ(wrong > 0, gpu::delta_chunked(info));  // they are two ways, where the device has both
  CHECK(wrong <= 1e-12 * all);
  backend->release(base);
  backend->release(scratch);
}

}  // namespace

TEST_MAIN()
