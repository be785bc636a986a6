// How many sequences, how much context and how large a pool of pages an engine opens with.
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
  int32_t sequences = 1;
};

// KvWish is what plan_kv chooses from.
struct KvWish {
  int32_t model_context = 0;   // the model's own
  int32_t least_context = 16;  // an automatic context below this helps nobody
  // later returns the bytes that an engine with so many sequences may take after it opened, beyond keys, values and
  // snapshots. An automatic number of sequences and an automatic context leave room for them. Empty = none.
  std::function<uint64_t(int32_t sequences)> later;
  // measure plans all memory of an engine.
  std::function<Status(const KvPlan&, Arena*)> measure;
};

// KvReach says which positions a sequence holds pages of.
struct KvReach {
  int32_t pending = 0;    // rows behind its tip, at most
  int32_t window = 0;     // newest positions that a row reads, pages before them are not held; 0 = all
  int32_t step_rows = 0;  // with a window: rows of a step, of all sequences together
};

// pool_slots is a pool in which plan.sequences sequences of together plan.positions positions, each with its pending
// rows and in pages of its own, always find a page: a multiple of kKvPage.
int32_t pool_slots(const KvPlan& plan, const KvReach& reach);

// table_pages is the length of the longest page table.
int32_t table_pages(const KvPlan& plan, int32_t pending);

// plan_kv chooses by tnd_open_options max_context, kv_positions and max_sequences: what was asked for, or refuses it
// and says what would fit; what was not asked for (0) as large as it is useful and fits the memory cap.
//
// An automatic number of sequences is kMostSequences or what memory allows: the sequences after the first take, besides
// pages, at most a quarter of what one sequence with a full context leaves of the cap. The pool, which all sequences
// share, then holds at most kFullContexts full contexts; those after the first take at most half of what is left then,
// so that another engine on the device, features and snapshots find room. The pool is reduced before the context is. An
// automatic context is the model's own or, within that, what memory allows with one sequence or those asked for.
constexpr int32_t kMostSequences = 32;  // raising it costs memory in engines that have plenty
constexpr int32_t kFullContexts = 4;    // raising it takes memory from snapshots of prompts
Status plan_kv(const OpenContext& c, const KvWish& wish, KvPlan* out);

// plan_kv_types sets the types in *kv, which wish.measure counts with, for heads of `dim` values, then plans as plan_kv
// does. Types that are TND_KV_AUTO are chosen as engine.h says.
Status plan_kv_types(const OpenContext& c, const KvWish& wish, int32_t heads, int32_t dim, KvShape* kv, KvPlan* out);

}  // namespace tnd
