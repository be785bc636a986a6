package server

import (
	"context"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// treeWidth is the number of candidates per position of a tree. Deeper ranks hardly ever enter a tree within 64 nodes:
// the rank-16 candidate would have to beat everything that the fifteen before it lead to.
const treeWidth = 16

// work is the state of one stream. Its memory is used again for every message.
type work struct {
	engine   engine.Draft
	info     engine.Info
	sequence engine.Sequence

	epoch, step uint64
	started     bool
	base        int // position of the sequence's first row; a draft's positions are relative
	length      int // rows of the sequence

	features [1]engine.FeatureRows
	requests [1]engine.DraftRequest
	result   engine.DraftResult
	builder  ddtree.Builder
	tree     ddtree.Tree
	response tandemv1.SpeculateResponse

	// What the last message took in the engine, and whether it brought a proposal or was out of date.
	appended, forward time.Duration
	proposed, skipped bool

	trace tracing
}

func newWork(engine engine.Draft, sequence engine.Sequence) *work {
	w := &work{engine: engine, info: engine.Info(), sequence: sequence}
	w.tree.Reset(0)
	return w
}

// handle does what a message asks for. reply says that response is to be sent. newer says that another message waits
// already, which makes a proposal for this one useless.
func (w *work) handle(ctx context.Context, m *tandemv1.SpeculateRequest, at time.Time,
	newer bool) (reply bool, err error) {
	w.proposed, w.skipped, w.appended, w.forward = false, false, 0, 0
	if err := check(m, w.info.Vocab); err != nil {
		return false, err
	}
	w.trace.start(m.Propose, at)
	defer func() { w.trace.end(w, int(m.FeatureRows), err) }()
	if w.started && (m.Epoch < w.epoch || m.Epoch == w.epoch && m.Step <= w.step) {
		return false, nil // stale or repeated
	}
	if !w.started || m.Epoch > w.epoch {
		if w.length > 0 {
			if err := w.engine.Truncate(ctx, w.sequence, 0); err != nil {
				return false, err
			}
		}
		w.started, w.epoch, w.base, w.length = true, m.Epoch, int(m.FeaturePosition), 0
	}
	w.step = m.Step
	rows, data, err := w.fresh(m)
	if err != nil {
		return false, err
	}
	ask := m.Propose
	late := ask != nil && ask.DeadlineUs > 0 && time.Since(at) > time.Duration(ask.DeadlineUs)*time.Microsecond
	useless := ask != nil && (newer || late || int(ask.Position) != w.base+w.length+rows)
	requests := w.requests[:0]
	if ask != nil && !useless {
		if requests, err = w.request(ask, rows); err != nil {
			return false, err
		}
	}
	if err := w.run(ctx, m, rows, data, requests); err != nil {
		return false, err
	}
	build := time.Now()
	w.tree.Reset(0)
	if len(requests) > 0 {
		w.build(ask)
		w.proposed = true
	}
	w.skipped = useless
	w.answer(time.Since(build))
	return ask != nil, nil
}

const (
	// mostID bounds the id of a sequence, which is for logs, in bytes.
	mostID = 256
	// mostPosition bounds positions of a text: sums of two fit 32 bits.
	mostPosition = 1 << 30
)

// check says which field of a message cannot be. What depends on the sequence is checked where it is used.
func check(m *tandemv1.SpeculateRequest, vocab int) error {
	switch {
	case len(m.SessionId) > mostID:
		return rpcerr.InvalidArgument("session_id", "has %d bytes, at most %d are allowed", len(m.SessionId), mostID)
	case m.FeaturePosition < 0 || m.FeaturePosition > mostPosition:
		return rpcerr.InvalidArgument("feature_position", "must be in 0..%d, got %d", mostPosition, m.FeaturePosition)
	case m.FeatureRows < 0:
		return rpcerr.InvalidArgument("feature_rows", "must be >= 0, got %d", m.FeatureRows)
	}
	ask := m.Propose
	if ask == nil {
		return nil
	}
	switch {
	case ask.Anchor < 0 || int(ask.Anchor) >= vocab:
		return rpcerr.InvalidArgument("propose.anchor", "token %d is outside the vocabulary of %d", ask.Anchor, vocab)
	case ask.Position < 0 || ask.Position > mostPosition:
		return rpcerr.InvalidArgument("propose.position", "must be in 0..%d, got %d", mostPosition, ask.Position)
	case ask.Budget < 0:
		return rpcerr.InvalidArgument("propose.budget", "must be >= 0, got %d", ask.Budget)
	case ask.Block < 0:
		return rpcerr.InvalidArgument("propose.block", "must be >= 0, got %d", ask.Block)
	case tandemv1.SpeculationMode_name[int32(ask.Mode)] == "":
		return rpcerr.InvalidArgument("propose.mode", "unknown mode %d", ask.Mode)
	case ask.DeadlineUs < 0:
		return rpcerr.InvalidArgument("propose.deadline_us", "must be >= 0, got %d", ask.DeadlineUs)
	}
	return nil
}

// fresh returns the rows of a message that the sequence does not have yet.
func (w *work) fresh(m *tandemv1.SpeculateRequest) (rows int, data []byte, err error) {
	if m.FeatureRows == 0 {
		if len(m.Features) > 0 {
			return 0, nil, rpcerr.InvalidArgument("feature_rows", "is %d, but there are %d bytes of features",
				m.FeatureRows, len(m.Features))
		}
		return 0, nil, nil
	}
	width := w.info.FeatureFused
	switch m.FeatureEncoding {
	case engine.FeatureFusedBF16:
	case engine.FeatureRawBF16:
		width = w.info.FeatureRaw
	default:
		return 0, nil, rpcerr.InvalidArgument("feature_encoding", "unknown encoding %d", m.FeatureEncoding)
	}
	rowBytes := 2 * width
	if len(m.Features) != int(m.FeatureRows)*rowBytes {
		return 0, nil, rpcerr.InvalidArgument("features", "%d rows need %d bytes, got %d", m.FeatureRows,
			int(m.FeatureRows)*rowBytes, len(m.Features))
	}
	next := w.base + w.length
	if int(m.FeaturePosition) > next {
		return 0, nil, rpcerr.Aborted("features start at %d, the draft has them up to %d", m.FeaturePosition, next)
	}
	skip := min(next-int(m.FeaturePosition), int(m.FeatureRows))
	rows = int(m.FeatureRows) - skip
	if w.length+rows > w.info.MaxContext {
		return 0, nil, rpcerr.ResourceExhausted("%d rows do not fit into the draft's context of %d",
			w.length+rows, w.info.MaxContext)
	}
	return rows, m.Features[skip*rowBytes:], nil
}

// request checks a question and turns it into the engine's form. Its position comes after rows that are appended first.
func (w *work) request(ask *tandemv1.Propose, rows int) ([]engine.DraftRequest, error) {
	block := int(ask.Block)
	if block == 0 {
		block = w.info.BlockSize
	}
	// All rows of the block must fit behind the context.
	block = min(block, w.info.BlockSize, w.info.MaxContext-w.length-rows)
	if block < 2 {
		return w.requests[:0], nil
	}
	width := 1
	if ask.Mode != tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN {
		width = max(1, min(treeWidth, int(ask.Budget), w.info.MaxTopK))
	}
	w.requests[0] = engine.DraftRequest{
		Sequence: w.sequence, Token: ask.Anchor, Position: int32(w.length + rows), Block: int32(block),
		TopK: int32(width), Temperature: 1, Trace: w.trace.work(),
	}
	return w.requests[:1], nil
}

// run appends features, in pieces that the engine takes, and makes the proposal together with the last one.
func (w *work) run(ctx context.Context, m *tandemv1.SpeculateRequest, rows int, data []byte,
	requests []engine.DraftRequest) error {
	piece := max(1, w.info.MaxBatchRows)
	rowBytes := 0
	if rows > 0 {
		rowBytes = len(data) / rows
	}
	for rows > 0 || len(requests) > 0 {
		n := min(rows, piece)
		features, asks := w.features[:0], requests[:0]
		if n > 0 {
			w.features[0] = engine.FeatureRows{
				Sequence: w.sequence, Position: int32(w.length), Rows: int32(n), Encoding: m.FeatureEncoding,
				Data: data[:n*rowBytes],
			}
			features = w.features[:1]
		}
		if n == rows {
			asks, requests = requests, nil
		}
		if err := w.engine.Propose(ctx, features, asks, &w.result); err != nil {
			return err
		}
		w.appended += time.Duration(w.result.AppendNanos)
		w.forward += time.Duration(w.result.EngineNanos - w.result.AppendNanos)
		w.length += n
		rows -= n
		data = data[n*rowBytes:]
	}
	return nil
}

// build makes the tree of the engine's candidates.
func (w *work) build(ask *tandemv1.Propose) {
	c := ddtree.Candidates{
		IDs: w.result.IDs, Logprobs: w.result.Logprobs, Stride: w.result.Stride,
		Positions: min(w.result.Positions, int(w.requests[0].Block)-1),
	}
	budget := int(ask.Budget)
	options := ddtree.Options{Budget: budget, Width: int(w.requests[0].TopK), ChainSeed: true}
	if ask.Mode == tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN {
		options.Width = 1
		if budget == 0 {
			options.Budget = c.Positions
		}
	}
	w.builder.Build(&w.tree, ask.Anchor, &c, options)
}

func (w *work) answer(build time.Duration) {
	r := &w.response
	r.Epoch, r.Step, r.Length = w.epoch, w.step, int32(w.base+w.length)
	r.Tokens, r.Parents, r.Logprobs = w.tree.Tokens[1:], w.tree.Parents[1:], w.tree.Logprobs[1:]
	r.AppendUs, r.ForwardUs, r.BuildUs = int32(w.appended.Microseconds()), int32(w.forward.Microseconds()),
		int32(build.Microseconds())
}
