package app

import (
	"slices"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestContractChangeIsShown: an answer that went on with other arithmetic says so in its usage and in a warning;
// package generate tests when one does.
func TestContractChangeIsShown(t *testing.T) {
	const text = "one two three four"
	r := start(t, func(c *Config) { c.FailoverTimeoutS, c.FailoverAny = 5, true })
	gone := status.Error(codes.Unavailable, "engine is gone")
	r.target(gatewaytest.WorkerOptions{
		ID: "a", Lanes: 1, Contract: "cpu", Decode: gatewaytest.DieAt(r.tok, text, 2, 1, gone),
	})
	r.target(gatewaytest.WorkerOptions{ID: "b", Lanes: 1, Contract: "gpu", Decode: r.reply(text, 1)})
	got := r.post("/v1/chat/completions", chatBody(""))
	body := got.json(t)
	if got.status != 200 || wholeChat(t, got)[0].Content != text {
		t.Fatalf("status %d: %s", got.status, got.body)
	}
	if at(body, "usage", "contract") != "gpu" || at(body, "usage", "contract_changes") != 1.0 {
		t.Errorf("usage %v", at(body, "usage"))
	}
	if !slices.Contains(got.header.Values("x-tandem-warning"), "contract-changed") {
		t.Errorf("warnings %v", got.header.Values("x-tandem-warning"))
	}
}

// TestUnlikeTargetsServe: targets of one model with unlike contract ids all get new requests, and /cluster shows
// the ids.
func TestUnlikeTargetsServe(t *testing.T) {
	r := start(t, nil)
	a := r.target(gatewaytest.WorkerOptions{ID: "a", Lanes: 1, Contract: "cpu", Decode: r.reply("one", 1)})
	block := gatewaytest.NewBlock()
	a.SetDecode(block.Script(r.tok, "one two"))
	b := r.target(gatewaytest.WorkerOptions{ID: "b", Lanes: 1, Contract: "gpu", Decode: r.reply("three", 1)})
	first := r.send(t.Context(), chatBody(""))
	receive(t, block.Admitted, "the first request runs")
	second := r.post("/v1/chat/completions", chatBody(""))
	close(block.Release)
	if got := receive(t, first, "the first answer"); got.status != 200 || at(got.json(t), "usage", "contract") != "cpu" {
		t.Errorf("first: %d %s", got.status, got.body)
	}
	if second.status != 200 || at(second.json(t), "usage", "contract") != "gpu" || len(b.Requests()) != 1 {
		t.Errorf("second: %d %s", second.status, second.body)
	}
	for i, want := range []string{"cpu", "gpu"} {
		if got := at(r.do("GET", "/cluster", "").json(t), "workers", i, "contract"); got != want {
			t.Errorf("/cluster shows contract %v for worker %d, want %s", got, i, want)
		}
	}
}
