// Opening of a target engine: options, memory plan, weights, sequences.
#include "roles/target.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tnd {
namespace {

constexpr int32_t kMaxTreeRows = 128;
constexpr int32_t kMaxBatchRows = 1 << 14;
constexpr int32_t kMaxSequences = 1 << 12;
constexpr int32_t kLeastWindow = kMaxTreeRows;  // so that a row sees all of its uncommitted ancestors
constexpr int32_t kMostWindow = 1 << 24;
// Layers that a draft reads, at most, of the drafts that are known; an automatic number of sequences leaves room for
// the features of so many.
constexpr int32_t kLikelyCaptures = 8;
constexpr int32_t kMaxContext = 1 << 24;
constexpr int kHeadRows = 64;  // rows of one head product: bounds the logits buffer

// FNV-1a, for identity only (integrity is crc32c's).
struct Fingerprint {
  uint64_t h = 0xCBF29CE484222325u;
  void bytes(const void* data, uint64_t n) {
    const auto* p = static_cast<const uint8_t*>(data);
    for (uint64_t i = 0; i < n; ++i) h = (h ^ p[i]) * 0x100000001B3u;
  }
  void number(uint64_t v) { bytes(&v, sizeof v); }
  void text(std::string_view s) {
    number(s.size());
    bytes(s.data(), s.size());
  }
};

// Identity of a model: names, shapes and types of all tensors, and 64 bytes from the middle of each.
uint64_t model_fingerprint(const gguf::File& file, const HParams& p, int32_t first, int32_t last, int32_t window) {
  Fingerprint f;
  f.text(p.arch);
  for (const TensorView& t : file.tensors()) {
    f.text(t.name);
    f.number(t.type);
    for (uint64_t ne : t.ne) f.number(ne);
    const uint64_t n = std::min<uint64_t>(t.bytes, 64);
    f.bytes(static_cast<const uint8_t*>(t.data) + (t.bytes - n) / 2, n);
  }
  f.number(static_cast<uint64_t>(first));
  f.number(static_cast<uint64_t>(last));
  if (window != 0) f.number(static_cast<uint64_t>(window));  // without one the number is that of older files
  return f.h;
}

Status out_of_range(const char* field, int64_t value, int64_t low, int64_t high) {
  return errorf(TND_INVALID_ARGUMENT, "%s is %lld, must be %lld..%lld", field, static_cast<long long>(value),
                static_cast<long long>(low), static_cast<long long>(high));
}

}  // namespace

Status open_target(const OpenContext& context, std::unique_ptr<TargetEngine>* out) {
  const tnd_open_options& o = context.options;
  if (o.max_tree_rows < 1 || o.max_tree_rows > kMaxTreeRows) {
    return out_of_range("max_tree_rows", o.max_tree_rows, 1, kMaxTreeRows);
  }
  auto role = std::make_unique<TargetRole>(context);
  TND_TRY(role->open());
  *out = std::move(role);
  return Status();
}

TargetRole::~TargetRole() {
  if (region_ != nullptr) c_.backend->release(region_);
  if (feature_region_ != nullptr) c_.backend->release(feature_region_);
  if (fuse_region_ != nullptr) c_.backend->release(fuse_region_);
}

Status TargetRole::check_options() const {
  const tnd_open_options& o = c_.options;
  if (o.max_sequences < 0 || o.max_sequences > kMaxSequences) {
    return out_of_range("max_sequences", o.max_sequences, 0, kMaxSequences);
  }
  if (o.max_batch_rows < 1 || o.max_batch_rows > kMaxBatchRows) {
    return out_of_range("max_batch_rows", o.max_batch_rows, 1, kMaxBatchRows);
  }
  if (o.max_top_k < 1 || o.max_top_k > 1024) return out_of_range("max_top_k", o.max_top_k, 1, 1024);
  if (o.attention_window != 0 && (o.attention_window < kLeastWindow || o.attention_window > kMostWindow)) {
    return errorf(TND_INVALID_ARGUMENT, "attention_window is %d, must be 0 or %d..%d", o.attention_window, kLeastWindow,
                  kMostWindow);
  }
  if (layer_first_ < 0 || layer_first_ >= layer_last_ || layer_last_ > p_.n_layers) {
    return errorf(TND_INVALID_ARGUMENT, "layer_first %d, layer_last %d: no range of the model's %d layers",
                  layer_first_, layer_last_, p_.n_layers);
  }
  return Status();
}

Status TargetRole::open() {
  std::unique_ptr<gguf::File> file;
  TND_TRY(gguf::File::open(c_.model_path.c_str(), &file));
  TND_TRY(read_hparams(*file, &p_));
  TND_TRY(read_unused_tokens(*file, p_.vocab, &never_));
  any_never_ = std::any_of(never_.begin(), never_.end(), [](uint32_t w) { return w != 0; });

  layer_first_ = c_.options.layer_first;
  layer_last_ = c_.options.layer_last == 0 ? p_.n_layers : c_.options.layer_last;
  TND_TRY(check_options());
  if (c_.options.max_batch_rows < c_.options.max_tree_rows) {
    return errorf(TND_INVALID_ARGUMENT, "max_batch_rows %d is smaller than max_tree_rows %d", c_.options.max_batch_rows,
                  c_.options.max_tree_rows);
  }
  delta_layers_ = p_.delta_layers(layer_first_, layer_last_);
  attention_layers_ = p_.attention_layers(layer_first_, layer_last_);
  model_ = std::make_unique<TargetModel>(p_, *c_.backend);
  TND_TRY(plan_memory(*file));
  saved_.init(c_.backend, {&pool_, 1},
              {{'T', 'N', 'D', 'S', 'E', 'Q', '\r', '\n'},
               "sequence",
               "model, layer range or attention_window",
               model_fingerprint(*file, p_, layer_first_, layer_last_, c_.options.attention_window),
               kv_,
               plan_.max_context,
               c_.options.host_cap_bytes});

  const size_t rows = static_cast<size_t>(c_.options.max_batch_rows);
  row_of_batch_.resize(rows);
  batch_of_row_.resize(rows);
  parents_.resize(rows);
  parent_rows_.resize(rows);
  order_.resize(rows);
  tokens_.resize(rows);
  positions_.resize(rows);
  tail_.resize(rows * static_cast<size_t>(c_.options.max_tree_rows));
  delta_rows_.resize(rows);
  attention_rows_.resize(rows);
  groups_.reserve(sequences_.size());
  delta_groups_.reserve(sequences_.size());
  attention_groups_.reserve(sequences_.size());
  plan_order_.reserve(sequences_.size());
  begins_.reserve(rows);
  head_rows_.reserve(rows);
  feature_rows_.reserve(2 * rows);  // a row may be a result and kept
  feature_places_.reserve(2 * rows);
  counts_.assign(static_cast<size_t>(p_.vocab), 0);
  rope_host_.resize(rows * static_cast<size_t>(p_.rope_dims));
  if (layer_first_ > 0) hidden_.resize(rows * static_cast<size_t>(p_.hidden) * sizeof(float));
  angles_.init(static_cast<double>(p_.rope_theta), p_.rope_dims, plan_.max_context);
  return Status();
}

Status TargetRole::plan_memory(const gguf::File& file) {
  KvWish wish;
  wish.model_context = p_.context_length;
  wish.later = [&](int32_t sequences) { return feature_bytes(sequences, kLikelyCaptures); };
  wish.measure = [&](const KvPlan& plan, Arena* arena) { return build(*arena, plan, file); };
  TND_TRY(plan_kv_types(c_, wish, p_.kv_heads, p_.head_dim, &kv_, &plan_));
  Arena measured;
  TND_TRY(build(measured, plan_, file));
  TND_TRY(c_.backend->allocate(measured.total(), &region_));
  arena_ = Arena(region_, measured.total());
  TND_TRY(build(arena_, plan_, file));
  if (arena_.total() != measured.total()) return errorf(TND_INTERNAL, "memory plan and memory taken differ");
  pool_.init(c_.backend, kv_, caches_, c_.options.attention_window);
  c_.progress(file.file_bytes(), file.file_bytes());
  return c_.backend->sync();
}

// Takes everything an engine needs from the arena, in a fixed order. A measuring arena also checks all tensor shapes.
Status TargetRole::build(Arena& arena, const KvPlan& plan, const gguf::File& file) {
  const tnd_open_options& o = c_.options;
  kv_.capacity = pool_slots(plan, {o.max_tree_rows, o.attention_window, o.max_batch_rows});

  WeightLoader loader(file, *c_.backend, arena);
  uint64_t done = 0;
  loader.on_loaded = [&](uint64_t bytes) {
    done += bytes;
    c_.progress(done, file.file_bytes());
  };
  TND_TRY(model_->load(loader, arena, TargetLimits{layer_first_, layer_last_, o.max_batch_rows, kv_}));

  ScratchLimits limits;
  model_->scratch(&limits);
  limits.state_slots = TreePlanner::saved_states(o.max_tree_rows);
  limits.max_context = plan.max_context;
  limits.pages = int64_t{plan.sequences} * table_pages(plan, o.max_tree_rows);
  limits.max_top_k = o.max_top_k;
  if (model_->output() != nullptr) {
    limits.vocab = p_.vocab;
    limits.head_rows = std::min(o.max_batch_rows, kHeadRows);
  }
  c_.backend->plan_scratch(arena, limits);
  rope_ = arena.take_array<float>(Purpose::kScratch, static_cast<uint64_t>(o.max_batch_rows) * p_.rope_dims);

  if (layer_last_ < p_.n_layers) {
    hidden_out_ = arena.take_array<float>(Purpose::kScratch,
                                          static_cast<uint64_t>(o.max_batch_rows) * static_cast<uint64_t>(p_.hidden));
  }

  const DeltaShape shape = model_->delta_shape();
  caches_.resize(static_cast<size_t>(attention_layers_));
  for (KvCache& cache : caches_) {
    cache.k = arena.take(Purpose::kKv, c_.backend->kv_bytes(kv_, true));
    cache.v = arena.take(Purpose::kKv, c_.backend->kv_bytes(kv_, false));
  }
  sequences_.resize(static_cast<size_t>(plan.sequences));
  for (Sequence& s : sequences_) {
    s.states.resize(static_cast<size_t>(delta_layers_));
    s.replay.resize(static_cast<size_t>(delta_layers_));
    const auto floats = [&](Purpose purpose, int64_t n) {
      return arena.take_array<float>(purpose, static_cast<uint64_t>(n));
    };
    for (DeltaState& state : s.states) {
      state.taps = floats(Purpose::kState, shape.taps_elems());
      state.s = floats(Purpose::kState, shape.state_elems());
    }
    for (DeltaReplay& replay : s.replay) {
      const int64_t rows = o.max_tree_rows;
      replay.conv_in = floats(Purpose::kReplay, rows * shape.conv_dim());
      replay.k = floats(Purpose::kReplay, rows * shape.key_dim());
      replay.d = floats(Purpose::kReplay, rows * shape.value_dim());
      replay.alpha = floats(Purpose::kReplay, rows * shape.nv);
    }
  }
  return Status();
}

void TargetRole::info(tnd_info* out) const {
  std::snprintf(out->arch, sizeof out->arch, "%s", p_.arch.c_str());
  std::snprintf(out->name, sizeof out->name, "%s", p_.name.c_str());
  out->n_layers = p_.n_layers;
  out->layer_first = layer_first_;
  out->layer_last = layer_last_;
  out->hidden = p_.hidden;
  out->vocab = p_.vocab;
  out->max_sequences = plan_.sequences;
  out->max_context = plan_.max_context;
  out->kv_positions = plan_.positions;
  out->kv_page = kKvPage;
  out->max_tree_rows = c_.options.max_tree_rows;
  out->max_batch_rows = c_.options.max_batch_rows;
  out->max_top_k = c_.options.max_top_k;
  out->kv_type_k = kv_.k_type;
  out->kv_type_v = kv_.v_type;
  out->n_capture = static_cast<int32_t>(capture_.size());
  for (size_t i = 0; i < capture_.size(); ++i) out->capture_layers[i] = capture_[i];
  out->feature_raw = static_cast<int32_t>(capture_.size()) * p_.hidden;
  out->feature_fused = fc_ ? static_cast<int32_t>(fc_->n) : 0;
  out->fuse_raw = fc_ ? static_cast<int32_t>(fc_->k) : 0;
  out->recurrent = recurrent() ? 1 : 0;
  out->kv_bytes_per_token = static_cast<uint64_t>(attention_layers_) * c_.backend->kv_row_bytes(kv_);
  const DeltaShape shape = model_->delta_shape();
  out->state_bytes_per_sequence = static_cast<uint64_t>(delta_layers_) *
                                  static_cast<uint64_t>(shape.taps_elems() + shape.state_elems()) * sizeof(float);
}

void TargetRole::memory(std::vector<tnd_stat>* out) const {
  for (int i = 0; i < static_cast<int>(Purpose::kCount); ++i) {
    const Purpose purpose = static_cast<Purpose>(i);
    const bool features = purpose == Purpose::kFeatures;
    add_stat(out, purpose_name(purpose), features ? feature_bytes_.load() + fuse_bytes_.load() : arena_.of(purpose));
  }
  saved_.memory(out);
  add_stat(out, "total_bytes", used());
  add_stat(out, "cap_bytes", c_.memory_cap);
}

// Of the memory cap.
uint64_t TargetRole::used() const {
  return arena_.total() + saved_.cap_bytes() + feature_bytes_.load() + fuse_bytes_.load();
}

uint64_t TargetRole::available() const {
  return used() < c_.memory_cap ? c_.memory_cap - used() : 0;
}

Status TargetRole::find(int32_t handle, Sequence** out, bool broken_ok) {
  if (handle < 0 || handle >= static_cast<int32_t>(sequences_.size()) ||
      !sequences_[static_cast<size_t>(handle)].used) {
    return errorf(TND_NOT_FOUND, "sequence %d does not exist", handle);
  }
  Sequence* s = &sequences_[static_cast<size_t>(handle)];
  if (s->broken && !broken_ok) {
    return errorf(TND_FAILED_PRECONDITION,
                  "sequence %d was left half done by a cancelled step: free it, restore a snapshot or import", handle);
  }
  *out = s;
  return Status();
}

// Makes a sequence empty: no tokens, zero state.
void TargetRole::clear(Sequence* s) {
  const DeltaShape shape = model_->delta_shape();
  s->length = 0;
  s->tokens.clear();
  s->pending.clear();
  s->kept = Kept();
  s->broken = false;
  pool_.resize(&s->pages, 0);
  for (DeltaState& state : s->states) {
    c_.backend->zero(state.taps, shape.taps_elems());
    c_.backend->zero(state.s, shape.state_elems());
  }
}

Status TargetRole::unused(int32_t* handle) const {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i].used) continue;
    *handle = static_cast<int32_t>(i);
    return Status();
  }
  return errorf(TND_RESOURCE_EXHAUSTED, "all %d sequences are in use (max_sequences)", plan_.sequences);
}

Status TargetRole::sequence_create(int32_t* sequence) {
  int32_t handle = 0;
  TND_TRY(unused(&handle));
  Sequence& s = sequences_[static_cast<size_t>(handle)];
  s.used = true;
  s.has_sampler = false;
  s.bias_tokens.clear();
  s.bias_values.clear();
  s.tokens.reserve(static_cast<size_t>(plan_.max_context));
  s.pending.reserve(static_cast<size_t>(c_.options.max_tree_rows));
  PagePool::reserve(&s.pages, table_pages(plan_, c_.options.max_tree_rows));
  clear(&s);
  *sequence = handle;
  return c_.backend->sync();
}

Status TargetRole::sequence_fork(int32_t sequence, int32_t* fork) {
  Sequence* from = nullptr;
  TND_TRY(find(sequence, &from));
  int32_t handle = 0;
  TND_TRY(sequence_create(&handle));
  Sequence& s = sequences_[static_cast<size_t>(handle)];
  s.length = from->length;
  s.tokens = from->tokens;
  pool_.share(from->pages, kv_pages(s.length), &s.pages);
  const DeltaShape shape = model_->delta_shape();
  const int32_t first[] = {0};
  for (size_t i = 0; i < s.states.size(); ++i) {
    c_.backend->copy_rows(from->states[i].taps, shape.taps_elems(), first, {}, s.states[i].taps, shape.taps_elems());
    c_.backend->copy_rows(from->states[i].s, shape.state_elems(), first, {}, s.states[i].s, shape.state_elems());
  }
  *fork = handle;
  return c_.backend->sync();
}

Status TargetRole::sequence_free(int32_t sequence) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s, true));
  s->used = false;
  s->pending.clear();
  pool_.resize(&s->pages, 0);
  return Status();
}

Status TargetRole::sequence_length(int32_t sequence, int32_t* length) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s, true));
  *length = s->length;
  return Status();
}

Status TargetRole::sequence_truncate(int32_t sequence, int32_t length) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  if (length < 0 || length > s->length) return out_of_range("length", length, 0, s->length);
  if (recurrent() && length != 0 && length != s->length) {
    return errorf(TND_FAILED_PRECONDITION,
                  "a recurrent state cannot be cut to %d of %d positions; restore a snapshot instead", length,
                  s->length);
  }
  if (length > 0 && pool_.first_page(length) < s->pages.first()) {
    return errorf(TND_FAILED_PRECONDITION,
                  "length %d: rows there read page %d, the sequence keeps pages from %d on (attention_window); restore "
                  "a snapshot instead",
                  length, pool_.first_page(length), s->pages.first());
  }
  s->pending.clear();
  if (length == 0) {
    clear(s);
    return c_.backend->sync();
  }
  s->length = length;
  pool_.resize(&s->pages, kv_pages(length));
  s->kept.next = std::min(s->kept.next, length);
  s->tokens.resize(static_cast<size_t>(length));
  return Status();
}

Status TargetRole::sequence_sampler(int32_t sequence, const tnd_sampler& in) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s, true));
  const auto bad = [](const char* field, double value, const char* range) {
    return errorf(TND_INVALID_ARGUMENT, "sampler.%s is %g, must be %s", field, value, range);
  };
  const auto within = [](float v, float low, float high) { return v >= low && v <= high; };  // false for NaN
  constexpr int32_t kMaxWindow = 8192;
  if (!within(in.temperature, 0.0f, 100.0f)) return bad("temperature", in.temperature, "0..100");
  if (!(in.top_p > 0.0f && in.top_p <= 1.0f)) return bad("top_p", in.top_p, "above 0, at most 1");
  if (!within(in.min_p, 0.0f, 1.0f)) return bad("min_p", in.min_p, "0..1");
  // Logits are divided by it and must stay finite.
  if (!within(in.repetition_penalty, 1e-20f, 100.0f)) {
    return bad("repetition_penalty", in.repetition_penalty, "1e-20..100");
  }
  if (!within(in.frequency_penalty, -100.0f, 100.0f)) {
    return bad("frequency_penalty", in.frequency_penalty, "-100..100");
  }
  if (!within(in.presence_penalty, -100.0f, 100.0f)) return bad("presence_penalty", in.presence_penalty, "-100..100");
  if (in.penalty_window < 0 || in.penalty_window > kMaxWindow) {
    return out_of_range("sampler.penalty_window", in.penalty_window, 0, kMaxWindow);
  }
  if (in.prompt_tokens < 0) return out_of_range("sampler.prompt_tokens", in.prompt_tokens, 0, kMaxContext);
  if (in.n_bias < 0 || (in.n_bias > 0 && (in.bias_tokens == nullptr || in.bias_values == nullptr))) {
    return errorf(TND_INVALID_ARGUMENT, "sampler.n_bias is %d without bias_tokens and bias_values", in.n_bias);
  }
  for (int32_t i = 0; i < in.n_bias; ++i) {
    if (in.bias_tokens[i] < 0 || in.bias_tokens[i] >= p_.vocab) {
      return out_of_range("sampler.bias_tokens", in.bias_tokens[i], 0, p_.vocab - 1);
    }
    if (!within(in.bias_values[i], -1e6f, 1e6f)) return bad("bias_values", in.bias_values[i], "-1e6..1e6");
  }
  s->bias_tokens.assign(in.bias_tokens, in.bias_tokens + in.n_bias);
  s->bias_values.assign(in.bias_values, in.bias_values + in.n_bias);
  SamplerParams& p = s->sampler;
  p.temperature = in.temperature;
  p.top_p = in.top_p;
  p.min_p = in.min_p;
  p.repetition_penalty = in.repetition_penalty;
  p.frequency_penalty = in.frequency_penalty;
  p.presence_penalty = in.presence_penalty;
  p.top_k = in.top_k;
  p.seed = in.seed;
  p.choice = in.choice;
  p.bias_tokens = s->bias_tokens;
  p.bias_values = s->bias_values;
  s->penalty_window = in.penalty_window;
  s->prompt_tokens = in.prompt_tokens;
  s->has_sampler = true;
  return Status();
}

}  // namespace tnd
