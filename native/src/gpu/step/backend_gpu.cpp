// The step of a GPU backend: scratch, transfers and the operations of a layer, each recorded as one or a few launches.
// Loading is in backend_load.cpp, the head in backend_head.cpp, a scorer's steps in backend_score.cpp.
#include "gpu/step/backend_gpu.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gpu/attention/kv.h"
#include "gpu/attention/rope.h"
#include "gpu/attention/score_attention.h"
#include "gpu/norm/norm.h"
#include "gpu/norm/swiglu.h"
#include "gpu/runtime/memory.h"
#include "gpu/step/backend_fill.h"

namespace tnd::gpu {
namespace {

constexpr int kDeltaGroups = 4;  // sequences whose saved states exist at a time
constexpr int kGraphRows = 64;   // wider steps are prompts, where launches cost little beside the work
constexpr int kActsRows = 128;   // rows that kernels for prompts read at a time
constexpr uint64_t kDeviceAlign = 256;
constexpr int kMaxPath = 128;  // rows of a commit: max_tree_rows

// Keys of the data that layers have in common (Recorder::put_same).
enum Key {
  kAttentionRows,
  kAttentionTails,
  kAttentionPages,
  kAttentionBulk,
  kAttentionTail,
  kDeltaRows,
  kDeltaChunks,
  kDeltaChains
};
static_assert(kDeltaChains < Recorder::kKeys);

}  // namespace

void* take_aligned(Arena& arena, Purpose purpose, uint64_t bytes, uint64_t align) {
  auto* p = static_cast<uint8_t*>(arena.take(purpose, bytes + align - Arena::kAlign));
  if (p == nullptr) return nullptr;
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  return p + ((at + align - 1) / align * align - at);
}

std::unique_ptr<Acts> GpuBackend::acts(Arena& arena, int64_t max_k, int max_rows, InputForms forms) {
  return acts_of(arena, max_k, max_rows, forms, prompt_inputs(info_) != Prompt::kNone);
}

// Where rows of prompts have their own forms of inputs, these share the memory of the forms that they replace. Rows of
// both contracts in a step therefore get consecutive buffers (parts()), each of a multiple of 128 rows, or of 64:
// together at most kActsRows rows more than the step has.
std::unique_ptr<Acts> GpuBackend::acts_of(Arena& arena, int64_t max_k, int max_rows, InputForms forms,
                                          bool prompts) const {
  auto a = std::make_unique<GpuActs>();
  const int rows = prompts ? (max_rows + kActsRows - 1) / kActsRows * kActsRows : max_rows;
  void* mem =
      take_aligned(arena, Purpose::kScratch, acts_bytes(max_k, prompts ? rows + kActsRows : rows, forms), kDeviceAlign);
  a->mem = mem;
  a->max_k = max_k;
  a->forms = forms;
  if (!arena.measuring()) acts_init(&a->view, mem, max_k, rows, forms);
  const bool fuses = (forms & kFormHalf) != 0 && matmul_fuses(info_, 1, 256);
  if (follows_ || fuses) {
    const InputForms beside = follows_ ? forms : kFormHalf;
    const int rows = std::min(max_rows, kGraphRows);
    mem = take_aligned(arena, Purpose::kScratch, acts_bytes(max_k, rows, beside), kDeviceAlign);
    if (!arena.measuring()) acts_init(&a->other, mem, max_k, rows, beside);
  }
  return a;
}

GpuBackend::Parts GpuBackend::parts(const Acts& acts, int rows) const {
  const GpuActs& a = static_cast<const GpuActs&>(acts);
  const Prompt kind = prompt_inputs(info_);
  const int32_t paired = has_matmul_pairs(info_) ? 1 : 0;
  const int prompt = kind != Prompt::kNone ? std::min(prompt_rows_, rows) : 0;
  Parts p;
  const auto add = [&](int first, int count, Prompt as, const ActsView& view) {
    Part& part = p.part[p.count++];
    part.first = first;
    part.rows = count;
    part.acts = view;
    part.acts.prompt = as;
    part.acts.paired = paired;
  };
  if (prompt == 0 || prompt == rows) {
    add(0, rows, prompt > 0 ? kind : Prompt::kNone, a.in_other ? a.other : a.view);
    return p;
  }
  const int room = (prompt + kActsRows - 1) / kActsRows * kActsRows;
  ActsView view;
  acts_init(&view, a.mem, a.max_k, room, a.forms);
  add(0, prompt, kind, view);
  acts_init(&view, static_cast<uint8_t*>(a.mem) + acts_bytes(a.max_k, room, a.forms), a.max_k, rows - prompt, a.forms);
  add(prompt, rows - prompt, Prompt::kNone, view);
  return p;
}

GpuBackend::Parts GpuBackend::outputs(Acts* acts, int rows) const {
  static_cast<GpuActs*>(acts)->in_other = static_cast<GpuActs*>(acts)->stale = false;
  return parts(*acts, rows);
}

GpuBackend::Rows GpuBackend::bucketed(int rows) {
  const int most = row_room(rows);
  if (prompt_rows_ > 0 || most == 1) return {rows, nullptr};
  return {most, recorder_.count(rows)};
}

void GpuBackend::plan_scratch(Arena& arena, const ScratchLimits& limits) {
  limits_ = limits;
  const auto take = [&](uint64_t bytes) { return take_aligned(arena, Purpose::kScratch, bytes, kDeviceAlign); };
  const auto floats = [&](int64_t n) { return static_cast<float*>(take(static_cast<uint64_t>(n) * sizeof(float))); };
  const int64_t rows = limits.rows, vocab = limits.vocab, head_rows = limits.head_rows;
  int64_t wide = limits.max_k;
  if (limits.delta.nv > 0) {
    const DeltaShape& d = limits.delta;
    wide = std::max<int64_t>(wide, d.value_dim());
    conv_ = floats(rows * d.conv_dim());
    gates_ = floats(rows * 2 * d.nv);
    saved_ = floats(int64_t{kDeltaGroups} * limits.state_slots * d.state_elems());
    chunk_capacity_ = delta_chunked(info_) ? delta_chunk_capacity(limits.rows) : 0;
    if (chunk_capacity_ > 0) chunk_scratch_ = take(delta_chunk_scratch_bytes(d, chunk_capacity_));
  }
  rows_ = floats(rows * wide);
  const AttentionLayer& a = limits.score.q_heads > 0 ? limits.score : limits.attention;
  if (a.q_heads > 0) {
    query_ = floats(rows * a.q_heads * a.kv.dim);
    attention_scratch_bytes_ =
        attention_scratch_bytes(attention_mode(a.kv, info_), a.kv, a.q_heads, row_bucket(limits.rows));
    attention_scratch_ = take(attention_scratch_bytes_);
  }
  if (limits.score.q_heads > 0) {
    score_scratch_ = floats(score_scratch_floats(limits.max_query, a.q_heads, a.kv.capacity));
  }
  matmul_scratch_ = take(matmul_scratch_bytes(info_.processors));
  if (follows_) arrivals_ = static_cast<int32_t*>(take(kArrivals * sizeof(int32_t)));
  if (vocab > 0) {
    logits_stride_ = (vocab + 15) / 16 * 16;
    logits_ = floats(head_rows * logits_stride_);
    head_acts_ = acts_of(arena, limits.max_k, limits.head_rows, limits.forms, false);
    choose_scratch_ = take(choose_scratch_bytes(vocab, limits.head_rows));
  }
  // Plans: rows of attention and DeltaNet with their ancestors, page tables, positions, tokens, transfers; loose:
  // masks, and the longest bias and penalty lists of one row. Results: features, one row of logits; loose: numbers
  // per row.
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const int64_t pages = limits.score.q_heads > 0 ? kv_pages(limits.score.kv.capacity) : limits.pages;
  Recorder::Sizes sizes;
  sizes.plan = kMiB + static_cast<uint64_t>(row_bucket(limits.rows) * int64_t{4096} + vocab * 8 + pages * 32);
  sizes.loose_plan = kMiB / 4 + static_cast<uint64_t>(head_rows * (vocab / 8 + 64) + vocab * 16);
  sizes.results = 4 * kMiB + static_cast<uint64_t>(vocab * 8);
  sizes.loose_results = kMiB / 4 + static_cast<uint64_t>(head_rows * (int64_t{limits.max_top_k} * 8 + 256));
  void* plan_memory = take(Recorder::padded(sizes.plan) + Recorder::padded(sizes.loose_plan));
  void* result_memory = take(Recorder::padded(sizes.results) + Recorder::padded(sizes.loose_results));
  if (arena.measuring()) return;
  if (follows_) stream_.fill(arrivals_, 0, kArrivals * sizeof(int32_t));
  const Status status = recorder_.set_memory(plan_memory, result_memory, sizes);
  if (!status.ok()) stream_.fail(status);
}

// ---- transfers

void GpuBackend::copy(void* dst, const void* src, uint64_t bytes) {
  CopyArgs& args = recorder_.add(launch_copy);
  args.dst = dst;
  args.src = src;
  args.bytes = bytes;
}

void GpuBackend::upload(float* dst, const float* src, int64_t n) {
  const uint64_t bytes = static_cast<uint64_t>(n) * sizeof(float);
  if (bytes == 0) return;
  if (bytes > recorder_.plan_capacity() / 2) {
    to_device(dst, src, bytes);
    return;
  }
  if (!recorder_.reserve(Recorder::padded(bytes))) return;
  copy(dst, recorder_.put(src, static_cast<size_t>(n)), bytes);
}

void GpuBackend::upload_bf16(float* dst, const void* src, int64_t n) {
  const uint8_t* const from = static_cast<const uint8_t*>(src);
  const int64_t most = static_cast<int64_t>(recorder_.plan_capacity() / sizeof(uint16_t) / 2);
  for (int64_t at = 0; at < n; at += most) {
    const int64_t count = std::min(most, n - at);
    const size_t bytes = static_cast<size_t>(count) * sizeof(uint16_t);
    if (!recorder_.reserve(Recorder::padded(bytes))) return;
    WidenArgs& args = recorder_.add(launch_widen_bf16);
    args.src = reinterpret_cast<const uint16_t*>(recorder_.put(from + at * 2, bytes));
    args.dst = dst + at;
    args.n = count;
  }
}

void GpuBackend::upload_rows(float* dst, const float* src, int rows, int64_t dim) {
  const int most = row_room(rows);
  const uint64_t row_bytes = static_cast<uint64_t>(dim) * sizeof(float);
  const uint64_t bytes = static_cast<uint64_t>(most) * row_bytes;
  if (prompt_rows_ > 0 || bytes > recorder_.plan_capacity() / 2) return upload(dst, src, rows * dim);
  if (!recorder_.reserve(Recorder::padded(bytes))) return;
  const Rows r = bucketed(rows);
  copy(dst, recorder_.put(src, static_cast<size_t>(rows * dim), static_cast<size_t>(most * dim)), bytes);
  CopyArgs& args = *recorder_.last(launch_copy);
  args.live = r.live;
  args.row_bytes = row_bytes;
}

void GpuBackend::upload_rows_bf16(float* dst, const void* src, int rows, int64_t dim) {
  const int64_t n = row_room(rows) * dim;
  const uint64_t bytes = static_cast<uint64_t>(n) * sizeof(uint16_t);
  if (prompt_rows_ > 0 || bytes > recorder_.plan_capacity() / 2) return upload_bf16(dst, src, rows * dim);
  if (!recorder_.reserve(Recorder::padded(bytes))) return;
  const Rows r = bucketed(rows);
  const auto* from = static_cast<const uint8_t*>(src);
  const void* const at =
      recorder_.put(from, static_cast<size_t>(rows * dim) * sizeof(uint16_t), static_cast<size_t>(bytes));
  WidenArgs& args = recorder_.add(launch_widen_bf16);
  args.src = static_cast<const uint16_t*>(at);
  args.dst = dst;
  args.n = n;
  args.live = r.live;
  args.row = dim;
}

void GpuBackend::download_rows(float* host, const float* src, int rows, int64_t dim) {
  const uint64_t row_bytes = static_cast<uint64_t>(dim) * sizeof(float);
  const uint64_t bytes = static_cast<uint64_t>(row_room(rows)) * row_bytes;
  if (prompt_rows_ > 0 || bytes > recorder_.result_capacity() / 2) return download(host, src, rows * dim);
  if (!recorder_.reserve(0, Recorder::padded(bytes))) return;
  const Rows r = bucketed(rows);
  copy(recorder_.result(host, static_cast<uint64_t>(rows) * row_bytes, bytes), src, bytes);
  CopyArgs& args = *recorder_.last(launch_copy);
  args.live = r.live;
  args.row_bytes = row_bytes;
}

void GpuBackend::download_rows_bf16(uint16_t* host, const float* src, int rows, int64_t dim) {
  const int64_t n = row_room(rows) * dim;
  const uint64_t bytes = static_cast<uint64_t>(n) * sizeof(uint16_t);
  if (prompt_rows_ > 0 || bytes > recorder_.result_capacity() / 2) return download_bf16(host, src, rows * dim);
  if (!recorder_.reserve(0, Recorder::padded(bytes))) return;
  const Rows r = bucketed(rows);
  RoundArgs& args = recorder_.add(launch_round_bf16);
  args.src = src;
  args.dst =
      static_cast<uint16_t*>(recorder_.result(host, static_cast<uint64_t>(rows * dim) * sizeof(uint16_t), bytes));
  args.n = n;
  args.live = r.live;
  args.row = dim;
}

void GpuBackend::zero(float* dst, int64_t n) {
  FillArgs& args = recorder_.add(launch_fill);
  args.dst = dst;
  args.bytes = static_cast<uint64_t>(n) * sizeof(float);
}

void GpuBackend::download(float* host, const float* src, int64_t n) {
  const uint64_t bytes = static_cast<uint64_t>(n) * sizeof(float);
  if (bytes == 0) return;
  if (bytes > recorder_.result_capacity() / 2) {
    to_host(host, src, bytes);
    return;
  }
  if (!recorder_.reserve(0, Recorder::padded(bytes))) return;
  copy(recorder_.result(host, bytes), src, bytes);
}

void GpuBackend::download_bf16(uint16_t* host, const float* src, int64_t n) {
  const int64_t most = static_cast<int64_t>(recorder_.result_capacity() / sizeof(uint16_t) / 2);
  for (int64_t at = 0; at < n; at += most) {
    const int64_t count = std::min(most, n - at);
    const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(uint16_t);
    if (!recorder_.reserve(0, Recorder::padded(bytes))) return;
    RoundArgs& args = recorder_.add(launch_round_bf16);
    args.src = src + at;
    args.dst = static_cast<uint16_t*>(recorder_.result(host + at, bytes));
    args.n = count;
  }
}

void GpuBackend::copy_rows(const float* x, int64_t dim, std::span<const int32_t> rows, std::span<const int32_t> to,
                           float* dst, int64_t dst_stride) {
  if (rows.empty()) return;
  const int n = static_cast<int>(rows.size());
  const size_t most = static_cast<size_t>(row_room(n));
  if (!recorder_.reserve(2 * Recorder::padded(most * sizeof(int32_t)))) return;
  const Rows r = bucketed(n);
  CopyRowsArgs& args = recorder_.add(launch_copy_rows);
  args.src = x;
  args.rows = recorder_.put(rows, most);
  if (!to.empty()) args.to = recorder_.put(to, most);
  args.n = r.most;
  args.live = r.live;
  args.dim = dim;
  args.dst = dst;
  args.dst_stride = dst_stride;
}

// ---- rows

void GpuBackend::embed(const Matrix& table, std::span<const int32_t> tokens, float* x) {
  const int rows = static_cast<int>(tokens.size());
  const size_t most = static_cast<size_t>(row_room(rows));
  if (!recorder_.reserve(Recorder::padded(most * sizeof(int32_t)))) return;
  const Rows r = bucketed(rows);
  EmbedArgs& args = recorder_.add(launch_embed);
  args.table = static_cast<const GpuMatrix&>(table).weight;
  args.tokens = recorder_.put(tokens, most);
  args.rows = r.most;
  args.live = r.live;
  args.y = x;
  args.y_stride = table.k;
}

void GpuBackend::norm(const float* x, const float* w, float eps, int rows, int64_t dim, InputForms forms, Acts* out) {
  if (norm_after_product(x, w, eps, row_room(rows), dim, forms, out)) return;
  const Rows r = bucketed(rows);
  for (const Part& part : outputs(out, r.most)) {
    NormArgs& args = recorder_.add(launch_norm);
    fill_norm(args, x + part.first * dim, w, eps, part.rows, dim);
    args.live = r.live;
    args.acts = part.acts;
    args.forms = forms;
  }
}

void GpuBackend::norm_rows(const float* x, const float* w, float eps, int rows, int64_t dim, float* y) {
  const Rows r = bucketed(rows);
  NormArgs& args = recorder_.add(launch_norm);
  fill_norm(args, x, w, eps, r.most, dim);
  args.live = r.live;
  args.y = y;
}

void GpuBackend::prepare(const float* x, int64_t stride, int rows, int64_t dim, InputForms forms, Acts* out) {
  const Rows r = bucketed(rows);
  for (const Part& part : outputs(out, r.most)) {
    PrepareArgs& args = recorder_.add(launch_prepare);
    args.x = x + part.first * stride;
    args.x_stride = stride;
    args.rows = part.rows;
    args.live = r.live;
    args.k = static_cast<int32_t>(dim);
    args.forms = forms;
    args.acts = part.acts;
  }
}

NormInput GpuBackend::norm_in_product(std::span<const Product> products, const Parts& in, int rows) {
  const NormArgs* norm = recorder_.last(launch_norm);
  const ActsView& acts = in.part[0].acts;
  const DeviceWeight& first = static_cast<const GpuMatrix*>(products[0].w)->weight;
  if (norm == nullptr || in.mixed() || norm->forms != kFormHalf || acts.paired == 0 || acts.prompt != Prompt::kNone ||
      norm->rows != rows || norm->acts.pairs != acts.pairs || products.size() > kMaxProducts || rows > kGraphRows ||
      !matmul_fuses_norm(info_, rows, first.k)) {
    return {};
  }
  for (const Product& p : products) {
    if (static_cast<const GpuMatrix*>(p.w)->weight.type != first.type) return {};
  }
  const NormInput input{norm->x, norm->gather, norm->w, norm->eps};
  recorder_.drop_last();
  return input;
}

void GpuBackend::matmul(std::span<const Product> products, const Acts& in, int rows) {
  const Rows r = bucketed(rows);
  const Parts inputs = parts(in, r.most);
  const NormInput norm = norm_in_product(products, inputs, r.most);
  if (norm.x != nullptr) {
    static_cast<const GpuActs&>(in).stale = true;
  } else if (static_cast<const GpuActs&>(in).stale) {
    stream_.fail(errorf(TND_INTERNAL, "products of inputs that were not written"));
  }
  for (const Part& part : inputs) matmul_part(products, part, r, norm);
}

void GpuBackend::matmul_part(std::span<const Product> products, const Part& part, const Rows& rows,
                             const NormInput& norm) {
  for (size_t first = 0; first < products.size(); first += kMaxProducts) {
    MatmulGroup& group = recorder_.add(launch_matmul);
    group.rows = part.rows;
    group.live = rows.live;
    group.acts = part.acts;
    group.norm.x = norm.x;
    group.norm.gather = norm.gather;
    group.norm.w = norm.w;
    group.norm.eps = norm.eps;
    group.scratch = matmul_scratch_;
    group.processors = info_.processors;
    group.shared_per_block = info_.shared_per_block;
    group.count = static_cast<int32_t>(std::min<size_t>(kMaxProducts, products.size() - first));
    for (int i = 0; i < group.count; ++i) {
      const Product& p = products[first + static_cast<size_t>(i)];
      MatmulProduct& to = group.products[i];
      to.w = static_cast<const GpuMatrix*>(p.w)->weight;
      to.y = p.y + part.first * p.y_stride;
      to.residual = p.residual != nullptr ? p.residual + part.first * p.y_stride : nullptr;
      to.y_stride = p.y_stride;
    }
  }
}

bool GpuBackend::swiglu_in_product(const float* gate, const float* up, int rows, int64_t dim, InputForms forms,
                                   Acts* out) {
  GpuActs& acts = *static_cast<GpuActs*>(out);
  if (parts(acts, rows).mixed()) return false;
  MatmulGroup* product = recorder_.last(launch_matmul);
  if (product == nullptr || acts.other.pairs == nullptr || forms != kFormHalf || rows > kGraphRows ||
      !matmul_fuses(info_, rows, product->products[0].w.k)) {
    return false;
  }
  const MatmulProduct &g = product->products[0], &u = product->products[1];
  if (product->count != 2 || product->rows != rows || g.y != gate || u.y != up || g.w.n != dim || u.w.n != dim ||
      g.w.type != u.w.type || act_form(g.w.type) != kFormHalf || product->acts.paired == 0 ||
      product->acts.prompt != Prompt::kNone || product->acts.pairs == acts.other.pairs) {
    return false;
  }
  acts.in_other = true;
  acts.stale = false;
  product->swiglu = parts(acts, rows).part[0].acts;
  return true;
}

void GpuBackend::swiglu(const float* gate, const float* up, int rows, int64_t dim, InputForms forms, Acts* out) {
  if (swiglu_in_product(gate, up, row_room(rows), dim, forms, out) ||
      swiglu_after_product(gate, up, row_room(rows), dim, forms, out)) {
    return;
  }
  const Rows r = bucketed(rows);
  for (const Part& part : outputs(out, r.most)) {
    SwigluArgs& args = recorder_.add(launch_swiglu);
    fill_swiglu(args, gate + part.first * dim, up + part.first * dim, part.rows, dim);
    args.live = r.live;
    args.acts = part.acts;
    args.forms = forms;
  }
}

// ---- gated DeltaNet

namespace {

// Room for the plans of chunks, for the worst case that each chain has its own lists.
uint64_t chunk_plan_bytes(std::span<const DeltaGroup> groups, int capacity) {
  uint64_t bytes = 0;
  if (capacity == 0) return bytes;
  for (const DeltaGroup& g : groups) {
    if (!DeltaChunks::takes(g)) continue;
    const uint64_t chunks = static_cast<uint64_t>((g.count + kDeltaChunk - 1) / kDeltaChunk);
    bytes += Recorder::padded(chunks * sizeof(DeltaChunk)) + Recorder::padded(sizeof(DeltaChain));
  }
  return bytes;
}

}  // namespace

void GpuBackend::delta_mixer(const DeltaLayer& w, int layer, std::span<const DeltaGroup> groups, int rows,
                             const DeltaIo& io, InputForms forms, Acts* out) {
  const int capacity = chunk_capacity_;
  delta_.plan(groups, rows, 0);
  delta_groups_.assign(prompt_rows_ > 0 ? groups.size() : group_bucket(groups.size()), DeltaStepGroup());
  for (size_t g = 0; g < groups.size(); ++g) {
    DeltaStepGroup& to = delta_groups_[g];
    to.first = groups[g].first;
    to.count = groups[g].count;
    to.commit = groups[g].commit ? 1 : 0;
    to.chunked = capacity > 0 && DeltaChunks::takes(groups[g]) ? 1 : 0;
    to.state = groups[g].states[layer];
    if (!groups[g].commit) to.replay = groups[g].replay[layer];
  }
  const size_t most = static_cast<size_t>(row_room(rows));
  if (!recorder_.reserve(Recorder::padded(most * sizeof(DeltaStepRow)) +
                         Recorder::padded(delta_groups_.size() * sizeof(DeltaStepGroup)) +
                         chunk_plan_bytes(groups, capacity))) {
    return;
  }
  const Rows r = bucketed(rows);
  const DeltaStepRow* row_plans = recorder_.put_same(kDeltaRows, std::span<const DeltaStepRow>(delta_.rows), most);
  const DeltaStepGroup* group_plans = recorder_.put(delta_groups_.data(), delta_groups_.size());
  const auto fill = [&](DeltaArgs& args, size_t first, size_t count) {
    args.w = w;
    args.io = io;
    args.rows = r.most;
    args.live = r.live;
    args.groups = static_cast<int>(count);
    args.row_plans = row_plans;
    args.group_plans = group_plans + first;
    args.conv = conv_;
    args.gates = gates_;
    args.mixed = rows_;
    args.saved = saved_;
    args.state_slots = limits_.state_slots;
    args.shared_per_block = info_.shared_per_block;
    args.processors = info_.processors;
  };
  DeltaArgs* const conv = conv_after_product(w.shape, io, r.most);
  fill(conv != nullptr ? *conv : recorder_.add(launch_delta_conv), 0, delta_groups_.size());
  const Parts to = outputs(out, r.most);
  const auto fill_gated = [&](GatedNormArgs& norm, const Part& part) {
    const int64_t width = w.shape.value_dim();
    norm.o = norm.y = rows_ + part.first * width;
    norm.w = w.norm;
    norm.z = io.z + part.first * width;
    norm.eps = w.eps;
    norm.rows = part.rows;
    norm.live = r.live;
    norm.heads = w.shape.nv;
    norm.acts = part.acts;
    norm.forms = forms;
  };
  const bool followed = rule_follows(
      delta_rule({delta_groups_.data(), std::min<size_t>(kDeltaGroups, delta_groups_.size())}), w.shape, r.most);
  for (size_t first = 0; first < delta_groups_.size(); first += kDeltaGroups) {
    const size_t count = std::min<size_t>(kDeltaGroups, delta_groups_.size() - first);
    const auto* window = delta_groups_.data() + first;
    if (std::all_of(window, window + count, [](const DeltaStepGroup& g) { return g.chunked != 0; })) continue;
    const DeltaRule rule = delta_rule({window, count});
    if (!followed) {
      fill(recorder_.add(rule), first, count);
      continue;
    }
    FollowedDelta& args =
        recorder_.add(rule == launch_delta_columns ? launch_followed_columns : launch_followed_slices);
    fill(args.delta, first, count);
    fill_gated(args.norm, to.part[0]);
    args.arrivals = arrivals_;
  }
  if (followed) return;
  for (size_t first = 0; capacity > 0;) {
    first = chunks_.plan(groups, first, capacity);
    if (chunks_.chains.empty()) break;
    const DeltaChunk* chunks = recorder_.put_same(kDeltaChunks, std::span<const DeltaChunk>(chunks_.chunks));
    const DeltaChain* chains = recorder_.put_same(kDeltaChains, std::span<const DeltaChain>(chunks_.chains));
    for (const auto operation : {launch_delta_prepare, launch_delta_states}) {
      DeltaChunkArgs& args = recorder_.add(operation);
      args.w = w;
      args.io = io;
      args.group_plans = group_plans;
      args.chunks = chunks;
      args.chains = chains;
      args.n_chunks = static_cast<int>(chunks_.chunks.size());
      args.n_chains = static_cast<int>(chunks_.chains.size());
      args.conv = conv_;
      args.gates = gates_;
      args.mixed = rows_;
      args.scratch = chunk_scratch_;
      args.shared_per_block = info_.shared_per_block;
    }
  }
  for (const Part& part : to) fill_gated(recorder_.add(launch_gated_norm), part);
}

// Lists are as long as the longest path, so that commits of any length are one graph.
void GpuBackend::delta_commit(const DeltaShape& shape, std::span<const DeltaState> states,
                              std::span<const DeltaReplay> replay, std::span<const int32_t> path) {
  if (path.empty()) return;
  const uint64_t need = Recorder::padded(states.size_bytes()) + Recorder::padded(replay.size_bytes()) +
                        Recorder::padded(kMaxPath * sizeof(int32_t)) + Recorder::padded(sizeof(int32_t));
  if (!recorder_.reserve(need)) return;
  numbers_.assign(kMaxPath, 0);
  std::copy(path.begin(), path.end(), numbers_.begin());
  const int32_t count = static_cast<int32_t>(path.size());
  DeltaCommitArgs& args = recorder_.add(launch_delta_commit);
  args.shape = shape;
  args.layers = static_cast<int>(states.size());
  args.states = recorder_.put(states);
  args.replay = recorder_.put(replay);
  args.path = recorder_.put(numbers_.data(), numbers_.size());
  args.count = recorder_.put(&count, 1);
}

// ---- attention

// Steps of trees of any shape have equal lists: tiles without rows come at the end.
void GpuBackend::pad_tiles(size_t groups, int rows) {
  constexpr int kTailRows = 16;  // rows that share a tail: a block or two of tiles, whatever their number
  constexpr int kFewTails = 8;
  AttentionStep& step = attention_;
  groups = group_bucket(groups);
  step.bulk.resize(tile_bucket(step.bulk.size(), groups, rows, 0), AttentionTile());
  step.tail.resize(tile_bucket(step.tail.size(), groups, rows, kFewTails), AttentionTile());
  step.bulk_rows = share_bucket(step.bulk_rows);
  step.tail_rows = std::min(share_bucket(step.tail_rows, kTailRows), std::max(step.bulk_rows, step.tail_rows));
}

void GpuBackend::attention(const AttentionLayer& w, int layer, const AttentionPlan& plan, int rows,
                           const AttentionIo& io, InputForms forms, Acts* out) {
  const int64_t dim = w.kv.dim, q_width = dim * w.q_heads;
  const size_t most = static_cast<size_t>(row_room(rows));
  AttentionStep& step = attention_;
  step.plan(plan, rows);
  size_t most_tails = step.tails.size(), most_pages = step.pages.size();
  if (prompt_rows_ == 0) {
    pad_tiles(plan.groups.size(), row_room(rows));
    most_tails = ancestor_bucket(most_tails, row_room(rows));
    most_pages = table_bucket(most_pages);
  }
  const auto need = [](const auto& v, size_t most) { return Recorder::padded(most * sizeof(v[0])); };
  if (!recorder_.reserve(need(step.rows, most) + need(step.tails, most_tails) + need(step.pages, most_pages) +
                         need(step.bulk, step.bulk.size()) + need(step.tail, step.tail.size()))) {
    return;
  }

  const Rows r = bucketed(rows);
  const auto put = [&](Key key, const auto& v, size_t room = 0) { return recorder_.put_same(key, std::span(v), room); };
  const AttentionRow* row_plans = put(kAttentionRows, std::as_const(step.rows), most);
  HeadsArgs* const followed = heads_after_product(w, io, r.most);
  HeadsArgs& heads = followed != nullptr ? *followed : recorder_.add(launch_heads);
  heads.kv = w.kv;
  heads.q_heads = w.q_heads;
  heads.rope_dims = w.rope_dims;
  heads.gated = w.gated;
  heads.eps = w.eps;
  heads.q_norm = w.q_norm;
  heads.k_norm = w.k_norm;
  heads.rows = r.most;
  heads.live = r.live;
  heads.row_plans = row_plans;
  heads.cache = plan.caches[layer];
  heads.rope = plan.rope;
  heads.q = io.q;
  heads.q_out = query_;
  heads.q_halves = attention_mode(w.kv, info_) == AttentionMode::kFlash;
  heads.k = io.k;
  heads.v = io.v;
  if (io.q == nullptr) return;

  AttentionArgs& args = recorder_.add(launch_attention);
  args.mode = attention_mode(w.kv, info_);
  args.kv = w.kv;
  args.q_heads = w.q_heads;
  args.scale = w.scale;
  args.rows = r.most;
  args.live = r.live;
  args.cache = plan.caches[layer];
  args.row_plans = row_plans;
  args.tails = put(kAttentionTails, std::as_const(step.tails), most_tails);
  args.pages = put(kAttentionPages, std::as_const(step.pages), most_pages);
  args.bulk = put(kAttentionBulk, std::as_const(step.bulk));
  args.tail = put(kAttentionTail, std::as_const(step.tail));
  args.n_bulk = static_cast<int>(step.bulk.size());
  args.n_tail = static_cast<int>(step.tail.size());
  args.bulk_rows = step.bulk_rows;
  args.tail_rows = step.tail_rows;
  args.many_keys = step.keys >= many_keys(args.kv);
  args.q = query_;
  if (w.gated) {
    args.gate = io.q + dim;
    args.gate_row = 2 * q_width;
    args.gate_head = 2 * dim;
  }
  args.out = query_;
  args.scratch = attention_scratch_;
  args.scratch_bytes = attention_scratch_bytes_;
  args.shared_per_block = info_.shared_per_block;
  args.wgmma = has_attention_wgmma(info_);
  args.processors = info_.processors;
  const Parts to = outputs(out, r.most);
  if (!to.mixed()) {
    args.acts = to.part[0].acts;
    args.forms = forms;
    return;
  }
  for (const Part& part : to) {  // the output stays floats and is prepared by contract
    PrepareArgs& prepare = recorder_.add(launch_prepare);
    prepare.x = query_ + part.first * q_width;
    prepare.x_stride = q_width;
    prepare.rows = part.rows;
    prepare.k = static_cast<int32_t>(q_width);
    prepare.forms = forms;
    prepare.acts = part.acts;
  }
}

void GpuBackend::kv_move(const KvShape& shape, std::span<const KvCache> caches, std::span<const int32_t> from,
                         std::span<const int32_t> to) {
  if (from.empty() || caches.empty()) return;
  const uint64_t list = Recorder::padded(kMaxPath * sizeof(int32_t));
  if (!recorder_.reserve(Recorder::padded(caches.size_bytes()) + 2 * list + Recorder::padded(sizeof(int32_t)))) return;
  const int32_t count = static_cast<int32_t>(from.size());
  KvMoveArgs& args = recorder_.add(launch_kv_move);
  args.shape = shape;
  args.caches = recorder_.put(caches);
  args.n_caches = static_cast<int>(caches.size());
  const auto padded = [&](std::span<const int32_t> slots) {
    numbers_.assign(kMaxPath, 0);
    std::copy(slots.begin(), slots.end(), numbers_.begin());
    return recorder_.put(numbers_.data(), numbers_.size());
  };
  args.from = padded(from);
  args.to = padded(to);
  args.count = recorder_.put(&count, 1);
}

uint64_t GpuBackend::kv_bytes(const KvShape& shape, bool keys) const {
  return kv_cache_bytes(shape, keys);
}

uint64_t GpuBackend::kv_row_bytes(const KvShape& shape) const {
  return kv_row_size(shape);
}

namespace {

// Calls f(position, count) for pieces of at most `bytes` bytes of rows.
template <typename F>
void for_pieces(int32_t n, uint64_t row, uint64_t bytes, F&& f) {
  const int32_t most = static_cast<int32_t>(std::max<uint64_t>(bytes / row, 1));
  for (int32_t at = 0; at < n; at += most) {
    if (!f(at, std::min(most, n - at))) return;
  }
}

// Room for the pages of so many positions.
uint64_t table_bytes(int32_t count) {
  return Recorder::padded((static_cast<uint64_t>(count) / kKvPage + 2) * sizeof(int32_t));
}

}  // namespace

// The pages of positions [at, at + count) go to the plan.
KvRowsArgs* GpuBackend::rows_of(void (*operation)(Stream&, const KvRowsArgs&), const KvShape& shape,
                                const KvCache& cache, const int32_t* pages, int32_t at, int32_t count) {
  const int32_t first = at / kKvPage;
  const int32_t* table = recorder_.put(pages + first, static_cast<size_t>(kv_pages(at + count) - first));
  KvRowsArgs& args = recorder_.add(operation);
  args.shape = shape;
  args.cache = cache;
  args.pages = table;
  args.first = at - first * kKvPage;
  args.n = count;
  return &args;
}

void GpuBackend::kv_export(const KvShape& shape, const KvCache& cache, const int32_t* pages, int32_t n, void* host) {
  const uint64_t row = kv_row_size(shape);
  for_pieces(n, row, recorder_.result_capacity() / 2, [&](int32_t at, int32_t count) {
    const uint64_t bytes = static_cast<uint64_t>(count) * row;
    if (!recorder_.reserve(table_bytes(count), Recorder::padded(bytes))) return false;
    rows_of(launch_kv_export, shape, cache, pages, at, count)->rows =
        recorder_.result(static_cast<uint8_t*>(host) + static_cast<uint64_t>(at) * row, bytes);
    return true;
  });
}

void GpuBackend::kv_import(const KvShape& shape, const KvCache& cache, const int32_t* pages, int32_t n,
                           const void* host) {
  const uint64_t row = kv_row_size(shape);
  for_pieces(n, row, recorder_.plan_capacity() / 2, [&](int32_t at, int32_t count) {
    const uint64_t bytes = static_cast<uint64_t>(count) * row;
    if (!recorder_.reserve(table_bytes(count) + Recorder::padded(bytes))) return false;
    const auto* from = static_cast<const uint8_t*>(host) + static_cast<uint64_t>(at) * row;
    KvRowsArgs* args = rows_of(launch_kv_import, shape, cache, pages, at, count);
    args->rows = const_cast<uint8_t*>(recorder_.put(from, bytes));
    return true;
  });
}

Status GpuBackend::sync() {
  packers_.reset();
  return recorder_.flush();
}

Status GpuBackend::start() {
  return recorder_.start();
}

}  // namespace tnd::gpu
