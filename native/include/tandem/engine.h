/*
 * tandem/engine.h: the one border between Tandem's native engines and everything else.
 *
 * Plain C99. One library per backend (libtandem_cpu.so, libtandem_cuda.so, libtandem_hip.so) exports exactly these
 * functions. Rules that hold for all of them:
 *   - Every function returns a tnd_status (the numbers of gRPC status codes). The text of the last failure of a handle
 *     is fetched with tnd_last_error; tnd_open writes it to the buffer it is given, since there is no handle yet.
 *   - Structs that may grow start with struct_size, which the caller sets to sizeof; fields beyond it read as zero.
 *   - One submitter per engine at a time. tnd_stats, tnd_memory, tnd_info, tnd_last_error and tnd_cancel may be called
 *     from any thread at any time.
 *   - Pointers in arguments are borrowed until the call returns. Nothing is owned by the caller except the handle.
 *   - Nothing prints, exits or throws. A device fault poisons the engine: every later call returns TND_INTERNAL.
 *   - All memory is planned in tnd_open within memory_cap_bytes; the step path allocates nothing.
 *   - Batch invariance: the outputs of a row depend on its own token, position and ancestors and on the contract that
 *     its group states (TND_GROUP_DECODE, TND_GROUP_PROMPT) only, never on the other rows of the step, their number,
 *     order or contract: the same bits for 1 and for 512 rows, as chain or as tree, alone or beside other groups.
 *   - A call that is refused (INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED, FAILED_PRECONDITION) changed nothing.
 */
#ifndef TANDEM_ENGINE_H
#define TANDEM_ENGINE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TND_API __attribute__((visibility("default")))
#define TND_ABI_VERSION 4u

typedef int32_t tnd_status;
#define TND_OK 0
#define TND_CANCELED 1
#define TND_INVALID_ARGUMENT 3   /* the call can never work: names the field */
#define TND_NOT_FOUND 5          /* unknown file, sequence or snapshot */
#define TND_RESOURCE_EXHAUSTED 8 /* memory cap, sequences, context: says what did not fit and what would */
#define TND_FAILED_PRECONDITION \
  9                          /* wrong role, rows not pending or features not kept, tables do not match, state not \
                                restorable */
#define TND_UNIMPLEMENTED 12 /* this backend lacks the operation or type */
#define TND_INTERNAL 13      /* device fault or broken invariant */
#define TND_DATA_LOSS 15     /* checksum of an imported state or of a file is wrong */

typedef struct tnd_engine tnd_engine;

/* Roles of an engine. */
#define TND_ROLE_TARGET 1u /* qwen35, qwen3: step, sequences */
#define TND_ROLE_DRAFT 2u  /* DFlash block drafter: draft_append, draft_propose */
#define TND_ROLE_SCORE 3u  /* qwen3 prompt scorer: score */

/* Log levels of tnd_log_fn. */
#define TND_LOG_DEBUG 0
#define TND_LOG_INFO 1
#define TND_LOG_WARN 2
#define TND_LOG_ERROR 3

/* Both are called on the thread that is inside an engine call; the text is borrowed until return. */
typedef void (*tnd_log_fn)(void* user, int32_t level, const char* text);
/* done of total: bytes of weights that are loaded, or rows times layers that are scored. */
typedef void (*tnd_progress_fn)(void* user, uint64_t done, uint64_t total);

typedef struct tnd_open_options {
  uint32_t struct_size;
  uint32_t role; /* TND_ROLE_* */
  const char*
      model_path; /* GGUF (shard 0 of a sharded file), or for drafts a safetensors file beside its config.json */
  const char*
      tables_path;    /* drafts: GGUF with token_embd.weight and, unless tied, output.weight of the target; else NULL */
  const char* device; /* "cpu", "cuda:0", "hip:1"; NULL = the library's first device */
  uint64_t memory_cap_bytes; /* 0 = what the device has free */
  int32_t threads;           /* CPU threads of the engine, 0 = one per core; other backends ignore it */
  int32_t max_sequences;     /* 0 = 32 as far as memory allows: the sequences after the first take, besides pages, at
                             most a quarter of what one with a full context leaves of the cap. tnd_info has the number.
                             Scorers have no sequences */
  int32_t max_context;       /* positions per sequence, >= 1; 0 = the model's context_length, as far as the cap, with
                             room for captured features, and kv_positions allow */
  int32_t max_tree_rows;  /* widest uncommitted step of one sequence (tree or chain, root included), 1..128; 0 = 64 */
  int32_t max_batch_rows; /* widest step over all groups, at least max_tree_rows; 0 = 512 */
  int32_t kv_type_k;      /* ggml type: 0 F32, 1 F16, 30 BF16, 8 Q8_0, 7 Q5_1, 6 Q5_0, 3 Q4_1, 2 Q4_0, TND_KV_DEFAULT;
                             42 TQ3_0 (docs/spec/kv-cache.md) */
  int32_t kv_type_v;
  int32_t layer_first;      /* first layer of this shard, 0-based */
  int32_t layer_last;       /* one past the last layer; 0 = all layers */
  int32_t max_top_k;        /* largest k of TND_WANT_TOP rows and of proposals; 0 = 64 */
  tnd_log_fn log;           /* may be NULL */
  tnd_progress_fn progress; /* may be NULL */
  void* user;               /* handed to log and progress */
  uint64_t host_cap_bytes; /* host memory of snapshots (states and demoted pages); 0 = no limit, but for an engine whose
                               device is the host: what memory_cap_bytes leaves */
  int32_t kv_positions;    /* positions of keys and values of all sequences together, at least max_context; 0 =
                               max_sequences * max_context as far as the cap allows, when max_sequences is 0 at most
                               4 * max_context and half of what the cap leaves; at least max_context; scorers: 0 */
  int32_t attention_window; /* targets: a row reads the keys and values of its own position and of the
                               attention_window - 1 before it, at least 128; 0 = of all. Other texts than with 0, so
                               another contract (tnd_info.numerics) and other states. Pages of keys and values that
                               no later row reads are released, and are not part of snapshots. Others: 0 */
} tnd_open_options;

#define TND_KV_DEFAULT (-1) /* kv_type_*: F16 */
/* kv_type_*: the first of F16, Q8_0, Q5_1, Q5_0, Q4_1, Q4_0, TQ3_0 with which a sequence with the max_context, or the
   pool of kv_positions, that was asked for fits the cap, for keys and values the same where both are automatic. Without
   both, F16 if the model's context_length fits with it, else Q8_0. tnd_info has the choice */
#define TND_KV_AUTO (-2)

typedef struct tnd_info {
  uint32_t struct_size;
  uint32_t role;
  char arch[32];    /* general.architecture */
  char name[128];   /* general.name */
  char backend[16]; /* "cpu", "cuda", "hip" */
  char device[128]; /* human text: card or CPU name and instruction set in use */
  int32_t n_layers; /* layers of the model, without next-token-prediction blocks */
  int32_t layer_first, layer_last;
  int32_t hidden; /* width of the residual stream */
  int32_t vocab;  /* rows of the head */
  int32_t max_sequences, max_context, max_tree_rows, max_batch_rows, max_top_k;
  int32_t kv_type_k, kv_type_v;
  int32_t block_size;         /* drafts: B */
  int32_t mask_token;         /* drafts */
  int32_t n_capture;          /* drafts: captured target layers it was trained on; targets: layers captured now */
  int32_t capture_layers[64]; /* ascending 0-based ids */
  int32_t feature_raw;        /* n_capture * hidden of the target */
  int32_t feature_fused;      /* width after fc; 0 on a target without loaded fc */
  int32_t recurrent;          /* 1 when states cannot be truncated (gated DeltaNet layers) */
  uint64_t kv_bytes_per_token;
  uint64_t state_bytes_per_sequence; /* recurrent and convolution state */
  /* The numeric contract, without model file, KV types, layers and cuts of prompts: backend, kind of device and a
   * version for each set of kernels with bits of its own (native/NUMERICS.md). Equal texts mean equal bits. */
  char numerics[192];
  /* 0: both contracts of a group (TND_GROUP_PROMPT, TND_GROUP_DECODE) are the same bits. Else the number of rows of a
   * prompt piece above which a caller states TND_GROUP_PROMPT: a rule of callers, which the engine does not apply. */
  int32_t prompt_rows;
  int32_t kv_positions; /* sequences of together so many positions, in pages of their own, find room; scorers: 0 */
  int32_t kv_page;      /* positions of a page: what sequences share and what a pool is counted in */
  int32_t fuse_raw;     /* targets: values of a raw row that tnd_fuse takes; 0 without loaded fc */
} tnd_info;

/* tnd_group.kind: the numeric contract of a group's rows (native/NUMERICS.md). It is stated, never derived from the
 * number of rows. */
#define TND_GROUP_DECODE 0u /* rows of decoding, verification and replay, and prompt pieces with their bits */
#define TND_GROUP_PROMPT 1u /* rows of a prompt piece; needs TND_GROUP_COMMIT */

/* tnd_group.flags */
#define TND_GROUP_COMMIT 1u /* the rows are a chain from the tip, and this call commits them */

/* One sequence in a step. First path and n_path keep a path of the rows that its last step left pending and drop the
 * others (n_path 0: all); then kept features are read; then the group's rows run behind the new tip. A sequence that no
 * group names is not touched. */
typedef struct tnd_group {
  int32_t sequence;      /* handle from tnd_sequence_create; at most one group of a step names it */
  int32_t n_rows;        /* rows of tnd_step.rows that are this group's, after those of the groups before; may be 0 */
  uint32_t kind;         /* TND_GROUP_DECODE or TND_GROUP_PROMPT; 0 without rows */
  uint32_t flags;        /* TND_GROUP_COMMIT or 0; 0 without rows */
  const int32_t* path;   /* [n_path] rows to commit, by index within the sequence's group of its last step: path[0] a
                            child of the tip, each the parent of the next */
  int32_t n_path;        /* 0 = none: what is pending is dropped */
  int32_t kept_position; /* first committed position (path included) whose kept features are read */
  int32_t n_kept;        /* how many positions: their rows wanted TND_WANT_KEEP; 0 = none */
} tnd_group;

/* One row of a group. */
typedef struct tnd_row {
  int32_t token; /* token id; with hidden_in it only feeds penalties and may be -1 */
  int32_t
      position;   /* absolute: the length of the sequence, its path included, plus the row's depth (0 = child of tip) */
  int32_t parent; /* index within the group of the parent row (smaller than the row's own), -1 = the sequence's tip */
  uint32_t want;  /* TND_WANT_* */
  int32_t top_k;  /* TND_WANT_TOP: how many, 1..max_top_k */
  int32_t score;  /* TND_WANT_SCORE: token whose log-probability is wanted */
  int32_t mask;   /* row of tnd_step.masks that allows tokens for this row, -1 = all */
} tnd_row;

#define TND_WANT_TOKEN 1u    /* choose with the sequence's sampler (argmax without one), with its log-probability */
#define TND_WANT_TOP 2u      /* the top_k most likely tokens, ties to the lower id */
#define TND_WANT_LOGITS 4u   /* all raw logits */
#define TND_WANT_FEATURES 8u /* captured features */
#define TND_WANT_SCORE 16u   /* log-probability of .score */
#define TND_WANT_KEEP 32u    /* captured features, later: tnd_group.n_kept */

/* Rows of a sequence whose captured features the engine keeps: the newest. The positions of those in one step must
 * differ modulo TND_KEPT_ROWS, for a row takes the place of its position. They stay kept until newer rows take their
 * place, the sequence is cut, restored or imported, or other layers are captured; they are part of no snapshot or
 * export. Read, they have the bits that TND_WANT_FEATURES gives, at the price of one product for all of them. */
#define TND_KEPT_ROWS 32

#define TND_FEATURE_RAW_BF16 1   /* [n_capture * hidden] residual streams, ascending layers */
#define TND_FEATURE_FUSED_BF16 2 /* [feature_fused] hidden_norm(fc * features); needs tnd_fuse_load */
#define TND_FEATURE_RAW_F32 3
#define TND_FEATURE_FUSED_F32 4

/* Encodings of the residual streams that shards hand on. */
#define TND_HIDDEN_F32 0 /* as they are */
#define TND_HIDDEN_BF16 \
  1 /* half the bytes, rounded to nearest even: other bits than those of an engine with all layers */

/*
 * One call over the groups of one or more sequences: it commits their paths, reads kept features and runs one forward
 * pass over all rows. Rows of a group form a tree that hangs from the sequence's tip. Without TND_GROUP_COMMIT they
 * stay pending: the sequence's group in a later step commits a path of them or drops them.
 *
 * Limits: the rows of all groups are at most max_batch_rows, so are the kept positions that are read with them, rows
 * that want features counted in; an uncommitted group has at most max_tree_rows rows. Everything is checked before
 * anything changes. A pass that is cancelled or fails breaks the sequences of its committing groups; the paths of all
 * groups are committed then, and no rows are pending.
 *
 * A step without rows commits and reads only. Without kept features to read it returns on a GPU while the card still
 * works: a fault of the card comes out of the next call, and commit_ns counts the host's part.
 *
 * Output pointers may be NULL when no row wants them. Log-probabilities are the natural-log softmax of the raw logits
 * (before bias, penalties, temperature and masks).
 */
typedef struct tnd_step {
  uint32_t struct_size;
  int32_t n_groups; /* 1.. */
  int32_t n_rows;   /* sum of the groups' n_rows; may be 0 */
  int32_t n_masks;
  const tnd_group* groups;  /* [n_groups] */
  const tnd_row* rows;      /* [n_rows] group by group */
  const uint32_t* masks;    /* [n_masks, ceil(vocab/32)] little-endian bits, 1 = allowed */
  const void* hidden_in;    /* [n_rows, hidden] when layer_first > 0, else NULL */
  void* hidden_out;         /* [n_rows, hidden] when layer_last < n_layers: residual stream, else NULL */
  int32_t hidden_encoding;  /* TND_HIDDEN_*, of both */
  int32_t feature_encoding; /* TND_FEATURE_* */
  int32_t* tokens;          /* [n_rows]; -1 where not wanted */
  float* logprobs;          /* [n_rows] of tokens */
  float* scores;            /* [n_rows] of tnd_row.score */
  int32_t* top_ids;         /* [n_rows, top_stride], -1 beyond a row's top_k */
  float* top_logprobs;      /* [n_rows, top_stride] */
  float* logits;            /* [rows that want them, in order, vocab] */
  void* features;           /* [kept positions of all groups in order, then rows that want them in order, width of the
                               encoding] */
  int32_t top_stride;
} tnd_step;

/* Sampler of a sequence; semantics and order of operations: docs/sampling.md. Ranges are those that requests may ask
 * for (proto/tandem/v1/common.proto, Sampling): an engine takes all of them, and may take more. */
typedef struct tnd_sampler {
  uint32_t struct_size;
  int32_t top_k;            /* any; <= 0 = off */
  float temperature;        /* 0..2; 0 = argmax */
  float top_p;              /* 0..1 without 0; 1 = off */
  float min_p;              /* 0..1; 0 = off */
  float repetition_penalty; /* 1e-20..4; 1 = off */
  float frequency_penalty;  /* -2..2; 0 = off */
  float presence_penalty;   /* -2..2; 0 = off */
  int32_t penalty_window;   /* 1..8192; tokens of prompt and output that penalties look back on */
  int32_t prompt_tokens;    /* output position of a token at position p is p - prompt_tokens */
  uint64_t seed;            /* any; the same seed gives the same tokens */
  int32_t choice;           /* another choice of the same seed gives other tokens */
  int32_t n_bias;
  const int32_t* bias_tokens; /* [n_bias] */
  const float* bias_values;   /* [n_bias], -100..100, added to logits */
} tnd_sampler;

/* Features of committed positions of a draft's sequence. */
typedef struct tnd_feature_rows {
  int32_t sequence;
  int32_t position;     /* of the first row: the sequence's length, with the rows of its pieces before in the call */
  int32_t n_rows;       /* may be 0 */
  int32_t encoding;     /* TND_FEATURE_* */
  const void* features; /* [n_rows, width of the encoding] */
} tnd_feature_rows;

typedef struct tnd_draft_request {
  int32_t sequence;
  int32_t token;     /* anchor: newest committed token, its features are not known yet */
  int32_t position;  /* position of the anchor; draft rows must have been appended for 0..position-1 as far as known */
  int32_t block;     /* 2..block_size: rows of the forward pass, anchor included */
  int32_t top_k;     /* candidates per position, 1..max_top_k */
  float temperature; /* draft temperature, > 0; 1 = as trained */
} tnd_draft_request;

/* A prompt of tnd_score. */
typedef struct tnd_score_prompt {
  const int32_t* ids;        /* [n] */
  const int32_t* query_rows; /* [n_query] ascending positions */
  float* scores;             /* [n] out */
  int32_t n;
  int32_t n_query;
} tnd_score_prompt;

/* tnd_score flags. */
#define TND_SCORE_ROTATED 1u /* score with keys and queries after RoPE instead of before it */

/* What a snapshot consists of, for keeping it outside of the engine: the state (token ids [length], then recurrent
 * states), then the pages of its positions from first_page on, each block by block: a block is a page in one layer. */
typedef struct tnd_snapshot_layout {
  uint32_t struct_size;
  int32_t length;               /* positions */
  uint64_t identity;            /* of the model and its layer range: parts of another one do not fit */
  int32_t kv_type_k, kv_type_v; /* nor do those of other types */
  uint64_t state_bytes;         /* of the state */
  uint64_t page_bytes;          /* of a page */
  uint64_t block_bytes;         /* of a block */
  int32_t pages;                /* that hold length positions; the last may be partly used */
  int32_t first_page;           /* no later row reads those before it (attention_window): they are no parts */
} tnd_snapshot_layout;

#define TND_PART_STATE (-1) /* part: the state; first_page .. pages - 1: a page */

typedef struct tnd_stat {
  char name[48]; /* snake_case, e.g. "step_matmul_ns", "kv_bytes" */
  uint64_t value;
} tnd_stat;

TND_API uint32_t tnd_abi_version(void);

/* tnd_open loads a model. On failure *out is NULL and error (may be NULL) receives the text, cut at capacity. */
TND_API tnd_status tnd_open(const tnd_open_options* options, tnd_engine** out, char* error, uint64_t capacity);
/* tnd_close frees everything; NULL is allowed. */
TND_API void tnd_close(tnd_engine* engine);
/* tnd_last_error copies the text of the last failed call, always terminated; returns its full length without
 * terminator. */
TND_API uint64_t tnd_last_error(tnd_engine* engine, char* text, uint64_t capacity);
TND_API tnd_status tnd_get_info(tnd_engine* engine, tnd_info* info);
/* tnd_memory lists planned bytes by purpose; *count is capacity in, entries available out. */
TND_API tnd_status tnd_memory(tnd_engine* engine, tnd_stat* entries, uint64_t* count);
/* tnd_stats lists counters since open: calls, rows, nanoseconds per phase, bytes moved. */
TND_API tnd_status tnd_stats(tnd_engine* engine, tnd_stat* entries, uint64_t* count);
/* tnd_cancel makes the call in progress return TND_CANCELED at its next layer; no effect when none runs. The sequences
 * of a cancelled step's committing groups are broken: only free, restore and import work on them. */
TND_API void tnd_cancel(tnd_engine* engine);

/* Sequences. A new sequence is empty. Drafts have sequences too (their K/V rows). */
TND_API tnd_status tnd_sequence_create(tnd_engine* engine, int32_t* sequence);
/* A new sequence in the state of another one, but for its sampler, pending rows and kept features. They share the pages
 * of their positions: either copies a page before it writes to it. */
TND_API tnd_status tnd_sequence_fork(tnd_engine* engine, int32_t sequence, int32_t* fork);
TND_API tnd_status tnd_sequence_free(tnd_engine* engine, int32_t sequence);
TND_API tnd_status tnd_sequence_length(tnd_engine* engine, int32_t sequence, int32_t* length);
/* Keeps the first `length` positions. TND_FAILED_PRECONDITION: of a recurrent model, unless length is the current one
 * or 0; with a window, when a page that is read at the new tip was released. */
TND_API tnd_status tnd_sequence_truncate(tnd_engine* engine, int32_t sequence, int32_t length);
TND_API tnd_status tnd_sequence_sampler(tnd_engine* engine, int32_t sequence, const tnd_sampler* sampler);

/* Snapshots share the pages of their sequence; tokens and recurrent states are copied to host memory (host_cap_bytes).
 * Restoring overwrites any sequence of the same engine but for its sampler; import likewise. Pending rows are not part
 * of either. */
TND_API tnd_status tnd_snapshot_create(tnd_engine* engine, int32_t sequence, int32_t* snapshot);
TND_API tnd_status tnd_snapshot_restore(tnd_engine* engine, int32_t snapshot, int32_t sequence);
/* Moves those pages of a snapshot that no sequence holds to host memory, for all snapshots that hold them; nothing to
 * move is no error. Restoring brings them back, and leaves their host copy until somebody writes to them. */
TND_API tnd_status tnd_snapshot_demote(tnd_engine* engine, int32_t snapshot);
TND_API tnd_status tnd_snapshot_free(tnd_engine* engine, int32_t snapshot);
/* A snapshot piece by piece, so that one of any length is stored and read back without a copy of it in memory. Targets
 * only. Reading copies bytes [offset, offset + bytes) of a part, of pages whole blocks, and gives their CRC-32C (not
 * when crc is NULL). Rows of the last page beyond the length are zero; pages in host memory are read there. */
TND_API tnd_status tnd_snapshot_describe(tnd_engine* engine, int32_t snapshot, tnd_snapshot_layout* layout);
TND_API tnd_status tnd_snapshot_read(tnd_engine* engine, int32_t snapshot, int32_t part, uint64_t offset, void* data,
                                     uint64_t bytes, uint32_t* crc);
/* Begins a snapshot that is written piece by piece. It shares the first shared_pages pages of snapshot `base`, all of
 * them full and of the same tokens (0: base is not looked at), and takes new ones of the pool for the others. The
 * state must be written first, then the pages from the greater of shared_pages and layout->first_page on, without
 * gaps. Until it is finished only tnd_snapshot_write, _finish and _free work on it.
 * INVALID_ARGUMENT: base, longer than the layout, has released a page that the new one reads. FAILED_PRECONDITION: a
 * layout of another model or of other types. */
TND_API tnd_status tnd_snapshot_begin(tnd_engine* engine, const tnd_snapshot_layout* layout, int32_t base,
                                      int32_t shared_pages, int32_t* snapshot);
/* DATA_LOSS: the bytes do not have this CRC-32C; nothing was written. */
TND_API tnd_status tnd_snapshot_write(tnd_engine* engine, int32_t snapshot, int32_t part, uint64_t offset,
                                      const void* data, uint64_t bytes, uint32_t crc);
/* FAILED_PRECONDITION: bytes are missing. DATA_LOSS: a token id is none of the model's; of use is only
 * tnd_snapshot_free then. */
TND_API tnd_status tnd_snapshot_finish(tnd_engine* engine, int32_t snapshot);
/* Export: K/V rows, convolution taps, recurrent state and token ids of a sequence, versioned and checksummed. Import
 * fails with TND_FAILED_PRECONDITION for another model, layer range or KV type and with TND_DATA_LOSS for damaged
 * bytes. */
TND_API tnd_status tnd_sequence_export_size(tnd_engine* engine, int32_t sequence, uint64_t* bytes);
TND_API tnd_status tnd_sequence_export(tnd_engine* engine, int32_t sequence, void* data, uint64_t bytes);
TND_API tnd_status tnd_sequence_import(tnd_engine* engine, int32_t sequence, const void* data, uint64_t bytes);

/* Targets. */
TND_API tnd_status tnd_step_run(tnd_engine* engine, const tnd_step* step);
/* Chooses the layers whose outgoing residual stream TND_WANT_FEATURES returns; n = 0 = none. Takes memory within the
 * cap for the features of max_batch_rows rows and of TND_KEPT_ROWS rows of every sequence. */
TND_API tnd_status tnd_capture_set(tnd_engine* engine, const int32_t* layers, int32_t n);
/* Loads fc and its norm of a draft (its GGUF, or a GGUF cut to these tensors) and captures the layers that it names, of
 * a shard those in its range. Fused features of a step need all of them in one engine; else tnd_fuse takes their place.
 */
TND_API tnd_status tnd_fuse_load(tnd_engine* engine, const char* path);
/* Fuses captured features that were computed elsewhere: raw [n, all layers of the draft * hidden], layers ascending, in
 * raw_encoding (TND_FEATURE_RAW_*); fused [n, feature_fused] in fused_encoding (TND_FEATURE_FUSED_*). kind: the
 * contract of the rows (tnd_group.kind); raw features in F32 give the bits of features that a step fuses.
 * n: 1..max_batch_rows. Needs tnd_fuse_load. */
TND_API tnd_status tnd_fuse(tnd_engine* engine, int32_t n, uint32_t kind, int32_t raw_encoding, const void* raw,
                            int32_t fused_encoding, void* fused);

/* Drafts. Appends features to one or more sequences, reading the weights once for as many pieces as fit into
 * max_batch_rows; a piece's rows have the bits that they have alone. Everything is checked before anything changes; a
 * call that is cancelled leaves every sequence with the first of its rows. The features may be reused at once. On a GPU
 * the call returns while the card still works on the last rows, as a step without rows does; draft_ns counts the host's
 * part of that. */
TND_API tnd_status tnd_draft_append(tnd_engine* engine, const tnd_feature_rows* pieces, int32_t n);
/* One block forward per request. ids and logprobs: [n requests, block_size - 1, max_top_k of the engine's options],
 * position-major; entries beyond a request's block or top_k are -1. Log-probabilities are normalised over the whole
 * vocabulary at the draft temperature, ties to the lower id. */
TND_API tnd_status tnd_draft_propose(tnd_engine* engine, const tnd_draft_request* requests, int32_t n, int32_t* ids,
                                     float* logprobs);

/* Scorers. scores: for every position of a prompt the mean over its query rows of the maximum over layers and heads of
 * the attention that the row pays to it (0 where the row does not see it). Prompts are checked before any is scored,
 * then scored one after the other: each has the scores that it has alone. progress (may be NULL) is called with user
 * for every chunk of positions and layer that was issued; on a GPU the card is at most some chunks behind. */
TND_API tnd_status tnd_score(tnd_engine* engine, const tnd_score_prompt* prompts, int32_t n_prompts, uint32_t flags,
                             tnd_progress_fn progress, void* user);

#ifdef __cplusplus
}
#endif
#endif
