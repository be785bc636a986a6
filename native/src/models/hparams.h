// Hyper-parameters of the target families, read from GGUF metadata and checked for consistency before any tensor is
// touched. Errors are TND_INVALID_ARGUMENT (broken file) or TND_UNIMPLEMENTED (valid, but not a model we run) and name
// file and key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "gguf/gguf.h"

namespace tnd {

struct Architecture;

struct HParams {
  const Architecture* architecture = nullptr;
  std::string arch;            // its name
  std::string name;            // general.name, may be empty
  int32_t n_layers = 0;        // without next-token-prediction blocks
  int32_t context_length = 0;  // trained positions
  int32_t hidden = 0;
  int32_t ffn = 0;
  int32_t vocab = 0;  // rows of token_embd
  float eps = 0;

  // Attention.
  int32_t q_heads = 0, kv_heads = 0, head_dim = 0;
  int32_t rope_dims = 0;
  float rope_theta = 0;
  bool gated = false;  // query rows carry an output gate

  // Gated DeltaNet, 0 without.
  int32_t delta_key_heads = 0, delta_value_heads = 0;

  std::vector<bool> recurrent;  // [n_layers] true = DeltaNet

  int32_t delta_layers(int32_t first, int32_t last) const;
  int32_t attention_layers(int32_t first, int32_t last) const;
};

// read_hparams fills all fields for a file whose general.architecture is one of architectures.h.
Status read_hparams(const gguf::File& file, HParams* out);

// read_token_types marks tokens of type "unused" (5) in bits [ceil(vocab/32)]; none when the file has no types.
Status read_unused_tokens(const gguf::File& file, int32_t vocab, std::vector<uint32_t>* bits);

}  // namespace tnd
