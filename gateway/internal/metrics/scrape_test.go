package metrics_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/testwait"
)

func TestMetricsMove(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("one two three", 2)})
	r.Post("/v1/chat/completions", rig.ChatBody(""))
	r.Post("/v1/chat/completions", rig.ChatBody(`"n":0`))
	body := string(r.Do("GET", "/metrics", "").Body)
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
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("one two three", 2)})
	r.Post("/v1/chat/completions", rig.ChatBody(""))
	r.Post("/v1/chat/completions", rig.ChatBody(`"max_tokens":0`))
	_ = r.Conn(r.App.GRPCAddr().String()).Invoke(t.Context(), "/tandem.v1.InferenceService/MadeUp",
		&tandemv1.ListModelsRequest{}, &tandemv1.ListModelsResponse{})
	if _, err := rig.RunRPC(t.Context(), r.RPC(), &tandemv1.GenerateRequest{Input: rig.ChatInput("x",
		false)}); err != nil {
		t.Fatal(err)
	}
	// A call is counted after its client has the answer.
	var body []byte
	testwait.Until(t, "the RPC is counted", func() bool {
		body = r.Do("GET", "/metrics", "").Body
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
