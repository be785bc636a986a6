package host

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/wire"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/shmstream"
)

// loop is the client's side of a decode loop, whose lines send Q and receive A.
type loop[Q, A any] struct {
	r *Remote
	// lines that are free. While the engine works on the request of one, those of others are sent and wait there, so that
	// it has its next work at once.
	lines chan *line[Q, A]
	open  func(context.Context, ...grpc.CallOption) (grpc.ClientStream, error)
	// head returns what a request, and a response, have in common with all others.
	head func(*Q, *A) (*wire.Request, *wire.Response)

	mu     sync.Mutex // guards the fields below
	opened int        // lines that exist, at most cap(lines)
	last   bool       // there will be no more
}

// line is a stream on which one request is in flight. It belongs to whoever took it.
type line[Q, A any] struct {
	stream grpc.ClientStream
	req    Q
	resp   A
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

// newLoop opens the loop of an engine.
func newLoop[Q, A any](r *Remote, open func(context.Context, ...grpc.CallOption) (grpc.ClientStream, error),
	head func(*Q, *A) (*wire.Request, *wire.Response)) (*loop[Q, A], error) {
	l := &loop[Q, A]{r: r, open: open, head: head, lines: make(chan *line[Q, A], mostLines(&r.info))}
	for range runLines {
		n, err := l.newLine()
		if err != nil {
			r.stop()
			return nil, err
		}
		l.lines <- n
	}
	r.loop = l
	return l, nil
}

// newLine opens another line. The caller is alone or holds mu.
func (l *loop[Q, A]) newLine() (*line[Q, A], error) {
	var options []grpc.CallOption
	if l.r.info.Concurrent { // its steps may wait for long
		options = append(options, shmstream.Stay())
	}
	stream, err := l.open(l.r.streams, options...)
	if err != nil {
		return nil, err
	}
	l.opened++
	return &line[Q, A]{stream: stream, watch: engine.NewCallWatch(l.r.interrupt)}, nil
}

// take waits for a free line, in order of arrival. The caller gives it back to lines.
func (l *loop[Q, A]) take(ctx context.Context) (*line[Q, A], error) {
	if err := ctx.Err(); err != nil {
		return nil, rpcerr.From(err)
	}
	select {
	case n := <-l.lines:
		return n, nil
	default:
	}
	if n, err := l.another(); n != nil || err != nil {
		return n, err
	}
	select {
	case n := <-l.lines:
		return n, nil
	case <-ctx.Done():
		return nil, rpcerr.From(ctx.Err())
	}
}

// another opens a line; nil when there are as many as there may be.
func (l *loop[Q, A]) another() (*line[Q, A], error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last || l.opened == cap(l.lines) {
		return nil, nil
	}
	n, err := l.newLine()
	if err != nil {
		return nil, l.r.translate(err)
	}
	return n, nil
}

// round sends the request of a line and waits for its answer, also after ctx has ended: then the engine is asked to
// hurry.
func (l *loop[Q, A]) round(ctx context.Context, n *line[Q, A]) error {
	r := l.r
	if err := r.alive(); err != nil {
		return err
	}
	req, resp := l.head(&n.req, &n.resp)
	req.ID = r.lastID.Add(1)
	resp.Nanos = 0
	if err := n.watch.Begin(ctx, req.ID); err != nil {
		return rpcerr.From(err)
	}
	defer n.watch.End()
	if err := n.stream.SendMsg(&n.req); err != nil && err != io.EOF { // EOF: RecvMsg knows why
		return r.broken(err)
	}
	if err := n.stream.RecvMsg(&n.resp); err != nil {
		return r.broken(err)
	}
	if resp.ID != req.ID {
		return r.broken(rpcerr.Internal("the engine answered request %d instead of %d", resp.ID, req.ID))
	}
	if err := resp.Failure.Err(); err != nil {
		if cause := ctx.Err(); cause != nil && rpcerr.Code(err) == codes.Canceled {
			return rpcerr.From(cause)
		}
		return r.poisoned(err)
	}
	return nil
}

// close waits for the callers, who have their error now: the streams have ended.
func (l *loop[Q, A]) close() {
	l.mu.Lock()
	l.last = true
	opened := l.opened
	l.mu.Unlock()
	for range opened {
		n := <-l.lines
		n.watch.Close()
		l.lines <- n
	}
}
