package httpapi

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Limits of the transport.
const (
	// ReadHeaderBytes is what the HTTP server is to read of a header block: twice what is allowed, so that most blocks
	// that are too long still get an answer of ours, over any protocol.
	ReadHeaderBytes = 2 * maxHeaderBytes
	maxHeaderBytes  = 64 << 10
	maxBodyBytes    = 64 << 20
	maxURLBytes     = 16 << 10
	// writePiece is how much is written at once: each piece has its own time limit, so that a slow but living client
	// counts as making progress.
	writePiece = 32 << 10
	// abortAfter is how long the body of a request that is refused meanwhile is still waited for. A client that sends
	// gets its answer with the next bytes; after a Read that ran out of time net/http closes the connection at once,
	// and the client may lose the answer.
	abortAfter = time.Second
)

// writer notes the status and gives every write a time limit.
type writer struct {
	http.ResponseWriter
	rc     *http.ResponseController
	stall  time.Duration
	status int
	wrote  bool
}

func newWriter(w http.ResponseWriter, stall time.Duration) *writer {
	return &writer{ResponseWriter: w, rc: http.NewResponseController(w), stall: stall, status: http.StatusOK}
}

// Unwrap lets http.ResponseController reach the connection.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader notes the status.
func (w *writer) WriteHeader(status int) {
	if !w.wrote {
		w.status, w.wrote = status, true
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write writes in pieces, each within the stall limit.
func (w *writer) Write(p []byte) (n int, err error) {
	w.wrote = true
	for len(p) > 0 {
		piece := p[:min(len(p), writePiece)]
		// Writers without deadlines (tests) have no stalls.
		_ = w.rc.SetWriteDeadline(time.Now().Add(w.stall))
		m, err := w.ResponseWriter.Write(piece)
		n += m
		if err != nil {
			return n, err
		}
		p = p[m:]
	}
	return n, nil
}

// bodyError is an error of reading a request body.
type bodyError struct{ error }

// Unwrap returns what went wrong.
func (e bodyError) Unwrap() error { return e.error }

// errDamaged is the body's own fault: it is not what its headers say.
var errDamaged = errors.New("the body is damaged")

// body is a request's body, decompressed where its Content-Encoding says so. Both sizes, as sent and decompressed, are
// bounded by maxBodyBytes.
type body struct {
	io.ReadCloser
	// length is the number of bytes that will be read, -1 where nothing says it.
	length int64
	sent   *sentBody
}

// abort lets Reads wait for the client no longer than abortAfter.
func (b *body) abort() { b.sent.abort() }

func newBody(w *writer, r *http.Request, stall time.Duration) (*body, error) {
	sent := &sentBody{ReadCloser: http.MaxBytesReader(w.ResponseWriter, r.Body, maxBodyBytes), rc: w.rc, stall: stall}
	switch encoding := strings.ToLower(strings.Join(r.Header.Values("Content-Encoding"), ",")); encoding {
	case "", "identity":
		return &body{sent, r.ContentLength, sent}, nil
	case "gzip", "x-gzip":
		return &body{&gzipBody{from: sent, left: maxBodyBytes}, -1, sent}, nil
	default:
		w.Header().Set("Accept-Encoding", "gzip, identity")
		return nil, apierror.Transport(http.StatusUnsupportedMediaType,
			"the Content-Encoding %q is not known: use gzip or none", encoding)
	}
}

// sentBody reads a request body within its limits: size, and progress within the stall time. Its errors are bodyErrors.
type sentBody struct {
	io.ReadCloser
	rc      *http.ResponseController
	stall   time.Duration
	aborted atomic.Bool
}

func (b *sentBody) abort() {
	b.aborted.Store(true)
	_ = b.rc.SetReadDeadline(time.Now().Add(abortAfter))
}

// Read implements io.Reader. At the end the time limit is lifted: from then on the server watches the connection for
// the client's leaving, which may take as long as it wants. After an error it stays, because the server goes on reading
// to empty the connection.
func (b *sentBody) Read(p []byte) (int, error) {
	_ = b.rc.SetReadDeadline(time.Now().Add(b.stall))
	// Asked after the limit was set: an abort that comes later sets its own.
	if b.aborted.Load() {
		_ = b.rc.SetReadDeadline(time.Now().Add(abortAfter))
	}
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.rc.SetReadDeadline(time.Time{})
	} else if err != nil {
		err = bodyError{err}
	}
	return n, err
}

// gzipBody decompresses a body.
type gzipBody struct {
	from io.ReadCloser
	z    *gzip.Reader // nil before the first Read
	left int64        // bytes that may still come
}

// Read implements io.Reader.
func (g *gzipBody) Read(p []byte) (n int, err error) {
	if g.z == nil {
		if g.z, err = gzip.NewReader(g.from); err != nil {
			return 0, damaged(err)
		}
	}
	// One byte more than allowed tells a body that just fits from one that is too large.
	n, err = g.z.Read(p[:min(int64(len(p)), g.left+1)])
	if int64(n) > g.left {
		return int(g.left), bodyError{&http.MaxBytesError{Limit: maxBodyBytes}}
	}
	g.left -= int64(n)
	if err != nil && err != io.EOF {
		err = damaged(err)
	}
	return n, err
}

// Close implements io.Closer.
func (g *gzipBody) Close() error { return g.from.Close() }

// damaged marks errors of the compressed data; those of the connection below are marked already.
func damaged(err error) error {
	var known bodyError
	if errors.As(err, &known) {
		return err
	}
	return bodyError{errors.Join(errDamaged, err)}
}

// headerBytes is the size of the request's header block as HTTP/1.1 writes it.
func headerBytes(r *http.Request) int {
	const colonAndLine = len(": \r\n")
	n := len(r.Method) + len(r.RequestURI) + len("  HTTP/1.1\r\n") + len("Host") + len(r.Host) + colonAndLine
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v) + colonAndLine
		}
	}
	return n
}

func headersTooLarge() *apierror.Error {
	return apierror.Transport(http.StatusRequestHeaderFieldsTooLarge,
		"the headers have more than %d bytes", maxHeaderBytes)
}

func tooLarge() *apierror.Error {
	return apierror.Transport(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", maxBodyBytes)
}

// readError turns the error of a handler into an answer; errors of reading the body are told from others here.
func readError(w *writer, r *http.Request, err error) *apierror.Error {
	var ofBody bodyError
	switch {
	case answered(err):
		return apierror.From(err)
	case w.wrote:
		// Only writing can still fail: the client is gone.
		return apierror.From(reqerr.Cancelled().WithCause(err))
	case errors.As(err, &ofBody):
		// Asked before the context: net/http cancels it on every failed read.
		return bodyFailed(r, err)
	case r.Context().Err() != nil:
		return apierror.From(context.Cause(r.Context()))
	}
	return apierror.From(err)
}

// answered reports whether an error has the answer in it: the other ones are of connections and files.
func answered(err error) bool {
	var answer *apierror.Error
	var ours *rpcerr.Error
	return errors.As(err, &answer) || errors.As(err, &ours)
}

// bodyFailed tells what the client did wrong from what the connection did.
func bodyFailed(r *http.Request, err error) *apierror.Error {
	var big *http.MaxBytesError
	var network net.Error
	switch {
	case errors.As(err, &big):
		return tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return apierror.Transport(http.StatusRequestTimeout, "the request body made no progress in time")
	case errors.Is(err, errDamaged):
		return apierror.Transport(http.StatusBadRequest, "the request body is not valid gzip").WithCause(err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		// The client may have closed only its own direction.
		return apierror.Transport(http.StatusBadRequest, "the request body ends before its announced length").WithCause(err)
	case errors.As(err, &network), errors.Is(err, net.ErrClosed), r.ProtoMajor >= 2:
		// Over HTTP/2 the body is in frames: what fails is the stream.
		return apierror.From(reqerr.Cancelled().WithCause(err))
	}
	return apierror.Transport(http.StatusBadRequest, "the request body cannot be read: %v", err).WithCause(err)
}
