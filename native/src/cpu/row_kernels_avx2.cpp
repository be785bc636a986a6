// Row kernels with AVX2 and FMA.
#include "cpu/row_kernels_impl.h"

namespace tnd::cpu {

const RowKernels kRowKernelsAvx2 = kTable;

}  // namespace tnd::cpu
