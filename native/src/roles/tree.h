// Order and schedule of the pending rows of one sequence: depth-first, so that a DeltaNet state is carried along a path
// and saved at branch points only, and parents precede children.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/backend.h"

namespace tnd {

// TreePlanner is reusable working memory for trees of up to max_rows rows.
class TreePlanner {
 public:
  explicit TreePlanner(int max_rows);

  // saved_states returns how many save slots a tree of max_rows rows may need: the largest subtree of a node is walked
  // last and may overwrite its parent's state, so each further slot halves the subtree: log2(rows) + 1.
  static int saved_states(int max_rows);

  // plan orders a forest given by parent (index of an earlier row, -1 = child of the tip).
  //   order  [n] out: order[i] = given index of the i-th row in depth-first order
  //   parent_in_order [n] out: parents as positions in the order, -1 = tip
  //   rows   [n] out: taps and state slots by position in the order
  void plan(std::span<const int32_t> parent, int32_t* order, int32_t* parent_in_order, DeltaRow* rows);

 private:
  std::vector<int32_t> size_, heavy_, child_, sibling_, stack_, slot_, position_;
};

// chain_rows fills the schedule of a committing chain: every row starts from and leaves the committed state.
void chain_rows(int n, DeltaRow* rows);

}  // namespace tnd
