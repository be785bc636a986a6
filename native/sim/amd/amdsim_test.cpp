// Compares the simulator's instructions with plain C++. Whole kernels are compared elsewhere: their tests run in the
// simulator as on a card.
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "core/fp.h"
#include "sim/amd/device.h"
#include "sim/amd/wave.h"
#include "tests/harness.h"

using namespace tnd;
using namespace tnd::amdsim;

namespace {

// A wave that runs lines of assembly.
struct Bench {
  Code code;
  Kernel kernel;
  Group group;
  std::unique_ptr<Wave> wave = std::make_unique<Wave>();

  explicit Bench(bool gfx12 = false) {
    kernel.name = "test";
    kernel.gfx12 = gfx12;
    kernel.copies = !gfx12;
    kernel.code = &code;
    group.kernel = &kernel;
    group.shared.assign(1024, 0);
    group.touches.resize(512);
    wave->group = &group;
    std::memset(wave->v, 0, sizeof wave->v);
    std::memset(wave->s, 0, sizeof wave->s);
    wave->s[kExec] = ~0u;
  }
  void run(const std::string& lines) {
    std::string listing;
    int at = 0;
    for (size_t from = 0; from < lines.size();) {
      size_t end = lines.find('\n', from);
      if (end == std::string::npos) end = lines.size();
      char address[64];
      std::snprintf(address, sizeof address, "  // %012X: 00000000\n", at);
      listing += "\t" + lines.substr(from, end - from) + address;
      from = end + 1;
      at += 4;
    }
    listing += "\ts_endpgm  // 00000000FFFC: 00000000\n";
    code = disassemble(listing);
    wave->next = 0;
    wave->ended = false;
    while (!wave->ended) run_until_barrier(*wave);
  }
};

float as_float(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
uint32_t as_bits(float f) {
  return std::bit_cast<uint32_t>(f);
}

// Returns whether f ends the program.
template <typename F>
bool dies(const F& f) {
  const pid_t child = fork();
  if (child == 0) {
    (void)!freopen("/dev/null", "w", stderr);
    f();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status);
}

}  // namespace

TEST(constants_have_the_width_of_their_instruction) {
  Bench b;
  b.run(
      "v_mov_b32_e32 v0, 1.0\n"
      "v_mov_b32_e32 v1, -4\n"
      "v_mov_b32_e32 v2, 0x3f2aaaaa\n"
      "v_add_f64 v[4:5], 2.0, 0.5\n"
      "v_pk_add_f16 v6, 0xe408, v2 op_sel_hi:[0,1]\n"
      "s_mov_b64 s[4:5], -1");
  CHECK_EQ(b.wave->v[0][3], as_bits(1.0f));
  CHECK_EQ(b.wave->v[1][3], 0xFFFFFFFCu);
  CHECK_EQ(b.wave->v[2][31], 0x3F2AAAAAu);
  CHECK_EQ(std::bit_cast<double>(uint64_t{b.wave->v[5][7]} << 32 | b.wave->v[4][7]), 2.5);
  const auto sum = [](uint16_t a, uint16_t b) { return uint32_t{f32_to_f16(f16_to_f32(a) + f16_to_f32(b))}; };
  CHECK_EQ(b.wave->v[6][0], sum(0xe408, 0x3f2a) << 16 | sum(0xe408, 0xaaaa));
  CHECK_EQ(b.wave->s[4], ~0u);
  CHECK_EQ(b.wave->s[5], ~0u);
}

TEST(lanes_that_are_off_keep_their_values) {
  Bench b;
  for (uint32_t l = 0; l < 32; ++l) b.wave->v[0][l] = l;
  b.run(
      "v_cmpx_gt_u32_e32 8, v0\n"
      "v_mov_b32_e32 v1, 7\n"
      "v_cmp_ne_u32_e64 s4, 3, v0\n"
      "v_readfirstlane_b32 s5, v0");
  CHECK_EQ(b.wave->s[kExec], 0xFFu);
  CHECK_EQ(b.wave->v[1][7], 7u);
  CHECK_EQ(b.wave->v[1][8], 0u);
  CHECK_EQ(b.wave->s[4], 0xF7u);
  CHECK_EQ(b.wave->s[5], 0u);
}

TEST(halves_of_a_dual_instruction_read_what_was_there_before) {
  Bench b;
  for (uint32_t l = 0; l < 32; ++l) b.wave->v[0][l] = as_bits(2.0f), b.wave->v[1][l] = as_bits(3.0f);
  b.run("v_dual_mov_b32 v0, v1 :: v_dual_add_f32 v1, v0, v0");
  CHECK_EQ(as_float(b.wave->v[0][5]), 3.0f);
  CHECK_EQ(as_float(b.wave->v[1][5]), 4.0f);
}

TEST(sums_of_64_bits_carry) {
  Bench b;
  for (uint32_t l = 0; l < 32; ++l) b.wave->v[0][l] = 0xFFFFFFF0u + l, b.wave->v[1][l] = l;
  b.run(
      "v_add_co_u32 v2, vcc_lo, v0, 8\n"
      "v_add_co_ci_u32_e32 v3, vcc_lo, 0, v1, vcc_lo\n"
      "s_mov_b32 s0, -1\n"
      "s_add_u32 s2, s0, 2\n"
      "s_addc_u32 s3, s0, 0");
  for (uint32_t l = 0; l < 32; ++l) {
    const uint64_t sum = (uint64_t{l} << 32 | (0xFFFFFFF0u + l)) + 8;
    CHECK_EQ(uint64_t{b.wave->v[3][l]} << 32 | b.wave->v[2][l], sum);
  }
  CHECK_EQ(b.wave->s[2], 1u);
  CHECK_EQ(b.wave->s[3], 0u);
}

TEST(branches_and_loops) {
  Bench b;
  // Each line is a word: from the branch at 3 back to 1.
  b.run(
      "s_mov_b32 s0, 5\n"
      "s_add_i32 s0, s0, -1\n"
      "v_add_nc_u32_e32 v0, 2, v0\n"
      "s_cmp_lg_u32 s0, 0\n"
      "s_cbranch_scc1 65532");
  CHECK_EQ(b.wave->v[0][0], 10u);
}

TEST(bytes_and_fields) {
  Bench b;
  b.run(
      "s_mov_b32 s0, 0x44332211\n"
      "s_mov_b32 s1, 0x88776655\n"
      "v_mov_b32_e32 v0, s0\n"
      "v_perm_b32 v1, s1, v0, 0x0c0d0207\n"
      "v_alignbit_b32 v2, s1, s0, 8\n"
      "v_bfe_i32 v3, s1, 28, 4\n"
      "v_bfe_u32 v4, s0, 8, 8\n"
      "v_dot4_i32_iu8 v5, s1, 0x01010101, 0 neg_lo:[1,1,0]\n"
      "v_sub_nc_u32_e64 v6, 1, 2 clamp");
  CHECK_EQ(b.wave->v[1][0], 0x00FF3388u);
  CHECK_EQ(b.wave->v[2][0], 0x55443322u);
  CHECK_EQ(static_cast<int32_t>(b.wave->v[3][0]), -8);
  CHECK_EQ(b.wave->v[4][0], 0x22u);
  CHECK_EQ(static_cast<int32_t>(b.wave->v[5][0]), 0x55 + 0x66 + 0x77 - 0x78);
  CHECK_EQ(b.wave->v[6][0], 0u);
}

TEST(lanes_that_are_off_give_zero_to_others) {
  Bench b;
  for (uint32_t l = 0; l < 32; ++l) b.wave->v[0][l] = 4 * ((l + 1) % 32), b.wave->v[1][l] = 100 + l;
  b.wave->s[kExec] = 0x0000000F;
  b.run("ds_bpermute_b32 v2, v0, v1");
  CHECK_EQ(b.wave->v[2][0], 101u);
  CHECK_EQ(b.wave->v[2][3], 0u);  // lane 4 is off
}

// The code that clang emits for a / b, with the hardware's approximation of 1 / b an ulp too high or too low.
TEST(divisions_are_rounded_as_those_of_the_host) {
  std::mt19937 rng(1);
  Bench b;
  for (int round = 0; round < 2000; ++round) {
    float x[32], y[32];
    for (uint32_t l = 0; l < 32; ++l) {
      b.wave->v[0][l] = static_cast<uint32_t>(rng());
      b.wave->v[1][l] = static_cast<uint32_t>(rng());
      if (l < 8) b.wave->v[0][l] &= 0x80FFFFFFu;             // small and denormal
      if (l >= 8 && l < 12) b.wave->v[1][l] &= 0x807FFFFFu;  // denormal
      if (l == 12) b.wave->v[1][l] = 0;
      x[l] = as_float(b.wave->v[0][l]), y[l] = as_float(b.wave->v[1][l]);
    }
    const char* const off[] = {"v_mov_b32_e32 v4, v4", "v_add_nc_u32_e32 v4, 1, v4", "v_add_nc_u32_e32 v4, -1, v4"};
    b.run(std::string("v_div_scale_f32 v2, null, v1, v1, v0\n"
                      "v_div_scale_f32 v3, vcc_lo, v0, v1, v0\n"
                      "v_rcp_f32_e32 v4, v2\n") +
          off[round % 3] +
          "\nv_fma_f32 v5, -v2, v4, 1.0\n"
          "v_fma_f32 v4, v5, v4, v4\n"
          "v_mul_f32_e32 v5, v3, v4\n"
          "v_fma_f32 v6, -v2, v5, v3\n"
          "v_fma_f32 v5, v6, v4, v5\n"
          "v_fma_f32 v2, -v2, v5, v3\n"
          "v_div_fmas_f32 v2, v2, v4, v5\n"
          "v_div_fixup_f32 v2, v2, v1, v0");
    for (uint32_t l = 0; l < 32; ++l) {
      const float want = x[l] / y[l], got = as_float(b.wave->v[2][l]);
      // The manual does not define quotients that overflow even with the divisor scaled by 2^64.
      if (std::isinf(want) && std::isfinite(x[l]) && std::fabs(x[l]) > 1.0f) continue;
      if (std::isnan(want)) {
        CHECK(std::isnan(got));
      } else {
        CHECK_EQ(as_bits(got), as_bits(want));
      }
    }
  }
}

// Matrix products by the maps of runtime_mma.h.
void check_wmma(bool gfx12) {
  std::mt19937 rng(2);
  Bench b(gfx12);
  int8_t a[16][16], w[16][16];
  for (auto* m : {&a, &w}) {
    for (auto& row : *m) {
      for (int8_t& x : row) x = static_cast<int8_t>(rng());
    }
  }
  const int elements = gfx12 ? 8 : 16, words = elements / 4;
  for (int lane = 0; lane < 32; ++lane) {
    const int first = gfx12 ? lane / 16 * 8 : 0;
    for (int r = 0; r < words; ++r) {
      std::memcpy(&b.wave->v[8 + r][lane], &a[lane % 16][first + 4 * r], 4);
      std::memcpy(&b.wave->v[12 + r][lane], &w[lane % 16][first + 4 * r], 4);
    }
    for (int i = 0; i < 8; ++i) b.wave->v[i][lane] = static_cast<uint32_t>(lane * 8 + i);
  }
  b.run(gfx12 ? "v_wmma_i32_16x16x16_iu8 v[0:7], v[8:9], v[12:13], v[0:7] neg_lo:[1,1,0]"
              : "v_wmma_i32_16x16x16_iu8 v[0:7], v[8:11], v[12:15], v[0:7] neg_lo:[1,1,0]");
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 8; ++i) {
      const int row = gfx12 ? lane / 16 * 8 + i : 2 * i + lane / 16;
      int32_t sum = lane * 8 + i;
      for (int k = 0; k < 16; ++k) sum += a[row][k] * w[lane % 16][k];
      CHECK_EQ(static_cast<int32_t>(b.wave->v[i][lane]), sum);
    }
  }
}
TEST(matrix_products_of_gfx11) {
  check_wmma(false);
}
TEST(matrix_products_of_gfx12) {
  check_wmma(true);
}

TEST(what_a_kernel_must_not_do_ends_the_program) {
  CHECK(dies([] { Bench().run("v_no_such_thing v0, v1"); }));
  CHECK(dies([] { Bench().run("v_mov_b32_e32 v0, v1 row_shr:1"); }));
  CHECK(dies([] { Bench().run("v_pack_b32_f16 v0, v1, v2 op_sel:[1,0,0]"); }));
  CHECK(dies([] { Bench().run("ds_store_b32 v0, v1 offset:1022"); }));  // two bytes beyond
  CHECK(!dies([] { Bench().run("ds_store_b32 v0, v1 offset:1020"); }));
  CHECK(dies([] { Bench().run("global_load_b32 v0, v[0:1], off"); }));  // address 0
  CHECK(dies([] {
    Bench b;
    b.wave->v[8][20] = 1;  // gfx11: lane 4 has another value
    b.run("v_wmma_i32_16x16x16_iu8 v[0:7], v[8:11], v[12:15], v[0:7]");
  }));
  CHECK(dies([] {
    Bench b;
    b.wave->s[kExec] = 1;
    b.run("v_wmma_i32_16x16x16_iu8 v[0:7], v[8:11], v[12:15], v[0:7]");
  }));
}

TEST(waves_meet_before_they_read_what_others_wrote) {
  const auto second = [](const char* lines, uint32_t epoch) {
    return dies([=] {
      Bench b;
      b.wave->v[0][0] = 8;
      b.wave->s[kExec] = 1;
      b.run("ds_store_b32 v0, v1\nds_load_b32 v2, v0 offset:8");
      b.wave->number = 1;
      b.wave->epoch = epoch;
      b.run(lines);
    });
  };
  CHECK(second("ds_load_b32 v2, v0", 1));
  CHECK(second("ds_store_b16 v0, v1 offset:2", 1));
  CHECK(second("ds_store_b32 v0, v1 offset:8", 1));  // the first has read it
  CHECK(second("ds_add_u32 v0, v1", 1));
  CHECK(!second("ds_load_b32 v2, v0 offset:8", 1));
  CHECK(!second("ds_load_b32 v2, v0 offset:4", 1));
  CHECK(!second("ds_load_b32 v2, v0", 2));
  CHECK(!second("ds_store_b32 v0, v1", 2));
}

TEST(memory_ends_where_its_allocation_does) {
  alignas(16) static uint32_t memory[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  Memory::of_device().add(memory, sizeof memory);
  const auto at = [](Bench& b, const void* p) {
    const auto address = reinterpret_cast<uint64_t>(p);
    for (uint32_t l = 0; l < 32; ++l) {
      b.wave->v[0][l] = static_cast<uint32_t>(address), b.wave->v[1][l] = static_cast<uint32_t>(address >> 32);
    }
  };
  Bench b;
  at(b, memory);
  b.run("global_load_b128 v[4:7], v[0:1], off offset:16");
  CHECK_EQ(b.wave->v[7][9], 8u);
  CHECK(dies([&] { b.run("global_load_b128 v[4:7], v[0:1], off offset:20"); }));
  CHECK(dies([&] { b.run("flat_store_b32 v[0:1], v4 offset:-4"); }));
  CHECK_EQ(Memory::of_device().remove(memory), sizeof memory);
  CHECK(dies([&] {
    Bench again;
    at(again, memory);
    again.run("global_load_b32 v4, v[0:1], off");
  }));
}

TEST(bits_of_scalars_are_set) {
  Bench b;
  b.wave->s[0] = 0x10000001u;
  b.run("s_bitset1_b32 s0, 15");
  CHECK_EQ(b.wave->s[0], 0x10008001u);
  b.run("s_bitset0_b32 s0, 28");
  CHECK_EQ(b.wave->s[0], 0x00008001u);
}

TEST(atomics_of_memory_add_lane_by_lane) {
  alignas(16) static uint32_t memory[2] = {100, 7};
  Memory::of_device().add(memory, sizeof memory);
  Bench b;
  const auto address = reinterpret_cast<uint64_t>(memory);
  for (uint32_t l = 0; l < 32; ++l) {
    b.wave->v[2][l] = static_cast<uint32_t>(address), b.wave->v[3][l] = static_cast<uint32_t>(address >> 32);
    b.wave->v[0][l] = l;
    b.wave->v[5][l] = 4;
  }
  b.wave->s[6] = static_cast<uint32_t>(address), b.wave->s[7] = static_cast<uint32_t>(address >> 32);
  b.run("global_atomic_add_u32 v4, v[2:3], v0, off th:TH_ATOMIC_RETURN scope:SCOPE_DEV");
  CHECK_EQ(memory[0], 100u + 31 * 32 / 2);
  CHECK_EQ(b.wave->v[4][3], 103u);  // 0 + 1 + 2 before it
  b.run("global_atomic_add_u32 v5, v0, s[6:7] scope:SCOPE_DEV");
  CHECK_EQ(memory[1], 7u + 31 * 32 / 2);
  CHECK_EQ(Memory::of_device().remove(memory), sizeof memory);
}

TEST_MAIN()
