// Package collector is an OpenTelemetry collector for tests: it keeps the spans and the names of the metrics that it is
// sent, over gRPC and over HTTP.
package collector

import (
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	metricsv1 "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracesv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	otlpv1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Span is one that was received.
type Span struct {
	*otlpv1.Span
	Service    string
	Attributes map[string]string
}

// ID, Parent and Trace are hexadecimal; Parent is empty for a root.
func (s *Span) ID() string     { return hex.EncodeToString(s.GetSpanId()) }
func (s *Span) Parent() string { return hex.EncodeToString(s.GetParentSpanId()) }
func (s *Span) Trace() string  { return hex.EncodeToString(s.GetTraceId()) }

// Failed reports whether the span's status is an error.
func (s *Span) Failed() bool { return s.GetStatus().GetCode() == otlpv1.Status_STATUS_CODE_ERROR }

// Collector keeps what it is sent.
type Collector struct {
	// GRPC and HTTP are its endpoints.
	GRPC, HTTP string

	mu      sync.Mutex // guards the fields below
	spans   []Span
	metrics map[string]map[string]bool // names by service
}

// Start runs a collector until the test ends.
func Start(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{metrics: map[string]map[string]bool{}}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	tracesv1.RegisterTraceServiceServer(server, traces{c: c})
	metricsv1.RegisterMetricsServiceServer(server, metrics{c: c})
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", func(w http.ResponseWriter, r *http.Request) {
		var m tracesv1.ExportTraceServiceRequest
		if receive(w, r, &m) {
			c.addSpans(&m)
		}
	})
	mux.HandleFunc("POST /v1/metrics", func(w http.ResponseWriter, r *http.Request) {
		var m metricsv1.ExportMetricsServiceRequest
		if receive(w, r, &m) {
			c.addMetrics(&m)
		}
	})
	web := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		web.Close()
	})
	c.GRPC, c.HTTP = "http://"+lis.Addr().String(), web.URL
	return c
}

// receive reads a message of OTLP over HTTP.
func receive(w http.ResponseWriter, r *http.Request, m proto.Message) bool {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(body, m)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	return true
}

type traces struct {
	tracesv1.UnimplementedTraceServiceServer
	c *Collector
}

func (s traces) Export(_ context.Context,
	m *tracesv1.ExportTraceServiceRequest) (*tracesv1.ExportTraceServiceResponse, error) {
	s.c.addSpans(m)
	return &tracesv1.ExportTraceServiceResponse{}, nil
}

type metrics struct {
	metricsv1.UnimplementedMetricsServiceServer
	c *Collector
}

func (s metrics) Export(_ context.Context,
	m *metricsv1.ExportMetricsServiceRequest) (*metricsv1.ExportMetricsServiceResponse, error) {
	s.c.addMetrics(m)
	return &metricsv1.ExportMetricsServiceResponse{}, nil
}

func (c *Collector) addSpans(m *tracesv1.ExportTraceServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range m.GetResourceSpans() {
		service := values(resource.GetResource().GetAttributes())["service.name"]
		for _, scope := range resource.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, Span{s, service, values(s.GetAttributes())})
			}
		}
	}
}

func (c *Collector) addMetrics(m *metricsv1.ExportMetricsServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range m.GetResourceMetrics() {
		service := values(resource.GetResource().GetAttributes())["service.name"]
		if c.metrics[service] == nil {
			c.metrics[service] = map[string]bool{}
		}
		for _, scope := range resource.GetScopeMetrics() {
			for _, metric := range scope.GetMetrics() {
				c.metrics[service][metric.GetName()] = true
			}
		}
	}
}

// Trace returns the spans of a trace that have arrived.
func (c *Collector) Trace(id string) []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Span
	for _, s := range c.spans {
		if s.Trace() == id {
			out = append(out, s)
		}
	}
	return out
}

// Metric reports whether a service has sent a metric of a name.
func (c *Collector) Metric(service, name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.metrics[service][name]
}

// values are attributes as texts.
func values(list []*commonv1.KeyValue) map[string]string {
	out := map[string]string{}
	for _, kv := range list {
		switch v := kv.GetValue().GetValue().(type) {
		case *commonv1.AnyValue_StringValue:
			out[kv.GetKey()] = v.StringValue
		case *commonv1.AnyValue_IntValue:
			out[kv.GetKey()] = strconv.FormatInt(v.IntValue, 10)
		case *commonv1.AnyValue_BoolValue:
			out[kv.GetKey()] = strconv.FormatBool(v.BoolValue)
		case *commonv1.AnyValue_DoubleValue:
			out[kv.GetKey()] = strconv.FormatFloat(v.DoubleValue, 'g', -1, 64)
		default:
			out[kv.GetKey()] = kv.GetValue().String()
		}
	}
	return out
}
