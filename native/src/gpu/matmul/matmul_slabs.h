// Products for more than 64 rows on AMD's processors (matmul_slabs.cu).
#pragma once

#include "gpu/matmul/matmul_jobs.h"

namespace tnd::gpu {

// has_matmul_slabs says whether this build, in the emulation the group's unit, multiplies more than 64 rows so.
bool has_matmul_slabs(const MatmulGroup& group);
void launch_matmul_slabs(Stream& stream, const MatmulGroup& group, MatmulJobs jobs, KernelSet set);

}  // namespace tnd::gpu
