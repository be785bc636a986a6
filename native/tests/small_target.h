// A small synthetic target of both kinds of layers, for tests of engines.
#pragma once

#include <memory>

#include "harness.h"
#include "synthetic_model.h"

namespace tnd::test {

inline bench::SyntheticShape small_target(bench::Mix mix, int32_t vocab, int32_t context) {
  bench::SyntheticShape s;
  s.arch = "qwen35";
  s.name = "small target";
  s.mix = mix;
  s.layers = 4;
  s.hidden = s.ffn = 256;
  s.q_heads = 4;
  s.kv_heads = 2;
  s.head_dim = 64;
  s.rope_dims = 32;
  s.delta_key_heads = 1;
  s.delta_value_heads = 2;
  s.vocab = vocab;
  s.rope_theta = 1e4f;
  s.context_length = context;
  return s;
}

inline std::unique_ptr<bench::SyntheticModel> make_synthetic(const bench::SyntheticShape& shape) {
  std::unique_ptr<bench::SyntheticModel> model;
  CHECK_OK(bench::SyntheticModel::make(shape, 1, &model));
  return model;
}

}  // namespace tnd::test
