package telemetry

// Names of OpenTelemetry's GenAI conventions that the project emits. The conventions have status Development and the Go
// semconv packages dropped them after v1.41.0, so the names of that version are written down here and nowhere else.
const (
	GenAIRequestDuration    = "gen_ai.server.request.duration"
	GenAITimeToFirstToken   = "gen_ai.server.time_to_first_token"
	GenAITimePerOutputToken = "gen_ai.server.time_per_output_token"

	GenAIOperation = "gen_ai.operation.name"
	GenAIProvider  = "gen_ai.provider.name"
	// GenAIProviderTandem is this project's value of GenAIProvider.
	GenAIProviderTandem = "tandem"
)

// Attributes of the span of a generation, whose name is the operation and the model.
const (
	GenAIRequestMaxTokens   = "gen_ai.request.max_tokens"
	GenAIRequestTemperature = "gen_ai.request.temperature"
	GenAIResponseID         = "gen_ai.response.id"
	GenAIRequestModel       = "gen_ai.request.model"
	GenAIResponseModel      = "gen_ai.response.model"
	GenAIFinishReasons      = "gen_ai.response.finish_reasons"
	GenAIInputTokens        = "gen_ai.usage.input_tokens"
	GenAIOutputTokens       = "gen_ai.usage.output_tokens"
	GenAICachedTokens       = "gen_ai.usage.cache_read.input_tokens"
	GenAIReasoningTokens    = "gen_ai.usage.reasoning.output_tokens"
)

// Values of GenAIOperation.
const (
	GenAIChat           = "chat"
	GenAITextCompletion = "text_completion"
)

// Attributes of our own.
const (
	AttrRequestID   = "tandem.request_id"
	AttrOutcome     = "tandem.outcome"
	AttrTokens      = "tandem.tokens"
	AttrVerifySteps = "tandem.verify_steps"
	AttrDrafted     = "tandem.drafted_tokens"
	AttrAccepted    = "tandem.accepted_tokens"
	AttrReason      = "tandem.reason"
	AttrWorker      = "tandem.worker"
	AttrCached      = "tandem.cached_tokens"
	AttrRows        = "tandem.rows"
	AttrRound       = "tandem.round"
	AttrPlan        = "tandem.plan"
	AttrProposer    = "tandem.proposer"
	AttrDraftWaitMS = "tandem.draft_wait_ms"
	AttrVerifyMS    = "tandem.verify_ms"
	AttrEngineMS    = "tandem.engine_ms"
	AttrAppendMS    = "tandem.append_ms"
	AttrBatchRows   = "tandem.batch_rows"
	AttrNodes       = "tandem.nodes"

	AttrKept          = "tandem.kept_tokens"
	AttrFeatureRows   = "tandem.feature_rows"
	AttrBatchRequests = "tandem.batch_requests"
	AttrPosition      = "tandem.position"
)
