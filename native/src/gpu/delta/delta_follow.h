// The delta rule whose launch also computes the gated norm (norm.h), for AMD cards: the block that stores the last
// columns of a pair of heads runs the norm of that pair for the rows of its sequence (gpu/runtime/arrivals.h). The bits
// are those of the two launches.
#pragma once

#include "gpu/delta/delta.h"
#include "gpu/norm/norm.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

struct FollowedDelta {
  DeltaArgs delta;              // no group is chunked
  GatedNormArgs norm;           // of all rows, o = delta.mixed
  int32_t* arrivals = nullptr;  // device [groups, pairs of heads], zero
};
void launch_followed_slices(Stream& stream, const FollowedDelta& args);
void launch_followed_columns(Stream& stream, const FollowedDelta& args);

// Columns that a thread of launch_delta_columns has. A block has 16 times as many, which must divide the columns of a
// key head.
constexpr int delta_thread_columns(const DeltaShape& shape) {
  const int heads = shape.nv / shape.nk;
  return heads % 3 == 0 && heads % 4 != 0 ? 3 : heads >= 4 ? 4 : heads >= 2 ? 2 : 1;
}
// Four columns leave no registers for what follows.
constexpr bool delta_columns_follow(const DeltaShape& shape) {
  return delta_thread_columns(shape) < 4;
}

}  // namespace tnd::gpu
