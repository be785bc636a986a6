#include "models/hparams.h"

#include <algorithm>

#include "core/backend.h"
#include "models/architectures.h"

namespace tnd {
namespace {

constexpr int32_t kMaxLayers = 1024;
constexpr int32_t kMaxWidth = 1 << 20;
constexpr int32_t kMaxHeads = 1 << 12;
constexpr int32_t kMaxGroup = 96;  // of the attention operation: cpu/attention.h kAttentionMaxGroup

Status bad(const gguf::File& file, const char* fmt, const std::string& key, int64_t got, int64_t want) {
  char text[512];
  std::snprintf(text, sizeof text, fmt, key.c_str(), static_cast<long long>(got), static_cast<long long>(want));
  return errorf(TND_INVALID_ARGUMENT, "%.*s: %s", static_cast<int>(file.path().size()), file.path().data(), text);
}

// Layers that are recurrent: an explicit list wins over the interval.
Status read_pattern(const gguf::File& file, const std::string& a, HParams* p) {
  p->recurrent.assign(static_cast<size_t>(p->n_layers), false);
  if (!p->architecture->delta) return Status();
  const std::string list = a + "attention.recurrent_layers";
  if (file.has(list)) {
    std::vector<bool> flags;
    TND_TRY(file.get_bools(list, &flags));
    if (flags.size() < p->recurrent.size()) {
      return bad(file, "%s has %lld entries, the model %lld layers", list, static_cast<int64_t>(flags.size()),
                 p->n_layers);
    }
    flags.resize(p->recurrent.size());
    p->recurrent = flags;
    return Status();
  }
  int32_t interval = 4;
  TND_TRY(file.get_i32_or(a + "full_attention_interval", 1, kMaxLayers, &interval));
  for (int32_t i = 0; i < p->n_layers; ++i) p->recurrent[static_cast<size_t>(i)] = (i + 1) % interval != 0;
  return Status();
}

// Head counts may be given per layer, with 0 on DeltaNet layers.
Status read_heads(const gguf::File& file, const std::string& key, const HParams& p, int32_t blocks, int32_t* out) {
  std::vector<int64_t> values;
  TND_TRY(file.get_ints_per_layer(key, 0, kMaxHeads, static_cast<uint64_t>(blocks), &values));
  *out = 0;
  for (int32_t i = 0; i < p.n_layers; ++i) {
    const int64_t v = values[static_cast<size_t>(i)];
    if (p.recurrent[static_cast<size_t>(i)]) continue;
    if (v < 1 || (*out != 0 && v != *out)) {
      return bad(file, "%s is %lld in one attention layer and %lld in another", key, v, *out);
    }
    *out = static_cast<int32_t>(v);
  }
  if (*out == 0) *out = static_cast<int32_t>(std::max<int64_t>(1, values[0]));  // no attention layer at all
  return Status();
}

Status read_delta(const gguf::File& file, const std::string& a, HParams* p) {
  int32_t kernel = 0, state = 0, inner = 0;
  TND_TRY(file.get_i32(a + "ssm.conv_kernel", 1, 64, &kernel));
  TND_TRY(file.get_i32(a + "ssm.state_size", 1, 4096, &state));
  TND_TRY(file.get_i32(a + "ssm.group_count", 1, kMaxHeads, &p->delta_key_heads));
  TND_TRY(file.get_i32(a + "ssm.time_step_rank", 1, kMaxHeads, &p->delta_value_heads));
  TND_TRY(file.get_i32(a + "ssm.inner_size", 1, kMaxWidth, &inner));
  if (kernel != kConvTaps || state != kDeltaDim) {
    return errorf(TND_UNIMPLEMENTED, "%.*s: convolution of %d taps with heads of %d; this build has %d and %d",
                  static_cast<int>(file.path().size()), file.path().data(), kernel, state, kConvTaps, kDeltaDim);
  }
  if (p->delta_value_heads % p->delta_key_heads != 0) {
    return bad(file, "%s is %lld, no multiple of ssm.group_count %lld", a + "ssm.time_step_rank", p->delta_value_heads,
               p->delta_key_heads);
  }
  if (inner != p->delta_value_heads * kDeltaDim) {
    return bad(file, "%s is %lld, expected %lld (time_step_rank * state_size)", a + "ssm.inner_size", inner,
               p->delta_value_heads * kDeltaDim);
  }
  return Status();
}

}  // namespace

int32_t HParams::delta_layers(int32_t first, int32_t last) const {
  return static_cast<int32_t>(std::count(recurrent.begin() + first, recurrent.begin() + last, true));
}

int32_t HParams::attention_layers(int32_t first, int32_t last) const {
  return last - first - delta_layers(first, last);
}

Status read_hparams(const gguf::File& file, HParams* p) {
  p->arch = std::string(file.arch());
  p->architecture = find_architecture(p->arch);
  if (p->architecture == nullptr) {
    return errorf(TND_UNIMPLEMENTED, "%.*s: architecture \"%s\" is not a target this build runs (%s)",
                  static_cast<int>(file.path().size()), file.path().data(), p->arch.c_str(),
                  architecture_names(false).c_str());
  }
  std::string_view name;
  if (file.has("general.name")) TND_TRY(file.get_string("general.name", &name));
  p->name = std::string(name);
  const std::string a = p->arch + ".";

  int32_t blocks = 0, nextn = 0;
  TND_TRY(file.get_i32(a + "block_count", 1, kMaxLayers, &blocks));
  TND_TRY(file.get_i32_or(a + "nextn_predict_layers", 0, kMaxLayers, &nextn));
  if (nextn >= blocks) return bad(file, "%s is %lld of %lld blocks", a + "nextn_predict_layers", nextn, blocks);
  p->n_layers = blocks - nextn;

  TND_TRY(file.get_i32(a + "context_length", 1, 1 << 28, &p->context_length));
  TND_TRY(file.get_i32(a + "embedding_length", 1, kMaxWidth, &p->hidden));
  TND_TRY(file.get_i32(a + "feed_forward_length", 1, kMaxWidth, &p->ffn));
  TND_TRY(file.get_f32(a + "attention.layer_norm_rms_epsilon", &p->eps));
  if (!(p->eps > 0.0f && p->eps < 1.0f)) {
    return errorf(TND_INVALID_ARGUMENT, "%.*s: %sattention.layer_norm_rms_epsilon is %g",
                  static_cast<int>(file.path().size()), file.path().data(), a.c_str(), static_cast<double>(p->eps));
  }
  TND_TRY(read_pattern(file, a, p));
  TND_TRY(read_heads(file, a + "attention.head_count", *p, blocks, &p->q_heads));
  TND_TRY(read_heads(file, a + "attention.head_count_kv", *p, blocks, &p->kv_heads));
  if (p->q_heads % p->kv_heads != 0) {
    return bad(file, "%s is %lld, no multiple of head_count_kv %lld", a + "attention.head_count", p->q_heads,
               p->kv_heads);
  }
  if (p->q_heads / p->kv_heads > kMaxGroup) {
    return errorf(TND_UNIMPLEMENTED, "%.*s: %d query heads share a key/value head, at most %d are run",
                  static_cast<int>(file.path().size()), file.path().data(), p->q_heads / p->kv_heads, kMaxGroup);
  }
  int32_t value_length = 0;
  TND_TRY(file.get_i32(a + "attention.key_length", 1, 4096, &p->head_dim));
  TND_TRY(file.get_i32(a + "attention.value_length", 1, 4096, &value_length));
  if (value_length != p->head_dim) {
    return bad(file, "%s is %lld, key_length %lld", a + "attention.value_length", value_length, p->head_dim);
  }
  if (p->head_dim % 16 != 0 || p->head_dim > 512) {
    return errorf(TND_UNIMPLEMENTED, "%.*s: %sattention.key_length %d is no multiple of 16 up to 512",
                  static_cast<int>(file.path().size()), file.path().data(), a.c_str(), p->head_dim);
  }
  p->rope_dims = p->head_dim;
  TND_TRY(file.get_i32_or(a + "rope.dimension_count", 1, p->head_dim, &p->rope_dims));
  if (p->rope_dims % 32 != 0) {
    return errorf(TND_UNIMPLEMENTED, "%.*s: %srope.dimension_count %d is no multiple of 32",
                  static_cast<int>(file.path().size()), file.path().data(), a.c_str(), p->rope_dims);
  }
  TND_TRY(file.get_f32(a + "rope.freq_base", &p->rope_theta));
  if (!(p->rope_theta > 1.0f && p->rope_theta < 1e12f)) {
    return errorf(TND_INVALID_ARGUMENT, "%.*s: %srope.freq_base is %g", static_cast<int>(file.path().size()),
                  file.path().data(), a.c_str(), static_cast<double>(p->rope_theta));
  }
  if (p->hidden % 32 != 0 || p->ffn % 32 != 0) {
    return bad(file, "%s %lld and feed_forward_length %lld must be multiples of 32", a + "embedding_length", p->hidden,
               p->ffn);
  }
  p->gated = p->architecture->gated;
  if (p->architecture->delta) TND_TRY(read_delta(file, a, p));

  // A file with the layers of a stage that needs no embedding has none: then the tokenizer gives the vocabulary.
  const TensorView* embd = file.find("token_embd.weight");
  uint64_t tokens = 0;
  if (file.has("tokenizer.ggml.tokens")) TND_TRY(file.get_array_count("tokenizer.ggml.tokens", &tokens));
  if (embd == nullptr) {
    if (tokens == 0 || tokens > (1u << 28)) {
      return errorf(TND_INVALID_ARGUMENT, "%.*s: tensor token_embd.weight is missing",
                    static_cast<int>(file.path().size()), file.path().data());
    }
    p->vocab = static_cast<int32_t>(tokens);
    return Status();
  }
  if (embd->n_dims != 2 || embd->ne[1] > (1u << 28)) {
    return errorf(TND_INVALID_ARGUMENT, "%.*s: token_embd.weight is no table", static_cast<int>(file.path().size()),
                  file.path().data());
  }
  p->vocab = static_cast<int32_t>(embd->ne[1]);
  if (file.has("tokenizer.ggml.tokens") && tokens != static_cast<uint64_t>(p->vocab)) {
    return bad(file, "%s has %lld entries, token_embd.weight %lld rows", "tokenizer.ggml.tokens",
               static_cast<int64_t>(tokens), p->vocab);
  }
  return Status();
}

Status read_unused_tokens(const gguf::File& file, int32_t vocab, std::vector<uint32_t>* bits) {
  bits->assign(static_cast<size_t>((vocab + 31) / 32), 0u);
  if (!file.has("tokenizer.ggml.token_type")) return Status();
  std::vector<int64_t> types;
  TND_TRY(file.get_ints("tokenizer.ggml.token_type", 0, 255, &types));
  if (types.size() != static_cast<size_t>(vocab)) {
    return bad(file, "%s has %lld entries, the vocabulary %lld", "tokenizer.ggml.token_type",
               static_cast<int64_t>(types.size()), vocab);
  }
  constexpr int64_t kUnused = 5;
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] == kUnused) (*bits)[i / 32] |= 1u << (i % 32);
  }
  return Status();
}

}  // namespace tnd
