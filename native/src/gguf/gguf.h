// GGUF v2/v3 reader: maps a model file (all shards of it), checks every length, offset and type before use, and hands
// out views. Nothing is copied but small tables; no length field is trusted before it is bounded by the bytes that
// remain. Format: "GGUF" magic, key/value pairs, tensor records, aligned data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "core/tensor_view.h"

namespace tnd::gguf {

enum ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// TypeLayout is the storage of one ggml type: `bytes` per block of `elems` along ne[0].
struct TypeLayout {
  const char* name;
  uint32_t bytes, elems;
};
// type_layout returns nullptr for unknown, removed or unsupported ids.
const TypeLayout* type_layout(uint32_t type);
// type_label returns a type's usual name and its id for error texts: "IQ2_XXS (16)", or "99" for one without a name.
std::string type_label(uint32_t type);

class File final : public TensorSource {
 public:
  // open maps `path`; a first shard `…-00001-of-000NN.gguf` brings its siblings along. Errors: TND_NOT_FOUND (cannot
  // open or map), TND_INVALID_ARGUMENT (a rule of the format is broken: text names file and key, tensor or byte).
  static Status open(const char* path, std::unique_ptr<File>* out);
  // open_memory parses a file image; `data` is borrowed for the life of the File. Shards are refused.
  static Status open_memory(const void* data, uint64_t size, std::unique_ptr<File>* out);
  ~File() override;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::string_view path() const override { return path_; }
  // arch is general.architecture, empty when missing.
  std::string_view arch() const { return arch_; }
  uint32_t version() const { return version_; }

  // ---- metadata (of shard 0). Every getter fails with TND_INVALID_ARGUMENT, naming file and key, when the key is
  // missing, has another kind of type or leaves the range. Integers of any width are interchangeable; floats never
  // pass for integers nor the reverse.
  bool has(std::string_view key) const;
  Status get_int(std::string_view key, int64_t min, int64_t max, int64_t* out) const;
  Status get_i32(std::string_view key, int32_t min, int32_t max, int32_t* out) const;
  Status get_f32(std::string_view key, float* out) const;  // f32 or f64
  Status get_bool(std::string_view key, bool* out) const;
  Status get_string(std::string_view key, std::string_view* out) const;
  // The _or forms keep *out when the key is absent; a present key of a wrong type is still an error.
  Status get_i32_or(std::string_view key, int32_t min, int32_t max, int32_t* out) const;
  Status get_f32_or(std::string_view key, float* out) const;
  Status get_bool_or(std::string_view key, bool* out) const;
  // Arrays. count of an array of any type; values of integer, bool or string arrays.
  Status get_array_count(std::string_view key, uint64_t* out) const;
  Status get_ints(std::string_view key, int64_t min, int64_t max, std::vector<int64_t>* out) const;
  Status get_bools(std::string_view key, std::vector<bool>* out) const;
  Status get_strings(std::string_view key, std::vector<std::string_view>* out) const;
  // get_ints_per_layer accepts a scalar (repeated n times) or an array of exactly n.
  Status get_ints_per_layer(std::string_view key, int64_t min, int64_t max, uint64_t n,
                            std::vector<int64_t>* out) const;

  // ---- tensors of all shards, in file order.
  const TensorView* find(std::string_view name) const override;
  const std::vector<TensorView>& tensors() const { return tensors_; }
  // size of all mapped bytes.
  uint64_t file_bytes() const;

 private:
  struct Entry {
    std::string_view key;
    uint32_t type;        // ValueType
    uint32_t elem_type;   // of arrays
    uint64_t count;       // of arrays
    const uint8_t* data;  // first byte of the value (arrays: of the first element; strings: of the text)
    uint64_t bytes;       // of a string
  };
  struct Mapping {
    const uint8_t* data = nullptr;
    uint64_t size = 0;
    bool mapped = false;
    std::string path;
    std::vector<Entry> entries;  // sorted by key
  };
  class Parser;

  File() = default;
  Status add_file(const std::string& path);
  Status finish();
  Status need(std::string_view key, const Entry** out) const;
  Status wrong_type(const Entry& e, const char* wanted) const;
  const Entry* lookup(const Mapping& m, std::string_view key) const;

  std::string path_;
  std::string_view arch_;
  uint32_t version_ = 0;
  std::vector<std::unique_ptr<Mapping>> shards_;
  std::vector<TensorView> tensors_;
  std::vector<uint32_t> by_name_;  // indices into tensors_, sorted by name
};

// require fetches tensor `name` and checks its shape; n_dims 1: [ne0], 2: [ne0, ne1], 3: [ne0, ne1, ne2]. The error
// names the file, the tensor and both shapes.
Status require(const TensorSource& src, std::string_view name, uint32_t n_dims, uint64_t ne0, uint64_t ne1,
               uint64_t ne2, const TensorView** out);
inline Status require1(const TensorSource& src, std::string_view name, uint64_t ne0, const TensorView** out) {
  return require(src, name, 1, ne0, 1, 1, out);
}
inline Status require2(const TensorSource& src, std::string_view name, uint64_t ne0, uint64_t ne1,
                       const TensorView** out) {
  return require(src, name, 2, ne0, ne1, 1, out);
}

}  // namespace tnd::gguf
