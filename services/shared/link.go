package shared

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

const (
	// callTimeout bounds a call of the store: whoever waits for it serves a request.
	callTimeout = time.Second
	// probeEvery is how often a store that is away is looked for.
	probeEvery = 500 * time.Millisecond
)

// ErrAway is the error of calls while the store is away: they do not wait.
var ErrAway = errors.New("the store of the gateways is away")

// Link is a gateway's way to the store: every call is bounded, and after one that got no answer the others fail at once
// until the store is back. It is safe for concurrent use.
type Link struct {
	store Store
	log   *zap.Logger

	failures atomic.Uint64 // calls that were not made or got no answer

	mu    sync.Mutex // guards the following
	away  error      // why the last call got no answer; nil = the store is there
	since time.Time
	probe chan struct{} // the store went away; capacity 1
}

// NewLink returns a link to a store that was there.
func NewLink(store Store, log *zap.Logger) *Link {
	return &Link{store: store, log: log, probe: make(chan struct{}, 1)}
}

// Watch is the store's.
func (l *Link) Watch(ctx context.Context, prefix string) <-chan Event {
	return l.store.Watch(ctx, prefix)
}

// MaxValue is the store's.
func (l *Link) MaxValue() int { return l.store.MaxValue() }

// Do makes calls of the store within a bounded time.
func (l *Link) Do(ctx context.Context, f func(ctx context.Context, s Store) error) error {
	if _, err := l.Away(); err != nil {
		l.failures.Add(1)
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	err := l.call(ctx, f)
	if err == nil || decided(err) || ctx.Err() != nil {
		return err
	}
	l.failures.Add(1)
	l.mu.Lock()
	if l.away == nil {
		l.since = time.Now()
		l.log.Warn("the store of the gateways is away: what they share is not, until it is back",
			zap.NamedError(telemetry.KeyErr, err))
	}
	l.away = err
	l.mu.Unlock()
	select {
	case l.probe <- struct{}{}:
	default:
	}
	return fmt.Errorf("%w: %w", ErrAway, err)
}

func (l *Link) call(ctx context.Context, f func(context.Context, Store) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return f(ctx, l.store)
}

// decided says that an error is an answer of the store.
func decided(err error) bool {
	return errors.Is(err, ErrNotFound) || errors.Is(err, ErrConflict) || errors.Is(err, ErrTooLarge)
}

// Away says since when the store does not answer, and why; nil = it does.
func (l *Link) Away() (since time.Time, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since, l.away
}

// Failures is how many calls were not made or got no answer.
func (l *Link) Failures() uint64 { return l.failures.Load() }

// Run looks for a store that went away, until ctx ends.
func (l *Link) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.probe:
		}
		for pause.For(ctx, probeEvery) {
			err := l.call(ctx, func(ctx context.Context, s Store) error {
				_, err := s.Get(ctx, "reached")
				return err
			})
			if err != nil && !decided(err) {
				continue
			}
			l.mu.Lock()
			l.log.Info("the store of the gateways is back", zap.Duration("away", time.Since(l.since)))
			l.away = nil
			l.mu.Unlock()
			break
		}
	}
}
