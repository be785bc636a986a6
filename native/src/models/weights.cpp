#include "models/weights.h"

#include "core/dtype.h"

namespace tnd {

Status WeightLoader::matrix(const std::string& name, int64_t k, int64_t n, std::unique_ptr<Matrix>* out) {
  const TensorView* t = nullptr;
  TND_TRY(gguf::require2(source_, name, static_cast<uint64_t>(k), static_cast<uint64_t>(n), &t));
  TND_TRY(backend_.matrix(*t, arena_, out));
  loaded(*t);
  return Status();
}

Status WeightLoader::vector(const std::string& name, int64_t n, const float** out) {
  const TensorView* t = nullptr;
  TND_TRY(gguf::require1(source_, name, static_cast<uint64_t>(n), &t));
  float* dst = arena_.take_array<float>(Purpose::kWeights, static_cast<uint64_t>(n));
  *out = dst;
  std::vector<float> values;
  TND_TRY(floats(*t, &values));
  if (!arena_.measuring()) backend_.upload(dst, values.data(), n);
  loaded(*t);
  return Status();
}

Status WeightLoader::conv(const std::string& name, int64_t taps, int64_t channels, const float** out) {
  const TensorView* t = nullptr;
  TND_TRY(gguf::require2(source_, name, static_cast<uint64_t>(taps), static_cast<uint64_t>(channels), &t));
  float* dst = arena_.take_array<float>(Purpose::kWeights, static_cast<uint64_t>(taps * channels));
  *out = dst;
  std::vector<float> values;
  TND_TRY(floats(*t, &values));
  if (!arena_.measuring()) {
    std::vector<float> turned(values.size());
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t j = 0; j < taps; ++j) {
        turned[static_cast<size_t>(j * channels + c)] = values[static_cast<size_t>(c * taps + j)];
      }
    }
    backend_.upload(dst, turned.data(), taps * channels);
  }
  loaded(*t);
  return Status();
}

Status WeightLoader::floats(const TensorView& t, std::vector<float>* out) const {
  if (!dtype_known(static_cast<int32_t>(t.type)) || block_elems(static_cast<DType>(t.type)) != 1) {
    return errorf(TND_INVALID_ARGUMENT, "%.*s: tensor %.*s must be F32, F16 or BF16, its type is %s",
                  static_cast<int>(source_.path().size()), source_.path().data(), static_cast<int>(t.name.size()),
                  t.name.data(), gguf::type_label(t.type).c_str());
  }
  if (arena_.measuring()) return Status();
  const uint64_t n = t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3];
  out->resize(n);
  dequantise_row(static_cast<DType>(t.type), t.data, out->data(), n);
  for (uint64_t i = 0; i < n; ++i) {
    if (!((*out)[i] - (*out)[i] == 0.0f)) {
      return errorf(TND_DATA_LOSS, "%.*s: tensor %.*s has a value that is no number at element %llu",
                    static_cast<int>(source_.path().size()), source_.path().data(), static_cast<int>(t.name.size()),
                    t.name.data(), static_cast<unsigned long long>(i));
    }
  }
  return Status();
}

void WeightLoader::loaded(const TensorView& t) {
  file_bytes_ += t.bytes;
  if (on_loaded && !arena_.measuring()) on_loaded(t.bytes);
}

}  // namespace tnd
