package reuse

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
)

// bare is an engine that says what it is.
type bare struct {
	engine.Target
	promptRows int
}

func (b bare) Info() engine.Info { return engine.Info{PromptRows: b.promptRows} }

// stub is a cache that notes what it is asked for.
type stub struct {
	Cache          // of calls that the test does not make
	saved, dropped []int
	there          []int // lengths that are stored already
	fits           []int // lengths up to 1200 that a look-up takes
	entries        map[*prefix.Entry]int
	takes          time.Duration // a save
	interval       int
	written        map[int]int // fresh tokens by length
}

func (s *stub) Find(_ context.Context, _ string, tokens []int32, fits func(int) bool) *prefix.Entry {
	s.fits = nil
	for n := range len(tokens) + 1 {
		if fits(n) {
			s.fits = append(s.fits, n)
		}
	}
	return nil
}

func (s *stub) Restore(context.Context, *prefix.Entry, engine.Sequence) error { return nil }

func (s *stub) Save(_ string, tokens []int32, _ engine.Sequence, _ prefix.Features) (*prefix.Entry, bool) {
	if slices.Contains(s.there, len(tokens)) {
		return &prefix.Entry{}, false
	}
	time.Sleep(s.takes)
	e := &prefix.Entry{}
	if s.entries == nil {
		s.entries = map[*prefix.Entry]int{}
	}
	s.entries[e] = len(tokens)
	s.saved = append(s.saved, len(tokens))
	return e, true
}

func (s *stub) Drop(e *prefix.Entry)       { s.dropped = append(s.dropped, s.entries[e]) }
func (s *stub) Relieve(engine.Target) bool { return false }
func (s *stub) Freed()                     {}
func (s *stub) Interval() int              { return s.interval }

func (s *stub) Longest(string, []int32, func(int) bool) int { return 0 }

func (s *stub) Persist(e *prefix.Entry, fresh int) {
	if s.written == nil {
		s.written = map[int]int{}
	}
	s.written[s.entries[e]] = fresh
}

// agent is the cuts of a prompt of 5000 tokens: system text of 1500, then messages of 700, 40, 300, 2000 and 100, and a
// header.
var agent = piece.Cuts{
	Borders:  []int{512, 1024, 1500, 2012, 2200, 2540, 3052, 3564, 4076, 4540, 4640},
	Messages: []int{1500, 2200, 2240, 2540, 4540, 4640},
}

// read reads the prompt's borders from a position on.
func read(r *Reuse, from int) {
	for _, b := range agent.Borders {
		if b > from {
			r.Read(1, b)
		}
	}
	r.Read(1, 4800) // not a border
	r.Read(1, 5000)
}

func TestWhatIsSaved(t *testing.T) {
	for _, c := range []struct {
		class Class
		hints []int32
		want  []int
	}{
		{class: System, want: []int{1500}},
		{class: Turn, want: []int{4540}},
		{class: Last, want: []int{4640}},
		// 512, 1024, 2048 and 4096 tokens before the end.
		{class: Thinned, want: []int{512, 2540, 3564, 4076}},
		{class: Hints, hints: []int32{2200, 2300, 100, 5000}, want: []int{2200, 4640}},
		{class: All &^ Newest, hints: []int32{3100}, want: []int{512, 1500, 2540, 3052, 3564, 4076, 4540, 4640}},
	} {
		t.Run(fmt.Sprintf("%b", c.class), func(t *testing.T) {
			s := &stub{}
			r := New(s, c.class)
			for range 2 { // nothing of an earlier request counts
				s.saved = nil
				r.Start(Request{Hints: c.hints}, bare{}, make([]int32, 5000), agent)
				read(&r, 0)
				if !slices.Equal(s.saved, c.want) || s.dropped != nil {
					t.Errorf("saved %v, dropped %v, want %v", s.saved, s.dropped, c.want)
				}
				if last := c.want[len(c.want)-1]; r.Saved() != last {
					t.Errorf("%d tokens are newly saved, want %d", r.Saved(), last)
				}
			}
		})
	}
}

// TestNewestIsReplaced: every border is saved until the next one is; what is kept for good is not dropped.
func TestNewestIsReplaced(t *testing.T) {
	s := &stub{there: []int{3052, 4640}}
	r := New(s, Newest|Turn|System)
	r.Start(Request{}, bare{}, make([]int32, 5000), agent)
	read(&r, 0)
	if want := []int{512, 1024, 1500, 2012, 2200, 2540, 3564, 4076, 4540}; !slices.Equal(s.saved, want) {
		t.Errorf("saved %v, want %v", s.saved, want)
	}
	if want := []int{512, 1024, 2012, 2200, 2540, 3564, 4076}; !slices.Equal(s.dropped, want) {
		t.Errorf("dropped %v, want %v", s.dropped, want)
	}
}

func TestWhatIsLookedUp(t *testing.T) {
	below := func(n int) (list []int) {
		for i := range n {
			list = append(list, i)
		}
		return list
	}
	borders := append([]int{0}, agent.Borders...)
	for name, c := range map[string]struct {
		req        Request
		promptRows int
		want       []int
		saves      bool
	}{
		"one contract":         {want: below(5000), saves: true},
		"bits of their own":    {promptRows: 64, want: borders, saves: true},
		"off":                  {req: Request{Off: true}},
		"needs every row":      {req: Request{SaveOnly: true}, saves: true},
		"hints change nothing": {req: Request{Hints: []int32{100}}, promptRows: 64, want: borders, saves: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &stub{}
			r := New(s, All)
			r.Start(c.req, bare{promptRows: c.promptRows}, make([]int32, 5000), agent)
			if n, err := r.Restore(t.Context(), 1); n != 0 || err != nil {
				t.Errorf("restored %d, %v", n, err)
			}
			if !slices.Equal(s.fits, c.want) {
				t.Errorf("takes %v, want %v", s.fits, c.want)
			}
			read(&r, 0)
			if (len(s.saved) > 0) != c.saves {
				t.Errorf("saved %v", s.saved)
			}
			if got := r.Answers(); got != (c.promptRows == 0 && c.saves) {
				t.Errorf("the answer's state is saved: %v", got)
			}
		})
	}
	none := New(nil, All)
	none.Start(Request{}, bare{}, make([]int32, 5000), agent)
	if n, err := none.Restore(t.Context(), 1); n != 0 || err != nil || none.On() || none.Answers() || none.Relieve() {
		t.Error("without a cache something is reused")
	}
	read(&none, 0)
}

// TestSavesAreWorthIt: where making a state takes long, only those are made that the next turn is likely to ask for and
// that take less than what was read for them.
func TestSavesAreWorthIt(t *testing.T) {
	for name, c := range map[string]struct {
		takes      time.Duration
		promptRows int
		want       []int
	}{
		"cheap":                   {time.Millisecond, 64, []int{512, 1024, 1536, 2048}},
		"dear":                    {60 * time.Millisecond, 64, []int{2048}},
		"dearer than the reading": {time.Second, 64, nil},
		"on a processor":          {60 * time.Millisecond, 0, []int{512, 1024, 1536, 2048}},
	} {
		t.Run(name, func(t *testing.T) {
			racetest.Bubble(t, func(t *testing.T) {
				cache := &stub{takes: c.takes}
				r := New(cache, All)
				cuts := piece.Markers{}.Cut(make([]int32, 2100), piece.Cuts{})
				for range trials/len(cuts.Borders) + 2 {
					cache.saved = nil
					r.Start(Request{}, bare{promptRows: c.promptRows}, make([]int32, 2100), cuts)
					for _, border := range cuts.Borders {
						time.Sleep(50 * time.Millisecond)
						r.Read(1, border)
					}
				}
				if !slices.Equal(cache.saved, c.want) {
					t.Errorf("saved at %v, want %v", cache.saved, c.want)
				}
			})
		})
	}
}

// TestWhatIsWritten: on disk goes what the next turn asks for, and a state now and then of a long prompt.
func TestWhatIsWritten(t *testing.T) {
	for name, c := range map[string]struct {
		interval, restored int
		hints              []int32
		want               map[int]int // fresh tokens by length
	}{
		"cold":     {want: map[int]int{1500: 1500, 4540: 4540, 4640: 4640}},
		"hints":    {hints: []int32{2200}, want: map[int]int{1500: 1500, 2200: 2200, 4540: 4540, 4640: 4640}},
		"restored": {restored: 2012, want: map[int]int{4540: 4540 - 2012, 4640: 4640 - 2012}},
		// Those of the interval are written whatever they cost.
		"interval":       {interval: 1100, want: map[int]int{1500: 0, 3052: 0, 4540: 0, 4640: 4640}},
		"after restored": {interval: 1100, restored: 2012, want: map[int]int{3564: 0, 4540: 4540 - 2012, 4640: 4640 - 2012}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &stub{interval: c.interval}
			r := New(s, All)
			r.Start(Request{Hints: c.hints}, bare{}, make([]int32, 5000), agent)
			r.restored, r.passed = c.restored, c.restored
			read(&r, c.restored)
			if d := cmp.Diff(c.want, s.written); d != "" {
				t.Error(d)
			}
			s.written = nil
			r.Answer(1, make([]int32, 5040))
			if d := cmp.Diff(map[int]int{5040: 5040 - c.restored}, s.written); d != "" {
				t.Error(d)
			}
		})
	}
}
