// The target role: sequences of a qwen35 or qwen3 model, steps over chains and trees, commit, forks, snapshots, export.
//
// A sequence holds the pages of its positions and of the rows that its last step left pending. Only the page that its
// tip lies in can be written to while others hold it: pages before the tip are complete, those behind it its own. With
// an attention window it releases pages that no later row reads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/rope_angles.h"
#include "models/target.h"
#include "roles/kv_plan.h"
#include "roles/page_pool.h"
#include "roles/roles.h"
#include "roles/saved_sequence.h"
#include "roles/tree.h"

namespace tnd {

class TargetRole final : public TargetEngine {
 public:
  explicit TargetRole(const OpenContext& context) : c_(context), planner_(context.options.max_tree_rows) {}
  ~TargetRole() override;

  Status open();

  void info(tnd_info* out) const override;
  void memory(std::vector<tnd_stat>* out) const override;

  Status sequence_create(int32_t* sequence) override;
  Status sequence_fork(int32_t sequence, int32_t* fork) override;
  Status sequence_free(int32_t sequence) override;
  Status sequence_length(int32_t sequence, int32_t* length) override;
  Status sequence_truncate(int32_t sequence, int32_t length) override;
  Status sequence_sampler(int32_t sequence, const tnd_sampler& sampler) override;
  Status snapshot_create(int32_t sequence, int32_t* snapshot) override;
  Status snapshot_restore(int32_t snapshot, int32_t sequence) override;
  Status snapshot_demote(int32_t snapshot) override;
  Status snapshot_free(int32_t snapshot) override;
  Status snapshot_describe(int32_t snapshot, tnd_snapshot_layout* layout) override;
  Status snapshot_read(int32_t snapshot, int32_t part, uint64_t offset, void* data, uint64_t bytes,
                       uint32_t* crc) override;
  Status snapshot_begin(const tnd_snapshot_layout& layout, int32_t base, int32_t shared, int32_t* snapshot) override;
  Status snapshot_write(int32_t snapshot, int32_t part, uint64_t offset, const void* data, uint64_t bytes,
                        uint32_t crc) override;
  Status snapshot_finish(int32_t snapshot) override;
  Status export_size(int32_t sequence, uint64_t* bytes) override;
  Status export_to(int32_t sequence, void* data, uint64_t bytes) override;
  Status import_from(int32_t sequence, const void* data, uint64_t bytes) override;
  Status step(const tnd_step& step) override;
  Status capture_set(std::span<const int32_t> layers) override;
  Status fuse_load(const char* path) override;
  Status fuse(int32_t n, uint32_t kind, int32_t raw_encoding, const void* raw, int32_t fused_encoding,
              void* fused) override;

 private:
  // A row of an uncommitted group, by position in depth-first order.
  struct Pending {
    int32_t given;  // its index in the group of the step
    int32_t token, parent;
    bool kept;  // its captured features are
  };
  // Committed positions whose captured features are kept, position p in place p mod TND_KEPT_ROWS; none when first is
  // not below next.
  struct Kept {
    int32_t first = 0, next = 0;
    // add says that the row of a position that is committed just now is kept.
    void add(int32_t position) {
      if (position != next || first > position) first = position;
      next = position + 1;
    }
  };
  struct Sequence {
    bool used = false;
    bool broken = false;  // a step that commits its rows was cancelled half way
    int32_t length = 0;
    std::vector<int32_t> tokens;  // [length] committed ids, -1 where unknown (shards that get hidden rows)
    std::vector<Pending> pending;
    Kept kept;
    PageTable pages;
    std::vector<DeltaState> states;   // [delta layers]
    std::vector<DeltaReplay> replay;  // [delta layers]
    bool has_sampler = false;
    SamplerParams sampler;
    int32_t penalty_window = 0, prompt_tokens = 0;
    std::vector<int32_t> bias_tokens;
    std::vector<float> bias_values;
    int32_t group = -1;  // of the step being checked

    // pending_row returns the position in pending of row `given` of the group that left it, -1 = none.
    int32_t pending_row(int32_t given) const {
      for (size_t i = 0; i < pending.size(); ++i) {
        if (pending[i].given == given) return static_cast<int32_t>(i);
      }
      return -1;
    }
  };
  // A group of the step being run.
  struct Group {
    int32_t sequence = 0;
    int32_t given = 0, count = 0;  // rows of tnd_step.rows
    int32_t first = 0;             // internal row
    bool commit = false, prompt = false;
    std::span<const int32_t> path;
    int32_t moved = 0;  // first row of the path that is not in its place yet
    int32_t read = 0;   // positions whose keys and values its rows read, each counted once
    int32_t kept_position = 0, n_kept = 0;
    int32_t features = 0, first_feature = 0;  // rows that want features, and the place of the first in features_
  };

  // open
  Status check_options() const;
  Status plan_memory(const gguf::File& file);
  Status build(Arena& arena, const KvPlan& plan, const gguf::File& file);
  bool recurrent() const { return delta_layers_ > 0; }
  uint64_t used() const;
  uint64_t available() const;

  // sequences
  Status find(int32_t handle, Sequence** out, bool broken_ok = false);
  Status unused(int32_t* handle) const;
  void clear(Sequence* s);
  SavedParts parts(Sequence* s, int32_t length) const;       // all
  SavedParts host_parts(Sequence* s, int32_t length) const;  // but keys and values
  void replace(Sequence* s, int32_t length);

  // step
  Status check_groups(const tnd_step& step);
  Status check_path(int32_t index, const tnd_group& in, const Sequence& s, Group* g) const;
  Status check_rows(const tnd_step& step, int32_t index, const Sequence& s, Group* g) const;
  // pages_after returns the pages of a sequence when a group ran, first_after the first of them that it holds.
  static int32_t pages_after(const Sequence& s, const Group& g);
  int32_t first_after(const Sequence& s, const Group& g) const;
  int32_t written_tip(const Group& g) const;
  bool copies_tip(size_t index) const;
  Status check_pages();
  Status check_outputs(const tnd_step& step) const;
  Status check_masks(const tnd_step& step);
  Status commit_paths();
  bool own_tip(const Group& g);
  void commit_path(Sequence* s, std::span<const int32_t> path);
  Status read_kept(const tnd_step& step);
  void plan_step(const tnd_step& step);
  int32_t step_rows() const;
  void plan_attention(const Sequence& s, const Group& g);
  void fill_rope(int32_t rows);
  void plan_head(const tnd_step& step);
  void count_history(const Group& g, int32_t row, std::vector<TokenCount>* out, size_t* first);
  int32_t kept_place(int32_t sequence, int32_t position) const;
  Status check_encoding(int32_t encoding) const;
  const float* fuse_features(int32_t encoding, int32_t n);
  void fuse_rows(const float* raw, int32_t n);
  void download_features(int32_t encoding, const float* src, int32_t n, uint8_t* out);
  void write_features(const tnd_step& step);
  int64_t feature_width(int32_t encoding) const;
  uint64_t feature_row_bytes(int32_t encoding) const;
  void finish_step(const tnd_step& step);
  uint64_t hidden_row_bytes(const tnd_step& step) const;
  void download_hidden(const tnd_step& step);
  uint64_t feature_bytes(int32_t sequences, int32_t n_capture) const;
  Status take_features(int32_t n_capture);

  OpenContext c_;
  HParams p_;
  std::unique_ptr<TargetModel> model_;
  std::vector<uint32_t> never_;
  bool any_never_ = false;
  int32_t layer_first_ = 0, layer_last_ = 0, delta_layers_ = 0, attention_layers_ = 0;
  KvPlan plan_;
  KvShape kv_;
  PagePool pool_;
  Arena arena_;
  void* region_ = nullptr;

  // Beyond the plan of open: snapshots and features, within the cap.
  std::atomic<uint64_t> feature_bytes_{0}, fuse_bytes_{0};

  std::vector<KvCache> caches_;  // [attention layers]
  std::vector<Sequence> sequences_;
  SavedSequences saved_;

  // Captured features.
  std::vector<int32_t> capture_;
  void* feature_region_ = nullptr;
  // backend [max_batch_rows of the step, then plan_.sequences x TND_KEPT_ROWS that are kept, captures * hidden]
  float* features_ = nullptr;
  void* fuse_region_ = nullptr;
  std::unique_ptr<Matrix> fc_;
  FuseLayer fuse_;
  bool fuses_own_ = false;    // all layers that fc reads are captured here
  float* foreign_ = nullptr;  // backend [max_batch_rows, fc_->k]: raw features for tnd_fuse
  float* fused_ = nullptr;    // backend [max_batch_rows, fused]
  std::unique_ptr<Acts> fuse_acts_;

  // Plan of the current step, reused. Internal rows: groups of prompts, then the others, depth-first inside.
  TreePlanner planner_;
  std::vector<Group> groups_;        // in the caller's order
  std::vector<int32_t> plan_order_;  // those with rows, in the order of internal rows
  std::vector<int32_t> passed_;      // pages that the groups release, behind the windows of their rows
  int32_t prompt_rows_ = 0;
  std::vector<int32_t> row_of_batch_, batch_of_row_, parents_, order_, tokens_, positions_, tail_;
  std::vector<int32_t> parent_rows_;  // by internal row: internal parent in the group, -1
  std::vector<DeltaRow> delta_rows_;
  std::vector<DeltaGroup> delta_groups_;
  std::vector<AttentionRowPlan> attention_rows_;
  std::vector<AttentionGroupPlan> attention_groups_;
  std::vector<float> rope_host_;
  std::vector<uint8_t> hidden_;  // rows of hidden_in in internal order
  float* hidden_out_ = nullptr;  // backend [max_batch_rows, hidden]: rows of hidden_out; shards that end early
  RopeAngles angles_;
  float* rope_ = nullptr;  // backend [max_batch_rows, rope_dims]
  std::vector<HeadRow> head_rows_;
  std::vector<TokenCount> history_;
  std::vector<int32_t> counts_;  // [vocab] zero between uses
  // Captured rows and their places in features_; the first wanted_features_ of them, in places 0, 1, .., are results.
  std::vector<int32_t> feature_rows_, feature_places_;
  int32_t wanted_features_ = 0, prompt_features_ = 0;
  std::vector<size_t> begins_;  // by head row: its first entry in history_
};

}  // namespace tnd
