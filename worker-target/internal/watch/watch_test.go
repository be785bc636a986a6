package watch

import (
	"errors"
	"slices"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	anchor  = tandemv1.TokenOrigin_TOKEN_ORIGIN_ANCHOR
	plain   = tandemv1.TokenOrigin_TOKEN_ORIGIN_PLAIN
	draft   = tandemv1.TokenOrigin_TOKEN_ORIGIN_DRAFT
	looked  = tandemv1.TokenOrigin_TOKEN_ORIGIN_LOOKUP
	limited = tandemv1.TokenOrigin_TOKEN_ORIGIN_CONSTRAINT
)

// chain is a tree of the tokens, each the child of the one before.
func chain(tokens ...int32) *ddtree.Tree {
	t := &ddtree.Tree{}
	t.Reset(tokens[0])
	for i, token := range tokens[1:] {
		t.Add(token, int32(i), -1)
	}
	return t
}

// TestOriginsFollowTheFit: what the constraint cuts off and adds moves nodes; each keeps its own origin.
func TestOriginsFollowTheFit(t *testing.T) {
	r := NewRecorder(New())
	tree := chain(1, 2, 3, 4)
	tree.Add(7, 0, -1)
	r.Proposal(tree, draft, 1) // the branch with 7 is lookup's
	tree.Keep([]bool{true, true, false, false, true})
	tree.Add(9, 1, -1)
	tree.Add(5, 3, -1)
	r.Fitted(tree)
	if want := []tandemv1.TokenOrigin{anchor, draft, looked, limited, limited}; !slices.Equal(r.nodes, want) {
		t.Errorf("origins %v, want %v", r.nodes, want)
	}
}

// TestTokensOfRoundsBetween: a round that comes too soon is not described, and its tokens come with the next event.
// What was noted before a gap in the output is dropped.
func TestTokensOfRoundsBetween(t *testing.T) {
	f := New()
	w, err := f.Watch(1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r := NewRecorder(f)
	r.Start(5)
	tree := chain(1, 2, 3)
	round := func(at time.Time, number, index int, path []int32, tokens ...int32) {
		r.Begin(at)
		r.Proposal(tree, draft, 0)
		r.Verified(&Verified{Number: number, Tree: tree, Path: path, Index: index, Tokens: tokens})
		r.Flushed()
	}
	now := time.Now()
	round(now, 1, 0, []int32{0, 1}, 2, 8)
	round(now.Add(time.Millisecond), 2, 2, []int32{0}, 9)
	round(now.Add(time.Second), 3, 3, []int32{0, 1, 2}, 2, 3, 4)
	round(now.Add(time.Second), 4, 20, []int32{0}, 6)
	r.Finish(4)
	var got []*tandemv1.WatchEvent
	for len(w.Events()) > 0 {
		got = append(got, <-w.Events())
	}
	if len(got) != 3 {
		t.Fatalf("%d events, want 3", len(got))
	}
	for i, want := range []struct {
		index   int32
		tokens  []int32
		origins []tandemv1.TokenOrigin
	}{
		{0, []int32{2, 8}, []tandemv1.TokenOrigin{draft, plain}},
		{2, []int32{9, 2, 3, 4}, []tandemv1.TokenOrigin{plain, draft, draft, plain}},
		{20, []int32{6}, []tandemv1.TokenOrigin{plain}},
	} {
		e := got[i]
		if e.OutputIndex != want.index || !slices.Equal(e.Tokens, want.tokens) || !slices.Equal(e.Origins, want.origins) ||
			e.Watch != 5 {
			t.Errorf("event %d: %v, want %+v", i, e, want)
		}
	}
	if got[0].Skipped != 0 || got[1].Skipped != 1 || got[2].Skipped != 1 {
		t.Errorf("skipped %d, %d and %d, want 0, 1 and 1", got[0].Skipped, got[1].Skipped, got[2].Skipped)
	}
	if got[1].Committed != 3 || got[1].Number != 3 || got[2].Kind != tandemv1.WatchKind_WATCH_KIND_END {
		t.Errorf("events %v", got)
	}
}

// TestAllRoundsAreCounted: rounds that are described and those that are not are all rounds of the request, up to its
// end.
func TestAllRoundsAreCounted(t *testing.T) {
	f := New()
	w, err := f.Watch(100)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r := NewRecorder(f)
	r.Start(5)
	tree, path, tokens := chain(1, 2, 3), []int32{0, 1}, []int32{2, 8}
	const rounds = 1001
	at := time.Now()
	for i := range rounds {
		r.Begin(at.Add(time.Duration(i) * time.Millisecond))
		r.Proposal(tree, draft, 0)
		r.Verified(&Verified{Number: i + 1, Tree: tree, Path: path, Index: 2 * i, Tokens: tokens})
		r.Flushed()
	}
	r.Finish(rounds)
	described, skipped, output := 0, 0, 0
	for len(w.Events()) > 0 {
		e := <-w.Events()
		skipped += int(e.Skipped)
		output += len(e.Tokens)
		if e.Kind == tandemv1.WatchKind_WATCH_KIND_ROUND {
			described++
			if described+skipped != int(e.Number) {
				t.Fatalf("%d rounds are described and %d not, before round %d", described, skipped, e.Number)
			}
		}
	}
	if described != 101 || described+skipped != rounds || output != 2*rounds {
		t.Errorf("%d rounds are described and %d not, with %d tokens; want %d rounds", described, skipped, output, rounds)
	}
}

// TestUndescribedRound: a round that nobody will be shown allocates nothing and sends nothing.
func TestUndescribedRound(t *testing.T) {
	f := New()
	w, err := f.Watch(1)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r := NewRecorder(f)
	tree, path, tokens := chain(1, 2, 3), []int32{0, 1}, []int32{2, 8}
	at, index := time.Now(), 0
	round := func() {
		r.Begin(at)
		r.Proposal(tree, draft, 0)
		r.Fitted(tree)
		r.Step()
		r.Verified(&Verified{Number: 1, Tree: tree, Path: path, Index: index, Tokens: tokens})
		r.Flushed()
		index += len(tokens)
	}
	const rounds = 1000
	for range 2 { // the first request makes room for its tokens
		r.Start(5)
		index = 0
		for range rounds + 2 {
			round()
		}
		r.Finish(rounds)
	}
	r.Start(5)
	index = 0
	round() // the first one of a request is described
	sent := len(w.Events())
	if n := testing.AllocsPerRun(rounds, round); n != 0 {
		t.Errorf("an undescribed round takes %v allocations", n)
	}
	if n := len(w.Events()) - sent; n != 0 {
		t.Errorf("%d events of undescribed rounds", n)
	}
}

// TestRequestsShare: requests at work have equal parts of the described rounds; one that waits or is over has none.
func TestRequestsShare(t *testing.T) {
	f := New()
	w, err := f.Watch(10)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	recorders := make([]Recorder, 4)
	for i := range recorders {
		recorders[i] = NewRecorder(f)
		recorders[i].Start(uint64(i + 1))
	}
	tree := chain(1)
	at := time.Now()
	second := func(working []Recorder) map[uint64]int {
		for range 1000 {
			at = at.Add(time.Millisecond)
			for i := range working {
				working[i].Begin(at)
				working[i].Proposal(tree, draft, 0)
				working[i].Verified(&Verified{Tree: tree, Path: []int32{0}})
				working[i].Flushed()
			}
		}
		of := map[uint64]int{}
		for len(w.Events()) > 0 {
			of[(<-w.Events()).Watch]++
		}
		return of
	}
	second(recorders[:2]) // the first round of each is described at once
	if of := second(recorders[:2]); of[1] != 5 || of[2] != 5 {
		t.Errorf("two requests: %v, want 5 rounds of each", of)
	}
	recorders[0].Finish(0)
	second(recorders[1:2])
	if of := second(recorders[1:2]); of[2] != 10 {
		t.Errorf("one request: %v, want 10 rounds", of)
	}
	for i := range recorders {
		recorders[i].Finish(0)
	}
	if n := f.atWork.Load(); n != 0 {
		t.Errorf("%d requests are at work after their ends", n)
	}
}

// TestSlowWatcher: what finds no room is counted, and holds nobody up.
func TestSlowWatcher(t *testing.T) {
	f := New()
	slow, err := f.Watch(0)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	for range room + 3 {
		f.send(&tandemv1.WatchEvent{})
	}
	if slow.Dropped() != 3 || len(slow.Events()) != room {
		t.Errorf("%d dropped and %d kept, want 3 and %d", slow.Dropped(), len(slow.Events()), room)
	}
}

// TestPace: the fastest watcher sets the pace, and with the last one nothing is noted any more.
func TestPace(t *testing.T) {
	f := New()
	a, err1 := f.Watch(10)
	b, err2 := f.Watch(100)
	if err1 != nil || err2 != nil || f.interval() != 10*time.Millisecond {
		t.Fatal(err1, err2, f.interval())
	}
	b.Close()
	b.Close()
	if f.interval() != 100*time.Millisecond {
		t.Error(f.interval())
	}
	a.Close()
	r := NewRecorder(f)
	r.Start(1)
	r.Begin(time.Now())
	if f.interval() != 0 || r.On() || !r.BeginKnown().IsZero() {
		t.Error("somebody still watches")
	}
	for _, rate := range []int{-1, MostRate + 1} {
		if _, err := f.Watch(rate); !errors.Is(err, rpcerr.AnyInvalidArgument) {
			t.Errorf("rate %d: %v", rate, err)
		}
	}
	for range mostWatches {
		w, err := f.Watch(0)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
	}
	if _, err := f.Watch(0); !errors.Is(err, rpcerr.AnyResourceExhausted) {
		t.Errorf("one too many: %v", err)
	}
	f.Close()
	if _, err := f.Watch(0); !errors.Is(err, rpcerr.Draining) || f.interval() != 0 {
		t.Errorf("after the end: %v", err)
	}
}
