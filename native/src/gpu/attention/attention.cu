#include <algorithm>

#include "gpu/attention/attention.h"
#include "gpu/attention/attention_exact.h"
#include "gpu/attention/attention_flash.cuh"
#include "gpu/runtime/half_units.h"

namespace tnd::gpu {
namespace {

// How a slot is added to the sums of the slots before it: o = o * keep + value * add, l = l * keep + l_add.
struct alignas(16) Fold {
  float keep, add, l_add;
};

// Folds the slots of a row and head in order, divides, applies the gate, prepares the output for the next product. A
// block is 256 elements of a row's output, a thread one of them. One warp a head finds the factors, which are the same
// for all elements, with one lane a slot: running maxima are exact in any order. Slots are read two rounds ahead. The
// rounds of many slots (at most MOST) are not unrolled: each step fetches the kernel's code from memory, so short code
// is faster.
template <int MOST>
__global__ void __launch_bounds__(kSuper) attention_merge_kernel(FlashArgs f) {
  TND_SHARED(float, outputs, [kSuper]);
  constexpr int kHeads = kSuper / 64;  // of the shortest
  TND_SHARED(Fold, folds, [kHeads][MOST]);
  let_next_start();
  const AttentionArgs& a = f.a;
  if (static_cast<int>(blockIdx.y) >= rows_in_use(a.live, a.rows)) return;
  const int row = static_cast<int>(blockIdx.y), width = a.q_heads * a.kv.dim;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % TND_WARP, warp = tid / TND_WARP;
  const int at = static_cast<int>(blockIdx.x) * kSuper + tid;
  const int shift = a.kv.dim == 256 ? 8 : a.kv.dim == 128 ? 7 : 6;
  const int first_head = static_cast<int>(blockIdx.x) * kSuper >> shift, heads = kSuper >> shift;
  // Slots that hold results: consecutive ones before the tail, then the tail.
  const AttentionRow plan = a.row_plans[row];
  const int32_t end = row_end(plan), bulk_end = tail_begin(end), size = segment_size(end);
  const KeyRange last = key_range(plan, -1, f.bulk_parts);
  const int from = f.bulk_parts == 1 ? 0 : plan.first / size;
  const int to = plan.first >= bulk_end ? from : f.bulk_parts == 1 ? 1 : (bulk_end + size - 1) / size;
  const int bulk = to - from, n = bulk + (last.begin < last.end ? 1 : 0);
  const int tail = f.slots - 1 - from;  // from the first
  const auto first_cell = [&](int head) { return (int64_t{row} * a.q_heads + head) * f.slots + from; };
  wait_for_previous();

  const int head = at >> shift, d = at & (a.kv.dim - 1);
  const int64_t gate_at = row * a.gate_row + head * a.gate_head + d;
  const float gate = a.gate != nullptr && at < width ? a.gate[gate_at] : 0.0f;
  const float* cells = f.o + (first_cell(head) << shift) + d;
  const Fold* fold = folds[head - first_head];
  constexpr int kRound = MOST < 8 ? MOST : 8;
  [[maybe_unused]] constexpr int kUnroll = MOST == kRound ? 3 : 1;
  const int past = MOST == kRound ? 1 : n;  // a constant, so that the loop is unrolled
  float now[kRound] = {}, next[kRound] = {};
  float l = 1.0f, o = -0.0f;  // the first slot's keep is zero: its values stay as they are, signs of zeros too
#pragma unroll kUnroll
  for (int first = -2 * kRound; first < past; first += kRound) {
    if (first >= 0) {
#pragma unroll
      for (int i = 0; i < kRound; ++i) {
        if (first + i >= n) continue;
        const Fold x = fold[first + i];
        l = fmaf(l, x.keep, x.l_add);
        o = fmaf(o, x.keep, now[i] * x.add);
      }
    }
#pragma unroll
    for (int i = 0; i < kRound; ++i) {
      const int index = first + 2 * kRound + i, slot = index < bulk ? index : tail;
      now[i] = next[i];
      if (index < MOST && index < n && at < width) next[i] = cells[slot << shift];
    }
    if (first != -kRound) continue;
    if (warp < heads && first_head + warp < a.q_heads) {
      const float2* stats_of = f.ml + first_cell(first_head + warp);
      float top = -__builtin_inff();  // of the slots before
#pragma unroll 1
      for (int i = lane; i - lane < n; i += TND_WARP) {
        const bool live = i < n;
        const float2 stats = live ? stats_of[i < bulk ? i : tail] : make_float2(-__builtin_inff(), 0.0f);
        float most = lane == 0 && top > stats.x ? top : stats.x;
#pragma unroll
        for (int step = 1; step < TND_WARP; step *= 2) {
          const float before = shfl_up(most, step);
          if (lane >= step && before > most) most = before;
        }
        const float up = shfl_up(most, 1), before = lane == 0 ? top : up;
        const float add = exp_f32(stats.x - most);
        if (live) folds[warp][i] = Fold{exp_f32(before - most), add, stats.y * add};
        top = shfl(most, TND_WARP - 1);
      }
    }
    __syncthreads();
  }
  float y = 0.0f;
  if (at < width) {
    y = o / l;
    if (a.gate != nullptr) y *= sigmoid_f32(gate);
    if (a.forms == 0) a.out[int64_t{row} * width + at] = y;
  }
  if (a.forms == 0) return;
  outputs[tid] = y;
  __syncthreads();
  if (warp != 0) return;
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = outputs[lane * 8 + i];
  acts_store(a.acts, a.forms, row, static_cast<int>(blockIdx.x), v);
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
  const bool rotated = kv_rotated(static_cast<KvType>(args.kv.v_type));
  if (scaled || rotated) a.forms = 0;
  if (rotated) a.gate = nullptr;
  if (exact) {
    launch_attention_exact(stream, a);
  } else {
    launch_attention_flash<FlashUnit>(stream, a);
  }
  if (rotated) launch_unrotate(stream, args);
  if (args.forms == 0 || !(exact || scaled || rotated)) return;
  const int64_t width = int64_t{args.q_heads} * args.kv.dim;
  launch_prepare(stream, {args.out, width, args.rows, static_cast<int32_t>(width), args.forms, args.acts, args.live});
}

void launch_attention_merge(Stream& stream, const FlashArgs& f) {
  const int64_t width = int64_t{f.a.q_heads} * f.a.kv.dim;
  launch(stream,
         {.grid = {static_cast<unsigned>(super_blocks(width)), static_cast<unsigned>(f.a.rows)},
          .block = {kSuper},
          .overlap = true,
          .name = "attention_merge"},
         f.slots == 2 ? attention_merge_kernel<2> : attention_merge_kernel<kAttentionSegments>, f);
}

}  // namespace tnd::gpu
