// One named tensor inside a mapped model file, whatever the container.
#pragma once

#include <cstdint>
#include <string_view>

namespace tnd {

// Borrowed view; lives as long as the file it came from.
struct TensorView {
  std::string_view name;
  uint32_t type = 0;              // ggml type id (F32 0, F16 1, Q8_0 8, … BF16 30)
  uint32_t n_dims = 0;            // 1..4 as stored
  uint64_t ne[4] = {1, 1, 1, 1};  // ggml order, ne[0] fastest (input features); 1 beyond n_dims
  const void* data = nullptr;     // in the mapping; only the container's alignment (GGUF 32 bytes, safetensors 1)
  uint64_t bytes = 0;
};

// Anything that resolves tensor names: a GGUF (all shards) or a safetensors file.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // find returns nullptr when there is no tensor of that name.
  virtual const TensorView* find(std::string_view name) const = 0;
  // path names the file in error texts.
  virtual std::string_view path() const = 0;
};

}  // namespace tnd
