// Small copies within device memory.
#pragma once

#include "gpu/runtime.h"

namespace tnd::gpu {

// dst[i] = src[rows[i]], dim floats each.
struct CopyRowsArgs {
  const float* src = nullptr;     // [.., dim]
  const int32_t* rows = nullptr;  // device [n]
  int32_t n = 0;
  int64_t dim = 0;
  float* dst = nullptr;  // [n, dim], row stride dst_stride
  int64_t dst_stride = 0;
};
void launch_copy_rows(Stream& stream, const CopyRowsArgs& args);

// dst[i] = src[i] rounded to bfloat16, nearest, ties to even.
struct RoundArgs {
  const float* src = nullptr;
  uint16_t* dst = nullptr;
  int64_t n = 0;
};
void launch_round_bf16(Stream& stream, const RoundArgs& args);

struct CopyArgs {
  void* dst = nullptr;
  const void* src = nullptr;
  uint64_t bytes = 0;
};
void launch_copy(Stream& stream, const CopyArgs& args);

struct FillArgs {
  void* dst = nullptr;
  uint8_t value = 0;
  uint64_t bytes = 0;
};
void launch_fill(Stream& stream, const FillArgs& args);

}  // namespace tnd::gpu
