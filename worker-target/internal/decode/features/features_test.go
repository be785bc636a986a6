package features

import (
	"context"
	"testing"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/sequence"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
)

// step is what an engine was asked for: rows, and rows of features that it kept.
type step struct{ rows, kept int }

// fake returns features that hold their position.
type fake struct {
	engine.Target
	steps []step
	short int // bytes that it forgets
}

func (e *fake) Step(_ context.Context, s *engine.Step, r *engine.StepResult) error {
	kept := s.Groups[0].Kept
	e.steps = append(e.steps, step{len(s.Rows), int(kept.Rows)})
	r.Features = r.Features[:0]
	for i := range kept.Rows {
		r.Features = append(r.Features, byte(kept.Position+i), 0)
	}
	for _, row := range s.Rows {
		if row.Want&engine.WantFeatures != 0 {
			r.Features = append(r.Features, byte(row.Position), 1)
		}
	}
	r.Features = r.Features[:max(0, len(r.Features)-e.short)]
	return nil
}

type reader struct{ fed int }

func (r *reader) Fed() { r.fed++ }

// round of so many rows, of which so many are accepted.
type round struct {
	rows, accepted int
	asked          bool
}

// newFeed returns a feed for an engine that returns features of at most widest rows.
func newFeed(widest int) (*Feed, *drafts.Ring, *reader) {
	f, r := New(64), &reader{}
	f.Reset(widest)
	ring := f.Start(&drafts.Capture{Encoding: engine.FeatureFusedBF16, Width: 2}, 0, 0, nil)
	f.Connect(r)
	return f, ring, r
}

func run(t *testing.T, f *Feed, seq *sequence.Sequence, r round) error {
	t.Helper()
	kept, err := f.BeginRound(t.Context(), seq, r.rows, r.asked)
	if err != nil {
		return err
	}
	seq.Begin(engine.KindDecode, f.Encoding(), kept)
	for i := range r.rows {
		seq.Add(engine.Row{Position: int32(seq.Length() + i), Parent: int32(i - 1), Want: f.WantRound()})
	}
	if err := seq.Run(t.Context(), r.rows == 1); err != nil {
		return err
	}
	if err := f.Check(seq.Result().Features()); err != nil {
		return err
	}
	var path []int32
	for i := range r.accepted {
		path = append(path, int32(i))
	}
	seq.Advance(r.accepted)
	f.Take(seq.Result().Features(), path)
	return nil
}

// TestRounds: features come with the rounds that need them, and many at a time from the engine for plain rounds; the
// ring holds each position's own.
func TestRounds(t *testing.T) {
	plain := round{rows: 1, accepted: 1}
	for name, c := range map[string]struct {
		widest int
		rounds []round
		steps  []step
		next   int // end of the ring
	}{
		"asked":             {64, []round{{3, 2, true}, {3, 1, true}}, []step{{3, 0}, {3, 0}}, 3},
		"asked, one row":    {64, []round{{1, 1, true}}, []step{{1, 0}}, 1},
		"plain":             {64, []round{plain, plain, plain}, []step{{1, 0}, {1, 0}, {1, 0}}, 0},
		"plain, then wide":  {64, []round{plain, plain, {3, 2, false}}, []step{{1, 0}, {1, 0}, {3, 2}}, 4},
		"too many at once":  {4, []round{plain, plain, {3, 2, false}}, []step{{1, 0}, {1, 0}, {0, 2}, {3, 0}}, 4},
		"the engine's room": {2, []round{plain, plain, plain, plain}, []step{{1, 0}, {1, 0}, {1, 2}, {1, 0}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			f, ring, reader := newFeed(c.widest)
			e := &fake{}
			var seq sequence.Sequence
			seq.Start(e, 1, 0, 10)
			for _, r := range c.rounds {
				if err := run(t, f, &seq, r); err != nil {
					t.Fatal(err)
				}
			}
			if len(e.steps) != len(c.steps) {
				t.Fatalf("steps %v, want %v", e.steps, c.steps)
			}
			for i := range e.steps {
				if e.steps[i] != c.steps[i] {
					t.Fatalf("steps %v, want %v", e.steps, c.steps)
				}
			}
			if _, next := ring.Span(); next != c.next || (reader.fed > 0) != (next > 0) {
				t.Errorf("the ring ends at %d, want %d; fed %d times", next, c.next, reader.fed)
			}
			// A question needs the ring to end before the anchor.
			if err := f.CatchUp(t.Context(), &seq); err != nil {
				t.Fatal(err)
			}
			first, next := ring.Span()
			data, _, ok := ring.Copy(nil, 0, next)
			if !ok || first != 0 || next != seq.Length() {
				t.Fatalf("the ring holds %d to %d of %d", first, next, seq.Length())
			}
			for i := range next {
				if data[2*i] != byte(i) {
					t.Errorf("position %d has the features of %d", i, data[2*i])
				}
			}
		})
	}
}

// TestOff: without a reader nothing is asked for, and what an engine returns too little of is an error.
func TestOff(t *testing.T) {
	f, _, _ := newFeed(8)
	e := &fake{short: 1}
	var seq sequence.Sequence
	seq.Start(e, 1, 0, 10)
	if err := run(t, f, &seq, round{3, 1, true}); err == nil {
		t.Error("features that lack a byte were taken")
	}
	f.Reset(8)
	seq.Start(e, 1, 0, 10)
	for range 3 {
		if err := run(t, f, &seq, round{3, 1, true}); err != nil || f.On() || f.Encoding() != engine.FeatureNone ||
			f.WantKnown(0) != 0 {
			t.Fatalf("a feed that is off: %v", err)
		}
	}
}

// TestStart: of a long prompt only rows that the ring can hold are captured; a draft that comes late starts at the end
// of the sequence.
func TestStart(t *testing.T) {
	for _, c := range []struct{ length, context, first int }{{0, 10, 0}, {0, 100, 36}, {50, 50, 50}} {
		f := New(64)
		f.Reset(8)
		f.Start(&drafts.Capture{Width: 2}, c.length, c.context, nil)
		f.Connect(&reader{})
		f.BeginKnown()
		if c.first > 0 && f.WantKnown(c.first-1) != 0 || f.WantKnown(c.first) == 0 {
			t.Errorf("%+v: captured from elsewhere", c)
		}
	}
}
