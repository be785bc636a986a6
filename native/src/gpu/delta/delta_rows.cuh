// How rows of a sequence lie in the shared memory of a block of the delta rule.
#pragma once

#include "gpu/delta/delta.h"

namespace tnd::gpu::delta_rows {

constexpr int kParts = 8;                 // partial sums of the contract
constexpr int kPer = kDeltaDim / kParts;  // key rows of a part

// Up to kRingRows rows are all there before the first; more go through a ring of tiles: one is worked on, the next one
// is there or on its way, the one before may still be read by the other warps. The turn from tile to tile costs as much
// as four rows.
constexpr int kTileRows = 8;
constexpr int kRingRows = kDeltaRowsAtOnce;
static_assert(kRingRows == 3 * kTileRows);

// A row of keys or queries in shared memory: the k-th four floats of all parts side by side, so that neither copies nor
// reads of 16 bytes meet in a bank. piece_at is which four floats lie at a place.
constexpr int kPieces = kDeltaDim / 4;
TND_DEVICE int piece_at(int place) {
  return place % kParts * (kPer / 4) + place / kParts;
}

}  // namespace tnd::gpu::delta_rows
