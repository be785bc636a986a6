#include <algorithm>

#include "gpu/attention.h"
#include "gpu/attention_exact.h"
#include "gpu/attention_flash.cuh"
#include "gpu/half_units.h"

namespace tnd::gpu {
namespace {

// Folds the slots of a row and head in order, divides, applies the gate, prepares the output for the next product. A
// block is 256 elements of a row's output, a thread one of them.
__global__ void __launch_bounds__(kSuper) attention_merge_kernel(FlashArgs f) {
  TND_SHARED(float, outputs, [kSuper]);
  let_next_start();
  wait_for_previous();
  const AttentionArgs& a = f.a;
  const int64_t row = blockIdx.y, width = int64_t{a.q_heads} * a.kv.dim;
  const int64_t at = int64_t{blockIdx.x} * kSuper + threadIdx.x;
  float y = 0.0f;
  if (at < width) {
    const int64_t head = at / a.kv.dim, d = at % a.kv.dim;
    const AttentionRow plan = a.row_plans[row];
    const int64_t base = (row * a.q_heads + head) * f.slots;
    // Slots that hold something: neighbours before the tail, then the tail. Eight are read before the first is needed.
    constexpr int kBatch = 8;
    const int32_t end = row_end(plan), bulk_end = tail_begin(end), size = segment_size(end);
    const KeyRange last = key_range(plan, -1, f.bulk_parts);
    const int from = f.bulk_parts == 1 ? 0 : plan.first / size;
    const int to = plan.first >= bulk_end ? from : f.bulk_parts == 1 ? 1 : (bulk_end + size - 1) / size;
    const int n = to - from + (last.begin < last.end ? 1 : 0);
    float m = 0.0f, l = -1.0f, o = 0.0f;
    for (int i = 0; i < n; i += kBatch) {
      float2 stats[kBatch];
      float values[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (i + j >= n) continue;
        const int64_t cell = base + (from + i + j < to ? from + i + j : f.slots - 1);
        stats[j] = f.ml[cell];
        values[j] = f.o[cell * a.kv.dim + d];
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        if (i + j >= n) continue;
        if (l < 0.0f) {
          m = stats[j].x, l = stats[j].y, o = values[j];
          continue;
        }
        const float top = m > stats[j].x ? m : stats[j].x;
        const float keep = exp_f32(m - top), add = exp_f32(stats[j].x - top);
        m = top;
        l = fmaf(l, keep, stats[j].y * add);
        o = fmaf(o, keep, values[j] * add);
      }
    }
    y = l < 0.0f ? 0.0f : o / l;
    if (a.gate != nullptr) y *= sigmoid_f32(a.gate[row * a.gate_row + head * a.gate_head + d]);
    if (a.forms == 0) a.out[row * width + at] = y;
  }
  if (a.forms == 0) return;
  outputs[threadIdx.x] = y;
  __syncthreads();
  if (warp_id() != 0) return;
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = outputs[lane_id() * 8 + i];
  acts_store(a.acts, a.forms, static_cast<int>(row), static_cast<int>(blockIdx.x), v);
}

}  // namespace

AttentionMode attention_mode(const KvShape& kv, const DeviceInfo& device) {
  const int32_t floats = static_cast<int32_t>(KvType::kF32);
  const bool dim = kv.dim == 64 || kv.dim == 128 || kv.dim == 256;
  const unsigned bytes = in_blocks(kv) ? flash_shared_bytes<FlashUnit, 256, 1, 1, 1, true>(kv)
                                       : flash_shared_bytes<FlashUnit, 256, 1, 1, 1, false>(kv);
  const bool room = bytes <= static_cast<unsigned>(device.shared_per_block);
  const bool halves = kv.k_type != floats && kv.v_type != floats;  // or what becomes halves
  return halves && dim && has_half_units(device) && room ? AttentionMode::kFlash : AttentionMode::kExact;
}

uint64_t attention_scratch_bytes(AttentionMode mode, const KvShape& kv, int q_heads, int max_rows) {
  if (mode == AttentionMode::kExact) return 0;
  const auto need = [&](int rows) { return flash_scratch_bytes(kv, q_heads, rows); };
  return std::max(need(max_rows), need(std::min(max_rows, kFlashSplitRows)));
}

void launch_attention(Stream& stream, const AttentionArgs& args) {
  const bool exact = args.mode == AttentionMode::kExact, scaled = needs_row_scale(args.acts, args.forms);
  AttentionArgs a = args;
  if (scaled) a.forms = 0;
  if (exact) {
    launch_attention_exact(stream, a);
  } else {
    launch_attention_flash<FlashUnit>(stream, a);
  }
  if (args.forms == 0 || !(exact || scaled)) return;
  const int64_t width = int64_t{args.q_heads} * args.kv.dim;
  launch_prepare(stream, {args.out, width, args.rows, static_cast<int32_t>(width), args.forms, args.acts});
}

void launch_attention_merge(Stream& stream, const FlashArgs& f) {
  const int64_t width = int64_t{f.a.q_heads} * f.a.kv.dim;
  launch(stream,
         {.grid = {static_cast<unsigned>(super_blocks(width)), static_cast<unsigned>(f.a.rows)},
          .block = {kSuper},
          .overlap = true,
          .name = "attention_merge"},
         attention_merge_kernel, f);
}

}  // namespace tnd::gpu
