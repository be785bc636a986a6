// The tokens that top_p keeps of all tokens, by all processors (sample_device.cuh). The definition adds candidates in
// their order. Here the last value that is kept is found by integer sums over values that share their highest bits: 11,
// 11 and 10 of them. Where rounding of the definition's sums could decide, or only some of the tokens that share the
// value are kept, choose_kernel follows the definition.
//
// Bound: four reads of the logits from the second-level cache, and the chain of a block's additions.
#include "gpu/sample/sample_device.cuh"

namespace tnd::gpu {
namespace {

constexpr int kNucleusWarps = kReadThreads / TND_WARP;
constexpr int kBinsPerThread = kBins / kReadThreads;

struct Room {
  float logits[kBlock];
  Units bins[kBins];
  uint64_t of_warps[kNucleusWarps];
  uint64_t above;
  int bin;
};

// The bin in which the sum from the highest bin on reaches the goal, -1 if none does, and the sum of those above it.
// By all threads.
TND_DEVICE int reaching_bin(const Units* bins, uint64_t above, uint64_t goal, Room& room) {
  const int tid = static_cast<int>(threadIdx.x), lane = static_cast<int>(lane_id());
  uint64_t mine[kBinsPerThread], sum = 0;  // thread 0 has the highest bins
  const int first = kBins - 1 - tid * kBinsPerThread;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    const Units u = bins[first - i];
    mine[i] = static_cast<uint64_t>(u.high) << 32 | u.low;
    sum += mine[i];
  }
  uint64_t before = sum;  // sum of the lanes up to this one
#pragma unroll
  for (int step = 1; step < TND_WARP; step *= 2) {
    const uint64_t other = shfl(before, lane >= step ? lane - step : lane);
    if (lane >= step) before += other;
  }
  __syncthreads();
  if (lane == TND_WARP - 1) room.of_warps[warp_id()] = before;
  if (tid == 0) room.bin = -1;
  __syncthreads();
  above += before - sum;
#pragma unroll 1
  for (int warp = 0; warp < static_cast<int>(warp_id()); ++warp) above += room.of_warps[warp];
  if (above < goal && above + sum >= goal) {
    int i = 0;
#pragma unroll
    for (int j = 0; j < kBinsPerThread - 1; ++j) {
      if (i == j && above + mine[j] < goal) above += mine[j], ++i;
    }
    room.bin = first - i;
    room.above = above;
  }
  __syncthreads();
  return room.bin;
}

// The result of `pass`, which has filled its bins; by all threads of every block, so that none waits for another.
TND_OUTLINE Narrowed narrowed_by(int pass, const Scratch& s, Room& room) {
  Narrowed now = s.narrowed[pass];
  if (now.open == 0) return now;
  const int bin = reaching_bin(s.bins + pass * kBins, now.above, now.goal, room);
  if (bin < 0) {
    now.open = 0;
    return now;
  }
  now.above = room.above;
  now.bits |= static_cast<uint32_t>(bin) << narrow_shift(pass);
  return now;
}

// The four logits of a thread in a block of tokens, with bias and penalties.
TND_DEVICE void read_four(const ChooseArgs& a, const ChooseRow& plan, int64_t row, int64_t block, float (&v)[4],
                          Room& room) {
  const int64_t first = block * kBlock, token = first + static_cast<int>(threadIdx.x) * 4;
  const float4 x = four_logits(a.logits + row * a.stride, token, a.vocab);
  v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
  move_four(a, plan, first, v, room.logits);
}

__global__ void __launch_bounds__(kReadThreads, 4) choose_narrow_kernel(ChooseArgs a, int pass) {
  TND_SHARED(Room, shared, [1]);
  Room& room = shared[0];
  let_next_start();
  const int64_t row = blockIdx.y, blocks = blocks_of(a.vocab);
  if (static_cast<int>(row) >= rows_in_use(a.live, a.rows)) return;
  wait_for_previous();
  const ChooseRow& plan = a.plans[row];
  if (!takes_nucleus(plan, a.vocab)) return;
  const int tid = static_cast<int>(threadIdx.x);
  const Scratch s = scratch_of(a, row);
  const Narrowed before = pass == 0 ? s.narrowed[0] : narrowed_by(pass - 1, s, room);
  if (pass > 0 && blockIdx.x == 0 && tid == 0) s.narrowed[pass] = before;
  if (before.open == 0) return;
#pragma unroll 1
  for (int i = tid; i < kBins; i += kReadThreads) room.bins[i] = Units{0, 0};
  const float max = value_of(row_max<kReadThreads>(s.allowed_blocks, blocks)), temperature = temperature_of(plan);
  const View view = allowed_view(a, row);
  const int shift = narrow_shift(pass), known = pass == 0 ? 32 : narrow_shift(pass - 1);
#pragma unroll 1
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    float v[4];
    read_four(a, plan, row, block, v, room);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t token = block * kBlock + tid * 4 + i;
      if (token >= a.vocab) continue;
      const uint64_t key = key_of(view.value(v[i], token), token);
      const uint32_t value = static_cast<uint32_t>(key >> 32);
      if (!finite_key(key) || (pass > 0 && value >> known != before.bits >> known)) continue;
      const uint64_t units = units_of(weight_of(value_of(key), max, temperature));
      if (units > 0) add_units(&room.bins[value >> shift & narrow_mask(pass)], units);
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int i = tid; i < kBins; i += kReadThreads) {
    const Units u = room.bins[i];
    if ((u.low | u.high) != 0) add_units(&s.bins[pass * kBins + i], static_cast<uint64_t>(u.high) << 32 | u.low);
  }
}

// Says whether the integers decide, and all tokens that have the value are kept. The definition's sum of n weights
// differs from the true one by at most n 2^-53 of the total, the integer sum by at most n units.
TND_DEVICE bool is_decided(const Narrowed& last, uint64_t alike_units, float max, float temperature, int vocab) {
  const uint64_t n = static_cast<uint64_t>(vocab);
  const uint64_t doubt = 2 * n + static_cast<uint64_t>(static_cast<double>(n) * last.total * 0x1p-8);
  const uint64_t w = units_of(weight_of(value_of(static_cast<uint64_t>(last.bits) << 32), max, temperature));
  if (w == 0) return false;
  const uint64_t alike = alike_units / w, kept = (last.goal - last.above + w - 1) / w;
  return kept == alike && last.above + (kept - 1) * w + doubt < last.goal && last.above + kept * w >= last.goal + doubt;
}

__global__ void __launch_bounds__(kReadThreads, 4) choose_kept_kernel(ChooseArgs a) {
  TND_SHARED(Room, shared, [1]);
  Room& room = shared[0];
  let_next_start();
  const int64_t row = blockIdx.y, blocks = blocks_of(a.vocab);
  if (static_cast<int>(row) >= rows_in_use(a.live, a.rows)) return;
  wait_for_previous();
  const ChooseRow& plan = a.plans[row];
  if (!takes_nucleus(plan, a.vocab)) return;
  const int tid = static_cast<int>(threadIdx.x);
  const Scratch s = scratch_of(a, row);
  const float max = value_of(row_max<kReadThreads>(s.allowed_blocks, blocks)), temperature = temperature_of(plan);
  Narrowed last = narrowed_by(kNarrowPasses - 1, s, room);
  if (last.open != 0) {
    const Units alike = s.bins[(kNarrowPasses - 1) * kBins + static_cast<int>(last.bits & narrow_mask(2))];
    const uint64_t units = static_cast<uint64_t>(alike.high) << 32 | alike.low;
    last.open = is_decided(last, units, max, temperature, a.vocab) ? 1 : 0;
  }
  if (blockIdx.x == 0 && tid == 0) s.narrowed[kNarrowPasses] = last;
  if (last.open == 0) return;
  const View view = allowed_view(a, row);
#pragma unroll 1
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    float v[4];
    __syncthreads();  // the last block's weights are read
    read_four(a, plan, row, block, v, room);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t token = block * kBlock + tid * 4 + i;
      room.logits[tid * 4 + i] = weight_in_choice(view, v[i], token, last.bits, max, temperature, plan.min_p);
    }
    __syncthreads();
    if (tid == 0) s.weights[block] = sum_ascending(room.logits, s.runs + block * (kBlock / kRun));
  }
}

}  // namespace

void launch_choose_nucleus(Stream& stream, const ChooseArgs& args) {
  const unsigned rows = static_cast<unsigned>(args.rows), blocks = static_cast<unsigned>(blocks_of(args.vocab));
  // Every block reads the bins of the pass before, so with many rows there are fewer blocks.
  const unsigned grid = args.rows < 5 ? blocks : (blocks + 3) / 4;
  for (int pass = 0; pass < kNarrowPasses; ++pass) {
    launch(stream, {.grid = {grid, rows}, .block = {kReadThreads}, .overlap = true, .name = "choose_narrow"},
           choose_narrow_kernel, args, pass);
  }
  launch(stream, {.grid = {blocks, rows}, .block = {kReadThreads}, .overlap = true, .name = "choose_kept"},
         choose_kept_kernel, args);
}

}  // namespace tnd::gpu
