package app

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// wires are the endpoints that generate, each with a body that asks for a stream or not.
var wires = []struct{ path, body string }{
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi"}],"stream":%v}`},
	{"/v1/completions", `{"prompt":"Hi","stream":%v}`},
	{"/v1/responses", `{"input":"Hi","stream":%v}`},
	{"/v1/messages", `{"messages":[{"role":"user","content":"Hi"}],"max_tokens":100,"stream":%v}`},
}

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
		chatOf("user", haystack(60, 30), "assistant", "I read it.", "user", "What is the code of raven?"), stream)
}

// TestCancelInEveryPhase: the worker is cancelled within 100 ms after a client left, whatever it is doing, and its slot
// is free again. Phases: a scorer's work, the prompt, the first token, and tokens. generate's TestLeaveBetweenTries has
// the wait for another worker, TestLeaveTheQueue the queue.
func TestCancelInEveryPhase(t *testing.T) {
	const bound = 100 * time.Millisecond
	const compression = -2
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{Lanes: 1})
	s := r.scorer(nil)
	for _, wire := range wires {
		for _, stream := range []bool{true, false} {
			for phase, at := range map[string]int{"compression": compression, "prefill": -1, "first token": 0, "decode": 3} {
				if at == compression && wire.path == "/v1/completions" {
					continue // raw prompts are not compressed
				}
				t.Run(fmt.Sprintf("%s, stream %v, %s", wire.path, stream, phase), func(t *testing.T) {
					try := func() time.Duration {
						there, gone := make(chan struct{}), make(chan time.Time, 1)
						script := gatewaytest.Script{Tokens: r.encode("one two three four five six"), Stop: r.tok.StopTokens()[0]}
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
						body := fmt.Sprintf(wire.body, stream)
						if at == compression {
							body = inCompression(wire.path, stream)
							s.SetCompress(func(ctx context.Context, _ *tandemv1.CompressRequest) (*tandemv1.CompressResponse, error) {
								close(there)
								<-ctx.Done()
								gone <- time.Now()
								return nil, ctx.Err()
							})
						}
						ctx, leave := context.WithCancel(t.Context())
						defer leave()
						req, err := http.NewRequestWithContext(ctx, "POST", r.url+wire.path, strings.NewReader(body))
						if err != nil {
							t.Fatal(err)
						}
						ended := make(chan error, 1)
						go func() {
							resp, err := r.client.Do(req)
							if err == nil {
								_, err = io.Copy(io.Discard, resp.Body)
								resp.Body.Close()
							}
							ended <- err
						}()
						receive(t, there, phase)
						left := time.Now()
						leave()
						heard := receive(t, gone, "cancel at the worker").Sub(left)
						if receive(t, ended, "end of the request") == nil {
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
					w.SetDecode(r.reply("again", 1))
					if a := r.post("/v1/chat/completions", chatBody("")); a.status != http.StatusOK {
						t.Errorf("the slot is not free: %d %s", a.status, a.body)
					}
				})
			}
		}
	}
}

// TestSlowReader: a client that accepts nothing for the stall time is given up, and its work at the worker with it.
func TestSlowReader(t *testing.T) {
	r := start(t, func(c *Config) { c.StallTimeoutS = 0.2 })
	gone := make(chan struct{})
	script := gatewaytest.Script{Tokens: r.encode(strings.Repeat("words that nobody reads ", 2000))[:5000]}
	script.Before = func(i int, s tandemv1.TargetService_DecodeServer) error {
		if i == len(script.Tokens)-1 { // never ends by itself
			<-s.Context().Done()
		}
		return s.Context().Err()
	}
	r.target(gatewaytest.WorkerOptions{Decode: func(req *tandemv1.DecodeRequest,
		s tandemv1.TargetService_DecodeServer) error {
		defer close(gone)
		return script.Run(req, s)
	}})
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	// Candidates make the events large, more than all buffers on the way hold.
	body := chatBody(`"stream":true,"max_tokens":10000,"logprobs":true,"top_logprobs":20`)
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	receive(t, gone, "end at the worker")
}

// TestQueuedStreamGetsHeaders: a stream that waits for long is told so by headers and keep-alives; what goes wrong then
// is an event.
func TestQueuedStreamGetsHeaders(t *testing.T) {
	for _, c := range []struct{ path, body, ping, failure string }{
		{"/v1/chat/completions", wires[0].body, `"delta":{"role":"assistant","content":""}`, `"code":"draining"`},
		{"/v1/responses", wires[2].body, `"type":"response.in_progress"`, `"type":"response.failed"`},
		{"/v1/messages", wires[3].body, `"type":"ping"`, `"type":"overloaded_error"`},
	} {
		t.Run(c.path, func(t *testing.T) {
			r := start(t, func(c *Config) { c.QueuedHeadersS, c.SSEKeepaliveS = 0.02, 0.02 })
			b := gatewaytest.NewBlock()
			r.target(gatewaytest.WorkerOptions{Lanes: 1, Decode: b.Script(r.tok, "one two")})
			first := r.send(t.Context(), chatBody(""))
			receive(t, b.Admitted, "first request runs")
			resp, err := r.client.Post(r.url+c.path, "application/json", strings.NewReader(fmt.Sprintf(c.body, true)))
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
			r.app.cluster.Targets.Drain() // all that waits
			failed := false
			for lines.Scan() {
				failed = failed || strings.Contains(lines.Text(), c.failure)
			}
			if err := lines.Err(); !failed || err != nil {
				t.Errorf("the end is no %s, %v", c.failure, err)
			}
			close(b.Release)
			receive(t, first, "first answer")
		})
	}
}

// TestQueuedAnswerWaits: what is not a stream waits for its status.
func TestQueuedAnswerWaits(t *testing.T) {
	r := start(t, func(c *Config) { c.QueuedHeadersS, c.SSEKeepaliveS, c.QueueTimeoutS = 0.02, 0.02, 0.2 })
	b := gatewaytest.NewBlock()
	r.target(gatewaytest.WorkerOptions{Lanes: 1, Decode: b.Script(r.tok, "one two")})
	first := r.send(t.Context(), chatBody(""))
	receive(t, b.Admitted, "first request runs")
	a := r.post("/v1/messages", fmt.Sprintf(wires[3].body, false))
	if a.status != 529 || a.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", a.status, a.body)
	}
	close(b.Release)
	receive(t, first, "first answer")
}

// TestEventsComeAtOnce: the headers and the first event do not wait for the prompt, and every event is sent when it
// is there.
func TestEventsComeAtOnce(t *testing.T) {
	r := start(t, nil)
	next := make(chan struct{})
	script := gatewaytest.Script{Tokens: r.encode("one two three"), Stop: r.tok.StopTokens()[0]}
	script.Before = func(_ int, stream tandemv1.TargetService_DecodeServer) error {
		select {
		case <-next:
			return nil
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	r.target(gatewaytest.WorkerOptions{Decode: script.Run})
	resp, err := r.client.Post(r.url+"/v1/chat/completions", "application/json",
		strings.NewReader(chatBody(`"stream":true`)))
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

// TestNamedKeys: every key of flags and file opens every route that needs one, and names show in the metrics,
// secrets nowhere.
func TestNamedKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("# people\nalice: key-of-alice\n\nbob:key-of-bob\nunnamed-key\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, func(c *Config) {
		c.APIKeyFile = file
		c.APIKey = append(c.APIKey, "flag-key")
	})
	r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1)})
	for _, key := range []string{"key-of-alice", "key-of-bob", "unnamed-key", "flag-key"} {
		for _, header := range [][]string{{"Authorization", "Bearer " + key}, {"authorization", "bearer " + key},
			{"x-api-key", key}, {"api-key", key},
			// Clients and proxies that send both: one that is valid suffices.
			{"Authorization", "Bearer wrong", "x-api-key", key}, {"Authorization", "Bearer " + key, "x-api-key", "wrong"}} {
			for _, wire := range wires {
				if a := r.post(wire.path, fmt.Sprintf(wire.body, false), header...); a.status != http.StatusOK {
					t.Errorf("%s with %v: %d %s", wire.path, header, a.status, a.body)
				}
			}
		}
	}
	for _, header := range [][]string{nil, {"x-api-key", "alice"}, {"x-api-key", "key-of-alic"},
		{"Authorization", "Basic key-of-bob"}, {"Authorization", "key-of-bob"}} {
		for _, wire := range wires {
			if a := r.post(wire.path, fmt.Sprintf(wire.body, true), header...); a.status != http.StatusUnauthorized ||
				a.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s with %v: %d %s", wire.path, header, a.status, a.body)
			}
		}
	}
	text := string(r.do("GET", "/metrics", "").body)
	if !strings.Contains(text, `key="alice"`) || !strings.Contains(text, `key="bob"`) {
		t.Error("named keys are no labels of the requests")
	}
	for _, secret := range []string{"key-of-", "unnamed-key", "flag-key"} {
		if strings.Contains(text, secret) {
			t.Errorf("metrics tell %q", secret)
		}
	}
	// Without a valid key, /props shows the base names of files only, and nothing else shows their folder either.
	path := gatewaytest.ModelPath(t, gatewaytest.Target)
	for key, want := range map[string]string{"": filepath.Base(path), "wrong": filepath.Base(path), "flag-key": path} {
		if a := r.do("GET", "/props", "", "x-api-key", key); a.status != http.StatusOK ||
			at(a.json(t), "model_path") != want ||
			strings.Contains(string(a.body), filepath.Dir(path)) != (key == "flag-key") {
			t.Errorf("props with the key %q: %d %s, want the path %s", key, a.status, a.body, want)
		}
		if a := r.do("GET", "/cluster", "", "x-api-key", key); strings.Contains(string(a.body), filepath.Dir(path)) {
			t.Errorf("cluster: %s", a.body)
		}
	}
}

// TestIDsNeverRepeat: neither within a gateway nor after a restart.
func TestIDsNeverRepeat(t *testing.T) {
	seen := map[string]bool{}
	for range 2 {
		r := start(t, nil)
		r.target(gatewaytest.WorkerOptions{Decode: r.reply("ok", 1)})
		for range 3 {
			for _, wire := range wires {
				a := r.post(wire.path, fmt.Sprintf(wire.body, false))
				id, _ := a.json(t)["id"].(string)
				for _, id := range []string{id, a.header.Get("X-Request-Id")} {
					if len(id) < 20 || seen[id] {
						t.Errorf("%s: id %q is short or was given before", wire.path, id)
					}
					seen[id] = true
				}
			}
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	}
}
