package telemetry

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
)

// sourceTimeout bounds the wait for what another process keeps.
const sourceTimeout = time.Second

// sources are the processes behind this one that keep spans of the same traces: the engines of a worker.
type sources struct {
	mu      sync.Mutex // guards the fields below
	next    int
	clients map[int]tandemv1.TelemetryServiceClient
}

// Attach adds the process at the other end of a connection to those whose spans this process shows and exports with its
// own, until detach is called.
func (t *Traces) Attach(conn grpc.ClientConnInterface) (detach func()) {
	if t == nil || t.kept == nil {
		return func() {}
	}
	s := &t.sources
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients == nil {
		s.clients = map[int]tandemv1.TelemetryServiceClient{}
	}
	id := s.next
	s.next++
	s.clients[id] = tandemv1.NewTelemetryServiceClient(conn)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.clients, id)
	}
}

// each calls do for every source at the same time and waits for all.
func (s *sources) each(ctx context.Context, do func(context.Context, tandemv1.TelemetryServiceClient)) {
	s.mu.Lock()
	clients := slices.Collect(maps.Values(s.clients))
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	var group sync.WaitGroup
	for _, c := range clients {
		group.Go(func() { do(ctx, c) })
	}
	group.Wait()
}

// Spans returns what this process and those behind it keep of a trace, named by its own id or else by its request.
func (t *Traces) Spans(ctx context.Context, id trace.TraceID, request string) []*tandemv1.TraceSpan {
	if t.kept == nil {
		return nil
	}
	var spans []*tandemv1.TraceSpan
	for _, s := range t.kept.find(id, request) {
		spans = append(spans, t.describe(s))
		id = s.SpanContext().TraceID()
	}
	if !id.IsValid() {
		return nil
	}
	var mu sync.Mutex
	t.sources.each(ctx, func(ctx context.Context, c tandemv1.TelemetryServiceClient) {
		m, err := c.GetTrace(ctx, &tandemv1.GetTraceRequest{TraceId: id.String()})
		if err != nil {
			return // the engine is being replaced: what it kept is gone
		}
		mu.Lock()
		defer mu.Unlock()
		spans = append(spans, m.GetSpans()...)
	})
	return spans
}

// Export exports a trace that was not sampled, from this process and those behind it.
func (t *Traces) Export(ctx context.Context, id trace.TraceID) {
	if t.kept == nil {
		return
	}
	t.kept.choose(id)
	t.sources.each(ctx, func(ctx context.Context, c tandemv1.TelemetryServiceClient) {
		_, _ = c.ExportTrace(ctx, &tandemv1.ExportTraceRequest{TraceId: id.String()}) // lost spans are no fault
	})
}

// describe is the message of a span.
func (t *Traces) describe(s sdktrace.ReadOnlySpan) *tandemv1.TraceSpan {
	m := &tandemv1.TraceSpan{
		TraceId: s.SpanContext().TraceID().String(), SpanId: s.SpanContext().SpanID().String(), Name: s.Name(),
		Service: t.process.Service, Worker: t.process.Worker, StartUnixNanos: s.StartTime().UnixNano(),
		DurationNanos: int64(s.EndTime().Sub(s.StartTime())), Attributes: map[string]string{},
	}
	if p := s.Parent(); p.SpanID().IsValid() {
		m.ParentId = p.SpanID().String()
	}
	if s.Status().Code == codes.Error && !(s.SpanKind() == trace.SpanKindClient && cancelled(s)) {
		if m.Error = s.Status().Description; m.Error == "" {
			m.Error = "failed"
		}
	}
	for _, kv := range s.Attributes() {
		m.Attributes[string(kv.Key)] = kv.Value.String()
	}
	return m
}

// Register adds TelemetryService to a server.
func (t *Traces) Register(s grpc.ServiceRegistrar) {
	tandemv1.RegisterTelemetryServiceServer(s, &traceService{traces: t})
}

type traceService struct {
	tandemv1.UnimplementedTelemetryServiceServer
	traces *Traces
}

// mostRequestID bounds the id of a request, in bytes.
const mostRequestID = 256

// GetTrace implements TelemetryService.
func (s *traceService) GetTrace(ctx context.Context, m *tandemv1.GetTraceRequest) (*tandemv1.GetTraceResponse, error) {
	var id trace.TraceID
	if m.GetTraceId() != "" {
		var err error
		if id, err = trace.TraceIDFromHex(m.GetTraceId()); err != nil {
			return nil, rpcerr.InvalidArgument("trace_id", "must be 32 hexadecimal digits that are not all 0")
		}
	}
	if n := len(m.GetRequestId()); n > mostRequestID {
		return nil, rpcerr.InvalidArgument("request_id", "has %d bytes, at most %d are allowed", n, mostRequestID)
	}
	return &tandemv1.GetTraceResponse{Spans: s.traces.Spans(ctx, id, m.GetRequestId())}, nil
}

// ExportTrace implements TelemetryService.
func (s *traceService) ExportTrace(ctx context.Context,
	m *tandemv1.ExportTraceRequest) (*tandemv1.ExportTraceResponse, error) {
	id, err := trace.TraceIDFromHex(m.GetTraceId())
	if err != nil {
		return nil, rpcerr.InvalidArgument("trace_id", "must be 32 hexadecimal digits that are not all 0")
	}
	s.traces.Export(ctx, id)
	return &tandemv1.ExportTraceResponse{}, nil
}
