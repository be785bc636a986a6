// Row kernels with AVX-512. GCC 12 warns about the undefined operands inside its own intrinsics.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "cpu/row_kernels_impl.h"

namespace tnd::cpu {

const RowKernels kRowKernelsAvx512 = kTable;

}  // namespace tnd::cpu
