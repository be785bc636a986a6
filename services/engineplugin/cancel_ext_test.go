package engineplugin_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engineplugin"
	"github.com/tandem-inference/tandem/services/engineplugin/enginefake"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

func oneRow(q engineplugin.Sequence) *engineplugin.Step {
	return &engineplugin.Step{
		Groups: []engineplugin.Group{{Sequence: q, Rows: 1}},
		Rows:   []engineplugin.Row{{Parent: -1, Mask: -1, Want: engineplugin.WantToken}},
	}
}

// noRows is a step that drops what is pending, of which there is nothing.
func noRows(q engineplugin.Sequence) *engineplugin.Step {
	return &engineplugin.Step{Groups: []engineplugin.Group{{Sequence: q}}}
}

// TestCancelRunningStep: a step that would take an hour ends when its context does, in process and behind a connection,
// and the engine serves on.
func TestCancelRunningStep(t *testing.T) {
	fake := func() *enginefake.Opener { return enginefake.New(enginefake.Options{StepDelay: time.Hour}) }
	for name, opener := range map[string]engineplugin.Opener{"in process": fake(), "connection": &wired{t, fake()}} {
		t.Run(name, func(t *testing.T) {
			e, err := opener.Open(t.Context(), targetOptions(), nil)
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
				err = e.Step(ctx, oneRow(q), &engineplugin.StepResult{})
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
			}
			// One context for many steps, cancelled during one of them.
			ctx, cancel := context.WithCancel(t.Context())
			for range 20 {
				if err := e.Step(ctx, noRows(q), &engineplugin.StepResult{}); err != nil {
					t.Fatal(err)
				}
			}
			time.AfterFunc(5*time.Millisecond, cancel)
			if err := e.Step(ctx, oneRow(q), &engineplugin.StepResult{}); !errors.Is(err, context.Canceled) {
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
	e, err := (&wired{t, enginefake.New(enginefake.Options{StepDelay: time.Hour})}).Open(t.Context(), targetOptions(), nil)
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
		if err := e.Step(busy, oneRow(q), &engineplugin.StepResult{}); rpcerr.Code(err) != codes.Canceled {
			t.Errorf("the running step: %v", err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := e.Step(ctx, oneRow(q), &engineplugin.StepResult{}); !errors.Is(err, context.DeadlineExceeded) {
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
	conn, stop := serve(t, engineplugin.NewServer(enginefake.New(enginefake.Options{StepDelay: time.Hour})))
	defer stop()
	client := enginev1.NewEngineServiceClient(conn)
	opening, err := client.Open(t.Context(), &enginev1.OpenRequest{Role: 1, ModelPath: "m", MaxSequences: 1, KvTypeK: -1, KvTypeV: -1})
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = opening.Recv()
	}
	q, err := client.CreateSequence(t.Context(), &enginev1.CreateSequenceRequest{})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := client.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A step without rows first, so that the stream is attached; request messages are the generated ones here.
	request := func(id uint64, sequence int32, kind enginev1.GroupKind, rows ...*enginev1.Row) *enginev1.RunRequest {
		group := &enginev1.Group{Sequence: sequence, Rows: int32(len(rows)), Kind: kind}
		return &enginev1.RunRequest{Id: id, Work: &enginev1.RunRequest_Step{Step: &enginev1.Step{Groups: []*enginev1.Group{group}, Rows: rows}}}
	}
	const decode = enginev1.GroupKind_GROUP_KIND_DECODE
	answer := func(m *enginev1.RunRequest) *enginev1.RunResponse {
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
	if r := answer(request(2, q.Sequence, decode, &enginev1.Row{Parent: -1, Mask: -1})); codes.Code(r.Failure.GetCode()) != codes.Canceled {
		t.Fatal(r)
	}
	if r := answer(request(3, q.Sequence, decode)); r.Failure != nil {
		t.Fatalf("the next request is cancelled as well: %v", r)
	}
	if r := answer(request(4, 99, decode, &enginev1.Row{Parent: -1, Mask: -1})); r.Failure.GetReason() != "NOT_FOUND" {
		t.Fatal(r)
	}
	if r := answer(request(5, q.Sequence, decode, &enginev1.Row{Token: -4, Parent: -1, Mask: -1})); r.Failure.GetField() != "groups[0].rows[0].token" {
		t.Fatal(r)
	}
	// A kind is never assumed.
	unstated := enginev1.GroupKind_GROUP_KIND_UNSPECIFIED
	if r := answer(request(5, q.Sequence, unstated, &enginev1.Row{Parent: -1, Mask: -1})); r.Failure.GetField() != "groups[0].kind" {
		t.Fatal(r)
	}
	// Other streams have requests of their own, so many and no more.
	var refused error
	for range 16 {
		again, err := client.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := again.Send(request(6, q.Sequence, decode)); err != nil && err != io.EOF { // EOF: it was refused before, and Recv knows why
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

// TestSubmitterServesInOrder: callers get their turn in the order in which they began to wait, those that give up get none.
func TestSubmitterServesInOrder(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		s := engineplugin.NewSubmitter()
		if err := s.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		const callers = 20
		impatient, giveUp := context.WithCancel(t.Context())
		var order, want []int // order is written by the caller whose turn it is
		for i := range callers {
			ctx := t.Context()
			if i%5 == 3 {
				ctx = impatient
			} else {
				want = append(want, i)
			}
			go func() {
				if err := s.Acquire(ctx); err != nil {
					return
				}
				order = append(order, i)
				s.Release()
			}()
			synctest.Wait() // it waits for its turn
		}
		giveUp()
		synctest.Wait()
		s.Release()
		synctest.Wait()
		if !slices.Equal(order, want) {
			t.Errorf("served in the order %v, want %v", order, want)
		}
	})
}

// TestSubmitterOfEndedContexts: a context that has ended takes no turn, free or not, and a turn allocates nothing.
func TestSubmitterOfEndedContexts(t *testing.T) {
	s := engineplugin.NewSubmitter()
	if err := s.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Acquire(ended); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	s.Release()
	if err := s.Acquire(ended); err == nil {
		t.Fatal("an ended context takes a free turn")
	}
	if n := testing.AllocsPerRun(100, func() {
		_ = s.Acquire(t.Context())
		s.Release()
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
