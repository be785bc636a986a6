package cluster

import (
	"cmp"
	"time"
)

// share is what one asker has of the pool; guarded by Pool.mu. Shares without slots and without waiting requests
// are forgotten.
type share struct {
	slots int
	last  uint64 // number of the newest grant
}

// dispatch grants free slots, one at a time, each to the request that comes first now; the caller holds mu.
func (p *Pool) dispatch(now time.Time) {
	// Workers that are kept free for a request that waits for their memory.
	var kept map[*worker]bool
	var stuck map[*Ticket]bool
	for {
		t := p.first(stuck)
		if t == nil {
			break
		}
		w := p.pick(&t.demand, now, kept)
		if w == nil {
			if stuck == nil {
				stuck, kept = map[*Ticket]bool{}, map[*worker]bool{}
			}
			stuck[t] = true
			p.keep(t, now, kept)
			continue
		}
		p.grant(t, w)
	}
	if len(p.queue) > 0 {
		p.wakeLater(now)
	}
}

// first is the request that comes first among those that are not stuck: takeovers, then priority, then the share with
// the fewest slots, of those the one that waits longest for its turn, then arrival.
func (p *Pool) first(stuck map[*Ticket]bool) *Ticket {
	var best *Ticket
	for _, t := range p.queue {
		if !stuck[t] && (best == nil || p.before(t, best) < 0) {
			best = t
		}
	}
	return best
}

func (p *Pool) before(a, b *Ticket) int {
	if a.demand.Takeover != b.demand.Takeover {
		if a.demand.Takeover {
			return -1
		}
		return 1
	}
	if c := cmp.Compare(b.demand.Priority, a.demand.Priority); c != 0 {
		return c
	}
	if a.demand.Share != b.demand.Share {
		x, y := p.share(a.demand.Share), p.share(b.demand.Share)
		if c := cmp.Or(cmp.Compare(x.slots, y.slots), cmp.Compare(x.last, y.last)); c != 0 {
			return c
		}
	}
	return cmp.Compare(a.seq, b.seq)
}

// share is the state of an asker, zero for one without slots.
func (p *Pool) share(name string) share {
	if s := p.shares[name]; s != nil {
		return *s
	}
	return share{}
}

// grant gives the request a slot of w.
func (p *Pool) grant(t *Ticket, w *worker) {
	w.busy++
	w.held += t.demand.Tokens
	s := p.shares[t.demand.Share]
	if s == nil {
		s = &share{}
		p.shares[t.demand.Share] = s
	}
	p.grants++
	s.slots, s.last = s.slots+1, p.grants
	t.left--
	t.first = true
	if t.timer != nil {
		t.timer.Stop()
	}
	l := &Slot{Worker: w.info.ID, Contract: w.info.Registration.GetContract(), Conn: w.conn, pool: p, w: w,
		share: t.demand.Share, tokens: t.demand.Tokens, moved: make(chan struct{})}
	w.running[l] = struct{}{}
	p.routed(l, &t.demand, time.Now())
	t.slots <- l
	if t.left == 0 {
		p.drop(t)
	}
}

// returned takes a slot off a share.
func (p *Pool) returned(name string) {
	s := p.shares[name]
	if s.slots--; s.slots > 0 {
		return
	}
	for _, t := range p.queue {
		if t.demand.Share == name {
			return // its turn counts
		}
	}
	delete(p.shares, name)
}

// keep marks the workers that have a slot for a request but not the memory: were they given to smaller requests that
// come later, it would wait for ever.
func (p *Pool) keep(t *Ticket, now time.Time, kept map[*worker]bool) {
	for _, w := range p.workers {
		if !t.demand.Avoid[w.info.ID] && w.usable(t.demand.Tokens, now) && !w.room(t.demand.Tokens) &&
			(t.demand.AnyContract || t.demand.like(w)) {
			kept[w] = true
		}
	}
}

// like reports whether w computes the bits that the demand asks for.
func (d *Demand) like(w *worker) bool {
	return d.Contract == nil || *d.Contract == w.info.Registration.GetContract()
}

// pick returns the usable worker for d with the smallest share of busy slots, the lowest id on ties. Workers with other
// bits are taken only when d allows it and no like one can be had.
func (p *Pool) pick(d *Demand, now time.Time, kept map[*worker]bool) *worker {
	best := p.least(d, now, kept, d.like)
	if best == nil && d.AnyContract {
		best = p.least(d, now, kept, func(*worker) bool { return true })
	}
	return best
}

// least is pick among the workers that admits returns true for.
func (p *Pool) least(d *Demand, now time.Time, kept map[*worker]bool, admits func(*worker) bool) *worker {
	var best *worker
	for _, w := range p.workers {
		if kept[w] || d.Avoid[w.info.ID] || !admits(w) || !w.usable(d.Tokens, now) || !w.room(d.Tokens) {
			continue
		}
		if best == nil {
			best = w
			continue
		}
		if c := p.compare(d, w, best); c != 0 {
			if c < 0 {
				best = w
			}
			continue
		}
		// used/slots compared without division
		a, b := w.used()*best.slots, best.used()*w.slots
		if a < b || a == b && w.info.ID < best.info.ID {
			best = w
		}
	}
	return best
}
