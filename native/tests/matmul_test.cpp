// Products against the contract: scalar kernels against a second formulation on file blocks, vector kernels against the
// scalar ones by memcmp, and the invariances (rows in the batch, threads, output ranges).
#include "cpu/matmul.h"

#include <cstdlib>
#include <limits>
#include <memory>

#include "cpu/cpu_features.h"
#include "harness.h"
#include "matmul_reference.h"

namespace {

using tnd::DType;
using tnd::ThreadPool;
using tnd::cpu::ActBuffer;
using tnd::cpu::Isa;
using tnd::cpu::MatmulJob;
using tnd::cpu::PackedWeight;
using tnd::test::kMatmulTypes;
using tnd::test::Rng;
using tnd::test::Scales;

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Memory = std::unique_ptr<uint8_t, Free>;

Memory aligned(uint64_t bytes) {
  return Memory(static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
}

struct Weight {
  std::vector<uint8_t> rows;  // file order
  Memory memory;
  PackedWeight packed;

  Weight(DType type, uint64_t k, uint64_t n, Scales scales, Rng& rng)
      : rows(tnd::test::random_weights(type, k, n, scales, rng)), memory(aligned(tnd::cpu::packed_bytes(type, k, n))) {
    CHECK_OK(tnd::cpu::pack_weight(type, rows.data(), k, n, memory.get(), &packed));
  }
  const uint8_t* row(uint64_t o) const { return rows.data() + o * tnd::row_bytes(packed.type, packed.k); }
};

// Inputs with large and tiny super-blocks, a zero block per row and outliers.
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

std::vector<float> product(ThreadPool& pool, const PackedWeight& w, const std::vector<float>& x, int rows) {
  const tnd::cpu::ActKinds kinds = tnd::cpu::act_kind(w.type);
  Memory memory = aligned(tnd::cpu::act_bytes(w.k, rows, kinds));
  ActBuffer act;
  tnd::cpu::act_init(&act, memory.get(), w.k, rows, kinds);
  tnd::cpu::quantise_act(pool, x.data(), static_cast<int64_t>(w.k), rows, w.k, kinds, &act);
  std::vector<float> y(w.n * static_cast<uint64_t>(rows), std::numeric_limits<float>::quiet_NaN());
  const MatmulJob job{.weight = &w, .y = y.data(), .y_stride = static_cast<int64_t>(w.n)};
  tnd::cpu::matmul(pool, {&job, 1}, act, rows);
  return y;
}

// Runs the body with each vector level of this machine, then returns to the level of the environment.
template <typename F>
void for_each_vector_isa(F&& body) {
  const Isa before = tnd::cpu::isa();
  for (Isa level : {Isa::kAvx2, Isa::kAvx512}) {
    if (level > tnd::cpu::isa_best()) continue;
    tnd::cpu::isa_force(level);
    body(level);
  }
  tnd::cpu::isa_force(before);
}

struct ScalarScope {
  Isa before = tnd::cpu::isa();
  ScalarScope() { tnd::cpu::isa_force(Isa::kScalar); }
  ~ScalarScope() { tnd::cpu::isa_force(before); }
};

bool same_bits(const float* a, const float* b, uint64_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

std::string where(DType type, uint64_t k, uint64_t n, int rows, Isa level) {
  return std::string(tnd::dtype_name(type)) + " k " + std::to_string(k) + " n " + std::to_string(n) + " rows " +
         std::to_string(rows) + " " + tnd::cpu::isa_name(level);
}

bool k_allowed(DType type, uint64_t k) {
  return k % tnd::block_elems(type) == 0;
}

}  // namespace

TEST(scalar_equals_the_reference_on_file_blocks) {
  ThreadPool pool(1);
  Rng rng(1);
  ScalarScope scalar;
  for (DType type : kMatmulTypes) {
    for (uint64_t k : {uint64_t{32}, uint64_t{96}, uint64_t{256}, uint64_t{352}, uint64_t{1024}, uint64_t{1536}}) {
      if (!k_allowed(type, k)) continue;
      for (Scales scales : {Scales::kOrdinary, Scales::kExtreme, Scales::kZero}) {
        const uint64_t n = 19;
        const int rows = 3;
        const Weight w(type, k, n, scales, rng);
        const auto x = random_input(k, rows, rng);
        const auto y = product(pool, w.packed, x, rows);
        for (int r = 0; r < rows; ++r) {
          for (uint64_t o = 0; o < n; ++o) {
            const float want = tnd::test::reference_product(type, w.row(o), &x[static_cast<uint64_t>(r) * k], k);
            CHECK_MSG(same_bits(&y[static_cast<uint64_t>(r) * n + o], &want, 1), where(type, k, n, r, Isa::kScalar));
          }
        }
      }
    }
  }
}

TEST(float_types_take_any_k) {
  ThreadPool pool(1);
  Rng rng(2);
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (uint64_t k : {uint64_t{1}, uint64_t{7}, uint64_t{255}, uint64_t{257}, uint64_t{1027}, uint64_t{1283}}) {
      const Weight w(type, k, 5, Scales::kOrdinary, rng);
      const auto x = random_input(k, 6, rng);
      for_each_vector_isa([&](Isa level) {
        const auto y = product(pool, w.packed, x, 6);
        for (uint64_t i = 0; i < y.size(); ++i) {
          const float want = tnd::test::reference_product(type, w.row(i % 5), &x[i / 5 * k], k);
          CHECK_MSG(same_bits(&y[i], &want, 1), where(type, k, 5, 6, level));
        }
      });
    }
  }
}

TEST(vector_kernels_equal_scalar_for_every_row_count) {
  ThreadPool pool(1);
  Rng rng(3);
  for (DType type : kMatmulTypes) {
    for (uint64_t k : {uint64_t{160}, uint64_t{512}, uint64_t{1536}}) {
      if (!k_allowed(type, k)) continue;
      const uint64_t n = 40;
      const Weight w(type, k, n, k == 512 ? Scales::kExtreme : Scales::kOrdinary, rng);
      const auto x = random_input(k, 64, rng);
      std::vector<float> want;
      {
        ScalarScope scalar;
        want = product(pool, w.packed, x, 64);
      }
      for_each_vector_isa([&](Isa level) {
        for (int rows = 1; rows <= 64; ++rows) {
          const auto y = product(pool, w.packed, x, rows);
          CHECK_MSG(same_bits(y.data(), want.data(), y.size()), where(type, k, n, rows, level));
        }
      });
    }
  }
}

TEST(vector_kernels_equal_scalar_on_all_shapes) {
  ThreadPool pool(2);
  Rng rng(4);
  for (DType type : kMatmulTypes) {
    for (uint64_t k : {uint64_t{256}, uint64_t{512}, uint64_t{768}, uint64_t{1024}, uint64_t{1536}, uint64_t{2560}}) {
      for (uint64_t n :
           {uint64_t{1}, uint64_t{4}, uint64_t{6}, uint64_t{16}, uint64_t{100}, uint64_t{512}, uint64_t{8192}}) {
        if (n == 8192 && k != 512) continue;
        const int rows = n > 100 ? 2 : 5;
        const Weight w(type, k, n, n == 100 ? Scales::kExtreme : Scales::kOrdinary, rng);
        const auto x = random_input(k, rows, rng);
        std::vector<float> want;
        {
          ScalarScope scalar;
          want = product(pool, w.packed, x, rows);
        }
        for_each_vector_isa([&](Isa level) {
          const auto y = product(pool, w.packed, x, rows);
          CHECK_MSG(same_bits(y.data(), want.data(), y.size()), where(type, k, n, rows, level));
        });
      }
    }
  }
}

TEST(largest_codes_and_activations_do_not_overflow) {
  // Every bit of codes and scales set or clear and every activation at +-127: the largest integers there are.
  ThreadPool pool(1);
  for (DType type : kMatmulTypes) {
    if (tnd::block_elems(type) == 1) continue;
    for (int fill : {0x00, 0xFF, 0x7F, 0x80, 0x0F, 0xF0}) {
      const uint64_t k = 512;
      std::vector<uint8_t> rows(tnd::row_bytes(type, k) * 16, static_cast<uint8_t>(fill));
      for (uint64_t at = tnd::test::scale_offset(type); at < rows.size(); at += tnd::block_bytes(type)) {
        tnd::store_u16(&rows[at], 0x3C00);
        if (tnd::test::has_minimum(type)) tnd::store_u16(&rows[at + 2], 0xBC00);
      }
      Memory memory = aligned(tnd::cpu::packed_bytes(type, k, 16));
      PackedWeight w;
      CHECK_OK(tnd::cpu::pack_weight(type, rows.data(), k, 16, memory.get(), &w));
      for (int pattern = 0; pattern < 3; ++pattern) {
        std::vector<float> x(k);
        for (uint64_t i = 0; i < k; ++i) x[i] = pattern == 0 ? 1.0f : pattern == 1 ? -1.0f : i % 2 == 0 ? 1.0f : -1.0f;
        const float want = tnd::test::reference_product(type, rows.data(), x.data(), k);
        {
          ScalarScope scalar;
          CHECK(same_bits(product(pool, w, x, 1).data(), &want, 1));
        }
        for_each_vector_isa([&](Isa level) {
          const auto y = product(pool, w, x, 1);
          CHECK_MSG(same_bits(y.data(), &want, 1), where(type, k, 16, fill, level));
        });
      }
    }
  }
}

TEST(a_row_does_not_depend_on_its_place_or_neighbours) {
  ThreadPool pool(2);
  Rng rng(5);
  const uint64_t k = 512;
  const uint64_t n = 96;
  for (DType type : kMatmulTypes) {
    const Weight w(type, k, n, Scales::kOrdinary, rng);
    const auto one = random_input(k, 1, rng);
    const auto alone = product(pool, w.packed, one, 1);
    for (int rows : {2, 9, 16, 17, 33, 200}) {
      auto x = random_input(k, rows, rng);
      const uint64_t at = rng.below(static_cast<uint64_t>(rows));
      for (uint64_t i = 0; i < x.size(); i += 97) x[i] = std::numeric_limits<float>::infinity();
      std::copy(one.begin(), one.end(), x.begin() + static_cast<int64_t>(at * k));
      const auto y = product(pool, w.packed, x, rows);
      CHECK_MSG(same_bits(&y[at * n], alone.data(), n), where(type, k, n, rows, tnd::cpu::isa()));
    }
  }
}

TEST(threads_do_not_change_bits) {
  Rng rng(6);
  for (DType type : {DType::kQ4_K, DType::kQ6_K, DType::kQ8_0, DType::kBF16}) {
    const Weight w(type, 768, 500, Scales::kOrdinary, rng);
    const auto x = random_input(768, 150, rng);
    ThreadPool one(1);
    const auto want = product(one, w.packed, x, 150);
    for (int threads : {2, 3, 5}) {
      ThreadPool pool(threads);
      for (int round = 0; round < 3; ++round) CHECK(product(pool, w.packed, x, 150) == want);
    }
  }
}

TEST(jobs_with_ranges_and_residuals) {
  ThreadPool pool(2);
  Rng rng(8);
  const uint64_t k = 512;
  const int rows = 21;
  const Weight q4(DType::kQ4_K, k, 90, Scales::kOrdinary, rng);
  const Weight q8(DType::kQ8_0, k, 6, Scales::kOrdinary, rng);
  const Weight bf(DType::kBF16, k, 33, Scales::kOrdinary, rng);
  const auto x = random_input(k, rows, rng);
  const tnd::cpu::ActKinds kinds = tnd::cpu::kActQ256 | tnd::cpu::kActQ32 | tnd::cpu::kActF32;
  Memory memory = aligned(tnd::cpu::act_bytes(1024, 40, kinds));
  ActBuffer act;
  tnd::cpu::act_init(&act, memory.get(), 1024, 40, kinds);
  tnd::cpu::quantise_act(pool, x.data(), static_cast<int64_t>(k), rows, k, kinds, &act);

  const int64_t stride = 128;
  std::vector<float> ya(stride * rows, -1.0f);
  std::vector<float> yb = random_input(stride, rows, rng);
  const std::vector<float> yb_before = yb;
  std::vector<float> yc(stride * rows, -1.0f);
  const MatmulJob jobs[] = {
      {.weight = &q4.packed, .y = ya.data(), .y_stride = stride, .n_begin = 5, .n_end = 71},
      {.weight = &q8.packed, .y = yb.data(), .y_stride = stride, .residual = yb.data(), .residual_stride = stride},
      {.weight = &bf.packed, .y = yc.data(), .y_stride = stride, .n_begin = 32},
  };
  tnd::cpu::matmul(pool, jobs, act, rows);
  const auto full_a = product(pool, q4.packed, x, rows);
  const auto full_b = product(pool, q8.packed, x, rows);
  const auto full_c = product(pool, bf.packed, x, rows);
  for (uint64_t r = 0; r < static_cast<uint64_t>(rows); ++r) {
    for (uint64_t o = 0; o < static_cast<uint64_t>(stride); ++o) {
      CHECK_EQ(ya[r * stride + o], o >= 5 && o < 71 ? full_a[r * 90 + o] : -1.0f);
      const float before = yb_before[r * stride + o];
      CHECK_EQ(yb[r * stride + o], o < 6 ? before + full_b[r * 6 + o] : before);
      CHECK_EQ(yc[r * stride + o], o == 32 ? full_c[r * 33 + o] : -1.0f);
    }
  }
}

TEST(many_jobs_in_one_call) {
  ThreadPool pool(2);
  Rng rng(9);
  const Weight w(DType::kQ5_K, 256, 20, Scales::kOrdinary, rng);
  const auto x = random_input(256, 2, rng);
  const auto want = product(pool, w.packed, x, 2);
  Memory memory = aligned(tnd::cpu::act_bytes(256, 2, tnd::cpu::kActQ256));
  ActBuffer act;
  tnd::cpu::act_init(&act, memory.get(), 256, 2, tnd::cpu::kActQ256);
  tnd::cpu::quantise_act(pool, x.data(), 256, 2, 256, tnd::cpu::kActQ256, &act);
  std::vector<std::vector<float>> y(40, std::vector<float>(40));
  std::vector<MatmulJob> jobs;
  for (auto& out : y) jobs.push_back({.weight = &w.packed, .y = out.data(), .y_stride = 20});
  tnd::cpu::matmul(pool, jobs, act, 2);
  for (const auto& out : y) CHECK(out == want);
}

TEST(quantised_activations_are_the_same_on_every_level) {
  Rng rng(10);
  ThreadPool pool(1);
  const uint64_t k = 512;
  const int rows = 64;
  std::vector<float> x(k * rows);
  for (uint64_t i = 0; i < x.size(); ++i) {
    // From far below the smallest scale to overflow, blocks with exact ties (x.5 steps), infinities and NaN.
    const int row = static_cast<int>(i / k);
    x[i] = std::ldexp(rng.normal(), 4 * row - 136);
    if (row == 40) x[i] = static_cast<float>(static_cast<int>(rng.below(255)) - 127) * 0.5f;
    if (row == 41) x[i] = i % 32 == 0 ? 127.0f : static_cast<float>(rng.below(255)) * 0.5f - 63.5f;
    if (row == 42 && i % 40 == 0) x[i] = std::numeric_limits<float>::quiet_NaN();
    if (row == 43 && i % 40 == 0) x[i] = -std::numeric_limits<float>::infinity();
    if (row == 44) x[i] = 0.0f;
  }
  const tnd::cpu::ActKinds kinds = tnd::cpu::kActQ256 | tnd::cpu::kActQ32 | tnd::cpu::kActF32;
  const uint64_t bytes = tnd::cpu::act_bytes(k, rows, kinds);
  const auto quantised = [&] {
    Memory memory = aligned(bytes);
    std::memset(memory.get(), 0, bytes);
    ActBuffer act;
    tnd::cpu::act_init(&act, memory.get(), k, rows, kinds);
    tnd::cpu::quantise_act(pool, x.data(), static_cast<int64_t>(k), rows, k, kinds, &act);
    return std::vector<uint8_t>(memory.get(), memory.get() + bytes);
  };
  std::vector<uint8_t> want;
  {
    ScalarScope scalar;
    want = quantised();
  }
  for_each_vector_isa([&](Isa level) { CHECK_MSG(quantised() == want, tnd::cpu::isa_name(level)); });
}

TEST(packing_is_lossless) {
  Rng rng(12);
  ThreadPool pool(2);
  for (DType type : kMatmulTypes) {
    for (uint64_t k : {uint64_t{96}, uint64_t{512}, uint64_t{1280}}) {
      if (!k_allowed(type, k)) continue;
      const uint64_t n = 37;
      const Weight w(type, k, n, Scales::kOrdinary, rng);
      Memory again = aligned(w.packed.bytes);
      PackedWeight shared;
      CHECK_OK(tnd::cpu::pack_weight(type, w.rows.data(), k, n, again.get(), &shared, &pool));
      CHECK(std::memcmp(again.get(), w.memory.get(), w.packed.bytes) == 0);
      std::vector<uint8_t> back(tnd::row_bytes(type, k));
      std::vector<float> decoded(k);
      std::vector<float> embedded(k);
      for (uint64_t o = 0; o < n; ++o) {
        tnd::cpu::unpack_row(w.packed, o, back.data());
        CHECK_MSG(std::memcmp(back.data(), w.row(o), back.size()) == 0, tnd::dtype_name(type));
        tnd::dequantise_row(type, w.row(o), decoded.data(), k);
        tnd::cpu::embed_row(w.packed, o, embedded.data());
        CHECK(same_bits(decoded.data(), embedded.data(), k));
      }
    }
  }
}

TEST(pack_refuses_bad_input) {
  Memory memory = aligned(1 << 16);
  const std::vector<uint8_t> rows(1 << 14);
  PackedWeight w;
  CHECK_EQ(tnd::cpu::pack_weight(DType::kQ2_K, rows.data(), 256, 1, memory.get(), &w).code(), TND_UNIMPLEMENTED);
  CHECK_EQ(tnd::cpu::pack_weight(DType::kQ4_K, rows.data(), 128, 1, memory.get(), &w).code(), TND_INVALID_ARGUMENT);
  CHECK_EQ(tnd::cpu::pack_weight(DType::kQ8_0, rows.data(), 0, 1, memory.get(), &w).code(), TND_INVALID_ARGUMENT);
  CHECK_EQ(tnd::cpu::pack_weight(DType::kQ8_0, rows.data(), 32, 1, memory.get() + 32, &w).code(), TND_INVALID_ARGUMENT);
}

TEST(products_are_close_to_real_arithmetic) {
  // Not bit for bit: that int8 activations lose little, so that a mistake shared by all formulations would show.
  ThreadPool pool(1);
  Rng rng(14);
  const uint64_t k = 1024;
  for (DType type : kMatmulTypes) {
    const Weight w(type, k, 16, Scales::kOrdinary, rng);
    std::vector<float> x(k);
    for (float& v : x) v = rng.normal();
    const auto y = product(pool, w.packed, x, 1);
    std::vector<float> decoded(k);
    for (uint64_t o = 0; o < 16; ++o) {
      tnd::dequantise_row(type, w.row(o), decoded.data(), k);
      double want = 0;
      double norm = 0;
      for (uint64_t i = 0; i < k; ++i) {
        want += double{decoded[i]} * x[i];
        norm += double{decoded[i]} * decoded[i];
      }
      CHECK_NEAR(y[o], want, 0.05 * std::sqrt(norm));
    }
  }
}

TEST_MAIN()
