package history

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const step = 20 * time.Millisecond

// limits of the histories of tests.
var limits = Limits{
	Quiet: 500 * time.Millisecond, First: 6 * time.Second, Settle: 100 * time.Millisecond,
	Faults: map[string]Limit{"kill target": {Gap: 2 * time.Second}, "kill gateway": {Gap: 5 * time.Second, Errors: true}},
}

// clean makes a history without problems: eight streams at a time of four requests, some of which are numbered and
// resumed, beside faults after which streams stand still as long as they may.
func clean(rng *rand.Rand) []Record {
	var out []Record
	answers := map[string]Record{}
	for i := range 4 {
		ask := fmt.Sprint("ask ", i)
		for _, variant := range []string{"", "whole"} {
			r := Record{Kind: Reference, Ask: ask, Variant: variant, Finish: "length", Contract: "c"}
			for range 30 + rng.IntN(20) {
				r.Tokens = append(r.Tokens, Token{"t" + strconv.Itoa(rng.IntN(12)), strconv.Itoa(-rng.IntN(1000))})
			}
			r.Count = len(r.Tokens)
			answers[ask+variant] = r
			out = append(out, r)
		}
	}
	type open struct {
		id       string
		want     Record
		at       int
		numbered bool
		sequence int
	}
	var streams []*open
	now := time.Second
	begin := func() *open {
		n := rng.IntN(len(out[:8]))
		s := &open{id: "s" + strconv.Itoa(len(out)), want: out[n], numbered: n%2 == 0}
		out = append(out, Record{Kind: Request, At: now, Stream: s.id, Ask: s.want.Ask, Mode: "auto"})
		return s
	}
	for range 8 {
		streams = append(streams, begin())
	}
	number := func(s *open) int {
		if s.numbered {
			s.sequence++
		}
		return s.sequence
	}
	for round, fault := 0, 0; round < 120; round++ {
		now += step
		if round%30 == 10 {
			fault++
			kind := []string{"kill target", "kill gateway"}[fault%2]
			out = append(out, Record{Kind: Fault, At: now, Fault: fault, Type: kind, Part: "p"})
			now += limits.Faults[kind].Gap - step
			out = append(out, Record{Kind: Healed, At: now, Fault: fault})
		}
		for i, s := range streams {
			if s.numbered && rng.IntN(20) == 0 {
				out = append(out, Record{Kind: Resumed, At: now, Stream: s.id, Gateway: 1})
			}
			n := min(1+rng.IntN(4), len(s.want.Tokens)-s.at)
			if n > 0 {
				out = append(out, Record{Kind: Tokens, At: now, Stream: s.id, Sequence: number(s),
					Tokens: s.want.Tokens[s.at : s.at+n]})
				s.at += n
				continue
			}
			out = append(out, Record{Kind: End, At: now, Stream: s.id, Sequence: number(s), Finish: s.want.Finish,
				Variant: s.want.Variant, Count: s.want.Count, Contract: "c"})
			streams[i] = begin()
		}
	}
	for _, s := range streams { // they end in order
		now += step
		out = append(out, Record{Kind: Tokens, At: now, Stream: s.id, Sequence: number(s), Tokens: s.want.Tokens[s.at:]},
			Record{Kind: End, At: now, Stream: s.id, Sequence: number(s), Finish: s.want.Finish, Variant: s.want.Variant,
				Count: s.want.Count, Contract: "c"})
	}
	return out
}

// kinds of the problems of a report, each once.
func kinds(r *Report) (out []string) {
	for _, p := range r.Problems {
		out = append(out, p.Kind)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestCleanHistories(t *testing.T) {
	for seed := range uint64(20) {
		records := clean(rand.New(rand.NewPCG(seed, 1)))
		var file bytes.Buffer
		recorder := NewRecorder(&file)
		for _, r := range records {
			recorder.Add(r)
		}
		if kept, err := recorder.Records(); err != nil || len(kept) != len(records) {
			t.Fatalf("%d of %d records: %v", len(kept), len(records), err)
		}
		read, err := Read(&file)
		if err != nil || len(read) != len(records) {
			t.Fatalf("%d of %d records are read: %v", len(read), len(records), err)
		}
		for i := range read {
			read[i].At = records[i].At
		}
		r := Check(read, limits)
		if len(r.Problems) > 0 {
			t.Fatalf("seed %d: %+v", seed, r.Problems[:min(3, len(r.Problems))])
		}
		if r.Requests < 20 || r.Finished != r.Requests || r.Tokens == 0 || r.Resumed == 0 ||
			r.Faults["kill target"].Count != 2 || r.Faults["kill gateway"].Count != 2 || r.Quiet.Count == 0 {
			t.Fatalf("seed %d: %+v", seed, r)
		}
	}
}

// pick returns the index of a random record that a plant can change.
func pick(rng *rand.Rand, records []Record, ok func(i int) bool) int {
	for {
		if i := rng.IntN(len(records)); ok(i) {
			return i
		}
	}
}

// middle says that a record is of the middle of a stream: tokens that do not repeat those beside them, so that what is
// planted cannot be taken for something else.
func middle(records []Record, i int) bool {
	r := records[i]
	if r.Kind != Tokens || len(r.Tokens) == 0 {
		return false
	}
	count := map[Token]int{}
	for _, token := range answer(records, i) {
		count[token]++
	}
	return !slices.ContainsFunc(r.Tokens, func(token Token) bool { return count[token] > 1 })
}

// later moves a record and all after it.
func later(records []Record, from int, by time.Duration) {
	for i := from; i < len(records); i++ {
		records[i].At += by
	}
}

// quietly says that no fault was open at or around a record.
func quietly(records []Record, i int) bool {
	for _, r := range records {
		if r.Kind == Fault && r.At <= records[i].At+limits.Settle+step && records[i].At-2*step <= r.At+6*time.Second {
			return false
		}
	}
	return true
}

// parts are the indices of the tokens of a record's stream.
func parts(records []Record, i int) (at []int) {
	for k, r := range records {
		if r.Stream == records[i].Stream && r.Kind == Tokens {
			at = append(at, k)
		}
	}
	return at
}

func answer(records []Record, i int) (tokens []Token) {
	for _, k := range parts(records, i) {
		tokens = append(tokens, records[k].Tokens...)
	}
	return tokens
}

// TestPlantedFaults: every kind of fault that is planted in a clean history is reported as what it is, and as nothing
// else.
func TestPlantedFaults(t *testing.T) {
	for name, plant := range map[string]struct {
		want []string
		// with changes the records.
		with func(rng *rand.Rand, h []Record) []Record
	}{
		"a token is dropped": {[]string{Lost}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return middle(h, i) })
			k := rng.IntN(len(h[i].Tokens))
			h[i].Tokens = slices.Delete(slices.Clone(h[i].Tokens), k, k+1)
			return h
		}},
		"the last tokens are dropped": {[]string{Lost}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return h[i].Kind == End })
			for _, k := range slices.Backward(parts(h, i)) {
				if len(h[k].Tokens) > 0 {
					h[k].Tokens = nil
					return h
				}
			}
			return h
		}},
		"a token is doubled": {[]string{Doubled}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return middle(h, i) })
			k := rng.IntN(len(h[i].Tokens))
			h[i].Tokens = slices.Insert(slices.Clone(h[i].Tokens), k, h[i].Tokens[k])
			return h
		}},
		"an event is doubled": {[]string{Doubled}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return middle(h, i) && h[i].Sequence == 0 })
			return slices.Insert(h, i, h[i])
		}},
		"a token is another": {[]string{Different}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return middle(h, i) })
			h[i].Tokens = slices.Clone(h[i].Tokens)
			h[i].Tokens[rng.IntN(len(h[i].Tokens))].Text = "other"
			return h
		}},
		"a log-probability is another": {[]string{Different}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return middle(h, i) })
			h[i].Tokens = slices.Clone(h[i].Tokens)
			h[i].Tokens[rng.IntN(len(h[i].Tokens))].Logprob += "1"
			return h
		}},
		"a token too many": {[]string{Different}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return middle(h, i) })
			h[i].Tokens = append(slices.Clone(h[i].Tokens), Token{Text: "other"})
			return h
		}},
		"two streams are swapped": {[]string{Different}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return h[i].Kind == Request })
			j := pick(rng, h, func(j int) bool { return h[j].Kind == Request && h[j].Ask != h[i].Ask })
			h[i].Ask, h[j].Ask = h[j].Ask, h[i].Ask
			return h
		}},
		"an end is missing": {[]string{NoEnd}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return h[i].Kind == End })
			return slices.Delete(h, i, i+1)
		}},
		"an end without a reason": {[]string{NoEnd}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return h[i].Kind == End })
			h[i].Finish = ""
			return h
		}},
		"another reason": {[]string{Ending}, func(rng *rand.Rand, h []Record) []Record {
			h[pick(rng, h, func(i int) bool { return h[i].Kind == End })].Finish = "stop"
			return h
		}},
		"usage counts wrongly": {[]string{Ending}, func(rng *rand.Rand, h []Record) []Record {
			h[pick(rng, h, func(i int) bool { return h[i].Kind == End })].Count++
			return h
		}},
		"another contract": {[]string{Ending}, func(rng *rand.Rand, h []Record) []Record {
			h[pick(rng, h, func(i int) bool { return h[i].Kind == End })].Contract = "other"
			return h
		}},
		"an error without a fault": {[]string{Refused}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return h[i].Kind == End })
			h[i].Finish, h[i].Error = "", "unavailable"
			for k := range h { // no fault explains it any more
				if h[k].Kind == Fault {
					h[k].Type = "kill target"
				}
			}
			return withoutGaps(h)
		}},
		"a pause is too long": {[]string{Gap}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return h[i].Kind == Tokens && parts(h, i)[0] < i && quietly(h, i) })
			later(h, i, limits.Quiet+time.Millisecond)
			return h
		}},
		"a pause after a fault is too long": {[]string{Gap}, func(_ *rand.Rand, h []Record) []Record {
			i := slices.IndexFunc(h, func(r Record) bool { return r.Kind == Healed })
			later(h, i, limits.Settle+step)
			return h
		}},
		"a first token is too late": {[]string{Gap}, func(_ *rand.Rand, h []Record) []Record {
			i := slices.IndexFunc(h, func(r Record) bool { return r.Kind == Tokens }) // nothing else has begun
			later(h, i, limits.First+time.Millisecond)
			return h
		}},
		"a number is missing": {[]string{Lost, Malformed}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return middle(h, i) && h[i].Sequence > 0 })
			return slices.Delete(h, i, i+1)
		}},
		"an event after the end": {[]string{Malformed}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return h[i].Kind == End })
			return append(h, Record{Kind: Tokens, At: h[len(h)-1].At, Stream: h[i].Stream, Tokens: []Token{{Text: "x"}}})
		}},
		"nobody's event": {[]string{Malformed}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return h[i].Kind == Request })
			return slices.Insert(h, i, Record{Kind: Tokens, At: h[i].At, Stream: "nobody", Tokens: []Token{{Text: "x"}}})
		}},
		"two streams of one id": {[]string{Malformed}, func(rng *rand.Rand, h []Record) []Record {
			i := pick(rng, h, func(i int) bool { return h[i].Kind == Request })
			return slices.Insert(h, i, h[i])
		}},
		"a request without a reference": {[]string{Malformed}, func(rng *rand.Rand, h []Record) []Record {
			h[pick(rng, h, func(i int) bool { return h[i].Kind == Request })].Ask = "unknown"
			return h
		}},
		"references that differ": {[]string{Different}, func(_ *rand.Rand, h []Record) []Record {
			other := h[0]
			other.Tokens = other.Tokens[1:]
			return slices.Insert(h, 1, other)
		}},
		"a fault of an unknown type": {[]string{Malformed}, func(_ *rand.Rand, h []Record) []Record {
			i := slices.IndexFunc(h, func(r Record) bool { return r.Kind == Fault && r.Type == "kill target" })
			return slices.Insert(h, len(h), Record{Kind: Fault, At: h[len(h)-1].At, Fault: 5, Type: h[i].Type + "?"})
		}},
		"a fault that is healed twice": {[]string{Malformed}, func(_ *rand.Rand, h []Record) []Record {
			i := slices.IndexFunc(h, func(r Record) bool { return r.Kind == Healed })
			return slices.Insert(h, i, h[i])
		}},
		"time runs backwards": {[]string{Malformed}, func(_ *rand.Rand, h []Record) []Record {
			h[len(h)-1].At = h[len(h)-2].At - 1
			return h
		}},
		"an unknown kind": {[]string{Malformed}, func(_ *rand.Rand, h []Record) []Record {
			return append(h, Record{Kind: "?", At: h[len(h)-1].At})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(6) {
				rng := rand.New(rand.NewPCG(seed, 2))
				r := Check(plant.with(rng, clean(rng)), limits)
				got := kinds(r)
				if name == "two streams are swapped" { // their lengths may differ
					got = slices.DeleteFunc(got, func(kind string) bool { return kind == Lost })
				}
				if !slices.Equal(got, plant.want) {
					t.Fatalf("seed %d: %v, want %v: %+v", seed, got, plant.want, r.Problems[:min(3, len(r.Problems))])
				}
				if name == "two streams are swapped" && !strings.Contains(r.Problems[0].Text, "they are those of ask") {
					t.Errorf("seed %d: %s", seed, r.Problems[0].Text)
				}
			}
		})
	}
}

// withoutGaps puts all records at one time, where no pause is too long.
func withoutGaps(h []Record) []Record {
	for i := range h {
		h[i].At = 0
	}
	return h
}

// TestErrorsBesideFaults: an error is allowed beside a fault that may cause it. What came before must be right all the
// same, and a request that is tried again is another stream.
func TestErrorsBesideFaults(t *testing.T) {
	want := Record{Kind: Reference, Ask: "a", Finish: "stop", Count: 3,
		Tokens: []Token{{Text: "1"}, {Text: "2"}, {Text: "3"}}}
	history := func(second string) []Record {
		return []Record{
			want,
			{Kind: Request, Stream: "s", Ask: "a"},
			{Kind: Tokens, Stream: "s", Tokens: []Token{{Text: "1"}, {Text: second}}},
			{Kind: Fault, Fault: 1, Type: "kill gateway"},
			{Kind: End, Stream: "s", Error: "connection lost"},
			{Kind: Request, Stream: "again", Ask: "a"},
			{Kind: Tokens, Stream: "again", Tokens: want.Tokens},
			{Kind: End, Stream: "again", Finish: "stop", Count: 3},
		}
	}
	if r := Check(history("2"), limits); len(r.Problems) != 0 || r.Errors != 1 || r.Finished != 1 || r.Tokens != 5 {
		t.Errorf("%+v", r)
	}
	if r := Check(history("x"), limits); !slices.Equal(kinds(r), []string{Different}) || r.Different != 1 {
		t.Errorf("%+v", r)
	}
}

// TestErrorsOfOtherGateways: an error is allowed at the gateway that failed only, and where there is another gateway,
// not after a stream went on there.
func TestErrorsOfOtherGateways(t *testing.T) {
	for _, test := range []struct {
		name             string
		fails, asked     int
		resumed, several bool
		problems         []string
	}{
		{"its own", 1, 1, false, true, nil},
		{"another", 0, 1, false, true, []string{Refused}},
		{"after it went on", 1, 0, true, true, []string{Refused}},
		{"after it tried the only one again", 0, 0, true, false, nil},
	} {
		records := []Record{
			{Kind: Reference, Ask: "a", Finish: "stop", Count: 1, Tokens: []Token{{Text: "1"}}},
			{Kind: Request, Stream: "s", Ask: "a", Gateway: test.asked},
			{Kind: Fault, Fault: 1, Type: "kill gateway", Gateway: test.fails},
		}
		if test.resumed {
			records = append(records, Record{Kind: Resumed, Stream: "s", Gateway: test.fails})
		}
		records = append(records, Record{Kind: End, Stream: "s", Error: "connection lost"})
		l := limits
		l.Several = test.several
		if r := Check(records, l); !slices.Equal(kinds(r), test.problems) {
			t.Errorf("%s: %+v", test.name, r.Problems)
		}
	}
}

// TestCounts: tokens that are lost, doubled and different are counted, at the end of an answer too.
func TestCounts(t *testing.T) {
	tokens := func(text string) (out []Token) {
		for _, c := range text {
			out = append(out, Token{Text: string(c)})
		}
		return out
	}
	for _, test := range []struct {
		want, got string
		whole     bool
		d         difference
	}{
		{"abcdef", "abcdef", true, difference{0, 0, 0, 6}},
		{"abcdef", "abef", true, difference{2, 0, 0, 2}},
		{"abcdef", "abcd", true, difference{2, 0, 0, 4}},
		{"abcdef", "abcd", false, difference{0, 0, 0, 4}},
		{"abcdef", "", false, difference{0, 0, 0, 0}},
		{"abcdef", "", true, difference{6, 0, 0, 0}},
		{"abcdef", "acd", false, difference{1, 0, 0, 1}},
		{"abcdef", "abcbcdef", true, difference{0, 2, 0, 3}},
		{"abcdef", "abcdefef", true, difference{0, 2, 0, 6}},
		{"abcdef", "abXdef", true, difference{0, 0, 1, 2}},
		{"abcdef", "abXYdef", true, difference{0, 0, 2, 2}},
		{"abcdef", "abXef", true, difference{1, 0, 1, 2}},
		{"abcdef", "Xabcdef", true, difference{0, 0, 1, 0}},
		{"abcdef", "XYZ", true, difference{3, 0, 3, 0}},
	} {
		if d := compare(tokens(test.want), tokens(test.got), test.whole); d != test.d {
			t.Errorf("%s, %s: %+v, want %+v", test.want, test.got, d, test.d)
		}
	}
}

func TestReadNamesTheLine(t *testing.T) {
	_, err := Read(strings.NewReader("{\"kind\":\"end\"}\nnonsense\n"))
	if err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Error(err)
	}
}
