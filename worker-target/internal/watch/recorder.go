package watch

import (
	"slices"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
)

// Recorder notes one request after another of a slot. Its methods belong to the decode loop.
type Recorder struct {
	feed  *Feed
	watch uint64 // of the request, see DecodeRequest.watch; 0 = it is not shown
	steps int    // of the prompt
	last  time.Time
	on    bool // somebody watches the round at work
	joins bool // the request is among those that share the described rounds

	event *tandemv1.WatchEvent // of the round at work; nil = it is not described
	began time.Time
	nodes []tandemv1.TokenOrigin // of the round's tree
	// The tree before it was fitted to the constraint.
	tokens, parents []int32
	before          []tandemv1.TokenOrigin // of the same tree
	old             []int                  // of each node of the fitted tree: its index before, -1 = none

	// Output since the last event, and the index of its first token.
	index   int
	output  []int32
	origins []tandemv1.TokenOrigin
	skipped int // rounds since the last event
}

// NewRecorder returns a recorder of a slot; with a nil feed it notes nothing.
func NewRecorder(f *Feed) Recorder { return Recorder{feed: f} }

// Start begins a request.
func (r *Recorder) Start(watch uint64) {
	r.watch, r.steps, r.last, r.on, r.event = watch, 0, time.Time{}, false, nil
	r.index, r.output, r.origins, r.skipped = 0, r.output[:0], r.origins[:0], 0
}

// watched reports whether anybody watches the request, and at which interval.
func (r *Recorder) watched() (every time.Duration, ok bool) {
	if r.feed == nil || r.watch == 0 {
		return 0, false
	}
	every = r.feed.interval()
	return every, every > 0
}

// due reports whether an event that begins at a time is described, when events may be so far apart. From the first one
// on the request counts among those that share them: not while it waits for its turn.
func (r *Recorder) due(at time.Time, every time.Duration) bool {
	if !r.joins {
		r.joins = true
		r.feed.atWork.Add(1)
	}
	return at.Sub(r.last) >= every
}

// Begin begins a round, whose question to the draft was asked at began.
func (r *Recorder) Begin(began time.Time) {
	every, ok := r.watched()
	r.on, r.event, r.began = ok, nil, began
	if ok && r.due(began, every) {
		r.event, r.last = &tandemv1.WatchEvent{}, began
	}
}

// On reports whether somebody watches the round.
func (r *Recorder) On() bool { return r.on }

// Proposal notes who proposed the nodes of the round's tree: all of them origin, but for the last ones, extended, which
// prompt lookup added. It comes before the tree is fitted to a constraint.
func (r *Recorder) Proposal(tree *ddtree.Tree, origin tandemv1.TokenOrigin, extended int) {
	r.nodes = append(r.nodes[:0], tandemv1.TokenOrigin_TOKEN_ORIGIN_ANCHOR)
	for i := 1; i < tree.Len(); i++ {
		if i >= tree.Len()-extended {
			origin = tandemv1.TokenOrigin_TOKEN_ORIGIN_LOOKUP
		}
		r.nodes = append(r.nodes, origin)
	}
	r.tokens, r.parents = append(r.tokens[:0], tree.Tokens...), append(r.parents[:0], tree.Parents...)
}

// Fitted notes that the constraint has changed the tree: nodes that the proposal did not have are the constraint's.
func (r *Recorder) Fitted(tree *ddtree.Tree) {
	r.before = append(r.before[:0], r.nodes...)
	r.old = slices.Grow(r.old[:0], tree.Len())[:tree.Len()]
	before, old := r.before, r.old
	r.nodes, old[0] = r.nodes[:1], 0
	for i := 1; i < tree.Len(); i++ {
		old[i] = -1
		for j := 1; j < len(r.tokens) && old[tree.Parents[i]] >= 0; j++ {
			if r.tokens[j] == tree.Tokens[i] && int(r.parents[j]) == old[tree.Parents[i]] {
				old[i] = j
				break
			}
		}
		if old[i] < 0 {
			r.nodes = append(r.nodes, tandemv1.TokenOrigin_TOKEN_ORIGIN_CONSTRAINT)
		} else {
			r.nodes = append(r.nodes, before[old[i]])
		}
	}
}

// Step notes that the verifying step begins.
func (r *Recorder) Step() {
	if r.event != nil {
		r.event.StepBeginUs = time.Since(r.began).Microseconds()
	}
}

// Verified is a round whose step has run.
type Verified struct {
	Number   int // of the round, from 1
	Tree     *ddtree.Tree
	Path     []int32 // nodes that the target chose
	Index    int     // of the first token in the output
	Tokens   []int32 // committed
	Position int     // tokens in the sequence before
	Others   int     // rows of other requests in the step
	Waited   time.Duration
	Draft    time.Duration // of Waited: the draft's own work, 0 = not known
	Engine   time.Duration
}

// Verified notes a round before its tokens are handed over.
func (r *Recorder) Verified(v *Verified) {
	r.add(v.Index)
	for i, token := range v.Tokens {
		origin := tandemv1.TokenOrigin_TOKEN_ORIGIN_PLAIN
		if i+1 < len(v.Path) {
			origin = r.nodes[v.Path[i+1]]
		}
		r.output, r.origins = append(r.output, token), append(r.origins, origin)
	}
	e := r.event
	if e == nil {
		r.skipped++
		return
	}
	e.Watch, e.Kind, e.Number = r.watch, tandemv1.WatchKind_WATCH_KIND_ROUND, int32(v.Number)
	e.StartUnixMicros = r.began.UnixMicro()
	e.ProposedUs, e.DraftUs = v.Waited.Microseconds(), v.Draft.Microseconds()
	e.StepEndUs, e.EngineUs = time.Since(r.began).Microseconds(), v.Engine.Microseconds()
	e.Rows, e.BatchRows, e.Position = int32(v.Tree.Len()), int32(v.Tree.Len()+v.Others), int32(v.Position)
	e.NodeTokens, e.NodeParents = slices.Clone(v.Tree.Tokens), slices.Clone(v.Tree.Parents)
	e.NodeOrigins, e.Path = slices.Clone(r.nodes), slices.Clone(v.Path)
	e.Committed = int32(len(v.Tokens))
}

// add makes room for output from an index on. What was noted before a time in which nobody watched is dropped.
func (r *Recorder) add(index int) {
	if r.index+len(r.output) != index {
		r.index, r.output, r.origins, r.skipped = index, r.output[:0], r.origins[:0], 0
	}
}

// Flushed notes that the round's tokens were handed over, and sends the event.
func (r *Recorder) Flushed() {
	if r.event == nil {
		return
	}
	r.event.EndUs = time.Since(r.began).Microseconds()
	r.send(r.event)
	r.event = nil
}

// send sends an event with the output that was not sent yet.
func (r *Recorder) send(e *tandemv1.WatchEvent) {
	e.OutputIndex, e.Tokens, e.Origins = int32(r.index), slices.Clone(r.output), slices.Clone(r.origins)
	e.Skipped = int32(r.skipped)
	r.index, r.output, r.origins, r.skipped = r.index+len(r.output), r.output[:0], r.origins[:0], 0
	r.feed.send(e)
}

// First notes the first token, which a step of known tokens chose.
func (r *Recorder) First(index int, tokens []int32) {
	if _, ok := r.watched(); !ok {
		return
	}
	r.add(index)
	for _, token := range tokens {
		r.output, r.origins = append(r.output, token), append(r.origins, tandemv1.TokenOrigin_TOKEN_ORIGIN_PLAIN)
	}
}

// BeginKnown begins a step of known tokens; the zero time means that nobody watches.
func (r *Recorder) BeginKnown() time.Time {
	r.steps++
	if every, ok := r.watched(); ok {
		if now := time.Now(); r.due(now, every) {
			return now
		}
	}
	return time.Time{}
}

// Known sends the event of a step of rows known tokens from a position on, unless began is zero.
func (r *Recorder) Known(began time.Time, position, rows int, engine time.Duration) {
	if began.IsZero() {
		return
	}
	r.last = began
	took := time.Since(began).Microseconds()
	r.send(&tandemv1.WatchEvent{
		Watch: r.watch, Kind: tandemv1.WatchKind_WATCH_KIND_PROMPT, Number: int32(r.steps),
		StartUnixMicros: began.UnixMicro(), StepEndUs: took, EndUs: took, EngineUs: engine.Microseconds(),
		Rows: int32(rows), BatchRows: int32(rows), Position: int32(position),
	})
}

// Finish sends the end of a request of so many rounds, with the tokens that were not sent yet.
func (r *Recorder) Finish(rounds int) {
	if _, ok := r.watched(); ok {
		r.send(&tandemv1.WatchEvent{
			Watch: r.watch, Kind: tandemv1.WatchKind_WATCH_KIND_END, Number: int32(rounds),
			StartUnixMicros: time.Now().UnixMicro(),
		})
	}
	r.on, r.event = false, nil
	if r.joins {
		r.joins = false
		r.feed.atWork.Add(-1)
	}
}
