// Element types of tensors as GGUF numbers them, their sizes, and exact conversion to and from float32.
#pragma once

#include <cstdint>

#include "core/status.h"

namespace tnd {

// DType holds the type ids of GGUF files. The value of an unknown id must not be cast to DType: ask dtype_known first.
enum class DType : int32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
  kMXFP4 = 39,
  kNVFP4 = 40,
};

// dtype_known says whether a GGUF type id is one of DType: its sizes are known and dequantise_row decodes it.
bool dtype_known(int32_t id);

// dtype_matmul says whether matmul can use the type as a weight (all of DType but Q2_K, Q3_K, MXFP4 and NVFP4).
bool dtype_matmul(DType type);

// dtype_name returns the usual name ("Q4_K"), a static string.
const char* dtype_name(DType type);

// block_elems and block_bytes: a row of k elements is k / block_elems blocks of block_bytes each.
uint64_t block_elems(DType type);
uint64_t block_bytes(DType type);

// row_bytes returns the bytes of a row of k elements. k must be a multiple of block_elems(type).
uint64_t row_bytes(DType type, uint64_t k);

// dequantise_row decodes k elements of a row from the file's blocks.
//   src  row_bytes(type, k) bytes in file order, any alignment
//   dst  [k] f32
// Each value is computed as the format defines it, in float32 with one rounding per written operation (see
// quant/decode.cpp), so that all backends decode a weight to the same bits.
void dequantise_row(DType type, const void* src, float* dst, uint64_t k);

// quantise_row encodes k float32 values with the reference encoder of the format (no importance weights).
//   src  [k] f32, finite
//   dst  row_bytes(type, k) bytes, any alignment
// Fails with TND_UNIMPLEMENTED for types without an encoder (Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4) and with
// TND_INVALID_ARGUMENT when k is not a multiple of the block.
Status quantise_row(DType type, const float* src, void* dst, uint64_t k);

}  // namespace tnd
