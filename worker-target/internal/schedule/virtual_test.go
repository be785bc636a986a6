package schedule

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// In virtual time a step takes stepTime and rowTime a row, exactly as the costs say.
const (
	stepTime = 2 * time.Millisecond
	rowTime  = 200 * time.Microsecond
)

type exact struct{}

func (exact) Verify(rows, _ int) time.Duration { return stepTime + time.Duration(rows)*rowTime }
func (exact) Hop() time.Duration               { return 0 }
func (e exact) Prompt(rows, _ int, withRounds bool) time.Duration {
	if withRounds {
		return time.Duration(rows) * rowTime
	}
	return e.Verify(rows, 0)
}
func (exact) ObservePrompt(int, int, bool, time.Duration) {}

// watched is an engine whose steps are looked at.
type watched struct {
	engine.Target
	look func(*engine.Step)
}

func (w *watched) Step(ctx context.Context, s *engine.Step, r *engine.StepResult) error {
	w.look(s)
	return w.Target.Step(ctx, s, r)
}

// paced is an engine of virtual time whose steps are looked at.
func paced(t *testing.T, o Options, look func(*engine.Step)) *Engine {
	t.Helper()
	o.Costs = exact{}
	e := fakeOf(t, enginefake.Options{StepDelay: stepTime, RowDelay: rowTime}, widePieces)
	if look != nil {
		e = &watched{e, look}
	}
	return New(e, o)
}

// newCourse is a request of many pieces and rounds.
func newCourse(e engine.Target, seed uint64) *course {
	return &course{
		e: e, random: rand.New(rand.NewPCG(11, seed)), piece: widePieces, pause: 4 * time.Millisecond,
		prompt: func(r *rand.Rand) int { return 1 + r.IntN([]int{30, 300, 1500}[r.IntN(3)]) },
	}
}

// TestCutsAlike: requests get what each gets alone although their pieces run in several steps beside rounds of others,
// whatever their rows want. Pieces are cut at multiples of 64 rows only.
func TestCutsAlike(t *testing.T) {
	const requests, rounds = 12, 40
	var alone [requests][]string
	for i := range requests {
		r := newCourse(fakeOf(t, enginefake.Options{}, widePieces), uint64(i))
		r.pause = 0
		if err := r.run(t.Context(), rounds); err != nil {
			t.Fatal(err)
		}
		alone[i] = r.record
	}
	racetest.Bubble(t, func(t *testing.T) {
		mixed, cuts := 0, 0
		e := paced(t, Options{MaxTokenGap: 40 * time.Millisecond}, func(s *engine.Step) {
			kinds := map[engine.GroupKind]bool{}
			for _, g := range s.Groups {
				kinds[g.Kind] = true
				if g.Kind == engine.KindPrompt && g.Rows == promptUnit {
					cuts++
				}
			}
			if len(kinds) > 1 {
				mixed++
			}
		})
		var wait sync.WaitGroup
		for i := range requests {
			wait.Go(func() {
				time.Sleep(time.Duration(i) * 20 * time.Millisecond)
				r := newCourse(e.For(Request{Key: uint64(i % 3), Priority: i % 2}), uint64(i))
				// The course is the one above: only time differs.
				r.pause = 0
				if err := r.run(t.Context(), rounds); err != nil {
					t.Errorf("request %d after %d steps: %v", i, len(r.record), err)
					return
				}
				if !slices.Equal(r.record, alone[i]) {
					at := 0
					for at < min(len(r.record), len(alone[i])) && r.record[at] == alone[i][at] {
						at++
					}
					t.Errorf("request %d differs at entry %d of %d", i, at, len(alone[i]))
				}
			})
		}
		wait.Wait()
		if mixed < 10 || cuts < 10 {
			t.Errorf("%d steps had both kinds of rows, %d pieces were cut", mixed, cuts)
		}
	})
}

// decodeRows decodes plain rows until ctx ends, and calls each with the time since the row before.
func decodeRows(
	ctx context.Context, t *testing.T, e engine.Target, pause func() time.Duration, each func(gap time.Duration),
) {
	seq, err := e.NewSequence(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = e.FreeSequence(ctx, seq) }()
	var result engine.StepResult
	last := time.Time{}
	for i := int32(0); ctx.Err() == nil; i++ {
		step := &engine.Step{
			Groups: []engine.Group{{Sequence: seq, Rows: 1, Commit: true}},
			Rows:   []engine.Row{{Token: i % vocab, Position: i, Parent: -1, Want: engine.WantToken, Mask: -1}},
		}
		if err := e.Step(ctx, step, &result); err != nil {
			if ctx.Err() == nil {
				t.Error(err)
			}
			return
		}
		if !last.IsZero() {
			each(time.Since(last))
		}
		last = time.Now()
		if d := pause(); d > 0 {
			time.Sleep(d)
		}
	}
}

// readPrompt reads a prompt in pieces of at most widePieces rows.
func readPrompt(ctx context.Context, e engine.Target, rows int) error {
	return readPieces(ctx, e, rows, func(int) {})
}

// readPieces is readPrompt; each is called after every piece.
func readPieces(ctx context.Context, e engine.Target, rows int, each func(rows int)) error {
	seq, err := e.NewSequence(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = e.FreeSequence(ctx, seq) }()
	var result engine.StepResult
	for at := 0; at < rows; {
		n := min(widePieces, rows-at)
		if err := e.Step(ctx, pieceOf(seq, at, n), &result); err != nil {
			return err
		}
		at += n
		each(n)
	}
	return nil
}

// pieceOf is a piece of a prompt, n rows from a position on.
func pieceOf(seq engine.Sequence, at, n int) *engine.Step {
	step := &engine.Step{Groups: []engine.Group{{Sequence: seq, Rows: n, Kind: engine.KindPrompt, Commit: true}}}
	for i := range n {
		step.Rows = append(step.Rows, engine.Row{
			Token: int32(i % vocab), Position: int32(at + i), Parent: int32(i) - 1, Mask: -1,
		})
	}
	return step
}

// TestGap: no running stream waits longer between two tokens than the setting while prompts are read, whatever the
// streams' own pauses are; prompts go on all the same.
func TestGap(t *testing.T) {
	for name, c := range map[string]struct {
		setting time.Duration
		streams int
		most    time.Duration
	}{
		"set":          {60 * time.Millisecond, 3, 60 * time.Millisecond},
		"wide":         {150 * time.Millisecond, 6, 150 * time.Millisecond},
		"default":      {0, 2, LeastGap},
		"of many rows": {0, 12, LeastGap},
	} {
		t.Run(name, func(t *testing.T) {
			racetest.Bubble(t, func(t *testing.T) {
				e := paced(t, Options{MaxTokenGap: c.setting}, nil)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var worst atomic.Int64
				var wait sync.WaitGroup
				for i := range c.streams {
					random := rand.New(rand.NewPCG(5, uint64(i)))
					pause := func() time.Duration { return time.Duration(random.Int64N(int64(5 * time.Millisecond))) }
					wait.Go(func() {
						decodeRows(ctx, t, e, pause, func(gap time.Duration) {
							for w := worst.Load(); int64(gap) > w && !worst.CompareAndSwap(w, int64(gap)); w = worst.Load() {
							}
						})
					})
				}
				time.Sleep(100 * time.Millisecond)
				before := worst.Load()
				for range 2 {
					if err := readPrompt(ctx, e, 1000); err != nil {
						t.Error(err)
					}
				}
				cancel()
				wait.Wait()
				t.Logf("longest gap %v, %v without prompts", time.Duration(worst.Load()), time.Duration(before))
				if w := time.Duration(worst.Load()); w > c.most {
					t.Errorf("a stream waited %v, the setting is %v", w, c.most)
				}
			})
		})
	}
}

// TestGapOfUnsteadySteps: where one step in twenty takes half as long again, the cuts become so small that 99 of 100
// gaps are within the setting all the same.
func TestGapOfUnsteadySteps(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		const setting = 80 * time.Millisecond
		random := rand.New(rand.NewPCG(3, 3))
		e := paced(t, Options{MaxTokenGap: setting}, func(s *engine.Step) {
			if random.IntN(20) == 0 {
				time.Sleep((stepTime + time.Duration(len(s.Rows))*rowTime) / 2)
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var gaps, late int
		var wait sync.WaitGroup
		wait.Go(func() {
			decodeRows(ctx, t, e, func() time.Duration { return 0 }, func(gap time.Duration) {
				gaps++
				if gap > setting {
					late++
				}
			})
		})
		time.Sleep(10 * time.Millisecond)
		if err := readPrompt(ctx, e, 20_000); err != nil {
			t.Error(err)
		}
		gaps, late = 0, 0
		if err := readPrompt(ctx, e, 30_000); err != nil {
			t.Error(err)
		}
		t.Logf("%d of %d gaps are too long, slack %.2f", late, gaps, e.slack)
		if gaps < 100 || 100*late > gaps {
			t.Errorf("%d of %d gaps are too long", late, gaps)
		}
		cancel()
		wait.Wait()
	})
}

// TestSmallestCut: where not even the smallest cut fits into the gap, a prompt goes on all the same, and streams wait
// no longer than for that cut.
func TestSmallestCut(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		e := paced(t, Options{MaxTokenGap: 5 * time.Millisecond}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wait sync.WaitGroup
		tokens := 0
		wait.Go(func() {
			decodeRows(ctx, t, e, func() time.Duration { return 0 }, func(gap time.Duration) {
				tokens++
				if most := 2*stepTime + (promptUnit+2)*rowTime; gap > most {
					t.Errorf("a stream waited %v, the smallest cut takes %v", gap, most)
				}
			})
		})
		time.Sleep(10 * time.Millisecond)
		start := time.Now()
		if err := readPrompt(ctx, e, 512); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > 400*time.Millisecond {
			t.Errorf("512 rows took %v", d)
		}
		if tokens < 8 {
			t.Errorf("%d tokens", tokens)
		}
		seq, err := e.NewSequence(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var result engine.StepResult
		if err := e.Step(ctx, pieceOf(seq, 0, 256), &result); err != nil {
			t.Error(err)
		}
		if d, want := time.Duration(result.EngineNanos), 4*stepTime+256*rowTime; d < want {
			t.Errorf("the engine took %v for a piece in 4 cuts, want at least %v", d, want)
		}
		cancel()
		wait.Wait()
	})
}

// TestReplay: where streams leave hardly any room, what a request had elsewhere is read nearly twice as fast as a new
// prompt, and before one that came earlier. Streams wait up to twice as long as they may otherwise, and for the rows of
// streams that joined the step after its cut was chosen.
func TestReplay(t *testing.T) {
	const gap, rows, streams = 4 * time.Millisecond, 256, 4
	read := func(replay bool) (took, before, worst time.Duration) {
		racetest.Bubble(t, func(t *testing.T) {
			e := paced(t, Options{MaxTokenGap: gap}, nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var wait sync.WaitGroup
			var longest [streams]time.Duration
			for i := range longest {
				wait.Go(func() {
					decodeRows(ctx, t, e, func() time.Duration { return 0 }, func(gap time.Duration) {
						longest[i] = max(longest[i], gap)
					})
				})
			}
			time.Sleep(100 * time.Millisecond)
			other := make(chan time.Duration, 1)
			go func() { other <- readAsDecoded(ctx, t, e.For(Request{Prompt: rows / 2}), rows/2) }()
			time.Sleep(time.Millisecond)
			took = readAsDecoded(ctx, t, e.For(Request{Prompt: rows, Replay: replay}), rows)
			before = <-other
			cancel()
			wait.Wait()
			worst = slices.Max(longest[:])
		})
		return took, before, worst
	}
	took, other, worst := read(true)
	slow, first, usual := read(false)
	t.Logf("%d rows in %v as a replay, %v as a prompt; the prompt beside them in %v and %v; gaps of %v and %v",
		rows, took, slow, other, first, worst, usual)
	if took > slow*5/8 || other < took || first > slow || max(worst, usual) > 2*gap+streams*rowTime {
		t.Error("a replay waits too long, or makes others wait")
	}
}

// readAsDecoded reads a prompt that has the bits of decoding, in one piece, and returns how long it took.
func readAsDecoded(ctx context.Context, t *testing.T, e engine.Target, rows int) time.Duration {
	start := time.Now()
	seq, err := e.NewSequence(ctx)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer func() { _ = e.FreeSequence(ctx, seq) }()
	step := pieceOf(seq, 0, rows)
	step.Groups[0].Kind = engine.KindDecode
	if err := e.Step(ctx, step, &engine.StepResult{}); err != nil {
		t.Error(err)
	}
	return time.Since(start)
}

// TestSlowReader: a stream that asks for no steps, because its client does not read, holds up nobody: others decode at
// once, and a second later prompts run in whole pieces.
func TestSlowReader(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		widest := 0
		e := paced(t, Options{}, func(s *engine.Step) { widest = max(widest, len(s.Rows)) })
		ctx, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		wait.Go(func() {
			decodeRows(ctx, t, e, func() time.Duration { <-ctx.Done(); return 0 }, func(time.Duration) {})
		})
		time.Sleep(10 * time.Millisecond)
		if err := readPrompt(ctx, e, 512); err != nil {
			t.Error(err)
		}
		if widest >= widePieces {
			t.Errorf("a step of %d rows beside a stream that ran a moment ago", widest)
		}
		time.Sleep(streamMemory)
		start := time.Now()
		if err := readPrompt(ctx, e, 512); err != nil {
			t.Error(err)
		}
		if d, want := time.Since(start), 2*(stepTime+widePieces*rowTime); d != want || widest != widePieces {
			t.Errorf("512 rows took %v in steps of up to %d rows, want %v", d, widest, want)
		}
		cancel()
		wait.Wait()
	})
}

// TestFairShares: keys have the same share of the rows of prompts, however many requests they have.
func TestFairShares(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		e := paced(t, Options{}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var rows, before [3]atomic.Int64
		var wait sync.WaitGroup
		for key, requests := range []int{1, 2, 6} {
			for range requests {
				wait.Go(func() {
					if key == 1 { // what it did not use before it came is not made up for
						time.Sleep(2 * time.Second)
						for i := range rows {
							before[i].Store(rows[i].Load())
						}
					}
					const long = 1 << 15 // more than is read in the time
					view := e.For(Request{Key: uint64(key), Prompt: long})
					err := readPieces(ctx, view, long, func(n int) { rows[key].Add(int64(n)) })
					if ctx.Err() == nil {
						t.Error(err)
					}
				})
			}
		}
		wait.Wait()
		total := int64(0)
		for i := range rows {
			rows[i].Add(-before[i].Load())
			total += rows[i].Load()
		}
		for i := range rows {
			if share := float64(rows[i].Load()) / float64(total); share < 0.9/3 || share > 1.1/3 {
				t.Errorf("key %d has %.3f of %d rows", i, share, total)
			}
		}
	})
}

// TestPriority: waiting prompts of a higher priority are read first.
func TestPriority(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		e := paced(t, Options{}, nil)
		var mu sync.Mutex
		var order []int
		var wait sync.WaitGroup
		for _, priority := range []int{5, 2, 9, 0, 7} {
			wait.Go(func() {
				r := Request{Key: uint64(priority), Priority: priority, Prompt: 700}
				if err := readPrompt(t.Context(), e.For(r), 700); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, priority)
			})
			time.Sleep(time.Millisecond) // the first one has the engine already
		}
		wait.Wait()
		if !slices.Equal(order, []int{9, 7, 5, 2, 0}) {
			t.Errorf("read in the order %v", order)
		}
	})
}

// TestShortestFirst: of the prompts of a key the shortest is read first, but none waits for ever.
func TestShortestFirst(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		e := paced(t, Options{}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		alone := (stepTime + widePieces*rowTime) * 2000 / widePieces
		var wait sync.WaitGroup
		var long time.Duration
		wait.Go(func() {
			if err := readPrompt(ctx, e.For(Request{Prompt: 2000}), 2000); err != nil {
				t.Error(err)
			}
			long = time.Since(start)
			cancel()
		})
		time.Sleep(time.Millisecond)
		var short time.Duration
		for i := range 4 { // more than the machine can read
			wait.Go(func() {
				for ctx.Err() == nil {
					begin := time.Now()
					if readPrompt(ctx, e.For(Request{Prompt: 250}), 250) == nil && i == 0 && short == 0 {
						short = time.Since(begin)
					}
				}
			})
		}
		wait.Wait()
		if short > alone {
			t.Errorf("a short prompt waited %v, the long one takes %v alone", short, alone)
		}
		if long > 6*alone {
			t.Errorf("the long prompt waited %v, it takes %v alone", long, alone)
		}
	})
}

// TestCancelAnywhere: a request that is cancelled at any moment ends at once, takes nobody with it, and leaves its
// sequence with whole cuts and usable.
func TestCancelAnywhere(t *testing.T) {
	var alone [3][]string
	for i := range alone {
		r := newCourse(fakeOf(t, enginefake.Options{}, widePieces), uint64(i))
		r.pause = 0
		if err := r.run(t.Context(), 20); err != nil {
			t.Fatal(err)
		}
		alone[i] = r.record
	}
	between := 0
	for at := time.Duration(0); at < 250*time.Millisecond; at += 3100 * time.Microsecond {
		racetest.Bubble(t, func(t *testing.T) {
			e := paced(t, Options{MaxTokenGap: 40 * time.Millisecond}, nil)
			seq, err := e.NewSequence(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var wait sync.WaitGroup
			for i := range alone {
				wait.Go(func() {
					r := newCourse(e, uint64(i))
					r.pause = 0
					if err := r.run(t.Context(), 20); err != nil || !slices.Equal(r.record, alone[i]) {
						t.Errorf("cancelled at %v: request %d: %v", at, i, err)
					}
				})
			}
			wait.Go(func() {
				done := 0
				for {
					var result engine.StepResult
					err := e.Step(ctx, pieceOf(seq, done, 200), &result)
					if err == nil {
						done += 200
						continue
					}
					if rpcerr.Code(err) != codes.Canceled && !errors.Is(err, context.Canceled) {
						t.Errorf("cancelled at %v: %v", at, err)
					}
					n, err := e.SequenceLength(t.Context(), seq)
					if err != nil {
						return // cancelled inside a step of its own: broken, as the engine says
					}
					if (n-done)%promptUnit != 0 {
						t.Errorf("cancelled at %v: %d of 200 rows are committed", at, n-done)
					}
					if n > done {
						between++
					}
					if err := e.Step(t.Context(), pieceOf(seq, n, 3), &result); err != nil {
						t.Errorf("cancelled at %v: the sequence is of no use: %v", at, err)
					}
					return
				}
			})
			time.Sleep(at)
			cancel()
			wait.Wait()
		})
	}
	if between == 0 {
		t.Error("no piece was cancelled between two cuts")
	}
}

// TestFaultOfACut: a piece whose later rows the engine refuses fails alone, though its first cut ran with others.
func TestFaultOfACut(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		e := paced(t, Options{MaxTokenGap: 30 * time.Millisecond}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		for range 3 {
			wait.Go(func() { decodeRows(ctx, t, e, func() time.Duration { return 0 }, func(time.Duration) {}) })
		}
		time.Sleep(20 * time.Millisecond)
		wait.Go(func() {
			if err := readPrompt(t.Context(), e, 1000); err != nil {
				t.Error(err)
			}
		})
		seq, err := e.NewSequence(ctx)
		if err != nil {
			t.Fatal(err)
		}
		bad := pieceOf(seq, 0, 200)
		bad.Rows[150].Token = vocab
		if err := e.Step(ctx, bad, &engine.StepResult{}); rpcerr.Code(err) != codes.InvalidArgument {
			t.Errorf("the bad piece: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
		cancel()
		wait.Wait()
	})
}
