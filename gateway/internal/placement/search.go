package placement

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/device"
)

const (
	maxStages  = 4 // stages of a layout; raising it multiplies the layouts that are compared
	mostLanes  = 8 // requests at a time that a plan looks for room for
	mostShown  = 4 // layouts that a plan shows beside the best
	cpuThreads = 16
)

// ladder are the types of cached keys and values in the order in which they are tried: the first with which a layout
// fits is taken, as the engine does.
var ladder = []string{"f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "tq3_0"}

// Figures are what is predicted of a layout.
type Figures struct {
	Reference float64 // seconds of the reference request
	// Tokens a second of one request alone, at contexts of 1K and 32K; speculative ones are 0 without a draft, and those
	// of contexts longer than the plan's are 0.
	Plain1K, Plain32K float64
	Spec1K, Spec32K   float64
	// Seconds until the first token of prompts of 4K and 16K tokens.
	First4K, First16K float64
}

// Candidate is a layout with what is predicted of it.
type Candidate struct {
	Layout  Layout
	Figures Figures
}

// Plan is the result of a search.
type Plan struct {
	Rig      *Rig
	Task     *Task
	Best     Candidate
	Others   []Candidate // the best layouts with other devices, in order of their time
	Longest  int64       // context that would fit the best layout with its types
	Most     int64       // requests at a time that would, at most mostLanes
	Warnings []string
}

// ErrNoFit says that no layout fits.
var ErrNoFit = errors.New("no layout fits")

// search goes through the layouts of a task on a rig.
type search struct {
	*predictor
	memo map[memoKey]int64
	best map[string]Candidate // by devices of stages and draft
}

type memoKey struct {
	first, last int
	kv          string
	card, draft bool
	lanes, ctx  int64
}

// Search returns the plan with the shortest reference time; of those that are equal the one with the fewest processes.
// The error matches ErrNoFit when there is no room, and says what would fit.
func Search(r *Rig, t *Task) (*Plan, error) {
	if err := t.problems(r); err != nil {
		return nil, err
	}
	s := newSearch(r, t)
	s.run()
	if len(s.best) == 0 {
		return nil, s.noFit()
	}
	all := make([]Candidate, 0, len(s.best))
	for _, c := range s.best {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(a.Figures.Reference, b.Figures.Reference),
			cmp.Compare(a.Layout.processes(), b.Layout.processes()), strings.Compare(s.key(&a.Layout), s.key(&b.Layout)))
	})
	p := &Plan{Rig: r, Task: t}
	shown := map[string]bool{}
	for i := range all {
		// Layouts that differ in which of two equal cards has what are shown once.
		if alike := s.alike(&all[i].Layout); shown[alike] {
			continue
		} else if shown[alike] = true; len(shown) > mostShown+1 {
			break
		}
		s.figures(&all[i])
		p.Others = append(p.Others, all[i])
	}
	p.Best, p.Others = p.Others[0], p.Others[1:]
	p.Longest, p.Most = s.longest(&p.Best.Layout), s.most(&p.Best.Layout)
	p.Warnings = s.warnings(p)
	return p, nil
}

func newSearch(r *Rig, t *Task) *search {
	return &search{predictor: newPredictor(r, t), memo: map[memoKey]int64{}, best: map[string]Candidate{}}
}

// processes of engines.
func (l *Layout) processes() int {
	n := len(l.Stages)
	if l.Draft != nil {
		n++
	}
	if l.Scorer != nil {
		n++
	}
	return n
}

// key names the devices of stages and draft.
func (s *search) key(l *Layout) string {
	var b strings.Builder
	for _, st := range l.Stages {
		fmt.Fprintf(&b, "%d.%d ", st.Host, st.Device)
	}
	if l.Draft != nil {
		fmt.Fprintf(&b, "d%d.%d", l.Draft.Host, l.Draft.Device)
	}
	return b.String()
}

// alike is the key of a layout in terms of cards; a device that occurs again is named by its first stage.
func (s *search) alike(l *Layout) string {
	var b strings.Builder
	name := func(p Place, before []Stage) {
		if i := slices.IndexFunc(before, func(st Stage) bool { return st.Place == p }); i >= 0 {
			fmt.Fprintf(&b, "%d;", i)
			return
		}
		fmt.Fprintf(&b, "%s@%d;", s.device(p).Card, p.Host)
	}
	for i, st := range l.Stages {
		name(st.Place, l.Stages[:i])
	}
	if b.WriteByte('+'); l.Draft != nil {
		name(*l.Draft, l.Stages)
	}
	return b.String()
}

// places are all devices of the rig.
func (s *search) places() (all []Place) {
	for h, host := range s.rig.Hosts {
		for d := range host.Devices {
			all = append(all, Place{h, d})
		}
	}
	return all
}

// run looks at every order of up to maxStages devices.
func (s *search) run() {
	if fixed := s.task.Fixed.Stages; len(fixed) > 0 {
		s.splits(fixed)
		return
	}
	places := s.places()
	var chosen []Place
	var extend func()
	extend = func() {
		if len(chosen) > 0 {
			s.splits(chosen)
		}
		if len(chosen) == min(maxStages, len(s.task.Target.Layers)) {
			return
		}
		for _, p := range places {
			if slices.Contains(chosen, p) || !s.reaches(chosen, p) {
				continue
			}
			chosen = append(chosen, p)
			extend()
			chosen = chosen[:len(chosen)-1]
		}
	}
	extend()
}

// reaches reports whether p may be the stage after those chosen: the head's own devices come first, then those of hosts
// with a link to it.
func (s *search) reaches(chosen []Place, p Place) bool {
	if len(chosen) == 0 {
		return true
	}
	head := chosen[0].Host
	if p.Host == head {
		return chosen[len(chosen)-1].Host == head
	}
	_, ok := s.rig.link(head, p.Host)
	return ok
}

// splits tries the ways to divide the layers among devices.
func (s *search) splits(places []Place) {
	n := len(s.task.Target.Layers)
	stages := make([]Stage, len(places))
	for i, p := range places {
		stages[i].Place = p
	}
	if split := s.task.Fixed.Split; len(split) > 0 {
		at := 0
		for i, layers := range split {
			stages[i].First, stages[i].Last = at, at+layers
			at += layers
		}
		s.drafts(stages)
		return
	}
	// All ways for two or three devices; for more those at multiples of a sixteenth.
	grid := 1
	if len(places) > 3 {
		grid = max(1, n/16)
	}
	var divide func(i, first int)
	divide = func(i, first int) {
		stages[i].First = first
		if i == len(stages)-1 {
			stages[i].Last = n
			s.drafts(stages)
			return
		}
		for last := first + grid; last <= n-(len(stages)-1-i); last += grid {
			stages[i].Last = last
			divide(i+1, last)
		}
	}
	if len(places) <= n {
		divide(0, 0)
	}
}

// drafts tries the places of a draft, and none.
func (s *search) drafts(stages []Stage) {
	l := Layout{Stages: stages}
	switch fixed := s.task.Fixed.Draft; {
	case s.task.Draft == nil:
		s.try(l)
	case fixed != nil:
		l.Draft = fixed
		s.try(l)
	default:
		if !s.task.Fixed.UseDraft {
			s.try(l)
		}
		for _, p := range s.places() {
			if _, ok := s.rig.link(stages[0].Host, p.Host); ok {
				l.Draft = &p
				s.try(l)
			}
		}
	}
}

// try keeps a layout if it fits and is the best with its devices.
func (s *search) try(l Layout) {
	seconds, rows := s.reference(&l)
	key := s.key(&l)
	if before, ok := s.best[key]; ok && before.Figures.Reference <= seconds || math.IsInf(seconds, 1) {
		return
	}
	if !s.fit(&l) {
		return
	}
	l.TreeRows = rows
	l.Stages = slices.Clone(l.Stages)
	s.best[key] = Candidate{Layout: l, Figures: Figures{Reference: seconds}}
}

// fit chooses the type of keys and values and the scorer's place: the most accurate type with which everything fits. A
// scorer is left out only if there is no room for it with any type.
func (s *search) fit(l *Layout) bool {
	types := ladder
	if s.task.Fixed.KV != "" {
		types = []string{s.task.Fixed.KV}
	}
	scorers := []*Place{nil}
	if s.task.Scorer != nil {
		scorers = nil
		if p := s.task.Fixed.Scorer; p != nil {
			scorers = []*Place{p}
		} else {
			for _, p := range s.places() {
				if p.Host == l.Stages[0].Host {
					scorers = append(scorers, &p)
				}
			}
			// The scorer goes where steps of many rows are fastest.
			slices.SortStableFunc(scorers, func(a, b *Place) int {
				return cmp.Compare(s.device(*a).Cost.more(batchRows), s.device(*b).Cost.more(batchRows))
			})
			scorers = append(scorers, nil)
		}
	}
	for _, withScorer := range []bool{true, false} {
		for _, l.KV = range types {
			for _, l.Scorer = range scorers {
				if s.task.Scorer != nil && withScorer != (l.Scorer != nil) {
					continue
				}
				if s.room(l, s.task.Context) {
					return true
				}
			}
		}
	}
	return false
}

// room reports whether every device has room for what a layout puts on it.
func (s *search) room(l *Layout, context int64) bool {
	for h := range s.rig.Hosts {
		for d := range s.rig.Hosts[h].Devices {
			if at := (Place{h, d}); s.taken(l, at, context) > int64(s.device(at).Free) {
				return false
			}
		}
	}
	return true
}

// taken are the bytes that a layout takes of a device.
func (s *search) taken(l *Layout, at Place, context int64) (bytes int64) {
	for _, u := range s.uses(l, at, context, true) {
		bytes += u.Bytes
	}
	return bytes
}

// Use is what one engine takes of a device.
type Use struct {
	What   string
	Bytes  int64
	Memory Memory
}

// uses lists the engines of a device. With totals Memory of the target's may be left empty.
func (s *search) uses(l *Layout, at Place, context int64, totals bool) (all []Use) {
	card := isCard(s.device(at).Name)
	r := Room{Context: context, Lanes: s.task.Lanes, KV: l.KV, Threads: cpuThreads}
	var draft *Model
	if l.Draft != nil {
		draft = s.task.Draft
	}
	for _, st := range l.Stages {
		if st.Place != at {
			continue
		}
		k := memoKey{st.First, st.Last, l.KV, card, draft != nil, r.Lanes, context}
		bytes, ok := s.memo[k]
		var m Memory
		if !ok || !totals {
			m = s.task.Target.TargetMemory(st.First, st.Last, r, draft, card)
			bytes = m.Total()
			s.memo[k] = bytes
		}
		what := "target"
		if len(l.Stages) > 1 {
			if what = fmt.Sprintf("layers %d–%d", st.First, st.Last-1); st.Last == st.First+1 {
				what = fmt.Sprintf("layer %d", st.First)
			}
		}
		all = append(all, Use{what, bytes, m})
	}
	if l.Draft != nil && *l.Draft == at {
		m := s.task.Draft.DraftMemory(s.task.Target, r, card)
		all = append(all, Use{"draft", m.Total(), m})
	}
	if l.Scorer != nil && *l.Scorer == at {
		m := s.task.Scorer.ScorerMemory(r, card)
		all = append(all, Use{"scorer", m.Total(), m})
	}
	return all
}

// isCard reports whether a device is one whose driver takes memory for each process.
func isCard(name string) bool {
	d, err := device.Parse(name)
	return err == nil && d.Backend != "cpu"
}

// longest is the longest context that fits a layout as it is, at most the model's.
func (s *search) longest(l *Layout) int64 {
	low, high := s.task.Context, max(s.task.Target.Context, s.task.Context)
	for low < high {
		if middle := low + (high-low+1)/2; s.room(l, middle) {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}

// most is the largest number of requests at a time that fits a layout as it is, at most mostLanes.
func (s *search) most(l *Layout) int64 {
	n := s.task.Lanes
	for n < mostLanes {
		more := *s.task
		more.Lanes = n + 1
		if !newSearch(s.rig, &more).room(l, more.Context) {
			break
		}
		n++
	}
	return n
}

// figures predicts the rest of a candidate.
func (s *search) figures(c *Candidate) {
	l, f := &c.Layout, &c.Figures
	const short, long = 1024, 32768
	rate := func(context float64, rows int) float64 { return 1 / s.perToken(l, 1, context, rows) }
	spec := func(context float64) (best float64) {
		if l.Draft == nil {
			return 0
		}
		for _, r := range s.rows {
			best = max(best, rate(context, r))
		}
		return best
	}
	f.Plain1K, f.Spec1K, f.First4K = rate(short, 1), spec(short), s.firstToken(l, 4096)
	if s.task.Context >= 16384 {
		f.First16K = s.firstToken(l, 16384)
	}
	if s.task.Context >= long {
		f.Plain32K, f.Spec32K = rate(long, 1), spec(long)
	}
}

// noFit explains why nothing fits, and what would.
func (s *search) noFit() error {
	t := *s.task
	free, largest := int64(0), int64(0)
	for _, p := range s.places() {
		free += int64(s.device(p).Free)
		largest = max(largest, int64(s.device(p).Free))
	}
	lines := []string{fmt.Sprintf("%s takes %s of weights, and the devices have %s free, the largest %s", t.Target.Name,
		config.Size(t.Target.packedBytes()).Human(), config.Size(free).Human(), config.Size(largest).Human())}
	fits := func(change Task) bool {
		other := newSearch(s.rig, &change)
		other.run()
		return len(other.best) > 0
	}
	if t.Lanes > 1 {
		one := t
		one.Lanes = 1
		if fits(one) {
			lines = append(lines, "one request at a time would fit")
		}
	}
	for context := t.Context / 2; context >= 512; context /= 2 {
		less := t
		less.Context = context
		if fits(less) {
			lines = append(lines, fmt.Sprintf("a context of %d would fit", context))
			break
		}
		if less.Lanes = 1; t.Lanes > 1 && fits(less) {
			lines = append(lines, fmt.Sprintf("one request at a time with a context of %d would fit", context))
			break
		}
	}
	if t.Fixed.KV != "" {
		free := t
		free.Fixed.KV = ""
		if fits(free) {
			lines = append(lines, "another type of cached keys and values would fit")
		}
	}
	if len(lines) == 1 {
		// Roughly what is left for weights when states, working memory and drivers have theirs.
		if room := free*9/10 - (1 << 30); room > 0 {
			lines = append(lines, fmt.Sprintf("a file of about %s would fit: one of fewer bits a weight, or a smaller model",
				config.Size(room).Human()))
		}
	}
	return fmt.Errorf("%w: %s", ErrNoFit, strings.Join(lines, "; "))
}

// warnings are what the user should read beside a plan.
func (s *search) warnings(p *Plan) (out []string) {
	t, l := s.task, &p.Best.Layout
	if l.KV != ladder[0] && t.Fixed.KV == "" {
		out = append(out, fmt.Sprintf("keys and values are stored as %s: with %s this layout does not fit %d × %d tokens", l.KV,
			ladder[max(slices.Index(ladder, l.KV)-1, 0)], t.Lanes, t.Context))
	}
	if t.Draft != nil && l.Draft == nil {
		i := slices.IndexFunc(p.Others, func(c Candidate) bool { return c.Layout.Draft != nil })
		switch {
		case i >= 0:
			out = append(out, fmt.Sprintf("the draft is left out: with it the request takes %s",
				seconds(p.Others[i].Figures.Reference)))
		default:
			out = append(out, "the draft is left out: no device has room for it beside the target")
		}
	}
	if t.Scorer != nil && l.Scorer == nil {
		out = append(out, "the scorer is left out: no device of the head's host has room for it")
	}
	if p.Longest < t.Target.Context {
		out = append(out, fmt.Sprintf("the longest context that fits this layout is %d tokens, the model's is %d", p.Longest,
			t.Target.Context))
	}
	if p.Most > t.Lanes {
		out = append(out, fmt.Sprintf("%d requests at a time of as many tokens would fit this layout", p.Most))
	}
	table := map[string]bool{}
	for _, at := range s.used(l) {
		if d := s.device(at); d.Origin == Table {
			table[d.Card] = true
		}
	}
	if len(table) > 0 {
		var names []string
		for name := range table {
			names = append(names, name)
		}
		slices.Sort(names)
		out = append(out, fmt.Sprintf("figures of %s are from the table, not measured: tandem probe measures them",
			strings.Join(names, ", ")))
	}
	return out
}

// used are the devices of a layout, each once.
func (s *search) used(l *Layout) (all []Place) {
	add := func(p Place) {
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	for _, st := range l.Stages {
		add(st.Place)
	}
	if l.Draft != nil {
		add(*l.Draft)
	}
	if l.Scorer != nil {
		add(*l.Scorer)
	}
	return all
}
