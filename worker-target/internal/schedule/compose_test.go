package schedule

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
)

// bound is an engine whose steps take 2 ms and 200 µs a row, as exact says.
func bound(t *testing.T, gap time.Duration) *Engine {
	t.Helper()
	return New(fakeOf(t, enginefake.Options{}, widePieces), Options{Costs: exact{}, MaxTokenGap: gap})
}

// come queues a step of a request as if it came some time ago.
func come(t *testing.T, e *Engine, step *engine.Step, ago time.Duration) *part {
	t.Helper()
	p := newPart(t, e, step)
	p.came = p.came.Add(-ago)
	p.served = p.came
	e.queue.Enter(p)
	if n := len(e.queue.Waiting); p.class == piece {
		e.keys.enter(p.key(), e.queue.Waiting[:n-1])
	}
	return p
}

// newPiece is a piece of a new sequence; last makes its last row choose a token.
func newPiece(t *testing.T, e *Engine, rows int, last bool) *engine.Step {
	t.Helper()
	q, err := e.NewSequence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	step := pieceOf(q, 0, rows)
	if last {
		step.Rows[rows-1].Want = engine.WantToken
	}
	return step
}

// composed is what a step has: rows of rounds, and of each piece.
func composed(e *Engine, leader *part) (rounds int, pieces []int) {
	e.compose(leader, time.Now())
	for _, c := range e.flight.mix.cuts {
		if c.p.class == piece {
			pieces = append(pieces, c.n)
		}
	}
	return e.flight.mix.rounds, pieces
}

// TestSmallestCutWaits: a piece for which there is no room waits as long as a stream may, then gets its smallest cut.
// Between two cuts its request may leave.
func TestSmallestCutWaits(t *testing.T) {
	e := bound(t, 5*time.Millisecond)
	r := come(t, e, newStep(t, e, 1), 0)
	e.streams[r.step.Groups[0].Sequence] = stream{ended: r.came}
	p := come(t, e, newPiece(t, e, 200, true), 0)
	if rounds, pieces := composed(e, r); rounds != 1 || len(pieces) != 0 {
		t.Errorf("a step of %d rows and pieces of %v", rounds, pieces)
	}
	e.queue.Enter(r)
	p.served = p.served.Add(-5 * time.Millisecond)
	if rounds, pieces := composed(e, r); rounds != 1 || len(pieces) != 1 || pieces[0] != promptUnit {
		t.Errorf("a step of %d rows and pieces of %v", rounds, pieces)
	}
	if e.leave(p) {
		t.Error("a piece that is in work was left")
	}
	e.run(r)
	if r.err != nil || p.err != nil || p.done != promptUnit || !r.over || p.over {
		t.Fatalf("%v, %v: %d rows ran", r.err, p.err, p.done)
	}
	if !e.leave(p) {
		t.Error("a piece that waits for its next cut was not left")
	}
}

// TestRoom: a step may take what is left of the gap of each running stream, of those that are not in it less their own
// step, and what a stream paused is made up for to a quarter of its gap.
func TestRoom(t *testing.T) {
	const gap = 100 * time.Millisecond
	own := exact{}.Verify(1, 0)
	for name, c := range map[string]struct {
		queued      bool
		ended, came time.Duration // before now
		want        time.Duration
		bounded     bool
	}{
		"in the step":           {true, 10 * time.Millisecond, 5 * time.Millisecond, gap - 10*time.Millisecond, true},
		"after a long pause":    {true, 900 * time.Millisecond, 10 * time.Millisecond, gap - 10*time.Millisecond - gap/4, true},
		"absent":                {false, 10 * time.Millisecond, 0, gap - 10*time.Millisecond - own, true},
		"absent for longer":     {false, 500 * time.Millisecond, 0, gap - gap/4 - own, true},
		"one that does not ask": {false, 2 * time.Second, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := bound(t, gap)
			step := newStep(t, e, 1)
			now := time.Now()
			e.streams[step.Groups[0].Sequence] = stream{ended: now.Add(-c.ended), own: own}
			if c.queued {
				p := come(t, e, step, 0)
				p.came = now.Add(-c.came)
			}
			p := come(t, e, newPiece(t, e, 8, false), 0)
			e.compose(p, now)
			room, bounded := e.room(now)
			if bounded != c.bounded || bounded && room != c.want {
				t.Errorf("%v, bounded %v; want %v, %v", room, bounded, c.want, c.bounded)
			}
		})
	}
}

// TestStreamsBegin: the last piece of a prompt, which chooses a token, begins a stream; others do not.
func TestStreamsBegin(t *testing.T) {
	for _, last := range []bool{false, true} {
		e := bound(t, 0)
		p := come(t, e, newPiece(t, e, 100, last), 0)
		e.compose(p, time.Now())
		e.run(p)
		if n := len(e.streams); p.err != nil || !p.over || n != map[bool]int{true: 1}[last] {
			t.Errorf("last %v: %d streams, %v", last, n, p.err)
		}
		if err := e.FreeSequence(t.Context(), p.step.Groups[0].Sequence); err != nil || len(e.streams) != 0 {
			t.Errorf("%d streams of freed sequences, %v", len(e.streams), err)
		}
	}
}

// TestPromptsTogether: pieces of several prompts share a step where that costs clearly less.
func TestPromptsTogether(t *testing.T) {
	for name, c := range map[string]struct {
		costs Costs
		want  int
	}{
		"linear":        {cost(func(rows int) time.Duration { return time.Duration(rows) * time.Millisecond }), 1},
		"memory bound":  {cost(func(rows int) time.Duration { return time.Second + time.Duration(rows) }), 2},
		"not known yet": {free, 2},
	} {
		t.Run(name, func(t *testing.T) {
			e := New(fakeOf(t, enginefake.Options{}, widePieces), Options{Costs: c.costs})
			p := come(t, e, newPiece(t, e, 100, false), 0)
			come(t, e, newPiece(t, e, 100, false), 0)
			come(t, e, newPiece(t, e, 100, false), 0) // of which 56 would fit, fewer than a cut
			if _, pieces := composed(e, p); len(pieces) != c.want {
				t.Errorf("pieces of %v rows", pieces)
			}
		})
	}
}

// TestSlack: the slack rises with steps that take longer than planned, falls again over a hundred that do not, and
// stays within its bounds.
func TestSlack(t *testing.T) {
	e := bound(t, 0)
	const expected = 10 * time.Millisecond
	late := func() { e.observeSlack(10*expected, expected) }
	late()
	late()
	if e.slack != leastSlack+2*slackUp {
		t.Errorf("%v after two late steps", e.slack)
	}
	for range 99 {
		e.observeSlack(expected, expected)
	}
	if d := e.slack - leastSlack - slackUp; d < -1e-9 || d > 1e-9 {
		t.Errorf("%v after 99 steps as expected", e.slack)
	}
	for range 300 {
		e.observeSlack(expected, expected)
	}
	if e.slack != leastSlack {
		t.Errorf("%v after many steps as expected", e.slack)
	}
	for range 100 {
		late()
	}
	if e.slack != mostSlack {
		t.Errorf("%v after many late steps", e.slack)
	}
	e.observeSlack(time.Second, 0) // nothing was expected
	if e.slack != mostSlack {
		t.Errorf("%v after a step of unknown cost", e.slack)
	}
}

// TestJoinHandsHiddenRowsOn: the rows of shards go with their cuts, and only with those of one encoding.
func TestJoinHandsHiddenRowsOn(t *testing.T) {
	shard := func(rows int, first byte, encoding engine.HiddenEncoding) *part {
		s := &engine.Step{Groups: []engine.Group{{Rows: rows}}, Rows: make([]engine.Row, rows), Hidden: encoding}
		for i := range rows {
			s.HiddenIn = append(s.HiddenIn, first+byte(i), 100)
			s.Rows[i].Mask = -1
		}
		return &part{step: s, class: piece}
	}
	e := with(fake(t, enginefake.Options{}), free)
	a, b, c := shard(3, 1, engine.HiddenBF16), shard(2, 10, engine.HiddenBF16), shard(1, 20, engine.HiddenF32)
	e.flight.join([]cut{{a, 1, 2}, {b, 0, 2}})
	want := []byte{2, 100, 3, 100, 10, 100, 11, 100}
	if !slices.Equal(e.flight.joint.HiddenIn, want) || e.flight.joint.Hidden != engine.HiddenBF16 {
		t.Errorf("joint rows %v in %d, want %v", e.flight.joint.HiddenIn, e.flight.joint.Hidden, want)
	}
	var m mix
	m.add(a, 3)
	if !m.fits(b, 2, 64) || m.fits(c, 1, 64) {
		t.Error("a part of another encoding of hidden rows joins, or one of the same does not")
	}
	if got := e.classOf(a.step); got == solo {
		t.Error("a step with hidden rows runs alone")
	}
}
