// Gated DeltaNet on the device. A layer's step is launch_delta_conv, a DeltaRule, launch_gated_norm (norm.h);
// accepted rows are replayed by launch_delta_commit for all layers at once. Same bits as cpu/deltanet.cpp. Long chains
// of prompts go through delta_chunk.h instead of the recurrence.
//
// The recurrence keeps S in registers from the first to the last row of a group. Rows come depth first. At a node to
// which a later row returns, S is saved (`plan` below says where), in shared memory while there is room, then in
// scratch. The committed state is read once a step and not written, unless the group commits. There are two forms,
// of the same bits:
//   slices   a slice of 32 columns of a value head per block of two warps, four threads to two columns, twice sixteen
//            key rows each (the eight partial sums of the contract)
//   columns the columns of all value heads of a key head are dealt to blocks of four warps, eight threads to up to four
//            columns, sixteen key rows each
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/backend.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// DeltaRow in device form, without the loads and saves that registers make unnecessary.
struct DeltaStepRow {
  int32_t taps[3];  // as in DeltaRow
  int32_t load;     // before the row: slot, kStateCommitted, or kStateNone = registers hold it
  int32_t save;     // after the row: slot, kStateCommitted or kStateNone
  int32_t update;   // 0: a leaf, registers keep the parent's state
  int32_t group;
};
// One sequence in one layer.
struct DeltaStepGroup {
  int32_t first = 0, count = 0;
  int32_t commit = 0;
  int32_t chunked = 0;  // 1: computed by the chunked form (delta_chunk.h), skipped by the recurrence
  DeltaState state;
  DeltaReplay replay;  // null when commit
};

// DeltaStep is the plan of a step: rows the same for all layers, groups by layer.
struct DeltaStep {
  std::vector<DeltaStepRow> rows;      // [rows of the step]
  std::vector<DeltaStepGroup> groups;  // [layers][groups]
  int n_groups = 0;
  void plan(std::span<const DeltaGroup> groups, int rows, int layers);
};

struct DeltaArgs {
  DeltaLayer w;
  DeltaIo io;
  int rows = 0;                                 // of the step
  int groups = 0;                               // those without rows are left out
  const DeltaStepRow* row_plans = nullptr;      // device [rows]
  const DeltaStepGroup* group_plans = nullptr;  // device [groups], of this layer
  float* conv = nullptr;          // scratch [rows, conv_dim]: q | k | v after convolution, q and k normalised
  float* gates = nullptr;         // scratch [rows, 2 nv]: alpha, beta
  float* mixed = nullptr;         // out [rows, value_dim], before the gated norm
  float* saved = nullptr;         // scratch [groups][state_slots][state_elems]: states put aside
  int state_slots = 0;            // of one tree
  int shared_per_block = 0;       // DeviceInfo::shared_per_block
  int processors = 0;             // DeviceInfo::processors
  const int32_t* live = nullptr;  // device: how many are in use, nullptr = all
};
// Convolution by parents, SiLU, L2 norms, gates; fills the replay of groups that do not commit, except d.
void launch_delta_conv(Stream& stream, const DeltaArgs& args);
// The recurrence over all rows; d of the replay, or state and taps of committing groups.
void launch_delta_slices(Stream& stream, const DeltaArgs& args);
void launch_delta_columns(Stream& stream, const DeltaArgs& args);
using DeltaRule = void (*)(Stream&, const DeltaArgs&);
// Rows of a sequence that a block has in shared memory before the first; more follow in tiles.
inline constexpr int kDeltaRowsAtOnce = 24;
// The form for groups of a step: columns for 2 to kDeltaRowsAtOnce rows of one sequence and slices for the rest
// (columns are slower where tiles follow each other: docs/speed-log/gpu-steps.md). It depends on the number of rows
// alone: otherwise a tree and a chain with equally many rows would need two graphs.
DeltaRule delta_rule(std::span<const DeltaStepGroup> groups);

// Replays rows path[0..*count) of one sequence into state and taps of all layers.
struct DeltaCommitArgs {
  DeltaShape shape;
  int layers = 0;
  const DeltaState* states = nullptr;   // device [layers]
  const DeltaReplay* replay = nullptr;  // device [layers]
  const int32_t* path = nullptr;        // device, ascending
  const int32_t* count = nullptr;       // device
};
void launch_delta_commit(Stream& stream, const DeltaCommitArgs& args);

}  // namespace tnd::gpu
