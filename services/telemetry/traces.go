package telemetry

import (
	"context"
	"fmt"
	"net/url"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// Traces owns the tracer provider of a process.
type Traces struct {
	provider trace.TracerProvider
	sdk      *sdktrace.TracerProvider
}

// NoTraces returns traces that go nowhere and cost nothing.
func NoTraces() *Traces { return &Traces{provider: tracenoop.NewTracerProvider()} }

// NewTraces sends spans to an OTLP collector over gRPC. endpoint is a URL, http://host:4317 without and https://host:4317 with
// TLS; empty means no traces. ratio of the requests are sampled, and all those whose client sampled them. A collector that
// cannot be reached costs spans, nothing else.
func NewTraces(ctx context.Context, service, version, endpoint string, ratio float64) (*Traces, error) {
	if endpoint == "" {
		return NoTraces(), nil
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q is not http://HOST:PORT or https://HOST:PORT", endpoint)
	}
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(endpoint))
	if err != nil {
		return nil, err
	}
	res := resource.NewSchemaless(attribute.String("service.name", service), attribute.String("service.version", version))
	sdk := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio))))
	return &Traces{provider: sdk, sdk: sdk}, nil
}

// TracerProvider returns the provider; it is never nil.
func (t *Traces) TracerProvider() trace.TracerProvider { return t.provider }

// On reports whether spans go anywhere.
func (t *Traces) On() bool { return t.sdk != nil }

// Shutdown sends what is left and stops.
func (t *Traces) Shutdown(ctx context.Context) error {
	if t.sdk == nil {
		return nil
	}
	return t.sdk.Shutdown(ctx)
}
