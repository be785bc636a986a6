package generate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestFailover(t *testing.T) {
	text := "one two three four five six seven eight"
	gone := status.Error(codes.Unavailable, "engine is gone")
	broken := status.Error(codes.Internal, "device fault")
	for _, tt := range []struct {
		name      string
		token     int
		times     int32
		err       error
		attempts  int
		fails     bool
		committed int
	}{
		{"before the first token", 0, 1, gone, 2, false, 0},
		{"before the first token, three times", 0, 3, broken, 4, false, 0},
		{"before the first token, every time", 0, 99, broken, 6, true, 0},
		{"after some tokens", 5, 1, gone, 2, false, 5},
		{"after some tokens, device fault", 3, 1, broken, 2, false, 3},
		{"without progress", 4, 99, broken, 6, true, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, generate.Config{FailoverTimeout: 5 * time.Second})
			script := gatewaytest.DieAt(r.Tokenizer, text, tt.token, tt.times, tt.err)
			a := r.Target(gatewaytest.WorkerOptions{ID: "a", Decode: script})
			b := r.Target(gatewaytest.WorkerOptions{ID: "b", Decode: script})
			got := r.run(t.Context(), r.request())
			if (got.err != nil) != tt.fails {
				t.Fatal(got.err)
			}
			reqs := append(a.Requests(), b.Requests()...)
			if len(reqs) != tt.attempts {
				t.Fatalf("%d attempts, want %d", len(reqs), tt.attempts)
			}
			if tt.fails {
				if rpcerr.Reason(got.err) != reqerr.ReasonWorkerFailed {
					t.Errorf("error %v", got.err)
				}
				return
			}
			if got.texts[0] != text {
				t.Errorf("content %q, want %q", got.texts[0], text)
			}
			if len(a.Requests()) != tt.attempts/2 || len(b.Requests()) != tt.attempts/2 {
				t.Errorf("%d attempts on a, %d on b, want as many on each", len(a.Requests()), len(b.Requests()))
			}
			second := b.Requests()[0]
			if len(second.GetCommittedTokens()) != tt.committed || second.GetSampling().GetSeed() != 3 {
				t.Errorf("takeover with %d tokens, seed %d; want %d, 3", len(second.GetCommittedTokens()),
					second.GetSampling().GetSeed(), tt.committed)
			}
		})
	}
}

// TestStepsThatBreakWorkers: a request that brings its worker down some steps after each takeover ends before it has
// done so with many; failures far from each other are no reason to give up.
func TestStepsThatBreakWorkers(t *testing.T) {
	broken := status.Error(codes.Internal, "device fault")
	text := strings.Repeat("one two three four five six seven eight ", 20)
	for _, tt := range []struct {
		steps int
		fails bool
	}{{3, true}, {40, false}} {
		r := start(t, generate.Config{FailoverTimeout: 5 * time.Second})
		var asked atomic.Int32
		dies := func(req *tandemv1.DecodeRequest, stream tandemv1.TargetService_DecodeServer) error {
			asked.Add(1)
			return gatewaytest.DieAt(r.Tokenizer, text, len(req.GetCommittedTokens())+tt.steps, 1, broken)(req, stream)
		}
		for _, id := range []string{"a", "b", "c", "d", "e", "f"} { // one that failed is not asked again for a second
			r.Target(gatewaytest.WorkerOptions{ID: id, Decode: dies})
		}
		req := r.request()
		req.MaxTokens, req.MaxTokensGiven = 1000, true
		got := r.run(t.Context(), req)
		if (got.err != nil) != tt.fails {
			t.Fatalf("every %d tokens: %v", tt.steps, got.err)
		}
		if n := asked.Load(); tt.fails && n != 6 || !tt.fails && (n < 5 || got.texts[0] != text) {
			t.Errorf("every %d tokens: %d attempts, %q", tt.steps, n, got.texts[0])
		}
	}
}

// TestFailoverKeepsContract loses a worker amid an answer in pools of workers whose arithmetic is alike, unlike, or
// claimed to be alike until the request is admitted.
func TestFailoverKeepsContract(t *testing.T) {
	const text = "one two three four five six seven eight"
	gone := status.Error(codes.Unavailable, "engine is gone")
	for _, tt := range []struct {
		name     string
		second   string // registered contract of b
		admits   string // what b states when it admits a request
		any      bool
		token    int // the first worker to run fails before this token
		moved    bool
		contract string
		changes  int
	}{
		{"alike", "cpu", "cpu", false, 5, true, "cpu", 0},
		{"alike, others allowed", "cpu", "cpu", true, 5, true, "cpu", 0},
		{"unlike", "gpu", "gpu", false, 5, false, "", 0},
		{"unlike, allowed", "gpu", "gpu", true, 5, true, "gpu", 1},
		{"unlike, nothing generated yet", "gpu", "gpu", false, 0, true, "gpu", 0},
		{"states another one than it registered", "cpu", "gpu", false, 5, false, "", 0},
		{"states another one than it registered, allowed", "cpu", "gpu", true, 5, true, "gpu", 1},
		{"states none", "", "", false, 5, false, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := generate.Config{FailoverTimeout: 5 * time.Second, FailoverAny: tt.any}
			if !tt.moved {
				cfg.FailoverTimeout = 50 * time.Millisecond // over long before the failed worker is asked again
			}
			r := start(t, cfg)
			// The first worker asked is the one that fails, and it has the id "cpu" (the lowest worker id comes first).
			script := gatewaytest.DieAt(r.Tokenizer, text, tt.token, 1, gone)
			a := r.Target(gatewaytest.WorkerOptions{ID: "a", Slots: 1, Contract: "cpu", Decode: script})
			b := r.Target(gatewaytest.WorkerOptions{ID: "b", Slots: 1, Contract: tt.second, Decode: say(r, text, 1)})
			b.SetContract(tt.admits)
			got := r.run(t.Context(), r.request())
			if len(a.Requests()) == 0 {
				t.Fatal("the first worker was not asked")
			}
			if counted := strings.Contains(r.Page(), "tandem_contract_changes_total 1"); counted != (tt.changes > 0) {
				t.Errorf("counted: %v, changes %v", counted, tt.changes)
			}
			if !tt.moved {
				if rpcerr.Reason(got.err) != reqerr.ReasonWorkerFailed {
					t.Errorf("error %v", got.err)
				}
				for _, q := range b.Requests() {
					if tt.second != "cpu" && len(q.GetCommittedTokens()) > 0 {
						t.Errorf("asked to go on after %d tokens", len(q.GetCommittedTokens()))
					}
				}
				return
			}
			if got.err != nil || got.texts[0] != text {
				t.Fatalf("%q, %v", got.texts, got.err)
			}
			id, changes := strings.Join(got.usage.Contracts, ","), got.usage.ContractChanges
			if id != tt.contract || changes != tt.changes {
				t.Errorf("contracts %q, %d changes, want %q, %d", id, changes, tt.contract, tt.changes)
			}
		})
	}
}

// TestLeaveBetweenTries: a request that is left while it waits for a worker to take over ends at once, gives its place
// back, and no worker is asked for it.
func TestLeaveBetweenTries(t *testing.T) {
	const text = "one two three four five six seven eight"
	for _, cause := range []error{context.Canceled, errors.New("deadline of the request")} {
		r := start(t, generate.Config{FailoverTimeout: 10 * testwait.Limit})
		fail := make(chan struct{})
		script := gatewaytest.DieAt(r.Tokenizer, text, 5, 1, status.Error(codes.Unavailable, "engine is gone"))
		a := r.Target(gatewaytest.WorkerOptions{ID: "a", Contract: "cpu",
			Decode: func(req *tandemv1.DecodeRequest, stream tandemv1.TargetService_DecodeServer) error {
				<-fail
				return script(req, stream)
			}})
		ctx, leave := context.WithCancelCause(t.Context())
		done := r.send(ctx, r.request())
		testwait.Until(t, "the first worker is asked", func() bool { return len(a.Requests()) == 1 })
		// The pool is not empty, but the other may not take over.
		b := r.Target(gatewaytest.WorkerOptions{ID: "b", Contract: "gpu", Decode: say(r, text, 1)})
		a.Leave()
		close(fail)
		testwait.Until(t, "the request waits for another worker", func() bool {
			return strings.Contains(r.Page(), "tandem_retries_total 1")
		})
		leave(cause)
		if got := testwait.For(t, done, "end of the request"); got.err == nil {
			t.Errorf("%v: the request has an answer: %q", cause, got.texts)
		}
		// Nobody is left who waits for such a worker.
		again := r.Target(gatewaytest.WorkerOptions{ID: "c", Contract: "cpu", Decode: say(r, text, 1)})
		if got := r.run(t.Context(), r.request()); got.err != nil || got.texts[0] != text {
			t.Errorf("%v: the next request: %q, %v", cause, got.texts, got.err)
		}
		if n := len(b.Requests()) + len(again.Requests()); n != 1 || r.Cluster.Targets.Queued() != 0 {
			t.Errorf("%v: %d requests after it was left, %d in the queue", cause, n, r.Cluster.Targets.Queued())
		}
	}
}

// TestLeaseLost: a worker that loses its lease keeps its streams while it serves them, and loses them when it is
// silent, though its connection stays.
func TestLeaseLost(t *testing.T) {
	text := strings.Repeat("alpha beta gamma delta epsilon ", 2)
	for _, silent := range []bool{true, false} {
		t.Run(fmt.Sprintf("silent %v", silent), func(t *testing.T) {
			r := start(t, generate.Config{FailoverTimeout: 30 * time.Second})
			b := gatewaytest.NewBlock()
			first := b.Script(r.Tokenizer, text)
			if !silent {
				first = slow(r, b, text)
			}
			a := r.Target(gatewaytest.WorkerOptions{ID: "a", Decode: first})
			done := r.send(t.Context(), r.request())
			testwait.For(t, b.Admitted, "stream runs")
			other := r.Target(gatewaytest.WorkerOptions{ID: "b", Decode: say(r, text, 2)})
			a.Leave()
			if silent {
				testwait.For(t, b.Cancelled, "cancel at the silent worker")
			}
			if got := testwait.For(t, done, "end of the stream"); got.err != nil || got.texts[0] != text {
				t.Errorf("%q, %v, want %q", got.texts, got.err, text)
			}
			if n := len(other.Requests()); (n == 1) != silent {
				t.Errorf("the other worker got %d requests", n)
			}
		})
	}
}

// slow is a script that takes twice the grace of a lost lease in all, and is silent for a tenth of it at a time: a busy
// machine may make it late, but not by the rest.
func slow(r *generation, b *gatewaytest.Block, text string) gatewaytest.Decode {
	return func(req *tandemv1.DecodeRequest, stream tandemv1.TargetService_DecodeServer) error {
		return say(r, text, 1)(req, &slowStream{stream, b, 0})
	}
}

type slowStream struct {
	tandemv1.TargetService_DecodeServer
	b    *gatewaytest.Block
	sent int // Committed messages
}

// Send implements the stream.
func (s *slowStream) Send(m *tandemv1.DecodeResponse) error {
	if m.GetCommitted() != nil {
		if s.sent++; s.sent == 2 {
			s.b.Admitted <- struct{}{}
		}
	}
	if s.sent > 1 {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-s.Context().Done():
			s.b.Cancelled <- struct{}{}
			return s.Context().Err()
		}
	}
	return s.TargetService_DecodeServer.Send(m)
}

func TestChoicesShareOneSlot(t *testing.T) {
	r := start(t, generate.Config{})
	r.Target(gatewaytest.WorkerOptions{Slots: 1, Decode: say(r, "same", 1)})
	req := r.request()
	req.N = 3
	if got := r.run(t.Context(), req); got.err != nil || strings.Join(got.texts, ",") != "same,same,same" {
		t.Errorf("%q, %v", got.texts, got.err)
	}
}

func TestBusyWorkersShareRequests(t *testing.T) {
	r := start(t, generate.Config{})
	blocks := []*gatewaytest.Block{gatewaytest.NewBlock(), gatewaytest.NewBlock()}
	var ws []*gatewaytest.Worker
	for i, b := range blocks {
		script := b.Script(r.Tokenizer, "one two")
		ws = append(ws, r.Target(gatewaytest.WorkerOptions{ID: fmt.Sprint("w", i), Slots: 2, Decode: script}))
	}
	var running []<-chan outcome
	for range 4 {
		running = append(running, r.send(t.Context(), r.request()))
	}
	for i, b := range blocks {
		for range 2 {
			testwait.For(t, b.Admitted, "admission")
		}
		if n := len(ws[i].Requests()); n != 2 {
			t.Errorf("worker %d got %d requests, want 2", i, n)
		}
	}
	for _, b := range blocks {
		close(b.Release)
	}
	for _, done := range running {
		if got := testwait.For(t, done, "end of a request"); got.err != nil {
			t.Error(got.err)
		}
	}
}

func TestNoSlotIsRetried(t *testing.T) {
	r := start(t, generate.Config{FailoverTimeout: 30 * time.Second})
	var calls atomic.Int32
	fine := say(r, "fine", 1)
	r.Target(gatewaytest.WorkerOptions{
		Decode: func(req *tandemv1.DecodeRequest, s tandemv1.TargetService_DecodeServer) error {
			if calls.Add(1) < 4 {
				return status.Error(codes.ResourceExhausted, "no slot")
			}
			return fine(req, s)
		},
	})
	if got := r.run(t.Context(), r.request()); got.err != nil || got.texts[0] != "fine" {
		t.Errorf("%q, %v", got.texts, got.err)
	}
}

func TestWorkerRefusalIsTheClientsError(t *testing.T) {
	r := start(t, generate.Config{})
	r.Target(gatewaytest.WorkerOptions{
		Decode: func(*tandemv1.DecodeRequest, tandemv1.TargetService_DecodeServer) error {
			return status.Error(codes.InvalidArgument, "prompt_tokens: bad")
		},
	})
	got := r.run(t.Context(), r.request())
	var e *rpcerr.Error
	if !errors.As(got.err, &e) || e.Reason() != reqerr.ReasonInvalid || e.Message() != "prompt_tokens: bad" {
		t.Error(got.err)
	}
}
