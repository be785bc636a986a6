package batch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-inference/tandem/services/engineplugin"
	"github.com/tandem-inference/tandem/services/engineplugin/enginefake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const vocab = 64

func fake(t testing.TB, o enginefake.Options) engineplugin.Engine {
	t.Helper()
	o.Vocab = vocab
	e, err := enginefake.New(o).Open(t.Context(), engineplugin.OpenOptions{
		Role: engineplugin.RoleTarget, ModelPath: "m", MaxSequences: 16, MaxContext: 2048, MaxTreeRows: 24, MaxBatchRows: 64, MaxTopK: 8,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	if err := e.SetCapture(t.Context(), []int32{1, 3}); err != nil {
		t.Fatal(err)
	}
	return e
}

// cost of a step by its rows; the way is free.
type cost func(rows int) time.Duration

func (c cost) Verify(rows, _ int) time.Duration { return c(rows) }
func (cost) Hop() time.Duration                 { return 0 }

var free cost = func(int) time.Duration { return 0 } // not known: everything that fits is joined

// request is a decode loop with a random course that depends on its seed and on the engine's answers alone.
type request struct {
	e      engineplugin.Engine
	random *rand.Rand
	seq    engineplugin.Sequence
	length int
	path   []int32
	plain  bool // the last step committed its row
	kept   int  // newest rows whose features the engine keeps
	anchor int32
	step   engineplugin.Step
	result engineplugin.StepResult
	joined int
	record []string
}

func (r *request) run(ctx context.Context, rounds int) error {
	var err error
	if r.seq, err = r.e.NewSequence(ctx); err != nil {
		return err
	}
	defer func() { _ = r.e.FreeSequence(ctx, r.seq) }()
	for i := range 3 + r.random.IntN(40) { // a prompt, at times longer than a joint step may be
		r.step.Rows = append(r.step.Rows, engineplugin.Row{Sequence: r.seq, Token: int32(r.random.IntN(vocab)), Position: int32(i), Parent: int32(i) - 1, Mask: -1})
	}
	r.step.Prefill = true
	r.step.Rows[len(r.step.Rows)-1].Want = engineplugin.WantToken
	if err := r.forward(ctx); err != nil {
		return err
	}
	r.length, r.plain = len(r.step.Rows), true
	r.anchor = r.result.Tokens[r.length-1]
	for range rounds {
		if err := r.round(ctx); err != nil {
			return err
		}
		if r.random.IntN(8) == 0 {
			if err := r.look(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *request) forward(ctx context.Context) error {
	if err := r.e.Step(ctx, &r.step, &r.result); err != nil {
		return err
	}
	if r.result.BatchRows > len(r.step.Rows) {
		r.joined++
	}
	r.record = append(r.record, fmt.Sprint(r.result.Tokens, r.result.Logprobs, r.result.Features))
	for i := range r.step.Rows {
		if row := r.step.Rows[i]; row.Want&engineplugin.WantTop != 0 {
			at := i * r.result.TopStride
			r.record = append(r.record, fmt.Sprint(r.result.TopIDs[at:at+int(row.TopK)], r.result.TopLogprobs[at:at+int(row.TopK)]))
		}
	}
	return nil
}

// round is one step of a plain row, a chain or a tree, after the commit of the path before.
func (r *request) round(ctx context.Context) error {
	old := r.step
	r.step = engineplugin.Step{Rows: old.Rows[:0], Masks: old.Masks[:0]}
	if !r.plain {
		r.step.Commits = []engineplugin.Commit{{Sequence: r.seq, Path: slices.Clone(r.path)}}
	}
	n := 1
	if r.random.IntN(2) == 0 {
		n += r.random.IntN(9)
	}
	wants := engineplugin.WantToken
	if r.random.IntN(2) == 0 {
		wants |= engineplugin.WantTop
	}
	switch r.random.IntN(3) {
	case 0:
		wants |= engineplugin.WantFeatures
		r.step.Features = engineplugin.FeatureRawBF16
	case 1:
		if n == 1 {
			wants |= engineplugin.WantKeep
		}
	}
	if r.kept > 0 && (r.kept == engineplugin.KeptRows || r.random.IntN(4) == 0) {
		kept := []engineplugin.KeptFeatures{{Sequence: r.seq, Position: int32(r.length - r.kept), Rows: int32(r.kept)}}
		r.step.Kept, r.step.Features = kept, engineplugin.FeatureRawBF16
		if r.random.IntN(3) == 0 { // in a step of their own
			if err := r.e.Step(ctx, &engineplugin.Step{Commits: r.step.Commits, Kept: kept, Features: r.step.Features}, &r.result); err != nil {
				return err
			}
			r.record = append(r.record, string(r.result.Features))
			r.step.Commits, r.step.Kept = nil, nil
		}
		r.kept = 0
	}
	mask := int32(-1)
	if r.random.IntN(3) == 0 {
		mask, r.step.NMasks = 0, 1
		r.step.Masks = append(r.step.Masks, 0x0F0F0F0F, 0xFFFF0000)
	}
	for i := range n {
		row := engineplugin.Row{Sequence: r.seq, Token: r.anchor, Position: int32(r.length), Parent: -1, Want: wants, TopK: 3, Mask: mask}
		if i > 0 {
			row.Parent = int32(r.random.IntN(i))
			row.Token, row.Position = int32(r.random.IntN(vocab)), r.step.Rows[row.Parent].Position+1
		}
		r.step.Rows = append(r.step.Rows, row)
	}
	r.step.Prefill = n == 1
	if err := r.forward(ctx); err != nil {
		return err
	}
	// A random path from the root.
	r.path, r.plain = append(r.path[:0], 0), n == 1
	for {
		last := r.path[len(r.path)-1]
		child := slices.IndexFunc(r.step.Rows, func(row engineplugin.Row) bool { return row.Parent == last })
		if child < 0 || r.random.IntN(4) == 0 {
			break
		}
		r.path = append(r.path, int32(child))
	}
	r.length += len(r.path)
	if wants&engineplugin.WantKeep != 0 {
		r.kept++
	} else {
		r.kept = 0
	}
	r.anchor = r.result.Tokens[r.path[len(r.path)-1]]
	return nil
}

// look uses the calls that see a sequence as it is.
func (r *request) look(ctx context.Context) error {
	if !r.plain {
		return nil // its length is that before the commit, which is the next step's
	}
	n, err := r.e.SequenceLength(ctx, r.seq)
	if err != nil {
		return err
	}
	state, err := r.e.Export(ctx, r.seq)
	if err != nil {
		return err
	}
	r.record = append(r.record, fmt.Sprint(n, len(state)))
	if n != r.length {
		return fmt.Errorf("sequence has %d positions, want %d", n, r.length)
	}
	return nil
}

// TestAlike: what requests get that run at the same time is what each gets alone, whatever their steps want.
func TestAlike(t *testing.T) {
	const requests, rounds = 6, 60
	alone := make([][]string, requests)
	engine := fake(t, enginefake.Options{})
	for i := range requests {
		r := &request{e: engine, random: rand.New(rand.NewPCG(7, uint64(i)))}
		if err := r.run(t.Context(), rounds); err != nil {
			t.Fatal(err)
		}
		alone[i] = r.record
	}
	joint := New(fake(t, enginefake.Options{StepDelay: 200 * time.Microsecond}), free)
	var wait sync.WaitGroup
	var joined atomic.Int64
	for i := range requests {
		wait.Go(func() {
			r := &request{e: joint, random: rand.New(rand.NewPCG(7, uint64(i)))}
			if err := r.run(t.Context(), rounds); err != nil {
				t.Errorf("request %d after %d steps: %v", i, len(r.record), err)
				return
			}
			joined.Add(int64(r.joined))
			if !slices.Equal(r.record, alone[i]) {
				at := 0
				for at < min(len(r.record), len(alone[i])) && r.record[at] == alone[i][at] {
					at++
				}
				t.Errorf("request %d differs at entry %d", i, at)
			}
		})
	}
	wait.Wait()
	if joined.Load() < requests*rounds/4 {
		t.Errorf("only %d of %d steps had company", joined.Load(), requests*rounds)
	}
}

// TestCancelOfOne: a request that is cancelled while others run leaves at once, and takes nobody with it.
func TestCancelOfOne(t *testing.T) {
	joint := New(fake(t, enginefake.Options{StepDelay: 2 * time.Millisecond}), free)
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	for i := range 4 {
		wait.Go(func() {
			r := &request{e: joint, random: rand.New(rand.NewPCG(9, uint64(i)))}
			if err := r.run(t.Context(), 60); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		})
	}
	wait.Go(func() {
		r := &request{e: joint, random: rand.New(rand.NewPCG(9, 100))}
		if err := r.run(ctx, 1_000_000); ctx.Err() == nil {
			t.Errorf("ended before its cancel: %v", err)
		}
	})
	time.Sleep(30 * time.Millisecond)
	start := time.Now()
	cancel()
	wait.Wait()
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("took %v", d)
	}
}

// TestOnlyWhatGains: steps are joined while rows are nearly free and left alone where every row costs what it costs alone.
func TestOnlyWhatGains(t *testing.T) {
	row := func(n int) *engineplugin.Step { return &engineplugin.Step{Rows: make([]engineplugin.Row, n)} }
	memory := New(fake(t, enginefake.Options{}), cost(func(rows int) time.Duration { return time.Duration(1000 + 10*rows) }))
	linear := New(fake(t, enginefake.Options{}), cost(func(rows int) time.Duration { return time.Duration(100 * rows) }))
	if !memory.gains(row(1), row(1), 3) || !memory.gains(row(8), row(8), 8) {
		t.Error("rows that are nearly free are not joined")
	}
	if linear.gains(row(8), row(8), 8) || linear.gains(row(1), row(1), 1) {
		t.Error("rows that cost what they cost alone are joined")
	}
}
