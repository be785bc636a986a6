package cluster

// Moved is closed when the slot's request is to go on at another worker, once it has a slot there.
func (l *Slot) Moved() <-chan struct{} { return l.moved }

// Move asks the requests of a worker to go on elsewhere, those that there is a worker for: ready, with the same
// contract id and a context that is long enough. It returns how many were asked, and how many have to end here.
// Requests that it asked before count as asked.
func (p *Pool) Move(id string) (asked, stay int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers[id]
	if w == nil {
		return 0, 0
	}
	for l := range w.running {
		if !p.fits(l) {
			stay++
			continue
		}
		asked++
		if !l.asked {
			l.asked = true
			close(l.moved)
		}
	}
	return asked, stay
}

// fits reports whether another worker could take over what runs in a slot; the caller holds mu.
func (p *Pool) fits(l *Slot) bool {
	for _, w := range p.workers {
		if w != l.w && w.ready() && w.info.Registration.GetContract() == l.Contract &&
			(w.maxCtx == 0 || l.tokens <= w.maxCtx) {
			return true
		}
	}
	return false
}
