package host_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
)

// noRows is a step that drops what is pending, of which there is nothing.
func noRows(q engine.Sequence) *engine.Step {
	return &engine.Step{Groups: []engine.Group{{Sequence: q}}}
}

// TestCancelRunningStep: a step that would take an hour ends when its context does, in process and behind a connection,
// and the engine serves on.
func TestCancelRunningStep(t *testing.T) {
	fake := func() *enginefake.Opener { return enginefake.New(enginefake.Options{StepDelay: time.Hour}) }
	for name, opener := range map[string]engine.Opener{"in process": fake(), "connection": &wired{t, fake()}} {
		t.Run(name, func(t *testing.T) {
			e, err := opener.OpenTarget(t.Context(), enginetest.TargetOptions(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			q, err := e.NewSequence(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for range 5 {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
				err = e.Step(ctx, enginetest.OneRow(q), &engine.StepResult{})
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
			}
			// One context for many steps, cancelled during one of them.
			ctx, cancel := context.WithCancel(t.Context())
			for range 20 {
				if err := e.Step(ctx, noRows(q), &engine.StepResult{}); err != nil {
					t.Fatal(err)
				}
			}
			time.AfterFunc(5*time.Millisecond, cancel)
			if err := e.Step(ctx, enginetest.OneRow(q), &engine.StepResult{}); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if n, err := e.SequenceLength(t.Context(), q); n != 0 || err != nil {
				t.Fatal(n, err)
			}
		})
	}
}

// TestWaitingCallerGivesUp: the turn is somebody else's, for an hour.
func TestWaitingCallerGivesUp(t *testing.T) {
	e, err := (&wired{t, enginefake.New(enginefake.Options{StepDelay: time.Hour})}).OpenTarget(t.Context(),
		enginetest.TargetOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	q, err := e.NewSequence(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	busy, free := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		if err := e.Step(busy, enginetest.OneRow(q), &engine.StepResult{}); rpcerr.Code(err) != codes.Canceled {
			t.Errorf("the running step: %v", err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := e.Step(ctx, enginetest.OneRow(q), &engine.StepResult{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the waiting step: %v", err)
	}
	if _, err := e.Stats(t.Context()); err != nil { // never waits
		t.Error(err)
	}
	free()
	wg.Wait()
}

// TestInterruptOvertakesRequest: the unary call may arrive before the request on the stream.
func TestInterruptOvertakesRequest(t *testing.T) {
	conn, stop := serve(t, host.NewServer(enginefake.New(enginefake.Options{StepDelay: time.Hour})))
	defer stop()
	client := enginev1.NewEngineServiceClient(conn)
	opening, err := client.Open(t.Context(), &enginev1.OpenRequest{Role: 1, ModelPath: "m", MaxSequences: 1, KvTypeK: -1,
		KvTypeV: -1})
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = opening.Recv()
	}
	sequences := enginev1.NewSequenceServiceClient(conn)
	q, err := sequences.CreateSequence(t.Context(), &enginev1.CreateSequenceRequest{})
	if err != nil {
		t.Fatal(err)
	}
	target := enginev1.NewTargetServiceClient(conn)
	stream, err := target.Step(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A step without rows first, so that the stream is attached; request messages are the generated ones here.
	request := func(id uint64, sequence int32, kind enginev1.GroupKind, rows ...*enginev1.Row) *enginev1.StepRequest {
		group := &enginev1.Group{Sequence: sequence, Rows: int32(len(rows)), Kind: kind}
		return &enginev1.StepRequest{Id: id, Groups: []*enginev1.Group{group}, Rows: rows,
			Hidden: enginev1.HiddenEncoding_HIDDEN_ENCODING_F32}
	}
	const decode = enginev1.GroupKind_GROUP_KIND_DECODE
	answer := func(m *enginev1.StepRequest) *enginev1.StepResponse {
		t.Helper()
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := answer(request(1, q.Sequence, decode)); r.Failure != nil {
		t.Fatal(r)
	}
	if _, err := client.Interrupt(t.Context(), &enginev1.InterruptRequest{Id: 2}); err != nil {
		t.Fatal(err)
	}
	plain := &enginev1.Row{Parent: -1, Mask: -1}
	if r := answer(request(2, q.Sequence, decode, plain)); codes.Code(r.Failure.GetCode()) != codes.Canceled {
		t.Fatal(r)
	}
	if r := answer(request(3, q.Sequence, decode)); r.Failure != nil {
		t.Fatalf("the next request is cancelled as well: %v", r)
	}
	if r := answer(request(4, 99, decode, &enginev1.Row{Parent: -1, Mask: -1})); r.Failure.GetReason() != "NOT_FOUND" {
		t.Fatal(r)
	}
	wrong := &enginev1.Row{Token: -4, Parent: -1, Mask: -1}
	if r := answer(request(5, q.Sequence, decode, wrong)); r.Failure.GetField() != "groups[0].rows[0].token" {
		t.Fatal(r)
	}
	// A kind is never assumed.
	unstated := enginev1.GroupKind_GROUP_KIND_UNSPECIFIED
	if r := answer(request(5, q.Sequence, unstated, plain)); r.Failure.GetField() != "groups[0].kind" {
		t.Fatal(r)
	}
	// Other streams have requests of their own, so many and no more.
	var refused error
	for range 16 {
		again, err := target.Step(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// EOF: it was refused before, and Recv knows why
		if err := again.Send(request(6, q.Sequence, decode)); err != nil && err != io.EOF {
			t.Fatal(err)
		}
		if _, refused = again.Recv(); refused != nil {
			break
		}
	}
	if rpcerr.Code(refused) != codes.FailedPrecondition {
		t.Errorf("streams without end: %v", refused)
	}
}

// TestServerFreesForCancelledCalls: a client that cancels a call which makes a handle leaves none behind, though it
// does not wait for the answer.
func TestServerFreesForCancelledCalls(t *testing.T) {
	awaits := enginetest.Awaits{Hold: testwait.Limit} // what is cancelled after its answer is for guards
	fake := enginefake.New(enginefake.Options{})
	conn, stop := serve(t, host.NewServer(awaits.Wrap(fake, "engine")))
	defer stop()
	client := enginev1.NewEngineServiceClient(conn)
	opening, err := client.Open(t.Context(), &enginev1.OpenRequest{Role: 1, ModelPath: "m", MaxSequences: 2, KvTypeK: -1,
		KvTypeV: -1})
	for err == nil {
		_, err = opening.Recv()
	}
	sequences := enginev1.NewSequenceServiceClient(conn)
	q, err := sequences.CreateSequence(t.Context(), &enginev1.CreateSequenceRequest{})
	if err != nil {
		t.Fatal(err)
	}
	cancelled := func(call func(ctx context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		awaits.Arm(2, cancel) // when the call in the engine has ended
		if err := call(ctx); rpcerr.Code(err) != codes.Canceled {
			t.Fatal(err)
		}
		want := engine.Handles{Sequences: []engine.Sequence{engine.Sequence(q.Sequence)}}
		testwait.Until(t, "the handle is freed", func() bool {
			h, err := fake.Opened()[0].Handles(t.Context())
			return err == nil && slices.Equal(h.Sequences, want.Sequences) && len(h.Snapshots) == 0
		})
	}
	for range 5 {
		cancelled(func(ctx context.Context) error {
			_, err := sequences.CreateSequence(ctx, &enginev1.CreateSequenceRequest{})
			return err
		})
		cancelled(func(ctx context.Context) error {
			_, err := sequences.ForkSequence(ctx, &enginev1.ForkSequenceRequest{Sequence: q.Sequence})
			return err
		})
		cancelled(func(ctx context.Context) error {
			_, err := sequences.CreateSnapshot(ctx, &enginev1.CreateSnapshotRequest{Sequence: q.Sequence})
			return err
		})
	}
}
