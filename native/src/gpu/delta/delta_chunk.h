// Chunked form of the gated delta rule, for chains of prompts, where the recurrence would wait for one row after the
// other. The corrections d of 64 rows solve a triangular system, so the state is read and written once a chunk and the
// rest is matrix products (docs/spec/qwen35.md 3.7). The bits differ from the recurrence's, the precision is the same:
// products of halves, each number as two of them (MODEL_qwen35.md, Delta rule of prompts).
//
// Two launches: launch_delta_prepare computes what does not depend on the state, for all chunks and heads at once;
// launch_delta_states then goes through the chunks in order with the state in registers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/backend.h"
#include "gpu/delta/delta.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

inline constexpr int kDeltaChunk = 64;

// delta_chunked says whether the device has the matrix instructions that the chunked form needs.
bool delta_chunked(const DeviceInfo& device);

// Rows [first, first + count) of a chain, 1 <= count <= 64.
struct DeltaChunk {
  int32_t first, count;  // of the step
  int32_t group;         // of its plan
};
// Chunks [first, first + count) in order are one sequence.
struct DeltaChain {
  int32_t first, count;
  int32_t group;
};

// DeltaChunks is the plan of the chained groups of a step.
struct DeltaChunks {
  std::vector<DeltaChunk> chunks;
  std::vector<DeltaChain> chains;
  // takes says whether a group takes the chunked form.
  static bool takes(const DeltaGroup& group) { return group.prompt; }
  // plan takes groups [first, …) as long as their chunks fit `capacity`; returns the first group that did not fit.
  size_t plan(std::span<const DeltaGroup> groups, size_t first, int capacity);
};

// Chunks that fit the scratch of steps of `rows` rows: those of the longest chain.
constexpr int delta_chunk_capacity(int rows) {
  return (rows + kDeltaChunk - 1) / kDeltaChunk;
}
uint64_t delta_chunk_scratch_bytes(const DeltaShape& shape, int chunks);

struct DeltaChunkArgs {
  DeltaLayer w;
  DeltaIo io;
  const DeltaStepGroup* group_plans = nullptr;  // device, of this layer
  const DeltaChunk* chunks = nullptr;           // device [n_chunks]
  const DeltaChain* chains = nullptr;           // device [n_chains]
  int n_chunks = 0, n_chains = 0;
  const float* conv = nullptr;   // [rows, conv_dim], from launch_delta_conv
  const float* gates = nullptr;  // [rows, 2 nv]: alpha (not read), beta
  float* mixed = nullptr;        // out [rows, value_dim], before the gated norm
  void* scratch = nullptr;       // delta_chunk_scratch_bytes(shape, n_chunks), aligned to 16
  int shared_per_block = 0;
};
void launch_delta_prepare(Stream& stream, const DeltaChunkArgs& args);
// Also moves the taps of the groups.
void launch_delta_states(Stream& stream, const DeltaChunkArgs& args);

}  // namespace tnd::gpu
