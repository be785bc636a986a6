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
	"github.com/tandem-inference/tandem/services/engine/wire"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/shmstream"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

// Remote is an Engine behind a connection: the client of a Server. The connection was made with DialOptions.
type Remote struct {
	client enginev1.EngineServiceClient
	closer func() error // ends the peer after the engine was closed; may be nil

	infoMu sync.Mutex // guards info
	info   engine.Info

	// lines that are free. While the engine works on the request of one, those of others are sent and wait there for their turn,
	// so that it has its next work at once.
	lines  chan *line
	open   func() (*line, error)
	stop   context.CancelFunc // ends all Run streams
	lastID atomic.Uint64      // of requests

	linesMu sync.Mutex // guards the fields below
	opened  int        // lines that exist, at most cap(lines)
	last    bool       // there will be no more

	lifeMu sync.Mutex // guards err, closed and closing of done
	err    error
	closed bool
	done   chan struct{}
	// interrupts counts goroutines that send Interrupt, so that Close can wait for them.
	interrupts sync.WaitGroup
}

// line is a Run stream, on which one request is in flight. It belongs to whoever took it.
type line struct {
	stream grpc.ClientStream
	req    wire.RunRequest
	resp   wire.RunResponse
	asked  wire.Proposal // of req
	watch  *engine.CallWatch
}

// runLines is how many requests are in flight at a time: enough to hide the way there and back behind a short step. An
// engine whose steps run at the same time has one more for each of its sequences, opened when it is first needed.
const runLines = 8

// mostLines bounds the lines to an engine.
func mostLines(i *engine.Info) int {
	if i.Concurrent {
		return runLines + i.MaxSequences
	}
	return runLines
}

// interruptTimeout bounds the call that asks for a cancel.
const interruptTimeout = 2 * time.Second

// OpenRemote opens an engine behind a connection. closer is called at the end of Close.
func OpenRemote(ctx context.Context, conn grpc.ClientConnInterface, options engine.OpenOptions, progress engine.Progress, closer func() error) (*Remote, error) {
	r := &Remote{client: enginev1.NewEngineServiceClient(conn), closer: closer, done: make(chan struct{})}
	opening, err := r.client.Open(ctx, optionsToProto(options))
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
	streamCtx, stop := context.WithCancel(context.Background())
	r.stop = stop
	r.open = func() (*line, error) {
		var options []grpc.CallOption
		if r.info.Concurrent { // its steps may wait for long
			options = append(options, shmstream.Stay())
		}
		stream, err := r.client.Run(streamCtx, options...)
		if err != nil {
			return nil, err
		}
		return &line{stream: stream, watch: engine.NewCallWatch(r.interrupt)}, nil
	}
	r.lines = make(chan *line, mostLines(&r.info))
	for range runLines {
		l, err := r.open()
		if err != nil {
			stop()
			return nil, err
		}
		r.opened++
		r.lines <- l
	}
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

// Step implements Engine.
func (r *Remote) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	l, err := r.line(ctx)
	if err != nil {
		return err
	}
	defer func() { r.lines <- l }()
	l.req.Kind, l.req.Step, l.resp.Step = wire.WorkStep, step, result
	err = r.round(ctx, l, wire.OutputStep)
	l.req.Step, l.resp.Step = nil, nil
	result.EngineNanos = l.resp.Nanos
	return err
}

// Propose implements Engine.
func (r *Remote) Propose(ctx context.Context, features []engine.FeatureRows, requests []engine.DraftRequest, result *engine.DraftResult) error {
	l, err := r.line(ctx)
	if err != nil {
		return err
	}
	defer func() { r.lines <- l }()
	l.asked = wire.Proposal{Features: features, Requests: requests}
	l.req.Kind, l.req.Propose, l.resp.Propose = wire.WorkPropose, &l.asked, result
	err = r.round(ctx, l, wire.OutputPropose)
	l.asked, l.req.Propose, l.resp.Propose = wire.Proposal{}, nil, nil
	result.EngineNanos = l.resp.Nanos
	return err
}

// line waits for a free line, in order of arrival.
func (r *Remote) line(ctx context.Context) (*line, error) {
	if err := ctx.Err(); err != nil {
		return nil, rpcerr.From(err)
	}
	select {
	case l := <-r.lines:
		return l, nil
	default:
	}
	if l, err := r.another(); l != nil || err != nil {
		return l, err
	}
	select {
	case l := <-r.lines:
		return l, nil
	case <-ctx.Done():
		return nil, rpcerr.From(ctx.Err())
	}
}

// another opens a line; nil when there are as many as there may be.
func (r *Remote) another() (*line, error) {
	r.linesMu.Lock()
	defer r.linesMu.Unlock()
	if r.last || r.opened == cap(r.lines) {
		return nil, nil
	}
	l, err := r.open()
	if err != nil {
		return nil, r.translate(err)
	}
	r.opened++
	return l, nil
}

// round sends the request of l and waits for its answer, also after ctx has ended: then the engine is asked to hurry.
func (r *Remote) round(ctx context.Context, l *line, kind int) error {
	if err := r.alive(); err != nil {
		return err
	}
	l.req.ID = r.lastID.Add(1)
	l.resp.Nanos = 0
	if err := l.watch.Begin(ctx, l.req.ID); err != nil {
		return rpcerr.From(err)
	}
	defer l.watch.End()
	if err := l.stream.SendMsg(&l.req); err != nil && err != io.EOF { // EOF: RecvMsg knows why
		return r.broken(err)
	}
	if err := l.stream.RecvMsg(&l.resp); err != nil {
		return r.broken(err)
	}
	if l.resp.ID != l.req.ID {
		return r.broken(rpcerr.Internal("the engine answered request %d instead of %d", l.resp.ID, l.req.ID))
	}
	if err := l.resp.Failure.Err(); err != nil {
		if cause := ctx.Err(); cause != nil && rpcerr.Code(err) == codes.Canceled {
			return rpcerr.From(cause)
		}
		return r.poisoned(err)
	}
	if l.resp.Kind != kind {
		return r.broken(rpcerr.Internal("the engine answered with the wrong kind of output"))
	}
	return nil
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
	r.linesMu.Lock()
	r.last = true
	opened := r.opened
	r.linesMu.Unlock()
	for range opened { // whose callers have their error now
		l := <-r.lines
		l.watch.Close()
		r.lines <- l
	}
	if r.closer != nil {
		return r.closer()
	}
	return nil
}

// chunkBytes is the size of pieces of exported states.
const chunkBytes = tensorwire.ChunkBytes
