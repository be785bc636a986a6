package server

import (
	"context"
	"errors"
	"io"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
)

const (
	// readAhead messages of a stream are in memory: one in work, one that shows that the first is out of date, one to read
	// into.
	readAhead = 3
	// slotWait is how long a stream waits for a slot.
	slotWait = 250 * time.Millisecond
)

// arrival is a message with the time it came.
type arrival struct {
	message tandemv1.SpeculateRequest
	at      time.Time
}

// Speculate implements DraftService.
func (s *Server) Speculate(stream grpc.BidiStreamingServer[tandemv1.SpeculateRequest, tandemv1.SpeculateResponse]) (err error) {
	began := time.Now()
	var done streamed
	defer func() { s.logStream(stream.Context(), began, &done, err) }()
	if s.draining.Load() {
		done.refused = true
		return rpcerr.Draining
	}
	engine, keeper, release, err := s.use()
	if err != nil {
		done.refused = true
		return err
	}
	defer release()
	ctx := stream.Context()
	slots := s.places(engine)
	if err := takeSlot(ctx, slots); err != nil {
		return err
	}
	done.wait = time.Since(began)
	defer func() { <-slots }()
	sequence, err := engine.NewSequence(ctx)
	if err != nil {
		return err
	}
	// It happens although ctx is over by then, and is tried again should it fail: see engine.GuardedDraft.
	defer func() { _ = engine.FreeSequence(ctx, sequence) }()

	free := make(chan *arrival, readAhead)
	full := make(chan *arrival, readAhead)
	for range readAhead {
		free <- new(arrival)
	}
	ended := make(chan error, 1)
	s.readers.Go(func() { ended <- read(stream, free, full) })

	w := newWork(engine, sequence)
	w.trace = newTracing(ctx, s.cfg.Tracer)
	for {
		var a *arrival
		select {
		case a = <-full:
		case err := <-ended:
			// What was read before the end is of no use to anybody.
			if errors.Is(err, io.EOF) {
				return nil
			}
			return rpcerr.FromRPC(err)
		}
		reply, err := w.handle(ctx, &a.message, a.at, len(full) > 0)
		if err != nil {
			keeper.Report(engine, err)
			return err
		}
		s.count(w)
		if w.proposed && s.cfg.Measure != nil {
			s.cfg.Measure.Record(w.trace.ctx, (w.appended + w.forward).Seconds())
		}
		done.add(w)
		free <- a
		if reply {
			if err := stream.Send(&w.response); err != nil {
				return rpcerr.FromRPC(err)
			}
		}
	}
}

// streamed is what one stream brought.
type streamed struct {
	messages, proposals, skipped, nodes int
	wait, engine, appended              time.Duration
	// refused says that the worker takes no streams now, or that its engine is being opened: a target tries again.
	refused bool
}

func (d *streamed) add(w *work) {
	d.messages++
	d.engine += w.appended + w.forward
	d.appended += w.appended
	if w.skipped {
		d.skipped++
	}
	if w.proposed {
		d.proposals++
		d.nodes += w.tree.Nodes()
	}
}

// logStream writes the line of a stream that is over: at warn when it failed here, else at info. A parked engine is no
// failure.
func (s *Server) logStream(ctx context.Context, began time.Time, d *streamed, err error) {
	id := ""
	if v := metadata.ValueFromIncomingContext(ctx, telemetry.MetadataRequestID); len(v) > 0 {
		id = v[0]
	}
	level, outcome := zap.InfoLevel, "ok"
	switch {
	case ctx.Err() != nil || rpcerr.Code(err) == codes.Canceled:
		outcome = "cancelled" // how targets end streams
	case d.refused:
		outcome = "refused"
	case err != nil:
		level, outcome = zap.WarnLevel, "failed"
	}
	fields := []zap.Field{
		zap.String(telemetry.KeyRequestID, id), telemetry.TraceField(ctx), zap.String(telemetry.KeyOutcome, outcome),
		zap.Int(telemetry.KeyMessages, d.messages), zap.Int(telemetry.KeyProposals, d.proposals),
		zap.Int(telemetry.KeySkipped, d.skipped), zap.Int(telemetry.KeyNodes, d.nodes),
		zap.Int64(telemetry.KeyWaitMS, d.wait.Milliseconds()), zap.Int64(telemetry.KeyEngineMS, d.engine.Milliseconds()),
		zap.Int64(telemetry.KeyAppendMS, d.appended.Milliseconds()),
		zap.Int64(telemetry.KeyDurationMS, time.Since(began).Milliseconds()),
	}
	if level == zap.WarnLevel || d.refused {
		fields = append(fields, zap.NamedError(telemetry.KeyErr, err))
	}
	s.cfg.Log.Log(level, "request ended", fields...)
}

// places returns the slots of an engine: one that was opened again has its own. Streams of the engine before end with
// it.
func (s *Server) places(e engine.Draft) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slotsOf != e {
		s.slots, s.slotsOf = make(chan struct{}, e.Info().MaxSequences), e
	}
	return s.slots
}

// takeSlot takes a slot. A target that ends one request and starts the next may be here before its last stream has
// ended, so a short wait comes before the refusal.
func takeSlot(ctx context.Context, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(slotWait)
	defer timer.Stop()
	select {
	case slots <- struct{}{}:
		return nil
	case <-timer.C:
		return rpcerr.NoSlot.With("all %d slots of the draft are taken", cap(slots)).WithRetryAfter(time.Second)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// read reads the stream into free messages until its end. It ends with the stream, whose handler's return cancels it.
func read(stream grpc.BidiStreamingServer[tandemv1.SpeculateRequest, tandemv1.SpeculateResponse], free,
	full chan *arrival) error {
	ctx := stream.Context()
	for {
		var a *arrival
		select {
		case a = <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := stream.RecvMsg(&a.message); err != nil {
			return err
		}
		a.at = time.Now()
		full <- a // has room for all
	}
}
