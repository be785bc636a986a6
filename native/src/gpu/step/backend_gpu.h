// The backend of a GPU: core/backend.h by the kernels of native/src/gpu. One class for CUDA, HIP and the emulation; it
// names no vendor.
//
// Calls record operations (backend_record.h); sync() runs them and hands out results. Large transfers (weights,
// snapshots, prompts' features) do not fit the step's buffers: they first run what is recorded, and then go through a
// staging buffer piece by piece.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/thread_pool.h"
#include "gpu/attention/attention.h"
#include "gpu/attention/kv.h"
#include "gpu/delta/delta.h"
#include "gpu/delta/delta_chunk.h"
#include "gpu/delta/delta_follow.h"
#include "gpu/follow/matmul_follow.h"
#include "gpu/matmul/matmul.h"
#include "gpu/runtime/runtime.h"
#include "gpu/sample/sample.h"
#include "gpu/step/backend_record.h"
#include "gpu/step/buckets.h"

namespace tnd::gpu {

struct GpuMatrix final : Matrix {
  DeviceWeight weight;
};

struct GpuActs final : Acts {
  void* mem = nullptr;
  int64_t max_k = 0;
  InputForms forms = 0;
  ActsView view;  // all of it, for rows of one contract
  // For a product whose launch writes the next one's inputs while it reads its own, up to kGraphRows rows: pairs alone
  // for the products of 16-bit floats, all forms where followed_launches().
  ActsView other;
  bool in_other = false;       // `other` was written last
  mutable bool stale = false;  // not written: the norm of these rows became part of the products that read them
};

// take_aligned takes device memory at a multiple of `align` (more than Arena::kAlign).
void* take_aligned(Arena& arena, Purpose purpose, uint64_t bytes, uint64_t align);

class GpuBackend final : public Backend {
 public:
  GpuBackend(int device, const DeviceInfo& info, int threads);
  ~GpuBackend() override;
  Status open();

  const char* name() const override { return api_name(); }
  std::string numerics() const override;
  bool prompt_bits() const override {
    return true;
  }  // on some devices only some kernels differ, but no device guarantees equality
  std::string device() const override;
  uint64_t free_bytes() const override;
  Status allocate(uint64_t bytes, void** base) override;
  void release(void* base) override;
  Status matrix(const TensorView& t, Arena& arena, std::unique_ptr<Matrix>* out) override;
  InputForms forms(const Matrix& w) const override { return act_form(w.type); }
  void upload(float* dst, const float* src, int64_t n) override;
  void upload_bf16(float* dst, const void* src, int64_t n) override;
  void zero(float* dst, int64_t n) override;
  std::unique_ptr<Acts> acts(Arena& arena, int64_t max_k, int max_rows, InputForms forms) override;
  void plan_scratch(Arena& arena, const ScratchLimits& limits) override;
  uint64_t kv_bytes(const KvShape& shape, bool keys) const override;

  void count_in(Stats* stats) override { recorder_.count_in(stats); }
  void begin_step(int prompt_rows, int rows) override { prompt_rows_ = prompt_rows, step_rows_ = rows; }
  int row_room(int rows) const override { return prompt_rows_ > 0 ? rows : row_bucket(std::max(rows, step_rows_)); }
  void upload_rows(float* dst, const float* src, int rows, int64_t dim) override;
  void upload_rows_bf16(float* dst, const void* src, int rows, int64_t dim) override;
  void download_rows(float* host, const float* src, int rows, int64_t dim) override;
  void download_rows_bf16(uint16_t* host, const float* src, int rows, int64_t dim) override;
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
  Status sync() override;
  Status start() override;

  const Recorder& recorder() const { return recorder_; }
  // For tests: use_graphs is the Recorder's, set_filter the Stream's.
  void use_graphs(bool use) { recorder_.use_graphs(use); }
  void set_filter(LaunchFilter* filter) { stream_.set_filter(filter); }
  // use_followed says whether products also run what follows them (matmul_follow.h). Before buffers are planned.
  void use_followed(bool use) { follows_ = use; }

 private:
  // Rows of an operation as it is recorded: those of its bucket, and in device memory how many are in use. Rows of
  // prompts, and steps with such rows, are recorded with their exact number: live is nullptr.
  struct Rows {
    int most = 0;
    const int32_t* live = nullptr;
  };
  // bucketed comes after the operation's reserve(), if it has one.
  Rows bucketed(int rows);
  // Rows [first, first + rows) of an operation, which have one contract, and their inputs.
  struct Part {
    int first = 0, rows = 0;
    ActsView acts;
  };
  struct Parts {
    Part part[2];
    int count = 0;
    const Part* begin() const { return part; }
    const Part* end() const { return part + count; }
    bool mixed() const { return count > 1; }
  };
  // parts divides the buffer for `rows` rows of an operation: rows of prompts and rows of decoding in one step share
  // its memory.
  Parts parts(const Acts& acts, int rows) const;
  // outputs returns parts() of a buffer to which `rows` rows are written next, and marks it as written.
  Parts outputs(Acts* acts, int rows) const;
  std::unique_ptr<Acts> acts_of(Arena& arena, int64_t max_k, int max_rows, InputForms forms, bool prompts) const;
  // norm_in_product removes the norm that was recorded last, if the products can read its rows themselves.
  NormInput norm_in_product(std::span<const Product> products, const Parts& in, int rows);
  void matmul_part(std::span<const Product> products, const Part& part, const Rows& rows, const NormInput& norm);
  // swiglu_in_product makes the product that was recorded last write the next one's inputs, if its kernel can.
  bool swiglu_in_product(const float* gate, const float* up, int rows, int64_t dim, InputForms forms, Acts* out);
  // product_to_follow returns the product that was recorded last, if it has so many rows and its launch can also run
  // what follows. follow_product then makes it one that does; its operation is for the caller to fill in.
  const MatmulGroup* product_to_follow(int rows);
  MatmulFollow& follow_product(Follow kind, int parts);
  // outputs_beside returns the one of the two buffers that the product does not read, and marks it as written. False
  // without a second one.
  bool outputs_beside(const MatmulGroup& product, int rows, Acts* out, ActsView* acts);
  // These make the launch of the product before them run the operation: true or its arguments, if it can.
  bool swiglu_after_product(const float* gate, const float* up, int rows, int64_t dim, InputForms forms, Acts* out);
  bool norm_after_product(const float* x, const float* w, float eps, int rows, int64_t dim, InputForms forms,
                          Acts* out);
  DeltaArgs* conv_after_product(const DeltaShape& shape, const DeltaIo& io, int rows);
  HeadsArgs* heads_after_product(const AttentionLayer& w, const AttentionIo& io, int rows);
  // rule_follows says whether launches of the delta rule also compute the gated norm (delta_follow.h).
  bool rule_follows(DeltaRule rule, const DeltaShape& shape, int rows) const;
  // pad_tiles brings the plan of a step's attention to the sizes of its buckets.
  void pad_tiles(size_t groups, int rows);
  // to_device and to_host move any number of bytes through the staging buffer, in order with what is recorded.
  void to_device(void* dst, const void* host, uint64_t bytes);
  void to_host(void* host, const void* src, uint64_t bytes);
  void copy(void* dst, const void* src, uint64_t bytes);
  KvRowsArgs* rows_of(void (*operation)(Stream&, const KvRowsArgs&), const KvShape& shape, const KvCache& cache,
                      const int32_t* pages, int32_t at, int32_t count);
  void head_rows(const HeadArgs& args, const HeadRow* rows, int n);
  void choose_rows(const HeadArgs& args, const HeadRow* rows, int n);
  ChooseRow plan_choice(const HeadRow& row);

  const int device_;
  const DeviceInfo info_;
  const int threads_;
  Stream stream_;
  Recorder recorder_;
  std::map<void*, uint64_t> regions_;
  uint8_t* stage_ = nullptr;             // host, for transfers that bypass the step's buffers
  std::unique_ptr<ThreadPool> packers_;  // of weights, while a model loads

  int prompt_rows_ = 0, step_rows_ = 0;  // of the step: its first, and all
  ScratchLimits limits_;
  float* rows_ = nullptr;   // [rows, max_k]: rows between an operation and prepare
  float* query_ = nullptr;  // [rows, q_heads * dim]
  float* conv_ = nullptr;   // [rows, conv_dim]
  float* gates_ = nullptr;  // [rows, 2 nv]
  float* saved_ = nullptr;  // [kDeltaGroups, state_slots, state_elems]
  int chunk_capacity_ = 0;  // chunks of 64 rows that chunk_scratch_ holds; 0: no chunked delta rule
  void* chunk_scratch_ = nullptr;
  void* attention_scratch_ = nullptr;
  uint64_t attention_scratch_bytes_ = 0;
  float* score_scratch_ = nullptr;
  void* matmul_scratch_ = nullptr;
  bool follows_ = followed_launches();
  static constexpr int kArrivals = 1024;
  int32_t* arrivals_ = nullptr;  // [kArrivals] of launch_followed_matmul, zero between launches
  std::unique_ptr<Acts> head_acts_;
  float* logits_ = nullptr;  // [head_rows, logits_stride_]
  int64_t logits_stride_ = 0;
  void* choose_scratch_ = nullptr;

  // Plans of the operation being recorded, reused.
  AttentionStep attention_;
  DeltaStep delta_;
  DeltaChunks chunks_;
  std::vector<AttentionRowPlan> score_rows_;
  std::vector<int32_t> score_pages_;
  std::vector<DeltaStepGroup> delta_groups_;
  std::vector<ChooseRow> choices_;
  std::vector<std::pair<int32_t, float>> bias_;
  std::vector<int32_t> numbers_;
  std::vector<float> values_;
};

}  // namespace tnd::gpu
