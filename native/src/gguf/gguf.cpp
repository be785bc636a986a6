#include "gguf/gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tnd::gguf {
namespace {

// Limits of the format, so that a damaged length is refused before anything is sized by it.
constexpr uint64_t kMaxRecords = 1ull << 31;
constexpr uint64_t kMinKvBytes = 14;      // length + 1 byte of key + type + 1 byte of value
constexpr uint64_t kMinTensorBytes = 33;  // length + 1 byte of name + n_dims + one extent + type + offset
constexpr uint64_t kMaxString = 1ull << 30;
constexpr uint64_t kMaxKey = 65535;
constexpr uint64_t kMaxName = 63;
constexpr uint64_t kMaxArray = 1ull << 30;
constexpr uint64_t kMaxAlignment = 1ull << 20;
constexpr uint64_t kMaxShards = 1024;

// Block sizes by type id; holes are removed ids. Q1_0 (41) and Q2_0 (42) are unknown here and refused.
constexpr TypeLayout kTypes[] = {
    {"F32", 4, 1},      {"F16", 2, 1},        {"Q4_0", 18, 32},    {"Q4_1", 20, 32},     {nullptr, 0, 0},
    {nullptr, 0, 0},    {"Q5_0", 22, 32},     {"Q5_1", 24, 32},    {"Q8_0", 34, 32},     {"Q8_1", 36, 32},
    {"Q2_K", 84, 256},  {"Q3_K", 110, 256},   {"Q4_K", 144, 256},  {"Q5_K", 176, 256},   {"Q6_K", 210, 256},
    {"Q8_K", 292, 256}, {"IQ2_XXS", 66, 256}, {"IQ2_XS", 74, 256}, {"IQ3_XXS", 98, 256}, {"IQ1_S", 50, 256},
    {"IQ4_NL", 18, 32}, {"IQ3_S", 110, 256},  {"IQ2_S", 82, 256},  {"IQ4_XS", 136, 256}, {"I8", 1, 1},
    {"I16", 2, 1},      {"I32", 4, 1},        {"I64", 8, 1},       {"F64", 8, 1},        {"IQ1_M", 56, 256},
    {"BF16", 2, 1},     {nullptr, 0, 0},      {nullptr, 0, 0},     {nullptr, 0, 0},      {"TQ1_0", 54, 256},
    {"TQ2_0", 66, 256}, {nullptr, 0, 0},      {nullptr, 0, 0},     {nullptr, 0, 0},      {"MXFP4", 17, 32},
    {"NVFP4", 36, 64},
};

// Bytes of a scalar value type; 0 for strings, arrays and unknown ids.
uint32_t scalar_bytes(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32:
      return 4;
    case kU64:
    case kI64:
    case kF64:
      return 8;
    default:
      return 0;
  }
}

const char* value_type_name(uint32_t type) {
  static constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
  return type < 13 ? kNames[type] : "unknown";
}

template <typename T>
T load(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Integer of any width as int64; false for floats, bools and u64 beyond int64.
bool load_int(uint32_t type, const uint8_t* p, int64_t* out) {
  switch (type) {
    case kU8:
      *out = *p;
      return true;
    case kI8:
      *out = static_cast<int8_t>(*p);
      return true;
    case kU16:
      *out = load<uint16_t>(p);
      return true;
    case kI16:
      *out = load<int16_t>(p);
      return true;
    case kU32:
      *out = load<uint32_t>(p);
      return true;
    case kI32:
      *out = load<int32_t>(p);
      return true;
    case kI64:
      *out = load<int64_t>(p);
      return true;
    case kU64: {
      const uint64_t v = load<uint64_t>(p);
      if (v > INT64_MAX) return false;
      *out = static_cast<int64_t>(v);
      return true;
    }
    default:
      return false;
  }
}

int text_width(std::string_view s) {
  return static_cast<int>(std::min<size_t>(s.size(), 128));
}

}  // namespace

const TypeLayout* type_layout(uint32_t type) {
  if (type >= std::size(kTypes) || kTypes[type].name == nullptr) return nullptr;
  return &kTypes[type];
}

std::string type_label(uint32_t type) {
  const TypeLayout* layout = type_layout(type);
  const std::string id = std::to_string(type);
  return layout == nullptr ? id : std::string(layout->name) + " (" + id + ")";
}

// Parser walks one file image. All reads go through take(), which knows the bytes that remain.
class File::Parser {
 public:
  Parser(Mapping* m, std::vector<TensorView>* tensors) : m_(m), tensors_(tensors) {}

  Status run(uint32_t* version) {
    TND_TRY(header(version));
    TND_TRY(values());
    TND_TRY(alignment());
    return tensor_records();
  }

 private:
  uint64_t left() const { return m_->size - pos_; }
  const char* file() const { return m_->path.c_str(); }

  Status truncated(const char* what) const {
    return errorf(TND_INVALID_ARGUMENT, "%s: truncated at byte %llu while reading %s", file(),
                  static_cast<unsigned long long>(pos_), what);
  }

  template <typename T>
  Status take(const char* what, T* out) {
    if (left() < sizeof(T)) return truncated(what);
    *out = load<T>(m_->data + pos_);
    pos_ += sizeof(T);
    return {};
  }

  Status take_string(const char* what, uint64_t max, std::string_view* out) {
    uint64_t n = 0;
    TND_TRY(take(what, &n));
    if (n > max || n > left()) {
      return errorf(TND_INVALID_ARGUMENT, "%s: %s at byte %llu has length %llu, %llu bytes remain, limit %llu", file(),
                    what, static_cast<unsigned long long>(pos_ - 8), static_cast<unsigned long long>(n),
                    static_cast<unsigned long long>(left()), static_cast<unsigned long long>(max));
    }
    *out = std::string_view(reinterpret_cast<const char*>(m_->data + pos_), n);
    pos_ += n;
    return {};
  }

  Status header(uint32_t* version) {
    if (left() < 24) return truncated("the header (24 bytes)");
    if (std::memcmp(m_->data, "GGUF", 4) != 0) return errorf(TND_INVALID_ARGUMENT, "%s: not a GGUF file", file());
    pos_ = 4;
    uint64_t n_tensors = 0, n_values = 0;
    TND_TRY(take("version", version));
    TND_TRY(take("tensor count", &n_tensors));
    TND_TRY(take("key count", &n_values));
    if ((*version & 0xFFFFu) == 0) {
      return errorf(TND_INVALID_ARGUMENT, "%s: version field 0x%08x: a big-endian file, only little-endian is read",
                    file(), *version);
    }
    if (*version != 2 && *version != 3) {
      return errorf(TND_INVALID_ARGUMENT, "%s: GGUF version %u, only 2 and 3 are read", file(), *version);
    }
    if (n_values > kMaxRecords || n_values > left() / kMinKvBytes) {
      return errorf(TND_INVALID_ARGUMENT, "%s: %llu keys cannot fit into %llu bytes", file(),
                    static_cast<unsigned long long>(n_values), static_cast<unsigned long long>(m_->size));
    }
    if (n_tensors > kMaxRecords || n_tensors > left() / kMinTensorBytes) {
      return errorf(TND_INVALID_ARGUMENT, "%s: %llu tensors cannot fit into %llu bytes", file(),
                    static_cast<unsigned long long>(n_tensors), static_cast<unsigned long long>(m_->size));
    }
    n_tensors_ = n_tensors;
    n_values_ = n_values;
    return {};
  }

  Status skip_scalars(const Entry& e, uint32_t type, uint64_t count) {
    const uint64_t size = scalar_bytes(type);
    if (count > left() / size) return truncated("a value");
    if (type == kBool) {
      for (uint64_t i = 0; i < count; i++) {
        if (m_->data[pos_ + i] > 1) {
          return errorf(TND_INVALID_ARGUMENT, "%s: key %.*s: bool with value %u", file(), text_width(e.key),
                        e.key.data(), m_->data[pos_ + i]);
        }
      }
    }
    pos_ += count * size;
    return {};
  }

  Status value(Entry* e) {
    TND_TRY(take("a value type", &e->type));
    if (e->type == kString) {
      std::string_view text;
      TND_TRY(take_string("a string value", kMaxString, &text));
      e->data = reinterpret_cast<const uint8_t*>(text.data());
      e->bytes = text.size();
      return {};
    }
    if (e->type != kArray) {
      if (scalar_bytes(e->type) == 0) {
        return errorf(TND_INVALID_ARGUMENT, "%s: key %.*s: unknown value type %u", file(), text_width(e->key),
                      e->key.data(), e->type);
      }
      e->data = m_->data + pos_;
      return skip_scalars(*e, e->type, 1);
    }
    TND_TRY(take("an array type", &e->elem_type));
    TND_TRY(take("an array count", &e->count));
    if (e->elem_type != kString && scalar_bytes(e->elem_type) == 0) {
      return errorf(TND_INVALID_ARGUMENT, "%s: key %.*s: array of unsupported element type %u", file(),
                    text_width(e->key), e->key.data(), e->elem_type);
    }
    if (e->count > kMaxArray) {
      return errorf(TND_INVALID_ARGUMENT, "%s: key %.*s: array of %llu elements", file(), text_width(e->key),
                    e->key.data(), static_cast<unsigned long long>(e->count));
    }
    e->data = m_->data + pos_;
    if (e->elem_type != kString) return skip_scalars(*e, e->elem_type, e->count);
    if (e->count > left() / 8) return truncated("an array of strings");
    for (uint64_t i = 0; i < e->count; i++) {
      std::string_view text;
      TND_TRY(take_string("a string of an array", kMaxString, &text));
    }
    return {};
  }

  Status values() {
    m_->entries.reserve(n_values_);
    for (uint64_t i = 0; i < n_values_; i++) {
      Entry e{};
      TND_TRY(take_string("a key", kMaxKey, &e.key));
      if (e.key.empty()) return errorf(TND_INVALID_ARGUMENT, "%s: key %llu is empty", file(), (unsigned long long)i);
      TND_TRY(value(&e));
      m_->entries.push_back(e);
    }
    std::sort(m_->entries.begin(), m_->entries.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
    for (size_t i = 1; i < m_->entries.size(); i++) {
      const std::string_view key = m_->entries[i].key;
      if (key == m_->entries[i - 1].key) {
        return errorf(TND_INVALID_ARGUMENT, "%s: key %.*s appears twice", file(), text_width(key), key.data());
      }
    }
    return {};
  }

  Status alignment() {
    for (const Entry& e : m_->entries) {
      if (e.key != "general.alignment") continue;
      const uint64_t a = e.type == kU32 ? load<uint32_t>(e.data) : 0;
      if (a < 8 || a > kMaxAlignment || (a & (a - 1)) != 0) {
        return errorf(TND_INVALID_ARGUMENT, "%s: key general.alignment must be a u32 power of two in 8..%llu", file(),
                      static_cast<unsigned long long>(kMaxAlignment));
      }
      alignment_ = a;
    }
    return {};
  }

  Status bad_tensor(std::string_view name, const char* what, uint64_t value) const {
    return errorf(TND_INVALID_ARGUMENT, "%s: tensor %.*s: %s (%llu)", file(), text_width(name), name.data(), what,
                  static_cast<unsigned long long>(value));
  }

  // One record; sets t.bytes and checks the offset against the running sum of padded sizes.
  Status tensor_record(TensorView* t, uint64_t* offset) {
    TND_TRY(take_string("a tensor name", kMaxName, &t->name));
    if (t->name.empty() || t->name.find('\0') != std::string_view::npos) {
      return errorf(TND_INVALID_ARGUMENT, "%s: tensor name at byte %llu is empty or contains NUL", file(),
                    static_cast<unsigned long long>(pos_));
    }
    TND_TRY(take("n_dims", &t->n_dims));
    if (t->n_dims < 1 || t->n_dims > 4) return bad_tensor(t->name, "number of dimensions is not 1..4", t->n_dims);
    uint64_t elems = 1;
    for (uint32_t d = 0; d < t->n_dims; d++) {
      TND_TRY(take("a tensor extent", &t->ne[d]));
      if (t->ne[d] < 1 || t->ne[d] > INT64_MAX) return bad_tensor(t->name, "extent out of range", t->ne[d]);
      if (__builtin_mul_overflow(elems, t->ne[d], &elems) || elems > INT64_MAX) {
        return bad_tensor(t->name, "number of elements overflows at extent", t->ne[d]);
      }
    }
    TND_TRY(take("a tensor type", &t->type));
    const TypeLayout* layout = type_layout(t->type);
    if (layout == nullptr) return bad_tensor(t->name, "unknown or removed type", t->type);
    if (t->ne[0] % layout->elems != 0) return bad_tensor(t->name, "ne[0] is no multiple of the block", t->ne[0]);
    if (__builtin_mul_overflow(elems / layout->elems, uint64_t{layout->bytes}, &t->bytes)) {
      return bad_tensor(t->name, "size overflows, elements", elems);
    }
    TND_TRY(take("a tensor offset", offset));
    if (*offset != expected_) return bad_tensor(t->name, "offset is not the running sum of padded sizes", *offset);
    uint64_t padded;
    if (__builtin_add_overflow(t->bytes, alignment_ - 1, &padded)) return bad_tensor(t->name, "size", t->bytes);
    padded &= ~(alignment_ - 1);
    if (__builtin_add_overflow(expected_, padded, &expected_)) return bad_tensor(t->name, "size", t->bytes);
    return {};
  }

  Status tensor_records() {
    const size_t first = tensors_->size();
    tensors_->reserve(first + n_tensors_);
    std::vector<uint64_t> offsets;
    offsets.reserve(n_tensors_);
    for (uint64_t i = 0; i < n_tensors_; i++) {
      TensorView t;
      uint64_t offset = 0;
      TND_TRY(tensor_record(&t, &offset));
      tensors_->push_back(t);
      offsets.push_back(offset);
    }
    const uint64_t start = (pos_ + alignment_ - 1) & ~(alignment_ - 1);  // pos_ <= size of a mapping: no overflow
    for (size_t i = 0; i < offsets.size(); i++) {
      TensorView& t = (*tensors_)[first + i];
      // Only the padding after the last tensor may be missing.
      if (start > m_->size || offsets[i] > m_->size - start || t.bytes > m_->size - start - offsets[i]) {
        return errorf(TND_INVALID_ARGUMENT,
                      "%s: tensor %.*s ends beyond the file (%llu bytes): an incomplete download or copy", file(),
                      text_width(t.name), t.name.data(), static_cast<unsigned long long>(m_->size));
      }
      t.data = m_->data + start + offsets[i];
    }
    return {};
  }

  Mapping* m_;
  std::vector<TensorView>* tensors_;
  uint64_t pos_ = 0;
  uint64_t n_tensors_ = 0, n_values_ = 0;
  uint64_t alignment_ = 32;
  uint64_t expected_ = 0;  // offset that the next tensor must have
};

File::~File() {
  for (const auto& m : shards_) {
    if (m->mapped) munmap(const_cast<uint8_t*>(m->data), m->size);
  }
}

Status File::add_file(const std::string& path) {
  auto m = std::make_unique<Mapping>();
  m->path = path;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errorf(TND_NOT_FOUND, "%s: cannot open: %s", path.c_str(), std::strerror(errno));
  struct stat st;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd);
    return errorf(TND_NOT_FOUND, "%s: not a regular file", path.c_str());
  }
  if (st.st_size < 24) {
    ::close(fd);
    return errorf(TND_INVALID_ARGUMENT, "%s: %lld bytes are too few for a GGUF file", path.c_str(),
                  static_cast<long long>(st.st_size));
  }
  m->size = static_cast<uint64_t>(st.st_size);
  void* p = mmap(nullptr, m->size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_errno = errno;
  ::close(fd);
  if (p == MAP_FAILED) return errorf(TND_NOT_FOUND, "%s: cannot map: %s", path.c_str(), std::strerror(map_errno));
  m->data = static_cast<const uint8_t*>(p);
  m->mapped = true;
  shards_.push_back(std::move(m));
  uint32_t version = 0;
  TND_TRY(Parser(shards_.back().get(), &tensors_).run(&version));
  if (shards_.size() == 1) version_ = version;
  return {};
}

Status File::open(const char* path, std::unique_ptr<File>* out) {
  out->reset();
  if (path == nullptr || *path == '\0') return Status(TND_INVALID_ARGUMENT, "model path is empty");
  std::unique_ptr<File> f(new File());
  f->path_ = path;
  TND_TRY(f->add_file(f->path_));
  int32_t count = 1;
  TND_TRY(f->get_i32_or("split.count", 1, kMaxShards, &count));
  if (count > 1) {
    int32_t no = -1;
    TND_TRY(f->get_i32("split.no", 0, kMaxShards, &no));
    // <base>-00001-of-000NN.gguf, 1-based
    char suffix[40];
    std::snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", no + 1, count);
    if (no != 0) {
      return errorf(TND_INVALID_ARGUMENT, "%s: is shard %d of %d, open the first one", path, no + 1, count);
    }
    const std::string_view full = f->path_;
    if (!full.ends_with(suffix)) {
      return errorf(TND_INVALID_ARGUMENT, "%s: first of %d shards, but the name does not end in %s", path, count,
                    suffix);
    }
    const std::string base(full.substr(0, full.size() - std::strlen(suffix)));
    for (int32_t i = 1; i < count; i++) {
      std::snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", i + 1, count);
      TND_TRY(f->add_file(base + suffix));
      const Mapping& m = *f->shards_.back();
      const Entry* e = f->lookup(m, "split.no");
      int64_t got = -1;
      if (e == nullptr || !load_int(e->type, e->data, &got) || got != i) {
        return errorf(TND_INVALID_ARGUMENT, "%s: key split.no is missing or not %d", m.path.c_str(), i);
      }
    }
    int64_t total = 0;
    TND_TRY(f->get_int("split.tensors.count", 0, INT32_MAX, &total));
    if (static_cast<uint64_t>(total) != f->tensors_.size()) {
      return errorf(TND_INVALID_ARGUMENT, "%s: key split.tensors.count is %lld, the shards hold %zu tensors", path,
                    static_cast<long long>(total), f->tensors_.size());
    }
  }
  TND_TRY(f->finish());
  *out = std::move(f);
  return {};
}

Status File::open_memory(const void* data, uint64_t size, std::unique_ptr<File>* out) {
  out->reset();
  std::unique_ptr<File> f(new File());
  f->path_ = "(memory)";
  auto m = std::make_unique<Mapping>();
  m->path = f->path_;
  m->data = static_cast<const uint8_t*>(data);
  m->size = size;
  f->shards_.push_back(std::move(m));
  TND_TRY(Parser(f->shards_.back().get(), &f->tensors_).run(&f->version_));
  int32_t count = 1;
  TND_TRY(f->get_i32_or("split.count", 1, kMaxShards, &count));
  if (count != 1) return Status(TND_INVALID_ARGUMENT, "(memory): one of several shards");
  TND_TRY(f->finish());
  *out = std::move(f);
  return {};
}

Status File::finish() {
  by_name_.resize(tensors_.size());
  for (uint32_t i = 0; i < by_name_.size(); i++) by_name_[i] = i;
  std::sort(by_name_.begin(), by_name_.end(),
            [this](uint32_t a, uint32_t b) { return tensors_[a].name < tensors_[b].name; });
  for (size_t i = 1; i < by_name_.size(); i++) {
    const std::string_view name = tensors_[by_name_[i]].name;
    if (name == tensors_[by_name_[i - 1]].name) {
      return errorf(TND_INVALID_ARGUMENT, "%s: tensor %.*s appears twice", path_.c_str(), text_width(name),
                    name.data());
    }
  }
  if (has("general.architecture")) TND_TRY(get_string("general.architecture", &arch_));
  return {};
}

const TensorView* File::find(std::string_view name) const {
  const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [this](uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  return it != by_name_.end() && tensors_[*it].name == name ? &tensors_[*it] : nullptr;
}

uint64_t File::file_bytes() const {
  uint64_t n = 0;
  for (const auto& m : shards_) n += m->size;
  return n;
}

const File::Entry* File::lookup(const Mapping& m, std::string_view key) const {
  const auto it = std::lower_bound(m.entries.begin(), m.entries.end(), key,
                                   [](const Entry& e, std::string_view k) { return e.key < k; });
  return it != m.entries.end() && it->key == key ? &*it : nullptr;
}

bool File::has(std::string_view key) const {
  return lookup(*shards_[0], key) != nullptr;
}

Status File::need(std::string_view key, const Entry** out) const {
  *out = lookup(*shards_[0], key);
  if (*out != nullptr) return {};
  return errorf(TND_INVALID_ARGUMENT, "%s: key %.*s is missing", path_.c_str(), text_width(key), key.data());
}

Status File::wrong_type(const Entry& e, const char* wanted) const {
  return errorf(TND_INVALID_ARGUMENT, "%s: key %.*s is %s%s, wanted %s", path_.c_str(), text_width(e.key), e.key.data(),
                e.type == kArray ? "an array of " : "", value_type_name(e.type == kArray ? e.elem_type : e.type),
                wanted);
}

static Status out_of_range(const std::string& path, std::string_view key, int64_t v, int64_t min, int64_t max) {
  return errorf(TND_INVALID_ARGUMENT, "%s: key %.*s is %lld, allowed %lld..%lld", path.c_str(), text_width(key),
                key.data(), static_cast<long long>(v), static_cast<long long>(min), static_cast<long long>(max));
}

Status File::get_int(std::string_view key, int64_t min, int64_t max, int64_t* out) const {
  const Entry* e;
  TND_TRY(need(key, &e));
  int64_t v = 0;
  if (!load_int(e->type, e->data, &v)) return wrong_type(*e, "an integer");
  if (v < min || v > max) return out_of_range(path_, key, v, min, max);
  *out = v;
  return {};
}

Status File::get_i32(std::string_view key, int32_t min, int32_t max, int32_t* out) const {
  int64_t v = 0;
  TND_TRY(get_int(key, min, max, &v));
  *out = static_cast<int32_t>(v);
  return {};
}

Status File::get_f32(std::string_view key, float* out) const {
  const Entry* e;
  TND_TRY(need(key, &e));
  if (e->type == kF32) {
    *out = load<float>(e->data);
  } else if (e->type == kF64) {
    *out = static_cast<float>(load<double>(e->data));
  } else {
    return wrong_type(*e, "a float");
  }
  return {};
}

Status File::get_bool(std::string_view key, bool* out) const {
  const Entry* e;
  TND_TRY(need(key, &e));
  if (e->type != kBool) return wrong_type(*e, "a bool");
  *out = *e->data != 0;
  return {};
}

Status File::get_string(std::string_view key, std::string_view* out) const {
  const Entry* e;
  TND_TRY(need(key, &e));
  if (e->type != kString) return wrong_type(*e, "a string");
  *out = std::string_view(reinterpret_cast<const char*>(e->data), e->bytes);
  return {};
}

Status File::get_i32_or(std::string_view key, int32_t min, int32_t max, int32_t* out) const {
  return has(key) ? get_i32(key, min, max, out) : Status();
}
Status File::get_f32_or(std::string_view key, float* out) const {
  return has(key) ? get_f32(key, out) : Status();
}
Status File::get_bool_or(std::string_view key, bool* out) const {
  return has(key) ? get_bool(key, out) : Status();
}

Status File::get_array_count(std::string_view key, uint64_t* out) const {
  const Entry* e;
  TND_TRY(need(key, &e));
  if (e->type != kArray) return wrong_type(*e, "an array");
  *out = e->count;
  return {};
}

Status File::get_ints(std::string_view key, int64_t min, int64_t max, std::vector<int64_t>* out) const {
  const Entry* e;
  TND_TRY(need(key, &e));
  int64_t v = 0;
  const uint64_t size = e->type == kArray ? scalar_bytes(e->elem_type) : 0;
  if (size == 0 || e->elem_type == kF32 || e->elem_type == kF64 || e->elem_type == kBool) {
    return wrong_type(*e, "an array of integers");
  }
  out->clear();
  out->reserve(e->count);
  for (uint64_t i = 0; i < e->count; i++) {
    if (!load_int(e->elem_type, e->data + i * size, &v)) v = INT64_MAX;
    if (v < min || v > max) return out_of_range(path_, key, v, min, max);
    out->push_back(v);
  }
  return {};
}

Status File::get_bools(std::string_view key, std::vector<bool>* out) const {
  const Entry* e;
  TND_TRY(need(key, &e));
  if (e->type != kArray || e->elem_type != kBool) return wrong_type(*e, "an array of bools");
  out->assign(e->data, e->data + e->count);
  return {};
}

Status File::get_strings(std::string_view key, std::vector<std::string_view>* out) const {
  const Entry* e;
  TND_TRY(need(key, &e));
  if (e->type != kArray || e->elem_type != kString) return wrong_type(*e, "an array of strings");
  out->clear();
  out->reserve(e->count);
  const uint8_t* p = e->data;  // lengths were checked when the file was read
  for (uint64_t i = 0; i < e->count; i++) {
    const uint64_t n = load<uint64_t>(p);
    out->emplace_back(reinterpret_cast<const char*>(p + 8), n);
    p += 8 + n;
  }
  return {};
}

Status File::get_ints_per_layer(std::string_view key, int64_t min, int64_t max, uint64_t n,
                                std::vector<int64_t>* out) const {
  const Entry* e;
  TND_TRY(need(key, &e));
  if (e->type != kArray) {
    int64_t v = 0;
    TND_TRY(get_int(key, min, max, &v));
    out->assign(n, v);
    return {};
  }
  TND_TRY(get_ints(key, min, max, out));
  if (out->size() != n) {
    return errorf(TND_INVALID_ARGUMENT, "%s: key %.*s has %zu entries, the model has %llu layers", path_.c_str(),
                  text_width(key), key.data(), out->size(), static_cast<unsigned long long>(n));
  }
  return {};
}

Status require(const TensorSource& src, std::string_view name, uint32_t n_dims, uint64_t ne0, uint64_t ne1,
               uint64_t ne2, const TensorView** out) {
  const std::string_view path = src.path();
  *out = src.find(name);
  if (*out == nullptr) {
    return errorf(TND_INVALID_ARGUMENT, "%.*s: tensor %.*s is missing", (int)path.size(), path.data(), text_width(name),
                  name.data());
  }
  const TensorView& t = **out;
  const uint64_t want[3] = {ne0, n_dims > 1 ? ne1 : 1, n_dims > 2 ? ne2 : 1};
  if (t.n_dims != n_dims || t.ne[0] != want[0] || t.ne[1] != want[1] || t.ne[2] != want[2] || t.ne[3] != 1) {
    return errorf(TND_INVALID_ARGUMENT,
                  "%.*s: tensor %.*s has shape [%llu, %llu, %llu, %llu], the metadata ask for [%llu, %llu, %llu]",
                  (int)path.size(), path.data(), text_width(name), name.data(), (unsigned long long)t.ne[0],
                  (unsigned long long)t.ne[1], (unsigned long long)t.ne[2], (unsigned long long)t.ne[3],
                  (unsigned long long)want[0], (unsigned long long)want[1], (unsigned long long)want[2]);
  }
  return {};
}

}  // namespace tnd::gguf
