#include <algorithm>

#include "gpu/attention/attention.h"

namespace tnd::gpu {

void AttentionStep::plan(const AttentionPlan& plan, int n_rows) {
  rows.assign(static_cast<size_t>(n_rows), AttentionRow());
  tails.clear();
  pages.clear();
  bulk.clear();
  tail.clear();
  bulk_rows = tail_rows = 1;
  keys = 0;
  for (const AttentionGroupPlan& group : plan.groups) {
    int apart = -1;  // open tile of bulk, of tail; -1 = none
    int tail_apart = -1;
    const int32_t first_page = static_cast<int32_t>(pages.size());
    pages.insert(pages.end(), group.pages, group.pages + group.n_pages);
    int32_t old = group.old;  // in pages: below the keys of the tails, and below the rows themselves
    for (int i = 0; i < group.count; ++i) {
      const AttentionRowPlan& in = plan.rows[group.first + i];
      old = std::min(old, in.n_tail > 0 ? in.past : std::max(in.past - 1, 0));
    }
    for (int i = 0; i < group.count; ++i) {
      const int32_t row = group.first + i;
      const AttentionRowPlan& in = plan.rows[row];
      AttentionRow& out = rows[static_cast<size_t>(row)];
      out = AttentionRow{in.slot, in.first, in.past, in.n_tail, static_cast<int32_t>(tails.size()), first_page};
      keys = std::max(keys, in.past + in.n_tail - in.first);
      if (in.n_tail > 0) tails.insert(tails.end(), in.tail, in.tail + in.n_tail);
      const auto put = [&](std::vector<AttentionTile>* tiles, int* open, bool shares, int* most) {
        if (shares && *open >= 0) {
          AttentionTile& t = (*tiles)[static_cast<size_t>(*open)];
          *most = std::max(*most, ++t.rows);
          return;
        }
        tiles->push_back(AttentionTile{row, 1, first_page, old});
        *open = shares ? static_cast<int>(tiles->size()) - 1 : -1;
      };
      // Before the tail a row's keys lie in the group's pages, unless its own tail is very long. Within the tail, only
      // those of a chain's rows do.
      put(&bulk, &apart, in.n_tail <= kAttentionDirect, &bulk_rows);
      put(&tail, &tail_apart, in.n_tail == 0, &tail_rows);
    }
  }
}

}  // namespace tnd::gpu
