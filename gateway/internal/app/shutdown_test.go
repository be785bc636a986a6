package app_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

func TestDrain(t *testing.T) {
	r := rig.Start(t, nil)
	b := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{Decode: b.Script(r.Tok, "one two three")})
	running := r.Send(t.Context(), rig.ChatBody(""))
	rig.Receive(t, b.Admitted, "request runs")
	stopped := make(chan error, 1)
	go func() { stopped <- r.Stop() }()
	r.Eventually("gateway drains", r.Parts.Draining)
	a := r.Post("/v1/chat/completions", rig.ChatBody(""))
	if a.Status != 503 || rig.At(a.JSON(t), "error", "code") != "draining" {
		t.Errorf("new request while draining: %d %s", a.Status, a.Body)
	}
	if a := r.Do("GET", "/health", ""); a.Status != 503 || rig.At(a.JSON(t), "status") != "draining" {
		t.Errorf("health while draining: %d %s", a.Status, a.Body)
	}
	close(b.Release)
	if a := rig.Receive(t, running, "running request ends"); a.Status != 200 ||
		rig.WholeChat(t, a)[0].Content != "one two three" {
		t.Errorf("running request: %d %s", a.Status, a.Body)
	}
	r.Client.CloseIdleConnections()
	if err := rig.Receive(t, stopped, "shutdown"); err != nil {
		t.Error(err)
	}
}

// TestLeave: a gateway that is told to end says so to health checks, serves on for the delay and ends the connection of
// every answer; only then it refuses.
func TestLeave(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.ShutdownDelayS = 2 })
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("one two three", 1)})
	r.Eventually("gateway serves", func() bool { return r.Do("GET", "/health/ready", "").Status == 200 })
	began := time.Now()
	stopped := make(chan error, 1)
	go func() { stopped <- r.Stop() }()
	r.Eventually("probes are told", func() bool { return r.Do("GET", "/health/ready", "").Status == 503 })
	if a := r.Do("GET", "/health/live", ""); a.Status != 200 {
		t.Errorf("live: %d %s", a.Status, a.Body)
	}
	served := 0
	for time.Since(began) < time.Second {
		reply, err := r.Client.Post(r.URL+"/v1/chat/completions", "application/json", strings.NewReader(rig.ChatBody("")))
		if err != nil {
			t.Fatal(err)
		}
		_ = reply.Body.Close()
		if reply.StatusCode != 200 || !reply.Close {
			t.Fatalf("request while the gateway leaves: status %d, its connection ends: %v", reply.StatusCode, reply.Close)
		}
		served++
	}
	if served == 0 || r.Parts.Draining() {
		t.Errorf("%d requests were served, draining %v", served, r.Parts.Draining())
	}
	if err := rig.Receive(t, stopped, "shutdown"); err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d < 2*time.Second {
		t.Errorf("the gateway ended after %v", d)
	}
}

// TestStopBeforeServing ends a gateway that had no time to serve: its ports must not take that for a fault.
func TestStopBeforeServing(t *testing.T) {
	for range 20 {
		cfg := app.Defaults()
		cfg.Port, cfg.GRPCPort, cfg.RegistryListen, cfg.ShutdownGraceS, cfg.ModelName = 0, 0, "127.0.0.1:0", 5, "tiny"
		a, err := app.New(cfg, app.Deps{Version: "test"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.Run(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestShutdownCancelsWhatIsLeft(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.ShutdownGraceS = 0.05 })
	b := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{Decode: b.Script(r.Tok, "one two three")})
	running := r.Send(t.Context(), rig.ChatBody(`"stream":true`))
	rig.Receive(t, b.Admitted, "request runs")
	if err := r.Stop(); err != nil {
		t.Error(err)
	}
	evs := rig.Events(t, rig.Receive(t, running, "stream ends").Body)
	if rig.At(evs[len(evs)-1], "error", "code") != "draining" {
		t.Errorf("last event %v", evs[len(evs)-1])
	}
	rig.Receive(t, b.Cancelled, "worker was cancelled")
}
