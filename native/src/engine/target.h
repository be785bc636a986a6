// The target role: sequences of a qwen35 or qwen3 model, steps over chains and trees, commit, snapshots, export.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/roles.h"
#include "engine/saved_sequence.h"
#include "engine/tree.h"
#include "models/rope_angles.h"
#include "models/target.h"

namespace tnd {

class TargetRole final : public Role {
 public:
  explicit TargetRole(const OpenContext& context) : c_(context), planner_(context.options.max_tree_rows) {}
  ~TargetRole() override;

  Status open();

  const char* role_name() const override { return "target"; }
  void info(tnd_info* out) const override;
  void memory(std::vector<tnd_stat>* out) const override;

  Status sequence_create(int32_t* sequence) override;
  Status sequence_free(int32_t sequence) override;
  Status sequence_length(int32_t sequence, int32_t* length) override;
  Status sequence_truncate(int32_t sequence, int32_t length) override;
  Status sequence_sampler(int32_t sequence, const tnd_sampler& sampler) override;
  Status snapshot_create(int32_t sequence, int32_t* snapshot) override;
  Status snapshot_restore(int32_t snapshot, int32_t sequence) override;
  Status snapshot_free(int32_t snapshot) override;
  Status export_size(int32_t sequence, uint64_t* bytes) override;
  Status export_to(int32_t sequence, void* data, uint64_t bytes) override;
  Status import_from(int32_t sequence, const void* data, uint64_t bytes) override;
  Status step(const tnd_step& step) override;
  Status commit(int32_t sequence, std::span<const int32_t> path) override;
  Status capture_set(std::span<const int32_t> layers) override;
  Status fuse_load(const char* path) override;
  Status features_read(int32_t sequence, int32_t position, int32_t n, int32_t encoding, void* out) override;

 private:
  // A row of an uncommitted step, by position in depth-first order.
  struct Pending {
    int32_t batch_index, token, parent;
    bool kept;  // its captured features are
  };
  struct Sequence {
    bool used = false;
    bool broken = false;  // a committing step was cancelled half way
    int32_t length = 0;
    std::vector<int32_t> tokens;  // [length] committed ids, -1 where unknown (shards that get hidden rows)
    std::vector<Pending> pending;
    // Committed positions whose captured features are kept, position p in place p mod TND_KEPT_ROWS; none when first is
    // not below next.
    int32_t kept_first = 0, kept_next = 0;
    std::vector<KvCache> caches;      // [attention layers]
    std::vector<DeltaState> states;   // [delta layers]
    std::vector<DeltaReplay> replay;  // [delta layers]
    bool has_sampler = false;
    SamplerParams sampler;
    int32_t penalty_window = 0, prompt_tokens = 0;
    std::vector<int32_t> bias_tokens;
    std::vector<float> bias_values;
    int32_t group = -1;  // of the step being planned
  };
  // Rows of one sequence in the step being planned.
  struct Group {
    int32_t sequence = 0, first = 0, count = 0;
    uint32_t kept = 0;  // places of rows that are kept
  };

  // open
  Status check_options() const;
  Status plan_memory(const gguf::File& file);
  Status build(Arena& arena, int32_t max_context, const gguf::File& file);
  Status no_fit(const Arena& arena, int32_t fits) const;
  bool recurrent() const { return delta_layers_ > 0; }
  uint64_t available() const;

  // sequences
  Status find(int32_t handle, Sequence** out, bool broken_ok = false);
  void clear(Sequence* s);
  SavedParts parts(Sequence* s, int32_t length) const;
  void replace(Sequence* s, int32_t length);

  // step
  Status plan_step(const tnd_step& step);
  Status check_rows(const tnd_step& step);
  Status check_outputs(const tnd_step& step) const;
  Status check_masks(const tnd_step& step);
  void plan_attention(const Sequence& s, const Group& g, bool commit);
  void fill_rope();
  void plan_head(const tnd_step& step);
  void count_history(const Sequence& s, int32_t row, std::vector<TokenCount>* out, size_t* first);
  int32_t kept_place(int32_t sequence, int32_t position) const;
  static void keep(Sequence* s, int32_t position);
  Status check_encoding(int32_t encoding) const;
  void write_features(int32_t encoding, int32_t n, void* out);
  void finish_step(const tnd_step& step);
  Status take_features(int32_t n_capture);

  OpenContext c_;
  HParams p_;
  std::unique_ptr<TargetModel> model_;
  std::vector<uint32_t> never_;
  bool any_never_ = false;
  int32_t layer_first_ = 0, layer_last_ = 0, delta_layers_ = 0, attention_layers_ = 0;
  int32_t max_context_ = 0;
  KvShape kv_;
  Arena arena_;
  void* region_ = nullptr;

  // Beyond the plan of open: snapshots and features, within the cap.
  std::atomic<uint64_t> feature_bytes_{0}, fuse_bytes_{0};

  std::vector<Sequence> sequences_;
  SavedSequences saved_;

  // Captured features.
  std::vector<int32_t> capture_;
  void* feature_region_ = nullptr;
  // backend [max_batch_rows of the step, then max_sequences x TND_KEPT_ROWS that are kept, captures * hidden]
  float* features_ = nullptr;
  void* fuse_region_ = nullptr;
  std::unique_ptr<Matrix> fc_;
  FuseLayer fuse_;
  float* fused_ = nullptr;  // backend [max_batch_rows, fused]
  std::unique_ptr<Acts> fuse_acts_;

  // Plan of the current step, reused. Internal rows: grouped by sequence, depth-first inside.
  TreePlanner planner_;
  std::vector<Group> groups_;
  std::vector<int32_t> row_of_batch_, batch_of_row_, parents_, order_, tokens_, positions_, tail_, last_of_sequence_;
  std::vector<int32_t> parent_rows_;  // by internal row: internal parent in the group, -1
  std::vector<DeltaRow> delta_rows_;
  std::vector<DeltaGroup> delta_groups_;
  std::vector<AttentionRowPlan> attention_rows_;
  std::vector<AttentionGroupPlan> attention_groups_;
  std::vector<float> rope_host_, hidden_;
  RopeAngles angles_;
  float* rope_ = nullptr;  // backend [max_batch_rows, rope_dims]
  std::vector<HeadRow> head_rows_;
  std::vector<TokenCount> history_;
  std::vector<int32_t> counts_;  // [vocab] zero between uses
  // Captured rows and their places in features_; the first wanted_features_ of them, in places 0, 1, .., are results.
  std::vector<int32_t> feature_rows_, feature_places_;
  int32_t wanted_features_ = 0;
};

}  // namespace tnd
