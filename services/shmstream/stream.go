package shmstream

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/tandem-inference/tandem/services/tensorwire"
)

const (
	regionKey   = "tandem-shm-region"   // of the client: where the region is
	acceptedKey = "tandem-shm-accepted" // of the server: that it has mapped it
)

// conn is one side of a stream in memory. Sending and receiving may each be done by one goroutine at a time.
type conn struct {
	region *region
	out    pipe
	in     pipe
	codec  encoding.CodecV2
	most   int // bytes of a received message

	// use is held shared by whoever touches the region, and alone to unmap it.
	use sync.RWMutex
	side

	pieces [][]byte           // scratch of send
	buf    []byte             // scratch of receive
	parts  [2]mem.SliceBuffer // what list refers to
	list   mem.BufferSlice
	into   any                            // the message that is received
	take   func(first, rest []byte) error // decode
}

func newConn(r *region, out, in, most int) *conn {
	c := &conn{region: r, out: r.pipe(out), in: r.pipe(in), codec: tensorwire.NewCodec(), most: most}
	c.out.side, c.in.side = &c.side, &c.side
	c.list = mem.BufferSlice{&c.parts[0], &c.parts[1]}
	c.take = c.decode
	return c
}

// send writes a message.
func (c *conn) send(m any) error {
	c.use.RLock()
	defer c.use.RUnlock()
	if c.closed.Load() {
		return errClosed
	}
	list, err := c.codec.Marshal(m)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	defer list.Free()
	total := list.Len()
	if total > tensorwire.MaxMessageBytes {
		return status.Errorf(codes.ResourceExhausted, "message of %d bytes is larger than %d", total,
			tensorwire.MaxMessageBytes)
	}
	c.pieces = c.pieces[:0]
	for _, b := range list {
		c.pieces = append(c.pieces, b.ReadOnlyData())
	}
	err = c.out.write(c.pieces, total)
	clear(c.pieces)
	return err
}

// receive reads a message. After the last one the error is errEnded.
func (c *conn) receive(m any) error {
	c.use.RLock()
	defer c.use.RUnlock()
	if c.closed.Load() {
		return errClosed
	}
	var err error
	c.into = m
	c.buf, err = c.in.read(c.buf, c.most, c.take)
	c.into = nil
	return err
}

// decode reads the message that is received from the two pieces that it lies in.
func (c *conn) decode(first, rest []byte) error {
	c.parts[0], c.parts[1] = first, rest
	defer clear(c.parts[:])
	if err := c.codec.Unmarshal(c.list, c.into); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// abort makes all calls return.
func (c *conn) abort() {
	c.closed.Store(true)
	c.rouse()
}

// end says that the peer is done with the stream.
func (c *conn) end() {
	c.over.Store(true)
	c.rouse()
}

func (c *conn) rouse() {
	c.use.RLock()
	defer c.use.RUnlock()
	if c.region != nil {
		c.out.rouse()
		c.in.rouse()
	}
}

// finish says that this side sends nothing more.
func (c *conn) finish() {
	c.use.RLock()
	defer c.use.RUnlock()
	if c.region != nil {
		c.out.end()
	}
}

// close frees the region when nobody uses it any more.
func (c *conn) close() {
	c.abort()
	c.use.Lock()
	defer c.use.Unlock()
	if c.region != nil {
		c.region.Close()
		c.region = nil
	}
}

// hide makes sure that nobody else maps the region.
func (c *conn) hide() {
	c.use.Lock()
	defer c.use.Unlock()
	if c.region != nil {
		c.region.Hide()
	}
}

// ---- client

// ClientInterceptor moves streams of the methods into shared memory where the server can follow.
// grpc.MaxCallRecvMsgSize among a call's options bounds what is received either way.
func ClientInterceptor(methods ...string) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer,
		opts ...grpc.CallOption) (grpc.ClientStream, error) {
		if !slices.Contains(methods, method) || slices.ContainsFunc(opts, stays) {
			return streamer(ctx, desc, cc, method, opts...)
		}
		r, err := newRegion()
		if err != nil { // no memory files here
			return streamer(ctx, desc, cc, method, opts...)
		}
		cs, err := streamer(metadata.AppendToOutgoingContext(ctx, regionKey, r.Name()), desc, cc, method, opts...)
		if err != nil {
			r.Close()
			return nil, err
		}
		t := &track{conn: newConn(r, 0, 1, mostReceived(opts)), known: make(chan struct{}), over: make(chan struct{})}
		s := &clientStream{ClientStream: cs, track: t}
		// A stream that nobody reads to its end leaves its memory to the collector.
		runtime.AddCleanup(s, func(c *conn) { go c.close() }, t.conn)
		stop := context.AfterFunc(ctx, t.conn.abort)
		go func() {
			defer stop()
			t.follow(cs)
		}()
		return s, nil
	}
}

// Stay keeps a stream with gRPC: one that mostly waits is better off there, for a reader of shared memory sleeps in a
// system call.
func Stay() grpc.CallOption { return stay{} }

type stay struct{ grpc.EmptyCallOption }

func stays(o grpc.CallOption) bool { _, ok := o.(stay); return ok }

// mostReceived is the largest message in bytes that the options of a call allow.
func mostReceived(opts []grpc.CallOption) int {
	most := tensorwire.MaxMessageBytes
	for _, o := range opts { // the last one counts, as in gRPC
		if o, ok := o.(grpc.MaxRecvMsgSizeCallOption); ok {
			most = o.MaxRecvMsgSize
		}
	}
	return most
}

// track is what is known of a client's stream.
type track struct {
	conn  *conn
	known chan struct{} // closed when the server's header has come, or will not
	moved bool          // the server has mapped the region; set before known is closed
	over  chan struct{} // closed when the stream has ended, if it moved
	err   error         // why; set before over is closed
}

// follow waits for the server's word and, if the stream moves, for its end.
func (t *track) follow(cs grpc.ClientStream) {
	header, err := cs.Header()
	t.moved = err == nil && len(header.Get(acceptedKey)) > 0
	t.conn.hide()
	close(t.known)
	if !t.moved {
		t.conn.close()
		return
	}
	// All messages come through memory: this returns with the status of the stream.
	t.err = cs.RecvMsg(new(emptypb.Empty))
	if t.err == nil {
		t.err = status.Error(codes.Internal, "a message came by gRPC after the stream had moved to shared memory")
	}
	close(t.over)
	t.conn.end() // what the server wrote before is still read
}

type clientStream struct {
	grpc.ClientStream
	track *track
	half  bool // the gRPC stream's sending side is closed: messages go through memory
}

// SendMsg implements grpc.ClientStream.
func (s *clientStream) SendMsg(m any) error {
	if !s.half {
		select {
		case <-s.track.known:
			if s.track.moved {
				if err := s.ClientStream.CloseSend(); err != nil {
					return err
				}
				s.half = true
			}
		default:
		}
		if !s.half {
			return s.ClientStream.SendMsg(m)
		}
	}
	if err := s.track.conn.send(m); err != nil {
		if _, ok := status.FromError(err); ok {
			return err
		}
		return io.EOF // RecvMsg knows why
	}
	return nil
}

// CloseSend implements grpc.ClientStream.
func (s *clientStream) CloseSend() error {
	s.track.conn.finish()
	return s.ClientStream.CloseSend()
}

// RecvMsg implements grpc.ClientStream.
func (s *clientStream) RecvMsg(m any) error {
	<-s.track.known
	if !s.track.moved {
		return s.ClientStream.RecvMsg(m)
	}
	err := s.track.conn.receive(m)
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	if errors.Is(err, errCorrupt) {
		return status.Error(codes.Internal, err.Error())
	}
	<-s.track.over
	s.track.conn.close()
	return s.track.err
}

// ---- server

// ServerInterceptor follows clients that move streams of the methods into shared memory; most is the largest message in
// bytes that is received there, as grpc.MaxRecvMsgSize is elsewhere.
func ServerInterceptor(most int, methods ...string) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if !slices.Contains(methods, info.FullMethod) {
			return handler(srv, ss)
		}
		md, _ := metadata.FromIncomingContext(ss.Context())
		names := md.Get(regionKey)
		if len(names) != 1 {
			return handler(srv, ss)
		}
		r, err := openRegion(names[0])
		if err != nil {
			return handler(srv, ss) // another host, container or user
		}
		c := newConn(r, 1, 0, most)
		defer c.close()
		stop := context.AfterFunc(ss.Context(), c.abort)
		defer stop()
		if err := ss.SendHeader(metadata.Pairs(acceptedKey, "1")); err != nil {
			return err
		}
		return handler(srv, &serverStream{ServerStream: ss, conn: c})
	}
}

type serverStream struct {
	grpc.ServerStream
	conn *conn
	half bool // the client has turned to memory
}

// SendMsg implements grpc.ServerStream.
func (s *serverStream) SendMsg(m any) error { return s.translate(s.conn.send(m)) }

// RecvMsg implements grpc.ServerStream.
func (s *serverStream) RecvMsg(m any) error {
	if !s.half {
		err := s.ServerStream.RecvMsg(m)
		if !errors.Is(err, io.EOF) {
			return err
		}
		s.half = true
	}
	return s.translate(s.conn.receive(m))
}

func (s *serverStream) translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errEnded):
		return io.EOF
	case errors.Is(err, errCorrupt):
		return status.Error(codes.Internal, err.Error())
	case errors.Is(err, errClosed):
		if cause := s.Context().Err(); cause != nil {
			return status.FromContextError(cause).Err()
		}
		return status.Error(codes.Canceled, "the stream's handler has returned")
	}
	return err
}
