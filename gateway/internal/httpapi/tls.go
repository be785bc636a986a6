package httpapi

import (
	"crypto/tls"
	"net"
	"sync"
	"time"
)

// TLSListener is Listener behind TLS: it shakes hands itself, so that the bytes of HTTP/1.1 are readable here.
// Connections that speak HTTP/2 go to the server as they are. patience bounds the handshake.
func TLSListener(l net.Listener, cfg *tls.Config, patience time.Duration) net.Listener {
	t := &tlsListener{
		Listener: l, cfg: cfg, patience: patience, ready: make(chan net.Conn), failed: make(chan error, 1),
		closed:  make(chan struct{}),
		pending: map[net.Conn]bool{},
	}
	go t.accept()
	return t
}

type tlsListener struct {
	net.Listener
	cfg      *tls.Config
	patience time.Duration
	ready    chan net.Conn // hands were shaken
	failed   chan error    // of the listener below
	once     sync.Once
	closed   chan struct{}

	mu      sync.Mutex        // guards pending
	pending map[net.Conn]bool // during the handshake; nil after Close
}

// Accept implements net.Listener.
func (t *tlsListener) Accept() (net.Conn, error) {
	select {
	case c := <-t.ready:
		return c, nil
	case err := <-t.failed:
		t.failed <- err // for the next call
		return nil, err
	case <-t.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (t *tlsListener) Close() error {
	err := t.Listener.Close()
	t.once.Do(func() {
		close(t.closed)
		t.mu.Lock()
		defer t.mu.Unlock()
		for c := range t.pending {
			_ = c.Close()
		}
		t.pending = nil
	})
	return err
}

func (t *tlsListener) accept() {
	for {
		c, err := t.Listener.Accept()
		if err != nil {
			t.failed <- err
			return
		}
		go t.handshake(c)
	}
}

func (t *tlsListener) handshake(raw net.Conn) {
	t.mu.Lock()
	if t.pending == nil {
		t.mu.Unlock()
		_ = raw.Close()
		return
	}
	t.pending[raw] = true
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.pending, raw)
	}()
	_ = raw.SetDeadline(time.Now().Add(t.patience))
	conn := tls.Server(raw, t.cfg)
	var out net.Conn = conn
	// A handshake that failed is the server's to answer: it asks again and gets the same error.
	if err := conn.Handshake(); err == nil {
		_ = raw.SetDeadline(time.Time{})
		if conn.ConnectionState().NegotiatedProtocol != "h2" {
			out = &stallConn{Conn: conn}
		}
	}
	select {
	case t.ready <- out:
	case <-t.closed:
		_ = raw.Close()
	}
}
