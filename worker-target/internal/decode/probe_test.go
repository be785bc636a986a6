package decode

import (
	"context"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
)

// dear is counting on a machine where wide steps are as dear as their rows.
type dear struct{ counting }

func (d *dear) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	err := d.counting.Step(ctx, step, result)
	result.EngineNanos = int64(len(step.Rows)) * int64(50*time.Microsecond)
	return err
}

// moody is a drafter that is right about the first tokens of its proposals and takes its time when it is not waited
// for.
type moody struct {
	knowing
	right, patience int // tokens; polls before the answer
	polls, heard    int
	silent          bool
	forgotten       int
}

func (m *moody) Open(context.Context, string, *drafts.Ring, *drafts.Capture, int, bool) Drafter {
	return m
}
func (m *moody) Forget() { m.forgotten++ }
func (m *moody) Ask(a drafts.Ask) {
	m.knowing.Ask(a)
	m.polls = 0
}

func (m *moody) Poll(tree *ddtree.Tree) (drafts.Outcome, bool) {
	if m.polls++; m.silent || m.polls <= m.patience {
		return drafts.Lost, false
	}
	m.heard++
	return m.Wait(context.Background(), tree), true
}

func (m *moody) Wait(ctx context.Context, tree *ddtree.Tree) drafts.Outcome {
	outcome := m.knowing.Wait(ctx, tree)
	for i := m.right; i < len(m.tokens); i++ {
		m.tokens[i] = (m.tokens[i] + 50) % vocab
	}
	time.Sleep(100 * time.Microsecond)
	if err := tree.Set(m.ask.Anchor, m.tokens, m.parent, m.w,
		ddtree.Limits{Vocab: vocab, Nodes: m.ask.Budget, Depth: m.ask.Block - 1}); err != nil {
		return drafts.Malformed
	}
	return outcome
}

// TestProbe: on a worker whose requests are often foreign to the draft, a request begins plainly, probes the draft
// beside it, and speculates when the draft was right; the output is that of plain decoding whatever the draft says and
// when.
func TestProbe(t *testing.T) {
	racetest.Bubble(t, probes) // in virtual time, in which a busy machine makes nothing dear
}

func probes(t *testing.T) {
	model := auto.New()
	for _, rows := range []int{1, 2, 4, 8, 16, 32, 64} {
		model.SetVerify(rows, time.Duration(rows)*50*time.Microsecond)
	}
	e, drafter := &dear{}, &moody{}
	slot := NewSlot(Config{RingRows: 256}, model, drafter)
	run := func(tokens int) Stats {
		t.Helper()
		var stats Stats
		out := recording{}
		request := &Request{Prompt: []int32{1, 2, 3}, Sampler: engine.DefaultSampler(), TopLogprobs: -1, Max: tokens,
			Arrived: time.Now()}
		if _, err := slot.Run(context.Background(), e, request, &out, &stats); err != nil {
			t.Fatal(err)
		}
		for i, token := range out.tokens {
			if token != int32(4+i)%vocab {
				t.Fatalf("token %d is %d, want %d (draft right for %d, answer after %d)", i, token, (4+i)%vocab, drafter.right, drafter.patience)
			}
		}
		if len(out.tokens) != tokens {
			t.Fatalf("%d tokens, want %d", len(out.tokens), tokens)
		}
		return stats
	}
	for range 20 { // the draft knows nothing: the worker learns that first rounds lose
		run(40)
	}
	drafter.heard = 0
	for patience := range 8 {
		for right := range 7 {
			drafter.patience, drafter.right = patience, right
			run(12)
		}
	}
	if drafter.heard == 0 {
		t.Error("no request listened to the draft beside plain decoding")
	}
	drafter.silent = true
	run(60)
	if drafter.forgotten == 0 {
		t.Error("a draft that never answers was not given up")
	}
}

// recording keeps the output.
type recording struct {
	discard
	tokens []int32
}

func (r *recording) Committed(tokens []int32, _ []*tandemv1.PositionLogprobs, _ tandemv1.CloseKind) error {
	r.tokens = append(r.tokens, tokens...)
	return nil
}
