package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestTrace: spans are shown as a tree on one axis, many of one kind in short, and what is not kept is an error.
func TestTrace(t *testing.T) {
	page := tracePage{TraceID: "0af7", Spans: []traceSpan{
		{ID: "1", Parent: "client", Name: "chat tiny", Service: "tandem-gateway", DurationMS: 100},
		{ID: "2", Parent: "1", Name: "decode", Service: "tandem-worker-target", Worker: "worker-target", StartMS: 50,
			DurationMS: 50, Error: "engine_lost"},
	}}
	for range alike + 3 {
		page.Spans = append(page.Spans, traceSpan{ID: "r", Parent: "2", Name: "round", Service: "tandem-worker-target",
			Worker: "a", StartMS: 60, DurationMS: 1, Attributes: map[string]string{"tandem.rows": "9"}})
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/trace/req-1" || r.Header.Get("Authorization") != "Bearer k" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(page)
	}))
	defer server.Close()
	code, out, errOut := tandem(t, "", "trace", "req-1", "--server", server.URL, "--api-key", "k")
	if code != 0 {
		t.Fatal(code, errOut)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	want := []string{"request req-1 · trace 0af7", "chat tiny", "  decode", "    round", "    round", "    round", "    round",
		"    … 3 more round"}
	if len(lines) != len(want) {
		t.Fatalf("%d lines:\n%s", len(lines), out)
	}
	for i, begin := range want {
		if !strings.HasPrefix(lines[i], begin) {
			t.Errorf("line %q does not begin with %q", lines[i], begin)
		}
	}
	half := strings.Repeat("·", barWidth/2) + strings.Repeat("█", barWidth/2)
	if !strings.Contains(lines[2], half) || !strings.Contains(lines[2], "FAILED: engine_lost") ||
		!strings.Contains(lines[2], "worker-target ") || !strings.Contains(lines[3], "worker-target a") ||
		!strings.Contains(lines[3], "9 rows") {
		t.Errorf("got\n%s", out)
	}
	if code, _, errOut := tandem(t, "", "trace", "req-2", "--server", server.URL); code != 1 ||
		!strings.Contains(errOut, "req-2") {
		t.Errorf("%d %q", code, errOut)
	}
}
