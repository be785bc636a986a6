package telemetry

// Names of OpenTelemetry's GenAI conventions that the project emits. The conventions have status Development and the Go semconv
// packages dropped them after v1.41.0, so the names of that version are written down here and nowhere else.
const (
	GenAIRequestDuration    = "gen_ai.server.request.duration"
	GenAITimeToFirstToken   = "gen_ai.server.time_to_first_token"
	GenAITimePerOutputToken = "gen_ai.server.time_per_output_token"

	GenAIOperation = "gen_ai.operation.name"
	GenAIProvider  = "gen_ai.provider.name"
	// GenAIProviderTandem is this project's value of GenAIProvider.
	GenAIProviderTandem = "tandem"
)
