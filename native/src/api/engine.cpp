// The C functions of tandem/engine.h: handles, error texts, defaults of options; everything else is the role's.
#include "tandem/engine.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/step_log.h"
#include "roles/roles.h"

using tnd::errorf;
using tnd::Status;

struct tnd_engine {
  std::unique_ptr<tnd::Backend> backend;
  std::unique_ptr<tnd::Role> role;
  // The same as the interfaces that it has; nullptr = it does not.
  tnd::SequenceEngine* sequences = nullptr;
  tnd::TargetEngine* target = nullptr;
  tnd::DraftEngine* draft = nullptr;
  tnd::ScoreEngine* score = nullptr;
  tnd::Stats stats;
  std::atomic<bool> cancel{false};
  bool poisoned = false;  // a device fault: nothing works any more
  uint32_t role_id = 0;
  int32_t attention_window = 0;
  std::unique_ptr<tnd::StepLog> log;  // nullptr: nobody asked for it
  std::string device;
  std::mutex info_mutex;  // what tnd_get_info reads changes in tnd_capture_set and tnd_fuse_load only
  std::mutex error_mutex;
  std::string error;
};

namespace {

// Structs that may grow: copies what the caller has, the rest stays zero.
template <typename T>
Status read_struct(const T* in, const char* name, T* out) {
  if (in == nullptr) return errorf(TND_INVALID_ARGUMENT, "%s is NULL", name);
  if (in->struct_size < sizeof(uint32_t) * 2 || in->struct_size > 1u << 16) {
    return errorf(TND_INVALID_ARGUMENT, "%s.struct_size is %u, this library has %zu", name, in->struct_size, sizeof(T));
  }
  *out = T{};
  std::memcpy(static_cast<void*>(out), in, std::min<size_t>(in->struct_size, sizeof(T)));
  return Status();
}

void fail(tnd_engine* e, const Status& s) {
  const std::lock_guard<std::mutex> lock(e->error_mutex);
  e->error = s.message();
}

const char* role_name(const tnd_engine& e) {
  return e.target != nullptr ? "target" : e.draft != nullptr ? "draft" : "scorer";
}

// Runs one call of a handle on the interface that has it: refuses poisoned engines and those of another role, keeps the
// text of a failure.
template <typename Interface, typename F>
tnd_status call(tnd_engine* e, Interface* tnd_engine::* interface, const char* name, F&& f) {
  if (e == nullptr) return TND_INVALID_ARGUMENT;
  if (e->poisoned) return TND_INTERNAL;  // the text of the fault stays
  e->cancel.store(false, std::memory_order_relaxed);
  Interface* const role = e->*interface;
  const Status s = role != nullptr ? Status(f(*role))
                                   : errorf(TND_FAILED_PRECONDITION, "role: %s is not for a %s", name, role_name(*e));
  if (!s.ok()) fail(e, s);
  if (s.code() == TND_INTERNAL) e->poisoned = true;
  return s.code();
}

Status need(const void* p, const char* name) {
  return p != nullptr ? Status() : errorf(TND_INVALID_ARGUMENT, "%s is NULL", name);
}

tnd_status copy_stats(const std::vector<tnd_stat>& all, tnd_stat* entries, uint64_t* count) {
  const uint64_t room = entries == nullptr ? 0 : *count;
  for (uint64_t i = 0; i < std::min<uint64_t>(room, all.size()); ++i) entries[i] = all[i];
  *count = all.size();
  return TND_OK;
}

Status open_engine(const tnd_open_options* options, tnd_engine* e) {
  tnd::OpenContext c;
  TND_TRY(read_struct(options, "options", &c.options));
  tnd_open_options& o = c.options;
  if (o.model_path == nullptr || o.model_path[0] == '\0') {
    return errorf(TND_INVALID_ARGUMENT, "model_path is empty");
  }
  if (o.max_tree_rows == 0) o.max_tree_rows = 64;
  if (o.max_batch_rows == 0) o.max_batch_rows = std::max(512, o.max_tree_rows);
  if (o.max_top_k == 0) o.max_top_k = 64;
  c.model_path = o.model_path;
  c.tables_path = o.tables_path != nullptr ? o.tables_path : "";
  TND_TRY(tnd::make_backend(o.device, o.threads, &e->backend));
  c.backend = e->backend.get();
  c.backend->count_in(&e->stats);
  c.memory_cap = o.memory_cap_bytes != 0 ? o.memory_cap_bytes : e->backend->free_bytes();
  if (c.memory_cap == 0) return errorf(TND_INTERNAL, "the free memory of the device is unknown: set memory_cap_bytes");
  c.cancel = &e->cancel;
  c.stats = &e->stats;
  e->role_id = o.role;
  e->attention_window = o.attention_window;
  e->device = e->backend->device();
  switch (o.role) {
    case TND_ROLE_TARGET: {
      std::unique_ptr<tnd::TargetEngine> role;
      TND_TRY(tnd::StepLog::open("target", &e->log));
      TND_TRY(tnd::open_target(c, &role));
      e->sequences = e->target = role.get();
      e->role = std::move(role);
      return Status();
    }
    case TND_ROLE_DRAFT: {
      std::unique_ptr<tnd::DraftEngine> role;
      TND_TRY(tnd::StepLog::open("draft", &e->log));
      TND_TRY(tnd::open_draft(c, &role));
      e->sequences = e->draft = role.get();
      e->role = std::move(role);
      return Status();
    }
    case TND_ROLE_SCORE: {
      std::unique_ptr<tnd::ScoreEngine> role;
      TND_TRY(tnd::open_score(c, &role));
      e->score = role.get();
      e->role = std::move(role);
      return Status();
    }
    default:
      return errorf(TND_INVALID_ARGUMENT, "role is %u, must be 1 (target), 2 (draft) or 3 (score)", o.role);
  }
}

}  // namespace

extern "C" {

uint32_t tnd_abi_version(void) {
  return TND_ABI_VERSION;
}

tnd_status tnd_open(const tnd_open_options* options, tnd_engine** out, char* error, uint64_t capacity) {
  if (error != nullptr && capacity > 0) error[0] = '\0';
  if (out == nullptr) return TND_INVALID_ARGUMENT;
  *out = nullptr;
  auto e = std::make_unique<tnd_engine>();
  const Status s = open_engine(options, e.get());
  if (!s.ok()) {
    if (error != nullptr && capacity > 0) std::snprintf(error, capacity, "%s", s.message().c_str());
    return s.code();
  }
  *out = e.release();
  return TND_OK;
}

void tnd_close(tnd_engine* engine) {
  delete engine;
}

uint64_t tnd_last_error(tnd_engine* engine, char* text, uint64_t capacity) {
  if (text != nullptr && capacity > 0) text[0] = '\0';
  if (engine == nullptr) return 0;
  const std::lock_guard<std::mutex> lock(engine->error_mutex);
  if (text != nullptr && capacity > 0) std::snprintf(text, capacity, "%s", engine->error.c_str());
  return engine->error.size();
}

tnd_status tnd_get_info(tnd_engine* engine, tnd_info* info) {
  if (engine == nullptr || info == nullptr) return TND_INVALID_ARGUMENT;
  tnd_info full{};
  const uint32_t size = info->struct_size;
  if (size < sizeof(uint32_t) * 2 || size > 1u << 16) {
    fail(engine, errorf(TND_INVALID_ARGUMENT, "info.struct_size is %u, this library has %zu", size, sizeof full));
    return TND_INVALID_ARGUMENT;
  }
  {
    const std::lock_guard<std::mutex> lock(engine->info_mutex);
    engine->role->info(&full);
  }
  full.struct_size = size;
  full.role = engine->role_id;
  std::snprintf(full.backend, sizeof full.backend, "%s", engine->backend->name());
  std::snprintf(full.device, sizeof full.device, "%s", engine->device.c_str());
  std::string numerics = engine->backend->numerics();
  if (engine->attention_window != 0) numerics += " window=" + std::to_string(engine->attention_window);
  std::snprintf(full.numerics, sizeof full.numerics, "%s", numerics.c_str());
  if (engine->backend->prompt_bits()) full.prompt_rows = tnd::kPromptRows;
  std::memcpy(static_cast<void*>(info), &full, std::min<size_t>(size, sizeof full));
  return TND_OK;
}

tnd_status tnd_memory(tnd_engine* engine, tnd_stat* entries, uint64_t* count) {
  if (engine == nullptr || count == nullptr) return TND_INVALID_ARGUMENT;
  std::vector<tnd_stat> all;
  engine->role->memory(&all);
  return copy_stats(all, entries, count);
}

tnd_status tnd_stats(tnd_engine* engine, tnd_stat* entries, uint64_t* count) {
  if (engine == nullptr || count == nullptr) return TND_INVALID_ARGUMENT;
  std::vector<tnd_stat> all;
  for (int i = 0; i < static_cast<int>(tnd::Counter::kCount); ++i) {
    const auto counter = static_cast<tnd::Counter>(i);
    tnd_stat s{};
    std::snprintf(s.name, sizeof s.name, "%s", tnd::counter_name(counter));
    s.value = engine->stats.get(counter);
    all.push_back(s);
  }
  return copy_stats(all, entries, count);
}

void tnd_cancel(tnd_engine* engine) {
  if (engine != nullptr) engine->cancel.store(true, std::memory_order_relaxed);
}

tnd_status tnd_sequence_create(tnd_engine* engine, int32_t* sequence) {
  return call(engine, &tnd_engine::sequences, "tnd_sequence_create", [&](tnd::SequenceEngine& role) -> Status {
    TND_TRY(need(sequence, "sequence"));
    return role.sequence_create(sequence);
  });
}

tnd_status tnd_sequence_fork(tnd_engine* engine, int32_t sequence, int32_t* fork) {
  return call(engine, &tnd_engine::sequences, "tnd_sequence_fork", [&](tnd::SequenceEngine& role) -> Status {
    TND_TRY(need(fork, "fork"));
    return role.sequence_fork(sequence, fork);
  });
}

tnd_status tnd_sequence_free(tnd_engine* engine, int32_t sequence) {
  return call(engine, &tnd_engine::sequences, "tnd_sequence_free",
              [&](tnd::SequenceEngine& role) { return role.sequence_free(sequence); });
}

tnd_status tnd_sequence_length(tnd_engine* engine, int32_t sequence, int32_t* length) {
  return call(engine, &tnd_engine::sequences, "tnd_sequence_length", [&](tnd::SequenceEngine& role) -> Status {
    TND_TRY(need(length, "length"));
    return role.sequence_length(sequence, length);
  });
}

tnd_status tnd_sequence_truncate(tnd_engine* engine, int32_t sequence, int32_t length) {
  return call(engine, &tnd_engine::sequences, "tnd_sequence_truncate",
              [&](tnd::SequenceEngine& role) { return role.sequence_truncate(sequence, length); });
}

tnd_status tnd_sequence_sampler(tnd_engine* engine, int32_t sequence, const tnd_sampler* sampler) {
  return call(engine, &tnd_engine::target, "tnd_sequence_sampler", [&](tnd::TargetEngine& role) -> Status {
    tnd_sampler full;
    TND_TRY(read_struct(sampler, "sampler", &full));
    return role.sequence_sampler(sequence, full);
  });
}

tnd_status tnd_snapshot_create(tnd_engine* engine, int32_t sequence, int32_t* snapshot) {
  return call(engine, &tnd_engine::sequences, "tnd_snapshot_create", [&](tnd::SequenceEngine& role) -> Status {
    TND_TRY(need(snapshot, "snapshot"));
    return role.snapshot_create(sequence, snapshot);
  });
}

tnd_status tnd_snapshot_restore(tnd_engine* engine, int32_t snapshot, int32_t sequence) {
  return call(engine, &tnd_engine::sequences, "tnd_snapshot_restore",
              [&](tnd::SequenceEngine& role) { return role.snapshot_restore(snapshot, sequence); });
}

tnd_status tnd_snapshot_demote(tnd_engine* engine, int32_t snapshot) {
  return call(engine, &tnd_engine::sequences, "tnd_snapshot_demote",
              [&](tnd::SequenceEngine& role) { return role.snapshot_demote(snapshot); });
}

tnd_status tnd_snapshot_free(tnd_engine* engine, int32_t snapshot) {
  return call(engine, &tnd_engine::sequences, "tnd_snapshot_free",
              [&](tnd::SequenceEngine& role) { return role.snapshot_free(snapshot); });
}

tnd_status tnd_snapshot_describe(tnd_engine* engine, int32_t snapshot, tnd_snapshot_layout* layout) {
  return call(engine, &tnd_engine::target, "tnd_snapshot_describe", [&](tnd::TargetEngine& role) -> Status {
    TND_TRY(need(layout, "layout"));
    const uint32_t size = layout->struct_size;
    tnd_snapshot_layout full;
    TND_TRY(read_struct(layout, "layout", &full));
    TND_TRY(role.snapshot_describe(snapshot, &full));
    full.struct_size = size;
    std::memcpy(static_cast<void*>(layout), &full, std::min<size_t>(size, sizeof full));
    return Status();
  });
}

tnd_status tnd_snapshot_read(tnd_engine* engine, int32_t snapshot, int32_t part, uint64_t offset, void* data,
                             uint64_t bytes, uint32_t* crc) {
  return call(engine, &tnd_engine::target, "tnd_snapshot_read", [&](tnd::TargetEngine& role) -> Status {
    TND_TRY(need(data, "data"));
    return role.snapshot_read(snapshot, part, offset, data, bytes, crc);
  });
}

tnd_status tnd_snapshot_begin(tnd_engine* engine, const tnd_snapshot_layout* layout, int32_t base, int32_t shared_pages,
                              int32_t* snapshot) {
  return call(engine, &tnd_engine::target, "tnd_snapshot_begin", [&](tnd::TargetEngine& role) -> Status {
    TND_TRY(need(snapshot, "snapshot"));
    tnd_snapshot_layout full;
    TND_TRY(read_struct(layout, "layout", &full));
    return role.snapshot_begin(full, base, shared_pages, snapshot);
  });
}

tnd_status tnd_snapshot_write(tnd_engine* engine, int32_t snapshot, int32_t part, uint64_t offset, const void* data,
                              uint64_t bytes, uint32_t crc) {
  return call(engine, &tnd_engine::target, "tnd_snapshot_write", [&](tnd::TargetEngine& role) -> Status {
    TND_TRY(need(data, "data"));
    return role.snapshot_write(snapshot, part, offset, data, bytes, crc);
  });
}

tnd_status tnd_snapshot_finish(tnd_engine* engine, int32_t snapshot) {
  return call(engine, &tnd_engine::target, "tnd_snapshot_finish",
              [&](tnd::TargetEngine& role) { return role.snapshot_finish(snapshot); });
}

tnd_status tnd_sequence_export_size(tnd_engine* engine, int32_t sequence, uint64_t* bytes) {
  return call(engine, &tnd_engine::sequences, "tnd_sequence_export_size", [&](tnd::SequenceEngine& role) -> Status {
    TND_TRY(need(bytes, "bytes"));
    return role.export_size(sequence, bytes);
  });
}

tnd_status tnd_sequence_export(tnd_engine* engine, int32_t sequence, void* data, uint64_t bytes) {
  return call(engine, &tnd_engine::sequences, "tnd_sequence_export",
              [&](tnd::SequenceEngine& role) { return role.export_to(sequence, data, bytes); });
}

tnd_status tnd_sequence_import(tnd_engine* engine, int32_t sequence, const void* data, uint64_t bytes) {
  return call(engine, &tnd_engine::sequences, "tnd_sequence_import",
              [&](tnd::SequenceEngine& role) { return role.import_from(sequence, data, bytes); });
}

tnd_status tnd_step_run(tnd_engine* engine, const tnd_step* step) {
  return call(engine, &tnd_engine::target, "tnd_step_run", [&](tnd::TargetEngine& role) -> Status {
    tnd_step full;
    TND_TRY(read_struct(step, "step", &full));
    TND_TRY(role.step(full));
    if (engine->log != nullptr) engine->log->step(full);
    return Status();
  });
}

tnd_status tnd_capture_set(tnd_engine* engine, const int32_t* layers, int32_t n) {
  return call(engine, &tnd_engine::target, "tnd_capture_set", [&](tnd::TargetEngine& role) -> Status {
    if (n < 0) return errorf(TND_INVALID_ARGUMENT, "n is %d", n);
    if (n > 0) TND_TRY(need(layers, "layers"));
    const std::lock_guard<std::mutex> lock(engine->info_mutex);
    return role.capture_set(std::span<const int32_t>(layers, static_cast<size_t>(n)));
  });
}

tnd_status tnd_fuse_load(tnd_engine* engine, const char* path) {
  return call(engine, &tnd_engine::target, "tnd_fuse_load", [&](tnd::TargetEngine& role) -> Status {
    TND_TRY(need(path, "path"));
    const std::lock_guard<std::mutex> lock(engine->info_mutex);
    return role.fuse_load(path);
  });
}

tnd_status tnd_fuse(tnd_engine* engine, int32_t n, uint32_t kind, int32_t raw_encoding, const void* raw,
                    int32_t fused_encoding, void* fused) {
  return call(engine, &tnd_engine::target, "tnd_fuse", [&](tnd::TargetEngine& role) -> Status {
    TND_TRY(need(raw, "raw"));
    TND_TRY(need(fused, "fused"));
    return role.fuse(n, kind, raw_encoding, raw, fused_encoding, fused);
  });
}

tnd_status tnd_draft_append(tnd_engine* engine, const tnd_feature_rows* pieces, int32_t n) {
  return call(engine, &tnd_engine::draft, "tnd_draft_append", [&](tnd::DraftEngine& role) -> Status {
    if (n < 1) return errorf(TND_INVALID_ARGUMENT, "n is %d", n);
    TND_TRY(need(pieces, "pieces"));
    const std::span<const tnd_feature_rows> all(pieces, static_cast<size_t>(n));
    TND_TRY(role.append(all));
    if (engine->log != nullptr) engine->log->append(all);
    return Status();
  });
}

tnd_status tnd_draft_propose(tnd_engine* engine, const tnd_draft_request* requests, int32_t n, int32_t* ids,
                             float* logprobs) {
  return call(engine, &tnd_engine::draft, "tnd_draft_propose", [&](tnd::DraftEngine& role) -> Status {
    if (n < 1) return errorf(TND_INVALID_ARGUMENT, "n is %d", n);
    TND_TRY(need(requests, "requests"));
    TND_TRY(need(ids, "ids"));
    TND_TRY(need(logprobs, "logprobs"));
    const std::span<const tnd_draft_request> all(requests, static_cast<size_t>(n));
    TND_TRY(role.propose(all, ids, logprobs));
    if (engine->log != nullptr) engine->log->propose(all);
    return Status();
  });
}

tnd_status tnd_score(tnd_engine* engine, const tnd_score_prompt* prompts, int32_t n_prompts, uint32_t flags,
                     tnd_progress_fn progress, void* user) {
  return call(engine, &tnd_engine::score, "tnd_score", [&](tnd::ScoreEngine& role) -> Status {
    if (n_prompts < 1) return errorf(TND_INVALID_ARGUMENT, "n_prompts is %d", n_prompts);
    TND_TRY(need(prompts, "prompts"));
    return role.score(std::span<const tnd_score_prompt>(prompts, static_cast<size_t>(n_prompts)), flags, progress,
                      user);
  });
}

}  // extern "C"
