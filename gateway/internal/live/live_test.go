package live

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tokenizer"
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

// TestShareOfASecond: a watcher gets so many events a second, its own and others'. Tokens and numbers of those left out
// come later, none is lost, and the end comes in any case.
func TestShareOfASecond(t *testing.T) {
	board := NewBoard()
	for name, c := range map[string]*choice{"own": board.find(board.Begin("r", "", time.Now()).Watch(0)), "foreign": nil} {
		w := &Watcher{events: make(chan Event, room), held: map[uint64]Event{}}
		now := time.Now()
		var want strings.Builder
		const described, skipped = 2 * perSecond, 3
		for i := range described {
			letter := string(rune('a' + i%26))
			want.WriteString(letter)
			e := Event{Type: "round", Index: int32(i), Tokens: []Token{{Text: letter}}, Skipped: skipped, choice: c, watch: 9}
			w.take(e, now)
		}
		if len(w.events) != perSecond {
			t.Errorf("%s: %d events in a second, want %d", name, len(w.events), perSecond)
		}
		w.take(Event{Type: "end", Index: described, Skipped: 1, choice: c, watch: 9}, now)
		close(w.events)
		var got strings.Builder
		rounds := 0
		for e := range w.events {
			got.WriteString(text(e))
			rounds += int(e.Skipped)
			if e.Type == "round" {
				rounds++
			}
		}
		if got.String() != want.String() {
			t.Errorf("%s: got %s\nwant %s", name, got.String(), want.String())
		}
		if all := described*(1+skipped) + 1; rounds != all || len(w.held) != 0 {
			t.Errorf("%s: %d rounds are shown or counted, want %d; %d events are held", name, rounds, all, len(w.held))
		}
	}
}

// TestManyAtATime: all events of a message go on, in their order.
func TestManyAtATime(t *testing.T) {
	s := New(Deps{Board: NewBoard(), Tokenizer: func() *tokenizer.Tokenizer { return nil }})
	w, err := s.Watch(Viewer{All: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	event := func(n int32) *tandemv1.WatchEvent {
		return &tandemv1.WatchEvent{Kind: tandemv1.WatchKind_WATCH_KIND_ROUND, Number: n, Skipped: n}
	}
	s.take("t", &tandemv1.WatchRoundsResponse{Event: event(1), Dropped: 5,
		More: []*tandemv1.WatchEvent{event(2), event(3)}})
	if n := len(w.Events()); n != 3 {
		t.Fatalf("%d events of three", n)
	}
	for n := int32(1); n <= 3; n++ {
		if e := <-w.Events(); e.Number != n || e.Skipped != n || e.Dropped != 5 || e.Worker != "t" {
			t.Errorf("event %d: %+v", n, e)
		}
	}
}

// TestJSON: an event is written as encoding/json would, with every field and with none.
func TestJSON(t *testing.T) {
	full := Event{
		Type: "round", Worker: "w \"1\"", Ref: 3, ID: "é\n<id>", Choice: 1, Number: 25, Start: 1795942751065.905,
		Proposed: .001, Draft: 3.187, Step: [2]float64{7.649, 28}, Engine: 20.551, End: 1e9, Rows: 23, BatchRows: 24,
		Position: 151, Accepted: 2, Committed: 3, Skipped: 4, Path: []int32{0, 2}, Index: 134, Dropped: 7,
		Nodes:  []Node{{" name", -1, "anchor"}, {"\\", 0, "draft"}, {"\x01\u2028\ufffd", 1, "lookup"}},
		Tokens: []Token{{"&", "draft"}, {"", "plain"}, {"日", "constraint"}},
	}
	for _, e := range []Event{full, {}, {Tokens: full.Tokens[:1], Nodes: full.Nodes[:1], Path: full.Path[:1]}} {
		want, err := json.Marshal(e)
		if got := e.AppendJSON(nil); err != nil || string(got) != string(want) {
			t.Errorf("got  %s\nwant %s, %v", got, want, err)
		}
	}
	// A field that is new here must be written, too.
	v := reflect.ValueOf(full)
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() && v.Field(i).IsZero() {
			t.Errorf("%s is not tried", f.Name)
		}
	}
	buffer := full.AppendJSON(nil)
	plain := Event{Type: "round", Nodes: []Node{{" name", -1, "anchor"}}, Tokens: []Token{{"a", "plain"}}}
	if n := testing.AllocsPerRun(100, func() { buffer = plain.AppendJSON(buffer[:0]) }); n != 0 {
		t.Errorf("an event of plain text takes %v allocations", n)
	}
}

// TestSlowPage: what finds no room is counted.
func TestSlowPage(t *testing.T) {
	w := &Watcher{events: make(chan Event, 1), held: map[uint64]Event{}}
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

// TestLiars: numbers out of bounds and lists that do not belong together are refused.
func TestLiars(t *testing.T) {
	anchor := tandemv1.TokenOrigin_TOKEN_ORIGIN_ANCHOR
	good := func() *tandemv1.WatchEvent {
		two := []tandemv1.TokenOrigin{anchor, anchor}
		return &tandemv1.WatchEvent{Kind: tandemv1.WatchKind_WATCH_KIND_ROUND, NodeTokens: []int32{1, 2},
			NodeParents: []int32{-1, 0}, NodeOrigins: two, Path: []int32{0, 1}, Tokens: []int32{3}, Origins: two[:1]}
	}
	if !check(good()) {
		t.Error("a good event is refused")
	}
	if check(nil) {
		t.Error("an event that is not there is taken")
	}
	for name, spoil := range map[string]func(e *tandemv1.WatchEvent){
		"no kind":          func(e *tandemv1.WatchEvent) { e.Kind = 0 },
		"unknown kind":     func(e *tandemv1.WatchEvent) { e.Kind = 99 },
		"time before":      func(e *tandemv1.WatchEvent) { e.EndUs = -1 },
		"endless time":     func(e *tandemv1.WatchEvent) { e.DraftUs = math.MaxInt64 },
		"number":           func(e *tandemv1.WatchEvent) { e.Number = -1 },
		"rows":             func(e *tandemv1.WatchEvent) { e.Rows = mostRows + 1 },
		"skipped":          func(e *tandemv1.WatchEvent) { e.Skipped = -1 },
		"committed":        func(e *tandemv1.WatchEvent) { e.Committed = mostTokens + 1 },
		"index":            func(e *tandemv1.WatchEvent) { e.OutputIndex = -5 },
		"parents missing":  func(e *tandemv1.WatchEvent) { e.NodeParents = e.NodeParents[:1] },
		"origins missing":  func(e *tandemv1.WatchEvent) { e.NodeOrigins = nil },
		"own parent":       func(e *tandemv1.WatchEvent) { e.NodeParents[1] = 1 },
		"second root":      func(e *tandemv1.WatchEvent) { e.NodeParents[1] = -1 },
		"parent below":     func(e *tandemv1.WatchEvent) { e.NodeParents[0] = -2 },
		"path outside":     func(e *tandemv1.WatchEvent) { e.Path[1] = 2 },
		"path before":      func(e *tandemv1.WatchEvent) { e.Path[0] = -1 },
		"long path":        func(e *tandemv1.WatchEvent) { e.Path = []int32{0, 1, 1} },
		"token":            func(e *tandemv1.WatchEvent) { e.Tokens[0] = -1 },
		"node":             func(e *tandemv1.WatchEvent) { e.NodeTokens[0] = mostVocab + 1 },
		"no origin":        func(e *tandemv1.WatchEvent) { e.Origins[0] = 0 },
		"unknown origin":   func(e *tandemv1.WatchEvent) { e.Origins[0] = 99 },
		"negative origin":  func(e *tandemv1.WatchEvent) { e.NodeOrigins[0] = -1 },
		"token of nowhere": func(e *tandemv1.WatchEvent) { e.Origins = nil },
		"many nodes": func(e *tandemv1.WatchEvent) {
			for i := len(e.NodeTokens); i <= mostNodes; i++ {
				e.NodeTokens, e.NodeParents = append(e.NodeTokens, 1), append(e.NodeParents, 0)
				e.NodeOrigins = append(e.NodeOrigins, anchor)
			}
		},
		"many tokens": func(e *tandemv1.WatchEvent) {
			e.Tokens = make([]int32, mostTokens+1)
			e.Origins = slices.Repeat([]tandemv1.TokenOrigin{anchor}, mostTokens+1)
		},
	} {
		e := good()
		if spoil(e); check(e) {
			t.Errorf("%s: %v is taken", name, e)
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
