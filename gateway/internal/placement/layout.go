package placement

import (
	"errors"
	"fmt"
	"math"
)

// Place is a device of a rig: indices of host and device.
type Place struct{ Host, Device int }

// Stage is a range of a target's layers on a device.
type Stage struct {
	Place
	First, Last int
}

// Layout says what runs where.
type Layout struct {
	Stages []Stage
	Draft  *Place // nil = none
	Scorer *Place // nil = none
	// KV is the type of cached keys and values of target and draft.
	KV string
	// TreeRows are the rows of a verified tree, 0 without a draft.
	TreeRows int
}

// Task is what is to be placed, and the request for which layouts are compared.
type Task struct {
	Target        *Model
	Draft, Scorer *Model // nil = none
	Context       int64  // positions of a request
	Lanes         int64  // requests at a time
	Prompt        int64  // tokens of the reference request's prompt
	Answer        int64  // and of its answer
	// Accepted is an assumption: tokens that a round keeps, its own included, of a chain as long as the draft's block.
	Accepted float64
	Fixed    Fixed
}

// Fixed are the parts of a layout that the user chose; zero values leave them to the search.
type Fixed struct {
	Stages   []Place // in the order of the layers
	Split    []int   // layers of each
	Draft    *Place
	Scorer   *Place
	KV       string
	TreeRows int
	// UseDraft leaves out layouts without the task's draft.
	UseDraft bool
}

// problems names what cannot be in a task.
func (t *Task) problems(r *Rig) error {
	var errs []error
	if t.Target == nil {
		return errors.New("no target")
	}
	if t.Draft != nil && (t.Draft.Draft == nil || t.Draft.Hidden != t.Target.Hidden) {
		errs = append(errs, fmt.Errorf("draft: %q is no draft of %q", t.Draft.Name, t.Target.Name))
	}
	for _, f := range []struct {
		name  string
		value int64
	}{{"context", t.Context}, {"concurrent", t.Lanes}, {"prompt", t.Prompt}, {"answer", t.Answer}} {
		if f.value < 1 || f.value > 1<<24 {
			errs = append(errs, fmt.Errorf("%s: is %d, must be 1..%d", f.name, f.value, 1<<24))
		}
	}
	if r := t.Fixed.TreeRows; r < 0 || r > treeRows {
		errs = append(errs, fmt.Errorf("tree rows: are %d, must be at most %d", r, treeRows))
	}
	if !(t.Accepted >= 1 && t.Accepted <= float64(t.chainRows())) {
		errs = append(errs, fmt.Errorf("accepted: is %v, must be 1..%d", t.Accepted, t.chainRows()))
	}
	if n := len(t.Fixed.Split); n > 0 && n != len(t.Fixed.Stages) {
		errs = append(errs, fmt.Errorf("split: has %d numbers for %d devices", n, len(t.Fixed.Stages)))
	} else if n > 0 {
		sum := 0
		for _, l := range t.Fixed.Split {
			sum += l
		}
		if sum != len(t.Target.Layers) {
			errs = append(errs, fmt.Errorf("split: has %d layers, the model %d", sum, len(t.Target.Layers)))
		}
	}
	return errors.Join(errs...)
}

// chainRows are the rows of the chain that Accepted is of.
func (t *Task) chainRows() int {
	if t.Draft == nil || t.Draft.Draft == nil {
		return 16
	}
	return max(t.Draft.Draft.Block, 2)
}

// treeGain is what doubling the rows beyond such a chain adds to the tokens that a round keeps: an assumption like
// Task.Accepted.
const treeGain = 0.06

// chain returns the tokens that a chain of n rows keeps when each is right with probability p.
func chain(p float64, n int) float64 {
	sum, power := 0.0, 1.0
	for range n {
		sum += power
		power *= p
	}
	return sum
}

// right is the probability with which a chain of n rows keeps so many tokens.
func right(accepted float64, n int) float64 {
	low, high := 0.0, 1.0
	for range 50 {
		if p := (low + high) / 2; chain(p, n) < accepted {
			low = p
		} else {
			high = p
		}
	}
	return low
}

// kept returns the tokens that a round of so many rows keeps.
func (t *Task) kept(rows int) float64 {
	n := t.chainRows()
	if rows <= n {
		return chain(right(t.Accepted, n), rows)
	}
	return t.Accepted * (1 + treeGain*math.Log2(float64(rows)/float64(n)))
}

// sums are the sums of a model's layers before each layer, so that those of a range are differences.
type sums struct {
	read, weights, state, kv, macs []float64
}

func (m *Model) sums() sums {
	n := len(m.Layers) + 1
	s := sums{make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)}
	for i, l := range m.Layers {
		s.read[i+1] = s.read[i] + float64(l.Read)
		s.weights[i+1] = s.weights[i] + float64(l.Weights)
		s.state[i+1] = s.state[i] + float64(l.State)
		// Reading keys and values is counted as in f16 whatever their type: engines read those of fewer bits no faster.
		s.kv[i+1] = s.kv[i] + 2*float64(l.KVHeads*(l.KeyDim+l.ValueDim))
		s.macs[i+1] = s.macs[i]
		if l.KVHeads > 0 {
			s.macs[i+1] += float64(m.Heads * (l.KeyDim + l.ValueDim))
		}
	}
	return s
}

// work is a step of a stage: so many requests with so many rows each, at a context; head: rows of the head's product.
type work struct {
	requests, rows, context, head float64
}

// seconds of a step over the layers [first, last) of a model on a device.
func (c *Cost) seconds(m *Model, s *sums, first, last int, w work) float64 {
	read, rate := s.read[last]-s.read[first], c.ReadGBs*1e9
	out := c.StepUS*1e-6 + float64(last-first)*c.LayerUS*1e-6
	read += w.requests * 2 * (s.state[last] - s.state[first])
	out += (s.weights[last] - s.weights[first]) * c.more(w.requests*w.rows)
	if w.head > 0 && last == len(m.Layers) {
		head := m.head()
		read += float64(head.Read)
		out += float64(head.Weights) * c.more(w.head)
	}
	read += w.requests * w.context * (s.kv[last] - s.kv[first])
	out += w.requests * w.rows * w.context * (s.macs[last] - s.macs[first]) / (c.AttentionGMACs * 1e9)
	return out + read/rate
}

// predictor predicts layouts of a task on a rig.
type predictor struct {
	rig         *Rig
	task        *Task
	target      sums
	draft       sums
	draftTables Model // the draft with the target's head
	rows        []int // widths of trees that are compared
	kept        [treeRows + 1]float64
}

func newPredictor(r *Rig, t *Task) *predictor {
	p := &predictor{rig: r, task: t, target: t.Target.sums()}
	if t.Draft != nil {
		p.draft = t.Draft.sums()
		p.draftTables = *t.Draft
		p.draftTables.Head, p.draftTables.Tied = t.Target.head(), false
		p.rows = []int{4, 6, 8, 12, 16, 23, 32, 48, treeRows}
		if t.Fixed.TreeRows > 0 {
			p.rows = []int{t.Fixed.TreeRows}
		}
		for _, r := range p.rows {
			p.kept[r] = t.kept(r)
		}
	}
	return p
}

func (p *predictor) device(at Place) *Device { return &p.rig.Hosts[at.Host].Devices[at.Device] }

// step is the time of a step in stage i of a layout, without its way there.
func (p *predictor) step(l *Layout, i int, w work) float64 {
	s := l.Stages[i]
	return p.device(s.Place).Cost.seconds(p.task.Target, &p.target, s.First, s.Last, w)
}

// hop is the time of the rows' way to stage i, and of their way back to the head where it is on another host: rows of
// stages on other hosts pass the head.
func (p *predictor) hop(l *Layout, i int, rows float64) float64 {
	if i == 0 {
		return 0
	}
	path, ok := p.rig.link(l.Stages[0].Host, l.Stages[i].Host)
	if !ok {
		return math.Inf(1)
	}
	bytes := int64(rows) * p.task.Target.Hidden * 4
	if l.Stages[i].Host != l.Stages[0].Host && i < len(l.Stages)-1 {
		bytes *= 2
	}
	return path.seconds(bytes)
}

// firstToken is the time until a prompt of n tokens has its first token: its pieces follow each other through the
// stages.
func (p *predictor) firstToken(l *Layout, n int64) float64 {
	var free [maxStages]float64 // by stage: when its device is free again
	done := 0.0
	for at := int64(0); at < n; at += batchRows {
		rows := float64(min(batchRows, n-at))
		w := work{requests: 1, rows: rows, context: float64(at) + rows/2}
		if at+batchRows >= n {
			w.head = 1
		}
		done = 0
		for i := range l.Stages {
			begin := max(done+p.hop(l, i, rows), free[i])
			done = begin + p.step(l, i, w)
			for j := range l.Stages {
				if l.Stages[j].Place == l.Stages[i].Place {
					free[j] = done
				}
			}
		}
	}
	return done + p.rig.Hosts[l.Stages[0].Host].RoundUS*1e-6
}

// propose is the time of a draft's proposals for so many requests, and of the way there and back.
func (p *predictor) propose(l *Layout, requests, context, keptTokens float64) float64 {
	d, shape := p.task.Draft, p.task.Draft.Draft
	if shape.Window > 0 {
		context = min(context, float64(shape.Window)) // but for the layers without a window, of which there is one in five
	}
	path, ok := p.rig.link(l.Stages[0].Host, l.Draft.Host)
	if !ok {
		return math.Inf(1)
	}
	rows := requests * float64(shape.Block)
	out := p.device(*l.Draft).Cost.seconds(&p.draftTables, &p.draft, 0, len(d.Layers),
		work{requests: requests, rows: float64(shape.Block), context: context, head: rows})
	return out + path.seconds(int64(requests*keptTokens)*d.Hidden*2)
}

// perToken is the time of a token of each of n requests at a context, with rows of a tree for each round; rows 1 is
// plain decoding.
func (p *predictor) perToken(l *Layout, n, context float64, rows int) float64 {
	tokens := 1.0
	if rows > 1 {
		tokens = p.kept[rows]
	}
	best := math.Inf(1)
	// One group of all requests, or as many groups as stages, which take turns in them.
	for _, groups := range []float64{1, min(n, float64(len(l.Stages)))} {
		each := math.Ceil(n / groups)
		w := work{requests: each, rows: float64(rows), context: context, head: each * float64(rows)}
		alone := p.rig.Hosts[l.Stages[0].Host].RoundUS * 1e-6
		if rows > 1 {
			alone += p.propose(l, each, context, tokens)
		}
		var busy [maxStages]float64
		for i := range l.Stages {
			step := p.step(l, i, w)
			alone += step + p.hop(l, i, each*float64(rows))
			for j := range l.Stages {
				if l.Stages[j].Place == l.Stages[i].Place {
					busy[j] += step
					break
				}
			}
		}
		period := alone
		for _, b := range busy {
			period = max(period, groups*b)
		}
		best = min(best, period)
	}
	return best / tokens
}

// reference is the time of the reference request, and the rows of a tree with which it is shortest.
func (p *predictor) reference(l *Layout) (seconds float64, rows int) {
	t := p.task
	n, context := float64(t.Lanes), float64(t.Prompt)+float64(t.Answer)/2
	first := n * p.firstToken(l, t.Prompt)
	if l.Draft == nil {
		return first + float64(t.Answer)*p.perToken(l, n, context, 1), 0
	}
	seconds = math.Inf(1)
	for _, r := range p.rows {
		if s := first + float64(t.Answer)*p.perToken(l, n, context, r); s < seconds {
			seconds, rows = s, r
		}
	}
	return seconds, rows
}

// StepBytes are the bytes that a step of one row reads in the layers [first, last), states included, which are read and
// written; and the products of each row. Those of the head are HeadBytes.
func (m *Model) StepBytes(first, last int) (read, weights int64) {
	for _, l := range m.Layers[first:last] {
		read += l.Read + 2*l.State
		weights += l.Weights
	}
	return read, weights
}

// HeadBytes are what a step reads of the head, and the products of each row with it.
func (m *Model) HeadBytes() (read, weights int64) {
	h := m.head()
	return h.Read, h.Weights
}

// AttentionBytes are the bytes of keys and values that a step reads for each cached position in the layers
// [first, last), counted in f16, and the products of each row with them.
func (m *Model) AttentionBytes(first, last int) (read, products int64) {
	s := m.sums()
	return int64(s.kv[last] - s.kv[first]), int64(s.macs[last] - s.macs[first])
}
