#include "cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

int64_t token_at(const int32_t* ids, int64_t i) {
  return ids != nullptr ? static_cast<int64_t>(ids[i]) : i;
}

// Sum of the weights of n tokens: block sums over the ids' ranges of 1024, each added ascending, added ascending.
// ids == nullptr: all tokens of the vocabulary; else the n ids, ascending.
double sum_weights(const float* w, const int32_t* ids, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n;) {
    const int64_t block = token_at(ids, i) / kBlock;
    double sum = 0;
    for (; i < n && token_at(ids, i) / kBlock == block; ++i) sum += static_cast<double>(w[token_at(ids, i)]);
    total += sum;
  }
  return total;
}

// Draws from weights (0 = dropped): first token in ascending id order whose running sum exceeds u * total. ids and n as
// in sum_weights.
int32_t draw(const float* w, const int32_t* ids, int64_t n, double u) {
  const auto id_at = [&](int64_t i) { return token_at(ids, i); };
  const double total = sum_weights(w, ids, n);
  const double target = u * total;
  double before = 0;
  int32_t last = -1;
  for (int64_t i = 0; i < n;) {
    const int64_t block = id_at(i) / kBlock;
    const int64_t first = i;
    double sum = 0;
    for (; i < n && id_at(i) / kBlock == block; ++i) sum += static_cast<double>(w[id_at(i)]);
    if (before + sum > target) {
      double running = 0;
      for (int64_t j = first; j < i; ++j) {
        const double v = static_cast<double>(w[id_at(j)]);
        if (v == 0) continue;
        running += v;
        last = static_cast<int32_t>(id_at(j));
        if (before + running > target) return last;
      }
    }
    before += sum;
  }
  if (last >= 0) return last;
  for (int64_t i = n; i-- > 0;) {  // the target was rounded up to the total: the last token with weight
    if (w[id_at(i)] > 0) return static_cast<int32_t>(id_at(i));
  }
  return -1;
}

}  // namespace

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

double uniform_draw(uint64_t seed, int32_t choice, int32_t position) {
  const uint32_t counter[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(choice), 0, 0};
  const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  uint32_t r[4];
  philox4x32(counter, key, r);
  const uint64_t bits = (uint64_t{r[1]} << 32 | r[0]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

uint64_t SampleScratch::bytes(int64_t vocab) {
  return 3 * round64(static_cast<uint64_t>(vocab) * 4);
}

void SampleScratch::init(void* mem, int64_t vocab) {
  auto* p = static_cast<uint8_t*>(mem);
  const uint64_t step = round64(static_cast<uint64_t>(vocab) * 4);
  logits = reinterpret_cast<float*>(p);
  weights = reinterpret_cast<float*>(p + step);
  ids = reinterpret_cast<int32_t*>(p + 2 * step);
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
  const bool by_rank = s.top_k > 0 || s.top_p < 1.0f;
  float* w = scratch->weights;
  kernels.exp_scaled(x, vocab, max, temperature, w);
  const double u = uniform_draw(s.seed, s.choice, row.output_position);
  if (!by_rank) {
    if (s.min_p > 0.0f) {
      for (int64_t i = 0; i < vocab; ++i) w[i] = w[i] < s.min_p ? 0.0f : w[i];  // the largest weight is 1
    }
    return draw(w, nullptr, vocab, u);
  }

  // The candidates in order of likelihood, as far as top_k and top_p ask for them.
  int32_t* ids = scratch->ids;
  int64_t n = 0;
  for (int64_t i = 0; i < vocab; ++i) {
    if (x[i] != kMinusInf && x[i] == x[i]) ids[n++] = static_cast<int32_t>(i);
  }
  const int64_t limit = s.top_k > 0 ? std::min<int64_t>(s.top_k, n) : n;
  const LessLikely less{x};
  if (limit < n) {
    std::nth_element(ids, ids + limit, ids + n, [&](int32_t a, int32_t b) { return less(b, a); });
    n = limit;
  }
  if (s.top_p < 1.0f) {
    std::sort(ids, ids + n);
    const double wanted = static_cast<double>(s.top_p) * sum_weights(w, ids, n);
    std::make_heap(ids, ids + n, less);
    double sum = 0;
    int64_t kept = 0;
    while (kept < n && sum < wanted) {
      std::pop_heap(ids, ids + (n - kept), less);
      ++kept;
      sum += static_cast<double>(w[ids[n - kept]]);
    }
    if (kept == 0) {  // top_p so small that nothing is wanted: the most likely token stays
      std::pop_heap(ids, ids + n, less);
      kept = 1;
    }
    std::move(ids + (n - kept), ids + n, ids);
    n = kept;
  }
  if (s.min_p > 0.0f) {
    n = std::remove_if(ids, ids + n, [&](int32_t id) { return w[id] < s.min_p; }) - ids;
  }
  std::sort(ids, ids + n);
  return draw(w, ids, n, u);
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
