package engine_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/racetest"
)

// stuck is an engine whose steps wait once it is told so.
type stuck struct {
	*enginefake.Target
	hang   atomic.Bool
	killed atomic.Bool
}

func (s *stuck) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	if s.hang.Load() {
		<-s.Engine.Done()
		return s.Engine.Err()
	}
	return s.Target.Step(ctx, step, result)
}

// Kill returns some time after all have seen the engine's end, the guard too.
func (s *stuck) Kill(error) {
	s.killed.Store(true)
	s.Crash()
	time.Sleep(time.Second)
}

// TestStuckCall: an engine whose process lives but whose step never returns is given up, after a time that follows from
// what steps took before. In virtual time.
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
				e, err := fake.OpenTarget(t.Context(), enginetest.TargetOptions(), nil)
				if err != nil {
					t.Fatal(err)
				}
				s := &stuck{Target: e.(*enginefake.Target)}
				g := engine.GuardTarget(s, engine.GuardConfig{HangLimit: test.limit})
				defer g.Close()
				q, err := g.NewSequence(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if test.step > 0 {
					if err := g.Step(t.Context(), enginetest.OneRow(q), &engine.StepResult{}); err != nil {
						t.Fatal(err)
					}
				}
				s.hang.Store(true)
				start := time.Now()
				result := make(chan error, 1)
				go func() { result <- g.Step(t.Context(), enginetest.OneRow(q), &engine.StepResult{}) }()
				select {
				case <-result:
					took := time.Since(start)
					if test.from == 0 || took < test.from || took > test.to || !s.killed.Load() ||
						!strings.Contains(g.Err().Error(), "stuck") {
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
		e, err := fake.OpenTarget(t.Context(), enginetest.TargetOptions(), nil)
		if err != nil {
			t.Fatal(err)
		}
		g := engine.GuardTarget(e, engine.GuardConfig{HangLimit: time.Second}) // 20 s, or 30 times what was measured
		defer g.Close()
		q, err := g.NewSequence(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		results := make(chan error, 40)
		for range 40 { // 20 minutes
			go func() {
				results <- g.Step(t.Context(), enginetest.OneRow(q), &engine.StepResult{})
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
