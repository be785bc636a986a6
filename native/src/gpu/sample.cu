// Three launches for all rows of a head:
//   maxima   best keys of every 256 and every 1024 tokens, raw and as a choice sees them
//   sums     sums of exponentials of every 1024 tokens, in the orders that docs/sampling.md fixes
//   choose   one block per row: merges, lists the top, draws
// A *key* is a logit and its token as one integer that orders by likelihood: descending logit, ties ascending token.
// The k most likely tokens are found without reading all logits again: a value that k of the 256-token maxima reach is
// reached by k logits, so only parts whose maximum reaches it are looked through; what reaches it is sorted. When too
// much does (large k, flat logits), a radix select finds the exact bound instead.
//
// Bound: two reads of the logits from the second-level cache by all processors, then latency of the one block: a bit a
// time for the bound, one read of some parts, chains of additions over the candidates or the blocks' sums.
#include <algorithm>

#include "gpu/sample.h"

namespace tnd::gpu {
namespace {

constexpr int kPart = 256;    // tokens of a maximum
constexpr int kBlock = 1024;  // tokens of a sum; of the draw, too
constexpr int kPartsPerBlock = kBlock / kPart;
constexpr int kRun = 64;       // of a block's running sum one is kept every so many tokens
constexpr int kThreads = 512;  // of choose
constexpr int kList = 2048;    // keys that are sorted at a time
static_assert(kMaxTop <= kList);
constexpr uint32_t kKeyMinusInf = 0x007FFFFFu;  // upper half of the key of -inf
constexpr float kMinTemperature = 0.001f;

constexpr int64_t parts_of(int64_t vocab) {
  return (vocab + kPart - 1) / kPart;
}
constexpr int64_t blocks_of(int64_t vocab) {
  return (vocab + kBlock - 1) / kBlock;
}

// Scratch of a row, cut into arrays.
struct Scratch {
  uint64_t *raw_keys, *allowed_keys;          // [parts]
  uint64_t *raw_block_keys, *allowed_blocks;  // [blocks]
  double* weights;                            // [blocks]
  double* runs;                               // [blocks][kBlock / kRun]: sum of the weights before a run
  float *raw_sums, *top_sums;                 // [blocks]
};
constexpr uint64_t row_scratch_bytes(int64_t vocab) {
  return static_cast<uint64_t>(parts_of(vocab) * 16 + blocks_of(vocab) * (16 + 8 + 8 * (kBlock / kRun) + 8));
}
TND_DEVICE Scratch scratch_of(const ChooseArgs& a, int64_t row) {
  const int64_t parts = parts_of(a.vocab), blocks = blocks_of(a.vocab);
  Scratch s;
  s.raw_keys = reinterpret_cast<uint64_t*>(static_cast<uint8_t*>(a.scratch) + row * row_scratch_bytes(a.vocab));
  s.allowed_keys = s.raw_keys + parts;
  s.raw_block_keys = s.allowed_keys + parts;
  s.allowed_blocks = s.raw_block_keys + blocks;
  s.weights = reinterpret_cast<double*>(s.allowed_blocks + blocks);
  s.runs = s.weights + blocks;
  s.raw_sums = reinterpret_cast<float*>(s.runs + blocks * (kBlock / kRun));
  s.top_sums = s.raw_sums + blocks;
  return s;
}

TND_DEVICE float minus_inf() {
  return __uint_as_float(0xFF800000u);
}

TND_DEVICE uint64_t key_of(float x, int64_t token) {
  if (x != x) x = minus_inf();
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 becomes +0
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(token));
}
TND_DEVICE float value_of(uint64_t key) {
  const uint32_t ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7FFFFFFFu : ~ordered);
}
TND_DEVICE int32_t token_of(uint64_t key) {
  return static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(key));
}
TND_DEVICE bool finite_key(uint64_t key) {
  return static_cast<uint32_t>(key >> 32) > kKeyMinusInf;
}

TND_DEVICE uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}
TND_DEVICE uint64_t warp_max_key(uint64_t key) {
#pragma unroll
  for (int mask = TND_WARP / 2; mask > 0; mask /= 2) key = larger(key, shfl_xor(key, mask));
  return key;
}

TND_DEVICE bool bit(const uint32_t* bits, int64_t i) {
  return (bits[i >> 5] >> (i & 31) & 1u) != 0;
}

// The logits of a row as a choice sees them.
struct View {
  const float* x;
  int vocab;
  const uint32_t* mask;   // nullptr = all allowed
  const uint32_t* never;  // nullptr = none forbidden
  __device__ float value(float v, int64_t token) const {
    if (mask != nullptr && !bit(mask, token)) v = minus_inf();
    if (never != nullptr && bit(never, token)) v = minus_inf();
    return v;
  }
  __device__ uint64_t key(int64_t token) const { return key_of(value(x[token], token), token); }
};
TND_DEVICE View raw_view(const ChooseArgs& a, int64_t row) {
  return View{a.logits + row * a.stride, a.vocab, nullptr, nullptr};
}
TND_DEVICE View allowed_view(const ChooseArgs& a, int64_t row) {
  return View{a.logits + row * a.stride, a.vocab, a.plans[row].mask, a.never};
}

// Four logits from `token`, a multiple of four, on; rows end at a multiple of 16, what lies behind the vocabulary is
// anything.
TND_DEVICE float4 four_logits(const float* x, int64_t token, int vocab) {
  return token < vocab ? *reinterpret_cast<const float4*>(x + token) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}
// Best key of four tokens, 0 of those behind the vocabulary.
TND_DEVICE uint64_t best_of_four(const View& view, const float (&v)[4], int64_t token) {
  uint64_t best = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (token + i < view.vocab) best = larger(best, key_of(view.value(v[i], token + i), token + i));
  }
  return best;
}

TND_DEVICE float weight_of(float x, float max, float temperature) {
  const float shifted = x - max;
  return exp_f32(temperature == 1.0f ? shifted : shifted / temperature);
}

// Whether a choice takes all tokens as candidates, none by rank.
TND_DEVICE bool takes_all(const ChooseRow& p, int vocab) {
  return (p.wants & kWantToken) != 0 && p.temperature > 0.0f && !(p.top_k > 0 && p.top_k < vocab);
}
TND_DEVICE float temperature_of(const ChooseRow& p) {
  return p.temperature > kMinTemperature ? p.temperature : kMinTemperature;
}
// Weights below it are dropped before the sum that comes first: that of top_p is over all.
TND_DEVICE float first_min_p(const ChooseRow& p) {
  return p.top_p < 1.0f ? 0.0f : p.min_p;
}

TND_DEVICE bool moves(const ChooseRow& p) {
  return p.n_bias + p.n_history > 0;
}
// Steps 1 and 2 of docs/sampling.md in place, for tokens [first, first + n), whose logits are at x; `undo` keeps what
// was there unless it is nullptr. By THREADS threads; begins and ends with a barrier.
template <int THREADS>
TND_OUTLINE void move_logits(const ChooseRow& p, float* x, int64_t first, int64_t n, float* undo) {
  __syncthreads();
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < p.n_bias; i += THREADS) {
    const int32_t token = p.bias_tokens[i];
    const int64_t at = token - first;
    if (at < 0 || at >= n || (i > 0 && p.bias_tokens[i - 1] == token)) continue;
    float v = x[at];
    if (undo != nullptr) undo[i] = v;
#pragma unroll 1
    for (int j = i; j < p.n_bias && p.bias_tokens[j] == token; ++j) v += p.bias_values[j];
    x[at] = v;
  }
  __syncthreads();
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < p.n_history; i += THREADS) {
    const TokenCount h = p.history[i];
    const int64_t at = h.token - first;
    if (at < 0 || at >= n) continue;
    float v = x[at];
    if (undo != nullptr) undo[p.n_bias + i] = v;
    if (p.repetition_penalty != 1.0f) v = v > 0.0f ? v / p.repetition_penalty : v * p.repetition_penalty;
    v -= p.frequency_penalty * static_cast<float>(h.count);
    v -= p.presence_penalty;
    x[at] = v;
  }
  __syncthreads();
}
TND_OUTLINE void undo_moves(const ChooseRow& p, float* x, int vocab) {
  __syncthreads();
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < p.n_history; i += kThreads) {
    x[p.history[i].token] = p.undo[p.n_bias + i];
  }
  __syncthreads();
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < p.n_bias; i += kThreads) {
    const int32_t token = p.bias_tokens[i];
    if (token < vocab && (i == 0 || p.bias_tokens[i - 1] != token)) x[token] = p.undo[i];
  }
  __syncthreads();
}

// ---- maxima: a block per 1024 tokens, four a thread

constexpr int kReadThreads = kBlock / 4;
constexpr int kReadWarps = kReadThreads / TND_WARP;
constexpr int kWarpsPerPart = kPart / 4 / TND_WARP;

// The four logits of a thread with bias and penalties; `room` is for a block's logits.
TND_DEVICE void move_four(const ChooseArgs& a, const ChooseRow& plan, int64_t first, float (&v)[4], float* room) {
  if (!moves(plan)) return;
  float* mine = room + threadIdx.x * 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) mine[i] = v[i];
  move_logits<kReadThreads>(plan, room, first, a.vocab - first < kBlock ? a.vocab - first : kBlock, nullptr);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = mine[i];
}

__global__ void __launch_bounds__(kReadThreads, 4) choose_maxima_kernel(ChooseArgs a) {
  TND_SHARED(float, room, [kBlock]);
  TND_SHARED(uint64_t, best, [2][kReadWarps]);
  let_next_start();
  wait_for_previous();
  const int64_t block = blockIdx.x, row = blockIdx.y, first = block * kBlock;
  const int tid = static_cast<int>(threadIdx.x);
  const Scratch s = scratch_of(a, row);
  const ChooseRow& plan = a.plans[row];
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

// Best key of a row, from its blocks, for all threads of the block.
template <int THREADS>
TND_OUTLINE uint64_t row_max(const uint64_t* keys, int64_t blocks) {
  TND_SHARED(uint64_t, of_warp, [THREADS / TND_WARP]);
  uint64_t best = 0;
#pragma unroll 1
  for (int64_t i = threadIdx.x; i < blocks; i += THREADS) best = larger(best, keys[i]);
  best = warp_max_key(best);
  __syncthreads();  // an earlier call may still be read
  if (lane_id() == 0) of_warp[warp_id()] = best;
  __syncthreads();
  const int lane = static_cast<int>(lane_id());
  return warp_max_key(lane < THREADS / TND_WARP ? of_warp[lane] : 0);
}

// Sums are of BLOCKS blocks of tokens a thread block: as many chains of additions run side by side, but fewer blocks.
constexpr int kManyBlocks = 4;
constexpr int kManyRows = 5;  // that make up for it
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
      float w = 0.0f;
      if (token < view.vocab) {
        const uint64_t key = key_of(view.value(room[j][tid * 4 + i], token), token);
        if (finite_key(key)) w = weight_of(value_of(key), max, temperature);
      }
      room[j][tid * 4 + i] = w < min_p ? 0.0f : w;
    }
  }
  __syncthreads();
  if (tid >= BLOCKS || first_block + tid >= blocks_of(view.vocab)) return;
  const int64_t block = first_block + tid;
  const float* weights = room[tid];
  double sum = 0;
#pragma unroll 1
  for (int i = 0; i < kBlock; i += 16) {
    if (i % kRun == 0) s.runs[block * (kBlock / kRun) + i / kRun] = sum;
    float next[16];
#pragma unroll
    for (int j = 0; j < 16; ++j) next[j] = weights[i + j];
#pragma unroll
    for (int j = 0; j < 16; ++j) sum += static_cast<double>(next[j]);
  }
  s.weights[block] = sum;
}

template <int BLOCKS>
__global__ void __launch_bounds__(kReadThreads, 4) choose_sums_kernel(ChooseArgs a) {
  TND_SHARED(BlockRoom<BLOCKS>, room, [1]);
  let_next_start();
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

// ---- choose: a block per row

struct Shared {
  uint64_t list[kList];
  uint64_t ids[kList];  // order by token; parts to look through; sums
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
  constexpr int kByRank = 256;  // up to here every key finds its place by counting the larger ones
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
      uint32_t reach = 0;  // what may reach the bound; few do
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

// A value that at least k of the parts' keys reach, and few more if that comes cheap: the smallest key of its logit.
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

// Writes the sums of the weights of candidates (finite keys >= low, weight >= min_p) of every block of 1024 tokens,
// each added ascending, and returns the ascending sum of those to all threads.
TND_OUTLINE double sum_weights(const View& view, const uint64_t* keys, uint64_t low, float max, float temperature,
                               float min_p, double* sums, Shared& s) {
  const int64_t blocks = blocks_of(view.vocab), parts = parts_of(view.vocab);
  __syncthreads();
#pragma unroll 1
  for (int64_t block = threadIdx.x; block < blocks; block += kThreads) {
    double sum = 0;
#pragma unroll 1
    for (int64_t part = block * kPartsPerBlock; part < (block + 1) * kPartsPerBlock && part < parts; ++part) {
      if (keys[part] < low) continue;
#pragma unroll 1
      for (int64_t token = part * kPart; token < (part + 1) * kPart && token < view.vocab; ++token) {
        const uint64_t key = view.key(token);
        if (key < low || !finite_key(key)) continue;
        const float w = weight_of(value_of(key), max, temperature);
        if (!(w < min_p)) sum += static_cast<double>(w);
      }
    }
    sums[block] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0;
#pragma unroll 1
    for (int64_t block = 0; block < blocks; ++block) total += sums[block];
    s.key = __builtin_bit_cast(uint64_t, total);
  }
  __syncthreads();
  const double total = __builtin_bit_cast(double, s.key);
  __syncthreads();
  return total;
}

// The draw of docs/sampling.md, step 9, over the same candidates; by one thread, -1 when there is none.
TND_OUTLINE int32_t draw(const View& view, const uint64_t* keys, uint64_t low, float max, float temperature,
                         float min_p, const double* sums, double target) {
  const int64_t blocks = blocks_of(view.vocab);
  const auto weight = [&](int64_t token) {
    const uint64_t key = view.key(token);
    if (key < low || !finite_key(key)) return 0.0f;
    const float w = weight_of(value_of(key), max, temperature);
    return w < min_p ? 0.0f : w;
  };
  double before = 0;
  int32_t last = -1;
#pragma unroll 1
  for (int64_t block = 0; block < blocks; ++block) {
    const double sum = sums[block];
    if (before + sum > target) {
      double running = 0;
#pragma unroll 1
      for (int64_t token = block * kBlock; token < (block + 1) * kBlock && token < view.vocab; ++token) {
        if (keys[token / kPart] < low) continue;
        const double w = static_cast<double>(weight(token));
        if (w == 0) continue;
        running += w;
        last = static_cast<int32_t>(token);
        if (before + running > target) return last;
      }
    }
    before += sum;
  }
  if (last >= 0) return last;
#pragma unroll 1
  for (int64_t token = view.vocab; token-- > 0;) {  // the target was rounded up to the total
    if (weight(token) > 0) return static_cast<int32_t>(token);
  }
  return -1;
}

// Lower bound of the candidates that top_p keeps out of the `limit` most likely ones.
TND_OUTLINE uint64_t nucleus(const View& view, const uint64_t* keys, int limit, float max, float temperature,
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
      // The kept ones end before `count`; reaching the batch's end without enough asks for the next batch.
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

// ---- candidates that are all in the list, descending

// How many of list[0 .. n) are finite: those in front.
TND_OUTLINE int finite_count(int n, Shared& s) {
  __syncthreads();
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    if (finite_key(s.list[i]) && (i + 1 == n || !finite_key(s.list[i + 1]))) s.count = i + 1;
  }
  __syncthreads();
  return s.count;
}

// Weights of list[0 .. n), and their order by token.
TND_OUTLINE void weigh_list(int n, float max, float temperature, Shared& s) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    s.weights[i] = weight_of(value_of(s.list[i]), max, temperature);
    s.ids[i] = s.list[i] << 32 | static_cast<uint32_t>(i);  // the lower half of a key falls with the token
  }
  sort_keys(s.ids, n);
}

// Sum of the weights of the first `kept` of n candidates, those below min_p left out: by blocks of 1024 tokens, each
// added ascending, and their sums ascending. Puts tokens (upper half) and weights, 0 of the left out, ascending into
// the list.
TND_OUTLINE double sum_list(int n, int kept, float min_p, Shared& s) {
  __syncthreads();
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    const uint32_t at = static_cast<uint32_t>(s.ids[i]), token = ~static_cast<uint32_t>(s.ids[i] >> 32);
    float w = s.weights[at];
    if (at >= static_cast<uint32_t>(kept) || w < min_p) w = 0.0f;
    s.list[i] = static_cast<uint64_t>(token) << 32 | __float_as_uint(w);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0, sum = 0;
    uint32_t block = 0;
#pragma unroll 4
    for (int i = 0; i < n; ++i) {
      const uint64_t at = s.list[i];
      const uint32_t of = static_cast<uint32_t>(at >> 32) / kBlock;
      if (of != block) total += sum, sum = 0, block = of;
      sum += static_cast<double>(__uint_as_float(static_cast<uint32_t>(at)));
    }
    s.sum = total + sum;
  }
  __syncthreads();
  return s.sum;
}

// The first token of the list of sum_list at which the running sum exceeds the target; by one thread.
TND_OUTLINE int32_t draw_list(int n, double target, const Shared& s) {
  double before = 0, sum = 0;
  uint32_t block = 0;
  int32_t last = -1;
#pragma unroll 4
  for (int i = 0; i < n; ++i) {
    const uint64_t at = s.list[i];
    const float w = __uint_as_float(static_cast<uint32_t>(at));
    const uint32_t token = static_cast<uint32_t>(at >> 32), of = token / kBlock;
    if (of != block) before += sum, sum = 0, block = of;
    sum += static_cast<double>(w);
    if (w > 0.0f) last = static_cast<int32_t>(token);
    if (w > 0.0f && before + sum > target) break;
  }
  return last;  // of all, where rounding left none
}

// How many of list[0 .. n) it takes to reach `wanted`; at least one. `reached`: whether they do.
TND_OUTLINE int count_nucleus(int n, double wanted, Shared& s, bool* reached) {
  __syncthreads();
  if (threadIdx.x == 0) {
    double sum = 0;
    int kept = 0;
    while (kept < n && sum < wanted) sum += static_cast<double>(s.weights[kept++]);
    s.count = kept;
    s.parts = sum < wanted ? 0 : 1;
  }
  __syncthreads();
  *reached = s.parts != 0;
  return s.count > 0 ? s.count : 1;
}

// ---- all tokens as candidates: sums are those of choose_sums_kernel

// Ascending sum of n doubles for all threads. Leaves them in `ids` if they fit.
TND_OUTLINE double add_ascending(const double* sums, int64_t n, Shared& s) {
  double* near = reinterpret_cast<double*>(s.ids);
  __syncthreads();
#pragma unroll 1
  for (int64_t i = threadIdx.x; i < n && i < kList; i += kThreads) near[i] = sums[i];
  __syncthreads();
  if (threadIdx.x == 0) {
    double total = 0;
#pragma unroll 8
    for (int i = 0; i < (n < kList ? n : kList); ++i) total += near[i];
#pragma unroll 1
    for (int64_t i = kList; i < n; ++i) total += sums[i];
    s.sum = total;
  }
  __syncthreads();
  return s.sum;
}

TND_OUTLINE int32_t draw_all(const View& view, float max, float temperature, float min_p, double u,
                             const Scratch& scratch, Shared& s) {
  const int64_t blocks = blocks_of(view.vocab);
  const double target = u * add_ascending(scratch.weights, blocks, s);
  const double* near = reinterpret_cast<const double*>(s.ids);
  const auto weight = [&](int64_t token) {
    if (token >= view.vocab) return 0.0f;
    const uint64_t key = view.key(token);
    const float w = finite_key(key) ? weight_of(value_of(key), max, temperature) : 0.0f;
    return w < min_p ? 0.0f : w;
  };
  __syncthreads();  // all have the sum
  if (threadIdx.x == 0) {
    double before = 0;
    int64_t block = 0;
#pragma unroll 1
    for (; block < blocks; ++block) {
      const double sum = block < kList ? near[block] : scratch.weights[block];
      if (before + sum > target) break;
      before += sum;
    }
    s.sum = before;
    s.count = static_cast<int>(block);
  }
  __syncthreads();
  const int64_t block = s.count;
  const double before = s.sum;
  __syncthreads();
  if (warp_id() == 0 && block < blocks) {
    constexpr int kRuns = kBlock / kRun;
    const int lane = static_cast<int>(lane_id());
    const double begin = lane < kRuns ? scratch.runs[block * kRuns + lane] : 0.0;
    const int run = __popc(ballot(lane > 0 && lane < kRuns && !(before + begin > target)));  // sums do not fall
    const int64_t first = block * kBlock + run * kRun;
#pragma unroll 1
    for (int i = lane; i < kRun; i += TND_WARP) s.weights[i] = weight(first + i);
    sync_warp();
    double sum = shfl(begin, run);
    if (lane == 0) {
      int32_t token = -1;
#pragma unroll 1
      for (int i = 0; i < kRun; ++i) {
        const float w = s.weights[i];
        if (w == 0.0f) continue;
        sum += static_cast<double>(w);
        token = static_cast<int32_t>(first + i);
        if (before + sum > target) break;
      }
      s.count = token;
    }
  } else if (block >= blocks && threadIdx.x == 0) {  // the target was rounded up to the total
    int64_t token = view.vocab;
    while (token-- > 0 && !(weight(token) > 0.0f)) {
    }
    s.count = static_cast<int>(token);
  }
  __syncthreads();
  return s.count;
}

// Token of a row whose logits carry their penalties; for all threads.
TND_OUTLINE int32_t choose_token(const ChooseArgs& a, int64_t row, uint64_t best, const Scratch& scratch, Shared& s) {
  constexpr int kFirst = 256;  // candidates that nearly always hold what top_p keeps
  const ChooseRow& plan = a.plans[row];
  const View view = allowed_view(a, row);
  const uint64_t* keys = scratch.allowed_keys;
  const int64_t blocks = blocks_of(a.vocab);
  const float max = value_of(best), temperature = temperature_of(plan);
  const int limit = plan.top_k > 0 && plan.top_k < a.vocab ? plan.top_k : a.vocab;
  const bool all = limit == a.vocab, by_mass = plan.top_p < 1.0f;
  if (all && !by_mass) return draw_all(view, max, temperature, plan.min_p, plan.draw, scratch, s);

  const double mass = all ? add_ascending(scratch.weights, blocks, s) : 0;
  const int longest = kList < a.vocab ? kList : a.vocab;
#pragma unroll 1
  for (int most = !all ? limit : kFirst < a.vocab ? kFirst : a.vocab; most <= longest; most = longest) {
    select_top(view, keys, most, s);
    const int n = finite_count(most, s);
    weigh_list(n, max, temperature, s);
    int kept = n;
    bool complete = true;
    if (by_mass) {
      const double total = all ? mass : sum_list(n, n, 0.0f, s);
      kept = count_nucleus(n, static_cast<double>(plan.top_p) * total, s, &complete);
      complete = complete || !all || n < most || most == a.vocab;
    }
    if (complete) {
      const double total = sum_list(n, kept, plan.min_p, s);
      if (threadIdx.x == 0) s.count = draw_list(n, plan.draw * total, s);
      __syncthreads();
      return s.count;
    }
    if (most == longest) break;
  }

  uint64_t low = all ? 0 : kth_key(view, ~uint64_t{0}, limit, s);
  if (by_mass) {
    const double total = all ? mass : sum_weights(view, keys, low, max, temperature, 0.0f, scratch.weights, s);
    const double wanted = static_cast<double>(plan.top_p) * total;
    const uint64_t kept = nucleus(view, keys, limit, max, temperature, wanted, s);
    low = kept > low ? kept : low;
  }
  const double total = sum_weights(view, keys, low, max, temperature, plan.min_p, scratch.weights, s);
  if (threadIdx.x == 0) {
    s.count = draw(view, keys, low, max, temperature, plan.min_p, scratch.weights, plan.draw * total);
  }
  __syncthreads();
  return s.count;
}

struct LogSoftmax {
  float max, log_sum, temperature;
  __device__ float operator()(float x) const {
    const float shifted = x - max;
    return (temperature == 1.0f ? shifted : shifted / temperature) - log_sum;
  }
};
// For all threads; sums of blocks are added ascending.
TND_OUTLINE LogSoftmax log_softmax(const float* sums, int64_t blocks, float max, float temperature, Shared& s) {
  float total = 0.0f;
#pragma unroll 1
  for (int64_t from = 0; from < blocks; from += kList) {
    const int n = static_cast<int>(blocks - from < kList ? blocks - from : kList);
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) s.weights[i] = sums[from + i];
    __syncthreads();
    if (threadIdx.x != 0) continue;
#pragma unroll 8
    for (int i = 0; i < n; ++i) total += s.weights[i];
  }
  if (threadIdx.x == 0) s.float_sum = log_f32(total);
  __syncthreads();
  return LogSoftmax{max, s.float_sum, temperature};
}

__global__ void __launch_bounds__(kThreads, 1) choose_kernel(ChooseArgs a) {
  TND_SHARED(Shared, shared, [1]);
  Shared& s = shared[0];
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x, blocks = blocks_of(a.vocab);
  const Scratch scratch = scratch_of(a, row);
  const ChooseRow& plan = a.plans[row];
  float* x = a.logits + row * a.stride;
  const float raw_max = value_of(row_max<kThreads>(scratch.raw_block_keys, blocks));

  LogSoftmax raw{};
  if ((plan.wants & kWantRawSum) != 0) raw = log_softmax(scratch.raw_sums, blocks, raw_max, 1.0f, s);
  if (plan.top_n > 0) {
    select_top(raw_view(a, row), scratch.raw_keys, plan.top_n, s);
    LogSoftmax of = raw;
    if ((plan.wants & kWantTopSum) != 0) of = log_softmax(scratch.top_sums, blocks, raw_max, plan.top_temperature, s);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < plan.top_n; i += kThreads) {
      plan.top_ids[i] = token_of(s.list[i]);
      plan.top_logprobs[i] = of(value_of(s.list[i]));
    }
  }

  int32_t token = -1;
  if ((plan.wants & kWantToken) != 0) {
    const uint64_t best = row_max<kThreads>(scratch.allowed_blocks, blocks);
    if (!finite_key(best)) {
      token = (plan.wants & kWantPlainId) != 0 ? 0 : -1;
    } else if (plan.temperature <= 0.0f) {
      token = token_of(best);
    } else {
      const bool moved = moves(plan);
      if (moved) move_logits<kThreads>(plan, x, 0, a.vocab, plan.undo);
      token = choose_token(a, row, best, scratch, s);
      if (moved) undo_moves(plan, x, a.vocab);
    }
  }

  if (threadIdx.x != 0) return;
  ChooseResult r{token, minus_inf(), 0.0f, 0};
  if ((plan.wants & kWantLogprob) != 0 && token >= 0) r.logprob = raw(x[token]);
  if ((plan.wants & kWantScore) != 0) r.score = raw(x[plan.score_token]);
  *plan.result = r;
}

}  // namespace

uint64_t choose_scratch_bytes(int64_t vocab, int rows) {
  return static_cast<uint64_t>(rows) * row_scratch_bytes(vocab);
}

void launch_choose(Stream& stream, const ChooseArgs& args) {
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
  launch(stream, {.grid = {rows}, .block = {kThreads}, .overlap = true, .name = "choose"}, choose_kernel, args);
}

}  // namespace tnd::gpu
