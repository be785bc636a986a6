// Row kernels without vector instructions: the reference. Also picks the table in use.
#include "cpu/cpu_features.h"
#include "cpu/row_kernels_impl.h"

namespace tnd::cpu {

const RowKernels kRowKernelsScalar = kTable;

const RowKernels& row_kernels() {
#if defined(__x86_64__)
  if (isa() == Isa::kAvx512) return kRowKernelsAvx512;
  if (isa() == Isa::kAvx2) return kRowKernelsAvx2;
#endif
  return kRowKernelsScalar;
}

}  // namespace tnd::cpu
