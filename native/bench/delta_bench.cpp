// Times the delta rule of one head and the small row kernels.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "core/elementary.h"
#include "cpu/cpu_features.h"
#include "cpu/row_kernels.h"

using namespace tnd;

namespace {

double best_us(int calls, const std::function<void()>& f) {
  double best = 1e30;
  for (int run = 0; run < 60; ++run) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) f();
    best = std::min(
        best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / calls);
  }
  return best;
}

}  // namespace

int main() {
  if (cpu::isa_best() < cpu::Isa::kAvx512) {
    std::printf("needs AVX-512\n");
    return 0;
  }
  constexpr int kTokens = 512;
  std::vector<float> q(kTokens * 128), k(q.size()), v(q.size()), o(q.size()), d(128), s(128 * 128), beta(kTokens),
      alpha(kTokens);
  uint32_t seed = 7;
  const auto random = [&] { return static_cast<float>((seed = seed * 1664525u + 1013904223u) >> 8) * 0x1p-24f - 0.5f; };
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = random() * 0.02f;
    k[i] = random() * 0.3f;
    v[i] = random();
  }
  for (int i = 0; i < kTokens; ++i) {
    alpha[i] = exp_f32(-0.1f + 0.1f * random());
    beta[i] = 0.5f + random();
  }
  for (const auto& [name, table] : {std::pair{"scalar", &cpu::kRowKernelsScalar},
                                    {"avx2", &cpu::kRowKernelsAvx2},
                                    {"avx512", &cpu::kRowKernelsAvx512}}) {
    if (table == &cpu::kRowKernelsScalar) continue;  // a reference, 100 times slower
    const double us = best_us(1, [&] {
      for (int slice = 0; slice < 4; ++slice) {
        for (int i = 0; i < kTokens; ++i) {
          float* part = s.data() + slice * 32 * 128;
          table->delta_row(part, part, &k[i * 128], &q[i * 128], &v[i * 128 + slice * 32], alpha[i], beta[i], 1,
                           nullptr, &o[i * 128 + slice * 32]);
        }
      }
    });
    std::printf("recurrence %-7s %6.3f us per token and head\n", name, us / kTokens);
  }
  const auto& t = cpu::kRowKernelsAvx512;
  std::vector<float> x(8192, 0.25f), y(8192), w(8192, 1.0f);
  std::printf("conv_silu 1024 %.3f us\n",
              best_us(50, [&] { t.conv_silu(&x[0], &x[1024], &x[2048], &x[3072], &w[0], 1024, 1024, &y[0]); }));
  std::printf("swiglu 1536 %.3f us\n", best_us(50, [&] { t.swiglu(&x[0], &x[2048], 1536, &y[0]); }));
  std::printf("rms_norm 512 %.3f us\n", best_us(50, [&] { t.rms_norm(&x[0], &w[0], 1e-6f, 512, &y[0]); }));
  std::printf("sum_exp 8192 %.3f us\n", best_us(50, [&] { y[0] = t.sum_exp(&x[0], 8192, 0.25f, 1.0f); }));
  return 0;
}
