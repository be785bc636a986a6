// safetensors and its JSON: good files read back in ggml order, broken ones are refused with a text that names them.
#include "gguf/safetensors.h"

#include <string>

#include "harness.h"

using namespace tnd;
using gguf::Safetensors;

namespace {

std::string image(const std::string& header, size_t data) {
  const uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + header + std::string(data, '\1');
}

}  // namespace

TEST(reads_tensors) {
  const std::string s =
      image(R"({"__metadata__":{"format":"pt"},"fc.weight":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
            R"("norm.weight":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},)"
            R"("s":{"dtype":"F16","shape":[],"data_offsets":[20,22]}})",
            22);
  std::unique_ptr<Safetensors> f;
  CHECK_OK(Safetensors::open_memory(s.data(), s.size(), &f));
  REQUIRE(f != nullptr);
  const TensorView* t = f->find("fc.weight");
  REQUIRE(t != nullptr);
  CHECK(t->type == 30 && t->n_dims == 2 && t->ne[0] == 3 && t->ne[1] == 2 && t->bytes == 12);
  CHECK_EQ(f->find("norm.weight")->ne[0], 2u);
  CHECK_EQ(f->find("s")->n_dims, 1u);
  CHECK(f->find("__metadata__") == nullptr);
}

TEST(refuses_broken_files) {
  struct {
    const char *header, *wanted;
  } cases[] = {
      {"{}", ""},
      {"[]", "no object"},
      {"", "value missing"},
      {"{", "expected a string"},
      {"{}x", "text after"},
      {R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "dtype I8"},
      {R"({"a":{"dtype":"F16","shape":[1]}})", "lacks"},
      {R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,4]}})", "data_offsets"},
      {R"({"a":{"dtype":"F16","shape":[9],"data_offsets":[0,18]}})", "data_offsets"},
      {R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[2,0]}})", "data_offsets"},
      {R"({"a":{"dtype":"F16","shape":[0],"data_offsets":[0,0]}})", "shape"},
      {R"({"a":{"dtype":"F16","shape":[1,1,1,1,1],"data_offsets":[0,2]}})", "shape"},
      {R"({"a":{"dtype":"F16","shape":[9223372036854775807,4],"data_offsets":[0,2]}})", "shape"},
      {R"({"a":{"dtype":"F16","shape":[1.0],"data_offsets":[0,2]}})", "shape"},
      {R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"a":{"dtype":"F16","shape":[1],"data_offsets":[2,4]}})",
       "twice"},
      {R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       "overlap"},
  };
  for (const auto& c : cases) {
    const std::string s = image(c.header, 8);
    std::unique_ptr<Safetensors> f;
    const Status st = Safetensors::open_memory(s.data(), s.size(), &f);
    const bool ok = *c.wanted == 0 ? st.ok() : st.message().find(c.wanted) != std::string::npos;
    CHECK_MSG(ok, std::string(c.header) + ": " + st.message());
  }
  const std::string s = std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8) + "{}";
  std::unique_ptr<Safetensors> f;
  CHECK(!Safetensors::open_memory(s.data(), s.size(), &f).ok());
}

TEST(json_syntax) {
  struct {
    const char* text;
    bool ok;
  } cases[] = {
      {R"([1, -2.5e3, "a\u00e9\ud83d\ude00\n", true, false, null, {"k": []}])", true},
      {"01", false},
      {"1.", false},
      {"-", false},
      {"1e", false},
      {"[1,]", false},
      {"{\"a\":1,}", false},
      {"{\"a\" 1}", false},
      {"[1 2]", false},
      {"\"\\x\"", false},
      {"\"\\ud800\"", false},
      {"\"a\nb\"", false},
      {"tru", false},
      {"\"open", false},
      {"[[]]", true},
      {"{\"a\":{\"a\":1}}", true},
  };
  for (const auto& c : cases) {
    Json j;
    CHECK_MSG(j.parse(c.text, "t").ok() == c.ok, c.text);
  }
  Json j;
  CHECK_OK(j.parse(cases[0].text, "t"));
  const Json::Value* v = j.first(j.root());
  CHECK(v->is_integer && v->integer == 1);
  v = j.next(*v);
  CHECK_EQ(v->number, -2500.0);
  v = j.next(*v);
  CHECK_EQ(v->text, "a\xc3\xa9\xf0\x9f\x98\x80\n");
  CHECK(!j.parse(std::string(33, '[') + std::string(33, ']'), "t").ok());
  CHECK(j.parse(std::string(32, '[') + std::string(32, ']'), "t").ok());
}

TEST_MAIN()
