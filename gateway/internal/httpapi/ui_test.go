package httpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/config"
)

func keyed(cfg *app.Config) { cfg.APIKey = []config.Secret{"first-key-of-two", "second-key-of-two"} }

// TestPageFiles: the page's files come without a key, with a policy that loads nothing from elsewhere, and once.
func TestPageFiles(t *testing.T) {
	r := rig.Start(t, keyed)
	page := r.Do("GET", "/ui", "")
	if page.Status != 200 || !strings.HasPrefix(page.Header.Get("Content-Type"), "text/html") {
		t.Fatalf("%d %v", page.Status, page.Header)
	}
	policy := page.Header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("policy %q lacks %s", policy, want)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("policy %q", policy)
	}
	size := len(page.Body)
	for _, part := range strings.Split(string(page.Body), `"`) {
		if !strings.HasPrefix(part, "ui/") {
			continue
		}
		a := r.Do("GET", "/"+part, "")
		size += len(a.Body)
		if a.Status != 200 || a.Header.Get("ETag") == "" || a.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", part, a.Status, a.Header)
		}
		if again := r.Do("GET", "/"+part, "", "If-None-Match", a.Header.Get("ETag")); again.Status != 304 ||
			len(again.Body) > 0 {
			t.Errorf("%s again: %d with %d bytes", part, again.Status, len(again.Body))
		}
	}
	if size > 300<<10 {
		t.Errorf("the page has %d bytes", size)
	}
	t.Logf("the page has %d bytes", size)
}

func TestPageOff(t *testing.T) {
	r := rig.Start(t, func(cfg *app.Config) { cfg.UI = "off" })
	for _, path := range []string{"/ui", "/ui/events"} {
		if a := r.Do("GET", path, ""); a.Status != 404 {
			t.Errorf("%s: %d", path, a.Status)
		}
	}
}

// TestPageNeedsKey: all that the page shows needs a key where one is asked for.
func TestPageNeedsKey(t *testing.T) {
	r := rig.Start(t, keyed)
	for _, ask := range []struct{ method, path string }{{"GET", "/ui/events"}, {"POST", "/ui/kill"}} {
		if a := r.Do(ask.method, ask.path, ""); a.Status != 401 {
			t.Errorf("%s: %d", ask.path, a.Status)
		}
	}
}

// TestKill: a gateway whose process started no workers for a demonstration kills nothing.
func TestKill(t *testing.T) {
	r := rig.Start(t, nil)
	if a := r.Post("/ui/kill", `{"worker":"worker-target","part":"worker"}`); a.Status != 403 ||
		!strings.Contains(string(a.Body), "--demo") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	var worker string
	var engine bool
	r = rig.StartWith(t, nil, app.Deps{Version: "test", Kill: func(w string, e bool) error {
		if worker, engine = w, e; w != "worker-target" {
			return errors.New("is none of ours")
		}
		return nil
	}})
	if a := r.Post("/ui/kill", `{"worker":"worker-target","part":"engine"}`); a.Status != 200 ||
		worker != "worker-target" || !engine {
		t.Errorf("%d %s: %s, %v", a.Status, a.Body, worker, engine)
	}
	for _, body := range []string{`{"worker":"other","part":"worker"}`, `{"worker":"worker-target","part":"all"}`, `x`} {
		if a := r.Post("/ui/kill", body); a.Status != 400 {
			t.Errorf("%s: %d %s", body, a.Status, a.Body)
		}
	}
	if a := r.Post("/ui/kill", `{}`, "Origin", "https://example.com"); a.Status != 403 {
		t.Errorf("from another site: %d", a.Status)
	}
}

// look is a page's stream of events.
type look struct {
	t      *testing.T
	lines  *bufio.Scanner
	leave  func()
	events []map[string]any
}

func lookAt(t *testing.T, r *rig.Rig, key string) *look {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", r.URL+"/ui/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := r.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 {
		t.Fatalf("status %d", resp.StatusCode)
	}
	l := &look{t: t, lines: bufio.NewScanner(resp.Body), leave: cancel}
	l.lines.Buffer(nil, 1<<20)
	return l
}

// next returns the next event that ok accepts.
func (l *look) next(ok func(e map[string]any) bool) map[string]any {
	l.t.Helper()
	for l.lines.Scan() {
		data, found := strings.CutPrefix(l.lines.Text(), "data: ")
		if !found {
			continue
		}
		var e map[string]any
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			l.t.Fatal(err)
		}
		l.events = append(l.events, e)
		if ok(e) {
			return e
		}
	}
	l.t.Fatalf("the stream ended: %v", l.lines.Err())
	return nil
}

func typed(name string) func(map[string]any) bool {
	return func(e map[string]any) bool { return e["type"] == name }
}

// TestLook: everybody sees numbers and phases, only the key that asked sees ids, texts and trees; a client that takes
// another's request id sees nothing of it. When the last page is closed, no worker is watched any more.
func TestLook(t *testing.T) {
	r := rig.Start(t, keyed)
	hello := r.Encode("Hello")
	var w *gatewaytest.Worker
	w = r.Target(gatewaytest.WorkerOptions{Decode: func(req *tandemv1.DecodeRequest,
		stream tandemv1.TargetService_DecodeServer) error {
		origins := make([]tandemv1.TokenOrigin, len(hello))
		for i := range origins {
			origins[i] = tandemv1.TokenOrigin_TOKEN_ORIGIN_DRAFT
		}
		w.Tell(&tandemv1.WatchEvent{
			Watch: req.GetWatch(), Kind: tandemv1.WatchKind_WATCH_KIND_ROUND, Number: 1, StartUnixMicros: 5000, EndUs: 1500,
			Rows: 1, NodeTokens: hello[:1], NodeParents: []int32{-1}, Path: []int32{0},
			NodeOrigins: []tandemv1.TokenOrigin{tandemv1.TokenOrigin_TOKEN_ORIGIN_ANCHOR},
			Tokens:      hello, Origins: origins, Committed: int32(len(hello)),
		})
		return r.Reply("Hello", 1)(req, stream)
	}})
	if w.Watched() != 0 {
		t.Error("the worker is watched although nobody looks")
	}
	mine, other := lookAt(t, r, "first-key-of-two"), lookAt(t, r, "second-key-of-two")
	if a := r.Do("HEAD", "/ui/events", "", "Authorization", "Bearer first-key-of-two"); a.Status != 200 {
		t.Errorf("HEAD: %d", a.Status)
	}
	if e := mine.next(typed("hello")); e["model"] != "tiny" || e["kill"] != false {
		t.Errorf("hello %v", e)
	}
	if e := mine.next(typed("cluster")); rig.At(e, "workers", 0, "id") != "t1" {
		t.Errorf("cluster %v", e)
	}
	r.Eventually("the worker is watched once", func() bool { return w.Watched() == 1 })
	for _, key := range []string{"first-key-of-two", "second-key-of-two"} {
		if a := r.Post("/v1/chat/completions", rig.ChatBody(""), "Authorization", "Bearer "+key, "X-Request-Id",
			"the-same"); a.Status != 200 {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	for i, l := range []*look{mine, other} {
		for n := range 2 {
			e := l.next(typed("round"))
			text := ""
			tokens, _ := e["tokens"].([]any)
			for _, token := range tokens {
				text += rig.At(token, "t").(string)
				if rig.At(token, "o") != "draft" {
					t.Errorf("token %v", token)
				}
			}
			if own := n == i; own != (text == "Hello") || own != (e["id"] == "the-same") || own != (e["nodes"] != nil) ||
				!own && text != "" || e["committed"] != float64(len(hello)) || e["worker"] != "t1" || e["end"] != 1.5 {
				t.Errorf("look %d, round %d: %v", i, n, e)
			}
		}
		e := l.next(func(e map[string]any) bool { return e["type"] == "requests" && rig.At(e, "requests", 1) != nil })
		for n := range 2 {
			v := rig.At(e, "requests", n)
			if own := n == i; rig.At(v, "own") != own || own != (rig.At(v, "id") == "the-same") ||
				rig.At(v, "phases_ms", "queue") == nil {
				t.Errorf("look %d, request %d: %v", i, n, v)
			}
		}
		if text, _ := json.Marshal(l.events); strings.Contains(string(text), "Say hello") {
			t.Error("the prompt is in the events")
		}
	}
	mine.leave()
	other.leave()
	r.Eventually("nobody watches", func() bool { return w.Watched() == 0 })
}
