// Dispatch of matmul.h.
#include "gpu/matmul/matmul.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gpu/matmul/matmul_jobs.h"
#include "gpu/matmul/matmul_layout.h"
#include "gpu/matmul/matmul_slabs.h"

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
  jobs.live = group.live;
  jobs.acts = group.acts;
  jobs.swiglu = group.swiglu;
  jobs.norm = group.norm;
  jobs.scratch = static_cast<uint8_t*>(group.scratch);
  jobs.arrivals = plain_launches() ? 32 : 1;
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
                               .type = p.w.type,
                               .scale = p.w.scale};
  }
  return jobs;
}

int share_blocks(MatmulJobs* jobs, int blocks) {
  const int64_t bytes = weight_bytes_of(*jobs, 0, jobs->count);
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

// Says whether the kernel for clusters may take the products of a set. The emulation takes that from the group's unit;
// launch_matmul_lanes checks other devices.
static bool wants_lanes(const MatmulGroup& group, KernelSet set) {
  const bool forms_clusters = std::strcmp(api_name(), "emu") == 0 ? group.unit >= 4 : group.unit == 0;
  return forms_clusters && set == KernelSet::kCommon && group.rows <= 32;
}

Prompt prompt_inputs(const DeviceInfo& device) {
  if (has_matmul_panels(device)) return Prompt::kPanels;
  return has_matmul_pairs(device) ? Prompt::kPairs : Prompt::kNone;
}

MatmulJobs divide(MatmulJobs* jobs, int tiles, int tile_outs, int unit_outs) {
  MatmulJobs rest = *jobs;
  rest.count = 0;
  int kept = 0;
  for (int i = 0; i < jobs->count; ++i) {
    MatmulJob job = jobs->jobs[i];
    const int all = (job.n + tile_outs - 1) / tile_outs, mine = std::min(tiles, all);
    tiles -= mine;
    const int outs = std::min(mine * tile_outs, job.n);
    if (mine < all) {
      MatmulJob& tail = rest.jobs[rest.count++] = job;
      tail.data += outs / unit_outs * job.unit_bytes;
      tail.units -= outs / unit_outs;
      tail.y += outs;
      if (job.residual != nullptr) tail.residual += outs;
      tail.n -= outs;
    }
    if (mine == 0) continue;
    job.n = outs;
    job.units = (outs + unit_outs - 1) / unit_outs;
    jobs->jobs[kept++] = job;
  }
  jobs->count = kept;
  return rest;
}

// Launches the products of panels of a group, one launch a type.
static void launch_panels(Stream& stream, const MatmulGroup& group) {
  MatmulJobs launches[kMaxProducts];
  int count = 0;
  for (KernelSet set : {KernelSet::kCommon, KernelSet::kOther, KernelSet::kFloat}) {
    MatmulJobs jobs = jobs_of(group, set);
    (void)take_type(&jobs, DType::kF32);
    while (jobs.count > 0) launches[count++] = take_type(&jobs, jobs.jobs[0].type);
  }
  // The largest first: launches that join it fill the processors that its last tiles leave idle.
  for (int i = 1; i < count; ++i) {
    if (weight_bytes_of(launches[i]) > weight_bytes_of(launches[0])) std::swap(launches[i], launches[0]);
  }
  for (int i = 0; i < count; ++i) {
    launches[i].joins = i > 0 ? 1 : 0;
    launches[i].joined = i + 1 < count ? 1 : 0;
    launch_matmul_panels(stream, group, launches[i]);
  }
}

void launch_matmul(Stream& stream, const MatmulGroup& group) {
  stream.prefer_shared(false);  // most kernels read inputs through the cache
  MatmulJobs floats = jobs_of(group, KernelSet::kFloat);
  if (group.acts.prompt == Prompt::kPanels) {
    launch_panels(stream, group);
    floats = take_type(&floats, DType::kF32);
  } else {
    for (KernelSet set : {KernelSet::kCommon, KernelSet::kOther}) {
      MatmulJobs jobs = jobs_of(group, set);
      if (jobs.count == 0) continue;
      if (wants_lanes(group, set) && launch_matmul_lanes(stream, group, jobs)) continue;
      if (group.rows > 64 && has_matmul_slabs(group)) {
        launch_matmul_slabs(stream, group, jobs, set);
        continue;
      }
      // Tiles of Q8_0 do not fit into 99 KiB: a launch that has some must not cost the others theirs.
      if (group.rows > 64 && !has_matmul_tiles(group, jobs)) {
        MatmulJobs others = jobs;
        const MatmulJobs large = take_type(&others, DType::kQ8_0);
        if (large.count > 0 && others.count > 0 && has_matmul_tiles(group, others)) {
          launch_matmul_rows(stream, group, large, set);
          jobs = others;
        }
      }
      if (group.rows > 64 && has_matmul_tiles(group, jobs)) {
        launch_matmul_tiles(stream, group, jobs, set);
      } else {
        launch_matmul_rows(stream, group, jobs, set);
      }
    }
  }
  if (group.acts.prompt == Prompt::kPairs || group.acts.paired != 0) {
    for (DType type : {DType::kBF16, DType::kF16}) {
      const MatmulJobs taken = take_type(&floats, type);
      if (taken.count == 0) continue;
      if (group.acts.prompt == Prompt::kPairs) {
        launch_matmul_pairs(stream, group, taken);
      } else {
        launch_matmul_half(stream, group, taken);
      }
    }
  }
  if (floats.count != 0) launch_matmul_float(stream, group, floats);
}

}  // namespace tnd::gpu
