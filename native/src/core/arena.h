// Memory of an engine: measured first, then taken from one region, so that everything is planned before anything is
// allocated and the plan can be reported by purpose.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace tnd {

// What memory is for; tnd_memory reports one entry for each.
enum class Purpose : int { kWeights, kKv, kState, kReplay, kScratch, kFeatures, kCount };

inline const char* purpose_name(Purpose p) {
  constexpr const char* kNames[] = {"weights_bytes", "kv_bytes",      "state_bytes",
                                    "replay_bytes",  "scratch_bytes", "feature_bytes"};
  return kNames[static_cast<int>(p)];
}

// Arena hands out aligned pieces of a region in backend space. Without a region it only measures: take returns nullptr
// and the same sequence of calls later gets its pieces from a region of total() bytes.
class Arena {
 public:
  static constexpr uint64_t kAlign = 64;

  Arena() = default;
  Arena(void* base, uint64_t size) : base_(static_cast<uint8_t*>(base)), size_(size) {}

  bool measuring() const { return base_ == nullptr; }

  // take returns `bytes` (rounded up to 64) at a 64-byte boundary, zeroed by the region's owner. Running over the
  // region is a broken invariant: the caller compares total() with the plan.
  void* take(Purpose purpose, uint64_t bytes) {
    const uint64_t wanted = bytes;
    bytes = (bytes + kAlign - 1) / kAlign * kAlign + kGuard;
    const uint64_t at = total_;
    total_ += bytes;
    by_purpose_[static_cast<size_t>(purpose)] += bytes;
    if (measuring() || total_ > size_) return nullptr;
    guard(base_ + at + wanted, bytes - wanted);
    return base_ + at;
  }
  template <typename T>
  T* take_array(Purpose purpose, uint64_t count) {
    return static_cast<T*>(take(purpose, count * sizeof(T)));
  }

  uint64_t total() const { return total_; }
  uint64_t of(Purpose purpose) const { return by_purpose_[static_cast<size_t>(purpose)]; }

 private:
  // With AddressSanitizer every piece ends in bytes that must not be touched; the region's owner clears the marks when
  // it gives the region back.
#if defined(__SANITIZE_ADDRESS__)
  static constexpr uint64_t kGuard = kAlign;
  static void guard(void* p, uint64_t bytes) { __asan_poison_memory_region(p, bytes); }
#else
  static constexpr uint64_t kGuard = 0;
  static void guard(void*, uint64_t) {}
#endif

  uint8_t* base_ = nullptr;
  uint64_t size_ = 0;
  uint64_t total_ = 0;
  std::array<uint64_t, static_cast<size_t>(Purpose::kCount)> by_purpose_{};
};

}  // namespace tnd
