// Package reuse decides which states one request restores from the prefix cache and which it saves there.
//
// The look-up is for the longest state that the prompt begins with, which leaves at least one token to read. Where
// prompts have bits of their own it must end at a border of this prompt (package piece); elsewhere every cut has the
// same bits.
//
// Of the borders that the request reads, these are saved:
//
//	system    the end of the first message: system text and tools, which sessions share
//	turn      the end of the message before the last one: where an edited or another question branches off
//	last      the last border of the prompt
//	thinned   those about 512·2^k tokens before the end: an edit in a history costs at most about half of what follows
//	hints     those at or below positions that the client names
//	newest    every border, until the next one is saved: what is left when the client gives up
//	answer    the end of what was generated, where every cut has the same bits
//	interval  borders so many tokens apart, where the cache keeps files and wants them
//
// Of these system, turn, last, hints, answer and interval are written to disk, if the cache does that.
//
// The request waits while a state is made: with recurrent states of 150 MB on a card that takes as long as reading a
// thousand tokens. So the measured time of a save is compared with that of the tokens read since the one before
// (worth), and thinned and newest are left out first.
package reuse

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
)

// Request holds a request's settings of reuse. The zero value looks up and saves.
type Request struct {
	Space string  // states are shared with requests of the same one
	Hints []int32 // positions in the prompt whose states may be asked for
	Off   bool    // neither look up nor save
	// SaveOnly is for requests that need the results of every row of the prompt.
	SaveOnly bool
	// Peer is another worker that may hold a longer state of the prompt, nil = nobody is known.
	Peer prefix.Peer
	// Ahead is when the prompt was left to be read ahead, the zero time for a request.
	Ahead time.Time
}

// Class is a set of kinds of borders.
type Class uint

// Classes of borders.
const (
	System Class = 1 << iota
	Turn
	Last
	Thinned
	Hints
	Newest
	Answer
	Interval

	All = System | Turn | Last | Thinned | Hints | Newest | Answer | Interval
)

// Cache is the used part of the prefix cache; *prefix.Cache implements it.
type Cache interface {
	Find(ctx context.Context, space string, tokens []int32, fits func(length int) bool) *prefix.Entry
	Fetch(ctx context.Context, best *prefix.Entry, space string, tokens []int32, fits func(length int) bool,
		p prefix.Peer) *prefix.Entry
	Restore(ctx context.Context, e *prefix.Entry, s engine.Sequence) error
	Save(space string, tokens []int32, s engine.Sequence, f prefix.Features) (e *prefix.Entry, made bool)
	Drop(e *prefix.Entry)
	Persist(e *prefix.Entry, fresh int)
	Interval() int
	Relieve(use engine.Target) bool
	Freed()
	FindAhead(space string, tokens []int32, fits func(length int) bool) *prefix.Entry
	RestoreAhead(ctx context.Context, e *prefix.Entry, s engine.Sequence) (tokens int, err error)
	SaveAhead(space string, tokens []int32, s engine.Sequence, f prefix.Features, a prefix.Ahead) (*prefix.Entry, bool)
	Release(e *prefix.Entry)
	Longest(space string, tokens []int32, fits func(length int) bool) int
}

// Reuse is that of one request after another. Its memory is kept between them.
type Reuse struct {
	cache   Cache
	classes Class

	req    Request
	engine engine.Target
	prompt []int32
	cuts   piece.Cuts
	free   bool            // every cut has the same bits
	keep   []int           // borders that are to be saved for good, ascending
	must   []int           // those of keep that are more than thinned ones, in any order
	rows   *prefix.Rows    // that came with the restored state
	ring   *drafts.Ring    // nil = no features are captured
	kind   *drafts.Capture // what the ring holds
	newest *prefix.Entry   // made by this request, to be dropped when it has a newer one
	mark   time.Time       // the end of the last restore or save, or the start
	cost   time.Duration   // of a save, the least of the last ones
	saves  int             // that were measured
	// Tokens of the restored state and of the longest one of the prompt that this request added.
	restored, saved int
	// Tokens between two states of the class Interval, 0 = there are none, and of the last one or the restored state.
	interval, passed int
	ahead            int // tokens that were read ahead for the restored state
	shared           int // position of a state that may be restored although it is no border, 0 = none
}

// New returns the reuse of a slot. cache is nil when nothing is kept.
func New(cache Cache, classes Class) Reuse { return Reuse{cache: cache, classes: classes} }

// Start begins a request on an engine, whose prompt has the given cuts.
func (r *Reuse) Start(req Request, e engine.Target, prompt []int32, cuts piece.Cuts) {
	r.req, r.engine, r.prompt, r.cuts, r.free = req, e, prompt, cuts, e.Info().PromptRows == 0
	r.rows, r.ring, r.kind, r.newest = nil, nil, nil, nil
	r.restored, r.saved, r.shared, r.passed, r.ahead = 0, 0, 0, 0, 0
	r.keep, r.must, r.mark = r.keep[:0], r.must[:0], time.Now()
	if r.On() {
		r.plan()
		r.interval = r.cache.Interval()
	}
}

// On reports whether the request uses the cache.
func (r *Reuse) On() bool { return r.cache != nil && !r.req.Off }

// plan lists the borders to be saved.
func (r *Reuse) plan() {
	add := func(class Class, position int) {
		if r.classes&class == 0 {
			return
		}
		border := r.cuts.Below(position)
		r.keep = append(r.keep, border)
		if class != Thinned {
			r.must = append(r.must, border)
		}
	}
	n, ends := len(r.prompt), r.cuts.Messages
	if len(ends) > 0 {
		add(System, ends[0])
	}
	if len(ends) > 1 {
		add(Turn, ends[len(ends)-2])
	}
	add(Last, n)
	for distance := piece.Grid; distance < n; distance *= 2 {
		add(Thinned, n-distance)
	}
	for _, h := range r.req.Hints {
		add(Hints, int(h))
	}
	slices.Sort(r.keep)
	r.keep = slices.Compact(r.keep)
}

// Restore restores the longest state that fits into an empty sequence and returns its length, 0 if there is none. After
// an error the sequence is of no use and the caller goes on with another one.
func (r *Reuse) Restore(ctx context.Context, s engine.Sequence) (int, error) {
	if !r.On() || r.req.SaveOnly {
		return 0, nil
	}
	tokens := r.prompt[:len(r.prompt)-1]
	e := r.cache.Find(ctx, r.req.Space, tokens, r.fits)
	if r.req.Peer != nil {
		e = r.cache.Fetch(ctx, e, r.req.Space, tokens, r.fits, r.req.Peer)
	}
	if e == nil {
		return 0, nil
	}
	rows, length := e.Rows(), e.Length()
	if err := r.cache.Restore(ctx, e, s); err != nil {
		return 0, err
	}
	r.mark = time.Now()
	r.rows, r.restored, r.passed = rows, length, length
	return length, nil
}

// Again is Restore for a request that had to give up its sequence: it restores the longest state that fits and has at
// most length tokens of the prompt, and returns its length, 0 if there is none.
func (r *Reuse) Again(ctx context.Context, s engine.Sequence, length int) (int, error) {
	if !r.On() {
		return 0, nil
	}
	e := r.cache.Find(ctx, r.req.Space, r.prompt[:length], r.fits)
	if e == nil {
		return 0, nil
	}
	restored := e.Length()
	return restored, r.cache.Restore(ctx, e, s)
}

// fits reports whether a cold run of the prompt has the state after so many tokens.
func (r *Reuse) fits(length int) bool {
	return r.free || length == r.shared || r.cuts.Below(length) == length
}

// Stored is the number of tokens of the longest state that Restore would restore now.
func (r *Reuse) Stored() int {
	return r.cache.Longest(r.req.Space, r.prompt[:len(r.prompt)-1], r.fits)
}

// Allow lets Restore take a state of so many tokens that another request has stored by Share.
func (r *Reuse) Allow(shared int) { r.shared = shared }

// Share saves the state of a sequence that holds the prompt's first length tokens, for requests that wait for it.
func (r *Reuse) Share(s engine.Sequence, length int) { r.save(s, r.prompt[:length], true) }

// Known is the number of tokens of the longest state of the prompt that the request has restored or saved.
func (r *Reuse) Known() int { return max(r.saved, r.restored) }

// Paused notes that the request stood still for so long, in which it read nothing.
func (r *Reuse) Paused(d time.Duration) { r.mark = r.mark.Add(d) }

// Rows returns the features that came with the restored state of so many positions, nil unless they are what is
// captured.
func (r *Reuse) Rows(capture *drafts.Capture, length int) *prefix.Rows {
	if r.rows == nil || r.rows.Kind != capture.Key() || r.rows.Width != capture.Width || r.restored != length {
		return nil
	}
	return r.rows
}

// Capture names the ring that the request's features go to.
func (r *Reuse) Capture(ring *drafts.Ring, kind *drafts.Capture) { r.ring, r.kind = ring, kind }

// Read saves the state of a sequence that holds the prompt's first length tokens, if it is one to be saved.
func (r *Reuse) Read(s engine.Sequence, length int) {
	if !r.On() || length == len(r.prompt) || r.cuts.Below(length) != length {
		return
	}
	_, keep := slices.BinarySearch(r.keep, length)
	must := slices.Contains(r.must, length)
	interval := r.classes&Interval != 0 && r.interval > 0 && length-r.passed >= r.interval
	if !keep && !interval && r.classes&Newest == 0 || !r.worth(must || interval) {
		return
	}
	e := r.save(s, r.prompt[:length], keep || interval)
	switch {
	case interval: // whether the rest of the prompt is ever read or not
		r.passed = length
		r.cache.Persist(e, 0)
	case must:
		r.cache.Persist(e, length-r.restored)
	}
}

// Keeps reports whether Read saves the state of the prompt's first length tokens for more than the time until the next.
func (r *Reuse) Keeps(length int) bool {
	if !r.On() || r.cuts.Below(length) != length {
		return false
	}
	_, keep := slices.BinarySearch(r.keep, length)
	return keep || r.classes&Interval != 0 && r.interval > 0 && length-r.passed >= r.interval
}

const (
	// mostShare is the most time of a save as a share of that of what was read since the one before, for states that may
	// be done without; a larger one loses less of a prompt whose client gives up, and makes every prompt slower.
	mostShare = 0.1
	// mostMust is that of states that the next turn is likely to ask for.
	mostMust = 1.0
	// negligible is the time of a save that hardly delays a request.
	negligible = 5 * time.Millisecond
	// trials are the saves after which their cost is known. A single save may be delayed by another process.
	trials = 4
	// forget is the share of the least cost that is added with every save, so that faster saves of the past lose
	// their weight.
	forget = 0.1
)

// worth reports whether a state is worth the time that saving it takes; must is for those that the next turn is likely
// to ask for. Where every cut has the same bits, on processors, states are in memory already and every one is.
func (r *Reuse) worth(must bool) bool {
	share := mostShare
	if must {
		share = mostMust
	}
	return r.free || r.saves < trials || r.cost <= negligible || float64(r.cost) <= share*float64(time.Since(r.mark))
}

// Answers reports whether committing the path for the state after the answer is worth its cost.
func (r *Reuse) Answers() bool { return r.On() && r.free && r.classes&Answer != 0 }

// Answer saves the state of a sequence that holds text, the prompt and what was generated.
func (r *Reuse) Answer(s engine.Sequence, text []int32) {
	r.cache.Persist(r.save(s, text, true), len(text)-r.restored)
}

// Saved is the number of tokens of the prompt between the restored state and the longest one that the request added.
func (r *Reuse) Saved() int { return max(0, r.saved-r.restored) }

// save returns the entry of a state, which may have been there; nil when there is no room.
func (r *Reuse) save(s engine.Sequence, tokens []int32, keep bool) *prefix.Entry {
	var f prefix.Features
	if r.ring != nil {
		f = prefix.Features{Source: r.ring, Kind: r.kind.Key(), Width: r.kind.Width}
	}
	if r.newest != nil { // first, so that the newer one evicts no other
		r.cache.Drop(r.newest)
		r.newest = nil
	}
	start := time.Now()
	e, made := r.store(s, tokens, f)
	if made {
		r.mark = time.Now()
		took := r.mark.Sub(start)
		if r.saves++; r.saves > 1 {
			took = min(took, r.cost+time.Duration(forget*float64(r.cost)))
		}
		r.cost = took
		r.saved = min(len(tokens), len(r.prompt))
		if !keep {
			r.newest = e
		}
	}
	return e
}

// Relieve makes room in the engine by giving up a stored state. It reports whether there was one.
func (r *Reuse) Relieve() bool { return r.cache != nil && r.cache.Relieve(r.engine) }

// Freed notes that the request's sequence was freed.
func (r *Reuse) Freed() {
	if r.cache != nil {
		r.cache.Freed()
	}
}
