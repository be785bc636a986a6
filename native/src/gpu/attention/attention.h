// Attention over cached keys and values: a step's plan, head norms + rotation + append (rope.h),
// attention, output gate.
//
// Two contracts, both batch invariant: a row's bits depend on its query and its visible keys by ABSOLUTE position,
// never on slots, other rows, their number, the grid or the card.
//
// Values in blocks (Q8_0, Q4_0) are code * scale rounded to half, in both: attention over them has the bits of
// attention over an F16 cache that holds those halves. Keys and values in TQ3_0 are rotated: launch_heads rotates the
// queries, and the result is rotated back before the gate.
//
// kExact: the contract of cpu/attention.h, bit for bit (scalar fma chains, segments of 256 positions). Where keys or
// values are F32 and for devices without matrix instructions of halves.
//
// kFlash: products of halves on matrix units, f32 sums. Bits are those of the card's matrix instruction.
//   e = end of what the row sees (its position + 1; for a block row the end of the block)
//   keys are taken in tiles of 64 positions from absolute multiples of 64, tiles ascending, in segments:
//     B = max(0, 64 * (e / 64 - 1)), S = 64 * max(2, ceil(e / 2048));  segments [i S, min((i+1) S, B)), then the tail
//     [B, e)
//   a segment starts fresh: m = -inf, l = 0, o = 0; per tile with visible keys
//     s = scale * (q . k) with q and k rounded to half;  m' = max(m, s); a = exp_f32(m - m'); p = exp_f32(s - m')
//     l = fma(l, a, sum p) with sum p: eight lanes by key mod 8, each ascending, folded 4, 2, 1; o = o * a + half(p) .
//     v. A p below 2^-120 may have any other value below it: its half is 0, and it does not change l, which is at least
//     1 within a segment
//   segments merge ascending: M' = max(M, m), a = exp(M - M'), b = exp(m - M'), L = fma(L, a, l*b), O = fma(O, a, o*b)
// A tree row has at most 64 keys at slots other than those of their position (deeper rows take tiles of their own):
// these lie in the tail, so all rows of a tree share the tiles before it and each row walks its own tail in order of
// depth. There are at most 32 segments at any length, of two tiles or more: enough work for every processor, and few
// partial results to write and read. Tiles in which a row sees nothing leave its sums unchanged.
//
// Before they wait for the previous launch (runtime_device.h), launches read plans, and tiles of keys and values that
// are older than the step: these were written by earlier submissions, or before the step's first launches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/backend.h"
#include "core/kv_type.h"
#include "gpu/attention/kv.h"
#include "gpu/matmul/matmul.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

inline constexpr int kAttentionTile = 64;  // positions: a page
static_assert(kAttentionTile == kKvPage);
inline constexpr int kAttentionSegments = 33;  // most segments of a row, tail included
inline constexpr int kAttentionDirect = 64;    // longest tail whose earlier tiles may be shared

// The keys that a row sees (AttentionRowPlan), in device form.
struct AttentionRow {
  int32_t slot = 0;
  int32_t first = 0, past = 0, n_tail = 0;
  int32_t tail = 0;   // index of tail[0] in AttentionStep::tails
  int32_t pages = 0;  // index of its group's pages[0] in AttentionStep::pages
};
// Rows [row, row + rows) of one group that share keys.
struct AttentionTile {
  int32_t row = 0, rows = 0;
  int32_t pages = 0;  // as AttentionRow's
  int32_t old = 0;    // keys and values of positions below this one are older than the step, in their pages
};

// AttentionStep is the plan of a step, the same for all layers. The backend makes it once a step, copies its arrays to
// the device and points AttentionArgs there.
struct AttentionStep {
  std::vector<AttentionRow> rows;  // [rows of the step]
  std::vector<int32_t> tails;
  std::vector<int32_t> pages;        // of all groups
  std::vector<AttentionTile> bulk;   // work over keys before the tails
  std::vector<AttentionTile> tail;   // work over the tails
  int bulk_rows = 0, tail_rows = 0;  // of the largest tile
  int32_t keys = 0;                  // most that a row sees
  // plan fills the arrays from the host plan; rows counts those of the step.
  void plan(const AttentionPlan& plan, int rows);
};

// Steps with so many keys are faster by attention_group.cuh, and wide ones over codes by attention_codes.cuh, than by
// the other forms: measured on an H200, where over halves both take as long at about 10,000
// (docs/speed-log/gpu-operations.md).
inline constexpr int32_t kManyKeys = 16384, kManyCodes = 8192;
inline int32_t many_keys(const KvShape& kv) {
  const bool codes = kv_quantised(static_cast<KvType>(kv.k_type)) && kv_quantised(static_cast<KvType>(kv.v_type));
  return codes ? kManyCodes : kManyKeys;
}

enum class AttentionMode { kExact, kFlash };
// attention_mode picks the contract for a cache on a device. The same for every step of an engine.
AttentionMode attention_mode(const KvShape& kv, const DeviceInfo& device);

// has_attention_wgmma says whether attention may use Hopper's wgmma (attention_wgmma.cu: trees and chains over halves,
// attention_group.cuh: prompts and long contexts): the bits are the same.
bool has_attention_wgmma(const DeviceInfo& device);

// attention_scratch_bytes returns the scratch that launch_attention needs for steps of at most max_rows rows.
uint64_t attention_scratch_bytes(AttentionMode mode, const KvShape& kv, int q_heads, int max_rows);

struct AttentionArgs {
  AttentionMode mode = AttentionMode::kExact;
  KvShape kv;
  int q_heads = 0;
  float scale = 0;
  int rows = 0;                             // of the step
  const int32_t* live = nullptr;            // device: how many are in use, nullptr = all
  KvCache cache;                            // of this layer
  const AttentionRow* row_plans = nullptr;  // device
  const int32_t* tails = nullptr;           // device
  const int32_t* pages = nullptr;           // device
  const AttentionTile* bulk = nullptr;      // device [n_bulk]
  const AttentionTile* tail = nullptr;      // device [n_tail]
  int n_bulk = 0, n_tail = 0;               // tiles; entries with rows = 0 are skipped
  int bulk_rows = 0, tail_rows = 0;         // of the largest tile, or more
  const void* q = nullptr;                  // [rows, q_heads * dim] of launch_heads: floats, kFlash: halves
  const float* gate = nullptr;          // gate of row r, head h at gate + r * gate_row + h * gate_head; nullptr = none
  int64_t gate_row = 0, gate_head = 0;  // elements
  // [rows, q_heads * dim], times sigmoid(gate); may begin where q does. Scratch when forms != 0.
  float* out = nullptr;
  ActsView acts;  // output prepared as matmul input when forms != 0
  uint32_t forms = 0;
  void* scratch = nullptr;  // 256-byte aligned
  uint64_t scratch_bytes = 0;
  int shared_per_block = 0;  // DeviceInfo::shared_per_block
  bool wgmma = false;        // has_attention_wgmma(), or not to use it
  bool many_keys = false;    // a row sees many_keys() or more
  bool codes = true;         // use attention_codes.cuh where it can be
  int processors = 0;        // DeviceInfo::processors, with wgmma
};
void launch_attention(Stream& stream, const AttentionArgs& args);
// launch_unrotate takes the rotation of values in TQ3_0 off `out` in floats, then applies the gate.
void launch_unrotate(Stream& stream, const AttentionArgs& args);

}  // namespace tnd::gpu
