package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
)

// Listener gives answers before any handler runs the shape of all others: clients that stop in the middle of a request's headers
// get 408, where net/http itself only closes, and what net/http refuses as plain text is refused as JSON. It is for plain HTTP;
// TLSListener does the same behind TLS.
func Listener(l net.Listener) net.Listener { return stallListener{l} }

type stallListener struct{ net.Listener }

func (l stallListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &stallConn{Conn: c}, nil
}

// stallConn knows whether a request has begun and not yet reached a handler.
type stallConn struct {
	net.Conn
	// begun: bytes came since the last handler ended. other: a handler runs, or the connection speaks HTTP/2.
	begun, other atomic.Bool
	seen         bool // the first bytes were looked at; only the server's reader reads it
}

var http2Preface = []byte("PRI ")

// Read implements net.Conn.
func (c *stallConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		if !c.seen {
			c.seen = true
			if bytes.HasPrefix(p[:n], http2Preface) {
				c.other.Store(true)
			}
		}
		c.begun.Store(true)
	}
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) && c.begun.Load() && !c.other.Load() {
		c.refuse()
	}
	return n, err
}

// refuse writes the whole answer; the server closes the connection next.
func (c *stallConn) refuse() {
	_ = c.Conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.Conn.Write(refusal(apierror.Transport(http.StatusRequestTimeout, "the request headers made no progress in time")))
}

// refusal is the last answer on a connection.
func refusal(e *apierror.Error) []byte {
	body := e.OpenAI()
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json; charset=utf-8\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		e.Status, http.StatusText(e.Status), len(body), body)
}

// What net/http writes when it refuses a request itself: a status line, these headers and no others, and a text.
var (
	statusLine   = []byte("HTTP/1.1 ")
	plainRefusal = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")
)

// Write implements net.Conn.
func (c *stallConn) Write(p []byte) (int, error) {
	line, text, ok := bytes.Cut(p, plainRefusal)
	if !ok || !bytes.HasPrefix(line, statusLine) || bytes.ContainsRune(line, '\n') {
		return c.Conn.Write(p)
	}
	status, err := strconv.Atoi(string(line[len(statusLine):][:3]))
	if err != nil {
		return c.Conn.Write(p)
	}
	e := apierror.Transport(status, "%s", text)
	if status == http.StatusRequestHeaderFieldsTooLarge {
		e = headersTooLarge()
	}
	if _, err := c.Conn.Write(refusal(e)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// CloseWrite lets the server end its side first, so that a client that is still sending can read the refusal.
func (c *stallConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

type connKey struct{}

// ConnContext lets handlers tell the connection of Listener that they run.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if sc, ok := c.(*stallConn); ok {
		return context.WithValue(ctx, connKey{}, sc)
	}
	return ctx
}

// handling marks the connection as busy with a handler; the returned function ends that.
func handling(r *http.Request) func() {
	sc, ok := r.Context().Value(connKey{}).(*stallConn)
	if !ok || r.ProtoMajor != 1 {
		return func() {}
	}
	sc.other.Store(true)
	return func() {
		sc.begun.Store(false)
		sc.other.Store(false)
	}
}
