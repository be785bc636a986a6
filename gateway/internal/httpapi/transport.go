package httpapi

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"regexp"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
)

// Limits of the transport.
const (
	// ReadHeaderBytes is what the HTTP server is to read of a header block: twice what is allowed, so that most blocks that are
	// too long still get an answer of ours, over any protocol.
	ReadHeaderBytes = 2 * maxHeaderBytes
	maxHeaderBytes  = 64 << 10
	maxBodyBytes    = 64 << 20
	maxURLBytes     = 16 << 10
	// writePiece is how much is written at once: each piece has its own time limit, so that a slow but living client counts
	// as making progress.
	writePiece = 32 << 10
)

var idPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// requestID takes the client's id if it has the right form, else makes one.
func requestID(r *http.Request) string {
	if id := r.Header.Get("X-Request-Id"); idPattern.MatchString(id) {
		return id
	}
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return "req-" + hex.EncodeToString(b[:])
}

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

// body reads a request body within its limits: size, and progress within the stall time.
type body struct {
	io.ReadCloser
	rc    *http.ResponseController
	stall time.Duration
}

func newBody(w *writer, r *http.Request, stall time.Duration) io.ReadCloser {
	return &body{ReadCloser: http.MaxBytesReader(w.ResponseWriter, r.Body, maxBodyBytes), rc: w.rc, stall: stall}
}

// Read implements io.Reader. At the end the time limit is lifted: from then on the server watches the connection for the
// client's leaving, which may take as long as it wants. After an error it stays, because the server goes on reading to empty
// the connection.
func (b *body) Read(p []byte) (int, error) {
	_ = b.rc.SetReadDeadline(time.Now().Add(b.stall))
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.rc.SetReadDeadline(time.Time{})
	}
	return n, err
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
	return apierror.Transport(http.StatusRequestHeaderFieldsTooLarge, "the headers have more than %d bytes", maxHeaderBytes)
}

func tooLarge() *apierror.Error {
	return apierror.Transport(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", maxBodyBytes)
}

// readError turns the error of a handler into an answer; errors of reading the body are told from others here.
func readError(w *writer, r *http.Request, err error) *apierror.Error {
	var known *apierror.Error
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &known):
		return known
	case w.wrote:
		// Only writing can still fail: the client is gone.
		return apierror.Cancelled().WithCause(err)
	case errors.As(err, &big):
		return tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		// Asked before the context: net/http cancels it on every failed read.
		return apierror.Transport(http.StatusRequestTimeout, "the request body made no progress in time")
	case r.Context().Err() != nil:
		return apierror.From(context.Cause(r.Context()))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return apierror.Cancelled().WithCause(err)
	}
	return apierror.From(err)
}
