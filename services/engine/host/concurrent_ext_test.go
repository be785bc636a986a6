package host_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
)

// hourly is a model of texts that thinks for an hour about a prompt of token 1.
type hourly struct{}

func (hourly) Peaks(_ enginefake.Text, dst []enginefake.Peak) []enginefake.Peak {
	return append(dst, enginefake.Peak{Token: 3, Logit: 9})
}

func (hourly) Choose(enginefake.Text, []enginefake.Peak, *engine.Sampler, []uint32) int32 {
	return 3
}
func (hourly) Hint(enginefake.Text, []byte)                        {}
func (hourly) Guess(_ []byte, _ int32, _ int, dst []int32) []int32 { return dst }

func (hourly) Pace(t enginefake.Text) (token, first time.Duration) {
	if t.Tokens[0] == 1 {
		return 0, time.Hour
	}
	return 0, 0
}

// TestConcurrentSteps: behind a connection, too, an engine whose steps run at the same time waits for all its sequences
// at once.
func TestConcurrentSteps(t *testing.T) {
	opener := &wired{t, enginefake.New(enginefake.Options{Text: hourly{}})}
	const slow = 40
	o := enginetest.TargetOptions()
	o.MaxSequences = slow + 1
	e, err := opener.OpenTarget(t.Context(), o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if !e.Info().Concurrent {
		t.Fatal("the engine does not say that its steps run at the same time")
	}
	sampler := engine.DefaultSampler()
	sampler.PromptTokens = 1
	sequence := func(token int32) *engine.Step {
		q, err := e.NewSequence(t.Context())
		if err == nil {
			err = e.SetSampler(t.Context(), q, sampler)
		}
		if err != nil {
			t.Fatal(err)
		}
		step := enginetest.OneRow(q)
		step.Groups[0].Commit, step.Rows[0].Token = true, token
		return step
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	ended := make(chan error, slow)
	for range slow {
		step := sequence(1)
		go func() { ended <- e.Step(ctx, step, &engine.StepResult{}) }()
	}
	steps := func() uint64 {
		stats, err := e.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range stats {
			if s.Name == "steps" {
				return s.Value
			}
		}
		return 0
	}
	for steps() < slow {
		time.Sleep(time.Millisecond)
	}
	if err := e.Step(t.Context(), sequence(2), &engine.StepResult{}); err != nil {
		t.Fatal(err)
	}
	leave()
	for range slow {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a slow step ended with %v", err)
		}
	}
}
