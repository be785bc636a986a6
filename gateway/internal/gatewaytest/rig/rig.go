// Package rig runs the whole gateway for tests, with scripted workers. Tests of a package that show at the gateway's
// ports are external ones beside it (package grpcapi_test) and start a Rig.
package rig

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// Rig is a gateway with its ports on free addresses.
type Rig struct {
	T      testing.TB
	App    *app.App
	Parts  app.Parts
	URL    string
	Tok    *tokenizer.Tokenizer
	Client *http.Client
	Stop   func() error
}

// Start runs a gateway; change edits its configuration.
func Start(t testing.TB, change func(*app.Config)) *Rig {
	t.Helper()
	return StartWith(t, change, app.Deps{Version: "test"})
}

// StartWith is start with dependencies of the caller's choice.
func StartWith(t testing.TB, change func(*app.Config), deps app.Deps) *Rig {
	t.Helper()
	cfg := app.Defaults()
	cfg.Port, cfg.GRPCPort, cfg.RegistryListen, cfg.ShutdownGraceS, cfg.ModelName = 0, 0, "127.0.0.1:0", 5, "tiny"
	if change != nil {
		change(&cfg)
	}
	a, err := app.New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	r := &Rig{T: t, App: a, Parts: a.Parts(), URL: "http://" + a.HTTPAddr().String(), Tok: gatewaytest.Tokenizer(t),
		Client: &http.Client{Transport: &http.Transport{}, Timeout: 2 * Patience}}
	stopped := false
	r.Stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(Patience):
			return errors.New("the gateway does not stop")
		}
	}
	t.Cleanup(func() {
		r.Client.CloseIdleConnections()
		if err := r.Stop(); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return r
}

// Target joins a fake target and waits until the gateway serves with it.
func (r *Rig) Target(opt gatewaytest.WorkerOptions) *gatewaytest.Worker {
	r.T.Helper()
	opt.Role = tandemv1.Role_ROLE_TARGET
	if opt.ID == "" {
		opt.ID = "t1"
	}
	if opt.Slots == 0 {
		opt.Slots = 4
	}
	if opt.MaxContext == 0 {
		opt.MaxContext = 32768
	}
	w := gatewaytest.Join(r.T, r.App.RegistryAddr().String(), opt)
	r.Eventually("target is ready", func() bool {
		_, err := r.Parts.Model()
		_, _, ok := r.Parts.Cluster.Targets.Busy(opt.ID)
		return err == nil && ok && r.Parts.Cluster.Targets.Ready() && r.Ready(opt.ID)
	})
	return w
}

// Ready reports whether the registry has a worker in state ready.
func (r *Rig) Ready(id string) bool {
	for _, w := range r.Parts.Cluster.Workers() {
		if w.ID == id {
			return w.State == "ready"
		}
	}
	return false
}

// Patience is how long a test waits for what has to come.
const Patience = testwait.Limit

// Eventually waits for a state that another goroutine brings about.
func (r *Rig) Eventually(what string, ok func() bool) {
	r.T.Helper()
	testwait.Until(r.T, what, ok)
}

// Encode cuts text into tokens of the served model.
func (r *Rig) Encode(text string) []int32 {
	return r.Tok.Encode(text, tokenizer.Options{ParseSpecial: true})
}

// Reply is a script that says text and ends its turn.
func (r *Rig) Reply(text string, step int) gatewaytest.Decode {
	return gatewaytest.Say(r.Tok, text, step)
}

// Answer is a whole response.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// JSON is the body as an object.
func (a Answer) JSON(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(a.Body, &v); err != nil {
		t.Fatalf("status %d, body %q: %v", a.Status, a.Body, err)
	}
	return v
}

// At walks a decoded JSON value by keys and indexes.
func At(v any, path ...any) any {
	for _, p := range path {
		switch k := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[k]
		case int:
			l, _ := v.([]any)
			if k >= len(l) {
				return nil
			}
			v = l[k]
		}
	}
	return v
}

// Do asks and waits for the whole answer, for as long as the test's patience lasts.
func (r *Rig) Do(method, path, body string, header ...string) Answer {
	r.T.Helper()
	ctx, cancel := context.WithTimeout(r.T.Context(), Patience)
	defer cancel()
	var rd io.Reader
	if body != "" {
		rd = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.URL+path, rd)
	if err != nil {
		r.T.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.Client.Do(req)
	if err != nil {
		r.T.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.T.Fatal(err)
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		if err := checkWire(path, body, b); err != nil {
			r.T.Errorf("%s: %v\n%s", path, err, b)
		}
	}
	return Answer{resp.StatusCode, resp.Header, b}
}

// checkWire holds a stream to the grammar of its dialect. Legacy completions have none worth a checker.
func checkWire(path, request string, stream []byte) (err error) {
	path, _, _ = strings.Cut(strings.TrimPrefix(path, "/v1"), "?")
	switch path {
	case "/chat/completions":
		var settings struct{ N int }
		// A setting that cannot be read was refused before the stream.
		_ = json.Unmarshal([]byte(request), &settings)
		_, err = wirecheck.Chat(stream, max(1, settings.N))
	case "/responses":
		_, err = wirecheck.Responses(stream)
	case "/messages":
		_, err = wirecheck.Messages(stream)
	}
	return err
}

// Post is Do with POST.
func (r *Rig) Post(path, body string, header ...string) Answer {
	r.T.Helper()
	return r.Do("POST", path, body, header...)
}

// ChatBody is a chat request with one user message and further members.
func ChatBody(more string) string {
	if more != "" {
		more = "," + more
	}
	return `{"messages":[{"role":"user","content":"Say hello."}]` + more + `}`
}

// Events splits an event stream and checks its framing: data lines of one line each, [DONE] last.
func Events(t *testing.T, body []byte) []map[string]any {
	t.Helper()
	var out []map[string]any
	sc := bufio.NewScanner(bytes.NewReader(body))
	sc.Buffer(nil, 1<<20)
	done := false
	for want := "data"; sc.Scan(); {
		line := sc.Text()
		switch want {
		case "data":
			data, ok := strings.CutPrefix(line, "data: ")
			if !ok || done {
				t.Fatalf("unexpected line %q", line)
			}
			if data == "[DONE]" {
				done = true
			} else {
				var v map[string]any
				if err := json.Unmarshal([]byte(data), &v); err != nil {
					t.Fatalf("event %q: %v", data, err)
				}
				out = append(out, v)
			}
			want = "blank"
		case "blank":
			if line != "" {
				t.Fatalf("event is followed by %q, want a blank line", line)
			}
			want = "data"
		}
	}
	if !done {
		t.Fatalf("stream has no [DONE]: %q", body)
	}
	return out
}

// ChatState is what a chat answer says of one choice.
type ChatState = wirecheck.Choice

// ReadChat checks the grammar of a chat stream and puts its choices together.
func ReadChat(t *testing.T, body []byte, n int, wantUsage bool) ([]ChatState, map[string]any) {
	t.Helper()
	a, err := wirecheck.Chat(body, n)
	if err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	if a.Error != nil {
		t.Fatalf("the stream ends with %v", a.Error)
	}
	if (a.Usage != nil) != wantUsage {
		t.Fatalf("usage = %v, want it: %v", a.Usage, wantUsage)
	}
	return a.Choices, a.Usage
}

// WholeChat reads the choices of an answer in one piece.
func WholeChat(t *testing.T, a Answer) []ChatState {
	t.Helper()
	v := a.JSON(t)
	var out []ChatState
	for i := range v["choices"].([]any) {
		c := At(v, "choices", i)
		s := ChatState{Finish: fmt.Sprint(At(c, "finish_reason")), Details: At(c, "finish_details")}
		s.Content, _ = At(c, "message", "content").(string)
		s.Reasoning, _ = At(c, "message", "reasoning_content").(string)
		s.Stop, _ = At(c, "stop_sequence").(string)
		calls, _ := At(c, "message", "tool_calls").([]any)
		for _, call := range calls {
			kind, _ := At(call, "type").(string)
			args, ok := map[string]string{"function": "arguments", "custom": "input"}[kind]
			if id := At(call, "id").(string); !strings.HasPrefix(id, "call_") || !ok {
				t.Fatalf("call %v", call)
			}
			s.Calls = append(s.Calls, wirecheck.Call{Name: At(call, kind, "name").(string),
				Arguments: At(call, kind, args).(string), Custom: kind == "custom"})
		}
		if name, ok := At(c, "message", "function_call", "name").(string); ok {
			calls = append(calls, name)
			s.Calls = append(s.Calls, wirecheck.Call{Name: name, Legacy: true,
				Arguments: At(c, "message", "function_call", "arguments").(string)})
		}
		if (At(c, "message", "content") == nil) != (s.Content == "" && len(calls) > 0) {
			t.Errorf("content is %v beside %d calls", At(c, "message", "content"), len(calls))
		}
		if l, ok := At(c, "logprobs", "content").([]any); ok {
			for _, e := range l {
				s.Tokens = append(s.Tokens, At(e, "token").(string))
			}
		}
		out = append(out, s)
	}
	return out
}

// JSON writes a value that can be written.
func JSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
