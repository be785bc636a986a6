package decode

import (
	"context"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/engineplugin"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
	"github.com/tandem-inference/tandem/worker-target/internal/lookup"
)

// Drafter is the speculation of one request; *drafts.Link implements it.
type Drafter interface {
	// Fed tells that the ring has new rows.
	Fed()
	// Ready reports whether asking makes sense now.
	Ready() bool
	Ask(a drafts.Ask)
	Wait(ctx context.Context, tree *ddtree.Tree) drafts.Outcome
	// Poll looks for the answer without waiting; ok is false while there is none.
	Poll(tree *ddtree.Tree) (outcome drafts.Outcome, ok bool)
	// Forget gives up the answer to the last Ask.
	Forget()
	Close()
}

// Drafts opens drafters; *drafts.Manager, wrapped, implements it.
type Drafts interface {
	// Known reports whether any draft was ever named.
	Known() bool
	// Capture is what features the engine delivers now, nil for none.
	Capture() *drafts.Capture
	// Open starts the speculation of a request. A held one is not known to its draft before the first question.
	Open(ctx context.Context, id string, ring *drafts.Ring, capture *drafts.Capture, vocab int, held bool) Drafter
}

// Config of decoding, the same for all lanes.
type Config struct {
	// PrefillChunk is the number of rows of a prefill step, 0 = the engine's widest.
	PrefillChunk int
	// TreeBudget is the number of nodes of trees when the request does not say, 0 = DefaultTreeBudget.
	TreeBudget int
	// RingRows of features kept per lane, 0 = drafts.DefaultRingRows.
	RingRows int
	// NoLookup keeps automatic speculation from looking proposals up in the text.
	NoLookup bool
	// Proposals are waited for at least MinDeadline, or four times the expected time, at most MaxDeadline; zero values mean
	// the defaults.
	MinDeadline, MaxDeadline time.Duration
}

// Defaults of Config.
const (
	DefaultTreeBudget  = 22
	DefaultMinDeadline = 20 * time.Millisecond
	// DefaultMaxDeadline is well below the second within which an answer must go on when a draft hangs.
	DefaultMaxDeadline = 400 * time.Millisecond
)

func (c Config) withDefaults() Config {
	if c.TreeBudget <= 0 {
		c.TreeBudget = DefaultTreeBudget
	}
	if c.RingRows <= 0 {
		c.RingRows = drafts.DefaultRingRows
	}
	if c.MinDeadline <= 0 {
		c.MinDeadline = DefaultMinDeadline
	}
	if c.MaxDeadline <= 0 {
		c.MaxDeadline = DefaultMaxDeadline
	}
	return c
}

// Lane runs one request after the other. Its memory is kept between them.
type Lane struct {
	cfg    Config
	model  *auto.Model
	drafts Drafts
	ring   *drafts.Ring

	step   engineplugin.Step
	result engineplugin.StepResult
	group  [1]engineplugin.Group // of step
	// Features that the engine keeps, where they are asked for alone.
	reading [1]engineplugin.Group
	fetched engineplugin.StepResult
	tree    ddtree.Tree
	sound   sounding
	index   lookup.Index
	found   []int32     // by lookup, for the round
	looked  []auto.Look // the round's tokens
	path    []int32     // accepted rows of the last step, which are pending unless its group commits
	guided
	masks []uint32 // of the step
	stop  map[int32]bool

	// Output of a round, given to the sink.
	tokens   []int32
	logprobs []*tandemv1.PositionLogprobs
}

// NewLane returns an idle lane.
func NewLane(cfg Config, model *auto.Model, d Drafts) *Lane {
	cfg = cfg.withDefaults()
	return &Lane{cfg: cfg, model: model, drafts: d, ring: drafts.NewRing(cfg.RingRows), stop: map[int32]bool{}}
}

// Run runs a request on engine, which frees a sequence although its request is over (engineplugin.Guard). stats is filled as far as the request came, also when an error is returned.
func (l *Lane) Run(ctx context.Context, engine engineplugin.Engine, req *Request, sink Sink, stats *Stats) (Result, error) {
	info := engine.Info()
	seq, err := engine.NewSequence(ctx)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = engine.FreeSequence(ctx, seq) }()
	sampler := req.Sampler
	sampler.PromptTokens = int32(len(req.Prompt))
	if err := engine.SetSampler(ctx, seq, sampler); err != nil {
		return Result{}, err
	}
	clear(l.stop)
	for _, t := range req.Stop {
		l.stop[t] = true
	}
	l.path, l.group[0] = l.path[:0], engineplugin.Group{}
	l.sound.on = false
	r := &run{Lane: l, engine: engine, info: info, seq: seq, req: req, sink: sink, stats: stats, out: len(req.Committed), stopToken: -1, chosen: -1}
	if req.Guide != nil {
		r.state = req.Guide.Start()
	}
	defer r.close()
	reason, err := r.run(ctx)
	if !r.firstAt.IsZero() {
		stats.Decode = r.lastAt.Sub(r.firstAt)
	}
	result := Result{Reason: reason, StopToken: r.stopToken}
	if req.Guide != nil {
		result.CloseKind = req.Guide.Kind(r.state)
	}
	return result, err
}
