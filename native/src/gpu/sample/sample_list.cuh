// The list of the most likely tokens of a row, in shared memory: by one block of kThreads threads.
#pragma once

#include "gpu/sample/sample_device.cuh"

namespace tnd::gpu {

inline constexpr int kThreads = 512;  // of choose_kernel
inline constexpr int kList = 2048;    // keys that are sorted at a time
static_assert(kMaxTop <= kList);

struct Shared {
  uint64_t list[kList];
  uint64_t ids[kList];  // order by token; parts to search; sums
  float weights[kList];
  uint32_t histogram[256];
  uint32_t counts[32];
  uint64_t key;
  double sum;
  float float_sum;
  int count, parts;
};

TND_DEVICE int power_of_two(int n) {
  int p = 1;
  while (p < n) p *= 2;
  return p;
}

// Sorts the distinct keys list[0 .. n) descending. Begins and ends with a barrier.
TND_OUTLINE void sort_keys(uint64_t* list, int n) {
  constexpr int kByRank = 256;  // up to this many, a key's place is found by counting the larger ones
  const int tid = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (n <= kByRank) {
    const uint64_t key = tid < n ? list[tid] : 0;
    int rank = 0;
    if (tid < n) {
#pragma unroll 8
      for (int i = 0; i < n; ++i) rank += list[i] > key ? 1 : 0;
    }
    __syncthreads();
    if (tid < n) list[rank] = key;
    __syncthreads();
    return;
  }
  const int all = power_of_two(n);
#pragma unroll 1
  for (int i = n + tid; i < all; i += kThreads) list[i] = 0;
#pragma unroll 1
  for (int k = 2; k <= all; k *= 2) {
#pragma unroll 1
    for (int j = k / 2; j > 0; j /= 2) {
      __syncthreads();
#pragma unroll 1
      for (int i = tid; i < all; i += kThreads) {
        const int other = i ^ j;
        if (other < i) continue;
        const uint64_t p = list[i], q = list[other];
        if ((p < q) == ((i & k) == 0)) {
          list[i] = q;
          list[other] = p;
        }
      }
    }
  }
  __syncthreads();
}

// Puts the keys in [low, high) into the list, in any order; returns how many there are (more than kList are dropped).
TND_OUTLINE int collect(const View& view, const uint64_t* keys, uint64_t low, uint64_t high, Shared& s) {
  const int parts = static_cast<int>(parts_of(view.vocab)), tid = static_cast<int>(threadIdx.x);
  int32_t* found = reinterpret_cast<int32_t*>(s.ids);
  __syncthreads();
  if (tid == 0) s.count = 0;
#pragma unroll 1
  for (int from = 0; from < parts; from += kList) {
    if (tid == 0) s.parts = 0;
    __syncthreads();
#pragma unroll 1
    for (int part = from + tid; part < parts && part < from + kList; part += kThreads) {
      if (keys[part] >= low) found[atomicAdd(&s.parts, 1)] = part;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(warp_id()); i < s.parts; i += kThreads / TND_WARP) {
      const int64_t first = int64_t{found[i]} * kPart + lane_id() * 4;
      float4 x[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) x[half] = four_logits(view.x, first + half * (kPart / 2), view.vocab);
      uint32_t reach = 0;  // which of the lane's eight logits may reach the bound; few do
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float v[4] = {x[half].x, x[half].y, x[half].z, x[half].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (key_of(v[j], 0) >> 32 >= low >> 32) reach |= 1u << (half * 4 + j);
        }
      }
#pragma unroll 1
      for (; reach != 0; reach &= reach - 1) {
        const int j = __ffs(static_cast<int>(reach)) - 1;
        const int64_t token = first + j / 4 * (kPart / 2) + j % 4;
        if (token >= view.vocab) continue;
        const uint64_t key = view.key(token);
        if (key < low || key >= high) continue;
        const int at = atomicAdd(&s.count, 1);
        if (at < kList) s.list[at] = key;
      }
    }
    __syncthreads();
  }
  return s.count;
}

// The smallest key of a logit that at least k of the parts' keys reach, and few more where that costs little.
// 1 <= k <= parts <= kList.
TND_OUTLINE uint64_t bound_of(const uint64_t* keys, int parts, int k, Shared& s) {
  constexpr int kMine = kList / kThreads;
  const int tid = static_cast<int>(threadIdx.x), enough = 2 * k > 64 ? 2 * k : 64;
  uint32_t mine[kMine];
#pragma unroll
  for (int j = 0; j < kMine; ++j) {
    const int i = j * kThreads + tid;
    mine[j] = i < parts ? static_cast<uint32_t>(keys[i] >> 32) : 0;
  }
  __syncthreads();
  if (tid < 32) s.counts[tid] = 0;
  __syncthreads();
  uint32_t bound = 0;
#pragma unroll 1
  for (int b = 31; b >= 0; --b) {
    const uint32_t candidate = bound | 1u << b;
    uint32_t reach = 0;
#pragma unroll
    for (int j = 0; j < kMine; ++j) reach += static_cast<uint32_t>(__popc(ballot(mine[j] >= candidate)));
    if (lane_id() == 0 && reach > 0) atomicAdd(&s.counts[b], reach);
    __syncthreads();
    const int all = static_cast<int>(s.counts[b]);
    if (all >= k) bound = candidate;
    if (all >= k && all <= enough) break;
  }
  return static_cast<uint64_t>(bound) << 32;
}

// The k-th largest key below `high`, of which there are at least k: eight bits a pass.
TND_OUTLINE uint64_t kth_key(const View& view, uint64_t high, int k, Shared& s) {
  uint64_t prefix = 0, known = 0;
#pragma unroll 1
  for (int shift = 56; shift >= 0; shift -= 8) {
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < 256; i += kThreads) s.histogram[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (int64_t token = threadIdx.x; token < view.vocab; token += kThreads) {
      const uint64_t key = view.key(token);
      if (key < high && (key & known) == prefix) atomicAdd(&s.histogram[key >> shift & 255u], 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int left = k;
      int digit = 255;
#pragma unroll 1
      for (; digit > 0 && left > static_cast<int>(s.histogram[digit]); --digit) {
        left -= static_cast<int>(s.histogram[digit]);
      }
      s.key = prefix | static_cast<uint64_t>(digit) << shift;
      s.count = left;
    }
    __syncthreads();
    prefix = s.key;
    k = s.count;
    known |= uint64_t{255} << shift;
  }
  return prefix;
}

// Leaves the k largest keys at the front of the list, descending. 1 <= k <= min(kList, vocab).
TND_OUTLINE void select_top(const View& view, const uint64_t* keys, int k, Shared& s) {
  const int parts = static_cast<int>(parts_of(view.vocab));
  int count = kList + 1;
  if (k <= parts && parts <= kList) count = collect(view, keys, bound_of(keys, parts, k, s), ~uint64_t{0}, s);
  if (count > kList) count = collect(view, keys, kth_key(view, ~uint64_t{0}, k, s), ~uint64_t{0}, s);
  sort_keys(s.list, count);
}

}  // namespace tnd::gpu
