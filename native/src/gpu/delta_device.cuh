// What the recurrence and the chunked form of the delta rule share.
#pragma once

#include "gpu/delta.h"

namespace tnd::gpu {

// Keeps the last three inputs of a committing chain: thread = channel.
TND_DEVICE void shift_taps(const DeltaStepGroup& g, const float* qkv, int64_t conv_dim, int64_t channel) {
  constexpr int kSaved = kConvTaps - 1;
  float kept[kSaved];
#pragma unroll
  for (int t = 0; t < kSaved; ++t) {
    const int row = g.count - kSaved + t;  // negative: an old tap
    kept[t] = row >= 0 ? qkv[(g.first + row) * conv_dim + channel] : g.state.taps[(kSaved + row) * conv_dim + channel];
  }
#pragma unroll
  for (int t = 0; t < kSaved; ++t) g.state.taps[t * conv_dim + channel] = kept[t];
}

}  // namespace tnd::gpu
