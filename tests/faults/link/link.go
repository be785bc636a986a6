// Package link passes TCP connections on and disturbs them, as a bad network does: it delays bytes, holds them back as
// long as a lost segment takes to be sent again, lets nothing through in one direction or both, and breaks connections.
package link

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// Direction of bytes.
type Direction int

// Up is from the end that connects to the one that listens.
const (
	Up Direction = iota
	Down
)

// Disturbance is what happens to the bytes of a direction. The zero value passes them on.
type Disturbance struct {
	// Hold lets nothing through. What was sent arrives when it is lifted, as TCP sends it again.
	Hold bool
	// Delay of every byte.
	Delay time.Duration
	// Loss is the share of segments that are held back for Retransmission, and with them what follows.
	Loss float64
}

const (
	// Retransmission is the time after which TCP sends a lost segment again: the least that Linux waits.
	Retransmission = 200 * time.Millisecond
	// segment is the payload of an Ethernet frame.
	segment = 1448
	// queued is how many segments of a connection are on the way at most: the window of the sender, about 1.5 MB.
	queued = 1024
	// reads is the most that is passed on at once.
	reads = 64 << 10
)

// Link passes on connections to one server. It is safe for concurrent use.
type Link struct {
	listener net.Listener
	server   string
	group    sync.WaitGroup

	mu      sync.Mutex // guards the following
	rng     *rand.Rand
	now     [2]Disturbance
	changed chan struct{} // closed and replaced when now changes
	open    map[*pair]struct{}
	closed  bool
}

// pair are both ends of a connection.
type pair struct {
	client, server net.Conn
	once           sync.Once
	done           chan struct{} // closed by end
}

// end closes both ends, and what is on the way is lost.
func (p *pair) end() {
	p.once.Do(func() { close(p.done) })
	_ = p.client.Close()
	_ = p.server.Close()
}

// Listen passes connections to an address on to a server, which may start later. seed is that of losses.
func Listen(address, server string, seed uint64) (*Link, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	k := newLink(seed)
	k.listener, k.server = l, server
	k.group.Go(k.accept)
	return k, nil
}

func newLink(seed uint64) *Link {
	return &Link{rng: rand.New(rand.NewPCG(seed, 0)), changed: make(chan struct{}), open: map[*pair]struct{}{}}
}

// Address is where the link listens.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Set changes what happens to the bytes of both directions, of open connections too.
func (l *Link) Set(up, down Disturbance) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = [2]Disturbance{up, down}
	close(l.changed)
	l.changed = make(chan struct{})
}

// Cut breaks all connections, of which both ends hear at once.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.open {
		for _, c := range []net.Conn{p.client, p.server} {
			if tcp, ok := c.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
		}
		p.end()
	}
}

// Close ends the link and its connections.
func (l *Link) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	_ = l.listener.Close()
	l.Cut()
	l.group.Wait()
}

func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.group.Go(func() {
			server, err := net.Dial("tcp", l.server)
			if err != nil {
				_ = client.Close()
				return
			}
			l.join(client, server)
		})
	}
}

// join passes bytes between two connections until both have ended.
func (l *Link) join(client, server net.Conn) {
	p := &pair{client: client, server: server, done: make(chan struct{})}
	defer p.end()
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.open[p] = struct{}{}
	}
	l.mu.Unlock()
	if closed {
		return
	}
	var group sync.WaitGroup
	group.Go(func() { l.pass(Up, p, client, server) })
	group.Go(func() { l.pass(Down, p, server, client) })
	group.Wait()
	l.mu.Lock()
	delete(l.open, p)
	l.mu.Unlock()
}

// piece is a part of a stream on its way.
type piece struct {
	data []byte
	due  time.Time
}

// pass moves the bytes of a direction. The end of a stream is passed on; an error ends both directions.
func (l *Link) pass(d Direction, p *pair, from, to net.Conn) {
	pieces := make(chan piece, queued)
	var writer sync.WaitGroup
	writer.Go(func() {
		for next := range pieces {
			if !l.write(d, to, next, p.done) {
				p.end()
			}
		}
	})
	err := l.read(d, from, pieces, p.done)
	half, ok := to.(interface{ CloseWrite() error })
	if !ok || !errors.Is(err, io.EOF) {
		p.end()
	}
	close(pieces)
	writer.Wait()
	if ok {
		_ = half.CloseWrite()
	}
}

// read cuts what arrives into pieces until the connection ends, and returns why.
func (l *Link) read(d Direction, from net.Conn, pieces chan<- piece, done <-chan struct{}) error {
	var due time.Time
	buffer := make([]byte, reads)
	for {
		n, err := from.Read(buffer)
		for data := buffer[:n]; len(data) > 0; {
			size, wait := l.fate(d, len(data))
			if arrives := time.Now().Add(wait); arrives.After(due) {
				due = arrives
			}
			select {
			case pieces <- piece{append([]byte(nil), data[:size]...), due}:
			case <-done:
				return net.ErrClosed
			}
			data = data[size:]
		}
		if err != nil {
			return err
		}
	}
}

// fate says how many of the next bytes travel together, and how long they take.
func (l *Link) fate(d Direction, n int) (size int, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now[d]
	if now.Loss == 0 {
		return n, now.Delay
	}
	wait = now.Delay
	if l.rng.Float64() < now.Loss {
		wait += Retransmission
	}
	return min(n, segment), wait
}

// write sends a piece when it is due and nothing is held. It returns false if the connection is over.
func (l *Link) write(d Direction, to net.Conn, p piece, done <-chan struct{}) bool {
	if wait := time.Until(p.due); wait > 0 {
		select {
		case <-time.After(wait):
		case <-done:
			return false
		}
	}
	for {
		l.mu.Lock()
		held, changed := l.now[d].Hold, l.changed
		l.mu.Unlock()
		if !held {
			break
		}
		select {
		case <-changed:
		case <-done:
			return false
		}
	}
	_, err := to.Write(p.data)
	return err == nil
}
