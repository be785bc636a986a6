package drafts

import (
	"context"
	"errors"
	"sync"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
)

const (
	// attachTimeout bounds one attempt without the transfer of tables.
	attachTimeout = 10 * time.Second
	// A draft that does not match is left alone for firstRefused, then for twice as long each time, up to mostRefused:
	// only its restart with another model helps, which ends the pause.
	firstRefused = 10 * time.Second
	mostRefused  = 5 * time.Minute
	// inUseWait is the pause where the draft matches, but another model is in use: that ends without a sign.
	inUseWait = 5 * time.Second
	// avoidFor is how long a draft that just failed a stream is the last choice.
	avoidFor = time.Second
)

// draftInfo is what a draft said of itself.
type draftInfo struct {
	workerID   string
	digest     string
	block      int
	maxContext int
}

// peer is one draft worker.
type peer struct {
	manager *Manager
	address string
	kick    chan struct{} // verify again
	cancel  context.CancelFunc

	links int       // guarded by Manager.mu
	avoid time.Time // guarded by Manager.mu

	mu     sync.Mutex
	client tandemv1.DraftServiceClient
	info   draftInfo
	ready  bool
	// refusal is why the draft cannot be used, empty when it can or when that is not known.
	refusal string
}

func newPeer(m *Manager, address string) *peer {
	return &peer{manager: m, address: address, kick: make(chan struct{}, 1)}
}

func (p *peer) start(ctx context.Context) context.Context {
	ctx, p.cancel = context.WithCancel(ctx)
	return ctx
}

func (p *peer) stop() {
	if p.cancel != nil {
		p.cancel()
	}
}

func (p *peer) state() (ready bool, digest string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready, p.info.digest
}

func (p *peer) describe() (tandemv1.DraftServiceClient, draftInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client, p.info
}

func (p *peer) name() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.info.workerID != "" {
		return p.info.workerID
	}
	return p.address
}

// better compares two ready peers: one that did not just fail, then the less busy. The caller holds Manager.mu.
func (p *peer) better(q *peer, now time.Time) bool {
	if a, b := now.Before(p.avoid), now.Before(q.avoid); a != b {
		return b
	}
	return p.links < q.links
}

// suspect makes the manager verify the draft again after a stream failed: it may be gone, or be another one now.
func (p *peer) suspect() {
	p.manager.mu.Lock()
	p.avoid = time.Now().Add(avoidFor)
	p.manager.mu.Unlock()
	p.setReady(false)
	signal(p.kick)
}

func (p *peer) setReady(ready bool) {
	p.mu.Lock()
	changed := p.ready != ready
	p.ready = ready
	p.mu.Unlock()
	if changed {
		p.manager.notify()
	}
}

// run keeps the peer attached until ctx ends.
func (p *peer) run(ctx context.Context) {
	log := p.manager.cfg.Log.With(zap.String(telemetry.KeyPeer, p.address))
	conn, err := p.manager.cfg.Dial(p.address)
	if err != nil {
		log.Error("draft address cannot be used", zap.NamedError(telemetry.KeyErr, err))
		return
	}
	defer conn.Close()
	defer p.setReady(false)
	client := tandemv1.NewDraftServiceClient(conn)
	wait, refused, told := minBackoff, firstRefused, ""
	for ctx.Err() == nil {
		info, err := p.manager.attach(ctx, client, log)
		if err == nil {
			p.mu.Lock()
			p.client, p.info, p.refusal = client, info, ""
			p.mu.Unlock()
			p.setReady(true)
			log.Info("draft attached", zap.String(telemetry.KeyModel, info.digest))
			wait, refused, told = minBackoff, firstRefused, ""
			p.watch(ctx, conn)
			p.setReady(false)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		refusal := rpcerr.Code(err) == codes.FailedPrecondition
		if p.setRefusal(refusal, err); !refusal {
			refused = firstRefused // it may be another one when it is back
		}
		if text := err.Error(); text != told { // the same reason is told once
			told = text
			if refusal {
				p.manager.mu.Lock()
				p.manager.refused++
				p.manager.mu.Unlock()
				log.Warn("draft refused", zap.NamedError(telemetry.KeyErr, err))
			} else {
				log.Warn("draft not attached, will try again", zap.NamedError(telemetry.KeyErr, err))
			}
		}
		switch {
		case errors.As(err, new(otherInUse)):
			p.sleep(ctx, nil, inUseWait)
		case refusal:
			if p.sleep(ctx, conn, refused) {
				refused = firstRefused
			} else {
				refused = min(2*refused, mostRefused)
			}
		default:
			p.sleep(ctx, nil, wait)
			wait = min(2*wait, maxBackoff)
		}
	}
}

// otherInUse is a refusal of a draft because another model is attached and in use.
type otherInUse struct{ error }

// Unwrap gives the status that the error stands for.
func (e otherInUse) Unwrap() error { return e.error }

// setRefusal notes why the draft cannot be used.
func (p *peer) setRefusal(refused bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refusal = ""; refused {
		p.refusal = err.Error()
	}
}

// watch returns when the attached draft should be verified again: its connection failed or a stream did.
func (p *peer) watch(ctx context.Context, conn *grpc.ClientConn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		for s := conn.GetState(); s == connectivity.Ready || s == connectivity.Idle; s = conn.GetState() {
			if !conn.WaitForStateChange(ctx, s) {
				return
			}
		}
	}()
	select {
	case <-p.kick:
	case <-lost:
	case <-ctx.Done():
	}
	cancel()
	<-lost
}

// sleep waits for d. It returns true at once when the connection, if one is given, is lost or the draft is to be
// verified again.
func (p *peer) sleep(ctx context.Context, conn *grpc.ClientConn, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if conn == nil {
		<-ctx.Done()
		return false
	}
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		if s := conn.GetState(); s == connectivity.Ready {
			conn.WaitForStateChange(ctx, s)
		} // else it was lost already
	}()
	select {
	case <-p.kick:
	case <-changed:
	case <-ctx.Done():
	}
	again := ctx.Err() == nil
	cancel()
	<-changed
	return again
}

var errNotReady = errors.New("the draft's engine is not open yet")
