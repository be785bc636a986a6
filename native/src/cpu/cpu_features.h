// Which instruction set the CPU kernels use.
#pragma once

namespace tnd::cpu {

// Ascending: a level implies those below it.
enum class Isa { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

// isa_best returns the highest level that processor and operating system support: kAvx2 needs AVX2, FMA and F16C;
// kAvx512 needs F, BW, DQ, VL, VBMI and VNNI as well.
Isa isa_best();

// isa returns the level in use: isa_best(), lowered by the environment variable TANDEM_CPU_ISA (scalar, avx2 or
// avx512; read once; a level the machine lacks or an unknown word is ignored). All levels give the same bits.
Isa isa();

// isa_force overrides isa() for tests and benchmarks. Not above isa_best(); not while a matmul runs.
void isa_force(Isa level);

// isa_name returns "scalar", "avx2" or "avx512".
const char* isa_name(Isa level);

}  // namespace tnd::cpu
