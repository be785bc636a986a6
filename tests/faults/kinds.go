package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/tandem-inference/tandem/tests/faults/history"
	"github.com/tandem-inference/tandem/tests/faults/link"
)

// Acts that make a part fail.
const (
	kill      = "kill"      // SIGKILL
	stop      = "stop"      // SIGSTOP: whoever supervises the process must notice and replace it
	blackhole = "blackhole" // nothing reaches the part and nothing comes from it
	oneWay    = "one-way"   // nothing comes from the part
	delay     = "delay"     // what comes from the part takes 200 ms
	loss      = "loss"      // 5 % of the segments that come from the part, and to it, are sent again
	cut       = "cut"       // its connections are broken
)

// kind is a type of fault.
type kind struct {
	act, role string
	engine    bool // of the part, not its worker
}

func (k kind) String() string {
	name := k.act + " " + k.role
	if k.engine {
		name += " engine"
	}
	return name
}

// workers are the roles that have engines and links.
var workers = []string{target, head, stage, draft, scorer}

// killKinds and hangKinds are all types of faults: those that end a process, and those that leave it silent or slow.
func killKinds() []kind {
	out := []kind{{act: kill, role: gateway}}
	for _, role := range workers {
		out = append(out, kind{kill, role, false}, kind{kill, role, true})
	}
	return out
}

func hangKinds() []kind {
	out := []kind{{act: stop, role: gateway}}
	for _, role := range workers {
		out = append(out, kind{stop, role, false}, kind{stop, role, true})
		for _, act := range []string{blackhole, oneWay, delay, loss, cut} {
			out = append(out, kind{act: act, role: role})
		}
	}
	return out
}

// plan returns n faults in random order, of every type as many as of the others or one more.
func plan(kinds []kind, n int, rng *rand.Rand) (out []kind) {
	for len(out) < n {
		rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		out = append(out, kinds[:min(len(kinds), n-len(out))]...)
	}
	return out
}

// limits are what faults of every type may do.
func (c *Config) limits() history.Limits {
	scale := func(d time.Duration) time.Duration { return time.Duration(float64(d) * c.Slack) }
	l := history.Limits{Quiet: scale(quietGap), First: scale(firstToken), Settle: settleTime,
		Several: c.Gateways > 1,
		Faults:  map[string]history.Limit{}}
	for _, k := range append(killKinds(), hangKinds()...) {
		limit := history.Limit{Gap: scale(targetGap)}
		switch k.role {
		case draft:
			limit.Gap = scale(draftGap)
		case gateway:
			limit = history.Limit{Gap: scale(gatewayGap), Errors: true}
		}
		l.Faults[k.String()] = limit
	}
	return l
}

const (
	// quietGap is the longest pause beside no fault: while the prompts of others are scored and read.
	quietGap = time.Second
	// firstToken is the longest wait for the first token: of a long prompt that is read twice.
	firstToken = 10 * time.Second
	// targetGap is that when a stream moves to another worker.
	targetGap = 2 * time.Second
	// draftGap is that when a draft is lost: the longest wait for a proposal (--draft-deadline), and a step.
	draftGap = 500 * time.Millisecond
	// gatewayGap is that of a stream that continues at another gateway.
	gatewayGap = 5 * time.Second
	// settleTime is for how long after its end a fault excuses a pause: workers that were replaced read prompts again.
	settleTime = time.Second
)

// Times of faults of links.
const (
	slow     = 200 * time.Millisecond
	lossRate = 0.05
	shortest = 2 * time.Second
	longest  = 6 * time.Second
)

// fail makes a part fail, and returns when the cluster is whole again.
func (r *rig) fail(ctx context.Context, k kind, rng *rand.Rand, notes func(p *part)) error {
	parts := r.of(k.role)
	p := parts[rng.IntN(len(parts))]
	if k.act == kill || k.act == stop {
		pid := p.pid(k.engine)
		for ; pid == 0; pid = p.pid(k.engine) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s: there is no such process: %w", k, ctx.Err())
			case <-time.After(pollTime):
			}
		}
		notes(p)
		return r.signal(ctx, k, p, pid)
	}
	notes(p)
	if err := r.disturb(ctx, k, p, shortest+time.Duration(rng.Int64N(int64(longest-shortest)))); err != nil {
		return err
	}
	return r.whole(ctx, func() bool { return true })
}

// signal sends a signal to a process and waits until another one has its place.
func (r *rig) signal(ctx context.Context, k kind, p *part, pid int) error {
	sig := syscall.SIGKILL
	if k.act == stop {
		sig = syscall.SIGSTOP
	}
	if err := syscall.Kill(pid, sig); err != nil {
		return fmt.Errorf("%s: %w", k, err)
	}
	if k.act == stop && p.role == gateway { // the rig is what systemd is elsewhere
		select {
		case <-time.After(r.cfg.HangTimeout):
		case <-ctx.Done():
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("%s: %w", k, err)
		}
	}
	return r.whole(ctx, func() bool {
		again := p.pid(k.engine)
		return again != 0 && again != pid && syscall.Kill(pid, 0) == syscall.ESRCH
	})
}

// whole waits until done, and all parts work for a moment.
func (r *rig) whole(ctx context.Context, done func() bool) error {
	for good := 0; good < 3; {
		why := r.unfit(ctx)
		if why == nil && done() {
			good++
		} else {
			good = 0
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), why)
		case <-time.After(pollTime):
		}
	}
	return nil
}

// disturb does to the links of a part what the fault says, for a while.
func (r *rig) disturb(ctx context.Context, k kind, p *part, long time.Duration) error {
	from, to := link.Disturbance{}, link.Disturbance{}
	switch k.act {
	case cut:
		p.in.Cut()
		for _, l := range p.out {
			l.Cut()
		}
		return nil
	case blackhole, oneWay:
		if p.host.holder != nil {
			if err := p.host.drop(ctx, k.act == blackhole); err != nil {
				return err
			}
			defer func() { _ = p.host.allow(context.WithoutCancel(ctx)) }()
			break
		}
		from.Hold, to.Hold = true, k.act == blackhole
	case delay:
		from.Delay = slow
	case loss:
		from.Loss, to.Loss = lossRate, lossRate
	}
	p.set(from, to)
	defer p.set(link.Disturbance{}, link.Disturbance{})
	select {
	case <-time.After(long):
	case <-ctx.Done():
	}
	return ctx.Err()
}

// set disturbs what comes from a part and what goes to it.
func (p *part) set(from, to link.Disturbance) {
	p.in.Set(to, from)
	for _, l := range p.out {
		l.Set(from, to)
	}
}
