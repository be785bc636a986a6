// Internals of attention: the data that the driver (attention.cpp) passes to the kernels of an instruction set. The
// vector code is written once over a vector type (attention_vector.h).
//
// A work item is a block of rows x one kv head x a range of segments. With G query heads per kv head, its rows * G
// queries share every K and V vector. K tiles are transposed, so a lane is a key; V rows are not, so a lane is a
// dimension. Both products are broadcast-fma kernels of NQ queries x NV vectors in registers. Cached halves and blocks
// are converted to f32 once per work item into a panel that stays in L1 (a single query group converts in registers
// instead, except for keys in blocks or BF16 and values of the rarer types).
// Bound: the fma units in prefill (2 per cycle), memory in decode.
#pragma once

#include <type_traits>

#include "core/fp.h"
#include "cpu/attention.h"

namespace tnd::cpu {

constexpr int kAttnSegment = 256;  // positions per segment: part of the numeric contract
constexpr int kAttnQueries = 96;   // most queries (rows x heads) of a block, one row at least
constexpr int kAttnMaxDim = 512;
constexpr int kAttnScoreStride = kAttnSegment + 16;  // floats; the pad keeps rows off one cache set

static_assert(kAttnQueries >= kAttentionMaxGroup);
static_assert(kAttnSegment % kKvPage == 0);

// Rows of a block for G query heads per kv head.
inline int attention_block_rows(int g) {
  return kAttnQueries / g;
}

struct AttentionItem {
  const AttentionShape* shape;
  const AttentionGroup* group;
  int32_t row_begin, row_end;
  int32_t kv_head;
  int32_t segment_begin, segment_end;
  // Null: the item covers all segments of its rows and writes the outputs. Else
  // [queries][partial_segments][dim + 2] of the block: m, l, o of every segment (l = -1:
  // nothing visible), merged later.
  float* partial;
  int32_t segment_base;  // segment that comes first in partial
  int32_t partial_segments;
  float* scratch;  // attention_scratch_bytes of the thread
};

struct AttentionKernels {
  void (*block)(const AttentionItem&);
  // Merges the partials of query index q (row-major rows x G) of the block and writes its output.
  void (*merge)(const AttentionItem&, int32_t query);
  // y[i] = half of x[i], round to nearest even; n a multiple of 16.
  void (*to_half)(const float* x, uint16_t* y, int n);
};
// Halves at the start of a block: its scale and, where the type has one, its minimum.
constexpr int kv_block_halves(KvType t) {
  return kv_has_minimum(t) ? 2 : 1;
}
// Code of element d of a block; `bytes` are those after its halves, `step` apart. Inlined everywhere: the files of an
// instruction set must not share functions.
[[gnu::always_inline]] inline int block_code(KvType t, const uint8_t* bytes, int d, int step) {
  if (t == KvType::kQ8_0) return static_cast<int8_t>(bytes[d * step]);
  if (t == KvType::kTQ3_0) {
    return (bytes[d / 4 * step] >> d % 4 * 2 & 3) | (bytes[(8 + d / 8) * step] >> d % 8 & 1) << 2;
  }
  int fifth = 0;
  if (kv_has_fifth_bits(t)) {
    fifth = (bytes[d / 8 * step] >> d % 8 & 1) << 4;
    bytes += 4 * step;
  }
  const int byte = bytes[d % 16 * step];
  const int code = (d < 16 ? byte & 15 : byte >> 4) | fifth;
  return kv_has_minimum(t) ? code : code - (kv_has_fifth_bits(t) ? 16 : 8);
}
[[gnu::always_inline]] inline float block_value(KvType t, int code, uint16_t scale, uint16_t minimum) {
  if (t == KvType::kTQ3_0) return tq3_value(code) * f16_to_f32(scale);
  const float product = static_cast<float>(code) * f16_to_f32(scale);
  return kv_has_minimum(t) ? product + f16_to_f32(minimum) : product;
}
// Element d of a block in portable form, and of the block of position `lane` of a tile.
[[gnu::always_inline]] inline float block_element(KvType t, const uint8_t* block, int d) {
  const int halves = kv_block_halves(t);
  return block_value(t, block_code(t, block + 2 * halves, d, 1), load_u16(block), load_u16(block + 2));
}
[[gnu::always_inline]] inline float tile_element(KvType t, const uint8_t* block, int lane, int d) {
  const int halves = kv_block_halves(t);
  return block_value(t, block_code(t, block + 32 * halves + lane, d, 16), load_u16(block + 2 * lane),
                     load_u16(block + 32 + 2 * lane));
}
// The table of the instruction set in use; nullptr = scalar.
const AttentionKernels* attention_kernels();
extern const AttentionKernels kAttentionAvx2;
extern const AttentionKernels kAttentionAvx512;

// Scratch of a thread, in floats: queries, scores, running outputs, panel, gathered tile, running M and L.
struct AttentionScratchLayout {
  size_t q, scores, out, panel, tile, ml, total;
  explicit AttentionScratchLayout(int dim) {
    constexpr int queries = kAttnQueries;
    q = 0;
    scores = q + size_t(queries) * dim;
    out = scores + size_t(queries) * kAttnScoreStride;
    panel = out + size_t(queries) * dim;
    const size_t k_panel = size_t(64) * dim;           // 4 tiles
    const size_t v_panel = size_t(kAttnSegment) * 64;  // 64 dimensions
    tile = panel + (k_panel > v_panel ? k_panel : v_panel);
    ml = tile + size_t(16) * dim;
    total = (ml + size_t(4) * queries + 15) & ~size_t(15);
  }
};

}  // namespace tnd::cpu
