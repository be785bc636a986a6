// How rows of a sequence lie in the shared memory of a block of the delta rule.
#pragma once

#include "gpu/delta/delta.h"

namespace tnd::gpu::delta_rows {

constexpr int kParts = 8;                 // partial sums of the contract
constexpr int kPer = kDeltaDim / kParts;  // key rows of a part

// Up to kRingRows rows are all copied before the first is computed. More go through a ring of three tiles: one is being
// computed, the next is copied or in flight, and other warps may still read the one before. A change of tile costs as
// much as four rows.
constexpr int kTileRows = 8;
constexpr int kRingRows = kDeltaRowsAtOnce;
static_assert(kRingRows == 3 * kTileRows);

// A row of keys or queries in shared memory: the k-th four floats of all parts lie side by side, so that neither copies
// nor reads of 16 bytes have bank conflicts. piece_at returns which four floats lie at a place.
constexpr int kPieces = kDeltaDim / 4;
TND_DEVICE int piece_at(int place) {
  return place % kParts * (kPer / 4) + place / kParts;
}

}  // namespace tnd::gpu::delta_rows
