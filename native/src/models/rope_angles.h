// Cosines and sines of rotary positions, from host double precision: the same float bits on every back end.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace tnd {

// RopeAngles gives cos and sin of p * theta^(-2j/dims), j = 0..dims/2-1, by the addition theorem from two small tables
// (p = 256 a + b) in double precision: 6 operations per value instead of a library call, no table over the context.
class RopeAngles {
 public:
  void init(double theta, int32_t dims, int32_t max_positions) {
    half_ = dims / 2;
    fine_.resize(static_cast<size_t>(kFine) * half_ * 2);
    coarse_.resize((static_cast<size_t>(max_positions) / kFine + 1) * half_ * 2);
    for (int32_t j = 0; j < half_; ++j) {
      const double f = std::pow(theta, -2.0 * j / dims);
      for (int32_t b = 0; b < kFine; ++b) put(&fine_, b, j, f * b);
      for (size_t a = 0; a < coarse_.size() / (2 * half_); ++a)
        put(&coarse_, a, j, f * (static_cast<double>(a) * kFine));
    }
  }

  // fill writes cos [dims/2], then sin [dims/2] of a position in [0, max_positions].
  void fill(int32_t position, float* out) const {
    const double* a = &coarse_[static_cast<size_t>(position / kFine) * half_ * 2];
    const double* b = &fine_[static_cast<size_t>(position % kFine) * half_ * 2];
    for (int32_t j = 0; j < half_; ++j) {
      const double ca = a[j], sa = a[half_ + j], cb = b[j], sb = b[half_ + j];
      out[j] = static_cast<float>(ca * cb - sa * sb);
      out[half_ + j] = static_cast<float>(sa * cb + ca * sb);
    }
  }

 private:
  static constexpr int32_t kFine = 256;
  void put(std::vector<double>* t, size_t row, int32_t j, double angle) {
    (*t)[row * half_ * 2 + j] = std::cos(angle);
    (*t)[row * half_ * 2 + half_ + j] = std::sin(angle);
  }

  int32_t half_ = 0;
  std::vector<double> fine_, coarse_;  // [row][cos half | sin half]
};

}  // namespace tnd
