#include "gpu/kv.h"

namespace tnd::gpu {
namespace {

constexpr int kThreads = 128;

// Bytes of one head's row.
TND_HOST_DEVICE constexpr int64_t head_bytes(int32_t type, int32_t dim) {
  return int64_t{dim} * (type == static_cast<int32_t>(KvType::kF32) ? 4 : 2);
}

// A block moves one head of one cache (K or V) in units of 16 bytes; a thread owns a unit of the row in every move, so
// order among moves is a thread's program order. Eight moves are read before they are written: the latency of memory is
// paid once for all (a source is never an earlier destination, from being ascending and to <= from).
__global__ void __launch_bounds__(kThreads) kv_move_kernel(KvMoveArgs a) {
  constexpr int kBatch = 8;
  const KvCache cache = a.caches[blockIdx.y];
  const bool keys = blockIdx.x < static_cast<unsigned>(a.shape.heads);
  const int head = static_cast<int>(blockIdx.x) - (keys ? 0 : a.shape.heads);
  const int64_t row = head_bytes(keys ? a.shape.k_type : a.shape.v_type, a.shape.dim);
  uint8_t* base = static_cast<uint8_t*>(keys ? cache.k : cache.v) + head * row * a.shape.capacity;
  const int n = *a.count;
  for (int64_t at = int64_t{threadIdx.x} * 16; at < row; at += kThreads * 16) {
    for (int i = 0; i < n; i += kBatch) {
      uint4 held[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (i + j < n) held[j] = *reinterpret_cast<const uint4*>(base + a.from[i + j] * row + at);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (i + j < n) *reinterpret_cast<uint4*>(base + a.to[i + j] * row + at) = held[j];
      }
    }
  }
}

// A block copies one position of one cache.
template <bool TO_ROWS>
__global__ void __launch_bounds__(kThreads) kv_rows_kernel(KvRowsArgs a) {
  const int64_t k_row = head_bytes(a.shape.k_type, a.shape.dim), v_row = head_bytes(a.shape.v_type, a.shape.dim);
  const int64_t all = (k_row + v_row) * a.shape.heads;
  uint8_t* rows = static_cast<uint8_t*>(a.rows) + blockIdx.x * all;
  const int64_t slot = a.slot + static_cast<int64_t>(blockIdx.x);
  for (int64_t at = int64_t{threadIdx.x} * 16; at < all; at += kThreads * 16) {
    const bool keys = at < k_row * a.shape.heads;
    const int64_t in = keys ? at : at - k_row * a.shape.heads;
    const int64_t row = keys ? k_row : v_row;
    const int64_t head = in / row;
    uint8_t* cell =
        static_cast<uint8_t*>(keys ? a.cache.k : a.cache.v) + (head * a.shape.capacity + slot) * row + in % row;
    if constexpr (TO_ROWS) {
      *reinterpret_cast<uint4*>(rows + at) = *reinterpret_cast<const uint4*>(cell);
    } else {
      *reinterpret_cast<uint4*>(cell) = *reinterpret_cast<const uint4*>(rows + at);
    }
  }
}

}  // namespace

bool kv_type_known(int32_t type) {
  return type == static_cast<int32_t>(KvType::kF32) || type == static_cast<int32_t>(KvType::kF16);
}

uint64_t kv_cache_bytes(const KvShape& shape, bool keys) {
  return static_cast<uint64_t>(head_bytes(keys ? shape.k_type : shape.v_type, shape.dim)) *
         static_cast<uint64_t>(shape.heads) * static_cast<uint64_t>(shape.capacity);
}

uint64_t kv_row_size(const KvShape& shape) {
  return static_cast<uint64_t>(head_bytes(shape.k_type, shape.dim) + head_bytes(shape.v_type, shape.dim)) *
         static_cast<uint64_t>(shape.heads);
}

void launch_kv_move(Stream& stream, const KvMoveArgs& args) {
  const Dim3 grid{2 * static_cast<unsigned>(args.shape.heads), static_cast<unsigned>(args.n_caches)};
  launch(stream, {.grid = grid, .block = {kThreads}, .name = "kv_move"}, kv_move_kernel, args);
}

void launch_kv_export(Stream& stream, const KvRowsArgs& args) {
  const Dim3 grid{static_cast<unsigned>(args.n)};
  launch(stream, {.grid = grid, .block = {kThreads}, .name = "kv_export"}, kv_rows_kernel<true>, args);
}

void launch_kv_import(Stream& stream, const KvRowsArgs& args) {
  const Dim3 grid{static_cast<unsigned>(args.n)};
  launch(stream, {.grid = grid, .block = {kThreads}, .name = "kv_import"}, kv_rows_kernel<false>, args);
}

}  // namespace tnd::gpu
