// GGUF reader: a good file reads back; every rule of the format, broken one at a time, is refused with a text that
// names what was wrong; shards; the models of this repository.
#include "gguf/gguf.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "harness.h"

using namespace tnd;
using gguf::File;

namespace {

template <typename T>
std::string raw(T v) {
  return std::string(reinterpret_cast<const char*>(&v), sizeof v);
}
std::string text(std::string_view s) {
  return raw<uint64_t>(s.size()) + std::string(s);
}

struct Tensor {
  std::string name = "w";
  std::vector<uint64_t> ne = {32};
  uint32_t type = 0;
  uint64_t offset = 0;
  std::string data = std::string(128, '\1');
};

// A file in parts, so that a test can break one of them.
struct Image {
  std::string magic = "GGUF";
  uint32_t version = 3;
  int64_t tensor_count = -1, value_count = -1;  // -1: the true number
  std::vector<std::string> values;
  std::vector<Tensor> tensors;
  uint64_t align = 32;
  size_t cut = 0;  // bytes missing at the end

  void value(std::string_view key, uint32_t type, const std::string& bytes) {
    values.push_back(text(key) + raw(type) + bytes);
  }
  std::string bytes() const {
    std::string s = magic + raw(version) + raw<uint64_t>(tensor_count < 0 ? tensors.size() : uint64_t(tensor_count)) +
                    raw<uint64_t>(value_count < 0 ? values.size() : uint64_t(value_count));
    for (const auto& v : values) s += v;
    std::string data;
    for (const Tensor& t : tensors) {
      s += text(t.name) + raw<uint32_t>(uint32_t(t.ne.size()));
      for (uint64_t e : t.ne) s += raw(e);
      s += raw(t.type) + raw(t.offset);
      data += t.data + std::string((align - t.data.size() % align) % align, '\0');
    }
    s += std::string((align - s.size() % align) % align, '\0') + data;
    return s.substr(0, s.size() - cut);
  }
};

Image good() {
  Image f;
  f.value("general.architecture", gguf::kString, text("qwen35"));
  f.value("u32", gguf::kU32, raw<uint32_t>(7));
  f.value("u64", gguf::kU64, raw<uint64_t>(9));
  f.value("huge", gguf::kU64, raw<uint64_t>(UINT64_MAX));
  f.value("i32", gguf::kI32, raw<int32_t>(-3));
  f.value("f32", gguf::kF32, raw(1e-6f));
  f.value("flag", gguf::kBool, "\1");
  f.value("ints", gguf::kArray, raw<uint32_t>(gguf::kI32) + raw<uint64_t>(3) + raw(1) + raw(2) + raw(3));
  f.value("flags", gguf::kArray, raw<uint32_t>(gguf::kBool) + raw<uint64_t>(2) + std::string("\1\0", 2));
  f.value("words", gguf::kArray, raw<uint32_t>(gguf::kString) + raw<uint64_t>(2) + text("a") + text(""));
  f.tensors = {{"a", {32, 2}, 8, 0, std::string(68, '\1')}, {"b", {4}, 0, 96, std::string(16, '\2')}};
  return f;
}

std::string error_of(const Image& f) {
  const std::string s = f.bytes();
  std::unique_ptr<File> file;
  const Status st = File::open_memory(s.data(), s.size(), &file);
  return st.ok() ? "" : st.message();
}

}  // namespace

TEST(reads_values_and_tensors) {
  const std::string s = good().bytes();
  std::unique_ptr<File> f;
  CHECK_OK(File::open_memory(s.data(), s.size(), &f));
  REQUIRE(f != nullptr);
  CHECK_EQ(f->arch(), "qwen35");
  int32_t i = 0;
  CHECK_OK(f->get_i32("u32", 0, 10, &i));
  CHECK_EQ(i, 7);
  CHECK_OK(f->get_i32("u64", 0, 10, &i));
  CHECK_EQ(i, 9);
  CHECK_OK(f->get_i32("i32", -5, 10, &i));
  CHECK_EQ(i, -3);
  CHECK(!f->get_i32("i32", 0, 10, &i).ok());
  CHECK(!f->get_i32("f32", 0, 10, &i).ok());
  CHECK(!f->get_i32("flag", 0, 10, &i).ok());
  CHECK(!f->get_i32("huge", 0, 10, &i).ok());
  CHECK(!f->get_i32("none", 0, 10, &i).ok());
  CHECK_OK(f->get_i32_or("none", 0, 10, &i));
  CHECK(!f->get_i32_or("words", 0, 10, &i).ok());
  CHECK_EQ(i, -3);
  float x = 0;
  CHECK_OK(f->get_f32("f32", &x));
  CHECK_EQ(x, 1e-6f);
  CHECK(!f->get_f32("u32", &x).ok());
  bool b = false;
  CHECK_OK(f->get_bool("flag", &b));
  CHECK(b);
  std::vector<int64_t> ints;
  CHECK_OK(f->get_ints("ints", 0, 9, &ints));
  CHECK_EQ(ints.size(), 3u);
  CHECK(!f->get_ints("ints", 0, 2, &ints).ok());
  CHECK(!f->get_ints("flags", 0, 2, &ints).ok());
  CHECK_OK(f->get_ints_per_layer("u32", 0, 9, 4, &ints));
  CHECK_EQ(ints.size(), 4u);
  CHECK(!f->get_ints_per_layer("ints", 0, 9, 4, &ints).ok());
  std::vector<bool> bools;
  CHECK_OK(f->get_bools("flags", &bools));
  CHECK(bools.size() == 2 && bools[0] && !bools[1]);
  std::vector<std::string_view> words;
  CHECK_OK(f->get_strings("words", &words));
  CHECK(words.size() == 2 && words[0] == "a" && words[1].empty());
  const TensorView* t = f->find("b");
  REQUIRE(t != nullptr);
  CHECK_EQ(static_cast<const char*>(t->data)[15], '\2');
  CHECK_EQ(f->find("a")->bytes, 68u);
  CHECK(f->find("c") == nullptr);
  CHECK_OK(gguf::require2(*f, "a", 32, 2, &t));
  const Status st = gguf::require2(*f, "a", 32, 3, &t);
  CHECK(st.message().find("[32, 2, 1, 1]") != std::string::npos);
}

TEST(refuses_broken_files) {
  struct Case {
    const char* name;
    const char* wanted;  // part of the error text; "" = must load
    std::function<void(Image&)> change;
  };
  const Case cases[] = {
      {"nothing", "", [](Image&) {}},
      {"version 2", "", [](Image& f) { f.version = 2; }},
      {"missing last padding", "", [](Image& f) { f.cut = 16; }},
      {"magic", "not a GGUF", [](Image& f) { f.magic = "GGML"; }},
      {"version 1", "version 1", [](Image& f) { f.version = 1; }},
      {"version 4", "version 4", [](Image& f) { f.version = 4; }},
      {"big endian", "big-endian", [](Image& f) { f.version = 0x03000000; }},
      {"kv count", "cannot fit", [](Image& f) { f.value_count = 1 << 20; }},
      {"kv count max", "cannot fit", [](Image& f) { f.value_count = INT64_MAX; }},
      {"tensor count", "cannot fit", [](Image& f) { f.tensor_count = 1 << 20; }},
      {"one tensor too many", "",
       [](Image& f) {
         f.tensor_count = 1;
         f.tensors.pop_back();
       }},
      {"truncated header", "truncated",
       [](Image& f) {
         f = Image();
         f.cut = 12;
       }},
      {"truncated data", "tensor b ends beyond the file", [](Image& f) { f.cut = 17; }},
      {"empty key", "empty", [](Image& f) { f.value("", gguf::kU8, "x"); }},
      {"long key", "a key at byte", [](Image& f) { f.value(std::string(65536, 'k'), gguf::kU8, "x"); }},
      {"duplicate key", "key u32 appears twice", [](Image& f) { f.value("u32", gguf::kU8, "x"); }},
      {"value type", "key k: unknown value type 13", [](Image& f) { f.value("k", 13, "x"); }},
      {"bool 2", "key k: bool with value 2", [](Image& f) { f.value("k", gguf::kBool, "\2"); }},
      {"bool array", "bool with value 9",
       [](Image& f) { f.value("k", gguf::kArray, raw<uint32_t>(7) + raw<uint64_t>(1) + "\t"); }},
      {"array of arrays", "unsupported element type 9",
       [](Image& f) { f.value("k", gguf::kArray, raw<uint32_t>(9) + raw<uint64_t>(1)); }},
      {"array count", "array of",
       [](Image& f) { f.value("k", gguf::kArray, raw<uint32_t>(0) + raw<uint64_t>(1ull << 40)); }},
      {"array beyond file", "truncated",
       [](Image& f) { f.value("k", gguf::kArray, raw<uint32_t>(10) + raw<uint64_t>(1 << 20)); }},
      {"string length", "has length", [](Image& f) { f.value("k", gguf::kString, raw<uint64_t>(1ull << 62)); }},
      {"alignment type", "general.alignment",
       [](Image& f) { f.value("general.alignment", gguf::kU64, raw<uint64_t>(32)); }},
      {"alignment 24", "general.alignment",
       [](Image& f) { f.value("general.alignment", gguf::kU32, raw<uint32_t>(24)); }},
      {"alignment 4", "general.alignment",
       [](Image& f) { f.value("general.alignment", gguf::kU32, raw<uint32_t>(4)); }},
      {"alignment 2M", "general.alignment",
       [](Image& f) { f.value("general.alignment", gguf::kU32, raw<uint32_t>(2 << 20)); }},
      {"tensor name long", "a tensor name", [](Image& f) { f.tensors[0].name = std::string(64, 'n'); }},
      {"tensor name empty", "empty or contains NUL", [](Image& f) { f.tensors[0].name = ""; }},
      {"tensor name NUL", "empty or contains NUL", [](Image& f) { f.tensors[0].name = std::string("a\0b", 3); }},
      {"duplicate tensor", "tensor a appears twice", [](Image& f) { f.tensors[1].name = "a"; }},
      {"no dims", "dimensions", [](Image& f) { f.tensors[0].ne = {}; }},
      {"five dims", "dimensions", [](Image& f) { f.tensors[0].ne = {32, 2, 1, 1, 1}; }},
      {"zero extent", "extent", [](Image& f) { f.tensors[0].ne = {32, 0}; }},
      {"negative extent", "extent", [](Image& f) { f.tensors[0].ne = {32, 1ull << 63}; }},
      {"overflow", "overflows", [](Image& f) { f.tensors[0].ne = {1ull << 32, 1ull << 32}; }},
      {"size overflow", "tensor a", [](Image& f) { f.tensors[0].type = 28, f.tensors[0].ne = {1ull << 62}; }},
      {"removed type", "type (4)", [](Image& f) { f.tensors[0].type = 4; }},
      {"unknown type", "type (99)", [](Image& f) { f.tensors[0].type = 99; }},
      {"block", "multiple of the block", [](Image& f) { f.tensors[0].ne = {33, 2}; }},
      {"offset gap", "running sum", [](Image& f) { f.tensors[1].offset = 128; }},
      {"offset unaligned", "running sum", [](Image& f) { f.tensors[1].offset = 68; }},
      {"shard in memory", "shards", [](Image& f) { f.value("split.count", gguf::kU16, raw<uint16_t>(2)); }},
      {"architecture", "general.architecture",
       [](Image& f) { f.values[0] = text("general.architecture") + raw<uint32_t>(4) + raw<uint32_t>(1); }},
  };
  for (const Case& c : cases) {
    Image f = good();
    c.change(f);
    const std::string got = error_of(f);
    const bool ok = *c.wanted == 0 ? got.empty() : got.find(c.wanted) != std::string::npos;
    CHECK_MSG(ok, std::string(c.name) + ": got \"" + got + "\"");
  }
}

// Every prefix of a good file is refused or lacks only the last padding; nothing reads beyond the end (sanitizers).
TEST(refuses_every_truncation) {
  const std::string s = good().bytes();
  for (size_t n = 0; n + 16 < s.size(); n++) {
    const std::vector<char> copy(s.begin(), s.begin() + long(n));
    std::unique_ptr<File> f;
    CHECK_MSG(!File::open_memory(copy.data(), n, &f).ok(), std::to_string(n));
  }
}

TEST(opens_shards) {
  char dir[] = "/tmp/tnd-gguf-XXXXXX";
  REQUIRE(mkdtemp(dir) != nullptr);
  const std::string base = std::string(dir) + "/m";
  auto write = [&](const std::string& name, const Image& f) {
    FILE* o = std::fopen(name.c_str(), "wb");
    const std::string s = f.bytes();
    std::fwrite(s.data(), 1, s.size(), o);
    std::fclose(o);
  };
  auto shard = [&](int no, const char* tensor, int total) {
    Image f;
    if (no == 0) f.value("general.architecture", gguf::kString, text("qwen3"));
    f.value("split.no", gguf::kU16, raw<uint16_t>(uint16_t(no)));
    f.value("split.count", gguf::kU16, raw<uint16_t>(2));
    f.value("split.tensors.count", gguf::kI32, raw<int32_t>(total));
    f.tensors = {{tensor, {32}, 0, 0, std::string(128, char('0' + no))}};
    return f;
  };
  const std::string first = base + "-00001-of-00002.gguf", second = base + "-00002-of-00002.gguf";
  write(first, shard(0, "a", 2));
  std::unique_ptr<File> f;
  Status s = File::open(first.c_str(), &f);
  CHECK_EQ(s.code(), TND_NOT_FOUND);
  write(second, shard(1, "b", 2));
  CHECK_OK(File::open(first.c_str(), &f));
  REQUIRE(f != nullptr);
  CHECK_EQ(static_cast<const char*>(f->find("b")->data)[0], '1');
  CHECK(!File::open(second.c_str(), &f).ok());
  write(second, shard(1, "a", 2));
  CHECK(!File::open(first.c_str(), &f).ok());
  write(second, shard(0, "b", 2));
  CHECK(!File::open(first.c_str(), &f).ok());
  write(first, shard(0, "a", 3));
  write(second, shard(1, "b", 2));
  s = File::open(first.c_str(), &f);
  CHECK(s.message().find("split.tensors.count") != std::string::npos);
  std::remove(first.c_str());
  std::remove(second.c_str());
  rmdir(dir);
}

TEST(opens_the_demonstration_models) {
  for (const char* name : {"target-q4_k_m", "draft-q8_0", "prefill-q8_0"}) {
    const std::string path = std::string(TND_ROOT "/models/tandem-tiny-") + name + ".gguf";
    std::unique_ptr<File> f;
    CHECK_OK(File::open(path.c_str(), &f));
    CHECK(f != nullptr && f->tensors().size() > 20);
  }
  std::unique_ptr<File> f;
  CHECK_EQ(File::open("/nonexistent/x.gguf", &f).code(), TND_NOT_FOUND);
}

TEST_MAIN()
