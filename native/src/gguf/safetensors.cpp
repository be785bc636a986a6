#include "gguf/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tnd::gguf {
namespace {

struct Dtype {
  std::string_view name;
  uint32_t id, bytes;
};
constexpr Dtype kDtypes[] = {{"F32", 0, 4}, {"F16", 1, 2}, {"BF16", 30, 2}};

}  // namespace

Safetensors::~Safetensors() {
  if (mapped_) munmap(const_cast<uint8_t*>(data_), size_);
}

Status Safetensors::open(const char* path, std::unique_ptr<Safetensors>* out) {
  out->reset();
  std::unique_ptr<Safetensors> f(new Safetensors());
  f->path_ = path == nullptr ? "" : path;
  if (f->path_.ends_with(".index.json")) {
    return errorf(TND_UNIMPLEMENTED, "%s: sharded safetensors sets are not read, convert to one file or GGUF", path);
  }
  const int fd = ::open(f->path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errorf(TND_NOT_FOUND, "%s: cannot open: %s", f->path_.c_str(), std::strerror(errno));
  struct stat st;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < 10) {
    ::close(fd);
    return errorf(TND_INVALID_ARGUMENT, "%s: not a safetensors file", f->path_.c_str());
  }
  f->size_ = static_cast<uint64_t>(st.st_size);
  void* p = mmap(nullptr, f->size_, PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_errno = errno;
  ::close(fd);
  if (p == MAP_FAILED) return errorf(TND_NOT_FOUND, "%s: cannot map: %s", f->path_.c_str(), std::strerror(map_errno));
  f->data_ = static_cast<const uint8_t*>(p);
  f->mapped_ = true;
  TND_TRY(f->parse());
  *out = std::move(f);
  return {};
}

Status Safetensors::open_memory(const void* data, uint64_t size, std::unique_ptr<Safetensors>* out) {
  out->reset();
  std::unique_ptr<Safetensors> f(new Safetensors());
  f->path_ = "(memory)";
  f->data_ = static_cast<const uint8_t*>(data);
  f->size_ = size;
  TND_TRY(f->parse());
  *out = std::move(f);
  return {};
}

Status Safetensors::parse() {
  uint64_t n = 0;
  if (size_ < 10)
    return errorf(TND_INVALID_ARGUMENT, "%s: %llu bytes are too few", path_.c_str(), (unsigned long long)size_);
  std::memcpy(&n, data_, 8);
  if (n > size_ - 8 || n > kMaxHeader) {
    return errorf(TND_INVALID_ARGUMENT, "%s: header of %llu bytes in a file of %llu, limit %llu", path_.c_str(),
                  (unsigned long long)n, (unsigned long long)size_, (unsigned long long)kMaxHeader);
  }
  TND_TRY(header_.parse(std::string_view(reinterpret_cast<const char*>(data_ + 8), n), path_));
  if (header_.root().kind != Json::kObject)
    return errorf(TND_INVALID_ARGUMENT, "%s: header is no object", path_.c_str());
  const uint64_t data_size = size_ - 8 - n;
  for (const Json::Value* e = header_.first(header_.root()); e != nullptr; e = header_.next(*e)) {
    if (e->key == "__metadata__") continue;
    TND_TRY(tensor(*e, data_size, data_ + 8 + n));
  }
  // Data must not overlap: neighbours by address.
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorView& a, const TensorView& b) { return a.data < b.data; });
  for (size_t i = 1; i < tensors_.size(); i++) {
    const TensorView &a = tensors_[i - 1], &b = tensors_[i];
    if (static_cast<const uint8_t*>(a.data) + a.bytes > b.data) {
      return errorf(TND_INVALID_ARGUMENT, "%s: data of tensors %.*s and %.*s overlap", path_.c_str(),
                    (int)std::min<size_t>(a.name.size(), 128), a.name.data(), (int)std::min<size_t>(b.name.size(), 128),
                    b.name.data());
    }
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  return {};
}

Status Safetensors::tensor(const Json::Value& entry, uint64_t data_size, const uint8_t* base) {
  const int width = static_cast<int>(std::min<size_t>(entry.key.size(), 128));
  const char* name = entry.key.data();
  const Json::Value* dtype = header_.get(&entry, "dtype");
  const Json::Value* shape = header_.get(&entry, "shape");
  const Json::Value* offsets = header_.get(&entry, "data_offsets");
  if (dtype == nullptr || dtype->kind != Json::kString || shape == nullptr || shape->kind != Json::kArray ||
      offsets == nullptr || offsets->kind != Json::kArray) {
    return errorf(TND_INVALID_ARGUMENT, "%s: tensor %.*s lacks dtype, shape or data_offsets", path_.c_str(), width,
                  name);
  }
  TensorView t;
  t.name = entry.key;
  const auto kind =
      std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const Dtype& d) { return d.name == dtype->text; });
  if (kind == std::end(kDtypes)) {
    return errorf(TND_UNIMPLEMENTED, "%s: tensor %.*s has dtype %.*s; BF16, F16 and F32 are read", path_.c_str(), width,
                  name, (int)std::min<size_t>(dtype->text.size(), 32), dtype->text.data());
  }
  t.type = kind->id;
  int64_t extents[4];
  uint64_t elems = 1;
  for (const Json::Value* d = header_.first(*shape); d != nullptr; d = header_.next(*d)) {
    if (t.n_dims == 4 || !d->is_integer || d->integer < 1 ||
        __builtin_mul_overflow(elems, static_cast<uint64_t>(d->integer), &elems)) {
      return errorf(TND_INVALID_ARGUMENT, "%s: tensor %.*s: shape must be up to 4 extents >= 1", path_.c_str(), width,
                    name);
    }
    extents[t.n_dims++] = d->integer;
  }
  for (uint32_t i = 0; i < t.n_dims; i++) t.ne[i] = static_cast<uint64_t>(extents[t.n_dims - 1 - i]);
  if (t.n_dims == 0) t.n_dims = 1;
  const Json::Value* begin = header_.first(*offsets);
  const Json::Value* end = begin == nullptr ? nullptr : header_.next(*begin);
  uint64_t bytes = 0;
  if (end == nullptr || header_.next(*end) != nullptr || !begin->is_integer || !end->is_integer || begin->integer < 0 ||
      end->integer < begin->integer || static_cast<uint64_t>(end->integer) > data_size ||
      __builtin_mul_overflow(elems, uint64_t{kind->bytes}, &bytes) ||
      bytes != static_cast<uint64_t>(end->integer - begin->integer)) {
    return errorf(TND_INVALID_ARGUMENT, "%s: tensor %.*s: data_offsets do not fit its shape or the file (%llu bytes)",
                  path_.c_str(), width, name, (unsigned long long)size_);
  }
  t.data = base + begin->integer;
  t.bytes = bytes;
  tensors_.push_back(t);
  return {};
}

const TensorView* Safetensors::find(std::string_view name) const {
  const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const TensorView& t, std::string_view n) { return t.name < n; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

Status read_text(const std::string& path, uint64_t max_bytes, std::string* out) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errorf(TND_NOT_FOUND, "%s: cannot open: %s", path.c_str(), std::strerror(errno));
  out->clear();
  char buf[16384];
  ssize_t n;
  while ((n = ::read(fd, buf, sizeof buf)) > 0 && out->size() <= max_bytes) out->append(buf, static_cast<size_t>(n));
  ::close(fd);
  if (n < 0) return errorf(TND_NOT_FOUND, "%s: cannot read", path.c_str());
  if (out->size() > max_bytes) {
    return errorf(TND_INVALID_ARGUMENT, "%s: larger than %llu bytes", path.c_str(), (unsigned long long)max_bytes);
  }
  return {};
}

}  // namespace tnd::gguf
