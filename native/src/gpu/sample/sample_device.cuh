// Choices of tokens in kernels: the parts that sample_sums.cu, sample_nucleus.cu and sample.cu share. Launches for all
// rows of a head:
//   maxima   best keys of every 256 and every 1024 tokens, raw and as a choice sees them
//   sums     sums of exponentials of every 1024 tokens, in the orders that docs/sampling.md fixes
//   likely where top_p cuts candidates that top_k does not limit: the choice, if a short list holds all that top_p
//   keeps narrow else, three times: the last value that top_p keeps
//   kept     sums of the weights that are left, in the same order
//   choose   one block per row: merges, lists the top, draws
// A *key* is a logit and its token as one integer that orders by likelihood: descending logit, ties ascending token.
// The k most likely tokens are found without reading all logits again. A value that k of the 256-token maxima reach is
// reached by at least k logits, so only parts whose maximum reaches it are searched, and the logits that reach it are
// sorted. When too many do (large k, flat logits), a radix select finds the exact bound instead.
//
// Bound: two reads of the logits from the second-level cache by all processors, then the latency of one block: finding
// the bound bit by bit, one read of some parts, chains of additions over the candidates or the blocks' sums.
#pragma once

#include "gpu/sample/sample.h"

namespace tnd::gpu {

inline constexpr int kPart = 256;    // tokens of a maximum
inline constexpr int kBlock = 1024;  // tokens of a sum; of the draw, too
inline constexpr int kPartsPerBlock = kBlock / kPart;
inline constexpr int kRun = 64;                        // tokens between kept values of a running sum
inline constexpr uint32_t kKeyMinusInf = 0x007FFFFFu;  // upper half of the key of -inf
inline constexpr float kMinTemperature = 0.001f;

constexpr int64_t parts_of(int64_t vocab) {
  return (vocab + kPart - 1) / kPart;
}
constexpr int64_t blocks_of(int64_t vocab) {
  return (vocab + kBlock - 1) / kBlock;
}

// The last value that top_p keeps is found by its bits, from the highest on. Each pass sums the weights by the
// next bits.
inline constexpr int kNarrowPasses = 3;
inline constexpr int kBins = 2048;
TND_DEVICE int narrow_shift(int pass) {
  return pass == 0 ? 21 : pass == 1 ? 10 : 0;
}
TND_DEVICE uint32_t narrow_mask(int pass) {
  return pass == kNarrowPasses - 1 ? 1023u : 2047u;
}

// Weights as integers, so that sums are the same in any order: multiples of 2^-44, rounded down. The largest weight is
// 1 and there are fewer than kMostTokens.
inline constexpr float kWeightUnits = 0x1p44f;
inline constexpr uint64_t kMostTokens = 1 << 19;
TND_DEVICE uint64_t units_of(float weight) {
  return static_cast<uint64_t>(weight * kWeightUnits);
}
// Integer sum that many threads add to.
struct Units {
  uint32_t low, high;
};
TND_DEVICE void add_units(Units* sum, uint64_t units) {
  const uint32_t low = static_cast<uint32_t>(units);
  const uint32_t carry = low + atomicAdd(&sum->low, low) < low ? 1 : 0;
  const uint32_t high = static_cast<uint32_t>(units >> 32) + carry;
  if (high != 0) atomicAdd(&sum->high, high);
}

// The result of a pass about the last value that top_p keeps.
struct Narrowed {
  double total;    // of all candidates' weights
  uint64_t goal;   // units that are kept
  uint64_t above;  // units of the values above all that begin with these bits
  uint32_t bits;   // of the value, from the highest on
  int32_t open;    // 0 = no more passes: the token is known, or the definition decides; else what is kept after the
                   // last pass are the candidates from `bits` on
  int32_t token;   // before the first pass: the choice, -1 if it is not known
};

// Scratch of a row, cut into arrays.
struct Scratch {
  uint64_t *raw_keys, *allowed_keys;          // [parts]
  uint64_t *raw_block_keys, *allowed_blocks;  // [blocks]
  double* weights;                            // [blocks]
  double* runs;                               // [blocks][kBlock / kRun]: sum of the weights before a run
  Narrowed* narrowed;                         // [passes + 1], before and after them
  Units* bins;                                // [passes][kBins]
  float *raw_sums, *top_sums;                 // [blocks]
};
constexpr uint64_t row_scratch_bytes(int64_t vocab) {
  return static_cast<uint64_t>(parts_of(vocab) * 16 + blocks_of(vocab) * (16 + 8 + 8 * (kBlock / kRun) + 8)) +
         (kNarrowPasses + 1) * sizeof(Narrowed) + kNarrowPasses * kBins * sizeof(Units);
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
  s.narrowed = reinterpret_cast<Narrowed*>(s.runs + blocks * (kBlock / kRun));
  s.bins = reinterpret_cast<Units*>(s.narrowed + kNarrowPasses + 1);
  s.raw_sums = reinterpret_cast<float*>(s.bins + kNarrowPasses * kBins);
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
inline constexpr uint32_t kKeyFinite = kKeyMinusInf + 1;  // the least of a finite logit
TND_DEVICE bool finite_key(uint64_t key) {
  return static_cast<uint32_t>(key >> 32) >= kKeyFinite;
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

// The logits of a row, with masks, as a choice uses them.
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

// Four logits from `token`, a multiple of four, on; rows end at a multiple of 16, and values after the vocabulary
// are unspecified.
TND_DEVICE float4 four_logits(const float* x, int64_t token, int vocab) {
  return token < vocab ? *reinterpret_cast<const float4*>(x + token) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}
// Best key of four tokens; those after the vocabulary count as 0.
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

// Says whether all tokens are candidates: top_k limits none.
TND_DEVICE bool takes_all(const ChooseRow& p, int vocab) {
  return (p.wants & kWantToken) != 0 && p.temperature > 0.0f && !(p.top_k > 0 && p.top_k < vocab);
}
// Says whether top_p selects candidates from all tokens.
TND_DEVICE bool takes_nucleus(const ChooseRow& p, int vocab) {
  return takes_all(p, vocab) && p.top_p < 1.0f;
}
TND_DEVICE float temperature_of(const ChooseRow& p) {
  return p.temperature > kMinTemperature ? p.temperature : kMinTemperature;
}
// The min_p of the first sum: weights below it are dropped before. It is 0 with top_p, whose sum is over all.
TND_DEVICE float first_min_p(const ChooseRow& p) {
  return p.top_p < 1.0f ? 0.0f : p.min_p;
}

TND_DEVICE bool moves(const ChooseRow& p) {
  return p.n_bias + p.n_history > 0;
}
// Steps 1 and 2 of docs/sampling.md in place, for tokens [first, first + n), whose logits are at x; `undo` gets the old
// values unless it is nullptr. By THREADS threads; begins and ends with a barrier.
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

// Threads that read a block of tokens, four each.
inline constexpr int kReadThreads = kBlock / 4;

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

// Weight of a token, with logit x, in a choice among the values whose keys have an upper half of at least `least`; 0 if
// it is left out. `token` may lie after the vocabulary.
TND_DEVICE float weight_in_choice(const View& view, float x, int64_t token, uint32_t least, float max,
                                  float temperature, float min_p) {
  float w = 0.0f;
  if (token < view.vocab) {
    const uint64_t key = key_of(view.value(x, token), token);
    if (static_cast<uint32_t>(key >> 32) >= least) w = weight_of(value_of(key), max, temperature);
  }
  return w < min_p ? 0.0f : w;
}

// Ascending sum of a block's weights; stores the running sums at the beginnings of runs. By one thread.
TND_DEVICE double sum_ascending(const float* weights, double* runs) {
  double sum = 0;
#pragma unroll 1
  for (int i = 0; i < kBlock; i += 16) {
    if (i % kRun == 0) runs[i / kRun] = sum;
    float next[16];
#pragma unroll
    for (int j = 0; j < 16; ++j) next[j] = weights[i + j];
#pragma unroll
    for (int j = 0; j < 16; ++j) sum += static_cast<double>(next[j]);
  }
  return sum;
}

// The launches before the choice, in sample_sums.cu and sample_nucleus.cu.
void launch_choose_sums(Stream& stream, const ChooseArgs& args);
void launch_choose_nucleus(Stream& stream, const ChooseArgs& args);

}  // namespace tnd::gpu
