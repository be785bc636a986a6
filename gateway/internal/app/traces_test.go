package app

import (
	"context"
	"encoding/hex"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// collector keeps the spans that it is sent.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracev1.Span
}

func (c *collector) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// TestTraces: a request continues its client's trace; its span has the account, its phases hang below, and no text is in it.
func TestTraces(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{}
	server := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, c)
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	defer func() {
		server.Stop()
		<-served
	}()
	r := start(t, func(cfg *Config) {
		cfg.OTLPEndpoint = "http://" + lis.Addr().String()
		cfg.TraceRatio = 0 // only what the client traces
	})
	r.target(gatewaytest.WorkerOptions{Decode: r.reply("A secret answer.", 1)})
	ask := func(traceparent string) {
		request, err := http.NewRequest(http.MethodPost, r.url+"/v1/chat/completions", strings.NewReader(`{"model":"gpt-asked","messages":[{"role":"user","content":"A secret question?"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		if traceparent != "" {
			request.Header.Set("Traceparent", traceparent)
		}
		response, err := r.client.Do(request)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatal(err, response)
		}
		_ = response.Body.Close()
	}
	const trace = "0af7651916cd43dd8448eb211c80319c"
	ask("")
	ask("00-" + trace + "-b7ad6b7169203331-01")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	attributes := map[string]string{}
	for _, s := range c.spans {
		names = append(names, s.GetName())
		if got := hex.EncodeToString(s.GetTraceId()); got != trace {
			t.Errorf("span %s belongs to trace %s: only the client's was wanted", s.GetName(), got)
		}
		if strings.Contains(s.String(), "secret") {
			t.Errorf("span %s holds text of the request", s.GetName())
		}
		if s.GetName() == "chat tiny" {
			for _, a := range s.GetAttributes() {
				attributes[a.GetKey()] = a.GetValue().String()
			}
		}
	}
	for _, want := range []string{"chat tiny", "prefill", "decode", "tandem.v1.TargetService/Decode"} {
		if !slices.Contains(names, want) {
			t.Errorf("no span %q among %q", want, names)
		}
	}
	for _, key := range []string{"gen_ai.operation.name", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.response.finish_reasons"} {
		if attributes[key] == "" {
			t.Errorf("no attribute %s in %v", key, attributes)
		}
	}
	for key, want := range map[string]string{"gen_ai.request.model": "gpt-asked", "gen_ai.response.model": "tiny"} {
		if !strings.Contains(attributes[key], `"`+want+`"`) {
			t.Errorf("%s is %s, want %s", key, attributes[key], want)
		}
	}
}
