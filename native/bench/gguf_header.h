// The header of a GGUF file that is written: keys and tensors in the order in which
// they are given (docs/spec/gguf.md §1).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tnd::bench {

class GgufHeader {
 public:
  void key_u32(const std::string& key, uint32_t v) {
    open(key, 4);
    put(&keys_, v);
  }
  void key_f32(const std::string& key, float v) {
    open(key, 6);
    put(&keys_, v);
  }
  void key_text(const std::string& key, const std::string& v) {
    open(key, 8);
    text(&keys_, v);
  }
  void key_ints(const std::string& key, const std::vector<int32_t>& values) {
    open_array(key, 5, values.size());
    for (const int32_t v : values) put(&keys_, v);
  }
  void key_flags(const std::string& key, const std::vector<bool>& values) {
    open_array(key, 7, values.size());
    for (const bool v : values) put(&keys_, static_cast<uint8_t>(v ? 1 : 0));
  }
  void key_texts(const std::string& key, const std::vector<std::string>& values) {
    open_array(key, 8, values.size());
    for (const std::string& v : values) text(&keys_, v);
  }
  // tensor adds a record; `offset` in bytes from the start of the tensor data.
  void tensor(const std::string& name, const std::vector<uint64_t>& ne, uint32_t type, uint64_t offset) {
    text(&tensors_, name);
    put(&tensors_, static_cast<uint32_t>(ne.size()));
    for (const uint64_t d : ne) put(&tensors_, d);
    put(&tensors_, type);
    put(&tensors_, offset);
    ++n_tensors_;
  }
  // bytes of the header, without padding.
  std::string bytes() const {
    std::string all = "GGUF";
    put(&all, uint32_t{3});
    put(&all, n_tensors_);
    put(&all, n_keys_);
    return all + keys_ + tensors_;
  }

 private:
  template <typename T>
  static void put(std::string* to, T v) {
    to->append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  static void text(std::string* to, const std::string& s) {
    put(to, uint64_t{s.size()});
    *to += s;
  }
  void open(const std::string& key, uint32_t type) {
    text(&keys_, key);
    put(&keys_, type);
    ++n_keys_;
  }
  void open_array(const std::string& key, uint32_t type, uint64_t n) {
    open(key, 9);
    put(&keys_, type);
    put(&keys_, n);
  }

  std::string keys_, tensors_;
  uint64_t n_keys_ = 0, n_tensors_ = 0;
};

}  // namespace tnd::bench
