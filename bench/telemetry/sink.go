package main

import (
	"context"
	"net"
	"sync/atomic"

	metricsv1 "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracesv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// sink is a collector that counts spans.
type sink struct {
	tracesv1.UnimplementedTraceServiceServer
	endpoint string
	server   *grpc.Server
	served   chan struct{}
	spans    atomic.Int64
}

func listen() (*sink, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &sink{endpoint: "http://" + lis.Addr().String(), server: grpc.NewServer(), served: make(chan struct{})}
	tracesv1.RegisterTraceServiceServer(s.server, s)
	metricsv1.RegisterMetricsServiceServer(s.server, metrics{})
	go func() {
		defer close(s.served)
		_ = s.server.Serve(lis)
	}()
	return s, nil
}

// close stops the collector; its port was open until now, so Serve has nothing to complain of.
func (s *sink) close() {
	s.server.Stop()
	<-s.served
}

func (s *sink) count() int64 { return s.spans.Load() }

// Export implements TraceService.
func (s *sink) Export(_ context.Context,
	m *tracesv1.ExportTraceServiceRequest) (*tracesv1.ExportTraceServiceResponse, error) {
	for _, resource := range m.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			s.spans.Add(int64(len(scope.GetSpans())))
		}
	}
	return &tracesv1.ExportTraceServiceResponse{}, nil
}

// metrics takes metrics and drops them.
type metrics struct {
	metricsv1.UnimplementedMetricsServiceServer
}

// Export implements MetricsService.
func (metrics) Export(context.Context,
	*metricsv1.ExportMetricsServiceRequest) (*metricsv1.ExportMetricsServiceResponse, error) {
	return &metricsv1.ExportMetricsServiceResponse{}, nil
}
