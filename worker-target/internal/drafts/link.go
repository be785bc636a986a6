package drafts

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/ddtree"
	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

const (
	// idleRows of features are sent without being asked for, so that a draft that is not in use now stays near: few enough
	// to be caught up with in a moment, many enough that a draft on the same processors hardly disturbs plain decoding.
	idleRows = 128
	// messageBytes bounds the features of one message; a prompt's features travel in several.
	messageBytes = 1 << 20
	// mostProposal bounds an answer in bytes: ddtree.MaxNodes nodes take less than 3 KB.
	mostProposal = 16 << 10
	// silence ends a stream whose draft owes an answer for so long: it is hung, or its host is gone without a word.
	silence = 2 * time.Second
	// Back-off between attempts to attach a link again.
	minBackoff = 50 * time.Millisecond
	maxBackoff = time.Second
)

// Ask is what the decode loop wants to know.
type Ask struct {
	Anchor   int32 // newest committed token
	Position int   // of the anchor
	Mode     tandemv1.SpeculationMode
	Block    int
	Budget   int
	Deadline time.Duration
	Span     uint64 // id of the span of the round that waits, 0 = it has none
}

// Outcome of Wait.
type Outcome uint8

// Outcomes of Wait.
const (
	Proposed  Outcome = iota // the tree is filled, perhaps with the anchor alone
	Late                     // the deadline passed; the draft is slow
	Lost                     // no draft is attached, or it was lost while waiting
	Malformed                // what came is not a tree of what was asked; the stream is given up
)

// Config of a link.
type linkConfig struct {
	id      string
	ring    *Ring
	manager *Manager
	capture *Capture // what the ring's rows are
	vocab   int
	held    bool // the draft is told nothing before the first question
	log     *zap.Logger
}

// Link is the speculation of one request. Its methods belong to the decode loop, one goroutine.
type Link struct {
	linkConfig
	release chan struct{} // of a held link: closed by its first question and nil from then on
	wake    chan struct{} // to the sender: features or an ask are there
	answer  chan struct{} // to the decode loop: response or stream state changed
	cancel  context.CancelFunc
	done    chan struct{}
	timer   *time.Timer
	work    time.Duration // of the draft for the last proposal; of the decode loop
	sent    atomic.Int64  // position after the newest row that was sent; written by the sender

	mu       sync.Mutex
	live     bool   // a stream is open
	starting bool   // the first stream is about to open: asking makes sense already
	session  uint64 // counts streams, so that a late receiver cannot touch a newer one
	epoch    uint64
	step     uint64    // of the newest message
	asking   bool      // an ask waits to be sent
	ask      Ask       // newest ask
	waiting  bool      // the loop waits for its answer
	askStep  uint64    // step that carried it
	pending  bool      // sent and not answered
	askedAt  time.Time // when it was sent
	response *tandemv1.SpeculateResponse
	spare    []*tandemv1.SpeculateResponse // read ones, for the receiver to fill again
	breakUp  context.CancelFunc            // ends the live stream
	received int                           // responses
}

func newLink(ctx context.Context, cfg linkConfig) *Link {
	ctx, cancel := context.WithCancel(ctx)
	l := &Link{
		linkConfig: cfg, cancel: cancel, done: make(chan struct{}),
		wake: make(chan struct{}, 1), answer: make(chan struct{}, 1),
		timer: time.NewTimer(time.Hour),
	}
	l.timer.Stop()
	release := make(chan struct{})
	if cfg.held {
		l.release = release
	} else {
		l.starting = cfg.manager.available(cfg.capture)
		close(release)
	}
	go func() {
		defer close(l.done)
		select {
		case <-release:
			l.run(ctx)
		case <-ctx.Done():
		}
	}()
	return l
}

// Close ends the stream and waits for the link's goroutines.
func (l *Link) Close() {
	l.cancel()
	<-l.done
	l.timer.Stop()
	l.manager.closed()
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Fed tells the link that the ring has new rows. The sender is woken when they are enough to be sent, not for
// every token.
func (l *Link) Fed() {
	if _, next := l.ring.Span(); int64(next)-l.sent.Load() >= idleRows {
		signal(l.wake)
	}
}

// Ready reports whether asking makes sense: a stream is open, or can be, and its draft owes no answer.
func (l *Link) Ready() bool {
	if l.release != nil {
		return l.manager.available(l.capture)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.live && l.pending && time.Since(l.askedAt) > silence {
		l.log.Warn("draft does not answer, stream given up", zap.String(telemetry.KeySessionID, l.id))
		l.breakUp()
		return false
	}
	return (l.live || l.starting) && !l.pending
}

// Ask asks for a proposal after the features that the ring holds now. It does not wait. The first question of a held
// link makes it one like any other.
func (l *Link) Ask(a Ask) {
	l.mu.Lock()
	if l.release != nil {
		l.starting = true
		close(l.release)
		l.release = nil
	}
	l.ask, l.asking, l.waiting = a, true, true
	l.keep(l.response)
	l.response = nil
	l.mu.Unlock()
	signal(l.wake)
}

// Wait waits for the answer to the last Ask, until its deadline counted from now, and fills tree.
func (l *Link) Wait(ctx context.Context, tree *ddtree.Tree) Outcome {
	l.timer.Reset(l.ask.Deadline)
	defer l.timer.Stop()
	for {
		if outcome, ok := l.Poll(tree); ok {
			return outcome
		}
		select {
		case <-l.answer:
		case <-l.timer.C:
			l.Forget()
			return Late
		case <-ctx.Done():
			l.Forget()
			return Late
		}
	}
}

// Poll looks for the answer to the last Ask without waiting; ok is false while there is none. Late is not among
// its outcomes.
func (l *Link) Poll(tree *ddtree.Tree) (outcome Outcome, ok bool) {
	l.mu.Lock()
	live, response, ask := l.live || l.starting, l.response, l.ask
	l.response = nil
	l.mu.Unlock()
	if response == nil {
		if !live {
			l.Forget()
		}
		return Lost, !live
	}
	limits := ddtree.Limits{Vocab: l.vocab, Nodes: ask.Budget, Depth: ask.Block - 1}
	err := tree.Set(ask.Anchor, response.Tokens, response.Parents, response.Logprobs, limits)
	l.work = work(response)
	l.mu.Lock()
	l.keep(response)
	l.mu.Unlock()
	if err != nil {
		l.malformed(err)
		return Malformed, true
	}
	return Proposed, true
}

// Work is the time that the draft's engine and its tree took for the last proposal.
func (l *Link) Work() time.Duration { return l.work }

// keep takes a response back for the receiver. The caller holds mu.
func (l *Link) keep(m *tandemv1.SpeculateResponse) {
	if m != nil && len(l.spare) < 4 {
		l.spare = append(l.spare, m)
	}
}

// Forget drops the question. For a sent one the draft still owes an answer, which is discarded when it comes.
func (l *Link) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asking, l.waiting = false, false
}

func (l *Link) malformed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log.Warn("draft sent a proposal that cannot be used, stream given up",
		zap.String(telemetry.KeySessionID, l.id), zap.NamedError(telemetry.KeyErr, err))
	if l.live {
		l.breakUp()
	}
	l.live = false
}

// run keeps a stream to some draft until ctx ends.
func (l *Link) run(ctx context.Context) {
	wait := minBackoff
	for ctx.Err() == nil {
		p, err := l.manager.acquire(ctx, l.capture)
		if err != nil {
			return
		}
		before := l.responses()
		err = l.stream(ctx, p)
		l.manager.release(p)
		l.mu.Lock()
		l.starting = false
		l.mu.Unlock()
		signal(l.answer)
		if ctx.Err() != nil {
			return
		}
		p.suspect()
		l.log.Warn("draft stream ended", zap.String(telemetry.KeySessionID, l.id), zap.String(telemetry.KeyPeer, p.address),
			zap.NamedError(telemetry.KeyErr, err))
		if l.responses() > before {
			wait = minBackoff
		}
		pause.For(ctx, wait)
		wait = min(2*wait, maxBackoff)
	}
}

func (l *Link) responses() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.received
}

// named lets the draft log which request a stream is for. Metadata takes printable ASCII only.
func named(ctx context.Context, id string) context.Context {
	if id == "" || strings.ContainsFunc(id, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, telemetry.MetadataRequestID, id)
}

// stream opens a stream to p and serves it to its end.
func (l *Link) stream(ctx context.Context, p *peer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client, info := p.describe()
	// Without the limit gRPC keeps what was sent until the first answer, to send it again on another connection: a
	// prompt's features would wait for a question that they hold up.
	api, err := client.Speculate(named(ctx, l.id), grpc.MaxRetryRPCBufferSize(0), grpc.MaxCallRecvMsgSize(mostProposal))
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.session++
	session := l.session
	l.epoch++ // never repeated, also not towards another draft
	l.step = 0
	l.live, l.starting, l.pending, l.response, l.breakUp = true, false, false, nil, cancel
	l.mu.Unlock()

	received := make(chan error, 1)
	go func() {
		received <- l.receive(api, session)
		cancel()
	}()
	err = l.send(ctx, api, info, l.capture)
	cancel()
	if rerr := <-received; rerr != nil && !errors.Is(rerr, context.Canceled) {
		err = rerr // the receiver knows the status, the sender only that the stream ended
	}
	l.mu.Lock()
	l.live = false
	l.mu.Unlock()
	return err
}

func (l *Link) receive(api tandemv1.DraftService_SpeculateClient, session uint64) error {
	for {
		l.mu.Lock()
		var m *tandemv1.SpeculateResponse
		if n := len(l.spare); n > 0 {
			m, l.spare = l.spare[n-1], l.spare[:n-1]
		} else {
			m = new(tandemv1.SpeculateResponse)
		}
		l.mu.Unlock()
		if err := api.RecvMsg(m); err != nil {
			return err
		}
		l.mu.Lock()
		l.received++
		useful := false
		// Anything of this epoch from the newest ask on shows that the draft has caught up; only the answer to that ask,
		// while the loop still waits for it, is of use.
		if session == l.session && m.Epoch == l.epoch && l.pending && m.Step >= l.askStep {
			l.pending = false
			useful = m.Step == l.askStep && l.waiting
		}
		if useful {
			l.response = m
			l.manager.measure(time.Since(l.askedAt), m)
		} else {
			l.keep(m)
		}
		l.mu.Unlock()
		signal(l.answer)
	}
}

// send turns ring and asks into messages until the stream ends.
func (l *Link) send(ctx context.Context, api tandemv1.DraftService_SpeculateClient, info draftInfo,
	capture *Capture) error {
	sent, _ := l.ring.Span()
	base := sent
	l.sent.Store(int64(sent))
	perMessage := max(1, messageBytes/capture.Width)
	// positions that the draft can hold, at least 1 where maxContext is known: see describe
	limit := info.maxContext - info.block
	out := newOutbox(capture, l.id)
	for {
		first, next := l.ring.Span()
		if sent < first || (info.maxContext > 0 && next-base > limit) {
			// The draft is behind what is kept, or full: start again with the newest rows.
			l.mu.Lock()
			l.epoch++
			l.step, l.pending = 0, false
			l.mu.Unlock()
			base = first
			if info.maxContext > 0 {
				base = max(first, next-limit/2)
			}
			sent = base
			l.sent.Store(int64(sent))
		}
		l.mu.Lock()
		ask := l.ask
		end := next
		if l.asking {
			end = min(next, ask.Position) // the loop may have gone on: what came later does not belong to the question
		}
		// A question whose position lies before all rows that are sent from now on, because the epoch began after it, goes
		// out without rows: the draft answers at once that it has nothing to propose.
		rows := max(0, min(end-sent, perMessage))
		carries := l.asking && sent+rows >= ask.Position
		ready := carries || (rows > 0 && (rows >= idleRows || l.asking))
		if ready {
			l.step++
		}
		if carries {
			l.asking, l.pending, l.askStep, l.askedAt = false, true, l.step, time.Now()
		}
		epoch, step := l.epoch, l.step
		l.mu.Unlock()
		if !ready {
			select {
			case <-l.wake:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		m, err := out.take(ctx)
		if err != nil {
			return err
		}
		data, _, ok := l.ring.Copy(m.request.Features[:0], sent, rows)
		m.request.Features = data
		if !ok { // overtaken by the ring since the look above: the next turn starts a new epoch
			out.put(m)
			continue
		}
		m.request.Epoch, m.request.Step = epoch, step
		m.request.FeaturePosition, m.request.FeatureRows = int32(sent), int32(rows)
		m.request.Propose = nil
		if carries {
			m.propose(ask)
		}
		if err := api.SendMsg(&m.lent); err != nil {
			return err
		}
		sent += rows
		l.sent.Store(int64(sent))
	}
}
