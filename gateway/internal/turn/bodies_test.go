package turn_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// TestHopelessPrompts: a prompt that cannot fit is refused by its length, in all dialects, without the work of
// tokenising it; one that may fit is tokenised and gets its exact length.
func TestHopelessPrompts(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{MaxContext: 100, Decode: r.Reply("ok", 1)})
	for _, c := range []struct {
		text  string
		words string
	}{
		{strings.Repeat("hopeless words ", 100_000), "at least "},
		{strings.Repeat("long words ", 60), ""},
	} {
		for path, body := range map[string]string{
			"/v1/chat/completions": `{"messages":[{"role":"user","content":"%s"}]}`, "/v1/completions": `{"prompt":"%s"}`,
			"/v1/responses": `{"input":"%s"}`, "/v1/messages": `{"messages":[{"role":"user","content":"%s"}],"max_tokens":10}`,
		} {
			a := r.Post(path, fmt.Sprintf(body, c.text))
			message, _ := rig.At(a.JSON(t), "error", "message").(string)
			if a.Status != http.StatusBadRequest || !strings.Contains(message, "100") ||
				path != "/v1/messages" && !strings.Contains(message, "the prompt has "+c.words) {
				t.Errorf("%s: %d %.300s", path, a.Status, a.Body)
			}
		}
		_, err := rig.RunRPC(t.Context(), r.RPC(),
			&tandemv1.GenerateRequest{Input: &tandemv1.GenerateRequest_Prompt{Prompt: c.text}})
		if rpcerr.Code(err) == codes.OK || !strings.Contains(err.Error(), "the prompt has "+c.words) {
			t.Errorf("gRPC: %v", err)
		}
		// Counting is no generation: it tells the true number.
		a := r.Post("/v1/messages/count_tokens", fmt.Sprintf(`{"messages":[{"role":"user","content":"%s"}]}`, c.text))
		if n, _ := rig.At(a.JSON(t), "input_tokens").(float64); a.Status != http.StatusOK || n < 100 {
			t.Errorf("count: %d %.300s", a.Status, a.Body)
		}
	}
}

// TestFullQueueComesFirst: a request that cannot be queued is refused before its prompt is rendered or tokenised. These
// prompts are hopeless: whoever looks at them at all says that they are too long.
func TestFullQueueComesFirst(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.MaxQueue = 1 })
	block := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{Slots: 1, MaxContext: 100, Decode: block.Script(r.Tok, "one two")})
	text := strings.Repeat("hopeless words ", 1<<18) // 4 MB
	first := r.Send(t.Context(), rig.ChatBody(`"max_tokens":4`))
	rig.Receive(t, block.Admitted, "first request runs")
	second := r.Send(t.Context(), rig.ChatBody(`"max_tokens":4`))
	r.Eventually("second request waits", func() bool { return r.Parts.Cluster.Targets.Queued() == 1 })
	for _, c := range []struct{ path, body string }{
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"%s"}]}`},
		{"/v1/completions", `{"prompt":"%s"}`}, {"/v1/completions", `{"prompt":"a","suffix":"%s"}`},
		{"/v1/responses", `{"input":"%s"}`},
		{"/v1/messages", `{"messages":[{"role":"user","content":"%s"}],"max_tokens":10}`},
	} {
		a := r.Post(c.path, fmt.Sprintf(c.body, text))
		if a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" {
			t.Errorf("%s %s: %d %.300s", c.path, c.body, a.Status, a.Body)
		}
	}
	for _, input := range []*tandemv1.GenerateRequest{
		{Input: &tandemv1.GenerateRequest_Prompt{Prompt: text}}, {Input: rig.ChatInput(text, false)},
	} {
		stream, err := r.RPC().Generate(t.Context(), input, grpc.MaxCallSendMsgSize(64<<20))
		if err == nil {
			_, err = stream.Recv()
		}
		if rpcerr.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "are waiting already") {
			t.Errorf("gRPC: %v", err)
		}
	}
	// Counting needs no place in the queue.
	a := r.Post("/v1/messages/count_tokens", `{"messages":[{"role":"user","content":"some words"}]}`)
	if a.Status != http.StatusOK {
		t.Errorf("count: %d %.300s", a.Status, a.Body)
	}
	close(block.Release)
	rig.Receive(t, first, "first answer")
	rig.Receive(t, second, "second answer")
}
