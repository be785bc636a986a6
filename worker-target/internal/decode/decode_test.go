package decode

import (
	"context"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/output"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
	"github.com/tandem-inference/tandem/worker-target/internal/watch"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	vocab = 100
	width = 64
)

// counting is an engine whose next token is always the last one plus one, and which allocates nothing.
type counting struct {
	engine.Target
	steps int
}

func (c *counting) Info() engine.Info {
	return engine.Info{Vocab: vocab, MaxContext: 1 << 30, MaxTreeRows: 64, MaxBatchRows: 64, MaxTopK: 8}
}

func (c *counting) NewSequence(context.Context) (engine.Sequence, error) { return 1, nil }
func (c *counting) FreeSequence(context.Context, engine.Sequence) error  { return nil }
func (c *counting) SetSampler(context.Context, engine.Sequence, engine.Sampler) error {
	return nil
}

func (c *counting) Step(_ context.Context, step *engine.Step, result *engine.StepResult) error {
	c.steps++
	result.Tokens, result.Logprobs, result.Features = result.Tokens[:0], result.Logprobs[:0], result.Features[:0]
	for i := range step.Groups {
		for range step.Groups[i].Kept.Rows {
			result.Features = append(result.Features, row[:]...)
		}
	}
	for i := range step.Rows {
		result.Tokens = append(result.Tokens, (step.Rows[i].Token+1)%vocab)
		result.Logprobs = append(result.Logprobs, -1)
		if step.Rows[i].Want&engine.WantFeatures != 0 {
			result.Features = append(result.Features, row[:]...)
		}
	}
	result.EngineNanos = int64(100*time.Microsecond) + int64(len(step.Rows))*1000
	return nil
}

var row [width]byte

// knowing is a drafter that is right for six tokens.
type knowing struct {
	ask    drafts.Ask
	tokens []int32
	parent []int32
	w      []float32
	asked  int
}

func (k *knowing) Known() bool { return true }
func (k *knowing) Capture() *drafts.Capture {
	return &drafts.Capture{Encoding: engine.FeatureFusedBF16, Width: width, Block: 8}
}
func (k *knowing) Open(context.Context, string, *drafts.Ring, *drafts.Capture, int, bool) Drafter {
	return k
}
func (k *knowing) Fed()             {}
func (k *knowing) Ready() bool      { return true }
func (k *knowing) Ask(a drafts.Ask) { k.ask = a; k.asked++ }
func (k *knowing) Close()           {}

func (k *knowing) Forget() {}

func (k *knowing) Work() time.Duration { return 0 }
func (k *knowing) Poll(tree *ddtree.Tree) (drafts.Outcome, bool) {
	return k.Wait(context.Background(), tree), true
}

func (k *knowing) Wait(_ context.Context, tree *ddtree.Tree) drafts.Outcome {
	k.tokens, k.parent, k.w = k.tokens[:0], k.parent[:0], k.w[:0]
	for i := range int32(min(6, k.ask.Block-1, k.ask.Budget)) {
		k.tokens = append(k.tokens, (k.ask.Anchor+i+1)%vocab)
		k.parent = append(k.parent, i)
		k.w = append(k.w, -0.05*float32(i+1))
	}
	if err := tree.Set(k.ask.Anchor, k.tokens, k.parent, k.w,
		ddtree.Limits{Vocab: vocab, Nodes: k.ask.Budget, Depth: k.ask.Block - 1}); err != nil {
		return drafts.Malformed
	}
	return drafts.Proposed
}

// discard counts output.
type discard struct{ tokens, batches int }

func (d *discard) Prefilled(output.Prefill) error { return nil }
func (d *discard) Committed(tokens []int32, _ []*tandemv1.PositionLogprobs, _ tandemv1.CloseKind) error {
	d.tokens += len(tokens)
	d.batches++
	return nil
}

// TestSteadyStateDoesNotAllocate: a request of a thousand rounds allocates no more than one of a hundred, while nobody
// watches.
func TestSteadyStateDoesNotAllocate(t *testing.T) {
	for _, mode := range []tandemv1.SpeculationMode{
		tandemv1.SpeculationMode_SPECULATION_MODE_OFF, tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN,
		tandemv1.SpeculationMode_SPECULATION_MODE_TREE, tandemv1.SpeculationMode_SPECULATION_MODE_AUTO,
		tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP,
	} {
		e, drafter := &counting{}, &knowing{}
		slot := NewSlot(Config{RingRows: 256, Watch: watch.New()}, auto.New(), drafter)
		request := &Request{Prompt: []int32{1, 2, 3}, Sampler: engine.DefaultSampler(), Mode: mode, TopLogprobs: -1,
			Watch: 1}
		run := func(tokens int) float64 {
			request.Max = tokens
			return testing.AllocsPerRun(3, func() {
				var stats Stats
				var out discard
				request.Arrived = time.Now()
				if _, err := slot.Run(context.Background(), e, request, &out, &stats); err != nil || out.tokens != tokens {
					t.Fatal(err, out.tokens)
				}
			})
		}
		run(2000)
		short, long := run(200), run(20000)
		if long > short+16 { // what is kept of the text grows a few times; an allocation a round would be thousands
			t.Errorf("%v: %v allocations for 20000 tokens, %v for 200", mode, long, short)
		}
		t.Logf("%v: %v allocations a request, %d proposals, %d steps", mode, long, drafter.asked, e.steps)
	}
}

// TestRoundTrips: a round costs one engine call, its commit included.
func TestRoundTrips(t *testing.T) {
	e, drafter := &counting{}, &knowing{}
	slot := NewSlot(Config{}, auto.New(), drafter)
	var stats Stats
	var out discard
	_, err := slot.Run(context.Background(), e, &Request{
		Prompt: make([]int32, 130), Sampler: engine.DefaultSampler(), Max: 71,
		Mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN, TopLogprobs: -1,
	}, &out, &stats)
	if err != nil {
		t.Fatal(err)
	}
	// 130 prompt tokens are three chunks of 64; 70 tokens after the first are ten rounds of seven.
	if e.steps != 3+10 || stats.Steps != 10 || stats.Accepted != 60 || out.tokens != 71 {
		t.Errorf("%d engine calls, %+v, %d tokens", e.steps, stats, out.tokens)
	}
}

// TestLookup: a text that repeats itself every hundred tokens is looked up from its second turn on, in blocks of the
// wanted rows; a round costs one engine call as any other.
func TestLookup(t *testing.T) {
	e := &counting{}
	slot := NewSlot(Config{}, auto.New(), nil)
	prompt := make([]int32, 120) // 0..99, 0..19
	for i := range prompt {
		prompt[i] = int32(i % vocab)
	}
	var stats Stats
	var out discard
	_, err := slot.Run(context.Background(), e, &Request{
		Prompt: prompt, Sampler: engine.DefaultSampler(), Max: 71, Mode: tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP,
		Block: 7, TopLogprobs: -1,
	}, &out, &stats)
	if err != nil {
		t.Fatal(err)
	}
	// 120 prompt tokens are two chunks of 64; 70 tokens after the first are ten rounds of seven.
	if e.steps != 2+10 || stats.Steps != 10 || stats.Accepted != 60 || stats.LookAccepted != 60 ||
		stats.LookDrafted != 60 || out.tokens != 71 {
		t.Errorf("%d engine calls, %+v, %d tokens", e.steps, stats, out.tokens)
	}
}
