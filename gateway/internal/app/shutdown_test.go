package app_test

import (
	"context"
	"testing"

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
