// Products whose launch also runs the operation that follows them: a dependent launch costs an AMD card 3.9 us
// (docs/gpu-notes.md 1.3), more than these small operations take. The operation is cut into parts that each need some
// of the outputs only; the block that stores the last outputs of a part runs the operation on it
// (gpu/runtime/arrivals.h). Bits are those of the two launches: the same functions compute every value.
#pragma once

#include "gpu/attention/rope.h"
#include "gpu/delta/delta.h"
#include "gpu/matmul/matmul.h"
#include "gpu/norm/norm.h"
#include "gpu/norm/swiglu.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// What follows. A part is
//   kSwiglu  a super-block of all rows
//   kNorm    everything
//   kConv    a head of 128 channels of all rows, after these the gates of all heads
//   kHeads   a head of all rows: queries, keys, values
enum class Follow : int32_t { kSwiglu, kNorm, kConv, kHeads };

// Which units (of 16 outputs) of a product a part needs: of every `period` units, beginning with those of part `part`,
// the first `counted`. period = 0: none does.
struct PartUnits {
  int32_t part = 0, period = 0, counted = 0;
};

struct MatmulFollow {
  Follow kind = Follow::kSwiglu;
  int32_t parts = 0;
  PartUnits units[kMaxProducts];  // by product
  int32_t* arrivals = nullptr;    // device [parts], zero
  SwigluArgs swiglu;              // that of `kind` is read
  NormArgs norm;                  // forms != 0, no gather, at most kFollowedNormDim elements
  DeltaArgs conv;
  HeadsArgs heads;  // of kv.dim 128 or 256, neither keys nor values in TQ3_0
};
inline constexpr int kFollowedNormDim = 5120;

// acts of the operation are other memory than the products': blocks that still multiply read those.
struct FollowedMatmul {
  MatmulGroup group;
  MatmulFollow follow;
};
void launch_followed_matmul(Stream& stream, const FollowedMatmul& args);

// followed_launches says whether steps of this vendor's cards use launch_followed_matmul; the emulation has it for
// tests.
bool followed_launches();
// More rows would keep the last block of a part busy for longer than a launch takes: four warps do what a launch
// spreads over all processors.
inline constexpr int kFollowedRows = 16;
// matmul_follows says whether launch_followed_matmul can multiply these: types of KernelSet::kCommon, at most
// kFollowedRows rows, none of a prompt.
bool matmul_follows(const MatmulGroup& group);

}  // namespace tnd::gpu
