package engineplugin_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/engineplugin"
	"github.com/tandem-inference/tandem/services/engineplugin/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
)

// TestStoppedProcess: an engine process that is stopped is killed and replaced, at work or idle; its callers are told why.
func TestStoppedProcess(t *testing.T) {
	for _, working := range []bool{true, false} {
		h := host(t, "pinged")
		h.SetHangLimit(300 * time.Millisecond)
		down := make(chan engineplugin.Event, 4)
		s := engineplugin.NewSupervisor(h, targetOptions(), engineplugin.RestartConfig{Backoff: time.Millisecond, OnEvent: func(e engineplugin.Event) {
			if e.Kind == engineplugin.EngineDown {
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
		p := e.(*engineplugin.Process)
		// A process that has never answered has more time. It is asked a second time after its first answer has come.
		testwait.Until(t, "the process has answered", func() bool { return strings.Count(strings.Join(p.Stderr(), " "), "pinged") >= 2 })
		start := time.Now()
		if err := syscall.Kill(p.PID(), syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if working {
			for err == nil { // the signal takes effect a moment later
				err = e.Step(t.Context(), oneRow(q), &engineplugin.StepResult{})
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
	h := host(t, "fake")
	h.SetHangLimit(-1)
	e, err := h.Open(t.Context(), targetOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(e.(*engineplugin.Process).PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_ = e.Close()
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("closed after %v", took)
	}
}

// stuck is an engine whose steps wait once it is told so.
type stuck struct {
	*enginefake.Engine
	hang   atomic.Bool
	killed atomic.Bool
}

func (s *stuck) Step(ctx context.Context, step *engineplugin.Step, result *engineplugin.StepResult) error {
	if s.hang.Load() {
		<-s.Engine.Done()
		return s.Engine.Err()
	}
	return s.Engine.Step(ctx, step, result)
}

// Kill returns some time after all have seen the engine's end, the guard too.
func (s *stuck) Kill(error) {
	s.killed.Store(true)
	s.Crash()
	time.Sleep(time.Second)
}

// TestStuckCall: an engine whose process lives but whose step never returns is given up, after a time that follows from what
// steps took before. In virtual time.
func TestStuckCall(t *testing.T) {
	for name, test := range map[string]struct {
		step     time.Duration // of one row, 0 = none was measured
		limit    time.Duration // of signs of life
		from, to time.Duration // when the engine is lost; 0 = never
	}{
		"quick steps":      {10 * time.Millisecond, 0, 55 * time.Second, 65 * time.Second},
		"slow steps":       {10 * time.Second, 0, 290 * time.Second, 310 * time.Second},
		"no step yet":      {0, 0, 29 * time.Minute, 31 * time.Minute},
		"shorter limit":    {10 * time.Millisecond, 100 * time.Millisecond, 2 * time.Second, 3 * time.Second},
		"watch turned off": {10 * time.Millisecond, -1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			racetest.Bubble(t, func(t *testing.T) {
				fake := enginefake.New(enginefake.Options{StepDelay: test.step})
				e, err := fake.Open(t.Context(), targetOptions(), nil)
				if err != nil {
					t.Fatal(err)
				}
				s := &stuck{Engine: e.(*enginefake.Engine)}
				g := engineplugin.NewGuard(s, engineplugin.GuardConfig{HangLimit: test.limit})
				defer g.Close()
				q, err := g.NewSequence(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if test.step > 0 {
					if err := g.Step(t.Context(), oneRow(q), &engineplugin.StepResult{}); err != nil {
						t.Fatal(err)
					}
				}
				s.hang.Store(true)
				start := time.Now()
				result := make(chan error, 1)
				go func() { result <- g.Step(t.Context(), oneRow(q), &engineplugin.StepResult{}) }()
				select {
				case <-result:
					took := time.Since(start)
					if test.from == 0 || took < test.from || took > test.to || !s.killed.Load() || !strings.Contains(g.Err().Error(), "stuck") {
						t.Errorf("lost after %v: %v", took, g.Err())
					}
				case <-time.After(2 * time.Hour):
					if test.from > 0 {
						t.Error("never lost")
					}
					s.Crash()
					<-result
				}
			})
		})
	}
}

// TestBusyEngineIsNotStuck: what waits behind the work of others is not stuck, however long it waits.
func TestBusyEngineIsNotStuck(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		fake := enginefake.New(enginefake.Options{StepDelay: 30 * time.Second})
		e, err := fake.Open(t.Context(), targetOptions(), nil)
		if err != nil {
			t.Fatal(err)
		}
		g := engineplugin.NewGuard(e, engineplugin.GuardConfig{HangLimit: time.Second}) // 20 s, or 30 times what was measured
		defer g.Close()
		q, err := g.NewSequence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		results := make(chan error, 40)
		for range 40 { // 20 minutes
			go func() {
				results <- g.Step(t.Context(), oneRow(q), &engineplugin.StepResult{})
			}()
		}
		for range 40 {
			if err := <-results; err != nil {
				t.Fatal(err)
			}
		}
		if g.Err() != nil {
			t.Error(g.Err())
		}
	})
}
