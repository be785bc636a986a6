package host

import (
	"context"
	"sync"
	"sync/atomic"
	"unsafe"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/border"
	"github.com/tandem-inference/tandem/services/engine/wire"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

// sharedRows are the regions of an engine's hidden rows, as its process has mapped them; nil = there is none.
type sharedRows struct {
	in, out *border.Region
	use     sync.RWMutex // held shared by steps, and alone to unmap
}

func (s *sharedRows) close() {
	if s != nil {
		s.use.Lock()
		defer s.use.Unlock()
		s.in.Close()
		s.out.Close()
		s.in, s.out = nil, nil
	}
}

// ShareRows implements enginev1.TargetServiceServer.
func (s *Server) ShareRows(ctx context.Context, req *enginev1.ShareRowsRequest) (*enginev1.ShareRowsResponse, error) {
	e, err := as[engine.Target](s)
	if err != nil {
		return nil, err
	}
	i := e.Info()
	switch {
	case req.InName != "" && i.LayerFirst == 0:
		return nil, rpcerr.InvalidArgument("in_name", "the engine begins with layer 0 and gets no hidden rows")
	case req.OutName != "" && i.LayerLast == i.Layers:
		return nil, rpcerr.InvalidArgument("out_name", "the engine has the last layer and makes no hidden rows")
	}
	var rows sharedRows
	for _, r := range []struct {
		field, name string
		bytes       uint64
		region      **border.Region
	}{{"in_name", req.InName, req.InBytes, &rows.in}, {"out_name", req.OutName, req.OutBytes, &rows.out}} {
		if r.name == "" {
			continue
		}
		if *r.region, err = border.Open(r.name, int(min(r.bytes, 1<<40))); err != nil {
			rows.close()
			return nil, rpcerr.FailedPrecondition("%s: %v", r.field, err)
		}
	}
	if !s.shared.CompareAndSwap(nil, &rows) {
		rows.close()
		return nil, rpcerr.FailedPrecondition("rows are shared already")
	}
	if next, ok := e.(border.Sharer); ok { // the engine is in a process of its own, which may see them as well
		_ = next.ShareRows(ctx, rows.in, rows.out) // without: they are sent to it
	}
	return &enginev1.ShareRowsResponse{}, nil
}

// step runs a step whose hidden rows may lie in shared memory, and returns how many bytes of the result do. The memory
// of step and result, which is used again, stays their own.
func (s *sharedRows) step(ctx context.Context, e engine.Target, req *wire.StepRequest, step *engine.Step,
	result *engine.StepResult) (uint64, error) {
	if s == nil {
		s = &sharedRows{}
	}
	s.use.RLock()
	defer s.use.RUnlock()
	var in, room []byte
	if r := req.SharedIn; r.At != 0 {
		var ok bool
		if in, ok = s.in.At(r.At, r.Bytes); !ok {
			return 0, rpcerr.InvalidArgument("shared_in", "no shared memory has %d bytes at %d", r.Bytes, r.At)
		}
	}
	if r := req.SharedOut; r.At != 0 {
		var ok bool
		if room, ok = s.out.At(r.At, r.Bytes); !ok {
			return 0, rpcerr.InvalidArgument("shared_out", "no shared memory has %d bytes at %d", r.Bytes, r.At)
		}
	}
	ownIn, ownOut := step.HiddenIn, result.HiddenOut
	if in != nil {
		step.HiddenIn = in
	}
	if room != nil {
		result.HiddenOut = room[:0]
	}
	err := e.Step(ctx, step, result)
	step.HiddenIn = ownIn
	if room == nil || unsafe.SliceData(result.HiddenOut) != unsafe.SliceData(room) {
		return 0, err // what does not fit goes with the answer
	}
	n := uint64(len(result.HiddenOut))
	result.HiddenOut = ownOut[:0]
	return n, err
}

// Roomer is an engine with memory of its own for hidden rows that come and go with messages: they are read to where the
// engine's process sees them, and sent from there. It may also be linked with others (engine.Step.RowsFrom).
type Roomer interface {
	// Room returns memory for one stream of steps, nil = the stream's own. free gives it back. It is called when steps
	// run, that is, after ShareRows.
	Room() (in, out []byte, free func())
}

// room is the memory of a Roomer for a stream.
type room struct {
	*wire.StepResponse // what it answers with
	taken              bool
	in                 []byte
	free               func()
	// uses by the stream, and by each answer that is encoded and not written yet: the memory is given back after those.
	uses atomic.Int64
}

// newRoom returns the room of a stream and what to answer with in place of resp.
func newRoom(resp *wire.StepResponse) (*room, *tensorwire.Lent) {
	r := &room{StepResponse: resp, free: func() {}}
	r.uses.Store(1)
	return r, &tensorwire.Lent{Message: r, Released: r.done}
}

// take has the first step put its result into the engine's memory.
func (r *room) take(e engine.Target, result *engine.StepResult) {
	owner, ok := e.(Roomer)
	if r.taken || !ok {
		return
	}
	var out []byte
	r.in, out, r.free = owner.Room()
	if r.taken = true; out != nil {
		result.HiddenOut = out
	}
}

// next has requests after the first read to the engine's memory.
func (r *room) next(step *engine.Step) {
	if r.in != nil {
		step.HiddenIn, r.in = r.in, nil
	}
}

// done ends a use.
func (r *room) done() {
	if r.uses.Add(-1) == 0 {
		r.free()
	}
}

// Append implements tensorwire.Message.
func (r *room) Append(b []byte, p *tensorwire.Parts) []byte {
	r.uses.Add(1)
	return r.StepResponse.Append(b, p)
}

// ShareRows implements border.Sharer. No step runs yet.
func (c *targetCalls) ShareRows(ctx context.Context, in, out *border.Region) error {
	req := &enginev1.ShareRowsRequest{}
	name := func(r *border.Region) (string, uint64) {
		if r == nil {
			return "", 0
		}
		name, bytes := r.Name()
		return name, uint64(bytes)
	}
	req.InName, req.InBytes = name(in)
	req.OutName, req.OutBytes = name(out)
	if _, err := c.client.ShareRows(ctx, req); err != nil {
		return c.r.translate(err)
	}
	c.in, c.out = in, out
	return nil
}

// share takes hidden rows that lie in shared memory out of a request and returns what puts them back.
func (c *targetCalls) share(req *wire.StepRequest, step *engine.Step, result *engine.StepResult) []byte {
	req.SharedIn, req.SharedOut = wire.Shared{}, wire.Shared{}
	in := step.HiddenIn
	if at, ok := c.in.Place(in); ok {
		req.SharedIn = wire.Shared{At: at, Bytes: uint64(len(in))}
		step.HiddenIn = nil
	}
	if at, ok := c.out.Place(result.HiddenOut); ok {
		req.SharedOut = wire.Shared{At: at, Bytes: uint64(cap(result.HiddenOut))}
	}
	return in
}

// shared puts hidden rows of a result in place that lie in shared memory.
func (c *targetCalls) shared(resp *wire.StepResponse, result *engine.StepResult) error {
	if n := resp.SharedBytes; n > 0 {
		if _, ok := c.out.Place(result.HiddenOut); !ok || n > uint64(cap(result.HiddenOut)) {
			return rpcerr.Internal("the engine made %d bytes of hidden rows in shared memory that were not wanted there", n)
		}
		result.HiddenOut = result.HiddenOut[:n]
	}
	return nil
}
