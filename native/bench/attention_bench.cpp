// Attention speed: causal prefill in chunks of 512 and single-row decode, as share of the measured f32 fma peak and of
// bytes read. Usage: attention_bench [tokens] [threads] [type of the cache]
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "cpu/attention.h"
#include "cpu/cpu_features.h"
#include "kv_types.h"

using tnd::ThreadPool;
using namespace tnd::cpu;

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// GFLOP/s of independent fma chains on all threads of the pool.
#if defined(__x86_64__)
__attribute__((target("avx512f"))) void fma_loop512(long n, float* sink) {
  __m512 a[16];
  for (int i = 0; i < 16; i++) a[i] = _mm512_set1_ps(float(i));
  const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-3f);
  for (long j = 0; j < n; j++) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = _mm512_fmadd_ps(a[i], x, y);
  }
  __m512 s = a[0];
  for (int i = 1; i < 16; i++) s = _mm512_add_ps(s, a[i]);
  _mm512_storeu_ps(sink, s);
}
#endif

double peak_gflops(ThreadPool& pool) {
  static float sink[64 * 16];
  const long n = 4000000;
  double best = 0;
  for (int rep = 0; rep < 3; rep++) {
    const double t = now();
    pool.run(pool.threads(), [&](int task, int) { fma_loop512(n, sink + task * 16); });
    const double g = double(pool.threads()) * n * 16 * 16 * 2 / (now() - t) * 1e-9;
    best = g > best ? g : best;
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const int tokens = argc > 1 ? std::atoi(argv[1]) : 17500;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const char* name = argc > 3 ? argv[3] : "f16";
  const int32_t id = kv_type_of(name);
  if (id < 0) {
    std::fprintf(stderr, "%s is none of %s\n", name, tnd::kKvTypeNames);
    return 2;
  }
  const KvType type = static_cast<KvType>(id);
  ThreadPool pool(threads);
  const double peak = isa() == Isa::kAvx512 ? peak_gflops(pool) : 0;
  std::printf("threads %d, isa %s, f32 peak %.0f GFLOP/s\n", threads, isa_name(isa()), peak);
  struct {
    const char* name;
    int dim, kv_heads, q_heads;
  } shapes[] = {{"tiny target 4x256/1", 256, 1, 4}, {"27B 24x256/4", 256, 4, 24}, {"scorer 4x128/2", 128, 2, 4}};
  for (const auto& sh : shapes) {
    AttentionShape shape;
    shape.kv = {type, type, sh.dim, sh.kv_heads, tnd::kv_pages(tokens + 144) * tnd::kKvPage};
    shape.q_heads = sh.q_heads;
    shape.scale = 1.0f / std::sqrt(float(sh.dim));
    void* k = std::aligned_alloc(64, shape.kv.k_bytes());
    void* v = std::aligned_alloc(64, shape.kv.v_bytes());
    std::vector<int32_t> pages;  // neighbours lie apart
    const int32_t n_pages = shape.kv.capacity / tnd::kKvPage;
    for (int32_t i = 0; i < n_pages; i++) pages.push_back(i % 2 == 0 ? i / 2 : n_pages - 1 - i / 2);
    std::vector<float> row(size_t(sh.kv_heads) * sh.dim);
    for (int i = 0; i < shape.kv.capacity; i++) {
      for (size_t d = 0; d < row.size(); d++) row[d] = float((i * 31 + d * 17) % 101 - 50) / 50;
      kv_store(shape.kv, k, v, i, row.data(), row.data());
    }
    AttentionScratch s;
    s.threads = std::aligned_alloc(64, attention_scratch_bytes(shape) * threads);
    s.partial_bytes = attention_partial_bytes(shape, tokens + 144) & ~size_t{63};
    s.partial = std::aligned_alloc(64, s.partial_bytes);
    const int chunk = 512;
    std::vector<float> q(size_t(chunk) * sh.q_heads * sh.dim, 0.1f), out(q.size());
    std::vector<AttentionRow> rows(chunk);
    double flop = 0;
    const double t0 = now();
    for (int p = 0; p < tokens; p += chunk) {
      const int n = tokens - p < chunk ? tokens - p : chunk;
      for (int i = 0; i < n; i++) {
        const size_t o = size_t(i) * sh.q_heads * sh.dim;
        rows[i] = {q.data() + o, out.data() + o, 0, p + i + 1, 0, nullptr};
        flop += 4.0 * sh.q_heads * sh.dim * (p + i + 1);
      }
      const AttentionGroup g{k, v, pages.data(), rows.data(), n};
      attention(pool, shape, &g, 1, s);
    }
    const double dt = now() - t0;
    std::printf("%-20s prefill %d: %.3f s, %.0f GFLOP/s, %.0f %% of peak\n", sh.name, tokens, dt, flop / dt * 1e-9,
                peak > 0 ? flop / dt * 1e-7 / peak : 0);
    // Chains of n pending rows; best of several, since the machine may be busy.
    for (int past : {128, 1024, tokens}) {
      for (int n : {1, 8, 16, 24}) {
        int32_t tail[32];
        for (int i = 0; i < 32; i++) tail[i] = tnd::kv_slot(pages.data(), past + i);
        for (int i = 0; i < n; i++) {
          const size_t o = size_t(i) * sh.q_heads * sh.dim;
          rows[i] = {q.data() + o, out.data() + o, 0, past, i + 1, tail};
        }
        const AttentionGroup g{k, v, pages.data(), rows.data(), n};
        double best = 1e9;
        for (int r = 0; r < (past < tokens ? 200 : 10); r++) {
          const double t1 = now();
          attention(pool, shape, &g, 1, s);
          best = now() - t1 < best ? now() - t1 : best;
        }
        std::printf("%-20s %2d rows at %d: %.0f us, %.1f GB/s of cache, %.0f GFLOP/s\n", sh.name, n, past, best * 1e6,
                    double(past) * shape.kv.row_bytes() / best * 1e-9,
                    4.0 * n * sh.q_heads * sh.dim * past / best * 1e-9);
      }
    }
    double store = 1e9;
    for (int r = 0; r < 20; r++) {
      const double t1 = now();
      for (int i = 0; i < 128; i++) kv_store(shape.kv, k, v, i, row.data(), row.data());
      store = (now() - t1) / 128 < store ? (now() - t1) / 128 : store;
    }
    std::printf("%-20s kv_store: %.0f ns a row\n", sh.name, store * 1e9);
    std::free(k), std::free(v), std::free(s.threads), std::free(s.partial);
  }
  return 0;
}
