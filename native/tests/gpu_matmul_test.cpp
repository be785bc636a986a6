// Products on the device against the scalar reference of the CPU by memcmp, for every type, row count and shape;
// packing and quantising likewise. Prompts through 16-bit float weights have a contract of their own: against a
// reference in double everywhere, and in the emulation, whose matrix instructions add in a known order, by memcmp. Runs
// in the host emulation, and on a device when linked with its objects. The emulation also runs AMD's instructions (unit
// 1), the path of targets without any (unit 2) and kernels for clusters of blocks (unit 3).
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>

#include "cpu/cpu_features.h"
#include "cpu/matmul.h"
#include "cpu/matmul_layout.h"
#include "gpu/matmul.h"
#include "gpu/matmul_jobs.h"
#include "gpu/matmul_layout.h"
#include "gpu/norm.h"
#include "gpu/repack.h"
#include "gpu/swiglu.h"
#include "harness.h"
#include "matmul_reference.h"

namespace {

using tnd::DType;
using tnd::gpu::ActsView;
using tnd::gpu::DeviceWeight;
using tnd::gpu::MatmulGroup;
using tnd::gpu::Prompt;
using tnd::gpu::Stream;
using tnd::test::kMatmulTypes;
using tnd::test::Rng;
using tnd::test::Scales;

bool emulated() {
  return std::strcmp(tnd::gpu::api_name(), "emu") == 0;
}

// Device memory of a test.
class Memory {
 public:
  explicit Memory(uint64_t bytes) { CHECK_OK(tnd::gpu::device_alloc(bytes, &p_)); }
  Memory(Memory&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  ~Memory() { tnd::gpu::device_free(p_); }
  template <typename T = void>
  T* get() const {
    return static_cast<T*>(p_);
  }

 private:
  void* p_ = nullptr;
};

struct Device {
  tnd::gpu::DeviceInfo info;
  Stream stream;
  Memory scratch;

  Device() : scratch(open(this)) {}
  static uint64_t open(Device* d) {
    CHECK_OK(tnd::gpu::use_device(0));
    CHECK_OK(tnd::gpu::device_info(0, &d->info));
    CHECK_OK(d->stream.open());
    return tnd::gpu::matmul_scratch_bytes(d->info.processors);
  }
  void up(void* to, const void* from, uint64_t bytes) {
    stream.to_device(to, from, bytes);
    CHECK_OK(stream.sync());
  }
  void down(void* to, const void* from, uint64_t bytes) {
    stream.to_host(to, from, bytes);
    CHECK_OK(stream.sync());
  }
};

Device& device() {
  static Device d;
  return d;
}

// A weight in file order, packed for the CPU and on the device.
struct Weight {
  std::vector<uint8_t> rows;
  std::unique_ptr<uint8_t, void (*)(void*)> host;
  tnd::cpu::PackedWeight packed;
  Memory memory;
  DeviceWeight w;

  Weight(DType type, uint64_t k, uint64_t n, Scales scales, Rng& rng)
      : rows(tnd::test::random_weights(type, k, n, scales, rng)),
        host(static_cast<uint8_t*>(std::aligned_alloc(64, (tnd::cpu::packed_bytes(type, k, n) + 63) / 64 * 64)),
             std::free),
        memory(tnd::gpu::weight_bytes(type, static_cast<int64_t>(k), static_cast<int64_t>(n))) {
    CHECK_OK(tnd::cpu::pack_weight(type, rows.data(), k, n, host.get(), &packed));
    const int64_t kk = static_cast<int64_t>(k), nn = static_cast<int64_t>(n);
    CHECK_OK(tnd::gpu::check_weight(type, kk, nn));
    std::vector<uint8_t> staged(tnd::gpu::weight_bytes(type, kk, nn));
    const int64_t units = tnd::gpu::units(type, nn);
    const int64_t half = units / 2;  // in two parts, as a loader does
    tnd::gpu::repack_units(type, rows.data(), kk, nn, 0, half, staged.data());
    tnd::gpu::repack_units(type, rows.data(), kk, nn, half, units - half,
                           staged.data() + half * tnd::gpu::unit_bytes(type, kk));
    device().up(memory.get(), staged.data(), staged.size());
    w = {type, static_cast<int32_t>(k), static_cast<int32_t>(n), memory.get<const uint8_t>(),
         tnd::gpu::half_scale(tnd::gpu::largest_weight(type, rows.data(), kk * nn))};
  }
};

// Inputs on the device in the forms that weights need.
struct Inputs {
  Memory x, memory;
  ActsView acts;

  Inputs(const std::vector<float>& rows, int64_t k, int count, uint32_t forms, Prompt prompt = Prompt::kNone,
         bool paired = false)
      : x(rows.size() * sizeof(float)), memory(tnd::gpu::acts_bytes(k, count, forms)) {
    device().up(x.get(), rows.data(), rows.size() * sizeof(float));
    tnd::gpu::acts_init(&acts, memory.get(), k, count, forms);
    acts.prompt = prompt;
    acts.paired = paired ? 1 : 0;
    tnd::gpu::launch_prepare(device().stream, {.x = x.get<const float>(),
                                               .x_stride = k,
                                               .rows = count,
                                               .k = static_cast<int32_t>(k),
                                               .forms = forms,
                                               .acts = acts});
  }
};

// Inputs with large and tiny super-blocks, zero groups and outliers.
std::vector<float> random_input(uint64_t k, int rows, Rng& rng) {
  std::vector<float> x(k * static_cast<uint64_t>(rows));
  for (uint64_t i = 0; i < x.size(); ++i) {
    x[i] = rng.normal() * (i / 256 % 5 == 3 ? 1e-3f : 1.0f);
    if (rng.below(200) == 0) x[i] *= 30.0f;
  }
  for (int r = 0; r < rows; ++r) {
    const uint64_t block = static_cast<uint64_t>(r) * k + rng.below((k + 31) / 32) * 32;
    for (uint64_t i = block; i < std::min<uint64_t>(block + 32, static_cast<uint64_t>(r + 1) * k); ++i) x[i] = 0.0f;
  }
  return x;
}

// Products of the CPU's scalar kernels: the definition.
std::vector<float> wanted(const tnd::cpu::PackedWeight& w, const std::vector<float>& x, int rows) {
  const tnd::cpu::Isa before = tnd::cpu::isa();
  tnd::cpu::isa_force(tnd::cpu::Isa::kScalar);
  tnd::cpu::ThreadPool pool(1);
  const tnd::cpu::ActKinds kinds = tnd::cpu::act_kind(w.type);
  const uint64_t bytes = tnd::cpu::act_bytes(w.k, rows, kinds);
  const std::unique_ptr<void, void (*)(void*)> memory(std::aligned_alloc(64, (bytes + 63) / 64 * 64), std::free);
  tnd::cpu::ActBuffer act;
  tnd::cpu::act_init(&act, memory.get(), w.k, rows, kinds);
  tnd::cpu::quantise_act(pool, x.data(), static_cast<int64_t>(w.k), rows, w.k, kinds, &act);
  std::vector<float> y(w.n * static_cast<uint64_t>(rows));
  const tnd::cpu::MatmulJob job{.weight = &w, .y = y.data(), .y_stride = static_cast<int64_t>(w.n)};
  tnd::cpu::matmul(pool, {&job, 1}, act, rows);
  tnd::cpu::isa_force(before);
  return y;
}

MatmulGroup group_of(const ActsView& acts, int rows, int unit) {
  MatmulGroup group{};
  group.rows = rows;
  group.acts = acts;
  group.scratch = device().scratch.get();
  group.processors = device().info.processors;
  group.shared_per_block = device().info.shared_per_block;
  group.unit = unit;
  return group;
}

// Products of the device, `rows` of them; what was not written stays NaN. processors: 0 = those of the device.
std::vector<float> product(const Weight& w, const Inputs& in, int rows, int unit, int processors = 0) {
  const uint64_t count = w.packed.n * static_cast<uint64_t>(rows);
  const Memory y(count * sizeof(float));
  device().stream.fill(y.get(), 0xFF, count * sizeof(float));
  MatmulGroup group = group_of(in.acts, rows, unit);
  if (processors > 0) group.processors = processors;
  group.count = 1;
  group.products[0] = {.w = w.w, .y = y.get<float>(), .y_stride = static_cast<int64_t>(w.packed.n)};
  tnd::gpu::launch_matmul(device().stream, group);
  std::vector<float> out(count);
  device().down(out.data(), y.get(), count * sizeof(float));
  return out;
}

bool same_bits(const float* a, const float* b, uint64_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

// Text of the first difference.
std::string difference(DType type, uint64_t k, uint64_t n, int rows, int unit, const std::vector<float>& got,
                       const std::vector<float>& want) {
  std::string text = std::string(tnd::dtype_name(type)) + " k " + std::to_string(k) + " n " + std::to_string(n) +
                     " rows " + std::to_string(rows) + " unit " + std::to_string(unit);
  for (uint64_t i = 0; i < got.size(); ++i) {
    if (same_bits(&got[i], &want[i], 1)) continue;
    return text + ": row " + std::to_string(i / n) + " output " + std::to_string(i % n) + " is " +
           std::to_string(got[i]) + ", not " + std::to_string(want[i]);
  }
  return text;
}

int units() {
  return emulated() ? 3 : 1;
}

// Checks one weight against the reference for each of the row counts, the last of which is the largest.
void check_rows(DType type, uint64_t k, uint64_t n, Scales scales, std::initializer_list<int> counts, Rng& rng) {
  const int most = *(counts.end() - 1);
  const Weight w(type, k, n, scales, rng);
  const auto x = random_input(k, most, rng);
  const auto want = wanted(w.packed, x, most);
  const Inputs in(x, static_cast<int64_t>(k), most, tnd::gpu::act_form(type));
  for (int unit = 0; unit < (tnd::gpu::is_float_type(type) ? 1 : units()); ++unit) {
    for (int rows : counts) {
      if (unit == 2 && rows > 16) continue;  // the same code in more tiles
      const auto got = product(w, in, rows, unit);
      CHECK_MSG(same_bits(got.data(), want.data(), got.size()), difference(type, k, n, rows, unit, got, want));
    }
  }
}

}  // namespace

TEST(packing_is_lossless) {
  Rng rng(1);
  for (DType type : kMatmulTypes) {
    for (uint64_t k : {uint64_t{32}, uint64_t{256}, uint64_t{352}, uint64_t{1280}}) {
      if (k % tnd::block_elems(type) != 0) continue;
      const int64_t kk = static_cast<int64_t>(k);
      const int64_t n = 37;
      const auto rows = tnd::test::random_weights(type, k, n, Scales::kExtreme, rng);
      std::vector<uint8_t> packed(tnd::gpu::weight_bytes(type, kk, n));
      tnd::gpu::repack_units(type, rows.data(), kk, n, 0, tnd::gpu::units(type, n), packed.data());
      const uint64_t bytes = tnd::row_bytes(type, k);
      std::vector<uint8_t> row(bytes);
      for (int64_t o = 0; o < n; ++o) {
        tnd::gpu::unpack_row(type, packed.data(), kk, o, row.data());
        CHECK_MSG(std::memcmp(row.data(), rows.data() + static_cast<uint64_t>(o) * bytes, bytes) == 0,
                  tnd::dtype_name(type));
      }
    }
  }
}

TEST(weights_that_cannot_be_used_are_refused) {
  CHECK_EQ(tnd::gpu::check_weight(DType::kQ2_K, 256, 1).code(), TND_UNIMPLEMENTED);
  CHECK_EQ(tnd::gpu::check_weight(DType::kQ4_K, 128, 1).code(), TND_INVALID_ARGUMENT);
  CHECK_EQ(tnd::gpu::check_weight(DType::kQ8_0, 48, 1).code(), TND_INVALID_ARGUMENT);
  CHECK_EQ(tnd::gpu::check_weight(DType::kBF16, 0, 1).code(), TND_INVALID_ARGUMENT);
  CHECK_EQ(tnd::gpu::check_weight(DType::kBF16, 8, -1).code(), TND_INVALID_ARGUMENT);
}

TEST(inputs_are_quantised_as_on_the_cpu) {
  Rng rng(2);
  for (uint64_t k : {uint64_t{256}, uint64_t{1280}, uint64_t{352}}) {
    const int rows = 5;
    auto x = random_input(k, rows, rng);
    for (uint64_t i = 0; i < 32; ++i) x[i] = std::ldexp(x[i], -130);  // scale below the smallest normal number
    const uint32_t forms = tnd::gpu::kFormQ32 | tnd::gpu::kFormHalf | (k % 256 == 0 ? tnd::gpu::kFormQ256 : 0u);
    const Inputs in(x, static_cast<int64_t>(k), rows, forms);
    const int64_t supers = tnd::gpu::super_blocks(static_cast<int64_t>(k));
    const int64_t stride = in.acts.row_stride;
    const auto fetch = [&](const auto* from, int64_t count) {
      std::vector<std::remove_cvref_t<decltype(*from)>> to(static_cast<size_t>(count));
      device().down(to.data(), from, to.size() * sizeof(to[0]));
      return to;
    };
    const auto q32 = fetch(in.acts.q32, supers * 256 * stride);
    const auto scale32 = fetch(in.acts.scale32, supers * 8 * stride);
    const auto sum32 = fetch(in.acts.sum32, supers * 8 * stride);
    const auto f32 = fetch(in.acts.f32, rows * in.acts.f32_stride);
    std::vector<int8_t> q256;
    std::vector<uint16_t> sum16;
    std::vector<float> scale256;
    if (forms & tnd::gpu::kFormQ256) {
      q256 = fetch(in.acts.q256, supers * 256 * stride);
      sum16 = fetch(in.acts.sum16, supers * 16 * stride);
      scale256 = fetch(in.acts.scale256, supers * stride);
    }
    for (int row = 0; row < rows; ++row) {
      for (int64_t s = 0; s < supers; ++s) {
        const uint64_t elems = std::min<uint64_t>(256, k - static_cast<uint64_t>(s) * 256);
        const float* from = &x[static_cast<uint64_t>(row) * k + static_cast<uint64_t>(s) * 256];
        tnd::cpu::Act32 want32{};
        tnd::cpu::Act256 want256{};
        tnd::cpu::quantise32_scalar(from, elems, &want32, 0);
        if (!q256.empty()) tnd::cpu::quantise256_scalar(from, &want256, 0);
        for (int e = 0; e < 256; ++e) {
          const size_t at =
              static_cast<size_t>(((s * 4 + e / 64) * stride + row) * 64 + tnd::gpu::act_position(e % 64));
          CHECK_EQ(q32[at], want32.q[0][e]);
          if (!q256.empty()) CHECK_EQ(q256[at], want256.q[0][e]);
          const float value = e < static_cast<int>(elems) ? from[e] : 0.0f;
          CHECK(same_bits(&f32[static_cast<size_t>(row * in.acts.f32_stride + s * 256 + e)], &value, 1));
        }
        for (int j = 0; j < 8; ++j) {
          const size_t at = static_cast<size_t>((s * 8 + j) * stride + row);
          CHECK(same_bits(&scale32[at], &want32.a[0][j], 1));
          CHECK_EQ(sum32[at], want32.sum[0][j]);
        }
        if (q256.empty()) continue;
        CHECK(same_bits(&scale256[static_cast<size_t>(s * stride + row)], &want256.a[0], 1));
        for (int g = 0; g < 16; ++g) {
          const size_t at = static_cast<size_t>((s * stride + row) * 16 + tnd::gpu::sum_position(g));
          CHECK_EQ(tnd::f16_to_f32(sum16[at]), static_cast<float>(want256.sum16[0][g]));
        }
      }
    }
  }
}

TEST(products_equal_scalar_for_every_row_count) {
  Rng rng(3);
  for (DType type : kMatmulTypes) {
    if (emulated()) {
      check_rows(type, 1280, 40, Scales::kOrdinary, {1, 2, 7, 8, 9, 16, 17, 24, 25, 33, 64}, rng);
      continue;
    }
    const uint64_t k = 1280, n = 200;
    const Weight w(type, k, n, Scales::kOrdinary, rng);
    const auto x = random_input(k, 64, rng);
    const auto want = wanted(w.packed, x, 64);
    const Inputs in(x, static_cast<int64_t>(k), 64, tnd::gpu::act_form(type));
    for (int rows = 1; rows <= 64; ++rows) {
      const auto got = product(w, in, rows, 0);
      CHECK_MSG(same_bits(got.data(), want.data(), got.size()), difference(type, k, n, rows, 0, got, want));
    }
  }
}

TEST(products_equal_scalar_on_all_shapes) {
  Rng rng(4);
  for (DType type : kMatmulTypes) {
    for (uint64_t k : {uint64_t{32}, uint64_t{96}, uint64_t{256}, uint64_t{352}, uint64_t{768}, uint64_t{2304}}) {
      if (k % tnd::block_elems(type) != 0) continue;
      for (uint64_t n : {uint64_t{1}, uint64_t{15}, uint64_t{33}, uint64_t{100}}) {
        check_rows(type, k, n, n == 100 ? Scales::kExtreme : Scales::kOrdinary, {1, 3}, rng);
      }
    }
  }
}

TEST(float_weights_take_any_k) {
  Rng rng(5);
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (uint64_t k : {uint64_t{1}, uint64_t{7}, uint64_t{255}, uint64_t{257}, uint64_t{1027}, uint64_t{1283}}) {
      check_rows(type, k, 45, Scales::kOrdinary, {1, 6, 18}, rng);
    }
  }
}

TEST(many_rows_equal_scalar) {
  Rng rng(6);
  for (DType type : kMatmulTypes) {
    if (emulated()) {
      check_rows(type, 1536, 40, Scales::kOrdinary, {65, 150}, rng);
    } else {
      check_rows(type, 1536, 300, Scales::kExtreme, {65, 128, 300, 512}, rng);
    }
  }
}

namespace {

// Products of pairs as NUMERICS.md has them, with sums in the order of the emulated instructions (k ascending), and in
// double with the sum of magnitudes.
struct PairProduct {
  float bits;
  double exact, magnitude;
};

float bf16_of(float v) {
  return tnd::bf16_to_f32(tnd::f32_to_bf16(v));
}
// The nearest bfloat16 of a half, ties away from zero; the same as bf16_of up to ties.
float upper(float v) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(v) + 0x8000u) & 0xFFFF0000u);
}

// Adds elements first .. end - 1 to a sum: products of a part of the weights with a part of the inputs.
struct Parts {
  const std::vector<float>& w;
  const float* x;
  void low(DType type, uint64_t first, uint64_t end, float* sum) const {
    for (uint64_t i = first; i < end; ++i) *sum += upper(w[i]) * bf16_of(x[i] - bf16_of(x[i]));
    if (type != DType::kF16) return;
    for (uint64_t i = first; i < end; ++i) *sum += (w[i] - upper(w[i])) * bf16_of(x[i]);
  }
  void high(uint64_t first, uint64_t end, float* sum) const {
    for (uint64_t i = first; i < end; ++i) *sum += upper(w[i]) * bf16_of(x[i]);
  }
};

PairProduct pair_product(DType type, const uint8_t* row, const float* x, uint64_t k, bool prompt) {
  constexpr uint64_t kLanes = 32;
  std::vector<float> w(k);
  tnd::dequantise_row(type, row, w.data(), k);
  const Parts parts{w, x};
  PairProduct p{};
  for (uint64_t i = 0; i < k; ++i) {
    p.exact += static_cast<double>(w[i]) * static_cast<double>(x[i]);
    p.magnitude += std::fabs(static_cast<double>(w[i]) * static_cast<double>(x[i]));
  }
  const uint64_t blocks = (k + 15) / 16;
  const auto end_of = [&](uint64_t block) { return std::min(block * 16 + 16, k); };
  if (prompt) {
    for (uint64_t b = 0; b < blocks; ++b) {
      parts.low(type, b * 16, end_of(b), &p.bits);
      parts.high(b * 16, end_of(b), &p.bits);
    }
    return p;
  }
  float groups[8] = {};
  for (uint64_t lane = 0; lane < kLanes; ++lane) {
    float low = 0, high = 0;
    for (uint64_t b = lane * blocks / kLanes; b < (lane + 1) * blocks / kLanes; ++b) {
      parts.low(type, b * 16, end_of(b), &low);
      parts.high(b * 16, end_of(b), &high);
    }
    groups[lane / 4] += high + low;
  }
  p.bits = ((groups[0] + groups[1]) + (groups[2] + groups[3])) + ((groups[4] + groups[5]) + (groups[6] + groups[7]));
  return p;
}

std::vector<PairProduct> pair_products(const Weight& w, const std::vector<float>& x, int rows, bool prompt) {
  const uint64_t k = w.packed.k, n = w.packed.n;
  std::vector<PairProduct> want(n * static_cast<uint64_t>(rows));
  for (uint64_t r = 0; r < static_cast<uint64_t>(rows); ++r) {
    for (uint64_t o = 0; o < n; ++o) {
      want[r * n + o] = pair_product(w.w.type, &w.rows[o * tnd::row_bytes(w.w.type, k)], &x[r * k], k, prompt);
    }
  }
  return want;
}

// Checks products against their bound and, in the emulation, their bits.
void check_pairs(DType type, uint64_t k, const std::vector<float>& got, const std::vector<PairProduct>& want,
                 const std::string& where) {
  double squares = 0, errors = 0;
  for (uint64_t i = 0; i < got.size(); ++i) {
    const PairProduct& p = want[i];
    const double error = std::fabs(static_cast<double>(got[i]) - p.exact);
    const double input = type == DType::kF16 ? 0x1p-15 : 0x1p-16;
    const double sums = static_cast<double>(k / 16 + 1) * (type == DType::kF16 ? 3 : 2) * 0x1p-20;
    CHECK_MSG(error <= (input + sums) * p.magnitude + 1e-30, where);
    if (emulated()) CHECK_MSG(same_bits(&got[i], &p.bits, 1), where + " at " + std::to_string(i));
    errors += error * error;
    squares += p.exact * p.exact;
  }
  // The bound lets a lost `lo` pass when k is large; this does not (it would be 2^-9 or so).
  CHECK_MSG(std::sqrt(errors / squares) < 0x1p-15, where + ": " + std::to_string(std::sqrt(errors / squares)));
}

// The kinds of prompts' inputs that the device multiplies.
std::vector<Prompt> prompt_kinds() {
  std::vector<Prompt> kinds;
  if (tnd::gpu::has_matmul_pairs(device().info)) kinds.push_back(Prompt::kPairs);
  if (tnd::gpu::has_matmul_panels(device().info)) kinds.push_back(Prompt::kPanels);
  return kinds;
}

// Numbers of processors for which the launcher takes its large, its middle and its small tile at 65 x 300.
constexpr int kProcessors[] = {1, 6, 4096};

}  // namespace

TEST(prompts_through_float_weights_are_within_their_bound) {
  for (const Prompt kind : prompt_kinds()) {
    Rng rng(16);
    struct Shape {
      uint64_t k, n;
      std::vector<int> rows;
    };
    const Shape shapes[] = {{640, 300, {65}}, {257, 130, {100, 128}}, {40, 33, {513}}, {51, 5, {70}}};
    for (DType type : {DType::kBF16, DType::kF16}) {
      for (const Shape& shape : shapes) {
        const uint64_t k = shape.k, n = shape.n;
        const int most = shape.rows.back();
        const Weight w(type, k, n, Scales::kOrdinary, rng);
        const auto x = random_input(k, most, rng);
        const Inputs in(x, static_cast<int64_t>(k), most, tnd::gpu::act_form(type), kind);
        const auto want = pair_products(w, x, most, true);
        for (int rows : shape.rows) {
          for (int run = 0; run < (emulated() ? 6 : 3); ++run) {
            const int unit = run / 3, processors = kProcessors[run % 3];
            const auto got = product(w, in, rows, unit, processors);
            check_pairs(type, k, got, want,
                        std::string(tnd::dtype_name(type)) + " k " + std::to_string(k) + " rows " +
                            std::to_string(rows) + " unit " + std::to_string(unit) + " processors " +
                            std::to_string(processors));
          }
        }
      }
    }
  }
}

TEST(panels_hold_every_element_once) {
  for (const int64_t row : {0, 5, 8, 127}) {
    std::vector<bool> taken(128);
    for (int e = 0; e < 64; ++e) {
      const int64_t at = tnd::gpu::panel_at(row, e) - row * 128;
      CHECK(at >= 0 && at < 128 && at % 2 == 0 && !taken[static_cast<size_t>(at)]);
      taken[static_cast<size_t>(at)] = true;
    }
  }
}

TEST(divided_products_cover_all_outputs) {
  tnd::gpu::MatmulJobs jobs;
  const int outputs[] = {100, 300, 16, 40};
  std::vector<float> y(1000);
  std::vector<uint8_t> data(1000);
  for (int n : outputs) {
    tnd::gpu::MatmulJob& job = jobs.jobs[jobs.count++] = tnd::gpu::MatmulJob{};
    job.data = data.data();
    job.y = y.data();
    job.unit_bytes = 3;
    job.n = n;
    job.units = (n + 15) / 16;
  }
  for (int tiles = 0; tiles <= 6; ++tiles) {  // of 128: 1, 3, 1, 1
    tnd::gpu::MatmulJobs first = jobs;
    const tnd::gpu::MatmulJobs rest = tnd::gpu::divide(&first, tiles, 128, 16);
    int kept = 0, all = 0;
    for (int i = 0; i < first.count; ++i) {
      CHECK_EQ(first.jobs[i].units, (first.jobs[i].n + 15) / 16);
      CHECK(first.jobs[i].y == y.data());
      kept += (first.jobs[i].n + 127) / 128;
      all += first.jobs[i].n;
    }
    for (int i = 0; i < rest.count; ++i) {
      const auto& job = rest.jobs[i];
      CHECK_EQ(job.units, (job.n + 15) / 16);
      const auto skipped = job.y - y.data();
      CHECK(skipped % 128 == 0 && job.data - data.data() == skipped / 16 * 3);
      all += job.n;
    }
    CHECK_EQ(kept, tiles);
    CHECK_EQ(all, 456);
  }
}

TEST(prompts_through_quantised_weights_are_within_their_bound) {
  if (!tnd::gpu::has_matmul_panels(device().info)) return;
  Rng rng(19);
  for (DType type : kMatmulTypes) {
    if (tnd::gpu::is_float_type(type)) continue;
    for (const Scales scales : {Scales::kOrdinary, Scales::kExtreme, Scales::kZero}) {
      const uint64_t k = tnd::block_elems(type) == 32 ? 352 : 768, n = 50;
      const int rows = 70;
      const Weight w(type, k, n, scales, rng);
      const auto x = random_input(k, rows, rng);
      const auto got =
          product(w, Inputs(x, static_cast<int64_t>(k), rows, tnd::gpu::act_form(type), Prompt::kPanels), rows, 0);
      const double largest =
          static_cast<double>(tnd::gpu::largest_weight(type, w.rows.data(), static_cast<int64_t>(k * n)));
      const std::string where =
          tnd::dtype_name(type) + std::string(" scales ") + std::to_string(static_cast<int>(scales));
      double squares = 0, errors = 0;
      std::vector<float> row(k);
      for (uint64_t o = 0; o < n; ++o) {
        tnd::dequantise_row(type, &w.rows[o * tnd::row_bytes(type, k)], row.data(), k);
        for (uint64_t r = 0; r < static_cast<uint64_t>(rows); ++r) {
          double exact = 0, inputs = 0;
          for (uint64_t i = 0; i < k; ++i) {
            exact += static_cast<double>(row[i]) * static_cast<double>(x[r * k + i]);
            inputs += std::fabs(static_cast<double>(x[r * k + i]));
          }
          const double error = std::fabs(static_cast<double>(got[r * n + o]) - exact);
          CHECK_MSG(error <= 0x1p-9 * largest * inputs, where);  // four roundings to half
          errors += error * error;
          squares += exact * exact;
        }
      }
      // What int8 inputs lose is 2^-7 or more.
      CHECK_MSG(std::sqrt(errors) <= 0x1p-11 * std::sqrt(squares),
                where + ": " + std::to_string(std::sqrt(errors / squares)));
    }
  }
}

TEST(products_of_pairs_are_within_their_bound_and_alike_for_every_row_count) {
  if (!tnd::gpu::has_matmul_pairs(device().info)) return;
  Rng rng(19);
  struct Shape {
    uint64_t k, n;
  };
  // Lanes of several blocks, of one or none, of none but the last; the last step half beyond k.
  const Shape shapes[] = {{1280, 40}, {640, 97}, {257, 33}, {520, 5}, {51, 70}, {40, 1}};
  for (DType type : {DType::kBF16, DType::kF16}) {
    for (const Shape& shape : shapes) {
      const uint64_t k = shape.k, n = shape.n;
      const int most = k == 1280 ? 100 : 25;
      const Weight w(type, k, n, Scales::kOrdinary, rng);
      const auto x = random_input(k, most, rng);
      const Inputs in(x, static_cast<int64_t>(k), most, tnd::gpu::act_form(type), Prompt::kNone, true);
      const auto want = pair_products(w, x, most, false);
      std::vector<float> first;
      for (int rows : {most, 1, 2, 3, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 48, 63, 64, 65}) {
        if (rows > most) continue;
        // With one processor a block takes several units, one after the other, and clusters never form.
        struct Run {
          int unit, processors;
        };
        constexpr Run kRuns[] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {3, 64}};
        for (const auto& [unit, processors] : std::span(kRuns, emulated() ? 5 : 2)) {
          const std::string where = std::string(tnd::dtype_name(type)) + " k " + std::to_string(k) + " n " +
                                    std::to_string(n) + " rows " + std::to_string(rows) + " unit " +
                                    std::to_string(unit) + " processors " + std::to_string(processors);
          const auto got = product(w, in, rows, unit, processors);
          check_pairs(type, k, got, want, where);
          if (first.empty()) first = got;
          CHECK_MSG(same_bits(got.data(), first.data(), got.size()), where);
        }
      }
    }
  }
}

TEST(a_product_of_gate_and_up_writes_the_next_inputs) {
  // As the products, SwiGLU and its preparation in launches of their own; columns up to the next unit are zeros.
  if (!tnd::gpu::matmul_fuses(device().info, 64, 640)) return;
  Rng rng(20);
  struct Shape {
    uint64_t k, n;
    std::vector<int> rows;
  };
  const Shape shapes[] = {{520, 96, {1, 8, 9, 24, 25, 64}}, {96, 300, {5, 17}}, {640, 40, {64}}};
  for (DType type : {DType::kBF16, DType::kF16}) {
    for (const Shape& shape : shapes) {
      const uint64_t k = shape.k, n = shape.n;
      const int64_t nn = static_cast<int64_t>(n);
      const int most = shape.rows.back();
      const Weight gate(type, k, n, Scales::kOrdinary, rng), up(type, k, n, Scales::kOrdinary, rng);
      const auto x = random_input(k, most, rng);
      const uint64_t bytes = tnd::gpu::acts_bytes(nn, most, tnd::gpu::kFormHalf);
      const Memory wanted_memory(bytes), got_memory(bytes), ys(2 * n * static_cast<uint64_t>(most) * sizeof(float));
      ActsView wanted_acts, got_acts;
      for (const auto& [acts, memory] : {std::pair{&wanted_acts, &wanted_memory}, {&got_acts, &got_memory}}) {
        tnd::gpu::acts_init(acts, memory->get(), nn, most, tnd::gpu::kFormHalf);
        acts->paired = 1;
      }
      for (int rows : shape.rows) {
        const Inputs in(x, static_cast<int64_t>(k), most, tnd::gpu::act_form(type), Prompt::kNone, true);
        for (int processors : {0, 1}) {
          MatmulGroup group = group_of(in.acts, rows, 0);
          if (processors > 0) group.processors = processors;
          float* const y = ys.get<float>();
          group.count = 2;
          group.products[0] = {.w = gate.w, .y = y, .y_stride = nn};
          group.products[1] = {.w = up.w, .y = y + nn * rows, .y_stride = nn};
          tnd::gpu::launch_matmul(device().stream, group);
          tnd::gpu::SwigluArgs swiglu;
          swiglu.gate = y, swiglu.up = y + nn * rows, swiglu.stride = nn;
          swiglu.rows = rows, swiglu.dim = static_cast<int>(n);
          swiglu.acts = wanted_acts, swiglu.forms = tnd::gpu::kFormHalf;
          tnd::gpu::launch_swiglu(device().stream, swiglu);
          device().stream.fill(got_memory.get(), 0xFF, bytes);
          group.swiglu = got_acts;
          tnd::gpu::launch_matmul(device().stream, group);
          std::vector<uint16_t> want(bytes / 2), got(bytes / 2);
          device().down(want.data(), wanted_memory.get(), bytes);
          device().down(got.data(), got_memory.get(), bytes);
          const uint64_t steps = (n + 31) / 32 * 4, stride = static_cast<uint64_t>(got_acts.row_stride);
          for (uint64_t step = 0; step < steps; ++step) {
            for (uint64_t row = 0; row < static_cast<uint64_t>(rows); ++row) {
              const uint64_t at = (step * stride + row) * 16;
              CHECK_MSG(std::memcmp(&want[at], &got[at], 32) == 0,
                        std::string(tnd::dtype_name(type)) + " n " + std::to_string(n) + " rows " +
                            std::to_string(rows) + " row " + std::to_string(row) + " step " + std::to_string(step));
            }
          }
        }
      }
    }
  }
}

TEST(products_read_rows_before_their_norm) {
  // As the norm in a launch of its own.
  constexpr int kMost = 8;
  if (!tnd::gpu::matmul_fuses_norm(device().info, kMost, 1024)) return;
  Rng rng(21);
  for (DType type : {DType::kBF16, DType::kF16}) {
    for (uint64_t k : {uint64_t{1024}, uint64_t{400}, uint64_t{16}}) {
      constexpr uint64_t kOutputs[] = {70, 3};
      const Weight first(type, k, kOutputs[0], Scales::kOrdinary, rng);
      const Weight second(type, k, kOutputs[1], Scales::kOrdinary, rng);
      const auto x = random_input(k, kMost, rng);
      std::vector<float> weights(k);
      for (float& v : weights) v = rng.normal();
      const Memory rows_memory(x.size() * sizeof(float)), norm_memory(k * sizeof(float));
      device().up(rows_memory.get(), x.data(), x.size() * sizeof(float));
      device().up(norm_memory.get(), weights.data(), k * sizeof(float));
      const int32_t reversed[kMost] = {7, 6, 5, 4, 3, 2, 1, 0};
      const Memory gather(sizeof reversed);
      device().up(gather.get(), reversed, sizeof reversed);
      for (int rows : {1, 2, 5, kMost}) {
        const Memory acts_memory(tnd::gpu::acts_bytes(static_cast<int64_t>(k), rows, tnd::gpu::kFormHalf));
        const uint64_t count = (kOutputs[0] + kOutputs[1]) * static_cast<uint64_t>(rows);
        const Memory ys(count * sizeof(float));
        tnd::gpu::NormArgs norm;
        norm.x = rows_memory.get<const float>();
        norm.x_stride = static_cast<int64_t>(k);
        norm.w = norm_memory.get<const float>();
        norm.eps = 1e-6f;
        norm.rows = rows;
        norm.dim = static_cast<int>(k);
        norm.forms = tnd::gpu::kFormHalf;
        tnd::gpu::acts_init(&norm.acts, acts_memory.get(), static_cast<int64_t>(k), rows, tnd::gpu::kFormHalf);
        norm.acts.paired = 1;
        std::vector<float> want(count), got(count);
        for (int processors : {0, 1}) {
          MatmulGroup group = group_of(norm.acts, rows, 0);
          if (processors > 0) {
            group.processors = processors;
            norm.gather = gather.get<const int32_t>();
          }
          group.count = 2;
          float* const y = ys.get<float>();
          group.products[0] = {.w = first.w, .y = y, .y_stride = kOutputs[0]};
          group.products[1] = {
              .w = second.w, .y = y + kOutputs[0] * static_cast<uint64_t>(rows), .y_stride = kOutputs[1]};
          tnd::gpu::launch_norm(device().stream, norm);
          tnd::gpu::launch_matmul(device().stream, group);
          device().down(want.data(), ys.get(), count * sizeof(float));
          device().stream.fill(ys.get(), 0xFF, count * sizeof(float));
          group.norm = {.x = norm.x, .gather = norm.gather, .w = norm.w, .eps = norm.eps};
          tnd::gpu::launch_matmul(device().stream, group);
          device().down(got.data(), ys.get(), count * sizeof(float));
          CHECK_MSG(same_bits(got.data(), want.data(), count),
                    std::string(tnd::dtype_name(type)) + " k " + std::to_string(k) + " rows " + std::to_string(rows));
        }
      }
    }
  }
}

TEST(a_row_of_a_prompt_does_not_depend_on_its_place_or_neighbours) {
  // Rows of 65 again among 513, at other places, for all tiles of the launcher; infinities and NaN beside them.
  for (const Prompt kind : prompt_kinds()) {
    Rng rng(17);
    const uint64_t n = 290;
    for (DType type : {DType::kBF16, DType::kF16, DType::kQ4_K, DType::kQ6_K, DType::kQ8_0}) {
      if (kind == Prompt::kPairs && !tnd::gpu::is_float_type(type)) continue;
      const uint64_t k = tnd::gpu::is_float_type(type) ? 200 : 256;
      const Weight w(type, k, n, Scales::kOrdinary, rng);
      const auto few = random_input(k, 65, rng);
      const auto alone = product(w, Inputs(few, k, 65, tnd::gpu::act_form(type), kind), 65, 0);
      constexpr int kMany = 513, kStep = 7;
      auto many = random_input(k, kMany, rng);
      for (uint64_t i = 0; i < many.size(); i += 89) {
        many[i] = i % 2 == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
      }
      for (int r = 0; r < 65; ++r) {
        std::copy_n(few.begin() + static_cast<int64_t>(k) * r, k,
                    many.begin() + static_cast<int64_t>(k) * (r * kStep + 3));
      }
      const Inputs in(many, k, kMany, tnd::gpu::act_form(type), kind);
      for (int processors :
           {1, 4, 12, 4096}) {  // for pairs large, middle, small tiles; for panels rounds of two widths
        const auto y = product(w, in, kMany, 0, processors);
        for (uint64_t r = 0; r < 65; ++r) {
          CHECK_MSG(same_bits(&y[(r * kStep + 3) * n], &alone[r * n], n),
                    std::string(tnd::dtype_name(type)) + " row " + std::to_string(r));
        }
      }
    }
  }
}

TEST(products_of_a_prompt_share_inputs_of_all_forms) {
  // BF16, F16, F32 and Q8_0 weights of one input; residuals, one in place. F32 keeps its bits, Q8_0 too but for panels.
  for (const Prompt kind : prompt_kinds()) {
    Rng rng(18);
    const uint64_t k = 96;
    const int rows = 70;
    const DType types[] = {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kF16, DType::kBF16};
    const uint64_t outputs[] = {20, 70, 33, 64, 3};
    const auto x = random_input(k, rows, rng);
    const Inputs in(x, k, rows, tnd::gpu::kFormQ32 | tnd::gpu::kFormF32 | tnd::gpu::kFormHalf, kind);
    MatmulGroup group = group_of(in.acts, rows, 0);
    std::vector<Weight> weights;
    std::vector<Memory> ys;
    std::vector<std::vector<float>> want;
    for (size_t i = 0; i < 5; ++i) {
      const uint64_t n = outputs[i];
      weights.emplace_back(types[i], k, n, Scales::kOrdinary, rng);
      const Weight& w = weights.back();
      const auto plain = types[i] == DType::kF32 || (types[i] == DType::kQ8_0 && kind == Prompt::kPairs)
                             ? wanted(w.packed, x, rows)
                             : product(w, in, rows, 0);
      std::vector<float> residual(n * rows);
      for (float& v : residual) v = rng.normal();
      ys.emplace_back(residual.size() * sizeof(float));
      device().up(ys.back().get(), residual.data(), residual.size() * sizeof(float));
      const bool adds = i % 2 == 1;
      want.emplace_back(plain);
      for (size_t at = 0; adds && at < plain.size(); ++at) want.back()[at] = residual[at] + plain[at];
      float* const y = ys.back().get<float>();
      group.products[i] = {.w = w.w, .y = y, .residual = adds ? y : nullptr, .y_stride = static_cast<int64_t>(n)};
    }
    group.count = 5;
    tnd::gpu::launch_matmul(device().stream, group);
    for (size_t i = 0; i < 5; ++i) {
      std::vector<float> got(want[i].size());
      device().down(got.data(), ys[i].get(), got.size() * sizeof(float));
      CHECK_MSG(same_bits(got.data(), want[i].data(), got.size()), tnd::dtype_name(types[i]));
    }
  }
}

TEST(largest_codes_and_activations_do_not_overflow) {
  // Every bit of codes and scales set or clear and every activation at +-127: the largest integers there are.
  const uint64_t k = 512;
  for (DType type : kMatmulTypes) {
    if (tnd::gpu::is_float_type(type)) continue;
    for (int fill : {0x00, 0xFF, 0x7F, 0x80, 0x0F, 0xF0}) {
      std::vector<uint8_t> rows(tnd::row_bytes(type, k), static_cast<uint8_t>(fill));
      for (uint64_t at = tnd::test::scale_offset(type); at < rows.size(); at += tnd::block_bytes(type)) {
        tnd::store_u16(&rows[at], 0x3C00);
        if (tnd::test::has_minimum(type)) tnd::store_u16(&rows[at + 2], 0xBC00);
      }
      std::vector<uint8_t> packed(tnd::gpu::weight_bytes(type, k, 1));
      tnd::gpu::repack_units(type, rows.data(), k, 1, 0, 1, packed.data());
      const Memory memory(packed.size()), y(3 * sizeof(float));
      device().up(memory.get(), packed.data(), packed.size());
      std::vector<float> x(3 * k);
      for (uint64_t i = 0; i < x.size(); ++i) x[i] = i < k ? 1.0f : i < 2 * k || i % 2 == 0 ? -1.0f : 1.0f;
      const Inputs in(x, k, 3, tnd::gpu::act_form(type));
      for (int unit = 0; unit < units(); ++unit) {
        MatmulGroup group = group_of(in.acts, 3, unit);
        group.count = 1;
        group.products[0] = {.w = {type, k, 1, memory.get<const uint8_t>()}, .y = y.get<float>(), .y_stride = 1};
        tnd::gpu::launch_matmul(device().stream, group);
        float got[3];
        device().down(got, y.get(), sizeof got);
        for (uint64_t r = 0; r < 3; ++r) {
          const float want = tnd::test::reference_product(type, rows.data(), &x[r * k], k);
          CHECK_MSG(same_bits(&got[r], &want, 1), std::string(tnd::dtype_name(type)) + " " + std::to_string(fill));
        }
      }
    }
  }
}

TEST(products_of_a_group_share_a_launch) {
  // Weights of all kernels and very unequal sizes; residuals, one of them in place; wide strides.
  Rng rng(7);
  const uint64_t k = 512;
  const DType types[] = {DType::kQ5_K, DType::kQ8_0, DType::kQ4_K,   DType::kQ6_K,
                         DType::kBF16, DType::kQ4_1, DType::kIQ4_XS, DType::kQ4_K};
  const uint64_t outputs[] = {200, 3, 64, 17, 40, 31, 5, 1};
  for (int rows : {1, 5, 20, 70}) {
    const auto x = random_input(k, rows, rng);
    const Inputs in(x, k, rows, tnd::gpu::kFormQ256 | tnd::gpu::kFormQ32 | tnd::gpu::kFormHalf);
    for (int unit = 0; unit < (rows < 20 ? units() : 1); ++unit) {
      MatmulGroup group = group_of(in.acts, rows, unit);
      std::vector<Weight> weights;
      std::vector<Memory> ys, residuals;
      std::vector<std::vector<float>> want;
      for (int i = 0; i < 8; ++i) {
        const uint64_t n = outputs[i];
        const int64_t stride = static_cast<int64_t>(n) + 7;
        weights.emplace_back(types[i], k, n, Scales::kOrdinary, rng);
        const uint64_t count = static_cast<uint64_t>(stride * rows);
        std::vector<float> residual(count);
        for (float& v : residual) v = rng.normal();
        ys.emplace_back(count * sizeof(float));
        residuals.emplace_back(count * sizeof(float));
        const bool in_place = i == 2;
        device().up(residuals.back().get(), residual.data(), count * sizeof(float));
        device().up(ys.back().get(), residual.data(), count * sizeof(float));
        const float* from = i % 3 == 1 ? nullptr : in_place ? ys.back().get<float>() : residuals.back().get<float>();
        group.products[i] = {.w = weights.back().w, .y = ys.back().get<float>(), .residual = from, .y_stride = stride};
        const auto plain = wanted(weights.back().packed, x, rows);
        want.push_back(residual);  // what lies between rows stays as it was
        for (uint64_t r = 0; r < static_cast<uint64_t>(rows); ++r) {
          for (uint64_t o = 0; o < n; ++o) {
            float& v = want.back()[r * static_cast<uint64_t>(stride) + o];
            v = from != nullptr ? v + plain[r * n + o] : plain[r * n + o];
          }
        }
      }
      group.count = 8;
      tnd::gpu::launch_matmul(device().stream, group);
      for (size_t i = 0; i < 8; ++i) {
        std::vector<float> got(want[i].size());
        device().down(got.data(), ys[i].get(), got.size() * sizeof(float));
        CHECK_MSG(same_bits(got.data(), want[i].data(), got.size()),
                  std::string(tnd::dtype_name(types[i])) + " rows " + std::to_string(rows));
      }
    }
  }
}

TEST(clusters_give_the_same_bits) {
  // Runs of units that end within a weight, warps with several units, with one and with none, lanes of unequal length.
  Rng rng(17);
  struct Shape {
    uint64_t k;
    std::vector<std::pair<DType, uint64_t>> weights;
  };
  const Shape shapes[] = {{1280, {{DType::kQ5_K, 700}, {DType::kQ8_0, 24}, {DType::kQ4_K, 150}}},
                          {1024, {{DType::kQ6_K, 40}}},
                          {1312, {{DType::kQ8_0, 90}}},
                          {4352, {{DType::kQ4_K, 16}, {DType::kQ6_K, 70}}}};
  for (const Shape& shape : shapes) {
    const int most = 32;
    const auto x = random_input(shape.k, most, rng);
    const bool whole = shape.k % 256 == 0;
    const Inputs in(x, static_cast<int64_t>(shape.k), most, tnd::gpu::kFormQ32 | (whole ? tnd::gpu::kFormQ256 : 0u));
    for (int rows : {9, 16, 17, 24, 32}) {
      MatmulGroup group = group_of(in.acts, rows, emulated() ? 3 : 0);
      std::vector<Weight> weights;
      std::vector<Memory> ys;
      std::vector<std::vector<float>> want;
      for (const auto& [type, n] : shape.weights) {
        weights.emplace_back(type, shape.k, n, Scales::kOrdinary, rng);
        want.push_back(wanted(weights.back().packed, x, rows));
        ys.emplace_back(want.back().size() * sizeof(float));
        std::vector<float> residual(want.back().size());
        for (float& v : residual) v = rng.normal();
        device().up(ys.back().get(), residual.data(), residual.size() * sizeof(float));
        const bool adds = group.count == 0;
        for (size_t i = 0; adds && i < residual.size(); ++i) want.back()[i] = residual[i] + want.back()[i];
        float* const y = ys.back().get<float>();
        group.products[group.count++] = {
            .w = weights.back().w, .y = y, .residual = adds ? y : nullptr, .y_stride = static_cast<int64_t>(n)};
      }
      tnd::gpu::launch_matmul(device().stream, group);
      for (size_t i = 0; i < want.size(); ++i) {
        std::vector<float> got(want[i].size());
        device().down(got.data(), ys[i].get(), got.size() * sizeof(float));
        CHECK_MSG(same_bits(got.data(), want[i].data(), got.size()),
                  std::string(tnd::dtype_name(shape.weights[i].first)) + " k " + std::to_string(shape.k) + " rows " +
                      std::to_string(rows));
      }
    }
  }
}

TEST(a_row_does_not_depend_on_its_place_or_neighbours) {
  Rng rng(8);
  const uint64_t k = 512, n = 48;
  const auto check = [&](DType type, bool paired) {
    const Weight w(type, k, n, Scales::kOrdinary, rng);
    const auto one = random_input(k, 1, rng);
    const auto alone = paired ? product(w, Inputs(one, k, 1, tnd::gpu::act_form(type), Prompt::kNone, true), 1, 0)
                              : wanted(w.packed, one, 1);
    for (int rows : {2, 9, 33, 100}) {
      auto x = random_input(k, rows, rng);
      const uint64_t at = rng.below(static_cast<uint64_t>(rows));
      for (uint64_t i = 0; i < x.size(); i += 97) {
        x[i] = i % 2 == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
      }
      std::copy(one.begin(), one.end(), x.begin() + static_cast<int64_t>(at * k));
      const Inputs in(x, k, rows, tnd::gpu::act_form(type), Prompt::kNone, paired);
      const auto y = product(w, in, rows, 0);
      CHECK_MSG(same_bits(&y[at * n], alone.data(), n), tnd::dtype_name(type));
    }
  };
  for (DType type : {DType::kQ4_K, DType::kQ6_K, DType::kQ8_0, DType::kQ5_1, DType::kBF16}) {
    check(type, false);
  }
  if (!tnd::gpu::has_matmul_pairs(device().info)) return;
  check(DType::kBF16, true);
  check(DType::kF16, true);
}

TEST(embedding_equals_the_decoder) {
  Rng rng(9);
  for (DType type : kMatmulTypes) {
    for (uint64_t k : {uint64_t{96}, uint64_t{512}}) {
      if (k % tnd::block_elems(type) != 0) continue;
      const Weight w(type, k, 50, Scales::kExtreme, rng);
      const int32_t tokens[] = {0, 49, 17, 17, 31};
      const Memory ids(sizeof tokens), y(5 * k * sizeof(float));
      device().up(ids.get(), tokens, sizeof tokens);
      tnd::gpu::launch_embed(device().stream, {.table = w.w,
                                               .tokens = ids.get<const int32_t>(),
                                               .rows = 5,
                                               .y = y.get<float>(),
                                               .y_stride = static_cast<int64_t>(k)});
      std::vector<float> got(5 * k), want(k);
      device().down(got.data(), y.get(), got.size() * sizeof(float));
      for (uint64_t r = 0; r < 5; ++r) {
        tnd::dequantise_row(type, w.rows.data() + static_cast<uint64_t>(tokens[r]) * tnd::row_bytes(type, k),
                            want.data(), k);
        CHECK_MSG(same_bits(&got[r * k], want.data(), k), tnd::dtype_name(type));
      }
    }
  }
}

TEST_MAIN()
