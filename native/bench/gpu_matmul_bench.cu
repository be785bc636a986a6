// Products on one GPU: time, share of the measured copy bandwidth and multiply rate per weight type, shape and row
// count, each result compared by memcmp with the scalar kernels of the CPU. 16-bit float weights add in an order of the
// card's instructions: they are compared within 2^-15 of their root mean square, and up to 64 rows (more are a
// prompt's) bit for bit with the same rows of other row counts.
//
//   gpu_matmul_bench [type[/n] ...]     types such as q4_k, with n those of n outputs; none = all cases
//
// A weight lies in memory in as many copies as make 600 MB or four, and launches go round them, so that no figure comes
// out of the cache. Launches are nodes of a graph. "row" is the time of a launch among launches that follow each other
// directly (a launch fetches weights while the one before ends), "alone" that of launches with a dependent fill in
// between, the fill's own time included, "step" that of launches between whose inputs are prepared, as in a step of a
// model: the preparation's own time, measured by itself, is taken off. The first 512 outputs are random and repeat down
// the matrix.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../tests/matmul_reference.h"
#include "cpu/cpu_features.h"
#include "cpu/matmul.h"
#include "gpu/matmul.h"
#include "gpu/matmul_layout.h"
#include "gpu/repack.h"
#include "gpu/runtime.h"

#if defined(TND_BENCH_CUBLAS)
#include <cublas_v2.h>
#endif

namespace {

using namespace tnd;
using namespace tnd::gpu;

[[noreturn]] void die(const Status& status) {
  std::fprintf(stderr, "gpu_matmul_bench: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}
void need(const Status& status) {
  if (!status.ok()) die(status);
}

struct Memory {
  void* p = nullptr;
  explicit Memory(uint64_t bytes) { need(device_alloc(bytes, &p)); }
  ~Memory() { device_free(p); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

struct Bench {
  DeviceInfo info;
  Stream stream;
  double copy_rate = 0;  // bytes read and written per second
  double bf16_rate = 0;  // operations per second, 0 = not measured

  // Seconds of one call of f(i), the least of several loops of `n`, each one graph unless that cannot be.
  template <typename F>
  double time(int n, F&& f, bool as_graph = true) {
    double best = 1e9;
    Graph graph;
    if (as_graph) {
      stream.begin_capture();
      for (int i = 0; i < n; ++i) f(i);
      stream.end_capture(&graph);
    }
    for (int loop = 0; loop < 7; ++loop) {
      Event from, to;
      from.record(stream);
      if (as_graph) {
        stream.run(graph);
      } else {
        for (int i = 0; i < n; ++i) f(i);
      }
      to.record(stream);
      need(stream.sync());
      if (loop >= 2) best = std::min(best, static_cast<double>(elapsed_ms(from, to)) * 1e-3 / n);
    }
    return best;
  }
};

void measure_ceilings(Bench* b) {
  const uint64_t bytes = uint64_t{1} << 30;
  const Memory from(bytes), to(bytes);
  b->stream.fill(from.p, 0x5A, bytes);
  b->copy_rate = 2.0 * static_cast<double>(bytes) / b->time(10, [&](int) { b->stream.copy(to.p, from.p, bytes); });
  std::printf("%s, %d processors; copy %.2f TB/s", b->info.name.c_str(), b->info.processors, b->copy_rate * 1e-12);
#if defined(TND_BENCH_CUBLAS)
  const int n = 8192;
  std::vector<uint16_t> host(size_t{n} * n);
  test::Rng rng(1);
  for (uint16_t& v : host) v = f32_to_bf16(rng.uniform(-1.0f, 1.0f));
  const Memory x(host.size() * 2), w(host.size() * 2), y(host.size() * 2);
  b->stream.to_device(x.p, host.data(), host.size() * 2);
  b->stream.to_device(w.p, host.data(), host.size() * 2);
  need(b->stream.sync());
  cublasHandle_t handle;
  cublasCreate(&handle);
  cublasSetStream(handle, static_cast<cudaStream_t>(b->stream.native()));
  const float one = 1.0f, zero = 0.0f;
  const double seconds = b->time(
      5,
      [&](int) {
        cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, w.p, CUDA_R_16BF, n, x.p, CUDA_R_16BF, n, &zero,
                     y.p, CUDA_R_16BF, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
      },
      false);
  cublasDestroy(handle);
  b->bf16_rate = 2.0 * n * n * n / seconds;
  std::printf(", bf16 product %.0f TFLOP/s", b->bf16_rate * 1e-12);
#endif
  std::printf("\n");
}

struct Case {
  DType type;
  int n, k;
  std::vector<int> rows;
};

constexpr int kDistinct = 512;  // outputs

std::vector<float> cpu_products(DType type, const std::vector<uint8_t>& file, int k, const std::vector<float>& x,
                                int rows) {
  cpu::isa_force(cpu::Isa::kScalar);
  const uint64_t kk = static_cast<uint64_t>(k);
  cpu::ThreadPool pool(0);
  const auto take = [](uint64_t bytes) {
    return std::unique_ptr<void, void (*)(void*)>(std::aligned_alloc(64, (bytes + 63) / 64 * 64), std::free);
  };
  const auto packed = take(cpu::packed_bytes(type, kk, kDistinct));
  cpu::PackedWeight w;
  need(cpu::pack_weight(type, file.data(), kk, kDistinct, packed.get(), &w, &pool));
  const auto memory = take(cpu::act_bytes(kk, rows, cpu::act_kind(type)));
  cpu::ActBuffer act;
  cpu::act_init(&act, memory.get(), kk, rows, cpu::act_kind(type));
  cpu::quantise_act(pool, x.data(), k, rows, kk, cpu::act_kind(type), &act);
  std::vector<float> y(static_cast<size_t>(rows) * kDistinct);
  const cpu::MatmulJob job{.weight = &w, .y = y.data(), .y_stride = kDistinct};
  cpu::matmul(pool, {&job, 1}, act, rows);
  return y;
}

// Compares y [rows][n] with the products of the distinct outputs.
bool equal(const std::vector<float>& y, const std::vector<float>& want, int rows, int n) {
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < n; o += kDistinct) {
      const size_t count = static_cast<size_t>(std::min(kDistinct, n - o)) * sizeof(float);
      if (std::memcmp(&y[static_cast<size_t>(r) * static_cast<size_t>(n) + static_cast<size_t>(o)],
                      &want[static_cast<size_t>(r) * kDistinct], count) != 0) {
        return false;
      }
    }
  }
  return true;
}

// Compares with those products up to the precision of pairs.
bool close(const std::vector<float>& y, const std::vector<float>& want, int rows, int n) {
  double squares = 0, errors = 0;
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < n; ++o) {
      const double wanted = want[static_cast<size_t>(r) * kDistinct + static_cast<size_t>(o % kDistinct)];
      const double got = y[static_cast<size_t>(r) * static_cast<size_t>(n) + static_cast<size_t>(o)];
      errors += (got - wanted) * (got - wanted);
      squares += wanted * wanted;
    }
  }
  return std::sqrt(errors / squares) < 0x1p-15;
}

bool run(Bench* b, const Case& c) {
  test::Rng rng(7);
  const auto file = test::random_weights(c.type, static_cast<uint64_t>(c.k), kDistinct, test::Scales::kOrdinary, rng);
  std::vector<uint8_t> part(weight_bytes(c.type, c.k, kDistinct));
  repack_units(c.type, file.data(), c.k, kDistinct, 0, units(c.type, kDistinct), part.data());
  const uint64_t bytes = weight_bytes(c.type, c.k, c.n);
  const int copies = static_cast<int>(std::max<uint64_t>(4, (600u << 20) / bytes + 1));
  const Memory weights(bytes * static_cast<uint64_t>(copies));
  uint8_t* const base = static_cast<uint8_t*>(weights.p);
  for (int i = 0; i < copies; ++i) {
    for (uint64_t at = 0; at < bytes; at += part.size()) {
      const uint64_t count = std::min<uint64_t>(part.size(), bytes - at);
      uint8_t* const to = base + static_cast<uint64_t>(i) * bytes + at;
      if (i == 0 && at == 0) {
        b->stream.to_device(to, part.data(), count);
      } else {
        b->stream.copy(to, base, count);
      }
    }
  }
  const int most = *std::max_element(c.rows.begin(), c.rows.end());
  std::vector<float> x(static_cast<size_t>(most) * static_cast<size_t>(c.k));
  for (float& v : x) v = rng.uniform(-2.0f, 2.0f);
  const uint32_t form = act_form(c.type);
  const Memory plain(x.size() * 4), acts_memory(acts_bytes(c.k, most, form));
  const Memory y(static_cast<uint64_t>(most) * static_cast<uint64_t>(c.n) * 4);
  const Memory scratch(matmul_scratch_bytes(b->info.processors)), small(256);
  b->stream.to_device(plain.p, x.data(), x.size() * 4);
  PrepareArgs prepare{};
  prepare.x = static_cast<const float*>(plain.p);
  prepare.x_stride = c.k;
  prepare.rows = most;
  prepare.k = c.k;
  prepare.forms = form;
  acts_init(&prepare.acts, acts_memory.p, c.k, most, form);
  const auto want = cpu_products(c.type, file, c.k, x, most);

  bool all = true;
  std::vector<float> first;  // of 64 rows or less
  for (int rows : c.rows) {
    const bool pairs = form == kFormHalf && has_matmul_pairs(b->info);
    prepare.acts.halves = !pairs ? HalfInputs::kFloats : rows > 64 ? HalfInputs::kPrompt : HalfInputs::kPairs;
    prepare.rows = rows;
    launch_prepare(b->stream, prepare);
    const auto launch_once = [&](int i) {
      MatmulGroup group{};
      group.count = 1;
      group.rows = rows;
      group.acts = prepare.acts;
      group.scratch = scratch.p;
      group.processors = b->info.processors;
      group.shared_per_block = b->info.shared_per_block;
      group.products[0].w = {c.type, c.k, c.n, base + static_cast<uint64_t>(i % copies) * bytes};
      group.products[0].y = static_cast<float*>(y.p);
      group.products[0].y_stride = c.n;
      launch_matmul(b->stream, group);
    };
    std::vector<float> got(static_cast<size_t>(rows) * static_cast<size_t>(c.n));
    b->stream.fill(y.p, 0xFF, got.size() * 4);
    launch_once(1);
    b->stream.to_host(got.data(), y.p, got.size() * 4);
    need(b->stream.sync());
    bool same = pairs ? close(got, want, rows, c.n) : equal(got, want, rows, c.n);
    if (pairs && rows <= 64) {
      same = same && std::memcmp(got.data(), first.data(), std::min(got.size(), first.size()) * sizeof(float)) == 0;
      if (got.size() > first.size()) first = got;
    }
    all = all && same;
    const int n = rows > 64 ? 2 * copies : std::max(16, 2 * copies);
    const double row = b->time(n, launch_once);
    const double alone = b->time(n, [&](int i) {
      launch_once(i);
      b->stream.fill(small.p, 0, 4);
    });
    const double both = b->time(n, [&](int i) {
      launch_prepare(b->stream, prepare);
      launch_once(i);
    });
    const double prepared = b->time(n, [&](int) { launch_prepare(b->stream, prepare); });
    const double ops = 2.0 * c.n * c.k * rows;
    std::printf("%-6s %6d x %5d rows %4d: row %7.1f us, alone %7.1f, step %7.1f, %5.1f %% of copy, %6.1f TFLOP/s",
                dtype_name(c.type), c.n, c.k, rows, row * 1e6, alone * 1e6, (both - prepared) * 1e6,
                100 * static_cast<double>(bytes) / row / b->copy_rate, ops / row * 1e-12);
    if (b->bf16_rate > 0 && rows > 64) std::printf(" = %4.1f %% of bf16", 100 * ops / row / b->bf16_rate);
    std::printf("  %s\n", same ? (pairs ? "close" : "bits equal") : (pairs ? "TOO FAR OR UNLIKE" : "BITS DIFFER"));
    std::fflush(stdout);
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  Bench b;
  need(use_device(0));
  need(device_info(0, &b.info));
  need(b.stream.open());
  measure_ceilings(&b);
  const std::vector<int> all = {1, 2, 4, 8, 9, 16, 23, 32, 64, 512};
  const std::vector<int> floats = {64, 1, 2, 4, 8, 16, 23, 32, 512, 520};
  const Case cases[] = {
      {DType::kQ4_K, 69632, 5120, all},  // the reference of gpu-notes 8.2
      {DType::kQ6_K, 69632, 5120, {1, 23, 32, 512}},
      {DType::kQ4_K, 5120, 6144, {1, 23, 512}},   // attention output
      {DType::kQ4_K, 34816, 5120, {1, 23, 512}},  // gate and up
      {DType::kQ4_K, 5120, 17408, {1, 23, 512}},  // down
      {DType::kQ5_K, 16384, 5120, {1, 23, 512}},  // DeltaNet q, k, v, z
      {DType::kQ8_0, 34816, 5120, {1, 16, 23, 512}},
      {DType::kIQ4_XS, 34816, 5120, {1, 23}},
      {DType::kBF16, 34816, 5120, floats},
      {DType::kF16, 34816, 5120, {1, 16, 23, 64, 512}},
      {DType::kBF16, 248320, 1024, {1, 8, 16, 23, 32, 64}},  // 0.8B: head
      {DType::kBF16, 8192, 1024, floats},                    // DeltaNet q, k, v, z
      {DType::kBF16, 5120, 1024, {1, 16, 23, 64}},           // attention q, gate, k, v
      {DType::kBF16, 1024, 2048, floats},                    // out
      {DType::kBF16, 7168, 1024, floats},                    // gate and up
      {DType::kBF16, 1024, 3584, floats},                    // down
      {DType::kBF16, 3584, 1024, {512, 520}},                // gate or up of a prompt
      {DType::kBF16, 512, 1024, {520}},                      // keys, or values
  };
  bool good = true;
  for (const Case& c : cases) {
    bool wanted = argc < 2;
    for (int i = 1; i < argc; ++i) {
      std::string name = dtype_name(c.type);
      for (char& ch : name) ch = static_cast<char>(std::tolower(static_cast<unsigned char>(ch)));
      wanted = wanted || name == argv[i] || name + "/" + std::to_string(c.n) == argv[i];
    }
    if (wanted) good = run(&b, c) && good;
  }
  return good ? 0 : 1;
}
