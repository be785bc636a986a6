// Activation of the MLP.
#pragma once

#include "gpu/matmul/matmul.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// y = silu(gate) * up, element by element: the bits of the CPU's row kernel.
struct SwigluArgs {
  const float* gate = nullptr;  // [rows, dim]
  const float* up = nullptr;    // [rows, dim]
  int64_t stride = 0;           // of gate and up, elements
  int rows = 0;
  int dim = 0;         // multiple of 4; rows 16-byte aligned
  float* y = nullptr;  // [rows, dim], may be gate or up; unused when forms != 0
  ActsView acts;       // output prepared as matmul input when forms != 0
  uint32_t forms = 0;
  const int32_t* live = nullptr;  // device: rows in use, nullptr = all
};
void launch_swiglu(Stream& stream, const SwigluArgs& args);

}  // namespace tnd::gpu
