package decode

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
)

// refrain is the token at a position of a text in which six tokens that come again follow on ten that do not.
func refrain(position int) int32 {
	if at := position % 16; at >= 10 {
		return 80 + int32(at)
	}
	return int32(position*position*31/7) % 80
}

// sure is a drafter that is right to the end of its block.
type sure struct {
	knowing
	answered bool
}

func (s *sure) Capture() *drafts.Capture {
	return &drafts.Capture{Encoding: engine.FeatureFusedBF16, Width: width, Block: 7}
}

func (s *sure) Open(context.Context, string, *drafts.Ring, *drafts.Capture, int, bool) Drafter {
	return s
}

func (s *sure) Wait(ctx context.Context, tree *ddtree.Tree) drafts.Outcome {
	s.answered = true
	outcome := s.knowing.Wait(ctx, tree)
	for i := range s.tokens {
		s.tokens[i] = refrain(s.ask.Position + 1 + i)
	}
	if err := tree.Set(s.ask.Anchor, s.tokens, s.parent, s.w,
		ddtree.Limits{Vocab: vocab, Nodes: s.ask.Budget, Depth: s.ask.Block - 1}); err != nil {
		return drafts.Malformed
	}
	return outcome
}

// reciting chooses the tokens of refrain. Wide steps cost it little more than plain ones. It counts the steps that are
// wider than what the drafter proposed for them.
type reciting struct {
	counting
	drafter   *sure
	prolonged int
}

func stepTime(rows int) time.Duration {
	return time.Duration(100+rows) * time.Microsecond
}

func (c *reciting) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	err := c.counting.Step(ctx, step, result)
	time.Sleep(stepTime(len(step.Rows)))
	for i := range step.Rows {
		result.Tokens[i] = refrain(int(step.Rows[i].Position) + 1)
	}
	if c.drafter.answered && len(step.Rows) > len(c.drafter.tokens)+1 {
		c.prolonged++
	}
	c.drafter.answered = false
	return err
}

// TestProlonged: prompt lookup goes on after a draft that has proposed all that its block holds; tokens are counted by
// what proposed them, and the output is that of plain decoding.
func TestProlonged(t *testing.T) {
	racetest.Bubble(t, testProlonged) // what is drafted depends on times
}

func testProlonged(t *testing.T) {
	prompt := make([]int32, 100)
	for i := range prompt {
		prompt[i] = refrain(i)
	}
	run := func(noLookup bool, tokens int) (stats Stats, prolonged int) {
		t.Helper()
		model := auto.New()
		for _, rows := range []int{1, 2, 4, 8, 16, 32, 64} {
			model.SetVerify(rows, stepTime(rows))
		}
		drafter := &sure{}
		e, out := &reciting{drafter: drafter}, recording{}
		_, err := NewSlot(Config{NoLookup: noLookup}, model, drafter).Run(context.Background(), e, &Request{
			Prompt: prompt, Sampler: engine.DefaultSampler(), Max: tokens, TopLogprobs: -1, Arrived: time.Now(),
		}, &out, &stats)
		if err != nil {
			t.Fatal(err)
		}
		var want []int32
		for i := range tokens {
			want = append(want, refrain(len(prompt)+i))
		}
		if !slices.Equal(out.tokens, want) {
			t.Fatalf("%v, want %v", out.tokens, want)
		}
		return stats, e.prolonged
	}
	for tokens := 1; tokens < 40; tokens++ {
		run(false, tokens)
	}
	with, prolonged := run(false, 600)
	without, none := run(true, 600)
	if prolonged == 0 || none > 0 || with.Steps >= without.Steps || without.LookDrafted > 0 {
		t.Errorf("%d proposals prolonged, %+v\nwithout lookup %d, %+v", prolonged, with, none, without)
	}
	fromDraft := with.Accepted - with.LookAccepted
	if with.LookAccepted == 0 || with.LookAccepted > with.LookDrafted || fromDraft == 0 ||
		fromDraft > with.Drafted-with.LookDrafted || with.Emitted != 1+with.Steps+with.Accepted {
		t.Errorf("counts %+v", with)
	}
	t.Logf("%d of %d rounds prolonged, %d without lookup", prolonged, with.Steps, without.Steps)
}
