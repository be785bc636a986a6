// Models of true shapes without a file: a GGUF with random, valid tensors in anonymous memory, opened through its
// path by the ordinary loader. Time depends on shapes, types and bytes, not on what the weights know, so speed measured
// on it is that of the real model (all but acceptance of drafts). Shapes: docs/spec/qwen35.md §1, dflash.md §2; tensor
// types: gguf.md §6.
//
// Host memory of the model's size is needed while the engine loads. Values are chunks of 256 weights, of a thousand, in
// a random order: normal with variance 1/k, so that activations stay finite through any number of layers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"

namespace tnd::bench {

// How weights are stored.
enum class Mix {
  kQ4KM,  // the mix of the published 27B Q4_K_M file
  kBF16,  // every matrix BF16
  kQ8_0,  // every matrix Q8_0
};

struct SyntheticShape {
  std::string arch;  // qwen35, qwen3, dflash-draft
  std::string name;
  Mix mix = Mix::kBF16;
  int32_t layers = 0;
  int32_t hidden = 0, ffn = 0;
  int32_t q_heads = 0, kv_heads = 0, head_dim = 0, rope_dims = 0;
  int32_t delta_key_heads = 0, delta_value_heads = 0;  // 0: no DeltaNet layers, else three of four
  int32_t vocab = 0;                                   // 0: no tables (drafts)
  bool tied = false;
  float rope_theta = 1e7f;
  int32_t context_length = 262144;
  std::vector<int32_t> target_layers;  // drafts: captured layers
  std::vector<bool> sliding;           // drafts: layers with a window; empty: none
  int32_t window = 0;                  // of those

  bool recurrent(int32_t layer) const { return delta_value_heads > 0 && (layer + 1) % 4 != 0; }
};

SyntheticShape qwen35_27b_q4_k_m();
SyntheticShape qwen35_08b_bf16();
SyntheticShape dflash_27b_q8_0();
SyntheticShape qwen3_06b_bf16();

// One tensor of the model.
struct SyntheticTensor {
  std::string name;
  DType type = DType::kF32;
  std::vector<uint64_t> ne;
  float gain = 1;           // standard deviation of matrix values times sqrt(ne[0])
  float low = 1, high = 1;  // range of the values of float vectors
  uint64_t elements() const;
  uint64_t bytes() const;
};

// synthetic_tensors lists the tensors of a shape in file order.
std::vector<SyntheticTensor> synthetic_tensors(const SyntheticShape& shape);

class SyntheticModel {
 public:
  // make builds the file image in memory with `threads` threads; 0 leaves all tensors empty (for memory plans). Errors:
  // TND_RESOURCE_EXHAUSTED when memory is not to be had.
  static Status make(const SyntheticShape& shape, int threads, std::unique_ptr<SyntheticModel>* out);
  // write makes the same image as a file that can be served: a shape with a vocabulary gets a tokenizer (256 byte
  // tokens, <|im_start|>, <|im_end|>, and words of their own number that no text merges to) and a chat template.
  // Errors: TND_RESOURCE_EXHAUSTED when the file cannot be made.
  static Status write(const SyntheticShape& shape, int threads, const std::string& path);
  ~SyntheticModel();
  SyntheticModel(const SyntheticModel&) = delete;
  SyntheticModel& operator=(const SyntheticModel&) = delete;

  // path opens the image from this process as long as the object lives.
  const std::string& path() const { return path_; }
  // tensor_bytes of all tensors, read_bytes of those that one decode step reads (all but an untied embedding table).
  uint64_t tensor_bytes() const { return tensor_bytes_; }
  uint64_t read_bytes() const { return read_bytes_; }
  // macs of one row in matrices, head included when there is one.
  uint64_t macs() const { return macs_; }
  uint64_t head_macs() const { return head_macs_; }

 private:
  SyntheticModel() = default;
  // fill writes the image of `shape` into the file fd_. `served` adds tokenizer and template.
  Status fill(const SyntheticShape& shape, int threads, bool served);
  int fd_ = -1;
  std::string path_;
  uint64_t tensor_bytes_ = 0, read_bytes_ = 0, macs_ = 0, head_macs_ = 0;
};

}  // namespace tnd::bench
