// Row kernels: norms, gates, rotation, elementary functions; golden vectors, a double-precision oracle, and equality of
// all instruction sets bit for bit.
#include <cmath>
#include <functional>
#include <vector>

#include "cpu/cpu_features.h"
#include "cpu/math.h"
#include "cpu/row_kernels.h"
#include "harness.h"

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

std::vector<float> random_floats(Rng* rng, size_t n, float scale = 1) {
  std::vector<float> v(n);
  for (float& x : v) x = scale * rng->normal();
  return v;
}

// Runs f with every table: all results must equal the scalar's, which must be near the oracle.
void compare(const char* what, size_t n, const std::function<void(const RowKernels&, float*)>& f,
             const std::function<double(size_t)>& oracle, double tolerance) {
  std::vector<float> first(n);
  for (const RowKernels* t : tables()) {
    std::vector<float> y(n, -1.0f);
    f(*t, y.data());
    if (t == &kRowKernelsScalar) {
      first = y;
      for (size_t i = 0; i < n; ++i) {
        if (std::fabs(y[i] - oracle(i)) > tolerance * (1 + std::fabs(oracle(i)))) {
          CHECK_MSG(false, std::string(what) + " at " + std::to_string(i) + ": " + std::to_string(y[i]) + " against " +
                               std::to_string(oracle(i)));
          return;
        }
      }
    }
    CHECK_MSG(std::memcmp(first.data(), y.data(), n * sizeof(float)) == 0, what);
  }
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

}  // namespace

TEST(golden_micro_vectors) {
  for (const RowKernels* t : tables()) {
    // L2 norm: (3e-4, 4e-4) and (3, 4), padded with zeros.
    float v[16] = {3e-4f, 4e-4f};
    t->l2_norm(v, 1.0f, 1e-6f, 16, v);
    CHECK_NEAR(v[0], 0.26832816, 1e-7);
    CHECK_NEAR(v[1], 0.35777088, 1e-7);
    float w[16] = {3, 4};
    t->l2_norm(w, 1.0f, 1e-6f, 16, w);
    CHECK_NEAR(w[0], 0.599999988, 1e-7);
    CHECK_NEAR(w[1], 0.799999984, 1e-7);
    // Gated norm of four values; repeated four times the mean square stays the same.
    float o[16], norm[16], z[16];
    for (int i = 0; i < 16; ++i) {
      constexpr float kX[] = {1, -2, 3, -4}, kW[] = {1, .5f, 2, 1}, kZ[] = {0, 1, -1, 2};
      o[i] = kX[i % 4];
      norm[i] = kW[i % 4];
      z[i] = kZ[i % 4];
    }
    t->gated_norm(o, norm, z, 1e-6f, 16, o);
    constexpr double kWant[] = {0, -0.26694483, -0.58922109, -2.57297278};
    for (int i = 0; i < 16; ++i) CHECK_NEAR(o[i], kWant[i % 4], 1e-6);
    // Rotation at position 7, 64 dims, theta 1e7.
    float x[64], cos[32], sin[32];
    for (int j = 0; j < 32; ++j) {
      x[j] = 1;
      x[j + 32] = 0.5f;
      const double angle = 7 * std::pow(1e7, -2.0 * j / 64);
      cos[j] = static_cast<float>(std::cos(angle));
      sin[j] = static_cast<float>(std::sin(angle));
    }
    t->rope(x, cos, sin, 32);
    CHECK_NEAR(x[0], 0.42540895, 1e-6);
    CHECK_NEAR(x[32], 1.03393773, 1e-6);
    CHECK_NEAR(x[1], -0.02086873, 1e-6);
    CHECK_NEAR(x[33], -1.11783921, 1e-6);
    CHECK_NEAR(x[31], 0.99999942, 1e-6);
    CHECK_NEAR(x[63], 0.50000116, 1e-6);
  }
  // Decay: g = -exp(A_log) softplus(a + dt).
  CHECK_NEAR(-1.0 * softplus_f32(0.0f), -0.69314718, 1e-7);
  CHECK_NEAR(-std::exp(1.5) * softplus_f32(-1.25f), -1.12906781, 1e-6);
  CHECK_NEAR(-std::exp(-1.0) * softplus_f32(26.0f), -9.56486547, 1e-6);
}

TEST(elementary_functions) {
  double exp_error = 0, log_error = 0, softplus_error = 0;
  for (double x = -87; x < 88.7; x += 1.1e-3) {
    const float f = static_cast<float>(x);
    const double want = std::exp(static_cast<double>(f));
    exp_error = std::max(exp_error, std::fabs(exp_f32(f) - want) / want);
  }
  for (double l = -86; l < 88; l += 1.3e-3) {
    const float f = static_cast<float>(std::exp(l));
    const double want = std::log(static_cast<double>(f));
    log_error = std::max(log_error, std::fabs(log_f32(f) - want) / std::max(1e-3, std::fabs(want)));
  }
  for (double x = -80; x < 30; x += 1.7e-3) {
    const float f = static_cast<float>(x);
    const double want = f > 20 ? f : std::log1p(std::exp(static_cast<double>(f)));
    softplus_error = std::max(softplus_error, std::fabs(softplus_f32(f) - want) / want);
  }
  CHECK_MSG(exp_error < 1.3e-7, std::to_string(exp_error));
  CHECK_MSG(log_error < 3e-7, std::to_string(log_error));
  CHECK_MSG(softplus_error < 4e-7, std::to_string(softplus_error));
  const float inf = __builtin_inff();
  CHECK_EQ(exp_f32(-inf), 0.0f);
  CHECK_EQ(exp_f32(inf), inf);
  CHECK_EQ(exp_f32(0.0f), 1.0f);
  CHECK(exp_f32(std::nanf("")) != exp_f32(std::nanf("")));
  CHECK_EQ(log_f32(1.0f), 0.0f);
  CHECK_EQ(log_f32(0.0f), -inf);
  CHECK_EQ(log_f32(inf), inf);
  CHECK(log_f32(-1.0f) != log_f32(-1.0f));
  CHECK_EQ(silu_f32(-200.0f), -0.0f);
  CHECK_EQ(sigmoid_f32(200.0f), 1.0f);
#if defined(__x86_64__)
  // Vector forms on strange inputs: every 65537th bit pattern.
  if (isa_best() < Isa::kAvx512) return;
  std::vector<float> x;
  for (uint64_t bits = 0; bits < 0x100000000u; bits += 65537 * 3) {
    float f;
    const uint32_t b = static_cast<uint32_t>(bits);
    std::memcpy(&f, &b, 4);
    x.push_back(f);
  }
  x.resize(x.size() / 16 * 16);
  std::vector<float> ones(x.size(), 1.0f), a(x.size()), b(x.size()), c(x.size());
  const int64_t n = static_cast<int64_t>(x.size());
  kRowKernelsScalar.swiglu(x.data(), ones.data(), n, a.data());
  kRowKernelsAvx2.swiglu(x.data(), ones.data(), n, b.data());
  kRowKernelsAvx512.swiglu(x.data(), ones.data(), n, c.data());
  for (size_t i = 0; i < x.size(); ++i) {
    if (a[i] != a[i]) {
      CHECK(b[i] != b[i] && c[i] != c[i]);
    } else {
      CHECK(std::memcmp(&a[i], &b[i], 4) == 0 && std::memcmp(&a[i], &c[i], 4) == 0);
    }
  }
#endif
}

TEST(kernels_match_a_double_oracle_on_all_instruction_sets) {
  Rng rng(1);
  for (const size_t n : {size_t{16}, size_t{128}, size_t{256}, size_t{512}, size_t{1536}, size_t{5120}}) {
    const int64_t len = static_cast<int64_t>(n);
    for (const float scale : {1e-4f, 1.0f, 300.0f}) {
      const std::vector<float> x = random_floats(&rng, n, scale), w = random_floats(&rng, n),
                               z = random_floats(&rng, n, 3);
      double ss = 0;
      for (const float v : x) ss += static_cast<double>(v) * v;
      const double rms = 1 / std::sqrt(ss / static_cast<double>(n) + 1e-6), l2 = 1 / std::sqrt(ss + 1e-6);
      compare(
          "rms_norm", n, [&](const RowKernels& t, float* y) { t.rms_norm(x.data(), w.data(), 1e-6f, len, y); },
          [&](size_t i) { return x[i] * rms * w[i]; }, 1e-6);
      compare(
          "l2_norm", n, [&](const RowKernels& t, float* y) { t.l2_norm(x.data(), 0.25f, 1e-6f, len, y); },
          [&](size_t i) { return x[i] * l2 * 0.25; }, 1e-6);
      compare(
          "gated_norm", n,
          [&](const RowKernels& t, float* y) { t.gated_norm(x.data(), w.data(), z.data(), 1e-6f, len, y); },
          [&](size_t i) { return x[i] * rms * w[i] * z[i] * sigmoid(z[i]); }, 1e-6);
      compare(
          "swiglu", n, [&](const RowKernels& t, float* y) { t.swiglu(z.data(), x.data(), len, y); },
          [&](size_t i) { return z[i] * sigmoid(z[i]) * x[i]; }, 1e-6);
      compare(
          "sigmoid_gate", n, [&](const RowKernels& t, float* y) { t.sigmoid_gate(x.data(), z.data(), len, y); },
          [&](size_t i) { return x[i] * sigmoid(z[i]); }, 1e-6);
    }
  }
  for (const int64_t half : {16, 32, 64}) {
    const std::vector<float> x = random_floats(&rng, static_cast<size_t>(2 * half));
    std::vector<float> cos(static_cast<size_t>(half)), sin(cos.size());
    for (size_t j = 0; j < cos.size(); ++j) {
      cos[j] = std::cos(static_cast<float>(j));
      sin[j] = std::sin(static_cast<float>(j));
    }
    compare(
        "rope", static_cast<size_t>(2 * half),
        [&](const RowKernels& t, float* y) {
          std::copy(x.begin(), x.end(), y);
          t.rope(y, cos.data(), sin.data(), half);
        },
        [&](size_t i) {
          const size_t h = static_cast<size_t>(half), j = i % h;
          return i < h ? static_cast<double>(x[j]) * cos[j] - static_cast<double>(x[j + h]) * sin[j]
                       : static_cast<double>(x[j + h]) * cos[j] + static_cast<double>(x[j]) * sin[j];
        },
        1e-6);
  }
}

TEST_MAIN()
