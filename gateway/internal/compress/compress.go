// Package compress shortens long prompts before the target reads them (PFlash): a small scorer rates the chunks of the
// messages' texts against the question, and only the kept chunks are rendered again.
//
// Compression works on message text, never on the rendered prompt: roles, markers, tool definitions and ids stay whole.
// If anything fails, the request continues uncompressed and its usage says why.
package compress

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	"github.com/tandem-inference/tandem/gateway/internal/metrics"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

// Modes of compression.
const (
	ModeOff    = "off"
	ModeAuto   = "auto"
	ModeAlways = "always"
)

// Reasons in the report of a prompt that was not compressed.
const (
	ReasonBelowThreshold = "below_threshold"
	ReasonKeepRatio      = "keep_ratio"
	ReasonNoScorer       = "no_scorer"
	ReasonTooLong        = "too_long_for_scorer"
	ReasonTimeout        = "timeout"
	ReasonScorerFailed   = "scorer_failed"
	ReasonNoGain         = "no_gain"
	// Of requests whose output must follow definitions in the prompt; mode auto leaves them alone.
	ReasonTools  = "tools"
	ReasonFormat = "response_format"
)

// Bounds of what is worth compressing, in the scorer's tokens.
const (
	// minSegment: shorter texts stay whole.
	minSegment = 256
	// minTotal: with less than this compressible, nothing is compressed.
	minTotal = 1024
	// longTurn: a shorter last user turn is never shortened. One of this length holds a document besides the question. It
	// is compressed too; the scorer keeps its head and tail, where instructions and question stand (256 and 768 tokens).
	longTurn = 1024
	// keepAll: above this ratio compression gains nothing.
	keepAll = 0.95
)

// Func compresses one prompt. It always returns a report.
type Func func(ctx context.Context) Result

// Result is the outcome of compression. When it was not applied, Report says why and the prompt stays as it is.
type Result struct {
	Tokens []int32
	// Thinking says that the prompt ends with the open marker of reasoning.
	Thinking bool
	Report   Report
}

// Report of a compression goes into the usage of its request.
type Report struct {
	Applied bool
	Reason  string // why not, empty when applied
	// Failed reports that compression was to run and did not, so that a later try may succeed. Without it, not to
	// compress was the plan.
	Failed         bool
	OriginalTokens int
	KeptTokens     int
	KeepRatio      float64
	ScoreMS        float64
	Segments       int
	// Kept are the parts of the messages that were kept, if the request asked for them.
	Kept []KeptMessage
}

// KeptMessage says what was kept of a message.
type KeptMessage struct {
	// Message is its index in the conversation.
	Message int `json:"message"`
	// Spans are first and last byte, exclusive, in the message's text as UTF-8, without the space around it and in
	// normal form C. They are in order.
	Spans [][2]int `json:"spans"`
}

// Settings are a request's settings of compression; zero members mean the server's settings.
type Settings struct {
	Mode           string
	Threshold      int
	KeepRatio      float64
	MinChunks      int
	MinChunksGiven bool
	// Spans asks for Report.Kept.
	Spans bool
	// Exact is the reason why mode auto leaves the request alone, ReasonTools or ReasonFormat; empty = it may compress.
	Exact string
}

// Config holds the server's settings.
type Config struct {
	Mode      string
	Threshold int
	KeepRatio float64
	// Curve replaces KeepRatio when it has points.
	Curve     Curve
	MinChunks int
	Timeout   time.Duration
	// AllowOverride lets requests choose for themselves.
	AllowOverride bool
}

// Deps of a Compressor.
type Deps struct {
	Scorers Scorers
	// Tokenizer returns the scorer's tokenizer, nil while no scorer is known.
	Tokenizer func() *tokenizer.Tokenizer
	Logger    *zap.Logger
	// Metrics count answers that cannot be; nil = nobody counts.
	Metrics *metrics.Set
}

// Scorers gives out the slots of the workers that rate prompts.
type Scorers interface {
	// Submit puts a request into the queue; the caller closes the ticket.
	Submit(d cluster.Demand) (*cluster.Ticket, error)
	// Others reports whether a worker takes work that is none of avoid.
	Others(avoid map[string]bool) bool
	// MaxContext is the longest context in tokens that workers offer, 0 = unknown.
	MaxContext() int
}

// Compressor plans and runs compression. It is safe for concurrent use.
type Compressor struct {
	cfg       Config
	scorers   Scorers
	tokenizer func() *tokenizer.Tokenizer
	log       *zap.Logger
	metrics   *metrics.Set
}

// New returns a compressor.
func New(cfg Config, deps Deps) *Compressor {
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	return &Compressor{
		cfg: cfg, scorers: deps.Scorers, tokenizer: deps.Tokenizer, log: deps.Logger, metrics: deps.Metrics,
	}
}

// Wanted reports whether a request asks for compression, itself or by the server's setting.
func (c *Compressor) Wanted(want Settings) bool {
	mode := cmp.Or(want.Mode, c.cfg.Mode)
	return mode != ModeOff && mode != ""
}

// Plan decides whether a conversation whose prompt has that many tokens is compressed. It returns nil when compression
// is off. A request that asks for what the server does not offer is an error.
func (c *Compressor) Plan(want Settings, m *model.Model, conv *chat.Conversation, tokens int,
	requestID string) (Func, error) {
	mode := c.cfg.Mode
	if want.Mode != "" && want.Mode != ModeOff {
		if !c.cfg.AllowOverride && want.Mode != mode {
			return nil, reqerr.Unsupported("pflash.mode", "cannot be chosen by requests on this server")
		}
		if c.tokenizer() == nil {
			return nil, reqerr.Unsupported("pflash.mode", "needs a scorer, and this server has none")
		}
	}
	if want.Mode != "" {
		mode = want.Mode
	}
	if mode == ModeOff || mode == "" {
		return nil, nil
	}
	ratio := c.cfg.KeepRatio
	if len(c.cfg.Curve) > 0 {
		ratio = c.cfg.Curve.At(tokens)
	}
	if c.cfg.AllowOverride {
		if want.Threshold == 0 {
			want.Threshold = c.cfg.Threshold
		}
		if want.KeepRatio == 0 {
			want.KeepRatio = ratio
		}
		if !want.MinChunksGiven {
			want.MinChunks = c.cfg.MinChunks
		}
	} else {
		want = Settings{Threshold: c.cfg.Threshold, KeepRatio: ratio, MinChunks: c.cfg.MinChunks, Exact: want.Exact,
			Spans: want.Spans}
	}
	skip := func(reason string) Func {
		return func(context.Context) Result { return skipped(reason, tokens, want.KeepRatio) }
	}
	switch {
	case mode == ModeAuto && tokens < want.Threshold:
		return skip(ReasonBelowThreshold), nil
	case mode == ModeAuto && want.Exact != "":
		return skip(want.Exact), nil
	case want.KeepRatio >= keepAll:
		return skip(ReasonKeepRatio), nil
	}
	return func(ctx context.Context) Result {
		out, reason, err := c.run(ctx, want, m, conv, tokens, requestID)
		if err != nil {
			c.log.Warn("prompt not compressed", zap.String(telemetry.KeyRequestID, requestID),
				zap.String(telemetry.KeyReason, reason), zap.NamedError(telemetry.KeyErr, err))
		}
		if reason != "" {
			out := skipped(reason, tokens, want.KeepRatio)
			out.Report.Failed = err != nil && rpcerr.Code(err) != codes.InvalidArgument
			return out
		}
		return out
	}, nil
}

func skipped(reason string, tokens int, ratio float64) Result {
	return Result{Report: Report{Reason: reason, OriginalTokens: tokens, KeptTokens: tokens, KeepRatio: ratio}}
}

// run compresses; reason says why not, err what failed.
func (c *Compressor) run(
	ctx context.Context, want Settings, m *model.Model, conv *chat.Conversation, tokens int, id string,
) (out Result, reason string, err error) {
	tok := c.tokenizer()
	if tok == nil {
		return out, ReasonNoScorer, errors.New("no scorer has joined")
	}
	rendered, err := m.Render(conv)
	if err != nil {
		return out, ReasonScorerFailed, err
	}
	doc := newDocument(tok, rendered.Text(), conv)
	if doc.compressible < minTotal {
		return out, ReasonBelowThreshold, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	kept, scoreMS, reason, err := c.score(ctx, doc, want, id)
	if reason != "" {
		return out, reason, err
	}
	contents := make([]string, len(conv.Messages))
	for i, msg := range conv.Messages {
		contents[i] = msg.Content
	}
	var parts []KeptMessage
	for i, s := range doc.segments {
		contents[s.message] = s.keep(kept[i])
		if want.Spans {
			part := KeptMessage{Message: s.message, Spans: [][2]int{}}
			for _, r := range s.runs(kept[i]) {
				part.Spans = append(part.Spans, [2]int{r.a, r.b})
			}
			parts = append(parts, part)
		}
	}
	short, err := m.Render(conv.WithContents(contents))
	if err != nil {
		return out, ReasonScorerFailed, err
	}
	if len(short.Tokens) >= tokens {
		return out, ReasonNoGain, nil
	}
	return Result{Tokens: short.Tokens, Thinking: short.Thinking, Report: Report{
		Applied: true, OriginalTokens: tokens, KeptTokens: len(short.Tokens), KeepRatio: want.KeepRatio, ScoreMS: scoreMS,
		Segments: len(doc.segments), Kept: parts,
	}}, "", nil
}

// score asks a scorer which tokens to keep: spans relative to each segment.
func (c *Compressor) score(ctx context.Context, doc *document, want Settings,
	id string) (kept [][]span, scoreMS float64,
	reason string, err error) {
	if limit := c.scorers.MaxContext(); limit > 0 && len(doc.tokens) > limit {
		return nil, 0, ReasonTooLong, nil
	}
	failed := func(err error) ([][]span, float64, string, error) {
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded), rpcerr.Code(err) == codes.DeadlineExceeded:
			// The scorer may notice the deadline first.
			return nil, 0, ReasonTimeout, err
		case errors.Is(err, rpcerr.NoWorker):
			return nil, 0, ReasonNoScorer, err
		}
		return nil, 0, ReasonScorerFailed, err
	}
	req := &tandemv1.CompressRequest{RequestId: id, Tokens: doc.tokens, Query: doc.query.proto()}
	for _, s := range doc.segments {
		req.Segments = append(req.Segments,
			&tandemv1.Segment{Span: s.span.proto(), KeepRatio: want.KeepRatio, MinChunks: int32(want.MinChunks)})
	}
	avoid := map[string]bool{} // scorers whose answer cannot be
	for {
		kept, scoreMS, worker, err := c.ask(ctx, doc, req, avoid)
		if err == nil {
			return kept, scoreMS, "", nil
		}
		if !errors.Is(err, errAnswer) {
			return failed(err)
		}
		if c.metrics != nil {
			c.metrics.Violation(ctx, "prefill", "segments")
		}
		c.log.Warn("a scorer's answer cannot be", zap.String(telemetry.KeyRequestID, id),
			zap.String(telemetry.KeyWorker, worker),
			zap.NamedError(telemetry.KeyErr, err))
		if avoid[worker] = true; !c.scorers.Others(avoid) {
			return failed(err)
		}
	}
}

// errLease is why a scorer that lost its lease is not waited for.
var errLease = rpcerr.Unavailable("the scorer lost its lease")

// errAnswer is the kind of an answer that cannot be.
var errAnswer = errors.New("the scorer's answer cannot be")

// Sizes of an answer in bytes: what every answer may have, and what a token of the prompt may add (a span of its own).
const answerBase, answerToken = 64 << 10, 16

// ask has one scorer score the document, none of avoid. worker is who it was. Errors that are errAnswer are
// the scorer's.
func (c *Compressor) ask(ctx context.Context, doc *document, req *tandemv1.CompressRequest,
	avoid map[string]bool) (kept [][]span, scoreMS float64, worker string, err error) {
	ticket, err := c.scorers.Submit(cluster.Demand{Slots: 1, Tokens: len(doc.tokens), Avoid: avoid})
	if err != nil {
		return nil, 0, "", err
	}
	defer ticket.Close()
	slot, err := ticket.Slot(ctx)
	if err != nil {
		return nil, 0, "", err
	}
	defer slot.Release()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A scorer says nothing before its answer.
	stop := slot.Watch(func() time.Duration { return math.MaxInt64 }, func() { cancel(errLease) })
	defer stop()
	resp, err := tandemv1.NewPrefillServiceClient(slot.Conn).Compress(metadata.AppendToOutgoingContext(ctx,
		"x-request-id", req.RequestId), req,
		grpc.MaxCallRecvMsgSize(answerBase+answerToken*len(doc.tokens)))
	if err != nil && context.Cause(ctx) == error(errLease) {
		slot.Failed()
		return nil, 0, slot.Worker, errLease
	}
	if err != nil {
		if c := rpcerr.Code(err); ctx.Err() == nil && c != codes.DeadlineExceeded && c != codes.ResourceExhausted {
			slot.Failed()
		}
		// gRPC's own words: the code alone could be that of a full scorer
		if strings.Contains(err.Error(), "received message larger than max") {
			slot.Failed()
			err = errors.Join(errAnswer, err)
		}
		return nil, 0, slot.Worker, err
	}
	if kept, err = doc.read(resp); err != nil {
		slot.Failed()
		return nil, 0, slot.Worker, errors.Join(errAnswer, err)
	}
	return kept, resp.GetScoreMs(), slot.Worker, nil
}
