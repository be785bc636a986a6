#include "core/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tnd {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> t{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1u) != 0 ? c >> 1 ^ 0x82F63B78u : c >> 1;
    t[i] = c;
  }
  return t;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

uint32_t update_bytes(uint32_t crc, const uint8_t* p, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) crc = crc >> 8 ^ kTable[(crc ^ p[i]) & 0xFFu];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t update_sse42(uint32_t crc, const uint8_t* p, uint64_t n) {
  uint64_t c = crc;
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t v;
    std::memcpy(&v, p, 8);
    c = _mm_crc32_u64(c, v);
  }
  return update_bytes(static_cast<uint32_t>(c), p, n);
}
#endif

}  // namespace

uint32_t crc32c(const void* data, uint64_t bytes, uint32_t seed) {
  const auto* p = static_cast<const uint8_t*>(data);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ~update_sse42(~seed, p, bytes);
#endif
  return ~update_bytes(~seed, p, bytes);
}

}  // namespace tnd
