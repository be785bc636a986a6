// Device order of weights (matmul_layout.h), made on the host at load.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/status.h"

namespace tnd::gpu {

// weight_bytes returns the device memory of a weight [n, k]; n is rounded up to whole units. Within 2 % of the file for
// k a multiple of 256 and n of 32.
uint64_t weight_bytes(DType type, int64_t k, int64_t n);

// check_weight returns why a weight cannot be used: TND_UNIMPLEMENTED for a type that dtype_matmul refuses,
// TND_INVALID_ARGUMENT when k or n is not positive, too large, or k not a multiple of the type's block.
Status check_weight(DType type, int64_t k, int64_t n);

// repack_units writes units [first, first + count) of a weight: count * unit_bytes(type, k) consecutive bytes, so that
// a large tensor passes through a small staging buffer. Lossless.
//   rows  the tensor in file order: [n][row_bytes(type, k)], any alignment
//   dst   any alignment
// Units of different calls are independent, and calls may run side by side.
void repack_units(DType type, const void* rows, int64_t k, int64_t n, int64_t first, int64_t count, void* dst);

// unpack_row is the inverse for one output: dst gets row_bytes(type, k) bytes in file order.
void unpack_row(DType type, const void* weight, int64_t k, int64_t row, void* dst);

// largest_weight returns a bound of the magnitudes of `count` values (a multiple of the type's block) of a quantised
// tensor in file order, from the scales of its blocks; scales that are not finite count as zero. half_scale returns the
// power of two that scales weights up to a bound as high into the range of halves as is safe (DeviceWeight::scale).
float largest_weight(DType type, const void* blocks, int64_t count);
float half_scale(float largest);

}  // namespace tnd::gpu
