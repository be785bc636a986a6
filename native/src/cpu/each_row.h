// Row loops of the CPU backend: inline when the work is smaller than a parallel region costs, else in even blocks.
#pragma once

#include <algorithm>

#include "core/thread_pool.h"

namespace tnd::cpu {

// each_row runs f(row) for rows [0, rows). cost: rough nanoseconds of one row; a region costs about 2 us.
template <typename F>
void each_row(ThreadPool& pool, int rows, int cost, F&& f) {
  constexpr int64_t kRegionNs = 4000;
  if (pool.threads() == 1 || rows == 1 || int64_t{rows} * cost < kRegionNs) {
    for (int r = 0; r < rows; ++r) f(r);
    return;
  }
  const int blocks = std::min(rows, pool.threads() * 4);
  pool.run(blocks, [&](int block, int) {
    const int end = static_cast<int>(int64_t{rows} * (block + 1) / blocks);
    for (int r = static_cast<int>(int64_t{rows} * block / blocks); r < end; ++r) f(r);
  });
}

}  // namespace tnd::cpu
