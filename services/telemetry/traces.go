package telemetry

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
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

// NewTraces sends spans to an OTLP collector over gRPC. endpoint is a URL, http://host:4317 without and
// https://host:4317 with TLS; empty means no traces. ratio of the requests are sampled, and all those whose client
// sampled them. A collector that cannot be reached costs spans, nothing else.
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
	res := resource.NewSchemaless(attribute.String("service.name", service), attribute.String("service.version", version),
		attribute.String("service.instance.id", rand.Text()))
	sdk := sdktrace.NewTracerProvider(sdktrace.WithBatcher(calm{exporter}), sdktrace.WithResource(res),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio))))
	return &Traces{provider: sdk, sdk: sdk}, nil
}

// calm takes the status off calls that this process cancelled itself: the client left, or a stop string ended the
// answer. The RPC instrumentation calls them errors, which would make alerts of them.
type calm struct{ sdktrace.SpanExporter }

// ExportSpans implements sdktrace.SpanExporter.
func (c calm) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	out := make([]sdktrace.ReadOnlySpan, len(spans))
	for i, s := range spans {
		out[i] = s
		if s.Status().Code == codes.Error && s.SpanKind() == trace.SpanKindClient && cancelled(s) {
			out[i] = withoutStatus{s}
		}
	}
	return c.SpanExporter.ExportSpans(ctx, out)
}

func cancelled(s sdktrace.ReadOnlySpan) bool {
	for _, kv := range s.Attributes() {
		if kv.Key == "rpc.response.status_code" {
			return kv.Value.AsString() == "CANCELLED"
		}
	}
	return false
}

type withoutStatus struct{ sdktrace.ReadOnlySpan }

// Status implements sdktrace.ReadOnlySpan.
func (withoutStatus) Status() sdktrace.Status { return sdktrace.Status{} }

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
