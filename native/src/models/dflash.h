// DFlash block drafter: a small decoder that fills a whole block of tokens in one pass. It reads the target's hidden
// features of every committed token as keys and values, and borrows the target's embedding table and head.
//
//   append, per committed position p:   c = N(W_fc feat[p]; hidden_norm)
//     for each layer:                   K/V[p] = rope(headnorm(W_k c)), W_v c       (cached: of sliding layers the
//                                                                                    newest W positions)
//   propose, rows [anchor, MASK, ...] at positions n, n+1, ...:
//     h = E[tokens]
//     for each layer:                   h += W_o attend(q, [K; K_block], [V; V_block]);  h += mlp(h)
//     row j >= 1:                       candidates of position n+j = W_head N(h_j; output_norm)
// Full layers: a row sees all cached positions and the whole block. Sliding layers (window W counts the row itself):
// row j sees cached p >= n+j-(W-1) and block rows <= j. c never passes a layer's input norm; K of the context is
// normed per head, V never. The block's own K/V lie in the slots of the positions after the context and are
// overwritten. Traps: native/MODEL_dflash.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/backend.h"
#include "core/stats.h"
#include "models/dflash_hparams.h"
#include "models/layers.h"
#include "models/rope_angles.h"
#include "models/weights.h"

namespace tnd {

struct DflashLimits {
  int32_t block_rows = 0;   // widest propose over all requests
  int32_t append_rows = 0;  // widest piece of an append
  int32_t max_context = 0;
  KvShape kv;          // of the pool of a layer that reads all positions
  KvShape sliding_kv;  // of that of a sliding one
  int64_t pages = 0;   // most entries of the page tables of one kind of layer in one propose
  int32_t max_top_k = 0;
};

// Pages of a sequence by kind of layer, host. Those of a kind that the draft does not have may be any.
struct DflashPages {
  const int32_t* full = nullptr;
  const int32_t* sliding = nullptr;
};

// Feature rows of one sequence in an append.
struct DflashRows {
  DflashPages pages;
  int32_t position = 0, n = 0;  // the first row's, and how many
  int32_t encoding = 0;         // TND_FEATURE_*: fused features are c already [n, hidden], others raw [n, feature_raw]
  const void* features = nullptr;  // host
};

// One block of a propose.
struct DflashBlock {
  DflashPages pages;  // up to the block's rows
  int32_t n_pages = 0;
  int32_t length = 0;    // cached positions
  int32_t token = 0;     // anchor
  int32_t position = 0;  // of the anchor, >= length
  int32_t rows = 0;      // anchor included, 2..block
  int32_t top_k = 0;
  float temperature = 1;
  int32_t* ids = nullptr;     // host [rows - 1, stride]
  float* logprobs = nullptr;  // the same
};

class DflashModel {
 public:
  DflashModel(const DflashHParams& hparams, Backend& backend) : p_(hparams), backend_(backend) {}

  // load plans (measuring arena) or loads all weights and takes the working memory. `tables` holds the target's
  // token_embd.weight and, unless tied, output.weight.
  Status load(WeightLoader& weights, WeightLoader& tables, int32_t vocab, Arena& arena, const DflashLimits& limits);

  // append caches K/V of together at most append_rows positions in pages of the pools, caches host [layers]. The pieces
  // are all fused or all raw; those of more than kPromptRows rows have the contract of prompts and come first.
  void append(const KvCache* caches, std::span<const DflashRows> pieces, Stats* stats);

  // propose runs one pass over all blocks; stride: elements between positions in ids and logprobs.
  void propose(const KvCache* caches, std::span<const DflashBlock> blocks, int32_t stride, Stats* stats);

 private:
  const void* gather(std::span<const DflashRows> pieces, int64_t values, size_t* first, int32_t* rows);
  void plan_block(const DflashBlock& b, int32_t first_row);

  const DflashHParams p_;
  Backend& backend_;
  DflashLimits limits_;
  RopeAngles angles_;

  std::unique_ptr<Matrix> fc_, embedding_, output_;
  const float* hidden_norm_ = nullptr;
  const float* norm_ = nullptr;
  struct Layer {
    Attention attention;
    Mlp mlp;
  };
  std::vector<Layer> layers_;

  Workspace ws_;
  float* features_ = nullptr;  // backend [append_rows, feature_raw]
  std::unique_ptr<Acts> feature_acts_;
  float* rope_ = nullptr;  // backend [rows, head_dim]

  // Plan of the current pass, reused.
  std::vector<float> rope_host_;
  std::vector<uint8_t> gathered_;
  std::vector<int32_t> tokens_;
  // What the rows of a pass see and where they write in layers of a kind.
  struct View {
    std::vector<int32_t> slots;
    std::vector<AttentionRowPlan> rows;
    std::vector<AttentionGroupPlan> groups;
  };
  View full_, sliding_;
  std::vector<HeadRow> head_rows_;
  std::vector<Product> products_;
};

}  // namespace tnd
