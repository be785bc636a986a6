#include "models/dflash_hparams.h"

#include <algorithm>
#include <cstring>

namespace tnd {
namespace {

constexpr int32_t kMaxLayers = 1024;
constexpr int32_t kMaxWidth = 1 << 20;
constexpr int32_t kMaxHeads = 4096;
constexpr int32_t kMaxGroup = 96;  // of the attention operation: cpu/attention.h kAttentionMaxGroup
constexpr int32_t kMaxBlock = 128;
constexpr uint64_t kMaxConfigBytes = 1 << 20;

constexpr const char* kLayerTensors[] = {"attn_norm",   "attn_q",   "attn_k",   "attn_v", "attn_output", "attn_q_norm",
                                         "attn_k_norm", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"};
// The same in safetensors files, behind "layers.N.".
constexpr const char* kSafeTensors[] = {
    "input_layernorm",  "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
    "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
static_assert(std::size(kLayerTensors) == std::size(kSafeTensors));

}  // namespace

std::vector<int32_t> dflash_layer_ids(int32_t nl, int32_t nf) {
  std::vector<int32_t> ids;
  if (nf == 1) return {nl / 2};
  for (int32_t i = 0; i < nf; ++i) {
    const int32_t num = i * (nl - 4), den = nf - 1;
    const int32_t floor = num / den, rest = 2 * (num % den);
    int32_t id = 1 + floor;  // half to even: of 1 + floor and 2 + floor
    if (rest > den || (rest == den && id % 2 != 0)) ++id;
    ids.push_back(id);
  }
  return ids;
}

Status DflashFile::open(const char* path, int32_t target_layers, std::unique_ptr<DflashFile>* out) {
  out->reset();
  const std::string name = path == nullptr ? "" : path;
  if (!name.ends_with(".safetensors")) {
    std::unique_ptr<gguf::File> file;
    TND_TRY(gguf::File::open(path, &file));
    return from_gguf(std::move(file), target_layers, out);
  }
  std::unique_ptr<DflashFile> f(new DflashFile());
  f->path_ = name;
  TND_TRY(gguf::Safetensors::open(path, &f->safetensors_));
  const size_t slash = name.rfind('/');
  TND_TRY(f->read_config((slash == std::string::npos ? "" : name.substr(0, slash + 1)) + "config.json"));
  f->map_safetensors_names();
  TND_TRY(f->check(target_layers));
  TND_TRY(f->refuse_unknown_tensors(f->safetensors_->tensors()));
  *out = std::move(f);
  return Status();
}

Status DflashFile::from_gguf(std::unique_ptr<gguf::File> file, int32_t target_layers,
                             std::unique_ptr<DflashFile>* out) {
  std::unique_ptr<DflashFile> f(new DflashFile());
  f->path_ = std::string(file->path());
  f->gguf_ = std::move(file);
  TND_TRY(f->read_gguf(target_layers));
  TND_TRY(f->check(target_layers));
  TND_TRY(f->refuse_unknown_tensors(f->gguf_->tensors()));
  *out = std::move(f);
  return Status();
}

const TensorView* DflashFile::find(std::string_view name) const {
  const auto it = names_.find(name);
  if (it == names_.end()) return nullptr;
  if (safetensors_ != nullptr) return safetensors_->find(it->second);
  const TensorView* t = gguf_->find(it->second);
  if (t != nullptr || !name.ends_with(".ffn_norm.weight")) return t;
  // Files of the first dialect call the second norm of a layer either way.
  std::string other(it->second);
  return gguf_->find(
      other.replace(other.size() - std::strlen("ffn_norm.weight"), std::string::npos, "post_attention_norm.weight"));
}

uint64_t DflashFile::file_bytes() const {
  uint64_t n = 0;
  for (const TensorView& t : safetensors_ != nullptr ? safetensors_->tensors() : gguf_->tensors()) n += t.bytes;
  return n;
}

void DflashFile::map_gguf_names(const std::string& arch) {
  names_["fc.weight"] = arch == "dflash-draft" ? "dflash_fc.weight"
                        : arch == "dflash"     ? "fc.weight"
                                               : "dflash.fc.weight";
  names_["hidden_norm.weight"] = arch == "dflash-draft" ? "dflash_hidden_norm.weight"
                                 : arch == "dflash"     ? "enc.output_norm.weight"
                                                        : "dflash.hidden_norm.weight";
  names_["output_norm.weight"] = "output_norm.weight";
  for (int32_t i = 0; i < hparams_.decoder.n_layers; ++i) {
    for (const char* t : kLayerTensors) {
      const std::string name = "blk." + std::to_string(i) + "." + t + ".weight";
      names_[name] = name;
    }
  }
}

void DflashFile::map_safetensors_names() {
  names_["fc.weight"] = "fc.weight";
  names_["hidden_norm.weight"] = "hidden_norm.weight";
  names_["output_norm.weight"] = "norm.weight";
  for (int32_t i = 0; i < hparams_.decoder.n_layers; ++i) {
    for (size_t t = 0; t < std::size(kLayerTensors); ++t) {
      names_["blk." + std::to_string(i) + "." + kLayerTensors[t] + ".weight"] =
          "layers." + std::to_string(i) + "." + kSafeTensors[t] + ".weight";
    }
  }
}

// A tensor that nobody asks for may change what the model means (sinks, mask embedding, vocabulary map): refuse it.
Status DflashFile::refuse_unknown_tensors(const std::vector<TensorView>& tensors) const {
  for (const TensorView& t : tensors) {
    if (t.name == "token_embd.weight" || t.name == "output.weight") continue;  // copies of the target's tables
    std::string name(t.name);
    if (name.ends_with(".post_attention_norm.weight")) {
      name.replace(name.size() - std::strlen("post_attention_norm.weight"), std::string::npos, "ffn_norm.weight");
    }
    const bool known = std::any_of(names_.begin(), names_.end(), [&](const auto& n) { return n.second == name; });
    if (!known) {
      return errorf(TND_UNIMPLEMENTED, "%s: tensor %s is not part of a DFlash draft that this build runs",
                    path_.c_str(), name.c_str());
    }
  }
  return Status();
}

std::vector<std::string> DflashFile::own_keys(const std::string& name) const {
  const std::string arch(gguf_->arch()), plain = "dflash." + name, prefixed = arch + "." + plain;
  if (arch != "dflash" || (!gguf_->has(plain) && gguf_->has(prefixed))) return {prefixed};
  if (!gguf_->has(prefixed)) return {plain};
  return {plain, prefixed};
}

Status DflashFile::own_i32(const std::string& name, int32_t min, int32_t max, int32_t* out) const {
  const std::vector<std::string> keys = own_keys(name);
  TND_TRY(gguf_->get_i32(keys[0], min, max, out));
  if (keys.size() == 1) return Status();
  int32_t other = 0;
  TND_TRY(gguf_->get_i32(keys[1], min, max, &other));
  if (other == *out) return Status();
  return errorf(TND_INVALID_ARGUMENT, "%s: %s is %d, but %s is %d", path_.c_str(), keys[0].c_str(), *out,
                keys[1].c_str(), other);
}

Status DflashFile::own_ints(const std::string& name, int64_t min, int64_t max, std::vector<int64_t>* out) const {
  const std::vector<std::string> keys = own_keys(name);
  TND_TRY(gguf_->get_ints(keys[0], min, max, out));
  if (keys.size() == 1) return Status();
  std::vector<int64_t> other;
  TND_TRY(gguf_->get_ints(keys[1], min, max, &other));
  if (other == *out) return Status();
  return errorf(TND_INVALID_ARGUMENT, "%s: %s and %s hold different values", path_.c_str(), keys[0].c_str(),
                keys[1].c_str());
}

// The successors of DFlash share its architecture name (dflash2.md section 4.3). Run without their extra parts they
// would only show as low acceptance.
Status DflashFile::refuse_successors() const {
  const auto refuse = [&](const char* kind, const char* what, std::string_view name) {
    return errorf(TND_UNIMPLEMENTED, "%s: is a %s draft (%s %.*s): this build runs DFlash drafts only", path_.c_str(),
                  kind, what, static_cast<int>(std::min<size_t>(name.size(), 128)), name.data());
  };
  for (const char* name : {"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"}) {
    const std::vector<std::string> keys = own_keys(name);
    if (!gguf_->has(keys[0])) continue;
    int32_t value = 0;
    TND_TRY(own_i32(name, 0, kMaxWidth, &value));
    if (value > 0) return refuse("DFlash2", "metadata key", keys[0]);
  }
  for (const TensorView& t : gguf_->tensors()) {
    const std::string_view rest = t.name.starts_with("blk.") ? t.name.substr(t.name.find('.', 4) + 1) : t.name;
    if (rest.starts_with("markov_w")) return refuse("DSpark", "tensor", t.name);
    for (const char* part : {"selector_", "selector.", "attn_conv", "ffn_conv"}) {
      if (rest.starts_with(part)) return refuse("DFlash2", "tensor", t.name);
    }
  }
  return Status();
}

Status DflashFile::read_gguf(int32_t target_layers) {
  const gguf::File& f = *gguf_;
  const std::string arch(f.arch());
  if (arch == "gemma4-dflash-draft") {
    return errorf(TND_UNIMPLEMENTED,
                  "%s: architecture gemma4-dflash-draft: drafts of Gemma targets (scaled embeddings, capped logits) "
                  "are not supported",
                  path_.c_str());
  }
  if (arch != "dflash-draft" && arch != "qwen35-dflash-draft" && arch != "dflash") {
    return errorf(TND_INVALID_ARGUMENT,
                  "%s: architecture \"%s\" is no DFlash draft (dflash-draft, qwen35-dflash-draft, dflash)",
                  path_.c_str(), arch.c_str());
  }
  TND_TRY(refuse_successors());
  const std::string a = arch + ".";
  HParams& p = hparams_.decoder;
  p.arch = arch;
  std::string_view name;
  if (f.has("general.name")) TND_TRY(f.get_string("general.name", &name));
  p.name = std::string(name);
  TND_TRY(f.get_i32(a + "block_count", 1, kMaxLayers, &p.n_layers));
  TND_TRY(f.get_i32(a + "context_length", 1, 1 << 28, &p.context_length));
  TND_TRY(f.get_i32(a + "embedding_length", 1, kMaxWidth, &p.hidden));
  TND_TRY(f.get_i32(a + "feed_forward_length", 1, kMaxWidth, &p.ffn));
  TND_TRY(f.get_i32(a + "attention.head_count", 1, kMaxHeads, &p.q_heads));
  TND_TRY(f.get_i32(a + "attention.head_count_kv", 1, kMaxHeads, &p.kv_heads));
  TND_TRY(f.get_i32(a + "attention.key_length", 1, 4096, &p.head_dim));
  int32_t value_length = p.head_dim;
  TND_TRY(f.get_i32_or(a + "attention.value_length", 1, 4096, &value_length));
  if (value_length != p.head_dim) {
    return errorf(TND_UNIMPLEMENTED, "%s: %sattention.value_length %d differs from key_length %d", path_.c_str(),
                  a.c_str(), value_length, p.head_dim);
  }
  TND_TRY(f.get_f32(a + "attention.layer_norm_rms_epsilon", &p.eps));
  TND_TRY(f.get_f32(a + "rope.freq_base", &p.rope_theta));
  p.rope_dims = p.head_dim;
  TND_TRY(f.get_i32_or(a + "rope.dimension_count", 1, p.head_dim, &p.rope_dims));
  if (f.has(a + "rope.scaling.type")) {
    std::string_view scaling;
    TND_TRY(f.get_string(a + "rope.scaling.type", &scaling));
    if (scaling != "none") {
      return errorf(TND_UNIMPLEMENTED, "%s: %srope.scaling.type %.*s is not supported", path_.c_str(), a.c_str(),
                    static_cast<int>(std::min<size_t>(scaling.size(), 32)), scaling.data());
    }
  }
  bool causal = false;
  TND_TRY(f.get_bool_or(a + "attention.causal", &causal));
  if (causal) {
    return errorf(TND_UNIMPLEMENTED, "%s: %sattention.causal is true: all-causal drafts are not supported",
                  path_.c_str(), a.c_str());
  }
  TND_TRY(own_i32("block_size", 2, kMaxBlock, &hparams_.block));
  TND_TRY(f.get_i32(arch == "dflash" ? "tokenizer.ggml.mask_token_id" : a + "dflash.mask_token_id", 0, 1 << 28,
                    &hparams_.mask_token));

  std::vector<int64_t> ids;
  if (arch == "dflash-draft") {
    TND_TRY(f.get_ints(a + "dflash.target_layer_ids", 0, kMaxLayers, &ids));
  } else if (arch == "dflash") {
    // Stored as id + 1: "the tensor that enters layer id + 1" is the output of layer id.
    TND_TRY(own_ints("target_layers", 1, kMaxLayers, &ids));
    for (int64_t& id : ids) --id;
  } else {
    int32_t n = 0;
    TND_TRY(f.get_i32(a + "dflash.n_target_layers", 1, 64, &n));
    if (target_layers == 0) {
      return errorf(TND_FAILED_PRECONDITION,
                    "%s: names no captured layers (only %sdflash.n_target_layers): the target's layer count is needed, "
                    "give its file as tables_path",
                    path_.c_str(), a.c_str());
    }
    for (int32_t id : dflash_layer_ids(target_layers, n)) ids.push_back(id);
  }
  hparams_.target_layers.assign(ids.begin(), ids.end());
  int32_t features = static_cast<int32_t>(ids.size()) * p.hidden;
  if (f.has(own_keys("n_target_features")[0])) {
    TND_TRY(own_i32("n_target_features", features, features, &features));
  }

  hparams_.sliding.assign(static_cast<size_t>(p.n_layers), false);
  TND_TRY(f.get_i32_or(a + "attention.sliding_window", 0, 1 << 28, &hparams_.window));
  if (hparams_.window > 0) {
    const std::string key = a + "attention.sliding_window_pattern";
    TND_TRY(f.get_bools(key, &hparams_.sliding));
    if (hparams_.sliding.size() != static_cast<size_t>(p.n_layers)) {
      return errorf(TND_INVALID_ARGUMENT, "%s: %s has %zu entries, the draft %d layers", path_.c_str(), key.c_str(),
                    hparams_.sliding.size(), p.n_layers);
    }
  }
  map_gguf_names(arch);
  return Status();
}

Status DflashFile::read_config(const std::string& config_path) {
  std::string text;
  TND_TRY(gguf::read_text(config_path, kMaxConfigBytes, &text));
  Json json;
  TND_TRY(json.parse(text, config_path));
  const Json::Value* root = &json.root();
  const char* file = config_path.c_str();

  const Json::Value* archs = json.get(root, "architectures");
  const Json::Value* arch = archs == nullptr || archs->kind != Json::kArray ? nullptr : json.first(*archs);
  if (arch != nullptr && arch->text == "DFlash2DraftModel") {
    return errorf(TND_UNIMPLEMENTED, "%s: architectures: is a DFlash2 draft: this build runs DFlash drafts only", file);
  }
  if (arch == nullptr || arch->text != "DFlashDraftModel") {
    return errorf(TND_INVALID_ARGUMENT, "%s: field architectures must name DFlashDraftModel", file);
  }
  HParams& p = hparams_.decoder;
  p.arch = "dflash";
  std::string_view word;
  TND_TRY(json.get_string(root, "model_type", &word));
  if (word != "qwen3") return errorf(TND_UNIMPLEMENTED, "%s: model_type is not qwen3", file);
  if (json.get(root, "hidden_act") != nullptr) {
    TND_TRY(json.get_string(root, "hidden_act", &word));
    if (word != "silu") return errorf(TND_UNIMPLEMENTED, "%s: hidden_act is not silu", file);
  }
  TND_TRY(json.get_i32(root, "num_hidden_layers", 1, kMaxLayers, &p.n_layers));
  TND_TRY(json.get_i32(root, "max_position_embeddings", 1, 1 << 28, &p.context_length));
  TND_TRY(json.get_i32(root, "hidden_size", 1, kMaxWidth, &p.hidden));
  TND_TRY(json.get_i32(root, "intermediate_size", 1, kMaxWidth, &p.ffn));
  TND_TRY(json.get_i32(root, "num_attention_heads", 1, kMaxHeads, &p.q_heads));
  TND_TRY(json.get_i32(root, "num_key_value_heads", 1, kMaxHeads, &p.kv_heads));
  TND_TRY(json.get_i32(root, "head_dim", 1, 4096, &p.head_dim));
  p.rope_dims = p.head_dim;
  TND_TRY(json.get_f32(root, "rms_norm_eps", &p.eps));
  TND_TRY(json.get_f32(root, "rope_theta", &p.rope_theta));
  const Json::Value* scaling = json.get(root, "rope_scaling");
  if (scaling != nullptr && scaling->kind != Json::kNull) {
    return errorf(TND_UNIMPLEMENTED, "%s: rope_scaling is not supported", file);
  }
  bool flag = false;
  TND_TRY(json.get_bool_or(root, "attention_bias", &flag));
  if (flag) return errorf(TND_UNIMPLEMENTED, "%s: attention_bias is not supported", file);
  TND_TRY(json.get_i32(root, "block_size", 2, kMaxBlock, &hparams_.block));

  const Json::Value* d = json.get(root, "dflash_config");
  if (d == nullptr) return errorf(TND_INVALID_ARGUMENT, "%s: field dflash_config is missing", file);
  for (const char* key : {"causal", "use_swa"}) {
    TND_TRY(json.get_bool_or(d, key, &flag));
    if (flag) return errorf(TND_UNIMPLEMENTED, "%s: dflash_config.%s is not supported", file, key);
  }
  TND_TRY(json.get_bool_or(root, "is_causal", &flag));
  if (flag) return errorf(TND_UNIMPLEMENTED, "%s: is_causal is not supported", file);
  TND_TRY(json.get_i32(d, "mask_token_id", 0, 1 << 28, &hparams_.mask_token));
  const Json::Value* ids = json.get(d, "target_layer_ids");
  if (ids == nullptr || ids->kind != Json::kArray) {
    return errorf(TND_INVALID_ARGUMENT, "%s: field dflash_config.target_layer_ids must be an array", file);
  }
  for (const Json::Value* v = json.first(*ids); v != nullptr; v = json.next(*v)) {
    if (!v->is_integer || v->integer < 0 || v->integer > kMaxLayers) {
      return errorf(TND_INVALID_ARGUMENT, "%s: field dflash_config.target_layer_ids holds no layer id", file);
    }
    hparams_.target_layers.push_back(static_cast<int32_t>(v->integer));
  }

  hparams_.sliding.assign(static_cast<size_t>(p.n_layers), false);
  const Json::Value* types = json.get(root, "layer_types");
  if (types != nullptr && types->kind == Json::kArray) {
    size_t n = 0;
    for (const Json::Value* v = json.first(*types); v != nullptr; v = json.next(*v), ++n) {
      const bool sliding = v->text == "sliding_attention";
      if (n >= hparams_.sliding.size() || (!sliding && v->text != "full_attention")) {
        return errorf(TND_INVALID_ARGUMENT, "%s: field layer_types: entry %zu is unknown or too many", file, n);
      }
      hparams_.sliding[n] = sliding;
    }
    if (n != hparams_.sliding.size()) {
      return errorf(TND_INVALID_ARGUMENT, "%s: field layer_types has %zu entries for %d layers", file, n, p.n_layers);
    }
  }
  if (std::count(hparams_.sliding.begin(), hparams_.sliding.end(), true) > 0) {
    TND_TRY(json.get_i32(root, "sliding_window", 1, 1 << 28, &hparams_.window));
  }
  return Status();
}

Status DflashFile::check(int32_t target_layers) {
  HParams& p = hparams_.decoder;
  const char* file = path_.c_str();
  p.recurrent.assign(static_cast<size_t>(p.n_layers), false);
  if (!(p.eps > 0.0f && p.eps < 1.0f))
    return errorf(TND_INVALID_ARGUMENT, "%s: norm epsilon is %g", file, double(p.eps));
  if (!(p.rope_theta > 1.0f && p.rope_theta < 1e12f)) {
    return errorf(TND_INVALID_ARGUMENT, "%s: rotation base is %g", file, double(p.rope_theta));
  }
  if (p.q_heads % p.kv_heads != 0) {
    return errorf(TND_INVALID_ARGUMENT, "%s: %d query heads for %d key/value heads", file, p.q_heads, p.kv_heads);
  }
  if (p.q_heads / p.kv_heads > kMaxGroup) {
    return errorf(TND_UNIMPLEMENTED, "%s: %d query heads share a key/value head, at most %d are run", file,
                  p.q_heads / p.kv_heads, kMaxGroup);
  }
  if (p.head_dim % 32 != 0 || p.head_dim > 512 || p.rope_dims % 32 != 0) {
    return errorf(TND_UNIMPLEMENTED, "%s: head size %d with %d rotated dimensions; multiples of 32 up to 512 are run",
                  file, p.head_dim, p.rope_dims);
  }
  if (p.hidden % 32 != 0 || p.ffn % 32 != 0) {
    return errorf(TND_UNIMPLEMENTED, "%s: widths %d and %d must be multiples of 32", file, p.hidden, p.ffn);
  }
  if (hparams_.target_layers.empty() || hparams_.target_layers.size() > 64) {
    return errorf(TND_INVALID_ARGUMENT, "%s: captures %zu target layers, 1 to 64 are run", file,
                  hparams_.target_layers.size());
  }
  for (size_t i = 0; i < hparams_.target_layers.size(); ++i) {
    const int32_t id = hparams_.target_layers[i];
    if ((i > 0 && id <= hparams_.target_layers[i - 1]) || (target_layers > 0 && id >= target_layers)) {
      return errorf(TND_INVALID_ARGUMENT,
                    "%s: captured target layer %d is out of order or beyond the target's %d layers", file, id,
                    target_layers);
    }
  }
  hparams_.feature_raw = static_cast<int32_t>(hparams_.target_layers.size()) * p.hidden;
  if (std::count(hparams_.sliding.begin(), hparams_.sliding.end(), true) > 0 && hparams_.window < hparams_.block) {
    return errorf(TND_INVALID_ARGUMENT, "%s: sliding window %d is shorter than the block of %d", file, hparams_.window,
                  hparams_.block);
  }
  const TensorView* t = nullptr;
  TND_TRY(gguf::require2(*this, "fc.weight", static_cast<uint64_t>(hparams_.feature_raw),
                         static_cast<uint64_t>(p.hidden), &t));
  return gguf::require1(*this, "hidden_norm.weight", static_cast<uint64_t>(p.hidden), &t);
}

}  // namespace tnd
