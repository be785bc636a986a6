#include "roles/saved_sequence.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "core/crc32c.h"
#include "core/kv_type.h"

namespace tnd {
namespace {

struct ExportHeader {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint64_t fingerprint;
  uint64_t payload_bytes;
  int32_t length;
  uint32_t payload_crc;
  int32_t k_type, v_type;
  uint32_t reserved[3];  // zero
  uint32_t header_crc;   // of everything before it
};
static_assert(sizeof(ExportHeader) == 64);

constexpr uint32_t kVersion = 2;  // 1 had no types

unsigned long long ull(uint64_t n) {
  return n;
}

}  // namespace

Status set_kv_types(const tnd_open_options& options, int32_t heads, int32_t dim, KvShape* kv) {
  const auto take = [&](const char* field, int32_t wanted, int32_t* type) {
    *type = wanted == TND_KV_DEFAULT ? static_cast<int32_t>(KvType::kF16) : wanted;
    if (!kv_type_known(*type)) {
      return errorf(TND_UNIMPLEMENTED, "%s %d: keys and values are cached as %s", field, wanted, kKvTypeNames);
    }
    if (const int group = kv_group(static_cast<KvType>(*type)); dim % group != 0) {
      return errorf(TND_UNIMPLEMENTED, "%s %s: heads of %d values are not whole blocks of %d; %s are possible", field,
                    kv_type_name(*type), dim, group,
                    dim % kKvBlock == 0 ? "types without rotation" : "F32, F16 and BF16");
    }
    return Status();
  };
  TND_TRY(take("kv_type_k", options.kv_type_k, &kv->k_type));
  TND_TRY(take("kv_type_v", options.kv_type_v, &kv->v_type));
  kv->heads = heads;
  kv->dim = dim;
  return Status();
}

uint64_t SavedSequences::payload_bytes(const SavedParts& parts) const {
  const uint64_t row = backend_->kv_row_bytes(id_.kv);
  uint64_t bytes = 0;
  for (const SavedPart& p : parts) bytes += p.n * (p.cache != nullptr ? row : p.floats != nullptr ? sizeof(float) : 1);
  return bytes;
}

void SavedSequences::write(const SavedParts& parts, uint8_t* out) const {
  for (const SavedPart& p : parts) {
    if (p.cache != nullptr) {
      backend_->kv_export(p.pool->shape(), *p.cache, p.pages, static_cast<int32_t>(p.n), out);
    } else if (p.floats != nullptr) {
      backend_->download(reinterpret_cast<float*>(out), p.floats, static_cast<int64_t>(p.n));
    } else if (p.n > 0) {
      std::memcpy(out, p.host, p.n);
    }
    out += payload_bytes({p});
  }
}

void SavedSequences::read(const uint8_t* in, const SavedParts& parts) const {
  for (const SavedPart& p : parts) {
    if (p.cache != nullptr) {
      backend_->kv_import(p.pool->shape(), *p.cache, p.pages, static_cast<int32_t>(p.n), in);
    } else if (p.floats != nullptr) {
      backend_->upload(p.floats, reinterpret_cast<const float*>(in), static_cast<int64_t>(p.n));
    } else if (p.n > 0) {
      std::memcpy(p.host, in, p.n);
    }
    in += payload_bytes({p});
  }
}

Status SavedSequences::find(int32_t handle, const Snapshot** out) const {
  TND_TRY(find_any(handle, out));
  if ((*out)->unfinished) return errorf(TND_FAILED_PRECONDITION, "snapshot %d is not finished", handle);
  return Status();
}

Status SavedSequences::find_any(int32_t handle, const Snapshot** out) const {
  if (handle < 0 || static_cast<size_t>(handle) >= snapshots_.size() || !snapshots_[static_cast<size_t>(handle)].used) {
    return errorf(TND_NOT_FOUND, "snapshot %d does not exist", handle);
  }
  *out = &snapshots_[static_cast<size_t>(handle)];
  return Status();
}

uint64_t SavedSequences::cap_bytes() const {
  return backend_->host_memory() && id_.host_cap == 0 ? snapshot_bytes() + demoted_bytes() : 0;
}

void SavedSequences::memory(std::vector<tnd_stat>* out) const {
  uint64_t pages = 0, free = 0, shared = 0;
  for (const PagePool& pool : pools_) {
    pages += static_cast<uint64_t>(pool.size());
    free += static_cast<uint64_t>(pool.free());
    shared += static_cast<uint64_t>(pool.shared());
  }
  add_stat(out, "snapshot_bytes", snapshot_bytes());
  add_stat(out, "demoted_bytes", demoted_bytes());
  add_stat(out, "kv_pages", pages);
  add_stat(out, "kv_pages_free", free);
  add_stat(out, "kv_pages_shared", shared);
}

uint64_t SavedSequences::demoted_bytes() const {
  uint64_t bytes = 0;
  for (const PagePool& pool : pools_) bytes += pool.host_bytes();
  return bytes;
}

// What trim can free.
uint64_t SavedSequences::spare_bytes() const {
  uint64_t bytes = 0;
  for (const PagePool& pool : pools_) bytes += pool.spare_bytes();
  return bytes;
}

void SavedSequences::trim(uint64_t bytes) {
  for (PagePool& pool : pools_) {
    const uint64_t before = pool.host_bytes();
    pool.trim(bytes);
    bytes -= std::min(bytes, before - pool.host_bytes());
  }
}

// Host memory that snapshots may still take; left: of the memory cap.
uint64_t SavedSequences::host_left(uint64_t left) const {
  if (id_.host_cap != 0) {
    const uint64_t used = snapshot_bytes() + demoted_bytes();
    return used < id_.host_cap ? id_.host_cap - used : 0;
  }
  return backend_->host_memory() ? left : UINT64_MAX;
}

Status SavedSequences::snapshot(const SavedParts& parts, std::span<const PageTable> tables, int32_t length,
                                uint64_t left, int32_t* handle) {
  const uint64_t bytes = payload_bytes(parts);
  TND_TRY(check_room(bytes, length, left));
  Snapshot& s = *unused(handle);
  s.data.resize(bytes);
  s.length = length;
  for (size_t i = 0; i < pools_.size(); ++i) {
    s.pages.push_back(
        pools_[i].keep(tables[i].pages().first(static_cast<size_t>(kv_pages(length))), pools_[i].first_page(length)));
  }
  write(parts, s.data.data());
  snapshot_bytes_.fetch_add(bytes);
  return backend_->sync();
}

// Compares the host memory that a snapshot takes with what is left, and makes room for it.
Status SavedSequences::check_room(uint64_t bytes, int32_t length, uint64_t left) {
  const uint64_t available = host_left(left);
  if (bytes > available) {
    const uint64_t spare = spare_bytes();
    if (bytes - available > spare) {
      return errorf(TND_RESOURCE_EXHAUSTED,
                    "a snapshot of %d positions needs %llu bytes of host memory, %llu are left (%s)", length,
                    ull(bytes), ull(available + spare), id_.host_cap != 0 ? "host_cap_bytes" : "memory cap");
    }
    trim(bytes - available);
  }
  return Status();
}

SavedSequences::Snapshot* SavedSequences::unused(int32_t* handle) {
  size_t at = 0;
  while (at < snapshots_.size() && snapshots_[at].used) ++at;
  if (at == snapshots_.size()) snapshots_.emplace_back();
  snapshots_[at].used = true;
  *handle = static_cast<int32_t>(at);
  return &snapshots_[at];
}

Status SavedSequences::check_restore(int32_t handle, std::span<const PageTable> to, int32_t* length) const {
  const Snapshot* s = nullptr;
  TND_TRY(find(handle, &s));
  for (size_t i = 0; i < pools_.size(); ++i) {
    const int32_t need = pools_[i].missing(s->pages[i]), free = pools_[i].free() + pools_[i].released(to[i], 0);
    if (need > free) {
      return errorf(TND_RESOURCE_EXHAUSTED, "snapshot %d: %d of its pages of %d positions left the pool, %d are free",
                    handle, need, kKvPage, free);
    }
  }
  *length = s->length;
  return Status();
}

Status SavedSequences::restore(int32_t handle, const SavedParts& parts, std::span<PageTable> to) {
  const Snapshot& s = snapshots_[static_cast<size_t>(handle)];
  for (size_t i = 0; i < pools_.size(); ++i) pools_[i].restore(s.pages[i], &to[i]);
  read(s.data.data(), parts);
  return backend_->sync();
}

Status SavedSequences::demote(int32_t handle, uint64_t left) {
  const Snapshot* s = nullptr;
  TND_TRY(find(handle, &s));
  for (size_t i = 0; i < pools_.size(); ++i) {
    const uint64_t before = demoted_bytes();
    TND_TRY(pools_[i].demote(s->pages[i], host_left(left)));
    left -= std::min(left, demoted_bytes() - before);
  }
  return Status();
}

Status SavedSequences::free(int32_t handle) {
  const Snapshot* s = nullptr;
  TND_TRY(find_any(handle, &s));
  for (size_t i = 0; i < s->pages.size(); ++i) pools_[i].drop(s->pages[i]);
  snapshot_bytes_.fetch_sub(s->data.size());
  snapshots_[static_cast<size_t>(handle)] = Snapshot();
  return Status();
}

uint64_t SavedSequences::export_bytes(const SavedParts& parts) const {
  return sizeof(ExportHeader) + payload_bytes(parts);
}

Status SavedSequences::export_to(const SavedParts& parts, int32_t length, void* data, uint64_t bytes) {
  if (data == nullptr || bytes != export_bytes(parts)) {
    return errorf(TND_INVALID_ARGUMENT, "bytes is %llu, the %s exports %llu", ull(bytes), id_.what,
                  ull(export_bytes(parts)));
  }
  auto* out = static_cast<uint8_t*>(data);
  write(parts, out + sizeof(ExportHeader));
  TND_TRY(backend_->sync());
  ExportHeader h{};
  std::memcpy(h.magic, id_.magic, sizeof h.magic);
  h.version = kVersion;
  h.header_bytes = sizeof h;
  h.fingerprint = id_.fingerprint;
  h.payload_bytes = bytes - sizeof h;
  h.length = length;
  h.payload_crc = crc32c(out + sizeof h, h.payload_bytes);
  h.k_type = id_.kv.k_type;
  h.v_type = id_.kv.v_type;
  h.header_crc = crc32c(&h, offsetof(ExportHeader, header_crc));
  std::memcpy(out, &h, sizeof h);
  return Status();
}

Status SavedSequences::check_import(const void* data, uint64_t bytes,
                                    const std::function<SavedParts(int32_t)>& parts_of, std::span<const PageTable> to,
                                    int32_t* length) const {
  ExportHeader h;
  if (data == nullptr || bytes < sizeof h) {
    return errorf(TND_DATA_LOSS, "an exported %s has at least %zu bytes, not %llu", id_.what, sizeof h, ull(bytes));
  }
  std::memcpy(&h, data, sizeof h);
  if (std::memcmp(h.magic, id_.magic, sizeof h.magic) != 0) {
    return errorf(TND_DATA_LOSS, "this is no exported %s", id_.what);
  }
  if (crc32c(&h, offsetof(ExportHeader, header_crc)) != h.header_crc) {
    return errorf(TND_DATA_LOSS, "checksum of the header is wrong");
  }
  if (h.version != kVersion || h.header_bytes != sizeof h) {
    return errorf(TND_FAILED_PRECONDITION, "exported with version %u, this engine reads %u", h.version, kVersion);
  }
  if (h.k_type != id_.kv.k_type || h.v_type != id_.kv.v_type) {
    return errorf(
        TND_FAILED_PRECONDITION, "exported with kv_type %s for keys and %s for values, this engine has %s and %s",
        kv_type_name(h.k_type), kv_type_name(h.v_type), kv_type_name(id_.kv.k_type), kv_type_name(id_.kv.v_type));
  }
  if (h.fingerprint != id_.fingerprint) {
    return errorf(TND_FAILED_PRECONDITION, "exported from another %s", id_.whose);
  }
  if (h.length < 0 || h.payload_bytes != payload_bytes(parts_of(h.length)) || h.payload_bytes != bytes - sizeof h) {
    return errorf(TND_DATA_LOSS, "%llu payload bytes for %d positions do not fit", ull(bytes - sizeof h), h.length);
  }
  if (h.length > id_.max_context) {
    return errorf(TND_RESOURCE_EXHAUSTED, "%d positions do not fit into max_context %d", h.length, id_.max_context);
  }
  for (size_t i = 0; i < pools_.size(); ++i) {
    const int32_t free = pools_[i].free() + pools_[i].released(to[i], 0);
    const int32_t needed = kv_pages(h.length) - pools_[i].first_page(h.length);
    if (needed > free) {
      return errorf(TND_RESOURCE_EXHAUSTED, "%d positions need %d pages of %d positions, %d are free (kv_positions)",
                    h.length, needed, kKvPage, free);
    }
  }
  if (crc32c(static_cast<const uint8_t*>(data) + sizeof h, h.payload_bytes) != h.payload_crc) {
    return errorf(TND_DATA_LOSS, "checksum of the payload is wrong");
  }
  *length = h.length;
  return Status();
}

Status SavedSequences::import_from(const void* data, const SavedParts& parts) {
  read(static_cast<const uint8_t*>(data) + sizeof(ExportHeader), parts);
  return backend_->sync();
}

}  // namespace tnd
