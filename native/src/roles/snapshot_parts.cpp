// Snapshots piece by piece: read for storage elsewhere, and written from there. A page's portable form is its rows
// layer by layer (kv_export), the same on every backend.
#include <algorithm>
#include <cstring>

#include "core/crc32c.h"
#include "roles/saved_sequence.h"

namespace tnd {
namespace {

unsigned long long ull(uint64_t n) {
  return n;
}

}  // namespace

tnd_snapshot_layout SavedSequences::layout_of(int32_t length, uint64_t state) const {
  tnd_snapshot_layout l{};
  l.length = length;
  l.identity = id_.fingerprint;
  l.kv_type_k = id_.kv.k_type;
  l.kv_type_v = id_.kv.v_type;
  l.state_bytes = state;
  l.page_bytes = pools_[0].page_bytes();
  l.block_bytes = pools_[0].layer_bytes();
  l.pages = kv_pages(length);
  l.first_page = pools_[0].first_page(length);
  return l;
}

Status SavedSequences::describe(int32_t handle, tnd_snapshot_layout* layout) const {
  const Snapshot* s = nullptr;
  TND_TRY(find(handle, &s));
  *layout = layout_of(s->length, s->data.size());
  return Status();
}

// Compares a range of bytes with the part that it lies in.
Status SavedSequences::check_part(const Snapshot& s, int32_t part, uint64_t offset, uint64_t bytes) const {
  const int32_t first = pools_[0].first_page(s.length), pages = static_cast<int32_t>(s.pages[0].size());
  if (part != TND_PART_STATE && (part < first || part >= pages)) {
    return errorf(TND_INVALID_ARGUMENT, "part is %d, the snapshot has pages from %d to %d", part, first, pages - 1);
  }
  const uint64_t size = part == TND_PART_STATE ? s.data.size() : pools_[0].page_bytes();
  if (offset > size || bytes == 0 || bytes > size - offset) {
    return errorf(TND_INVALID_ARGUMENT, "bytes is %llu at offset %llu of %llu", ull(bytes), ull(offset), ull(size));
  }
  const uint64_t block = pools_[0].layer_bytes();
  if (part != TND_PART_STATE && (offset % block != 0 || bytes % block != 0)) {
    return errorf(TND_INVALID_ARGUMENT, "bytes is %llu at offset %llu, must be whole blocks of %llu", ull(bytes),
                  ull(offset), ull(block));
  }
  return Status();
}

Status SavedSequences::read_part(int32_t handle, int32_t part, uint64_t offset, void* data, uint64_t bytes,
                                 uint32_t* crc) const {
  const Snapshot* s = nullptr;
  TND_TRY(find(handle, &s));
  TND_TRY(check_part(*s, part, offset, bytes));
  if (part == TND_PART_STATE) {
    std::memcpy(data, s->data.data() + offset, bytes);
  } else {
    const uint64_t block = pools_[0].layer_bytes();
    const int32_t rows = std::min(kKvPage, s->length - part * kKvPage);
    pools_[0].read(s->pages[0][static_cast<size_t>(part)], static_cast<int32_t>(offset / block),
                   static_cast<int32_t>(bytes / block), rows, static_cast<uint8_t*>(data));
    TND_TRY(backend_->sync());
  }
  if (crc != nullptr) *crc = crc32c(data, bytes);
  return Status();
}

Status SavedSequences::begin(const tnd_snapshot_layout& layout, uint64_t state, uint64_t left, int32_t base,
                             int32_t shared, int32_t* handle) {
  const tnd_snapshot_layout own = layout_of(layout.length, state);
  if (layout.identity != own.identity) {
    return errorf(TND_FAILED_PRECONDITION, "identity: the snapshot is of another %s", id_.whose);
  }
  if (layout.kv_type_k != own.kv_type_k || layout.kv_type_v != own.kv_type_v) {
    return errorf(TND_FAILED_PRECONDITION, "kv_type %d for keys and %d for values, this engine has %d and %d",
                  layout.kv_type_k, layout.kv_type_v, own.kv_type_k, own.kv_type_v);
  }
  if (layout.length > id_.max_context) {
    return errorf(TND_RESOURCE_EXHAUSTED, "%d positions do not fit into max_context %d", layout.length,
                  id_.max_context);
  }
  if (layout.state_bytes != own.state_bytes || layout.page_bytes != own.page_bytes ||
      layout.block_bytes != own.block_bytes || layout.pages != own.pages) {
    return errorf(
        TND_INVALID_ARGUMENT,
        "layout: %llu bytes of state and %d pages of %llu in blocks of %llu, %d positions take %llu, %d, %llu "
        "and %llu",
        ull(layout.state_bytes), layout.pages, ull(layout.page_bytes), ull(layout.block_bytes), layout.length,
        ull(own.state_bytes), own.pages, ull(own.page_bytes), ull(own.block_bytes));
  }
  const int32_t first = own.first_page;
  if (layout.first_page != first) {
    return errorf(TND_INVALID_ARGUMENT, "layout.first_page is %d, of %d positions it is %d (attention_window)",
                  layout.first_page, layout.length, first);
  }
  std::span<const int32_t> whole;
  if (shared != 0) {
    const Snapshot* from = nullptr;
    TND_TRY(find(base, &from));
    if (shared < 0 || shared > from->length / kKvPage || shared > layout.length / kKvPage) {
      return errorf(TND_INVALID_ARGUMENT, "shared_pages is %d, base has %d full pages, the snapshot %d", shared,
                    from->length / kKvPage, layout.length / kKvPage);
    }
    whole = std::span(from->pages[0]).first(static_cast<size_t>(shared));
    if (first < shared && whole[static_cast<size_t>(first)] == kNoPage) {
      return errorf(TND_INVALID_ARGUMENT,
                    "shared_pages is %d: base, of %d positions, does not keep page %d (attention_window)", shared,
                    from->length, first);
    }
  }
  const int32_t added = own.pages - std::max(shared, first);
  if (added > pools_[0].free()) {
    return errorf(TND_RESOURCE_EXHAUSTED, "%d positions need %d more pages of %d positions, %d are free (kv_positions)",
                  layout.length, added, kKvPage, pools_[0].free());
  }
  TND_TRY(check_room(state, layout.length, left));
  std::vector<int32_t> pages = pools_[0].keep(whole, first);  // before unused(), which may move the base
  Snapshot& s = *unused(handle);
  pages.resize(static_cast<size_t>(own.pages - added), kNoPage);
  pools_[0].add(added, &pages);
  s.pages.push_back(std::move(pages));
  s.data.resize(state);
  s.length = layout.length;
  s.unfinished = true;
  s.first_written = own.page_bytes > 0 ? std::max(shared, first) : own.pages;  // pages without bytes are not
  s.part = state > 0 ? TND_PART_STATE : s.first_written;
  s.offset = 0;
  snapshot_bytes_.fetch_add(state);
  return Status();
}

Status SavedSequences::write_part(int32_t handle, int32_t part, uint64_t offset, const void* data, uint64_t bytes,
                                  uint32_t crc) {
  const Snapshot* found = nullptr;
  TND_TRY(find_any(handle, &found));
  Snapshot& s = snapshots_[static_cast<size_t>(handle)];
  if (!s.unfinished) return errorf(TND_FAILED_PRECONDITION, "snapshot %d is finished", handle);
  TND_TRY(check_part(s, part, offset, bytes));
  if (part != s.part || offset != s.offset) {
    return errorf(TND_FAILED_PRECONDITION, "part %d offset %llu: the next bytes to be written are %llu of part %d",
                  part, ull(offset), ull(s.offset), s.part);
  }
  if (crc32c(data, bytes) != crc) {
    return errorf(TND_DATA_LOSS, "checksum of %llu bytes at %llu of part %d is wrong", ull(bytes), ull(offset), part);
  }
  uint64_t size = s.data.size();
  if (part == TND_PART_STATE) {
    std::memcpy(s.data.data() + offset, data, bytes);
  } else {
    const uint64_t block = pools_[0].layer_bytes();
    size = pools_[0].page_bytes();
    pools_[0].write(s.pages[0][static_cast<size_t>(part)], static_cast<int32_t>(offset / block),
                    static_cast<int32_t>(bytes / block), static_cast<const uint8_t*>(data));
    TND_TRY(backend_->sync());
  }
  s.offset += bytes;
  if (s.offset == size) {
    s.part = s.part == TND_PART_STATE ? s.first_written : s.part + 1;
    s.offset = 0;
  }
  return Status();
}

Status SavedSequences::written(int32_t handle, int32_t* length, std::span<const uint8_t>* payload) const {
  const Snapshot* s = nullptr;
  TND_TRY(find_any(handle, &s));
  if (!s->unfinished) return errorf(TND_FAILED_PRECONDITION, "snapshot %d is finished", handle);
  if (s->part == TND_PART_STATE || s->part < static_cast<int32_t>(s->pages[0].size())) {
    return errorf(TND_FAILED_PRECONDITION, "snapshot %d is missing bytes from %llu of part %d on", handle,
                  ull(s->offset), s->part);
  }
  *length = s->length;
  *payload = s->data;
  return Status();
}

}  // namespace tnd
