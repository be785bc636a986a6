// What a target engine keeps beyond a step: snapshots, exported sequences, captured and fused features.
//
// Payload of a sequence of n positions, little-endian:
//   i32 token ids [n]
//   per DeltaNet layer: f32 taps [3, conv_dim] oldest first; f32 S [nv, 4 slices, 128 key rows, 32 columns]
//   per attention layer: n rows of K [kv_heads, dim] then V [kv_heads, dim] in cache types
// An export puts a header before it; integrity is CRC-32C, identity the model fingerprint.
#include <algorithm>
#include <cstring>

#include "core/crc32c.h"
#include "engine/target.h"
#include "models/dflash_hparams.h"

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
  uint32_t reserved[5];  // zero
  uint32_t header_crc;   // of everything before it
};
static_assert(sizeof(ExportHeader) == 64);

constexpr char kMagic[8] = {'T', 'N', 'D', 'S', 'E', 'Q', '\r', '\n'};
constexpr uint32_t kVersion = 1;

}  // namespace

uint64_t TargetRole::payload_bytes(int32_t length) const {
  const DeltaShape shape = model_->delta_shape();
  const uint64_t n = static_cast<uint64_t>(length);
  const uint64_t state = static_cast<uint64_t>(shape.taps_elems() + shape.state_elems()) * sizeof(float);
  return n * sizeof(int32_t) + static_cast<uint64_t>(delta_layers_) * state +
         static_cast<uint64_t>(attention_layers_) * n * c_.backend->kv_row_bytes(kv_);
}

void TargetRole::write_payload(const Sequence& s, uint8_t* out) {
  const DeltaShape shape = model_->delta_shape();
  const auto floats = [&](const float* src, int64_t n) {
    c_.backend->download(reinterpret_cast<float*>(out), src, n);
    out += static_cast<uint64_t>(n) * sizeof(float);
  };
  std::memcpy(out, s.tokens.data(), s.tokens.size() * sizeof(int32_t));
  out += s.tokens.size() * sizeof(int32_t);
  for (const DeltaState& state : s.states) {
    floats(state.taps, shape.taps_elems());
    floats(state.s, shape.state_elems());
  }
  for (const KvCache& cache : s.caches) {
    c_.backend->kv_export(kv_, cache, s.length, out);
    out += static_cast<uint64_t>(s.length) * c_.backend->kv_row_bytes(kv_);
  }
}

void TargetRole::read_payload(const uint8_t* in, int32_t length, Sequence* s) {
  const DeltaShape shape = model_->delta_shape();
  const auto floats = [&](float* dst, int64_t n) {
    c_.backend->upload(dst, reinterpret_cast<const float*>(in), n);
    in += static_cast<uint64_t>(n) * sizeof(float);
  };
  s->length = length;
  s->broken = false;
  s->pending.clear();
  s->tokens.resize(static_cast<size_t>(length));
  std::memcpy(s->tokens.data(), in, s->tokens.size() * sizeof(int32_t));
  in += s->tokens.size() * sizeof(int32_t);
  for (DeltaState& state : s->states) {
    floats(state.taps, shape.taps_elems());
    floats(state.s, shape.state_elems());
  }
  for (const KvCache& cache : s->caches) {
    c_.backend->kv_import(kv_, cache, length, in);
    in += static_cast<uint64_t>(length) * c_.backend->kv_row_bytes(kv_);
  }
}

Status TargetRole::snapshot_create(int32_t sequence, int32_t* snapshot) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  const uint64_t bytes = payload_bytes(s->length);
  if (bytes > available()) {
    return errorf(TND_RESOURCE_EXHAUSTED,
                  "a snapshot of %d positions needs %llu bytes, %llu are left of the memory cap", s->length,
                  static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(available()));
  }
  size_t at = 0;
  while (at < snapshots_.size() && snapshots_[at].used) ++at;
  if (at == snapshots_.size()) snapshots_.emplace_back();
  Snapshot& snap = snapshots_[at];
  snap.data.resize(bytes);
  snap.length = s->length;
  snap.used = true;
  write_payload(*s, snap.data.data());
  snapshot_bytes_.fetch_add(bytes);
  *snapshot = static_cast<int32_t>(at);
  return c_.backend->sync();
}

Status TargetRole::snapshot_restore(int32_t snapshot, int32_t sequence) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s, true));
  if (snapshot < 0 || snapshot >= static_cast<int32_t>(snapshots_.size()) ||
      !snapshots_[static_cast<size_t>(snapshot)].used) {
    return errorf(TND_NOT_FOUND, "snapshot %d does not exist", snapshot);
  }
  const Snapshot& snap = snapshots_[static_cast<size_t>(snapshot)];
  read_payload(snap.data.data(), snap.length, s);
  return c_.backend->sync();
}

Status TargetRole::snapshot_free(int32_t snapshot) {
  if (snapshot < 0 || snapshot >= static_cast<int32_t>(snapshots_.size()) ||
      !snapshots_[static_cast<size_t>(snapshot)].used) {
    return errorf(TND_NOT_FOUND, "snapshot %d does not exist", snapshot);
  }
  Snapshot& snap = snapshots_[static_cast<size_t>(snapshot)];
  snapshot_bytes_.fetch_sub(snap.data.size());
  snap = Snapshot();
  return Status();
}

Status TargetRole::export_size(int32_t sequence, uint64_t* bytes) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  *bytes = sizeof(ExportHeader) + payload_bytes(s->length);
  return Status();
}

Status TargetRole::export_to(int32_t sequence, void* data, uint64_t bytes) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  const uint64_t payload = payload_bytes(s->length);
  if (data == nullptr || bytes != sizeof(ExportHeader) + payload) {
    return errorf(TND_INVALID_ARGUMENT, "bytes is %llu, the sequence exports %llu",
                  static_cast<unsigned long long>(bytes),
                  static_cast<unsigned long long>(sizeof(ExportHeader) + payload));
  }
  auto* out = static_cast<uint8_t*>(data);
  write_payload(*s, out + sizeof(ExportHeader));
  TND_TRY(c_.backend->sync());
  ExportHeader h{};
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  h.version = kVersion;
  h.header_bytes = sizeof h;
  h.fingerprint = fingerprint_;
  h.payload_bytes = payload;
  h.length = s->length;
  h.payload_crc = crc32c(out + sizeof h, payload);
  h.header_crc = crc32c(&h, offsetof(ExportHeader, header_crc));
  std::memcpy(out, &h, sizeof h);
  return Status();
}

Status TargetRole::import_from(int32_t sequence, const void* data, uint64_t bytes) {
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s, true));
  ExportHeader h;
  if (data == nullptr || bytes < sizeof h) {
    return errorf(TND_DATA_LOSS, "an exported sequence has at least %zu bytes, not %llu", sizeof h,
                  static_cast<unsigned long long>(bytes));
  }
  std::memcpy(&h, data, sizeof h);
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0) return errorf(TND_DATA_LOSS, "this is no exported sequence");
  if (crc32c(&h, offsetof(ExportHeader, header_crc)) != h.header_crc) {
    return errorf(TND_DATA_LOSS, "checksum of the header is wrong");
  }
  if (h.version != kVersion || h.header_bytes != sizeof h) {
    return errorf(TND_FAILED_PRECONDITION, "exported with version %u, this engine reads %u", h.version, kVersion);
  }
  if (h.fingerprint != fingerprint_) {
    return errorf(TND_FAILED_PRECONDITION, "exported from another model, layer range or KV type");
  }
  if (h.length < 0 || h.payload_bytes != payload_bytes(h.length) || h.payload_bytes != bytes - sizeof h) {
    return errorf(TND_DATA_LOSS, "%llu payload bytes for %d positions do not fit",
                  static_cast<unsigned long long>(bytes - sizeof h), h.length);
  }
  if (h.length > max_context_) {
    return errorf(TND_RESOURCE_EXHAUSTED, "%d positions do not fit into max_context %d", h.length, max_context_);
  }
  const auto* payload = static_cast<const uint8_t*>(data) + sizeof h;
  if (crc32c(payload, h.payload_bytes) != h.payload_crc) {
    return errorf(TND_DATA_LOSS, "checksum of the payload is wrong");
  }
  read_payload(payload, h.length, s);
  return c_.backend->sync();
}

// Takes the buffer of captured features for n layers, within the cap.
Status TargetRole::take_features(int32_t n) {
  if (feature_region_ != nullptr) {
    c_.backend->release(feature_region_);
    feature_region_ = nullptr;
    features_ = nullptr;
    feature_bytes_.store(0);
  }
  if (n == 0) return Status();
  const uint64_t bytes = static_cast<uint64_t>(c_.options.max_batch_rows) * static_cast<uint64_t>(n) *
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

void TargetRole::write_features(const tnd_step& step, int32_t n) {
  const int64_t raw = static_cast<int64_t>(capture_.size()) * p_.hidden;
  const float* src = features_;
  int64_t width = raw;
  if (step.feature_encoding == TND_FEATURE_FUSED_BF16 || step.feature_encoding == TND_FEATURE_FUSED_F32) {
    width = fc_->n;
    c_.backend->prepare(features_, raw, n, raw, c_.backend->forms(*fc_), fuse_acts_.get());
    const Product product{fc_.get(), fused_, width, nullptr};
    c_.backend->matmul(std::span<const Product>(&product, 1), *fuse_acts_, n);
    c_.backend->norm_rows(fused_, fuse_.norm, fuse_.eps, n, width, fused_);
    src = fused_;
  }
  if (step.feature_encoding == TND_FEATURE_RAW_BF16 || step.feature_encoding == TND_FEATURE_FUSED_BF16) {
    c_.backend->download_bf16(static_cast<uint16_t*>(step.features), src, n * width);
  } else {
    c_.backend->download(static_cast<float*>(step.features), src, n * width);
  }
}

}  // namespace tnd
