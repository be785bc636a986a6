package e2e

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/tests/cluster"
	"github.com/tandem-inference/tandem/tests/collector"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// clientSpan is the id of the span of a test's client, the parent of a trace's first span.
const clientSpan = "b7ad6b7169203331"

// newTrace returns a trace id and the header that names it.
func newTrace() (id, traceparent string) {
	raw := make([]byte, 16)
	_, _ = rand.Read(raw)
	id = hex.EncodeToString(raw)
	return id, "00-" + id + "-" + clientSpan + "-01"
}

// question is long enough to be compressed.
var question = strings.Repeat("The sky over the harbour was grey, and the boats lay still. ", 60) + "What is DDTree?"

// posted sends a body with a traceparent and an id, and passes the lines of the answer to leave, which says when to go.
func posted(ctx context.Context, url, traceparent, id, body string, leave func(line string) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Traceparent", traceparent)
	request.Header.Set("X-Request-Id", id)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadString('\n')
		if leave != nil && leave(line) {
			return nil
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	return nil
}

// TestTraces: one request is one trace through all processes, whatever way it came and however it ended.
func TestTraces(t *testing.T) {
	c := collector.Start(t)
	cl := start(t, "--demo", "--otlp-endpoint", c.GRPC)
	const tree = `"speculation":{"mode":"tree"},"max_tokens":40,"temperature":0`
	const long = `"speculation":{"mode":"tree"},"max_tokens":400,"logit_bias":{"` + endOfTurn + `":-100}`
	messages := fmt.Sprintf(`"messages":[{"role":"user","content":%q}]`, "What is DDTree?")
	all := []string{"queue", "prefill", "decode", "tandem.v1.TargetService/Decode", "piece", "round", "engine.step",
		"tandem.v1.DraftService/Speculate", "propose", "engine.propose"}
	chats := append([]string{"render", "tokenize"}, all...)
	cases := []struct {
		name, path, body string
		// operation begins the name of the request's span; outcome is its tandem.outcome.
		operation, outcome string
		want               []string
		leave              func(line string) bool
	}{
		{name: "chat", path: "/v1/chat/completions", body: `{` + messages + `,` + tree + `}`, operation: "chat", want: chats},
		{name: "stream", path: "/v1/chat/completions", body: `{"stream":true,` + messages + `,` + tree + `}`,
			operation: "chat", want: chats},
		{name: "completion", path: "/v1/completions", body: `{"prompt":"Write a Go program.",` + tree + `}`,
			operation: "text_completion", want: all},
		{name: "responses", path: "/v1/responses", body: `{"input":"What is DDTree?","max_output_tokens":40,` +
			`"speculation":{"mode":"tree"}}`, operation: "chat", want: chats},
		{name: "messages", path: "/v1/messages", body: `{` + messages + `,` + tree + `}`, operation: "chat", want: chats},
		{name: "compressed", path: "/v1/chat/completions",
			body: fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"pflash":{"mode":"always","keep_ratio":0.3},%s}`,
				question, tree), operation: "chat",
			want: append([]string{"compress", "tandem.v1.PrefillService/Compress", "tandem.engine.v1.ScoreService/Score"},
				chats...)},
		{name: "cancelled", path: "/v1/completions", body: `{"stream":true,"prompt":"Write a long Go program.",` + long + `}`,
			operation: "text_completion", outcome: "cancelled", want: all, leave: after(20)},
		{name: "failed over", path: "/v1/completions",
			body:      `{"stream":true,"prompt":"Write a long Go program.",` + long + `}`,
			operation: "text_completion", want: append([]string{"replay"}, all...), leave: killing(t, cl, 20)},
	}
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			id, traceparent := newTrace()
			if err := posted(t.Context(), cl.HTTP+tt.path, traceparent, "req-"+id, tt.body, tt.leave); err != nil {
				t.Fatal(err)
			}
			outcome := tt.outcome
			if outcome == "" {
				outcome = "ok"
			}
			checkTrace(t, c, id, tt.operation, outcome, tt.want)
			checkPage(t, cl, "req-"+id, id, tt.want)
		})
	}
	t.Run("gRPC", func(t *testing.T) {
		id, traceparent := newTrace()
		conn, err := grpc.NewClient(cl.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		stream, err := tandemv1.NewInferenceServiceClient(conn).Generate(
			metadata.AppendToOutgoingContext(t.Context(), "traceparent", traceparent),
			&tandemv1.GenerateRequest{Input: &tandemv1.GenerateRequest_Chat{Chat: &tandemv1.Chat{
				Messages: []*tandemv1.Message{{Role: "user", Content: "What is DDTree?"}}, EnableThinking: proto.Bool(false),
			}}, MaxTokens: 40,
				Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_TREE}})
		for err == nil {
			_, err = stream.Recv()
		}
		if err != io.EOF {
			t.Fatal(err)
		}
		checkTrace(t, c, id, "chat", "", chats)
	})
}

// after leaves a stream after so many events.
func after(events int) func(string) bool {
	return func(line string) bool {
		if strings.HasPrefix(line, "data:") {
			events--
		}
		return events <= 0
	}
}

// killing kills the target's engine after so many events and stays.
func killing(t *testing.T, cl *cluster.Cluster, events int) func(string) bool {
	var kill sync.Once
	begun := after(events)
	return func(line string) bool {
		if begun(line) {
			kill.Do(func() { _ = syscall.Kill(enginesOf(t, cl, 1)[0], syscall.SIGKILL) })
		}
		return false
	}
}

// checkTrace waits for a trace that has spans of all the names, and checks that it hangs together.
func checkTrace(t *testing.T, c *collector.Collector, id, operation, outcome string, want []string) {
	t.Helper()
	var spans []collector.Span
	names := map[string]bool{}
	whole := func() bool {
		spans = c.Trace(id)
		clear(names)
		ids := map[string]bool{clientSpan: true}
		for i := range spans {
			names[spans[i].Name] = true
			ids[spans[i].ID()] = true
		}
		for _, name := range want {
			if !names[name] {
				return false
			}
		}
		for i := range spans {
			if !ids[spans[i].Parent()] {
				return false
			}
		}
		return slices.ContainsFunc(spans, func(s collector.Span) bool { return s.Parent() == clientSpan })
	}
	deadline := time.Now().Add(patience)
	for !whole() {
		if time.Now().After(deadline) {
			var have []string
			for i := range spans {
				s := &spans[i]
				have = append(have, s.Service+" "+s.Name+" "+s.ID()+" of "+s.Parent())
			}
			slices.Sort(have)
			t.Fatalf("the trace is not whole: want %q, have\n%s", want, strings.Join(have, "\n"))
		}
		time.Sleep(20 * time.Millisecond) // poll: another process changes this
	}
	byID := map[string]*collector.Span{}
	for i := range spans {
		byID[spans[i].ID()] = &spans[i]
	}
	// Where each span belongs: its service, and the name of its parent.
	parents := map[string]string{
		"piece": "prefill", "round": "decode", "engine.propose": "propose", "propose": "round",
	}
	services := map[string]string{
		"piece": "tandem-worker-target", "round": "tandem-worker-target", "propose": "tandem-worker-draft",
		"engine.step": "tandem-engine", "engine.propose": "tandem-engine",
	}
	for i := range spans {
		s := &spans[i]
		if service := services[s.Name]; service != "" && s.Service != service {
			t.Errorf("%s is a span of %s, want %s", s.Name, s.Service, service)
		}
		if parent := parents[s.Name]; parent != "" && byID[s.Parent()].GetName() != parent {
			t.Errorf("%s hangs below %s, want %s", s.Name, byID[s.Parent()].GetName(), parent)
		}
		if s.Name == "engine.step" {
			if p := byID[s.Parent()].GetName(); p != "piece" && p != "round" {
				t.Errorf("engine.step hangs below %s", p)
			}
		}
		if s.Failed() && !strings.Contains(t.Name(), "failed_over") {
			t.Errorf("%s of %s failed: %s", s.Name, s.Service, s.GetStatus().GetMessage())
		}
		for key := range s.Attributes {
			switch prefix, _, _ := strings.Cut(key, "."); prefix {
			case "http", "server", "client", "network", "error", "gen_ai", "tandem", "rpc":
			default:
				t.Errorf("%s: the attribute %s has no prefix of ours or of a convention", s.Name, key)
			}
		}
		if strings.Contains(s.String(), "DDTree") || strings.Contains(s.String(), "harbour") {
			t.Errorf("%s holds text of the request", s.Name)
		}
		if s.Parent() == clientSpan {
			if !strings.HasPrefix(s.Name, operation+" ") || s.Service != "tandem-gateway" {
				t.Errorf("the request's span is %s of %s", s.Name, s.Service)
			}
			if s.Attributes["tandem.outcome"] != outcome || s.Attributes["gen_ai.operation.name"] != operation ||
				outcome == "ok" && s.Attributes["gen_ai.usage.output_tokens"] == "0" {
				t.Errorf("the request's span has %v", s.Attributes)
			}
		}
	}
}

// checkPage asks the gateway for the trace.
func checkPage(t *testing.T, cl *cluster.Cluster, request, id string, want []string) {
	t.Helper()
	response, err := http.Get(cl.HTTP + "/trace/" + request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var page struct {
		TraceID string `json:"trace_id"`
		Spans   []struct{ Name string }
	}
	if err := json.NewDecoder(response.Body).Decode(&page); err != nil || page.TraceID != id {
		t.Fatalf("status %d, trace %s, %v", response.StatusCode, page.TraceID, err)
	}
	for _, name := range want {
		if !slices.ContainsFunc(page.Spans, func(s struct{ Name string }) bool { return s.Name == name }) {
			t.Errorf("/trace has no span %s", name)
		}
	}
}

// TestSlowTraces: a request that was not sampled is exported whole if it was slow, over HTTP, too.
func TestSlowTraces(t *testing.T) {
	c := collector.Start(t)
	needPrograms(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cl, err := cluster.Start(ctx, cluster.Options{Args: []string{"--demo", "--trace-ratio", "0", "--trace-slow-ms", "1"},
		Env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.HTTP, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	id, _ := newTrace()
	err = posted(t.Context(), cl.HTTP+"/v1/chat/completions", "00-"+id+"-"+clientSpan+"-00", "slow",
		`{"messages":[{"role":"user","content":"What is DDTree?"}],"speculation":{"mode":"tree"},"max_tokens":40}`, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkTrace(t, c, id, "chat", "ok", []string{"render", "queue", "prefill", "decode", "piece", "round", "engine.step",
		"propose", "engine.propose"})
}
