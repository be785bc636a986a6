// What a target engine keeps beyond a step: snapshots, exported sequences, captured and fused features.
//
// Payload of a sequence of n positions, little-endian:
//   i32 token ids [n]
//   per DeltaNet layer: f32 taps [3, conv_dim] oldest first; f32 S [nv, 4 slices, 128 key rows, 32 columns]
//   per attention layer: n rows of K [kv_heads, dim] then V [kv_heads, dim] in cache types (of a snapshot: pages). With
//   an attention window: those from the first page on that later rows read
#include <algorithm>
#include <cstring>

#include "models/dflash_hparams.h"
#include "roles/target.h"

namespace tnd {

SavedParts TargetRole::host_parts(Sequence* s, int32_t length) const {
  const DeltaShape shape = model_->delta_shape();
  const uint64_t n = static_cast<uint64_t>(length);
  SavedParts out{{.host = s->tokens.data(), .n = n * sizeof(int32_t)}};
  for (DeltaState& state : s->states) {
    out.push_back({.floats = state.taps, .n = static_cast<uint64_t>(shape.taps_elems())});
    out.push_back({.floats = state.s, .n = static_cast<uint64_t>(shape.state_elems())});
  }
  return out;
}

SavedParts TargetRole::parts(Sequence* s, int32_t length) const {
  SavedParts out = host_parts(s, length);
  const int32_t first = pool_.first_page(length);
  for (const KvCache& cache : caches_) {
    out.push_back({.cache = &cache,
                   .pool = &pool_,
                   .pages = s->pages.places() + first,
                   .n = static_cast<uint64_t>(length - first * kKvPage)});
  }
  return out;
}

// Makes room for what is restored or imported.
void TargetRole::replace(Sequence* s, int32_t length) {
  s->length = length;
  s->broken = false;
  s->pending.clear();
  s->kept = Kept();
  s->tokens.resize(static_cast<size_t>(length));
}

Status TargetRole::snapshot_create(int32_t sequence, int32_t* snapshot) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  return saved_.snapshot(host_parts(s, s->length), {&s->pages, 1}, s->length, available(), snapshot);
}

Status TargetRole::snapshot_restore(int32_t snapshot, int32_t sequence) {
  Sequence* s = nullptr;
  int32_t length = 0;
  TND_TRY(find(sequence, &s, true));
  TND_TRY(saved_.check_restore(snapshot, {&s->pages, 1}, &length));
  replace(s, length);
  return saved_.restore(snapshot, host_parts(s, length), {&s->pages, 1});
}

Status TargetRole::snapshot_demote(int32_t snapshot) {
  return saved_.demote(snapshot, available());
}

Status TargetRole::snapshot_free(int32_t snapshot) {
  return saved_.free(snapshot);
}

Status TargetRole::snapshot_describe(int32_t snapshot, tnd_snapshot_layout* layout) {
  return saved_.describe(snapshot, layout);
}

Status TargetRole::snapshot_read(int32_t snapshot, int32_t part, uint64_t offset, void* data, uint64_t bytes,
                                 uint32_t* crc) {
  return saved_.read_part(snapshot, part, offset, data, bytes, crc);
}

Status TargetRole::snapshot_begin(const tnd_snapshot_layout& layout, int32_t base, int32_t shared, int32_t* snapshot) {
  if (layout.length < 0) return errorf(TND_INVALID_ARGUMENT, "layout.length is %d", layout.length);
  // Any sequence says how long the state is; its own tokens are not looked at.
  const uint64_t state = saved_.payload_bytes(host_parts(&sequences_.front(), layout.length));
  return saved_.begin(layout, state, available(), base, shared, snapshot);
}

Status TargetRole::snapshot_write(int32_t snapshot, int32_t part, uint64_t offset, const void* data, uint64_t bytes,
                                  uint32_t crc) {
  return saved_.write_part(snapshot, part, offset, data, bytes, crc);
}

Status TargetRole::snapshot_finish(int32_t snapshot) {
  std::span<const uint8_t> payload;
  int32_t length = 0;
  TND_TRY(saved_.written(snapshot, &length, &payload));
  for (int32_t i = 0; i < length; ++i) {
    int32_t token;
    std::memcpy(&token, payload.data() + static_cast<size_t>(i) * sizeof token, sizeof token);
    if (token < -1 || token >= p_.vocab) {
      return errorf(TND_DATA_LOSS, "snapshot %d has token %d at position %d, the vocabulary %d", snapshot, token, i,
                    p_.vocab);
    }
  }
  saved_.ready(snapshot);
  return Status();
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
  TND_TRY(saved_.check_import(data, bytes, [&](int32_t n) { return parts(s, n); }, {&s->pages, 1}, &length));
  replace(s, length);
  pool_.resize(&s->pages, 0);  // pages of its own
  pool_.resize(&s->pages, kv_pages(length), pool_.first_page(length));
  return saved_.import_from(data, parts(s, length));
}

// Bytes of the buffer of captured features of n layers.
uint64_t TargetRole::feature_bytes(int32_t sequences, int32_t n) const {
  return static_cast<uint64_t>(kept_place(sequences, 0)) * static_cast<uint64_t>(n) * static_cast<uint64_t>(p_.hidden) *
         sizeof(float);
}

// Takes the buffer of captured features for n layers, within the cap. Nothing is kept any more.
Status TargetRole::take_features(int32_t n) {
  for (Sequence& s : sequences_) {
    s.kept = Kept();
    for (Pending& p : s.pending) p.kept = false;
  }
  if (feature_region_ != nullptr) {
    c_.backend->release(feature_region_);
    feature_region_ = nullptr;
    features_ = nullptr;
    feature_bytes_.store(0);
  }
  if (n == 0) return Status();
  const uint64_t bytes = feature_bytes(plan_.sequences, n);
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
  std::vector<int32_t> own;  // layers of this shard
  for (const int32_t layer : draft.target_layers) {
    if (layer >= layer_first_ && layer < layer_last_) own.push_back(layer);
  }
  const bool all = own.size() == draft.target_layers.size();
  const int64_t raw = static_cast<int64_t>(draft.target_layers.size()) * p_.hidden;
  const int64_t fused = draft.decoder.hidden;
  if (draft.feature_raw != raw) {
    return errorf(TND_FAILED_PRECONDITION, "%s: the draft reads %d feature values a token, this target has %lld", path,
                  draft.feature_raw, static_cast<long long>(raw));
  }
  std::unique_ptr<Matrix> fc;
  std::unique_ptr<Acts> acts;
  FuseLayer layer;
  float *out = nullptr, *foreign = nullptr;
  const auto build = [&](Arena& arena) -> Status {
    WeightLoader loader(*file, *c_.backend, arena);
    TND_TRY(loader.matrix("fc.weight", raw, fused, &fc));
    TND_TRY(loader.vector("hidden_norm.weight", fused, &layer.norm));
    acts = c_.backend->acts(arena, raw, c_.options.max_batch_rows, c_.backend->forms(*fc));
    out = arena.take_array<float>(Purpose::kFeatures,
                                  static_cast<uint64_t>(c_.options.max_batch_rows) * static_cast<uint64_t>(fused));
    if (!all) {
      foreign = arena.take_array<float>(Purpose::kFeatures,
                                        static_cast<uint64_t>(c_.options.max_batch_rows) * static_cast<uint64_t>(raw));
    }
    return Status();
  };
  TND_TRY(capture_set(own));
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
  fuses_own_ = all;
  foreign_ = all ? features_ : foreign;  // a step's own rows are in use during the step only
  return c_.backend->sync();
}

// Place in features_ of a row that is kept.
int32_t TargetRole::kept_place(int32_t sequence, int32_t position) const {
  return c_.options.max_batch_rows + sequence * TND_KEPT_ROWS + position % TND_KEPT_ROWS;
}

Status TargetRole::check_encoding(int32_t encoding) const {
  if (!known_features(encoding)) {
    return errorf(TND_INVALID_ARGUMENT, "feature_encoding is %d", encoding);
  }
  if (fused_features(encoding) && fc_ == nullptr) {
    return errorf(TND_FAILED_PRECONDITION, "fused features need tnd_fuse_load");
  }
  if (fused_features(encoding) && !fuses_own_) {
    return errorf(TND_FAILED_PRECONDITION,
                  "fused features need layers that this engine does not run (%d..%d): take raw ones and tnd_fuse",
                  layer_first_, layer_last_ - 1);
  }
  return Status();
}

int64_t TargetRole::feature_width(int32_t encoding) const {
  return fused_features(encoding) ? fc_->n : static_cast<int64_t>(capture_.size()) * p_.hidden;
}

uint64_t TargetRole::feature_row_bytes(int32_t encoding) const {
  return static_cast<uint64_t>(feature_width(encoding)) * (bf16_features(encoding) ? sizeof(uint16_t) : sizeof(float));
}

// Reads the kept features that the groups name, in order, with one product for all. They have the contract of decoding.
Status TargetRole::read_kept(const tnd_step& step) {
  feature_rows_.clear();
  for (const Group& g : groups_) {
    for (int32_t i = 0; i < g.n_kept; ++i) feature_rows_.push_back(kept_place(g.sequence, g.kept_position + i));
  }
  if (feature_rows_.empty()) return Status();
  PhaseTimer timer(c_.stats);
  const int64_t raw = static_cast<int64_t>(capture_.size()) * p_.hidden;
  const int32_t n = static_cast<int32_t>(feature_rows_.size());
  constexpr int32_t kFew = 8;  // reads of up to so many rows are recorded as one
  c_.backend->begin_step(0, std::max(n, kFew));
  c_.backend->copy_rows(features_, raw, feature_rows_, {}, features_, raw);
  download_features(step.feature_encoding, fuse_features(step.feature_encoding, n), n,
                    static_cast<uint8_t*>(step.features));
  TND_TRY(c_.backend->sync());
  timer.mark(Counter::kFeatureNs);
  return Status();
}

// Writes the captured features of the step's rows behind the kept ones, in the caller's order. They lie in features_ in
// the order of internal rows: a group's are neighbours.
void TargetRole::write_features(const tnd_step& step) {
  const int32_t encoding = step.feature_encoding;
  c_.backend->begin_step(prompt_features_, prompt_rows_ > 0 ? wanted_features_ : step_rows());
  const float* src = fuse_features(encoding, wanted_features_);
  uint8_t* out = static_cast<uint8_t*>(step.features);
  for (const Group& g : groups_) out += static_cast<uint64_t>(g.n_kept) * feature_row_bytes(encoding);
  int32_t first = 0, n = 0;  // neighbours that are neighbours in the results, too
  const auto download = [&] {
    if (n > 0) download_features(encoding, src + first * feature_width(encoding), n, out);
    out += static_cast<uint64_t>(n) * feature_row_bytes(encoding);
  };
  for (const Group& g : groups_) {
    if (g.features == 0) continue;
    if (g.first_feature != first + n) {
      download();
      first = g.first_feature;
      n = 0;
    }
    n += g.features;
  }
  download();
}

// Fuses the first n rows of features_ if the encoding asks for it; returns where the rows are then.
const float* TargetRole::fuse_features(int32_t encoding, int32_t n) {
  if (!fused_features(encoding)) return features_;
  fuse_rows(features_, n);
  return fused_;
}

// Fuses n rows of raw features into fused_.
void TargetRole::fuse_rows(const float* raw, int32_t n) {
  const int64_t width = fc_->n;
  c_.backend->prepare(raw, fc_->k, n, fc_->k, c_.backend->forms(*fc_), fuse_acts_.get());
  const Product product{fc_.get(), fused_, width, nullptr};
  c_.backend->matmul(std::span<const Product>(&product, 1), *fuse_acts_, n);
  c_.backend->norm_rows(fused_, fuse_.norm, fuse_.eps, n, width, fused_);
}

Status TargetRole::fuse(int32_t n, uint32_t kind, int32_t raw_encoding, const void* raw, int32_t fused_encoding,
                        void* fused) {
  PhaseTimer timer(c_.stats);
  const int32_t most = c_.options.max_batch_rows;
  if (n < 1 || n > most) return errorf(TND_INVALID_ARGUMENT, "n is %d, must be 1..%d (max_batch_rows)", n, most);
  if (kind != TND_GROUP_DECODE && kind != TND_GROUP_PROMPT) return errorf(TND_INVALID_ARGUMENT, "kind is %u", kind);
  if (!known_features(raw_encoding) || fused_features(raw_encoding)) {
    return errorf(TND_INVALID_ARGUMENT, "raw_encoding is %d", raw_encoding);
  }
  if (!known_features(fused_encoding) || !fused_features(fused_encoding)) {
    return errorf(TND_INVALID_ARGUMENT, "fused_encoding is %d", fused_encoding);
  }
  if (fc_ == nullptr) return errorf(TND_FAILED_PRECONDITION, "fused features need tnd_fuse_load");
  c_.backend->begin_step(kind == TND_GROUP_PROMPT ? n : 0, n);
  if (bf16_features(raw_encoding)) {
    c_.backend->upload_rows_bf16(foreign_, raw, n, fc_->k);
  } else {
    c_.backend->upload_rows(foreign_, static_cast<const float*>(raw), n, fc_->k);
  }
  fuse_rows(foreign_, n);
  download_features(fused_encoding, fused_, n, static_cast<uint8_t*>(fused));
  TND_TRY(c_.backend->sync());
  timer.mark(Counter::kFeatureNs);
  return Status();
}

void TargetRole::download_features(int32_t encoding, const float* src, int32_t n, uint8_t* out) {
  const int64_t width = feature_width(encoding);
  if (bf16_features(encoding)) {
    c_.backend->download_rows_bf16(reinterpret_cast<uint16_t*>(out), src, n, width);
  } else {
    c_.backend->download_rows(reinterpret_cast<float*>(out), src, n, width);
  }
}

}  // namespace tnd
