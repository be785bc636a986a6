package app

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

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a gateway with its ports on free addresses.
type rig struct {
	t      testing.TB
	app    *App
	url    string
	tok    *tokenizer.Tokenizer
	client *http.Client
	stop   func() error
}

// start runs a gateway; change edits its configuration.
func start(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	return startWith(t, change, Deps{Version: "test"})
}

// startWith is start with dependencies of the caller's choice.
func startWith(t testing.TB, change func(*Config), deps Deps) *rig {
	t.Helper()
	cfg := Defaults()
	cfg.Port, cfg.GRPCPort, cfg.RegistryListen, cfg.ShutdownGraceS, cfg.ModelName = 0, 0, "127.0.0.1:0", 5, "tiny"
	if change != nil {
		change(&cfg)
	}
	a, err := New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	r := &rig{t: t, app: a, url: "http://" + a.HTTPAddr().String(), tok: gatewaytest.Tokenizer(t),
		client: &http.Client{Transport: &http.Transport{}, Timeout: 2 * patience}}
	stopped := false
	r.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return errors.New("the gateway does not stop")
		}
	}
	t.Cleanup(func() {
		r.client.CloseIdleConnections()
		if err := r.stop(); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return r
}

// target joins a fake target and waits until the gateway serves with it.
func (r *rig) target(opt gatewaytest.WorkerOptions) *gatewaytest.Worker {
	r.t.Helper()
	opt.Role = tandemv1.Role_ROLE_TARGET
	if opt.ID == "" {
		opt.ID = "t1"
	}
	if opt.Lanes == 0 {
		opt.Lanes = 4
	}
	if opt.MaxContext == 0 {
		opt.MaxContext = 32768
	}
	w := gatewaytest.Join(r.t, r.app.RegistryAddr().String(), opt)
	r.eventually("target is ready", func() bool {
		_, err := r.app.models.served()
		_, _, ok := r.app.cluster.Targets.Busy(opt.ID)
		return err == nil && ok && r.app.cluster.Targets.Ready() && r.ready(opt.ID)
	})
	return w
}

func (r *rig) ready(id string) bool {
	for _, w := range r.app.registry.Workers() {
		if w.ID == id {
			return w.State == "ready"
		}
	}
	return false
}

const patience = testwait.Limit

// eventually waits for a state that another goroutine brings about.
func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	testwait.Until(r.t, what, ok)
}

func (r *rig) encode(text string) []int32 {
	return r.tok.Encode(text, tokenizer.Options{ParseSpecial: true})
}

// reply is a script that says text and ends its turn.
func (r *rig) reply(text string, step int) gatewaytest.Decode {
	return gatewaytest.Say(r.tok, text, step)
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) json(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatalf("status %d, body %q: %v", a.status, a.body, err)
	}
	return v
}

// at walks a decoded JSON value by keys and indexes.
func at(v any, path ...any) any {
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

// do asks and waits for the whole answer, for as long as the test's patience lasts.
func (r *rig) do(method, path, body string, header ...string) answer {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	var rd io.Reader
	if body != "" {
		rd = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, rd)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		if err := checkWire(path, body, b); err != nil {
			r.t.Errorf("%s: %v\n%s", path, err, b)
		}
	}
	return answer{resp.StatusCode, resp.Header, b}
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

func (r *rig) post(path, body string, header ...string) answer {
	r.t.Helper()
	return r.do("POST", path, body, header...)
}

// chatBody is a chat request with one user message and further members.
func chatBody(more string) string {
	if more != "" {
		more = "," + more
	}
	return `{"messages":[{"role":"user","content":"Say hello."}]` + more + `}`
}

// events splits an event stream and checks its framing: data lines of one line each, [DONE] last.
func events(t *testing.T, body []byte) []map[string]any {
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

// chatState is what a chat answer says of one choice.
type chatState = wirecheck.Choice

// readChat checks the grammar of a chat stream and puts its choices together.
func readChat(t *testing.T, body []byte, n int, wantUsage bool) ([]chatState, map[string]any) {
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

// wholeChat reads the choices of an answer in one piece.
func wholeChat(t *testing.T, a answer) []chatState {
	t.Helper()
	v := a.json(t)
	var out []chatState
	for i := range v["choices"].([]any) {
		c := at(v, "choices", i)
		s := chatState{Finish: fmt.Sprint(at(c, "finish_reason")), Details: at(c, "finish_details")}
		s.Content, _ = at(c, "message", "content").(string)
		s.Reasoning, _ = at(c, "message", "reasoning_content").(string)
		s.Stop, _ = at(c, "stop_sequence").(string)
		calls, _ := at(c, "message", "tool_calls").([]any)
		for _, call := range calls {
			if id := at(call, "id").(string); !strings.HasPrefix(id, "call_") || at(call, "type") != "function" {
				t.Errorf("call %v", call)
			}
			s.Calls = append(s.Calls, wirecheck.Call{Name: at(call, "function", "name").(string),
				Arguments: at(call, "function", "arguments").(string)})
		}
		if (at(c, "message", "content") == nil) != (s.Content == "" && len(calls) > 0) {
			t.Errorf("content is %v beside %d calls", at(c, "message", "content"), len(calls))
		}
		if l, ok := at(c, "logprobs", "content").([]any); ok {
			for _, e := range l {
				s.Tokens = append(s.Tokens, at(e, "token").(string))
			}
		}
		out = append(out, s)
	}
	return out
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
