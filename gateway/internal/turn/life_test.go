package turn_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// lateness measures how late timers fire until the returned function is called, which gives the worst.
func lateness() (worst func() time.Duration) {
	stop, result := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		var most time.Duration
		for {
			began := time.Now()
			select {
			case <-stop:
				result <- most
				return
			case <-time.After(time.Millisecond):
				most = max(most, time.Since(began)-time.Millisecond)
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-result
	}
}

// inCompression is a body for path whose prompt a scorer shortens first.
func inCompression(path string, stream bool) string {
	field := map[string]string{"/v1/responses": "input"}[path]
	if field == "" {
		field = "messages"
	}
	return fmt.Sprintf(`{"%s":%s,"max_tokens":100,"stream":%v,"pflash":{"mode":"always","min_chunks":2}}`, field,
		rig.ChatOf("user", rig.Haystack(60, 30), "assistant", "I read it.", "user", "What is the code of raven?"), stream)
}

// TestCancelInEveryPhase: the worker is cancelled within 100 ms after a client left, whatever it is doing, and its slot
// is free again. Phases: a scorer's work, the prompt, the first token, and tokens. generate's TestLeaveBetweenTries has
// the wait for another worker, TestLeaveTheQueue the queue.
func TestCancelInEveryPhase(t *testing.T) {
	const bound = 100 * time.Millisecond
	const compression = -2
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{Slots: 1})
	s := r.Scorer(nil)
	for _, wire := range rig.Wires {
		for _, stream := range []bool{true, false} {
			for phase, at := range map[string]int{"compression": compression, "prefill": -1, "first token": 0, "decode": 3} {
				if at == compression && wire.Path == "/v1/completions" {
					continue // raw prompts are not compressed
				}
				t.Run(fmt.Sprintf("%s, stream %v, %s", wire.Path, stream, phase), func(t *testing.T) {
					try := func() time.Duration {
						there, gone := make(chan struct{}), make(chan time.Time, 1)
						script := gatewaytest.Script{Tokens: r.Encode("one two three four five six"), Stop: r.Tok.StopTokens()[0]}
						script.Before = func(i int, s tandemv1.TargetService_DecodeServer) error {
							if i != at {
								return nil
							}
							close(there)
							<-s.Context().Done()
							gone <- time.Now()
							return s.Context().Err()
						}
						w.SetDecode(script.Run)
						body := fmt.Sprintf(wire.Body, stream)
						if at == compression {
							body = inCompression(wire.Path, stream)
							s.SetCompress(func(ctx context.Context, _ *tandemv1.CompressRequest) (*tandemv1.CompressResponse, error) {
								close(there)
								<-ctx.Done()
								gone <- time.Now()
								return nil, ctx.Err()
							})
						}
						ctx, leave := context.WithCancel(t.Context())
						defer leave()
						req, err := http.NewRequestWithContext(ctx, "POST", r.URL+wire.Path, strings.NewReader(body))
						if err != nil {
							t.Fatal(err)
						}
						ended := make(chan error, 1)
						go func() {
							resp, err := r.Client.Do(req)
							if err == nil {
								_, err = io.Copy(io.Discard, resp.Body)
								resp.Body.Close()
							}
							ended <- err
						}()
						rig.Receive(t, there, phase)
						left := time.Now()
						leave()
						heard := rig.Receive(t, gone, "cancel at the worker").Sub(left)
						if rig.Receive(t, ended, "end of the request") == nil {
							t.Error("a request that was left has an answer")
						}
						return heard
					}
					// A busy machine is late by itself: by what timers were late during the try, at each of some five hand-overs
					// between client, gateway and worker. One of five tries may be later than that.
					late, all := 0, []string{}
					asked := len(w.Requests())
					for range 5 {
						timers := lateness()
						took := try()
						allowed := bound + 5*timers()
						if all = append(all, fmt.Sprintf("%v of %v", took, allowed)); took > allowed {
							late++
						}
					}
					if late > 1 {
						t.Errorf("the worker heard of it after %v", all)
					}
					if n := len(w.Requests()) - asked; at == compression && n > 0 {
						t.Errorf("the target got %d requests that were left before", n)
					}
					w.SetDecode(r.Reply("again", 1))
					if a := r.Post("/v1/chat/completions", rig.ChatBody("")); a.Status != http.StatusOK {
						t.Errorf("the slot is not free: %d %s", a.Status, a.Body)
					}
				})
			}
		}
	}
}

// TestQueuedStreamGetsHeaders: a stream that waits for long is told so by headers and keep-alives; what goes wrong then
// is an event.
func TestQueuedStreamGetsHeaders(t *testing.T) {
	for _, c := range []struct{ path, body, ping, failure string }{
		{"/v1/chat/completions", rig.Wires[0].Body, `"delta":{"role":"assistant","content":""}`, `"code":"draining"`},
		{"/v1/responses", rig.Wires[2].Body, `"type":"response.in_progress"`, `"type":"response.failed"`},
		{"/v1/messages", rig.Wires[3].Body, `"type":"ping"`, `"type":"overloaded_error"`},
	} {
		t.Run(c.path, func(t *testing.T) {
			r := rig.Start(t, func(c *app.Config) { c.QueuedHeadersS, c.SSEKeepaliveS = 0.02, 0.02 })
			b := gatewaytest.NewBlock()
			r.Target(gatewaytest.WorkerOptions{Slots: 1, Decode: b.Script(r.Tok, "one two")})
			first := r.Send(t.Context(), rig.ChatBody(""))
			rig.Receive(t, b.Admitted, "first request runs")
			resp, err := r.Client.Post(r.URL+c.path, "application/json", strings.NewReader(fmt.Sprintf(c.body, true)))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("status %d", resp.StatusCode)
			}
			lines := bufio.NewScanner(resp.Body)
			for pings := 0; pings < 3; {
				if !lines.Scan() {
					t.Fatalf("%d keep-alives, then %v", pings, lines.Err())
				}
				if strings.Contains(lines.Text(), c.ping) {
					pings++
				}
			}
			r.Parts.Cluster.Targets.Drain() // all that waits
			failed := false
			for lines.Scan() {
				failed = failed || strings.Contains(lines.Text(), c.failure)
			}
			if err := lines.Err(); !failed || err != nil {
				t.Errorf("the end is no %s, %v", c.failure, err)
			}
			close(b.Release)
			rig.Receive(t, first, "first answer")
		})
	}
}

// TestQueuedAnswerWaits: what is not a stream waits for its status.
func TestQueuedAnswerWaits(t *testing.T) {
	r := rig.Start(t, func(c *app.Config) { c.QueuedHeadersS, c.SSEKeepaliveS, c.QueueTimeoutS = 0.02, 0.02, 0.2 })
	b := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{Slots: 1, Decode: b.Script(r.Tok, "one two")})
	first := r.Send(t.Context(), rig.ChatBody(""))
	rig.Receive(t, b.Admitted, "first request runs")
	a := r.Post("/v1/messages", fmt.Sprintf(rig.Wires[3].Body, false))
	if a.Status != 529 || a.Header.Get("Retry-After") == "" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	close(b.Release)
	rig.Receive(t, first, "first answer")
}

// TestEventsComeAtOnce: the headers and the first event do not wait for the prompt, and every event is sent when it
// is there.
func TestEventsComeAtOnce(t *testing.T) {
	r := rig.Start(t, nil)
	next := make(chan struct{})
	script := gatewaytest.Script{Tokens: r.Encode("one two three"), Stop: r.Tok.StopTokens()[0]}
	script.Before = func(_ int, stream tandemv1.TargetService_DecodeServer) error {
		select {
		case <-next:
			return nil
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	r.Target(gatewaytest.WorkerOptions{Decode: script.Run})
	resp, err := r.Client.Post(r.URL+"/v1/chat/completions", "application/json",
		strings.NewReader(rig.ChatBody(`"stream":true`)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no",
	} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	lines := bufio.NewScanner(resp.Body)
	event := func() string {
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				return data
			}
		}
		t.Fatal("the stream ended")
		return ""
	}
	if first := event(); !strings.Contains(first, `"role":"assistant"`) {
		t.Errorf("first event %s", first)
	}
	next <- struct{}{} // the prompt
	for range script.Tokens {
		next <- struct{}{}
		if e := event(); !strings.Contains(e, `"content":"`) {
			t.Errorf("event %s", e)
		}
	}
	close(next)
}
