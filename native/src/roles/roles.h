// What stands behind an engine handle: one Role per engine, chosen by tnd_open_options.role. The C functions of
// tandem/engine.h (engine.cpp) check nothing but handles and forward here; a role overrides what it can do, everything
// else answers TND_FAILED_PRECONDITION naming the role.
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

// Everything a role is built from. Options are copied with defaults filled in (threads, max_sequences 1,
// max_tree_rows 64, max_batch_rows 512, max_top_k 64; max_context may still be 0 = "the model's, as far as it fits").
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

class Role {
 public:
  virtual ~Role() = default;
  virtual const char* role_name() const = 0;  // "target", "draft", "score"

  // info fills everything but struct_size, role, backend and device.
  virtual void info(tnd_info* out) const = 0;
  // memory appends planned bytes by purpose; callable from any thread.
  virtual void memory(std::vector<tnd_stat>* out) const = 0;

  virtual Status sequence_create(int32_t*) { return unsupported("sequences"); }
  virtual Status sequence_fork(int32_t, int32_t*) { return unsupported("sequences"); }
  virtual Status sequence_free(int32_t) { return unsupported("sequences"); }
  virtual Status sequence_length(int32_t, int32_t*) { return unsupported("sequences"); }
  virtual Status sequence_truncate(int32_t, int32_t) { return unsupported("sequences"); }
  virtual Status sequence_sampler(int32_t, const tnd_sampler&) { return unsupported("samplers"); }
  virtual Status snapshot_create(int32_t, int32_t*) { return unsupported("snapshots"); }
  virtual Status snapshot_restore(int32_t, int32_t) { return unsupported("snapshots"); }
  virtual Status snapshot_demote(int32_t) { return unsupported("snapshots"); }
  virtual Status snapshot_free(int32_t) { return unsupported("snapshots"); }
  virtual Status snapshot_describe(int32_t, tnd_snapshot_layout*) { return unsupported("snapshots in parts"); }
  virtual Status snapshot_read(int32_t, int32_t, uint64_t, void*, uint64_t, uint32_t*) {
    return unsupported("snapshots in parts");
  }
  virtual Status snapshot_begin(const tnd_snapshot_layout&, int32_t, int32_t, int32_t*) {
    return unsupported("snapshots in parts");
  }
  virtual Status snapshot_write(int32_t, int32_t, uint64_t, const void*, uint64_t, uint32_t) {
    return unsupported("snapshots in parts");
  }
  virtual Status snapshot_finish(int32_t) { return unsupported("snapshots in parts"); }
  virtual Status export_size(int32_t, uint64_t*) { return unsupported("export"); }
  virtual Status export_to(int32_t, void*, uint64_t) { return unsupported("export"); }
  virtual Status import_from(int32_t, const void*, uint64_t) { return unsupported("import"); }
  virtual Status step(const tnd_step&) { return unsupported("step"); }
  virtual Status capture_set(std::span<const int32_t>) { return unsupported("feature capture"); }
  virtual Status fuse_load(const char*) { return unsupported("feature fusing"); }
  virtual Status fuse(int32_t, uint32_t, int32_t, const void*, int32_t, void*) { return unsupported("feature fusing"); }
  virtual Status draft_append(int32_t, int32_t, int32_t, int32_t, const void*) { return unsupported("draft_append"); }
  virtual Status draft_propose(std::span<const tnd_draft_request>, int32_t*, float*) {
    return unsupported("draft_propose");
  }
  virtual Status score(std::span<const int32_t>, std::span<const int32_t>, uint32_t, float*) {
    return unsupported("score");
  }

 protected:
  Status unsupported(const char* what) const {
    return errorf(TND_FAILED_PRECONDITION, "an engine of role %s has no %s", role_name(), what);
  }
};

// The factories load the model and plan all memory. Errors as tnd_open has them.
Status open_target(const OpenContext& context, std::unique_ptr<Role>* out);
Status open_draft(const OpenContext& context, std::unique_ptr<Role>* out);
Status open_score(const OpenContext& context, std::unique_ptr<Role>* out);

}  // namespace tnd
