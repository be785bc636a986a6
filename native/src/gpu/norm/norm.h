// Norms of rows. Same bits as the row kernels of the CPU (cpu/row_kernels.h): sums in sixteen lanes, lane j takes
// elements j, j + 16, … by fma ascending, lanes folded 8, 4, 2, 1.
#pragma once

#include "gpu/matmul/matmul.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// y[r] = (x[gather[r]] * rs) * w, rs = 1 / sqrt(sum x^2 / dim + eps).
struct NormArgs {
  const float* x = nullptr;  // [rows, dim], row stride x_stride
  int64_t x_stride = 0;      // elements
  const float* w = nullptr;  // [dim]
  float eps = 0;
  int rows = 0;
  int dim = 0;         // multiple of 16
  float* y = nullptr;  // [rows, dim], may be x; unused when forms != 0
  ActsView acts;       // output prepared as matmul input when forms != 0
  uint32_t forms = 0;
  const int32_t* gather = nullptr;  // device [rows]: rows of x, nullptr = all in order
  const int32_t* live = nullptr;    // device: rows in use, nullptr = all
};
void launch_norm(Stream& stream, const NormArgs& args);

// Output of DeltaNet, per row and head of 128: y = ((o * rs) * w) * silu(z).
struct GatedNormArgs {
  const float* o = nullptr;  // [rows, heads * 128]
  const float* w = nullptr;  // [128]
  const float* z = nullptr;  // [rows, heads * 128]
  float eps = 0;
  int rows = 0, heads = 0;
  float* y = nullptr;  // [rows, heads * 128], may be o; scratch when forms != 0
  ActsView acts;       // output prepared as matmul input when forms != 0
  uint32_t forms = 0;
  const int32_t* live = nullptr;  // as NormArgs'
};
void launch_gated_norm(Stream& stream, const GatedNormArgs& args);

}  // namespace tnd::gpu
