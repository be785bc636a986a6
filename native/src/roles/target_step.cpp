// The step of a target engine: checks, commit of paths, kept features, order of rows, what each row sees, forward pass,
// results.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "roles/target.h"

namespace tnd {
namespace {

constexpr uint32_t kHeadWants = TND_WANT_TOKEN | TND_WANT_TOP | TND_WANT_LOGITS | TND_WANT_SCORE;

// The start of an error's text: what is wrong is groups[group].rows[row].field.
std::string row_field(int32_t group, int32_t row, const char* field) {
  return "groups[" + std::to_string(group) + "].rows[" + std::to_string(row) + "]." + field;
}

Status bad_row(int32_t group, int32_t row, const char* field, int64_t value, const std::string& rule) {
  return Status(TND_INVALID_ARGUMENT, row_field(group, row, field) + " is " + std::to_string(value) + rule);
}

Status bad_group(int32_t group, const char* field, int64_t value, const std::string& rule) {
  return Status(TND_INVALID_ARGUMENT,
                "groups[" + std::to_string(group) + "]." + field + " is " + std::to_string(value) + rule);
}

std::string of_vocabulary(int32_t vocab) {
  return ", the vocabulary has " + std::to_string(vocab);
}

}  // namespace

Status TargetRole::step(const tnd_step& step) {
  const int64_t start = PhaseTimer::now();
  TND_TRY(check_groups(step));
  TND_TRY(check_outputs(step));
  TND_TRY(check_masks(step));
  TND_TRY(check_pages());

  // From here on only the device and tnd_cancel can end the step.
  TND_TRY(commit_paths());
  TND_TRY(read_kept(step));
  if (step.n_rows == 0) return Status();
  plan_step(step);

  TargetStep run;
  run.rows = step.n_rows;
  run.tokens = std::span<const int32_t>(tokens_).first(static_cast<size_t>(step.n_rows));
  run.hidden_in = layer_first_ > 0 ? hidden_.data() : nullptr;
  run.hidden_bf16 = step.hidden_encoding == TND_HIDDEN_BF16;
  run.delta = delta_groups_;
  run.attention = AttentionPlan{attention_groups_, attention_rows_.data(), caches_.data(), rope_};
  run.capture_layers = capture_;
  run.feature_rows = feature_rows_;
  run.feature_places = feature_places_;
  run.features = features_;
  run.cancel = c_.cancel;
  const Status status = model_->forward(run, c_.stats);
  if (!status.ok()) {
    for (const Group& g : groups_) sequences_[static_cast<size_t>(g.sequence)].broken |= g.commit;
    return status;
  }
  finish_step(step);
  TND_TRY(c_.backend->sync());
  c_.stats->add(Counter::kSteps, 1);
  c_.stats->add(Counter::kRows, static_cast<uint64_t>(step.n_rows));
  c_.stats->add(Counter::kWeightBytesRead, arena_.of(Purpose::kWeights));
  uint64_t positions = 0;
  for (const Group& g : groups_) positions += static_cast<uint64_t>(g.read);
  c_.stats->add(Counter::kKvBytesRead,
                positions * static_cast<uint64_t>(attention_layers_) * c_.backend->kv_row_bytes(kv_));
  c_.stats->add(Counter::kStepNs, static_cast<uint64_t>(PhaseTimer::now() - start));
  return Status();
}

// Checks groups and rows and fills groups_, in the caller's order. Sequences are not changed.
Status TargetRole::check_groups(const tnd_step& step) {
  const int32_t most = c_.options.max_batch_rows;
  if (step.n_groups < 1 || step.groups == nullptr) {
    return errorf(TND_INVALID_ARGUMENT, "n_groups is %d, must be 1 or more", step.n_groups);
  }
  if (step.n_rows < 0 || step.n_rows > most || (step.n_rows > 0 && step.rows == nullptr)) {
    return errorf(TND_INVALID_ARGUMENT, "n_rows is %d, must be 0..%d (max_batch_rows)", step.n_rows, most);
  }
  groups_.clear();
  for (Sequence& s : sequences_) s.group = -1;
  int64_t rows = 0, features = 0;
  for (int32_t i = 0; i < step.n_groups; ++i) {
    const tnd_group& in = step.groups[i];
    Sequence* s = nullptr;
    const Status found = find(in.sequence, &s);
    if (!found.ok()) return Status(found.code(), "groups[" + std::to_string(i) + "].sequence: " + found.message());
    if (s->group >= 0) {
      return bad_group(i, "sequence", in.sequence, ", as is groups[" + std::to_string(s->group) + "].sequence");
    }
    s->group = i;
    if (in.n_rows < 0 || rows + in.n_rows > step.n_rows) {
      return bad_group(i, "n_rows", in.n_rows,
                       ", " + std::to_string(step.n_rows - rows) + " of the step's n_rows are left");
    }
    if (in.kind != TND_GROUP_DECODE && in.kind != TND_GROUP_PROMPT) return bad_group(i, "kind", in.kind, "");
    const bool commit = (in.flags & TND_GROUP_COMMIT) != 0, prompt = in.kind == TND_GROUP_PROMPT;
    if ((in.flags & ~TND_GROUP_COMMIT) != 0) return bad_group(i, "flags", in.flags, "");
    if (in.n_rows == 0 && prompt) return bad_group(i, "kind", in.kind, " without rows");
    if (in.n_rows == 0 && commit) return bad_group(i, "flags", in.flags, " without rows");
    if (prompt && !commit) return bad_group(i, "kind", in.kind, ", which needs TND_GROUP_COMMIT");
    if (!commit && in.n_rows > c_.options.max_tree_rows) {
      return bad_group(i, "n_rows", in.n_rows,
                       ", at most " + std::to_string(c_.options.max_tree_rows) +
                           " without TND_GROUP_COMMIT "
                           "(max_tree_rows)");
    }
    Group g;
    g.sequence = in.sequence;
    g.given = static_cast<int32_t>(rows);
    g.count = in.n_rows;
    g.commit = commit;
    g.prompt = prompt;
    TND_TRY(check_path(i, in, *s, &g));
    TND_TRY(check_rows(step, i, *s, &g));
    rows += in.n_rows;
    features += in.n_kept + g.features;
    groups_.push_back(g);
  }
  if (rows != step.n_rows) {
    return errorf(TND_INVALID_ARGUMENT, "n_rows is %d, the groups have %d", step.n_rows, static_cast<int32_t>(rows));
  }
  if (features > most) {
    return errorf(TND_INVALID_ARGUMENT,
                  "n_kept of the groups and their rows that want features are %lld together, at most %d "
                  "(max_batch_rows)",
                  static_cast<long long>(features), most);
  }
  return Status();
}

int32_t TargetRole::pages_after(const Sequence& s, const Group& g) {
  return kv_pages(int64_t{s.length} + static_cast<int64_t>(g.path.size()) + g.count);
}

int32_t TargetRole::first_after(const Sequence& s, const Group& g) const {
  return pool_.first_page(int64_t{s.length} + static_cast<int64_t>(g.path.size()));
}

// Checks the rows that a group commits first and the kept features that it reads then.
Status TargetRole::check_path(int32_t index, const tnd_group& in, const Sequence& s, Group* g) const {
  if (in.n_path < 0 || (in.n_path > 0 && in.path == nullptr)) {
    return bad_group(index, "n_path", in.n_path, in.n_path < 0 ? "" : ", but path is NULL");
  }
  if (in.n_path > 0 && s.pending.empty()) {
    return errorf(TND_FAILED_PRECONDITION, "groups[%d].n_path is %d: sequence %d has no pending rows to commit", index,
                  in.n_path, in.sequence);
  }
  if (static_cast<size_t>(in.n_path) > s.pending.size()) {
    return bad_group(index, "n_path", in.n_path, ", the last step left " + std::to_string(s.pending.size()) + " rows");
  }
  g->path = std::span<const int32_t>(in.path, static_cast<size_t>(in.n_path));
  Kept kept = s.kept;
  int32_t parent = -1;
  for (int32_t i = 0; i < in.n_path; ++i) {
    const int32_t at = s.pending_row(in.path[i]);
    const auto bad = [&](const std::string& why) {
      return Status(TND_INVALID_ARGUMENT, "groups[" + std::to_string(index) + "].path[" + std::to_string(i) + "] is " +
                                              std::to_string(in.path[i]) + ": " + why);
    };
    if (at < 0) return bad("the last step left no such row of sequence " + std::to_string(in.sequence));
    const Pending& p = s.pending[static_cast<size_t>(at)];
    if (p.parent != parent) return bad(std::string("no child of ") + (i == 0 ? "the tip" : "the row before it"));
    parent = at;
    if (g->moved == i && at == i) ++g->moved;
    if (p.kept) kept.add(s.length + i);
  }
  if (in.n_kept < 0) return bad_group(index, "n_kept", in.n_kept, "");
  g->kept_position = in.kept_position;
  g->n_kept = in.n_kept;
  const int64_t next = int64_t{in.kept_position} + in.n_kept;
  if (in.n_kept > 0 && (in.kept_position < kept.first || next > kept.next)) {
    const std::string are = kept.first < kept.next ? "those of " + std::to_string(kept.first) + ".." +
                                                         std::to_string(kept.next - 1) + " are"
                                                   : "none are";
    return errorf(TND_FAILED_PRECONDITION,
                  "groups[%d].kept_position is %d: features of positions %d..%lld of sequence %d are not kept, %s",
                  index, in.kept_position, in.kept_position, static_cast<long long>(next - 1), in.sequence,
                  are.c_str());
  }
  return Status();
}

Status TargetRole::check_rows(const tnd_step& step, int32_t index, const Sequence& s, Group* g) const {
  const tnd_row* rows = step.rows + g->given;
  const int32_t length = s.length + static_cast<int32_t>(g->path.size());
  uint32_t places = 0;  // of rows that are kept
  for (int32_t i = 0; i < g->count; ++i) {
    const tnd_row& row = rows[i];
    const auto bad = [&](const char* field, int64_t value, const std::string& rule) {
      return bad_row(index, i, field, value, rule);
    };
    const bool known = row.token >= 0 && row.token < p_.vocab;
    if (layer_first_ == 0 && !known) return bad("token", row.token, of_vocabulary(p_.vocab));
    if (row.parent < -1 || row.parent >= i) {
      return bad("parent", row.parent, ", must be -1 or an earlier row of the group");
    }
    if (g->commit && row.parent != i - 1) {
      return bad("parent", row.parent,
                 ", a committing group is a chain from the tip: expected " + std::to_string(i - 1));
    }
    const int32_t position = row.parent < 0 ? length : rows[row.parent].position + 1;
    if (row.position != position) return bad("position", row.position, ", expected " + std::to_string(position));
    if (row.position >= plan_.max_context) {
      return errorf(TND_RESOURCE_EXHAUSTED, "%s is %d, a sequence has %d positions (max_context)",
                    row_field(index, i, "position").c_str(), row.position, plan_.max_context);
    }
    if ((row.want & ~(kHeadWants | TND_WANT_FEATURES | TND_WANT_KEEP)) != 0) return bad("want", row.want, "");
    if ((row.want & TND_WANT_TOP) != 0 &&
        (row.top_k < 1 || row.top_k > c_.options.max_top_k || row.top_k > step.top_stride || row.top_k > p_.vocab)) {
      return bad(
          "top_k", row.top_k,
          ", must be 1..max_top_k, top_stride and vocabulary (max_top_k " + std::to_string(c_.options.max_top_k) + ")");
    }
    if ((row.want & TND_WANT_SCORE) != 0 && (row.score < 0 || row.score >= p_.vocab)) {
      return bad("score", row.score, of_vocabulary(p_.vocab));
    }
    if (row.mask < -1 || row.mask >= step.n_masks) {
      return bad("mask", row.mask, " of " + std::to_string(step.n_masks) + " masks");
    }
    if ((row.want & kHeadWants) != 0 && model_->output() == nullptr) {
      return errorf(TND_FAILED_PRECONDITION, "%s asks for tokens of a shard that ends at layer %d of %d",
                    row_field(index, i, "want").c_str(), layer_last_, p_.n_layers);
    }
    if ((row.want & (TND_WANT_FEATURES | TND_WANT_KEEP)) != 0 && capture_.empty()) {
      return errorf(TND_FAILED_PRECONDITION, "%s asks for features, but no layers are captured",
                    row_field(index, i, "want").c_str());
    }
    if ((row.want & TND_WANT_FEATURES) != 0) ++g->features;
    if ((row.want & TND_WANT_KEEP) != 0) {
      const uint32_t place = 1u << (row.position % TND_KEPT_ROWS);
      if ((places & place) != 0) {
        return bad("position", row.position,
                   ", another row that is kept takes its place of " + std::to_string(TND_KEPT_ROWS));
      }
      places |= place;
    }
  }
  return Status();
}

// The page that the tip lies in if the group writes there: rows of the path move to it, or its own rows begin in it.
// Else -1: pages before it are complete, those behind it the sequence's own.
int32_t TargetRole::written_tip(const Group& g) const {
  const Sequence& s = sequences_[static_cast<size_t>(g.sequence)];
  const int32_t tip = s.length / kKvPage, path = static_cast<int32_t>(g.path.size());
  const bool moves = g.moved < path && (s.length + g.moved) / kKvPage == tip;
  const bool begins = g.count > 0 && (s.length + path) / kKvPage == tip;
  return s.length % kKvPage != 0 && (moves || begins) ? s.pages.pages()[static_cast<size_t>(tip)] : -1;
}

// Whether the page of a group's tip is copied before it is written to. The last one who holds it keeps it.
bool TargetRole::copies_tip(size_t index) const {
  const int32_t page = written_tip(groups_[index]);
  if (page < 0) return false;
  int32_t others = pool_.refs(page) - 1;
  for (size_t i = 0; i < index; ++i) others -= written_tip(groups_[i]) == page ? 1 : 0;
  return others > 0;
}

// The pool must have the pages that the groups copy, and then those that they add, less those that they release.
Status TargetRole::check_pages() {
  int64_t copies = 0, added = 0, released = 0;
  passed_.clear();
  for (const Group& g : groups_) {
    const Sequence& s = sequences_[static_cast<size_t>(g.sequence)];
    released += pool_.released(s.pages, pages_after(s, g));
    for (int32_t i = s.pages.first(); i < first_after(s, g); ++i) {
      passed_.push_back(s.pages.pages()[static_cast<size_t>(i)]);
    }
  }
  // Forks may hold the same page: it is free once all of them have released it.
  std::sort(passed_.begin(), passed_.end());
  for (size_t i = 0, n = 0; i < passed_.size(); i += n) {
    for (n = 1; i + n < passed_.size() && passed_[i + n] == passed_[i];) ++n;
    released += pool_.refs(passed_[i]) == static_cast<int32_t>(n) ? 1 : 0;
  }
  for (size_t i = 0; i < groups_.size(); ++i) {
    const Group& g = groups_[i];
    const Sequence& s = sequences_[static_cast<size_t>(g.sequence)];
    const int64_t copy = copies_tip(i) ? 1 : 0, more = std::max(0, pages_after(s, g) - s.pages.count());
    const int64_t now = pool_.free() - copies, then = now + released - added;
    if (copy > now || (copy + more > 0 && copy + more > then)) {
      return errorf(TND_RESOURCE_EXHAUSTED,
                    "groups[%zu].n_rows is %d: sequence %d of %d positions needs %lld more pages of %d positions, %lld "
                    "are free (kv_positions)",
                    i, g.count, g.sequence, s.length, static_cast<long long>(copy + more), kKvPage,
                    static_cast<long long>(std::max<int64_t>(std::min(now, then), 0)));
    }
    copies += copy;
    added += more;
  }
  return Status();
}

Status TargetRole::check_outputs(const tnd_step& step) const {
  uint32_t wants = 0;
  for (int32_t i = 0; i < step.n_rows; ++i) wants |= step.rows[i].want;
  const bool kept = std::any_of(groups_.begin(), groups_.end(), [](const Group& g) { return g.n_kept > 0; });
  const auto missing = [](const char* field) { return errorf(TND_INVALID_ARGUMENT, "%s is NULL but wanted", field); };
  if ((wants & TND_WANT_TOKEN) != 0 && step.tokens == nullptr) return missing("tokens");
  if ((wants & TND_WANT_TOP) != 0 && step.top_ids == nullptr) return missing("top_ids");
  if ((wants & TND_WANT_TOP) != 0 && step.top_logprobs == nullptr) return missing("top_logprobs");
  if ((wants & TND_WANT_LOGITS) != 0 && step.logits == nullptr) return missing("logits");
  if ((wants & TND_WANT_SCORE) != 0 && step.scores == nullptr) return missing("scores");
  if (kept || (wants & TND_WANT_FEATURES) != 0) {
    if (step.features == nullptr) return missing("features");
    TND_TRY(check_encoding(step.feature_encoding));
  }
  if (step.hidden_encoding != TND_HIDDEN_F32 && step.hidden_encoding != TND_HIDDEN_BF16) {
    return errorf(TND_INVALID_ARGUMENT, "hidden_encoding is %d", step.hidden_encoding);
  }
  if (layer_first_ > 0 && step.n_rows > 0 && step.hidden_in == nullptr) return missing("hidden_in");
  if (layer_first_ == 0 && step.hidden_in != nullptr) {
    return errorf(TND_INVALID_ARGUMENT, "hidden_in is given to the shard that begins at layer 0");
  }
  if (layer_last_ < p_.n_layers && step.n_rows > 0 && step.hidden_out == nullptr) return missing("hidden_out");
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

// Prepares the page of the tip for what the group writes there. Its rows are the committed ones and, where a path
// follows, those pending.
bool TargetRole::own_tip(const Group& g) {
  if (written_tip(g) < 0) return false;
  Sequence& s = sequences_[static_cast<size_t>(g.sequence)];
  const int32_t tip = s.length / kKvPage;
  const int32_t end = s.length + (g.path.empty() ? 0 : static_cast<int32_t>(s.pending.size()));
  return pool_.own(&s.pages, tip, std::min(end - tip * kKvPage, kKvPage));
}

// Commits the paths of all groups, drops what else their sequences had pending, and gives them the pages of their rows.
Status TargetRole::commit_paths() {
  const int64_t start = PhaseTimer::now();
  uint64_t commits = 0, rows = 0;
  bool copied = false;
  for (const Group& g : groups_) copied |= own_tip(g);
  for (const Group& g : groups_) {
    Sequence& s = sequences_[static_cast<size_t>(g.sequence)];
    if (!g.path.empty()) {
      commit_path(&s, g.path);
      ++commits;
      rows += g.path.size();
    }
    s.pending.clear();
  }
  // All release pages before any takes one: others may get them.
  for (const bool takes : {false, true}) {
    for (const Group& g : groups_) {
      Sequence& s = sequences_[static_cast<size_t>(g.sequence)];
      const int32_t pages = kv_pages(s.length + g.count);
      pool_.resize(&s.pages, takes ? pages : std::min(pages, s.pages.count()), pool_.first_page(s.length));
    }
  }
  // What is written here is older than the step (AttentionGroupPlan::old).
  if (commits > 0 || copied) TND_TRY(c_.backend->start());
  if (commits == 0) return Status();
  c_.stats->add(Counter::kCommits, commits);
  c_.stats->add(Counter::kCommittedRows, rows);
  c_.stats->add(Counter::kCommitNs, static_cast<uint64_t>(PhaseTimer::now() - start));
  return Status();
}

// Commits a checked path. The buffers are those of the planner.
void TargetRole::commit_path(Sequence* s, std::span<const int32_t> path) {
  const size_t n = path.size();
  for (size_t i = 0; i < n; ++i) {
    order_[i] = s->pending_row(path[i]);
    parents_[i] = s->pages.slot(s->length + order_[i]);                    // slot before
    parent_rows_[i] = s->pages.slot(s->length + static_cast<int32_t>(i));  // and after
  }
  const std::span<const int32_t> rows(order_.data(), n);
  if (delta_layers_ > 0) c_.backend->delta_commit(model_->delta_shape(), s->states, s->replay, rows);
  c_.backend->kv_move(kv_, caches_, std::span<const int32_t>(parents_).first(n),
                      std::span<const int32_t>(parent_rows_).first(n));
  for (const int32_t row : rows) {
    const Pending& p = s->pending[static_cast<size_t>(row)];
    s->tokens.push_back(p.token);
    if (p.kept) s->kept.add(s->length);
    ++s->length;
  }
}

// Rows as which a backend may record the step: steps of several groups of one row each are much alike.
int32_t TargetRole::step_rows() const {
  constexpr int32_t kSeveral = 4;
  int32_t rows = 0, groups = 0;
  for (const Group& g : groups_) {
    rows += g.count;
    groups += g.count > 0 ? 1 : 0;
  }
  return groups > 1 ? std::max(rows, kSeveral) : rows;
}

// Orders the rows, those of prompts first, and fills every plan of the forward pass.
void TargetRole::plan_step(const tnd_step& step) {
  plan_order_.clear();
  int32_t first = 0;
  for (const bool prompt : {true, false}) {
    for (size_t i = 0; i < groups_.size(); ++i) {
      Group& g = groups_[i];
      if (g.count == 0 || g.prompt != prompt) continue;
      g.first = first;
      first += g.count;
      plan_order_.push_back(static_cast<int32_t>(i));
    }
    if (prompt) prompt_rows_ = first;
  }
  c_.backend->begin_step(prompt_rows_, step_rows());
  delta_groups_.clear();
  attention_groups_.clear();
  feature_rows_.clear();
  feature_places_.clear();
  prompt_features_ = 0;
  const uint64_t row_bytes = hidden_row_bytes(step);
  for (const int32_t index : plan_order_) {
    Group& g = groups_[static_cast<size_t>(index)];
    Sequence& s = sequences_[static_cast<size_t>(g.sequence)];
    const size_t at = static_cast<size_t>(g.first), n = static_cast<size_t>(g.count);
    const tnd_row* rows = step.rows + g.given;
    DeltaRow* delta = delta_rows_.data() + g.first;
    if (g.commit) {
      chain_rows(g.count, delta);
      for (size_t i = 0; i < n; ++i) {
        order_[at + i] = static_cast<int32_t>(i);
        parent_rows_[at + i] = static_cast<int32_t>(i) - 1;
      }
    } else {
      for (size_t i = 0; i < n; ++i) parents_[at + i] = rows[i].parent;
      planner_.plan(std::span<const int32_t>(parents_).subspan(at, n), order_.data() + at, parent_rows_.data() + at,
                    delta);
    }
    // From the group's order to internal order.
    for (int32_t i = 0; i < g.count; ++i) {
      const int32_t batch = g.given + order_[at + static_cast<size_t>(i)];
      batch_of_row_[at + static_cast<size_t>(i)] = batch;
      row_of_batch_[static_cast<size_t>(batch)] = g.first + i;
    }
    g.first_feature = static_cast<int32_t>(feature_rows_.size());
    for (size_t i = 0; i < n; ++i) {
      const tnd_row& row = rows[i];
      const size_t to = static_cast<size_t>(row_of_batch_[static_cast<size_t>(g.given) + i]);
      tokens_[to] = row.token >= 0 && row.token < p_.vocab ? row.token : -1;
      positions_[to] = row.position;
      if ((row.want & TND_WANT_FEATURES) != 0) {
        feature_places_.push_back(static_cast<int32_t>(feature_rows_.size()));
        feature_rows_.push_back(static_cast<int32_t>(to));
        prompt_features_ += g.prompt ? 1 : 0;
      }
      if (layer_first_ > 0) {
        std::memcpy(hidden_.data() + to * row_bytes,
                    static_cast<const uint8_t*>(step.hidden_in) + (static_cast<size_t>(g.given) + i) * row_bytes,
                    row_bytes);
      }
    }
    delta_groups_.push_back(DeltaGroup{g.first, g.count, g.commit, delta, s.states.data(), s.replay.data(), g.prompt});
    const int32_t window = c_.options.attention_window;
    g.read = s.length + g.count - (window == 0 ? 0 : std::max(0, s.length + 1 - window));
    attention_groups_.push_back(AttentionGroupPlan{g.first, g.count, s.pages.places(), s.pages.count(), s.length});
    plan_attention(s, g);
  }
  wanted_features_ = static_cast<int32_t>(feature_rows_.size());
  for (const Group& g : groups_) {
    Sequence& s = sequences_[static_cast<size_t>(g.sequence)];
    for (int32_t i = g.given; i < g.given + g.count; ++i) {
      const tnd_row& row = step.rows[i];
      if ((row.want & TND_WANT_KEEP) == 0) continue;
      feature_rows_.push_back(row_of_batch_[static_cast<size_t>(i)]);
      feature_places_.push_back(kept_place(g.sequence, row.position));
      // The previous content of its slot is lost, whether or not the row is committed.
      s.kept.first = std::max(s.kept.first, row.position - TND_KEPT_ROWS + 1);
    }
  }
  fill_rope(step.n_rows);
}

// A row sees the committed positions, then its ancestors by depth and itself. Leading ancestors whose slot is that of
// their position are seen as past: no difference in bits (attention.h), but the common cases need no list. A window is
// the row's own, so that what a row sees does not depend on the rows beside it.
void TargetRole::plan_attention(const Sequence& s, const Group& g) {
  const size_t stride = static_cast<size_t>(c_.options.max_tree_rows);
  const int32_t window = c_.options.attention_window;
  for (int32_t i = 0; i < g.count; ++i) {
    const size_t row = static_cast<size_t>(g.first + i);
    AttentionRowPlan& p = attention_rows_[row];
    p.slot = s.pages.slot(s.length + i);
    p.first = window == 0 ? 0 : std::max(0, positions_[row] + 1 - window);
    p.n_tail = 0;
    p.tail = nullptr;
    if (g.commit) {
      p.past = s.length + i + 1;
      continue;
    }
    const int32_t depth = positions_[row] - s.length;
    int32_t* tail = tail_.data() + row * stride;
    for (int32_t d = depth, at = i; d >= 0; --d, at = parent_rows_[static_cast<size_t>(g.first + at)]) {
      tail[d] = s.pages.slot(s.length + at);
    }
    int32_t folded = 0;
    while (folded <= depth && tail[folded] == s.pages.slot(s.length + folded)) ++folded;
    p.past = s.length + folded;
    p.n_tail = depth + 1 - folded;
    p.tail = tail + folded;
  }
}

// Rotation tables of the rows: cos of all pairs, then sin.
void TargetRole::fill_rope(int32_t rows) {
  if (attention_layers_ == 0) return;
  for (int64_t r = 0; r < rows; ++r) {
    angles_.fill(positions_[static_cast<size_t>(r)], rope_host_.data() + r * p_.rope_dims);
  }
  c_.backend->upload_rows(rope_, rope_host_.data(), rows, p_.rope_dims);
}

// Distinct tokens of the last penalty_window tokens up to and with the row's own, appended to out.
void TargetRole::count_history(const Group& g, int32_t row, std::vector<TokenCount>* out, size_t* first) {
  *first = out->size();
  const Sequence& s = sequences_[static_cast<size_t>(g.sequence)];
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
  begins_.clear();
  int64_t logits = 0;
  for (const Group& g : groups_) {
    const Sequence& s = sequences_[static_cast<size_t>(g.sequence)];
    for (int32_t i = g.given; i < g.given + g.count; ++i) {
      const tnd_row& row = step.rows[i];
      if (step.tokens != nullptr) step.tokens[i] = -1;
      if (step.logprobs != nullptr) step.logprobs[i] = 0;
      if (step.scores != nullptr) step.scores[i] = 0;
      if (step.top_ids != nullptr) std::fill_n(step.top_ids + int64_t{i} * step.top_stride, step.top_stride, -1);
      if ((row.want & kHeadWants) == 0) continue;
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
      size_t first = history_.size();
      if (h.sampler != nullptr && h.token != nullptr &&
          (h.sampler->repetition_penalty != 1.0f || h.sampler->frequency_penalty != 0.0f ||
           h.sampler->presence_penalty != 0.0f)) {
        count_history(g, h.row, &history_, &first);
      }
      begins_.push_back(first);
      head_rows_.push_back(h);
    }
  }
  // Histories grow a shared list: spans are taken now that it is complete.
  for (size_t i = 0; i < head_rows_.size(); ++i) {
    const size_t end = i + 1 < begins_.size() ? begins_[i + 1] : history_.size();
    head_rows_[i].history = std::span<const TokenCount>(history_).subspan(begins_[i], end - begins_[i]);
  }
}

uint64_t TargetRole::hidden_row_bytes(const tnd_step& step) const {
  return static_cast<uint64_t>(p_.hidden) *
         (step.hidden_encoding == TND_HIDDEN_BF16 ? sizeof(uint16_t) : sizeof(float));
}

// Returns the residual streams in the caller's order, by one copy.
void TargetRole::download_hidden(const tnd_step& step) {
  const std::span<const int32_t> rows = std::span<const int32_t>(row_of_batch_).first(static_cast<size_t>(step.n_rows));
  const float* from = model_->x();
  if (!std::is_sorted(rows.begin(), rows.end())) {  // else they are in that order
    c_.backend->copy_rows(from, p_.hidden, rows, {}, hidden_out_, p_.hidden);
    from = hidden_out_;
  }
  if (step.hidden_encoding == TND_HIDDEN_BF16) {
    c_.backend->download_rows_bf16(static_cast<uint16_t*>(step.hidden_out), from, step.n_rows, p_.hidden);
  } else {
    c_.backend->download_rows(static_cast<float*>(step.hidden_out), from, step.n_rows, p_.hidden);
  }
}

// Results of a finished forward pass; then the rows become pending or, in a committing group, part of the sequence.
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
    write_features(step);
    timer.mark(Counter::kFeatureNs);
  }
  if (layer_last_ < p_.n_layers) download_hidden(step);
  uint64_t committed = 0;
  for (const Group& g : groups_) {
    Sequence& s = sequences_[static_cast<size_t>(g.sequence)];
    for (int32_t i = 0; i < g.count; ++i) {
      const size_t row = static_cast<size_t>(g.first + i);
      const int32_t batch = batch_of_row_[row];
      const bool kept = (step.rows[batch].want & TND_WANT_KEEP) != 0;
      if (g.commit) {
        s.tokens.push_back(tokens_[row]);
        if (kept) s.kept.add(s.length + i);
      } else {
        s.pending.push_back(Pending{batch - g.given, tokens_[row], parent_rows_[row], kept});
      }
    }
    if (!g.commit) continue;
    s.length += g.count;
    pool_.resize(&s.pages, s.pages.count(), pool_.first_page(s.length));
    committed += static_cast<uint64_t>(g.count);
  }
  c_.stats->add(Counter::kCommittedRows, committed);
}

}  // namespace tnd
