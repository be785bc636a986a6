// Arguments of launches that operations by themselves and those in a product's launch fill alike.
#pragma once

#include "gpu/norm/norm.h"
#include "gpu/norm/swiglu.h"

namespace tnd::gpu {

inline void fill_norm(NormArgs& args, const float* x, const float* w, float eps, int rows, int64_t dim) {
  args.x = x;
  args.x_stride = dim;
  args.w = w;
  args.eps = eps;
  args.rows = rows;
  args.dim = static_cast<int>(dim);
}

inline void fill_swiglu(SwigluArgs& args, const float* gate, const float* up, int rows, int64_t dim) {
  args.gate = gate;
  args.up = up;
  args.stride = dim;
  args.rows = rows;
  args.dim = static_cast<int>(dim);
}

}  // namespace tnd::gpu
