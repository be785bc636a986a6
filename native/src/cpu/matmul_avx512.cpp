#include "cpu/matmul_layout.h"
namespace tnd::cpu {
TileKernel tile_kernel_avx512(DType) {
  return nullptr;
}
void quantise256_avx512(const float* x, Act256* block, int row) {
  quantise256_scalar(x, block, row);
}
void quantise32_avx512(const float* x, uint64_t elems, Act32* block, int row) {
  quantise32_scalar(x, elems, block, row);
}
}  // namespace tnd::cpu
