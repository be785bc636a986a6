// Fuzz target of the GGUF reader: any bytes must give a File whose views lie inside them, or an error text.
// Build and run (from the repository root):
//   clang++-19 -std=c++20 -O1 -g -fsanitize=fuzzer,address -Inative/src -Inative/include
//   native/tests/fuzz/gguf_fuzz.cpp
//     native/src/gguf/gguf.cpp -o /tmp/gguf_fuzz
//   /tmp/gguf_fuzz -max_len=2048 -malloc_limit_mb=1 -timeout=2 /tmp/corpus native/tests/fuzz/corpus/gguf
// The malloc limit catches sizes taken from a length field before it was bounded by the bytes that remain.
// gguf_fuzz_test replays the corpus without libFuzzer.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "views.h"

using tnd::Status;
using tnd::TensorView;
using tnd::gguf::File;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::unique_ptr<File> f;
  const Status s = File::open_memory(data, size, &f);
  if (s.ok() != (f != nullptr)) std::abort();
  if (!s.ok()) {
    if (s.message().empty()) std::abort();
    return 0;
  }
  unsigned sum = 0;
  for (const TensorView& t : f->tensors()) {
    sum += read_ends(t, data, size);
    const TensorView* again = f->find(t.name);
    if (again == nullptr || again->data != t.data) std::abort();
    const TensorView* out = nullptr;
    (void)tnd::gguf::require2(*f, t.name, t.ne[0], t.ne[1], &out);
  }
  // Keys whose getters walk the value.
  int64_t i = 0;
  int32_t n = 0;
  float x = 0;
  bool b = false;
  uint64_t count = 0;
  std::string_view text;
  std::vector<int64_t> ints;
  std::vector<bool> bools;
  std::vector<std::string_view> strings;
  for (const char* key : {"a", "b", "general.architecture", "general.alignment", "split.count", "tokens"}) {
    (void)f->get_int(key, -100, 100, &i);
    (void)f->get_i32_or(key, 0, 1 << 20, &n);
    (void)f->get_f32(key, &x);
    (void)f->get_bool(key, &b);
    if (f->get_string(key, &text).ok() && !text.empty()) sum += static_cast<unsigned char>(text.back());
    (void)f->get_array_count(key, &count);
    (void)f->get_ints(key, INT64_MIN, INT64_MAX, &ints);
    (void)f->get_bools(key, &bools);
    if (f->get_strings(key, &strings).ok()) {
      for (std::string_view v : strings) {
        if (!v.empty()) sum += static_cast<unsigned char>(v.back());
      }
    }
    (void)f->get_ints_per_layer(key, 0, 1 << 20, 3, &ints);
  }
  [[maybe_unused]] static volatile unsigned sink;
  sink = sum;  // keeps the reads
  return 0;
}
