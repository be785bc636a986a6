package app

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/services/testwait"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

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
	return testwait.For(t, ch, what)
}

func TestCancelReachesWorker(t *testing.T) {
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream %v", stream), func(t *testing.T) {
			r := start(t, nil)
			b := gatewaytest.NewBlock()
			w := r.target(gatewaytest.WorkerOptions{Lanes: 1, Decode: b.Script(r.tok, "one two three")})
			ctx, cancel := context.WithCancel(t.Context())
			done := r.send(ctx, chatBody(fmt.Sprintf(`"stream":%v`, stream)))
			receive(t, b.Admitted, "admission")
			cancel()
			receive(t, b.Cancelled, "cancel at the worker")
			receive(t, done, "end of the request")
			w.SetDecode(r.reply("again", 1))
			if a := r.post("/v1/chat/completions", chatBody("")); a.status != 200 {
				t.Errorf("slot was not freed: %d %s", a.status, a.body)
			}
		})
	}
}

func TestQueue(t *testing.T) {
	r := start(t, func(c *Config) { c.MaxQueue = 1 })
	b := gatewaytest.NewBlock()
	w := r.target(gatewaytest.WorkerOptions{Lanes: 1, Decode: b.Script(r.tok, "one two")})
	first := r.send(t.Context(), chatBody(""))
	receive(t, b.Admitted, "first request runs")
	ctx, leave := context.WithCancel(t.Context())
	second := r.send(ctx, chatBody(""))
	r.eventually("second request waits", func() bool { return r.app.cluster.Targets.Queued() == 1 })
	a := r.post("/v1/chat/completions", chatBody(""))
	if a.status != 429 || a.header.Get("Retry-After") == "" || at(a.json(t), "error", "code") != "queue_full" ||
		at(a.json(t), "error", "type") != "rate_limit_error" {
		t.Errorf("third request: %d %v %s", a.status, a.header, a.body)
	}
	leave()
	receive(t, second, "second request left")
	r.eventually("queue is empty again", func() bool { return r.app.cluster.Targets.Queued() == 0 })
	third := r.send(t.Context(), chatBody(""))
	r.eventually("third request waits", func() bool { return r.app.cluster.Targets.Queued() == 1 })
	close(b.Release)
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
	b := gatewaytest.NewBlock()
	r.target(gatewaytest.WorkerOptions{Lanes: 1, Decode: b.Script(r.tok, "one two")})
	first := r.send(t.Context(), chatBody(""))
	receive(t, b.Admitted, "first request runs")
	a := r.post("/v1/chat/completions", chatBody(`"stream":true`))
	if a.status != 503 || at(a.json(t), "error", "code") != "queue_timeout" || a.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", a.status, a.body)
	}
	close(b.Release)
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

func TestFailoverOfAStream(t *testing.T) {
	text := "alpha beta gamma delta epsilon"
	r := start(t, nil)
	b := gatewaytest.NewBlock()
	w := r.target(gatewaytest.WorkerOptions{ID: "a", Decode: b.Script(r.tok, text)})
	done := r.send(t.Context(), chatBody(`"stream":true`))
	receive(t, b.Admitted, "stream runs")
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
	r.target(gatewaytest.WorkerOptions{Decode: gatewaytest.DieAt(r.tok, "one two three", 1, 99,
		status.Error(codes.Internal, "fault"))})
	a := r.post("/v1/chat/completions", chatBody(`"stream":true`))
	evs := events(t, a.body)
	if last := evs[len(evs)-1]; a.status != 200 || at(last, "error", "code") != "worker_failed" {
		t.Errorf("status %d, last event %v", a.status, last)
	}
}

func TestRequestTimeout(t *testing.T) {
	r := start(t, func(c *Config) { c.RequestTimeoutS = 0.1 })
	b := gatewaytest.NewBlock()
	r.target(gatewaytest.WorkerOptions{Decode: b.Script(r.tok, "one two")})
	a := r.post("/v1/chat/completions", chatBody(""))
	if a.status != 504 || at(a.json(t), "error", "code") != "deadline_exceeded" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestDrain(t *testing.T) {
	r := start(t, nil)
	b := gatewaytest.NewBlock()
	r.target(gatewaytest.WorkerOptions{Decode: b.Script(r.tok, "one two three")})
	running := r.send(t.Context(), chatBody(""))
	receive(t, b.Admitted, "request runs")
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
	close(b.Release)
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
	b := gatewaytest.NewBlock()
	r.target(gatewaytest.WorkerOptions{Decode: b.Script(r.tok, "one two three")})
	running := r.send(t.Context(), chatBody(`"stream":true`))
	receive(t, b.Admitted, "request runs")
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	evs := events(t, receive(t, running, "stream ends").body)
	if at(evs[len(evs)-1], "error", "code") != "draining" {
		t.Errorf("last event %v", evs[len(evs)-1])
	}
	receive(t, b.Cancelled, "worker was cancelled")
}

func TestKeepAlive(t *testing.T) {
	r := start(t, func(c *Config) { c.SSEKeepaliveS = 0.03 })
	b := gatewaytest.NewBlock()
	r.target(gatewaytest.WorkerOptions{Decode: b.Script(r.tok, "one two")})
	req, _ := http.NewRequestWithContext(t.Context(), "POST", r.url+"/v1/chat/completions",
		strings.NewReader(chatBody(`"stream":true`)))
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
				close(b.Release)
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
