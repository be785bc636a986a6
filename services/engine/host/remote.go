package host

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// RemoteTarget, RemoteDraft and RemoteScorer are engines behind a connection: clients of a Server. The connection was
// made with DialOptions.
type (
	RemoteTarget struct {
		*Remote
		sequenceCalls
		targetCalls
	}
	RemoteDraft struct {
		*Remote
		sequenceCalls
		draftCalls
	}
	RemoteScorer struct {
		*Remote
		scorerCalls
	}
)

// Remote is what they have in common.
type Remote struct {
	client enginev1.EngineServiceClient
	closer func() error // ends the peer after the engine was closed; may be nil

	infoMu sync.Mutex // guards info
	info   engine.Info

	streams context.Context    // of the decode loop
	stop    context.CancelFunc // ends it
	loop    closable           // nil = the role has none
	lastID  atomic.Uint64      // of requests

	lifeMu sync.Mutex // guards err, closed and closing of done
	err    error
	closed bool
	done   chan struct{}
	// interrupts counts goroutines that send Interrupt, so that Close can wait for them.
	interrupts sync.WaitGroup
}

type closable interface{ close() }

// interruptTimeout bounds the call that asks for a cancel.
const interruptTimeout = 2 * time.Second

// OpenTarget opens a target behind a connection. closer is called at the end of Close.
func OpenTarget(ctx context.Context, conn grpc.ClientConnInterface, o engine.OpenOptions, p engine.Progress,
	closer func() error) (*RemoteTarget, error) {
	r, err := openRemote(ctx, conn, engine.RoleTarget, o, p, closer)
	if err != nil {
		return nil, err
	}
	calls, err := newTargetCalls(r, conn)
	if err != nil {
		return nil, err
	}
	return &RemoteTarget{r, newSequenceCalls(r, conn), calls}, nil
}

// OpenDraft opens a draft behind a connection. closer is called at the end of Close.
func OpenDraft(ctx context.Context, conn grpc.ClientConnInterface, o engine.OpenOptions, p engine.Progress,
	closer func() error) (*RemoteDraft, error) {
	r, err := openRemote(ctx, conn, engine.RoleDraft, o, p, closer)
	if err != nil {
		return nil, err
	}
	calls, err := newDraftCalls(r, conn)
	if err != nil {
		return nil, err
	}
	return &RemoteDraft{r, newSequenceCalls(r, conn), calls}, nil
}

// OpenScorer opens a scorer behind a connection. closer is called at the end of Close.
func OpenScorer(ctx context.Context, conn grpc.ClientConnInterface, o engine.OpenOptions, p engine.Progress,
	closer func() error) (*RemoteScorer, error) {
	r, err := openRemote(ctx, conn, engine.RoleScore, o, p, closer)
	if err != nil {
		return nil, err
	}
	return &RemoteScorer{r, scorerCalls{r, enginev1.NewScoreServiceClient(conn)}}, nil
}

func openRemote(ctx context.Context, conn grpc.ClientConnInterface, role engine.Role, options engine.OpenOptions,
	progress engine.Progress, closer func() error) (*Remote, error) {
	r := &Remote{client: enginev1.NewEngineServiceClient(conn), closer: closer, done: make(chan struct{})}
	opening, err := r.client.Open(ctx, optionsToProto(role, options))
	if err != nil {
		return nil, err
	}
	for {
		m, err := opening.Recv()
		if err == io.EOF {
			return nil, rpcerr.Internal("the engine ended Open without a result")
		}
		if err != nil {
			return nil, err
		}
		if m.Info != nil {
			r.info = infoFromProto(m.Info)
			break
		}
		if progress != nil {
			progress(m.DoneBytes, m.TotalBytes)
		}
	}
	for { // to the end of the stream, which frees it
		if _, err := opening.Recv(); err != nil {
			break
		}
	}
	r.streams, r.stop = context.WithCancel(context.Background())
	return r, nil
}

// lose marks the engine as gone, for the first reason given.
func (r *Remote) lose(err error) {
	r.lifeMu.Lock()
	defer r.lifeMu.Unlock()
	if r.err == nil {
		r.err = err
		close(r.done)
	}
}

// Kill loses the engine for a reason that the connection does not show; calls on their way end with it when the
// connection is closed, which is the caller's. An engine that was lost before keeps its reason.
func (r *Remote) Kill(cause error) { r.lose(cause) }

// Done implements Mortal.
func (r *Remote) Done() <-chan struct{} { return r.done }

// Err implements Mortal.
func (r *Remote) Err() error {
	r.lifeMu.Lock()
	defer r.lifeMu.Unlock()
	return r.err
}

// translate turns errors of the transport into ENGINE_LOST and leaves the engine's own alone.
func (r *Remote) translate(err error) error {
	if err == nil {
		return nil
	}
	if lost := r.Err(); lost != nil {
		return lost
	}
	e := rpcerr.From(err)
	// gRPC reports a broken connection as Unavailable without our ErrorInfo; engines send no such code.
	if e.Code() == codes.Unavailable && e.Reason() == "UNAVAILABLE" {
		return rpcerr.EngineLost.WithCause(err)
	}
	return r.poisoned(e)
}

// poisoned loses the engine when it reports INTERNAL: a device fault, after which every call fails the same way.
func (r *Remote) poisoned(err error) error {
	if rpcerr.Code(err) == codes.Internal {
		r.lose(err)
	}
	return err
}

// alive fails early when the engine is gone.
func (r *Remote) alive() error { return r.Err() }

// Info implements Engine.
func (r *Remote) Info() engine.Info {
	r.infoMu.Lock()
	defer r.infoMu.Unlock()
	i := r.info
	i.CaptureLayers = slices.Clone(i.CaptureLayers)
	return i
}

func (r *Remote) setInfo(m *enginev1.Info) {
	r.infoMu.Lock()
	defer r.infoMu.Unlock()
	r.info = infoFromProto(m)
}

// broken loses the engine: without its stream it is of no use.
func (r *Remote) broken(err error) error {
	if err == io.EOF {
		err = errors.New("the engine ended the stream")
	}
	r.lose(rpcerr.EngineLost.WithCause(err))
	return r.Err()
}

// interrupt runs on a goroutine of the context that ended.
func (r *Remote) interrupt(id uint64) {
	r.lifeMu.Lock()
	if r.closed {
		r.lifeMu.Unlock()
		return
	}
	r.interrupts.Add(1)
	r.lifeMu.Unlock()
	defer r.interrupts.Done()
	ctx, cancel := context.WithTimeout(context.Background(), interruptTimeout)
	defer cancel()
	// When the call fails the engine is gone, and the stream says so.
	_, _ = r.client.Interrupt(ctx, &enginev1.InterruptRequest{Id: id})
}

// closeTimeout bounds how long an engine may take to free its memory.
const closeTimeout = 5 * time.Second

// Close implements Engine. It is safe to call twice and after the engine was lost.
func (r *Remote) Close() error {
	r.lifeMu.Lock()
	again := r.closed
	r.closed = true
	lost := r.err != nil
	r.lifeMu.Unlock()
	if again {
		return nil
	}
	r.interrupts.Wait()
	if !lost {
		r.lose(rpcerr.FailedPrecondition("the engine is closed"))
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		// Whatever happens here, the closer ends the process.
		_, _ = r.client.Close(ctx, &enginev1.CloseRequest{})
		cancel()
	}
	r.stop()
	if r.loop != nil {
		r.loop.close()
	}
	if r.closer != nil {
		return r.closer()
	}
	return nil
}
