package telemetry

// MetadataRequestID is the metadata in which a request's id travels where messages have no field for it.
const MetadataRequestID = "x-request-id"

// Keys of structured log fields that more than one place writes: one key a meaning, in the logs of every process.
// Prompt text, output text, API keys and cookies are never logged.
const (
	KeyRequestID  = "request_id"
	KeySessionID  = "session_id"
	KeyWorker     = "worker"
	KeyPeer       = "peer"
	KeyRole       = "role"
	KeyBackend    = "backend"
	KeyDevice     = "device"
	KeyModel      = "model"
	KeyContract   = "contract"
	KeyTokens     = "tokens"
	KeyPrompt     = "prompt_tokens"
	KeyCached     = "cached_tokens"
	KeyDurationMS = "duration_ms"
	KeyErr        = "err"
	KeyReason     = "reason"
	KeyState      = "state"
	KeyEpoch      = "epoch"
	KeyAddress    = "address"
	KeyFlag       = "flag"
	KeyEndpoint   = "endpoint"
	KeyStatus     = "status"
	KeyOutcome    = "outcome"
	KeyAttempt    = "attempt"
	KeyVersion    = "version"
	KeyPID        = "pid"
	KeyPath       = "path"
	KeyStack      = "stack"
	KeySignal     = "signal"
	KeyMessages   = "messages"
	KeyProposals  = "proposals"
	KeyNodes      = "nodes"
	KeyTraceID    = "trace_id"
	KeyClient     = "client"
	KeyKeyName    = "key" // the name of an API key, never the key
	KeyMethod     = "method"
	KeyDialect    = "dialect"
	KeyCode       = "code"
	KeyTTFTMS     = "ttft_ms"
	KeyTokenRate  = "tokens_per_s"
	KeyRetries    = "retries" // moves of a request to another worker

	// Where the time of a request went, in the process that says so.
	KeyQueueMS    = "queue_ms"    // in the gateway, for a worker
	KeyWaitMS     = "wait_ms"     // in a worker, for a slot, an engine, memory or another reader of the prompt
	KeyCompressMS = "compress_ms" // of the prompt
	KeyRestoreMS  = "restore_ms"  // of a stored state of the prompt
	KeyDecodeMS   = "decode_ms"   // from the first to the last token
	KeyScoreMS    = "score_ms"    // of the scorer's engine
	KeyEngineMS   = "engine_ms"   // of the draft's engine, features included
	KeyAppendMS   = "append_ms"   // of that, for features
	KeySkipped    = "skipped"     // proposals that were out of date before they were made

	// Of a request at a target: how it speculated, what came of it, and where its time went.
	KeyMode        = "mode"
	KeyRounds      = "rounds"
	KeyDrafted     = "drafted"
	KeyAccepted    = "accepted"
	KeyLookedUp    = "looked_up" // drafted by prompt lookup
	KeyLate        = "late"      // proposals that came after their deadline
	KeyDegraded    = "degraded"
	KeyPrefillMS   = "prefill_ms"
	KeyVerifyMS    = "verify_ms"
	KeyDraftWaitMS = "draft_wait_ms"
	KeyPreemptions = "preemptions" // times that it gave up its memory
	KeyReadAgain   = "read_again"  // tokens that it read again after that
)
