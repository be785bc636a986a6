// The draft role: sequences of cached K/V, append and propose over DflashModel, snapshots and export.
//
// Layers that read all positions and sliding ones have a pool each, and a sequence a page table for each: in that of
// sliding layers it holds the newest positions alone.
//
// Payload of a sequence of n positions: per layer n rows of K [kv_heads, dim] then V [kv_heads, dim] in cache types, of
// sliding layers those from the first page on that they read.
// The identity of an export is a checksum over shapes and norms of the draft.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/crc32c.h"
#include "models/dflash.h"
#include "roles/kv_plan.h"
#include "roles/page_pool.h"
#include "roles/roles.h"
#include "roles/saved_sequence.h"

namespace tnd {
namespace {

class DraftRole final : public DraftEngine {
 public:
  explicit DraftRole(const OpenContext& context) : c_(context) {}
  ~DraftRole() override {
    if (region_ != nullptr) c_.backend->release(region_);
  }

  Status open();

  void info(tnd_info* out) const override;
  void memory(std::vector<tnd_stat>* out) const override;
  Status sequence_create(int32_t* sequence) override;
  Status sequence_fork(int32_t sequence, int32_t* fork) override;
  Status sequence_free(int32_t sequence) override;
  Status sequence_length(int32_t sequence, int32_t* length) override;
  Status sequence_truncate(int32_t sequence, int32_t length) override;
  Status snapshot_create(int32_t sequence, int32_t* snapshot) override;
  Status snapshot_restore(int32_t snapshot, int32_t sequence) override;
  Status snapshot_demote(int32_t snapshot) override;
  Status snapshot_free(int32_t snapshot) override;
  Status export_size(int32_t sequence, uint64_t* bytes) override;
  Status export_to(int32_t sequence, void* data, uint64_t bytes) override;
  Status import_from(int32_t sequence, const void* data, uint64_t bytes) override;
  Status append(std::span<const tnd_feature_rows> pieces) override;
  Status propose(std::span<const tnd_draft_request> requests, int32_t* ids, float* logprobs) override;

 private:
  // The two kinds of layers. A kind without layers has a pool without memory.
  enum Kind { kFull, kSliding, kKinds };
  struct Sequence {
    bool used = false;
    int32_t length = 0;
    std::array<PageTable, kKinds> pages;  // of its positions
  };

  Status open_files(std::unique_ptr<DflashFile>* draft, std::unique_ptr<gguf::File>* tables);
  Status build(const DflashFile& draft, const gguf::File& tables, const KvPlan& plan, Arena& arena);
  Status plan_memory(const DflashFile& draft, const gguf::File& tables);
  Status find(int32_t handle, Sequence** out);
  uint64_t fingerprint(const DflashFile& draft) const;
  SavedParts parts(const Sequence& s, int32_t length) const;
  uint64_t available() const;
  bool has(Kind kind) const { return std::count(p_.sliding.begin(), p_.sliding.end(), kind == kSliding) > 0; }
  // of_kinds returns the elements of the kinds that the draft has.
  template <typename T>
  std::span<T> of_kinds(std::array<T, kKinds>& all) const {
    return std::span<T>(all).subspan(has(kFull) ? kFull : kSliding, has(kFull) && has(kSliding) ? kKinds : 1);
  }
  DflashPages places(const Sequence& s) const;
  // resize gives a sequence the pages of its positions and of `rows` after them.
  void resize(Sequence* s, int32_t rows);
  // need returns the most pages of a kind that a call holds at a time, beyond those that a sequence has, to write
  // `rows` rows after its positions, at most `most` in one pass, after it wrote to the sequences `before`.
  int32_t need(Kind kind, const Sequence& s, int32_t rows, int32_t most, std::span<const int32_t> before) const;
  Status check_append(std::span<const tnd_feature_rows> pieces);
  // append_pass appends the cuts [from, end), together at most append_rows_ rows of one kind.
  void append_pass(size_t from, size_t end);
  Status no_pages(const char* what, int32_t index, const Sequence& s, int32_t needed, int32_t free) const;
  // extend is resize, and the pages of the tip become the sequence's own. Returns whether one was copied.
  bool extend(Sequence* s, int32_t rows);

  OpenContext c_;
  DflashHParams p_;
  int32_t vocab_ = 0, append_rows_ = 0;
  KvPlan plan_;
  KvShape kv_;  // types; capacity of the pool of full layers
  std::array<PagePool, kKinds> pools_;
  std::unique_ptr<DflashModel> model_;
  Arena arena_;
  void* region_ = nullptr;
  uint64_t loaded_ = 0, load_total_ = 0;
  std::vector<KvCache> caches_;  // [layers]
  std::vector<Sequence> sequences_;
  SavedSequences saved_;
  std::vector<DflashBlock> blocks_;

  // Of the current call, reused.
  struct Cut {
    int32_t sequence = 0;
    DflashRows rows;
  };
  std::vector<int32_t> written_;  // sequences that it writes to
  std::vector<int32_t> more_;     // [plan_.sequences] rows that it appends
  std::vector<Cut> cuts_;         // pieces of an append, cut at append_rows_ rows
  std::vector<DflashRows> pass_;
};

constexpr int32_t kMaxSequences = 4096;

Status DraftRole::open_files(std::unique_ptr<DflashFile>* draft, std::unique_ptr<gguf::File>* tables) {
  if (c_.tables_path.empty()) {
    return Status(TND_INVALID_ARGUMENT,
                  "tables_path is empty: a draft needs the target's GGUF for token_embd.weight and the head");
  }
  TND_TRY(gguf::File::open(c_.tables_path.c_str(), tables));
  const std::string arch((*tables)->arch());
  int32_t blocks = 0, nextn = 0;  // a file cut to the tables may lack them
  TND_TRY((*tables)->get_i32_or(arch + ".block_count", 1, 1024, &blocks));
  TND_TRY((*tables)->get_i32_or(arch + ".nextn_predict_layers", 0, 1024, &nextn));
  TND_TRY(DflashFile::open(c_.model_path.c_str(), std::max(0, blocks - nextn), draft));
  p_ = (*draft)->hparams();

  const TensorView* table = (*tables)->find("token_embd.weight");
  if (table == nullptr || table->n_dims != 2) {
    return errorf(TND_INVALID_ARGUMENT, "%s: tensor token_embd.weight is missing", c_.tables_path.c_str());
  }
  if (table->ne[0] != static_cast<uint64_t>(p_.decoder.hidden)) {
    return errorf(TND_FAILED_PRECONDITION, "%s: rows of token_embd.weight have %llu values, the draft %s has width %d",
                  c_.tables_path.c_str(), static_cast<unsigned long long>(table->ne[0]), c_.model_path.c_str(),
                  p_.decoder.hidden);
  }
  if (table->ne[1] > (1u << 28))
    return errorf(TND_INVALID_ARGUMENT, "%s: vocabulary too large", c_.tables_path.c_str());
  vocab_ = static_cast<int32_t>(table->ne[1]);
  if (p_.mask_token >= vocab_) {
    return errorf(TND_FAILED_PRECONDITION, "%s: mask token %d is beyond the %d rows of token_embd.weight in %s",
                  c_.model_path.c_str(), p_.mask_token, vocab_, c_.tables_path.c_str());
  }
  // A converter in circulation writes 1e6 into drafts that were trained with the target's 1e7.
  float theta = p_.decoder.rope_theta;
  TND_TRY((*tables)->get_f32_or(arch + ".rope.freq_base", &theta));
  if (theta != p_.decoder.rope_theta) {
    char text[512];
    std::snprintf(text, sizeof text,
                  "%s: rope.freq_base %g differs from the target's %g; if acceptance is low the draft's converter "
                  "wrote the wrong value",
                  c_.model_path.c_str(), double(p_.decoder.rope_theta), double(theta));
    c_.log(TND_LOG_WARN, text);
  }
  return Status();
}

Status DraftRole::build(const DflashFile& draft, const gguf::File& tables, const KvPlan& plan, Arena& arena) {
  const tnd_open_options& o = c_.options;
  WeightLoader weights(draft, *c_.backend, arena), head(tables, *c_.backend, arena);
  weights.on_loaded = head.on_loaded = [this](uint64_t bytes) { c_.progress(loaded_ += bytes, load_total_); };
  // A sequence may be extended by append_rows_ at a time.
  const KvReach reach[] = {{.pending = p_.block}, {p_.block, p_.window, plan.sequences * append_rows_}};
  kv_.capacity = pool_slots(plan, reach[kFull]);
  KvShape sliding = kv_;
  sliding.capacity = pool_slots(plan, reach[kSliding]);
  DflashLimits limits;
  limits.block_rows = plan.sequences * p_.block;
  limits.append_rows = append_rows_;
  limits.max_context = plan.max_context;
  limits.pages = int64_t{plan.sequences} * table_pages(plan, p_.block);
  limits.kv = kv_;
  limits.sliding_kv = sliding;
  limits.max_top_k = o.max_top_k;
  model_ = std::make_unique<DflashModel>(p_, *c_.backend);
  TND_TRY(model_->load(weights, head, vocab_, arena, limits));
  load_total_ = weights.file_bytes() + head.file_bytes();
  caches_.resize(static_cast<size_t>(p_.decoder.n_layers));
  std::array<std::vector<KvCache>, kKinds> of_kind;
  for (size_t i = 0; i < caches_.size(); ++i) {
    const KvShape& shape = p_.sliding[i] ? sliding : kv_;
    caches_[i].k = arena.take(Purpose::kKv, c_.backend->kv_bytes(shape, true));
    caches_[i].v = arena.take(Purpose::kKv, c_.backend->kv_bytes(shape, false));
    of_kind[p_.sliding[i] ? kSliding : kFull].push_back(caches_[i]);
  }
  if (arena.measuring()) return Status();
  if (has(kFull)) pools_[kFull].init(c_.backend, kv_, of_kind[kFull]);
  if (has(kSliding)) pools_[kSliding].init(c_.backend, sliding, of_kind[kSliding], p_.window);
  return Status();
}

Status DraftRole::plan_memory(const DflashFile& draft, const gguf::File& tables) {
  KvWish wish;
  wish.model_context = p_.decoder.context_length;
  wish.least_context = 256;
  wish.measure = [&](const KvPlan& plan, Arena* arena) { return build(draft, tables, plan, *arena); };
  TND_TRY(plan_kv_types(c_, wish, p_.decoder.kv_heads, p_.decoder.head_dim, &kv_, &plan_));
  Arena measure;
  TND_TRY(build(draft, tables, plan_, measure));
  TND_TRY(c_.backend->allocate(measure.total(), &region_));
  arena_ = Arena(region_, measure.total());
  loaded_ = 0;
  TND_TRY(build(draft, tables, plan_, arena_));
  if (arena_.total() != measure.total()) return Status(TND_INTERNAL, "memory plan of the draft changed while loading");
  sequences_.assign(static_cast<size_t>(plan_.sequences), Sequence());
  return Status();
}

Status DraftRole::open() {
  const tnd_open_options& o = c_.options;
  if (o.max_sequences < 0 || o.max_sequences > kMaxSequences) {
    return errorf(TND_INVALID_ARGUMENT, "max_sequences is %d, must be 0..%d", o.max_sequences, kMaxSequences);
  }
  if (o.attention_window != 0) {
    return errorf(TND_INVALID_ARGUMENT, "attention_window is %d, must be 0: a draft's file has its window",
                  o.attention_window);
  }
  append_rows_ = std::clamp(o.max_batch_rows, 16, 1024);
  std::unique_ptr<DflashFile> draft;
  std::unique_ptr<gguf::File> tables;
  TND_TRY(open_files(&draft, &tables));
  TND_TRY(plan_memory(*draft, *tables));
  saved_.init(c_.backend, of_kinds(pools_),
              {{'T', 'N', 'D', 'D', 'R', 'A', 'F', 'T'},
               "draft sequence",
               "draft",
               fingerprint(*draft),
               kv_,
               plan_.max_context,
               o.host_cap_bytes});
  return c_.backend->sync();
}

void DraftRole::info(tnd_info* out) const {
  const HParams& d = p_.decoder;
  std::snprintf(out->arch, sizeof out->arch, "%s", d.arch.c_str());
  std::snprintf(out->name, sizeof out->name, "%s", d.name.c_str());
  out->n_layers = d.n_layers;
  out->layer_first = 0;
  out->layer_last = d.n_layers;
  out->hidden = d.hidden;
  out->vocab = vocab_;
  out->max_sequences = plan_.sequences;
  out->max_context = plan_.max_context;
  out->kv_positions = plan_.positions;
  out->kv_page = kKvPage;
  out->max_tree_rows = p_.block;
  out->max_batch_rows = append_rows_;
  out->max_top_k = c_.options.max_top_k;
  out->kv_type_k = kv_.k_type;
  out->kv_type_v = kv_.v_type;
  out->block_size = p_.block;
  out->mask_token = p_.mask_token;
  out->n_capture = static_cast<int32_t>(p_.target_layers.size());
  std::copy(p_.target_layers.begin(), p_.target_layers.end(), out->capture_layers);
  out->feature_raw = p_.feature_raw;
  out->feature_fused = d.hidden;
  out->recurrent = 0;
  out->kv_bytes_per_token = c_.backend->kv_row_bytes(kv_) * static_cast<uint64_t>(d.n_layers);
  out->state_bytes_per_sequence = 0;
}

void DraftRole::memory(std::vector<tnd_stat>* out) const {
  for (int i = 0; i < static_cast<int>(Purpose::kCount); ++i) {
    add_stat(out, purpose_name(static_cast<Purpose>(i)), arena_.of(static_cast<Purpose>(i)));
  }
  saved_.memory(out);
}

Status DraftRole::find(int32_t handle, Sequence** out) {
  if (handle < 0 || static_cast<size_t>(handle) >= sequences_.size() || !sequences_[handle].used) {
    return errorf(TND_NOT_FOUND, "unknown sequence %d", handle);
  }
  *out = &sequences_[handle];
  return Status();
}

Status DraftRole::sequence_create(int32_t* sequence) {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i].used) continue;
    sequences_[i].used = true;
    sequences_[i].length = 0;
    for (PageTable& pages : sequences_[i].pages) PagePool::reserve(&pages, table_pages(plan_, p_.block));
    *sequence = static_cast<int32_t>(i);
    return Status();
  }
  return errorf(TND_RESOURCE_EXHAUSTED, "all %zu sequences are in use (max_sequences)", sequences_.size());
}

Status DraftRole::sequence_fork(int32_t sequence, int32_t* fork) {
  Sequence* from = nullptr;
  TND_TRY(find(sequence, &from));
  TND_TRY(sequence_create(fork));
  Sequence& s = sequences_[static_cast<size_t>(*fork)];
  s.length = from->length;
  for (const Kind kind : {kFull, kSliding}) {
    pools_[kind].share(from->pages[kind], from->pages[kind].count(), &s.pages[kind]);
  }
  return Status();
}

Status DraftRole::sequence_free(int32_t sequence) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  s->used = false;
  for (const Kind kind : {kFull, kSliding}) pools_[kind].resize(&s->pages[kind], 0);
  return Status();
}

Status DraftRole::sequence_length(int32_t sequence, int32_t* length) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  *length = s->length;
  return Status();
}

Status DraftRole::sequence_truncate(int32_t sequence, int32_t length) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  if (length < 0 || length > s->length) {
    return errorf(TND_INVALID_ARGUMENT, "length %d of a sequence with %d positions", length, s->length);
  }
  if (length > 0 && pools_[kSliding].first_page(length) < s->pages[kSliding].first()) {
    return errorf(TND_FAILED_PRECONDITION,
                  "length %d: sliding layers read page %d, the sequence keeps those from %d on", length,
                  pools_[kSliding].first_page(length), s->pages[kSliding].first());
  }
  s->length = length;
  resize(s, 0);
  return Status();
}

// Shapes and all norms: two drafts that agree in these are the same draft.
uint64_t DraftRole::fingerprint(const DflashFile& draft) const {
  const int32_t shape[] = {p_.decoder.n_layers, p_.decoder.hidden, p_.decoder.kv_heads, p_.decoder.head_dim,
                           p_.feature_raw};
  uint32_t norms = crc32c(&p_.decoder.rope_theta, sizeof p_.decoder.rope_theta);
  std::vector<std::string> names = {"hidden_norm.weight", "output_norm.weight"};
  for (int32_t i = 0; i < p_.decoder.n_layers; ++i) {
    names.push_back("blk." + std::to_string(i) + ".attn_norm.weight");
    names.push_back("blk." + std::to_string(i) + ".attn_k_norm.weight");
  }
  for (const std::string& name : names) {
    const TensorView* t = draft.find(name);
    norms = crc32c(t->data, t->bytes, norms);
  }
  return static_cast<uint64_t>(crc32c(shape, sizeof shape)) << 32 | norms;
}

SavedParts DraftRole::parts(const Sequence& s, int32_t length) const {
  SavedParts out;
  for (size_t i = 0; i < caches_.size(); ++i) {
    const Kind kind = p_.sliding[i] ? kSliding : kFull;
    const int32_t first = pools_[kind].first_page(length);
    out.push_back({.cache = &caches_[i],
                   .pool = &pools_[kind],
                   .pages = s.pages[kind].places() + first,
                   .n = static_cast<uint64_t>(length - first * kKvPage)});
  }
  return out;
}

uint64_t DraftRole::available() const {
  const uint64_t used = arena_.total() + saved_.cap_bytes();
  return used < c_.memory_cap ? c_.memory_cap - used : 0;
}

Status DraftRole::snapshot_create(int32_t sequence, int32_t* snapshot) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  return saved_.snapshot({}, of_kinds(s->pages), s->length, available(), snapshot);
}

Status DraftRole::snapshot_restore(int32_t snapshot, int32_t sequence) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  TND_TRY(saved_.check_restore(snapshot, of_kinds(s->pages), &s->length));
  return saved_.restore(snapshot, {}, of_kinds(s->pages));
}

Status DraftRole::snapshot_demote(int32_t snapshot) {
  return saved_.demote(snapshot, available());
}

Status DraftRole::snapshot_free(int32_t snapshot) {
  return saved_.free(snapshot);
}

Status DraftRole::export_size(int32_t sequence, uint64_t* bytes) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  *bytes = saved_.export_bytes(parts(*s, s->length));
  return Status();
}

Status DraftRole::export_to(int32_t sequence, void* data, uint64_t bytes) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  return saved_.export_to(parts(*s, s->length), s->length, data, bytes);
}

Status DraftRole::import_from(int32_t sequence, const void* data, uint64_t bytes) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  TND_TRY(saved_.check_import(data, bytes, [&](int32_t n) { return parts(*s, n); }, of_kinds(s->pages), &s->length));
  for (const Kind kind : {kFull, kSliding}) pools_[kind].resize(&s->pages[kind], 0);  // pages of its own
  resize(s, 0);
  return saved_.import_from(data, parts(*s, s->length));
}

DflashPages DraftRole::places(const Sequence& s) const {
  const PageTable& full = s.pages[has(kFull) ? kFull : kSliding];
  const PageTable& sliding = s.pages[has(kSliding) ? kSliding : kFull];
  return {full.places(), sliding.places()};
}

void DraftRole::resize(Sequence* s, int32_t rows) {
  for (const Kind kind : {kFull, kSliding}) {
    if (!has(kind)) continue;
    pools_[kind].resize(&s->pages[kind], kv_pages(int64_t{s->length} + rows), pools_[kind].first_page(s->length));
  }
}

// Sequences before this one copy the page of their tip, too: the last one that holds it keeps it. Pages that slide out
// of the window between two passes free nothing if others hold them.
int32_t DraftRole::need(Kind kind, const Sequence& s, int32_t rows, int32_t most,
                        std::span<const int32_t> before) const {
  if (!has(kind) || rows == 0) return 0;
  const PageTable& table = s.pages[kind];
  int32_t more = kv_pages(int64_t{s.length} + rows) - table.count();
  if (s.length % kKvPage != 0) {
    const int32_t page = table.pages().back();
    int32_t others = pools_[kind].refs(page) - 1;
    for (const int32_t sequence : before) {
      const Sequence& other = sequences_[static_cast<size_t>(sequence)];
      others -= other.length % kKvPage != 0 && other.pages[kind].pages().back() == page ? 1 : 0;
    }
    more += others > 0 ? 1 : 0;
  }
  if (kind == kFull) return more;
  const int32_t at_once = kv_pages(int64_t{p_.window} - 1 + most + kKvPage - 1);
  return std::min(more, at_once - pools_[kind].released(table, 0));
}

Status DraftRole::no_pages(const char* what, int32_t index, const Sequence& s, int32_t needed, int32_t free) const {
  return errorf(TND_RESOURCE_EXHAUSTED,
                "%s %d: %d positions need %d more pages of %d positions, %d are free "
                "(kv_positions)",
                what, index, s.length, needed, kKvPage, free);
}

bool DraftRole::extend(Sequence* s, int32_t rows) {
  const int32_t tip = s->length / kKvPage;
  bool copied = false;
  for (const Kind kind : {kFull, kSliding}) {
    if (!has(kind) || s->length % kKvPage == 0 || rows == 0) continue;
    copied |= pools_[kind].own(&s->pages[kind], tip, s->length - tip * kKvPage);
  }
  resize(s, rows);
  return copied;
}

Status DraftRole::check_append(std::span<const tnd_feature_rows> pieces) {
  more_.assign(sequences_.size(), 0);
  written_.clear();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const tnd_feature_rows& r = pieces[i];
    Sequence* s = nullptr;
    TND_TRY(find(r.sequence, &s));
    if (r.n_rows < 0 || (r.n_rows > 0 && r.features == nullptr)) {
      return errorf(TND_INVALID_ARGUMENT, "pieces[%zu].n_rows is %d, features %s", i, r.n_rows,
                    r.features == nullptr ? "are missing" : "are there");
    }
    int32_t* const more = &more_[static_cast<size_t>(r.sequence)];
    if (r.position != s->length + *more) {
      return errorf(TND_FAILED_PRECONDITION,
                    "pieces[%zu].position is %d: the sequence has %d positions, the next one is wanted", i, r.position,
                    s->length + *more);
    }
    if (r.n_rows > plan_.max_context - r.position) {
      return errorf(TND_RESOURCE_EXHAUSTED, "pieces[%zu].n_rows: %d positions after %d exceed max_context %d", i,
                    r.n_rows, r.position, plan_.max_context);
    }
    if (!known_features(r.encoding)) {
      return errorf(TND_INVALID_ARGUMENT, "pieces[%zu].encoding %d is not one of TND_FEATURE_*", i, r.encoding);
    }
    if (*more == 0 && r.n_rows > 0) written_.push_back(r.sequence);
    *more += r.n_rows;
  }
  for (const Kind kind : {kFull, kSliding}) {
    int32_t free = pools_[kind].free();
    for (size_t i = 0; i < written_.size(); ++i) {
      const Sequence& s = sequences_[static_cast<size_t>(written_[i])];
      const int32_t needed = need(kind, s, more_[static_cast<size_t>(written_[i])], append_rows_,
                                  std::span<const int32_t>(written_).first(i));
      if (needed > free) return no_pages("sequence", written_[i], s, needed, free);
      free -= needed;
    }
  }
  return Status();
}

void DraftRole::append_pass(size_t from, size_t end) {
  pass_.clear();
  for (const bool prompts : {true, false}) {
    for (size_t i = from; i < end; ++i) {
      if ((cuts_[i].rows.n > kPromptRows) == prompts) pass_.push_back(cuts_[i].rows);
    }
  }
  model_->append(caches_.data(), pass_, c_.stats);
}

Status DraftRole::append(std::span<const tnd_feature_rows> pieces) {
  const int64_t start = PhaseTimer::now();
  TND_TRY(check_append(pieces));
  cuts_.clear();
  int32_t total = 0, done = 0;
  for (const tnd_feature_rows& r : pieces) {
    const int64_t row_bytes =
        int64_t{fused_features(r.encoding) ? p_.decoder.hidden : p_.feature_raw} * (bf16_features(r.encoding) ? 2 : 4);
    const DflashPages pages = places(sequences_[static_cast<size_t>(r.sequence)]);  // they stay where they are
    for (int32_t at = 0; at < r.n_rows; at += append_rows_) {
      cuts_.push_back({r.sequence,
                       {pages, r.position + at, std::min(r.n_rows - at, append_rows_), r.encoding,
                        static_cast<const uint8_t*>(r.features) + at * row_bytes}});
    }
    total += r.n_rows;
  }
  for (size_t from = 0; from < cuts_.size();) {
    if (c_.cancel->load(std::memory_order_relaxed)) {
      return errorf(TND_CANCELED, "cancelled after %d of %d positions", done, total);
    }
    const bool fused = fused_features(cuts_[from].rows.encoding);
    size_t end = from;
    for (int32_t rows = 0; end < cuts_.size(); ++end) {
      rows += cuts_[end].rows.n;
      if (rows > append_rows_ || fused_features(cuts_[end].rows.encoding) != fused) break;
    }
    for (size_t i = from; i < end; ++i) {
      Sequence& s = sequences_[static_cast<size_t>(cuts_[i].sequence)];
      extend(&s, cuts_[i].rows.position + cuts_[i].rows.n - s.length);
    }
    append_pass(from, end);
    // A proposal comes next and is recorded while the device works on the last rows.
    TND_TRY(end < cuts_.size() ? c_.backend->sync() : c_.backend->start());
    for (; from < end; ++from) {
      Sequence& s = sequences_[static_cast<size_t>(cuts_[from].sequence)];
      s.length += cuts_[from].rows.n;
      done += cuts_[from].rows.n;
    }
  }
  for (const int32_t sequence : written_) resize(&sequences_[static_cast<size_t>(sequence)], 0);
  c_.stats->add(Counter::kDraftAppends, static_cast<uint64_t>(total));
  c_.stats->add(Counter::kDraftNs, static_cast<uint64_t>(PhaseTimer::now() - start));
  return Status();
}

Status DraftRole::propose(std::span<const tnd_draft_request> requests, int32_t* ids, float* logprobs) {
  const int64_t start = PhaseTimer::now();
  const int32_t stride = c_.options.max_top_k;
  const int64_t per_request = int64_t{p_.block - 1} * stride;
  if (requests.size() > sequences_.size()) {
    return errorf(TND_INVALID_ARGUMENT, "%zu requests, max_sequences is %zu", requests.size(), sequences_.size());
  }
  if (requests.empty()) return Status();
  if (ids == nullptr || logprobs == nullptr) return Status(TND_INVALID_ARGUMENT, "ids or logprobs is missing");
  blocks_.clear();
  written_.clear();
  std::array<int32_t, kKinds> needed{};
  for (size_t i = 0; i < requests.size(); ++i) {
    const tnd_draft_request& r = requests[i];
    Sequence* s = nullptr;
    TND_TRY(find(r.sequence, &s));
    for (size_t j = 0; j < i; ++j) {
      if (requests[j].sequence == r.sequence) {
        return errorf(TND_INVALID_ARGUMENT, "requests %zu and %zu are for the same sequence %d", j, i, r.sequence);
      }
    }
    const int n = static_cast<int>(i);
    if (r.token < 0 || r.token >= vocab_) {
      return errorf(TND_INVALID_ARGUMENT, "request %d: token %d, the vocabulary has %d", n, r.token, vocab_);
    }
    if (r.block < 2 || r.block > p_.block) {
      return errorf(TND_INVALID_ARGUMENT, "request %d: block %d, must be 2..%d", n, r.block, p_.block);
    }
    if (r.top_k < 1 || r.top_k > stride || r.top_k > vocab_) {
      return errorf(TND_INVALID_ARGUMENT, "request %d: top_k %d, must be 1..%d", n, r.top_k, std::min(stride, vocab_));
    }
    if (!(r.temperature > 0.0f) || !std::isfinite(r.temperature)) {
      return errorf(TND_INVALID_ARGUMENT, "request %d: temperature %g must be above 0", n, double(r.temperature));
    }
    if (r.position < s->length || r.position > plan_.max_context) {
      return errorf(TND_INVALID_ARGUMENT, "request %d: position %d, must be %d (positions appended) to %d", n,
                    r.position, s->length, plan_.max_context);
    }
    for (const Kind kind : {kFull, kSliding}) {
      const int32_t free = pools_[kind].free() - needed[kind], more = need(kind, *s, r.block, r.block, written_);
      if (more > free) return no_pages("request", n, *s, more, free);
      needed[kind] += more;
    }
    written_.push_back(r.sequence);
  }
  bool copied = false;
  for (size_t i = 0; i < requests.size(); ++i) {
    const tnd_draft_request& r = requests[i];
    const int64_t at = static_cast<int64_t>(i) * per_request;
    Sequence& s = sequences_[static_cast<size_t>(r.sequence)];
    copied |= extend(&s, r.block);
    blocks_.push_back({places(s), kv_pages(int64_t{s.length} + r.block), s.length, r.token, r.position, r.block,
                       r.top_k, r.temperature, ids + at, logprobs + at});
  }
  if (copied) TND_TRY(c_.backend->start());  // context is older than the pass (AttentionGroupPlan::old)
  const int64_t total = static_cast<int64_t>(requests.size()) * per_request;
  std::fill(ids, ids + total, -1);
  std::fill(logprobs, logprobs + total, -1.0f);
  model_->propose(caches_.data(), blocks_, stride, c_.stats);
  for (const tnd_draft_request& r : requests) {  // what the block wrote is not read again
    resize(&sequences_[static_cast<size_t>(r.sequence)], 0);
  }
  TND_TRY(c_.backend->sync());
  c_.stats->add(Counter::kDraftProposals, requests.size());
  c_.stats->add(Counter::kDraftNs, static_cast<uint64_t>(PhaseTimer::now() - start));
  return Status();
}

}  // namespace

Status open_draft(const OpenContext& context, std::unique_ptr<DraftEngine>* out) {
  auto role = std::make_unique<DraftRole>(context);
  TND_TRY(role->open());
  *out = std::move(role);
  return Status();
}

}  // namespace tnd
