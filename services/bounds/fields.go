package bounds

import (
	"math"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// Fields holds the rule of every field of every message between processes, but for those that declare their range
// themselves. A test walks the messages: a field without a rule fails it.
var Fields = map[protoreflect.FullName]Rule{
	"tandem.v1.Registration.worker_id":        token(mostID),
	"tandem.v1.Registration.role":             {Known: true},
	"tandem.v1.Registration.protocol_version": by("registry.Server.check: must be equal"),
	"tandem.v1.Registration.version":          name(mostName),
	"tandem.v1.Registration.address":          name(mostAddress),
	"tandem.v1.Registration.backend":          name(mostName),
	"tandem.v1.Registration.device":           name(mostName),
	"tandem.v1.Registration.model":            {Inner: true},
	"tandem.v1.Registration.limits":           {Inner: true},
	"tandem.v1.Registration.contract":         token(mostName),
	"tandem.v1.Registration.numerics":         name(mostText),
	"tandem.v1.Registration.settings":         {Count: mostSettings, KeyBytes: 64, Bytes: mostName},

	"tandem.v1.ModelInfo.name":             name(mostName),
	"tandem.v1.ModelInfo.arch":             name(mostName),
	"tandem.v1.ModelInfo.digest":           token(mostName),
	"tandem.v1.ModelInfo.tokenizer_digest": token(mostName),
	"tandem.v1.ModelInfo.n_layers":         number(0, mostLayers),
	"tandem.v1.ModelInfo.layer_first":      number(0, mostLayers),
	"tandem.v1.ModelInfo.layer_last":       number(0, mostLayers),
	"tandem.v1.ModelInfo.hidden":           number(0, mostWidth),
	"tandem.v1.ModelInfo.vocab":            number(0, mostVocab),
	"tandem.v1.ModelInfo.capture_layers":   {Count: mostName, Most: mostLayers},
	"tandem.v1.ModelInfo.block_size":       number(0, mostWidth),
	"tandem.v1.ModelInfo.created_unix":     number(0, mostKV),
	"tandem.v1.ModelInfo.path":             name(mostPath),

	"tandem.v1.Limits.lanes":            number(0, mostLanes),
	"tandem.v1.Limits.max_context":      number(0, mostContext),
	"tandem.v1.Limits.max_tree_rows":    number(0, mostLanes),
	"tandem.v1.Limits.max_score_tokens": number(0, mostContext),
	"tandem.v1.Limits.kv_tokens":        number(0, mostKV),

	"tandem.v1.Heartbeat.state":              token(mostID),
	"tandem.v1.Heartbeat.lanes_busy":         number(0, mostLanes),
	"tandem.v1.Heartbeat.rtt_ms":             ms(),
	"tandem.v1.Heartbeat.attached":           {Count: mostAttached, Bytes: mostID, Token: true},
	"tandem.v1.Heartbeat.engine_restarts":    number(0, math.MaxInt32),
	"tandem.v1.Heartbeat.counters":           {Count: mostCounters, KeyBytes: 64, Most: mostCount},
	"tandem.v1.Heartbeat.seq":                {Any: "is echoed"},
	"tandem.v1.Heartbeat.loaded_bytes":       number(0, mostCount),
	"tandem.v1.Heartbeat.load_bytes":         number(0, mostCount),
	"tandem.v1.Heartbeat.engine_sequences":   number(0, math.MaxInt32),
	"tandem.v1.Heartbeat.orphaned_sequences": number(0, math.MaxInt32),
	"tandem.v1.Heartbeat.speculation":        {Inner: true},
	"tandem.v1.Heartbeat.refused_drafts":     {Inner: true, Count: mostAttached},
	"tandem.v1.RefusedDraft.address":         name(mostAddress),
	"tandem.v1.RefusedDraft.reason":          name(mostText),

	"tandem.v1.Heartbeat.prefixes": {Inner: true},

	"tandem.v1.Prefixes.version":       {Any: "is compared"},
	"tandem.v1.Prefixes.states":        {Count: 1024},
	"tandem.v1.Prefixes.disk_token_ms": ms(),
	"tandem.v1.PrefixState.digest":     {Any: "is compared"},
	"tandem.v1.PrefixState.tokens":     number(0, mostContext),
	"tandem.v1.PrefixState.on_disk":    {Any: "a bool"},

	"tandem.v1.AutoSpeculation.steps":              {Count: 64},
	"tandem.v1.AutoSpeculation.draft_ms":           ms(),
	"tandem.v1.AutoSpeculation.draft_block":        number(0, mostWidth),
	"tandem.v1.AutoSpeculation.hop_ms":             ms(),
	"tandem.v1.AutoSpeculation.first_accepted":     number(0, 1),
	"tandem.v1.AutoSpeculation.fourth_accepted":    number(0, 1),
	"tandem.v1.AutoSpeculation.outlook":            number(0, 1e9),
	"tandem.v1.AutoSpeculation.without_draft":      number(0, 1e9),
	"tandem.v1.AutoSpeculation.held_back":          {Any: "a bool"},
	"tandem.v1.AutoSpeculation.tokens_since_draft": number(0, mostCount),
	"tandem.v1.AutoSpeculation.reason":             name(mostText),
	"tandem.v1.AutoSpeculation.prompts":            {Count: 64},
	"tandem.v1.AutoSpeculation.prompts_beside":     {Count: 64},

	"tandem.v1.StepTime.rows": number(0, mostLanes),
	"tandem.v1.StepTime.ms":   ms(),

	"tandem.v1.JoinRequest.registration": {Inner: true},
	"tandem.v1.JoinRequest.heartbeat":    {Inner: true},

	"tandem.v1.JoinResponse.lease": {Inner: true},

	"tandem.v1.Lease.lease_ttl_ms":  number(0, 24*3600*1000),
	"tandem.v1.Lease.epoch":         {Any: "is compared"},
	"tandem.v1.Lease.peers":         {Count: mostLanes},
	"tandem.v1.Lease.drain":         {Any: "a bool"},
	"tandem.v1.Lease.heartbeat_seq": {Any: "is compared"},

	"tandem.v1.Peer.worker_id": token(mostID),
	"tandem.v1.Peer.role":      {Known: true},
	"tandem.v1.Peer.address":   name(mostAddress),
	"tandem.v1.Peer.model":     {Inner: true},

	"tandem.v1.GetDraftResponse.worker_id":      by("worker-target/internal/drafts check and describe"),
	"tandem.v1.GetDraftResponse.capture_layers": by("worker-target/internal/drafts check and describe"),
	"tandem.v1.GetDraftResponse.block_size":     by("worker-target/internal/drafts check and describe"),
	"tandem.v1.GetDraftResponse.mask_token":     by("worker-target/internal/drafts check and describe"),
	"tandem.v1.GetDraftResponse.fused_width":    by("worker-target/internal/drafts check and describe"),
	"tandem.v1.GetDraftResponse.fuse_digest":    by("worker-target/internal/drafts check and describe"),
	"tandem.v1.GetDraftResponse.draft_digest":   by("worker-target/internal/drafts check and describe"),
	"tandem.v1.GetDraftResponse.max_context":    by("worker-target/internal/drafts check and describe"),
	"tandem.v1.GetDraftResponse.ready":          {Any: "a bool"},
	"tandem.v1.GetDraftResponse.needs_tables":   {Any: "a bool"},

	"tandem.v1.GetDraftRequest.tables_digest":    by("worker-draft/internal/server GetDraft: compared with the draft"),
	"tandem.v1.GetDraftRequest.tokenizer_digest": by("worker-draft/internal/server GetDraft: compared with the draft"),
	"tandem.v1.GetDraftRequest.target_hidden":    by("worker-draft/internal/server GetDraft: compared with the draft"),
	"tandem.v1.GetDraftRequest.target_layers":    by("worker-draft/internal/server GetDraft: compared with the draft"),
	"tandem.v1.GetDraftRequest.target_vocab":     by("worker-draft/internal/server GetDraft: compared with the draft"),

	"tandem.v1.PutTablesRequest.digest":      by("worker-draft/internal/assets Receive, services/transfer"),
	"tandem.v1.PutTablesRequest.total_bytes": by("worker-draft/internal/assets Receive, services/transfer"),
	"tandem.v1.PutTablesRequest.chunk":       by("worker-draft/internal/assets Receive, services/transfer"),

	"tandem.v1.GetFuseResponse.digest":      by("not used: the file is compared with the digest of GetDraftResponse"),
	"tandem.v1.GetFuseResponse.total_bytes": by("worker-target/internal/drafts fuse, services/transfer"),
	"tandem.v1.GetFuseResponse.chunk":       by("worker-target/internal/drafts fuse, services/transfer"),

	"tandem.v1.SpeculateRequest.session_id":       by("worker-draft/internal/server check, fresh and request"),
	"tandem.v1.SpeculateRequest.feature_position": by("worker-draft/internal/server check, fresh and request"),
	"tandem.v1.SpeculateRequest.feature_rows":     by("worker-draft/internal/server check, fresh and request"),
	"tandem.v1.SpeculateRequest.feature_encoding": by("worker-draft/internal/server check, fresh and request"),
	"tandem.v1.SpeculateRequest.propose":          by("worker-draft/internal/server check, fresh and request"),
	"tandem.v1.SpeculateRequest.features":         by("worker-draft/internal/server check, fresh and request"),
	"tandem.v1.SpeculateRequest.epoch":            {Any: "is compared"},
	"tandem.v1.SpeculateRequest.step":             {Any: "is compared"},

	"tandem.v1.Propose.anchor":      by("worker-draft/internal/server check, fresh and request"),
	"tandem.v1.Propose.position":    by("worker-draft/internal/server check, fresh and request"),
	"tandem.v1.Propose.budget":      by("worker-draft/internal/server check, fresh and request"),
	"tandem.v1.Propose.block":       by("worker-draft/internal/server check, fresh and request"),
	"tandem.v1.Propose.mode":        by("worker-draft/internal/server check, fresh and request"),
	"tandem.v1.Propose.deadline_us": by("worker-draft/internal/server check, fresh and request"),

	"tandem.v1.SpeculateResponse.tokens":     by("services/ddtree Set"),
	"tandem.v1.SpeculateResponse.parents":    by("services/ddtree Set"),
	"tandem.v1.SpeculateResponse.logprobs":   by("services/ddtree Set"),
	"tandem.v1.SpeculateResponse.epoch":      {Any: "is compared"},
	"tandem.v1.SpeculateResponse.step":       {Any: "is compared"},
	"tandem.v1.SpeculateResponse.length":     by("not used by targets"),
	"tandem.v1.SpeculateResponse.append_us":  by("not used by targets"),
	"tandem.v1.SpeculateResponse.forward_us": by("not used by targets"),
	"tandem.v1.SpeculateResponse.build_us":   by("not used by targets"),

	"tandem.v1.CompressRequest.request_id":   by("worker-prefill/internal/server check"),
	"tandem.v1.CompressRequest.tokens":       by("worker-prefill/internal/server check"),
	"tandem.v1.CompressRequest.segments":     by("worker-prefill/internal/server check"),
	"tandem.v1.CompressRequest.query":        by("worker-prefill/internal/server check"),
	"tandem.v1.CompressRequest.query_tokens": by("worker-prefill/internal/server check"),
	"tandem.v1.CompressRequest.chunk_tokens": by("worker-prefill/internal/server check"),
	"tandem.v1.CompressRequest.pool_tokens":  by("worker-prefill/internal/server check"),
	"tandem.v1.CompressRequest.rotated":      {Any: "a bool"},

	"tandem.v1.Segment.span":       by("worker-prefill/internal/server check"),
	"tandem.v1.Segment.keep_ratio": by("worker-prefill/internal/server check"),
	"tandem.v1.Segment.min_chunks": by("worker-prefill/internal/server check"),

	"tandem.v1.Span.first": by("worker-prefill/internal/server check; gateway/internal/compress read"),
	"tandem.v1.Span.last":  by("worker-prefill/internal/server check; gateway/internal/compress read"),

	"tandem.v1.CompressResponse.segments": by("gateway/internal/compress read"),
	"tandem.v1.CompressResponse.score_ms": by("gateway/internal/compress read"),

	"tandem.v1.KeptSegment.kept": by("gateway/internal/compress read"),

	"tandem.v1.DecodeRequest.prompt_tokens":    by("worker-target/internal/server check"),
	"tandem.v1.DecodeRequest.committed_tokens": by("worker-target/internal/server check"),
	"tandem.v1.DecodeRequest.sampling":         by("worker-target/internal/server check"),
	"tandem.v1.DecodeRequest.max_tokens":       by("worker-target/internal/server check"),
	"tandem.v1.DecodeRequest.stop_tokens":      by("worker-target/internal/server check"),
	"tandem.v1.DecodeRequest.speculation":      by("worker-target/internal/server check"),
	"tandem.v1.DecodeRequest.top_logprobs":     by("worker-target/internal/server check"),
	"tandem.v1.DecodeRequest.prompt_logprobs":  by("worker-target/internal/server check"),
	"tandem.v1.DecodeRequest.request_id":       by("made or checked by the gateway; for logs"),
	"tandem.v1.DecodeRequest.choice":           {Any: "is a number of the random generator"},
	"tandem.v1.DecodeRequest.guide":            by("worker-target/internal/constraint"),
	"tandem.v1.DecodeRequest.fairness_key":     {Any: "is compared"},
	"tandem.v1.DecodeRequest.priority":         by("worker-target/internal/server check"),
	"tandem.v1.DecodeRequest.cache":            by("worker-target/internal/server checkCache"),
	"tandem.v1.DecodeRequest.peer":             by("worker-target/internal/server check"),

	"tandem.v1.PeerHint.worker_id": token(mostID),
	"tandem.v1.PeerHint.address":   name(mostAddress),
	"tandem.v1.PeerHint.tokens":    number(0, mostContext),

	"tandem.v1.FetchStateRequest.contract":    by("worker-target/internal/peers Server.check: must be equal"),
	"tandem.v1.FetchStateRequest.isolation":   by("worker-target/internal/peers Server.check"),
	"tandem.v1.FetchStateRequest.tokens":      by("worker-target/internal/peers Server.check"),
	"tandem.v1.FetchStateRequest.longer_than": by("worker-target/internal/peers Server.check"),
	"tandem.v1.FetchStateRequest.lengths":     by("worker-target/internal/peers Server.check"),

	"tandem.v1.FetchStateResponse.header": by("worker-target/internal/peers open"),
	"tandem.v1.FetchStateResponse.part":   by("worker-target/internal/peers receive"),
	"tandem.v1.FetchStateResponse.rows":   by("worker-target/internal/peers features"),

	"tandem.v1.StateHeader.contract":    by("worker-target/internal/peers open: must be equal"),
	"tandem.v1.StateHeader.length":      by("worker-target/internal/peers open"),
	"tandem.v1.StateHeader.pages":       by("worker-target/internal/peers open"),
	"tandem.v1.StateHeader.identity":    by("the engine compares it with its own"),
	"tandem.v1.StateHeader.kv_type_k":   by("the engine compares it with its own"),
	"tandem.v1.StateHeader.kv_type_v":   by("the engine compares it with its own"),
	"tandem.v1.StateHeader.state_bytes": by("the engine compares it with its own"),
	"tandem.v1.StateHeader.page_bytes":  by("the engine compares it with its own"),
	"tandem.v1.StateHeader.block_bytes": by("the engine compares it with its own"),

	"tandem.v1.StatePart.page":   by("worker-target/internal/peers receive: the one that comes next"),
	"tandem.v1.StatePart.offset": by("worker-target/internal/peers receive: the one that comes next"),
	"tandem.v1.StatePart.crc":    by("the engine compares it with the data"),
	"tandem.v1.StatePart.data":   by("worker-target/internal/peers receive"),

	"tandem.v1.StateRows.kind":     by("worker-target/internal/peers features"),
	"tandem.v1.StateRows.width":    by("worker-target/internal/peers features"),
	"tandem.v1.StateRows.position": by("worker-target/internal/peers features"),
	"tandem.v1.StateRows.crc":      by("worker-target/internal/peers features"),
	"tandem.v1.StateRows.data":     by("worker-target/internal/peers features"),

	"tandem.v1.HoldRequest.head_id":         token(mostID),
	"tandem.v1.HoldRequest.engine_version":  by("services/engine/stagenet Hold: must be equal"),
	"tandem.v1.HoldResponse.version":        name(mostName),
	"tandem.v1.HoldResponse.engine_version": by("services/engine/stagenet differs: must be equal"),
	"tandem.v1.HoldResponse.stage":          number(0, mostLayers),
	"tandem.v1.HoldResponse.stages":         number(0, mostLayers),
	"tandem.v1.HoldResponse.n_layers":       number(0, mostLayers),
	"tandem.v1.HoldResponse.layer_first":    number(0, mostLayers),
	"tandem.v1.HoldResponse.layer_last":     number(0, mostLayers),
	"tandem.v1.HoldResponse.layers_digest":  token(mostName),
	"tandem.v1.HoldResponse.row_type":       token(mostName),
	"tandem.v1.PutFuseRequest.digest":       by("services/engine/stagenet PutFuse"),
	"tandem.v1.PutFuseRequest.total_bytes":  by("services/transfer Receive"),
	"tandem.v1.PutFuseRequest.chunk":        by("services/transfer Receive"),

	"tandem.v1.ReadAheadRequest.request_id":    by("made or checked by the gateway; for logs"),
	"tandem.v1.ReadAheadRequest.prompt_tokens": by("worker-target/internal/server checkAhead"),
	"tandem.v1.ReadAheadRequest.isolation":     by("worker-target/internal/server checkAhead"),
	"tandem.v1.ReadAheadResponse.accepted":     {Any: "a bool"},

	"tandem.v1.CacheUse.off":       {Any: "a bool"},
	"tandem.v1.CacheUse.isolation": by("worker-target/internal/server checkCache"),
	"tandem.v1.CacheUse.hints":     by("worker-target/internal/server checkCache"),

	"tandem.v1.Speculation.mode":   by("worker-target/internal/server check"),
	"tandem.v1.Speculation.budget": by("worker-target/internal/server check"),
	"tandem.v1.Speculation.block":  by("worker-target/internal/server check"),

	"tandem.v1.Guide.reasoning":     by("worker-target/internal/constraint"),
	"tandem.v1.Guide.grammar":       by("worker-target/internal/constraint"),
	"tandem.v1.Guide.banned_tokens": by("worker-target/internal/constraint"),

	"tandem.v1.Reasoning.open":           by("worker-target/internal/constraint"),
	"tandem.v1.Reasoning.close":          by("worker-target/internal/constraint"),
	"tandem.v1.Reasoning.budget":         by("worker-target/internal/constraint"),
	"tandem.v1.Reasoning.reserve":        by("worker-target/internal/constraint"),
	"tandem.v1.Reasoning.close_sequence": by("worker-target/internal/constraint"),
	"tandem.v1.Reasoning.call_open":      by("worker-target/internal/constraint"),
	"tandem.v1.Reasoning.call_close":     by("worker-target/internal/constraint"),
	"tandem.v1.Reasoning.inside":         {Any: "a bool"},

	"tandem.v1.DecodeResponse.admitted":  by("gateway/internal/generate verifier"),
	"tandem.v1.DecodeResponse.prefilled": by("gateway/internal/generate verifier"),
	"tandem.v1.DecodeResponse.committed": by("gateway/internal/generate verifier"),
	"tandem.v1.DecodeResponse.finished":  by("gateway/internal/generate verifier"),

	"tandem.v1.Admitted.worker_id": by("gateway/internal/generate verifier"),
	"tandem.v1.Admitted.contract":  by("gateway/internal/generate verifier"),

	"tandem.v1.Prefilled.tokens":        by("gateway/internal/generate verifier"),
	"tandem.v1.Prefilled.logprobs":      by("gateway/internal/generate verifier"),
	"tandem.v1.Prefilled.cached_tokens": by("gateway/internal/generate verifier"),
	"tandem.v1.Prefilled.saved_tokens":  by("gateway/internal/generate verifier"),

	"tandem.v1.Committed.tokens":     by("gateway/internal/generate verifier"),
	"tandem.v1.Committed.logprobs":   by("gateway/internal/generate verifier"),
	"tandem.v1.Committed.close_kind": by("gateway/internal/generate verifier"),

	"tandem.v1.PositionLogprobs.logprob": by("gateway/internal/generate verifier"),
	"tandem.v1.PositionLogprobs.top":     by("gateway/internal/generate verifier"),

	"tandem.v1.TokenLogprob.token":   by("gateway/internal/generate verifier"),
	"tandem.v1.TokenLogprob.logprob": by("gateway/internal/generate verifier"),

	"tandem.v1.Finished.reason":     by("gateway/internal/generate verifier"),
	"tandem.v1.Finished.stop_token": by("gateway/internal/generate verifier"),
	"tandem.v1.Finished.timings":    by("gateway/internal/generate verifier"),
	"tandem.v1.Finished.close_kind": by("gateway/internal/generate verifier"),

	"tandem.v1.Timings.queue_ms":               by("gateway/internal/generate verifier"),
	"tandem.v1.Timings.compress_ms":            by("gateway/internal/generate verifier"),
	"tandem.v1.Timings.restore_ms":             by("gateway/internal/generate verifier"),
	"tandem.v1.Timings.prefill_ms":             by("gateway/internal/generate verifier"),
	"tandem.v1.Timings.ttft_ms":                by("gateway/internal/generate verifier"),
	"tandem.v1.Timings.decode_ms":              by("gateway/internal/generate verifier"),
	"tandem.v1.Timings.total_ms":               by("gateway/internal/generate verifier"),
	"tandem.v1.Timings.verify_steps":           by("gateway/internal/generate verifier"),
	"tandem.v1.Timings.drafted_tokens":         by("gateway/internal/generate verifier"),
	"tandem.v1.Timings.accepted_tokens":        by("gateway/internal/generate verifier"),
	"tandem.v1.Timings.draft_wait_ms":          by("gateway/internal/generate verifier"),
	"tandem.v1.Timings.verify_ms":              by("gateway/internal/generate verifier"),
	"tandem.v1.Timings.lookup_drafted_tokens":  by("gateway/internal/generate verifier"),
	"tandem.v1.Timings.lookup_accepted_tokens": by("gateway/internal/generate verifier"),
	"tandem.v1.Timings.speculation_degraded":   {Any: "a bool"},

	"tandem.v1.Tensor.dtype": by("not sent by any process: for shards"),
	"tandem.v1.Tensor.shape": by("not sent by any process: for shards"),
	"tandem.v1.Tensor.data":  by("not sent by any process: for shards"),
}

// Messages holds what bounds the fields of messages that have no rules by field.
var Messages = map[protoreflect.FullName]string{
	"tandem.v1.InferenceService": "clients: gateway/internal/grpcapi and the checks that all dialects share; 64 " +
		"MiB a message",
	"tandem.setting.v1": "never sent: options in the definitions of fields",
	"tandem.engine.v1": "a worker and its own engine, which it started and whose library it chose: sizes by " +
		"services/tensorwire, results by worker-target/internal/decode checkResult; a head and its stage on another host: " +
		"calls by the stage's engine, sizes of results by services/engine/stagenet checkStep",
}
