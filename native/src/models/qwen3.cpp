// Qwen3 dense: attention and SwiGLU in every layer, rotation over the whole head, no output gate.
//
//   x = E[token]
//   for each layer:  r = x + attention(N(x; attn_norm));  x = r + mlp(N(r; ffn_norm))
//   logits = W_head N(x; output_norm)
// Norm weights are plain multipliers in file and here; the second norm of a layer is called ffn_norm.
#include "models/architectures.h"
#include "models/layers.h"

namespace tnd {

std::unique_ptr<Layer> make_qwen3_layer(bool) {
  return std::make_unique<MixerLayer<Attention>>("ffn_norm.weight");
}

}  // namespace tnd
