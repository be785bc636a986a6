//go:build linux

package shmstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/tensorwire"
	"github.com/tandem-inference/tandem/services/testwait"
)

const method = "/test.Echo/Talk"

// blob is a message of bytes.
type blob struct {
	data []byte
}

func (m *blob) Append(b []byte, p *tensorwire.Parts) []byte {
	p.Add(m.data)
	return tensorwire.AppendLength(b, 1, p.Len())
}

func (m *blob) ReadFrom(r *tensorwire.Reader) error {
	m.data = m.data[:0]
	for tag := r.Next(); tag != 0; tag = r.Next() {
		m.data = r.Append(m.data)
	}
	return r.Err()
}

type handler = func(grpc.ServerStream) error

// serve starts a server whose stream is h and returns a connection to it.
func serve(t testing.TB, h handler, server []grpc.ServerOption, client []grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	// A handler that outlives its test would read what the next one sets.
	s := grpc.NewServer(append(append(tensorwire.ServerOptions(), grpc.WaitForHandlers(true)), server...)...)
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Echo", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
		{StreamName: "Talk", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, ss grpc.ServerStream) error { return h(ss) }},
	}}, nil)
	var wait sync.WaitGroup
	wait.Go(func() { _ = s.Serve(listener) })
	options := append(tensorwire.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient("unix://"+listener.Addr().String(), append(options, client...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		s.Stop()
		wait.Wait()
	})
	return conn
}

func both() ([]grpc.ServerOption, []grpc.DialOption) {
	return []grpc.ServerOption{grpc.ChainStreamInterceptor(ServerInterceptor(tensorwire.MaxMessageBytes, method))},
		[]grpc.DialOption{grpc.WithChainStreamInterceptor(ClientInterceptor(method))}
}

func open(t testing.TB, ctx context.Context, conn *grpc.ClientConn) grpc.ClientStream {
	t.Helper()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// echo sends every message back until the client ends.
func echo(ss grpc.ServerStream) error {
	var m blob
	for {
		if err := ss.RecvMsg(&m); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		if err := ss.SendMsg(&blob{bytes.Clone(m.data)}); err != nil { // gRPC borrows them for longer than we have them
			return err
		}
	}
}

// bounce is echo for a stream that has moved: what was sent is out of our hands when SendMsg returns.
func bounce(ss grpc.ServerStream) error {
	var m blob
	for {
		if err := ss.RecvMsg(&m); err != nil {
			return nil
		}
		if err := ss.SendMsg(&m); err != nil {
			return err
		}
	}
}

func moved(s grpc.ClientStream) bool {
	c, ok := s.(*clientStream)
	if !ok {
		return false
	}
	select {
	case <-c.track.known:
		return c.track.moved
	case <-time.After(testwait.Limit):
		panic("whether the stream moved was never decided")
	}
}

// TestEcho sends messages of all sizes, larger than a pipe too, before and after the stream has moved.
func TestEcho(t *testing.T) {
	with, from := both()
	for name, c := range map[string]struct {
		server []grpc.ServerOption
		client []grpc.DialOption
		moves  bool
	}{
		"both":        {with, from, true},
		"only client": {nil, from, false},
		"only server": {with, nil, false},
		"stays":       {with, append(slices.Clone(from), grpc.WithDefaultCallOptions(Stay())), false},
	} {
		t.Run(name, func(t *testing.T) {
			conn := serve(t, echo, c.server, c.client)
			s := open(t, t.Context(), conn)
			random := rand.New(rand.NewPCG(1, 2))
			sent := make(chan []byte, 100)
			var wait sync.WaitGroup
			wait.Go(func() {
				for i := range 300 {
					size := random.IntN(1 << random.IntN(20))
					switch {
					case i == 0:
						size = 3
					case i%50 == 7: // more than fits into a pipe
						size = pipeBytes + random.IntN(pipeBytes/2)
					}
					data := make([]byte, size)
					for j := range data {
						data[j] = byte(random.Uint32())
					}
					sent <- data
					if err := s.SendMsg(&blob{data}); err != nil {
						t.Errorf("message %d: %v", i, err)
						break
					}
				}
				close(sent)
				if err := s.CloseSend(); err != nil {
					t.Error(err)
				}
			})
			var m blob
			n := 0
			for data := range sent {
				if err := s.RecvMsg(&m); err != nil {
					t.Fatalf("answer %d: %v", n, err)
				}
				if !bytes.Equal(m.data, data) {
					t.Fatalf("answer %d has other bytes", n)
				}
				n++
			}
			if err := s.RecvMsg(&m); err != io.EOF {
				t.Fatalf("after the last answer: %v", err)
			}
			wait.Wait()
			if c.client != nil && moved(s) != c.moves {
				t.Fatalf("moved: %v", moved(s))
			}
		})
	}
}

// TestStatusFollowsMessages: what a handler sent before it returned an error is read first, also after it is gone.
func TestStatusFollowsMessages(t *testing.T) {
	server, client := both()
	conn := serve(t, func(ss grpc.ServerStream) error {
		for i := range 5 {
			if err := ss.SendMsg(&blob{[]byte{byte(i)}}); err != nil {
				return err
			}
		}
		return status.Error(codes.DataLoss, "that was all")
	}, server, client)
	s := open(t, t.Context(), conn)
	if !moved(s) {
		t.Fatal("did not move")
	}
	<-s.(*clientStream).track.over
	var m blob
	for i := range 5 {
		if err := s.RecvMsg(&m); err != nil || m.data[0] != byte(i) {
			t.Fatalf("message %d: %v %v", i, m.data, err)
		}
	}
	if err := s.RecvMsg(&m); status.Code(err) != codes.DataLoss {
		t.Fatalf("got %v", err)
	}
	if err := s.SendMsg(&m); err != io.EOF {
		t.Fatalf("send after the end: %v", err)
	}
}

// TestCancel: a client's cancel wakes both sides, whether they wait for bytes or for room.
func TestCancel(t *testing.T) {
	usual := oversleep
	t.Cleanup(func() { oversleep = usual })
	oversleep = time.Hour // who is not woken stays asleep
	server, client := both()
	ended := make(chan error, 1)
	conn := serve(t, func(ss grpc.ServerStream) error {
		var m blob
		err := ss.RecvMsg(&m)
		for err == nil && len(m.data) > 0 { // "fill": until nobody reads
			err = ss.SendMsg(&m)
		}
		if err == nil {
			err = ss.RecvMsg(&m)
		}
		ended <- err
		return err
	}, server, client)
	for _, fill := range []int{0, 100 << 10} {
		ctx, cancel := context.WithCancel(t.Context())
		s := open(t, ctx, conn)
		if !moved(s) {
			t.Fatal("did not move")
		}
		if err := s.SendMsg(&blob{make([]byte, fill)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // let them fall asleep
		cancel()
		if err := testwait.For(t, ended, "the server's end of the stream"); status.Code(err) != codes.Canceled {
			t.Fatalf("fill %d: server got %v", fill, err)
		}
		// As in gRPC, what has come already may still be read.
		var err error
		for m := new(blob); err == nil; {
			err = s.RecvMsg(m)
		}
		if status.Code(err) != codes.Canceled {
			t.Fatalf("fill %d: client got %v", fill, err)
		}
	}
}

// TestForeignRegions: names that lead nowhere, to something else or to another number leave the stream with gRPC.
func TestForeignRegions(t *testing.T) {
	server, _ := both()
	conn := serve(t, echo, server, nil)
	r, err := newRegion()
	if err != nil {
		t.Skip(err)
	}
	defer r.Close()
	wrong := r.Name()[:len(r.Name())-4] + "0000"
	for _, name := range []string{"", "1:0", "../../etc/passwd", "999999999:3:00000000000000000000000000000000",
		fmt.Sprintf("%d:0:%032x", 1, 0), wrong} {
		s := open(t, metadata.AppendToOutgoingContext(t.Context(), regionKey, name), conn)
		if err := s.SendMsg(&blob{[]byte("hello")}); err != nil {
			t.Fatal(err)
		}
		var m blob
		if err := s.RecvMsg(&m); err != nil || string(m.data) != "hello" {
			t.Fatalf("%q: %q %v", name, m.data, err)
		}
	}
}

// TestCorruptCounters: a peer that writes nonsense into the region gets an error, and nothing is read beyond it.
func TestCorruptCounters(t *testing.T) {
	for name, corrupt := range map[string]func(*conn){
		"head":    func(c *conn) { c.out.head.Store(1 << 40) },
		"length":  func(c *conn) { copy(c.out.data, []byte{255, 255, 255, 254}); c.out.head.Store(4) },
		"rewound": func(c *conn) { copy(c.out.data, []byte{255, 255, 255, 255}); c.out.head.Store(4) },
		"rewound twice": func(c *conn) {
			copy(c.out.data, []byte{255, 255, 255, 255, 255, 255, 255, 255})
			c.out.head.Store(pipeBytes + 4)
		},
	} {
		t.Run(name, func(t *testing.T) {
			server, client := both()
			conn := serve(t, echo, server, client)
			s := open(t, t.Context(), conn)
			if !moved(s) {
				t.Fatal("did not move")
			}
			c := s.(*clientStream)
			if err := c.ClientStream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			corrupt(c.track.conn)
			c.track.conn.out.rouse()
			var m blob
			if err := s.RecvMsg(&m); status.Code(err) != codes.Internal {
				t.Fatalf("got %v", err)
			}
		})
	}
}

// TestMessagesLieAtTheBeginning: messages of which one is in the ring at a time stay within twice the largest one, so
// that a stream of small ones never takes what a pipe may have.
func TestMessagesLieAtTheBeginning(t *testing.T) {
	server, client := both()
	s := open(t, t.Context(), serve(t, bounce, server, client))
	if !moved(s) {
		t.Skip("no shared memory here")
	}
	var m blob
	if err := errors.Join(s.SendMsg(&blob{[]byte("turn to memory")}), s.RecvMsg(&m)); err != nil {
		t.Fatal(err)
	}
	c := s.(*clientStream).track.conn
	for i := range 2000 {
		data := bytes.Repeat([]byte{byte(i)}, 1+i*7%5000)
		if err := errors.Join(s.SendMsg(&blob{data}), s.RecvMsg(&m)); err != nil || !bytes.Equal(m.data, data) {
			t.Fatalf("message %d: %d bytes, want %d of %d; %v", i, len(m.data), len(data), byte(i), err)
		}
		for _, p := range []pipe{c.out, c.in} {
			if at := p.head.Load() % pipeBytes; at > 2*5010 { // lengths and fields are in front
				t.Fatalf("message %d of %d bytes ends at %d of the ring", i, len(data), at)
			}
		}
	}
}

// TestSteadyState: a message there and back allocates nothing on either side, and streams leave no mapping, descriptor
// or goroutine behind.
func TestSteadyState(t *testing.T) {
	server, client := both()
	t.Run("allocations", func(t *testing.T) {
		conn := serve(t, bounce, server, client)
		s := open(t, t.Context(), conn)
		if !moved(s) {
			t.Fatal("did not move")
		}
		out, in := &blob{make([]byte, 5000)}, &blob{}
		trip := func() {
			if err := errors.Join(s.SendMsg(out), s.RecvMsg(in)); err != nil {
				t.Fatal(err)
			}
		}
		for range 50 {
			trip()
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const trips = 500
		for range trips {
			trip()
		}
		runtime.ReadMemStats(&after)
		if n := after.Mallocs - before.Mallocs; n > trips/10 && !racetest.Enabled {
			t.Fatalf("%d allocations in %d round trips", n, trips)
		}
	})
	t.Run("ends", func(t *testing.T) {
		conn := serve(t, echo, server, client)
		one := func() {
			s := open(t, t.Context(), conn)
			var m blob
			if err := errors.Join(s.SendMsg(&blob{[]byte("x")}), s.RecvMsg(&m), s.CloseSend()); err != nil {
				t.Fatal(err)
			}
			if err := s.RecvMsg(&m); err != io.EOF {
				t.Fatal(err)
			}
		}
		one()
		before := mappings(t)
		for range 50 {
			one()
		}
		for start := time.Now(); mappings(t) > before; time.Sleep(5 * time.Millisecond) { // the server's side ends later
			if time.Since(start) > time.Minute {
				t.Fatalf("%d mappings and descriptors before, %d after", before, mappings(t))
			}
		}
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestLimits: a message that is larger than its receiver allows ends the stream on either side, through memory as
// through gRPC.
func TestLimits(t *testing.T) {
	const most = 1 << 16
	for _, test := range []struct {
		name           string
		server, client int
	}{{"server", most, 1 << 20}, {"client", 1 << 20, most}} {
		t.Run(test.name, func(t *testing.T) {
			conn := serve(t, bounce, []grpc.ServerOption{grpc.ChainStreamInterceptor(ServerInterceptor(test.server, method))},
				[]grpc.DialOption{grpc.WithChainStreamInterceptor(ClientInterceptor(method)),
					grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(test.client))})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			s := open(t, ctx, conn)
			if !moved(s) {
				t.Skip("no shared memory here")
			}
			for _, n := range []int{most - 16, most} { // a message is a few bytes more than its data
				if err := s.SendMsg(&blob{make([]byte, n)}); err != nil {
					t.Fatal(err)
				}
				var m blob
				if err := s.RecvMsg(&m); (err == nil) != (n < most) {
					t.Errorf("%d bytes: %v", n, err)
				}
			}
		})
	}
}
