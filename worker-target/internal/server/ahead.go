package server

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/worker-target/internal/decode"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/reuse"
	"github.com/tandem-inference/tandem/worker-target/internal/schedule"
)

// mostAhead bounds the prompts that wait to be read ahead: as many conversations as are likely to go on soon.
const mostAhead = 16

// ahead reads prompts ahead, one at a time, the newest first, while no request is there.
type ahead struct {
	// read reads one, as far as ctx allows, and reports whether it is to be tried again.
	read  func(ctx context.Context, p *aheadPrompt) (again bool)
	group sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	requests int
	waiting  []*aheadPrompt // newest last
	stop     context.CancelFunc
	stopped  chan struct{} // closed when the reading has let go; nil while nothing is read
	stops    uint64        // readings that a request stopped
	closed   bool
}

// aheadPrompt is a prompt to be read ahead.
type aheadPrompt struct {
	id, isolation string
	tokens        []int32
	asked         time.Time
}

// begins reports whether another prompt of the isolation begins with p.
func (p *aheadPrompt) begins(isolation string, tokens []int32) bool {
	return p.isolation == isolation && len(p.tokens) <= len(tokens) && slices.Equal(p.tokens, tokens[:len(p.tokens)])
}

// begin notes that a request is there. It returns when nothing is read ahead any more: within a layer of the model, or
// the copy of a state. What the request reads itself is not read ahead.
func (a *ahead) begin(isolation string, tokens []int32) {
	a.mu.Lock()
	a.requests++
	a.waiting = slices.DeleteFunc(a.waiting, func(p *aheadPrompt) bool { return p.begins(isolation, tokens) })
	stopped := a.stopped
	if stopped != nil {
		a.stop()
	}
	a.mu.Unlock()
	if stopped != nil {
		<-stopped
	}
}

// end notes that a request is over.
func (a *ahead) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests--
	a.start()
}

// add has a prompt read. It takes the place of those that it begins with.
func (a *ahead) add(p *aheadPrompt) (accepted bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	a.waiting = slices.DeleteFunc(a.waiting, func(o *aheadPrompt) bool { return o.begins(p.isolation, p.tokens) })
	if len(a.waiting) >= mostAhead {
		a.waiting = slices.Delete(a.waiting, 0, 1)
	}
	a.waiting = append(a.waiting, p)
	a.start()
	return true
}

// start reads the newest prompt if nothing else is to be done. The caller holds mu.
func (a *ahead) start() {
	n := len(a.waiting)
	if n == 0 || a.requests > 0 || a.stopped != nil || a.closed {
		return
	}
	p := a.waiting[n-1]
	a.waiting = a.waiting[:n-1]
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	a.stop, a.stopped = cancel, stopped
	a.group.Go(func() {
		defer cancel()
		again := a.read(ctx, p)
		a.mu.Lock()
		defer a.mu.Unlock()
		if ctx.Err() != nil {
			a.stops++
			if again && len(a.waiting) < mostAhead {
				a.waiting = append(a.waiting, p)
			}
		}
		a.stopped = nil
		close(stopped)
		a.start()
	})
}

// close stops the reading for good and waits for it.
func (a *ahead) close() {
	a.mu.Lock()
	a.closed, a.waiting = true, nil
	if a.stopped != nil {
		a.stop()
	}
	a.mu.Unlock()
	a.group.Wait()
}

// stopCount is the number of readings that a request has stopped.
func (a *ahead) stopCount() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stops
}

// ReadAhead implements TargetService.
func (s *Server) ReadAhead(_ context.Context, m *tandemv1.ReadAheadRequest) (*tandemv1.ReadAheadResponse, error) {
	e, err := s.deps.Engines.Engine()
	if err != nil {
		return nil, err
	}
	if err := checkAhead(m, e.Info()); err != nil {
		return nil, err
	}
	accepted := s.deps.Prefixes != nil && !s.draining.Load() && s.ahead.add(&aheadPrompt{
		id: m.RequestId, isolation: m.Isolation, tokens: m.PromptTokens, asked: time.Now(),
	})
	return &tandemv1.ReadAheadResponse{Accepted: accepted}, nil
}

// checkAhead says which field of a prompt that is to be read ahead cannot work.
func checkAhead(m *tandemv1.ReadAheadRequest, info engine.Info) error {
	if len(m.PromptTokens) == 0 {
		return rpcerr.InvalidArgument("prompt_tokens", "is empty")
	}
	if n := len(m.PromptTokens); n > info.MaxContext {
		return rpcerr.ContextLength.With("prompt_tokens: %d tokens do not fit into the context of %d", n, info.MaxContext)
	}
	if err := checkTokens("prompt_tokens", m.PromptTokens, info.Vocab); err != nil {
		return err
	}
	return checkIsolation("isolation", m.Isolation)
}

// readAhead reads one prompt ahead.
func (s *Server) readAhead(ctx context.Context, p *aheadPrompt) (again bool) {
	e, err := s.deps.Engines.Engine()
	if err != nil {
		return false
	}
	use := s.scheduled(e, schedule.Request{Prompt: len(p.tokens)})
	start := time.Now()
	read, err := s.aheadSlot.ReadAhead(ctx, use, &decode.Request{
		ID: p.id, Prompt: p.tokens, Reuse: reuse.Request{Space: s.space(e, p.isolation), Ahead: p.asked},
	})
	s.mu.Lock()
	s.counters.ahead += float64(read)
	s.mu.Unlock()
	if read > 0 || err != nil {
		s.deps.Log.Debug("read ahead", zap.String(telemetry.KeyRequestID, p.id), zap.Int(telemetry.KeyPrompt, len(p.tokens)),
			zap.Int(telemetry.KeyTokens, read), zap.Int64(telemetry.KeyDurationMS, time.Since(start).Milliseconds()),
			zap.NamedError(telemetry.KeyErr, err))
	}
	if err != nil && ctx.Err() == nil {
		s.deps.Engines.Report(e, err)
	}
	return true
}

// Close ends what runs without a request. The prefix cache may be closed then.
func (s *Server) Close() { s.ahead.close() }
