// Choice of tokens from logits on the device: argmax, top-k with log-probabilities and the sampler of docs/sampling.md,
// with the bits of cpu/sample.cpp. Logits stay on the device; a few numbers per row come back.
#pragma once

#include "core/backend.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

struct ChooseResult {
  int32_t token;  // -1 = nothing is allowed
  float logprob;  // of token, raw logits
  float score;    // log-probability of score_token
  int32_t unused;
};

// What a row asks for: HeadRow in device form. Lists live in device memory.
struct ChooseRow {
  uint32_t wants = 0;  // kWant*
  // Sampler; temperature 0 = argmax.
  float temperature = 0, top_p = 1, min_p = 0;
  float repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  int32_t top_k = 0;
  double draw = 0;                       // uniform_draw of the row's seed, choice and output position
  const int32_t* bias_tokens = nullptr;  // [n_bias] ascending, equal ones in list order
  const float* bias_values = nullptr;
  const TokenCount* history = nullptr;  // [n_history] distinct
  float* undo = nullptr;                // scratch [n_bias + n_history]
  int32_t n_bias = 0, n_history = 0;
  const uint32_t* mask = nullptr;  // allowed tokens, nullptr = all

  int32_t score_token = 0;
  int32_t top_n = 0;  // entries of top_ids, top_logprobs; at most kMaxTop
  float top_temperature = 1;
  int32_t* top_ids = nullptr;
  float* top_logprobs = nullptr;
  ChooseResult* result = nullptr;
};

inline constexpr uint32_t kWantToken = 1;
inline constexpr uint32_t kWantLogprob = 2;  // of the token
inline constexpr uint32_t kWantScore = 4;
inline constexpr uint32_t kWantRawSum = 8;    // log-softmax at temperature 1 is needed
inline constexpr uint32_t kWantTopSum = 16;   // log-softmax at top_temperature (not 1) is needed
inline constexpr uint32_t kWantPlainId = 32;  // greedy, no mask, bias or penalty: token 0 if no logit is finite

inline constexpr int kMaxTop = 1024;

struct ChooseArgs {
  float* logits = nullptr;  // [rows, vocab], row stride `stride`; penalties are written here and taken back
  int64_t stride = 0;
  int32_t vocab = 0;
  int32_t rows = 0;
  const ChooseRow* plans = nullptr;  // device [rows]
  const uint32_t* never = nullptr;   // device bits of tokens that are never chosen, nullptr = none
  void* scratch = nullptr;           // choose_scratch_bytes(), 8-byte aligned
  const int32_t* live = nullptr;     // device: rows in use, nullptr = all
};
uint64_t choose_scratch_bytes(int64_t vocab, int rows);
void launch_choose(Stream& stream, const ChooseArgs& args);

}  // namespace tnd::gpu
