#include "gguf/json.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace tnd {

class Json::Reader {
 public:
  Reader(Json* doc, std::string_view text) : doc_(doc), text_(text) {}

  Status run() {
    TND_TRY(document());
    skip();
    if (pos_ != text_.size()) return bad("text after the value");
    return {};
  }

 private:
  Status bad(const char* what) const {
    return errorf(TND_INVALID_ARGUMENT, "%s: JSON: %s at byte %zu", doc_->file_.c_str(), what, pos_);
  }
  void skip() {
    while (pos_ < text_.size() &&
           (text_[pos_] == ' ' || text_[pos_] == '\n' || text_[pos_] == '\r' || text_[pos_] == '\t'))
      pos_++;
  }
  bool at(char c) const { return pos_ < text_.size() && text_[pos_] == c; }
  bool eat(std::string_view word) {
    if (text_.substr(pos_, word.size()) != word) return false;
    pos_ += word.size();
    return true;
  }

  // Values are appended in pre-order; `open` holds the containers that enclose the position and their last element.
  Status document() {
    struct Open {
      uint32_t value, last;
      std::vector<std::string_view> keys;
    };
    std::vector<Open> open;
    std::string_view key;
    for (;;) {
      skip();
      const uint32_t index = static_cast<uint32_t>(doc_->values_.size());
      Value v;
      v.key = key;
      TND_TRY(value(&v));
      doc_->values_.push_back(v);
      if (!open.empty()) {
        Open& parent = open.back();
        (parent.last == 0 ? doc_->values_[parent.value].child : doc_->values_[parent.last].next) = index;
        parent.last = index;
      }
      bool closed = true;  // a value has just ended
      if (v.kind == kArray || v.kind == kObject) {
        if (open.size() == kMaxDepth) return bad("nested too deeply");
        open.push_back({index, 0, {}});
        skip();
        closed = false;
        if (at(v.kind == kArray ? ']' : '}')) {
          pos_++;
          open.pop_back();
          closed = true;
        }
      }
      // After a value: commas, closing brackets, up to the next place for a value.
      while (closed && !open.empty()) {
        skip();
        const bool object = doc_->values_[open.back().value].kind == kObject;
        if (at(',')) {
          pos_++;
          closed = false;
        } else if (at(object ? '}' : ']')) {
          pos_++;
          if (object) TND_TRY(unique(&open.back().keys));
          open.pop_back();
        } else {
          return bad("expected , or a closing bracket");
        }
      }
      if (open.empty()) return {};
      key = {};
      if (doc_->values_[open.back().value].kind == kObject) {
        skip();
        TND_TRY(string(&key));
        open.back().keys.push_back(key);
        skip();
        if (!at(':')) return bad("expected :");
        pos_++;
      }
    }
  }

  Status unique(std::vector<std::string_view>* keys) {
    std::sort(keys->begin(), keys->end());
    if (std::adjacent_find(keys->begin(), keys->end()) != keys->end()) return bad("a key appears twice in the object");
    return {};
  }

  Status value(Value* v) {
    if (pos_ >= text_.size()) return bad("value missing");
    switch (text_[pos_]) {
      case '{':
        v->kind = kObject;
        pos_++;
        return {};
      case '[':
        v->kind = kArray;
        pos_++;
        return {};
      case '"':
        v->kind = kString;
        return string(&v->text);
      case 't':
      case 'f':
        v->kind = kBool;
        v->boolean = text_[pos_] == 't';
        return eat(v->boolean ? "true" : "false") ? Status() : bad("unknown word");
      case 'n':
        return eat("null") ? Status() : bad("unknown word");
      default:
        v->kind = kNumber;
        return number(v);
    }
  }

  bool digits() {
    const size_t start = pos_;
    while (pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9') pos_++;
    return pos_ > start;
  }

  Status number(Value* v) {
    const size_t start = pos_;
    if (at('-')) pos_++;
    const size_t first = pos_;
    if (!digits()) return bad("expected a value");
    if (text_[first] == '0' && pos_ - first > 1) return bad("number with a leading zero");
    bool integer = true;
    if (at('.')) {
      pos_++;
      integer = false;
      if (!digits()) return bad("digits missing after the point");
    }
    if (at('e') || at('E')) {
      pos_++;
      integer = false;
      if (at('+') || at('-')) pos_++;
      if (!digits()) return bad("digits missing in the exponent");
    }
    char buf[64];
    const size_t n = pos_ - start;
    if (n >= sizeof buf) return bad("number too long");
    std::memcpy(buf, text_.data() + start, n);
    buf[n] = 0;
    v->number = std::strtod(buf, nullptr);
    if (integer) {
      errno = 0;
      v->integer = std::strtoll(buf, nullptr, 10);
      v->is_integer = errno == 0;
    }
    return {};
  }

  bool hex4(uint32_t* out) {
    if (text_.size() - pos_ < 4) return false;
    *out = 0;
    for (int i = 0; i < 4; i++) {
      const char c = text_[pos_ + i];
      const int d = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
      if (d < 0) return false;
      *out = *out * 16 + static_cast<uint32_t>(d);
    }
    pos_ += 4;
    return true;
  }

  static void append_utf8(uint32_t c, std::string* s) {
    if (c < 0x80) {
      *s += static_cast<char>(c);
    } else if (c < 0x800) {
      *s += static_cast<char>(0xC0 | c >> 6);
      *s += static_cast<char>(0x80 | (c & 63));
    } else if (c < 0x10000) {
      *s += static_cast<char>(0xE0 | c >> 12);
      *s += static_cast<char>(0x80 | (c >> 6 & 63));
      *s += static_cast<char>(0x80 | (c & 63));
    } else {
      *s += static_cast<char>(0xF0 | c >> 18);
      *s += static_cast<char>(0x80 | (c >> 12 & 63));
      *s += static_cast<char>(0x80 | (c >> 6 & 63));
      *s += static_cast<char>(0x80 | (c & 63));
    }
  }

  Status string(std::string_view* out) {
    if (!at('"')) return bad("expected a string");
    const size_t start = ++pos_;
    while (pos_ < text_.size() && text_[pos_] != '"' && text_[pos_] != '\\') {
      if (static_cast<unsigned char>(text_[pos_]) < 0x20) return bad("control character in a string");
      pos_++;
    }
    if (at('"')) {
      *out = text_.substr(start, pos_ - start);
      pos_++;
      return {};
    }
    std::string s(text_.substr(start, pos_ - start));
    while (pos_ < text_.size() && text_[pos_] != '"') {
      const char c = text_[pos_];
      if (static_cast<unsigned char>(c) < 0x20) return bad("control character in a string");
      pos_++;
      if (c != '\\') {
        s += c;
        continue;
      }
      if (pos_ >= text_.size()) break;
      static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
      const char e = text_[pos_++];
      if (const size_t i = kFrom.find(e); i != std::string_view::npos) {
        s += kTo[i];
        continue;
      }
      uint32_t code = 0;
      if (e != 'u' || !hex4(&code)) return bad("bad escape");
      if (code >= 0xD800 && code < 0xDC00) {
        uint32_t low = 0;
        if (!eat("\\u") || !hex4(&low) || low < 0xDC00 || low > 0xDFFF) return bad("lone surrogate");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      } else if (code >= 0xDC00 && code < 0xE000) {
        return bad("lone surrogate");
      }
      append_utf8(code, &s);
    }
    if (!at('"')) return bad("string without end");
    pos_++;
    doc_->unescaped_.push_back(std::move(s));
    *out = doc_->unescaped_.back();
    return {};
  }

  Json* doc_;
  std::string_view text_;
  size_t pos_ = 0;
};

Status Json::parse(std::string_view text, const std::string& file) {
  file_ = file;
  values_.clear();
  unescaped_.clear();
  return Reader(this, text).run();
}

const Json::Value* Json::get(const Value* v, std::string_view key) const {
  if (v == nullptr || v->kind != kObject) return nullptr;
  for (const Value* m = first(*v); m != nullptr; m = next(*m)) {
    if (m->key == key) return m;
  }
  return nullptr;
}

Status Json::wrong(std::string_view key, const char* wanted) const {
  return errorf(TND_INVALID_ARGUMENT, "%s: field %.*s must be %s", file_.c_str(), static_cast<int>(key.size()),
                key.data(), wanted);
}

Status Json::get_i32(const Value* v, std::string_view key, int32_t min, int32_t max, int32_t* out) const {
  const Value* m = get(v, key);
  if (m == nullptr || m->kind != kNumber || !m->is_integer || m->integer < min || m->integer > max) {
    char text[64];
    std::snprintf(text, sizeof text, "an integer in %d..%d", min, max);
    return wrong(key, text);
  }
  *out = static_cast<int32_t>(m->integer);
  return {};
}

Status Json::get_i32_or(const Value* v, std::string_view key, int32_t min, int32_t max, int32_t* out) const {
  const Value* m = get(v, key);
  return m == nullptr || m->kind == kNull ? Status() : get_i32(v, key, min, max, out);
}

Status Json::get_f32(const Value* v, std::string_view key, float* out) const {
  const Value* m = get(v, key);
  if (m == nullptr || m->kind != kNumber) return wrong(key, "a number");
  *out = static_cast<float>(m->number);
  return {};
}

Status Json::get_bool_or(const Value* v, std::string_view key, bool* out) const {
  const Value* m = get(v, key);
  if (m == nullptr || m->kind == kNull) return {};
  if (m->kind != kBool) return wrong(key, "true or false");
  *out = m->boolean;
  return {};
}

Status Json::get_string(const Value* v, std::string_view key, std::string_view* out) const {
  const Value* m = get(v, key);
  if (m == nullptr || m->kind != kString) return wrong(key, "a string");
  *out = m->text;
  return {};
}

}  // namespace tnd
