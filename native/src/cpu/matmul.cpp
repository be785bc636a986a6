// Dispatch, activation buffers and the division of work of matmul.h.
#include "cpu/matmul.h"

#include <algorithm>
#include <cstring>

#include "cpu/cpu_features.h"
#include "cpu/matmul_layout.h"

namespace tnd::cpu {
namespace {

uint64_t super_blocks(uint64_t k) {
  return (k + kSuper - 1) / kSuper;
}
uint64_t panels(int rows) {
  return static_cast<uint64_t>(rows + kPanelRows - 1) / kPanelRows;
}

TileKernel tile_kernel(DType type) {
#if defined(__x86_64__)
  switch (isa()) {
    case Isa::kAvx512:
      if (TileKernel kernel = tile_kernel_avx512(type)) return kernel;
      [[fallthrough]];
    case Isa::kAvx2:
      if (TileKernel kernel = tile_kernel_avx2(type)) return kernel;
      [[fallthrough]];
    case Isa::kScalar:
      break;
  }
#endif
  return tile_kernel_scalar(type);
}

struct Quantisers {
  Quantise256 q256;
  Quantise32 q32;
};

Quantisers quantisers() {
#if defined(__x86_64__)
  if (isa() == Isa::kAvx512) return {quantise256_avx512, quantise32_avx512};
  if (isa() == Isa::kAvx2) return {quantise256_avx2, quantise32_avx2};
#endif
  return {quantise256_scalar, quantise32_scalar};
}

void quantise_row_of(const Quantisers& quantise, const float* x, int row, uint64_t k, ActKinds kinds, ActBuffer* act) {
  const uint64_t supers = super_blocks(k);
  const uint64_t first = static_cast<uint64_t>(row / kPanelRows) * supers;
  const int in_panel = row % kPanelRows;
  for (uint64_t s = 0; s < supers; ++s) {
    const float* from = x + s * kSuper;
    const uint64_t elems = std::min(kSuper, k - s * kSuper);
    if (kinds & kActQ256) quantise.q256(from, static_cast<Act256*>(act->q256) + first + s, in_panel);
    if (kinds & kActQ32) quantise.q32(from, elems, static_cast<Act32*>(act->q32) + first + s, in_panel);
    if (kinds & kActF32) {
      std::memcpy((static_cast<ActF32*>(act->f32) + first + s)->x[in_panel], from, elems * sizeof(float));
    }
  }
}

// First super-block of a panel in the form a weight reads.
const void* panel_of(const ActBuffer& act, ActKind kind, uint64_t panel) {
  const uint64_t index = panel * super_blocks(act.k);
  switch (kind) {
    case kActQ256:
      return static_cast<const Act256*>(act.q256) + index;
    case kActQ32:
      return static_cast<const Act32*>(act.q32) + index;
    case kActF32:
      return static_cast<const ActF32*>(act.f32) + index;
  }
  return nullptr;
}

// A job and the values that all its tasks share.
struct Plan {
  const MatmulJob* job;
  TileKernel kernel;
  ActKind kind;
  uint64_t tile_bytes;
  uint64_t first_tile;
  uint64_t tiles;
  uint64_t tiles_per_task;
  int tasks;  // of one row block
};

// Multiplies one tile by rows of a panel and stores what lies in the job's range.
void run_tile(const Plan& plan, const uint8_t* tile_data, const void* panel, uint64_t tile, int row, int rows,
              bool fetch) {
  const MatmulJob& job = *plan.job;
  const uint64_t k = job.weight->k;
  const uint64_t end = job.n_end != 0 ? job.n_end : job.weight->n;
  const uint64_t first = tile * kTileOuts;
  const uint64_t lo = std::max(first, job.n_begin) - first;
  const uint64_t hi = std::min(first + kTileOuts, end) - first;
  float* y = job.y + static_cast<int64_t>(row) * job.y_stride + static_cast<int64_t>(first);
  const bool whole = lo == 0 && hi == kTileOuts;
  if (whole && job.residual == nullptr) {
    plan.kernel(tile_data, panel, k, row % kPanelRows, rows, y, job.y_stride, fetch);
    return;
  }
  alignas(64) float result[kPanelRows * kTileOuts];
  plan.kernel(tile_data, panel, k, row % kPanelRows, rows, result, kTileOuts, fetch);
  const float* residual = job.residual;
  if (residual != nullptr) residual += static_cast<int64_t>(row) * job.residual_stride + static_cast<int64_t>(first);
  for (int r = 0; r < rows; ++r, y += job.y_stride) {
    const float* from = result + static_cast<uint64_t>(r) * kTileOuts;
    if (residual == nullptr) {
      std::copy(from + lo, from + hi, y + lo);
    } else if (whole) {
      for (uint64_t o = 0; o < kTileOuts; ++o) y[o] = residual[o] + from[o];
    } else {
      for (uint64_t o = lo; o < hi; ++o) y[o] = residual[o] + from[o];
    }
    if (residual != nullptr) residual += job.residual_stride;
  }
}

void run_task(const Plan& plan, const ActBuffer& act, uint64_t task, int row_begin, int row_end) {
  const uint64_t begin = plan.first_tile + task * plan.tiles_per_task;
  const uint64_t end = std::min(begin + plan.tiles_per_task, plan.first_tile + plan.tiles);
  for (int row = row_begin; row < row_end;) {
    const int rows = std::min(kPanelRows - row % kPanelRows, row_end - row);
    const void* panel = panel_of(act, plan.kind, static_cast<uint64_t>(row / kPanelRows));
    const uint8_t* tile_data = static_cast<const uint8_t*>(plan.job->weight->data) + begin * plan.tile_bytes;
    for (uint64_t tile = begin; tile < end; ++tile, tile_data += plan.tile_bytes) {
      run_tile(plan, tile_data, panel, tile, row, rows, row == row_begin);
    }
    row += rows;
  }
}

// Rows of one task. Their activations (1.2 bytes per element) should stay in L2 for all its tiles.
constexpr int kRowBlock = 128;
// Bytes of weights of one task. At one row that is about a microsecond from L3, ten times the cost of claiming the
// task; with many rows the tiles of a task stay in L1 beside a panel for all panels.
constexpr uint64_t kTaskBytes = 24 * 1024;

uint64_t tiles_per_task(uint64_t tile_bytes, uint64_t tiles, int rows, int threads) {
  uint64_t count = std::max<uint64_t>(kTaskBytes / tile_bytes, 1);
  if (rows > kPanelRows) return std::max<uint64_t>(count, 2);
  // One panel: a tile takes longer with every row, so smaller tasks, which even out the end of the region.
  count = std::max<uint64_t>(count / static_cast<uint64_t>(rows), 1);
  return std::min(count, std::max<uint64_t>(tiles / (4 * static_cast<uint64_t>(threads)), 1));
}
// Jobs of one region; q, k, v, gates and the like. More are run in several regions.
constexpr size_t kMaxJobs = 16;

}  // namespace

ActKind act_kind(DType type) {
  switch (type) {
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kIQ4_XS:
      return kActQ256;
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return kActF32;
    default:
      return kActQ32;
  }
}

uint64_t act_bytes(uint64_t max_k, int max_rows, ActKinds kinds) {
  const uint64_t blocks = panels(max_rows) * super_blocks(max_k);
  return blocks * ((kinds & kActQ256 ? sizeof(Act256) : 0) + (kinds & kActQ32 ? sizeof(Act32) : 0) +
                   (kinds & kActF32 ? sizeof(ActF32) : 0));
}

void act_init(ActBuffer* act, void* mem, uint64_t max_k, int max_rows, ActKinds kinds) {
  const uint64_t blocks = panels(max_rows) * super_blocks(max_k);
  *act = {};
  act->max_k = max_k;
  act->max_rows = max_rows;
  act->max_kinds = kinds;
  uint8_t* at = static_cast<uint8_t*>(mem);
  if (kinds & kActQ256) {
    act->q256 = at;
    at += blocks * sizeof(Act256);
  }
  if (kinds & kActQ32) {
    act->q32 = at;
    at += blocks * sizeof(Act32);
  }
  if (kinds & kActF32) act->f32 = at;
}

void quantise_act(ThreadPool& pool, const float* x, int64_t stride, int rows, uint64_t k, ActKinds kinds,
                  ActBuffer* act) {
  act->k = k;
  act->rows = rows;
  act->kinds = kinds;
  const Quantisers quantise = quantisers();
  // A row of a thousand elements takes a fraction of a microsecond, so only large batches get a parallel region.
  constexpr uint64_t kElemsPerTask = 16 * 1024;
  const int rows_per_task = static_cast<int>(std::max<uint64_t>(1, kElemsPerTask / k));
  pool.run((rows + rows_per_task - 1) / rows_per_task, [&](int task, int) {
    const int begin = task * rows_per_task;
    for (int row = begin; row < std::min(rows, begin + rows_per_task); ++row) {
      quantise_row_of(quantise, x + row * stride, row, k, kinds, act);
    }
  });
}

void matmul(ThreadPool& pool, std::span<const MatmulJob> jobs, const ActBuffer& act, int rows) {
  while (jobs.size() > kMaxJobs) {
    matmul(pool, jobs.first(kMaxJobs), act, rows);
    jobs = jobs.subspan(kMaxJobs);
  }
  Plan plans[kMaxJobs];
  int tasks = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const MatmulJob& job = jobs[i];
    const uint64_t end = job.n_end != 0 ? job.n_end : job.weight->n;
    Plan& plan = plans[i];
    plan.job = &job;
    plan.kernel = tile_kernel(job.weight->type);
    plan.kind = act_kind(job.weight->type);
    plan.tile_bytes = tile_bytes(job.weight->type, job.weight->k);
    plan.first_tile = job.n_begin / kTileOuts;
    plan.tiles = end > job.n_begin ? (end + kTileOuts - 1) / kTileOuts - plan.first_tile : 0;
    plan.tiles_per_task = tiles_per_task(plan.tile_bytes, plan.tiles, rows, pool.threads());
    plan.tasks = static_cast<int>((plan.tiles + plan.tiles_per_task - 1) / plan.tiles_per_task);
    tasks += plan.tasks;
  }
  const int row_blocks = (rows + kRowBlock - 1) / kRowBlock;
  pool.run(tasks * row_blocks, [&](int task, int) {
    const int row_begin = task / tasks * kRowBlock;
    int index = task % tasks;
    const Plan* plan = plans;
    while (index >= plan->tasks) index -= plan++->tasks;
    run_task(*plan, act, static_cast<uint64_t>(index), row_begin, std::min(rows, row_begin + kRowBlock));
  });
}

}  // namespace tnd::cpu
