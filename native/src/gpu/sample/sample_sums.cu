// Maxima and sums of the logits of a head's rows (sample_device.cuh).
#include "gpu/sample/sample_device.cuh"

namespace tnd::gpu {
namespace {

// ---- maxima: a block per 1024 tokens, four a thread

constexpr int kReadWarps = kReadThreads / TND_WARP;
constexpr int kWarpsPerPart = kPart / 4 / TND_WARP;

__global__ void __launch_bounds__(kReadThreads, 4) choose_maxima_kernel(ChooseArgs a) {
  TND_SHARED(float, room, [kBlock]);
  TND_SHARED(uint64_t, best, [2][kReadWarps]);
  let_next_start();
  if (static_cast<int>(blockIdx.y) >= rows_in_use(a.live, a.rows)) return;
  wait_for_previous();
  const int64_t block = blockIdx.x, row = blockIdx.y, first = block * kBlock;
  const int tid = static_cast<int>(threadIdx.x);
  const Scratch s = scratch_of(a, row);
  const ChooseRow& plan = a.plans[row];
  if (takes_nucleus(plan, a.vocab)) {
#pragma unroll 1
    for (int64_t i = block * kReadThreads + tid; i < kNarrowPasses * kBins; i += int64_t{gridDim.x} * kReadThreads) {
      s.bins[i] = Units{0, 0};
    }
  }
  const int64_t token = first + tid * 4;
  const float4 x = four_logits(a.logits + row * a.stride, token, a.vocab);
  float v[4] = {x.x, x.y, x.z, x.w};
  uint64_t raw = warp_max_key(best_of_four(raw_view(a, row), v, token));
  uint64_t allowed = raw;
  if ((plan.wants & kWantToken) != 0 && (plan.mask != nullptr || a.never != nullptr || moves(plan))) {
    move_four(a, plan, first, v, room);
    allowed = warp_max_key(best_of_four(allowed_view(a, row), v, token));
  }
  if (lane_id() == 0) best[0][warp_id()] = raw, best[1][warp_id()] = allowed;
  __syncthreads();
  if (tid < 2 * kPartsPerBlock) {
    const int kind = tid / kPartsPerBlock, part = tid % kPartsPerBlock;
    const int64_t at = block * kPartsPerBlock + part;
    uint64_t key = 0;
#pragma unroll
    for (int i = 0; i < kWarpsPerPart; ++i) key = larger(key, best[kind][part * kWarpsPerPart + i]);
    if (at < parts_of(a.vocab)) (kind == 0 ? s.raw_keys : s.allowed_keys)[at] = key;
  } else if (tid >= TND_WARP && tid < TND_WARP + 2) {
    const int kind = tid - TND_WARP;
    uint64_t key = 0;
#pragma unroll
    for (int i = 0; i < kReadWarps; ++i) key = larger(key, best[kind][i]);
    (kind == 0 ? s.raw_block_keys : s.allowed_blocks)[block] = key;
  }
}

// ---- sums

// A thread block sums BLOCKS blocks of tokens: that many chains of additions run side by side, but there are fewer
// thread blocks.
constexpr int kManyBlocks = 4;
constexpr int kManyRows = 5;  // rows from which on that is faster
template <int BLOCKS>
using BlockRoom = float[BLOCKS][kBlock + 1];  // blocks start on different banks

// Sum of a block's exponentials: lane j adds elements j, j + 16, ... and lanes fold 8, 4, 2, 1. By a whole warp.
TND_DEVICE float sum_of_block(const float* e) {
  constexpr int kLanes = 16, kBatch = 8;
  const int lane = static_cast<int>(lane_id()) % kLanes;
  float sum = 0.0f;
#pragma unroll 1
  for (int i = 0; i < kBlock; i += kLanes * kBatch) {
    float next[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) next[j] = e[i + j * kLanes + lane];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) sum += next[j];
  }
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2) sum += shfl_xor(sum, mask);
  return sum;
}

// v: the four logits of a thread in each of the blocks.
template <int BLOCKS>
TND_DEVICE void sum_exponentials(const float (&v)[BLOCKS][4], int64_t first_block, int vocab, float max,
                                 float temperature, BlockRoom<BLOCKS>& room, float* sums) {
  const int tid = static_cast<int>(threadIdx.x), warp = static_cast<int>(warp_id());
  __syncthreads();
#pragma unroll
  for (int j = 0; j < BLOCKS; ++j) {
    const int64_t token = (first_block + j) * kBlock + tid * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // zeros change no sum
      room[j][tid * 4 + i] = token + i < vocab ? weight_of(v[j][i], max, temperature) : 0.0f;
    }
  }
  __syncthreads();
  if (warp >= BLOCKS || first_block + warp >= blocks_of(vocab)) return;
  const float sum = sum_of_block(room[warp]);
  if (lane_id() == 0) sums[first_block + warp] = sum;
}

template <int BLOCKS>
TND_DEVICE void sum_choice_weights(const float (&v)[BLOCKS][4], int64_t first_block, const View& view,
                                   const ChooseRow& plan, float max, BlockRoom<BLOCKS>& room, const Scratch& s) {
  const int tid = static_cast<int>(threadIdx.x);
  const float temperature = temperature_of(plan), min_p = first_min_p(plan);
  __syncthreads();
#pragma unroll
  for (int j = 0; j < BLOCKS; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) room[j][tid * 4 + i] = v[j][i];
  }
  if (moves(plan)) {
#pragma unroll 1
    for (int j = 0; j < BLOCKS; ++j) {
      const int64_t first = (first_block + j) * kBlock, left = view.vocab - first;
      move_logits<kReadThreads>(plan, room[j], first, left < kBlock ? left : kBlock, nullptr);
    }
  }
#pragma unroll
  for (int j = 0; j < BLOCKS; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t token = (first_block + j) * kBlock + tid * 4 + i;
      float& x = room[j][tid * 4 + i];
      x = weight_in_choice(view, x, token, kKeyFinite, max, temperature, min_p);
    }
  }
  __syncthreads();
  if (tid >= BLOCKS || first_block + tid >= blocks_of(view.vocab)) return;
  const int64_t block = first_block + tid;
  s.weights[block] = sum_ascending(room[tid], s.runs + block * (kBlock / kRun));
}

template <int BLOCKS>
__global__ void __launch_bounds__(kReadThreads, 4) choose_sums_kernel(ChooseArgs a) {
  TND_SHARED(BlockRoom<BLOCKS>, room, [1]);
  let_next_start();
  if (static_cast<int>(blockIdx.y) >= rows_in_use(a.live, a.rows)) return;
  wait_for_previous();
  const int64_t first_block = int64_t{blockIdx.x} * BLOCKS, row = blockIdx.y, blocks = blocks_of(a.vocab);
  const ChooseRow& plan = a.plans[row];
  const bool wants_raw = (plan.wants & kWantRawSum) != 0, wants_top = (plan.wants & kWantTopSum) != 0;
  const bool wants_weights = takes_all(plan, a.vocab);
  if (!wants_raw && !wants_top && !wants_weights) return;
  const Scratch s = scratch_of(a, row);
  float v[BLOCKS][4];
#pragma unroll
  for (int j = 0; j < BLOCKS; ++j) {
    const int64_t token = (first_block + j) * kBlock + static_cast<int>(threadIdx.x) * 4;
    const float4 x = four_logits(a.logits + row * a.stride, token, a.vocab);
    v[j][0] = x.x, v[j][1] = x.y, v[j][2] = x.z, v[j][3] = x.w;
  }
  if (wants_raw || wants_top) {
    const float max = value_of(row_max<kReadThreads>(s.raw_block_keys, blocks));
    if (wants_raw) sum_exponentials<BLOCKS>(v, first_block, a.vocab, max, 1.0f, room[0], s.raw_sums);
    if (wants_top) sum_exponentials<BLOCKS>(v, first_block, a.vocab, max, plan.top_temperature, room[0], s.top_sums);
  }
  if (wants_weights) {
    const float max = value_of(row_max<kReadThreads>(s.allowed_blocks, blocks));
    sum_choice_weights<BLOCKS>(v, first_block, allowed_view(a, row), plan, max, room[0], s);
  }
}

}  // namespace

void launch_choose_sums(Stream& stream, const ChooseArgs& args) {
  const unsigned rows = static_cast<unsigned>(args.rows), blocks = static_cast<unsigned>(blocks_of(args.vocab));
  launch(stream, {.grid = {blocks, rows}, .block = {kReadThreads}, .overlap = true, .name = "choose_maxima"},
         choose_maxima_kernel, args);
  const bool many = args.rows >= kManyRows;
  const unsigned together = many ? kManyBlocks : 1;
  launch(stream,
         {.grid = {(blocks + together - 1) / together, rows},
          .block = {kReadThreads},
          .overlap = true,
          .name = "choose_sums"},
         many ? choose_sums_kernel<kManyBlocks> : choose_sums_kernel<1>, args);
}

}  // namespace tnd::gpu
