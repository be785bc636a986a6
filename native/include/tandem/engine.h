/*
 * tandem/engine.h: the one border between Tandem's native engines and everything else.
 *
 * Plain C99. One library per backend (libtandem_cpu.so, libtandem_cuda.so, libtandem_hip.so) exports exactly these
 * functions. Rules that hold for all of them:
 *   - Every function returns a tnd_status (the numbers of gRPC status codes). The text of the last failure of a handle
 * is fetched with tnd_last_error; tnd_open writes it to the buffer it is given, since there is no handle yet.
 *   - Structs that may grow start with struct_size, which the caller sets to sizeof; fields beyond it read as zero.
 *   - One submitter per engine at a time. tnd_stats, tnd_memory, tnd_info, tnd_last_error and tnd_cancel may be called
 *     from any thread at any time.
 *   - Pointers in arguments are borrowed until the call returns. Nothing is owned by the caller except the handle.
 *   - Nothing prints, exits or throws. A device fault poisons the engine: every later call returns TND_INTERNAL at
 * once.
 *   - All memory is planned in tnd_open within memory_cap_bytes; the step path allocates nothing.
 *   - Batch invariance: the outputs of a row depend on its own token, position and ancestors only, never on the other
 * rows of the batch, their number or order: the same bits for 1 and for 64 rows, as chain or as tree.
 */
#ifndef TANDEM_ENGINE_H
#define TANDEM_ENGINE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TND_API __attribute__((visibility("default")))
#define TND_ABI_VERSION 1u

typedef int32_t tnd_status;
#define TND_OK 0
#define TND_CANCELED 1
#define TND_INVALID_ARGUMENT 3    /* the call can never work: names the field */
#define TND_NOT_FOUND 5           /* unknown file, sequence or snapshot */
#define TND_RESOURCE_EXHAUSTED 8  /* memory cap, sequences, context: says what did not fit and what would */
#define TND_FAILED_PRECONDITION 9 /* wrong role, nothing pending, tables do not match, state not restorable */
#define TND_UNIMPLEMENTED 12      /* this backend lacks the operation or type */
#define TND_INTERNAL 13           /* device fault or broken invariant */
#define TND_DATA_LOSS 15          /* checksum of an imported state or of a file is wrong */

typedef struct tnd_engine tnd_engine;

/* Roles of an engine. */
#define TND_ROLE_TARGET 1u /* qwen35, qwen3: step, commit, sequences */
#define TND_ROLE_DRAFT 2u  /* DFlash block drafter: draft_append, draft_propose */
#define TND_ROLE_SCORE 3u  /* qwen3 prompt scorer: score */

/* Log levels of tnd_log_fn. */
#define TND_LOG_DEBUG 0
#define TND_LOG_INFO 1
#define TND_LOG_WARN 2
#define TND_LOG_ERROR 3

/* Both are called on the thread that is inside an engine call; the text is borrowed until return. */
typedef void (*tnd_log_fn)(void* user, int32_t level, const char* text);
/* done of total bytes of weights are loaded. */
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
  int32_t max_sequences;     /* >= 1 */
  int32_t max_context;    /* positions per sequence, >= 1; 0 = the model's context_length, as far as the cap allows */
  int32_t max_tree_rows;  /* widest uncommitted step of one sequence (tree or chain, root included), 1..128; 0 = 64 */
  int32_t max_batch_rows; /* widest step over all sequences and widest committing (prefill) chunk, at least
                             max_tree_rows; 0 = 512 */
  int32_t kv_type_k;      /* ggml type id of cached keys: 0 F32, 1 F16, 2 Q4_0, 8 Q8_0, TND_KV_DEFAULT */
  int32_t kv_type_v;
  int32_t layer_first;      /* first layer of this shard, 0-based */
  int32_t layer_last;       /* one past the last layer; 0 = all layers */
  int32_t max_top_k;        /* largest k of TND_WANT_TOP rows and of proposals; 0 = 64 */
  tnd_log_fn log;           /* may be NULL */
  tnd_progress_fn progress; /* may be NULL */
  void* user;               /* handed to log and progress */
} tnd_open_options;

#define TND_KV_DEFAULT (-1) /* kv_type_*: F16 */

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
  /* 0: rows of prompts have the bits of decoding, however a prompt is cut. Else the number of rows of a sequence and
   * step above which a committing step may have other bits. */
  int32_t prompt_rows;
} tnd_info;

/* One row of a step. */
typedef struct tnd_row {
  int32_t sequence; /* handle from tnd_sequence_create */
  int32_t token;    /* token id; with hidden_in it only feeds penalties and may be -1 */
  int32_t position; /* absolute; must be the length of the sequence plus the row's depth (0 for children of the tip) */
  int32_t parent;   /* index in this batch of the parent row (smaller than the row's own), -1 = the sequence's tip */
  uint32_t want;    /* TND_WANT_* */
  int32_t top_k;    /* TND_WANT_TOP: how many, 1..max_top_k */
  int32_t score;    /* TND_WANT_SCORE: token whose log-probability is wanted */
  int32_t mask;     /* row of tnd_step.masks that allows tokens for this row, -1 = all */
} tnd_row;

#define TND_WANT_TOKEN 1u    /* choose with the sequence's sampler (argmax without one), with its log-probability */
#define TND_WANT_TOP 2u      /* the top_k most likely tokens, ties to the lower id */
#define TND_WANT_LOGITS 4u   /* all raw logits */
#define TND_WANT_FEATURES 8u /* captured features */
#define TND_WANT_SCORE 16u   /* log-probability of .score */
#define TND_WANT_KEEP 32u    /* captured features, later: tnd_features_read */

/* Rows of a sequence whose captured features the engine keeps for tnd_features_read: the newest. The positions of those
 * in one step must differ modulo TND_KEPT_ROWS, for a row takes the place of its position. */
#define TND_KEPT_ROWS 32

#define TND_FEATURE_RAW_BF16 1   /* [n_capture * hidden] residual streams, ascending layers */
#define TND_FEATURE_FUSED_BF16 2 /* [feature_fused] hidden_norm(fc * features); needs tnd_fuse_load */
#define TND_FEATURE_RAW_F32 3
#define TND_FEATURE_FUSED_F32 4

/* tnd_step.flags: every sequence's rows form a chain from its tip and are all committed by this call (prefill, or a
 * plain decode step, which it saves the replay of its state). Steps of at most max_tree_rows rows give the same bits
 * without it. */
#define TND_STEP_COMMIT 1u

/*
 * One forward pass over n_rows rows of one or more sequences. Rows of a sequence form a tree that hangs from its tip
 * (length tokens). Without TND_STEP_COMMIT the rows stay pending: the next tnd_commit keeps a path of them, the next
 * tnd_step for the sequence drops them. Output pointers may be NULL when no row wants them.
 * Log-probabilities are the natural-log softmax of the raw logits (before bias, penalties, temperature and masks).
 */
typedef struct tnd_step {
  uint32_t struct_size;
  uint32_t flags;
  int32_t n_rows;
  int32_t n_masks;
  const tnd_row* rows;    /* [n_rows] */
  const uint32_t* masks;  /* [n_masks, ceil(vocab/32)] little-endian bits, 1 = allowed */
  const float* hidden_in; /* [n_rows, hidden] when layer_first > 0, else NULL */
  float* hidden_out;      /* [n_rows, hidden] when layer_last < n_layers: residual stream, else NULL */
  int32_t* tokens;        /* [n_rows]; -1 where not wanted */
  float* logprobs;        /* [n_rows] of tokens */
  float* scores;          /* [n_rows] of tnd_row.score */
  int32_t* top_ids;       /* [n_rows, top_stride], -1 beyond a row's top_k */
  float* top_logprobs;    /* [n_rows, top_stride] */
  int32_t top_stride;
  int32_t feature_encoding; /* TND_FEATURE_* */
  float* logits;            /* [rows that want them, in order, vocab] */
  void* features;           /* [rows that want them, in order, width of the encoding] */
} tnd_step;

/* Sampler of a sequence; semantics and order of operations: docs/sampling.md. */
typedef struct tnd_sampler {
  uint32_t struct_size;
  int32_t top_k;            /* <= 0 = off */
  float temperature;        /* 0 = argmax */
  float top_p;              /* 1 = off */
  float min_p;              /* 0 = off */
  float repetition_penalty; /* 1 = off */
  float frequency_penalty;  /* 0 = off */
  float presence_penalty;   /* 0 = off */
  int32_t penalty_window;   /* tokens of prompt and output that penalties look back on */
  int32_t prompt_tokens;    /* output position of a token at position p is p - prompt_tokens */
  uint64_t seed;
  int32_t choice;
  int32_t n_bias;
  const int32_t* bias_tokens; /* [n_bias] */
  const float* bias_values;   /* [n_bias], added to logits */
} tnd_sampler;

typedef struct tnd_draft_request {
  int32_t sequence;
  int32_t token;     /* anchor: newest committed token, its features are not known yet */
  int32_t position;  /* position of the anchor; draft rows must have been appended for 0..position-1 as far as known */
  int32_t block;     /* 2..block_size: rows of the forward pass, anchor included */
  int32_t top_k;     /* candidates per position, 1..max_top_k */
  float temperature; /* draft temperature, > 0; 1 = as trained */
} tnd_draft_request;

/* tnd_score flags. */
#define TND_SCORE_ROTATED 1u /* score with keys and queries after RoPE instead of before it */

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
 * of a cancelled committing step are broken: only free, restore and import work on them. */
TND_API void tnd_cancel(tnd_engine* engine);

/* Sequences. A new sequence is empty. Drafts have sequences too (their K/V rows). */
TND_API tnd_status tnd_sequence_create(tnd_engine* engine, int32_t* sequence);
TND_API tnd_status tnd_sequence_free(tnd_engine* engine, int32_t sequence);
TND_API tnd_status tnd_sequence_length(tnd_engine* engine, int32_t sequence, int32_t* length);
/* Keeps the first `length` positions. Recurrent models: TND_FAILED_PRECONDITION unless length is the current one or 0.
 */
TND_API tnd_status tnd_sequence_truncate(tnd_engine* engine, int32_t sequence, int32_t length);
TND_API tnd_status tnd_sequence_sampler(tnd_engine* engine, int32_t sequence, const tnd_sampler* sampler);

/* Snapshots live in engine memory, right-sized, within the cap. Restoring overwrites any sequence of the same engine
 * but for its sampler; import likewise. Pending rows are not part of either. */
TND_API tnd_status tnd_snapshot_create(tnd_engine* engine, int32_t sequence, int32_t* snapshot);
TND_API tnd_status tnd_snapshot_restore(tnd_engine* engine, int32_t snapshot, int32_t sequence);
TND_API tnd_status tnd_snapshot_free(tnd_engine* engine, int32_t snapshot);
/* Export: K/V rows, convolution taps, recurrent state and token ids of a sequence, versioned and checksummed. Import
 * fails with TND_FAILED_PRECONDITION for another model, layer range or KV type and with TND_DATA_LOSS for damaged
 * bytes. */
TND_API tnd_status tnd_sequence_export_size(tnd_engine* engine, int32_t sequence, uint64_t* bytes);
TND_API tnd_status tnd_sequence_export(tnd_engine* engine, int32_t sequence, void* data, uint64_t bytes);
TND_API tnd_status tnd_sequence_import(tnd_engine* engine, int32_t sequence, const void* data, uint64_t bytes);

/* Targets. */
TND_API tnd_status tnd_step_run(tnd_engine* engine, const tnd_step* step);
/* Keeps the pending rows path[0..n): indices of the last step's batch, path[0] a child of the tip, each the parent of
 * the next. n = 0 drops all. The sequence grows by n. On a GPU the call returns while the card still works on it: a
 * fault of the card comes out of the next call, and commit_ns counts the host's part. */
TND_API tnd_status tnd_commit(tnd_engine* engine, int32_t sequence, const int32_t* path, int32_t n);
/* Chooses the layers whose outgoing residual stream TND_WANT_FEATURES returns; n = 0 = none. Takes memory within the
 * cap for the features of max_batch_rows rows and of TND_KEPT_ROWS rows of every sequence. */
TND_API tnd_status tnd_capture_set(tnd_engine* engine, const int32_t* layers, int32_t n);
/* Loads fc and its norm of a draft (its GGUF, or a GGUF cut to these tensors) and captures the layers that it names. */
TND_API tnd_status tnd_fuse_load(tnd_engine* engine, const char* path);

/* Features of the committed positions [position, position + n), whose rows wanted TND_WANT_KEEP: the bits that
 * TND_WANT_FEATURES gives in a step of up to 64 rows, for the price of one product for all of them. They stay kept
 * until newer rows take their place, the sequence is cut, restored or imported, or other layers are captured; they are
 * part of no snapshot or export. TND_FAILED_PRECONDITION when not all of them are kept. n: 1..max_batch_rows. features:
 * [n, width of the encoding]. */
TND_API tnd_status tnd_features_read(tnd_engine* engine, int32_t sequence, int32_t position, int32_t n,
                                     int32_t encoding, void* features);

/* Drafts. Appends the features of n committed positions starting at `position`, which must be the sequence's length.
 * The features may be reused at once. On a GPU the call returns while the card still works on the last rows, as
 * tnd_commit does; draft_ns counts the host's part of that. */
TND_API tnd_status tnd_draft_append(tnd_engine* engine, int32_t sequence, int32_t position, int32_t n, int32_t encoding,
                                    const void* features);
/* One block forward per request. ids and logprobs: [n requests, block_size - 1, max_top_k of the engine's options],
 * position-major; entries beyond a request's block or top_k are -1. Log-probabilities are normalised over the whole
 * vocabulary at the draft temperature, ties to the lower id. */
TND_API tnd_status tnd_draft_propose(tnd_engine* engine, const tnd_draft_request* requests, int32_t n, int32_t* ids,
                                     float* logprobs);

/* Scorers. ids [n]; query_rows [n_query] ascending positions. scores [n]: for every position the mean over query rows
 * of the maximum over layers and heads of the attention that the row pays to it (0 where the row does not see it). */
TND_API tnd_status tnd_score(tnd_engine* engine, const int32_t* ids, int32_t n, const int32_t* query_rows,
                             int32_t n_query, uint32_t flags, float* scores);

#ifdef __cplusplus
}
#endif
#endif
