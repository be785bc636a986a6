package enginefake

import (
	"context"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// kvPage is the number of positions of a page.
const kvPage = 64

// page is a page of the pool without contents: sequences have theirs in hashes. Who points to it holds it.
type page struct {
	sequences, snapshots int  // holders
	away                 bool // in host memory alone
	host                 bool // has a host copy
}

func (p *page) shared() bool { return p.sequences+p.snapshots > 1 }

// pool counts places of pages. It is guarded by the engine's turn.
type pool struct {
	size, free int
	copies     int // pages with a host copy
}

func pagesOf(positions int) int { return (positions + kvPage - 1) / kvPage }

// poolPages is the size of the pool that sequences of together o.KVPositions positions, each with pending rows, fit
// into.
func poolPages(o *engine.OpenOptions, pending int) int {
	together := o.KVPositions + o.MaxSequences*(pending+kvPage-1)
	return min(pagesOf(together), o.MaxSequences*pagesOf(o.MaxContext+pending))
}

// resize gives a sequence n pages: the first of its own, and new ones.
func (e *Engine) resize(s *sequence, n int) {
	for len(s.pages) > n {
		p := s.pages[len(s.pages)-1]
		s.pages = s.pages[:len(s.pages)-1]
		p.sequences--
		e.drop(p)
	}
	for len(s.pages) < n {
		s.pages = append(s.pages, &page{sequences: 1})
		e.pool.free--
	}
}

// drop forgets a page that nobody holds.
func (e *Engine) drop(p *page) {
	if p.sequences+p.snapshots > 0 {
		return
	}
	if !p.away {
		e.pool.free++
	}
	if p.host {
		e.pool.copies--
	}
}

// own makes the page of the tip, if it has any position, the sequence's alone.
func (e *Engine) own(s *sequence) {
	if s.length()%kvPage == 0 {
		return
	}
	p := &s.pages[s.length()/kvPage]
	if !(*p).shared() {
		if (*p).host {
			(*p).host = false
			e.pool.copies--
		}
		return
	}
	(*p).sequences--
	*p = &page{sequences: 1}
	e.pool.free--
}

// copies returns how many pages own takes.
func copies(s *sequence) int {
	if s.length()%kvPage == 0 || !s.pages[s.length()/kvPage].shared() {
		return 0
	}
	return 1
}

// released returns how many places resize(s, n) frees.
func released(s *sequence, n int) (places int) {
	for _, p := range s.pages[min(n, len(s.pages)):] {
		if !p.shared() {
			places++
		}
	}
	return places
}

// hold makes a sequence hold pages instead of its own.
func (e *Engine) hold(s *sequence, pages []*page) {
	for _, p := range pages {
		p.sequences++
		if p.away {
			p.away = false
			e.pool.free--
		}
	}
	e.resize(s, 0)
	s.pages = append(s.pages, pages...)
}

func exhausted(field string, more, free int) error {
	return rpcerr.ResourceExhausted("%s: %d more pages of %d positions are needed, %d are free (kv_positions)", field, more, kvPage, max(free, 0))
}

// after is the number of pages that a group leaves its sequence with.
func (g *group) after() int { return pagesOf(g.s.length() + len(g.Path) + g.Rows) }

// written is the page of the tip when the group writes to it, else nil.
func (g *group) written() *page {
	if len(g.Path)+g.Rows == 0 || g.s.length()%kvPage == 0 {
		return nil
	}
	return g.s.pages[g.s.length()/kvPage]
}

// copies returns how many pages own takes for group i of the step: the last one who holds a page keeps it.
func (e *Engine) copies(i int) int {
	p := e.w.groups[i].written()
	if p == nil {
		return 0
	}
	others := p.sequences + p.snapshots - 1
	for k := range i {
		if e.w.groups[k].written() == p {
			others--
		}
	}
	return min(max(others, 0), 1)
}

// checkPages compares what the groups need of the pool with what it has, as the native engine does: copies come before
// what others release.
func (e *Engine) checkPages() error {
	now, then := e.pool.free, e.pool.free
	for i := range e.w.groups {
		g := &e.w.groups[i]
		then += released(g.s, g.after())
	}
	for i := range e.w.groups {
		g := &e.w.groups[i]
		first, more := e.copies(i), max(0, g.after()-len(g.s.pages))
		if first > now || first+more > 0 && first+more > then {
			return exhausted(groupField(g.index, "n_rows"), first+more, min(now, then))
		}
		now, then = now-first, then-first-more
	}
	return nil
}

// takePages gives the groups of a step their pages; commit runs their paths.
func (e *Engine) takePages(commit func(*group)) {
	groups := e.w.groups
	for i := range groups {
		if g := &groups[i]; len(g.Path)+g.Rows > 0 {
			e.own(g.s)
		}
	}
	for i := range groups {
		commit(&groups[i])
	}
	for _, fewer := range [...]bool{true, false} {
		for i := range groups {
			s := groups[i].s
			if n := pagesOf(s.length() + groups[i].Rows); n <= len(s.pages) == fewer {
				e.resize(s, n)
			}
		}
	}
}

// Fork implements engine.Sequences.
func (e *Sequences) Fork(ctx context.Context, id engine.Sequence) (engine.Sequence, error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave()
	from, err := e.whole(id)
	if err != nil {
		return 0, err
	}
	fork, s, err := e.newSequence()
	if err != nil {
		return 0, err
	}
	s.assume(from)
	e.hold(s, from.pages[:pagesOf(from.length())])
	return fork, nil
}

// DemoteSnapshot implements engine.Sequences.
func (e *Sequences) DemoteSnapshot(ctx context.Context, id engine.Snapshot) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	s, err := e.stored(id)
	if err != nil {
		return err
	}
	moves := func(p *page) bool { return p.sequences == 0 && !p.away }
	need := 0
	for _, p := range s.pages {
		if moves(p) && !p.host {
			need++
		}
	}
	if free := e.hostLeft() / (kvPage * kvBytesPerToken); uint64(need) > free {
		return rpcerr.MemoryCap.With("host_cap_bytes: %d pages do not fit, there is room for %d", need, free)
	}
	e.pool.copies += need
	for _, p := range s.pages {
		if moves(p) {
			p.away, p.host = true, true
			e.pool.free++
		}
	}
	return nil
}

// hostLeft is the host memory that snapshots may still take.
func (e *Engine) hostLeft() uint64 {
	used := uint64(e.pool.copies) * kvPage * kvBytesPerToken
	for _, p := range e.snapshots {
		used += snapshotBytes(p)
	}
	limit := e.options.HostCapBytes
	if limit == 0 {
		limit = e.options.MemoryCapBytes
		used += e.planned()
	}
	if limit == 0 {
		return 1 << 62
	}
	return limit - min(used, limit)
}

// planned is the memory that the engine took when it was opened.
func (e *Engine) planned() uint64 {
	return weights(&e.options, e.m.o) + uint64(e.options.MaxSequences)*stateBytes +
		perToken(&e.options, e.m.o)*uint64(e.options.KVPositions)
}
