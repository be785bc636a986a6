package telemetry

import (
	"fmt"
	"os"
	"strconv"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// keeping is a sampler that has every span recorded, so that it is kept for a while; what is sampled is exported, too.
// A span with a parent is sampled like it.
type keeping struct{ root sdktrace.Sampler }

// ShouldSample implements sdktrace.Sampler.
func (k keeping) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	parent := trace.SpanContextFromContext(p.ParentContext)
	result := sdktrace.SamplingResult{Decision: sdktrace.RecordOnly, Tracestate: parent.TraceState()}
	switch {
	case parent.IsSampled():
		result.Decision = sdktrace.RecordAndSample
	case !parent.IsValid() && k.root.ShouldSample(p).Decision == sdktrace.RecordAndSample:
		result.Decision = sdktrace.RecordAndSample
	}
	return result
}

// Description implements sdktrace.Sampler.
func (k keeping) Description() string { return "Keeping{" + k.root.Description() + "}" }

// sampler samples a share of the requests without a traced parent; nil = what OTEL_TRACES_SAMPLER says. Its samplers
// with and without regard to parents are the same here: a trace is never torn.
func sampler(ratio *float64) (sdktrace.Sampler, error) {
	if ratio != nil {
		return keeping{sdktrace.TraceIDRatioBased(*ratio)}, nil
	}
	switch name := os.Getenv("OTEL_TRACES_SAMPLER"); name {
	case "", "always_on", "parentbased_always_on":
		return keeping{sdktrace.AlwaysSample()}, nil
	case "always_off", "parentbased_always_off":
		return keeping{sdktrace.NeverSample()}, nil
	case "traceidratio", "parentbased_traceidratio":
		share := 1.0
		if text := os.Getenv("OTEL_TRACES_SAMPLER_ARG"); text != "" {
			var err error
			if share, err = strconv.ParseFloat(text, 64); err != nil || !(share >= 0 && share <= 1) {
				return nil, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG: %q is not a number from 0 to 1", text)
			}
		}
		return keeping{sdktrace.TraceIDRatioBased(share)}, nil
	default:
		return nil, fmt.Errorf("OTEL_TRACES_SAMPLER: %q is not one of always_on, always_off, traceidratio, or one of these "+
			"with parentbased_ before it", name)
	}
}
