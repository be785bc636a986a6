package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const modelsDir = "../../../models"

func tandem(t *testing.T, stdin string, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	code = Main(args, strings.NewReader(stdin), &o, &e)
	return code, o.String(), e.String()
}

func TestUsageErrors(t *testing.T) {
	target := filepath.Join(modelsDir, demoTarget)
	cases := []struct {
		name string
		args []string
		want string
	}{
		{"unknown command", []string{"fly"}, "fly"},
		{"unknown flag", []string{"serve", "--demo", "--prot", "1"}, "--prot"},
		{"no model", []string{"serve"}, "a target model is needed"},
		{"demo and file", []string{"serve", "--demo", target}, "--demo"},
		{"two targets", []string{"serve", target, "--model", "../../go.mod"}, "--model"},
		{"negative threads", []string{"serve", "--demo", "--threads", "-1"}, "--threads"},
		{"bad port", []string{"gateway", "--port", "70000"}, "--port"},
		{"bad size", []string{"serve", "--demo", "--memory-cap", "lots"}, "--memory-cap"},
		{"bad enum", []string{"serve", "--demo", "--cache-type-k", "q9"}, "--cache-type-k"},
		{"speculation", []string{"run", "--speculation", "wild", "x"}, "--speculation"},
		{"budget of chain", []string{"run", "--speculation", "chain:3", "x"}, "only tree takes a budget"},
		{"server and file", []string{"run", "--server", "http://x", "m.gguf"}, "--server"},
		{"inspect without file", []string{"inspect", "nothing.gguf"}, "nothing.gguf"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			code, _, errOut := tandem(t, "", c.args...)
			if code != 2 || !strings.Contains(errOut, c.want) {
				t.Errorf("status %d, stderr %q; want 2 and %q", code, errOut, c.want)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"serve", "--help"}, {"run", "--help"}, {"gateway", "--help"}, {"inspect", "--help"}} {
		if code, out, _ := tandem(t, "", args...); code != 0 || !strings.Contains(out, "Usage: tandem") {
			t.Errorf("%v: status %d, %q", args, code, out)
		}
	}
}

func TestWrongModels(t *testing.T) {
	target, draft, prefill := filepath.Join(modelsDir, demoTarget), filepath.Join(modelsDir, demoDraft), filepath.Join(modelsDir, demoPrefill)
	cases := []struct {
		name string
		trio trio
		want string
	}{
		{"good", trio{target, draft, prefill}, ""},
		{"target only", trio{target: target}, ""},
		{"draft as target", trio{target: draft}, "is a draft"},
		{"target as draft", trio{target: target, draft: target}, "no DFlash draft"},
		{"wrong size", trio{target: prefill, draft: draft}, "hidden size 512, this one has 256"},
		{"draft as scorer", trio{target: target, prefill: draft}, "--prefill-drafter"},
		{"not a model", trio{target: "models.go"}, "models.go"},
		{"missing", trio{target: "none.gguf"}, "none.gguf"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := c.trio.check()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("check = %v, want %q", err, c.want)
			}
		})
	}
}

func TestInspect(t *testing.T) {
	path := filepath.Join(modelsDir, demoTarget)
	code, out, errOut := tandem(t, "", "inspect", path, "--memory", "100MiB", "--lanes", "2")
	if code != 0 {
		t.Fatal(errOut)
	}
	for _, want := range []string{"qwen35 (a target)", "33.1 M in 108 tensors", "2 attention, 6 Gated DeltaNet", "32768 tokens", "fits with a context of"} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
	if code, _, errOut := tandem(t, "", "inspect", "cli.go"); code != 1 || !strings.Contains(errOut, "cli.go") {
		t.Errorf("a file of another kind: %d %q", code, errOut)
	}
}

// gateway answers chats like the real one and keeps the last request.
func gateway(t *testing.T, events ...string) (url string, last *map[string]any) {
	t.Helper()
	last = new(map[string]any)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health/ready", "/health/live":
			fmt.Fprint(w, `{"status":"ok"}`)
		case "/v1/chat/completions":
			body, _ := io.ReadAll(r.Body)
			_ = json.Unmarshal(body, last)
			if len(events) == 0 {
				w.WriteHeader(http.StatusBadRequest)
				fmt.Fprint(w, `{"error":{"message":"messages[0].content is too long"}}`)
				return
			}
			for _, e := range events {
				fmt.Fprintf(w, "data: %s\n\n", e)
			}
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return server.URL, last
}

var chatEvents = []string{
	`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`,
	`{"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}`,
	`{"choices":[{"index":0,"delta":{"content":"Hello"}}]}`,
	`{"choices":[{"index":0,"delta":{"content":" you"},"finish_reason":"stop"}]}`,
	`{"choices":[],"usage":{"completion_tokens":3,"timings":{"ttft_ms":12,"decode_tokens_per_sec":100.5,"accept_length":2.5,"drafted_tokens":14,"accepted_tokens":8,"lookup_drafted_tokens":4,"lookup_accepted_tokens":3}}}`,
	`[DONE]`,
}

func TestRunPiped(t *testing.T) {
	url, last := gateway(t, chatEvents...)
	code, out, errOut := tandem(t, "from a pipe\n", "run", "--server", url, "-q", "--seed", "7", "--speculation", "tree:22", "--system", "Be brief.")
	if code != 0 || out != "Hello you\n" || errOut != "" {
		t.Errorf("%d %q %q", code, out, errOut)
	}
	want := map[string]any{
		"messages": []any{
			map[string]any{"role": "system", "content": "Be brief."},
			map[string]any{"role": "user", "content": "from a pipe"},
		},
		"stream": true, "stream_options": map[string]any{"include_usage": true}, "seed": 7.0,
		"speculation": map[string]any{"mode": "tree", "budget": 22.0},
	}
	if d := cmp.Diff(want, *last); d != "" {
		t.Error(d)
	}
}

func TestRunArguments(t *testing.T) {
	url, last := gateway(t, chatEvents...)
	code, out, errOut := tandem(t, "the text", "run", "--server", url, "Summarise", "-")
	if code != 0 || !strings.Contains(out, "Hello you\n") {
		t.Errorf("%d %q", code, out)
	}
	if want := "3 tokens, 100.5 tokens/s, first after 12 ms, 50 % of drafts and 75 % of lookups accepted, 2.5 tokens per step\n"; errOut != want {
		t.Errorf("stderr %q, want %q", errOut, want)
	}
	if m := (*last)["messages"].([]any)[0].(map[string]any)["content"]; m != "Summarise the text" {
		t.Errorf("prompt %q", m)
	}
}

func TestRunErrors(t *testing.T) {
	refuses, _ := gateway(t)
	fails, _ := gateway(t, `{"error":{"message":"worker failed"}}`, "[DONE]")
	cut, _ := gateway(t, chatEvents[2])
	cases := []struct{ name, url, stdin, want string }{
		{"refused", refuses, "x", "messages[0].content is too long"},
		{"error event", fails, "x", "worker failed"},
		{"cut stream", cut, "x", "ended early"},
		{"empty prompt", refuses, " \n", "prompt is empty"},
		{"nobody there", "http://127.0.0.1:1", "x", "refused"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			code, _, errOut := tandem(t, c.stdin, "run", "--server", c.url)
			if code != 1 || !strings.Contains(errOut, c.want) {
				t.Errorf("status %d, %q; want 1 and %q", code, errOut, c.want)
			}
		})
	}
}

func TestHealth(t *testing.T) {
	url, _ := gateway(t)
	if code, out, _ := tandem(t, "", "health", "--server", strings.TrimPrefix(url, "http://")); code != 0 || out != "ok\n" {
		t.Errorf("%d %q", code, out)
	}
	if code, _, errOut := tandem(t, "", "health", "--server", "127.0.0.1:1"); code != 1 || errOut == "" {
		t.Errorf("nobody there: %d %q", code, errOut)
	}
}

func TestDemoModelsFound(t *testing.T) {
	t.Setenv("TANDEM_MODELS_DIR", modelsDir)
	models, err := demoTrio()
	if err != nil {
		t.Fatal(err)
	}
	if err := models.check(); err != nil {
		t.Error(err)
	}
	t.Setenv("TANDEM_MODELS_DIR", t.TempDir())
	t.Chdir(t.TempDir())
	if _, err := demoTrio(); err == nil || !strings.Contains(err.Error(), "TANDEM_MODELS_DIR") {
		t.Errorf("demoTrio = %v", err)
	}
}

func TestProgressLine(t *testing.T) {
	p := newProgress(os.Stderr, true, "loading")
	var loaded, all uint64
	p.start(2, func() (uint64, uint64) { return loaded, all })
	p.step("worker-target")
	if line := p.line(80); !strings.HasPrefix(line, "loading [##########..........]") || !strings.HasSuffix(line, "target") {
		t.Errorf("%q", line)
	}
	loaded, all = 3<<30, 6<<30
	if line := p.line(80); !strings.HasPrefix(line, "loading [###############.....]") || !strings.Contains(line, "3.0 GiB of 6.0 GiB") {
		t.Errorf("%q", line)
	}
	p.stop()
	p.stop()
}
