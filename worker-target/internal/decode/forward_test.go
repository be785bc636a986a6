package decode

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/engineplugin"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
)

// stating is an engine that answers at once and says that a step took longer.
type stating struct {
	counting
	took time.Duration
}

func (s *stating) Step(ctx context.Context, step *engineplugin.Step, result *engineplugin.StepResult) error {
	err := s.counting.Step(ctx, step, result)
	result.EngineNanos = int64(s.took)
	return err
}

// TestStatedTimeIsWaitedFor: a step ends no sooner than its engine says, and at once when the request is cancelled.
func TestStatedTimeIsWaitedFor(t *testing.T) {
	request := &Request{Prompt: []int32{1}, Sampler: engineplugin.DefaultSampler(), Max: 4, TopLogprobs: -1}
	run := func(ctx context.Context, took time.Duration) (time.Duration, error) {
		var stats Stats
		var out discard
		start := time.Now()
		_, err := NewLane(Config{}, auto.New(), nil).Run(ctx, &stating{took: took}, request, &out, &stats)
		return time.Since(start), err
	}
	if took, err := run(t.Context(), 20*time.Millisecond); err != nil || took < 80*time.Millisecond {
		t.Errorf("four steps of 20 ms took %v: %v", took, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if took, err := run(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || took > 10*time.Second {
		t.Errorf("a cancelled step took %v: %v", took, err)
	}
}
