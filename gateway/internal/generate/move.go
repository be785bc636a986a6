package generate

import (
	"context"
	"errors"
	"maps"

	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// errMoved is why an attempt ends on a worker that is to be empty.
var errMoved = errors.New("the request goes on at another worker")

// move waits until the choice is asked to leave its worker, then for a slot at another one that computes the same bits,
// and calls leave when it has one: the present worker computes on until then, so that a move costs a replay and never
// the request. When ctx has ended the channel gives the slot, nil when there is none.
func (s *stream) move(ctx context.Context, slot *cluster.Slot, leave func()) <-chan *cluster.Slot {
	next := make(chan *cluster.Slot, 1)
	avoid := maps.Clone(s.avoid)
	go func() {
		defer close(next)
		select {
		case <-slot.Moved():
		case <-ctx.Done():
			return
		}
		if avoid == nil {
			avoid = map[string]bool{}
		}
		avoid[slot.Worker] = true
		ticket, err := s.r.g.targets.Submit(cluster.Demand{Slots: 1, Tokens: len(s.job.prompt) + s.job.max,
			Priority: s.r.req.Priority, Takeover: true, Avoid: avoid, Contract: &slot.Contract})
		if err != nil {
			return
		}
		defer ticket.Close()
		to, err := ticket.Slot(ctx)
		if err != nil {
			return
		}
		s.r.g.log.Info("generation moves to another worker, on request", zap.String(telemetry.KeyRequestID, s.r.req.ID),
			zap.String(telemetry.KeyWorker, slot.Worker), zap.String(telemetry.KeyPeer, to.Worker))
		next <- to
		leave()
	}()
	return next
}
