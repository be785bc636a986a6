package httpapi_test

import (
	"io"
	"net/http"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/bodybudget"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	"github.com/tandem-inference/tandem/services/racetest"
)

// repeated is a body of which a part is there n times. It is written as it is sent: none of it lies in memory, which
// the test measures.
type repeated struct {
	head, unit, tail string
	n, at            int
	rest             string
}

// Read implements io.Reader.
func (r *repeated) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if r.rest == "" {
			switch {
			case r.at == 0:
				r.rest = r.head
			case r.at <= r.n:
				r.rest = r.unit
			case r.at == r.n+1:
				r.rest = r.tail
			default:
				return n, io.EOF
			}
			r.at++
		}
		k := copy(p[n:], r.rest)
		n, r.rest = n+k, r.rest[k:]
	}
	return n, nil
}

// estimate is what the budget makes of a body.
func estimate(t *testing.T, body repeated) int64 {
	t.Helper()
	b := bodybudget.New(1 << 40)
	r, err := b.Share().Reader(io.NopCloser(&body), -1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
	return b.Used()
}

// dearBodies are those whose reading takes the most memory for their size, by path.
func dearBodies() map[string]map[string]repeated {
	out := map[string]map[string]repeated{}
	for path, open := range map[string]string{
		"/v1/chat/completions": `"messages":[`, "/v1/responses": `"store":false,"input":[`,
		"/v1/messages": `"max_tokens":2,"messages":[`, "/tokenize": `"messages":[`,
	} {
		one := `{"role":"user","content":"a"}`
		tool, end := `{"type":"function","name":"f","parameters":`, `}]}`
		switch path {
		case "/v1/messages":
			tool = `{"name":"f","input_schema":`
		case "/v1/chat/completions", "/tokenize":
			tool, end = `{"type":"function","function":{"name":"f","parameters":`, `}}]}`
		}
		tool = "{" + open + one + `],"tools":[` + tool + `{"type":"object","enum":[`
		deep := strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100)
		out[path] = map[string]repeated{
			"messages":    {head: "{" + open, unit: one + ",", tail: one + `]}`},
			"text":        {head: "{" + open + `{"role":"user","content":"`, unit: "some words ", tail: `"}]}`},
			"hard text":   {head: "{" + open + `{"role":"user","content":"`, unit: "~q\u0416\U0001F600", tail: `"}]}`},
			"schema":      {head: tool, unit: `{"a":[1]},`, tail: `1]}` + end},
			"deep schema": {head: tool, unit: deep + ",", tail: `1]}` + end},
		}
	}
	chat := `{"messages":[{"role":"user","content":"a"}`
	call := `{"function":{"name":"f","arguments":"{}"}}`
	calls := chat + `,{"role":"assistant","tool_calls":[`
	of := out["/v1/chat/completions"]
	of["calls"] = repeated{head: calls, unit: call + ",", tail: call + `]}]}`}
	of["arguments"] = repeated{head: calls + `{"function":{"name":"f","arguments":"{\"x\":[`, unit: `[1],`,
		tail: `1]}"}}]}]}`}
	of["kwargs"] = repeated{head: chat + `],"chat_template_kwargs":{"x":[`, unit: `[],`, tail: `1]}}`}
	of["numbers"] = repeated{head: chat + `],"chat_template_kwargs":{"x":[`, unit: `1000,`, tail: `1]}}`}
	out["/v1/completions"] = map[string]repeated{
		"text":   {head: `{"prompt":"`, unit: "some words ", tail: `"}`},
		"tokens": {head: `{"prompt":[`, unit: "1,", tail: `1]}`},
	}
	return out
}

// resident is what the Go runtime holds of the machine's memory, garbage included.
func resident() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64()) - int64(s[1].Value.Uint64())
}

// most measures the most that is held more than now while work runs.
func most(work func()) (held int64) {
	debug.FreeOSMemory()
	before := resident()
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			held = max(held, resident()-before)
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	work()
	close(done)
	watch.Wait()
	return held
}

// send returns the status of the answer to a body.
func send(t *testing.T, r *rig.Rig, path string, body repeated) int {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.URL+path, &body)
	if err != nil {
		t.Error(err)
		return 0
	}
	resp, err := r.Client.Do(req)
	if err != nil {
		t.Error(path, err)
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestBodyMemory: many bodies at once, each as dear as a body can be and half the budget by estimate, take what
// docs/spec/http-api.md §1.2 says at most. -v shows what each took of its estimate.
func TestBodyMemory(t *testing.T) {
	if testing.Short() || racetest.Enabled {
		t.Skip("takes long, and measures memory")
	}
	const (
		budget  = 64 << 20
		clients = 8
		// The most that the process takes: of the budget, and besides.
		factor, besides = 1.5, 32 << 20
	)
	r := rig.Start(t, func(c *app.Config) { c.BodyMemoryMB = budget >> 20 })
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1)})
	for path, bodies := range dearBodies() {
		for name, body := range bodies {
			body.n = 1 << 20 / len(body.unit)
			body.n = int(int64(body.n) * budget / 2 / estimate(t, body))
			cost := estimate(t, body)
			var mu sync.Mutex // guards answers
			answers := map[int]int{}
			held := most(func() {
				var all sync.WaitGroup
				for range clients {
					all.Go(func() {
						// Bodies that arrive together may all be refused half-way: one must be read as a whole.
						for {
							status := send(t, r, path, body)
							mu.Lock()
							answers[status]++
							read := len(answers) > 1 || status != http.StatusTooManyRequests
							mu.Unlock()
							if read {
								return
							}
							time.Sleep(10 * time.Millisecond)
						}
					})
				}
				all.Wait()
			})
			t.Logf("%-22s %-12s %3d MB of %d MB, each %d MB by estimate; answers %v", path, name, held>>20, budget>>20,
				cost>>20, answers)
			if held > factor*budget+besides {
				t.Errorf("%s %s: %d MB were held, the budget is %d MB", path, name, held>>20, budget>>20)
			}
			// A prompt that is too long for the worker was read as a whole.
			if answers[http.StatusOK]+answers[http.StatusBadRequest] == 0 {
				t.Errorf("%s %s: nothing was read: %v", path, name, answers)
			}
		}
	}
}
