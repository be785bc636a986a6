package httpapi

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/accesslog"
	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/metrics"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

func newTracer(p trace.TracerProvider) trace.Tracer {
	if p == nil {
		p = tracenoop.NewTracerProvider()
	}
	return p.Tracer("github.com/tandem-inference/tandem/gateway")
}

// startSpan starts the span of a request, which continues the client's trace. A generation gives it its own name later.
func (s *Server) startSpan(ctx context.Context, r *http.Request, call *turn.Call,
	route string) (context.Context, trace.Span) {
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header))
	ctx, span := s.tracer.Start(ctx, strings.TrimSpace(method(r)+" "+route), trace.WithTimestamp(call.Arrived),
		trace.WithSpanKind(trace.SpanKindServer))
	if !span.IsRecording() {
		return ctx, span
	}
	span.SetAttributes(attribute.String("http.request.method", method(r)),
		attribute.String("client.address", accesslog.Host(r.RemoteAddr)),
		attribute.String("network.protocol.version", strings.TrimPrefix(r.Proto, "HTTP/")),
		attribute.String(telemetry.AttrRequestID, call.ID))
	if route != "" {
		span.SetAttributes(attribute.String("http.route", route))
	}
	// Where this gateway listens, not what the client calls it: the Host header is the client's. Sockets of the file
	// system have no port.
	if a, ok := ctx.Value(http.LocalAddrContextKey).(net.Addr); ok {
		if host, port, err := net.SplitHostPort(a.String()); err == nil {
			n, _ := strconv.Atoi(port)
			span.SetAttributes(attribute.String("server.address", host), attribute.Int("server.port", n))
		}
	}
	return ctx, span
}

// endSpan ends it. What the client did, leaving included, is no error of the server's.
func endSpan(span trace.Span, status int, outcome string, err error) {
	if span.IsRecording() {
		span.SetAttributes(attribute.String(telemetry.AttrOutcome, outcome))
		if outcome != metrics.OutcomeCancelled {
			span.SetAttributes(attribute.Int("http.response.status_code", status))
		}
		if outcome == metrics.OutcomeClientError || outcome == metrics.OutcomeServerError {
			span.SetAttributes(attribute.String("error.type", apierror.From(err).Code))
		}
		if outcome == metrics.OutcomeServerError {
			span.SetStatus(codes.Error, apierror.From(err).Code)
		}
	}
	span.End()
}
