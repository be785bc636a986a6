// Loads a model's tensors into a backend: shape checks against the hyper-parameters, memory from the arena, progress.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "gguf/gguf.h"

namespace tnd {

// WeightLoader works in two passes with the same calls: over a measuring arena it only checks shapes and counts bytes,
// over a real one it also loads. Matrices live as long as the loader's owner keeps `matrices`.
class WeightLoader {
 public:
  WeightLoader(const TensorSource& source, Backend& backend, Arena& arena)
      : source_(source), backend_(backend), arena_(arena) {}

  // Called after each tensor with the file bytes it had.
  std::function<void(uint64_t)> on_loaded;

  // matrix loads tensor `name` with ne = [k, n].
  Status matrix(const std::string& name, int64_t k, int64_t n, std::unique_ptr<Matrix>* out);
  // vector loads a float tensor (F32, F16 or BF16) with ne = [n] as float32 in backend space.
  Status vector(const std::string& name, int64_t n, const float** out);
  // conv loads ne = [taps, channels] as [taps, channels] with channels contiguous.
  Status conv(const std::string& name, int64_t taps, int64_t channels, const float** out);

  bool has(const std::string& name) const { return source_.find(name) != nullptr; }
  // File bytes of the tensors asked for so far.
  uint64_t file_bytes() const { return file_bytes_; }

 private:
  Status floats(const TensorView& t, std::vector<float>* out) const;
  void loaded(const TensorView& t);

  const TensorSource& source_;
  Backend& backend_;
  Arena& arena_;
  uint64_t file_bytes_ = 0;
};

}  // namespace tnd
