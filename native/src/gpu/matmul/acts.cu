// Buffers of matmul inputs, and the kernel that fills them from plain rows, with 5 bytes of traffic per element. It is
// used where the kernel that computes the rows cannot quantise them itself.
#include <algorithm>
#include <utility>

#include "gpu/matmul/acts_device.h"
#include "gpu/matmul/matmul.h"

namespace tnd::gpu {
namespace {

constexpr int kWarps = 8;

// The lane's eight elements of super-block s.
TND_DEVICE void load_eight(const PrepareArgs& args, int row, int s, float (&x)[8]) {
  const int first = s * kSuper + static_cast<int>(lane_id()) * 8;
  const float* from = args.x + row * args.x_stride + first;
  if (first + 8 <= args.k && args.x_stride % 4 == 0 && reinterpret_cast<uintptr_t>(args.x) % 16 == 0) {
    const float4 a = *reinterpret_cast<const float4*>(from);
    const float4 b = *reinterpret_cast<const float4*>(from + 4);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = first + i < args.k ? from[i] : 0.0f;
  }
}

__global__ void prepare_f32_kernel(PrepareArgs args) {
  let_next_start();
  wait_for_previous();
  const int supers = static_cast<int>(super_blocks(args.k));
  const int64_t item = int64_t{blockIdx.x} * kWarps + warp_id();
  if (item >= int64_t{supers} * rows_in_use(args.live, args.rows)) return;
  const int row = static_cast<int>(item / supers);
  const int s = static_cast<int>(item % supers);
  float x[8];
  load_eight(args, row, s, x);
  acts_store(args.acts, args.forms, row, s, x);
}

// A block takes a row.
__global__ void __launch_bounds__(1024) prepare_scaled_kernel(PrepareArgs args) {
  wait_for_previous();
  const int row = static_cast<int>(blockIdx.x);
  store_scaled_row<3>(args.acts, args.forms, row, static_cast<int>(super_blocks(args.k)),
                      [&](int s, float(&x)[8]) { load_eight(args, row, s, x); });
}

// Parts of a buffer in the order in which they lie in memory, each at a 256-byte boundary.
uint64_t lay_out(ActsView* acts, void* mem, int64_t max_k, int max_rows, uint32_t forms) {
  const int64_t supers = super_blocks(max_k);
  const int64_t step = max_rows <= 64 ? 64 : 128;  // kernels for many rows read whole tiles of 128
  const int64_t rows = (max_rows + step - 1) / step * step;
  uint64_t at = 0, panels_end = 0;
  const auto take = [&](auto** p, uint32_t form, int64_t bytes_per_row) {
    if ((forms & form) == 0) return;
    *p = reinterpret_cast<std::remove_reference_t<decltype(*p)>>(reinterpret_cast<uintptr_t>(mem) + at);
    at += (static_cast<uint64_t>(supers * rows * bytes_per_row) + 255) / 256 * 256;
  };
  *acts = {};
  if (max_rows > 64 && (forms & (kFormQ256 | kFormQ32)) != 0) {
    take(&acts->panels, forms, 2 * kSuper);
    take(&acts->row_unscale, forms, 4);
    panels_end = std::exchange(at, 0);  // the codes share this memory
  }
  take(&acts->q256, kFormQ256, kSuper);
  take(&acts->sum16, kFormQ256, 32);
  take(&acts->scale256, kFormQ256, 4);
  take(&acts->q32, kFormQ32, kSuper);
  take(&acts->scale32, kFormQ32, 32);
  take(&acts->sum32, kFormQ32, 32);
  at = std::max(at, panels_end);
  take(&acts->f32, kFormF32 | kFormHalf, 4 * kSuper);
  acts->pairs = reinterpret_cast<uint16_t*>(acts->f32);
  if (forms & kFormF32) take(&acts->pairs, kFormHalf, 4 * kSuper);  // weights may need both
  acts->f32_stride = supers * kSuper;
  acts->row_stride = static_cast<int32_t>(rows);
  return at;
}

}  // namespace

uint64_t acts_bytes(int64_t max_k, int max_rows, uint32_t forms) {
  ActsView unused;
  return lay_out(&unused, nullptr, max_k, max_rows, forms);
}

void acts_init(ActsView* acts, void* mem, int64_t max_k, int max_rows, uint32_t forms) {
  lay_out(acts, mem, max_k, max_rows, forms);
}

void launch_prepare(Stream& stream, const PrepareArgs& args) {
  if (needs_row_scale(args.acts, args.forms)) {
    launch(stream,
           {.grid = {static_cast<unsigned>(args.rows)},
            .block = {scaled_row_threads(args.k)},
            .overlap = true,
            .name = "prepare"},
           prepare_scaled_kernel, args);
    return;
  }
  const int64_t items = super_blocks(args.k) * args.rows;
  launch(stream,
         {.grid = {static_cast<unsigned>((items + kWarps - 1) / kWarps)},
          .block = {kWarps * TND_WARP},
          .overlap = true,
          .name = "prepare"},
         prepare_f32_kernel, args);
}

}  // namespace tnd::gpu
