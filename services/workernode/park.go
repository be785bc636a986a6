package workernode

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// parking is the part of a Keeper that knows who uses the engine, and closes it when nobody does. What a closed engine
// read of its model file stays in the system's file cache, as far as that has room, so that opening it again mostly
// copies memory.
type parking struct {
	after time.Duration // 0 = never

	mu     sync.Mutex
	users  int
	idle   time.Time // since when users is 0
	asleep bool      // parked, or not opened yet
	waking bool      // an engine is being opened because somebody needs it
	known  bool      // info is set
	info   engine.Info
	parks  int
}

// enter counts a user. open says whether there is an engine. It returns whether the user should wait for one.
func (p *parking) enter(open bool) (wait bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users++
	if p.asleep {
		p.asleep, p.waking = false, true
	}
	return open || p.waking
}

func (p *parking) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users == 0 {
		p.idle = time.Now()
	}
}

// opened notes what an engine says of itself.
func (p *parking) opened(info engine.Info) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waking, p.known, p.info, p.idle = false, true, info, time.Now()
}

// lost notes that an engine is not there for another reason than parking.
func (p *parking) lost() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waking = false
}

// run parks the engine whenever nobody has used it for long enough, until ctx ends.
func (p *parking) run(ctx context.Context, park func() bool) {
	if p.after <= 0 {
		return
	}
	ticker := time.NewTicker(max(p.after/8, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		// Behind the lock: a user who comes now either counts already or finds the engine parked.
		if p.users == 0 && !p.asleep && time.Since(p.idle) >= p.after && park() {
			p.asleep = true
			p.parks++
		}
		p.mu.Unlock()
	}
}

// sleeping reports that there is no engine because nobody needs one.
func (p *parking) sleeping() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asleep || p.waking
}

// Use returns the engine for as long as the caller works with it, until done is called; a parked one is opened first,
// and Use waits for that. While an engine is replaced it returns UNAVAILABLE, like Engine.
func (k *Keeper[E]) Use(ctx context.Context) (e E, done func(), err error) {
	_, open := k.supervisor.Current()
	wait := k.parking.enter(open)
	k.supervisor.Wake()
	if wait {
		e, _, err = k.supervisor.Engine(ctx)
	} else {
		e, err = k.Engine()
	}
	if err != nil {
		k.parking.leave()
		return e, nil, err
	}
	return e, sync.OnceFunc(k.parking.leave), nil
}

// TryUse is Use for callers that can do without the engine for now: instead of waiting until a parked engine is open it
// returns UNAVAILABLE.
func (k *Keeper[E]) TryUse() (e E, done func(), err error) {
	_, open := k.supervisor.Current()
	k.parking.enter(open)
	k.supervisor.Wake()
	if e, err = k.Engine(); err != nil {
		k.parking.leave()
		return e, nil, err
	}
	return e, sync.OnceFunc(k.parking.leave), nil
}

// Ready reports whether work is taken: there is an engine, or one is opened as soon as it is needed.
func (k *Keeper[E]) Ready() bool {
	_, open := k.supervisor.Current()
	return open || k.parking.sleeping()
}

// Parked returns what the engine said of itself before it was parked, or what is known of one that nobody needed yet.
// ok is false when it is not parked, or nothing is known.
func (k *Keeper[E]) Parked() (info engine.Info, ok bool) {
	k.parking.mu.Lock()
	defer k.parking.mu.Unlock()
	return k.parking.info, k.parking.asleep && k.parking.known
}

// parkedError is what callers get who do not wait for a parked engine.
func parkedError() error {
	return rpcerr.EngineLost.With("the engine is being opened, nobody had used it").WithRetryAfter(time.Second)
}
