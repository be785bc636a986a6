package cluster_test

import (
	"context"
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
	r := rig.Start(t, nil)
	a := r.Post("/v1/chat/completions", rig.ChatBody(""))
	if a.Status != 503 || rig.At(a.JSON(t), "error", "code") != "no_worker" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a := r.Do("GET", "/health", ""); a.Status != 503 || rig.At(a.JSON(t), "status") != "unavailable" {
		t.Errorf("health: %d %s", a.Status, a.Body)
	}
}
