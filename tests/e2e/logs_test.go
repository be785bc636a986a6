package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// recorded keeps what is written to it.
type recorded struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (r *recorded) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(p)
}

func (r *recorded) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}

// lineOf returns the line of a request that a process of a kind wrote at its end.
func (r *recorded) lineOf(logger, message, id string) map[string]any {
	for text := range strings.Lines(r.String()) {
		var line map[string]any
		if json.Unmarshal([]byte(text), &line) != nil {
			continue
		}
		name, _ := line["logger"].(string)
		if strings.HasPrefix(name, logger) && line["msg"] == message && line["request_id"] == id {
			return line
		}
	}
	return nil
}

// TestLogs: a request leaves one line in the log of every process that it passed, with the same id and trace, and with
// the durations that explain it; nothing that was asked, answered or secret is in any log, at debug level either.
func TestLogs(t *testing.T) {
	needPrograms(t)
	const asked, secret = "xylophonist", "k-confidential"
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("alice:"+secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log recorded
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cl, err := cluster.Start(ctx, cluster.Options{Log: &log, Args: []string{"--demo", "--log-level", "debug",
		"--log-format", "json", "--api-key-file", keys}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	id, traceparent := newTrace()
	post := func(id, body string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, cl.HTTP+"/v1/chat/completions",
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{"Traceparent": traceparent, "X-Request-Id": id, "X-Api-Key": secret} {
			r.Header.Set(k, v)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode
	}
	prompt := fmt.Sprintf(`"messages":[{"role":"user","content":%q}]`, strings.Repeat(asked+" ", 100)+question)
	if got := post("served", `{`+prompt+`,"pflash":{"mode":"always","keep_ratio":0.3},"speculation":{"mode":"tree"},`+
		`"max_tokens":40,"temperature":0}`); got != http.StatusOK {
		t.Fatalf("status %d", got)
	}
	for name, body := range map[string]string{
		"field":  `{` + prompt + `,"` + asked + `":1,"max_tokens":"` + asked + `"}`,
		"type":   `{"messages":[{"role":"user","content":[{"type":"` + asked + `"}]}]}`,
		"role":   `{"messages":[{"role":"` + asked + `","content":"x"}]}`,
		"syntax": `{"messages":[{"role":"user","content":"` + asked,
	} {
		if got := post("refused", body); got != http.StatusBadRequest {
			t.Errorf("%s: status %d", name, got)
		}
	}
	for _, want := range []struct {
		logger, message string
		fields          []string
	}{
		{"gateway", "request", []string{"worker", "prompt_tokens", "cached_tokens", "tokens", "rounds", "drafted", "accepted",
			"retries", "degraded", "queue_ms", "compress_ms", "restore_ms", "prefill_ms", "ttft_ms", "decode_ms", "duration_ms",
			"tokens_per_s", "key"}},
		{"worker.target", "request ended", []string{"worker", "prompt_tokens", "cached_tokens", "tokens", "rounds", "drafted",
			"accepted", "wait_ms", "restore_ms", "prefill_ms", "ttft_ms", "verify_ms", "draft_wait_ms", "decode_ms",
			"duration_ms"}},
		{"worker.draft", "request ended", []string{"worker", "proposals", "nodes", "skipped", "wait_ms", "engine_ms",
			"append_ms", "duration_ms"}},
		{"worker.prefill", "request ended", []string{"worker", "prompt_tokens", "tokens", "wait_ms", "score_ms",
			"duration_ms"}},
	} {
		var line map[string]any
		for deadline := time.Now().Add(patience); line == nil; {
			if line = log.lineOf(want.logger, want.message, "served"); line != nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("no line of %s in\n%s", want.logger, log.String())
			}
			time.Sleep(20 * time.Millisecond) // poll: another process changes this
		}
		if line["trace_id"] != id {
			t.Errorf("%s: trace %v, want %s", want.logger, line["trace_id"], id)
		}
		for _, field := range want.fields {
			if line[field] == nil {
				t.Errorf("%s: no %s in %v", want.logger, field, line)
			}
		}
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, asked) || strings.Contains(line, secret) || strings.Contains(line, "harbour") {
			t.Errorf("a log holds what a client sent: %s", line)
		}
	}
	if !strings.Contains(log.String(), `"level":"debug"`) {
		t.Error("nothing was logged at debug level")
	}
}
