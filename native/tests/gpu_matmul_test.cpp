// Products on the device against the scalar reference of the CPU by memcmp, for every type, row count and shape;
// packing and quantising likewise. Runs in the host emulation, and on a device when linked with its objects. The
// emulation also runs AMD's instructions (units 1 and 2), the path of targets without any (unit 3) and kernels for
// clusters of four blocks (unit 4) and of two (unit 5).
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>

#include "cpu/matmul.h"
#include "cpu/matmul_layout.h"
#include "gpu_matmul_util.h"

namespace {

using tnd::DType;
using tnd::gpu::MatmulGroup;
using tnd::gpu::Prompt;
using tnd::gpu_matmul_test::device;
using tnd::gpu_matmul_test::difference;
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

// Checks one weight against the reference for each of the row counts, the last of which is the largest.
void check_rows(DType type, uint64_t k, uint64_t n, Scales scales, std::initializer_list<int> counts, Rng& rng) {
  const int most = *(counts.end() - 1);
  const Weight w(type, k, n, scales, rng);
  const auto x = random_input(k, most, rng);
  const auto want = wanted(w.packed, x, most);
  const Inputs in(x, static_cast<int64_t>(k), most, tnd::gpu::act_form(type));
  for (int unit = 0; unit < (tnd::gpu::is_float_type(type) ? 1 : units()); ++unit) {
    for (int rows : counts) {
      if (unit == 3 && rows > 16 && rows <= 64) continue;  // the same code in more tiles
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
  // Rows around a kernel's tiles of columns; outputs that fill neither a unit nor a block's tile.
  Rng rng(6);
  for (DType type : kMatmulTypes) {
    if (emulated()) {
      check_rows(type, 1536, 76, Scales::kOrdinary, {65, 129}, rng);
    } else {
      check_rows(type, 1536, 300, Scales::kExtreme, {65, 128, 129, 300, 511, 512}, rng);
    }
    // Lanes that have no super-block, and a short last one.
    for (uint64_t k : {uint64_t{32}, uint64_t{256}, uint64_t{352}, uint64_t{768}}) {
      if (k % tnd::block_elems(type) != 0) continue;
      for (uint64_t n : {uint64_t{1}, uint64_t{64}}) check_rows(type, k, n, Scales::kExtreme, {65}, rng);
    }
  }
}

TEST(many_rows_of_which_some_are_in_use) {
  Rng rng(18);
  const uint64_t k = 512, n = 70;
  const int most = 300;
  for (DType type : {DType::kQ4_K, DType::kQ6_K, DType::kQ8_0, DType::kQ5_1}) {
    const Weight w(type, k, n, Scales::kOrdinary, rng);
    const auto x = random_input(k, most, rng);
    const auto want = wanted(w.packed, x, most);
    const Inputs in(x, k, most, tnd::gpu::act_form(type));
    const Memory y(want.size() * sizeof(float)), live(sizeof(int32_t));
    for (int unit = 0; unit < units(); ++unit) {
      for (const int32_t rows : {1, 64, 65, 128, 129, 200, 300}) {
        device().up(live.get(), &rows, sizeof rows);
        device().stream.fill(y.get(), 0xFF, want.size() * sizeof(float));
        MatmulGroup group = group_of(in.acts, most, unit);
        group.live = live.get<const int32_t>();
        group.count = 1;
        group.products[0] = {.w = w.w, .y = y.get<float>(), .y_stride = n};
        tnd::gpu::launch_matmul(device().stream, group);
        std::vector<float> got(want.size());
        device().down(got.data(), y.get(), got.size() * sizeof(float));
        const uint64_t used = static_cast<uint64_t>(rows) * n;
        CHECK_MSG(same_bits(got.data(), want.data(), used), difference(type, k, n, rows, unit, got, want));
        for (uint64_t i = used; i < got.size(); ++i) CHECK(std::isnan(got[i]));
      }
    }
  }
}

TEST(largest_codes_and_activations_do_not_overflow) {
  // Every bit of codes and scales set or clear and every activation at +-127: the largest integers there are.
  const uint64_t k = 1024;
  const int rows = 9;
  for (DType type : kMatmulTypes) {
    if (tnd::gpu::is_float_type(type)) continue;
    for (int fill : {0x00, 0xFF, 0x7F, 0x80, 0x0F, 0xF0}) {
      std::vector<uint8_t> weight(tnd::row_bytes(type, k), static_cast<uint8_t>(fill));
      for (uint64_t at = tnd::test::scale_offset(type); at < weight.size(); at += tnd::block_bytes(type)) {
        tnd::store_u16(&weight[at], 0x3C00);
        if (tnd::test::has_minimum(type)) tnd::store_u16(&weight[at + 2], 0xBC00);
      }
      std::vector<uint8_t> packed(tnd::gpu::weight_bytes(type, k, 1));
      tnd::gpu::repack_units(type, weight.data(), k, 1, 0, 1, packed.data());
      const Memory memory(packed.size()), y(rows * sizeof(float));
      device().up(memory.get(), packed.data(), packed.size());
      std::vector<float> x(rows * k);
      for (uint64_t i = 0; i < x.size(); ++i) {
        const uint64_t kind = i / k % 3;
        x[i] = kind == 0 ? 1.0f : kind == 1 || i % 2 == 0 ? -1.0f : 1.0f;
      }
      const Inputs in(x, k, rows, tnd::gpu::act_form(type));
      for (int unit = 0; unit < (emulated() ? 6 : 1); ++unit) {
        for (int count : {3, rows}) {
          MatmulGroup group = group_of(in.acts, count, unit);
          group.count = 1;
          group.products[0] = {.w = {type, k, 1, memory.get<const uint8_t>()}, .y = y.get<float>(), .y_stride = 1};
          tnd::gpu::launch_matmul(device().stream, group);
          float got[rows];
          device().down(got, y.get(), static_cast<uint64_t>(count) * sizeof(float));
          for (uint64_t r = 0; r < static_cast<uint64_t>(count); ++r) {
            const float want = tnd::test::reference_product(type, weight.data(), &x[r * k], k);
            CHECK_MSG(same_bits(&got[r], &want, 1), std::string(tnd::dtype_name(type)) + " " + std::to_string(fill));
          }
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
  for (int rows : {1, 5, 20, 40, 70}) {
    const auto x = random_input(k, rows, rng);
    const Inputs in(x, k, rows, tnd::gpu::kFormQ256 | tnd::gpu::kFormQ32 | tnd::gpu::kFormHalf);
    for (int unit = 0; unit < (rows < 20 || rows > 64 ? units() : 1); ++unit) {
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
  // Runs of units that end within a weight, teams with several units, with one and with none, units that are left over
  // and multiplied in parts, lanes of unequal length; on cards also outputs enough for clusters of two.
  Rng rng(17);
  struct Shape {
    uint64_t k;
    std::vector<std::pair<DType, uint64_t>> weights;
  };
  const Shape shapes[] = {{1280, {{DType::kQ5_K, 700}, {DType::kQ8_0, 24}, {DType::kQ4_K, 150}}},
                          {1024, {{DType::kQ6_K, 40}}},
                          {1312, {{DType::kQ8_0, 90}}},
                          {4352, {{DType::kQ4_K, 16}, {DType::kQ6_K, 70}}},
                          {17408, {{DType::kQ6_K, 450}}},
                          {3328, {{DType::kQ4_K, 1200}}},
                          {3072, {{DType::kQ6_K, 912}}},
                          {3072, {{DType::kQ5_K, 900}, {DType::kQ8_0, 40}, {DType::kQ6_K, 60}}},
                          {1280, {{DType::kQ4_K, 15000}, {DType::kQ8_0, 40}, {DType::kQ6_K, 15000}}},
                          {2560, {{DType::kQ4_K, 35000}}}};
  const std::vector<int> units = emulated() ? std::vector<int>{4, 5} : std::vector<int>{0};
  for (const Shape& shape : std::span(shapes, emulated() ? 8 : 10)) {
    const int most = 32;
    const auto x = random_input(shape.k, most, rng);
    const bool whole = shape.k % 256 == 0;
    const Inputs in(x, static_cast<int64_t>(shape.k), most, tnd::gpu::kFormQ32 | (whole ? tnd::gpu::kFormQ256 : 0u));
    std::vector<Weight> weights;
    std::vector<std::vector<float>> products, residuals;
    for (const auto& [type, n] : shape.weights) {
      weights.emplace_back(type, shape.k, n, Scales::kOrdinary, rng);
      products.push_back(wanted(weights.back().packed, x, most));
      residuals.emplace_back(products.back().size());
      for (float& v : residuals.back()) v = rng.normal();
    }
    for (int rows : {1, 8, 9, 16, 17, 24, 32}) {
      for (int unit : units) {
        MatmulGroup group = group_of(in.acts, rows, unit);
        std::vector<Memory> ys;
        for (size_t i = 0; i < weights.size(); ++i) {
          const uint64_t n = shape.weights[i].second;
          ys.emplace_back(residuals[i].size() * sizeof(float));
          float* const y = ys.back().get<float>();
          device().up(y, residuals[i].data(), residuals[i].size() * sizeof(float));
          group.products[group.count++] = {
              .w = weights[i].w, .y = y, .residual = i == 0 ? y : nullptr, .y_stride = static_cast<int64_t>(n)};
        }
        tnd::gpu::launch_matmul(device().stream, group);
        for (size_t i = 0; i < weights.size(); ++i) {
          std::vector<float> want = residuals[i], got(want.size());  // rows beyond the batch stay as they were
          for (size_t at = 0; at < static_cast<size_t>(rows) * shape.weights[i].second; ++at) {
            want[at] = i == 0 ? want[at] + products[i][at] : products[i][at];
          }
          device().down(got.data(), ys[i].get(), got.size() * sizeof(float));
          CHECK_MSG(same_bits(got.data(), want.data(), got.size()),
                    std::string(tnd::dtype_name(shape.weights[i].first)) + " k " + std::to_string(shape.k) + " rows " +
                        std::to_string(rows) + " unit " + std::to_string(unit));
        }
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
      for (int unit = 0; unit < (rows > 64 && !tnd::gpu::is_float_type(type) ? units() : 1); ++unit) {
        const auto y = product(w, in, rows, unit);
        CHECK_MSG(same_bits(&y[at * n], alone.data(), n), tnd::dtype_name(type));
      }
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
