// Small measurements of a card on its own: bandwidth, cost of a graph node, rate of the matrix instructions, and
// whether their operands lie where runtime_mma.h says. For gpu_tester and step27b_bench; kernels in gpu_probe.cu.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/runtime/runtime.h"

namespace tnd::bench {

// A matrix instruction of runtime_mma.h; kWmma is gfx11's, kWmma12 gfx12's.
enum class Mma { kS8K32, kS8K16, kF16, kBF16, kWmmaIu8, kWmmaF16, kWmmaBF16, kWmma12Iu8, kWmma12F16, kWmma12BF16 };
inline constexpr Mma kAllMma[] = {Mma::kS8K32,   Mma::kS8K16,    Mma::kF16,       Mma::kBF16,      Mma::kWmmaIu8,
                                  Mma::kWmmaF16, Mma::kWmmaBF16, Mma::kWmma12Iu8, Mma::kWmma12F16, Mma::kWmma12BF16};
const char* mma_name(Mma kind);
// mma_present says whether the device has the instruction.
bool mma_present(Mma kind, const gpu::DeviceInfo& device);

// read_gbs and copy_gbs time passes over `bytes` of `mem` (device, at least bytes, twice that for copies); GB/s of
// bytes read, or read and written. blocks: 256 threads each.
double read_gbs(gpu::Stream& stream, const void* mem, uint64_t bytes, int blocks);
double copy_gbs(gpu::Stream& stream, void* mem, uint64_t bytes, int blocks);

// node_us is the time of one node of a captured graph of `nodes` dependent one-warp kernels. mem: device, 128 bytes.
double node_us(gpu::Stream& stream, void* mem, int nodes);

// mma_tops is the rate of an instruction with operands in registers, 1e12 operations (two a multiply-add) a second.
// The device has it. mem: device, 128 bytes a block of `blocks`.
double mma_tops(gpu::Stream& stream, Mma kind, void* mem, int blocks);

// check_map multiplies matrices of small integers through an instruction and compares every element with the documented
// operand maps. "" is good; else the text says where each register of each lane really landed. mem: device, 16 KiB.
std::string check_map(gpu::Stream& stream, Mma kind, void* mem);

}  // namespace tnd::bench
