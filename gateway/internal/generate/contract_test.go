package generate_test

import (
	"slices"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestContractChangeIsShown: an answer that went on with other arithmetic says so in its usage and in a warning;
// package generate tests when one does.
func TestContractChangeIsShown(t *testing.T) {
	const text = "one two three four"
	r := rig.Start(t, func(c *app.Config) { c.FailoverTimeoutS, c.FailoverAny = 5, true })
	gone := status.Error(codes.Unavailable, "engine is gone")
	r.Target(gatewaytest.WorkerOptions{
		ID: "a", Slots: 1, Contract: "cpu", Decode: gatewaytest.DieAt(r.Tok, text, 2, 1, gone),
	})
	r.Target(gatewaytest.WorkerOptions{ID: "b", Slots: 1, Contract: "gpu", Decode: r.Reply(text, 1)})
	got := r.Post("/v1/chat/completions", rig.ChatBody(""))
	body := got.JSON(t)
	if got.Status != 200 || rig.WholeChat(t, got)[0].Content != text {
		t.Fatalf("status %d: %s", got.Status, got.Body)
	}
	if rig.At(body, "usage", "contract") != "gpu" || rig.At(body, "usage", "contract_changes") != 1.0 {
		t.Errorf("usage %v", rig.At(body, "usage"))
	}
	if !slices.Contains(got.Header.Values("x-tandem-warning"), "contract-changed") {
		t.Errorf("warnings %v", got.Header.Values("x-tandem-warning"))
	}
}

// TestUnlikeTargetsServe: targets of one model with unlike contract ids all get new requests, and /cluster shows
// the ids.
func TestUnlikeTargetsServe(t *testing.T) {
	r := rig.Start(t, nil)
	a := r.Target(gatewaytest.WorkerOptions{ID: "a", Slots: 1, Contract: "cpu", Decode: r.Reply("one", 1)})
	block := gatewaytest.NewBlock()
	a.SetDecode(block.Script(r.Tok, "one two"))
	b := r.Target(gatewaytest.WorkerOptions{ID: "b", Slots: 1, Contract: "gpu", Decode: r.Reply("three", 1)})
	first := r.Send(t.Context(), rig.ChatBody(""))
	rig.Receive(t, block.Admitted, "the first request runs")
	second := r.Post("/v1/chat/completions", rig.ChatBody(""))
	close(block.Release)
	if got := rig.Receive(t, first, "the first answer"); got.Status != 200 || rig.At(got.JSON(t), "usage",
		"contract") != "cpu" {
		t.Errorf("first: %d %s", got.Status, got.Body)
	}
	if second.Status != 200 || rig.At(second.JSON(t), "usage", "contract") != "gpu" || len(b.Requests()) != 1 {
		t.Errorf("second: %d %s", second.Status, second.Body)
	}
	for i, want := range []string{"cpu", "gpu"} {
		if got := rig.At(r.Do("GET", "/cluster", "").JSON(t), "workers", i, "contract"); got != want {
			t.Errorf("/cluster shows contract %v for worker %d, want %s", got, i, want)
		}
	}
}
