// Dispatch of matmul.h.
#include "gpu/matmul.h"

#include <algorithm>

#include "gpu/matmul_jobs.h"
#include "gpu/matmul_layout.h"

namespace tnd::gpu {

uint32_t act_form(DType type) {
  switch (type) {
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kIQ4_XS:
      return kFormQ256;
    case DType::kF32:
      return kFormF32;
    case DType::kF16:
    case DType::kBF16:
      return kFormHalf;
    default:
      return kFormQ32;
  }
}

MatmulJobs jobs_of(const MatmulGroup& group, KernelSet set) {
  MatmulJobs jobs;
  jobs.rows = group.rows;
  jobs.acts = group.acts;
  jobs.swiglu = group.swiglu;
  jobs.norm = group.norm;
  jobs.scratch = static_cast<uint8_t*>(group.scratch);
  for (int i = 0; i < group.count; ++i) {
    const MatmulProduct& p = group.products[i];
    if (kernel_set(p.w.type) != set) continue;
    jobs.k = p.w.k;
    jobs.jobs[jobs.count++] = {.data = p.w.data,
                               .y = p.y,
                               .residual = p.residual,
                               .y_stride = p.y_stride,
                               .unit_bytes = unit_bytes(p.w.type, p.w.k),
                               .n = p.w.n,
                               .units = static_cast<int32_t>(units(p.w.type, p.w.n)),
                               .blocks = 0,
                               .type = p.w.type};
  }
  return jobs;
}

int share_blocks(MatmulJobs* jobs, int blocks) {
  int64_t bytes = 0;
  for (int i = 0; i < jobs->count; ++i) bytes += jobs->jobs[i].units * jobs->jobs[i].unit_bytes;
  int dealt = 0;
  MatmulJob* largest = &jobs->jobs[0];
  for (int i = 0; i < jobs->count; ++i) {
    MatmulJob& job = jobs->jobs[i];
    const int64_t share = blocks * (job.units * job.unit_bytes) / bytes;
    job.blocks = static_cast<int32_t>(std::clamp<int64_t>(share, 1, job.units));
    dealt += job.blocks;
    if (job.units * job.unit_bytes > largest->units * largest->unit_bytes) largest = &job;
  }
  const int extra = std::clamp(blocks - dealt, 0, largest->units - largest->blocks);
  largest->blocks += extra;
  return dealt + extra;
}

// Takes the jobs of a type out of `jobs`.
static MatmulJobs take_type(MatmulJobs* jobs, DType type) {
  MatmulJobs taken = *jobs;
  taken.count = 0;
  int left = 0;
  for (int i = 0; i < jobs->count; ++i) {
    const MatmulJob& job = jobs->jobs[i];
    if (job.type == type) {
      taken.jobs[taken.count++] = job;
    } else {
      jobs->jobs[left++] = job;
    }
  }
  jobs->count = left;
  return taken;
}

void launch_matmul(Stream& stream, const MatmulGroup& group) {
  for (KernelSet set : {KernelSet::kCommon, KernelSet::kOther}) {
    const MatmulJobs jobs = jobs_of(group, set);
    if (jobs.count == 0) continue;
    if (group.rows > 64 && has_matmul_tiles(group, jobs)) {
      launch_matmul_tiles(stream, group, jobs, set);
    } else {
      launch_matmul_rows(stream, group, jobs, set);
    }
  }
  MatmulJobs jobs = jobs_of(group, KernelSet::kFloat);
  if (group.acts.halves != HalfInputs::kFloats) {
    for (DType type : {DType::kBF16, DType::kF16}) {
      const MatmulJobs taken = take_type(&jobs, type);
      if (taken.count == 0) continue;
      if (group.acts.halves == HalfInputs::kPrompt) {
        launch_matmul_pairs(stream, group, taken);
      } else {
        launch_matmul_half(stream, group, taken);
      }
    }
  }
  if (jobs.count != 0) launch_matmul_float(stream, group, jobs);
}

}  // namespace tnd::gpu
