package live

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

const (
	// perSecond is how many rounds a second a watcher gets of all requests together, and how many each worker describes:
	// more cost the page time that nobody sees.
	perSecond = 30
	// mostWatchers bounds the pages that look at a time.
	mostWatchers = 64
	// room is how many events wait for a page that reads slowly.
	room = 128
	// again is the pause before a worker is watched again that was lost, and between two looks at the list of workers.
	again = 500 * time.Millisecond
	// mostAnswer bounds a worker's message, in bytes: a tree and the tokens of a second.
	mostAnswer = 1 << 20
)

// Deps of a Service.
type Deps struct {
	Board   *Board
	Workers func() []registry.Worker
	// Connect opens a connection to a worker, which the service closes.
	Connect func(registry.Worker) (*grpc.ClientConn, error)
	// Tokenizer of the served model, nil while there is none.
	Tokenizer func() *tokenizer.Tokenizer
	Logger    *zap.Logger
}

// Service hands rounds to those who watch. While nobody does, no worker is watched.
type Service struct {
	deps    Deps
	changed chan struct{} // a watcher came or left

	mu       sync.Mutex // guards watchers, what they hold back, and the texts of choices
	watchers map[*Watcher]struct{}
}

// New returns a service; Run watches the workers.
func New(deps Deps) *Service {
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	return &Service{deps: deps, changed: make(chan struct{}, 1), watchers: map[*Watcher]struct{}{}}
}

// Watcher gets events. Close ends it.
type Watcher struct {
	service *Service
	viewer  Viewer
	events  chan Event
	dropped atomic.Uint64
	window  time.Time
	sent    int // events since window
	// held are the newest events of requests for which there was no room in the second, with all their tokens, by the
	// numbers under which their rounds are described.
	held map[uint64]Event
}

// Watch adds a watcher.
func (s *Service) Watch(v Viewer) (*Watcher, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.watchers) >= mostWatchers {
		return nil, rpcerr.ResourceExhausted("%d pages look at this gateway already", mostWatchers)
	}
	w := &Watcher{service: s, viewer: v, events: make(chan Event, room), held: map[uint64]Event{}}
	s.watchers[w] = struct{}{}
	s.notify()
	return w, nil
}

// Events are what the viewer may see.
func (w *Watcher) Events() <-chan Event { return w.events }

// Dropped is the number of events that were left out because the watcher reads slowly.
func (w *Watcher) Dropped() uint64 { return w.dropped.Load() }

// Requests are those at work and those that ended last.
func (w *Watcher) Requests() []View { return w.service.deps.Board.Requests(w.viewer) }

// Close ends the watch.
func (w *Watcher) Close() {
	s := w.service
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers, w)
	s.notify()
}

func (s *Service) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *Service) watched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watchers) > 0
}

// Run watches the workers while somebody looks, until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		}
		if s.watched() {
			s.follow(ctx)
		}
	}
}

// follow watches every target until nobody looks any more.
func (s *Service) follow(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type life struct {
		id    string
		epoch uint64
	}
	watched := map[life]context.CancelFunc{}
	ticker := time.NewTicker(again)
	defer ticker.Stop()
	for s.watched() && ctx.Err() == nil {
		gone := map[life]bool{}
		for l := range watched {
			gone[l] = true
		}
		for _, w := range s.deps.Workers() {
			if w.Registration.GetRole() != tandemv1.Role_ROLE_TARGET || w.State == registry.StateLost {
				continue
			}
			l := life{w.ID, w.Epoch}
			delete(gone, l)
			if watched[l] == nil {
				within, stop := context.WithCancel(ctx)
				watched[l] = stop
				group.Go(func() { s.watch(within, w) })
			}
		}
		for l := range gone {
			watched[l]()
			delete(watched, l)
		}
		select {
		case <-ctx.Done():
		case <-s.changed:
		case <-ticker.C:
		}
	}
}

// watch watches one worker, again and again, until ctx ends.
func (s *Service) watch(ctx context.Context, w registry.Worker) {
	for ctx.Err() == nil {
		if err := s.receive(ctx, w); err != nil && ctx.Err() == nil {
			s.deps.Logger.Debug("a worker's rounds cannot be watched", zap.String(telemetry.KeyWorker, w.ID),
				zap.NamedError(telemetry.KeyErr, err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

// receive watches a worker until the stream ends.
func (s *Service) receive(ctx context.Context, w registry.Worker) error {
	conn, err := s.deps.Connect(w)
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := tandemv1.NewTargetServiceClient(conn).WatchRounds(ctx,
		&tandemv1.WatchRoundsRequest{MaxPerSecond: perSecond, MaxEvents: mostEvents}, grpc.MaxCallRecvMsgSize(mostAnswer))
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if !check(m.GetEvent()) || len(m.GetMore()) > mostEvents || slices.ContainsFunc(m.GetMore(), refused) {
			return rpcerr.Internal("worker %s describes a round that cannot be", w.ID)
		}
		s.take(w.ID, m)
	}
}

func refused(m *tandemv1.WatchEvent) bool { return !check(m) }

// take hands a worker's message to all watchers.
func (s *Service) take(worker string, m *tandemv1.WatchRoundsResponse) {
	tok, now := s.deps.Tokenizer(), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.event(worker, m.GetEvent(), m.GetDropped(), tok, now)
	for _, e := range m.GetMore() {
		s.event(worker, e, m.GetDropped(), tok, now)
	}
}

// event hands an event to all watchers. The caller holds the lock.
func (s *Service) event(worker string, m *tandemv1.WatchEvent, dropped uint64, tok *tokenizer.Tokenizer,
	now time.Time) {
	e := newEvent(worker, m, s.deps.Board.find(m.GetWatch()), tok)
	e.Dropped = dropped
	for w := range s.watchers {
		w.take(e.seenBy(w.viewer), now)
	}
}

// take sends an event, unless the second has had its share: then it waits for the next one of its request, which takes
// over its tokens and counts it. A request's end always goes out, so that nothing is left behind. The caller holds the
// lock.
func (w *Watcher) take(e Event, now time.Time) {
	if now.Sub(w.window) >= time.Second {
		w.window, w.sent = now, 0
	}
	if before, ok := w.held[e.watch]; ok {
		delete(w.held, e.watch)
		e.Skipped += before.Skipped
		if before.Type == "round" {
			e.Skipped++
		}
		if int(before.Index)+len(before.Tokens) == int(e.Index) {
			e.Index, e.Tokens = before.Index, append(before.Tokens[:len(before.Tokens):len(before.Tokens)], e.Tokens...)
		}
	}
	if w.sent >= perSecond && e.Type != "end" {
		w.held[e.watch] = e
		return
	}
	w.sent++
	select {
	case w.events <- e:
	default:
		w.dropped.Add(1)
	}
}
