// The candidates that top_p keeps where they do not fit the list: rows with flat logits.
#pragma once

#include "gpu/sample/sample_list.cuh"

namespace tnd::gpu {

// The definition: adds the `limit` most likely candidates in their order until the sum reaches `wanted`; returns the
// key of the last.
TND_OUTLINE uint64_t nucleus_in_order(const View& view, const uint64_t* keys, int limit, float max, float temperature,
                                      double wanted, Shared& s) {
  constexpr int kBatch = 1024;
  uint64_t high = ~uint64_t{0};
  double sum = 0;
#pragma unroll 1
  for (int taken = 0;;) {
    const int batch = limit - taken < kBatch ? limit - taken : kBatch;
    if (taken == 0) {
      select_top(view, keys, batch, s);
    } else {
      collect(view, keys, kth_key(view, high, batch, s), high, s);
      sort_keys(s.list, batch);
    }
    if (threadIdx.x == 0) {
      // The kept candidates end before `count`. If the batch ends before the sum is reached, the next batch follows.
      int kept = 0;
      while (kept < batch && finite_key(s.list[kept]) && sum < wanted) {
        sum += static_cast<double>(weight_of(value_of(s.list[kept]), max, temperature));
        ++kept;
      }
      const bool more = sum < wanted && kept == batch && taken + batch < limit;
      s.count = more ? 1 : 0;
      const int at = taken == 0 && kept == 0 ? 1 : kept;
      s.key = at > 0 ? s.list[at - 1] : high;
    }
    __syncthreads();
    const uint64_t low = s.key;
    const bool more = s.count != 0;
    __syncthreads();
    if (!more) return low;
    taken += batch;
    high = low;
  }
}

// Sums of N integers over all threads, for all threads. Begins and ends with a barrier.
template <int N>
TND_DEVICE void add_over_block(uint64_t (&sum)[N], Shared& s) {
  uint64_t* const of_warps = s.ids;  // [warps][N]
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int mask = TND_WARP / 2; mask > 0; mask /= 2) sum[i] += shfl_xor(sum[i], mask);
    if (lane_id() == 0) of_warps[warp_id() * N + i] = sum[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) {
    sum[i] = 0;
#pragma unroll 1
    for (int warp = 0; warp < kThreads / TND_WARP; ++warp) sum[i] += of_warps[warp * N + i];
  }
  __syncthreads();
}

// nucleus_by_value returns the same key as nucleus_in_order, without sorting: it divides the interval of values that
// holds the last kept candidate into eight parts a pass, by the integer sums of the values above. Only candidates whose
// key is at least `least` count; `total` is the sum of their weights. False if rounding could decide: the definition's
// sum of n weights differs from the true one by at most n 2^-53 of the total, the integer sum by at most n units.
TND_OUTLINE bool nucleus_by_value(const View& view, const uint64_t* keys, uint64_t least, float max, float temperature,
                                  double wanted, double total, uint64_t* low, Shared& s) {
  constexpr int kCuts = 7;
  const uint64_t n = static_cast<uint64_t>(view.vocab);
  const uint64_t goal = static_cast<uint64_t>(wanted * static_cast<double>(kWeightUnits));
  const uint64_t doubt = 2 * n + static_cast<uint64_t>(static_cast<double>(n) * total * 0x1p-8);
  // Calls work(key) for the candidates from a value on.
  const auto each = [&](uint32_t from, const auto& work) {
    const uint64_t bound = larger(static_cast<uint64_t>(from) << 32, least);
    float4 x = four_logits(view.x, int64_t{threadIdx.x} * 4, view.vocab);
#pragma unroll 1
    for (int64_t first = int64_t{threadIdx.x} * 4; first < view.vocab; first += kThreads * 4) {
      const float v[4] = {x.x, x.y, x.z, x.w};
      x = four_logits(view.x, first + kThreads * 4, view.vocab);  // read ahead
      if (keys[first / kPart] < bound) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint64_t key = key_of(view.value(v[i], first + i), first + i);
        if (first + i < view.vocab && key >= bound) work(key);
      }
    }
  };
  // Values are upper halves of keys. The weights of values >= `end` sum to `above`, less than the goal; those of values
  // >= `from` reach it.
  if (goal == 0 || n >= kMostTokens) return false;
  uint32_t from = static_cast<uint32_t>(larger(least >> 32, kKeyMinusInf + uint64_t{1}));
  uint32_t end = static_cast<uint32_t>(key_of(max, 0) >> 32) + 1;
  uint64_t above = 0;
#pragma unroll 1
  while (end - from > 1) {
    const uint32_t step = (end - from + kCuts) / (kCuts + 1);
    uint64_t sum[kCuts] = {};  // of values not below from + (i + 1) step, and below end
    each(from + step, [&](uint64_t key) {
      const uint32_t value = static_cast<uint32_t>(key >> 32);
      if (value >= end) return;
      const uint64_t w = units_of(weight_of(value_of(key), max, temperature));
      const uint32_t place = value - from;
#pragma unroll
      for (int i = 0; i < kCuts; ++i) sum[i] += place >= (i + uint32_t{1}) * step ? w : 0;
    });
    add_over_block(sum, s);
    uint32_t next_end = end;
    uint64_t next_above = above;
    int reached = kCuts;  // how many cuts are not above the last kept value
#pragma unroll
    for (int i = kCuts - 1; i >= 0; --i) {
      if (above + sum[i] >= goal) continue;
      reached = i;
      next_end = from + (i + 1) * step < end ? from + (i + 1) * step : end;
      next_above = above + sum[i];
    }
    from += static_cast<uint32_t>(reached) * step;
    end = next_end, above = next_above;
    if (from >= end) return false;
  }
  // One value is left; of the tokens that have it, the lower ones are kept.
  uint64_t alike[1] = {};
  each(from, [&](uint64_t key) { alike[0] += key >> 32 == from ? 1 : 0; });
  add_over_block(alike, s);
  const uint64_t w = units_of(weight_of(value_of(static_cast<uint64_t>(from) << 32), max, temperature));
  if (w == 0 || alike[0] == 0 || goal <= above) return false;
  const uint64_t kept = (goal - above + w - 1) / w;
  if (kept > alike[0] || above + (kept - 1) * w + doubt >= goal || above + kept * w < goal + doubt) return false;
  *low = static_cast<uint64_t>(from) << 32;
  if (kept < alike[0]) *low = kth_key(view, static_cast<uint64_t>(from + 1) << 32, static_cast<int>(kept), s);
  return true;
}

// Lower bound of the candidates that top_p keeps out of the `limit` most likely ones, whose keys are at least `least`
// and whose weights sum up to `total`.
TND_DEVICE uint64_t nucleus(const View& view, const uint64_t* keys, int limit, uint64_t least, float max,
                            float temperature, double wanted, double total, Shared& s) {
  uint64_t low = 0;
  if (nucleus_by_value(view, keys, least, max, temperature, wanted, total, &low, s)) return low;
  return nucleus_in_order(view, keys, limit, max, temperature, wanted, s);
}

}  // namespace tnd::gpu
