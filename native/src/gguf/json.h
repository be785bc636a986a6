// A small JSON reader for the headers of safetensors files and the config.json beside them: whole text in memory,
// strict RFC 8259 syntax, bounded depth and size, no recursion on the input. Duplicate keys of an object are refused.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace tnd {

class Json {
 public:
  enum Kind : uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };
  struct Value {
    Kind kind = kNull;
    bool is_integer = false;  // of numbers: written without fraction and exponent and within int64
    bool boolean = false;
    uint32_t child = 0;  // first element of arrays and objects, 0 = none
    uint32_t next = 0;   // next element of the parent, 0 = last
    int64_t integer = 0;
    double number = 0;
    std::string_view text;  // of strings, unescaped
    std::string_view key;   // inside an object
  };

  static constexpr int kMaxDepth = 32;

  // parse reads `text`, borrowed for the life of the Json. Errors: TND_INVALID_ARGUMENT with `file` and the byte.
  Status parse(std::string_view text, const std::string& file);

  const Value& root() const { return values_[0]; }
  // first / next walk the elements of an array or object; nullptr at the end.
  const Value* first(const Value& v) const { return v.child == 0 ? nullptr : &values_[v.child]; }
  const Value* next(const Value& v) const { return v.next == 0 ? nullptr : &values_[v.next]; }
  // get returns the member of an object, nullptr when v is null, no object or lacks the key.
  const Value* get(const Value* v, std::string_view key) const;

  // Typed members of an object; *_or keep *out when the key is missing or null. Errors name file and key.
  Status get_i32(const Value* v, std::string_view key, int32_t min, int32_t max, int32_t* out) const;
  Status get_i32_or(const Value* v, std::string_view key, int32_t min, int32_t max, int32_t* out) const;
  Status get_f32(const Value* v, std::string_view key, float* out) const;
  Status get_bool_or(const Value* v, std::string_view key, bool* out) const;
  Status get_string(const Value* v, std::string_view key, std::string_view* out) const;

 private:
  class Reader;
  Status wrong(std::string_view key, const char* wanted) const;

  std::string file_;
  std::vector<Value> values_;
  std::deque<std::string> unescaped_;
};

}  // namespace tnd
