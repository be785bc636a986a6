package host

import (
	"context"
	"unsafe"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/border"
	"github.com/tandem-inference/tandem/services/engine/wire"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// sharedRows are the regions of an engine's hidden rows, as its process has mapped them; nil = there is none.
type sharedRows struct {
	in, out *border.Region
}

func (s *sharedRows) close() {
	if s != nil {
		s.in.Close()
		s.out.Close()
	}
}

// ShareRows implements enginev1.TargetServiceServer.
func (s *Server) ShareRows(_ context.Context, req *enginev1.ShareRowsRequest) (*enginev1.ShareRowsResponse, error) {
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
	return &enginev1.ShareRowsResponse{}, nil
}

// step runs a step whose hidden rows may lie in shared memory, and returns how many bytes of the result do. The memory
// of step and result, which is used again, stays their own.
func (s *sharedRows) step(ctx context.Context, e engine.Target, req *wire.StepRequest, step *engine.Step,
	result *engine.StepResult) (uint64, error) {
	if s == nil {
		s = &sharedRows{}
	}
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
