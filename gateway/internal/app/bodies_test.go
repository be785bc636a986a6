package app

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// TestBodiesAreBounded: all bodies at work, whatever way they came, share one budget; small requests pass when it is
// full, and what is done makes room.
func TestBodiesAreBounded(t *testing.T) {
	r := start(t, func(c *Config) { c.BodyMemoryMB = 64 })
	b := gatewaytest.NewBlock()
	r.target(gatewaytest.WorkerOptions{Decode: b.Script(r.tok, "one two")})
	// The spare member is no part of the prompt.
	large := chatBody(`"spare":"` + strings.Repeat("x", 40<<20) + `"`)
	first := r.send(t.Context(), large)
	receive(t, b.Admitted, "the first large request runs")
	// What is refused is refused at once; admitted, it would wait for the first.
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	if a := r.do("POST", "/v1/chat/completions", large); a.status != http.StatusTooManyRequests ||
		at(a.json(t), "error", "code") != "queue_full" || a.header.Get("Retry-After") == "" {
		t.Errorf("the second large request: %d %.300s", a.status, a.body)
	}
	if a := r.post("/tokenize", `{"content":"small"}`); a.status != http.StatusOK {
		t.Errorf("a small request: %d %s", a.status, a.body)
	}
	wide := grpc.MaxCallSendMsgSize(64 << 20)
	api := r.rpc()
	if _, err := api.Tokenize(ctx,
		&tandemv1.TokenizeRequest{Input: &tandemv1.TokenizeRequest_Text{Text: strings.Repeat("x", 40<<20)}},
		wide); rpcerr.Code(err) != codes.ResourceExhausted {
		t.Errorf("a large RPC: %v", err)
	}
	stream, err := api.Generate(ctx, &tandemv1.GenerateRequest{Input: chatInput(strings.Repeat("x", 40<<20), false)}, wide)
	if err == nil {
		_, err = stream.Recv()
	}
	if rpcerr.Code(err) != codes.ResourceExhausted {
		t.Errorf("a large stream: %v", err)
	}
	close(b.Release)
	if a := receive(t, first, "the first answer"); a.status != http.StatusOK {
		t.Errorf("the first large request: %d %.300s", a.status, a.body)
	}
	r.eventually("the budget is empty", func() bool { return r.app.bodies.Used() == 0 })
	if a := r.post("/v1/chat/completions", large); a.status != http.StatusOK {
		t.Errorf("a large request after the others: %d %.300s", a.status, a.body)
	}
}

// TestTokenizeIsBounded: no context bounds the text of /tokenize and the tokens of /detokenize, so they have bounds of
// their own.
func TestTokenizeIsBounded(t *testing.T) {
	r := start(t, nil)
	r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1)})
	if a := r.post("/tokenize", `{"content":"`+strings.Repeat("x",
		16<<20+1)+`"}`); a.status != http.StatusRequestEntityTooLarge ||
		!strings.Contains(string(a.body), "'content' has 16777217 bytes") {
		t.Errorf("%d %.300s", a.status, a.body)
	}
	if a := r.post("/detokenize",
		`{"tokens":[`+strings.Repeat("1,", 16<<20)+`1]}`); a.status != http.StatusRequestEntityTooLarge ||
		!strings.Contains(string(a.body), "'tokens' has 16777217 ids") {
		t.Errorf("%d %.300s", a.status, a.body)
	}
	wide := grpc.MaxCallSendMsgSize(64 << 20)
	if _, err := r.rpc().Tokenize(t.Context(),
		&tandemv1.TokenizeRequest{Input: &tandemv1.TokenizeRequest_Text{Text: strings.Repeat("x", 16<<20+1)}},
		wide); rpcerr.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "has 16777217 bytes") {
		t.Errorf("a long text over gRPC: %v", err)
	}
	if _, err := r.rpc().Detokenize(t.Context(), &tandemv1.DetokenizeRequest{Ids: make([]int32, 16<<20+1)},
		wide); rpcerr.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "has 16777217 tokens") {
		t.Errorf("many tokens over gRPC: %v", err)
	}
	if a := r.post("/tokenize", `{"content":"`+strings.Repeat("some words ", 100_000)+`"}`); a.status != http.StatusOK {
		t.Errorf("%d %.300s", a.status, a.body)
	}
}

// TestHopelessPrompts: a prompt that cannot fit is refused by its length, in all dialects, without the work of
// tokenising it; one that may fit is tokenised and gets its exact length.
func TestHopelessPrompts(t *testing.T) {
	r := start(t, nil)
	r.target(gatewaytest.WorkerOptions{MaxContext: 100, Decode: r.reply("ok", 1)})
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
			a := r.post(path, fmt.Sprintf(body, c.text))
			message, _ := at(a.json(t), "error", "message").(string)
			if a.status != http.StatusBadRequest || !strings.Contains(message, "100") ||
				path != "/v1/messages" && !strings.Contains(message, "the prompt has "+c.words) {
				t.Errorf("%s: %d %.300s", path, a.status, a.body)
			}
		}
		_, err := runRPC(t.Context(), r.rpc(),
			&tandemv1.GenerateRequest{Input: &tandemv1.GenerateRequest_Prompt{Prompt: c.text}})
		if rpcerr.Code(err) == codes.OK || !strings.Contains(err.Error(), "the prompt has "+c.words) {
			t.Errorf("gRPC: %v", err)
		}
		// Counting is no generation: it tells the true number.
		a := r.post("/v1/messages/count_tokens", fmt.Sprintf(`{"messages":[{"role":"user","content":"%s"}]}`, c.text))
		if n, _ := at(a.json(t), "input_tokens").(float64); a.status != http.StatusOK || n < 100 {
			t.Errorf("count: %d %.300s", a.status, a.body)
		}
	}
}

// TestFullQueueComesFirst: a request that cannot be queued is refused before its prompt is rendered or tokenised. These
// prompts are hopeless: whoever looks at them at all says that they are too long.
func TestFullQueueComesFirst(t *testing.T) {
	r := start(t, func(c *Config) { c.MaxQueue = 1 })
	block := gatewaytest.NewBlock()
	r.target(gatewaytest.WorkerOptions{Lanes: 1, MaxContext: 100, Decode: block.Script(r.tok, "one two")})
	text := strings.Repeat("hopeless words ", 1<<20) // 15 MB
	first := r.send(t.Context(), chatBody(`"max_tokens":4`))
	receive(t, block.Admitted, "first request runs")
	second := r.send(t.Context(), chatBody(`"max_tokens":4`))
	r.eventually("second request waits", func() bool { return r.app.cluster.Targets.Queued() == 1 })
	for _, c := range []struct{ path, body string }{
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"%s"}]}`},
		{"/v1/completions", `{"prompt":"%s"}`}, {"/v1/completions", `{"prompt":"a","suffix":"%s"}`},
		{"/v1/responses", `{"input":"%s"}`},
		{"/v1/messages", `{"messages":[{"role":"user","content":"%s"}],"max_tokens":10}`},
	} {
		a := r.post(c.path, fmt.Sprintf(c.body, text))
		if a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" {
			t.Errorf("%s %s: %d %.300s", c.path, c.body, a.status, a.body)
		}
	}
	for _, input := range []*tandemv1.GenerateRequest{
		{Input: &tandemv1.GenerateRequest_Prompt{Prompt: text}}, {Input: chatInput(text, false)},
	} {
		stream, err := r.rpc().Generate(t.Context(), input, grpc.MaxCallSendMsgSize(64<<20))
		if err == nil {
			_, err = stream.Recv()
		}
		if rpcerr.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "are waiting already") {
			t.Errorf("gRPC: %v", err)
		}
	}
	// Counting needs no place in the queue.
	a := r.post("/v1/messages/count_tokens", `{"messages":[{"role":"user","content":"some words"}]}`)
	if a.status != http.StatusOK {
		t.Errorf("count: %d %.300s", a.status, a.body)
	}
	close(block.Release)
	receive(t, first, "first answer")
	receive(t, second, "second answer")
}
