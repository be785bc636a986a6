package telemetry

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
)

// Process says whose telemetry it is.
type Process struct {
	Service string // of all processes of the kind, such as tandem-gateway
	Version string
	// Worker is the process's name in the cluster, empty for one that has none.
	Worker string
	// Warn is told what the exporters complain about; nil = nobody is.
	Warn func(error)
}

// resource describes the process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES are stronger.
func (p *Process) resource(ctx context.Context) (*resource.Resource, error) {
	own := []attribute.KeyValue{
		attribute.String("service.name", p.Service), attribute.String("service.version", p.Version),
		attribute.String("service.instance.id", cmp.Or(p.Worker, rand.Text())),
	}
	if p.Worker != "" {
		own = append(own, attribute.String(AttrWorker, p.Worker))
	}
	r, err := resource.New(ctx, resource.WithAttributes(own...), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return r, nil
}

// Traces owns the tracer provider of a process, keeps the newest spans, and sends those that are sampled to a
// collector.
type Traces struct {
	process  Process
	provider trace.TracerProvider
	sdk      *sdktrace.TracerProvider
	kept     *kept
	sources  sources
}

// NoTraces returns traces that go nowhere and cost nothing.
func NoTraces() *Traces { return &Traces{provider: tracenoop.NewTracerProvider()} }

// OpenTraces keeps the newest traces of a process and sends to a collector those that flags or environment choose. A
// collector that cannot be reached costs spans, nothing else. OTEL_SDK_DISABLED turns it all off.
func OpenTraces(ctx context.Context, p Process, flags *TraceFlags) (*Traces, error) {
	e, err := exportOf("TRACES", flags.OTLPEndpoint)
	if err != nil {
		return nil, err
	}
	if disabled() {
		return NoTraces(), nil
	}
	choose, err := sampler(flags.TraceRatio)
	if err != nil {
		return nil, err
	}
	res, err := p.resource(ctx)
	if err != nil {
		return nil, err
	}
	t := &Traces{process: p, kept: newKept()}
	if e.on {
		exporter, err := traceExporter(ctx, &e)
		if err != nil {
			return nil, err
		}
		t.kept.next = newGather(sdktrace.NewBatchSpanProcessor(calm{exporter}))
		complain(p.Warn)
	}
	t.sdk = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(t.kept), sdktrace.WithResource(res),
		sdktrace.WithSampler(choose))
	t.provider = t.sdk
	return t, nil
}

func traceExporter(ctx context.Context, e *export) (sdktrace.SpanExporter, error) {
	switch {
	case e.http && e.endpoint != "":
		at, err := e.url("v1/traces")
		if err != nil {
			return nil, err
		}
		return otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(at))
	case e.http:
		return otlptracehttp.New(ctx)
	case e.endpoint != "":
		return otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(e.endpoint))
	}
	return otlptracegrpc.New(ctx)
}

// complain has warn told the errors of exporters. The SDK has one place for them in a process, which writes them to
// stderr otherwise.
func complain(warn func(error)) {
	if warn == nil {
		warn = func(error) {}
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(warn))
}

// WarnTo returns a Process.Warn that logs.
func WarnTo(log *zap.Logger) func(error) {
	log = log.Named("otlp")
	return func(err error) { log.Warn("telemetry was not sent", zap.NamedError(KeyErr, err)) }
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

// OnSlow has the traces exported of requests that came to this process, were not sampled, and took so long or failed.
// do is called for each of them and must not block. OnSlow is called before the first request.
func (t *Traces) OnSlow(limit time.Duration, do func(trace.TraceID)) {
	if t.kept != nil {
		t.kept.slow, t.kept.onSlow = limit, do
	}
}

// On reports whether spans are kept.
func (t *Traces) On() bool { return t != nil && t.kept != nil }

// Shutdown sends what is left and stops.
func (t *Traces) Shutdown(ctx context.Context) error {
	if t.sdk == nil {
		return nil
	}
	return t.sdk.Shutdown(ctx)
}
