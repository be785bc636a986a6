package host_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
)

// TestStoppedProcess: an engine process that is stopped is killed and replaced, at work or idle; its callers are told
// why.
func TestStoppedProcess(t *testing.T) {
	for _, working := range []bool{true, false} {
		h := newHost(t, "pinged")
		h.SetHangLimit(300 * time.Millisecond)
		down := make(chan host.Event, 4)
		s := host.NewSupervisor(h.OpenTarget, enginetest.TargetOptions(),
			host.RestartConfig{Backoff: time.Millisecond, OnEvent: func(e host.Event) {
				if e.Kind == host.EngineDown {
					down <- e
				}
			}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = s.Run(ctx)
		}()
		e, _, err := s.Engine(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		q, err := e.NewSequence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p := e.(*host.TargetProcess)
		// A process that has never answered has more time. It is asked a second time after its first answer has come.
		testwait.Until(t, "the process has answered", func() bool {
			return strings.Count(strings.Join(p.Stderr(), " "), "pinged") >= 2
		})
		start := time.Now()
		if err := syscall.Kill(p.PID(), syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if working {
			for err == nil { // the signal takes effect a moment later
				err = e.Step(t.Context(), enginetest.OneRow(q), &engine.StepResult{})
			}
			if !errors.Is(err, rpcerr.EngineLost) || !strings.Contains(err.Error(), "stopped") {
				t.Errorf("step: %v", err)
			}
		}
		if v := testwait.For(t, down, "the stopped process is found"); !strings.Contains(v.Err.Error(), "stopped") {
			t.Errorf("lost for %v", v.Err)
		}
		t.Logf("working %v: lost after %v", working, time.Since(start))
		for s.Generation() < 2 {
			if _, _, err := s.Engine(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		<-ended
	}
}

// TestStoppedProcessCloses: the end of an engine does not wait for a process that is stopped.
func TestStoppedProcessCloses(t *testing.T) {
	if testing.Short() {
		t.Skip("takes the whole patience of a close, 7 s")
	}
	h := newHost(t, "fake")
	h.SetHangLimit(-1)
	e, err := h.OpenTarget(t.Context(), enginetest.TargetOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(e.(*host.TargetProcess).PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_ = e.Close()
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("closed after %v", took)
	}
}
