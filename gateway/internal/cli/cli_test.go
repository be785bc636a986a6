package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/gguf/gguftest"
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
		{"window below a tree", []string{"serve", "--demo", "--fa-window", "127"},
			"--fa-window: must be 0 or in 128..16777216, got 127"},
		{"bad port", []string{"gateway", "--port", "70000"}, "--port"},
		{"bad size", []string{"serve", "--demo", "--memory-cap", "lots"}, "--memory-cap"},
		{"bad enum", []string{"serve", "--demo", "--cache-type-k", "q9"}, "--cache-type-k"},
		{"speculation", []string{"run", "--speculation", "wild", "x"}, "--speculation"},
		{"budget of chain", []string{"run", "--speculation", "chain:3", "x"}, "only tree takes a budget"},
		{"server and file", []string{"run", "--server", "http://x", "m.gguf"}, "--server"},
		{"feature of other versions", []string{"serve", "--demo", "--draft-swa"},
			"unknown flag --draft-swa: this version takes the window from the draft's file"},
		{"flag of other servers", []string{"serve", "--demo", "--ctx-size", "4096"},
			"unknown flag --ctx-size: it is called --max-ctx here"},
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
	for _, args := range [][]string{nil, {"--help"}, {"serve", "--help"}, {"run", "--help"}, {"gateway", "--help"},
		{"inspect", "--help"}} {
		if code, out, _ := tandem(t, "", args...); code != 0 || !strings.Contains(out, "Usage: tandem") {
			t.Errorf("%v: status %d, %q", args, code, out)
		}
	}
}

func TestWrongModels(t *testing.T) {
	target, draft, prefill := filepath.Join(modelsDir, demoTarget), filepath.Join(modelsDir, demoDraft),
		filepath.Join(modelsDir, demoPrefill)
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
	for _, want := range []string{"qwen35 (a target)", "33.1 M in 108 tensors", "2 attention, 6 Gated DeltaNet",
		"32768 tokens", "fits with a context of"} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
	if code, _, errOut := tandem(t, "", "inspect", "cli.go"); code != 1 || !strings.Contains(errOut, "cli.go") {
		t.Errorf("a file of another kind: %d %q", code, errOut)
	}
}

// TestInspectPublishedDraft: a draft whose keys follow its architecture's name is described, used and accounted for
// like the demonstration draft; a DFlash2 draft is called that.
func TestInspectPublishedDraft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "draft.gguf")
	target := filepath.Join(modelsDir, demoTarget)
	gguftest.PublishedDraft(t, filepath.Join(modelsDir, demoDraft), path, nil)
	code, out, errOut := tandem(t, "", "inspect", path)
	for _, want := range []string{"dflash (a DFlash draft: --draft)", "block of 16 tokens, reads target layers [1 3 5]"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("output lacks %q: %d %s\n%s", want, code, errOut, out)
		}
	}
	if err := (trio{target: target, draft: path}).check(); err != nil {
		t.Errorf("serve --draft: %v", err)
	}
	gguftest.PublishedDraft(t, filepath.Join(modelsDir, demoDraft), path,
		map[string]any{"dflash.selector_rank": uint32(256)})
	if _, out, _ := tandem(t, "", "inspect", path); !strings.Contains(out,
		"(a DFlash2 draft: no engine of this build runs it)") {
		t.Errorf("a DFlash2 draft:\n%s", out)
	}
	for _, args := range [][]string{{"serve", target, "--draft", path}, {"inspect", target, "--draft", path}} {
		if code, _, errOut := tandem(t, "", args...); code == 0 || !strings.Contains(errOut, "is a DFlash2 draft") {
			t.Errorf("%s with a DFlash2 draft: %d %q", args[0], code, errOut)
		}
	}
}

// TestInspectSafetensorsDraft: a folder with a safetensors draft is described, used and accounted for; a folder without
// one is named.
func TestInspectSafetensorsDraft(t *testing.T) {
	dir, target := t.TempDir(), filepath.Join(modelsDir, demoTarget)
	gguftest.SafetensorsDraft(t, filepath.Join(modelsDir, demoDraft), dir, gguf.BF16)
	code, out, errOut := tandem(t, "", "inspect", dir)
	for _, want := range []string{"dflash (a DFlash draft: --draft)",
		"block of 16 tokens, reads target layers [1 3 5]", "BF16 "} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("output lacks %q: %d %s\n%s", want, code, errOut, out)
		}
	}
	if err := (trio{target: target, draft: dir}).check(); err != nil {
		t.Errorf("serve --draft: %v", err)
	}
	if code, _, errOut := tandem(t, "", "inspect", target, "--draft", dir); code != 0 {
		t.Errorf("inspect --draft: %s", errOut)
	}
	empty := t.TempDir()
	if code, _, errOut := tandem(t, "", "inspect", empty); code != 1 ||
		!strings.Contains(errOut, filepath.Join(empty, "model.safetensors")) {
		t.Errorf("an empty folder: %d %q", code, errOut)
	}
	if code, _, errOut := tandem(t, "", "serve", dir); code == 0 || !strings.Contains(errOut, "is a draft") {
		t.Errorf("as a target: %d %q", code, errOut)
	}
}

// TestInspectTypes: types that no engine computes are named, and the file is not called a target.
func TestInspectTypes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	write := func(matrix, vector gguf.Type) {
		t.Helper()
		w := gguf.NewWriter()
		row := func(t gguf.Type) int64 { return 256 / t.BlockElems() * t.BlockBytes() }
		var errs []error
		for key, value := range map[string]any{"general.architecture": "qwen3", "qwen3.block_count": uint32(1),
			"qwen3.embedding_length": uint32(256), "qwen3.attention.head_count": uint32(1)} {
			errs = append(errs, w.Put(key, value))
		}
		errs = append(errs,
			w.AddTensor("token_embd.weight", matrix, []int64{256, 2}, bytes.NewReader(make([]byte, 2*row(matrix)))),
			w.AddTensor("output_norm.weight", vector, []int64{256}, bytes.NewReader(make([]byte, row(vector)))),
			w.WriteFile(path))
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []gguf.Type{gguf.Q2_K, gguf.Q3_K, gguf.IQ2_XXS, gguf.MXFP4, gguf.I8, gguf.TQ1_0,
		gguf.NVFP4, gguf.Q8_1} {
		write(bad, gguf.F32)
		_, out, errOut := tandem(t, "", "inspect", path)
		if want := fmt.Sprintf("no engine of this build computes %s (type %d)", bad, uint32(bad)); !strings.Contains(out,
			want) || strings.Contains(out, "a target") {
			t.Errorf("%v: want %q in %s%s", bad, want, out, errOut)
		}
	}
	write(gguf.F32, gguf.Q8_0)
	if _, out, _ := tandem(t, "", "inspect", path); !strings.Contains(out, "computes Q8_0 (type 8)") {
		t.Errorf("a norm of Q8_0:\n%s", out)
	}
	write(gguf.Q4_K, gguf.F32)
	if _, out, _ := tandem(t, "", "inspect", path); strings.Contains(out, "no engine") ||
		!strings.Contains(out, "a target") {
		t.Errorf("Q4_K:\n%s", out)
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
	code, out, errOut := tandem(t, "from a pipe\n", "run", "--server", url, "-q", "--seed", "7", "--speculation",
		"tree:22", "--system", "Be brief.")
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
		{"nobody there", "http://127.0.0.1:1", "x", "no gateway at"},
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
	if code, out, _ := tandem(t, "", "health", "--server", strings.TrimPrefix(url, "http://")); code != 0 ||
		out != "ok\n" {
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
	if line := p.line(80); !strings.HasPrefix(line, "loading [##########..........]") ||
		!strings.HasSuffix(line, "target") {
		t.Errorf("%q", line)
	}
	loaded, all = 3<<30, 6<<30
	if line := p.line(80); !strings.HasPrefix(line, "loading [###############.....]") ||
		!strings.Contains(line, "3.0 GiB of 6.0 GiB") {
		t.Errorf("%q", line)
	}
	p.stop()
	p.stop()
}

func TestKeysOfOtherVersionsAreExplained(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.yaml")
	if err := os.WriteFile(path, []byte("demo: true\ndraft-swa: 2048\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errOut := tandem(t, "", "serve", "--config", path); code != 2 ||
		!strings.Contains(errOut, `t.yaml:2: unknown key "draft-swa": this version takes the window from the draft's file`) {
		t.Errorf("%d %q", code, errOut)
	}
}

// TestNoFlagOnlyRefuses: what a version cannot do has no flag that takes a value to refuse it.
func TestNoFlagOnlyRefuses(t *testing.T) {
	for _, command := range []string{"serve", "run", "gateway"} {
		if _, out, _ := tandem(t, "", command, "--help"); strings.Contains(out, "not built yet") {
			t.Errorf("the help of %s offers what is not there", command)
		}
	}
}

// TestVerifyConfigLooksAtModels: what would not start is not valid.
func TestVerifyConfigLooksAtModels(t *testing.T) {
	workers := programs(t)
	in := func(name string) string { return filepath.Join(modelsDir, name) }
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no target": {[]string{"serve", "nosuch.gguf", "--draft", in(demoDraft), "--programs", workers},
			"nosuch.gguf"},
		"no draft": {[]string{"serve", in(demoTarget), "--draft", "nosuch.gguf", "--programs", workers}, "--draft"},
		"another's draft": {[]string{"serve", in(demoPrefill), "--draft", in(demoDraft), "--programs", workers},
			"hidden size"},
		"no worker programs": {[]string{"serve", in(demoTarget), "--programs", t.TempDir()}, "make build"},
		"no library": {[]string{"serve", in(demoTarget), "--device", "cuda:0", "--programs", workers},
			"libtandem_cuda.so"},
		"no model":        {[]string{"gateway", "--model", "cli.go"}, "--model"},
		"nothing":         {[]string{"serve", "a.gguf", "--draft", "b.gguf", "--prefill-drafter", "c.gguf"}, "a.gguf"},
		"nothing, draft":  {[]string{"serve", "a.gguf", "--draft", "b.gguf", "--prefill-drafter", "c.gguf"}, "b.gguf"},
		"nothing, scorer": {[]string{"serve", "a.gguf", "--draft", "b.gguf", "--prefill-drafter", "c.gguf"}, "c.gguf"},
		"good": {[]string{"serve", in(demoTarget), "--draft", in(demoDraft), "--prefill-drafter",
			in(demoPrefill), "--programs", workers}, ""},
		"good gateway": {[]string{"gateway", "--model", in(demoTarget)}, ""},
	} {
		code, out, errOut := tandem(t, "", append(c.args, "--verify-config")...)
		if (code == 0) != (c.want == "") || !strings.Contains(errOut, c.want) || code == 0 && out != "settings are valid\n" {
			t.Errorf("%s: %d %q %q, want %q", name, code, out, errOut, c.want)
		}
	}
}

func TestVersionFlag(t *testing.T) {
	_, want, _ := tandem(t, "", "version")
	for _, args := range [][]string{{"--version"}, {"serve", "--version"}} {
		if code, out, _ := tandem(t, "", args...); code != 0 || out != want || !strings.HasPrefix(out, "tandem ") {
			t.Errorf("%v: %d %q, want %q", args, code, out, want)
		}
	}
}

// TestHelpIsGrouped: no flag of a command with many stands without a heading.
func TestHelpIsGrouped(t *testing.T) {
	for _, command := range []string{"serve", "gateway", "run"} {
		_, out, _ := tandem(t, "", command, "--help")
		_, flags, found := strings.Cut(out, "\nFlags:\n")
		if !found {
			t.Fatalf("%s: %s", command, out)
		}
		general, _, grouped := strings.Cut(flags, "\n\n")
		if n := strings.Count(general, "--"); !grouped || n > 12 {
			t.Errorf("%s: %d flags have no heading:\n%s", command, n, general)
		}
	}
}

func TestInspectAccountsForDraftAndScorer(t *testing.T) {
	in := func(name string) string { return filepath.Join(modelsDir, name) }
	sum := func(args ...string) (code int, together, errOut string) {
		code, out, errOut := tandem(t, "", append([]string{"inspect", in(demoTarget)}, args...)...)
		for line := range strings.Lines(out) {
			if rest, ok := strings.CutPrefix(line, "together"); ok {
				together = strings.TrimSpace(rest)
			}
		}
		return code, together, errOut
	}
	_, alone, _ := sum("--max-ctx", "1024")
	_, withDraft, _ := sum("--max-ctx", "1024", "--draft", in(demoDraft))
	_, all, _ := sum("--max-ctx", "1024", "--draft", in(demoDraft), "--prefill-drafter", in(demoPrefill))
	if alone == "" || alone == withDraft || withDraft == all {
		t.Errorf("together: %q, with the draft %q, with the scorer %q", alone, withDraft, all)
	}
	if code, _, errOut := sum("--memory", "5MiB"); code != 1 || !strings.Contains(errOut, "does not fit in 5MiB") {
		t.Errorf("5 MiB: %d %q", code, errOut)
	}
	if code, _, errOut := sum("--memory", "150MiB", "--max-ctx", "1024"); code != 0 {
		t.Errorf("the target in 150 MiB: %q", errOut)
	}
	if code, _, _ := sum("--memory", "150MiB", "--max-ctx", "1024", "--draft", in(demoDraft), "--prefill-drafter",
		in(demoPrefill)); code != 1 {
		t.Error("all three in 150 MiB fit")
	}
	if code, _, errOut := sum("--draft", in(demoPrefill)); code != 1 || !strings.Contains(errOut, "--draft") {
		t.Errorf("a scorer as draft: %d %q", code, errOut)
	}
}
