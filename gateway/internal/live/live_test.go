package live

import (
	"strings"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func text(e Event) string {
	var b strings.Builder
	for _, token := range e.Tokens {
		b.WriteString(token.Text)
	}
	return b.String()
}

// TestShareOfASecond: a watcher gets so many events a second; tokens of those left out come later, none is lost, and
// the end comes in any case.
func TestShareOfASecond(t *testing.T) {
	board := NewBoard()
	c := board.find(board.Begin("r", "", time.Now()).Watch(0))
	w := &Watcher{events: make(chan Event, room), held: map[*choice]Event{}}
	now := time.Now()
	var want strings.Builder
	for i := range 2 * perSecond {
		letter := string(rune('a' + i%26))
		want.WriteString(letter)
		w.take(Event{Type: "round", Index: int32(i), Tokens: []Token{{Text: letter}}, choice: c}, now)
	}
	if len(w.events) != perSecond {
		t.Errorf("%d events in a second, want %d", len(w.events), perSecond)
	}
	w.take(Event{Type: "end", Index: 2 * perSecond, choice: c}, now)
	close(w.events)
	var got strings.Builder
	for e := range w.events {
		got.WriteString(text(e))
	}
	if got.String() != want.String() {
		t.Errorf("got %s\nwant %s", got.String(), want.String())
	}
}

// TestSlowPage: what finds no room is counted.
func TestSlowPage(t *testing.T) {
	w := &Watcher{events: make(chan Event, 1), held: map[*choice]Event{}}
	for range 3 {
		w.take(Event{Type: "end"}, time.Now())
	}
	if w.Dropped() != 2 {
		t.Errorf("%d dropped, want 2", w.Dropped())
	}
}

// TestBoardForgets: requests that are over are listed for a while, and their rounds are not known for ever.
func TestBoardForgets(t *testing.T) {
	b := NewBoard()
	all := Viewer{All: true}
	var numbers []uint64
	for range keepEnded + 5 {
		r := b.Begin("r", "", time.Now())
		if numbers = append(numbers, r.Watch(0)); r.Watch(0) != numbers[len(numbers)-1] || r.Watch(1) == r.Watch(0) {
			t.Fatal("a choice has one number of its own")
		}
		r.Phase(PhaseQueue)
		r.Phase(PhaseDecode)
		r.Tokens(3)
		r.End("ok", Figures{PromptTokens: 7})
	}
	list := b.Requests(all)
	if len(list) != keepEnded || list[0].Ref != 6 || list[0].Phase != PhaseDone || list[0].Tokens != 3 {
		t.Errorf("%d requests from %d on: %+v", len(list), list[0].Ref, list[0])
	}
	if b.find(numbers[0]) != nil || b.find(numbers[len(numbers)-1]) == nil || len(b.watches) != 2*keepEnded {
		t.Errorf("%d numbers are known", len(b.watches))
	}
	var none *Board
	r := none.Begin("r", "", time.Now())
	r.Phase(PhaseQueue)
	r.At("w")
	r.Tokens(1)
	r.End("ok", Figures{})
	if r.Watch(0) != 0 {
		t.Error("a board that is not there gives out numbers")
	}
}

// TestOwners: a watcher sees ids of its own requests alone; without keys it sees all.
func TestOwners(t *testing.T) {
	b := NewBoard()
	r := b.Begin("mine", "a", time.Now())
	e := &Event{ID: "mine", Nodes: []Node{{}}, Tokens: []Token{{}}, choice: b.find(r.Watch(0))}
	for _, v := range []struct {
		Viewer
		sees bool
	}{{Viewer{Owner: "a"}, true}, {Viewer{Owner: "b"}, false}, {Viewer{}, false}, {Viewer{All: true}, true}} {
		seen := e.seenBy(v.Viewer)
		if (seen.Tokens != nil) != v.sees || (seen.Nodes != nil) != v.sees || (seen.ID != "") != v.sees ||
			(b.Requests(v.Viewer)[0].ID != "") != v.sees {
			t.Errorf("%+v sees %+v", v, seen)
		}
	}
}

// TestLiars: lists that do not belong together are refused.
func TestLiars(t *testing.T) {
	anchor := tandemv1.TokenOrigin_TOKEN_ORIGIN_ANCHOR
	two := []tandemv1.TokenOrigin{anchor, anchor}
	good := &tandemv1.WatchEvent{NodeTokens: []int32{1, 2}, NodeParents: []int32{-1, 0}, NodeOrigins: two,
		Path: []int32{0, 1}}
	if !consistent(good) {
		t.Error("a good event is refused")
	}
	for i, bad := range []*tandemv1.WatchEvent{
		{NodeTokens: []int32{1, 2}, NodeParents: []int32{-1}, NodeOrigins: two},
		{NodeTokens: []int32{1, 2}, NodeParents: []int32{-1, 1}, NodeOrigins: two},
		{NodeTokens: []int32{1, 2}, NodeParents: []int32{-1, -1}, NodeOrigins: two},
		{NodeTokens: []int32{1, 2}, NodeParents: []int32{-1, 0}, NodeOrigins: two, Path: []int32{2}},
		{Tokens: []int32{1}},
	} {
		if consistent(bad) {
			t.Errorf("bad event %d is taken", i)
		}
	}
}

// TestWholeCharacters: a character in several tokens comes with the last of them.
func TestWholeCharacters(t *testing.T) {
	for _, c := range []struct {
		text string
		want int
	}{{"", 0}, {"abc", 3}, {"aé", 3}, {"a\xc3", 1}, {"日", 3}, {"x日\xe6\x9c", 4},
		{"\xff\xff", 2}, {"😀", 4}, {"\xf0\x9f\x98", 0}} {
		if n := complete([]byte(c.text)); n != c.want {
			t.Errorf("%q: %d, want %d", c.text, n, c.want)
		}
	}
}
