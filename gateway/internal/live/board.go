// Package live shows what happens in the cluster now: requests with their phases, and the rounds of the targets.
//
// The Board lists the requests at work; generations write into it. The Service watches the workers' rounds while
// somebody looks, and hands each watcher what it may see: numbers of all requests, texts of its own alone. Its lock
// comes before the Board's.
package live

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/tandem-inference/tandem/services/tokenizer"
)

const (
	// keepEnded is how many requests that are over are still listed: as many as the page has room for.
	keepEnded = 12
	// lateEvents is how long the rounds of a request that is over may still come: a gateway's buffers and a worker's.
	lateEvents = 5 * time.Second
)

// Phases of a request, in their order. Render and tokenize are over before it is listed.
const (
	PhaseCompress = "compress"
	PhaseQueue    = "queue"
	PhasePrefill  = "prefill"
	PhaseDecode   = "decode"
	PhaseDone     = "done"
)

// Board lists the requests at work and those that ended last. A nil Board lists none.
type Board struct {
	mu      sync.Mutex // guards the fields below and those of requests that are not atomic
	next    uint64
	running map[*Request]struct{}
	ended   []*Request // newest last
	watches map[uint64]*choice
}

// NewBoard returns an empty one.
func NewBoard() *Board {
	return &Board{running: map[*Request]struct{}{}, watches: map[uint64]*choice{}}
}

// Request is one that is listed. Methods of a nil Request do nothing.
type Request struct {
	board   *Board
	ref     uint64 // stands for the id where that is not shown
	id      string
	owner   string
	arrived time.Time
	tokens  atomic.Int64

	worker  string
	phase   string
	since   time.Time // of the phase
	took    map[string]time.Duration
	endedAt time.Time
	outcome string
	figures Figures
	choices map[int]uint64
}

// Figures are what a request that is over reports of itself.
type Figures struct {
	PromptTokens, CachedTokens, CompletionTokens int
	Drafted, Accepted, Rounds                    int64
	Restore                                      time.Duration
}

// choice is one output of a request, as its rounds tell it.
type choice struct {
	request *Request
	index   int
	rest    []byte // begin of a character whose end comes with the next token
}

// Begin lists a request of the API key's scope owner.
func (b *Board) Begin(id, owner string, arrived time.Time) *Request {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	r := &Request{board: b, ref: b.next, id: id, owner: owner, arrived: arrived, since: time.Now(),
		took: map[string]time.Duration{}, choices: map[int]uint64{}}
	b.running[r] = struct{}{}
	return r
}

// Phase begins a phase, if it is not the present one.
func (r *Request) Phase(name string) {
	if r == nil {
		return
	}
	r.board.mu.Lock()
	defer r.board.mu.Unlock()
	r.enter(name)
}

// enter ends the phase before. The caller holds the board's lock.
func (r *Request) enter(name string) {
	if r.phase == name {
		return
	}
	now := time.Now()
	if r.phase != "" {
		r.took[r.phase] += now.Sub(r.since)
	}
	r.phase, r.since = name, now
}

// At names the worker that a choice runs on.
func (r *Request) At(worker string) {
	if r == nil {
		return
	}
	r.board.mu.Lock()
	defer r.board.mu.Unlock()
	r.worker = worker
}

// Tokens counts output.
func (r *Request) Tokens(n int) {
	if r != nil {
		r.tokens.Add(int64(n))
	}
}

// Watch is the number under which workers describe the rounds of a choice. It is random: whoever chooses the id of a
// request like that of another sees nothing of that other one.
func (r *Request) Watch(index int) uint64 {
	if r == nil {
		return 0
	}
	r.board.mu.Lock()
	defer r.board.mu.Unlock()
	if n, ok := r.choices[index]; ok {
		return n
	}
	n := rand.Uint64() | 1 // never 0, which would mean that it is not shown
	r.choices[index] = n
	r.board.watches[n] = &choice{request: r, index: index}
	return n
}

// End notes that a request is over.
func (r *Request) End(outcome string, f Figures) {
	if r == nil {
		return
	}
	b := r.board
	b.mu.Lock()
	defer b.mu.Unlock()
	r.enter(PhaseDone)
	r.endedAt, r.outcome, r.figures = r.since, outcome, f
	delete(b.running, r)
	b.ended = append(b.ended, r)
	// Rounds may come late; of requests that are long over none does.
	for len(b.ended) > 0 && len(b.ended) > keepEnded {
		b.forget(b.ended[0])
		b.ended = b.ended[1:]
	}
	for _, old := range b.ended {
		if r.endedAt.Sub(old.endedAt) > lateEvents {
			b.forget(old)
		}
	}
}

// forget drops the numbers of a request. The caller holds mu.
func (b *Board) forget(r *Request) {
	for _, n := range r.choices {
		delete(b.watches, n)
	}
	clear(r.choices)
}

// Viewer says what a watcher may see.
type Viewer struct {
	Owner string // scope of its API key
	All   bool   // no keys are asked for: everything is one user's
}

func (v Viewer) owns(r *Request) bool { return v.All || v.Owner != "" && v.Owner == r.owner }

// View is a request as a watcher sees it.
type View struct {
	Ref     uint64             `json:"ref"`
	ID      string             `json:"id,omitempty"` // of its own requests
	Own     bool               `json:"own"`
	Worker  string             `json:"worker,omitempty"`
	Phase   string             `json:"phase"`
	Phases  map[string]float64 `json:"phases_ms"` // so far
	AgeMS   float64            `json:"age_ms"`
	Tokens  int64              `json:"tokens"`
	Outcome string             `json:"outcome,omitempty"` // once it is over
	// Of one that is over.
	PromptTokens int     `json:"prompt_tokens,omitempty"`
	CachedTokens int     `json:"cached_tokens,omitempty"`
	RestoreMS    float64 `json:"restore_ms,omitempty"`
	Drafted      int64   `json:"drafted_tokens,omitempty"`
	Accepted     int64   `json:"accepted_tokens,omitempty"`
	Rounds       int64   `json:"rounds,omitempty"`
}

// Requests lists those at work and those that ended last, oldest first.
func (b *Board) Requests(v Viewer) []View {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	list := make([]View, 0, len(b.running)+len(b.ended))
	add := func(r *Request) {
		e := View{Ref: r.ref, Own: v.owns(r), Worker: r.worker, Phase: r.phase, Phases: map[string]float64{},
			Tokens: r.tokens.Load(), Outcome: r.outcome, PromptTokens: r.figures.PromptTokens,
			CachedTokens: r.figures.CachedTokens, RestoreMS: ms(r.figures.Restore), Drafted: r.figures.Drafted,
			Accepted: r.figures.Accepted, Rounds: r.figures.Rounds}
		if e.Own {
			e.ID = r.id
		}
		for name, d := range r.took {
			e.Phases[name] = ms(d)
		}
		if r.endedAt.IsZero() {
			e.Phases[r.phase] += ms(now.Sub(r.since))
			e.AgeMS = ms(now.Sub(r.arrived))
		} else {
			e.AgeMS = ms(r.endedAt.Sub(r.arrived))
		}
		list = append(list, e)
	}
	for r := range b.running {
		add(r)
	}
	for _, r := range b.ended {
		add(r)
	}
	slices.SortFunc(list, func(a, b View) int { return int(a.Ref) - int(b.Ref) })
	return list
}

// find returns the output that a number stands for; nil when it is over for long, or of another gateway.
func (b *Board) find(watch uint64) *choice {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.watches[watch]
}

// texts turns the tokens of an output into texts, each as far as its characters are complete.
func (c *choice) texts(tok *tokenizer.Tokenizer, tokens []int32) []string {
	out := make([]string, len(tokens))
	for i, id := range tokens {
		c.rest = append(c.rest, tok.TokenBytes(id)...)
		n := complete(c.rest)
		out[i] = string(c.rest[:n])
		c.rest = append(c.rest[:0], c.rest[n:]...)
	}
	return out
}

// complete is how many bytes of text come before a character whose end is missing.
func complete(text []byte) int {
	for i := len(text) - 1; i >= max(0, len(text)-utf8.UTFMax); i-- {
		if utf8.RuneStart(text[i]) {
			if utf8.FullRune(text[i:]) {
				break
			}
			return i
		}
	}
	return len(text)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
