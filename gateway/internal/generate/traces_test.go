package generate_test

import (
	"context"
	"encoding/hex"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
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

func (c *collector) Export(_ context.Context,
	r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// collect runs a collector and returns its address.
func collect(t *testing.T) (*collector, string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{}
	server := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, c)
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	return c, "http://" + lis.Addr().String()
}

func attributes(s *tracev1.Span) map[string]string {
	out := map[string]string{}
	for _, a := range s.GetAttributes() {
		v := a.GetValue()
		switch {
		case v.GetStringValue() != "":
			out[a.GetKey()] = v.GetStringValue()
		default:
			out[a.GetKey()] = strings.TrimSpace(v.String())
		}
	}
	return out
}

// TestTracesOfFailures: what is refused has a span, what the client left is no error in any span, what the gateway
// failed at is one.
func TestTracesOfFailures(t *testing.T) {
	c, endpoint := collect(t)
	r := rig.Start(t, func(cfg *app.Config) { cfg.OTLPEndpoint = endpoint })
	b := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{Decode: b.Script(r.Tok, "one two")})
	if a := r.Post("/v1/chat/completions", `{"messages":[]}`); a.Status != 400 {
		t.Fatal(a.Status)
	}
	if a := r.Do("GET", "/v1/nothing", ""); a.Status != 404 {
		t.Fatal(a.Status)
	}
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", r.URL+"/v1/completions",
		strings.NewReader(`{"prompt":"x","model":"gpt-4","max_tokens":9,"temperature":0.5}`))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-b.Admitted
		leave()
	}()
	if resp, err := r.Client.Do(req); err == nil {
		resp.Body.Close()
	}
	rig.Receive(t, b.Cancelled, "cancel at the worker")
	r.Parts.Cluster.Targets.Drain()
	if a := r.Post("/v1/chat/completions", rig.ChatBody("")); a.Status != 503 {
		t.Fatal(a.Status, string(a.Body))
	}
	r.Do("GET", "/health", "")
	r.Do("GET", "/metrics", "")
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	byStatus := map[string]int{}
	for _, s := range c.spans {
		a := attributes(s)
		failed := s.GetStatus().GetCode() == tracev1.Status_STATUS_CODE_ERROR
		if s.GetKind() == tracev1.Span_SPAN_KIND_CLIENT {
			if failed {
				t.Errorf("%s, cancelled by the gateway itself, is an error", s.GetName())
			}
			continue
		}
		if s.GetKind() != tracev1.Span_SPAN_KIND_SERVER {
			continue
		}
		_, port, _ := net.SplitHostPort(r.App.HTTPAddr().String())
		if a["server.address"] != "127.0.0.1" || !strings.Contains(a["server.port"], port) || a["tandem.request_id"] == "" {
			t.Errorf("%s: %v", s.GetName(), a)
		}
		for key := range a {
			switch prefix, _, _ := strings.Cut(key, "."); prefix {
			case "http", "server", "client", "network", "error", "gen_ai", "tandem":
			default:
				t.Errorf("%s: the attribute %s has no prefix of ours or of a convention", s.GetName(), key)
			}
		}
		byStatus[a["tandem.outcome"]+" "+a["error.type"]]++
		switch a["tandem.outcome"] {
		case "cancelled":
			if failed || a["error.type"] != "" || s.GetName() != "text_completion tiny" ||
				a["gen_ai.operation.name"] != "text_completion" ||
				a["gen_ai.request.model"] != "gpt-4" || a["gen_ai.response.model"] != "tiny" ||
				!strings.HasPrefix(a["gen_ai.response.id"], "cmpl-") ||
				!strings.Contains(a["gen_ai.request.max_tokens"], "9") ||
				!strings.Contains(a["gen_ai.request.temperature"], "0.5") {
				t.Errorf("cancelled: %s, error %v, %v", s.GetName(), failed, a)
			}
		case "client_error":
			if failed {
				t.Errorf("%s is an error of the server's: %v", s.GetName(), a)
			}
		case "server_error":
			if !failed || s.GetStatus().GetMessage() != "draining" {
				t.Errorf("%s is no error: %v", s.GetName(), s.GetStatus())
			}
		}
	}
	want := map[string]int{"client_error missing_required_parameter": 1, "client_error not_found": 1, "cancelled ": 1,
		"server_error draining": 1}
	if d := cmp.Diff(want, byStatus); d != "" {
		t.Error(d)
	}
}

// TestTraces: a request continues its client's trace; its span has the account, its phases hang below, and no text is
// in it.
func TestTraces(t *testing.T) {
	c, endpoint := collect(t)
	r := rig.Start(t, func(cfg *app.Config) {
		cfg.OTLPEndpoint = endpoint
		cfg.TraceRatio = new(0.0) // only what the client traces
	})
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("A secret answer.", 1)})
	ask := func(traceparent string) {
		request, err := http.NewRequest(http.MethodPost, r.URL+"/v1/chat/completions",
			strings.NewReader(`{"model":"gpt-asked","messages":[{"role":"user","content":"A secret question?"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		if traceparent != "" {
			request.Header.Set("Traceparent", traceparent)
		}
		response, err := r.Client.Do(request)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatal(err, response)
		}
		_ = response.Body.Close()
	}
	const trace = "0af7651916cd43dd8448eb211c80319c"
	ask("")
	ask("00-" + trace + "-b7ad6b7169203331-01")
	if err := r.Stop(); err != nil {
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
	for _, key := range []string{"gen_ai.operation.name", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens",
		"gen_ai.response.finish_reasons"} {
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
