// safetensors reader: u64 header length, JSON header {name: {dtype, shape, data_offsets}}, data. Same views as a GGUF:
// shapes are turned into ggml order (ne[0] = last dimension), dtypes into ggml type ids.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "core/tensor_view.h"
#include "gguf/json.h"

namespace tnd::gguf {

class Safetensors final : public TensorSource {
 public:
  static constexpr uint64_t kMaxHeader = 16u << 20;

  // open maps one file. Types BF16, F16, F32 only; offsets must lie inside the file and not overlap; 1 to 4
  // dimensions (a scalar counts as [1]). Errors: TND_NOT_FOUND, TND_INVALID_ARGUMENT, TND_UNIMPLEMENTED (other types,
  // sharded sets), naming file and tensor.
  static Status open(const char* path, std::unique_ptr<Safetensors>* out);
  // open_memory parses a file image, borrowed for the life of the object.
  static Status open_memory(const void* data, uint64_t size, std::unique_ptr<Safetensors>* out);
  ~Safetensors() override;
  Safetensors(const Safetensors&) = delete;
  Safetensors& operator=(const Safetensors&) = delete;

  const TensorView* find(std::string_view name) const override;
  std::string_view path() const override { return path_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }  // sorted by name

 private:
  Safetensors() = default;
  Status parse();
  Status tensor(const Json::Value& entry, uint64_t data_size, const uint8_t* base);

  std::string path_;
  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  bool mapped_ = false;
  Json header_;
  std::vector<TensorView> tensors_;
};

// read_text reads a small file (config.json); TND_NOT_FOUND, or TND_INVALID_ARGUMENT above max_bytes.
Status read_text(const std::string& path, uint64_t max_bytes, std::string* out);

}  // namespace tnd::gguf
