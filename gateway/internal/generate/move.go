package generate

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// errMoved is why an attempt ends on a worker that is left while it runs.
var errMoved = errors.New("the request goes on at another worker")

// quiet is the silence of a stream after which its worker is asked whether it is there, again and again. A worker that
// reads a long prompt is silent for longer and answers.
const quiet = 250 * time.Millisecond

// ear knows when a worker was last heard on a stream.
type ear struct {
	mu    sync.Mutex // guards the following
	last  time.Time
	awake context.CancelFunc // called with the next message; nil = nobody waits for one
}

func newEar() *ear { return &ear{last: time.Now()} }

// hear records that a message came.
func (e *ear) hear() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = time.Now()
	if e.awake != nil {
		e.awake()
		e.awake = nil
	}
}

// silence is the time since the last message.
func (e *ear) silence() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Since(e.last)
}

// untilHeard returns a context that ends with the next message. One at a time is awaited.
func (e *ear) untilHeard(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.awake = cancel
	return ctx, cancel
}

// move waits until the choice is asked to leave its worker, or the worker neither sends nor answers, as when the
// network to it is broken or it hangs. Then it waits for a slot at another one that computes the same bits, and calls
// leave when it has one: the present worker computes on until then, so that a move costs a replay and never the
// request. A worker that is heard again in time keeps the choice. When ctx has ended the channel gives the slot, nil
// when there is none.
func (s *stream) move(ctx context.Context, slot *cluster.Slot, e *ear, leave func()) <-chan *cluster.Slot {
	next := make(chan *cluster.Slot, 1)
	avoid := maps.Clone(s.avoid)
	go func() {
		defer close(next)
		if avoid == nil {
			avoid = map[string]bool{}
		}
		avoid[slot.Worker] = true
		for s.toLeave(ctx, slot, e) {
			to, err := s.elsewhere(ctx, slot, e, avoid)
			if err != nil {
				return
			}
			if to != nil {
				next <- to
				leave()
				return
			}
		}
	}()
	return next
}

// toLeave waits for a reason to leave a worker; false = ctx has ended before.
func (s *stream) toLeave(ctx context.Context, slot *cluster.Slot, e *ear) bool {
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		select {
		case <-slot.Moved():
			return true
		case <-ctx.Done():
			return false
		case <-timer.C:
		}
		if left := quiet - e.silence(); left > 0 {
			timer.Reset(left)
			continue
		}
		if !slot.Answers(ctx) {
			return true
		}
		timer.Reset(quiet)
	}
}

// elsewhere waits for a slot at another worker. It returns nil when the present one was heard again, and an error when
// there can be no slot.
func (s *stream) elsewhere(ctx context.Context, slot *cluster.Slot, e *ear, avoid map[string]bool) (
	*cluster.Slot, error,
) {
	log := s.r.g.log.With(zap.String(telemetry.KeyRequestID, s.r.req.ID), zap.String(telemetry.KeyWorker, slot.Worker))
	wait, silent := ctx, true
	select {
	case <-slot.Moved():
		silent = false
	default:
		var stop context.CancelFunc
		wait, stop = e.untilHeard(ctx)
		defer stop()
	}
	ticket, err := s.r.g.targets.Submit(cluster.Demand{Slots: 1, Tokens: len(s.job.prompt) + s.job.max,
		Priority: s.r.req.Priority, Takeover: true, Avoid: avoid, Contract: &slot.Contract})
	if err != nil {
		return nil, err
	}
	defer ticket.Close()
	to, err := ticket.Slot(wait)
	if err != nil {
		if silent && wait.Err() != nil && ctx.Err() == nil {
			return nil, nil
		}
		return nil, err
	}
	if !silent {
		log.Info("generation moves to another worker, on request", zap.String(telemetry.KeyPeer, to.Worker))
		return to, nil
	}
	log.Warn("generation moves to another worker: the present one neither sends nor answers",
		zap.String(telemetry.KeyPeer, to.Worker))
	if s.r.g.metrics != nil {
		s.r.g.metrics.Retry(ctx)
	}
	return to, nil
}
