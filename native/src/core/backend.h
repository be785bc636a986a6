// The operations that model code is written against. A model (src/models) is a sequence of these calls and never looks
// into a tensor; a backend (CPU here, CUDA and HIP likewise) implements them and may fuse, reorder and defer what is
// inside one call.
//
// Pointers named "backend" live in backend space (a device pointer on a GPU); "host" pointers are read or written
// before sync() returns. Calls are issued in order; a backend with queues defers errors to sync(). All arithmetic
// follows the contracts in native/NUMERICS.md and native/MODEL_qwen35.md: a row's bits depend on its own inputs and
// ancestors only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/arena.h"
#include "core/dtype.h"
#include "core/stats.h"
#include "core/status.h"
#include "core/tensor_view.h"

namespace tnd {

// Matrix is a weight [n outputs, k inputs] or an embedding table in the backend's own layout; backends derive from it.
struct Matrix {
  DType type = DType::kF32;
  int64_t k = 0, n = 0;
  virtual ~Matrix() = default;
};

// InputForms names the forms in which a set of weights reads its shared input (mask, meaning private to the backend).
using InputForms = uint32_t;

// Acts holds rows prepared as matmul input (normalised and quantised once for all weights that share it).
struct Acts {
  virtual ~Acts() = default;
};

// One product y = W x (+ residual) of a group that shares its input.
struct Product {
  const Matrix* w = nullptr;
  float* y = nullptr;  // backend [rows, w->n], row stride y_stride elements
  int64_t y_stride = 0;
  const float* residual = nullptr;  // backend, same shape and stride, may be y; nullptr = none
};

// ---- gated DeltaNet -------------------------------------------------------------------------------------------------

inline constexpr int kDeltaDim = 128;   // key and value head size
inline constexpr int kConvTaps = 4;     // width of the causal convolution
inline constexpr int kDeltaSlice = 32;  // columns of S stored together
inline constexpr int kStateCommitted = -1;
inline constexpr int kStateNone = -2;

struct DeltaShape {
  int nk = 0, nv = 0;  // key and value heads; value head v uses key head v % nk (GGUF's tiled order)
  constexpr int key_dim() const { return nk * kDeltaDim; }
  constexpr int value_dim() const { return nv * kDeltaDim; }
  constexpr int conv_dim() const { return 2 * key_dim() + value_dim(); }
  // f32 elements of a layer's state of one sequence.
  constexpr int64_t state_elems() const { return int64_t{nv} * kDeltaDim * kDeltaDim; }
  constexpr int64_t taps_elems() const { return int64_t{kConvTaps - 1} * conv_dim(); }
  // f32 elements kept per pending row and layer: conv input, k of every key head, d and alpha of every value head.
  constexpr int64_t replay_elems() const { return conv_dim() + key_dim() + value_dim() + nv; }
};

struct DeltaLayer {
  DeltaShape shape;
  const float* conv = nullptr;  // backend [4, conv_dim]: tap-major, tap 3 multiplies the current token
  const float* a = nullptr;     // backend [nv]: -exp(A_log)
  const float* dt = nullptr;    // backend [nv]
  const float* norm = nullptr;  // backend [128]
  float eps = 0;                // of the gated norm
};

// State of one sequence in one layer.
struct DeltaState {
  float* taps = nullptr;  // backend [3, conv_dim]: last inputs of the convolution, oldest first
  float* s = nullptr;     // backend [nv, 128/32 slices, 128 key rows, 32 columns]
};

// What an uncommitted step leaves behind so that commit can replay accepted rows. Row i of the group is at i * stride.
struct DeltaReplay {
  float* conv_in = nullptr;  // backend [max_tree_rows, conv_dim]
  float* k = nullptr;        // backend [max_tree_rows, nk * 128], after convolution and L2 norm
  float* d = nullptr;        // backend [max_tree_rows, nv * 128]
  float* alpha = nullptr;    // backend [max_tree_rows, nv]
};

// One row's place in its tree. Indices count from the group's first row; parents precede children.
struct DeltaRow {
  int32_t taps[3];    // rows whose inputs are 1, 2, 3 tokens back; -1, -2, -3 = newest .. oldest saved tap
  int32_t state_in;   // save slot to start from, or kStateCommitted
  int32_t state_out;  // save slot that keeps the state after this row, kStateCommitted (committing chain), kStateNone
};

// Rows [first, first + count) of the step belong to one sequence.
struct DeltaGroup {
  int first = 0, count = 0;
  bool commit = false;                  // a chain whose every row is kept: state and taps are updated in place
  const DeltaRow* rows = nullptr;       // host [count]
  const DeltaState* states = nullptr;   // host [delta layers]
  const DeltaReplay* replay = nullptr;  // host [delta layers], unused when commit
  bool prompt = false;                  // has the contract of prompts; needs commit
};

struct DeltaIo {
  const float* qkv = nullptr;    // backend [rows, conv_dim]: projections before the convolution
  const float* z = nullptr;      // backend [rows, value_dim]: output gate
  const float* alpha = nullptr;  // backend [rows, nv]: decay input
  const float* beta = nullptr;   // backend [rows, nv]: write strength before the sigmoid
};

// ---- attention ------------------------------------------------------------------------------------------------------

struct KvShape {
  int32_t k_type = 1, v_type = 1;  // KvType
  int32_t heads = 0, dim = 0;
  int32_t capacity = 0;  // slots of the pool, a multiple of kKvPage (of a scorer's layer: of 16)
};

// Pool of one layer: keys and values of all sequences, which hold pages of it (kv_type.h).
struct KvCache {
  void* k = nullptr;  // backend
  void* v = nullptr;
};

struct AttentionLayer {
  int q_heads = 0;
  KvShape kv;
  int rope_dims = 0;   // leading dims of a head that are rotated, pairs (j, j + rope_dims/2)
  bool gated = false;  // q rows are [256 query | gate] per head and the output is multiplied by sigmoid(gate)
  float scale = 0;
  float eps = 0;                  // of q_norm and k_norm
  const float* q_norm = nullptr;  // backend [dim], nullptr = no norm
  const float* k_norm = nullptr;
};

// What a row sees: cached positions [first, past) by the pages of its group, then the n_tail rows in slots tail[0..] at
// positions past, past + 1, … (its ancestors by depth and itself). Its own K/V go to `slot`. Slots are those of the
// pool.
struct AttentionRowPlan {
  int32_t slot = 0;
  int32_t first = 0;
  int32_t past = 0;
  int32_t n_tail = 0;
  const int32_t* tail = nullptr;  // host
};

struct AttentionGroupPlan {
  int first = 0, count = 0;        // rows of the step
  const int32_t* pages = nullptr;  // host [n_pages]: of the sequence, by position, up to the last that a row sees
  int32_t n_pages = 0;
  int32_t old = 0;  // positions below are no row's of the group and hold what they held at the last sync() or start()
};

struct AttentionPlan {
  std::span<const AttentionGroupPlan> groups;
  const AttentionRowPlan* rows = nullptr;  // host [rows of the step]
  const KvCache* caches = nullptr;         // host [attention layers]: one pool a layer for all groups
  const float* rope = nullptr;             // backend [rows, rope_dims]: cos of the rope_dims/2 pairs, then sin
};

struct AttentionIo {
  float* q = nullptr;        // backend [rows, q_heads * dim * (gated ? 2 : 1)]; nullptr: only append k and v
  float* k = nullptr;        // backend [rows, kv heads * dim]; normed and rotated in place
  const float* v = nullptr;  // backend [rows, kv heads * dim]
};

// ---- scoring a prompt -----------------------------------------------------------------------------------------------

// Positions [first, first + rows) of the prompt that is being scored, in one layer. K and V of a layer, all positions,
// lie in a form of the backend's own, which may be coarser than a cache: scores only rank parts of a prompt.
struct ScoreChunk {
  int32_t first = 0;
  int rows = 0;
  bool rotated = false;          // scores are those of q and k after the rotation
  const float* rope = nullptr;   // backend [rows, rope_dims] as in AttentionPlan
  int n_query = 0;               // scoring rows; 0 = no scores
  const float* query = nullptr;  // backend [n_query, q_heads * dim] from score_queries
  float* dots = nullptr;         // backend [n_query * q_heads, stride]: columns first + r are written
  int64_t stride = 0;
  void* kv = nullptr;  // backend, score_kv_bytes
};

// ---- head -----------------------------------------------------------------------------------------------------------

// A token of a row's penalty window and how often it occurs there.
struct TokenCount {
  int32_t token, count;
};

// Sampler settings after validation; meaning and order of operations: docs/sampling.md.
struct SamplerParams {
  float temperature = 0, top_p = 1, min_p = 0;
  float repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  int32_t top_k = 0;
  uint64_t seed = 0;
  int32_t choice = 0;
  std::span<const int32_t> bias_tokens;  // host
  std::span<const float> bias_values;
};

// What is wanted of one row of the step. Output pointers are host memory, nullptr = not wanted.
struct HeadRow {
  int32_t row = 0;                         // of x
  const SamplerParams* sampler = nullptr;  // nullptr = argmax
  std::span<const TokenCount> history;     // host: penalty window of the row's own path, distinct tokens
  const uint32_t* mask = nullptr;          // host: allowed tokens, nullptr = all
  int32_t output_position = 0;             // counter of the random numbers
  int32_t* token = nullptr;                // chosen token and its log-probability
  float* logprob = nullptr;
  int32_t score_token = 0;
  float* score = nullptr;     // log-probability of score_token
  int32_t top_k = 0;          // entries of top_ids / top_logprobs
  float top_temperature = 1;  // log-probabilities of `top` are those of logits / top_temperature
  int32_t* top_ids = nullptr;
  float* top_logprobs = nullptr;
  float* logits = nullptr;  // [vocab]
};

struct HeadArgs {
  const float* x = nullptr;     // backend [rows, hidden]: residual stream
  const float* norm = nullptr;  // backend [hidden]: final norm
  float eps = 0;
  const Matrix* w = nullptr;        // [vocab, hidden]
  const uint32_t* never = nullptr;  // host bits of tokens that are never chosen (ceil(vocab/32)), nullptr = none
  std::span<const HeadRow> rows;
};

// ---- features -------------------------------------------------------------------------------------------------------

struct FuseLayer {
  const Matrix* fc = nullptr;   // [fused, captures * hidden]
  const float* norm = nullptr;  // backend [fused]
  float eps = 0;
};

// Sizes from which a backend plans its private scratch.
struct ScratchLimits {
  int rows = 0;       // widest step
  int head_rows = 0;  // rows of one head product
  int64_t vocab = 0;
  int64_t max_k = 0;         // widest matmul input
  InputForms forms = 0;      // of all weights
  DeltaShape delta;          // nv = 0: none
  int state_slots = 0;       // saved states of one tree (kStateCommitted excluded)
  AttentionLayer attention;  // widest; q_heads = 0: none
  int32_t max_context = 0;
  int64_t pages = 0;     // most entries of the page tables of one step, over all groups
  AttentionLayer score;  // layers of a scorer; q_heads = 0: none
  int max_query = 0;     // scoring rows
  int64_t fused = 0;     // widest fused feature
  int32_t max_top_k = 0;
};

// Callers state the contract of prompts for pieces of more rows than these.
inline constexpr int kPromptRows = 64;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;    // "cpu"
  virtual std::string device() const = 0;  // human text
  // numerics returns the numeric contract: the backend, the kind of device and a version for each set of kernels that
  // has bits of its own (NUMERICS.md, "Contract id"). A change of bits raises the version of its set.
  virtual std::string numerics() const = 0;
  // prompt_bits reports whether the rows of a prompt have other bits than the same rows in steps of decoding.
  virtual bool prompt_bits() const = 0;
  virtual uint64_t free_bytes() const = 0;  // memory that an engine could get now
  // host_memory reports whether backend space is the host's memory, so that what the host keeps counts against it.
  virtual bool host_memory() const { return false; }

  // count_in has a backend count in `stats` what its calls run (Counter::kGraphRuns and those after it).
  virtual void count_in([[maybe_unused]] Stats* stats) {}

  // ---- memory and loading (may be slow, may fail)
  // allocate returns a zeroed region in backend space, release gives it back. The caller accounts for the cap.
  virtual Status allocate(uint64_t bytes, void** base) = 0;
  virtual void release(void* base) = 0;
  // matrix plans (measuring arena) or loads a weight: memory from the arena, all types of dtype_matmul.
  virtual Status matrix(const TensorView& t, Arena& arena, std::unique_ptr<Matrix>* out) = 0;
  virtual InputForms forms(const Matrix& w) const = 0;
  // upload copies host floats to backend space, upload_bf16 host bfloat16 (not aligned) as floats, zero clears; all in
  // order with the operations below.
  virtual void upload(float* dst, const float* src, int64_t n) = 0;
  virtual void upload_bf16(float* dst, const void* src, int64_t n) = 0;
  virtual void zero(float* dst, int64_t n) = 0;
  // acts plans an input buffer; forms is the union of what its readers need.
  virtual std::unique_ptr<Acts> acts(Arena& arena, int64_t max_k, int max_rows, InputForms forms) = 0;
  // plan_scratch takes the backend's own scratch; call with a measuring arena first, then with the real one.
  virtual void plan_scratch(Arena& arena, const ScratchLimits& limits) = 0;
  virtual uint64_t kv_bytes(const KvShape& shape, bool keys) const = 0;

  // ---- a step
  // begin_step says that the first prompt_rows rows of the operations up to its next call (all, if they have no more)
  // have the contract of prompts and the others that of decoding: products of a prompt may have a precision and an
  // order of sums of their own (NUMERICS.md), whatever the number of its rows. Without a call nothing is a prompt's.
  // rows: of the step, a hint for backends that replay steps; operations on fewer of them are recorded for as many.
  virtual void begin_step([[maybe_unused]] int prompt_rows, [[maybe_unused]] int rows) {}
  // row_room returns how many rows outputs of a step of `rows` rows should have room for where one lies behind the
  // other: a backend that replays steps does so for equal addresses.
  virtual int row_room(int rows) const { return rows; }
  // upload_rows, .., download_rows_bf16 are upload, .., download_bf16 of rows whose number differs from step to step.
  virtual void upload_rows(float* dst, const float* src, int rows, int64_t dim) { upload(dst, src, rows * dim); }
  virtual void upload_rows_bf16(float* dst, const void* src, int rows, int64_t dim) {
    upload_bf16(dst, src, rows * dim);
  }
  virtual void download_rows(float* host, const float* src, int rows, int64_t dim) { download(host, src, rows * dim); }
  virtual void download_rows_bf16(uint16_t* host, const float* src, int rows, int64_t dim) {
    download_bf16(host, src, rows * dim);
  }
  // embed: x[r] = row tokens[r] of the table.
  virtual void embed(const Matrix& table, std::span<const int32_t> tokens, float* x) = 0;
  // download copies to host floats, download_bf16 rounds to bfloat16 (nearest, ties to even).
  virtual void download(float* host, const float* src, int64_t n) = 0;
  virtual void download_bf16(uint16_t* host, const float* src, int64_t n) = 0;
  // norm: out = rms_norm(x) * w, prepared as matmul input. x backend [rows, dim].
  virtual void norm(const float* x, const float* w, float eps, int rows, int64_t dim, InputForms forms, Acts* out) = 0;
  // prepare: out = x, prepared as matmul input (row stride in elements).
  virtual void prepare(const float* x, int64_t stride, int rows, int64_t dim, InputForms forms, Acts* out) = 0;
  // norm_rows: y = rms_norm(x) * w in float32; y may be x.
  virtual void norm_rows(const float* x, const float* w, float eps, int rows, int64_t dim, float* y) = 0;
  virtual void matmul(std::span<const Product> products, const Acts& in, int rows) = 0;
  // swiglu: out = silu(gate) * up, prepared as matmul input. gate, up backend [rows, dim].
  virtual void swiglu(const float* gate, const float* up, int rows, int64_t dim, InputForms forms, Acts* out) = 0;
  // delta_mixer: convolution, gates, recurrence and gated norm of one layer (`layer` counts DeltaNet layers), output
  // [rows, value_dim] prepared as matmul input.
  virtual void delta_mixer(const DeltaLayer& w, int layer, std::span<const DeltaGroup> groups, int rows,
                           const DeltaIo& io, InputForms forms, Acts* out) = 0;
  // attention: head norms, rotation, K/V append and attention of one layer (`layer` counts attention layers), output
  // [rows, q_heads * dim] prepared as matmul input (out may be nullptr when io.q is).
  virtual void attention(const AttentionLayer& w, int layer, const AttentionPlan& plan, int rows, const AttentionIo& io,
                         InputForms forms, Acts* out) = 0;
  // copy_rows: dst[to[i] * dst_stride ..] = x[rows[i] * dim ..], dim elements; dst backend. `to` is empty: 0, 1, ..
  virtual void copy_rows(const float* x, int64_t dim, std::span<const int32_t> rows, std::span<const int32_t> to,
                         float* dst, int64_t dst_stride) = 0;
  // head: final norm, product and choice of tokens, with the contract of decoding for all rows.
  virtual void head(const HeadArgs& args) = 0;

  // ---- scoring a prompt (models/scorer.h): per layer score_queries, score_chunk for all chunks in order, score_peaks
  // score_kv_bytes: K and V of one layer for w.kv.capacity positions; zeroed once.
  virtual uint64_t score_kv_bytes(const AttentionLayer& w) const = 0;
  // score_queries: head norms and, with rope (backend [rows, rope_dims]), rotation of q [rows, q_heads * dim] in place.
  virtual void score_queries(const AttentionLayer& w, const float* rope, int rows, float* q) = 0;
  // score_chunk: head norms of io.k and its scaled products with the queries; then, unless io.q is nullptr (the last
  // layer), rotation, storage and attention over all positions up to each row's, output as that of attention().
  virtual void score_chunk(const AttentionLayer& w, const ScoreChunk& chunk, const AttentionIo& io, InputForms forms,
                           Acts* out) = 0;
  // score_peaks: best[t][j] = max(best[t][j], softmax over j <= query[t] of dots[t * q_heads + h], all heads h). query
  // host: ascending positions; best backend [query.size(), stride]; dots are used up.
  virtual void score_peaks(std::span<const int32_t> query, int q_heads, float* dots, float* best, int64_t stride) = 0;

  // ---- commit of rows path[0..n) (group indices, ascending) of a pending step
  virtual void delta_commit(const DeltaShape& shape, std::span<const DeltaState> states,
                            std::span<const DeltaReplay> replay, std::span<const int32_t> path) = 0;
  // kv_move: for every cache and i ascending, slot from[i] -> to[i]; no source is an earlier destination.
  virtual void kv_move(const KvShape& shape, std::span<const KvCache> caches, std::span<const int32_t> from,
                       std::span<const int32_t> to) = 0;

  // ---- what is kept of sequences: rows of positions [0, n) by `pages` in a portable form [n][K row, V row]
  virtual uint64_t kv_row_bytes(const KvShape& shape) const = 0;
  virtual void kv_export(const KvShape& shape, const KvCache& cache, const int32_t* pages, int32_t n, void* host) = 0;
  virtual void kv_import(const KvShape& shape, const KvCache& cache, const int32_t* pages, int32_t n,
                         const void* host) = 0;

  // sync waits for everything issued; a device fault surfaces here.
  virtual Status sync() = 0;
  // start sets everything issued going, and the host need not wait for it; a fault may surface in a later call.
  virtual Status start() { return sync(); }
};

// make_backend creates the backend of this library. device: "cpu", nullptr = first. threads: 0 = one per core.
Status make_backend(const char* device, int32_t threads, std::unique_ptr<Backend>* out);

}  // namespace tnd
