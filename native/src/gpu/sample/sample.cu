// The choice of a row from its maxima and sums (sample_device.cuh): one block a row.
#include "gpu/sample/sample_list.cuh"
#include "gpu/sample/sample_nucleus.cuh"

namespace tnd::gpu {
namespace {

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

// ---- candidates that are all in the list, descending

// Returns how many of list[0 .. n) are finite; these come first.
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
    s.ids[i] = s.list[i] << 32 | static_cast<uint32_t>(i);  // the lower half of a key decreases with the token
  }
  sort_keys(s.ids, n);
}

// Sum of the weights of the first `kept` of n candidates, those below min_p left out: by blocks of 1024 tokens, each
// added ascending, and their sums ascending. Writes tokens (upper half) and weights (0 of those left out) to the
// list, ascending.
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
  return last;  // the last candidate, where rounding left none
}

// Returns how many of list[0 .. n) are needed to reach `wanted`; at least one. `reached`: whether they do.
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

// Draws from the candidates from `low` on, whose sums are in the scratch.
TND_OUTLINE int32_t draw_all(const View& view, uint64_t low, float max, float temperature, float min_p, double u,
                             const Scratch& scratch, Shared& s) {
  const int64_t blocks = blocks_of(view.vocab);
  const double target = u * add_ascending(scratch.weights, blocks, s);
  const double* near = reinterpret_cast<const double*>(s.ids);
  const auto weight = [&](int64_t token) {
    if (token >= view.vocab) return 0.0f;
    const uint64_t key = view.key(token);
    const float w = finite_key(key) && key >= low ? weight_of(value_of(key), max, temperature) : 0.0f;
    return w < min_p ? 0.0f : w;
  };
  __syncthreads();  // all threads have the sum
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
    const int run = __popc(ballot(lane > 0 && lane < kRuns && !(before + begin > target)));  // sums never decrease
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

// Draws from the list of the n most likely candidates, of which top_p of the sum `total` are kept; for all threads. -1
// if it does not hold all that are kept, unless it is `complete`.
TND_OUTLINE int32_t choose_of_list(const ChooseRow& plan, int n, double total, bool complete, Shared& s) {
  int kept = n;
  if (plan.top_p < 1.0f) {
    bool reached = false;
    kept = count_nucleus(n, static_cast<double>(plan.top_p) * total, s, &reached);
    if (!reached && !complete) return -1;
  }
  const double of_kept = sum_list(n, kept, plan.min_p, s);
  if (threadIdx.x == 0) s.count = draw_list(n, plan.draw * of_kept, s);
  __syncthreads();
  return s.count;
}

// The token of a row whose logits include their penalties; for all threads.
TND_OUTLINE int32_t choose_token(const ChooseArgs& a, int64_t row, uint64_t best, const Scratch& scratch, Shared& s) {
  const ChooseRow& plan = a.plans[row];
  const View view = allowed_view(a, row);
  const uint64_t* keys = scratch.allowed_keys;
  const float max = value_of(best), temperature = temperature_of(plan);
  const int limit = plan.top_k > 0 && plan.top_k < a.vocab ? plan.top_k : a.vocab;
  const bool by_mass = plan.top_p < 1.0f;
  uint64_t low = 0;
  double total = 0;
  if (limit == a.vocab) {
    const Narrowed& last = scratch.narrowed[kNarrowPasses];
    if (!by_mass || last.open != 0) {
      low = by_mass ? static_cast<uint64_t>(last.bits) << 32 : 0;
      return draw_all(view, low, max, temperature, plan.min_p, plan.draw, scratch, s);
    }
    total = last.total;
  } else if (limit <= kList) {
    select_top(view, keys, limit, s);
    const int n = finite_count(limit, s);
    weigh_list(n, max, temperature, s);
    return choose_of_list(plan, n, by_mass ? sum_list(n, n, 0.0f, s) : 0, true, s);
  } else {
    low = kth_key(view, ~uint64_t{0}, limit, s);
    if (by_mass) total = sum_weights(view, keys, low, max, temperature, 0.0f, scratch.weights, s);
  }
  if (by_mass) {
    const double wanted = static_cast<double>(plan.top_p) * total;
    const uint64_t kept = nucleus(view, keys, limit, low, max, temperature, wanted, total, s);
    low = kept > low ? kept : low;
  }
  total = sum_weights(view, keys, low, max, temperature, plan.min_p, scratch.weights, s);
  if (threadIdx.x == 0) {
    s.count = draw(view, keys, low, max, temperature, plan.min_p, scratch.weights, plan.draw * total);
  }
  __syncthreads();
  return s.count;
}

// Candidates that nearly always hold what top_p keeps of a trained model's.
constexpr int kLikely = 256;

__global__ void __launch_bounds__(kThreads, 1) choose_likely_kernel(ChooseArgs a) {
  TND_SHARED(Shared, shared, [1]);
  Shared& s = shared[0];
  let_next_start();
  if (static_cast<int>(blockIdx.x) >= rows_in_use(a.live, a.rows)) return;
  wait_for_previous();
  const int64_t row = blockIdx.x, blocks = blocks_of(a.vocab);
  const ChooseRow& plan = a.plans[row];
  if (!takes_nucleus(plan, a.vocab)) return;
  const Scratch scratch = scratch_of(a, row);
  const uint64_t best = row_max<kThreads>(scratch.allowed_blocks, blocks);
  Narrowed begin{0, 0, 0, 0, 0, -1};
  if (finite_key(best)) {
    float* x = a.logits + row * a.stride;
    const bool moved = moves(plan);
    if (moved) move_logits<kThreads>(plan, x, 0, a.vocab, plan.undo);
    const float max = value_of(best), temperature = temperature_of(plan);
    begin.total = add_ascending(scratch.weights, blocks, s);
    const int most = kLikely < a.vocab ? kLikely : a.vocab;
    select_top(allowed_view(a, row), scratch.allowed_keys, most, s);
    const int n = finite_count(most, s);
    weigh_list(n, max, temperature, s);
    begin.token = choose_of_list(plan, n, begin.total, n < most || most == a.vocab, s);
    if (moved) undo_moves(plan, x, a.vocab);
    const double wanted = static_cast<double>(plan.top_p) * begin.total;
    begin.goal = static_cast<uint64_t>(wanted * static_cast<double>(kWeightUnits));
    begin.open = begin.token < 0 && begin.goal > 0 && static_cast<uint64_t>(a.vocab) < kMostTokens ? 1 : 0;
  }
  if (threadIdx.x == 0) scratch.narrowed[0] = begin;
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
  if (static_cast<int>(blockIdx.x) >= rows_in_use(a.live, a.rows)) return;
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
    } else if (takes_nucleus(plan, a.vocab) && scratch.narrowed[0].token >= 0) {
      token = scratch.narrowed[0].token;
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
  const unsigned rows = static_cast<unsigned>(args.rows);
  launch_choose_sums(stream, args);
  // Launched even if no row has a nucleus, which only the plans tell: if the list of launches depended on settings,
  // every size of a step would need a second graph.
  launch(stream, {.grid = {rows}, .block = {kThreads}, .overlap = true, .name = "choose_likely"}, choose_likely_kernel,
         args);
  launch_choose_nucleus(stream, args);
  launch(stream, {.grid = {rows}, .block = {kThreads}, .overlap = true, .name = "choose"}, choose_kernel, args);
}

}  // namespace tnd::gpu
