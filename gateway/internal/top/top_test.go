package top

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

const clusterBody = `{"workers":[
 {"id":"draft-a","role":"draft","device":"hip:0","state":"ready","lanes":4,"model":"d"},
 {"id":"target-a","role":"target","device":"cuda:0","state":"ready","lanes":8,"lanes_busy":3,"model":"27b","engine_restarts":2,
  "counters":{"generated_tokens":1000,"prompt_tokens":5000,"drafted_tokens":100,"accepted_tokens":50,"decode_seconds":1,
  "draft_wait_seconds":0.5,"prefix_cache_lookups":1,"prefix_cache_hits":1}},
 {"id":"target-b","role":"target","device":"cpu","state":"loading","loaded_bytes":30,"load_bytes":100,"counters":{}}],"groups":[]}`

const metricsBody = `# TYPE tandem_queue_depth gauge
tandem_queue_depth 7
# TYPE tandem_kv_tokens gauge
tandem_kv_tokens{state="used",worker="target-a"} 250
tandem_kv_tokens{state="free",worker="target-a"} 750
`

func asks(bodies map[string]string) func(context.Context, string) (io.ReadCloser, error) {
	return func(_ context.Context, path string) (io.ReadCloser, error) {
		body, ok := bodies[path]
		if !ok {
			return nil, errors.New("gone")
		}
		return io.NopCloser(strings.NewReader(body)), nil
	}
}

func samples(t *testing.T) (before, now Sample) {
	t.Helper()
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	before, err := Look(t.Context(), at, asks(map[string]string{"/cluster": clusterBody, "/metrics": metricsBody}))
	if err != nil {
		t.Fatal(err)
	}
	later := strings.NewReplacer(`"generated_tokens":1000`, `"generated_tokens":1241`,
		`"prompt_tokens":5000`, `"prompt_tokens":6000`,
		`"drafted_tokens":100`, `"drafted_tokens":300`, `"accepted_tokens":50`, `"accepted_tokens":170`,
		`"decode_seconds":1`, `"decode_seconds":3`, `"draft_wait_seconds":0.5`, `"draft_wait_seconds":0.7`,
		`"prefix_cache_lookups":1`, `"prefix_cache_lookups":5`,
		`"prefix_cache_hits":1`, `"prefix_cache_hits":2`).Replace(clusterBody)
	now, err = Look(t.Context(), at.Add(2*time.Second), asks(map[string]string{"/cluster": later,
		"/metrics": metricsBody}))
	if err != nil {
		t.Fatal(err)
	}
	return before, now
}

func TestTable(t *testing.T) {
	before, now := samples(t)
	want := []string{
		"http://x  12:00:02  3 workers  120.5 tokens/s  queue 7  60% of drafts accepted",
		"",
		"WORKER    ROLE    DEVICE  STATE        SLOTS  TOK/S  PROMPT/S  ACCEPTED  DRAFT WAIT  PAGES  CACHE HITS  RESTARTS  MODEL",
		"draft-a   draft   hip:0   ready          0/4      –         –         –           –      –           –         0  d",
		"target-a  target  cuda:0  ready          3/8  120.5       500       60%         10%    25%         25%         2  27b",
		"target-b  target  cpu     loading 30%    0/0      –         –         –           –      –           –         0",
	}
	if d := cmp.Diff(want, Lines(before, now, "http://x", "worker", 200)); d != "" {
		t.Error(d)
	}
	for _, order := range []string{"tokens", "slots"} {
		if lines := Lines(before, now, "x", order, 200); !strings.HasPrefix(lines[3], "target-a") {
			t.Errorf("%s: %q", order, lines)
		}
	}
}

// TestNarrowTerminals: no line is wider than the terminal; who, state and speed stay.
func TestNarrowTerminals(t *testing.T) {
	before, now := samples(t)
	for width := 1; width < 130; width++ {
		for _, line := range Lines(before, now, "http://x", "worker", width) {
			if n := utf8.RuneCountInString(line); n > width {
				t.Fatalf("%d columns of %d: %q", n, width, line)
			}
		}
	}
	table := Lines(before, now, "http://x", "worker", 40)[2]
	for _, title := range []string{"WORKER", "STATE", "TOK/S"} {
		if !strings.Contains(table, title) {
			t.Errorf("40 columns: %q", table)
		}
	}
}

// TestRestartedWorker: counters that begin again give no negative rates, a new worker none.
func TestRestartedWorker(t *testing.T) {
	before, now := samples(t)
	if line := Lines(now, before, "x", "worker", 200)[4]; strings.Contains(line, "-1") {
		t.Errorf("%q", line)
	}
	before.Workers = nil
	if line := Lines(before, now, "x", "worker", 200)[0]; !strings.Contains(line, " 0.0 tokens/s") {
		t.Errorf("%q", line)
	}
	now.Workers[0].ID = "a\x1b[2Jb"
	if line := Lines(before, now, "x", "worker", 200)[3]; strings.Contains(line, "\x1b") {
		t.Errorf("%q", line)
	}
}

func TestTrouble(t *testing.T) {
	for name, bodies := range map[string]map[string]string{
		"no gateway": {}, "no metrics": {"/cluster": clusterBody}, "nonsense": {"/cluster": "x"},
		"bad metrics": {"/cluster": clusterBody, "/metrics": "{{{"}} {
		if _, err := Look(t.Context(), time.Now(), asks(bodies)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
