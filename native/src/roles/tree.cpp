#include "roles/tree.h"

namespace tnd {
namespace {

// Rows one, two and three tokens back; saved taps continue below -1.
void set_taps(const int32_t* parent, int32_t i, DeltaRow* row) {
  int32_t at = i;
  for (int32_t& tap : row->taps) {
    at = at >= 0 ? parent[at] : at - 1;
    tap = at;
  }
}

}  // namespace

TreePlanner::TreePlanner(int max_rows) {
  const size_t n = static_cast<size_t>(max_rows);
  size_.resize(n);
  heavy_.resize(n);
  child_.resize(n + 1);
  sibling_.resize(n);
  stack_.reserve(n);
  slot_.resize(n);
  position_.resize(n);
}

int TreePlanner::saved_states(int max_rows) {
  int slots = 2;
  for (int n = max_rows; n > 1; n /= 2) ++slots;
  return slots;
}

void TreePlanner::plan(std::span<const int32_t> parent, int32_t* order, int32_t* parent_in_order, DeltaRow* rows) {
  const int32_t n = static_cast<int32_t>(parent.size());
  for (int32_t i = 0; i < n; ++i) {
    size_[i] = 1;
    heavy_[i] = -1;
    child_[i + 1] = -1;
  }
  child_[0] = -1;
  for (int32_t i = n - 1; i >= 0; --i) {  // children come after parents: sizes are final when read
    const int32_t p = parent[i];
    sibling_[i] = child_[p + 1];  // lists end up ascending
    child_[p + 1] = i;
    if (p < 0) continue;
    size_[p] += size_[i];
    if (heavy_[p] < 0 || size_[i] >= size_[heavy_[p]]) heavy_[p] = i;
  }

  int32_t next = 0;
  stack_.clear();
  // Pushes so that the heavy child is popped last.
  const auto push_children = [&](int32_t list, int32_t heavy) {
    if (heavy >= 0) stack_.push_back(heavy);
    const size_t first = stack_.size();
    for (int32_t c = list; c >= 0; c = sibling_[c]) {
      if (c != heavy) stack_.push_back(c);
    }
    for (size_t a = first, b = stack_.size(); a + 1 < b; ++a, --b) std::swap(stack_[a], stack_[b - 1]);
  };
  push_children(child_[0], -1);
  while (!stack_.empty()) {
    const int32_t i = stack_.back();
    stack_.pop_back();
    const int32_t p = parent[i];
    DeltaRow& row = rows[next];
    order[next] = i;
    parent_in_order[next] = p < 0 ? -1 : position_[p];
    position_[i] = next;
    row.state_in = p < 0 ? kStateCommitted : slot_[p];
    if (child_[i + 1] < 0) {
      row.state_out = kStateNone;
    } else {
      slot_[i] = p < 0 ? 0 : heavy_[p] == i ? slot_[p] : slot_[p] + 1;
      row.state_out = slot_[i];
    }
    set_taps(parent_in_order, next, &row);
    ++next;
    push_children(child_[i + 1], heavy_[i]);
  }
}

void chain_rows(int n, DeltaRow* rows) {
  for (int i = 0; i < n; ++i) rows[i] = DeltaRow{{i - 1, i - 2, i - 3}, kStateCommitted, kStateCommitted};
}

}  // namespace tnd
