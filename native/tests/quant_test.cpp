// Block formats: golden bytes of the reference encoders, and every decoder against a second formulation that works
// element by element with bit indices instead of block by block.
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "core/fp.h"
#include "harness.h"
#include "sha256.h"

namespace {

using tnd::DType;
using tnd::test::hex;
using tnd::test::Rng;

constexpr DType kAllTypes[] = {DType::kF32,    DType::kF16,    DType::kQ4_0, DType::kQ4_1,  DType::kQ5_0, DType::kQ5_1,
                               DType::kQ8_0,   DType::kQ2_K,   DType::kQ3_K, DType::kQ4_K,  DType::kQ5_K, DType::kQ6_K,
                               DType::kIQ4_NL, DType::kIQ4_XS, DType::kBF16, DType::kMXFP4, DType::kNVFP4};

std::vector<float> first_input() {
  std::vector<float> x(256);
  for (int i = 0; i < 256; ++i) x[i] = static_cast<float>(37 * i % 101 - 50) / 64.0f;
  return x;
}

std::vector<float> second_input() {
  std::vector<float> x(256);
  for (int i = 0; i < 256; ++i) x[i] = static_cast<float>((7 * i * i + 13 * i) % 257) / 512.0f - 0.125f;
  return x;
}

std::vector<float> kv_input() {
  std::vector<float> x(32);
  for (int j = 0; j < 32; ++j) x[j] = static_cast<float>((37 * j + 11) % 64 - 32) / 16.0f;
  return x;
}

std::vector<uint8_t> encode(DType type, const std::vector<float>& x) {
  std::vector<uint8_t> out(tnd::row_bytes(type, x.size()));
  CHECK_OK(tnd::quantise_row(type, x.data(), out.data(), x.size()));
  return out;
}

std::vector<float> decode(DType type, const std::vector<uint8_t>& block, uint64_t k) {
  std::vector<float> y(k);
  tnd::dequantise_row(type, block.data(), y.data(), k);
  return y;
}

double rmse(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

double f16(const uint8_t* p) {
  const uint16_t h = tnd::load_u16(p);
  const int e = h >> 10 & 31;
  const double m = h & 1023;
  const double v = e == 0 ? m * 0x1p-24 : (1024 + m) * std::ldexp(1.0, e - 25);
  return h & 0x8000 ? -v : v;
}

int bits(const uint8_t* p, int bit, int count) {
  int v = 0;
  for (int i = 0; i < count; ++i) v |= (p[(bit + i) / 8] >> (bit + i) % 8 & 1) << i;
  return v;
}

// Element e of one block, in double precision.
double element(DType type, const uint8_t* b, int e) {
  static constexpr double kTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  static constexpr double kFp4[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6};
  const auto nibble32 = [&](const uint8_t* qs, int i) { return bits(qs, 8 * (i % 16) + 4 * (i / 16), 4); };
  switch (type) {
    case DType::kF32:
      return std::bit_cast<float>(tnd::load_u32(b));
    case DType::kF16:
      return f16(b);
    case DType::kBF16:
      return std::bit_cast<float>(static_cast<uint32_t>(tnd::load_u16(b)) << 16);
    case DType::kQ4_0:
      return (nibble32(b + 2, e) - 8) * f16(b);
    case DType::kQ4_1:
      return nibble32(b + 4, e) * f16(b) + f16(b + 2);
    case DType::kQ5_0:
      return (nibble32(b + 6, e) + 16 * bits(b + 2, e, 1) - 16) * f16(b);
    case DType::kQ5_1:
      return (nibble32(b + 8, e) + 16 * bits(b + 4, e, 1)) * f16(b) + f16(b + 2);
    case DType::kQ8_0:
      return static_cast<int8_t>(b[2 + e]) * f16(b);
    case DType::kIQ4_NL:
      return kTable[nibble32(b + 2, e)] * f16(b);
    case DType::kMXFP4:
      return kFp4[nibble32(b + 1, e)] * std::ldexp(1.0, b[0] - 127);
    case DType::kNVFP4: {
      const uint8_t u = b[e / 16];
      const double scale = u == 0 || u == 0x7F  ? 0
                           : (u >> 3 & 15) == 0 ? (u & 7) * std::ldexp(1.0, -9)
                                                : (8 + (u & 7)) * std::ldexp(1.0, (u >> 3 & 15) - 10);
      return kFp4[bits(b + 4 + 8 * (e / 16), 8 * (e % 8) + 4 * (e % 16 / 8), 4)] * scale;
    }
    case DType::kQ2_K: {
      const int g = e / 16;
      const int q = bits(b + 16, 8 * (32 * (e / 128) + e % 32) + 2 * (e / 32 % 4), 2);
      return f16(b + 80) * bits(b + g, 0, 4) * q - f16(b + 82) * bits(b + g, 4, 4);
    }
    case DType::kQ3_K: {
      const int g = e / 16;
      const int q =
          bits(b + 32, 8 * (32 * (e / 128) + e % 32) + 2 * (e / 32 % 4), 2) + 4 * bits(b, 8 * (e % 32) + e / 32, 1) - 4;
      const int scale = bits(b + 96, 8 * (g % 8) + 4 * (g / 8), 4) + 16 * bits(b + 104, 8 * (g % 4) + 2 * (g / 4), 2);
      return f16(b + 108) * (scale - 32) * q;
    }
    case DType::kQ4_K:
    case DType::kQ5_K: {
      const int j = e / 32;
      const uint8_t* s = b + 4;
      const int scale = j < 4 ? bits(s, 8 * j, 6) : bits(s, 8 * (j + 4), 4) + 16 * bits(s, 8 * (j - 4) + 6, 2);
      const int min = j < 4 ? bits(s, 8 * (j + 4), 6) : bits(s, 8 * (j + 4) + 4, 4) + 16 * bits(s, 8 * j + 6, 2);
      const uint8_t* qs = type == DType::kQ4_K ? b + 16 : b + 48;
      int n = bits(qs, 8 * (32 * (j / 2) + e % 32) + 4 * (j % 2), 4);
      if (type == DType::kQ5_K) n += 16 * bits(b + 16, 8 * (e % 32) + j, 1);
      return f16(b) * scale * n - f16(b + 2) * min;
    }
    case DType::kQ6_K: {
      const int h = e / 128;
      const int t = e / 32 % 4;
      const int l = e % 32;
      const int q = bits(b, 8 * (64 * h + l + 32 * (t % 2)) + 4 * (t / 2), 4) +
                    16 * bits(b + 128, 8 * (32 * h + l) + 2 * t, 2) - 32;
      return f16(b + 208) * static_cast<int8_t>(b[192 + e / 16]) * q;
    }
    case DType::kIQ4_XS: {
      const int j = e / 32;
      const int scale = bits(b + 4, 4 * j, 4) + 16 * bits(b + 2, 2 * j, 2) - 32;
      return f16(b) * scale * kTable[nibble32(b + 8 + 16 * j, e % 32)];
    }
  }
  return 0;
}

}  // namespace

TEST(f16_conversion_is_exact_both_ways) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float f = tnd::f16_to_f32(static_cast<uint16_t>(h));
    const uint16_t back = tnd::f32_to_f16(f);
    if ((h & 0x7C00) == 0x7C00 && (h & 0x3FF) != 0) {
      CHECK(std::isnan(f));
      CHECK_EQ(back, static_cast<uint16_t>(h | 0x200));
      continue;
    }
    CHECK_EQ(back, h);
    if ((h & 0x7C00) != 0x7C00) CHECK_EQ(double{f}, f16(reinterpret_cast<const uint8_t*>(&h)));
  }
}

TEST(f16_rounds_to_nearest_even) {
  // Every midpoint between two neighbouring halves, and one float to either side of it.
  for (uint32_t h = 0; h < 0x7BFF; ++h) {
    const float lo = tnd::f16_to_f32(static_cast<uint16_t>(h));
    const float hi = tnd::f16_to_f32(static_cast<uint16_t>(h + 1));
    const float mid = lo + (hi - lo) / 2;  // exact
    CHECK_EQ(tnd::f32_to_f16(mid), h % 2 == 0 ? h : h + 1);
    CHECK_EQ(tnd::f32_to_f16(std::nextafter(mid, 0.0f)), h);
    CHECK_EQ(tnd::f32_to_f16(-std::nextafter(mid, 1e9f)), (h + 1) | 0x8000);
  }
  CHECK_EQ(tnd::f32_to_f16(65519.0f), 0x7BFF);
  CHECK_EQ(tnd::f32_to_f16(65520.0f), 0x7C00);
  CHECK_EQ(tnd::f32_to_f16(1e30f), 0x7C00);
  CHECK_EQ(tnd::f32_to_f16(-0.0f), 0x8000);
}

TEST(bf16_rounds_to_nearest_even_and_keeps_nan) {
  CHECK_EQ(tnd::f32_to_bf16(std::bit_cast<float>(0x3F808000u)), 0x3F80);
  CHECK_EQ(tnd::f32_to_bf16(std::bit_cast<float>(0x3F818000u)), 0x3F82);
  CHECK_EQ(tnd::f32_to_bf16(std::bit_cast<float>(0x3F808001u)), 0x3F81);
  CHECK_EQ(tnd::f32_to_bf16(std::bit_cast<float>(0x7F7FFFFFu)), 0x7F80);
  CHECK_EQ(tnd::f32_to_bf16(std::bit_cast<float>(0x7F800001u)), 0x7FC0);
  CHECK_EQ(tnd::f32_to_bf16(std::bit_cast<float>(0xFFBFFFFFu)), 0xFFFF);
}

TEST(round_even_rounds_halves_to_even) {
  CHECK_EQ(tnd::round_even(0.5f), 0);
  CHECK_EQ(tnd::round_even(1.5f), 2);
  CHECK_EQ(tnd::round_even(-2.5f), -2);
  CHECK_EQ(tnd::round_even(126.50001f), 127);
  CHECK_EQ(tnd::round_even(-4194303.0f), -4194303);
}

TEST(encoders_match_golden_bytes) {
  const std::vector<float> x = first_input();
  const std::vector<float> x32(x.begin(), x.begin() + 32);
  const auto q4_0 = encode(DType::kQ4_0, x32);
  CHECK_EQ(hex(q4_0.data(), q4_0.size()), "402ee046acf258bd1379df358be046acf268");
  const auto q8_0 = encode(DType::kQ8_0, x32);
  CHECK_EQ(hex(q8_0.data(), q8_0.size()), "4d1e81df3d9af856b41270cd2b89e745a2005ebb1977d53390ee4caa0866c3217fdc");
  const auto q4_k = encode(DType::kQ4_K, x);
  CHECK_EQ(
      hex(q4_k.data(), q4_k.size()),
      "de162c22fefffffcfffdfefecfdcfffea0156bc1278cd3489e045ab0167bc2378de349ae056ab1267cd2389de459af15268ce248ad0459"
      "b0157bd1379ce348ae046ac0267bd2379df359be156ac1268c9df359be157ac1268ce248ad0459b0157bd1379ce348ae046ac0267bd237"
      "9df3156ac1268cd2489df459b0157bc1378ce348ae046ab0267bd2379de359ae156a");
  const auto q5_k = encode(DType::kQ5_K, x);
  CHECK_EQ(hex(q5_k.data(), 16), "8e125322fffdfdfdfffcfeffdfeffdcf");
  CHECK_EQ(tnd::test::sha256(q5_k.data(), q5_k.size()),
           "98c96294d82a03da1b3ac57a012151c4652a3216b640d867fc4d35ddfb594341");
  const auto q6_k = encode(DType::kQ6_K, x);
  CHECK_EQ(hex(q6_k.data(), 16), "d158bf37be25ad048b047bf37ad159d0");
  CHECK_EQ(hex(q6_k.data() + 192, 18), "807f897a867a84877f737d7a81877c89758a");
  CHECK_EQ(tnd::test::sha256(q6_k.data(), q6_k.size()),
           "39b3c7e41708cfeaa6f684664cda34fce29db8d87f9f1863a97fc9d9b46a37f9");
  const auto second_q4 = encode(DType::kQ4_K, second_input());
  CHECK_EQ(tnd::test::sha256(second_q4.data(), second_q4.size()),
           "cd0c8439a34ea186d2ca67c421873b89b557800ed94a4f0f09e6e6c789911743");
  const auto second_q6 = encode(DType::kQ6_K, second_input());
  CHECK_EQ(tnd::test::sha256(second_q6.data(), second_q6.size()),
           "1a82ba078853337e0ec8eb12066dbb537d9e6c3a21909aeafc2a22a07623c81c");
}

TEST(decoded_golden_blocks_have_the_known_error) {
  const std::vector<float> x = first_input();
  const struct {
    DType type;
    double first, last, error;
  } cases[] = {{DType::kQ4_K, -0.75942993, -0.13574982, 0.027135}, {DType::kQ6_K, -0.78190613, -0.11724651, 0.006390}};
  for (const auto& c : cases) {
    const auto y = decode(c.type, encode(c.type, x), 256);
    CHECK_NEAR(y[0], c.first, 1e-8);
    CHECK_NEAR(y[255], c.last, 1e-8);
    CHECK_NEAR(rmse(x, y), c.error, 1e-6);
  }
  CHECK_NEAR(rmse(x, decode(DType::kQ5_K, encode(DType::kQ5_K, x), 256)), 0.013323, 1e-6);
}

TEST(kv_cache_golden_vectors) {
  const std::vector<float> x = kv_input();
  const struct {
    DType type;
    const char* bytes;
    double y[4];
    double max_error;
  } cases[] = {
      {DType::kQ4_0, "0034730c953fc851ea841da63fd962fb842e", {-1.25, 1.0, -0.75, 1.75}, 0.125},
      {DType::kQ4_1, "113400c0730c952ec851ea731da63fc862fb841d", {-1.237549, 1.049805, -0.729248, 1.558105}, 0.120850},
      {DType::kQ5_0, "00305aad546ae6083b5d80a2d5f72a4c7f91c4e6193b", {-1.25, 1.0, -0.625, 1.625}, 0.0625},
      {DType::kQ5_1,
       "df2f00c05aad546ae6083b5d80a2d5f72a4c7f91c4e6193b",
       {-1.262085, 0.951660, -0.647156, 1.566589},
       0.060425},
      {DType::kQ8_0,
       "0824ad40d467fc9124b94be073089d30c457ec8114a93cd063f88d20b547dc6f0499",
       {-1.307007, 1.007812, -0.692871, 1.621948},
       0.007812},
  };
  for (const auto& c : cases) {
    const auto block = encode(c.type, x);
    CHECK_EQ(hex(block.data(), block.size()), c.bytes);
    const auto y = decode(c.type, block, 32);
    double worst = 0;
    for (int j = 0; j < 32; ++j) worst = std::fmax(worst, std::fabs(double{y[j]} - x[j]));
    for (int j = 0; j < 4; ++j) CHECK_NEAR(y[j], c.y[j], 1e-6);
    CHECK_NEAR(worst, c.max_error, 1e-6);
  }
}

TEST(zero_input_encodes_as_specified) {
  const std::vector<float> zero(32, 0.0f);
  const auto bytes = [&](DType type) {
    const auto block = encode(type, zero);
    return hex(block.data(), block.size());
  };
  CHECK_EQ(bytes(DType::kQ4_0), "0080" + std::string(32, '8'));
  CHECK_EQ(bytes(DType::kQ5_0), "0080ffffffff" + std::string(32, '0'));
  CHECK_EQ(bytes(DType::kQ4_1), std::string(40, '0'));
  CHECK_EQ(bytes(DType::kQ5_1), std::string(48, '0'));
  CHECK_EQ(bytes(DType::kQ8_0), std::string(68, '0'));
  for (DType type : {DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    for (float v : decode(type, encode(type, std::vector<float>(256, 0.0f)), 256)) CHECK_EQ(v, 0.0f);
  }
}

TEST(encode_of_decoded_classic_blocks_is_stable) {
  Rng rng(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<float> x(32);
    for (float& v : x) v = rng.normal();
    for (DType type : {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0}) {
      const auto block = encode(type, x);
      CHECK(encode(type, decode(type, block, 32)) == block);
    }
  }
}

TEST(decoders_match_the_element_formula_on_random_blocks) {
  Rng rng(11);
  for (DType type : kAllTypes) {
    const uint64_t elems = tnd::block_elems(type);
    const uint64_t bytes = tnd::block_bytes(type);
    for (int round = 0; round < 64; ++round) {
      std::vector<uint8_t> block(bytes * 3);
      for (uint8_t& b : block) b = static_cast<uint8_t>(rng.next());
      const auto y = decode(type, block, elems * 3);
      for (uint64_t i = 0; i < elems * 3; ++i) {
        const double want = element(type, block.data() + i / elems * bytes, static_cast<int>(i % elems));
        if (std::isnan(y[i]) || std::isinf(y[i])) continue;  // random halves may be non-finite
        // One rounding at most: half a unit of the larger term.
        CHECK_NEAR(y[i], want, 3e-3 * 0x1p-10 + std::fabs(want) * 0x1p-20);
      }
    }
  }
}

TEST(decoders_are_exact_for_ordinary_scales) {
  // With |d| around 1 all products are exact and a difference of two 22-bit products rounds once.
  Rng rng(13);
  for (DType type : kAllTypes) {
    if (tnd::block_elems(type) == 1 || type == DType::kMXFP4 || type == DType::kNVFP4) continue;
    const uint64_t elems = tnd::block_elems(type);
    const uint64_t bytes = tnd::block_bytes(type);
    for (int round = 0; round < 64; ++round) {
      std::vector<uint8_t> block(bytes);
      for (uint8_t& b : block) b = static_cast<uint8_t>(rng.next());
      const uint64_t d_at = type == DType::kQ2_K ? 80 : type == DType::kQ3_K ? 108 : type == DType::kQ6_K ? 208 : 0;
      const bool two = type == DType::kQ2_K || type == DType::kQ4_K || type == DType::kQ5_K || type == DType::kQ4_1 ||
                       type == DType::kQ5_1;
      for (uint64_t i = 0; i < (two ? 2u : 1u); ++i) {
        tnd::store_u16(block.data() + d_at + 2 * i, static_cast<uint16_t>(0x2C00 + rng.below(0x1000)));
      }
      const auto y = decode(type, block, elems);
      for (uint64_t i = 0; i < elems; ++i) {
        CHECK_EQ(y[i], static_cast<float>(element(type, block.data(), static_cast<int>(i))));
      }
    }
  }
}

TEST(encoders_of_all_types_stay_close) {
  Rng rng(17);
  const struct {
    DType type;
    double limit;  // relative squared error on unit Gaussian data
  } cases[] = {{DType::kQ8_0, 4e-5}, {DType::kQ5_1, 1.8e-3}, {DType::kQ5_0, 2.3e-3}, {DType::kQ4_1, 7.5e-3},
               {DType::kQ4_0, 9e-3}, {DType::kQ4_K, 7e-3},   {DType::kQ5_K, 1.8e-3}, {DType::kQ6_K, 6e-4},
               {DType::kF16, 1e-6},  {DType::kBF16, 1e-5},   {DType::kF32, 0}};
  for (const auto& c : cases) {
    double error = 0;
    double power = 0;
    for (int round = 0; round < 20; ++round) {
      std::vector<float> x(256);
      for (float& v : x) v = rng.normal();
      const auto y = decode(c.type, encode(c.type, x), 256);
      for (int i = 0; i < 256; ++i) {
        error += (double{y[i]} - x[i]) * (double{y[i]} - x[i]);
        power += double{x[i]} * x[i];
      }
    }
    CHECK_MSG(error / power <= c.limit, std::string(tnd::dtype_name(c.type)) + " " + std::to_string(error / power));
  }
}

TEST(unsupported_requests_fail_with_a_reason) {
  float x[256] = {};
  uint8_t out[1024];
  CHECK_EQ(tnd::quantise_row(DType::kQ2_K, x, out, 256).code(), TND_UNIMPLEMENTED);
  const tnd::Status status = tnd::quantise_row(DType::kQ4_K, x, out, 128);
  CHECK_EQ(status.code(), TND_INVALID_ARGUMENT);
  CHECK(status.message().find("256") != std::string::npos);
  CHECK(tnd::dtype_known(30));
  CHECK(!tnd::dtype_known(31));
  CHECK(!tnd::dtype_known(-1));
  CHECK(!tnd::dtype_matmul(DType::kQ2_K));
  CHECK_EQ(tnd::row_bytes(DType::kQ6_K, 512), 420u);
}

TEST(encoders_survive_extreme_input) {
  // Tiny, huge and infinite magnitudes: any bytes, but no undefined behaviour (this is for the sanitizers).
  std::vector<float> x(256);
  for (float scale : {1e-45f, 1e-38f, 1e-20f, 1e20f, 3e38f, std::numeric_limits<float>::infinity()}) {
    for (int i = 0; i < 256; ++i) x[i] = scale * (static_cast<float>(i % 7) - 3.0f);
    for (DType type : {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K,
                       DType::kQ6_K, DType::kF16, DType::kBF16}) {
      encode(type, x);
    }
  }
}

TEST_MAIN()
