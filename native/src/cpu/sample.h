// Choice of tokens from logits on the CPU: argmax, top-k with log-probabilities and the sampler of docs/sampling.md.
#pragma once

#include <cstdint>

#include "core/backend.h"

namespace tnd::cpu {

// Working memory of one thread, planned by the caller for a vocabulary.
struct SampleScratch {
  float* logits = nullptr;   // [vocab]
  float* weights = nullptr;  // [vocab]
  int32_t* ids = nullptr;    // [vocab]
  static constexpr int32_t kBuckets = 4096, kSpread = 16;
  uint16_t* bucket_of = nullptr;  // [vocab]
  uint64_t* buckets = nullptr;    // [kBuckets + kSpread]
  double* sums = nullptr;         // [ceil(vocab / 1024)]
  // bytes for a vocabulary; init lays the arrays out in mem (64-byte aligned).
  static uint64_t bytes(int64_t vocab);
  void init(void* mem, int64_t vocab);
};

// choose_token returns the token of one row, -1 when nothing is allowed.
//   logits [vocab] raw, not changed; row: sampler (nullptr = argmax), history, mask, output_position; never: bits of
//   tokens that are never chosen (nullptr = none).
int32_t choose_token(const float* logits, int64_t vocab, const HeadRow& row, const uint32_t* never,
                     SampleScratch* scratch);

// LogSoftmax computes log-probabilities of a row: logprob(x) = ((x - max) / T) - ln(sum exp((x - max) / T)), with the
// sum of RowKernels.sum_exp.
struct LogSoftmax {
  float max = 0, log_sum = 0, temperature = 1;
  LogSoftmax(const float* logits, int64_t vocab, float temperature);
  float operator()(float x) const {
    const float shifted = x - max;
    return (temperature == 1.0f ? shifted : shifted / temperature) - log_sum;
  }
};

// finish_row computes everything that a HeadRow asks for from its logits [vocab].
void finish_row(const float* logits, int64_t vocab, const HeadRow& row, const uint32_t* never, SampleScratch* scratch);

}  // namespace tnd::cpu
