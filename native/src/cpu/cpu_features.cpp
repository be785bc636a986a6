#include "cpu/cpu_features.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace tnd::cpu {
namespace {

Isa detect() {
#if defined(__x86_64__)
  __builtin_cpu_init();  // also checks through XGETBV that the system saves the wide registers
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c")) {
    return Isa::kScalar;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
      __builtin_cpu_supports("avx512vnni")) {
    return Isa::kAvx512;
  }
  return Isa::kAvx2;
#else
  return Isa::kScalar;
#endif
}

Isa initial() {
  const Isa best = isa_best();
  const char* wish = std::getenv("TANDEM_CPU_ISA");
  if (wish == nullptr) return best;
  for (Isa level : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (std::strcmp(wish, isa_name(level)) == 0 && level <= best) return level;
  }
  return best;
}

std::atomic<Isa>& current() {
  static std::atomic<Isa> level{initial()};
  return level;
}

}  // namespace

Isa isa_best() {
  static const Isa best = detect();
  return best;
}

Isa isa() {
  return current().load(std::memory_order_relaxed);
}

void isa_force(Isa level) {
  current().store(level <= isa_best() ? level : isa_best(), std::memory_order_relaxed);
}

const char* isa_name(Isa level) {
  switch (level) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

}  // namespace tnd::cpu
