// The test harness of the native tree: one program per tests/<name>_test.cpp, no dependency.
//
//   #include "harness.h"
//   TEST(adds_numbers) { CHECK_EQ(1 + 1, 2); }
//   TEST_MAIN()
//
// A failed check reports file, line and values and the test goes on; REQUIRE ends the test. The program prints
// "N passed, N failed" and exits 1 when a test failed or none matched. Arguments: substrings of the test names to run.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace tnd::test {

struct Case {
  const char* name;
  void (*fn)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

// Failures of the running test; only the first kMaxReports of a test are printed.
inline int& failures() {
  static int count = 0;
  return count;
}
inline constexpr int kMaxReports = 20;

inline void report(const char* file, int line, const std::string& text) {
  if (++failures() <= kMaxReports) std::fprintf(stderr, "%s:%d: %s\n", file, line, text.c_str());
}

struct Register {
  Register(const char* name, void (*fn)()) { cases().push_back({name, fn}); }
};

// text renders a value for a failure report.
template <typename T>
std::string text(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_floating_point_v<T>) out.precision(9);
  if constexpr (std::is_enum_v<T>) {
    out << static_cast<long long>(value);
  } else if constexpr (sizeof(T) == 1 && std::is_integral_v<T>) {
    out << static_cast<int>(value);
  } else {
    out << value;
  }
  return out.str();
}

// hex renders bytes as lower-case hexadecimal; unhex is its inverse (empty for malformed text).
inline std::string hex(const void* data, size_t size) {
  static const char kDigits[] = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < size; ++i) {
    const unsigned byte = static_cast<const unsigned char*>(data)[i];
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

// Rng is a small reproducible generator (splitmix64) for test data.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return next() % n; }
  // Uniform in [lo, hi).
  float uniform(float lo, float hi) { return lo + (hi - lo) * (static_cast<float>(next() >> 40) * 0x1p-24f); }
  // Roughly normal, variance 1: the sum of twelve uniforms.
  float normal() {
    float sum = -6.0f;
    for (int i = 0; i < 12; ++i) sum += uniform(0.0f, 1.0f);
    return sum;
  }

 private:
  uint64_t state_;
};

// run_all runs the cases whose names contain an argument, or all; --list prints the names instead.
inline int run_all(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const Case& test : cases()) std::printf("%s\n", test.name);
    return 0;
  }
  int passed = 0;
  int failed = 0;
  for (const Case& test : cases()) {
    bool wanted = argc < 2;
    for (int i = 1; i < argc; ++i) wanted = wanted || std::strstr(test.name, argv[i]) != nullptr;
    if (!wanted) continue;
    failures() = 0;
    const auto start = std::chrono::steady_clock::now();
    test.fn();
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    std::fprintf(stderr, "%s %s (%.1f ms)\n", failures() == 0 ? "ok  " : "FAIL", test.name, ms);
    ++(failures() == 0 ? passed : failed);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace tnd::test

#define TEST(name)                                                   \
  static void test_##name();                                         \
  static const ::tnd::test::Register reg_##name{#name, test_##name}; \
  static void test_##name()

#define TEST_MAIN()                          \
  int main(int argc, char** argv) {          \
    return ::tnd::test::run_all(argc, argv); \
  }

#define CHECK(cond)                                                               \
  do {                                                                            \
    if (!(cond)) ::tnd::test::report(__FILE__, __LINE__, "CHECK failed: " #cond); \
  } while (0)

// CHECK_MSG adds an expression convertible to std::string, evaluated on failure only.
#define CHECK_MSG(cond, msg)                                                                                \
  do {                                                                                                      \
    if (!(cond)) ::tnd::test::report(__FILE__, __LINE__, std::string("CHECK failed: " #cond ": ") + (msg)); \
  } while (0)

#define CHECK_EQ(a, b)                                                                                               \
  do {                                                                                                               \
    const auto& check_a_ = (a);                                                                                      \
    const auto& check_b_ = (b);                                                                                      \
    if (!(check_a_ == check_b_)) {                                                                                   \
      ::tnd::test::report(                                                                                           \
          __FILE__, __LINE__,                                                                                        \
          std::string(#a " == " #b ": ") + ::tnd::test::text(check_a_) + " against " + ::tnd::test::text(check_b_)); \
    }                                                                                                                \
  } while (0)

// CHECK_NEAR compares floats with an absolute tolerance; NaN fails.
#define CHECK_NEAR(a, b, tol)                                                                                          \
  do {                                                                                                                 \
    const double check_a_ = (a);                                                                                       \
    const double check_b_ = (b);                                                                                       \
    if (!(check_a_ - check_b_ <= (tol) && check_b_ - check_a_ <= (tol))) {                                             \
      ::tnd::test::report(                                                                                             \
          __FILE__, __LINE__,                                                                                          \
          std::string(#a " near " #b ": ") + ::tnd::test::text(check_a_) + " against " + ::tnd::test::text(check_b_)); \
    }                                                                                                                  \
  } while (0)

// CHECK_OK takes a tnd::Status.
#define CHECK_OK(expr)                                                                                         \
  do {                                                                                                         \
    const auto check_s_ = (expr);                                                                              \
    if (!check_s_.ok()) ::tnd::test::report(__FILE__, __LINE__, std::string(#expr ": ") + check_s_.message()); \
  } while (0)

#define REQUIRE(cond)                                                    \
  do {                                                                   \
    if (!(cond)) {                                                       \
      ::tnd::test::report(__FILE__, __LINE__, "REQUIRE failed: " #cond); \
      return;                                                            \
    }                                                                    \
  } while (0)
