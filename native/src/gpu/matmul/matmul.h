// Matrix products on the device: y = W x for weights of every type of dtype_matmul and any number of rows.
//
// NUMERIC CONTRACT. The one of cpu/matmul.h and NUMERICS.md, bit for bit, for every row count, kernel and vendor: int8
// activations, exact integer dot products, a fixed float epilogue, four lanes of super-blocks added as
// (l0 + l1) + (l2 + l3), the residual last. Tests compare with the scalar reference by memcmp. Exceptions: 16-bit float
// weights on devices with matrix instructions (ActsView::paired) and prompts (ActsView::prompt)
// have contracts of their own.
//
// Use: repack.h gives a weight its device order at load; acts_bytes/acts_init plan the input buffer; launch_prepare
// (or a kernel that fuses acts_device.h) fills it; launch_matmul multiplies it by all weights that share the input.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "gpu/runtime/runtime.h"

namespace tnd::gpu {

// ---- weights

// A weight in device order (matmul_layout.h); [n outputs, k inputs].
struct DeviceWeight {
  DType type = DType::kF32;
  int32_t k = 0, n = 0;
  const uint8_t* data = nullptr;  // device, weight_bytes(type, k, n), 256-byte aligned
  float scale = 1.0f;             // half_scale() of quantised weights, for products of panels
};

// ---- inputs

// Forms in which products read their input; values combine as a mask (core/backend.h: InputForms).
enum ActForm : uint32_t {
  kFormQ256 = 1,  // int8, scale per 256: Q4_K, Q5_K, Q6_K, IQ4_XS
  kFormQ32 = 2,   // int8, scale per 32: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL
  kFormF32 = 4,   // float32: F32
  kFormHalf = 8,  // float32, or pairs of bfloat16 (ActsView::paired, prompts): F16, BF16
};
uint32_t act_form(DType type);

// How the rows of a prompt are prepared (NUMERICS.md, "Prompts through ..."): kPairs replaces kFormHalf by pairs of
// bfloat16, for F16 and BF16; kPanels does so too and replaces kFormQ256 and kFormQ32 by halves, in the order of
// Hopper's matrix instructions.
enum class Prompt : int32_t { kNone, kPairs, kPanels };

// Inputs of a batch. Written by acts_device.h; a super-block is 256 elements, S = ceil(k / 256), R = row_stride.
// Elements beyond k in the last super-block are zero. Contents of rows beyond the batch are unspecified.
struct ActsView {
  int8_t* q256 = nullptr;     // [S][4 pairs of groups][R][64], bytes in the order of act_position()
  uint16_t* sum16 = nullptr;  // [S][R][16] halves: sums of q over 16, in the order of sum_position()
  float* scale256 = nullptr;  // [S][R]
  int8_t* q32 = nullptr;      // as q256
  float* scale32 = nullptr;   // [S][8][R]
  float* sum32 = nullptr;     // [S][8][R] sums of q over 32
  float* f32 = nullptr;       // [R][f32_stride]
  int64_t f32_stride = 0;     // elements, a multiple of 256
  int32_t row_stride = 0;     // a multiple of 64, and of 128 for batches of more
  // 1: kFormHalf is pairs as with kPairs, not float32, also for rows outside of prompts (NUMERICS.md, "16-bit float
  // weights on matrix instructions"): on every device that has_matmul_pairs().
  int32_t paired = 0;
  // The form of a prompt's rows; for more than 64 rows. Shares memory with the forms that it replaces.
  Prompt prompt = Prompt::kNone;
  uint16_t* pairs = nullptr;     // kPairs: x = hi + lo, [S * 32 steps of 8 elements][R][2 parts, pair_part()][8]
                                 // kPanels: [S * 4 panels of 64 elements][2 parts][R][64], swizzled
  uint16_t* panels = nullptr;    // [S * 4][R][64] halves times the row's scale, panel_at()
  float* row_unscale = nullptr;  // [R] powers of two that undo the row's scale
};

// has_matmul_pairs and has_matmul_panels say whether a device can multiply inputs of that kind.
bool has_matmul_pairs(const DeviceInfo& device);
bool has_matmul_panels(const DeviceInfo& device);
// prompt_inputs returns the best kind that a device has.
Prompt prompt_inputs(const DeviceInfo& device);

// acts_bytes returns the device memory of a buffer for at most max_rows rows of max_k elements in these forms;
// acts_init lays it out at mem (256-byte aligned).
uint64_t acts_bytes(int64_t max_k, int max_rows, uint32_t forms);
void acts_init(ActsView* acts, void* mem, int64_t max_k, int max_rows, uint32_t forms);

// launch_prepare quantises plain rows into acts.
struct PrepareArgs {
  const float* x = nullptr;  // device [rows, k], row stride x_stride
  int64_t x_stride = 0;      // elements, a multiple of 4; x 16-byte aligned (else it is read element by element)
  int32_t rows = 0;
  int32_t k = 0;       // any; a multiple of 32 for kFormQ32, of 256 for kFormQ256
  uint32_t forms = 0;  // to produce
  ActsView acts;
  const int32_t* live = nullptr;  // device: rows in use, nullptr = all
};
void launch_prepare(Stream& stream, const PrepareArgs& args);

// ---- products

struct MatmulProduct {
  DeviceWeight w;
  float* y = nullptr;               // device [rows, n], row stride y_stride
  const float* residual = nullptr;  // device, indexed like y, may be y; nullptr = none
  int64_t y_stride = 0;             // elements
};

inline constexpr int kMaxProducts = 8;

// Rows whose norm (norm.h) is the input of products. If x is set, products read these instead of acts, whose pairs were
// not written.
struct NormInput {
  const float* x = nullptr;         // device [rows, k]
  const int32_t* gather = nullptr;  // device [rows]: rows of x, nullptr = all in order
  const float* w = nullptr;         // device [k]
  float eps = 0;
};

// Products that share one input: every weight has the same k and a form that acts holds. Outputs do not overlap.
struct MatmulGroup {
  MatmulProduct products[kMaxProducts];
  int32_t count = 0;
  int32_t rows = 0;  // 1 or more
  // device: rows in use, 1 or more, nullptr = all. `rows` chooses the kernel; rows that are not in use are neither read
  // nor written. Not for rows of a prompt.
  const int32_t* live = nullptr;
  ActsView acts;
  // If this has pairs, the products are gate and up, of one type (F16 or BF16), n and k, and the pairs of silu(gate) *
  // up are written here instead of y. acts must be other memory. Only where matmul_fuses().
  ActsView swiglu;
  NormInput norm;
  void* scratch = nullptr;       // device, matmul_scratch_bytes(); not needed for 64 rows or fewer
  int32_t processors = 0;        // DeviceInfo::processors
  int32_t shared_per_block = 0;  // DeviceInfo::shared_per_block
  int32_t unit = 0;              // emulation: 0 = mma, 1 = wmma of gfx11, 2 = of gfx12, 3 = neither, 4 = mma and
                                 // clusters, 5 = clusters of two blocks where there are such; elsewhere the
                                 // device decides
};
void launch_matmul(Stream& stream, const MatmulGroup& group);
// matmul_fuses says whether products of 16-bit float weights can write the inputs of the next one, matmul_fuses_norm
// whether they can read rows before their norm.
bool matmul_fuses(const DeviceInfo& device, int rows, int k);
bool matmul_fuses_norm(const DeviceInfo& device, int rows, int k);
// matmul_scratch_bytes returns the most scratch that launch_matmul needs for more than 64 rows.
uint64_t matmul_scratch_bytes(int processors);

// ---- embedding

// launch_embed decodes rows of a table: y[r] = row tokens[r], the bits of dequantise_row.
struct EmbedArgs {
  DeviceWeight table;
  const int32_t* tokens = nullptr;  // device [rows], each in [0, table.n)
  int32_t rows = 0;
  float* y = nullptr;             // device [rows, k]
  int64_t y_stride = 0;           // elements
  const int32_t* live = nullptr;  // device: rows in use, nullptr = all
};
void launch_embed(Stream& stream, const EmbedArgs& args);

}  // namespace tnd::gpu
