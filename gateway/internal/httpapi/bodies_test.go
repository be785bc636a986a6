package httpapi_test

import (
	"context"
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

// TestBodiesAreBounded: all bodies at work, whatever way they came, share one budget; small requests pass when it is
// full, and what is done makes room.
func TestBodiesAreBounded(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.BodyMemoryMB = 64 })
	b := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{Decode: b.Script(r.Tok, "one two")})
	// The spare member is no part of the prompt.
	large := rig.ChatBody(`"spare":"` + strings.Repeat("x", 5<<20) + `"`)
	first := r.Send(t.Context(), large)
	rig.Receive(t, b.Admitted, "the first large request runs")
	// What is refused is refused at once; admitted, it would wait for the first.
	ctx, cancel := context.WithTimeout(t.Context(), 3*rig.Patience)
	defer cancel()
	if a := r.Do("POST", "/v1/chat/completions", large); a.Status != http.StatusTooManyRequests ||
		rig.At(a.JSON(t), "error", "code") != "queue_full" || a.Header.Get("Retry-After") == "" {
		t.Errorf("the second large request: %d %.300s", a.Status, a.Body)
	}
	if a := r.Post("/tokenize", `{"content":"small"}`); a.Status != http.StatusOK {
		t.Errorf("a small request: %d %s", a.Status, a.Body)
	}
	wide := grpc.MaxCallSendMsgSize(64 << 20)
	api := r.RPC()
	if _, err := api.Tokenize(ctx,
		&tandemv1.TokenizeRequest{Input: &tandemv1.TokenizeRequest_Text{Text: strings.Repeat("x", 5<<20)}},
		wide); rpcerr.Code(err) != codes.ResourceExhausted {
		t.Errorf("a large RPC: %v", err)
	}
	stream, err := api.Generate(ctx, &tandemv1.GenerateRequest{Input: rig.ChatInput(strings.Repeat("x", 5<<20), false)},
		wide)
	if err == nil {
		_, err = stream.Recv()
	}
	if rpcerr.Code(err) != codes.ResourceExhausted {
		t.Errorf("a large stream: %v", err)
	}
	close(b.Release)
	if a := rig.Receive(t, first, "the first answer"); a.Status != http.StatusOK {
		t.Errorf("the first large request: %d %.300s", a.Status, a.Body)
	}
	r.Eventually("the budget is empty", func() bool { return r.Parts.Bodies.Used() == 0 })
	if a := r.Post("/v1/chat/completions", large); a.Status != http.StatusOK {
		t.Errorf("a large request after the others: %d %.300s", a.Status, a.Body)
	}
	if a := r.Do("POST", "/v1/chat/completions", rig.ChatBody(`"spare":"`+strings.Repeat("x",
		8<<20)+`"`)); a.Status != http.StatusRequestEntityTooLarge ||
		rig.At(a.JSON(t), "error", "code") != "payload_too_large" || !strings.Contains(string(a.Body), "64 MB") {
		t.Errorf("a request that never has room: %d %.300s", a.Status, a.Body)
	}
}

// TestTokenizeIsBounded: no context bounds the text of /tokenize and the tokens of /detokenize, so they have bounds of
// their own.
func TestTokenizeIsBounded(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.BodyMemoryMB = 4096 })
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	if a := r.Post("/tokenize", `{"content":"`+strings.Repeat("x",
		16<<20+1)+`"}`); a.Status != http.StatusRequestEntityTooLarge ||
		!strings.Contains(string(a.Body), "'content' has 16777217 bytes") {
		t.Errorf("%d %.300s", a.Status, a.Body)
	}
	if a := r.Post("/detokenize",
		`{"tokens":[`+strings.Repeat("1,", 16<<20)+`1]}`); a.Status != http.StatusRequestEntityTooLarge ||
		!strings.Contains(string(a.Body), "'tokens' has 16777217 ids") {
		t.Errorf("%d %.300s", a.Status, a.Body)
	}
	wide := grpc.MaxCallSendMsgSize(64 << 20)
	if _, err := r.RPC().Tokenize(t.Context(),
		&tandemv1.TokenizeRequest{Input: &tandemv1.TokenizeRequest_Text{Text: strings.Repeat("x", 16<<20+1)}},
		wide); rpcerr.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "has 16777217 bytes") {
		t.Errorf("a long text over gRPC: %v", err)
	}
	if _, err := r.RPC().Detokenize(t.Context(), &tandemv1.DetokenizeRequest{Ids: make([]int32, 16<<20+1)},
		wide); rpcerr.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "has 16777217 tokens") {
		t.Errorf("many tokens over gRPC: %v", err)
	}
	if a := r.Post("/tokenize", `{"content":"`+strings.Repeat("some words ", 100_000)+`"}`); a.Status != http.StatusOK {
		t.Errorf("%d %.300s", a.Status, a.Body)
	}
}

// TestSchemasAreBounded: one schema is refused by its size, because of the time that reading it takes.
func TestSchemasAreBounded(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	schema := `{"enum":["` + strings.Repeat("x", 1<<20) + `"]}`
	for field, tools := range map[string]string{
		"tools[1].function.parameters": `"tools":[{"type":"function","function":{"name":"f"}},` +
			`{"type":"function","function":{"name":"g","parameters":` + schema + `}}]`,
		"functions[0].parameters": `"functions":[{"name":"f","parameters":` + schema + `}]`,
	} {
		if a := r.Do("POST", "/v1/chat/completions", rig.ChatBody(tools)); a.Status != http.StatusBadRequest ||
			!strings.Contains(string(a.Body), "'"+field+"' has 1048589 bytes, at most 1048576 are allowed") {
			t.Errorf("%s: %d %.300s", field, a.Status, a.Body)
		}
	}
	in := rig.ChatInput("a", false)
	in.Chat.Tools = []*tandemv1.Tool{{Name: "f", ParametersJson: schema}}
	stream, err := r.RPC().Generate(t.Context(), &tandemv1.GenerateRequest{Input: in})
	if err == nil {
		_, err = stream.Recv()
	}
	if rpcerr.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "chat.tools[0].parameters_json: has 1048589 bytes") {
		t.Errorf("over gRPC: %v", err)
	}
}
