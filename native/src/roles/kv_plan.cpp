#include "roles/kv_plan.h"

#include <algorithm>
#include <string>

#include "core/kv_type.h"

namespace tnd {
namespace {

constexpr int32_t kMaxContext = 1 << 24;
constexpr int32_t kMaxPositions = 1 << 30;

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

}  // namespace

int32_t pool_slots(const KvPlan& plan, int32_t sequences, int32_t pending) {
  const int64_t together = plan.positions + int64_t{sequences} * (pending + kKvPage - 1);
  const int64_t apart = int64_t{sequences} * table_pages(plan, pending) * kKvPage;
  return kv_pages(std::min(together, apart)) * kKvPage;
}

int32_t table_pages(const KvPlan& plan, int32_t pending) {
  return kv_pages(int64_t{plan.max_context} + pending);
}

Status plan_kv(const OpenContext& c, const KvWish& wish, KvPlan* out) {
  const tnd_open_options& o = c.options;
  TND_TRY(check_options(o));
  const auto fits = [&](const KvPlan& plan, bool* ok) {
    Arena arena;
    TND_TRY(wish.measure(plan, &arena));
    *ok = arena.total() <= c.memory_cap;
    return Status();
  };
  KvPlan plan;
  plan.max_context = o.max_context != 0 ? o.max_context : std::min(wish.model_context, kMaxContext);
  if (o.kv_positions != 0) plan.max_context = std::min(plan.max_context, o.kv_positions);
  const int64_t all = int64_t{plan.max_context} * o.max_sequences;
  plan.positions = o.kv_positions != 0 ? o.kv_positions : static_cast<int32_t>(std::min<int64_t>(all, kMaxPositions));
  *out = plan;
  bool ok = false;
  TND_TRY(fits(plan, &ok));
  if (ok) return Status();
  Arena wanted;
  TND_TRY(wish.measure(plan, &wanted));
  int32_t n = 0;
  if (o.kv_positions != 0) {
    const auto with = [&](int32_t positions, bool* fit) {
      return fits({std::min(plan.max_context, positions), positions}, fit);
    };
    TND_TRY(bisect(0, o.kv_positions, with, &n));
    return no_fit(c, wanted, "kv_positions", n);
  }
  TND_TRY(fits({plan.max_context, plan.max_context}, &ok));
  if (ok) {
    const auto with = [&](int32_t positions, bool* fit) { return fits({plan.max_context, positions}, fit); };
    TND_TRY(bisect(plan.max_context, plan.positions, with, &out->positions));
    c.log(TND_LOG_INFO, "keys and values of " + std::to_string(out->positions) + " positions for " +
                            std::to_string(o.max_sequences) + " sequences of at most " +
                            std::to_string(plan.max_context) + " fit the memory cap");
    return Status();
  }
  const auto with = [&](int32_t context, bool* fit) { return fits({context, context}, fit); };
  TND_TRY(bisect(0, plan.max_context, with, &n));
  if (o.max_context != 0 || n < wish.least_context) return no_fit(c, wanted, "max_context", n);
  *out = {n, n};
  c.log(TND_LOG_WARN, "context reduced from " + std::to_string(plan.max_context) + " to " + std::to_string(n) +
                          " positions to fit the memory cap");
  return Status();
}

}  // namespace tnd
