package decode

import (
	"context"
	"slices"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/constrain"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/features"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/output"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/reuse"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/sequence"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/speculate"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/text"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
	"github.com/tandem-inference/tandem/worker-target/internal/inflight"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
	"github.com/tandem-inference/tandem/worker-target/internal/preempt"
	"github.com/tandem-inference/tandem/worker-target/internal/watch"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Drafter is the draft of one request; *drafts.Link implements it.
type Drafter = speculate.Drafter

// Drafts opens drafters; *drafts.Manager, wrapped, implements it.
type Drafts = speculate.Drafts

// Config of decoding, the same for all slots.
type Config struct {
	// PrefillChunk bounds the rows of a prefill step (piece.Step), 0 = the engine's widest.
	PrefillChunk int
	// Markers say where messages end, for the cuts of prompts.
	Markers piece.Markers
	// Prefixes keeps the states of prompts, nil = none is kept.
	Prefixes reuse.Cache
	// Members are the requests that share the engine's memory, nil = those of this slot alone.
	Members *preempt.Pool
	// Readings are the prompts that the worker reads now, nil = none is read for others.
	Readings *inflight.Table
	// TreeBudget is the number of nodes of trees when the request does not say, 0 = by the device, TreeBudget.
	TreeBudget int
	// RingRows of features kept per slot, 0 = drafts.DefaultRingRows.
	RingRows int
	// NoLookup keeps automatic speculation from looking proposals up in the text.
	NoLookup bool
	// Proposals are waited for at least MinDeadline, or four times the expected time, at most MaxDeadline; zero values
	// mean the defaults.
	MinDeadline, MaxDeadline time.Duration
	// SlowReader is how long a client may leave output unread before its request gives up memory and place; 0 =
	// DefaultSlowReader, negative = it never does.
	SlowReader time.Duration
	// Measures of requests and rounds; nil = none.
	Measures *Measures
	// Tracer gets the spans of requests whose context has one that is recorded; nil = none.
	Tracer trace.TracerProvider
	// Watch gets what requests do while somebody watches; nil = nobody does.
	Watch *watch.Feed
}

// Defaults of Config.
const (
	DefaultMinDeadline = 20 * time.Millisecond
	// DefaultMaxDeadline is well below the second within which an answer must go on when a draft hangs.
	DefaultMaxDeadline = 400 * time.Millisecond
)

func (c Config) withDefaults() Config {
	if c.RingRows <= 0 {
		c.RingRows = drafts.DefaultRingRows
	}
	if c.SlowReader == 0 {
		c.SlowReader = DefaultSlowReader
	}
	if c.Members == nil {
		c.Members = preempt.New()
	}
	if c.MinDeadline <= 0 {
		c.MinDeadline = DefaultMinDeadline
	}
	if c.MaxDeadline <= 0 {
		c.MaxDeadline = DefaultMaxDeadline
	}
	return c
}

// TreeBudget returns the nodes of trees of requests that name no budget, on an engine: those that the worker's flag
// names, else by the device. AMD's matrix instructions take 16 columns at a time: with its root a tree of 15 nodes is
// one tile, and one of 22 costs two, 20 to 35 % more (docs/gpu-notes.md §0). On other devices 23 rows cost little more
// than 16. Every row passes all stages, so one stage on an AMD card makes the tree small.
func TreeBudget(flag int, info *engine.Info) int {
	switch {
	case flag > 0:
		return flag
	case info.Runs("hip"):
		return 15
	}
	return 22
}

// Slot runs one request after the other. Its memory is kept between them.
type Slot struct {
	prefillChunk int // rows
	treeBudget   int // Config.TreeBudget
	markers      piece.Markers
	members      *preempt.Pool
	readings     *inflight.Table
	model        *auto.Model

	// Of the request in work.
	req     *Request
	engine  engine.Target
	info    engine.Info
	stats   *Stats
	cuts    piece.Cuts // of the prompt
	sampler engine.Sampler
	member  *preempt.Member
	handle  engine.Sequence // of seq
	held    bool            // handle exists in the engine
	parked  parked
	reader  reader
	reading *inflight.Reading // nil = no other request waits for the prompt

	seq        sequence.Sequence
	text       text.Text
	spec       *speculate.Speculation
	constraint constrain.Walker
	features   *features.Feed
	reuse      reuse.Reuse
	out        output.Output
	answer     []int32     // tokens after the prompt
	line       []*streamed // steps of the prompt on their way, and then free ones
	trace      tracing
	watch      watch.Recorder
	measures   *Measures
	roundBegan time.Time
}

// NewSlot returns an idle slot. d is nil when the worker uses no drafts.
func NewSlot(cfg Config, model *auto.Model, d Drafts) *Slot {
	cfg = cfg.withDefaults()
	s := &Slot{
		prefillChunk: cfg.PrefillChunk, treeBudget: cfg.TreeBudget, markers: cfg.Markers, members: cfg.Members,
		readings: cfg.Readings,
		model:    model, features: features.New(cfg.RingRows), trace: newTracing(cfg.Tracer),
		measures: cfg.Measures, watch: watch.NewRecorder(cfg.Watch),
	}
	s.reuse = reuse.New(cfg.Prefixes, reuse.All)
	s.reader = reader{limit: cfg.SlowReader, gone: make(chan error, 1), timer: time.AfterFunc(time.Hour, s.leave)}
	s.reader.timer.Stop()
	s.spec = speculate.New(speculate.Config{
		NoLookup: cfg.NoLookup, MinDeadline: cfg.MinDeadline, MaxDeadline: cfg.MaxDeadline,
	}, model, d, &s.text)
	return s
}

// Run runs a request on engine, which frees a sequence although its request is over (engine.GuardedTarget). stats is
// filled as far as the request came, also when an error is returned.
func (s *Slot) Run(ctx context.Context, e engine.Target, req *Request, sink Sink, stats *Stats) (Result, error) {
	s.req, s.engine, s.info, s.stats = req, e, e.Info(), stats
	s.trace.start(ctx)
	s.watch.Start(req.Watch)
	defer func() { s.watch.Finish(stats.Steps) }()
	arrived := time.Now()
	s.sampler = req.Sampler
	s.sampler.PromptTokens = int32(len(req.Prompt))
	s.cuts = s.markers.Cut(req.Prompt, s.cuts)
	s.reuse.Start(req.Reuse, e, req.Prompt, s.cuts)
	s.member = s.members.Join(req.Priority)
	defer s.member.Leave()
	s.held, s.parked, s.reader.left = false, parked{}, false
	defer s.freeSequence(ctx)
	defer s.dropParked(ctx)
	if err := s.awaitReader(ctx); err != nil {
		return Result{}, rpcerr.From(err)
	}
	defer s.reading.End()
	if err := s.member.Enter(ctx); err != nil {
		return Result{}, rpcerr.From(err)
	}
	s.trace.over("wait", arrived)
	stats.Wait = time.Since(arrived)
	restored, err := s.open(ctx)
	if err != nil {
		return Result{}, err
	}
	if err := e.SetSampler(ctx, s.handle, s.sampler); err != nil {
		return Result{}, err
	}
	s.start(restored, sink)
	defer s.spec.Close()
	reason, err := s.run(ctx)
	s.trace.endPhase(err, attribute.Int(telemetry.AttrTokens, len(s.answer)-len(req.Committed)),
		attribute.Int(telemetry.AttrVerifySteps, stats.Steps), attribute.Int(telemetry.AttrDrafted, stats.Drafted),
		attribute.Int(telemetry.AttrAccepted, stats.Accepted))
	s.measures.request(ctx, stats)
	stats.Emitted, stats.FirstToken, stats.Decode = s.out.Figures()
	return Result{Reason: reason, StopToken: s.out.StopToken(), CloseKind: s.constraint.Kind()}, err
}

// awaitReader enters the prompt among those that are read, and waits for one that arrived earlier and has the
// same beginning.
func (s *Slot) awaitReader(ctx context.Context) error {
	s.reading = nil
	if !s.reuse.On() {
		return nil
	}
	s.reading = s.readings.Begin(inflight.Prompt{
		Space: s.req.Reuse.Space, Tokens: s.req.Prompt, Cuts: s.cuts, PromptRows: s.info.PromptRows, Priority: s.req.Priority,
	})
	if s.req.Reuse.SaveOnly {
		return nil
	}
	shared, err := s.reading.Wait(ctx, s.reuse.Stored)
	if err != nil {
		s.reading.End()
		return err
	}
	s.reuse.Allow(shared)
	return nil
}

// open makes the request's sequence and restores the longest stored state that the prompt begins with, of so many
// tokens.
func (s *Slot) open(ctx context.Context) (restored int, err error) {
	if err := s.newSequence(ctx); err != nil {
		return 0, err
	}
	begin := time.Now()
	s.trace.begin("restore")
	restored, err = s.reuse.Restore(s.trace.within(ctx), s.handle)
	s.trace.endPhase(err, attribute.Int(telemetry.AttrCached, restored))
	if restored > 0 {
		s.stats.CachedTokens, s.stats.Restore = restored, time.Since(begin)
	}
	if err != nil { // what the sequence holds is not known: the prompt is read into another one
		s.freeSequence(ctx)
		err = s.newSequence(ctx)
	}
	s.reading.Started(restored)
	return restored, err
}

// start begins the request in every part, on a sequence that holds so many tokens of the prompt.
func (s *Slot) start(restored int, sink Sink) {
	req, info := s.req, &s.info
	s.seq.Start(s.engine, s.handle, restored, info.Vocab)
	s.answer = append(s.answer[:0], req.Committed...)
	s.out.Start(output.Request{
		Max: req.Max, Committed: req.Committed, Stop: req.Stop, TopLogprobs: req.TopLogprobs, MaxTopK: info.MaxTopK,
		Arrived: req.Arrived,
	}, sink)
	s.constraint.Start(req.Constraint, req.Mode != tandemv1.SpeculationMode_SPECULATION_MODE_OFF)
	s.features.Reset(info.MaxBatchRows)
	budget := req.Budget
	if budget <= 0 {
		budget = TreeBudget(s.treeBudget, info)
	}
	s.spec.Start(speculate.Request{
		ID: req.ID, Prompt: req.Prompt, Mode: req.Mode, Budget: budget, Block: req.Block, Max: req.Max,
		Left:        s.out.Left(),
		Constrained: req.Constraint != nil, Vocab: info.Vocab, TreeRows: info.MaxTreeRows, Rows: info.MaxBatchRows,
	}, &s.stats.Stats)
	s.text.Read(req.Prompt[:restored])
}

// run runs the request: prompt, tokens of an earlier worker, first token, rounds.
func (s *Slot) run(ctx context.Context) (tandemv1.FinishReason, error) {
	s.attach(ctx, len(s.req.Prompt)+len(s.req.Committed))
	if err := s.prefill(ctx); err != nil {
		return unfinished, err
	}
	if reason := s.out.Ended(); reason != unfinished {
		return reason, nil
	}
	if err := s.replay(ctx); err != nil {
		return unfinished, err
	}
	if s.constraint.Ended() {
		return tandemv1.FinishReason_FINISH_REASON_STOP, nil
	}
	reason, err := s.first(ctx)
	for err == nil && reason == unfinished {
		reason, err = s.round(ctx)
	}
	if err == nil {
		s.keep(ctx)
	}
	return reason, err
}

// keep stores the state after the answer. The answer is complete: an error loses the state alone.
func (s *Slot) keep(ctx context.Context) {
	if !s.reuse.Answers() || ctx.Err() != nil || s.seq.Commit(ctx) != nil || s.features.CatchUp(ctx, &s.seq) != nil {
		return
	}
	text := slices.Concat(s.req.Prompt, s.answer)
	s.reuse.Answer(s.seq.ID(), text[:s.seq.Length()])
}

// unfinished is the reason of a request that goes on.
const unfinished = tandemv1.FinishReason_FINISH_REASON_UNSPECIFIED

// at returns the request's position between two steps.
func (s *Slot) at() speculate.At { return s.atLength(s.seq.Length()) }

func (s *Slot) atLength(length int) speculate.At {
	return speculate.At{Anchor: s.out.Anchor(), Length: length, Left: s.out.Left(), Free: s.info.MaxContext - length}
}

// attach adds a draft to the request and captures features for it, once one is attached to the worker. known is the
// number of positions whose tokens are known by now.
func (s *Slot) attach(ctx context.Context, known int) {
	capture := s.spec.Capture(s.out.Left())
	if capture == nil {
		return
	}
	ring := s.features.Start(capture, s.seq.Length(), known, s.reuse.Rows(capture, s.seq.Length()))
	s.reuse.Capture(ring, capture)
	s.features.Connect(s.spec.Attach(ctx, ring, capture, s.atLength(known)))
}
