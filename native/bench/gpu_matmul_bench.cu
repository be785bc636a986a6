// Products on one GPU: time, share of the measured copy bandwidth and multiply rate per weight type, shape and row
// count, each result compared by memcmp with the scalar kernels of the CPU. More than 64 rows
// are a prompt's if the device has products of its own for them: those are compared with float64 sums, within 2^-15 of
// their root mean square for 16-bit float weights and 2^-10 for quantised ones. So are 16-bit float weights with fewer
// rows on devices with matrix instructions, and bit for bit with the same rows of other row counts.
//
//   gpu_matmul_bench [type[/n] ...]     types such as q4_k, with n those of n outputs; none = all cases
//
// A weight lies in memory in as many copies as make 600 MB or four, and launches go round them, so that no figure comes
// out of the cache. Launches are nodes of a captured graph. "row" is the time of a launch among launches that follow
// each other directly (a launch fetches weights while the one before ends), "step" that of launches with a small
// dependent kernel in between, as a step has them, the kernel's own time included. The first 512 outputs are random and
// repeat down the matrix.
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
#include "gpu/matmul/matmul.h"
#include "gpu/matmul/matmul_layout.h"
#include "gpu/matmul/repack.h"
#include "gpu/runtime/runtime.h"

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

// Stands for what lies between two products of a step: 16 blocks that start early and depend on the one before.
__global__ void between_kernel(const float* from, float* to) {
  let_next_start();
  wait_for_previous();
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = from[i] * 0.5f;
}
constexpr unsigned kBetween = 16 * 256;  // elements
void launch_between(Stream& stream, const float* from, float* to) {
  launch(stream, {.grid = {kBetween / 256}, .block = {256}, .overlap = true, .name = "between"}, between_kernel, from,
         to);
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

  // Seconds of one call of f(i), the least of several loops of `n`.
  template <typename F>
  double time(int n, F&& f) {
    double best = 1e9;
    for (int loop = 0; loop < 7; ++loop) {
      Event from, to;
      from.record(stream);
      for (int i = 0; i < n; ++i) f(i);
      to.record(stream);
      need(stream.sync());
      if (loop >= 2) best = std::min(best, static_cast<double>(elapsed_ms(from, to)) * 1e-3 / n);
    }
    return best;
  }

  // Seconds of one of the n calls f(i) that make a graph, the least of several runs.
  template <typename F>
  double time_graph(int n, F&& f) {
    Graph graph;
    stream.begin_capture();
    for (int i = 0; i < n; ++i) f(i);
    stream.end_capture(&graph);
    return time(1, [&](int) { stream.run(graph); }) / n;
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
  const double seconds = b->time(5, [&](int) {
    cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, w.p, CUDA_R_16BF, n, x.p, CUDA_R_16BF, n, &zero, y.p,
                 CUDA_R_16BF, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  });
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
  ThreadPool pool(0);
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

constexpr int kSampled = 29;  // every so many rows are compared with float64

// Sums in float64 of every kSampled-th row, [row / kSampled][kDistinct].
std::vector<double> exact_products(DType type, const std::vector<uint8_t>& file, int k, const std::vector<float>& x,
                                   int rows) {
  const size_t kk = static_cast<size_t>(k);
  std::vector<float> w(kk * kDistinct);
  dequantise_row(type, file.data(), w.data(), w.size());
  std::vector<double> y;
  for (size_t r = 0; r < static_cast<size_t>(rows); r += kSampled) {
    for (size_t o = 0; o < kDistinct; ++o) {
      double sum = 0;
      for (size_t i = 0; i < kk; ++i) sum += static_cast<double>(w[o * kk + i]) * static_cast<double>(x[r * kk + i]);
      y.push_back(sum);
    }
  }
  return y;
}

// Compares with those up to the precision of a prompt's products.
bool close(DType type, const std::vector<float>& y, const std::vector<double>& want, int rows, int n) {
  double squares = 0, errors = 0;
  for (int r = 0; r < rows; r += kSampled) {
    for (int o = 0; o < n; ++o) {
      const double wanted = want[static_cast<size_t>(r / kSampled) * kDistinct + static_cast<size_t>(o % kDistinct)];
      const double got = y[static_cast<size_t>(r) * static_cast<size_t>(n) + static_cast<size_t>(o)];
      errors += (got - wanted) * (got - wanted);
      squares += wanted * wanted;
    }
  }
  return std::sqrt(errors / squares) < (is_float_type(type) ? 0x1p-15 : 0x1p-10);
}

bool run(Bench* b, const Case& c) {
  test::Rng rng(7);
  const auto file = test::random_weights(c.type, static_cast<uint64_t>(c.k), kDistinct, test::Scales::kOrdinary, rng);
  std::vector<uint8_t> part(weight_bytes(c.type, c.k, kDistinct));
  repack_units(c.type, file.data(), c.k, kDistinct, 0, units(c.type, kDistinct), part.data());
  const float scale = half_scale(largest_weight(c.type, file.data(), int64_t{c.k} * kDistinct));
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
  const Memory scratch(matmul_scratch_bytes(b->info.processors)), small(kBetween * sizeof(float));
  b->stream.to_device(plain.p, x.data(), x.size() * 4);
  PrepareArgs prepare{};
  prepare.x = static_cast<const float*>(plain.p);
  prepare.x_stride = c.k;
  prepare.rows = most;
  prepare.k = c.k;
  prepare.forms = form;
  acts_init(&prepare.acts, acts_memory.p, c.k, most, form);
  // How rows are prepared, and the most rows of those that have the CPU's bits.
  const auto prompt_of = [&](int rows) {
    const Prompt own = rows > 64 ? prompt_inputs(b->info) : Prompt::kNone;
    return own == Prompt::kPairs && !is_float_type(c.type) ? Prompt::kNone : own;
  };
  const bool paired = form == kFormHalf && has_matmul_pairs(b->info);
  prepare.acts.paired = paired ? 1 : 0;
  int same_rows = 0;
  for (int rows : c.rows) same_rows = std::max(same_rows, prompt_of(rows) == Prompt::kNone && !paired ? rows : 0);
  const auto want = same_rows > 0 ? cpu_products(c.type, file, c.k, x, same_rows) : std::vector<float>();
  const auto exact = same_rows < most ? exact_products(c.type, file, c.k, x, most) : std::vector<double>();

  bool all = true;
  std::vector<float> alike;  // of pairs, the most rows so far
  for (int rows : c.rows) {
    prepare.acts.prompt = prompt_of(rows);
    launch_prepare(b->stream, prepare);
    const auto launch_once = [&](int i) {
      MatmulGroup group{};
      group.count = 1;
      group.rows = rows;
      group.acts = prepare.acts;
      group.scratch = scratch.p;
      group.processors = b->info.processors;
      group.shared_per_block = b->info.shared_per_block;
      group.products[0].w = {c.type, c.k, c.n, base + static_cast<uint64_t>(i % copies) * bytes, scale};
      group.products[0].y = static_cast<float*>(y.p);
      group.products[0].y_stride = c.n;
      launch_matmul(b->stream, group);
    };
    std::vector<float> got(static_cast<size_t>(rows) * static_cast<size_t>(c.n));
    b->stream.fill(y.p, 0xFF, got.size() * 4);
    launch_once(1);
    b->stream.to_host(got.data(), y.p, got.size() * 4);
    need(b->stream.sync());
    const bool own = paired || prepare.acts.prompt != Prompt::kNone;
    bool same = own ? close(c.type, got, exact, rows, c.n) : equal(got, want, rows, c.n);
    if (paired && prepare.acts.prompt == Prompt::kNone) {
      same = same && std::memcmp(got.data(), alike.data(), std::min(got.size(), alike.size()) * sizeof(float)) == 0;
      if (got.size() > alike.size()) alike = got;
    }
    all = all && same;
    const int n = rows > 64 ? 2 * copies : std::max(16, 2 * copies);
    const double row = b->time_graph(n, launch_once);
    const double step = b->time_graph(n, [&](int i) {
      launch_once(i);
      launch_between(b->stream, static_cast<const float*>(plain.p), static_cast<float*>(small.p));
    });
    const double ops = 2.0 * c.n * c.k * rows;
    std::printf("%-6s %6d x %5d rows %4d: row %8.1f us, step %8.1f us, %5.1f %% of copy, %6.1f TFLOP/s",
                dtype_name(c.type), c.n, c.k, rows, row * 1e6, step * 1e6,
                100 * static_cast<double>(bytes) / row / b->copy_rate, ops / row * 1e-12);
    if (b->bf16_rate > 0 && rows > 64) std::printf(" = %4.1f %% of bf16", 100 * ops / row / b->bf16_rate);
    std::printf("  %s\n", same ? (own ? "close" : "bits equal") : (own ? "TOO FAR OR UNLIKE" : "BITS DIFFER"));
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
      {DType::kQ4_K, 5120, 6144, {1, 16, 23, 512}},   // attention output
      {DType::kQ4_K, 34816, 5120, {1, 16, 23, 512}},  // gate and up
      {DType::kQ4_K, 5120, 17408, {1, 16, 23, 512}},  // down
      {DType::kQ6_K, 5120, 17408, {1, 16, 23, 512}},  // and half of the layers' down
      {DType::kQ5_K, 16384, 5120, {1, 16, 23, 512}},  // DeltaNet q, k, v, z
      {DType::kQ4_K, 14336, 5120, {1, 16, 23, 512}},  // attention q, k, v
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
