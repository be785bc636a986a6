package decode

import (
	"context"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engineplugin"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/drafts"
	"github.com/tandem-inference/tandem/worker-target/internal/guide"
)

// run is the state of one request.
type run struct {
	*Lane
	engine engineplugin.Engine
	info   engineplugin.Info
	seq    engineplugin.Sequence
	req    *Request
	sink   Sink
	stats  *Stats

	out       int // tokens generated, committed ones of an earlier worker included
	length    int // positions in the sequence once the pending path is committed
	anchor    int32
	stopToken int32
	state     guide.State        // behind the output; with a guide
	closed    tandemv1.CloseKind // by the round's tokens
	chosen    int32              // what the last row of prefill or replay chose where the next token is known, -1 = it was not asked
	firstAt   time.Time
	lastAt    time.Time

	capture *drafts.Capture // nil = features are not captured
	link    Drafter
	policy  *auto.Policy
	lookup  bool // the index follows the text
	warm    bool // a proposal of this stream arrived: its time is the draft's, not that of catching up
	round   auto.Round
	plan    auto.Plan
	asked   bool
	askedAt time.Time
}

func (r *run) close() {
	if r.link != nil {
		r.link.Close()
	}
}

func (r *run) run(ctx context.Context) (tandemv1.FinishReason, error) {
	reason := tandemv1.FinishReason_FINISH_REASON_UNSPECIFIED
	if r.lookup = r.looks(); r.lookup {
		r.policy = r.model.NewRequest(0, r.info.MaxTreeRows, r.req.Prompt)
	}
	r.attach(ctx, len(r.req.Prompt)+len(r.req.Committed))
	if err := r.prefill(ctx); err != nil {
		return reason, err
	}
	if r.req.Max <= r.out {
		return tandemv1.FinishReason_FINISH_REASON_LENGTH, nil
	}
	if n := len(r.req.Committed); n > 0 && r.stop[r.req.Committed[n-1]] {
		r.stopToken = r.req.Committed[n-1]
		return tandemv1.FinishReason_FINISH_REASON_STOP, nil
	}
	if err := r.replay(ctx); err != nil {
		return reason, err
	}
	if r.req.Guide != nil && r.req.Guide.Ended(r.state) {
		return tandemv1.FinishReason_FINISH_REASON_STOP, nil
	}
	// The last row of prefill or replay has chosen the first token.
	last := len(r.step.Rows) - 1
	r.begin()
	reason = r.emit(last)
	r.learnLooks(r.length)
	if reason == tandemv1.FinishReason_FINISH_REASON_UNSPECIFIED {
		if err := r.ask(ctx); err != nil {
			return reason, err
		}
	}
	if err := r.flush(); err != nil {
		return reason, err
	}
	for reason == tandemv1.FinishReason_FINISH_REASON_UNSPECIFIED {
		var err error
		if reason, err = r.decode(ctx); err != nil {
			return reason, err
		}
	}
	return reason, nil
}

// attach starts capturing features when a draft is wanted and one is attached; length is the context known by now.
func (r *run) attach(ctx context.Context, length int) {
	switch r.req.Mode {
	case tandemv1.SpeculationMode_SPECULATION_MODE_OFF, tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP:
		return
	}
	if r.req.Max <= r.out+1 || r.drafts == nil {
		return
	}
	if r.capture = r.drafts.Capture(); r.capture == nil {
		return
	}
	first := r.length
	if first == 0 {
		// Of a long prompt only the newest rows could be sent again; what is not kept is not captured either.
		first = max(0, length-r.cfg.RingRows)
	}
	r.ring.Reset(r.capture.Width, first)
	if r.policy == nil {
		r.policy = r.model.NewRequest(0, r.info.MaxTreeRows, r.req.Prompt)
	}
	r.policy.Attach(r.capture.Block)
	held := r.automatic() && r.policy.Held(length, min(r.req.Max-r.out, r.info.MaxContext-length))
	r.link = r.drafts.Open(ctx, r.req.ID, r.ring, r.capture, r.info.Vocab, held)
}

// decodeRows is how many rows of a prompt piece have the decode contract where the engine leaves it open.
const decodeRows = 64

// kind is the contract of a prompt piece of n rows.
func (r *run) kind(n int) engineplugin.GroupKind {
	most := r.info.PromptRows
	if most <= 0 {
		most = decodeRows
	}
	if n > most {
		return engineplugin.KindPrompt
	}
	return engineplugin.KindDecode
}

// prefill runs the prompt in pieces.
func (r *run) prefill(ctx context.Context) error {
	start := time.Now()
	prompt := r.req.Prompt
	chunk := r.info.MaxBatchRows
	if r.cfg.PrefillChunk > 0 {
		chunk = min(chunk, r.cfg.PrefillChunk)
	}
	var scores []*tandemv1.PositionLogprobs
	for r.length < len(prompt) {
		first := r.length
		piece := prompt[first:min(first+chunk, len(prompt))]
		r.startStep()
		r.group[0].Kind = r.kind(len(piece))
		n, err := r.feed(ctx, piece, func(i int, row *engineplugin.Row) (bool, error) {
			switch p := first + i; {
			case p+1 == len(prompt) && r.req.Max > 0:
				return false, r.chooseNext(row, 0)
			case p+1 < len(prompt) && r.req.PromptLogprobs:
				row.Want |= engineplugin.WantScore
				row.Score = prompt[p+1]
				r.wantTop(row)
			}
			return false, nil
		})
		if err != nil {
			return err
		}
		if r.req.PromptLogprobs {
			for i := range min(n, len(prompt)-1-first) {
				scores = append(scores, &tandemv1.PositionLogprobs{Logprob: r.result.Scores[i], Top: r.top(i)})
			}
		}
	}
	r.stats.Prefill = time.Since(start)
	return r.sink.Prefilled(len(prompt), scores)
}

// replay runs tokens that another worker generated under the contract of decoding.
func (r *run) replay(ctx context.Context) error {
	start := time.Now()
	tokens := r.req.Committed
	for done := 0; done < len(tokens); {
		n := min(r.info.MaxTreeRows, r.info.MaxBatchRows, len(tokens)-done)
		r.startStep()
		n, err := r.feed(ctx, tokens[done:done+n], func(i int, row *engineplugin.Row) (bool, error) {
			if r.req.Guide != nil {
				if err := r.follow(done+i, r.sampled(tokens[done+i])); err != nil {
					return false, err
				}
			}
			err := r.chooseNext(row, done+i+1)
			return row.Want&engineplugin.WantToken != 0, err // what follows may depend on the choice
		})
		if err != nil {
			return err
		}
		done += n
	}
	r.stats.Prefill += time.Since(start)
	return nil
}

// feed commits a chain of known tokens by the prepared step and returns how many they were: prepare completes a token's
// row and may end the chain with it.
func (r *run) feed(ctx context.Context, tokens []int32, prepare func(i int, row *engineplugin.Row) (end bool, err error)) (int, error) {
	featured := 0
	for i, token := range tokens {
		p := r.length + i
		row := engineplugin.Row{Token: token, Position: int32(p), Parent: int32(i - 1), Mask: -1}
		end, err := prepare(i, &row)
		if err != nil {
			return 0, err
		}
		if r.captures(p) {
			row.Want |= engineplugin.WantFeatures
			featured++
		}
		r.step.Rows = append(r.step.Rows, row)
		if end {
			break
		}
	}
	r.read(tokens[:len(r.step.Rows)])
	r.group[0].Rows, r.group[0].Commit = len(r.step.Rows), true
	if err := r.engine.Step(ctx, &r.step, &r.result); err != nil {
		return 0, err
	}
	if err := r.checkResult(featured); err != nil {
		return 0, err
	}
	if featured > 0 {
		r.ring.AppendRows(r.result.Features, featured)
		r.link.Fed()
	}
	r.note()
	n := len(r.step.Rows)
	r.length += n
	r.stats.PrefillTokens += n
	return n, nil
}

// startStep prepares a step that first commits the accepted path of the one before, unless that one committed its rows
// itself.
func (r *run) startStep() {
	next := engineplugin.Group{Sequence: r.seq}
	if !r.group[0].Commit {
		next.Path = r.path
	}
	r.group[0] = next
	r.step = engineplugin.Step{Groups: r.group[:], Rows: r.step.Rows[:0], Features: r.features()}
	r.startMasks()
}

// chooseNext makes the row in front of output token i choose it when it is not known yet, or when the guide needs to know what
// would have been chosen.
func (r *run) chooseNext(row *engineplugin.Row, i int) error {
	known := i < len(r.req.Committed)
	switch {
	case r.req.Guide == nil && !known:
		r.choose(row)
	case r.req.Guide != nil && (!known || r.req.Guide.Open(r.state, r.req.Committed[i])):
		return r.limit(row, r.state)
	}
	return nil
}

// note keeps the choice of a step's last row for sampled.
func (r *run) note() {
	if last := len(r.step.Rows) - 1; r.step.Rows[last].Want&engineplugin.WantToken != 0 {
		r.chosen = r.result.Tokens[last]
	}
}

// sampled is what the last row of the step before chose, where it was asked, else the token itself.
func (r *run) sampled(token int32) int32 {
	if r.chosen >= 0 {
		token, r.chosen = r.chosen, -1
	}
	return token
}

// choose makes a row choose the next token.
func (r *run) choose(row *engineplugin.Row) {
	row.Want |= engineplugin.WantToken
	r.wantTop(row)
}

func (r *run) wantTop(row *engineplugin.Row) {
	if k := min(r.req.TopLogprobs, r.info.MaxTopK); k > 0 {
		row.Want |= engineplugin.WantTop
		row.TopK = int32(k)
	}
}

// checkResult holds the engine to its contract where a breach would be a crash or a wrong token.
func (r *run) checkResult(featured int) error {
	want := uint32(0)
	for i := range r.step.Rows {
		want |= r.step.Rows[i].Want
		if r.step.Rows[i].Want&engineplugin.WantToken != 0 {
			if i >= len(r.result.Tokens) || i >= len(r.result.Logprobs) {
				return rpcerr.Internal("engine returned %d tokens for %d rows", len(r.result.Tokens), len(r.step.Rows))
			}
			if t := r.result.Tokens[i]; t < 0 || int(t) >= r.info.Vocab {
				return rpcerr.Internal("engine chose token %d of a vocabulary of %d", t, r.info.Vocab)
			}
		}
	}
	if want&engineplugin.WantScore != 0 && len(r.result.Scores) < len(r.step.Rows) {
		return rpcerr.Internal("engine returned %d scores for %d rows", len(r.result.Scores), len(r.step.Rows))
	}
	if want&engineplugin.WantTop != 0 && len(r.result.TopIDs) < len(r.step.Rows)*r.result.TopStride {
		return rpcerr.Internal("engine returned %d candidates for %d rows of %d", len(r.result.TopIDs), len(r.step.Rows), r.result.TopStride)
	}
	return r.checkFeatures(&r.result, featured)
}

func (r *run) checkFeatures(result *engineplugin.StepResult, rows int) error {
	if rows > 0 && len(result.Features) != rows*r.capture.Width {
		return rpcerr.Internal("engine returned %d bytes of features for %d rows of %d", len(result.Features), rows, r.capture.Width)
	}
	return nil
}
