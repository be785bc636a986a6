// Models and trees that the parts of engine_test share.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "engine_util.h"

namespace tnd::test {

inline constexpr uint32_t kLogits = TND_WANT_LOGITS | TND_WANT_TOKEN;

struct Model {
  const char* label;
  std::string path;
  int32_t vocab;
};
inline std::vector<Model> models() {
  return {{"q4_k_m", demo_model(), 8192},
          {"ratio3", random_model("ratio3"), 512},
          {"onelayer", random_model("onelayer"), 512},
          {"qwen3", TND_ROOT "/models/tandem-tiny-prefill-q8_0.gguf", 8192}};
}

// Logits of every row of tokens, decoded one by one: step, commit, step, …
inline std::vector<float> one_by_one(const Engine& e, int32_t s, const std::vector<int32_t>& tokens) {
  std::vector<float> logits;
  for (const int32_t token : tokens) {
    StepIn in;
    in.groups = {e.rows(s, {token}, {-1}, kLogits)};
    const StepOut out = e.run_ok(in);
    logits.insert(logits.end(), out.logits.begin(), out.logits.end());
    e.commit(s, {0});
  }
  return logits;
}

// Logits of every row of tokens, verified as chains of at most n and committed.
inline std::vector<float> as_chains(const Engine& e, int32_t s, const std::vector<int32_t>& tokens, size_t n) {
  std::vector<float> logits;
  for (size_t at = 0; at < tokens.size(); at += n) {
    const size_t count = std::min(n, tokens.size() - at);
    StepIn in;
    in.groups = {e.rows(s,
                        std::vector<int32_t>(tokens.begin() + static_cast<std::ptrdiff_t>(at),
                                             tokens.begin() + static_cast<std::ptrdiff_t>(at + count)),
                        Engine::chain(count), kLogits)};
    const StepOut part = e.run_ok(in);
    logits.insert(logits.end(), part.logits.begin(), part.logits.end());
    std::vector<int32_t> path(count);
    for (size_t i = 0; i < count; ++i) path[i] = static_cast<int32_t>(i);
    e.commit(s, path);
  }
  return logits;
}

inline std::vector<int32_t> random_tree(Rng* rng, int n) {
  std::vector<int32_t> parents;
  const uint64_t shape = rng->below(4);  // bushy, deep, chain with twigs, several roots
  for (int i = 0; i < n; ++i) {
    int32_t p = i - 1;
    if (i > 0 && shape == 0) p = static_cast<int32_t>(rng->below(static_cast<uint64_t>(i)));
    if (i > 0 && shape == 1)
      p = i - 1 - static_cast<int32_t>(rng->below(std::min<uint64_t>(3, static_cast<uint64_t>(i))));
    if (i > 0 && shape == 2 && rng->below(4) == 0) p = static_cast<int32_t>(rng->below(static_cast<uint64_t>(i)));
    if (i > 0 && shape == 3) p = static_cast<int32_t>(rng->below(static_cast<uint64_t>(i) + 1)) - 1;
    parents.push_back(p);
  }
  return parents;
}

inline std::vector<int32_t> path_to(const std::vector<int32_t>& parents, int32_t row) {
  std::vector<int32_t> path;
  for (; row >= 0; row = parents[static_cast<size_t>(row)]) path.push_back(row);
  std::reverse(path.begin(), path.end());
  return path;
}

inline std::vector<int32_t> pick(const std::vector<int32_t>& values, const std::vector<int32_t>& at) {
  std::vector<int32_t> out;
  for (const int32_t i : at) out.push_back(values[static_cast<size_t>(i)]);
  return out;
}

}  // namespace tnd::test
