// What a target engine keeps beyond a step: snapshots, exported sequences, captured and fused features.
//
// Payload of a sequence of n positions, little-endian:
//   i32 token ids [n]
//   per DeltaNet layer: f32 taps [3, conv_dim] oldest first; f32 S [nv, 4 slices, 128 key rows, 32 columns]
//   per attention layer: n rows of K [kv_heads, dim] then V [kv_heads, dim] in cache types
#include <algorithm>

#include "engine/target.h"
#include "models/dflash_hparams.h"

namespace tnd {

SavedParts TargetRole::parts(Sequence* s, int32_t length) const {
  const DeltaShape shape = model_->delta_shape();
  const uint64_t n = static_cast<uint64_t>(length);
  SavedParts out{{.host = s->tokens.data(), .n = n * sizeof(int32_t)}};
  for (DeltaState& state : s->states) {
    out.push_back({.floats = state.taps, .n = static_cast<uint64_t>(shape.taps_elems())});
    out.push_back({.floats = state.s, .n = static_cast<uint64_t>(shape.state_elems())});
  }
  for (const KvCache& cache : s->caches) out.push_back({.cache = &cache, .n = n});
  return out;
}

// Makes room for what is restored or imported.
void TargetRole::replace(Sequence* s, int32_t length) {
  s->length = length;
  s->broken = false;
  s->pending.clear();
  s->kept_first = s->kept_next = 0;
  s->tokens.resize(static_cast<size_t>(length));
}

Status TargetRole::snapshot_create(int32_t sequence, int32_t* snapshot) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  return saved_.snapshot(parts(s, s->length), s->length, available(), snapshot);
}

Status TargetRole::snapshot_restore(int32_t snapshot, int32_t sequence) {
  Sequence* s = nullptr;
  int32_t length = 0;
  TND_TRY(find(sequence, &s, true));
  TND_TRY(saved_.snapshot_length(snapshot, &length));
  replace(s, length);
  return saved_.restore(snapshot, parts(s, length));
}

Status TargetRole::snapshot_free(int32_t snapshot) {
  return saved_.free(snapshot);
}

Status TargetRole::export_size(int32_t sequence, uint64_t* bytes) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  *bytes = saved_.export_bytes(parts(s, s->length));
  return Status();
}

Status TargetRole::export_to(int32_t sequence, void* data, uint64_t bytes) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  return saved_.export_to(parts(s, s->length), s->length, data, bytes);
}

Status TargetRole::import_from(int32_t sequence, const void* data, uint64_t bytes) {
  Sequence* s = nullptr;
  int32_t length = 0;
  TND_TRY(find(sequence, &s, true));
  TND_TRY(saved_.check_import(data, bytes, [&](int32_t n) { return parts(s, n); }, &length));
  replace(s, length);
  return saved_.import_from(data, parts(s, length));
}

// Takes the buffer of captured features for n layers, within the cap. Nothing is kept any more.
Status TargetRole::take_features(int32_t n) {
  for (Sequence& s : sequences_) {
    s.kept_first = s.kept_next = 0;
    for (Pending& p : s.pending) p.kept = false;
  }
  if (feature_region_ != nullptr) {
    c_.backend->release(feature_region_);
    feature_region_ = nullptr;
    features_ = nullptr;
    feature_bytes_.store(0);
  }
  if (n == 0) return Status();
  const uint64_t bytes = static_cast<uint64_t>(kept_place(c_.options.max_sequences, 0)) * static_cast<uint64_t>(n) *
                         static_cast<uint64_t>(p_.hidden) * sizeof(float);
  if (bytes > available()) {
    return errorf(TND_RESOURCE_EXHAUSTED, "features of %d layers need %llu bytes, %llu are left of the memory cap", n,
                  static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(available()));
  }
  TND_TRY(c_.backend->allocate(bytes, &feature_region_));
  features_ = static_cast<float*>(feature_region_);
  feature_bytes_.store(bytes);
  return Status();
}

Status TargetRole::capture_set(std::span<const int32_t> layers) {
  constexpr size_t kMaxCapture = 64;
  if (layers.size() > kMaxCapture) {
    return errorf(TND_INVALID_ARGUMENT, "%zu layers to capture, at most %zu", layers.size(), kMaxCapture);
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] < layer_first_ || layers[i] >= layer_last_ || (i > 0 && layers[i] <= layers[i - 1])) {
      return errorf(TND_INVALID_ARGUMENT, "layers[%zu] is %d, must ascend within %d..%d", i, layers[i], layer_first_,
                    layer_last_ - 1);
    }
  }
  if (std::equal(layers.begin(), layers.end(), capture_.begin(), capture_.end())) return Status();
  if (fc_ != nullptr) {  // made for the old layers
    fc_.reset();
    fuse_acts_.reset();
    c_.backend->release(fuse_region_);
    fuse_region_ = nullptr;
    fuse_bytes_.store(0);
  }
  capture_.clear();
  TND_TRY(take_features(static_cast<int32_t>(layers.size())));
  capture_.assign(layers.begin(), layers.end());
  return Status();
}

Status TargetRole::fuse_load(const char* path) {
  std::unique_ptr<DflashFile> file;
  TND_TRY(DflashFile::open(path, p_.n_layers, &file));
  const DflashHParams& draft = file->hparams();
  for (const int32_t layer : draft.target_layers) {
    if (layer < layer_first_ || layer >= layer_last_) {
      return errorf(TND_FAILED_PRECONDITION, "%s: the draft reads layer %d, this engine runs %d..%d", path, layer,
                    layer_first_, layer_last_ - 1);
    }
  }
  const int64_t raw = static_cast<int64_t>(draft.target_layers.size()) * p_.hidden;
  const int64_t fused = draft.decoder.hidden;
  if (draft.feature_raw != raw) {
    return errorf(TND_FAILED_PRECONDITION, "%s: the draft reads %d feature values a token, this target has %lld", path,
                  draft.feature_raw, static_cast<long long>(raw));
  }
  std::unique_ptr<Matrix> fc;
  std::unique_ptr<Acts> acts;
  FuseLayer layer;
  float* out = nullptr;
  const auto build = [&](Arena& arena) -> Status {
    WeightLoader loader(*file, *c_.backend, arena);
    TND_TRY(loader.matrix("fc.weight", raw, fused, &fc));
    TND_TRY(loader.vector("hidden_norm.weight", fused, &layer.norm));
    acts = c_.backend->acts(arena, raw, c_.options.max_batch_rows, c_.backend->forms(*fc));
    out = arena.take_array<float>(Purpose::kFeatures,
                                  static_cast<uint64_t>(c_.options.max_batch_rows) * static_cast<uint64_t>(fused));
    return Status();
  };
  TND_TRY(capture_set(draft.target_layers));
  if (fc_ != nullptr) {
    fc_.reset();
    fuse_acts_.reset();
    c_.backend->release(fuse_region_);
    fuse_region_ = nullptr;
    fuse_bytes_.store(0);
  }
  Arena measured;
  TND_TRY(build(measured));
  if (measured.total() > available()) {
    return errorf(TND_RESOURCE_EXHAUSTED, "fusing features needs %llu bytes, %llu are left of the memory cap",
                  static_cast<unsigned long long>(measured.total()), static_cast<unsigned long long>(available()));
  }
  void* region = nullptr;
  TND_TRY(c_.backend->allocate(measured.total(), &region));
  Arena arena(region, measured.total());
  const Status status = build(arena);
  if (!status.ok()) {
    c_.backend->release(region);
    return status;
  }
  fuse_region_ = region;
  fuse_bytes_.store(measured.total());
  fc_ = std::move(fc);
  fuse_acts_ = std::move(acts);
  layer.fc = fc_.get();
  layer.eps = draft.decoder.eps;
  fuse_ = layer;
  fused_ = out;
  return c_.backend->sync();
}

// Place in features_ of a row that is kept.
int32_t TargetRole::kept_place(int32_t sequence, int32_t position) const {
  return c_.options.max_batch_rows + sequence * TND_KEPT_ROWS + position % TND_KEPT_ROWS;
}

// The row of a position that was committed just now is kept.
void TargetRole::keep(Sequence* s, int32_t position) {
  if (position != s->kept_next || s->kept_first > position) s->kept_first = position;
  s->kept_next = position + 1;
}

Status TargetRole::check_encoding(int32_t encoding) const {
  if (!known_features(encoding)) {
    return errorf(TND_INVALID_ARGUMENT, "feature_encoding is %d", encoding);
  }
  if (fused_features(encoding) && fc_ == nullptr) {
    return errorf(TND_FAILED_PRECONDITION, "fused features need tnd_fuse_load");
  }
  return Status();
}

Status TargetRole::features_read(int32_t sequence, int32_t position, int32_t n, int32_t encoding, void* out) {
  PhaseTimer timer(c_.stats);
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  TND_TRY(check_encoding(encoding));
  if (n > c_.options.max_batch_rows)
    return errorf(TND_INVALID_ARGUMENT, "n is %d, at most max_batch_rows %d", n, c_.options.max_batch_rows);
  const int64_t next = int64_t{position} + n;
  if (position < s->kept_first || next > s->kept_next) {
    return errorf(TND_FAILED_PRECONDITION,
                  "features of positions %d..%lld of sequence %d are not kept, those of %d..%d are", position,
                  static_cast<long long>(next - 1), sequence, s->kept_first, s->kept_next - 1);
  }
  feature_rows_.clear();
  for (int32_t i = 0; i < n; ++i) feature_rows_.push_back(kept_place(sequence, position + i));
  const int64_t raw = static_cast<int64_t>(capture_.size()) * p_.hidden;
  c_.backend->begin_step(false);
  c_.backend->copy_rows(features_, raw, feature_rows_, {}, features_, raw);
  write_features(encoding, n, out);
  TND_TRY(c_.backend->sync());
  timer.mark(Counter::kFeatureNs);
  return Status();
}

// Writes the first n rows of features_.
void TargetRole::write_features(int32_t encoding, int32_t n, void* out) {
  const int64_t raw = static_cast<int64_t>(capture_.size()) * p_.hidden;
  const float* src = features_;
  int64_t width = raw;
  if (fused_features(encoding)) {
    width = fc_->n;
    c_.backend->prepare(features_, raw, n, raw, c_.backend->forms(*fc_), fuse_acts_.get());
    const Product product{fc_.get(), fused_, width, nullptr};
    c_.backend->matmul(std::span<const Product>(&product, 1), *fuse_acts_, n);
    c_.backend->norm_rows(fused_, fuse_.norm, fuse_.eps, n, width, fused_);
    src = fused_;
  }
  if (bf16_features(encoding)) {
    c_.backend->download_bf16(static_cast<uint16_t*>(out), src, n * width);
  } else {
    c_.backend->download(static_cast<float*>(out), src, n * width);
  }
}

}  // namespace tnd
