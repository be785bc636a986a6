// What roles keep of sequences beyond a step: snapshots, and exports that another engine of the same model imports. A
// role names the parts of a sequence in order; their bytes one after the other, little-endian, are the payload. An
// export puts a header before it; integrity is CRC-32C, identity a fingerprint of the role and the types of cached keys
// and values. A snapshot has the payload of all parts but keys and values in host memory, and holds the pages of those.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "core/backend.h"
#include "roles/page_pool.h"
#include "roles/roles.h"

namespace tnd {

// set_kv_types fills kv from the options; heads of `dim` values must be whole blocks where a type has them.
Status set_kv_types(const tnd_open_options& options, int32_t heads, int32_t dim, KvShape* kv);

// A part of a sequence: exactly one of the pointers is set.
struct SavedPart {
  void* host = nullptr;            // n bytes
  float* floats = nullptr;         // backend [n]
  const KvCache* cache = nullptr;  // n rows by pages, of `pool`
  const PagePool* pool = nullptr;
  const int32_t* pages = nullptr;  // as AttentionGroupPlan::pages
  uint64_t n = 0;
};
using SavedParts = std::vector<SavedPart>;

class SavedSequences {
 public:
  // `magic` marks exports of the role, `what` names one ("sequence", "draft sequence"), `whose` what must be the same.
  struct Identity {
    char magic[8];
    const char* what;
    const char* whose;
    uint64_t fingerprint;
    KvShape kv;  // types, and how large a row is
    int32_t max_context;
    uint64_t host_cap;  // tnd_open_options.host_cap_bytes
  };
  // init: layers that keep different positions have a pool for each kind; a sequence has a page table for each pool.
  void init(Backend* backend, std::span<PagePool> pools, const Identity& identity) {
    backend_ = backend, pools_ = pools, id_ = identity;
  }

  uint64_t payload_bytes(const SavedParts& parts) const;

  // Snapshots. `left`: bytes that the memory cap leaves. restore copies to parts made for what check_restore says.
  Status snapshot(const SavedParts& parts, std::span<const PageTable> tables, int32_t length, uint64_t left,
                  int32_t* handle);
  Status check_restore(int32_t handle, std::span<const PageTable> to, int32_t* length) const;
  Status restore(int32_t handle, const SavedParts& parts, std::span<PageTable> to);
  Status demote(int32_t handle, uint64_t left);
  Status free(int32_t handle);

  // Snapshots in parts (snapshot_parts.cpp), where there is one pool. `state`: bytes of the payload of a snapshot of
  // layout.length positions.
  Status describe(int32_t handle, tnd_snapshot_layout* layout) const;
  Status read_part(int32_t handle, int32_t part, uint64_t offset, void* data, uint64_t bytes, uint32_t* crc) const;
  Status begin(const tnd_snapshot_layout& layout, uint64_t state, uint64_t left, int32_t base, int32_t shared,
               int32_t* handle);
  Status write_part(int32_t handle, int32_t part, uint64_t offset, const void* data, uint64_t bytes, uint32_t crc);
  // written returns length and payload of a snapshot of which nothing is missing; ready makes it like any other.
  Status written(int32_t handle, int32_t* length, std::span<const uint8_t>* payload) const;
  void ready(int32_t handle) { snapshots_[static_cast<size_t>(handle)].unfinished = false; }

  uint64_t snapshot_bytes() const { return snapshot_bytes_.load(); }  // without pages
  // cap_bytes is what snapshots take of the memory cap: all that they have in host memory where that is the engine's
  // own and has no cap for itself.
  uint64_t cap_bytes() const;
  // memory appends what pages and snapshots take to the entries of tnd_memory.
  void memory(std::vector<tnd_stat>* out) const;

  // Exports. check_import validates everything, and that the pages for it are free or those of `to` alone; parts_of(n)
  // are those of a sequence of n positions, whose pointers need not be valid yet.
  uint64_t export_bytes(const SavedParts& parts) const;
  Status export_to(const SavedParts& parts, int32_t length, void* data, uint64_t bytes);
  Status check_import(const void* data, uint64_t bytes, const std::function<SavedParts(int32_t)>& parts_of,
                      std::span<const PageTable> to, int32_t* length) const;
  Status import_from(const void* data, const SavedParts& parts);

 private:
  struct Snapshot {
    bool used = false;
    int32_t length = 0;
    std::vector<uint8_t> data;                // payload
    std::vector<std::vector<int32_t>> pages;  // by pool
    bool unfinished = false;                  // it is being written, the next byte at `offset` of `part`
    int32_t first_written = 0;                // page
    int32_t part = TND_PART_STATE;
    uint64_t offset = 0;
  };
  // find_any finds unfinished ones, too.
  Status find_any(int32_t handle, const Snapshot** out) const;
  Status find(int32_t handle, const Snapshot** out) const;
  Status check_room(uint64_t bytes, int32_t length, uint64_t left);
  Snapshot* unused(int32_t* handle);
  tnd_snapshot_layout layout_of(int32_t length, uint64_t state) const;
  Status check_part(const Snapshot& s, int32_t part, uint64_t offset, uint64_t bytes) const;
  uint64_t host_left(uint64_t left) const;
  uint64_t demoted_bytes() const;
  uint64_t spare_bytes() const;
  void trim(uint64_t bytes);
  void write(const SavedParts& parts, uint8_t* out) const;
  void read(const uint8_t* in, const SavedParts& parts) const;

  Backend* backend_ = nullptr;
  std::span<PagePool> pools_;
  Identity id_{};
  std::vector<Snapshot> snapshots_;
  std::atomic<uint64_t> snapshot_bytes_{0};
};

}  // namespace tnd
