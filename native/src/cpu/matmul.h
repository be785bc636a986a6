// Matrix products of the CPU backend: y = W x for weights of every GGUF type the models use, 1 to thousands of rows.
//
// What it computes. W has n outputs (rows of the file's tensor) of k elements; a batch has `rows` inputs of k floats.
// Weights are repacked once at load into tiles of 16 outputs (matmul_layout.h), inputs are quantised once per batch
// into an ActBuffer that every weight with the same input shares.
//
// NUMERIC CONTRACT. The value of (row, output) is defined exactly; matmul_scalar.cpp is the definition in code, every
// other kernel and every other backend equals it bit for bit. native/NUMERICS.md gives the reasons.
//   Notation: all float operations are IEEE binary32, round to nearest even, subnormals kept; fma rounds once;
//   everything not written fma is rounded after each operation. Integer sums are exact.
//   Super-blocks. k is cut into super-blocks s of 256 elements (the last may be short when the type allows it). Lane
//   accumulators l[0..3] start at +0; super-block s is added to l[s mod 4], ascending s. y = (l0 + l1) + (l2 + l3).
//   With a residual the stored value is residual + y.
//   Activations, kind kQ256 (weights Q4_K, Q5_K, Q6_K, IQ4_XS): per 256 elements m = max|x|, a = m / 127,
//   q = round_half_even(x * (1/a)), 1/a an IEEE division. When a < 2^-126 the block is zero: a = 0, q = 0.
//   Kind kQ32 (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL): the same per 32 elements. Kind kF32 (F32, F16, BF16): x itself.
//   Q4_K, Q5_K   D = sum_j sc_j * sum n*q,  M = sum_j mn_j * sum q   (int32; j: 8 groups of 32; n: unsigned codes)
//                t = fma(-dmin, float(M), d * float(D));  acc = fma(a, t, acc)
//   Q6_K         D = sum_g sc_g * sum (n - 32)*q  (g: 16 groups of 16);     t = d * float(D);  acc = fma(a, t, acc)
//   IQ4_XS       D = sum_j (ls_j - 32) * sum T[n]*q;                        t = d * float(D);  acc = fma(a, t, acc)
//   32-blocks    per block j ascending: acc = fma(d_j * a_j, float(D_j), acc), D_j = sum c*q with the signed code c
//                (Q8_0 q, Q4_0 n-8, Q5_0 n-16, IQ4_NL T[n], Q4_1 and Q5_1 n); for Q4_1 and Q5_1 then
//                acc = fma(m_j * a_j, float(sum q), acc)
//   floats       per element ascending: acc = fma(float(w), x, acc), float(w) exact
//   float(int32) rounds to nearest even. d, dmin, m are the file's half floats, converted exactly.
// Hence the bits of a row depend on its own input and the weights only: not on the other rows of the batch, their
// number, its place, the tile, the thread count or the instruction set. Non-finite inputs give unspecified values in
// their own row, never a fault.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/status.h"
#include "core/thread_pool.h"

namespace tnd::cpu {

// A weight in tile order. The packer owns the memory of data.
struct PackedWeight {
  DType type = DType::kF32;
  uint64_t k = 0;              // inputs
  uint64_t n = 0;              // outputs
  const void* data = nullptr;  // packed_bytes(type, k, n), 64-byte aligned
  uint64_t bytes = 0;
};

// packed_bytes returns the bytes of a packed weight; n is rounded up to 16 outputs. At most 3 % more than in the file
// (Q4_K 148 bytes per 256 instead of 144) when n is a multiple of 16.
uint64_t packed_bytes(DType type, uint64_t k, uint64_t n);

// pack_weight repacks n consecutive rows of a GGUF tensor.
//   rows  [n][row_bytes(type, k)] in file order, any alignment
//   dst   packed_bytes(type, k, n) bytes, 64-byte aligned
//   pool  shares the work when not null
// Lossless: unpack_row returns the file's bytes. Fails with TND_UNIMPLEMENTED for a type that dtype_matmul refuses,
// TND_INVALID_ARGUMENT when k is not a multiple of the type's block, k or n is 0, or dst is misaligned.
Status pack_weight(DType type, const void* rows, uint64_t k, uint64_t n, void* dst, PackedWeight* out,
                   ThreadPool* pool = nullptr);

// unpack_row writes the file's bytes of one output: dst row_bytes(type, k) bytes.
void unpack_row(const PackedWeight& w, uint64_t row, void* dst);

// embed_row decodes one output of a packed weight (a token's embedding when the table is packed as the tied head):
// y [k] f32, the same bits as dequantise_row on the file's row. Blocks of 256 through the stack, no allocation.
void embed_row(const PackedWeight& w, uint64_t row, float* y);

// ActKind is the form in which a weight type reads its inputs. Values combine as a mask.
enum ActKind : uint32_t {
  kActQ256 = 1,  // int8 with a scale per 256, sums per 16 and 32
  kActQ32 = 2,   // int8 with a scale per 32, sums per 32
  kActF32 = 4,   // float32
};
using ActKinds = uint32_t;

// act_kind returns the form that weights of a type read. OR those of all weights that share an input.
ActKind act_kind(DType type);

// ActBuffer holds the inputs of one batch in the forms its weights need. It refers to memory planned by the caller:
// act_bytes bytes, 64-byte aligned, reusable for any batch of at most max_rows rows and k elements.
struct ActBuffer {
  uint64_t k = 0;      // of the batch now held; set by quantise_act
  int rows = 0;        // of the batch now held
  ActKinds kinds = 0;  // forms now held
  uint64_t max_k = 0;
  int max_rows = 0;
  ActKinds max_kinds = 0;
  void* q256 = nullptr;  // [ceil(rows/16)][ceil(k/256)] Act256 (matmul_layout.h)
  void* q32 = nullptr;   // the same of Act32
  void* f32 = nullptr;   // the same of ActF32
};

// act_bytes returns the memory of an ActBuffer; act_init lays it out in mem. (About 1.2 bytes per element for each int8
// form and 4 for f32, rows rounded up to 16.)
uint64_t act_bytes(uint64_t max_k, int max_rows, ActKinds kinds);
void act_init(ActBuffer* act, void* mem, uint64_t max_k, int max_rows, ActKinds kinds);

// quantise_act fills act with rows inputs.
//   x      f32, row r at x + r * stride (elements), 1 <= rows <= act->max_rows
//   k      elements per row, a multiple of 32 when kinds has kActQ32 and of 256 when it has kActQ256; <= act->max_k
//   kinds  forms to produce, a subset of act_init's
void quantise_act(ThreadPool& pool, const float* x, int64_t stride, int rows, uint64_t k, ActKinds kinds,
                  ActBuffer* act);

// One product of a parallel region.
struct MatmulJob {
  const PackedWeight* weight = nullptr;
  float* y = nullptr;               // out: (row r, output o) at y[r * y_stride + o]
  int64_t y_stride = 0;             // elements
  const float* residual = nullptr;  // added when not null: same indexing with residual_stride; may be y itself
  int64_t residual_stride = 0;
  uint64_t n_begin = 0;  // outputs [n_begin, n_end) only; n_end = 0 means n. Others are not touched.
  uint64_t n_end = 0;
};

// matmul computes all jobs, which share one input, in one parallel region. Every job's weight has k = act.k and an
// act_kind that act holds; 1 <= rows <= act.rows; outputs must not overlap each other or the inputs.
void matmul(ThreadPool& pool, std::span<const MatmulJob> jobs, const ActBuffer& act, int rows);

}  // namespace tnd::cpu
