package generate

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	"github.com/tandem-inference/tandem/gateway/internal/compress"
	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/live"
	"github.com/tandem-inference/tandem/gateway/internal/metrics"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

// minRoom is how much output must fit after a prompt, unless less was asked for.
const minRoom = 16

// Config of a Generator.
type Config struct {
	// DefaultMaxTokens is the output limit of requests that have none and no default of their own.
	DefaultMaxTokens int
	// MaxTokensCeiling limits max_tokens, 0 = no limit.
	MaxTokensCeiling int
	StrictContext    bool
	// FailoverTimeout is how long a generation that lost its worker waits for another.
	FailoverTimeout time.Duration
	// QueueTimeout is how long a request waits for a slot that its worker gave to another gateway, 0 = without limit.
	QueueTimeout time.Duration
	// FailoverAny lets a generation move to a worker with another contract id when no equal one is free.
	FailoverAny bool
	// Watchdog is a mode of package watchdog; empty = off.
	Watchdog string
}

// Deps of a Generator.
type Deps struct {
	Targets Targets
	Metrics *metrics.Set
	// Tracer gets a span per request and phase; nil = none.
	Tracer trace.TracerProvider
	// Board lists the requests at work; nil = nobody looks.
	Board  *live.Board
	Logger *zap.Logger
}

// Targets gives out the slots of the workers that generate.
type Targets interface {
	// Check reports, without waiting, whether a request could be queued now.
	Check() error
	// Await waits for the first worker; afterwards it is Check.
	Await(ctx context.Context, d cluster.Demand) error
	// Submit puts a request into the queue; the caller closes the ticket.
	Submit(d cluster.Demand) (*cluster.Ticket, error)
	// Others reports whether a worker takes work that is none of avoid.
	Others(avoid map[string]bool) bool
	// MaxContext is the longest context in tokens that workers offer, 0 = unknown.
	MaxContext() int
}

// Generator runs requests. It is safe for concurrent use.
type Generator struct {
	cfg     Config
	targets Targets
	metrics *metrics.Set
	log     *zap.Logger
	tracing tracing
	board   *live.Board

	shareSalt shareSalt
}

// New returns a generator.
func New(cfg Config, deps Deps) *Generator {
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	return &Generator{
		cfg: cfg, targets: deps.Targets, metrics: deps.Metrics, log: deps.Logger, tracing: newTracing(deps.Tracer),
		board: deps.Board, shareSalt: newShareSalt(),
	}
}

// MaxContext is the longest context in tokens that workers offer, 0 = unknown.
func (g *Generator) MaxContext() int { return g.targets.MaxContext() }

// Check reports, without waiting, whether a request could be queued now.
func (g *Generator) Check() error { return g.targets.Check() }

// run is the state of one request.
type run struct {
	g    *Generator
	req  *Request
	sink Sink
	seen *live.Request

	once     sync.Once // guards the call of sink.Admitted
	admitErr error

	mu         sync.Mutex // guards the rest
	usage      Usage
	firstToken time.Time
	finishes   []string // of the choices that ended
}

// job is one choice.
type job struct {
	index, choice int
	prompt        []int32
	hints         []int32
	thinking      bool
	max           int
	clamped       int
}

// Run serves req and returns when all its choices are done, with the account. On an error the sink has seen what was
// generated before it. Errors are of package reqerr; a cancelled ctx gives its cause.
func (g *Generator) Run(ctx context.Context, req *Request, sink Sink) (*Usage, error) {
	if req.Arrived.IsZero() {
		req.Arrived = time.Now()
	}
	r := &run{g: g, req: req, sink: sink, seen: g.board.Begin(req.ID, req.Owner, req.Arrived)}
	ctx, span, own := g.tracing.request(ctx, req)
	g.tracing.prepared(ctx, req)
	u, err := r.run(ctx)
	g.tracing.end(span, own, &r.usage, r.finishes, err)
	r.seen.End(metrics.OutcomeOf(err), live.Figures{
		PromptTokens: r.usage.PromptTokens, CachedTokens: r.usage.CachedTokens, CompletionTokens: r.usage.CompletionTokens,
		Drafted: r.usage.Drafted, Accepted: r.usage.Accepted, Rounds: r.usage.VerifySteps, Restore: r.usage.Restore,
	})
	return u, err
}

func (r *run) run(ctx context.Context) (*Usage, error) {
	g, req := r.g, r.req
	jobs, err := r.prepare(ctx)
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	need := 0
	for _, j := range jobs {
		need = max(need, len(j.prompt)+j.max)
	}
	queued := time.Now()
	r.seen.Phase(live.PhaseQueue)
	ticket, err := g.targets.Submit(cluster.Demand{
		Slots: len(jobs), Tokens: need, Share: req.Share, Priority: req.Priority, Prompt: r.toRoute(jobs),
		Isolation: req.CacheScope, Session: r.session(), Contract: req.Contract, AnyContract: g.cfg.FailoverAny,
	})
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	defer ticket.Close()
	slot, err := ticket.Slot(ctx)
	if err != nil {
		return nil, r.fail(ctx, err)
	}
	r.usage.Queue = time.Since(queued)
	r.seen.Phase(live.PhasePrefill)
	g.tracing.phase(ctx, "queue", queued, r.usage.Queue)
	if len(jobs) == 1 {
		err = r.serve(ctx, jobs[0], slot)
	} else {
		grp, ctx := errgroup.WithContext(ctx)
		for i, j := range jobs {
			grp.Go(func() error {
				l := slot
				if i > 0 {
					var err error
					if l, err = ticket.Slot(ctx); err != nil {
						return err
					}
				}
				return r.serve(ctx, j, l)
			})
		}
		err = grp.Wait()
	}
	r.usage.Total = time.Since(req.Arrived)
	if err != nil {
		return &r.usage, r.fail(ctx, err)
	}
	return &r.usage, nil
}

// toRoute is the prompt by which the request finds its worker, nil when that of several or none matters.
func (r *run) toRoute(jobs []job) []int32 {
	if r.req.NoCache || len(r.req.Prompts) != 1 {
		return nil
	}
	return jobs[0].prompt
}

// session names the conversation apart from those of others who ask.
func (r *run) session() string {
	if r.req.Session == "" {
		return ""
	}
	return r.req.Share + "\n" + r.req.Session
}

// fail turns an error into the one that is reported: the reason of a cancelled context wins over what it caused.
func (r *run) fail(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return reqerr.From(err)
}

// prepare compresses prompts, checks lengths and makes the jobs.
func (r *run) prepare(ctx context.Context) ([]job, error) {
	// A request that cannot be queued should not keep a scorer busy first.
	if err := r.g.targets.Await(ctx, cluster.Demand{Share: r.req.Share, Priority: r.req.Priority}); err != nil {
		return nil, err
	}
	limit := r.req.Model.Limit(r.g.targets.MaxContext())
	var jobs []job
	for i, p := range r.req.Prompts {
		r.usage.PromptTokens += len(p.Tokens)
		tokens, thinking, hints := p.Tokens, p.Thinking, p.Hints
		var report *compress.Report
		if p.Compress != nil {
			began := time.Now()
			r.seen.Phase(live.PhaseCompress)
			within, span := r.g.tracing.compress(ctx)
			c := p.Compress(within)
			r.g.tracing.compressed(span, &c.Report)
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			r.usage.Compress += time.Since(began)
			report = &c.Report
			r.usage.Compression = report
			if r.req.Compressed != nil {
				r.req.Compressed(report)
			}
			if c.Report.Applied {
				tokens, thinking, hints = c.Tokens, c.Thinking, nil // positions are those of the whole prompt
			}
			r.countCompression(ctx, &c.Report)
		}
		n, clamped, err := r.length(len(tokens), limit)
		if err != nil {
			// Only a scorer that failed is worth another try. Clients repeat what gets a 503 and shorten what gets a 400.
			if report != nil && report.Failed {
				failed := reqerr.NoWorker("the prompt needs compression, which failed: " + report.Reason)
				return nil, failed.WithCause(err)
			}
			return nil, err
		}
		for k := range max(1, r.req.N) {
			jobs = append(jobs, job{index: i*max(1, r.req.N) + k, choice: k, prompt: tokens, hints: hints,
				thinking: thinking, max: n, clamped: clamped})
		}
	}
	return jobs, nil
}

func (r *run) countCompression(ctx context.Context, c *compress.Report) {
	if r.g.metrics == nil {
		return
	}
	if c.Applied {
		r.g.metrics.Compressed(ctx, "applied", c.OriginalTokens, c.KeptTokens)
	} else {
		r.g.metrics.Compressed(ctx, "skipped", 0, 0)
	}
}

// length gives the output limit for a prompt of p tokens in a context of c (0 = unknown), and that limit again when the
// context lowered what was asked for.
func (r *run) length(p, c int) (n, clamped int, err error) {
	cfg := r.g.cfg
	want := cmp.Or(r.req.DefaultMaxTokens, cfg.DefaultMaxTokens)
	if r.req.MaxTokensGiven {
		want = r.req.MaxTokens
	}
	if cfg.MaxTokensCeiling > 0 {
		want = min(want, cfg.MaxTokensCeiling)
	}
	if c == 0 {
		return want, 0, nil
	}
	room := c - p
	if room < min(minRoom, want) || room < 0 {
		return 0, 0, reqerr.ContextLength(p, 0, c)
	}
	if want <= room {
		return want, 0, nil
	}
	if !r.req.MaxTokensGiven {
		return room, 0, nil
	}
	if cfg.StrictContext {
		return 0, 0, reqerr.ContextLength(p, want, c)
	}
	return room, room, nil
}

// admitted tells the sink once.
func (r *run) admitted(contract string) error {
	r.once.Do(func() {
		if r.req.Taken != nil {
			r.req.Taken(contract)
		}
		r.admitErr = r.sink.Admitted()
	})
	return r.admitErr
}

// add sums a finished choice into the account.
func (r *run) add(c *Choice, s *stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := &r.usage
	r.finishes = append(r.finishes, c.Finish)
	u.CompletionTokens += c.Tokens.Total
	u.ReasoningTokens += c.Tokens.Thinking
	u.ToolTokens += c.Tokens.Tool
	u.Drafted += s.drafted
	u.Accepted += s.accepted
	u.LookupDrafted += s.lookDrafted
	u.LookupAccepted += s.lookAccepted
	u.VerifySteps += s.steps
	u.Retries += s.retries
	u.ContractChanges += s.contractChanges
	u.addContract(s.contract)
	u.Worker = s.worker
	u.CloseKind = c.CloseKind
	u.Degraded = u.Degraded || s.degraded
	u.Prefill = max(u.Prefill, s.prefill)
	u.Restore = max(u.Restore, s.restore)
	if s.job.choice == 0 { // a prompt counts once
		u.CachedTokens += s.cached
		u.SavedTokens += s.saved
	}
	u.Decode = max(u.Decode, s.decode)
	if !s.first.IsZero() && (r.firstToken.IsZero() || s.first.Before(r.firstToken)) {
		r.firstToken = s.first
		u.TTFT = s.first.Sub(r.req.Arrived)
	}
}

func (r *run) countCalls(ctx context.Context, c *Choice) {
	if r.g.metrics == nil {
		return
	}
	for _, call := range c.ToolCalls {
		r.g.metrics.ToolCall(ctx, call.Format.String())
	}
	if c.ToolParseError != "" {
		r.g.metrics.ToolParseError(ctx)
	}
}

// serve runs one choice on slot and, when workers fail, on the slots that replace it.
func (r *run) serve(ctx context.Context, j job, slot *cluster.Slot) error {
	s := &stream{r: r, job: j, emitter: r.newEmitter(j)}
	admitted := time.Now()
	c, err := s.run(ctx, slot)
	r.g.tracing.choice(ctx, s, admitted)
	if c != nil {
		r.add(c, s)
		r.countCalls(ctx, c)
	}
	if err != nil {
		return err
	}
	return r.sink.Done(j.index, *c)
}

func (r *run) newEmitter(j job) *emit.Emitter {
	cfg := emit.Config{
		Tokenizer: r.req.Model.Tokenizer, ThinkOpen: emit.None, ThinkClose: emit.None, Stops: r.req.Stops,
		Logprobs: r.req.TopLogprobs != NoLogprobs,
	}
	if r.req.SplitReasoning {
		cfg.ThinkOpen, cfg.ThinkClose, cfg.Thinking = r.req.Model.ThinkOpen, r.req.Model.ThinkClose, j.thinking
		cfg.ThinkLabel = r.req.Model.ThinkLabel
		if cfg.Aloud = r.req.ReasoningInContent; cfg.Aloud && j.thinking {
			cfg.Opened = r.req.Model.OpenedThinking(j.prompt)
		}
	}
	if r.req.Tools != nil {
		cfg.Tools, cfg.Literal = toolcall.NewParser(*r.req.Tools), r.req.Model.Markup
		if r.req.SplitReasoning && r.req.Constraint.GetGrammar() == "" {
			// Under a grammar the worker closes reasoning before a call, so that the call is held to it.
			try := toolcall.Config{Set: r.req.Tools.Set, Family: r.req.Tools.Family, NewID: func() string { return "" }}
			cfg.Trial = func() *toolcall.Parser { return toolcall.NewParser(try) }
		}
	}
	return emit.New(cfg)
}

// isStop reports whether a token ends the turn.
func (r *run) isStop(id int32) bool { return slices.Contains(r.req.Model.Stops, id) }

// decodeRequest is what the worker is asked.
func (r *run) decodeRequest(j job, committed []int32) *tandemv1.DecodeRequest {
	return &tandemv1.DecodeRequest{
		RequestId: r.req.ID, PromptTokens: j.prompt, CommittedTokens: committed, Sampling: r.req.Sampling,
		Choice:    int32(j.choice),
		MaxTokens: int32(j.max), StopTokens: r.req.Model.Stops, Speculation: r.req.Speculation,
		TopLogprobs: int32(r.req.TopLogprobs), PromptLogprobs: r.req.PromptLogprobs &&
			len(committed) == 0, Guide: r.constraint(j),
		FairnessKey: r.g.shareSalt.key(r.req.Share), Priority: int32(r.req.Priority),
		Cache: &tandemv1.CacheUse{Off: r.req.NoCache, Isolation: r.req.CacheScope, Hints: j.hints},
		Watch: r.seen.Watch(j.index),
	}
}

// constraint of one choice, nil when nothing is limited.
func (r *run) constraint(j job) *tandemv1.Guide {
	var reasoning *tandemv1.Reasoning
	if r.req.Reasoning != nil {
		reasoning = r.req.Reasoning(j.max, j.thinking)
	}
	g := r.req.Constraint
	if reasoning == nil {
		return g
	}
	if m := r.req.Model; r.req.Tools != nil && m.CallOpen != emit.None && m.CallClose != emit.None {
		reasoning.CallOpen, reasoning.CallClose = &m.CallOpen, &m.CallClose
	}
	return &tandemv1.Guide{Reasoning: reasoning, Grammar: g.GetGrammar(), BannedTokens: g.GetBannedTokens()}
}

// errDone is how a sink or a stop string ends a stream without it being a failure of the worker.
var errDone = errors.New("generation is over")
