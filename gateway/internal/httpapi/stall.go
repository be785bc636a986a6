package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
)

// Listener answers clients that stop in the middle of a request's headers with 408; net/http itself only closes. It is for
// plain HTTP: behind TLS the bytes are not readable here.
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
	body := apierror.Transport(http.StatusRequestTimeout, "the request headers made no progress in time").OpenAI()
	_ = c.Conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = fmt.Fprintf(c.Conn, "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json; charset=utf-8\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		len(body), body)
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
