// Times of the operations of a GPU step other than products, at the shapes of the 27B target: microseconds, bytes that
// must move, percent of the copy bandwidth measured in the same run.
//
//   gpu_ops_bench [device [choice|rows|delta|attention ...]]
//
// Every line is a captured graph that runs the operation on as many layers as fit (48 DeltaNet states, 16 or 4 caches),
// so that nothing is read from the second-level cache that a step would read from memory; time and bytes are of one
// layer. Data is random: constant inputs would run at other clocks.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/attention/attention.h"
#include "gpu/attention/kv.h"
#include "gpu/attention/rope.h"
#include "gpu/delta/delta.h"
#include "gpu/delta/delta_chunk.h"
#include "gpu/norm/norm.h"
#include "gpu/norm/swiglu.h"
#include "gpu/runtime/runtime.h"
#include "gpu/sample/sample.h"
#include "roles/tree.h"

using namespace tnd;
using namespace tnd::gpu;

namespace {

constexpr int kHidden = 5120, kFfn = 17408, kDeltaLayers = 48;
constexpr DeltaShape kDelta{16, 48};
constexpr int kHeadDim = 256, kQHeads = 24, kKvHeads = 4;
constexpr uint32_t kForms = kFormQ256 | kFormQ32;

[[noreturn]] void die(const Status& s) {
  std::fprintf(stderr, "gpu_ops_bench: %s\n", s.message().c_str());
  std::exit(1);
}

TND_DEVICE uint32_t hash(uint64_t i) {
  uint64_t z = i + 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<uint32_t>(z ^ (z >> 31));
}
// Uniform in (-scale, scale).
__global__ void random_floats_kernel(float* x, uint64_t n, float scale) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n; i += step) {
    x[i] = scale * (static_cast<float>(hash(i) >> 8) * 0x1p-23f - 1.0f);
  }
}
__global__ void random_halves_kernel(uint16_t* x, uint64_t n) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n; i += step) {
    x[i] = float_to_half(static_cast<float>(hash(i) >> 8) * 0x1p-23f - 1.0f);
  }
}

// Logits like those of a model: a bell of width 2, and some tokens far above it.
__global__ void random_logits_kernel(float* x, uint64_t n) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n; i += step) {
    float sum = 0;
    for (uint64_t j = 0; j < 8; ++j) sum += static_cast<float>(hash(8 * i + j) >> 8) * 0x1p-23f - 1.0f;
    x[i] = 1.2f * sum + (hash(~i) % 20011 == 0 ? 14.0f : 0.0f);
  }
}

__global__ void copy_kernel(uint4* to, const uint4* from, uint64_t n) {
  constexpr int kUnroll = 4;
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i + (kUnroll - 1) * step < n;
       i += kUnroll * step) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = from[i + u * step];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) to[i + u * step] = v[u];
  }
}

struct Bench {
  DeviceInfo info;
  Stream stream;
  double copy_gbs = 0;
  std::vector<void*> memory;

  ~Bench() { release(); }
  void release() {
    for (void* p : memory) device_free(p);
    memory.clear();
  }
  void* take(uint64_t bytes) {
    void* p = nullptr;
    const Status s = device_alloc(bytes, &p);
    if (!s.ok()) die(s);
    memory.push_back(p);
    return p;
  }
  float* floats(uint64_t n, float scale = 1.0f) {
    auto* p = static_cast<float*>(take(n * sizeof(float)));
    launch(stream, {.grid = {4096}, .block = {256}, .name = "random"}, random_floats_kernel, p, n, scale);
    return p;
  }
  template <typename T>
  T* upload(const std::vector<T>& v) {
    auto* p = static_cast<T*>(take(std::max<uint64_t>(v.size(), 1) * sizeof(T)));
    stream.to_device(p, v.data(), v.size() * sizeof(T));
    sync();
    return p;
  }
  ActsView acts(int width, int rows) {
    ActsView view;
    acts_init(&view, take(acts_bytes(width, rows, kForms)), width, rows, kForms);
    return view;
  }
  void sync() {
    const Status s = stream.sync();
    if (!s.ok()) die(s);
  }
  // time returns microseconds of one of `times` operations that `issue` launches: best of three medians.
  double time(int times, const std::function<void()>& issue) {
    issue();
    sync();
    stream.begin_capture();
    issue();
    Graph graph;
    stream.end_capture(&graph);
    std::vector<float> ms;
    for (int i = 0; i < 12; ++i) {
      Event from, to;
      from.record(stream);
      stream.run(graph);
      to.record(stream);
      sync();
      if (i >= 2) ms.push_back(elapsed_ms(from, to));
    }
    std::sort(ms.begin(), ms.end());
    return ms[ms.size() / 2] * 1e3 / times;
  }
  void line(const char* name, double us, double bytes) const {
    const double gbs = bytes / us * 1e-3;
    std::printf("%-44s %9.2f us %9.2f MB %8.0f GB/s %5.1f %%\n", name, us, bytes * 1e-6, gbs, 100 * gbs / copy_gbs);
    std::fflush(stdout);
  }
};

std::string label(const char* text, int rows) {
  return std::string(text) + ", rows " + std::to_string(rows);
}

void bench_rows(Bench* b) {
  constexpr int kTimes = 32;
  const float* w = b->floats(kFfn);
  for (const int rows : {1, 23, 512}) {
    const float* x = b->floats(static_cast<uint64_t>(rows) * kFfn);
    const float* z = b->floats(static_cast<uint64_t>(rows) * kFfn);
    const ActsView out = b->acts(kFfn, rows);
    const auto repeat = [&](const auto& issue) {
      return b->time(kTimes, [&] {
        for (int i = 0; i < kTimes; ++i) issue();
      });
    };
    const double quantised = 2.25;  // bytes an element in both forms
    b->line(label("norm 5120 + prepare", rows).c_str(),
            repeat([&] { launch_norm(b->stream, {x, kHidden, w, 1e-6f, rows, kHidden, nullptr, out, kForms}); }),
            rows * kHidden * (4 + quantised));
    b->line(label("swiglu 17408 + prepare", rows).c_str(),
            repeat([&] { launch_swiglu(b->stream, {x, z, kFfn, rows, kFfn, nullptr, out, kForms}); }),
            rows * kFfn * (8 + quantised));
    b->line(label("gated norm 48 heads + prepare", rows).c_str(),
            repeat([&] { launch_gated_norm(b->stream, {x, w, z, 1e-6f, rows, kDelta.nv, nullptr, out, kForms}); }),
            rows * kDelta.value_dim() * (8 + quantised));
  }
  b->release();
}

// A tree like those of DDTree: a chain with side branches.
std::vector<int32_t> tree_of(int n) {
  std::vector<int32_t> parents;
  for (int i = 0; i < n; ++i) parents.push_back(i % 3 == 2 ? i - 2 : i - 1);
  return parents;
}

void bench_delta(Bench* b) {
  constexpr int kMaxRows = 512;
  std::vector<DeltaState> states;
  std::vector<DeltaReplay> replay;
  for (int i = 0; i < kDeltaLayers; ++i) {
    states.push_back({b->floats(static_cast<uint64_t>(kDelta.taps_elems())),
                      b->floats(static_cast<uint64_t>(kDelta.state_elems()), 0.1f)});
    const auto rows = [&](int width) { return b->floats(64 * static_cast<uint64_t>(width)); };
    replay.push_back({rows(kDelta.conv_dim()), rows(kDelta.key_dim()), rows(kDelta.value_dim()), rows(kDelta.nv)});
  }
  DeltaArgs a;
  a.w.shape = kDelta;
  a.w.conv = b->floats(4 * static_cast<uint64_t>(kDelta.conv_dim()), 0.5f);
  a.w.a = b->floats(static_cast<uint64_t>(kDelta.nv), -1.0f);
  a.w.dt = b->floats(static_cast<uint64_t>(kDelta.nv));
  a.io.qkv = b->floats(static_cast<uint64_t>(kMaxRows) * static_cast<uint64_t>(kDelta.conv_dim()));
  a.io.alpha = b->floats(static_cast<uint64_t>(kMaxRows) * static_cast<uint64_t>(kDelta.nv));
  a.io.beta = b->floats(static_cast<uint64_t>(kMaxRows) * static_cast<uint64_t>(kDelta.nv));
  a.conv = b->floats(static_cast<uint64_t>(kMaxRows) * static_cast<uint64_t>(kDelta.conv_dim()));
  a.gates = b->floats(static_cast<uint64_t>(kMaxRows) * static_cast<uint64_t>(2 * kDelta.nv));
  a.mixed = b->floats(static_cast<uint64_t>(kMaxRows) * static_cast<uint64_t>(kDelta.value_dim()));
  a.state_slots = TreePlanner::saved_states(64);
  a.saved = b->floats(static_cast<uint64_t>(a.state_slots) * static_cast<uint64_t>(kDelta.state_elems()));
  a.groups = 1;
  a.shared_per_block = b->info.shared_per_block;
  a.processors = b->info.processors;

  struct Case {
    const char* name;
    std::vector<int32_t> parents;  // empty: a committing chain
    int rows;
  };
  std::vector<int32_t> chain;
  for (int i = 0; i < 16; ++i) chain.push_back(i - 1);
  std::vector<int32_t> branches;  // as in step27b_bench
  for (int i = 0; i < 23; ++i) branches.push_back(i >= 4 && i % 2 == 0 ? i - 3 : i - 1);
  const Case cases[] = {{"1 row", {-1}, 1},
                        {"chain of 16", chain, 16},
                        {"two branches of 23", branches, 23},
                        {"tree of 23", tree_of(23), 23},
                        {"tree of 32", tree_of(32), 32},
                        {"committing chain of 512", {}, 512}};
  for (const Case& c : cases) {
    std::vector<DeltaRow> rows(static_cast<size_t>(c.rows));
    if (c.parents.empty()) {
      chain_rows(c.rows, rows.data());
    } else {
      TreePlanner planner(c.rows);
      std::vector<int32_t> order(static_cast<size_t>(c.rows)), up(static_cast<size_t>(c.rows));
      planner.plan(c.parents, order.data(), up.data(), rows.data());
    }
    const DeltaGroup group{0,
                           c.rows,
                           c.parents.empty(),
                           rows.data(),
                           states.data(),
                           replay.data(),
                           c.parents.empty() && c.rows > kDeltaChunk};
    DeltaStep step;
    step.plan({&group, 1}, c.rows, kDeltaLayers);
    a.rows = c.rows;
    a.row_plans = b->upload(step.rows);
    const DeltaStepGroup* groups = b->upload(step.groups);
    const auto layers = [&](const auto& issue) {
      return b->time(kDeltaLayers, [&] {
        for (int i = 0; i < kDeltaLayers; ++i) {
          a.group_plans = groups + i;
          issue();
        }
      });
    };
    const double row_bytes = 4.0 * c.rows * (2.0 * kDelta.conv_dim() + kDelta.key_dim());
    b->line((std::string("delta conv, ") + c.name).c_str(), layers([&] { launch_delta_conv(b->stream, a); }),
            row_bytes);
    const double state = 4.0 * static_cast<double>(kDelta.state_elems()) * (c.parents.empty() ? 2 : 1);
    std::vector<float> outputs[2];  // of both forms: the same bits
    for (const bool columns : {false, true}) {
      const DeltaRule rule = columns ? launch_delta_columns : launch_delta_slices;
      b->line((std::string(columns ? "delta rule by columns, " : "delta rule by slices, ") + c.name).c_str(),
              layers([&] { rule(b->stream, a); }),
              state + 4.0 * c.rows * (kDelta.conv_dim() + 2.0 * kDelta.value_dim()));
      if (c.parents.empty()) continue;  // every launch goes on from the state of the one before
      const size_t n = static_cast<size_t>(c.rows) * static_cast<size_t>(kDelta.value_dim());
      outputs[columns].resize(2 * n);
      b->stream.to_host(outputs[columns].data(), a.mixed, n * sizeof(float));
      b->stream.to_host(outputs[columns].data() + n, replay.back().d, n * sizeof(float));
      b->sync();
    }
    if (outputs[0] != outputs[1]) die(errorf(TND_INTERNAL, "delta rule, %s: the forms differ", c.name));
    DeltaChunks chunks;
    chunks.plan({&group, 1}, 0, delta_chunk_capacity(kMaxRows));
    if (chunks.chunks.empty() || !delta_chunked(b->info)) continue;
    DeltaChunkArgs p;
    p.w = a.w, p.io = a.io, p.conv = a.conv, p.gates = a.gates, p.mixed = a.mixed;
    p.chunks = b->upload(chunks.chunks), p.n_chunks = static_cast<int>(chunks.chunks.size());
    p.chains = b->upload(chunks.chains), p.n_chains = static_cast<int>(chunks.chains.size());
    p.scratch = b->take(delta_chunk_scratch_bytes(kDelta, p.n_chunks));
    p.shared_per_block = b->info.shared_per_block;
    const auto chunked = [&](const auto& issue) {
      return b->time(kDeltaLayers, [&] {
        for (int i = 0; i < kDeltaLayers; ++i) {
          p.group_plans = groups + i;
          issue();
        }
      });
    };
    const double scratch = static_cast<double>(delta_chunk_scratch_bytes(kDelta, p.n_chunks));
    b->line("delta rule in chunks, 512: preparation", chunked([&] { launch_delta_prepare(b->stream, p); }),
            scratch + 4.0 * c.rows * kDelta.conv_dim());
    b->line("delta rule in chunks, 512: states", chunked([&] { launch_delta_states(b->stream, p); }),
            scratch + state + 4.0 * c.rows * kDelta.value_dim());
    b->line("delta rule in chunks, 512: both", chunked([&] {
              launch_delta_prepare(b->stream, p);
              launch_delta_states(b->stream, p);
            }),
            2 * scratch + state + 4.0 * c.rows * (kDelta.conv_dim() + kDelta.value_dim()));
  }
  std::vector<int32_t> path;
  for (int i = 0; i < 8; ++i) path.push_back(i);
  const DeltaCommitArgs commit{
      kDelta, kDeltaLayers, b->upload(states), b->upload(replay), b->upload(path), b->upload(std::vector<int32_t>{8})};
  b->line("delta commit of 8 rows, 48 layers", b->time(1, [&] { launch_delta_commit(b->stream, commit); }),
          kDeltaLayers * (8.0 * static_cast<double>(kDelta.state_elems()) + 32.0 * kDelta.replay_elems()));
  b->release();
}

void bench_attention(Bench* b) {
  struct Case {
    const char* type;
    int32_t kv_type;
    int context;
  };
  constexpr int32_t kF16 = static_cast<int32_t>(KvType::kF16), kQ8 = static_cast<int32_t>(KvType::kQ8_0),
                    kQ4 = static_cast<int32_t>(KvType::kQ4_0);
  const Case cases[] = {{"", kF16, 1024},      {"", kF16, 4096},      {"", kF16, 8192},      {"", kF16, 32768},
                        {"", kF16, 131072},    {" q8_0", kQ8, 1024},  {" q8_0", kQ8, 4096},  {" q8_0", kQ8, 8192},
                        {" q8_0", kQ8, 32768}, {" q4_0", kQ4, 32768}, {" q4_0", kQ4, 131072}};
  for (const auto& [type, kv_type, context] : cases) {
    const int layers = context > 8192 ? 4 : 16;
    const KvShape kv{kv_type, kv_type, kKvHeads, kHeadDim, context + 512};
    const uint64_t half_elems = kv_cache_bytes(kv, true) / 2;
    std::vector<KvCache> caches;
    for (int i = 0; i < layers; ++i) {
      KvCache c;
      for (void** p : {&c.k, &c.v}) {
        *p = b->take(half_elems * 2);
        launch(b->stream, {.grid = {4096}, .block = {256}, .name = "random"}, random_halves_kernel,
               static_cast<uint16_t*>(*p), half_elems);
      }
      caches.push_back(c);
    }
    const KvCache* table = b->upload(caches);
    std::vector<int32_t> pages;  // of one sequence, neighbours apart
    const int32_t n_pages = kv.capacity / kKvPage;
    for (int32_t i = 0; i < n_pages; ++i) pages.push_back(i % 2 == 0 ? i / 2 : n_pages - 1 - i / 2);
    const auto slot = [&](int position) { return kv_slot(pages.data(), position); };
    constexpr std::pair<int, bool> kSteps[] = {{1, false}, {16, false}, {16, true}, {23, true}, {512, false}};
    for (const auto& [rows, tree] : kSteps) {
      if (rows == 512 && context > 32768 && kv_type != kF16) continue;
      // Chains (1 row: plain; 512: the last chunk of a prompt) and trees.
      std::vector<AttentionRowPlan> plans;
      std::vector<std::vector<int32_t>> tails;
      const std::vector<int32_t> parents = tree_of(rows);
      const int past = context - (tree ? rows : 0);
      for (int i = 0; i < rows; ++i) {
        if (!tree) {
          const int end = context - rows + i + 1;
          plans.push_back({slot(end - 1), 0, end, 0, nullptr});
          continue;
        }
        std::vector<int32_t> tail;
        for (int at = i; at >= 0; at = parents[static_cast<size_t>(at)]) tail.insert(tail.begin(), slot(past + at));
        tails.push_back(tail);
      }
      for (size_t i = 0; i < tails.size(); ++i) {
        plans.push_back(
            {slot(past + static_cast<int32_t>(i)), 0, past, static_cast<int32_t>(tails[i].size()), tails[i].data()});
      }
      const AttentionGroupPlan group{0, rows, pages.data(), n_pages, context - rows};
      AttentionStep step;
      step.plan({{&group, 1}, plans.data(), nullptr, nullptr}, rows);
      AttentionArgs a;
      a.mode = attention_mode(kv, b->info);
      a.processors = b->info.processors;
      a.kv = kv, a.q_heads = kQHeads, a.scale = 1.0f / 16, a.rows = rows;
      a.row_plans = b->upload(step.rows), a.tails = b->upload(step.tails), a.pages = b->upload(step.pages);
      a.bulk = b->upload(step.bulk), a.n_bulk = static_cast<int>(step.bulk.size()), a.bulk_rows = step.bulk_rows;
      a.tail = b->upload(step.tail), a.n_tail = static_cast<int>(step.tail.size()), a.tail_rows = step.tail_rows;
      const uint64_t q_width = kQHeads * kHeadDim;
      float* q = b->floats(static_cast<uint64_t>(rows) * 2 * q_width);
      auto* halves = static_cast<uint16_t*>(b->take(static_cast<uint64_t>(rows) * q_width * 2));
      launch(b->stream, {.grid = {1024}, .block = {256}, .name = "random"}, random_halves_kernel, halves,
             static_cast<uint64_t>(rows) * q_width);
      a.q = halves, a.gate = q, a.gate_row = static_cast<int64_t>(q_width), a.gate_head = kHeadDim;
      a.out = b->floats(static_cast<uint64_t>(rows) * q_width);
      a.acts = b->acts(static_cast<int>(q_width), rows), a.forms = kForms;
      a.scratch_bytes = attention_scratch_bytes(a.mode, kv, kQHeads, rows);
      a.scratch = b->take(a.scratch_bytes);
      const double bytes = 2.0 * static_cast<double>(kv_cache_bytes(kv, true)) * context / kv.capacity;
      struct Form {
        const char* name;
        int shared;
        bool wgmma, many_keys, codes;
      };
      const bool wgmma = has_attention_wgmma(b->info);
      const Form forms[] = {{"", b->info.shared_per_block, wgmma, false, false},
                            {", many keys", b->info.shared_per_block, wgmma, true, false},
                            {", codes", b->info.shared_per_block, wgmma, true, true},
                            {", small blocks", 99 << 10, false, false, false},
                            {", codes, small blocks", 99 << 10, false, false, true}};
      std::vector<float> outputs;  // of the first form: all have its bits
      for (const Form& form : forms) {
        if (form.many_keys && (!wgmma || rows > 64)) continue;
        if (form.codes && (kv_type == kF16 || rows > 64 || (rows > 1 && form.shared != forms[0].shared))) continue;
        a.shared_per_block = form.shared, a.wgmma = form.wgmma, a.many_keys = form.many_keys, a.codes = form.codes;
        AttentionArgs plain = a;
        plain.forms = 0, plain.cache = caches[0];
        launch_attention(b->stream, plain);
        std::vector<float> got(static_cast<uint64_t>(rows) * q_width);
        b->stream.to_host(got.data(), a.out, got.size() * sizeof(float));
        b->sync();
        if (outputs.empty()) outputs = got;
        if (std::memcmp(outputs.data(), got.data(), got.size() * sizeof(float)) != 0) {
          std::printf("attention %dK%s, rows %d%s: kernels DIFFER\n", context / 1024, type, rows, form.name);
        }
        if (form.shared != forms[0].shared && rows == 1 && kv_type == kF16) continue;
        const double us = b->time(layers, [&] {
          for (int i = 0; i < layers; ++i) {
            a.cache = caches[static_cast<size_t>(i)];
            launch_attention(b->stream, a);
          }
        });
        const std::string name = "attention " + std::to_string(context / 1024) + "K" + type +
                                 (tree ? ", tree of " : ", rows ") + std::to_string(rows) + form.name;
        b->line(name.c_str(), us, bytes);
        const double pairs = rows == 512 ? 512.0 * (context - 256) : static_cast<double>(rows) * context;
        if (rows > 1) std::printf("%44s %9.1f TFLOP/s\n", "", 4.0 * kQHeads * kHeadDim * pairs / us * 1e-6);
      }
      if (rows > 23 || (rows == 16 && tree)) continue;
      HeadsArgs h;
      h.kv = kv, h.q_heads = kQHeads, h.rope_dims = 64, h.gated = true, h.eps = 1e-6f;
      h.q_norm = h.k_norm = b->floats(kHeadDim);
      h.rows = rows, h.row_plans = a.row_plans, h.rope = b->floats(static_cast<uint64_t>(rows) * 64);
      h.q = q, h.q_out = halves, h.q_halves = true, h.k = b->floats(static_cast<uint64_t>(rows) * 1024);
      h.v = b->floats(static_cast<uint64_t>(rows) * 1024);
      if (context == 1024) {
        b->line(label("head norms, rotation, append", rows).c_str(),
                b->time(layers,
                        [&] {
                          for (int i = 0; i < layers; ++i) {
                            h.cache = caches[static_cast<size_t>(i)];
                            launch_heads(b->stream, h);
                          }
                        }),
                rows * (8.0 * static_cast<double>(q_width) + 3 * 4096 + 4096));
      }
    }
    if (context == 1024) {
      std::vector<int32_t> from, to;
      for (int i = 0; i < 8; ++i) from.push_back(slot(600 + 2 * i)), to.push_back(slot(600 + i));
      const KvMoveArgs move{kv, table, layers, b->upload(from), b->upload(to), b->upload(std::vector<int32_t>{8})};
      b->line("kv move of 8 rows, 16 layers", b->time(1, [&] { launch_kv_move(b->stream, move); }),
              layers * 8 * 2.0 * 4096);
    }
    b->release();
  }
}

// Choice of tokens from logits as wide as the 27B's.
void bench_choose(Bench* b) {
  constexpr int kVocab = 248320, kTimes = 16, kMost = 23;
  struct Case {
    const char* name;
    float temperature, top_p;
    int top_k;
    bool logprob;
    int history, top_n;
  };
  const Case cases[] = {{"argmax", 0, 1, 0, false, 0, 0},
                        {"argmax, log-probability", 0, 1, 0, true, 0, 0},
                        {"T 0.7, top-k 20, top-p 0.95", 0.7f, 0.95f, 20, false, 0, 0},
                        {"the same, penalties, log-probability", 0.7f, 0.95f, 20, true, 64, 0},
                        {"T 1", 1, 1, 0, false, 0, 0},
                        {"T 1, top-p 0.95", 1, 0.95f, 0, false, 0, 0},
                        {"T 5, top-p 0.95 (flat)", 5, 0.95f, 0, false, 0, 0},
                        {"list of 8", 0, 1, 0, false, 0, 8}};
  float* logits = static_cast<float*>(b->take(uint64_t{kMost} * kVocab * sizeof(float)));
  launch(b->stream, {.grid = {4096}, .block = {256}, .name = "random"}, random_logits_kernel, logits,
         uint64_t{kMost} * kVocab);
  std::vector<TokenCount> history;
  for (int i = 0; i < 64; ++i) history.push_back(TokenCount{i * 3571 % kVocab, 1 + i % 3});
  const TokenCount* counts = b->upload(history);
  ChooseArgs a;
  a.logits = logits, a.stride = kVocab, a.vocab = kVocab;
  a.scratch = b->take(choose_scratch_bytes(kVocab, kMost));
  auto* results = static_cast<ChooseResult*>(b->take(kMost * sizeof(ChooseResult)));
  auto* ids = static_cast<int32_t*>(b->take(kMost * 64));
  auto* logprobs = static_cast<float*>(b->take(kMost * 64));
  for (const int rows : {1, 16, kMost}) {
    for (const Case& c : cases) {
      std::vector<ChooseRow> plans(static_cast<size_t>(rows));
      for (int i = 0; i < rows; ++i) {
        ChooseRow& r = plans[static_cast<size_t>(i)];
        r.wants = (c.top_n > 0 ? kWantRawSum : kWantToken) | (c.logprob ? kWantLogprob | kWantRawSum : 0);
        r.temperature = c.temperature, r.top_p = c.top_p, r.top_k = c.top_k, r.draw = 0.37;
        if (c.history > 0) {
          r.frequency_penalty = 0.5f;
          r.history = counts, r.n_history = c.history;
          r.undo = static_cast<float*>(b->take(static_cast<uint64_t>(c.history) * sizeof(float)));
        }
        r.top_n = c.top_n, r.top_ids = ids + i * 16, r.top_logprobs = logprobs + i * 16;
        r.result = results + i;
      }
      a.rows = rows;
      a.plans = b->upload(plans);
      b->line(label((std::string("choice, ") + c.name).c_str(), rows).c_str(),
              b->time(kTimes,
                      [&] {
                        for (int i = 0; i < kTimes; ++i) launch_choose(b->stream, a);
                      }),
              4.0 * rows * kVocab);
    }
  }
  b->release();
}

}  // namespace

int main(int argc, char** argv) {
  const int device = argc > 1 ? std::atoi(argv[1]) : 0;
  Bench b;
  const auto must = [](const Status& s) {
    if (!s.ok()) die(s);
  };
  must(device_info(device, &b.info));
  must(use_device(device));
  must(b.stream.open());
  constexpr uint64_t kCopy = uint64_t{1} << 30;
  const auto* from = reinterpret_cast<const uint4*>(b.floats(kCopy / 4));
  auto* to = static_cast<uint4*>(b.take(kCopy));
  const unsigned blocks = 8 * static_cast<unsigned>(b.info.processors);
  b.copy_gbs = 2.0 * kCopy / b.time(4, [&] {
    for (int i = 0; i < 4; ++i) {
      launch(b.stream, {.grid = {blocks}, .block = {512}, .name = "copy"}, copy_kernel, to, from,
             kCopy / sizeof(uint4));
    }
  }) * 1e-3;
  b.release();
  std::printf("%s, %d processors, copy %.0f GB/s\n", b.info.name.c_str(), b.info.processors, b.copy_gbs);
  const std::pair<const char*, void (*)(Bench*)> parts[] = {
      {"choice", bench_choose}, {"rows", bench_rows}, {"delta", bench_delta}, {"attention", bench_attention}};
  for (const auto& [name, bench] : parts) {
    bool wanted = argc < 3;
    for (int i = 2; i < argc; ++i) wanted = wanted || std::strcmp(argv[i], name) == 0;
    if (wanted) bench(&b);
  }
  return 0;
}
