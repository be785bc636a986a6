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
