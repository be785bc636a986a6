// Products for 1 to 32 rows where blocks form clusters (Hopper): the arithmetic of matmul_rows.cu, arranged so that a
// processor reads activations once.
//
// A cluster is four blocks, one a processor. It takes a run of units of 16 outputs, and each of its blocks multiplies
// one of the contract's four lanes of super-blocks: a quarter of the activations, which stays in shared memory for the
// whole launch. A team, one warp for each lane, multiplies a unit: team t takes units t, t + teams, … of the run. Its
// warps work independently. Super-blocks come through the warp's own ring by bulk copies, which are in flight before
// the inputs of the launch are ready. A warp sends its sums of a unit to the others of its team. Each adds the four
// lanes of a quarter of the columns one unit later, so that no warp waits for another.
//
// Bytes: weights once, activations once a processor (matmul_rows.cu reads them once a unit, from the second-level
// cache). Runs are cut at units, by bytes, so even few units share the card evenly. A run holds weights of one form of
// activations: otherwise the few outputs of DeltaNet's alpha and beta would make every block fetch a second form and
// size its stages for it.
//
// Products of many outputs for more than eight rows take clusters of two blocks (SHARE), each with two lanes: twice as
// many runs and half as many teams, so that one unit more for a team is a smaller share of the whole. Units beyond
// those that all teams have equally would still keep a few warps busy while the rest of the processor idles. In these
// clusters they are multiplied in parts, by several teams: the first part before its team's own units, the second after
// its team's first own unit, and so on. The sums that a part continues are thus ready when it begins.
#include <algorithm>

#include "gpu/matmul/matmul_accumulate.h"
#include "gpu/matmul/matmul_jobs.h"
#include "gpu/runtime/runtime_cluster.h"

namespace tnd::gpu {
namespace {

constexpr int kLanes = 4;
constexpr int kOuts = 16;
constexpr int kMaxStages = 4;
constexpr int kStagesBeforeInputs = 3;  // copies are served in order, and inputs must not wait for the whole ring
constexpr int kMaxSupers = 32;          // of a block: k up to 32768 in clusters of four
constexpr int kMaxClusters = 72;
constexpr int kWarps = 16;
constexpr int kFewWarps = 12;     // of products with few units, which get more registers that way
constexpr int kFewestWarps = 8;   // for products where more leave no room for two stages
constexpr int kWideOuts = 10000;  // from this many outputs on, clusters are of two
// Shared memory that a block leaves free, so that blocks of the small kernel after it find room beside it.
constexpr int kLeftFree = 4096;

// The values that clusters which read one form of activations share.
struct LanesForm {
  int32_t stages = 0;   // of a ring
  int32_t slot = 0;     // bytes of a stage
  int32_t shift = 0;    // of lane 1's stages, in bytes (slot_bytes)
  int32_t teams = 0;    // most teams with units
  int32_t sets = 1;     // of places for sums of a warp: 2 if it takes more than one unit
  int32_t divided = 0;  // most units of a run that are multiplied in parts
  // Which form. Kernels for one form read it from here, too: from constant addresses compilers would compute the others
  // again for every super-block instead of keeping them.
  uint32_t form = 0;
};
constexpr uint32_t kForms[2] = {kFormQ256, kFormQ32};
constexpr uint32_t kBothForms = kFormQ256 | kFormQ32;

// Units of a cluster.
struct LanesRun {
  int32_t first = 0;
  int16_t each = 0;   // units that every team has at least
  int16_t parts = 0;  // of each unit beyond those; 0: one team takes it whole
};

struct LanesArgs {
  MatmulJobs jobs;                  // those of kForms[0] first; MatmulJob::blocks is the bytes of a super-block
  LanesForm forms[2];               // as kForms; the first one if there is one only
  int32_t second = 0;               // first cluster that reads the second form
  LanesRun runs[kMaxClusters + 1];  // of each cluster, and where the next one would begin
};

// Barriers at the start of shared memory.
template <int WARPS>
struct LanesBarriers {
  Barrier ring[WARPS][kMaxStages];
  Barrier sums[WARPS][2];
  Barrier handed[WARPS];  // sums of a part of a unit, by the warp that has multiplied it
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
// Sums of a part of a unit: [cols / 8][lane][4].
constexpr int part_bytes(int cols) {
  return cols / 8 * TND_WARP * 4 * static_cast<int>(sizeof(float));
}
// Sums of a unit that one warp adds: [4 lanes][cols / 8][8 outputs][2 outputs 8 apart][2 columns].
constexpr int sum_bytes(int cols) {
  return kLanes * cols / 8 * kOuts * 2 * static_cast<int>(sizeof(float));
}

// Bytes of a stage for super-blocks of so many bytes. Copies are fastest between addresses with the same offset in a
// line of 128 bytes (a plain token's products took 11 % longer where none had it). So a stage begins with a line, plus
// the shift that the super-blocks of a lane have: lane * super % 128 where k is a multiple of 1024.
constexpr int slot_bytes(int super) {
  int shift = 0;
  for (int lane = 0; lane < kLanes; ++lane) shift = std::max(shift, lane * super % 128);
  return round_up(static_cast<uint64_t>(super + shift));
}

// First unit of run i of n of jobs [begin, end), which begins after i / n of their bytes.
constexpr int first_unit(const MatmulJobs& jobs, int begin, int end, int i, int n) {
  const int64_t bytes = weight_bytes_of(jobs, begin, end);
  int64_t from = bytes / n * i + bytes % n * i / n;
  int unit = 0;
  for (int j = 0; j < end; ++j) {
    const int64_t each = jobs.jobs[j].unit_bytes;
    const int64_t all = j < begin ? 0 : jobs.jobs[j].units * each;
    if (j >= begin && from < all) return unit + static_cast<int>((from + each - 1) / each);
    from -= all;
    unit += jobs.jobs[j].units;
  }
  return unit;
}

// A unit of all jobs: its job, and its index in the job.
struct Unit {
  int job, of_job;
};
// advance goes to the unit that many units on.
[[maybe_unused]] TND_DEVICE void advance(const MatmulJobs& jobs, int units, Unit* u) {
  u->of_job += units;
  while (u->of_job >= jobs.jobs[u->job].units) u->of_job -= jobs.jobs[u->job++].units;
}

// A warp of a block: its places in shared memory and its progress. Warp w is of team w / SHARE.
struct LanesWarp {
  Barrier* ring_full;      // [stages]
  Barrier* sums_full;      // [2], of all warps
  Barrier* inputs_full;    // of its lane
  uint8_t* sums;           // places of all warps
  uint8_t* inputs[2];      // as kForms; of its lane
  uint8_t* ring;           // of this warp
  int slot, stages, sets;  // MIXED: as LanesForm
  int lane, team, teams;
  int k_lane;  // lane of the contract
  int supers;  // of that lane in a unit

  // Its part of a unit that the teams cannot share evenly: how many own units come first (-1 = no part), the
  // unit, super-blocks.
  int part;
  Unit divided;
  int part_first, part_supers;

  // The next super-block to fetch; its unit, or the next own one; how many units (a part counts as one) have been
  // fetched, and how many are left, including this one; how many super-blocks of it are left; the bytes of each.
  const uint8_t* from;
  Unit unit;
  int fetched, units, left, bytes;
  // The next stage to take.
  int stage;
  uint32_t phase;
  int seen;  // super-blocks whose activations have arrived
  int done;  // units whose sums it has sent
};

// For a launch of one form they are constants. For a cluster's form they take registers, and the widest tiles have
// none left.
template <bool MIXED>
TND_DEVICE int slot_of(const LanesWarp& w, const LanesArgs& args) {
  return MIXED ? w.slot : args.forms[0].slot;
}
template <bool MIXED>
TND_DEVICE int stages_of(const LanesWarp& w, const LanesArgs& args) {
  return MIXED ? w.stages : args.forms[0].stages;
}
template <bool MIXED>
TND_DEVICE int sets_of(const LanesWarp& w, const LanesArgs& args) {
  return MIXED ? w.sets : args.forms[0].sets;
}

// is_part says whether the n-th unit that the warp multiplies is its part of one.
[[maybe_unused]] TND_DEVICE bool is_part(const LanesWarp& w, int n) {
  return w.part >= 0 && n == w.part;
}

[[maybe_unused]] TND_DEVICE void fetch_from_unit(LanesWarp& w, const LanesArgs& args) {
  const bool part = is_part(w, w.fetched);
  const Unit unit = part ? w.divided : w.unit;
  const MatmulJob& job = args.jobs.jobs[unit.job];
  w.bytes = job.blocks;
  w.from = job.data + unit.of_job * job.unit_bytes + (w.k_lane + (part ? w.part_first * kLanes : 0)) * w.bytes;
  w.left = part ? w.part_supers : w.supers;
}
// to_unit advances *own to the n-th unit that the warp multiplies, unless that is its part of one.
[[maybe_unused]] TND_DEVICE void to_unit(const LanesWarp& w, const LanesArgs& args, int n, Unit* own) {
  if (!is_part(w, n) && (n != 1 || w.part != 0)) advance(args.jobs, w.teams, own);
}

// fetch starts the copy of the next super-block into a stage that is no longer read.
template <bool MIXED>
TND_DEVICE void fetch(LanesWarp& w, const LanesArgs& args, int stage) {
  if (w.units == 0) return;
  if (one_of_warp()) {
    barrier_expect(w.ring_full + stage, static_cast<uint32_t>(w.bytes));
    bulk_copy_once(w.ring + stage * slot_of<MIXED>(w, args), w.from, static_cast<uint32_t>(w.bytes),
                   w.ring_full + stage);
  }
  w.from += kLanes * w.bytes;
  if (--w.left != 0 || --w.units == 0) return;
  to_unit(w, args, ++w.fetched, &w.unit);
  fetch_from_unit(w, args);
}

// Starts the copies of the lane's activations, super-block i by team i % teams.
template <int COLS>
TND_DEVICE void fetch_inputs(const LanesWarp& w, const ActsView& acts, uint32_t form) {
  const int64_t stride = acts.row_stride;
  for (int i = w.team; i < w.supers; i += w.teams) {
    const int64_t s = w.k_lane + i * kLanes;
    Barrier* const full = w.inputs_full + i;
    barrier_expect(full, static_cast<uint32_t>(input_bytes(form, COLS)));
    if (form == kFormQ256) {
      uint8_t* const to = w.inputs[0] + i * input_pitch(kFormQ256, COLS);
      for (int p = 0; p < 4; ++p) bulk_copy(to + p * COLS * 64, acts.q256 + (s * 4 + p) * stride * 64, COLS * 64, full);
      bulk_copy(to + COLS * 256, acts.sum16 + s * stride * 16, COLS * 32, full);
      bulk_copy(to + COLS * 288, acts.scale256 + s * stride, COLS * 4, full);
    } else {
      uint8_t* const to = w.inputs[1] + i * input_pitch(kFormQ32, COLS);
      for (int p = 0; p < 4; ++p) bulk_copy(to + p * COLS * 64, acts.q32 + (s * 4 + p) * stride * 64, COLS * 64, full);
      for (int j = 0; j < 8; ++j) {
        bulk_copy(to + COLS * (256 + 4 * j), acts.sum32 + (s * 8 + j) * stride, COLS * 4, full);
        bulk_copy(to + COLS * (288 + 4 * j), acts.scale32 + (s * 8 + j) * stride, COLS * 4, full);
      }
    }
  }
}

// multiply adds super-blocks [begin, end) of a unit.
template <template <class> class TYPE, int COLS, bool MIXED>
TND_DEVICE void multiply(LanesWarp& w, const LanesArgs& args, int begin, int end, float (&acc)[1][COLS / 8][4]) {
  using U = MmaUnit;
  using T = TYPE<U>;
  const uint8_t* x = w.inputs[T::kForm == kFormQ256 ? 0 : 1] + begin * input_pitch(T::kForm, COLS);
  for (int i = begin; i < end; ++i, x += input_pitch(T::kForm, COLS)) {
    if (i >= w.seen) barrier_wait(w.inputs_full + i, 0);
    barrier_wait(w.ring_full + w.stage, w.phase);
    const SuperInput in = {reinterpret_cast<const int8_t*>(x),
                           reinterpret_cast<const uint16_t*>(x + COLS * 256),
                           reinterpret_cast<const float*>(x + COLS * 288),
                           reinterpret_cast<const float*>(x + COLS * 256),
                           COLS,
                           COLS - 1};
    accumulate<U, TYPE, 1, COLS / U::kCols>(w.ring + w.stage * slot_of<MIXED>(w, args), 0, in, w.lane, acc);
    sync_warp();  // all lanes have read the stage
    fetch<MIXED>(w, args, w.stage);
    if (++w.stage == stages_of<MIXED>(w, args)) {
      w.stage = 0;
      w.phase ^= 1;
    }
  }
  w.seen = w.seen > end ? w.seen : end;
}

// send sends the warp's sums of a unit. The team's warp of lane q adds columns c with c / 2 % 4 = q; those of one
// thread all go to the same warp. Places for sums alternate between units: a warp that sends the sums of unit i + 2 has
// finished i + 1, so all warps had sent i + 1, and before that had finished i.
template <int COLS, int SHARE, bool MIXED>
TND_DEVICE void send(const LanesWarp& w, const LanesArgs& args, const float (&acc)[1][COLS / 8][4]) {
  constexpr int kTileBytes = kOuts * 2 * static_cast<int>(sizeof(float));
  const int sets = sets_of<MIXED>(w, args), set = sets == 2 ? w.done % 2 : 0;
  if (w.lane == 0) barrier_expect(w.sums_full + (w.team * SHARE + w.k_lane % SHARE) * 2 + set, sum_bytes(COLS));
  const int quarter = w.lane % 4, warp = w.team * SHARE + quarter % SHARE;
  uint8_t* const place = w.sums + (warp * sets + set) * sum_bytes(COLS);
  const BlockMemory to = of_block(place + w.k_lane * (COLS / 8) * kTileBytes + w.lane / 4 * 16, quarter / SHARE);
  const BlockMemory there = of_block(w.sums_full + warp * 2 + set, quarter / SHARE);
#pragma unroll
  for (int tile = 0; tile < COLS / 8; ++tile) send_quad(to, tile * kTileBytes, acc[0][tile], there);
}

// finish adds the lanes of the warp's quarter of a unit's columns. number: index among the units that the warp
// has multiplied.
template <int COLS, int SHARE, bool MIXED>
TND_DEVICE void finish(const LanesWarp& w, const LanesArgs& args, const Unit& unit, int number) {
  constexpr int kTiles = COLS / 8;
  const MatmulJob& job = args.jobs.jobs[unit.job];
  const int out = unit.of_job * kOuts + w.lane % kOuts, row = w.k_lane * 2 + w.lane / kOuts;
  const int64_t at = row * job.y_stride + out;
  const float* const from = job.residual;
  const int rows = rows_in_use(args.jobs.live, args.jobs.rows);
  bool exists[kTiles];
  float residual[kTiles] = {};
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    exists[tile] = row + tile * 8 < rows && out < job.n;
    if (from != nullptr && exists[tile]) residual[tile] = from[at + tile * 8 * job.y_stride];
  }
  const int sets = sets_of<MIXED>(w, args), set = sets == 2 ? number % 2 : 0;
  const int warp = w.team * SHARE + w.k_lane % SHARE;
  const uint8_t* const sums = w.sums + (warp * sets + set) * sum_bytes(COLS);
  barrier_wait(w.sums_full + warp * 2 + set, static_cast<uint32_t>(sets == 2 ? number / 2 % 2 : 0));
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

// SPARE: the registers of that many more warps stay free. Blocks of the small kernel after this one then find room
// beside it and wait there for its end (docs/speed-log/gpu-steps.md, "When launches really run").
// FORMS: of activations. A cluster reads one.
template <int COLS, int WARPS, int SPARE, int SHARE, uint32_t FORMS>
__global__ void __launch_bounds__((WARPS + SPARE) * TND_WARP, 1) matmul_lanes_kernel(const LanesArgs args) {
  if constexpr (kHasClusters) {
    constexpr bool kMixed = FORMS == kBothForms;
    let_next_start();
    TND_DYNAMIC_SHARED(uint8_t, dynamic);
    // Q6_K's loop otherwise recomputes the place of shared memory for every super-block. Loops of clusters of two
    // keep it and have no register for it.
    uint8_t* const smem = WARPS == kFewWarps ? kept_place(dynamic) : dynamic;
    using Barriers = LanesBarriers<WARPS>;
    Barriers* const barriers = reinterpret_cast<Barriers*>(smem);
    const int cluster = static_cast<int>(blockIdx.x) / (kLanes / SHARE);
    const LanesRun run = args.runs[cluster];
    const int units = args.runs[cluster + 1].first - run.first;
    const int supers = static_cast<int>(super_blocks(args.jobs.k));
    const int most = (supers + kLanes - 1) / kLanes;
    const int warp = one_warp_id(), warps = static_cast<int>(blockDim.x) / TND_WARP, own_lane = warp % SHARE;
    LanesWarp w = {};
    w.lane = static_cast<int>(lane_id());
    w.team = warp / SHARE;
    w.teams = warps / SHARE;
    w.k_lane = cluster_rank() * SHARE + own_lane;
    w.supers = (supers - w.k_lane + kLanes - 1) / kLanes;
    w.ring_full = barriers->ring[warp];
    w.sums_full = barriers->sums[0];
    w.inputs_full = barriers->inputs + own_lane * most;
    w.sums = smem + round_up(sizeof(Barriers));
    const int second = kMixed && cluster >= args.second ? 1 : 0;
    const LanesForm& form = args.forms[second];
    if constexpr (kMixed) w.slot = form.slot, w.stages = form.stages, w.sets = form.sets;
    uint8_t* next = w.sums + form.teams * SHARE * form.sets * sum_bytes(COLS);
    uint8_t* handed = next + (own_lane * TND_WARP + w.lane) * 4 * static_cast<int>(sizeof(float));
    next += form.divided * SHARE * part_bytes(COLS);
    w.inputs[0] = next + own_lane * most * input_pitch(form.form & kFormQ256, COLS);
    next += SHARE * most * input_pitch(form.form & kFormQ256, COLS);
    w.inputs[1] = next + own_lane * most * input_pitch(form.form & kFormQ32, COLS);
    next += SHARE * most * input_pitch(form.form & kFormQ32, COLS);
    w.ring = next + warp * form.stages * form.slot + w.k_lane * form.shift % 128;

    if (one_of_warp()) {
      for (int i = 0; i < form.stages; ++i) barrier_init(w.ring_full + i, 1);
      for (int i = 0; i < 2; ++i) barrier_init(w.sums_full + warp * 2 + i, 1);
      barrier_init(barriers->handed + warp, 1);
      for (int i = w.team; i < w.supers; i += w.teams) barrier_init(w.inputs_full + i, 1);
      barriers_made();
    }
    sync_warp();
    cluster_arrive_relaxed();
    const int left_over = units - run.each * w.teams;
    w.part = -1;
    w.units = run.each + (w.team < left_over ? 1 : 0);
    if (SHARE == 2 && run.parts != 0) {
      const int division = w.team / run.parts;  // which of the units that teams cannot share evenly
      const bool has_part = division < left_over;
      w.units = run.each + (has_part ? 1 : 0);
      if (has_part) {
        w.part = w.team - division * run.parts;
        w.part_first = w.supers * w.part / run.parts;
        w.part_supers = w.supers * (w.part + 1) / run.parts - w.part_first;
        advance(args.jobs, run.first + run.each * w.teams + division, &w.divided);
        handed += division * SHARE * part_bytes(COLS);
      }
    }
    if (w.units != 0) {
      advance(args.jobs, run.first + w.team, &w.unit);
      fetch_from_unit(w, args);
    }
    const int mine = w.units;
    Unit own = w.unit, before = w.unit;
    for (int i = 0; i < form.stages && i < kStagesBeforeInputs; ++i) fetch<kMixed>(w, args, i);
    __syncthreads();
    wait_for_previous();
    if (units > 0 && one_of_warp()) fetch_inputs<COLS>(w, args.jobs.acts, form.form);
    sync_warp();
    for (int i = kStagesBeforeInputs; i < form.stages; ++i) fetch<kMixed>(w, args, i);

    // True until the other blocks' barriers exist. w.done == 0 is equivalent, but with that condition the loops of the
    // widest tiles read spilled values.
    bool alone = true;
    for (int n = 0; n < mine; ++n) {
      float acc[1][COLS / 8][4] = {};
      if (n != 0) to_unit(w, args, n, &own);
      const bool part = is_part(w, n);
      const Unit unit = part ? w.divided : own;
      const int first = part ? w.part_first : 0, end = part ? first + w.part_supers : w.supers;
      float4* const sums = reinterpret_cast<float4*>(handed);
      if (part && first != 0) {
        barrier_wait(barriers->handed + warp - SHARE, 0);
#pragma unroll
        for (int tile = 0; tile < COLS / 8; ++tile) {
          const float4 v = sums[tile * SHARE * TND_WARP];
          acc[0][tile][0] = v.x, acc[0][tile][1] = v.y, acc[0][tile][2] = v.z, acc[0][tile][3] = v.w;
        }
      }
      const DType type = args.jobs.jobs[unit.job].type;
      if (FORMS == kFormQ32 || (kMixed && type == DType::kQ8_0)) {
        multiply<TypeQ80, COLS, kMixed>(w, args, first, end, acc);
      } else if constexpr (FORMS != kFormQ32) {
        if (type == DType::kQ4_K) {
          multiply<TypeQ4KInPlace, COLS, kMixed>(w, args, first, end, acc);
        } else if (type == DType::kQ5_K) {
          multiply<TypeQ5K, COLS, kMixed>(w, args, first, end, acc);
        } else {
          multiply<TypeQ6K, COLS, kMixed>(w, args, first, end, acc);
        }
      }
      if (part && end != w.supers) {
#pragma unroll
        for (int tile = 0; tile < COLS / 8; ++tile) {
          sums[tile * SHARE * TND_WARP] =
              make_float4(acc[0][tile][0], acc[0][tile][1], acc[0][tile][2], acc[0][tile][3]);
        }
        sync_warp();
        if (w.lane == 0) barrier_arrive(barriers->handed + warp);
        continue;
      }
      // The sums of the previous unit have arrived meanwhile.
      if (alone) {
        cluster_wait();
        alone = false;
      } else {
        finish<COLS, SHARE, kMixed>(w, args, before, w.done - 1);
      }
      send<COLS, SHARE, kMixed>(w, args, acc);
      before = unit;
      ++w.done;
    }
    if (w.done != 0) finish<COLS, SHARE, kMixed>(w, args, before, w.done - 1);
  }
}

// choose_teams returns how many of at most `most` teams should share a run of units. It gives the busiest quarter of a
// processor, which runs every fourth warp, as few units as possible, and then a team. share:
// warps of a team in a block.
int choose_teams(int units, int most, int share) {
  int best = 1, least_busy = units, least_rounds = units;
  for (int teams = std::min(units, most); teams > 1; --teams) {
    int busy = 0;
    for (int i = 0; i < units; ++i) busy += i % teams % (kLanes / share) == 0 ? 1 : 0;
    const int rounds = (units + teams - 1) / teams;
    if (busy > least_busy || (busy == least_busy && rounds > least_rounds)) continue;
    best = teams, least_busy = busy, least_rounds = rounds;
  }
  return best;
}

// by_form writes the jobs to args in the order of their forms, with the sizes of their stages, and returns how many are
// of the first form.
int by_form(const MatmulJobs& jobs, LanesArgs* args) {
  args->jobs = jobs;
  int placed = 0, by_first = 0;
  for (int f = 0; f < 2; ++f) {
    LanesForm& form = args->forms[f];
    form.form = kForms[f];
    for (int i = 0; i < jobs.count; ++i) {
      if (act_form(jobs.jobs[i].type) != kForms[f]) continue;
      MatmulJob& job = args->jobs.jobs[placed++] = jobs.jobs[i];
      job.blocks = super_bytes(job.type);
      form.shift = form.slot == 0 || form.shift == job.blocks % 128 ? job.blocks % 128 : 0;
      form.slot = std::max(form.slot, slot_bytes(job.blocks));
    }
    if (f == 0) by_first = placed;
  }
  return by_first;
}

// cut_runs shares the units among the clusters; each form gets clusters by its bytes.
void cut_runs(int by_first, int clusters, LanesArgs* args) {
  MatmulJobs& jobs = args->jobs;
  const double share =
      static_cast<double>(weight_bytes_of(jobs, 0, by_first)) / static_cast<double>(weight_bytes_of(jobs));
  args->second = by_first == 0            ? 0
                 : by_first == jobs.count ? clusters
                                          : std::clamp(static_cast<int>(clusters * share + 0.5), 1, clusters - 1);
  for (int i = 0; i < clusters; ++i) {
    args->runs[i].first = i < args->second
                              ? first_unit(jobs, 0, by_first, i, args->second)
                              : first_unit(jobs, by_first, jobs.count, i - args->second, clusters - args->second);
  }
  args->runs[clusters].first = first_unit(jobs, 0, jobs.count, 1, 1);
}

// divide_rests decides how the units that teams cannot share evenly are multiplied: in at most `most` parts, where
// every team also has own units. A team's part comes after as many own units as there are parts before it.
void divide_rests(int clusters, int teams, int most, LanesArgs* args) {
  args->forms[0].divided = args->forms[1].divided = 0;
  for (int i = 0; i < clusters; ++i) {
    LanesRun& run = args->runs[i];
    const int units = args->runs[i + 1].first - run.first, each = units / teams, rest = units % teams;
    const int parts = each == 0 || rest == 0 ? 0 : std::min({each + 1, teams / rest, most});
    run.each = static_cast<int16_t>(each);
    run.parts = static_cast<int16_t>(parts > 1 ? parts : 0);
    int32_t& divided = args->forms[i < args->second ? 0 : 1].divided;
    if (parts > 1) divided = std::max(divided, rest);
  }
}

// take_shared lays out the stages of clusters in `room` bytes of shared memory for a block of `teams` teams. It returns
// the bytes used, 0 if there is too little room. longest: units of the longest run of each form; barriers: bytes;
// supers: super-blocks whose activations a block holds.
template <int COLS, int SHARE>
int take_shared(int room, int teams, const int (&longest)[2], int barriers, int supers, LanesArgs* args) {
  int shared = 0;
  for (int f = 0; f < 2; ++f) {
    if (longest[f] == 0) continue;
    LanesForm& form = args->forms[f];
    form.teams = std::min(teams, longest[f]);
    form.sets = longest[f] > teams ? 2 : 1;
    const int fixed = barriers + form.teams * SHARE * form.sets * sum_bytes(COLS) +
                      form.divided * SHARE * part_bytes(COLS) + supers * input_pitch(kForms[f], COLS);
    const int stage = form.teams * SHARE * form.slot;
    form.stages = std::min(kMaxStages, (room - fixed) / stage);
    if (form.stages < 2) return 0;
    shared = std::max(shared, fixed + form.stages * stage);
  }
  return shared;
}

template <int COLS, int WARPS, int SPARE, int SHARE, uint32_t FORMS>
bool launch_columns(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  const int supers = static_cast<int>(super_blocks(jobs.k));
  const int most = (supers + kLanes - 1) / kLanes;
  if (supers < kLanes || SHARE * most > kMaxSupers) return false;
  constexpr int kBlocks = kLanes / SHARE;  // of a cluster
  const auto kernel = matmul_lanes_kernel<COLS, WARPS, SPARE, SHARE, FORMS>;
  const int clusters = clusters_at_once(kBlocks, WARPS * TND_WARP, reinterpret_cast<const void*>(kernel));
  if (clusters == 0 || clusters > kMaxClusters) return false;
  LanesArgs args;
  const int by_first = by_form(jobs, &args);
  if (FORMS == kBothForms && clusters < 2) return false;
  cut_runs(by_first, clusters, &args);
  int longest[2] = {};  // run of each form
  for (int i = 0; i < clusters; ++i) {
    int& n = longest[i < args.second ? 0 : 1];
    n = std::max(n, args.runs[i + 1].first - args.runs[i].first);
  }
  const int units = std::max(longest[0], longest[1]), room = group.shared_per_block - kLeftFree;
  if (WARPS == kFewWarps && units > kFewWarps) return false;
  int teams = WARPS / SHARE + 1, shared = 0;
  while (shared == 0) {
    if (teams * SHARE <= kFewestWarps) return false;
    teams = choose_teams(units, teams - 1, SHARE);
    for (int parts = SHARE == 2 ? supers / kLanes : 1; shared == 0 && parts > 0; parts = parts > 1 ? 1 : 0) {
      divide_rests(clusters, teams, parts, &args);
      shared =
          take_shared<COLS, SHARE>(room, teams, longest, round_up(sizeof(LanesBarriers<WARPS>)), SHARE * most, &args);
    }
  }
  if (FORMS == kFormQ32) args.forms[0] = args.forms[1];
  stream.prefer_shared(true);
  launch(stream,
         {.grid = {static_cast<unsigned>(clusters * kBlocks)},
          .block = {static_cast<unsigned>(teams * SHARE * TND_WARP)},
          .shared_bytes = static_cast<unsigned>(shared),
          .cluster = kBlocks,
          .overlap = true,
          .bytes = weight_bytes_of(jobs),
          .name = "matmul_lanes"},
         kernel, args);
  return true;
}

// Products of one form, or of both. Clusters are of two where inputs have both forms, and where products for nine rows
// or more are wide and fit. Few units with 17 to 24 rows take kFewWarps; fewer rows were not tried.
template <int COLS, int SPARE, uint32_t FORMS>
bool launch_forms(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  if constexpr (FORMS == kBothForms) {
    return launch_columns<COLS, kWarps, SPARE, 2, FORMS>(stream, group, jobs);
  } else {
    if constexpr (COLS > 8) {
      int64_t outs = 0;
      for (int i = 0; i < jobs.count; ++i) outs += jobs.jobs[i].n;
      const bool wide = group.unit == 5 || outs >= kWideOuts;
      if (wide && launch_columns<COLS, kWarps, SPARE, 2, FORMS>(stream, group, jobs)) return true;
    }
    if constexpr (COLS == 24) {
      if (launch_columns<COLS, kFewWarps, SPARE, 1, FORMS>(stream, group, jobs)) return true;
    }
    return launch_columns<COLS, kWarps, SPARE, 1, FORMS>(stream, group, jobs);
  }
}
template <int COLS, int SPARE>
bool launch_rows(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  uint32_t forms = 0;
  for (int i = 0; i < jobs.count; ++i) forms |= act_form(jobs.jobs[i].type);
  if (forms == kFormQ256) return launch_forms<COLS, SPARE, kFormQ256>(stream, group, jobs);
  if (forms == kFormQ32) return launch_forms<COLS, SPARE, kFormQ32>(stream, group, jobs);
  return launch_forms<COLS, SPARE, kBothForms>(stream, group, jobs);
}

}  // namespace

bool launch_matmul_lanes(Stream& stream, const MatmulGroup& group, const MatmulJobs& jobs) {
  if (jobs.rows <= 8) return launch_rows<8, 4>(stream, group, jobs);
  if (jobs.rows <= 16) return launch_rows<16, 4>(stream, group, jobs);
  if (jobs.rows <= 24) return launch_rows<24, 4>(stream, group, jobs);
  return jobs.rows <= 32 && launch_rows<32, 0>(stream, group, jobs);
}

}  // namespace tnd::gpu
