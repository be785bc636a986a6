package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
)

// TestNoWhitespaceBeforeJSON: where thinking is asked for but the template leaves it to the model to begin, content
// may come at once, and then nothing would take whitespace out before it: the grammar has none.
func TestNoWhitespaceBeforeJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "template")
	if err := os.WriteFile(path, []byte(anywhere), 0o600); err != nil {
		t.Fatal(err)
	}
	r := start(t, func(c *Config) { c.ChatTemplateFile = path })
	w := r.target(gatewaytest.WorkerOptions{Decode: r.reply("{}", 1)})
	if a := r.post("/v1/chat/completions",
		chatBody(`"response_format":{"type":"json_object"},"enable_thinking":true`)); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if g := w.Requests()[0].GetGuide(); g.GetReasoning() == nil ||
		!strings.Contains(g.GetGrammar(), "root ::= json-object\n") {
		t.Errorf("constraint %v", g)
	}
}
