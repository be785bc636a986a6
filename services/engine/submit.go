package engine

import "context"

// Submitter lets one caller at a time through, in arrival order, and lets waiting callers give up.
type Submitter struct{ slot chan struct{} }

// NewSubmitter returns a free Submitter.
func NewSubmitter() Submitter { return Submitter{make(chan struct{}, 1)} }

// Acquire waits for the turn of the caller. Without error the caller must Release.
func (s Submitter) Acquire(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s.slot <- struct{}{}:
		return nil
	default:
	}
	// Goroutines that wait to send on a channel are served first in, first out.
	select {
	case s.slot <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Release lets the next caller through.
func (s Submitter) Release() { <-s.slot }
