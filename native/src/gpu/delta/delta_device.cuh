// The parts that the recurrence and the chunked form of the delta rule share.
#pragma once

#include "gpu/delta/delta.h"

namespace tnd::gpu {

TND_DEVICE DeltaState device_pointers(const DeltaState& s) {
  return {device_pointer(s.taps), device_pointer(s.s)};
}
TND_DEVICE DeltaReplay device_pointers(const DeltaReplay& r) {
  return {device_pointer(r.conv_in), device_pointer(r.k), device_pointer(r.d), device_pointer(r.alpha)};
}
// Reads a group of a plan in device memory.
TND_DEVICE DeltaStepGroup load_group(const DeltaStepGroup* plan) {
  DeltaStepGroup g = *plan;
  g.state = device_pointers(g.state);
  g.replay = device_pointers(g.replay);
  return g;
}

// The last three inputs of a committing chain: thread = channel.
TND_DEVICE void read_taps(const DeltaStepGroup& g, const float* qkv, int64_t conv_dim, int64_t channel,
                          float (&kept)[kConvTaps - 1]) {
  constexpr int kSaved = kConvTaps - 1;
#pragma unroll
  for (int t = 0; t < kSaved; ++t) {
    const int row = g.count - kSaved + t;  // negative: an old tap
    kept[t] = row >= 0 ? qkv[(g.first + row) * conv_dim + channel] : g.state.taps[(kSaved + row) * conv_dim + channel];
  }
}
TND_DEVICE void write_taps(const DeltaStepGroup& g, int64_t conv_dim, int64_t channel,
                           const float (&kept)[kConvTaps - 1]) {
#pragma unroll
  for (int t = 0; t < kConvTaps - 1; ++t) g.state.taps[t * conv_dim + channel] = kept[t];
}
// Stores them as the new taps.
TND_DEVICE void shift_taps(const DeltaStepGroup& g, const float* qkv, int64_t conv_dim, int64_t channel) {
  float kept[kConvTaps - 1];
  read_taps(g, qkv, conv_dim, channel, kept);
  write_taps(g, conv_dim, channel, kept);
}

}  // namespace tnd::gpu
