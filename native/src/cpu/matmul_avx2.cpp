#include "cpu/matmul_layout.h"
namespace tnd::cpu {
TileKernel tile_kernel_avx2(DType) {
  return nullptr;
}
void quantise256_avx2(const float* x, Act256* block, int row) {
  quantise256_scalar(x, block, row);
}
void quantise32_avx2(const float* x, uint64_t elems, Act32* block, int row) {
  quantise32_scalar(x, elems, block, row);
}
}  // namespace tnd::cpu
