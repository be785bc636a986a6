// Package traces shows where the time of a request went, in all processes that had a part in it. It asks the workers
// for the spans that they keep, and has them export those of requests that turned out slow.
package traces

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/bounds"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

const (
	// askTimeout bounds the wait for the workers.
	askTimeout = 2 * time.Second
	// mostSlow traces wait for the workers to be told; more are exported by the gateway alone.
	mostSlow = 64
	// mostAnswer bounds what a worker answers, in bytes.
	mostAnswer = 32 << 20
)

// Config of a Service.
type Config struct {
	// Slow is the time from which a request that was not sampled is exported all the same; 0 = none is.
	Slow time.Duration
}

// Deps of a Service.
type Deps struct {
	Traces  *telemetry.Traces
	Workers func() []registry.Worker
	// Connect opens a connection to a worker, which the service closes.
	Connect func(registry.Worker) (*grpc.ClientConn, error)
	Logger  *zap.Logger
}

// Service finds and exports traces.
type Service struct {
	traces  *telemetry.Traces
	workers func() []registry.Worker
	connect func(registry.Worker) (*grpc.ClientConn, error)
	log     *zap.Logger
	slow    chan trace.TraceID
}

// New returns a service; Run exports.
func New(cfg Config, deps Deps) *Service {
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	s := &Service{traces: deps.Traces, workers: deps.Workers, connect: deps.Connect, log: deps.Logger,
		slow: make(chan trace.TraceID, mostSlow)}
	if cfg.Slow > 0 {
		s.traces.OnSlow(cfg.Slow, func(id trace.TraceID) {
			select {
			case s.slow <- id:
			default: // a storm of slow requests: their traces have the gateway's part
			}
		})
	}
	return s
}

// Run tells the workers which traces to export, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	for {
		select {
		case id := <-s.slow:
			s.ask(ctx, func(ctx context.Context, c tandemv1.TelemetryServiceClient) error {
				_, err := c.ExportTrace(ctx, &tandemv1.ExportTraceRequest{TraceId: id.String()})
				return err
			})
		case <-ctx.Done():
			return nil
		}
	}
}

// Find returns the spans of the newest trace of a request, first ones first; none when it is not kept any more.
func (s *Service) Find(ctx context.Context, request string) []*tandemv1.TraceSpan {
	spans := s.traces.Spans(ctx, trace.TraceID{}, request)
	if len(spans) == 0 {
		return nil
	}
	id := spans[0].GetTraceId()
	var mu sync.Mutex
	s.ask(ctx, func(ctx context.Context, c tandemv1.TelemetryServiceClient) error {
		m, err := c.GetTrace(ctx, &tandemv1.GetTraceRequest{TraceId: id}, grpc.MaxCallRecvMsgSize(mostAnswer))
		if err == nil {
			err = bounds.Check(m)
		}
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		spans = append(spans, m.GetSpans()...)
		return nil
	})
	slices.SortStableFunc(spans, func(a, b *tandemv1.TraceSpan) int {
		return cmp.Or(cmp.Compare(a.StartUnixNanos, b.StartUnixNanos), cmp.Compare(b.DurationNanos, a.DurationNanos))
	})
	return spans
}

// ask calls do for all workers at the same time. One that does not answer costs its own spans only.
func (s *Service) ask(ctx context.Context, do func(context.Context, tandemv1.TelemetryServiceClient) error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var group sync.WaitGroup
	for _, w := range s.workers() {
		if w.State == registry.StateLost {
			continue
		}
		group.Go(func() {
			conn, err := s.connect(w)
			if err == nil {
				defer conn.Close()
				err = do(ctx, tandemv1.NewTelemetryServiceClient(conn))
			}
			if err != nil {
				s.log.Debug("a worker's spans cannot be had", zap.String(telemetry.KeyWorker, w.ID),
					zap.NamedError(telemetry.KeyErr, err))
			}
		})
	}
	group.Wait()
}
