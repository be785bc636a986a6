package cluster_test

import (
	"context"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

func TestQueue(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.MaxQueue = 1 })
	b := gatewaytest.NewBlock()
	w := r.Target(gatewaytest.WorkerOptions{Slots: 1, Decode: b.Script(r.Tok, "one two")})
	first := r.Send(t.Context(), rig.ChatBody(""))
	rig.Receive(t, b.Admitted, "first request runs")
	ctx, leave := context.WithCancel(t.Context())
	second := r.Send(ctx, rig.ChatBody(""))
	r.Eventually("second request waits", func() bool { return r.Parts.Cluster.Targets.Queued() == 1 })
	a := r.Post("/v1/chat/completions", rig.ChatBody(""))
	if a.Status != 429 || a.Header.Get("Retry-After") == "" || rig.At(a.JSON(t), "error", "code") != "queue_full" ||
		rig.At(a.JSON(t), "error", "type") != "rate_limit_error" {
		t.Errorf("third request: %d %v %s", a.Status, a.Header, a.Body)
	}
	leave()
	rig.Receive(t, second, "second request left")
	r.Eventually("queue is empty again", func() bool { return r.Parts.Cluster.Targets.Queued() == 0 })
	third := r.Send(t.Context(), rig.ChatBody(""))
	r.Eventually("third request waits", func() bool { return r.Parts.Cluster.Targets.Queued() == 1 })
	close(b.Release)
	if a := rig.Receive(t, first, "first answer"); a.Status != 200 {
		t.Errorf("first: %d %s", a.Status, a.Body)
	}
	if a := rig.Receive(t, third, "third answer"); a.Status != 200 {
		t.Errorf("third: %d %s", a.Status, a.Body)
	}
	if n := len(w.Requests()); n != 2 {
		t.Errorf("the worker saw %d requests, want 2: the one that left was queued", n)
	}
}

func TestQueueTimeout(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.QueueTimeoutS = 0.05 })
	b := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{Slots: 1, Decode: b.Script(r.Tok, "one two")})
	first := r.Send(t.Context(), rig.ChatBody(""))
	rig.Receive(t, b.Admitted, "first request runs")
	a := r.Post("/v1/chat/completions", rig.ChatBody(`"stream":true`))
	if a.Status != 503 || rig.At(a.JSON(t), "error", "code") != "queue_timeout" || a.Header.Get("Retry-After") == "" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	close(b.Release)
	rig.Receive(t, first, "first answer")
}

func TestNoWorker(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.NoWorkerTimeoutS = 0.05 })
	a := r.Post("/v1/chat/completions", rig.ChatBody(""))
	if a.Status != 503 || rig.At(a.JSON(t), "error", "code") != "no_worker" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a := r.Do("GET", "/health", ""); a.Status != 503 || rig.At(a.JSON(t), "status") != "unavailable" {
		t.Errorf("health: %d %s", a.Status, a.Body)
	}
}

// TestFirstWorkerIsWaitedFor: requests to a gateway that has just started wait for its workers, and are measured by
// them; the gateway counts as ready when one is there.
func TestFirstWorkerIsWaitedFor(t *testing.T) {
	file := gatewaytest.ModelPath(t, gatewaytest.Target)
	for name, change := range map[string]func(*app.Config){
		"model from the worker": nil, "model by name": func(c *app.Config) { c.Model = file },
	} {
		t.Run(name, func(t *testing.T) {
			r := rig.Start(t, change)
			ask := r.Send(t.Context(), rig.ChatBody(""))
			long := r.Send(t.Context(), rig.ChatBody(`"max_tokens":8,"messages":[{"role":"user","content":"`+
				strings.Repeat("one two ", 300)+`"}]`))
			r.Eventually("both wait", func() bool { return r.Parts.Cluster.Targets.Queued() == 2 })
			if a := r.Do("GET", "/health/ready", ""); a.Status != 503 {
				t.Errorf("ready without a worker: %d %s", a.Status, a.Body)
			}
			r.Target(gatewaytest.WorkerOptions{MaxContext: 256, Decode: r.Reply("one two", 1)})
			if a := rig.Receive(t, ask, "answer"); a.Status != 200 {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			if a := rig.Receive(t, long, "answer to the long prompt"); a.Status != 400 ||
				rig.At(a.JSON(t), "error", "code") != "context_length_exceeded" {
				t.Errorf("the long prompt: %d %s", a.Status, a.Body)
			}
		})
	}
}

// TestLeaveBeforeTheFirstWorker: who leaves before a worker is there gives back the place in the queue, and a gateway
// that ends does not wait for it.
func TestLeaveBeforeTheFirstWorker(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.MaxQueue = 2 })
	ctx, leave := context.WithCancel(t.Context())
	leaves, stays := r.Send(ctx, rig.ChatBody("")), r.Send(t.Context(), rig.ChatBody(""))
	r.Eventually("both wait", func() bool { return r.Parts.Cluster.Targets.Queued() == 2 })
	if a := r.Post("/v1/chat/completions", rig.ChatBody("")); a.Status != 429 {
		t.Errorf("beyond the queue: %d %s", a.Status, a.Body)
	}
	leave()
	rig.Receive(t, leaves, "the request that left")
	r.Eventually("one waits", func() bool { return r.Parts.Cluster.Targets.Queued() == 1 })
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	if a := rig.Receive(t, stays, "the request that stayed"); a.Status != 503 ||
		rig.At(a.JSON(t), "error", "code") != "draining" {
		t.Errorf("while the gateway ends: %d %s", a.Status, a.Body)
	}
}
