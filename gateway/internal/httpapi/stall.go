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

// Listener gives answers before any handler runs the shape of all others: clients that stop in the middle of a
// request's headers get 408, where net/http itself only closes, and what net/http refuses as plain text is refused as
// JSON. It is for plain HTTP; TLSListener does the same behind TLS.
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
	// begun: bytes came since the last request ended. busy: a handler runs, or net/http still ends its request: it reads
	// what the handler left of the body and then gives up a read of its own by a deadline in the past.
	begun, busy atomic.Bool
	// The first bytes were looked at, and they were HTTP/2's; only the server's reader uses them.
	seen, http2 bool
}

var http2Preface = []byte("PRI ")

// Read implements net.Conn.
func (c *stallConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		if !c.seen {
			c.seen, c.http2 = true, bytes.HasPrefix(p[:n], http2Preface)
		}
		c.begun.Store(true)
	}
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) && c.begun.Load() && !c.busy.Load() && !c.http2 {
		c.refuse()
	}
	return n, err
}

// refuse writes the whole answer; the server closes the connection next.
func (c *stallConn) refuse() {
	_ = c.Conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.Conn.Write(refusal(apierror.Transport(http.StatusRequestTimeout,
		"the request headers made no progress in time")))
}

// refusal is the last answer on a connection.
func refusal(e *apierror.Error) []byte {
	body := e.OpenAI()
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json; charset=utf-8\r\n"+
		"Connection: close\r\nContent-Length: %d\r\n\r\n%s",
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

// Attend lets a server tell the connections of Listener and TLSListener when their requests begin and end.
func Attend(h *http.Server) {
	h.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if sc, ok := c.(*stallConn); ok {
			return context.WithValue(ctx, connKey{}, sc)
		}
		return ctx
	}
	h.ConnState = func(c net.Conn, state http.ConnState) {
		if sc, ok := c.(*stallConn); ok && state == http.StateIdle {
			sc.begun.Store(false)
			sc.busy.Store(false)
		}
	}
}

// handling marks the connection as busy until it is idle again. The state hook alone does not do: net/http calls no
// connection active whose next request it already had in its buffer.
func handling(r *http.Request) {
	if sc, ok := r.Context().Value(connKey{}).(*stallConn); ok {
		sc.busy.Store(true)
	}
}
