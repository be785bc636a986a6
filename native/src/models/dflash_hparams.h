// A DFlash draft's file, whatever its dialect: hyper-parameters and tensors under one set of names. Read by the draft
// engine (whole file) and by a target that fuses features (fc and its norm only). Traps: native/MODEL_dflash.md.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor_view.h"
#include "gguf/gguf.h"
#include "gguf/safetensors.h"
#include "models/hparams.h"

namespace tnd {

// What an encoding of features (TND_FEATURE_*) says, and whether it is one.
constexpr bool known_features(int32_t encoding) {
  return encoding >= TND_FEATURE_RAW_BF16 && encoding <= TND_FEATURE_FUSED_F32;
}
constexpr bool fused_features(int32_t encoding) {
  return encoding == TND_FEATURE_FUSED_BF16 || encoding == TND_FEATURE_FUSED_F32;
}
constexpr bool bf16_features(int32_t encoding) {
  return encoding == TND_FEATURE_RAW_BF16 || encoding == TND_FEATURE_FUSED_BF16;
}

struct DflashHParams {
  HParams decoder;    // Qwen3-style layers of the draft; vocab is 0 (it has no table of its own)
  int32_t block = 0;  // rows of a block, anchor included
  int32_t mask_token = 0;
  std::vector<int32_t> target_layers;  // captured target layers, 0-based, ascending
  int32_t feature_raw = 0;             // target_layers.size() * decoder.hidden
  int32_t window = 0;                  // of sliding layers, the query itself counts; 0 = no sliding layer
  std::vector<bool> sliding;           // [decoder.n_layers]
};

// DflashFile resolves canonical names, those of the third column, in any dialect:
//   GGUF "dflash-draft"        dflash_fc.weight, dflash_hidden_norm.weight    fc.weight, hidden_norm.weight,
//   GGUF "qwen35-dflash-draft" dflash.fc.weight, dflash.hidden_norm.weight    output_norm.weight,
//   GGUF "dflash"              fc.weight, enc.output_norm.weight              blk.N.{attn_norm, attn_q, attn_k, attn_v,
//   safetensors + config.json  fc.weight, hidden_norm.weight, layers.N.…      attn_output, attn_q_norm, attn_k_norm,
//                                                                             ffn_norm, ffn_gate, ffn_up,
//                                                                             ffn_down}.weight
class DflashFile final : public TensorSource {
 public:
  // open reads a GGUF, or a safetensors file beside its config.json. target_layers: layers of the target model, needed
  // by dialects that store no layer ids; 0 = unknown. Errors as gguf::File and TND_UNIMPLEMENTED for drafts of other
  // conventions (DFlash2, DSpark, Gemma targets, scaled rotation, attention sinks), naming file and field.
  static Status open(const char* path, int32_t target_layers, std::unique_ptr<DflashFile>* out);
  // from_gguf takes an open file (tests).
  static Status from_gguf(std::unique_ptr<gguf::File> file, int32_t target_layers, std::unique_ptr<DflashFile>* out);

  const DflashHParams& hparams() const { return hparams_; }
  const TensorView* find(std::string_view name) const override;
  std::string_view path() const override { return path_; }
  uint64_t file_bytes() const;

 private:
  DflashFile() = default;
  Status read_gguf(int32_t target_layers);
  // own_keys returns the metadata keys under which a GGUF holds a setting of DFlash: "<arch>.dflash.<name>"; in the
  // dialect "dflash" also "dflash.<name>", which comes first. At least one, which a file without the setting lacks.
  // own_i32 and own_ints read the setting; a missing key is an error, and so are two keys that disagree.
  std::vector<std::string> own_keys(const std::string& name) const;
  Status own_i32(const std::string& name, int32_t min, int32_t max, int32_t* out) const;
  Status own_ints(const std::string& name, int64_t min, int64_t max, std::vector<int64_t>* out) const;
  Status refuse_successors() const;
  Status read_config(const std::string& config_path);
  Status check(int32_t target_layers);
  void map_gguf_names(const std::string& arch);
  void map_safetensors_names();
  Status refuse_unknown_tensors(const std::vector<TensorView>& tensors) const;

  std::string path_;
  std::unique_ptr<gguf::File> gguf_;
  std::unique_ptr<gguf::Safetensors> safetensors_;
  std::map<std::string, std::string, std::less<>> names_;  // canonical -> name in the file
  DflashHParams hparams_;
};

// dflash_layer_ids are the layers captured for nf features of a target with nl layers, when the file does not say:
// round_half_even(1 + i (nl - 4) / (nf - 1)), nl / 2 for one feature (dflash.md section 2.3).
std::vector<int32_t> dflash_layer_ids(int32_t nl, int32_t nf);

}  // namespace tnd
