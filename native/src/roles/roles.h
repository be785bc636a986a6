// What stands behind an engine handle: a TargetEngine, a DraftEngine or a ScoreEngine, chosen by tnd_open_options.role.
// The C functions of tandem/engine.h (api/engine.cpp) check handles, pointers and whether the engine's role has the
// call, and forward here.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/stats.h"
#include "core/status.h"
#include "gguf/gguf.h"
#include "tandem/engine.h"

namespace tnd {

// Everything a role is built from. Options are copied with defaults filled in (threads, max_tree_rows 64,
// max_batch_rows 512, max_top_k 64; max_sequences and max_context may still be 0 = as far as it fits).
struct OpenContext {
  tnd_open_options options{};
  std::string model_path;
  std::string tables_path;  // empty = none
  uint64_t memory_cap = 0;  // bytes, never 0
  Backend* backend = nullptr;
  std::atomic<bool>* cancel = nullptr;  // set by tnd_cancel, cleared at the start of each call
  Stats* stats = nullptr;

  void log(int32_t level, const std::string& text) const {
    if (options.log != nullptr) options.log(options.user, level, text.c_str());
  }
  void progress(uint64_t done, uint64_t total) const {
    if (options.progress != nullptr) options.progress(options.user, done, total);
  }
};

// add_stat appends an entry of tnd_memory.
inline void add_stat(std::vector<tnd_stat>* out, const char* name, uint64_t value) {
  tnd_stat s{};
  std::snprintf(s.name, sizeof s.name, "%s", name);
  s.value = value;
  out->push_back(s);
}

// What engines of all roles have in common.
class Role {
 public:
  virtual ~Role() = default;

  // info fills everything but struct_size, role, backend and device.
  virtual void info(tnd_info* out) const = 0;
  // memory appends planned bytes by purpose; callable from any thread.
  virtual void memory(std::vector<tnd_stat>* out) const = 0;
};

// What targets and drafts have in common: sequences and snapshots of them.
class SequenceEngine : public Role {
 public:
  virtual Status sequence_create(int32_t* sequence) = 0;
  virtual Status sequence_fork(int32_t sequence, int32_t* fork) = 0;
  virtual Status sequence_free(int32_t sequence) = 0;
  virtual Status sequence_length(int32_t sequence, int32_t* length) = 0;
  virtual Status sequence_truncate(int32_t sequence, int32_t length) = 0;
  virtual Status snapshot_create(int32_t sequence, int32_t* snapshot) = 0;
  virtual Status snapshot_restore(int32_t snapshot, int32_t sequence) = 0;
  virtual Status snapshot_demote(int32_t snapshot) = 0;
  virtual Status snapshot_free(int32_t snapshot) = 0;
  virtual Status export_size(int32_t sequence, uint64_t* bytes) = 0;
  virtual Status export_to(int32_t sequence, void* data, uint64_t bytes) = 0;
  virtual Status import_from(int32_t sequence, const void* data, uint64_t bytes) = 0;
};

class TargetEngine : public SequenceEngine {
 public:
  virtual Status sequence_sampler(int32_t sequence, const tnd_sampler& sampler) = 0;
  virtual Status snapshot_describe(int32_t snapshot, tnd_snapshot_layout* layout) = 0;
  virtual Status snapshot_read(int32_t snapshot, int32_t part, uint64_t offset, void* data, uint64_t bytes,
                               uint32_t* crc) = 0;
  virtual Status snapshot_begin(const tnd_snapshot_layout& layout, int32_t base, int32_t shared_pages,
                                int32_t* snapshot) = 0;
  virtual Status snapshot_write(int32_t snapshot, int32_t part, uint64_t offset, const void* data, uint64_t bytes,
                                uint32_t crc) = 0;
  virtual Status snapshot_finish(int32_t snapshot) = 0;
  virtual Status step(const tnd_step& step) = 0;
  virtual Status capture_set(std::span<const int32_t> layers) = 0;
  virtual Status fuse_load(const char* path) = 0;
  virtual Status fuse(int32_t n, uint32_t kind, int32_t raw_encoding, const void* raw, int32_t fused_encoding,
                      void* fused) = 0;
};

class DraftEngine : public SequenceEngine {
 public:
  virtual Status append(std::span<const tnd_feature_rows> pieces) = 0;
  virtual Status propose(std::span<const tnd_draft_request> requests, int32_t* ids, float* logprobs) = 0;
};

class ScoreEngine : public Role {
 public:
  virtual Status score(std::span<const tnd_score_prompt> prompts, uint32_t flags, tnd_progress_fn progress,
                       void* user) = 0;
};

// The factories load the model and plan all memory. Errors as tnd_open has them.
Status open_target(const OpenContext& context, std::unique_ptr<TargetEngine>* out);
Status open_draft(const OpenContext& context, std::unique_ptr<DraftEngine>* out);
Status open_score(const OpenContext& context, std::unique_ptr<ScoreEngine>* out);

}  // namespace tnd
