// Buckets of a step's sizes: steps whose rows, groups, tiles and tables fall in the same buckets record the same list
// (backend_record.h) and so replay one graph. Launches are made for the largest size of the bucket; kernels read the
// real size from the plan, and blocks beyond it return at once, so a row computes and costs the same. Where the number
// of rows chooses a kernel (README.md), the choice changes at the ends of these buckets only.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace tnd::gpu {

// row_bucket: 1, 2, 4, 8, 16, 24, 32, 64, then multiples of 64.
constexpr int row_bucket(int rows) {
  if (rows <= 8) return static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(rows, 1))));
  if (rows <= 32) return (rows + 7) / 8 * 8;
  return (rows + 63) / 64 * 64;
}

// group_bucket: 1, 4, then multiples of 4, the groups of a launch of the delta rule.
constexpr size_t group_bucket(size_t groups) {
  return groups <= 1 ? 1 : (groups + 3) / 4 * 4;
}

// tile_bucket is for tiles of attention: as many as groups where each group has one, else as many as rows. Steps of at
// most `few` rows always use the second.
constexpr size_t tile_bucket(size_t tiles, size_t groups, int rows, int few) {
  return rows > few && tiles <= groups ? groups : std::max(tiles, static_cast<size_t>(rows));
}

// share_bucket is for the rows of the largest tile of attention, a power of two; of those that share a tail at least
// `least`, because a block takes that many.
constexpr int share_bucket(int rows, int least = 1) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(rows, least))));
}

// table_bucket is for page tables: 256 entries, then four times as many each. Ancestors of rows have at most rows^2
// entries, which is small up to 64 rows.
constexpr size_t table_bucket(size_t entries) {
  size_t n = 256;
  while (n < entries) n *= 4;
  return n;
}
constexpr size_t ancestor_bucket(size_t entries, int rows) {
  constexpr int kSquare = 64;
  return rows <= kSquare ? static_cast<size_t>(rows) * static_cast<size_t>(rows) : std::bit_ceil(entries);
}

}  // namespace tnd::gpu
