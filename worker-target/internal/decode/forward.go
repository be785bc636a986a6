package decode

import (
	"context"
	"time"

	"github.com/tandem-inference/tandem/services/rpcerr"
)

// leastWait is the shortest time that is worth a timer.
const leastWait = time.Millisecond

// forward runs the prepared step. It ends no sooner than the engine says that the step took: an engine that only plays its part
// answers at once and states the time, so that a slow sequence does not keep the engine from the others.
func (r *run) forward(ctx context.Context) error {
	start := time.Now()
	if err := r.engine.Step(ctx, &r.step, &r.result); err != nil {
		return err
	}
	left := time.Duration(r.result.EngineNanos) - time.Since(start)
	if left < leastWait {
		return nil
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return rpcerr.From(ctx.Err())
	}
}
