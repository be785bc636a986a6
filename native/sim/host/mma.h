// Software versions of the matrix instructions; operand maps: gpu/runtime/runtime_mma.h.
#pragma once

#include "gpu/runtime/runtime.h"

namespace tnd::gpu::emu {

void mma_s8_k32(int32_t* d, const uint32_t* a, const uint32_t* b);
void mma_u8_k32(int32_t* d, const uint32_t* a, const uint32_t* b);
void mma_s8_k16(int32_t* d, const uint32_t* a, const uint32_t* b);
void mma_f16_k16(float* d, const uint32_t* a, const uint32_t* b);
void mma_bf16_k16(float* d, const uint32_t* a, const uint32_t* b);
void load_matrix_x4(uint32_t* r, const void* shared_row);
void load_matrix_x4_transposed(uint32_t* r, const void* shared_row);
void wmma11_iu8(int32_t* d, const uint32_t* a, const uint32_t* b, bool a_signed, bool b_signed);
void wmma11_f16(float* d, const uint32_t* a, const uint32_t* b);
void wmma11_bf16(float* d, const uint32_t* a, const uint32_t* b);
void wmma12_iu8(int32_t* d, const uint32_t* a, const uint32_t* b, bool a_signed, bool b_signed);
void wmma12_f16(float* d, const uint32_t* a, const uint32_t* b);
void wmma12_bf16(float* d, const uint32_t* a, const uint32_t* b);

}  // namespace tnd::gpu::emu
