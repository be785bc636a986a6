// Products for 1 to 32 rows where blocks form clusters (Hopper): the arithmetic of matmul_rows.cu, arranged so that
// activations come to a processor once.
//
// A cluster is four blocks, one a processor. It takes a run of units of 16 outputs, and each of its blocks multiplies
// one of the contract's four lanes of super-blocks: a quarter of the activations, which stays in shared memory for the
// whole launch. Warps work alone. Warp w takes units w, w + warps, … of the run; its super-blocks come through a ring
// of its own by bulk copies, which are under way before the inputs of the launch are ready. It sends its sums of a unit
// to the same warps of the other blocks, each of which adds the four lanes of a quarter of the columns, one unit later,
// so that nobody waits for the others.
//
// Bytes: weights once, activations once a processor (matmul_rows.cu reads them once a unit, from the second-level
// cache). A run is cut by bytes in units, so few units still share the card evenly.
#include <algorithm>

#include "gpu/matmul_accumulate.h"
#include "gpu/matmul_jobs.h"
#include "gpu/runtime_cluster.h"

namespace tnd::gpu {
namespace {

constexpr int kLanes = 4;
constexpr int kOuts = 16;
constexpr int kMaxStages = 4;
constexpr int kStagesBeforeInputs = 3;  // copies are served in turn, and inputs shall not wait for all of the ring
constexpr int kMaxSupers = 32;          // of a lane: k up to 32768
constexpr int kMaxClusters = 63;
constexpr int kFewestWarps = 8;  // that are tried where more leave no room for two stages

struct LanesArgs {
  MatmulJobs jobs;                       // MatmulJob::blocks is the bytes of a super-block
  int32_t stages = 0;                    // of a ring
  int32_t slot = 0;                      // bytes of a stage
  int32_t shift = 0;                     // of lane 1's stages, in bytes (slot_bytes)
  int32_t sets = 1;                      // of places for sums of a warp: 2 if it takes more than one unit
  uint32_t forms = 0;                    // of activations
  int32_t first[kMaxClusters + 1] = {};  // unit of each cluster's run, and the end
};

// Barriers at the start of shared memory.
template <int WARPS>
struct LanesBarriers {
  Barrier ring[WARPS][kMaxStages];
  Barrier sums[WARPS][2];
  Barrier inputs[kMaxSupers];
};
constexpr int round_up(uint64_t n) {
  return static_cast<int>((n + 127) / 128 * 128);
}

// Activations of a super-block in shared memory: codes [4][COLS][64], sums, scales, as SuperInput has them.
constexpr int input_bytes(uint32_t forms, int cols) {
  return ((forms & kFormQ256) != 0 ? cols * (256 + 32 + 4) : 0) +
         ((forms & kFormQ32) != 0 ? cols * (256 + 32 + 32) : 0);
}
constexpr int input_pitch(uint32_t forms, int cols) {
  return round_up(static_cast<uint64_t>(input_bytes(forms & kFormQ256, cols))) +
         round_up(static_cast<uint64_t>(input_bytes(forms & kFormQ32, cols)));
}
// Sums of a unit that one warp adds: [4 lanes][cols / 8][8 outputs][2 outputs 8 apart][2 columns].
constexpr int sum_bytes(int cols) {
  return kLanes * cols / 8 * kOuts * 2 * static_cast<int>(sizeof(float));
}

// Bytes of a stage for super-blocks of so many bytes. Copies are fastest between places that lie alike in a line of 128
// bytes (a plain token's products took 11 % longer where none did), so stages begin with a line but for the shift that
// the super-blocks of a lane have: lane * super % 128 where k is a multiple of 1024.
constexpr int slot_bytes(int super) {
  int shift = 0;
  for (int lane = 0; lane < kLanes; ++lane) shift = std::max(shift, lane * super % 128);
  return round_up(static_cast<uint64_t>(super + shift));
}

// First unit of run i of n: cut where the bytes are i / n of all.
constexpr int first_unit(const MatmulJobs& jobs, int i, int n) {
  int64_t bytes = 0;
  for (int j = 0; j < jobs.count; ++j) bytes += jobs.jobs[j].units * jobs.jobs[j].unit_bytes;
  int64_t from = bytes / n * i + bytes % n * i / n;
  int unit = 0;
  for (int j = 0; j < jobs.count; ++j) {
    const int64_t each = jobs.jobs[j].unit_bytes;
    const int64_t all = jobs.jobs[j].units * each;
    if (from < all) return unit + static_cast<int>((from + each - 1) / each);
    from -= all;
    unit += jobs.jobs[j].units;
  }
  return unit;
}

// A unit of all jobs: its job, and which of the job's it is.
struct Unit {
  int job, of_job;
};
// advance goes to the unit that many units on.
TND_DEVICE void advance(const MatmulJobs& jobs, int units, Unit* u) {
  u->of_job += units;
  while (u->of_job >= jobs.jobs[u->job].units) u->of_job -= jobs.jobs[u->job++].units;
}

// A warp of a block: where its things are, and how far it is.
struct LanesWarp {
  Barrier* ring_full;  // [stages]
  Barrier* sums_full;  // [2], of all warps
  Barrier* inputs_full;
  uint8_t* sums;       // places of all warps
  uint8_t* inputs[2];  // Q256, Q32
  uint8_t* ring;       // of this warp
  int lane, warp, warps;
  int k_lane;  // lane of the contract, the block's rank
  int supers;  // of that lane in a unit

  // The next super-block to fetch, its unit, how many units and how many super-blocks of the unit are left with it, and
  // the bytes of each.
  const uint8_t* from;
  Unit unit;
  int units, left, bytes;
  // The next stage to take.
  int stage;
  uint32_t phase;
  int done;  // units
};

TND_DEVICE void fetch_from_unit(LanesWarp& w, const LanesArgs& args) {
  const MatmulJob& job = args.jobs.jobs[w.unit.job];
  w.bytes = job.blocks;
  w.from = job.data + w.unit.of_job * job.unit_bytes + w.k_lane * w.bytes;
  w.left = w.supers;
}

// fetch starts the copy of the next super-block into a stage that nobody reads.
[[maybe_unused]] TND_DEVICE void fetch(LanesWarp& w, const LanesArgs& args, int stage) {
  if (w.units == 0) return;
  if (one_of_warp()) {
    barrier_expect(w.ring_full + stage, static_cast<uint32_t>(w.bytes));
    bulk_copy_once(w.ring + stage * args.slot, w.from, static_cast<uint32_t>(w.bytes), w.ring_full + stage);
  }
  w.from += kLanes * w.bytes;
  if (--w.left != 0 || --w.units == 0) return;
  advance(args.jobs, w.warps, &w.unit);
  fetch_from_unit(w, args);
}

// Starts the copies of the lane's activations, super-block i by warp i % warps.
template <int COLS>
TND_DEVICE void fetch_inputs(const LanesWarp& w, const LanesArgs& args) {
  const ActsView& acts = args.jobs.acts;
  const int64_t stride = acts.row_stride;
  for (int i = w.warp; i < w.supers; i += w.warps) {
    const int64_t s = w.k_lane + i * kLanes;
    Barrier* const full = w.inputs_full + i;
    barrier_expect(full, static_cast<uint32_t>(input_bytes(args.forms, COLS)));
    if ((args.forms & kFormQ256) != 0) {
      uint8_t* const to = w.inputs[0] + i * input_pitch(kFormQ256, COLS);
      for (int p = 0; p < 4; ++p) bulk_copy(to + p * COLS * 64, acts.q256 + (s * 4 + p) * stride * 64, COLS * 64, full);
      bulk_copy(to + COLS * 256, acts.sum16 + s * stride * 16, COLS * 32, full);
      bulk_copy(to + COLS * 288, acts.scale256 + s * stride, COLS * 4, full);
    }
    if ((args.forms & kFormQ32) != 0) {
      uint8_t* const to = w.inputs[1] + i * input_pitch(kFormQ32, COLS);
      for (int p = 0; p < 4; ++p) bulk_copy(to + p * COLS * 64, acts.q32 + (s * 4 + p) * stride * 64, COLS * 64, full);
      for (int j = 0; j < 8; ++j) {
        bulk_copy(to + COLS * (256 + 4 * j), acts.sum32 + (s * 8 + j) * stride, COLS * 4, full);
        bulk_copy(to + COLS * (288 + 4 * j), acts.scale32 + (s * 8 + j) * stride, COLS * 4, full);
      }
    }
  }
}

template <template <class> class TYPE, int COLS>
TND_DEVICE void multiply_unit(LanesWarp& w, const LanesArgs& args, float (&acc)[1][COLS / 8][4]) {
  using U = MmaUnit;
  using T = TYPE<U>;
  const uint8_t* x = w.inputs[T::kForm == kFormQ256 ? 0 : 1];
  for (int i = 0; i < w.supers; ++i, x += input_pitch(T::kForm, COLS)) {
    if (w.done == 0) barrier_wait(w.inputs_full + i, 0);
    barrier_wait(w.ring_full + w.stage, w.phase);
    const SuperInput in = {reinterpret_cast<const int8_t*>(x),
                           reinterpret_cast<const uint16_t*>(x + COLS * 256),
                           reinterpret_cast<const float*>(x + COLS * 288),
                           reinterpret_cast<const float*>(x + COLS * 256),
                           COLS,
                           COLS - 1};
    accumulate<U, TYPE, 1, COLS / U::kCols>(w.ring + w.stage * args.slot, 0, in, w.lane, acc);
    sync_warp();  // all lanes have read the stage
    fetch(w, args, w.stage);
    if (++w.stage == args.stages) {
      w.stage = 0;
      w.phase ^= 1;
    }
  }
}

// send hands the warp's sums of a unit over. Columns c with c / 2 % 4 = q are added in block q: those of a thread all
// go there. Places for sums change with every unit: whoever sends the sums of unit i + 2 has finished i + 1, so all had
// sent i + 1 and before that had finished i.
template <int COLS>
TND_DEVICE void send(const LanesWarp& w, const LanesArgs& args, const float (&acc)[1][COLS / 8][4]) {
  constexpr int kTileBytes = kOuts * 2 * static_cast<int>(sizeof(float));
  const int set = args.sets == 2 ? w.done % 2 : 0;
  Barrier* const full = w.sums_full + w.warp * 2 + set;
  if (w.lane == 0) barrier_expect(full, sum_bytes(COLS));
  uint8_t* const place = w.sums + (w.warp * args.sets + set) * sum_bytes(COLS);
  const BlockMemory to = of_block(place + w.k_lane * (COLS / 8) * kTileBytes + w.lane / 4 * 16, w.lane % 4);
  const BlockMemory there = of_block(full, w.lane % 4);
#pragma unroll
  for (int tile = 0; tile < COLS / 8; ++tile) send_quad(to, tile * kTileBytes, acc[0][tile], there);
}

// finish adds the lanes of the block's quarter of a unit's columns. number: of the units that the warp has done.
template <int COLS>
TND_DEVICE void finish(const LanesWarp& w, const LanesArgs& args, const Unit& unit, int number) {
  constexpr int kTiles = COLS / 8;
  const MatmulJob& job = args.jobs.jobs[unit.job];
  const int out = unit.of_job * kOuts + w.lane % kOuts, row = w.k_lane * 2 + w.lane / kOuts;
  const int64_t at = row * job.y_stride + out;
  const float* const from = job.residual;
  bool exists[kTiles];
  float residual[kTiles] = {};
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    exists[tile] = row + tile * 8 < args.jobs.rows && out < job.n;
    if (from != nullptr && exists[tile]) residual[tile] = from[at + tile * 8 * job.y_stride];
  }
  const int set = args.sets == 2 ? number % 2 : 0;
  const uint8_t* const sums = w.sums + (w.warp * args.sets + set) * sum_bytes(COLS);
  barrier_wait(w.sums_full + w.warp * 2 + set, static_cast<uint32_t>(args.sets == 2 ? number / 2 % 2 : 0));
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    constexpr int kPitch = kTiles * kOuts * 2;
    const float* l = reinterpret_cast<const float*>(sums) + tile * kOuts * 2 + w.lane % 8 * 4 + w.lane % kOuts / 8 * 2 +
                     w.lane / kOuts;
    float y = (l[0] + l[kPitch]) + (l[2 * kPitch] + l[3 * kPitch]);
    if (from != nullptr) y = residual[tile] + y;
    if (exists[tile]) job.y[at + tile * 8 * job.y_stride] = y;
  }
}

// SPARE: registers of so many more warps stay free. Blocks of the small kernel after this one then find room beside it
// and wait there for its end (SPEED.md, "When launches really run").
template <int COLS, int WARPS, int SPARE>
__global__ void __launch_bounds__((WARPS + SPARE) * TND_WARP, 1) matmul_lanes_kernel(const LanesArgs args) {
  if constexpr (kHasClusters) {
    let_next_start();
    TND_DYNAMIC_SHARED(uint8_t, smem);
    using Barriers = LanesBarriers<WARPS>;
    Barriers* const barriers = reinterpret_cast<Barriers*>(smem);
    const int cluster = static_cast<int>(blockIdx.x) / kLanes;
    const int begin = args.first[cluster], units = args.first[cluster + 1] - begin;
    const int supers = static_cast<int>(super_blocks(args.jobs.k));
    const int most = (supers + kLanes - 1) / kLanes;
    LanesWarp w = {};
    w.lane = static_cast<int>(lane_id());
    w.warp = one_warp_id();
    w.warps = static_cast<int>(blockDim.x) / TND_WARP;
    w.k_lane = cluster_rank();
    w.supers = (supers - w.k_lane + kLanes - 1) / kLanes;
    w.ring_full = barriers->ring[w.warp];
    w.sums_full = barriers->sums[0];
    w.inputs_full = barriers->inputs;
    w.sums = smem + round_up(sizeof(Barriers));
    w.inputs[0] = w.sums + w.warps * args.sets * sum_bytes(COLS);
    w.inputs[1] = w.inputs[0] + most * input_pitch(args.forms & kFormQ256, COLS);
    w.ring = w.inputs[1] + most * input_pitch(args.forms & kFormQ32, COLS) + w.warp * args.stages * args.slot +
             w.k_lane * args.shift % 128;

    if (one_of_warp()) {
      for (int i = 0; i < args.stages; ++i) barrier_init(w.ring_full + i, 1);
      for (int i = 0; i < 2; ++i) barrier_init(w.sums_full + w.warp * 2 + i, 1);
      for (int i = w.warp; i < w.supers; i += w.warps) barrier_init(w.inputs_full + i, 1);
      barriers_made();
    }
    sync_warp();
    cluster_arrive_relaxed();
    if (w.warp < units) {
      w.units = (units - w.warp + w.warps - 1) / w.warps;
      advance(args.jobs, begin + w.warp, &w.unit);
      fetch_from_unit(w, args);
    }
    const int mine = w.units;
    Unit unit = w.unit, before = w.unit;
    for (int i = 0; i < args.stages && i < kStagesBeforeInputs; ++i) fetch(w, args, i);
    __syncthreads();
    wait_for_previous();
    if (units > 0 && one_of_warp()) fetch_inputs<COLS>(w, args);
    sync_warp();
    for (int i = kStagesBeforeInputs; i < args.stages; ++i) fetch(w, args, i);

    while (w.done < mine) {
      float acc[1][COLS / 8][4] = {};
      switch (args.jobs.jobs[unit.job].type) {
        case DType::kQ4_K:
          multiply_unit<TypeQ4KInPlace, COLS>(w, args, acc);
          break;
        case DType::kQ5_K:
          multiply_unit<TypeQ5K, COLS>(w, args, acc);
          break;
        case DType::kQ6_K:
          multiply_unit<TypeQ6K, COLS>(w, args, acc);
          break;
        default:
          multiply_unit<TypeQ80, COLS>(w, args, acc);
      }
      // The sums of the unit before have come meanwhile. Before the first, the other blocks' barriers must exist.
      if (w.done == 0) {
        cluster_wait();
      } else {
        finish<COLS>(w, args, before, w.done - 1);
      }
      send<COLS>(w, args, acc);
      before = unit;
      if (++w.done < mine) advance(args.jobs, w.warps, &unit);
    }
    if (mine != 0) finish<COLS>(w, args, before, mine - 1);
  }
}

// choose_warps returns how many of at most `most` warps should share a run of units: the busiest quarter of a
// processor, which runs every fourth warp, gets as few units as possible, and a warp too.
int choose_warps(int units, int most) {
  int best = 1, least_busy = units, least_rounds = units;
  for (int warps = std::min(units, most); warps > 1; --warps) {
    int busy = 0;
    for (int i = 0; i < units; ++i) busy += i % warps % 4 == 0 ? 1 : 0;
    const int rounds = (units + warps - 1) / warps;
    if (busy > least_busy || (busy == least_busy && rounds > least_rounds)) continue;
    best = warps, least_busy = busy, least_rounds = rounds;
  }
  return best;
}

template <int COLS, int WARPS, int SPARE>
bool launch_columns(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  const int supers = static_cast<int>(super_blocks(jobs.k));
  const int most = (supers + kLanes - 1) / kLanes;
  if (supers < kLanes || most > kMaxSupers) return false;
  const int clusters = clusters_at_once(kLanes, WARPS * TND_WARP,
                                        reinterpret_cast<const void*>(matmul_lanes_kernel<COLS, WARPS, SPARE>));
  if (clusters == 0 || clusters > kMaxClusters) return false;
  LanesArgs args;
  args.jobs = jobs;
  for (int i = 0; i < jobs.count; ++i) {
    MatmulJob& job = args.jobs.jobs[i];
    job.blocks = super_bytes(job.type);
    args.forms |= act_form(job.type);
    args.slot = std::max(args.slot, slot_bytes(job.blocks));
    args.shift = i == 0 || args.shift == job.blocks % 128 ? job.blocks % 128 : 0;
  }
  int units = 0;  // of the longest run
  args.first[0] = 0;
  for (int i = 0; i < clusters; ++i) {
    args.first[i + 1] = first_unit(jobs, i + 1, clusters);
    units = std::max(units, args.first[i + 1] - args.first[i]);
  }
  int warps = WARPS + 1, fixed = 0;
  while (args.stages < 2) {
    if (warps <= kFewestWarps) return false;
    warps = choose_warps(units, warps - 1);
    args.sets = units > warps ? 2 : 1;
    fixed = round_up(sizeof(LanesBarriers<WARPS>)) + warps * args.sets * sum_bytes(COLS) +
            most * input_pitch(args.forms, COLS);
    args.stages = std::min(kMaxStages, (group.shared_per_block - fixed) / (warps * args.slot));
  }
  launch(stream,
         {.grid = {static_cast<unsigned>(clusters * kLanes)},
          .block = {static_cast<unsigned>(warps * TND_WARP)},
          .shared_bytes = static_cast<unsigned>(fixed + warps * args.stages * args.slot),
          .cluster = kLanes,
          .overlap = true,
          .bytes = weight_bytes_of(jobs),
          .name = "matmul_lanes"},
         matmul_lanes_kernel<COLS, WARPS, SPARE>, args);
  return true;
}

}  // namespace

bool launch_matmul_lanes(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  if (jobs.rows <= 8) return launch_columns<8, 16, 4>(stream, group, jobs);
  if (jobs.rows <= 16) return launch_columns<16, 16, 4>(stream, group, jobs);
  if (jobs.rows <= 24) return launch_columns<24, 16, 4>(stream, group, jobs);
  return jobs.rows <= 32 && launch_columns<32, 16, 0>(stream, group, jobs);
}

}  // namespace tnd::gpu
