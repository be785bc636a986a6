package app

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/testwait"
)

func TestModelsAndHealth(t *testing.T) {
	r := start(t, nil)
	r.target(gatewaytest.WorkerOptions{MaxContext: 4096, Decode: r.reply("ok", 1)})
	v := r.do("GET", "/v1/models", "").json(t)
	if at(v, "data", 0, "id") != "tiny" || at(v, "data", 0, "context_length") != 4096.0 ||
		at(v, "data", 0, "owned_by") != "tandem" {
		t.Errorf("models %v", v)
	}
	if a := r.do("GET", "/models/tiny", ""); a.status != 200 {
		t.Errorf("one model: %d", a.status)
	}
	if a := r.do("GET", "/v1/models/other", ""); a.status != 404 || at(a.json(t), "error", "code") != "model_not_found" {
		t.Errorf("other model: %d %s", a.status, a.body)
	}
	for _, path := range []string{"/", "/health", "/health/live", "/health/ready"} {
		if a := r.do("GET", path, ""); a.status != 200 || at(a.json(t), "status") != "ok" {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	v = r.do("GET", "/cluster", "").json(t)
	if at(v, "workers", 0, "id") != "t1" || at(v, "workers", 0, "role") != "target" ||
		at(v, "workers", 0, "state") != "ready" || at(v, "groups", 0, "target") != "t1" {
		t.Errorf("cluster %v", v)
	}
}

func TestTokenEndpoints(t *testing.T) {
	r := start(t, nil)
	r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1)})
	ids := r.encode("Hello 日本")
	v := r.post("/tokenize", `{"content":"Hello 日本"}`).json(t)
	if at(v, "count") != float64(len(ids)) {
		t.Errorf("tokenize %v, want %v", v, ids)
	}
	back := r.post("/detokenize", `{"tokens":`+string(mustJSON(ids))+`}`).json(t)
	if at(back, "content") != "Hello 日本" {
		t.Errorf("detokenize %v", back)
	}
	p := r.post("/tokenize", `{"content":"日","with_pieces":true}`).json(t)
	if at(p, "tokens", 0, "id") == nil || (at(p, "tokens", 0, "piece") == nil && at(p, "tokens", 0, "bytes") == nil) {
		t.Errorf("pieces %v", p)
	}
	// The count of a chat equals the usage of the same chat.
	count := r.post("/tokenize", chatBody(`"enable_thinking":true`)).json(t)
	used := r.post("/v1/chat/completions", chatBody(`"enable_thinking":true`)).json(t)
	if at(count, "count") != at(used, "usage", "prompt_tokens") {
		t.Errorf("count %v, usage %v", at(count, "count"), at(used, "usage", "prompt_tokens"))
	}
	a := r.post("/apply-template", chatBody(`"enable_thinking":true`)).json(t)
	want := map[string]any{"prompt": "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n<think>\n",
		"started_in_thinking": true}
	if d := cmp.Diff(want, a); d != "" {
		t.Error(d)
	}
}

func TestThinkingSwitchOrder(t *testing.T) {
	r := start(t, nil)
	r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1)})
	for _, tt := range []struct {
		more string
		want bool
	}{
		{``, false},
		{`"enable_thinking":true`, true},
		{`"thinking":{"type":"disabled"},"enable_thinking":true`, false},
		{`"thinking":{"type":"adaptive"},"reasoning_effort":"none"`, true},
		{`"reasoning":{"effort":"low"},"enable_thinking":false`, true},
		{`"reasoning":{},"enable_thinking":true`, true},
		{`"reasoning":null`, false},
		{`"reasoning_effort":"none","enable_thinking":true`, false},
		{`"output_config":{"effort":"high"}`, true},
		{`"chat_template_kwargs":{"enable_thinking":true}`, true},
		{`"chat_template_kwargs":{"enable_thinking":true},"enable_thinking":false`, false},
		{`"extra_body":{"enable_thinking":true}`, true},
	} {
		a := r.post("/apply-template", chatBody(tt.more)).json(t)
		if a["started_in_thinking"] != tt.want {
			t.Errorf("%s: thinking %v, want %v", tt.more, a["started_in_thinking"], tt.want)
		}
	}
}

func TestMetricsMove(t *testing.T) {
	r := start(t, nil)
	r.target(gatewaytest.WorkerOptions{Decode: r.reply("one two three", 2)})
	r.post("/v1/chat/completions", chatBody(""))
	r.post("/v1/chat/completions", chatBody(`"n":0`))
	body := string(r.do("GET", "/metrics", "").body)
	for _, want := range []string{
		`tandem_requests_total{endpoint="/chat/completions",outcome="ok"} 1`,
		`tandem_requests_total{endpoint="/chat/completions",outcome="client_error"} 1`,
		`tandem_generated_tokens_total{kind="content"}`, `tandem_draft_tokens_total{source="draft"} 4`,
		`tandem_draft_tokens_total{source="lookup"} 2`, `tandem_verify_steps_total`, `tandem_ttft_seconds_count 1`,
		`tandem_worker_up{backend="cpu",role="target",worker="t1"} 1`,
		`tandem_lanes{state="free",worker="t1"} 4`, `tandem_queue_depth 0`,
		`tandem_worker_verify_steps_total{role="target",worker="t1"} 3`, `tandem_verify_steps_total{mode="speculative"}`,
		`tandem_accept_length_count 1`,
		`gen_ai_server_time_to_first_token_seconds_count{gen_ai_operation_name="chat",gen_ai_provider_name="tandem"} 1`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("metrics lack %q", want)
		}
	}
	if t.Failed() {
		for _, l := range strings.Split(body, "\n") {
			if strings.HasPrefix(l, "tandem_") && !strings.Contains(l, "_bucket") {
				t.Log(l)
			}
		}
	}
}

// TestMetricsAreClean: names, units and help are as Prometheus' own linter wants them, and no label holds an address, a
// made-up name of a worker, or a method that nobody serves.
func TestMetricsAreClean(t *testing.T) {
	r := start(t, nil)
	r.target(gatewaytest.WorkerOptions{Decode: r.reply("one two three", 2)})
	r.post("/v1/chat/completions", chatBody(""))
	r.post("/v1/chat/completions", chatBody(`"max_tokens":0`))
	_ = r.conn(r.app.GRPCAddr().String()).Invoke(t.Context(), "/tandem.v1.InferenceService/MadeUp",
		&tandemv1.ListModelsRequest{}, &tandemv1.ListModelsResponse{})
	if _, err := runRPC(t.Context(), r.rpc(), &tandemv1.GenerateRequest{Input: chatInput("x", false)}); err != nil {
		t.Fatal(err)
	}
	// A call is counted after its client has the answer.
	var body []byte
	testwait.Until(t, "the RPC is counted", func() bool {
		body = r.do("GET", "/metrics", "").body
		return strings.Contains(string(body), `rpc_method="tandem.v1.InferenceService/Generate"`)
	})
	problems, err := promlint.New(bytes.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, never := range []string{"127.0.0.1", "server_address", "made_up", "MadeUp", `mode="grpc"`, "NaN"} {
		for line := range strings.Lines(string(body)) {
			if strings.Contains(line, never) {
				t.Errorf("%q in %s", never, line)
			}
		}
	}
}

// TestStrictModelOfTokens: the endpoints that only read a prompt refuse another model's name like those that generate.
func TestStrictModelOfTokens(t *testing.T) {
	r := start(t, func(c *Config) { c.StrictModel = true })
	r.target(gatewaytest.WorkerOptions{})
	for path, body := range map[string]string{
		"/tokenize": `{"content":"a"`, "/detokenize": `{"tokens":[5]`,
		"/apply-template": strings.TrimSuffix(chatBody(""), "}"),
	} {
		if a := r.post(path, body+`,"model":"other"}`); a.status != 404 ||
			at(a.json(t), "error", "code") != "model_not_found" {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
		if a := r.post(path, body+`,"model":"tiny"}`); a.status != 200 || a.header.Get("X-Tandem-Warning") != "" {
			t.Errorf("%s: %d %s, warning %q", path, a.status, a.body, a.header.Get("X-Tandem-Warning"))
		}
	}
}
