package app

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// block is a script that admits, then waits for its context to end (or for release), and tells when each happens.
type block struct {
	admitted, cancelled chan struct{}
	release             chan struct{}
}

func newBlock() *block {
	return &block{admitted: make(chan struct{}, 100), cancelled: make(chan struct{}, 100), release: make(chan struct{})}
}

func (b *block) script(r *rig, text string) gatewaytest.Decode {
	s := gatewaytest.Script{Tokens: r.encode(text), Stop: r.tok.StopTokens()[0]}
	s.Before = func(i int, stream tandemv1.TargetService_DecodeServer) error {
		if i != 1 {
			return nil
		}
		b.admitted <- struct{}{}
		select {
		case <-stream.Context().Done():
			b.cancelled <- struct{}{}
			return stream.Context().Err()
		case <-b.release:
			return nil
		}
	}
	return s.Run
}

// send starts a request that the caller can abandon.
func (r *rig) send(ctx context.Context, body string) <-chan answer {
	out := make(chan answer, 1)
	go func() {
		req, _ := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/chat/completions", strings.NewReader(body))
		resp, err := r.client.Do(req)
		if err != nil {
			out <- answer{body: []byte(err.Error())}
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		out <- answer{resp.StatusCode, resp.Header, b}
	}()
	return out
}

func receive[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("never happened: %s", what)
		panic("unreachable")
	}
}

func TestCancelReachesWorker(t *testing.T) {
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream %v", stream), func(t *testing.T) {
			r := start(t, nil)
			b := newBlock()
			w := r.target(gatewaytest.WorkerOptions{Lanes: 1, Decode: b.script(r, "one two three")})
			ctx, cancel := context.WithCancel(t.Context())
			done := r.send(ctx, chatBody(fmt.Sprintf(`"stream":%v`, stream)))
			receive(t, b.admitted, "admission")
			cancel()
			receive(t, b.cancelled, "cancel at the worker")
			receive(t, done, "end of the request")
			w.SetDecode(r.reply("again", 1))
			if a := r.post("/v1/chat/completions", chatBody("")); a.status != 200 {
				t.Errorf("lane was not freed: %d %s", a.status, a.body)
			}
		})
	}
}

func TestQueue(t *testing.T) {
	r := start(t, func(c *Config) { c.MaxQueue = 1 })
	b := newBlock()
	w := r.target(gatewaytest.WorkerOptions{Lanes: 1, Decode: b.script(r, "one two")})
	first := r.send(t.Context(), chatBody(""))
	receive(t, b.admitted, "first request runs")
	ctx, leave := context.WithCancel(t.Context())
	second := r.send(ctx, chatBody(""))
	r.eventually("second request waits", func() bool { return r.app.cluster.Targets.Queued() == 1 })
	a := r.post("/v1/chat/completions", chatBody(""))
	if a.status != 429 || a.header.Get("Retry-After") == "" || at(a.json(t), "error", "code") != "queue_full" || at(a.json(t), "error", "type") != "rate_limit_error" {
		t.Errorf("third request: %d %v %s", a.status, a.header, a.body)
	}
	leave()
	receive(t, second, "second request left")
	r.eventually("queue is empty again", func() bool { return r.app.cluster.Targets.Queued() == 0 })
	third := r.send(t.Context(), chatBody(""))
	r.eventually("third request waits", func() bool { return r.app.cluster.Targets.Queued() == 1 })
	close(b.release)
	if a := receive(t, first, "first answer"); a.status != 200 {
		t.Errorf("first: %d %s", a.status, a.body)
	}
	if a := receive(t, third, "third answer"); a.status != 200 {
		t.Errorf("third: %d %s", a.status, a.body)
	}
	if n := len(w.Requests()); n != 2 {
		t.Errorf("the worker saw %d requests, want 2: the one that left was queued", n)
	}
}

func TestQueueTimeout(t *testing.T) {
	r := start(t, func(c *Config) { c.QueueTimeoutS = 0.05 })
	b := newBlock()
	r.target(gatewaytest.WorkerOptions{Lanes: 1, Decode: b.script(r, "one two")})
	first := r.send(t.Context(), chatBody(""))
	receive(t, b.admitted, "first request runs")
	a := r.post("/v1/chat/completions", chatBody(`"stream":true`))
	if a.status != 503 || at(a.json(t), "error", "code") != "queue_timeout" || a.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", a.status, a.body)
	}
	close(b.release)
	receive(t, first, "first answer")
}

func TestNoWorker(t *testing.T) {
	r := start(t, nil)
	a := r.post("/v1/chat/completions", chatBody(""))
	if a.status != 503 || at(a.json(t), "error", "code") != "no_worker" {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := r.do("GET", "/health", ""); a.status != 503 || at(a.json(t), "status") != "unavailable" {
		t.Errorf("health: %d %s", a.status, a.body)
	}
}

func TestChoicesShareOneLane(t *testing.T) {
	r := start(t, nil)
	r.target(gatewaytest.WorkerOptions{Lanes: 1, Decode: r.reply("same", 1)})
	a := r.post("/v1/chat/completions", chatBody(`"n":3`))
	if c := wholeChat(t, a); len(c) != 3 || c[2].Content != "same" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// dieAt is a script that breaks once before token n and works afterwards.
func dieAt(r *rig, text string, n int, times int32, err error) gatewaytest.Decode {
	var died atomic.Int32
	return gatewaytest.Script{Tokens: r.encode(text), Stop: r.tok.StopTokens()[0], Before: func(i int, _ tandemv1.TargetService_DecodeServer) error {
		if i == n && died.Add(1) <= times {
			return err
		}
		return nil
	}}.Run
}

func TestFailover(t *testing.T) {
	text := "one two three four five six seven eight"
	gone := status.Error(codes.Unavailable, "engine is gone")
	broken := status.Error(codes.Internal, "device fault")
	tests := []struct {
		name      string
		token     int
		times     int32
		err       error
		status    int
		committed int
	}{
		{"before the first token", 0, 1, gone, 200, 0},
		{"before the first token, twice", 0, 2, broken, 500, 0},
		{"after some tokens", 5, 1, gone, 200, 5},
		{"after some tokens, device fault", 3, 1, broken, 200, 3},
		{"without progress", 4, 99, broken, 500, 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, func(c *Config) { c.FailoverTimeoutS = 5 })
			script := dieAt(r, text, tt.token, tt.times, tt.err)
			a := r.target(gatewaytest.WorkerOptions{ID: "a", Decode: script})
			b := r.target(gatewaytest.WorkerOptions{ID: "b", Decode: script})
			got := r.post("/v1/chat/completions", chatBody(`"seed":3`))
			if got.status != tt.status {
				t.Fatalf("status %d: %s", got.status, got.body)
			}
			reqs := append(a.Requests(), b.Requests()...)
			if len(reqs) != 2 && tt.token != 4 {
				t.Fatalf("%d attempts, want 2", len(reqs))
			}
			if tt.status == 500 {
				if at(got.json(t), "error", "code") != "worker_failed" || at(got.json(t), "error", "type") != "server_error" {
					t.Errorf("error %s", got.body)
				}
				return
			}
			if c := wholeChat(t, got); c[0].Content != text {
				t.Errorf("content %q, want %q", c[0].Content, text)
			}
			if len(a.Requests()) != 1 || len(b.Requests()) != 1 {
				t.Errorf("%d attempts on a, %d on b, want one each", len(a.Requests()), len(b.Requests()))
			}
			second := b.Requests()[0]
			if len(second.GetCommittedTokens()) != tt.committed || second.GetSampling().GetSeed() != 3 {
				t.Errorf("takeover with %d tokens, seed %d; want %d, 3", len(second.GetCommittedTokens()), second.GetSampling().GetSeed(), tt.committed)
			}
		})
	}
}

func TestFailoverOfAStream(t *testing.T) {
	text := "alpha beta gamma delta epsilon"
	r := start(t, nil)
	b := newBlock()
	w := r.target(gatewaytest.WorkerOptions{ID: "a", Decode: b.script(r, text)})
	done := r.send(t.Context(), chatBody(`"stream":true`))
	receive(t, b.admitted, "stream runs")
	w.Kill()
	r.target(gatewaytest.WorkerOptions{ID: "b", Decode: r.reply(text, 2)})
	a := receive(t, done, "end of the stream")
	c, _ := readChat(t, a.body, 1, true)
	if c[0].Content != text {
		t.Errorf("content %q, want %q", c[0].Content, text)
	}
}

func TestFailureAfterTheFirstEventIsAnEvent(t *testing.T) {
	r := start(t, func(c *Config) { c.FailoverTimeoutS = 0.1 })
	r.target(gatewaytest.WorkerOptions{Decode: dieAt(r, "one two three", 1, 99, status.Error(codes.Internal, "fault"))})
	a := r.post("/v1/chat/completions", chatBody(`"stream":true`))
	evs := events(t, a.body)
	if last := evs[len(evs)-1]; a.status != 200 || at(last, "error", "code") != "worker_failed" {
		t.Errorf("status %d, last event %v", a.status, last)
	}
}

func TestRequestTimeout(t *testing.T) {
	r := start(t, func(c *Config) { c.RequestTimeoutS = 0.1 })
	b := newBlock()
	r.target(gatewaytest.WorkerOptions{Decode: b.script(r, "one two")})
	a := r.post("/v1/chat/completions", chatBody(""))
	if a.status != 504 || at(a.json(t), "error", "code") != "deadline_exceeded" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestDrain(t *testing.T) {
	r := start(t, nil)
	b := newBlock()
	r.target(gatewaytest.WorkerOptions{Decode: b.script(r, "one two three")})
	running := r.send(t.Context(), chatBody(""))
	receive(t, b.admitted, "request runs")
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	r.eventually("gateway drains", r.app.draining.Load)
	a := r.post("/v1/chat/completions", chatBody(""))
	if a.status != 503 || at(a.json(t), "error", "code") != "draining" {
		t.Errorf("new request while draining: %d %s", a.status, a.body)
	}
	if a := r.do("GET", "/health", ""); a.status != 503 || at(a.json(t), "status") != "draining" {
		t.Errorf("health while draining: %d %s", a.status, a.body)
	}
	close(b.release)
	if a := receive(t, running, "running request ends"); a.status != 200 || wholeChat(t, a)[0].Content != "one two three" {
		t.Errorf("running request: %d %s", a.status, a.body)
	}
	r.client.CloseIdleConnections()
	if err := receive(t, stopped, "shutdown"); err != nil {
		t.Error(err)
	}
}

// TestStopBeforeServing ends a gateway that had no time to serve: its ports must not take that for a fault.
func TestStopBeforeServing(t *testing.T) {
	for range 20 {
		cfg := Defaults()
		cfg.Port, cfg.GRPCPort, cfg.RegistryListen, cfg.ShutdownGraceS, cfg.ModelName = 0, 0, "127.0.0.1:0", 5, "tiny"
		a, err := New(cfg, Deps{Version: "test"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.Run(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestShutdownCancelsWhatIsLeft(t *testing.T) {
	r := start(t, func(c *Config) { c.ShutdownGraceS = 0.05 })
	b := newBlock()
	r.target(gatewaytest.WorkerOptions{Decode: b.script(r, "one two three")})
	running := r.send(t.Context(), chatBody(`"stream":true`))
	receive(t, b.admitted, "request runs")
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	evs := events(t, receive(t, running, "stream ends").body)
	if at(evs[len(evs)-1], "error", "code") != "draining" {
		t.Errorf("last event %v", evs[len(evs)-1])
	}
	receive(t, b.cancelled, "worker was cancelled")
}

func TestKeepAlive(t *testing.T) {
	r := start(t, func(c *Config) { c.SSEKeepaliveS = 0.03 })
	b := newBlock()
	r.target(gatewaytest.WorkerOptions{Decode: b.script(r, "one two")})
	req, _ := http.NewRequestWithContext(t.Context(), "POST", r.url+"/v1/chat/completions", strings.NewReader(chatBody(`"stream":true`)))
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	sc := bufio.NewScanner(resp.Body)
	var body strings.Builder
	pings, released := 0, false
	for sc.Scan() {
		body.WriteString(sc.Text() + "\n")
		if strings.Contains(sc.Text(), `"delta":{"role":"assistant","content":""}`) {
			if pings++; pings == 3 && !released {
				released = true
				close(b.release)
			}
		}
	}
	if pings < 3 {
		t.Fatalf("%d keep-alives", pings-1)
	}
	c, _ := readChat(t, []byte(body.String()), 1, true)
	if c[0].Content != "one two" {
		t.Errorf("content %q", c[0].Content)
	}
}

func TestBusyWorkersShareRequests(t *testing.T) {
	r := start(t, nil)
	blocks := []*block{newBlock(), newBlock()}
	var ws []*gatewaytest.Worker
	for i, b := range blocks {
		ws = append(ws, r.target(gatewaytest.WorkerOptions{ID: fmt.Sprint("w", i), Lanes: 2, Decode: b.script(r, "one two")}))
	}
	var wg sync.WaitGroup
	for range 4 {
		done := r.send(t.Context(), chatBody(""))
		wg.Add(1)
		go func() {
			defer wg.Done()
			if a := <-done; a.status != 200 {
				t.Errorf("%d %s", a.status, a.body)
			}
		}()
	}
	for i, b := range blocks {
		for range 2 {
			receive(t, b.admitted, "admission")
		}
		if n := len(ws[i].Requests()); n != 2 {
			t.Errorf("worker %d got %d requests, want 2", i, n)
		}
	}
	for _, b := range blocks {
		close(b.release)
	}
	wg.Wait()
}

func TestNoLaneIsRetried(t *testing.T) {
	r := start(t, nil)
	var calls atomic.Int32
	ok := r.reply("fine", 1)
	r.target(gatewaytest.WorkerOptions{Decode: func(req *tandemv1.DecodeRequest, s tandemv1.TargetService_DecodeServer) error {
		if calls.Add(1) < 4 {
			return status.Error(codes.ResourceExhausted, "no lane")
		}
		return ok(req, s)
	}})
	if a := r.post("/v1/chat/completions", chatBody("")); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestWorkerRefusalIsTheClientsError(t *testing.T) {
	r := start(t, nil)
	r.target(gatewaytest.WorkerOptions{Decode: func(*tandemv1.DecodeRequest, tandemv1.TargetService_DecodeServer) error {
		return status.Error(codes.InvalidArgument, "prompt_tokens: bad")
	}})
	if a := r.post("/v1/chat/completions", chatBody("")); a.status != 400 {
		t.Errorf("%d %s", a.status, a.body)
	}
}
