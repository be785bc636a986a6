package stagenet

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/bounds"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/procwatch"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

// Two stages that the head holds are linked by it: the later one is told a secret (AcceptRows), the earlier one secret
// and address (ForwardRows), with which it calls Rows of the later one. From then on the head sends both the
// descriptions of steps only, with the number under which the rows go from one to the other. Numbers ascend, on the
// link and in the steps, since both follow the order in which the head's steps pass the stages.
//
// Rows that have not been taken lie in slots. When all are full the link is not read, and the sender waits. A link that
// breaks loses the stage that misses its rows, and with it all stages: the head opens them again and replays.

// linkTimeout bounds how long a stage tries to reach the next one. A firewall may swallow what is sent.
const linkTimeout = time.Second

// who is role and name of a caller's certificate, or a server's; empty = there is none.
func who(ctx context.Context) (name string, trusted bool) {
	info, ok := identity.FromContext(ctx)
	if !ok || info.Trusted || info.Role == "" {
		return "", !ok || info.Trusted
	}
	return info.Identity.String(), false
}

// expect compares the other end of a connection with what the head said.
func expect(ctx context.Context, want string) error {
	if got, trusted := who(ctx); !trusted && got != want && want != "" {
		return rpcerr.FromCode(codes.PermissionDenied, fmt.Sprintf("the other end is %q, must be %q", got, want))
	}
	return nil
}

// ForwardRows implements border.Forwarder: the rows of steps go straight to next where that is a stage of this package
// that the stage can reach.
func (t *target) ForwardRows(ctx context.Context, next engine.Target) error {
	n, ok := next.(*target)
	if !ok {
		return errors.ErrUnsupported
	}
	err := t.linkTo(ctx, n)
	if err != nil && ctx.Err() == nil {
		t.cfg.Log.Warn("hidden rows pass this worker: the stage does not reach the next one",
			zap.String(telemetry.KeyAddress, t.cfg.Address), zap.String("next", n.cfg.Address),
			zap.NamedError(telemetry.KeyErr, err))
	}
	return err
}

func (t *target) linkTo(ctx context.Context, n *target) error {
	ctx, cancel := context.WithTimeout(ctx, 2*linkTimeout)
	defer cancel()
	secret := rand.Text()
	if _, err := n.client.AcceptRows(ctx, &tandemv1.AcceptRowsRequest{Secret: secret, Sender: t.name}); err != nil {
		return err
	}
	_, err := t.client.ForwardRows(ctx, &tandemv1.ForwardRowsRequest{Address: n.cfg.Address, Secret: secret,
		Receiver: n.name, Next: n.cfg.Want.toProto()})
	return err
}

// AcceptRows implements tandemv1.StageServiceServer.
func (s *Server) AcceptRows(ctx context.Context,
	req *tandemv1.AcceptRowsRequest) (*tandemv1.AcceptRowsResponse, error) {
	x, err := holding(ctx)
	if err != nil {
		return nil, err
	}
	if err := bounds.Check(req); err != nil {
		return nil, rpcerr.InvalidArgument("", "%v", err)
	}
	if req.Secret == "" {
		return nil, rpcerr.InvalidArgument("secret", "is empty")
	}
	x.opening.Lock()
	x.makeRoom(ctx, nil, nil)
	in := x.in
	x.opening.Unlock()
	if in == nil {
		return nil, rpcerr.FailedPrecondition("the stage has no engine that gets hidden rows")
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.linked {
		return nil, rpcerr.FailedPrecondition("rows of another stage come already")
	}
	in.secret, in.sender = req.Secret, req.Sender
	return &tandemv1.AcceptRowsResponse{}, nil
}

// Rows implements tandemv1.StageServiceServer.
func (s *Server) Rows(stream grpc.BidiStreamingServer[tandemv1.RowsRequest, tandemv1.RowsResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	x, err := s.admit(stream.Context(), first)
	if err != nil {
		return err
	}
	if err := stream.Send(&tandemv1.RowsResponse{Stage: s.cfg.Description.toProto()}); err != nil {
		x.in.end(err)
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- x.receive(stream) }() // ends with the stream, that is, soon after Rows returned
	select {
	case err := <-ended:
		if err != nil {
			x.cancel(rpcerr.EngineLost.With("rows of the stage before are wrong").WithCause(err))
		}
		return err
	case <-x.ctx.Done():
		return rpcerr.EngineLost.With("the stage is free")
	}
}

// admit returns the session that a sender of rows has the secret of, and marks it as linked.
func (s *Server) admit(ctx context.Context, m *tandemv1.RowsRequest) (*session, error) {
	d := &s.cfg.Description
	switch {
	case m.EngineVersion != engineVersion:
		return nil, rpcerr.ProtocolMismatch.With("the stage speaks version %d of the engine's protocol, the one before "+
			"version %d: run the same release on both", engineVersion, m.EngineVersion)
	case int(m.Stage) != d.Stage-1 || int(m.Stages) != d.Stages || int(m.NLayers) != d.Layers ||
		int(m.LayerLast) != d.First:
		return nil, rpcerr.ModelMismatch.With("this is stage %d/%d with layers from %d on of %d, the sender is %d/%d with "+
			"layers to %d of %d", d.Stage, d.Stages, d.First, d.Layers, m.Stage, m.Stages, m.LayerLast-1, m.NLayers)
	}
	s.mu.Lock()
	x := s.holder
	s.mu.Unlock()
	refused := rpcerr.FromCode(codes.PermissionDenied, "secret: is not the one that the head of the stage gave")
	if x == nil {
		return nil, refused
	}
	x.opening.Lock()
	in := x.in
	x.opening.Unlock()
	if in == nil {
		return nil, refused
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.secret == "" || subtle.ConstantTimeCompare([]byte(in.secret), []byte(m.Secret)) != 1 {
		return nil, refused
	}
	if err := expect(ctx, in.sender); err != nil {
		return nil, err
	}
	if in.linked {
		return nil, rpcerr.FailedPrecondition("rows of another stage come already")
	}
	in.linked = true
	return x, nil
}

// receive reads rows until they end. An error says that they do not keep to the rules.
func (x *session) receive(stream grpc.BidiStreamingServer[tandemv1.RowsRequest, tandemv1.RowsResponse]) error {
	in := x.in
	var m tandemv1.RowsRequest
	for {
		slot, err := in.pool.take(stream.Context())
		if err != nil {
			in.end(err)
			return nil
		}
		m.Number, m.Payload = 0, slot
		if err := stream.RecvMsg(&m); err != nil {
			in.pool.give(slot)
			in.end(err)
			return nil // the sender has ended, or is gone
		}
		if !same(m.Payload, slot) {
			err = rpcerr.InvalidArgument("payload", "has %d bytes, rows of a step have at most %d", len(m.Payload), cap(slot))
		} else {
			err = in.put(m.Number, m.Payload)
		}
		if err != nil {
			in.pool.give(slot)
			in.end(err)
			return err
		}
	}
}

// ForwardRows implements tandemv1.StageServiceServer.
func (s *Server) ForwardRows(ctx context.Context,
	req *tandemv1.ForwardRowsRequest) (*tandemv1.ForwardRowsResponse, error) {
	x, err := holding(ctx)
	if err != nil {
		return nil, err
	}
	if err := bounds.Check(req); err != nil {
		return nil, rpcerr.InvalidArgument("", "%v", err)
	}
	if s.cfg.Dial == nil {
		return nil, rpcerr.Unimplemented("the stage connects to nobody")
	}
	x.opening.Lock()
	defer x.opening.Unlock()
	x.makeRoom(ctx, nil, nil)
	if x.out == nil || x.link != nil || x.ctx.Err() != nil {
		return nil, rpcerr.FailedPrecondition("the stage has no engine that makes hidden rows, or has a link already")
	}
	link, err := x.connect(ctx, req)
	if err != nil {
		return nil, err
	}
	x.link = link
	return &tandemv1.ForwardRowsResponse{}, nil
}

// outgoing is the link to the next stage.
type outgoing struct {
	x       *session
	stream  grpc.BidiStreamingClient[tandemv1.RowsRequest, tandemv1.RowsResponse]
	turn    chan struct{} // of the one who sends
	parcels chan *parcel  // as many as slots
	late    *time.Timer
}

// parcel is rows on their way out of this process.
type parcel struct {
	message tandemv1.RowsRequest
	lent    tensorwire.Lent
	slot    []byte
}

// connect calls Rows of the next stage.
func (x *session) connect(ctx context.Context, req *tandemv1.ForwardRowsRequest) (_ *outgoing, err error) {
	conn, err := x.s.cfg.Dial(req.Address)
	if err != nil {
		return nil, rpcerr.InvalidArgument("address", "%v", err)
	}
	held, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	drop := func() {
		hangUp()
		_ = conn.Close() // it fails when it was closed before only
	}
	defer func() {
		if err != nil {
			drop()
		}
	}()
	late := time.AfterFunc(linkTimeout, hangUp)
	left := context.AfterFunc(ctx, hangUp)
	stream, err := x.call(held, conn, req)
	if err == nil && (!late.Stop() || !left()) {
		err = context.Canceled
	}
	late.Stop()
	left()
	if err != nil {
		if held.Err() != nil && ctx.Err() == nil {
			return nil, rpcerr.FromCode(codes.DeadlineExceeded, fmt.Sprintf("%s does not answer within %v", req.Address,
				linkTimeout))
		}
		return nil, err
	}
	o := &outgoing{x: x, stream: stream, turn: make(chan struct{}, 1), parcels: make(chan *parcel, cap(x.out.free)),
		late: time.AfterFunc(time.Hour, drop)}
	o.late.Stop()
	for range cap(o.parcels) {
		p := &parcel{}
		p.lent.Message = &p.message
		p.lent.Released = func() {
			slot := p.slot
			p.slot, p.message.Payload = nil, nil
			o.parcels <- p
			x.out.give(slot)
		}
		o.parcels <- p
	}
	x.watchers.Go(func() {
		_, err := stream.Recv() // there is no second answer
		if err == nil {
			err = rpcerr.Internal("the next stage has sent what it was not asked for")
		}
		x.cancel(rpcerr.EngineLost.With("the next stage at %s is gone", req.Address).WithCause(err))
		drop()
	})
	x.watchers.Go(func() {
		<-x.ctx.Done()
		drop()
	})
	return o, nil
}

// call opens the stream and checks who answers.
func (x *session) call(ctx context.Context, conn *grpc.ClientConn, req *tandemv1.ForwardRowsRequest) (
	grpc.BidiStreamingClient[tandemv1.RowsRequest, tandemv1.RowsResponse], error) {
	stream, err := tandemv1.NewStageServiceClient(conn).Rows(ctx)
	if err != nil {
		return nil, err
	}
	if err := expect(stream.Context(), req.Receiver); err != nil { // before the secret is told
		return nil, err
	}
	d := &x.s.cfg.Description
	// After an error of Send, Recv has the reason.
	_ = stream.Send(&tandemv1.RowsRequest{Secret: req.Secret, EngineVersion: engineVersion, Stage: int32(d.Stage),
		Stages: int32(d.Stages), NLayers: int32(d.Layers), LayerLast: int32(d.Last)})
	m, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if err := bounds.Check(m); err != nil {
		return nil, rpcerr.ProtocolMismatch.With("the next stage describes itself with %v", err)
	}
	want := described(req.Next)
	want.Version = d.Version
	return stream, want.differs(m.GetStage())
}

// send sends rows that lie in a slot, which is the link's from now on.
func (o *outgoing) send(number uint64, rows []byte) error {
	p := <-o.parcels
	p.message.Number, p.message.Payload, p.slot = number, rows, rows
	o.turn <- struct{}{}
	o.late.Reset(lateFactor * o.x.s.patience())
	err := o.stream.SendMsg(&p.lent)
	inTime := o.late.Stop()
	<-o.turn
	switch {
	case err == nil && inTime:
		return nil
	case !inTime:
		return rpcerr.EngineLost.With("the next stage takes no rows").WithCause(err)
	}
	return rpcerr.EngineLost.With("the next stage is gone").WithCause(err)
}

// forwards is the session's link, nil = there is none.
func (x *session) forwards() *outgoing {
	x.opening.Lock()
	defer x.opening.Unlock()
	return x.link
}

// patience is how long a peer may be silent.
func (s *Server) patience() time.Duration {
	if s.cfg.HangLimit <= 0 {
		return procwatch.DefaultLimit
	}
	return s.cfg.HangLimit
}
