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
	if got[1].Committed != 3 || got[1].Number != 3 || got[2].Kind != tandemv1.WatchKind_WATCH_KIND_END {
		t.Errorf("events %v", got)
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
