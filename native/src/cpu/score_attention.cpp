#include "cpu/score_attention.h"

#include "cpu/cpu_features.h"
#include "cpu/score_attention_kernel.h"

namespace tnd::cpu {

bool score_attention_available(int dim) {
#if defined(__x86_64__)
  static const bool kHas = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  return kHas && isa() == Isa::kAvx512 && dim % 32 == 0 && dim <= kScoreMaxDim;
#else
  (void)dim;
  return false;
#endif
}

size_t ScoreKv::bytes(int dim, int kv_heads, int32_t capacity) {
  return static_cast<size_t>(kv_heads) * capacity * (static_cast<size_t>(dim) * 3 + 8);
}

void ScoreKv::init(void* mem, int dim_, int kv_heads_, int32_t capacity_) {
  dim = dim_, kv_heads = kv_heads_, capacity = capacity_;
  const size_t rows = static_cast<size_t>(kv_heads) * capacity;
  uint8_t* p = static_cast<uint8_t*>(mem);
  k = reinterpret_cast<int8_t*>(p);
  v = reinterpret_cast<uint16_t*>(p + rows * dim);
  k_scale = reinterpret_cast<float*>(p + rows * dim * 3);
  k_sum = reinterpret_cast<int32_t*>(p + rows * dim * 3 + rows * 4);
}

size_t score_scratch_bytes(int dim) {
  return ScoreScratchLayout(dim).total;
}

#if defined(__x86_64__)
void score_store(const ScoreKv& kv, int32_t position, const float* k, const float* v) {
  score_store_avx512(kv, position, k, v);
}

void score_attention(ThreadPool& pool, const ScoreKv& kv, int q_heads, float scale, int32_t first, int32_t rows,
                     const float* q, float* out, void* scratch) {
  const int g = q_heads / kv.kv_heads;
  // Rows of a block: a multiple of the register block where the heads allow it.
  const int per_block = g >= kScoreQueries ? 1 : kScoreQueries / g;
  const int blocks = (rows + per_block - 1) / per_block;
  const size_t bytes = score_scratch_bytes(kv.dim);
  // Later rows cost more and are handed out first, so that the threads end together.
  pool.run(blocks * kv.kv_heads, [&](int task, int worker) {
    ScoreBlock b;
    b.kv = &kv;
    b.q_heads = q_heads;
    b.scale = scale;
    b.first = first;
    b.row_begin = (blocks - 1 - task / kv.kv_heads) * per_block;
    b.row_end = b.row_begin + per_block < rows ? b.row_begin + per_block : rows;
    b.kv_head = task % kv.kv_heads;
    b.q = q;
    b.out = out;
    b.scratch = static_cast<uint8_t*>(scratch) + bytes * worker;
    score_block_avx512(b);
  });
}
#else
void score_store(const ScoreKv&, int32_t, const float*, const float*) {}
void score_attention(ThreadPool&, const ScoreKv&, int, float, int32_t, int32_t, const float*, float*, void*) {}
#endif

}  // namespace tnd::cpu
