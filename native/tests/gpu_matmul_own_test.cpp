// Products with contracts of their own: of 16-bit float weights on matrix instructions and of a prompt's rows with any
// weights, against a reference in double everywhere, and in the emulation, whose matrix instructions add in a known
// order, by memcmp. Runs in the host emulation, and on a device when linked with its objects.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>

#include "gpu/norm/norm.h"
#include "gpu/norm/swiglu.h"
#include "gpu_matmul_util.h"

namespace {

using tnd::DType;
using tnd::gpu::ActsView;
using tnd::gpu::MatmulGroup;
using tnd::gpu::Prompt;
using tnd::gpu_matmul_test::device;
using tnd::gpu_matmul_test::emulated;
using tnd::gpu_matmul_test::group_of;
using tnd::gpu_matmul_test::Inputs;
using tnd::gpu_matmul_test::Memory;
using tnd::gpu_matmul_test::product;
using tnd::gpu_matmul_test::random_input;
using tnd::gpu_matmul_test::same_bits;
using tnd::gpu_matmul_test::units;
using tnd::gpu_matmul_test::wanted;
using tnd::gpu_matmul_test::Weight;
using tnd::test::kMatmulTypes;
using tnd::test::Rng;
using tnd::test::Scales;

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
          for (int run = 0; run < (emulated() ? 9 : 3); ++run) {
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
        constexpr Run kRuns[] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}, {4, 64}};
        for (const auto& [unit, processors] : std::span(kRuns, emulated() ? 7 : 2)) {
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

TEST_MAIN()
