// The score role: tnd_score over ScorerModel.
#include <algorithm>

#include "models/architectures.h"
#include "models/scorer.h"
#include "roles/roles.h"

namespace tnd {
namespace {

constexpr int32_t kMaxQuery = 32;        // scoring rows of a call; the rule of use takes 8
constexpr int32_t kDefaultChunk = 1024;  // positions: activations of a chunk stay in cache, matmuls are wide enough
constexpr int32_t kMinTokens = 256;

class ScoreRole final : public ScoreEngine {
 public:
  explicit ScoreRole(const OpenContext& context) : c_(context) {}
  ~ScoreRole() override {
    if (region_ != nullptr) c_.backend->release(region_);
  }

  Status open();

  void info(tnd_info* out) const override;
  void memory(std::vector<tnd_stat>* out) const override;
  Status score(std::span<const tnd_score_prompt> prompts, uint32_t flags, tnd_progress_fn progress,
               void* user) override;

 private:
  Status build(const gguf::File& file, int32_t tokens, Arena& arena);
  Status plan(const gguf::File& file);
  Status check(const tnd_score_prompt& prompt, size_t index) const;

  OpenContext c_;
  HParams p_;
  int32_t max_tokens_ = 0, chunk_ = 0;
  std::unique_ptr<ScorerModel> model_;
  Arena arena_;
  void* region_ = nullptr;
  uint64_t loaded_ = 0, load_total_ = 0;
};

Status ScoreRole::build(const gguf::File& file, int32_t tokens, Arena& arena) {
  WeightLoader weights(file, *c_.backend, arena);
  weights.on_loaded = [this](uint64_t bytes) { c_.progress(loaded_ += bytes, load_total_); };
  model_ = std::make_unique<ScorerModel>(p_, *c_.backend);
  ScorerLimits limits;
  limits.max_tokens = tokens;
  limits.max_query = kMaxQuery;
  limits.chunk = chunk_;
  TND_TRY(model_->load(weights, arena, limits));
  load_total_ = weights.file_bytes();
  return Status();
}

// Finds the prompt length that fits the cap, then takes the memory.
Status ScoreRole::plan(const gguf::File& file) {
  const bool asked = c_.options.max_context > 0;
  int32_t tokens = asked ? c_.options.max_context : p_.context_length;
  Arena small, measure;
  TND_TRY(build(file, kMinTokens, small));
  TND_TRY(build(file, tokens, measure));
  if (measure.total() > c_.memory_cap) {
    // Memory is linear in the prompt length but for rounding to 256.
    const double per_token =
        tokens > kMinTokens ? double(measure.total() - small.total()) / (tokens - kMinTokens) : double(small.total());
    const double room = double(c_.memory_cap) - double(small.total());
    const int64_t fits =
        room < 0 ? 0 : (kMinTokens + static_cast<int64_t>(room / std::max(per_token, 1.0))) / 256 * 256;
    if (asked || fits < kMinTokens) {
      return errorf(
          TND_RESOURCE_EXHAUSTED,
          "scoring prompts of %d tokens needs %llu bytes (weights %llu, K/V of one layer %llu, scratch %llu), "
          "the cap is %llu: at most %lld tokens fit",
          tokens, static_cast<unsigned long long>(measure.total()),
          static_cast<unsigned long long>(measure.of(Purpose::kWeights)),
          static_cast<unsigned long long>(measure.of(Purpose::kKv)),
          static_cast<unsigned long long>(measure.of(Purpose::kScratch)),
          static_cast<unsigned long long>(c_.memory_cap), static_cast<long long>(fits));
    }
    tokens = static_cast<int32_t>(fits);
    measure = Arena();
    TND_TRY(build(file, tokens, measure));
  }
  max_tokens_ = tokens;
  TND_TRY(c_.backend->allocate(measure.total(), &region_));
  arena_ = Arena(region_, measure.total());
  loaded_ = 0;
  TND_TRY(build(file, tokens, arena_));
  if (arena_.total() != measure.total()) return Status(TND_INTERNAL, "memory plan of the scorer changed while loading");
  return Status();
}

Status ScoreRole::open() {
  if (c_.options.max_context < 0 || c_.options.max_context > (1 << 24)) {
    return errorf(TND_INVALID_ARGUMENT, "max_context is %d, must be 0..%d", c_.options.max_context, 1 << 24);
  }
  if (c_.options.kv_positions != 0) {
    return errorf(TND_INVALID_ARGUMENT, "kv_positions is %d, must be 0: a scorer has no sequences",
                  c_.options.kv_positions);
  }
  if (c_.options.attention_window != 0) {
    return errorf(TND_INVALID_ARGUMENT, "attention_window is %d, must be 0: only targets have one",
                  c_.options.attention_window);
  }
  if (c_.options.host_cap_bytes != 0) {
    return errorf(TND_INVALID_ARGUMENT, "host_cap_bytes is %llu, must be 0: a scorer has no snapshots",
                  static_cast<unsigned long long>(c_.options.host_cap_bytes));
  }
  std::unique_ptr<gguf::File> file;
  TND_TRY(gguf::File::open(c_.model_path.c_str(), &file));
  if (const Architecture* a = find_architecture(file->arch()); a == nullptr || !a->scores) {
    return errorf(TND_UNIMPLEMENTED, "%s: architecture \"%.*s\" cannot score, only %s", c_.model_path.c_str(),
                  static_cast<int>(std::min<size_t>(file->arch().size(), 64)), file->arch().data(),
                  architecture_names(true).c_str());
  }
  TND_TRY(read_hparams(*file, &p_));
  chunk_ = kDefaultChunk;
  TND_TRY(plan(*file));
  return c_.backend->sync();
}

void ScoreRole::info(tnd_info* out) const {
  std::snprintf(out->arch, sizeof out->arch, "%s", p_.arch.c_str());
  std::snprintf(out->name, sizeof out->name, "%s", p_.name.c_str());
  out->n_layers = p_.n_layers;
  out->layer_first = 0;
  out->layer_last = p_.n_layers;
  out->hidden = p_.hidden;
  out->vocab = p_.vocab;
  out->max_sequences = 1;
  out->max_context = max_tokens_;
  out->max_batch_rows = kMaxQuery;
}

void ScoreRole::memory(std::vector<tnd_stat>* out) const {
  for (int i = 0; i < static_cast<int>(Purpose::kCount); ++i) {
    tnd_stat s{};
    std::snprintf(s.name, sizeof s.name, "%s", purpose_name(static_cast<Purpose>(i)));
    s.value = arena_.of(static_cast<Purpose>(i));
    out->push_back(s);
  }
}

Status ScoreRole::check(const tnd_score_prompt& p, size_t index) const {
  if (p.n < 1 || p.ids == nullptr || p.scores == nullptr) {
    return errorf(TND_INVALID_ARGUMENT, "prompts[%zu].n is %d, ids or scores are missing", index, p.n);
  }
  if (p.n > max_tokens_) {
    return errorf(TND_RESOURCE_EXHAUSTED,
                  "prompts[%zu].n is %d tokens, the memory planned at open holds %d (max_context)", index, p.n,
                  max_tokens_);
  }
  if (p.n_query < 1 || p.n_query > kMaxQuery || p.query_rows == nullptr) {
    return errorf(TND_INVALID_ARGUMENT, "prompts[%zu].n_query is %d, must be 1..%d", index, p.n_query, kMaxQuery);
  }
  for (int32_t i = 0; i < p.n_query; ++i) {
    if (p.query_rows[i] < 0 || p.query_rows[i] >= p.n || (i > 0 && p.query_rows[i] <= p.query_rows[i - 1])) {
      return errorf(TND_INVALID_ARGUMENT,
                    "prompts[%zu].query_rows[%d] is %d: positions must ascend and lie below n = %d", index, i,
                    p.query_rows[i], p.n);
    }
  }
  for (int32_t i = 0; i < p.n; ++i) {
    if (p.ids[i] < 0 || p.ids[i] >= p_.vocab) {
      return errorf(TND_INVALID_ARGUMENT, "prompts[%zu].ids[%d] is %d, the vocabulary has %d", index, i, p.ids[i],
                    p_.vocab);
    }
  }
  return Status();
}

Status ScoreRole::score(std::span<const tnd_score_prompt> prompts, uint32_t flags, tnd_progress_fn progress,
                        void* user) {
  const int64_t start = PhaseTimer::now();
  if ((flags & ~TND_SCORE_ROTATED) != 0) return errorf(TND_INVALID_ARGUMENT, "flags 0x%x are unknown", flags);
  ScoreProgress at{progress, user};
  for (size_t i = 0; i < prompts.size(); ++i) {
    TND_TRY(check(prompts[i], i));
    at.total += static_cast<uint64_t>(prompts[i].n) * static_cast<uint64_t>(p_.n_layers);
  }
  for (const tnd_score_prompt& p : prompts) {
    const std::span<const int32_t> ids(p.ids, static_cast<size_t>(p.n));
    const std::span<const int32_t> query(p.query_rows, static_cast<size_t>(p.n_query));
    TND_TRY(model_->score(ids, query, (flags & TND_SCORE_ROTATED) != 0, c_.cancel, c_.stats, p.scores, &at));
    TND_TRY(c_.backend->sync());
  }
  c_.stats->add(Counter::kScoreCalls, prompts.size());
  c_.stats->add(Counter::kScoreNs, static_cast<uint64_t>(PhaseTimer::now() - start));
  return Status();
}

}  // namespace

Status open_score(const OpenContext& context, std::unique_ptr<ScoreEngine>* out) {
  auto role = std::make_unique<ScoreRole>(context);
  TND_TRY(role->open());
  *out = std::move(role);
  return Status();
}

}  // namespace tnd
