package inlet

import (
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
)

// preface is what a client of HTTP/2 sends first.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Frames of HTTP/2 that matter here (RFC 9113 §6), and their flags.
const (
	frameData    = 0
	frameHeaders = 1
	frameReset   = 3

	flagEnd    = 0x1
	flagPadded = 0x8
)

// conn is a connection of gRPC whose incomplete messages are counted. A message is held from its first byte on until it
// has arrived completely, or its stream has ended, on whichever side.
type conn struct {
	net.Conn
	port *Port
	held atomic.Int64

	reading sync.Mutex // guards in
	in      scanner
	writing sync.Mutex // guards out
	out     scanner

	mu      sync.Mutex // guards streams and over
	streams map[uint32]*message
	over    bool
}

// message is one that arrives on a stream.
type message struct {
	prefix [5]byte // whether it is compressed, and its length
	read   int     // of the prefix
	left   int64   // of the message
	held   int64
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.reading.Lock()
	c.in.scan(p[:n])
	c.reading.Unlock()
	if c.port.arriving.Load() > c.port.limits.ArrivingBytes {
		c.port.shed()
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	c.writing.Lock()
	c.out.scan(p)
	c.writing.Unlock()
	return c.Conn.Write(p)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.port.forget(c)
	return c.end()
}

// end closes the connection and counts nothing of it any more.
func (c *conn) end() error {
	c.mu.Lock()
	c.over = true
	c.streams = nil
	c.port.arriving.Add(-c.held.Swap(0))
	c.mu.Unlock()
	return c.Conn.Close()
}

// arrives is called for the head of a frame from the client.
func (c *conn) arrives(f frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.kind == frameHeaders && !c.over && c.streams[f.stream] == nil {
		c.streams[f.stream] = &message{}
	}
}

// arrived is called after the last byte of a frame from the client.
func (c *conn) arrived(f frame) {
	if f.kind == frameReset || f.flags&flagEnd != 0 && (f.kind == frameData || f.kind == frameHeaders) {
		c.drop(f.stream)
	}
}

// leaves is called for the head of a frame to the client.
func (c *conn) leaves(f frame) {
	if f.kind == frameReset || f.kind == frameHeaders && f.flags&flagEnd != 0 {
		c.drop(f.stream)
	}
}

// drop forgets a stream that has ended; what may still come of it is not kept.
func (c *conn) drop(stream uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.streams[stream]; m != nil {
		c.count(-m.held)
		delete(c.streams, stream)
	}
}

// count adds to what is held. The caller holds mu.
func (c *conn) count(n int64) {
	c.held.Add(n)
	c.port.arriving.Add(n)
}

// data is called for the bytes of messages.
func (c *conn) data(stream uint32, b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.streams[stream]
	if m == nil {
		return
	}
	before := m.held
	for len(b) > 0 {
		if m.read < len(m.prefix) {
			n := copy(m.prefix[m.read:], b)
			m.read += n
			m.held += int64(n)
			b = b[n:]
			m.left = int64(binary.BigEndian.Uint32(m.prefix[1:]))
		} else {
			n := min(m.left, int64(len(b)))
			m.left -= n
			m.held += n
			b = b[n:]
		}
		if m.read == len(m.prefix) && m.left == 0 {
			m.read, m.held = 0, 0
		}
	}
	c.count(m.held - before)
}

// frame is the head of a frame.
type frame struct {
	length      int
	kind, flags byte
	stream      uint32
}

// scanner finds the frames in what one side sends, however it is cut.
type scanner struct {
	// begin is called for the head of a frame, data for the bytes of messages, over after its last byte. The last two may
	// be nil.
	begin func(f frame)
	data  func(stream uint32, b []byte)
	over  func(f frame)

	skip int // bytes before the first frame
	head [9]byte
	read int // of the head
	now  frame
	left int // of the payload
	pad  int // bytes at its end that are padding; -1 = the length of the padding is to be read
}

func (s *scanner) scan(b []byte) {
	if n := min(s.skip, len(b)); n > 0 {
		s.skip -= n
		b = b[n:]
	}
	for len(b) > 0 {
		if s.read < len(s.head) {
			n := copy(s.head[s.read:], b)
			s.read += n
			b = b[n:]
			if s.read == len(s.head) {
				s.start()
			}
			continue
		}
		b = b[s.payload(b):]
	}
}

// start reads the head of a frame.
func (s *scanner) start() {
	h := &s.head
	s.now = frame{length: int(h[0])<<16 | int(h[1])<<8 | int(h[2]), kind: h[3], flags: h[4],
		stream: binary.BigEndian.Uint32(h[5:]) &^ (1 << 31)}
	s.left, s.pad = s.now.length, 0
	if s.now.kind == frameData && s.now.flags&flagPadded != 0 {
		s.pad = -1
	}
	s.begin(s.now)
	if s.left == 0 {
		s.finish()
	}
}

// payload takes bytes of a frame, and returns how many.
func (s *scanner) payload(b []byte) int {
	n := min(s.left, len(b))
	if s.now.kind == frameData && s.data != nil {
		text := b[:n]
		if s.pad < 0 {
			s.pad = int(text[0])
			text = text[1:]
		}
		// Of what is left after these bytes, at most pad are padding; what of them goes beyond is padding itself.
		rest := s.left - n
		if beyond := s.pad - rest; beyond > 0 {
			text = text[:max(0, len(text)-beyond)]
		}
		if len(text) > 0 {
			s.data(s.now.stream, text)
		}
	}
	s.left -= n
	if s.left == 0 {
		s.finish()
	}
	return n
}

func (s *scanner) finish() {
	s.read = 0
	if s.over != nil {
		s.over(s.now)
	}
}
