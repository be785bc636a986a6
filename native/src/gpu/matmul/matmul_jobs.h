// How the host passes products to kernels: each product of a group is a job with a share of the blocks.
#pragma once

#include "gpu/matmul/matmul.h"

namespace tnd::gpu {

struct MatmulJob {
  const uint8_t* data;
  float* y;
  const float* residual;
  int64_t y_stride;
  int64_t unit_bytes;
  int32_t n;
  int32_t units;
  int32_t blocks;  // that share its units
  DType type;
  float scale;  // DeviceWeight::scale
};

struct MatmulJobs {
  MatmulJob jobs[kMaxProducts];
  int32_t count = 0;
  int32_t rows = 0;
  int32_t k = 0;
  const int32_t* live = nullptr;  // as in MatmulGroup
  ActsView acts;
  ActsView swiglu;  // as in MatmulGroup
  NormInput norm;
  uint8_t* scratch = nullptr;
  // Products of panels: the launch before (joins) or after (joined) is of the same group. They may overlap, so that the
  // last tiles of one leave no processor idle.
  int32_t joins = 0, joined = 0;
  // Lanes of a warp that arrive when it has read a stage: one, or all for race checkers, which do not follow the order
  // that a barrier of the warp makes.
  int32_t arrivals = 1;
};

// weight_bytes_of returns the bytes of the weights of jobs [begin, end), or of all.
constexpr int64_t weight_bytes_of(const MatmulJobs& jobs, int begin, int end) {
  int64_t bytes = 0;
  for (int i = begin; i < end; ++i) bytes += jobs.jobs[i].units * jobs.jobs[i].unit_bytes;
  return bytes;
}
constexpr uint64_t weight_bytes_of(const MatmulJobs& jobs) {
  return static_cast<uint64_t>(weight_bytes_of(jobs, 0, jobs.count));
}

// Which kernel a type runs in. One kernel holds the types that occur together in a model, so that they share a launch.
enum class KernelSet { kCommon, kOther, kFloat };
constexpr KernelSet kernel_set(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return KernelSet::kFloat;
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kQ8_0:
      return KernelSet::kCommon;
    default:
      return KernelSet::kOther;
  }
}

// jobs_of collects the products of one set; share_blocks shares `blocks` blocks among them by bytes, each at least one
// block and at most one per `units_per_block` units, and returns how many were given.
MatmulJobs jobs_of(const MatmulGroup& group, KernelSet set);
int share_blocks(MatmulJobs* jobs, int blocks);

// divide leaves the first `tiles` tiles of outputs in `jobs` and returns the others; each product starts a new tile.
// unit_outs: of the weights' type.
MatmulJobs divide(MatmulJobs* jobs, int tiles, int tile_outs, int unit_outs);

// Launches of one set of kernels (jobs.count > 0).
void launch_matmul_rows(Stream& stream, const MatmulGroup& group, MatmulJobs jobs, KernelSet set);  // any rows
// launch_matmul_lanes multiplies up to 32 rows where blocks form clusters. False if it cannot; then nothing
// was launched.
bool launch_matmul_lanes(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs);
void launch_matmul_tiles(Stream& stream, const MatmulGroup& group, MatmulJobs jobs, KernelSet set);  // many rows
void launch_matmul_float(Stream& stream, const MatmulGroup& group, MatmulJobs jobs);
void launch_matmul_half(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs);      // one type, of pairs
void launch_matmul_half_f16(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs);  // its part for F16
// Of a prompt, one type: Prompt::kPairs F16 or BF16, Prompt::kPanels any but F32.
void launch_matmul_pairs(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs);
void launch_matmul_panels(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs);
void launch_matmul_panels_float(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs);
// has_matmul_tiles says whether the device can run launch_matmul_tiles for these jobs.
bool has_matmul_tiles(const MatmulGroup& group, const MatmulJobs& jobs);

}  // namespace tnd::gpu
