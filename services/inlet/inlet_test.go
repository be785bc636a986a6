package inlet

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-inference/tandem/services/testwait"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// server is one with a port of small limits. Its health service takes messages of up to 64 MB.
type server struct {
	healthv1.UnimplementedHealthServer
	port *Port
	logs *observer.ObservedLogs
	at   string
}

func (*server) Check(context.Context, *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, nil
}

func serve(t *testing.T, limits Limits) *server {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	s := &server{port: New(limits, zap.New(core)), logs: logs}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.at = l.Addr().String()
	g := grpc.NewServer(append(s.port.ServerOptions(nil), grpc.MaxRecvMsgSize(64<<20))...)
	healthv1.RegisterHealthServer(g, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(s.port.Listener(l))
	}()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	return s
}

// raw is a connection of an attacker who speaks HTTP/2 by hand.
type raw struct {
	net.Conn
	*http2.Framer
	t *testing.T
}

func (s *server) raw(t *testing.T) *raw {
	t.Helper()
	c, err := net.Dial("tcp", s.at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	r := &raw{c, http2.NewFramer(c, c), t}
	if _, err := io.WriteString(c, preface); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return r
}

// begin opens a stream of a health check.
func (r *raw) begin(stream uint32) {
	r.t.Helper()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/grpc.health.v1.Health/Check"},
		{":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		if err := encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := r.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(),
		EndHeaders: true}); err != nil {
		r.t.Fatal(err)
	}
}

// part sends the first bytes of a message.
func (r *raw) part(stream uint32, length, sent int) error {
	data := make([]byte, 5+sent)
	binary.BigEndian.PutUint32(data[1:], uint32(length))
	for len(data) > 0 {
		n := min(len(data), 16<<10)
		if err := r.WriteData(stream, false, data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// ended waits for the end of the connection.
func (r *raw) ended() {
	r.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, r.Conn)
	}()
	testwait.For(r.t, done, "the connection is closed")
}

// check asks as an honest client does.
func (s *server) check(t *testing.T) error {
	t.Helper()
	c, err := grpc.NewClient(s.at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = healthv1.NewHealthClient(c).Check(t.Context(), &healthv1.HealthCheckRequest{})
	return err
}

func wide() Limits {
	return Limits{Connections: 100, PerHost: 100, Streams: 100, ArrivingBytes: 1 << 20}
}

// TestArrivingMessagesAreBounded: of connections that hold incomplete messages the largest is closed when they hold too
// much together, and the others, and honest callers, go on.
func TestArrivingMessagesAreBounded(t *testing.T) {
	s := serve(t, wide())
	small, large := s.raw(t), s.raw(t)
	small.begin(1)
	if err := small.part(1, 1<<20, 40<<10); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the first is counted", func() bool { return s.port.arriving.Load() == 5+40<<10 })
	// Each stream is within the window that HTTP/2 gives it.
	for i := range uint32(18) {
		large.begin(2*i + 1)
		if large.part(2*i+1, 1<<20, 60<<10) != nil {
			break
		}
		if i < 16 {
			testwait.Until(t, "it is counted", func() bool {
				return s.port.arriving.Load() == int64(5+40<<10)+int64(i+1)*int64(5+60<<10)
			})
		}
	}
	large.ended()
	testwait.Until(t, "only the small one is held", func() bool { return s.port.arriving.Load() == 5+40<<10 })
	if n := s.logs.FilterMessageSnippet("too much memory").Len(); n != 1 {
		t.Errorf("%d lines in the log", n)
	}
	if err := s.check(t); err != nil {
		t.Error(err)
	}
	_ = small.Close()
	testwait.Until(t, "nothing is held", func() bool { return s.port.arriving.Load() == 0 })
}

// TestWholeMessagesAreNotHeld: messages that have arrived, streams that were reset, and those that the server refused
// hold nothing.
func TestWholeMessagesAreNotHeld(t *testing.T) {
	s := serve(t, wide())
	r := s.raw(t)
	r.begin(1)
	if err := r.part(1, 0, 0); err != nil { // a whole one, and the next begins
		t.Fatal(err)
	}
	r.begin(3)
	if err := r.part(3, 100, 50); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "a part is held", func() bool { return s.port.arriving.Load() == 55 })
	if err := r.WriteRSTStream(3, http2.ErrCodeCancel); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "a reset stream holds nothing", func() bool { return s.port.arriving.Load() == 0 })
	r.begin(5)
	if err := r.part(5, 1<<30, 50); err != nil { // longer than any message may be: refused at once
		t.Fatal(err)
	}
	for {
		f, err := r.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if h, ok := f.(*http2.HeadersFrame); ok && h.StreamID == 5 && h.StreamEnded() {
			break
		}
	}
	testwait.Until(t, "a refused message holds nothing", func() bool { return s.port.arriving.Load() == 0 })
	if err := r.part(5, 1<<30, 50); err != nil {
		t.Fatal(err)
	}
	if err := r.WritePing(false, [8]byte{1}); err != nil {
		t.Fatal(err)
	}
	for {
		f, err := r.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := f.(*http2.PingFrame); ok && p.IsAck() {
			break
		}
	}
	if held := s.port.arriving.Load(); held != 0 {
		t.Errorf("what comes after the end holds %d bytes", held)
	}
}

// TestConnectionsAreBounded: one host has so many connections, and all have so many; who is refused is told at once,
// and finds room when another leaves.
func TestConnectionsAreBounded(t *testing.T) {
	s := serve(t, Limits{Connections: 100, PerHost: 3, Streams: 10, ArrivingBytes: 1 << 20})
	var open []*raw
	for range 3 {
		open = append(open, s.raw(t))
	}
	testwait.Until(t, "three are open", func() bool {
		s.port.mu.Lock()
		defer s.port.mu.Unlock()
		return s.port.total == 3
	})
	c, err := net.Dial("tcp", s.at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a fourth connection is served")
	}
	if n := s.logs.FilterMessageSnippet("too many are open").Len(); n != 1 {
		t.Errorf("%d lines in the log", n)
	}
	_ = open[0].Close()
	testwait.Until(t, "there is room again", func() bool { return s.check(t) == nil })
}

func TestHostsAreCountedApart(t *testing.T) {
	p := New(Limits{Connections: 4, PerHost: 2}, nil)
	for i, want := range []struct {
		host string
		ok   bool
	}{{"a", true}, {"a", true}, {"a", false}, {"b", true}, {"", true}, {"b", false}, {"", false}} {
		if ok := p.admit(want.host); ok != want.ok {
			t.Errorf("%d: %q: %v", i, want.host, ok)
		}
	}
	p.leave("a")
	if !p.admit("") || p.admit("") {
		t.Error("the place of one that left")
	}
}

// pieces is a connection that returns its data in pieces.
type pieces struct {
	net.Conn
	data []byte
	rng  *rand.Rand
}

func (p *pieces) Read(b []byte) (int, error) {
	n := copy(b[:1+p.rng.IntN(min(len(b), 40))], p.data)
	p.data = p.data[n:]
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (p *pieces) Close() error         { return nil }
func (p *pieces) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(1, 2, 3, 4)} }

// TestFramesAreFoundHoweverTheyAreCut: what is held at the end of random frames, padded or not, is what their messages
// lack.
func TestFramesAreFoundHoweverTheyAreCut(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var wire bytes.Buffer
		wire.WriteString(preface)
		f := http2.NewFramer(&wire, nil)
		var err error
		write := func(e error) { err = errors.Join(err, e) }
		messages := map[uint32][]byte{} // what was sent of each open stream
		for range 60 {
			id := uint32(2*rng.IntN(5) + 1)
			switch sent, open := messages[id]; {
			case !open:
				write(f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte("abc"), EndHeaders: true}))
				messages[id] = []byte{}
			case rng.IntN(10) == 0:
				write(f.WriteRSTStream(id, http2.ErrCodeCancel))
				delete(messages, id)
			case rng.IntN(10) == 0:
				write(f.WriteData(id, true, []byte{0, 0}))
				delete(messages, id)
			default:
				message := binary.BigEndian.AppendUint32([]byte{0}, uint32(rng.IntN(100)))
				message = append(message, make([]byte, binary.BigEndian.Uint32(message[1:]))...)
				data := bytes.Repeat(message, 1+rng.IntN(3))
				if len(sent) > 0 { // complete the one before
					length := 5 + int(binary.BigEndian.Uint32(append(bytes.Clone(sent), make([]byte, 4)...)[1:5]))
					data = nil
					if len(sent) >= 5 {
						data = make([]byte, rng.IntN(length-len(sent)+1))
					}
				} else {
					data = data[:len(data)-rng.IntN(len(message))]
				}
				if rng.IntN(2) == 0 {
					write(f.WriteDataPadded(id, false, data, make([]byte, rng.IntN(20))))
				} else {
					write(f.WriteData(id, false, data))
				}
				messages[id] = incomplete(append(sent, data...))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		want := int64(0)
		for _, m := range messages {
			want += int64(len(m))
		}
		p := New(Limits{ArrivingBytes: 1 << 20}, nil)
		h := &handshake{insecure.NewCredentials(), p}
		c, _, err := h.ServerHandshake(&pieces{data: wire.Bytes(), rng: rng})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Fatal(err)
		}
		if got := p.arriving.Load(); got != want {
			t.Fatalf("seed %d: %d bytes are held, want %d", seed, got, want)
		}
		if err := c.Close(); err != nil || p.arriving.Load() != 0 || len(p.open) != 0 {
			t.Fatalf("after the end: %d bytes, %d connections, %v", p.arriving.Load(), len(p.open), err)
		}
	}
}

// incomplete returns the last message of data if it lacks bytes.
func incomplete(data []byte) []byte {
	for len(data) >= 5 {
		n := 5 + int(binary.BigEndian.Uint32(data[1:]))
		if len(data) < n {
			return data
		}
		data = data[n:]
	}
	return data
}

// TestManyCallers: honest callers beside each other are all served, and leave nothing.
func TestManyCallers(t *testing.T) {
	s := serve(t, wide())
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			c, err := grpc.NewClient(s.at, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			for range 10 {
				_, err := healthv1.NewHealthClient(c).Check(t.Context(),
					&healthv1.HealthCheckRequest{Service: strings.Repeat("x", 10000)})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	testwait.Until(t, "all have left", func() bool {
		s.port.mu.Lock()
		defer s.port.mu.Unlock()
		return s.port.total == 0 && len(s.port.open) == 0 && s.port.arriving.Load() == 0
	})
}
