package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Limits say what a campaign allows.
type Limits struct {
	// Quiet is the longest pause of a stream beside which nothing failed.
	Quiet time.Duration
	// First is the longest wait for the first token, whatever fails: a prompt whose worker is lost is read again.
	First time.Duration
	// Faults are the limits of each type of fault. A type without limits is a problem of the history.
	Faults map[string]Limit
	// Several says that there is more than one gateway: streams that go on elsewhere must come to their end.
	Several bool
	// Settle is for how long after it is healed a fault may still have effects.
	Settle time.Duration
}

// Limit is what a fault of a type may do to streams.
type Limit struct {
	// Gap is the longest pause.
	Gap time.Duration
	// Errors are allowed in streams of the gateway that fails: the client sees one and asks again.
	Errors bool
}

// Kinds of problems.
const (
	Lost      = "lost"      // tokens of the reference are missing
	Doubled   = "doubled"   // tokens came twice
	Different = "different" // tokens are not those of the reference
	NoEnd     = "no end"    // a stream has neither a finish reason nor an error
	Refused   = "error"     // a client saw an error that no fault explains
	Ending    = "ending"    // finish reason, usage or contract are not those of the reference
	Gap       = "gap"       // a stream stood still for too long
	Malformed = "malformed" // the history contradicts itself: the harness is at fault, or events came in disorder
)

// Problem is something that the checker does not accept.
type Problem struct {
	Kind   string        `json:"kind"`
	Stream string        `json:"stream,omitempty"`
	At     time.Duration `json:"at_ns"`
	Text   string        `json:"text"`
}

// Report is what a history shows.
type Report struct {
	Requests  int `json:"requests"`
	Finished  int `json:"finished"`
	Errors    int `json:"errors_allowed"` // streams that ended with an error that a fault explains
	Resumed   int `json:"resumed"`        // connections that continued a stream
	Tokens    int `json:"tokens"`         // that were compared
	Lost      int `json:"tokens_lost"`
	Doubled   int `json:"tokens_doubled"`
	Different int `json:"tokens_different"`
	// Quiet are the longest pauses between tokens of streams beside which nothing failed, Faults of those beside faults,
	// by type. First are the waits for first tokens.
	Quiet  Pauses            `json:"quiet"`
	First  Pauses            `json:"first_token"`
	Faults map[string]Pauses `json:"faults"`
	// Problems are none when the history is accepted.
	Problems []Problem `json:"problems"`
}

// Pauses are the longest pauses of streams: one for each fault, of all streams that were open, or one for each stream.
type Pauses struct {
	Count int     `json:"count"`
	P50   float64 `json:"gap_p50_ms"`
	P99   float64 `json:"gap_p99_ms"`
	Max   float64 `json:"gap_max_ms"`
	Limit float64 `json:"gap_limit_ms"`
	// Alone counts faults while no stream was open: they tell nothing.
	Alone int `json:"without_stream,omitempty"`
}

// fault is one of a history.
type fault struct {
	Record
	until time.Duration // healed and settled
	worst time.Duration
	seen  bool // by a stream
}

// stream is one of a history.
type stream struct {
	id, ask  string
	variant  string
	contract string
	start    time.Duration
	last     time.Duration
	sequence int
	gateway  int  // that was asked last
	resumed  bool // at another gateway, or the same one
	tokens   []Token
	pauses   []pause
	end      *Record
}

// pause is a time without tokens; first is the one before the first token.
type pause struct {
	from, to time.Duration
	first    bool
}

func (p pause) length() time.Duration { return p.to - p.from }

// checker collects what the records say.
type checker struct {
	limits     Limits
	references map[[2]string]*Record // by ask and variant
	streams    map[string]*stream
	order      []*stream
	faults     []*fault
	now        time.Duration
	first      []time.Duration // waits for first tokens
	report     Report
}

// Check compares every stream of a history with its reference.
func Check(records []Record, limits Limits) *Report {
	c := &checker{limits: limits, references: map[[2]string]*Record{}, streams: map[string]*stream{},
		report: Report{Faults: map[string]Pauses{}}}
	for i := range records {
		c.read(&records[i])
	}
	for _, f := range c.faults {
		if f.until == 0 {
			f.until = c.now + 1 // the campaign ended before it was healed
		}
	}
	var quiet []time.Duration
	for _, s := range c.order {
		c.judge(s)
		if longest, alone := c.pauses(s); alone {
			quiet = append(quiet, longest)
		}
	}
	c.report.First = summary(c.first, limits.First)
	c.report.Quiet = summary(quiet, limits.Quiet)
	c.summarise()
	slices.SortStableFunc(c.report.Problems, func(a, b Problem) int { return cmp.Compare(a.At, b.At) })
	return &c.report
}

func (c *checker) problem(kind, stream string, at time.Duration, format string, args ...any) {
	c.report.Problems = append(c.report.Problems, Problem{kind, stream, at, fmt.Sprintf(format, args...)})
}

// read takes the next record.
func (c *checker) read(r *Record) {
	if r.At < c.now {
		c.problem(Malformed, r.Stream, r.At, "record %q is older than the one before", r.Kind)
	}
	c.now = max(c.now, r.At)
	switch r.Kind {
	case Reference:
		c.reference(r)
	case Request:
		c.report.Requests++
		if c.streams[r.Stream] != nil {
			c.problem(Malformed, r.Stream, r.At, "two streams have this id")
			return
		}
		s := &stream{id: r.Stream, ask: r.Ask, start: r.At, last: r.At, gateway: r.Gateway}
		c.streams[r.Stream] = s
		c.order = append(c.order, s)
	case Tokens, Resumed, End:
		c.event(r)
	case Fault:
		if r.Fault != len(c.faults)+1 {
			c.problem(Malformed, "", r.At, "fault %d follows fault %d", r.Fault, len(c.faults))
		}
		if _, ok := c.limits.Faults[r.Type]; !ok {
			c.problem(Malformed, "", r.At, "faults of type %q have no limits", r.Type)
		}
		c.faults = append(c.faults, &fault{Record: *r})
	case Healed:
		if r.Fault < 1 || r.Fault > len(c.faults) || c.faults[r.Fault-1].until != 0 {
			c.problem(Malformed, "", r.At, "fault %d is healed, which is not open", r.Fault)
			return
		}
		c.faults[r.Fault-1].until = r.At + c.limits.Settle
	default:
		c.problem(Malformed, r.Stream, r.At, "records of kind %q are not known", r.Kind)
	}
}

// reference keeps an answer. All answers to one request must be the same before anything fails.
func (c *checker) reference(r *Record) {
	key := [2]string{r.Ask, r.Variant}
	if first := c.references[key]; first == nil {
		c.references[key] = r
	} else if !slices.Equal(first.Tokens, r.Tokens) || first.Finish != r.Finish {
		c.problem(Different, "", r.At, "two references of %s differ", r.Ask)
	}
}

// event takes a record of a stream.
func (c *checker) event(r *Record) {
	s := c.streams[r.Stream]
	switch {
	case s == nil:
		c.problem(Malformed, r.Stream, r.At, "record %q of a stream that nobody asked for", r.Kind)
		return
	case s.end != nil:
		c.problem(Malformed, r.Stream, r.At, "record %q after the end", r.Kind)
		return
	}
	if r.Kind == Resumed {
		c.report.Resumed++
		s.resumed, s.gateway = true, r.Gateway
		return
	}
	if r.Sequence > 0 {
		if r.Sequence != s.sequence+1 {
			c.problem(Malformed, r.Stream, r.At, "event %d follows event %d", r.Sequence, s.sequence)
		}
		s.sequence = r.Sequence
	}
	if len(r.Tokens) > 0 || r.Kind == End {
		s.pauses = append(s.pauses, pause{s.last, r.At, len(s.tokens) == 0})
		s.last = r.At
	}
	s.tokens = append(s.tokens, r.Tokens...)
	if r.Kind == End {
		s.end, s.variant, s.contract = r, r.Variant, r.Contract
	}
}

// judge compares a stream with its reference.
func (c *checker) judge(s *stream) {
	end := s.end
	switch {
	case end == nil:
		c.problem(NoEnd, s.id, s.last, "%s: %d tokens, then neither a finish reason nor an error", s.ask, len(s.tokens))
		end = &Record{Error: "none"} // what came is compared all the same
	case end.Error != "" && end.Finish != "":
		c.problem(Malformed, s.id, end.At, "the end has a finish reason and an error")
	case end.Error == "" && end.Finish == "":
		c.problem(NoEnd, s.id, end.At, "%s: the end has neither a finish reason nor an error", s.ask)
	case end.Error != "" && !c.excused(s):
		c.problem(Refused, s.id, end.At, "%s: %s", s.ask, end.Error)
	case end.Error != "":
		c.report.Errors++
	default:
		c.report.Finished++
	}
	whole := end.Error == ""
	want := c.references[[2]string{s.ask, s.variant}]
	if want == nil && !whole {
		want = c.nearest(s)
	}
	if want == nil {
		c.problem(Malformed, s.id, s.last, "%s %s has no reference", s.ask, s.variant)
		return
	}
	c.report.Tokens += len(s.tokens)
	d := compare(want.Tokens, s.tokens, whole)
	if !whole { // what kind of answer it was to become is not known
		if other := c.nearest(s); other != nil {
			if e := compare(other.Tokens, s.tokens, false); e.total() < d.total() {
				d = e
			}
		}
	}
	c.report.Lost += d.lost
	c.report.Doubled += d.doubled
	c.report.Different += d.different
	for _, found := range []struct {
		kind  string
		count int
	}{{Lost, d.lost}, {Doubled, d.doubled}, {Different, d.different}} {
		if found.count > 0 {
			c.problem(found.kind, s.id, s.last, "%s: %d tokens %s from token %d on%s", s.ask, found.count, found.kind,
				d.first, c.swapped(s))
		}
	}
	if end.Finish != "" && d.total() == 0 {
		c.ending(s, want)
	}
}

func (d difference) total() int { return d.lost + d.doubled + d.different }

// nearest returns the reference of another variant of what a stream asked, the one with the longest common beginning.
func (c *checker) nearest(s *stream) (best *Record) {
	longest := -1
	for key, r := range c.references {
		if key[0] != s.ask {
			continue
		}
		if d := compare(r.Tokens, s.tokens, false); d.first > longest || d.first == longest && r.Variant < best.Variant {
			best, longest = r, d.first
		}
	}
	return best
}

// ending compares what the end of a stream says of an answer whose tokens are right.
func (c *checker) ending(s *stream, want *Record) {
	if s.end.Finish != want.Finish {
		c.problem(Ending, s.id, s.end.At, "%s: finish reason %q, that of the reference is %q", s.ask, s.end.Finish,
			want.Finish)
	}
	if s.end.Count != want.Count {
		c.problem(Ending, s.id, s.end.At, "%s: usage says %d tokens, that of the reference %d", s.ask, s.end.Count,
			want.Count)
	}
	if s.contract != want.Contract {
		c.problem(Ending, s.id, s.end.At, "%s: contract %q, that of the reference is %q", s.ask, s.contract, want.Contract)
	}
}

// swapped says whose tokens a stream has, where they are another request's.
func (c *checker) swapped(s *stream) string {
	const enough = 4 // tokens: shorter texts are alike by chance
	for key, r := range c.references {
		if key[0] != s.ask && len(s.tokens) >= enough && len(r.Tokens) >= enough &&
			compare(r.Tokens, s.tokens, false).total() == 0 {
			return fmt.Sprintf(": they are those of %s", key[0])
		}
	}
	return ""
}

// excused says that a fault of its gateway which may cause errors was open when a stream ended.
func (c *checker) excused(s *stream) bool {
	if s.resumed && c.limits.Several {
		return false
	}
	return slices.ContainsFunc(c.faults, func(f *fault) bool {
		return c.limits.Faults[f.Type].Errors && f.Gateway == s.gateway && f.At <= s.end.At && s.start <= f.until
	})
}

// pauses holds the pauses of a stream against the limits. It returns the longest one, and whether nothing failed beside
// the stream.
func (c *checker) pauses(s *stream) (longest time.Duration, alone bool) {
	alone = true
	for _, f := range c.faults {
		if f.At <= s.last && s.start <= f.until {
			f.seen, alone = true, false
		}
	}
	for _, p := range s.pauses {
		if p.first {
			c.first = append(c.first, p.length())
			if p.length() > c.limits.First {
				c.problem(Gap, s.id, p.to, "%s: the first token came after %v, at most %v are allowed", s.ask,
					p.length().Round(time.Millisecond), c.limits.First)
			}
			continue
		}
		longest = max(longest, p.length())
		limit, why := c.limits.Quiet, "nothing failed meanwhile"
		for _, f := range c.faults {
			if p.to < f.At || f.until < p.from {
				continue
			}
			f.worst = max(f.worst, p.length())
			if l := c.limits.Faults[f.Type].Gap; l > limit {
				limit, why = l, fmt.Sprintf("fault %d, %s", f.Fault, f.Type)
			}
		}
		if p.length() > limit {
			c.problem(Gap, s.id, p.to, "%s stood still for %v, at most %v are allowed (%s)", s.ask,
				p.length().Round(time.Millisecond), limit, why)
		}
	}
	return longest, alone
}

// summarise makes the table of faults.
func (c *checker) summarise() {
	byType, alone := map[string][]time.Duration{}, map[string]int{}
	for _, f := range c.faults {
		if !f.seen {
			alone[f.Type]++
			continue
		}
		byType[f.Type] = append(byType[f.Type], f.worst)
	}
	for _, f := range c.faults {
		p := summary(byType[f.Type], c.limits.Faults[f.Type].Gap)
		p.Count += alone[f.Type]
		p.Alone = alone[f.Type]
		c.report.Faults[f.Type] = p
	}
}

func summary(pauses []time.Duration, limit time.Duration) Pauses {
	p := Pauses{Count: len(pauses), Limit: ms(limit)}
	if len(pauses) == 0 {
		return p
	}
	slices.Sort(pauses)
	at := func(share float64) float64 { return ms(pauses[min(len(pauses)-1, int(share*float64(len(pauses))))]) }
	p.P50, p.P99, p.Max = at(0.5), at(0.99), ms(pauses[len(pauses)-1])
	return p
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
