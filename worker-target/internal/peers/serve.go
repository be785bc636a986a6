package peers

import (
	"context"
	"errors"
	"hash/crc32"
	"slices"
	"sync/atomic"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/worker-target/internal/disk"
	"github.com/tandem-inference/tandem/worker-target/internal/prefix"
)

const (
	// mostSent is how many states are sent at a time. More share the same network and engine.
	mostSent = 2
	// longest bounds the sending of one.
	longest = 2 * time.Minute
)

// Deps of a Server.
type Deps struct {
	Prefixes *prefix.Cache // nil = there are no states
	// Engine returns what the engine is and its contract id.
	Engine func() (info engine.Info, contract string, err error)
	// Busy reports whether the worker has requests: then its engine rests between two parts.
	Busy func() bool
	// Isolation checks what states are kept apart by.
	Isolation func(field, text string) error
}

// ServerStats of a Server since its start.
type ServerStats struct {
	Sent   uint64 // states
	Tokens uint64
	Bytes  uint64 // of parts, those of states included that were not sent to their end
	Failed uint64 // calls that found a state and did not send it whole
}

// Server implements PeerService.
type Server struct {
	tandemv1.UnimplementedPeerServiceServer
	deps    Deps
	sending atomic.Int32

	sent, tokens, bytes, failed atomic.Uint64
}

// NewServer returns a server.
func NewServer(deps Deps) *Server { return &Server{deps: deps} }

// Stats returns the counters.
func (s *Server) Stats() ServerStats {
	if s == nil {
		return ServerStats{}
	}
	return ServerStats{Sent: s.sent.Load(), Tokens: s.tokens.Load(), Bytes: s.bytes.Load(), Failed: s.failed.Load()}
}

// FetchState implements tandemv1.PeerServiceServer.
func (s *Server) FetchState(m *tandemv1.FetchStateRequest, stream tandemv1.PeerService_FetchStateServer) error {
	info, contract, err := s.deps.Engine()
	if err != nil {
		return err
	}
	if err := s.check(m, info, contract); err != nil {
		return err
	}
	defer s.sending.Add(-1)
	if s.sending.Add(1) > mostSent {
		return rpcerr.ResourceExhausted("%d states are being sent", mostSent)
	}
	ctx, cancel := context.WithTimeout(stream.Context(), longest)
	defer cancel()
	loan := s.deps.Prefixes.Lend(ctx, prefix.Space(contract, m.GetIsolation()), m.GetTokens(), int(m.GetLongerThan()),
		func(length int) bool {
			if len(m.GetLengths()) == 0 {
				return true
			}
			_, ok := slices.BinarySearch(m.GetLengths(), int32(length))
			return ok
		})
	if loan == nil {
		return rpcerr.NotFound("no state of more than %d of these %d tokens is there", m.GetLongerThan(), len(m.GetTokens()))
	}
	defer loan.Close()
	w := &writer{server: s, contract: contract, stream: stream}
	rows, err := loan.Send(ctx, w, int(m.GetLongerThan())/page, s.rest)
	if err == nil {
		err = w.rows(rows)
	}
	if err != nil {
		s.failed.Add(1)
		if errors.Is(err, prefix.ErrEvicted) {
			return rpcerr.NotFound("the state was evicted while it was sent")
		}
		if errors.Is(err, disk.ErrDamaged) {
			return rpcerr.DataLoss("the state is damaged on disk")
		}
		return err
	}
	s.sent.Add(1)
	s.tokens.Add(uint64(w.length - int(m.GetLongerThan())))
	return nil
}

// check checks every field.
func (s *Server) check(m *tandemv1.FetchStateRequest, info engine.Info, contract string) error {
	n := len(m.GetTokens())
	switch {
	case m.GetContract() != contract:
		return rpcerr.FailedPrecondition("contract: %.64q is not the contract id %q", m.GetContract(), contract)
	case n == 0 || n > info.MaxContext:
		return rpcerr.InvalidArgument("tokens", "must be 1..%d, got %d", info.MaxContext, n)
	case m.GetLongerThan() < 0 || int(m.GetLongerThan()) >= n:
		return rpcerr.InvalidArgument("longer_than", "must be in 0..%d, got %d", n-1, m.GetLongerThan())
	}
	before := m.GetLongerThan()
	for i, length := range m.GetLengths() {
		if length <= before || int(length) > n {
			return rpcerr.InvalidArgument("lengths", "%d at %d must be in %d..%d", length, i, before+1, n)
		}
		before = length
	}
	return s.deps.Isolation("isolation", m.GetIsolation())
}

// rest keeps the engine free for requests, if there are any, for as long as a read took.
func (s *Server) rest(ctx context.Context, took time.Duration) {
	if s.deps.Busy() {
		pause.For(ctx, took)
	}
}

// writer sends what is written to it; it implements disk.Engine.
type writer struct {
	server   *Server
	contract string
	stream   tandemv1.PeerService_FetchStateServer
	length   int
}

func (w *writer) send(m *tandemv1.FetchStateResponse, bytes int) error {
	err := w.stream.Send(m)
	if err == nil {
		w.server.bytes.Add(uint64(bytes))
	}
	return err
}

// BeginSnapshot sends the header.
func (w *writer) BeginSnapshot(
	_ context.Context, l engine.SnapshotLayout, _ engine.Snapshot, _ int,
) (engine.Snapshot, error) {
	w.length = l.Length
	return 0, w.send(&tandemv1.FetchStateResponse{Message: &tandemv1.FetchStateResponse_Header{
		Header: &tandemv1.StateHeader{
			Contract: w.contract, Length: int32(l.Length), Pages: int32(l.Pages), FirstPage: int32(l.FirstPage),
			Identity: l.Identity, KvTypeK: l.KVTypeK, KvTypeV: l.KVTypeV,
			StateBytes: int64(l.StateBytes), PageBytes: int64(l.PageBytes), BlockBytes: int64(l.BlockBytes),
		},
	}}, 0)
}

// WriteSnapshot sends a part. A wrong checksum is that of a damaged file, which is deleted for it.
func (w *writer) WriteSnapshot(
	_ context.Context, _ engine.Snapshot, at engine.Part, data []byte, crc uint32,
) error {
	if crc32.Checksum(data, castagnoli) != crc {
		return rpcerr.DamagedState.With("data: the checksum of %d bytes is wrong", len(data))
	}
	return w.send(&tandemv1.FetchStateResponse{Message: &tandemv1.FetchStateResponse_Part{
		Part: &tandemv1.StatePart{Page: int32(at.Page), Offset: int64(at.Offset), Crc: crc, Data: data},
	}}, len(data))
}

// FinishSnapshot does nothing: rows of features follow.
func (w *writer) FinishSnapshot(context.Context, engine.Snapshot) error { return nil }

// FreeSnapshot does nothing.
func (w *writer) FreeSnapshot(context.Context, engine.Snapshot) error { return nil }

// rows sends rows of features.
func (w *writer) rows(r *disk.Rows) error {
	if r == nil {
		return nil
	}
	for i, data := range r.Pages {
		if err := w.send(&tandemv1.FetchStateResponse{Message: &tandemv1.FetchStateResponse_Rows{
			Rows: &tandemv1.StateRows{
				Kind: r.Kind, Width: int32(r.Width), Position: int32(r.First + i*page),
				Crc: crc32.Checksum(data, castagnoli), Data: data,
			},
		}}, len(data)); err != nil {
			return err
		}
	}
	return nil
}
