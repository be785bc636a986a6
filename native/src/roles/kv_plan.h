// How much context and how large a pool of pages an engine opens with.
#pragma once

#include <cstdint>
#include <functional>

#include "core/arena.h"
#include "core/status.h"
#include "roles/roles.h"

namespace tnd {

struct KvPlan {
  int32_t max_context = 0;  // positions of a sequence
  int32_t positions = 0;    // of all sequences together
};

// KvWish is what plan_kv chooses from.
struct KvWish {
  int32_t model_context = 0;   // the model's own
  int32_t least_context = 16;  // an automatic context below this helps nobody
  int32_t pending = 0;         // rows of a sequence behind its tip, at most
  // measure plans all memory of an engine.
  std::function<Status(const KvPlan&, Arena*)> measure;
};

// pool_slots is a pool in which `sequences` sequences of together plan.positions positions, each with its pending rows
// and in pages of its own, always find a page: a multiple of kKvPage.
int32_t pool_slots(const KvPlan& plan, int32_t sequences, int32_t pending);

// table_pages is the length of the longest page table.
int32_t table_pages(const KvPlan& plan, int32_t pending);

// plan_kv chooses by tnd_open_options max_context, kv_positions and max_sequences: what was asked for, or refuses it
// and says what would fit; what was not asked for (0) as large as it is useful and fits the memory cap. The pool is
// reduced before the context is.
Status plan_kv(const OpenContext& c, const KvWish& wish, KvPlan* out);

}  // namespace tnd
