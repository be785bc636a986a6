#include "roles/kv_plan.h"

#include <algorithm>
#include <string>

#include "core/kv_type.h"
#include "roles/saved_sequence.h"

namespace tnd {
namespace {

constexpr int32_t kMaxContext = 1 << 24;
constexpr int32_t kMaxPositions = 1 << 30;

// What an automatic type is chosen from, by falling accuracy and size. F32 and BF16 have no place: neither is more
// accurate than F16 with the engine's activations (docs/spec/kv-cache.md has the measurement).
constexpr KvType kLadder[] = {KvType::kF16,  KvType::kQ8_0, KvType::kQ5_1, KvType::kQ5_0,
                              KvType::kQ4_1, KvType::kQ4_0, KvType::kTQ3_0};

// The largest n in [low, high] for which fits(n), which holds for low and up to some n, is true.
template <typename F>
Status bisect(int32_t low, int32_t high, F&& fits, int32_t* out) {
  while (low < high) {
    const int32_t middle = low + (high - low + 1) / 2;
    bool ok = false;
    TND_TRY(fits(middle, &ok));
    if (ok) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  *out = low;
  return Status();
}

Status no_fit(const OpenContext& c, const Arena& arena, const char* field, int32_t fits) {
  std::string text = "needs " + std::to_string(arena.total()) + " bytes (";
  for (int i = 0; i < static_cast<int>(Purpose::kCount); ++i) {
    const Purpose purpose = static_cast<Purpose>(i);
    if (arena.of(purpose) == 0) continue;
    if (text.back() != '(') text += ", ";
    text += std::string(purpose_name(purpose)) + " " + std::to_string(arena.of(purpose));
  }
  text += ") of a cap of " + std::to_string(c.memory_cap) + "; ";
  text += fits > 0 ? std::string(field) + " " + std::to_string(fits) + " would fit"
                   : std::string("no ") + field + " would fit";
  return Status(TND_RESOURCE_EXHAUSTED, text);
}

Status check_options(const tnd_open_options& o) {
  if (o.max_context < 0 || o.max_context > kMaxContext) {
    return errorf(TND_INVALID_ARGUMENT, "max_context is %d, must be 0..%d", o.max_context, kMaxContext);
  }
  if (o.kv_positions < 0 || o.kv_positions > kMaxPositions) {
    return errorf(TND_INVALID_ARGUMENT, "kv_positions is %d, must be 0..%d", o.kv_positions, kMaxPositions);
  }
  if (o.kv_positions != 0 && o.kv_positions < o.max_context) {
    return errorf(TND_INVALID_ARGUMENT, "kv_positions is %d, must be 0 or at least max_context, %d", o.kv_positions,
                  o.max_context);
  }
  return Status();
}

// The context of a sequence before memory is looked at.
int32_t wanted_context(const tnd_open_options& o, const KvWish& wish) {
  const int32_t context = o.max_context != 0 ? o.max_context : std::min(wish.model_context, kMaxContext);
  return o.kv_positions != 0 ? std::min(context, o.kv_positions) : context;
}

// Chooses plan->sequences for a context and pool that are set. reserve is what the engine may take later.
Status choose_sequences(const OpenContext& c, const KvWish& wish, KvPlan* plan, uint64_t* reserve) {
  const auto later = [&](int32_t n) { return wish.later ? wish.later(n) : 0; };
  const auto besides_pages = [](const Arena& arena) { return arena.total() - arena.of(Purpose::kKv); };
  *reserve = 0;
  plan->sequences = 1;
  Arena one;
  TND_TRY(wish.measure({plan->max_context, plan->max_context, 1}, &one));
  const uint64_t alone = one.total() + later(1);
  if (alone > c.memory_cap) return Status();  // memory goes to the context
  const uint64_t most = (c.memory_cap - alone) / 4;
  const auto enough = [&](int32_t n, bool* ok) {
    Arena arena;
    TND_TRY(wish.measure({plan->max_context, plan->positions, n}, &arena));
    const uint64_t more = besides_pages(arena) + later(n) - besides_pages(one) - later(1);
    *ok = more <= most && arena.total() + later(n) <= c.memory_cap;
    return Status();
  };
  TND_TRY(bisect(1, kMostSequences, enough, &plan->sequences));
  *reserve = later(plan->sequences);
  c.log(TND_LOG_INFO, std::to_string(plan->sequences) + " sequences fit the memory cap");
  return Status();
}

}  // namespace

int32_t pool_slots(const KvPlan& plan, const KvReach& reach) {
  const int64_t sequences = plan.sequences;
  const int64_t together = plan.positions + sequences * (reach.pending + kKvPage - 1);
  const int64_t apart = sequences * table_pages(plan, reach.pending) * kKvPage;
  int64_t slots = std::min(together, apart);
  if (reach.window > 0) {
    // A sequence holds the window - 1 positions before its tip and the rows behind it, in pages that are partly used at
    // both ends.
    slots = std::min(slots, sequences * (reach.window - 1 + reach.pending + 2 * (kKvPage - 1)) + reach.step_rows);
  }
  return kv_pages(slots) * kKvPage;
}

int32_t table_pages(const KvPlan& plan, int32_t pending) {
  return kv_pages(int64_t{plan.max_context} + pending);
}

Status plan_kv(const OpenContext& c, const KvWish& wish, KvPlan* out) {
  const tnd_open_options& o = c.options;
  TND_TRY(check_options(o));
  KvPlan plan;
  plan.max_context = wanted_context(o, wish);
  plan.positions = o.kv_positions != 0 ? o.kv_positions : plan.max_context;
  plan.sequences = o.max_sequences;
  uint64_t reserve = 0;
  if (o.max_sequences == 0) TND_TRY(choose_sequences(c, wish, &plan, &reserve));
  if (o.max_context == 0 && o.kv_positions == 0 && wish.later) {
    reserve = std::min(wish.later(plan.sequences), c.memory_cap);
  }
  if (o.kv_positions == 0) {
    const int32_t full = o.max_sequences == 0 ? std::min(plan.sequences, kFullContexts) : plan.sequences;
    plan.positions = static_cast<int32_t>(std::min<int64_t>(int64_t{plan.max_context} * full, kMaxPositions));
  }
  uint64_t cap = c.memory_cap - reserve;
  if (o.max_sequences == 0 && o.kv_positions == 0) {
    Arena one;
    TND_TRY(wish.measure({plan.max_context, plan.max_context, plan.sequences}, &one));
    if (one.total() < cap) cap = one.total() + (cap - one.total()) / 2;
  }
  const auto fits = [&](int32_t context, int32_t positions, bool* ok) {
    Arena arena;
    TND_TRY(wish.measure({context, positions, plan.sequences}, &arena));
    *ok = arena.total() <= cap;
    return Status();
  };
  *out = plan;
  bool ok = false;
  TND_TRY(fits(plan.max_context, plan.positions, &ok));
  if (ok) return Status();
  Arena wanted;
  TND_TRY(wish.measure(plan, &wanted));
  int32_t n = 0;
  if (o.kv_positions != 0) {
    const auto with = [&](int32_t positions, bool* fit) {
      return fits(std::min(plan.max_context, positions), positions, fit);
    };
    TND_TRY(bisect(0, o.kv_positions, with, &n));
    return no_fit(c, wanted, "kv_positions", n);
  }
  TND_TRY(fits(plan.max_context, plan.max_context, &ok));
  if (ok) {
    const auto with = [&](int32_t positions, bool* fit) { return fits(plan.max_context, positions, fit); };
    TND_TRY(bisect(plan.max_context, plan.positions, with, &out->positions));
    c.log(TND_LOG_INFO, "keys and values of " + std::to_string(out->positions) + " positions for " +
                            std::to_string(plan.sequences) + " sequences of at most " +
                            std::to_string(plan.max_context) + " fit the memory cap");
    return Status();
  }
  const auto with = [&](int32_t context, bool* fit) { return fits(context, context, fit); };
  TND_TRY(bisect(0, plan.max_context, with, &n));
  if (n < wish.least_context && cap < c.memory_cap) {  // a context without room for the rest is better than none
    cap = c.memory_cap;
    TND_TRY(bisect(0, plan.max_context, with, &n));
  }
  if (o.max_context != 0 || n < wish.least_context) return no_fit(c, wanted, "max_context", n);
  *out = {n, n, plan.sequences};
  c.log(TND_LOG_WARN, "context reduced from " + std::to_string(plan.max_context) + " to " + std::to_string(n) +
                          " positions to fit the memory cap");
  return Status();
}

Status plan_kv_types(const OpenContext& c, const KvWish& wish, int32_t heads, int32_t dim, KvShape* kv, KvPlan* out) {
  const tnd_open_options& o = c.options;
  const bool choose_k = o.kv_type_k == TND_KV_AUTO;
  const bool choose_v = o.kv_type_v == TND_KV_AUTO;
  if (!choose_k && !choose_v) {
    TND_TRY(set_kv_types(o, heads, dim, kv));
    return plan_kv(c, wish, out);
  }
  TND_TRY(check_options(o));
  const int32_t context = wanted_context(o, wish);
  // A context that nobody asked for is rather reduced than kept in few bits.
  const KvType last = o.max_context != 0 || o.kv_positions != 0 ? KvType::kTQ3_0 : KvType::kQ8_0;
  OpenContext tried = c;
  for (const KvType type : kLadder) {
    if (dim % kv_group(type) != 0) break;  // of F16 any heads; those after it need no smaller groups
    if (choose_k) tried.options.kv_type_k = static_cast<int32_t>(type);
    if (choose_v) tried.options.kv_type_v = static_cast<int32_t>(type);
    TND_TRY(set_kv_types(tried.options, heads, dim, kv));
    tried.options.log = nullptr;
    const Status status = plan_kv(tried, wish, out);
    if (!status.ok() && status.code() != TND_RESOURCE_EXHAUSTED) return status;
    if (type == last || (status.ok() && out->max_context == context)) break;
  }
  tried.options.log = o.log;
  TND_TRY(plan_kv(tried, wish, out));
  c.log(TND_LOG_INFO, std::string("keys are cached as ") + kv_type_name(kv->k_type) + ", values as " +
                          kv_type_name(kv->v_type) + ", chosen by memory for a context of " + std::to_string(context) +
                          " positions");
  return Status();
}

}  // namespace tnd
