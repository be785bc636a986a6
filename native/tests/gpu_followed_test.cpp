// Launches that also run the operation after them (gpu/follow/matmul_follow.h, gpu/delta/delta_follow.h): a model's
// steps have the bits of the separate launches, and as many nodes as the layers should have.
#include <memory>
#include <string>
#include <vector>

#include "core/kv_type.h"
#include "engine_util.h"
#include "gpu/step/backend_gpu.h"
#include "harness.h"
#include "roles/roles.h"
#include "small_target.h"

using namespace tnd;
using namespace tnd::test;
using tnd::bench::Mix;
using tnd::bench::SyntheticModel;
using tnd::bench::SyntheticShape;

namespace {

constexpr int32_t kVocab = 160, kContext = 512;

// Sizes with parts that share blocks, a last part that is not full, and heads of the follower of projections.
SyntheticShape shape_of(Mix mix, int32_t layers, int32_t head_dim) {
  SyntheticShape s = small_target(mix, kVocab, kContext);
  s.layers = layers;
  s.hidden = 512;
  s.ffn = 1280;
  s.q_heads = 4;
  s.kv_heads = 2;
  s.head_dim = head_dim;
  s.delta_key_heads = 2;
  s.delta_value_heads = 6;
  return s;
}

// A target whose backend follows products, or does not.
class Target {
 public:
  Target(const SyntheticModel& model, bool followed, int kv_type = TND_KV_DEFAULT) {
    CHECK_OK(make_backend(nullptr, 1, &made_));
    backend().use_followed(followed);
    OpenContext c;
    c.model_path = model.path();
    c.options.max_sequences = 2;
    c.options.max_context = kContext;
    c.options.max_tree_rows = 64;
    c.options.max_batch_rows = 64;
    c.options.max_top_k = 4;
    c.options.kv_type_k = c.options.kv_type_v = kv_type;
    c.memory_cap = made_->free_bytes();
    c.backend = made_.get();
    c.cancel = &cancel_;
    c.stats = &stats_;
    made_->count_in(&stats_);
    CHECK_OK(open_target(c, &role_));
    for (int32_t& s : sequences_) CHECK_OK(role_->sequence_create(&s));
  }
  gpu::GpuBackend& backend() { return static_cast<gpu::GpuBackend&>(*made_); }
  int nodes() { return backend().recorder().most_nodes(); }

  // One step of `rows` rows of every sequence, of which one is committed: a tree, or a chain that commits as a whole.
  // Returns the logits, or the tokens alone.
  std::vector<float> step(int rows, int sequences, bool tree, bool logits) {
    std::vector<tnd_group> groups;
    std::vector<tnd_row> all;
    const int32_t path[] = {0};
    for (int s = 0; s < sequences; ++s) {
      int32_t length = 0;
      CHECK_OK(role_->sequence_length(sequences_[s], &length));
      length += pending_[s] ? 1 : 0;
      for (int i = 0; i < rows; ++i) {
        const int32_t parent = i == 0 ? -1 : tree ? (i - 1) / 2 : i - 1;
        const size_t first = static_cast<size_t>(s * rows);
        const int32_t at = parent < 0 ? length : all[first + static_cast<size_t>(parent)].position + 1;
        const uint32_t want = TND_WANT_TOKEN | (logits ? TND_WANT_LOGITS : 0);
        all.push_back({static_cast<int32_t>(rng_.below(kVocab)), at, parent, want, 0, 0, -1});
      }
      groups.push_back({sequences_[s], rows, TND_GROUP_DECODE, tree ? 0u : uint32_t{TND_GROUP_COMMIT}, path,
                        pending_[s] ? 1 : 0, 0, 0});
      pending_[s] = tree;
    }
    std::vector<float> values(logits ? all.size() * kVocab : 0), logprobs(all.size());
    std::vector<int32_t> tokens(all.size());
    tnd_step step{};
    step.n_groups = sequences;
    step.groups = groups.data();
    step.n_rows = static_cast<int32_t>(all.size());
    step.rows = all.data();
    step.tokens = tokens.data();
    step.logprobs = logprobs.data();
    step.logits = values.data();
    CHECK_OK(role_->step(step));
    values.insert(values.end(), logprobs.begin(), logprobs.end());
    return values;
  }

 private:
  std::unique_ptr<Backend> made_;
  std::atomic<bool> cancel_{false};
  Stats stats_;
  std::unique_ptr<TargetEngine> role_;
  int32_t sequences_[2] = {-1, -1};
  bool pending_[2] = {false, false};
  Rng rng_{5};
};

struct Kind {
  Mix mix;
  int32_t head_dim;
  int kv_type;
};

void compare(const Kind& kind) {
  const auto model = make_synthetic(shape_of(kind.mix, 4, kind.head_dim));
  Target apart(*model, false, kind.kv_type), followed(*model, true, kind.kv_type);
  struct Step {
    int rows, sequences;
    bool tree;
  };
  // Buckets of rows with and without followers; chains and trees; sequences of one step.
  for (const Step& s :
       {Step{1, 1, false}, Step{1, 1, false}, Step{3, 1, false}, Step{7, 1, true}, Step{1, 2, false}, Step{3, 2, true},
        Step{16, 1, true}, Step{1, 1, true}, Step{20, 1, true}, Step{1, 1, false}, Step{1, 1, false}}) {
    const std::vector<float> a = apart.step(s.rows, s.sequences, s.tree, true);
    const std::vector<float> b = followed.step(s.rows, s.sequences, s.tree, true);
    CHECK_MSG(same_bits(a, b), "rows " + std::to_string(s.rows) + ", sequences " + std::to_string(s.sequences));
  }
}

TEST(bits_of_separate_launches_q4_k_m) {
  compare({Mix::kQ4KM, 256, TND_KV_DEFAULT});
}

TEST(bits_of_separate_launches_q8_0) {
  compare({Mix::kQ8_0, 128, static_cast<int>(KvType::kQ8_0)});
}

// Nodes of the four layers by which two models differ, three of DeltaNet and one of attention.
int nodes_of_layers(bool followed, int rows) {
  int nodes[2];
  for (int i = 0; i < 2; ++i) {
    const auto model = make_synthetic(shape_of(Mix::kQ4KM, 4 + 4 * i, 256));
    Target target(*model, followed);
    for (int n = 0; n < 3; ++n) target.step(rows, 1, rows > 1, false);  // from the second time on a graph
    nodes[i] = target.nodes();
  }
  return nodes[1] - nodes[0];
}

TEST(nodes_of_a_layer) {
  if (gpu::plain_launches()) return;
  CHECK_EQ(nodes_of_layers(false, 1), 4 * 10);
  CHECK_EQ(nodes_of_layers(true, 1), 3 * 5 + 6);
  CHECK_EQ(nodes_of_layers(true, 16), 3 * 7 + 8);
  CHECK_EQ(nodes_of_layers(true, 23), 3 * 9 + 10);
}

}  // namespace

TEST_MAIN()
