// The CPU backend: core/backend.h over the thread pool, the quantised matmul,
// the attention operation and the row kernels.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/thread_pool.h"
#include "cpu/attention.h"
#include "cpu/matmul.h"
#include "cpu/row_kernels.h"
#include "cpu/sample.h"

namespace tnd::cpu {

struct CpuMatrix final : Matrix {
  PackedWeight packed;
};

struct CpuActs final : Acts {
  ActBuffer buffer;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int threads);
  ~CpuBackend() override;

  ThreadPool& pool() { return pool_; }

  const char* name() const override { return "cpu"; }
  // Scalar, AVX2 and AVX-512 kernels have the same bits, so the instruction set is no part of it.
  std::string numerics() const override { return "cpu matmul=1 float=1 prompt=decode attention=1 delta=1 sample=1"; }
  bool prompt_bits() const override { return false; }
  std::string device() const override;
  uint64_t free_bytes() const override;
  bool host_memory() const override { return true; }
  Status allocate(uint64_t bytes, void** base) override;
  void release(void* base) override;
  Status matrix(const TensorView& t, Arena& arena, std::unique_ptr<Matrix>* out) override;
  InputForms forms(const Matrix& w) const override { return act_kind(w.type); }
  void upload(float* dst, const float* src, int64_t n) override;
  void upload_bf16(float* dst, const void* src, int64_t n) override;
  void zero(float* dst, int64_t n) override;
  std::unique_ptr<Acts> acts(Arena& arena, int64_t max_k, int max_rows, InputForms forms) override;
  void plan_scratch(Arena& arena, const ScratchLimits& limits) override;
  uint64_t kv_bytes(const KvShape& shape, bool keys) const override;

  void embed(const Matrix& table, std::span<const int32_t> tokens, float* x) override;
  void download(float* host, const float* src, int64_t n) override;
  void download_bf16(uint16_t* host, const float* src, int64_t n) override;
  void norm(const float* x, const float* w, float eps, int rows, int64_t dim, InputForms forms, Acts* out) override;
  void prepare(const float* x, int64_t stride, int rows, int64_t dim, InputForms forms, Acts* out) override;
  void norm_rows(const float* x, const float* w, float eps, int rows, int64_t dim, float* y) override;
  void matmul(std::span<const Product> products, const Acts& in, int rows) override;
  void swiglu(const float* gate, const float* up, int rows, int64_t dim, InputForms forms, Acts* out) override;
  void delta_mixer(const DeltaLayer& w, int layer, std::span<const DeltaGroup> groups, int rows, const DeltaIo& io,
                   InputForms forms, Acts* out) override;
  void attention(const AttentionLayer& w, int layer, const AttentionPlan& plan, int rows, const AttentionIo& io,
                 InputForms forms, Acts* out) override;
  void copy_rows(const float* x, int64_t dim, std::span<const int32_t> rows, std::span<const int32_t> to, float* dst,
                 int64_t dst_stride) override;
  void head(const HeadArgs& args) override;
  uint64_t score_kv_bytes(const AttentionLayer& w) const override;
  void score_queries(const AttentionLayer& w, const float* rope, int rows, float* q) override;
  void score_chunk(const AttentionLayer& w, const ScoreChunk& chunk, const AttentionIo& io, InputForms forms,
                   Acts* out) override;
  void score_peaks(std::span<const int32_t> query, int q_heads, float* dots, float* best, int64_t stride) override;
  void delta_commit(const DeltaShape& shape, std::span<const DeltaState> states, std::span<const DeltaReplay> replay,
                    std::span<const int32_t> path) override;
  void kv_move(const KvShape& shape, std::span<const KvCache> caches, std::span<const int32_t> from,
               std::span<const int32_t> to) override;
  uint64_t kv_row_bytes(const KvShape& shape) const override;
  void kv_export(const KvShape& shape, const KvCache& cache, const int32_t* pages, int32_t n, void* host) override;
  void kv_import(const KvShape& shape, const KvCache& cache, const int32_t* pages, int32_t n,
                 const void* host) override;
  Status sync() override { return Status(); }

 private:
  void convolve(const DeltaLayer& w, int layer, std::span<const DeltaGroup> groups, int rows, const DeltaIo& io);
  void recur(const DeltaLayer& w, int layer, std::span<const DeltaGroup> groups);
  void plan_score(Arena& arena, const ScratchLimits& limits);

  ThreadPool pool_;
  struct Region {
    void* base;
    uint64_t bytes;
  };
  std::vector<Region> regions_;

  ScratchLimits limits_;
  float* normed_ = nullptr;  // [rows, max_k]
  float* conv_ = nullptr;    // [rows, conv_dim]: q | k | v after convolution, q and k normalised
  float* gates_ = nullptr;   // [rows, 2 nv]: alpha, beta
  float* mixed_ = nullptr;   // [rows, value_dim]
  float* states_ = nullptr;  // [threads, state_slots, 128, 32]
  float* query_ = nullptr;   // [rows, q_heads * dim]
  AttentionRow* attention_rows_ = nullptr;
  AttentionGroup* attention_groups_ = nullptr;
  AttentionScratch attention_scratch_;
  void* score_scratch_ = nullptr;     // of all threads
  std::vector<int32_t> score_pages_;  // in order
  std::unique_ptr<Acts> head_acts_;
  float* logits_ = nullptr;                  // [head_rows, vocab rounded up to 16]
  SampleScratch* sample_scratch_ = nullptr;  // [threads]
};

// kv_layout maps the backend-neutral shape to the cache of attention.h.
KvLayout kv_layout(const KvShape& shape);

}  // namespace tnd::cpu
