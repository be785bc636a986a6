// The step of a target engine: checks, order of rows, what each row sees, forward pass, results; and commit.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/target.h"

namespace tnd {
namespace {

constexpr uint32_t kHeadWants = TND_WANT_TOKEN | TND_WANT_TOP | TND_WANT_LOGITS | TND_WANT_SCORE;

Status bad_row(int32_t row, const char* fmt, int64_t a, int64_t b) {
  char text[256];
  std::snprintf(text, sizeof text, fmt, static_cast<long long>(a), static_cast<long long>(b));
  return errorf(TND_INVALID_ARGUMENT, "rows[%d].%s", row, text);
}

}  // namespace

Status TargetRole::step(const tnd_step& step) {
  const int64_t start = PhaseTimer::now();
  TND_TRY(check_rows(step));
  TND_TRY(check_outputs(step));
  TND_TRY(check_masks(step));
  const bool commit = (step.flags & TND_STEP_COMMIT) != 0;
  TND_TRY(plan_step(step));

  TargetStep run;
  run.rows = step.n_rows;
  run.tokens = std::span<const int32_t>(tokens_).first(static_cast<size_t>(step.n_rows));
  run.hidden_in = layer_first_ > 0 ? hidden_.data() : nullptr;
  run.delta = delta_groups_;
  run.attention = AttentionPlan{attention_groups_, attention_rows_.data(), rope_};
  run.capture_layers = capture_;
  run.feature_rows = feature_rows_;
  if (static_cast<size_t>(wanted_features_) < feature_rows_.size()) run.feature_places = feature_places_;
  run.features = features_;
  run.cancel = c_.cancel;
  // Steps of up to max_tree_rows rows have the same bits whether they commit or not.
  const int32_t tree = std::max(kPromptRows, c_.options.max_tree_rows);
  c_.backend->begin_step(commit &&
                         std::all_of(groups_.begin(), groups_.end(), [&](const Group& g) { return g.count > tree; }));
  const Status status = model_->forward(run, c_.stats);
  if (!status.ok()) {
    for (const Group& g : groups_) {
      Sequence& s = sequences_[static_cast<size_t>(g.sequence)];
      s.broken = s.broken || commit;
      s.pending.clear();
    }
    return status;
  }
  finish_step(step);
  TND_TRY(c_.backend->sync());
  c_.stats->add(Counter::kSteps, 1);
  c_.stats->add(Counter::kRows, static_cast<uint64_t>(step.n_rows));
  c_.stats->add(Counter::kWeightBytesRead, arena_.of(Purpose::kWeights));
  uint64_t positions = 0;
  for (const Group& g : groups_) {
    positions += static_cast<uint64_t>(sequences_[static_cast<size_t>(g.sequence)].length) +
                 (commit ? 0u : static_cast<uint64_t>(g.count));
  }
  c_.stats->add(Counter::kKvBytesRead,
                positions * static_cast<uint64_t>(attention_layers_) * c_.backend->kv_row_bytes(kv_));
  c_.stats->add(Counter::kStepNs, static_cast<uint64_t>(PhaseTimer::now() - start));
  return Status();
}

// Checks rows and groups them by sequence in order of appearance. Sequences are not changed.
Status TargetRole::check_rows(const tnd_step& step) {
  const bool commit = (step.flags & TND_STEP_COMMIT) != 0;
  if ((step.flags & ~TND_STEP_COMMIT) != 0) return errorf(TND_INVALID_ARGUMENT, "flags is 0x%x", step.flags);
  if (step.n_rows < 1 || step.n_rows > c_.options.max_batch_rows || step.rows == nullptr) {
    return errorf(TND_INVALID_ARGUMENT, "n_rows is %d, must be 1..%d (max_batch_rows)", step.n_rows,
                  c_.options.max_batch_rows);
  }
  groups_.clear();
  for (Sequence& s : sequences_) s.group = -1;
  for (int32_t i = 0; i < step.n_rows; ++i) {
    const tnd_row& row = step.rows[i];
    Sequence* s = nullptr;
    TND_TRY(find(row.sequence, &s));
    if (s->group < 0) {
      s->group = static_cast<int32_t>(groups_.size());
      groups_.push_back(Group{row.sequence, 0, 0, 0});
      last_of_sequence_[static_cast<size_t>(row.sequence)] = -1;
    }
    Group& g = groups_[static_cast<size_t>(s->group)];
    ++g.count;
    const bool known = row.token >= 0 && row.token < p_.vocab;
    if (layer_first_ == 0 && !known) return bad_row(i, "token is %lld, the vocabulary has %lld", row.token, p_.vocab);
    int32_t position = s->length;
    if (row.parent != -1) {
      if (row.parent < 0 || row.parent >= i) {
        return bad_row(i, "parent is %lld, must be -1 or an earlier row of the %lld", row.parent, step.n_rows);
      }
      if (step.rows[row.parent].sequence != row.sequence) {
        return bad_row(i, "parent %lld belongs to sequence %lld", row.parent, step.rows[row.parent].sequence);
      }
      position = step.rows[row.parent].position + 1;
    }
    int32_t& last = last_of_sequence_[static_cast<size_t>(row.sequence)];
    if (commit && row.parent != last) {
      return bad_row(i, "parent is %lld, a committing step has chains: expected %lld", row.parent, last);
    }
    last = i;
    if (row.position != position) return bad_row(i, "position is %lld, expected %lld", row.position, position);
    if (row.position >= max_context_) {
      return errorf(TND_RESOURCE_EXHAUSTED, "rows[%d].position is %d, a sequence has %d positions (max_context)", i,
                    row.position, max_context_);
    }
    if (!commit && g.count > c_.options.max_tree_rows) {
      return errorf(TND_INVALID_ARGUMENT, "sequence %d has more than %d uncommitted rows (max_tree_rows)", row.sequence,
                    c_.options.max_tree_rows);
    }
    if ((row.want & ~(kHeadWants | TND_WANT_FEATURES | TND_WANT_KEEP)) != 0)
      return bad_row(i, "want is %lld", row.want, 0);
    if ((row.want & TND_WANT_TOP) != 0 &&
        (row.top_k < 1 || row.top_k > c_.options.max_top_k || row.top_k > step.top_stride || row.top_k > p_.vocab)) {
      return bad_row(i, "top_k is %lld, must be 1..max_top_k, top_stride and vocabulary (max_top_k %lld)", row.top_k,
                     c_.options.max_top_k);
    }
    if ((row.want & TND_WANT_SCORE) != 0 && (row.score < 0 || row.score >= p_.vocab)) {
      return bad_row(i, "score is %lld, the vocabulary has %lld", row.score, p_.vocab);
    }
    if (row.mask != -1 && (row.mask < 0 || row.mask >= step.n_masks)) {
      return bad_row(i, "mask is %lld of %lld masks", row.mask, step.n_masks);
    }
    if ((row.want & kHeadWants) != 0 && model_->output() == nullptr) {
      return errorf(TND_FAILED_PRECONDITION, "rows[%d].want asks for tokens of a shard that ends at layer %d of %d", i,
                    layer_last_, p_.n_layers);
    }
    if ((row.want & (TND_WANT_FEATURES | TND_WANT_KEEP)) != 0 && capture_.empty()) {
      return errorf(TND_FAILED_PRECONDITION, "rows[%d].want asks for features, but no layers are captured", i);
    }
    if ((row.want & TND_WANT_KEEP) != 0) {
      const uint32_t place = 1u << (row.position % TND_KEPT_ROWS);
      if ((g.kept & place) != 0) {
        return bad_row(i, "position is %lld, another row that is kept takes its place of %lld", row.position,
                       TND_KEPT_ROWS);
      }
      g.kept |= place;
    }
  }
  return Status();
}

Status TargetRole::check_outputs(const tnd_step& step) const {
  uint32_t wants = 0;
  for (int32_t i = 0; i < step.n_rows; ++i) wants |= step.rows[i].want;
  const auto missing = [](const char* field) { return errorf(TND_INVALID_ARGUMENT, "%s is NULL but wanted", field); };
  if ((wants & TND_WANT_TOKEN) != 0 && step.tokens == nullptr) return missing("tokens");
  if ((wants & TND_WANT_TOP) != 0 && step.top_ids == nullptr) return missing("top_ids");
  if ((wants & TND_WANT_TOP) != 0 && step.top_logprobs == nullptr) return missing("top_logprobs");
  if ((wants & TND_WANT_LOGITS) != 0 && step.logits == nullptr) return missing("logits");
  if ((wants & TND_WANT_SCORE) != 0 && step.scores == nullptr) return missing("scores");
  if ((wants & TND_WANT_FEATURES) != 0) {
    if (step.features == nullptr) return missing("features");
    TND_TRY(check_encoding(step.feature_encoding));
  }
  if (layer_first_ > 0 && step.hidden_in == nullptr) return missing("hidden_in");
  if (layer_first_ == 0 && step.hidden_in != nullptr) {
    return errorf(TND_INVALID_ARGUMENT, "hidden_in is given to the shard that begins at layer 0");
  }
  if (layer_last_ < p_.n_layers && step.hidden_out == nullptr) return missing("hidden_out");
  return Status();
}

// Every mask must allow a token that may be chosen.
Status TargetRole::check_masks(const tnd_step& step) {
  if (step.n_masks < 0) return errorf(TND_INVALID_ARGUMENT, "n_masks is %d", step.n_masks);
  if (step.n_masks > 0 && step.masks == nullptr) return errorf(TND_INVALID_ARGUMENT, "masks is NULL but wanted");
  const int32_t words = (p_.vocab + 31) / 32;
  for (int32_t m = 0; m < step.n_masks; ++m) {
    const uint32_t* bits = step.masks + int64_t{m} * words;
    uint32_t any = 0;
    for (int32_t w = 0; w < words; ++w) {
      const int32_t left = p_.vocab - w * 32;
      const uint32_t valid = left >= 32 ? ~0u : (1u << left) - 1u;
      any |= bits[w] & ~never_[static_cast<size_t>(w)] & valid;
      if (any != 0) break;
    }
    if (any == 0) return errorf(TND_INVALID_ARGUMENT, "masks[%d] allows no token", m);
  }
  return Status();
}

// Orders the rows and fills every plan of the forward pass. Drops what the sequences had pending.
Status TargetRole::plan_step(const tnd_step& step) {
  const bool commit = (step.flags & TND_STEP_COMMIT) != 0;
  int32_t first = 0;
  for (Group& g : groups_) {
    g.first = first;
    first += g.count;
    g.count = 0;
  }
  // parents_ by internal slot in given order; order_ then maps depth-first positions to it.
  for (int32_t i = 0; i < step.n_rows; ++i) {
    Group& g = groups_[static_cast<size_t>(sequences_[static_cast<size_t>(step.rows[i].sequence)].group)];
    const int32_t at = g.first + g.count++;
    row_of_batch_[static_cast<size_t>(i)] = at;
    batch_of_row_[static_cast<size_t>(at)] = i;
    const int32_t parent = step.rows[i].parent;
    parents_[static_cast<size_t>(at)] = parent < 0 ? -1 : row_of_batch_[static_cast<size_t>(parent)] - g.first;
  }
  delta_groups_.clear();
  attention_groups_.clear();
  for (const Group& g : groups_) {
    Sequence& s = sequences_[static_cast<size_t>(g.sequence)];
    s.pending.clear();
    const size_t at = static_cast<size_t>(g.first), n = static_cast<size_t>(g.count);
    DeltaRow* rows = delta_rows_.data() + g.first;
    if (commit) {
      chain_rows(g.count, rows);
      for (size_t i = 0; i < n; ++i) {
        order_[at + i] = static_cast<int32_t>(i);
        parent_rows_[at + i] = static_cast<int32_t>(i) - 1;
      }
    } else {
      planner_.plan(std::span<const int32_t>(parents_).subspan(at, n), order_.data() + at, parent_rows_.data() + at,
                    rows);
    }
  }
  // From given order inside a group to internal order.
  std::vector<int32_t>& given = positions_;  // scratch until filled with positions
  std::copy(batch_of_row_.begin(), batch_of_row_.begin() + step.n_rows, given.begin());
  for (const Group& g : groups_) {
    for (int32_t i = 0; i < g.count; ++i) {
      const int32_t batch = given[static_cast<size_t>(g.first + order_[static_cast<size_t>(g.first + i)])];
      batch_of_row_[static_cast<size_t>(g.first + i)] = batch;
      row_of_batch_[static_cast<size_t>(batch)] = g.first + i;
    }
  }
  feature_rows_.clear();
  feature_places_.clear();
  for (int32_t i = 0; i < step.n_rows; ++i) {
    const tnd_row& row = step.rows[i];
    const size_t at = static_cast<size_t>(row_of_batch_[static_cast<size_t>(i)]);
    tokens_[at] = row.token >= 0 && row.token < p_.vocab ? row.token : -1;
    positions_[at] = row.position;
    if ((row.want & TND_WANT_FEATURES) != 0) {
      feature_places_.push_back(static_cast<int32_t>(feature_rows_.size()));
      feature_rows_.push_back(static_cast<int32_t>(at));
    }
    if (layer_first_ > 0) {
      std::memcpy(hidden_.data() + static_cast<int64_t>(at) * p_.hidden, step.hidden_in + int64_t{i} * p_.hidden,
                  static_cast<size_t>(p_.hidden) * sizeof(float));
    }
  }
  wanted_features_ = static_cast<int32_t>(feature_rows_.size());
  for (int32_t i = 0; i < step.n_rows; ++i) {
    const tnd_row& row = step.rows[i];
    if ((row.want & TND_WANT_KEEP) == 0) continue;
    feature_rows_.push_back(row_of_batch_[static_cast<size_t>(i)]);
    feature_places_.push_back(kept_place(row.sequence, row.position));
    // What was in its place is gone, whether or not the row is committed.
    Sequence& s = sequences_[static_cast<size_t>(row.sequence)];
    s.kept_first = std::max(s.kept_first, row.position - TND_KEPT_ROWS + 1);
  }
  for (const Group& g : groups_) {
    Sequence& s = sequences_[static_cast<size_t>(g.sequence)];
    delta_groups_.push_back(
        DeltaGroup{g.first, g.count, commit, delta_rows_.data() + g.first, s.states.data(), s.replay.data()});
    attention_groups_.push_back(AttentionGroupPlan{g.first, g.count, s.caches.data(), s.length});
    plan_attention(s, g, commit);
  }
  fill_rope();
  return Status();
}

// A row sees the committed positions, then its ancestors by depth and itself. Leading ancestors whose slot equals their
// position are seen as past: no difference in bits (attention.h), but the common cases need no list.
void TargetRole::plan_attention(const Sequence& s, const Group& g, bool commit) {
  const size_t stride = static_cast<size_t>(c_.options.max_tree_rows);
  for (int32_t i = 0; i < g.count; ++i) {
    const size_t row = static_cast<size_t>(g.first + i);
    AttentionRowPlan& p = attention_rows_[row];
    p.slot = s.length + i;
    p.first = 0;
    p.n_tail = 0;
    p.tail = nullptr;
    if (commit) {
      p.past = p.slot + 1;
      continue;
    }
    const int32_t depth = positions_[row] - s.length;
    int32_t* tail = tail_.data() + row * stride;
    for (int32_t d = depth, at = i; d >= 0; --d, at = parent_rows_[static_cast<size_t>(g.first + at)]) {
      tail[d] = s.length + at;
    }
    int32_t folded = 0;
    while (folded <= depth && tail[folded] == s.length + folded) ++folded;
    p.past = s.length + folded;
    p.n_tail = depth + 1 - folded;
    p.tail = tail + folded;
  }
}

// Rotation tables of the rows: cos of all pairs, then sin.
void TargetRole::fill_rope() {
  if (attention_layers_ == 0) return;
  int64_t rows = 0;
  for (const Group& g : groups_) rows += g.count;
  for (int64_t r = 0; r < rows; ++r) {
    angles_.fill(positions_[static_cast<size_t>(r)], rope_host_.data() + r * p_.rope_dims);
  }
  c_.backend->upload(rope_, rope_host_.data(), rows * p_.rope_dims);
}

// Distinct tokens of the last penalty_window tokens up to and with the row's own, appended to out.
void TargetRole::count_history(const Sequence& s, int32_t row, std::vector<TokenCount>* out, size_t* first) {
  *first = out->size();
  const Group& g = groups_[static_cast<size_t>(s.group)];
  int32_t left = s.penalty_window;
  const auto see = [&](int32_t token) {
    if (token >= 0 && counts_[static_cast<size_t>(token)]++ == 0) out->push_back(TokenCount{token, 0});
    --left;
  };
  for (int32_t at = row - g.first; at >= 0 && left > 0; at = parent_rows_[static_cast<size_t>(g.first + at)]) {
    see(tokens_[static_cast<size_t>(g.first + at)]);
  }
  for (int32_t p = s.length; p-- > 0 && left > 0;) see(s.tokens[static_cast<size_t>(p)]);
  for (size_t i = *first; i < out->size(); ++i) {
    TokenCount& h = (*out)[i];
    h.count = counts_[static_cast<size_t>(h.token)];
    counts_[static_cast<size_t>(h.token)] = 0;
  }
}

void TargetRole::plan_head(const tnd_step& step) {
  head_rows_.clear();
  history_.clear();
  int64_t logits = 0;
  for (int32_t i = 0; i < step.n_rows; ++i) {
    const tnd_row& row = step.rows[i];
    if (step.tokens != nullptr) step.tokens[i] = -1;
    if (step.logprobs != nullptr) step.logprobs[i] = 0;
    if (step.scores != nullptr) step.scores[i] = 0;
    if (step.top_ids != nullptr) std::fill_n(step.top_ids + int64_t{i} * step.top_stride, step.top_stride, -1);
    if ((row.want & kHeadWants) == 0) continue;
    const Sequence& s = sequences_[static_cast<size_t>(row.sequence)];
    HeadRow h;
    h.row = row_of_batch_[static_cast<size_t>(i)];
    if ((row.want & TND_WANT_TOKEN) != 0) {
      h.token = step.tokens + i;
      h.logprob = step.logprobs != nullptr ? step.logprobs + i : nullptr;
      h.sampler = s.has_sampler ? &s.sampler : nullptr;
      if (row.mask >= 0) h.mask = step.masks + int64_t{row.mask} * ((p_.vocab + 31) / 32);
      h.output_position = row.position + 1 - s.prompt_tokens;
    }
    if ((row.want & TND_WANT_SCORE) != 0) {
      h.score_token = row.score;
      h.score = step.scores + i;
    }
    if ((row.want & TND_WANT_TOP) != 0) {
      h.top_k = row.top_k;
      h.top_ids = step.top_ids + int64_t{i} * step.top_stride;
      h.top_logprobs = step.top_logprobs + int64_t{i} * step.top_stride;
    }
    if ((row.want & TND_WANT_LOGITS) != 0) h.logits = step.logits + p_.vocab * logits++;
    head_rows_.push_back(h);
  }
  // Histories grow a shared list: spans are taken once it is complete.
  std::vector<int32_t>& begins = order_;  // free by now
  for (size_t i = 0; i < head_rows_.size(); ++i) {
    const HeadRow& h = head_rows_[i];
    size_t first = history_.size();
    if (h.sampler != nullptr && h.token != nullptr &&
        (h.sampler->repetition_penalty != 1.0f || h.sampler->frequency_penalty != 0.0f ||
         h.sampler->presence_penalty != 0.0f)) {
      const int32_t batch = batch_of_row_[static_cast<size_t>(h.row)];
      count_history(sequences_[static_cast<size_t>(step.rows[batch].sequence)], h.row, &history_, &first);
    }
    begins[i] = static_cast<int32_t>(first);
  }
  for (size_t i = 0; i < head_rows_.size(); ++i) {
    const size_t begin = static_cast<size_t>(begins[i]);
    const size_t end = i + 1 < head_rows_.size() ? static_cast<size_t>(begins[i + 1]) : history_.size();
    head_rows_[i].history = std::span<const TokenCount>(history_).subspan(begin, end - begin);
  }
}

// Results of a finished forward pass; then the rows become pending or, in a committing step, part of the sequences.
void TargetRole::finish_step(const tnd_step& step) {
  PhaseTimer timer(c_.stats);
  plan_head(step);
  if (!head_rows_.empty()) {
    HeadArgs head;
    head.x = model_->x();
    head.norm = model_->output_norm();
    head.eps = p_.eps;
    head.w = model_->output();
    head.never = any_never_ ? never_.data() : nullptr;
    head.rows = head_rows_;
    c_.backend->head(head);
    c_.stats->add(Counter::kHeadRows, head_rows_.size());
    timer.mark(Counter::kHeadNs);
  }
  if (wanted_features_ > 0) {
    write_features(step.feature_encoding, wanted_features_, step.features);
    timer.mark(Counter::kFeatureNs);
  }
  if (layer_last_ < p_.n_layers) {
    for (int32_t i = 0; i < step.n_rows; ++i) {
      c_.backend->download(step.hidden_out + int64_t{i} * p_.hidden,
                           model_->x() + int64_t{row_of_batch_[static_cast<size_t>(i)]} * p_.hidden, p_.hidden);
    }
  }
  const bool commit = (step.flags & TND_STEP_COMMIT) != 0;
  for (const Group& g : groups_) {
    Sequence& s = sequences_[static_cast<size_t>(g.sequence)];
    for (int32_t i = 0; i < g.count; ++i) {
      const size_t row = static_cast<size_t>(g.first + i);
      const bool kept = (step.rows[batch_of_row_[row]].want & TND_WANT_KEEP) != 0;
      if (commit) {
        s.tokens.push_back(tokens_[row]);
        if (kept) keep(&s, s.length + i);
      } else {
        s.pending.push_back(Pending{batch_of_row_[row], tokens_[row], parent_rows_[row], kept});
      }
    }
    if (commit) s.length += g.count;
  }
  if (commit) c_.stats->add(Counter::kCommittedRows, static_cast<uint64_t>(step.n_rows));
}

Status TargetRole::commit(int32_t sequence, std::span<const int32_t> path) {
  const int64_t start = PhaseTimer::now();
  Sequence* s = nullptr;
  TND_TRY(find(sequence, &s));
  if (path.empty()) {
    s->pending.clear();
    return Status();
  }
  if (s->pending.empty()) {
    return errorf(TND_FAILED_PRECONDITION, "sequence %d has no pending rows to commit", sequence);
  }
  if (path.size() > s->pending.size()) {
    return errorf(TND_INVALID_ARGUMENT, "path has %zu rows, the last step %zu", path.size(), s->pending.size());
  }
  // Positions in depth-first order, their slots before and after. The buffers are those of the step planner.
  std::vector<int32_t>& rows = order_;
  int32_t parent = -1;
  for (size_t i = 0; i < path.size(); ++i) {
    const auto at =
        std::find_if(s->pending.begin(), s->pending.end(), [&](const Pending& p) { return p.batch_index == path[i]; });
    if (at == s->pending.end()) {
      return errorf(TND_INVALID_ARGUMENT, "path[%zu] is %d: no row of sequence %d in the last step", i, path[i],
                    sequence);
    }
    if (at->parent != parent) {
      return errorf(TND_INVALID_ARGUMENT, "path[%zu] is %d: no child of %s", i, path[i],
                    i == 0 ? "the tip" : "the row before it");
    }
    parent = static_cast<int32_t>(at - s->pending.begin());
    rows[i] = parent;
    parents_[i] = s->length + parent;                       // from
    parent_rows_[i] = s->length + static_cast<int32_t>(i);  // to
  }
  const size_t n = path.size();
  const std::span<const int32_t> kept(rows.data(), n);
  if (delta_layers_ > 0) c_.backend->delta_commit(model_->delta_shape(), s->states, s->replay, kept);
  c_.backend->kv_move(kv_, s->caches, std::span<const int32_t>(parents_).first(n),
                      std::span<const int32_t>(parent_rows_).first(n));
  for (const int32_t row : kept) {
    const Pending& p = s->pending[static_cast<size_t>(row)];
    s->tokens.push_back(p.token);
    if (p.kept) keep(s, s->length);
    ++s->length;
  }
  s->pending.clear();
  TND_TRY(c_.backend->start());
  c_.stats->add(Counter::kCommits, 1);
  c_.stats->add(Counter::kCommittedRows, n);
  c_.stats->add(Counter::kCommitNs, static_cast<uint64_t>(PhaseTimer::now() - start));
  return Status();
}

}  // namespace tnd
