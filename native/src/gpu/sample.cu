// Three launches for all rows of a head:
//   maxima   best key of every 256 tokens, raw and with forbidden tokens left out
//   sums     sums of exponentials of every 1024 tokens, in the order that docs/sampling.md fixes
//   choose   one block per row: merges, lists the top, draws
// A *key* is a logit and its token as one integer that orders by likelihood: descending logit, ties ascending token.
// The k most likely tokens are found without reading all logits again: the k-th best of the 256-token maxima is a lower
// bound of the k-th best logit, so only parts whose maximum reaches it are looked through; what reaches it is sorted.
// When too much does (large k, flat logits), a radix select finds the exact bound instead. Bound: one read of the
// logits for maxima and one for sums; 2 * 4 * vocab bytes per row from L2.
#include <algorithm>

#include "gpu/sample.h"

namespace tnd::gpu {
namespace {

constexpr int kPart = 256;    // tokens of a maximum
constexpr int kBlock = 1024;  // tokens of a sum; of the draw, too
constexpr int kPartsPerBlock = kBlock / kPart;
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

// Scratch of all rows, cut into arrays.
struct Scratch {
  uint64_t* raw_keys;      // [rows, parts]
  uint64_t* allowed_keys;  // [rows, parts]
  double* weights;         // [rows, blocks]
  float* raw_sums;         // [rows, blocks]
  float* top_sums;         // [rows, blocks]
};
TND_DEVICE Scratch scratch_of(const ChooseArgs& a) {
  const int64_t parts = parts_of(a.vocab), blocks = blocks_of(a.vocab);
  Scratch s;
  s.raw_keys = static_cast<uint64_t*>(a.scratch);
  s.allowed_keys = s.raw_keys + a.rows * parts;
  s.weights = reinterpret_cast<double*>(s.allowed_keys + a.rows * parts);
  s.raw_sums = reinterpret_cast<float*>(s.weights + a.rows * blocks);
  s.top_sums = s.raw_sums + a.rows * blocks;
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

TND_DEVICE uint64_t warp_max_key(uint64_t key) {
#pragma unroll
  for (int mask = TND_WARP / 2; mask > 0; mask /= 2) {
    const uint64_t other = shfl_xor(key, mask);
    key = other > key ? other : key;
  }
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
  __device__ uint64_t key(int64_t token) const {
    float v = x[token];
    if (mask != nullptr && !bit(mask, token)) v = minus_inf();
    if (never != nullptr && bit(never, token)) v = minus_inf();
    return key_of(v, token);
  }
};
TND_DEVICE View raw_view(const ChooseArgs& a, int64_t row) {
  return View{a.logits + row * a.stride, a.vocab, nullptr, nullptr};
}
TND_DEVICE View allowed_view(const ChooseArgs& a, int64_t row) {
  return View{a.logits + row * a.stride, a.vocab, a.plans[row].mask, a.never};
}

// Best key of a part; by a whole warp.
TND_DEVICE uint64_t part_key(const View& view, int64_t part) {
  uint64_t best = 0;
  for (int i = 0; i < kPart; i += TND_WARP) {
    const int64_t token = part * kPart + i + lane_id();
    if (token >= view.vocab) break;
    const uint64_t key = view.key(token);
    best = key > best ? key : best;
  }
  return warp_max_key(best);
}

TND_DEVICE float weight_of(float x, float max, float temperature) {
  const float shifted = x - max;
  return exp_f32(temperature == 1.0f ? shifted : shifted / temperature);
}

// ---- maxima: a warp per part

constexpr int kMaxThreads = 256;

__global__ void __launch_bounds__(kMaxThreads) choose_maxima_kernel(ChooseArgs a) {
  const int64_t row = blockIdx.y, parts = parts_of(a.vocab);
  const int64_t part = int64_t{blockIdx.x} * (kMaxThreads / TND_WARP) + warp_id();
  if (part >= parts) return;
  const Scratch s = scratch_of(a);
  const ChooseRow& plan = a.plans[row];
  const uint64_t raw = part_key(raw_view(a, row), part);
  uint64_t allowed = raw;
  if ((plan.wants & kWantToken) != 0 && (plan.mask != nullptr || a.never != nullptr)) {
    allowed = part_key(allowed_view(a, row), part);
  }
  if (lane_id() == 0) {
    s.raw_keys[row * parts + part] = raw;
    s.allowed_keys[row * parts + part] = allowed;
  }
}

// ---- sums: half a warp per block of 1024 tokens; lane j adds elements j, j + 16, … and lanes fold 8, 4, 2, 1

constexpr int kSumThreads = 256;
constexpr int kSumLanes = 16;

TND_DEVICE float block_sum(const float* x, int64_t first, int vocab, float max, float temperature) {
  const int lane = static_cast<int>(lane_id()) % kSumLanes;
  float sum = 0.0f;
  for (int i = lane; i < kBlock; i += kSumLanes) {
    if (first + i < vocab) sum += weight_of(x[first + i], max, temperature);
  }
#pragma unroll
  for (int mask = kSumLanes / 2; mask > 0; mask /= 2) sum += shfl_xor(sum, mask);
  return sum;
}

// Best key of a row, from its parts, for all threads of the block.
template <int THREADS>
TND_DEVICE uint64_t row_max(const uint64_t* keys, int64_t parts) {
  TND_SHARED(uint64_t, of_warp, [THREADS / TND_WARP]);
  uint64_t best = 0;
  for (int64_t i = threadIdx.x; i < parts; i += THREADS) best = keys[i] > best ? keys[i] : best;
  best = warp_max_key(best);
  __syncthreads();  // an earlier call may still be read
  if (lane_id() == 0) of_warp[warp_id()] = best;
  __syncthreads();
  best = of_warp[0];
  for (int i = 1; i < THREADS / TND_WARP; ++i) best = of_warp[i] > best ? of_warp[i] : best;
  return best;
}

__global__ void __launch_bounds__(kSumThreads) choose_sums_kernel(ChooseArgs a) {
  const int64_t row = blockIdx.y;
  const ChooseRow& plan = a.plans[row];
  if ((plan.wants & (kWantRawSum | kWantTopSum)) == 0) return;
  const Scratch s = scratch_of(a);
  const int64_t parts = parts_of(a.vocab), blocks = blocks_of(a.vocab);
  const float max = value_of(row_max<kSumThreads>(s.raw_keys + row * parts, parts));
  const int64_t block = int64_t{blockIdx.x} * (kSumThreads / kSumLanes) + threadIdx.x / kSumLanes;
  // All lanes of a warp stay together for the folding; those without a block add nothing.
  const int64_t first = block * kBlock;
  const float* x = a.logits + row * a.stride;
  if ((plan.wants & kWantRawSum) != 0) {
    const float sum = block_sum(x, first, a.vocab, max, 1.0f);
    if (block < blocks && threadIdx.x % kSumLanes == 0) s.raw_sums[row * blocks + block] = sum;
  }
  if ((plan.wants & kWantTopSum) != 0) {
    const float sum = block_sum(x, first, a.vocab, max, plan.top_temperature);
    if (block < blocks && threadIdx.x % kSumLanes == 0) s.top_sums[row * blocks + block] = sum;
  }
}

// ---- choose: a block per row

struct Shared {
  uint64_t list[kList];
  uint32_t histogram[256];
  uint64_t key;
  int count;
};

// Sorts list[0 .. n) descending; n a power of two. Begins and ends with a barrier.
TND_DEVICE void sort_descending(uint64_t* list, int n) {
  for (int k = 2; k <= n; k *= 2) {
    for (int j = k / 2; j > 0; j /= 2) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
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
TND_DEVICE int power_of_two(int n) {
  int p = 1;
  while (p < n) p *= 2;
  return p;
}

// Puts the keys in [low, high) into the list, in any order; returns how many there are (more than kList are dropped).
TND_DEVICE int collect(const View& view, const uint64_t* keys, uint64_t low, uint64_t high, Shared& s) {
  __syncthreads();
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
  const int64_t parts = parts_of(view.vocab);
  for (int64_t part = warp_id(); part < parts; part += kThreads / TND_WARP) {
    if (keys[part] < low) continue;
    for (int i = 0; i < kPart; i += TND_WARP) {
      const int64_t token = part * kPart + i + lane_id();
      if (token >= view.vocab) break;
      const uint64_t key = view.key(token);
      if (key < low || key >= high) continue;
      const int at = atomicAdd(&s.count, 1);
      if (at < kList) s.list[at] = key;
    }
  }
  __syncthreads();
  return s.count;
}

// The k-th largest key below `high`, of which there are at least k: eight bits a pass.
TND_DEVICE uint64_t kth_key(const View& view, uint64_t high, int k, Shared& s) {
  uint64_t prefix = 0, known = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < 256; i += kThreads) s.histogram[i] = 0;
    __syncthreads();
    for (int64_t token = threadIdx.x; token < view.vocab; token += kThreads) {
      const uint64_t key = view.key(token);
      if (key < high && (key & known) == prefix) atomicAdd(&s.histogram[key >> shift & 255u], 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int left = k;
      int digit = 255;
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

TND_DEVICE void sort_list(int count, Shared& s) {
  const int n = power_of_two(count);
  for (int i = count + static_cast<int>(threadIdx.x); i < n; i += kThreads) s.list[i] = 0;
  sort_descending(s.list, n);
}

// Leaves the k largest keys at the front of the list, descending. 1 <= k <= min(kList, vocab).
TND_DEVICE void select_top(const View& view, const uint64_t* keys, int k, Shared& s) {
  const int parts = static_cast<int>(parts_of(view.vocab));
  int count = kList + 1;
  if (k <= parts && parts <= kList) {
    const int n = power_of_two(parts);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) s.list[i] = i < parts ? keys[i] : 0;
    sort_descending(s.list, n);
    const uint64_t low = s.list[k - 1];
    count = collect(view, keys, low, ~uint64_t{0}, s);
  }
  if (count > kList) count = collect(view, keys, kth_key(view, ~uint64_t{0}, k, s), ~uint64_t{0}, s);
  sort_list(count, s);
}

// Writes the sums of the weights of candidates (finite keys >= low, weight >= min_p) of every block of 1024 tokens,
// each added ascending, and returns the ascending sum of those to all threads.
TND_DEVICE double sum_weights(const View& view, const uint64_t* keys, uint64_t low, float max, float temperature,
                              float min_p, double* sums, Shared& s) {
  const int64_t blocks = blocks_of(view.vocab), parts = parts_of(view.vocab);
  __syncthreads();
  for (int64_t block = threadIdx.x; block < blocks; block += kThreads) {
    double sum = 0;
    for (int64_t part = block * kPartsPerBlock; part < (block + 1) * kPartsPerBlock && part < parts; ++part) {
      if (keys[part] < low) continue;
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
    for (int64_t block = 0; block < blocks; ++block) total += sums[block];
    s.key = __builtin_bit_cast(uint64_t, total);
  }
  __syncthreads();
  const double total = __builtin_bit_cast(double, s.key);
  __syncthreads();
  return total;
}

// The draw of docs/sampling.md, step 9, over the same candidates; by one thread, -1 when there is none.
TND_DEVICE int32_t draw(const View& view, const uint64_t* keys, uint64_t low, float max, float temperature, float min_p,
                        const double* sums, double target) {
  const int64_t blocks = blocks_of(view.vocab);
  const auto weight = [&](int64_t token) {
    const uint64_t key = view.key(token);
    if (key < low || !finite_key(key)) return 0.0f;
    const float w = weight_of(value_of(key), max, temperature);
    return w < min_p ? 0.0f : w;
  };
  double before = 0;
  int32_t last = -1;
  for (int64_t block = 0; block < blocks; ++block) {
    const double sum = sums[block];
    if (before + sum > target) {
      double running = 0;
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
  for (int64_t token = view.vocab; token-- > 0;) {  // the target was rounded up to the total
    if (weight(token) > 0) return static_cast<int32_t>(token);
  }
  return -1;
}

// Lower bound of the candidates that top_p keeps out of the `limit` most likely ones.
TND_DEVICE uint64_t nucleus(const View& view, const uint64_t* keys, int limit, float max, float temperature,
                            double wanted, Shared& s) {
  constexpr int kBatch = 1024;
  uint64_t high = ~uint64_t{0};
  double sum = 0;
  for (int taken = 0;;) {
    const int batch = limit - taken < kBatch ? limit - taken : kBatch;
    if (taken == 0) {
      select_top(view, keys, batch, s);
    } else {
      collect(view, keys, kth_key(view, high, batch, s), high, s);
      sort_list(batch, s);
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

// Token of a row whose logits carry their penalties; for all threads.
TND_DEVICE int32_t choose_token(const ChooseArgs& a, int64_t row, const uint64_t* keys, double* weights, Shared& s) {
  const ChooseRow& plan = a.plans[row];
  const View view = allowed_view(a, row);
  const uint64_t best = row_max<kThreads>(keys, parts_of(a.vocab));
  if (!finite_key(best)) return (plan.wants & kWantPlainId) != 0 ? 0 : -1;
  if (plan.temperature <= 0.0f) return token_of(best);

  const float max = value_of(best);
  const float temperature = plan.temperature > kMinTemperature ? plan.temperature : kMinTemperature;
  const int limit = plan.top_k > 0 && plan.top_k < a.vocab ? plan.top_k : a.vocab;
  uint64_t low = 0;
  if (limit < a.vocab) {
    if (limit <= kList) {
      select_top(view, keys, limit, s);
      low = s.list[limit - 1];
    } else {
      low = kth_key(view, ~uint64_t{0}, limit, s);
    }
  }
  if (plan.top_p < 1.0f) {
    const double total = sum_weights(view, keys, low, max, temperature, 0.0f, weights, s);
    const double wanted = static_cast<double>(plan.top_p) * total;
    const uint64_t kept = nucleus(view, keys, limit, max, temperature, wanted, s);
    low = kept > low ? kept : low;
  }
  const double total = sum_weights(view, keys, low, max, temperature, plan.min_p, weights, s);
  if (threadIdx.x == 0) {
    s.count = draw(view, keys, low, max, temperature, plan.min_p, weights, plan.draw * total);
  }
  __syncthreads();
  return s.count;
}

// Steps 1 and 2 of docs/sampling.md in place, and back.
TND_DEVICE void apply_penalties(const ChooseRow& p, float* x) {
  for (int i = static_cast<int>(threadIdx.x); i < p.n_bias; i += kThreads) {
    const int32_t token = p.bias_tokens[i];
    if (i > 0 && p.bias_tokens[i - 1] == token) continue;
    float v = x[token];
    p.undo[i] = v;
    for (int j = i; j < p.n_bias && p.bias_tokens[j] == token; ++j) v += p.bias_values[j];
    x[token] = v;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < p.n_history; i += kThreads) {
    const TokenCount h = p.history[i];
    float v = x[h.token];
    p.undo[p.n_bias + i] = v;
    if (p.repetition_penalty != 1.0f) v = v > 0.0f ? v / p.repetition_penalty : v * p.repetition_penalty;
    v -= p.frequency_penalty * static_cast<float>(h.count);
    v -= p.presence_penalty;
    x[h.token] = v;
  }
  __syncthreads();
}
TND_DEVICE void undo_penalties(const ChooseRow& p, float* x) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < p.n_history; i += kThreads) {
    x[p.history[i].token] = p.undo[p.n_bias + i];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < p.n_bias; i += kThreads) {
    if (i == 0 || p.bias_tokens[i - 1] != p.bias_tokens[i]) x[p.bias_tokens[i]] = p.undo[i];
  }
  __syncthreads();
}

struct LogSoftmax {
  float max, log_sum, temperature;
  __device__ float operator()(float x) const {
    const float shifted = x - max;
    return (temperature == 1.0f ? shifted : shifted / temperature) - log_sum;
  }
};
TND_DEVICE LogSoftmax log_softmax(const float* sums, int64_t blocks, float max, float temperature) {
  float total = 0.0f;
  for (int64_t i = 0; i < blocks; ++i) total += sums[i];
  return LogSoftmax{max, log_f32(total), temperature};
}

__global__ void __launch_bounds__(kThreads) choose_kernel(ChooseArgs a) {
  TND_SHARED(Shared, shared, [1]);
  Shared& s = shared[0];
  const int64_t row = blockIdx.x, parts = parts_of(a.vocab), blocks = blocks_of(a.vocab);
  const Scratch scratch = scratch_of(a);
  const ChooseRow& plan = a.plans[row];
  const uint64_t* raw_keys = scratch.raw_keys + row * parts;
  uint64_t* allowed_keys = scratch.allowed_keys + row * parts;
  float* x = a.logits + row * a.stride;
  const float raw_max = value_of(row_max<kThreads>(raw_keys, parts));

  if (plan.top_n > 0) {
    select_top(raw_view(a, row), raw_keys, plan.top_n, s);
    const bool tempered = (plan.wants & kWantTopSum) != 0;
    const LogSoftmax of = log_softmax((tempered ? scratch.top_sums : scratch.raw_sums) + row * blocks, blocks, raw_max,
                                      plan.top_temperature);
    for (int i = static_cast<int>(threadIdx.x); i < plan.top_n; i += kThreads) {
      plan.top_ids[i] = token_of(s.list[i]);
      plan.top_logprobs[i] = of(value_of(s.list[i]));
    }
  }

  int32_t token = -1;
  if ((plan.wants & kWantToken) != 0) {
    const bool moved = plan.n_bias + plan.n_history > 0;
    if (moved) {
      apply_penalties(plan, x);
      const View view = allowed_view(a, row);
      for (int64_t part = warp_id(); part < parts; part += kThreads / TND_WARP) {
        const uint64_t key = part_key(view, part);
        if (lane_id() == 0) allowed_keys[part] = key;
      }
      __syncthreads();
    }
    token = choose_token(a, row, allowed_keys, scratch.weights + row * blocks, s);
    if (moved) undo_penalties(plan, x);
  }

  if (threadIdx.x != 0) return;
  ChooseResult r{token, minus_inf(), 0.0f, 0};
  if ((plan.wants & (kWantLogprob | kWantScore)) != 0) {
    const LogSoftmax of = log_softmax(scratch.raw_sums + row * blocks, blocks, raw_max, 1.0f);
    if ((plan.wants & kWantLogprob) != 0 && token >= 0) r.logprob = of(x[token]);
    if ((plan.wants & kWantScore) != 0) r.score = of(x[plan.score_token]);
  }
  *plan.result = r;
}

}  // namespace

uint64_t choose_scratch_bytes(int64_t vocab, int rows) {
  return static_cast<uint64_t>(rows) * static_cast<uint64_t>(parts_of(vocab) * 16 + blocks_of(vocab) * 16);
}

void launch_choose(Stream& stream, const ChooseArgs& args) {
  const unsigned rows = static_cast<unsigned>(args.rows);
  const auto groups = [](int64_t n, int64_t per) { return static_cast<unsigned>((n + per - 1) / per); };
  launch(stream,
         {.grid = {groups(parts_of(args.vocab), kMaxThreads / TND_WARP), rows},
          .block = {kMaxThreads},
          .name = "choose_maxima"},
         choose_maxima_kernel, args);
  launch(stream,
         {.grid = {groups(blocks_of(args.vocab), kSumThreads / kSumLanes), rows},
          .block = {kSumThreads},
          .name = "choose_sums"},
         choose_sums_kernel, args);
  launch(stream, {.grid = {rows}, .block = {kThreads}, .name = "choose"}, choose_kernel, args);
}

}  // namespace tnd::gpu
