package cluster

import "time"

// leaseGrace is how long a worker without a lease may be silent before its streams move. One that only lost its
// connection to the registry is back sooner, and goes on meanwhile.
const leaseGrace = time.Second

// Watch calls lost, once, when the worker's lease has ended, it has not come back, and it has been silent, all for
// leaseGrace; silent is the time since its last message. A worker that hangs is found so even when its connection
// stays. stop ends the watch and waits for it; it must be called, not from lost.
func (l *Slot) Watch(silent func() time.Duration, lost func()) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		if l.await(end, silent) {
			lost()
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// await reports whether the worker is lost before end is closed.
func (l *Slot) await(end <-chan struct{}, silent func() time.Duration) bool {
	var lease <-chan struct{} = l.w.lease
	for {
		select {
		case <-end:
			return false
		case <-lease:
		}
		at := time.Now()
		ticker := time.NewTicker(leaseGrace / 8)
		again := (<-chan struct{})(nil)
		for again == nil {
			select {
			case <-end:
				ticker.Stop()
				return false
			case <-ticker.C:
			}
			if again = l.pool.lease(l.Worker); again == nil && min(time.Since(at), silent()) >= leaseGrace {
				ticker.Stop()
				return true
			}
		}
		ticker.Stop()
		lease = again
	}
}

// lease returns the channel that is closed when the present lease of a worker ends, nil when it has none.
func (p *Pool) lease(id string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.workers[id]; w != nil {
		return w.lease
	}
	return nil
}
