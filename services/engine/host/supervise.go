package host

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// RestartConfig bounds how often a lost engine is opened again.
type RestartConfig struct {
	// Budget is the number of restarts within Window; one more and the supervisor fails. 0 = 5 within 10 minutes.
	Budget int
	Window time.Duration
	// Backoff before the first restart, doubled for each further one within the window, up to MaxBackoff. 0 = 100 ms, 10
	// s.
	Backoff, MaxBackoff time.Duration
	// Progress of loading, for every opening; may be nil.
	Progress engine.Progress
	// OnEvent is called for every change, in order, on the goroutine of Run: it must return soon. May be nil.
	OnEvent func(Event)
	// Parked makes Run wait for Wake before it opens the first engine.
	Parked bool
}

// EventKind says what happened to a supervised engine.
type EventKind int

// Kinds of events.
const (
	EngineUp     EventKind = iota + 1 // a new engine is open: all sequences and snapshots of earlier generations are gone
	EngineDown                        // the engine is lost; a restart follows
	EngineFailed                      // the engine cannot be opened, or the budget is spent: Run returns
	EngineParked                      // the engine was closed by Park; Wake opens another
)

// Event is a change of a supervised engine.
type Event struct {
	Kind       EventKind
	Generation uint64 // of the engine that came or went
	Err        error  // why it went
	Stderr     []string
	Restarts   int // within the window
}

// Supervisor keeps an engine open: it opens it again when it is lost. Callers take the current engine with Engine,
// remember its generation, and start over when a call fails with ENGINE_LOST or the generation has changed.
type Supervisor[E engine.Engine] struct {
	open    engine.Open[E]
	options engine.OpenOptions
	cfg     RestartConfig

	mu         sync.Mutex // guards the fields below
	engine     E
	running    bool // there is an engine
	generation uint64
	final      error         // set when Run is over
	parked     bool          // Run opens no engine before Wake
	changed    chan struct{} // closed and replaced when one of the above changes

	park, wake chan struct{} // one token for each change of parked
}

// NewSupervisor returns a supervisor; Run does the work.
func NewSupervisor[E engine.Engine](open engine.Open[E], options engine.OpenOptions, cfg RestartConfig) *Supervisor[E] {
	if cfg.Budget == 0 {
		cfg.Budget = 5
	}
	if cfg.Window == 0 {
		cfg.Window = 10 * time.Minute
	}
	if cfg.Backoff == 0 {
		cfg.Backoff = 100 * time.Millisecond
	}
	if cfg.MaxBackoff == 0 {
		cfg.MaxBackoff = 10 * time.Second
	}
	return &Supervisor[E]{open: open, options: options, cfg: cfg, changed: make(chan struct{}), parked: cfg.Parked,
		park: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
}

// Park closes the engine and gives its memory back; nobody gets it any more when Park returns. It returns false, and
// does nothing, while there is no engine.
func (s *Supervisor[E]) Park() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return false
	}
	var none E
	s.engine, s.running, s.parked = none, false, true
	s.park <- struct{}{}
	s.change()
	return true
}

// Wake has an engine opened after Park, or for the first time. Without need of that it does nothing.
func (s *Supervisor[E]) Wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parked {
		s.parked = false
		s.wake <- struct{}{}
	}
}

// Engine waits for an open engine. It fails when ctx ends, and with UNAVAILABLE when the supervisor has ended.
func (s *Supervisor[E]) Engine(ctx context.Context) (E, uint64, error) {
	var none E
	for {
		s.mu.Lock()
		e, running, g, final, changed := s.engine, s.running, s.generation, s.final, s.changed
		s.mu.Unlock()
		switch {
		case running:
			return e, g, nil
		case final != nil:
			return none, 0, rpcerr.EngineLost.WithCause(final)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return none, 0, rpcerr.From(ctx.Err())
		}
	}
}

// Next waits for an engine that was opened after the generation `after`, until ctx ends. That the supervisor has ended
// is for others to say.
func (s *Supervisor[E]) Next(ctx context.Context, after uint64) (E, uint64, error) {
	for {
		s.mu.Lock()
		e, running, g, changed := s.engine, s.running, s.generation, s.changed
		s.mu.Unlock()
		if running && g > after {
			return e, g, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			var none E
			return none, 0, rpcerr.From(ctx.Err())
		}
	}
}

// Current returns the open engine without waiting; false while there is none.
func (s *Supervisor[E]) Current() (e E, running bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine, s.running
}

// Generation counts openings: 0 before the first.
func (s *Supervisor[E]) Generation() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generation
}

// up takes an engine that was opened and returns its generation.
func (s *Supervisor[E]) up(e E) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.generation++
	s.engine, s.running = e, true
	s.change()
	return s.generation
}

// down forgets the engine; final is set when Run is over.
func (s *Supervisor[E]) down(final error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var none E
	s.engine, s.running, s.final = none, false, final
	s.change()
}

// change wakes those who wait for an engine. The caller holds mu.
func (s *Supervisor[E]) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// errParked is why outlive returned after Park.
var errParked = errors.New("the engine was parked")

// Run opens the engine and keeps it open until ctx ends, but for the time between Park and Wake; then it closes it and
// returns nil. It returns an error when the first opening fails, when a later one fails for a reason that a restart
// cannot cure, or when the budget is spent.
func (s *Supervisor[E]) Run(ctx context.Context) (err error) {
	defer func() {
		final := err
		if final == nil {
			final = errors.New("the supervisor has ended")
		}
		s.down(final)
	}()
	var restarts []time.Time
	asleep := s.cfg.Parked
	for first := true; ; first = false {
		if asleep {
			select {
			case <-s.wake:
				asleep = false
			case <-ctx.Done():
				return nil
			}
		}
		e, err := s.open(ctx, s.options, s.cfg.Progress)
		if ctx.Err() != nil {
			if err == nil {
				return e.Close()
			}
			return nil
		}
		down := Event{Kind: EngineDown, Generation: s.Generation(), Err: err}
		if err == nil {
			down.Generation = s.up(e)
			s.tell(Event{Kind: EngineUp, Generation: down.Generation, Restarts: len(restarts)})
			down.Err = s.outlive(ctx, e)
			if down.Err == nil {
				s.down(nil)
				return e.Close()
			}
			s.down(nil)
			select {
			case <-s.park: // it died while it was being parked
				down.Err = errParked
			default:
			}
			if errors.Is(down.Err, errParked) {
				_ = e.Close()
				s.tell(Event{Kind: EngineParked, Generation: down.Generation})
				asleep = true
				continue
			}
			// It is lost already; Close frees what is left on our side, and waits for the process and all that it wrote.
			_ = e.Close()
			if p, ok := any(e).(interface{ Stderr() []string }); ok {
				down.Stderr = p.Stderr()
			}
		} else if first || !curable(err) {
			s.tell(Event{Kind: EngineFailed, Err: err})
			return err
		}
		now := time.Now()
		for len(restarts) > 0 && now.Sub(restarts[0]) > s.cfg.Window {
			restarts = restarts[1:]
		}
		restarts = append(restarts, now)
		down.Restarts = len(restarts)
		if len(restarts) > s.cfg.Budget {
			err := rpcerr.EngineLost.With("the engine was lost %d times within %v", len(restarts),
				s.cfg.Window).WithCause(down.Err)
			s.tell(Event{Kind: EngineFailed, Generation: down.Generation, Err: err, Stderr: down.Stderr,
				Restarts: down.Restarts})
			return err
		}
		s.tell(down)
		if !pause.For(ctx, min(s.cfg.MaxBackoff, s.cfg.Backoff<<min(len(restarts)-1, 20))) {
			return nil
		}
	}
}

// outlive waits until the engine is lost or parked, and returns why, or until ctx ends, and returns nil.
func (s *Supervisor[E]) outlive(ctx context.Context, e E) error {
	var lost <-chan struct{}
	m, mortal := any(e).(engine.Mortal)
	if mortal {
		lost = m.Done()
	}
	select {
	case <-lost:
		return m.Err()
	case <-s.park:
		return errParked
	case <-ctx.Done():
		return nil
	}
}

// curable tells failures to open that may pass: the process died, or the device was busy.
func curable(err error) bool {
	return errors.Is(err, rpcerr.AnyUnavailable) || errors.Is(err, rpcerr.AnyInternal) ||
		errors.Is(err, rpcerr.AnyResourceExhausted)
}

func (s *Supervisor[E]) tell(e Event) {
	if s.cfg.OnEvent != nil {
		s.cfg.OnEvent(e)
	}
}
