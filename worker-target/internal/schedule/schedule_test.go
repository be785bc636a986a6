package schedule

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	vocab      = 64
	promptRows = 20 // prompts of more rows have bits of their own
	treeRows   = 24
	batchRows  = 64
	widePieces = 256
)

func fake(t testing.TB, o enginefake.Options) engine.Target {
	t.Helper()
	return fakeOf(t, o, batchRows)
}

// fakeOf is an engine of steps of at most rows rows.
func fakeOf(t testing.TB, o enginefake.Options, rows int) engine.Target {
	t.Helper()
	o.Vocab, o.PromptRows, o.Context = vocab, promptRows, 1<<15
	e, err := enginefake.New(o).OpenTarget(t.Context(), engine.OpenOptions{
		ModelPath: "m", MaxSequences: 40, MaxContext: 1 << 15, MaxTreeRows: treeRows,
		MaxBatchRows: rows, MaxTopK: 8,
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

// cost of a step by its rows, of whatever kind; the way is free.
type cost func(rows int) time.Duration

func (c cost) Verify(rows, _ int) time.Duration              { return c(rows) }
func (cost) Hop() time.Duration                              { return 0 }
func (c cost) Prompt(rows, _ int, _ bool) time.Duration      { return c(rows) }
func (cost) ObservePrompt(_, _ int, _ bool, _ time.Duration) {}

var free cost = func(int) time.Duration { return 0 } // not known: everything that fits is joined

// with wraps an engine whose steps cost so much.
func with(e engine.Target, c cost) *Engine { return New(e, Options{Costs: c}) }

// course is a decode loop with a random course that depends on its seed and on the engine's answers alone.
type course struct {
	e      engine.Target
	random *rand.Rand
	seq    engine.Sequence
	length int
	path   []int32
	group  [1]engine.Group
	plain  bool // the last step committed its row
	kept   int  // newest rows whose features the engine keeps
	anchor int32
	step   engine.Step
	result engine.StepResult
	joined int
	record []string
	prompt func(r *rand.Rand) int // rows of the prompt, nil = 3 to 42
	piece  int                    // most rows of a piece
	pause  time.Duration          // longest pause between rounds
}

func (r *course) run(ctx context.Context, rounds int) error {
	var err error
	if r.seq, err = r.e.NewSequence(ctx); err != nil {
		return err
	}
	defer func() { _ = r.e.FreeSequence(ctx, r.seq) }()
	if err := r.read(ctx); err != nil {
		return err
	}
	for range rounds {
		if r.pause > 0 {
			time.Sleep(time.Duration(r.random.Int64N(int64(r.pause))))
		}
		if err := r.round(ctx); err != nil {
			return err
		}
		if r.random.IntN(8) == 0 {
			if err := r.look(ctx); err != nil {
				return err
			}
		}
		if r.prompt != nil && r.random.IntN(10) == 0 {
			if err := r.known(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// read reads the prompt in pieces whose rows want different things.
func (r *course) read(ctx context.Context) error {
	left := 3 + r.random.IntN(40)
	if r.prompt != nil {
		left = r.prompt(r.random)
	}
	if r.piece == 0 {
		r.piece = batchRows
	}
	for left > 0 {
		n := min(left, r.piece)
		left -= n
		r.step = engine.Step{Groups: r.group[:], Rows: r.step.Rows[:0], Masks: r.step.Masks[:0]}
		wants := uint32(0)
		switch r.random.IntN(4) {
		case 0:
			wants = engine.WantScore | engine.WantTop
		case 1:
			wants, r.step.Features = engine.WantFeatures, engine.FeatureRawBF16
		case 2:
			wants = engine.WantLogits
		}
		mask := int32(-1)
		if r.random.IntN(3) == 0 {
			mask, r.step.NMasks = 0, 1
			r.step.Masks = append(r.step.Masks, 1<<5|r.random.Uint32(), r.random.Uint32())
		}
		for i := range n {
			row := engine.Row{
				Token: int32(r.random.IntN(vocab)), Position: int32(r.length + i), Parent: int32(i) - 1, Mask: -1,
				Score: int32(r.random.IntN(vocab)), TopK: 1 + int32(r.random.IntN(5)),
			}
			if r.random.IntN(3) > 0 {
				row.Want = wants
			}
			r.step.Rows = append(r.step.Rows, row)
		}
		if left == 0 {
			r.step.Rows[n-1].Want |= engine.WantToken
			r.step.Rows[n-1].Mask = mask
		}
		r.group[0] = engine.Group{Sequence: r.seq, Rows: n, Commit: true}
		if n > promptRows {
			r.group[0].Kind = engine.KindPrompt
		}
		if err := r.forward(ctx); err != nil {
			return err
		}
		r.length += n
	}
	r.plain = true
	r.anchor = r.result.Tokens[len(r.result.Tokens)-1]
	return nil
}

// known commits a chain of known tokens after a round.
func (r *course) known(ctx context.Context) error {
	g := &r.group[0]
	*g = engine.Group{Sequence: r.seq, Rows: 2 + r.random.IntN(150), Commit: true}
	if !r.plain {
		g.Path = slices.Clone(r.path)
	}
	r.step = engine.Step{Groups: r.group[:], Rows: r.step.Rows[:0]}
	if r.kept > 0 {
		g.Kept = engine.KeptRange{Position: int32(r.length - r.kept), Rows: int32(r.kept)}
		r.step.Features = engine.FeatureRawBF16
		r.kept = 0
	}
	for i := range g.Rows {
		r.step.Rows = append(r.step.Rows, engine.Row{
			Token: int32(r.random.IntN(vocab)), Position: int32(r.length + i), Parent: int32(i) - 1, Mask: -1,
			Want: engine.WantToken,
		})
	}
	if err := r.forward(ctx); err != nil {
		return err
	}
	r.length += g.Rows
	r.plain, r.anchor = true, r.result.Tokens[g.Rows-1]
	return nil
}

func (r *course) forward(ctx context.Context) error {
	if err := r.e.Step(ctx, &r.step, &r.result); err != nil {
		return err
	}
	if r.result.BatchRows > len(r.step.Rows) {
		r.joined++
	}
	r.record = append(r.record,
		fmt.Sprint(r.result.Tokens, r.result.Logprobs, r.result.Scores, r.result.Logits, r.result.Features))
	for i := range r.step.Rows {
		if row := r.step.Rows[i]; row.Want&engine.WantTop != 0 {
			at := i * r.result.TopStride
			r.record = append(r.record,
				fmt.Sprint(r.result.TopIDs[at:at+int(row.TopK)], r.result.TopLogprobs[at:at+int(row.TopK)]))
		}
	}
	return nil
}

// round is one step of a plain row, a chain or a tree, after the commit of the path before.
func (r *course) round(ctx context.Context) error {
	old := r.step
	r.step = engine.Step{Groups: r.group[:], Rows: old.Rows[:0], Masks: old.Masks[:0]}
	g := &r.group[0]
	*g = engine.Group{Sequence: r.seq}
	if !r.plain {
		g.Path = slices.Clone(r.path)
	}
	n := 1
	if r.random.IntN(2) == 0 {
		n += r.random.IntN(9)
	}
	wants := engine.WantToken
	if r.random.IntN(2) == 0 {
		wants |= engine.WantTop
	}
	switch r.random.IntN(3) {
	case 0:
		wants |= engine.WantFeatures
		r.step.Features = engine.FeatureRawBF16
	case 1:
		if n == 1 {
			wants |= engine.WantKeep
		}
	}
	if r.kept > 0 && (r.kept == engine.KeptRows || r.random.IntN(4) == 0) {
		g.Kept = engine.KeptRange{Position: int32(r.length - r.kept), Rows: int32(r.kept)}
		r.step.Features = engine.FeatureRawBF16
		if r.random.IntN(3) == 0 { // in a step of their own
			if err := r.e.Step(ctx, &engine.Step{Groups: []engine.Group{*g}, Features: r.step.Features}, &r.result); err != nil {
				return err
			}
			r.record = append(r.record, string(r.result.Features))
			g.Path, g.Kept = nil, engine.KeptRange{}
		}
		r.kept = 0
	}
	mask := int32(-1)
	if r.random.IntN(3) == 0 {
		mask, r.step.NMasks = 0, 1
		r.step.Masks = append(r.step.Masks, 1<<5|r.random.Uint32(), r.random.Uint32())
	}
	for i := range n {
		row := engine.Row{Token: r.anchor, Position: int32(r.length), Parent: -1, Want: wants, TopK: 3, Mask: mask}
		if i > 0 {
			row.Parent = int32(r.random.IntN(i))
			row.Token, row.Position = int32(r.random.IntN(vocab)), r.step.Rows[row.Parent].Position+1
		}
		r.step.Rows = append(r.step.Rows, row)
	}
	g.Rows, g.Commit = n, n == 1
	if err := r.forward(ctx); err != nil {
		return err
	}
	// A random path from the root.
	r.path, r.plain = append(r.path[:0], 0), n == 1
	for {
		last := r.path[len(r.path)-1]
		child := slices.IndexFunc(r.step.Rows, func(row engine.Row) bool { return row.Parent == last })
		if child < 0 || r.random.IntN(4) == 0 {
			break
		}
		r.path = append(r.path, int32(child))
	}
	r.length += len(r.path)
	if wants&engine.WantKeep != 0 {
		r.kept++
	} else {
		r.kept = 0
	}
	r.anchor = r.result.Tokens[r.path[len(r.path)-1]]
	return nil
}

// look uses the calls that see a sequence as it is.
func (r *course) look(ctx context.Context) error {
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
		r := &course{e: engine, random: rand.New(rand.NewPCG(7, uint64(i)))}
		if err := r.run(t.Context(), rounds); err != nil {
			t.Fatal(err)
		}
		alone[i] = r.record
	}
	joint := with(fake(t, enginefake.Options{StepDelay: 200 * time.Microsecond}), free)
	var wait sync.WaitGroup
	var joined atomic.Int64
	for i := range requests {
		wait.Go(func() {
			r := &course{e: joint, random: rand.New(rand.NewPCG(7, uint64(i)))}
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
		t.Errorf("only %d of %d steps were joint", joined.Load(), requests*rounds)
	}
}

// TestCancelOfOne: a request that is cancelled while others run leaves at once, and takes nobody with it.
func TestCancelOfOne(t *testing.T) {
	joint := with(fake(t, enginefake.Options{StepDelay: 2 * time.Millisecond}), free)
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	for i := range 4 {
		wait.Go(func() {
			r := &course{e: joint, random: rand.New(rand.NewPCG(9, uint64(i)))}
			if err := r.run(t.Context(), 60); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		})
	}
	wait.Go(func() {
		r := &course{e: joint, random: rand.New(rand.NewPCG(9, 100))}
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

// TestOnlyWhatGains: steps are joined while rows are nearly free and left alone where every row costs what it costs
// alone.
func TestOnlyWhatGains(t *testing.T) {
	memory := with(fake(t, enginefake.Options{}),
		cost(func(rows int) time.Duration { return time.Duration(1000 + 10*rows) }))
	linear := with(fake(t, enginefake.Options{}), cost(func(rows int) time.Duration { return time.Duration(100 * rows) }))
	if !memory.gains(0, 1, 3) || !memory.gains(0, 8, 8) {
		t.Error("rows that are nearly free are not joined")
	}
	if linear.gains(0, 8, 8) || linear.gains(0, 1, 1) {
		t.Error("rows that cost what they cost alone are joined")
	}
}

// newPart is a step that has just come.
func newPart(t *testing.T, e *Engine, step *engine.Step) *part {
	now, p := time.Now(), e.queue.Take()
	p.ctx, p.step, p.result, p.class = t.Context(), step, &engine.StepResult{}, e.classOf(step)
	p.came, p.served = now, now
	return p
}

// queued runs steps as if all had come before the first of them could begin, and returns their parts.
func queued(t *testing.T, e *Engine, steps ...*engine.Step) []*part {
	t.Helper()
	var parts []*part
	for _, step := range steps {
		p := newPart(t, e, step)
		e.queue.Enter(p)
		parts = append(parts, p)
	}
	if !e.queue.Lead(parts[0]) {
		t.Fatal("somebody leads an engine that nobody uses")
	}
	for lead := 0; lead < len(parts); {
		e.lead(parts[lead])
		for lead++; lead < len(parts) && !<-e.queue.Turn(parts[lead]); lead++ {
		}
	}
	return parts
}

// newStep is a step of rows at the beginning of a new sequence, all of them children of its tip.
func newStep(t *testing.T, e engine.Target, rows int) *engine.Step {
	t.Helper()
	q, err := e.NewSequence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	step := &engine.Step{Groups: []engine.Group{{Sequence: q, Rows: rows}}}
	for range rows {
		step.Rows = append(step.Rows, engine.Row{Parent: -1, Want: engine.WantToken, Mask: -1})
	}
	return step
}

// TestRowsOfJointSteps: steps are joined up to the most rows of a step, which are more than those of a tree; prompt
// pieces fill up what rounds leave.
func TestRowsOfJointSteps(t *testing.T) {
	e := with(fake(t, enginefake.Options{}), free)
	var steps []*engine.Step
	for range 4 {
		steps = append(steps, newStep(t, e, 20))
	}
	piece := newStep(t, e, 1)
	piece.Groups[0].Kind, piece.Groups[0].Commit = engine.KindPrompt, true
	steps = append(steps, piece, newStep(t, e, 4))
	for i, p := range queued(t, e, steps...) {
		if p.err != nil {
			t.Fatal(p.err)
		}
		// Three of 20 and the last one, then the fourth of 20 and the piece.
		if want := []int{64, 64, 64, 21, 21, 64}[i]; p.result.BatchRows != want {
			t.Errorf("step %d ran with %d rows, want %d", i, p.result.BatchRows, want)
		}
		if want := []int{0, 0, 0, 1, 1, 0}[i]; p.result.PromptRows != want {
			t.Errorf("step %d ran with %d rows of prompts, want %d", i, p.result.PromptRows, want)
		}
		if want := []int{4, 4, 4, 1, 1, 4}[i]; p.result.BatchRounds != want {
			t.Errorf("step %d ran with %d rounds, want %d", i, p.result.BatchRounds, want)
		}
	}
}

// TestKeptRowsCount: features that are read from before count against the rows of a joint step.
func TestKeptRowsCount(t *testing.T) {
	e := with(fake(t, enginefake.Options{}), free)
	var steps []*engine.Step
	for range 3 {
		prompt := newStep(t, e, 25)
		prompt.Groups[0].Commit = true
		for i := range prompt.Rows {
			prompt.Rows[i].Position, prompt.Rows[i].Parent, prompt.Rows[i].Want = int32(i), int32(i)-1, engine.WantKeep
		}
		if err := e.Step(t.Context(), prompt, &engine.StepResult{}); err != nil {
			t.Fatal(err)
		}
		g := engine.Group{Sequence: prompt.Groups[0].Sequence, Rows: 1, Kept: engine.KeptRange{Rows: 25}}
		steps = append(steps, &engine.Step{
			Groups: []engine.Group{g}, Features: engine.FeatureRawBF16,
			Rows: []engine.Row{{Position: 25, Parent: -1, Want: engine.WantFeatures, Mask: -1}},
		})
	}
	for i, p := range queued(t, e, steps...) {
		if want := []int{2, 2, 1}[i]; p.err != nil || p.result.BatchRows != want {
			t.Errorf("step %d ran with %d rows: %v", i, p.result.BatchRows, p.err)
		}
	}
}

// TestOnlyTheOneAtFaultFails: a step that the engine refuses takes no other with it.
func TestOnlyTheOneAtFaultFails(t *testing.T) {
	e := with(fake(t, enginefake.Options{}), free)
	steps := []*engine.Step{newStep(t, e, 3), newStep(t, e, 2), newStep(t, e, 3)}
	steps[1].Rows[1].Token = vocab
	parts := queued(t, e, steps...)
	if err := parts[1].err; rpcerr.Code(err) != codes.InvalidArgument ||
		!strings.HasPrefix(err.Error(), "groups[0].rows[1].token") {
		t.Errorf("the bad step: %v", err)
	}
	for _, i := range []int{0, 2} {
		if p := parts[i]; p.err != nil || len(p.result.Tokens) != 3 {
			t.Errorf("step %d: %d tokens, %v", i, len(p.result.Tokens), p.err)
		}
	}
}

// TestStepAllocations: joining steps allocates nothing.
func TestStepAllocations(t *testing.T) {
	if racetest.Enabled {
		t.Skip("the race detector allocates")
	}
	e := with(&nothing{Target: fake(t, enginefake.Options{})}, free)
	steps := []*engine.Step{newStep(t, e, 3), newStep(t, e, 2)}
	var cuts []cut
	for _, step := range steps {
		cuts = append(cuts, cut{newPart(t, e, step), 0, len(step.Rows)})
	}
	n := testing.AllocsPerRun(100, func() {
		if err := e.runCuts(e.flight, cuts, nil); err != nil {
			t.Fatal(err)
		}
	})
	if n > 1 { // the context that is not cancelled
		t.Errorf("%v allocations", n)
	}
}

// nothing is an engine whose steps compute nothing.
type nothing struct{ engine.Target }

func (*nothing) Step(context.Context, *engine.Step, *engine.StepResult) error { return nil }
