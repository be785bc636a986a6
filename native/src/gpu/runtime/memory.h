// Small copies: within device memory, and between it and pinned host memory at the ends of a step.
#pragma once

#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// dst[to[i]] = src[rows[i]], dim floats each.
struct CopyRowsArgs {
  const float* src = nullptr;     // [.., dim]
  const int32_t* rows = nullptr;  // device [n]
  const int32_t* to = nullptr;    // device [n]; nullptr = 0, 1, ..
  int32_t n = 0;
  int64_t dim = 0;
  float* dst = nullptr;  // [.., dim], row stride dst_stride
  int64_t dst_stride = 0;
  const int32_t* live = nullptr;  // device: how many are in use, nullptr = all
};
void launch_copy_rows(Stream& stream, const CopyRowsArgs& args);

// dst[i] = src[i] rounded to bfloat16, nearest, ties to even.
struct RoundArgs {
  const float* src = nullptr;
  uint16_t* dst = nullptr;
  int64_t n = 0;
  const int32_t* live = nullptr;  // device: how many rows of `row` elements are in use, nullptr = n elements
  int64_t row = 0;
};
void launch_round_bf16(Stream& stream, const RoundArgs& args);

// dst[i] = src[i], exactly.
struct WidenArgs {
  const uint16_t* src = nullptr;  // bfloat16
  float* dst = nullptr;
  int64_t n = 0;
  const int32_t* live = nullptr;  // as RoundArgs'
  int64_t row = 0;
};
void launch_widen_bf16(Stream& stream, const WidenArgs& args);

// A small copy is a kernel: waiting for a copy node of a graph takes some microseconds longer.
struct CopyArgs {
  void* dst = nullptr;
  const void* src = nullptr;
  uint64_t bytes = 0;
  const int32_t* live = nullptr;  // device: how many rows of row_bytes are in use, nullptr = all bytes
  uint64_t row_bytes = 0;         // a multiple of 4 with live
};
void launch_copy(Stream& stream, const CopyArgs& args);

// Copies the plan of a step from pinned host memory, and its results to there. They are kernels, because starting a
// copy engine and waiting for it takes several microseconds. Nothing that follows a plan may start before it is
// complete (Stream::no_overlap). When results are on the host, *done becomes *number.
struct PlanArgs {
  struct Range {
    void* dst = nullptr;        // 16-byte aligned, as src is
    const void* src = nullptr;  // pinned
    uint64_t bytes = 0;         // multiple of 16
  };
  Range ranges[2];
};
void launch_plan(Stream& stream, const PlanArgs& args);
struct ResultsArgs {
  struct Range {
    void* dst = nullptr;  // pinned
    const void* src = nullptr;
    uint64_t bytes = 0;  // multiple of 16; small: one block copies them
  };
  Range ranges[2];
  uint64_t* done = nullptr;          // pinned
  const uint64_t* number = nullptr;  // device
};
void launch_results(Stream& stream, const ResultsArgs& args);

struct FillArgs {
  void* dst = nullptr;
  uint8_t value = 0;
  uint64_t bytes = 0;
};
void launch_fill(Stream& stream, const FillArgs& args);

}  // namespace tnd::gpu
