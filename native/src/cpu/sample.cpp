#include "cpu/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/draw.h"
#include "cpu/math.h"
#include "cpu/row_kernels.h"

namespace tnd::cpu {
namespace {

constexpr float kMinusInf = -__builtin_inff();
constexpr int64_t kBlock = 1024;           // of the draw
constexpr float kMinTemperature = 0.001f;  // smaller ones are raised to it

uint64_t round64(uint64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

bool bit(const uint32_t* bits, int64_t i) {
  return (bits[i >> 5] >> (i & 31) & 1u) != 0;
}

// Sets the logits of tokens that may not be chosen to -inf.
void forbid(float* x, int64_t vocab, const uint32_t* mask, const uint32_t* never) {
  for (int64_t word = 0; word * 32 < vocab; ++word) {
    uint32_t drop = mask != nullptr ? ~mask[word] : 0u;
    if (never != nullptr) drop |= never[word];
    const int64_t left = vocab - word * 32;
    if (left < 32) drop &= (1u << left) - 1u;
    for (; drop != 0; drop &= drop - 1) x[word * 32 + __builtin_ctz(drop)] = kMinusInf;
  }
}

// Steps 1 to 3 of the order: bias, repetition, frequency and presence.
void apply_penalties(float* x, int64_t vocab, const SamplerParams& s, std::span<const TokenCount> history) {
  for (size_t i = 0; i < s.bias_tokens.size(); ++i) {
    if (s.bias_tokens[i] < vocab) x[s.bias_tokens[i]] += s.bias_values[i];
  }
  for (const TokenCount& h : history) {
    float v = x[h.token];
    if (s.repetition_penalty != 1.0f) v = v > 0.0f ? v / s.repetition_penalty : v * s.repetition_penalty;
    v -= s.frequency_penalty * static_cast<float>(h.count);
    v -= s.presence_penalty;
    x[h.token] = v;
  }
}

// Heap order: the heap's top is the most likely token, ties to the lower id.
struct LessLikely {
  const float* x;
  bool operator()(int32_t a, int32_t b) const { return x[a] < x[b] || (x[a] == x[b] && a > b); }
};

// Sum of the weights of n tokens, ids ascending: each range of 1024 ids is summed ascending, then the sums of the
// ranges ascending.
double sum_weights(const float* w, const int32_t* ids, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n;) {
    const int64_t block = ids[i] / kBlock;
    double sum = 0;
    for (; i < n && ids[i] / kBlock == block; ++i) sum += static_cast<double>(w[ids[i]]);
    total += sum;
  }
  return total;
}

// Draws from the weights of n tokens, ids ascending: the first whose running sum exceeds u * total.
int32_t draw(const float* w, const int32_t* ids, int64_t n, double u) {
  const double target = u * sum_weights(w, ids, n);
  double before = 0;
  int32_t last = -1;
  for (int64_t i = 0; i < n;) {
    const int64_t block = ids[i] / kBlock;
    const int64_t first = i;
    double sum = 0;
    for (; i < n && ids[i] / kBlock == block; ++i) sum += static_cast<double>(w[ids[i]]);
    if (before + sum > target) {
      double running = 0;
      for (int64_t k = first; k < i; ++k) {
        const double v = static_cast<double>(w[ids[k]]);
        if (v == 0) continue;
        running += v;
        last = ids[k];
        if (before + running > target) return last;
      }
    }
    before += sum;
  }
  if (last >= 0) return last;
  for (int64_t i = n; i-- > 0;) {  // the target was rounded up to the total: the last token with weight
    if (w[ids[i]] > 0) return ids[i];
  }
  return -1;
}

// Sums of the weights of each block of 1024 tokens, each added ascending. sums [ceil(vocab / 1024)]. Eight blocks at a
// time: an addition depends only on the previous one of its own block.
void sum_blocks(const float* w, int64_t vocab, double* sums) {
  constexpr int kTogether = 8;
  int64_t block = 0;
  for (; (block + kTogether) * kBlock <= vocab; block += kTogether) {
    const float* const at = w + block * kBlock;
    double sum[kTogether] = {};
    for (int64_t i = 0; i < kBlock; ++i) {
      for (int b = 0; b < kTogether; ++b) sum[b] += static_cast<double>(at[b * kBlock + i]);
    }
    for (int b = 0; b < kTogether; ++b) sums[block + b] = sum[b];
  }
  for (; block * kBlock < vocab; ++block) {
    double sum = 0;
    const int64_t end = std::min(vocab, (block + 1) * kBlock);
    for (int64_t i = block * kBlock; i < end; ++i) sum += static_cast<double>(w[i]);
    sums[block] = sum;
  }
}

double total_of(const double* sums, int64_t vocab) {
  double total = 0;
  for (int64_t block = 0; block * kBlock < vocab; ++block) total += sums[block];
  return total;
}

// Draws from the weights of the whole vocabulary, 0 = dropped. Blocks and tokens without weight change no sum, so the
// choice equals that of draw() over the others. sums: of sum_blocks.
int32_t draw_all(const float* w, int64_t vocab, double u, const double* sums) {
  const double target = u * total_of(sums, vocab);
  double before = 0;
  int32_t last = -1;
  for (int64_t block = 0; block * kBlock < vocab; ++block) {
    if (before + sums[block] > target) {
      double running = 0;
      const int64_t end = std::min(vocab, (block + 1) * kBlock);
      for (int64_t i = block * kBlock; i < end; ++i) {
        const double v = static_cast<double>(w[i]);
        if (v == 0) continue;
        running += v;
        last = static_cast<int32_t>(i);
        if (before + running > target) return last;
      }
    }
    before += sums[block];
  }
  if (last >= 0) return last;
  for (int64_t i = vocab; i-- > 0;) {  // the target was rounded up to the total: the last token with weight
    if (w[i] > 0) return static_cast<int32_t>(i);
  }
  return -1;
}

// ---- selection without sorting: of candidates ordered by likelihood, where does the sum of a mass reach a goal?

// Cut ends a prefix of the order of likelihood: all candidates with a value above `value`, and the `alike` lowest
// tokens of those that have it.
struct Cut {
  float value = kMinusInf;
  int64_t alike = 0;
  uint64_t before = 0, mass = 0;  // sums of the prefix without its last candidate, and with it
};

// Values go to buckets by their distance from the largest: kSpan temperatures in equal parts, and a last bucket for the
// rest, whose weights are below e^-32.
constexpr float kSpan = 32.0f;

struct Buckets {
  static constexpr int32_t kLast = SampleScratch::kBuckets - 1;
  float max, least, scale;
  // largest: finite.
  Buckets(float largest, float temperature) : max(largest), least(largest - kSpan * temperature) {
    // Half a part less, so that rounding cannot move `least` out of the last bucket. Values too coarse for the span
    // share one bucket.
    const float span = max - least;
    scale = span > 0.0f ? (static_cast<float>(kLast) + 0.5f) / span : 0.0f;
  }
  // Monotonic: never smaller for a smaller x, since subtraction and product round monotonically. NaN is in the
  // last bucket.
  int32_t of(float x) const { return static_cast<int32_t>((max - (x > least ? x : least)) * scale); }
};

// Rows are processed in pieces that stay in a core's cache from one step to the next.
constexpr int64_t kPiece = 8 * kBlock;

// add_up adds mass(token) of tokens [first, end) to the sums of their buckets, which find_cut reads. The buckets are
// computed first, separately from the sums, so that several are computed at a time.
template <typename Mass>
void add_up(const float* x, int64_t first, int64_t end, const Buckets& buckets, const Mass& mass,
            SampleScratch* scratch) {
  uint16_t* const of = scratch->bucket_of;
  for (int64_t i = first; i < end; ++i) {
    // Nearly all of a steep row lies in the last bucket, whose sum is not needed: additions there rotate over several
    // places, since each would otherwise wait for the one before.
    const int32_t b = buckets.of(x[i]);
    const int32_t spread = static_cast<int32_t>(i) & (SampleScratch::kSpread - 1);
    of[i] = static_cast<uint16_t>(b + (b == Buckets::kLast ? spread : 0));
  }
  uint64_t* const sums = scratch->buckets;
  for (int64_t i = first; i < end; ++i) sums[of[i]] += mass(i);
}

void clear_sums(SampleScratch* scratch) {
  std::fill_n(scratch->buckets, SampleScratch::kBuckets + SampleScratch::kSpread, uint64_t{0});
}

// collect writes the candidates of a bucket to ids, ascending, and returns how many there are.
int64_t collect(const float* x, int64_t vocab, int32_t bucket, const uint16_t* of, int32_t* ids) {
  constexpr int64_t kLook = 64;  // most of so many next to each other have none of the bucket
  // The last one includes the places that its sums are spread over.
  const auto low = static_cast<uint16_t>(bucket);
  const auto high = static_cast<uint16_t>(bucket + (bucket == Buckets::kLast ? SampleScratch::kSpread - 1 : 0));
  int64_t n = 0;
  for (int64_t i = 0; i < vocab; i += kLook) {
    const int64_t end = std::min(vocab, i + kLook);
    if (end - i == kLook) {
      uint16_t any = 0;
      for (int64_t k = 0; k < kLook; ++k) any |= static_cast<uint16_t>(of[i + k] >= low && of[i + k] <= high ? 1 : 0);
      if (any == 0) continue;
    }
    for (int64_t k = i; k < end; ++k) {
      ids[n] = static_cast<int32_t>(k);
      n += static_cast<int64_t>(of[k] >= low) & static_cast<int64_t>(of[k] <= high) &
           static_cast<int64_t>(x[k] > kMinusInf);
    }
  }
  return n;
}

// find_cut returns the shortest prefix whose mass(token), a positive integer or 0, adds up to `goal` > 0, after
// add_up() of all tokens. False if all candidates together have less. One pass collects the bucket that holds the cut;
// then the bucket is partitioned around one of its values until the cut's value is found, so nothing is sorted. Only
// tokens with a value above -inf count.
template <typename Mass>
bool find_cut(const float* x, int64_t vocab, uint64_t goal, const Mass& mass, SampleScratch* scratch, Cut* cut) {
  const uint64_t* const sums = scratch->buckets;
  uint64_t above = 0;
  int32_t bucket = 0;
  while (bucket < Buckets::kLast && above + sums[bucket] < goal) above += sums[bucket++];
  int32_t* const ids = scratch->ids;
  const int64_t n = collect(x, vocab, bucket, scratch->bucket_of, ids);
  int64_t first = 0, end = n;  // the cut is in this range; `above` is the mass of more likely tokens
  while (first < end) {
    const float a = x[ids[first]], b = x[ids[first + (end - first) / 2]], c = x[ids[end - 1]];
    const float pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    // [first, high) > pivot, [high, at) == pivot, [low, end) < pivot
    uint64_t more = 0, equal = 0;
    int64_t high = first, at = first, low = end;
    while (at < low) {
      const float v = x[ids[at]];
      if (v > pivot) {
        more += mass(ids[at]);
        std::swap(ids[high++], ids[at++]);
      } else if (v < pivot) {
        std::swap(ids[at], ids[--low]);
      } else {
        equal += mass(ids[at++]);
      }
    }
    if (above + more >= goal) {
      end = high;
    } else if (above + more + equal >= goal) {  // equal values have equal masses
      const uint64_t each = equal / static_cast<uint64_t>(low - high);
      const uint64_t alike = (goal - above - more + each - 1) / each;
      cut->value = pivot;
      cut->alike = static_cast<int64_t>(alike);
      cut->mass = above + more + alike * each;
      cut->before = cut->mass - each;
      return true;
    } else {
      above += more + equal;
      first = low;
    }
  }
  return false;
}

// drop_beyond sets y to `dropped` for those of n tokens that are beyond the cut, NaN included. It subtracts the kept
// tokens that have the cut's value from *alike.
void drop_beyond(const float* x, int64_t n, const Cut& cut, int64_t* alike, float dropped, float* y) {
  int32_t equal = 0;
  for (int64_t i = 0; i < n; ++i) equal += x[i] == cut.value ? 1 : 0;
  if (equal <= *alike) {
    // By bits: a conditional would be compiled to a branch, which in a flat row is mispredicted half of the time. y may
    // be x.
    const uint32_t drop = std::bit_cast<uint32_t>(dropped);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t stays = 0u - static_cast<uint32_t>(x[i] >= cut.value);
      y[i] = std::bit_cast<float>((std::bit_cast<uint32_t>(y[i]) & stays) | (drop & ~stays));
    }
    *alike -= equal;
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const bool tie = x[i] == cut.value && *alike > 0;
    if (tie) --*alike;
    y[i] = tie || x[i] > cut.value ? y[i] : dropped;
  }
}

// Weights as integers, so that sums are the same in any order: multiples of 2^-44, rounded down. The largest weight is
// 1 and there are fewer than kMostTokens.
constexpr float kWeightUnits = 0x1p44f;
constexpr int64_t kMostTokens = 1 << 19;

// nucleus_in_order is the definition of top_p: adds the weights of the n candidates in their order until the sum
// reaches `wanted` (at least one is taken) and sets the weights of the others to 0.
void nucleus_in_order(const float* x, int64_t vocab, double wanted, float* w, int32_t* ids) {
  int64_t n = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    if (x[i] > kMinusInf) ids[n++] = static_cast<int32_t>(i);
  }
  const LessLikely less{x};
  std::make_heap(ids, ids + n, less);
  double sum = 0;
  for (bool first = true; n > 0 && (first || sum < wanted); first = false) {
    std::pop_heap(ids, ids + n, less);
    sum += static_cast<double>(w[ids[--n]]);
  }
  for (int64_t i = 0; i < n; ++i) w[ids[i]] = 0.0f;
}

// Weights in those units.
struct Mass {
  const float* w;
  uint64_t operator()(int64_t i) const { return static_cast<uint64_t>(static_cast<int64_t>(w[i] * kWeightUnits)); }
};

// Nucleus is the set of weights that top_p keeps.
struct Nucleus {
  bool cut_known = false;  // else nucleus_in_order has dropped the others
  Cut cut;
};

// find_nucleus needs the sums of the weights' blocks and, if `added`, of their buckets. The cut by integer weights
// equals the definition's unless rounding could decide: the definition's sum of n weights differs from the true one by
// at most n 2^-53 of the total, the integer sum by at most n units.
Nucleus find_nucleus(const float* x, int64_t vocab, bool added, float top_p, SampleScratch* scratch) {
  Nucleus n;
  const double total = total_of(scratch->sums, vocab);
  const double wanted = static_cast<double>(top_p) * total;
  const double units = static_cast<double>(kWeightUnits);
  if (added && wanted * units >= 1) {
    const auto goal = static_cast<uint64_t>(wanted * units);
    const uint64_t doubt =
        2 * static_cast<uint64_t>(vocab) + static_cast<uint64_t>(static_cast<double>(vocab) * total * 0x1p-8);
    n.cut_known = find_cut(x, vocab, goal, Mass{scratch->weights}, scratch, &n.cut) && n.cut.before + doubt < goal &&
                  n.cut.mass >= goal + doubt;
  }
  if (!n.cut_known) nucleus_in_order(x, vocab, wanted, scratch->weights, scratch->ids);
  return n;
}

// weigh computes the weights of all tokens, 0 for those that are no candidates, and the sums of their blocks. If top_p
// searches for a cut in buckets, it also computes the sums of these and returns true.
bool weigh(const float* x, int64_t vocab, const SamplerParams& s, float max, float temperature,
           SampleScratch* scratch) {
  const RowKernels& kernels = row_kernels();
  const bool limited = s.top_k > 0 || s.top_p < 1.0f;
  const bool added = s.top_p < 1.0f && vocab < kMostTokens && std::isfinite(max);
  const Buckets buckets(added ? max : 0.0f, temperature);
  if (added) clear_sums(scratch);
  float* const w = scratch->weights;
  for (int64_t first = 0; first < vocab; first += kPiece) {
    const int64_t end = std::min(vocab, first + kPiece);
    kernels.exp_scaled(x + first, end - first, max, temperature, w + first);
    if (limited) {
      for (int64_t i = first; i < end; ++i) w[i] = x[i] > kMinusInf ? w[i] : 0.0f;  // NaN is no candidate
    }
    sum_blocks(w + first, end - first, scratch->sums + first / kBlock);
    if (added) add_up(x, first, end, buckets, Mass{w}, scratch);
  }
  return added;
}

// keep sets the weights of the candidates that top_p and min_p drop to 0, and sums the blocks again.
void keep(const float* x, int64_t vocab, const Nucleus& nucleus, float min_p, SampleScratch* scratch) {
  float* const w = scratch->weights;
  int64_t alike = nucleus.cut.alike;
  for (int64_t first = 0; first < vocab; first += kPiece) {
    const int64_t n = std::min(vocab - first, kPiece);
    float* const at = w + first;
    if (nucleus.cut_known) drop_beyond(x + first, n, nucleus.cut, &alike, 0.0f, at);
    if (min_p > 0.0f) {
      for (int64_t i = 0; i < n; ++i) at[i] = at[i] < min_p ? 0.0f : at[i];  // the largest weight is 1
    }
    sum_blocks(at, n, scratch->sums + first / kBlock);
  }
}

// Chooses among the top_k <= kListed most likely candidates, which fit a list. w: weights of these only.
constexpr int32_t kListed = 256;
int32_t choose_listed(const float* x, int64_t vocab, const SamplerParams& s, float max, float temperature, double u,
                      float* w) {
  int32_t ids[kListed];
  float values[kListed], weights[kListed];
  const RowKernels& kernels = row_kernels();
  kernels.top_k(x, vocab, s.top_k, ids, values);
  int64_t n = s.top_k;
  while (n > 0 && !(values[n - 1] > kMinusInf)) --n;  // forbidden tokens and NaN come last
  kernels.exp_scaled(values, n, max, temperature, weights);
  for (int64_t i = 0; i < n; ++i) w[ids[i]] = weights[i];
  if (s.top_p < 1.0f) {
    int32_t ascending[kListed];
    std::copy(ids, ids + n, ascending);
    std::sort(ascending, ascending + n);
    const double wanted = static_cast<double>(s.top_p) * sum_weights(w, ascending, n);
    double sum = 0;
    int64_t kept = 0;
    while (kept < n && (kept == 0 || sum < wanted)) sum += static_cast<double>(weights[kept++]);
    n = kept;
  }
  if (s.min_p > 0.0f) {
    n = std::remove_if(ids, ids + n, [&](int32_t id) { return w[id] < s.min_p; }) - ids;
  }
  std::sort(ids, ids + n);
  return draw(w, ids, n, u);
}

}  // namespace

uint64_t SampleScratch::bytes(int64_t vocab) {
  const uint64_t blocks = static_cast<uint64_t>((vocab + kBlock - 1) / kBlock);
  return 3 * round64(static_cast<uint64_t>(vocab) * 4) + round64(static_cast<uint64_t>(vocab) * sizeof(uint16_t)) +
         round64((kBuckets + kSpread) * sizeof(uint64_t)) + round64(blocks * sizeof(double));
}

void SampleScratch::init(void* mem, int64_t vocab) {
  auto* p = static_cast<uint8_t*>(mem);
  const uint64_t step = round64(static_cast<uint64_t>(vocab) * 4);
  logits = reinterpret_cast<float*>(p);
  weights = reinterpret_cast<float*>(p + step);
  ids = reinterpret_cast<int32_t*>(p + 2 * step);
  bucket_of = reinterpret_cast<uint16_t*>(p + 3 * step);
  p += 3 * step + round64(static_cast<uint64_t>(vocab) * sizeof(uint16_t));
  buckets = reinterpret_cast<uint64_t*>(p);
  sums = reinterpret_cast<double*>(p + round64((kBuckets + kSpread) * sizeof(uint64_t)));
}

int32_t choose_token(const float* logits, int64_t vocab, const HeadRow& row, const uint32_t* never,
                     SampleScratch* scratch) {
  const RowKernels& kernels = row_kernels();
  static const SamplerParams kGreedy;
  const SamplerParams& s = row.sampler != nullptr ? *row.sampler : kGreedy;
  const bool penalised = !s.bias_tokens.empty() || !row.history.empty() || row.mask != nullptr;
  if (s.temperature <= 0.0f && !penalised) {  // the common case without a copy
    int32_t id = 0;
    kernels.argmax(logits, vocab, &id);
    if (never == nullptr || !bit(never, id)) return id;
  }
  const float* x = logits;
  if (penalised || never != nullptr) {
    std::memcpy(scratch->logits, logits, static_cast<size_t>(vocab) * 4);
    apply_penalties(scratch->logits, vocab, s, row.history);
    forbid(scratch->logits, vocab, row.mask, never);
    x = scratch->logits;
  }
  int32_t best = 0;
  const float max = kernels.argmax(x, vocab, &best);
  if (max == kMinusInf) return -1;
  if (s.temperature <= 0.0f) return best;

  const float temperature = std::max(s.temperature, kMinTemperature);
  const double u = uniform_draw(s.seed, s.choice, row.output_position);
  if (s.top_k > 0 && s.top_k < vocab && std::isfinite(max)) {
    if (s.top_k <= kListed) return choose_listed(x, vocab, s, max, temperature, u, scratch->weights);
    // Tokens that top_k drops are treated as forbidden.
    Cut cut;
    const auto one = [](int64_t) { return uint64_t{1}; };
    clear_sums(scratch);
    add_up(x, 0, vocab, Buckets(max, temperature), one, scratch);
    if (find_cut(x, vocab, static_cast<uint64_t>(s.top_k), one, scratch, &cut)) {
      if (x == logits) std::memcpy(scratch->logits, logits, static_cast<size_t>(vocab) * 4);
      int64_t alike = cut.alike;
      drop_beyond(x, vocab, cut, &alike, kMinusInf, scratch->logits);
      x = scratch->logits;
    }
  }
  const bool added = weigh(x, vocab, s, max, temperature, scratch);
  if (s.top_p < 1.0f || s.min_p > 0.0f) {
    const Nucleus nucleus = s.top_p < 1.0f ? find_nucleus(x, vocab, added, s.top_p, scratch) : Nucleus();
    keep(x, vocab, nucleus, s.min_p, scratch);
  }
  return draw_all(scratch->weights, vocab, u, scratch->sums);
}

LogSoftmax::LogSoftmax(const float* logits, int64_t vocab, float t) : temperature(t) {
  const RowKernels& kernels = row_kernels();
  int32_t at = 0;
  max = kernels.argmax(logits, vocab, &at);
  log_sum = log_f32(kernels.sum_exp(logits, vocab, max, t));
}

void finish_row(const float* logits, int64_t vocab, const HeadRow& row, const uint32_t* never, SampleScratch* scratch) {
  if (row.logits != nullptr) std::memcpy(row.logits, logits, static_cast<size_t>(vocab) * 4);
  if (row.token != nullptr) *row.token = choose_token(logits, vocab, row, never, scratch);
  const bool raw = row.logprob != nullptr || row.score != nullptr || (row.top_k > 0 && row.top_temperature == 1.0f);
  if (raw) {
    const LogSoftmax log_softmax(logits, vocab, 1.0f);
    if (row.logprob != nullptr) {
      *row.logprob = row.token != nullptr && *row.token >= 0 ? log_softmax(logits[*row.token]) : kMinusInf;
    }
    if (row.score != nullptr) *row.score = log_softmax(logits[row.score_token]);
    if (row.top_k > 0 && row.top_temperature == 1.0f) {
      row_kernels().top_k(logits, vocab, row.top_k, row.top_ids, row.top_logprobs);
      for (int i = 0; i < row.top_k; ++i) row.top_logprobs[i] = log_softmax(row.top_logprobs[i]);
    }
  }
  if (row.top_k > 0 && row.top_temperature != 1.0f) {
    const LogSoftmax log_softmax(logits, vocab, row.top_temperature);
    row_kernels().top_k(logits, vocab, row.top_k, row.top_ids, row.top_logprobs);
    for (int i = 0; i < row.top_k; ++i) row.top_logprobs[i] = log_softmax(row.top_logprobs[i]);
  }
}

}  // namespace tnd::cpu
