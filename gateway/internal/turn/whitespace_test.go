package turn_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
)

// TestNoWhitespaceBeforeJSON: where thinking is asked for but the template leaves it to the model to begin, content
// may come at once, and then nothing would take whitespace out before it: the grammar has none.
func TestNoWhitespaceBeforeJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "template")
	if err := os.WriteFile(path, []byte(anywhere), 0o600); err != nil {
		t.Fatal(err)
	}
	r := rig.Start(t, func(c *app.Config) { c.ChatTemplateFile = path })
	w := r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("{}", 1)})
	if a := r.Post("/v1/chat/completions",
		rig.ChatBody(`"response_format":{"type":"json_object"},"enable_thinking":true`)); a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	if g := w.Requests()[0].GetGuide(); g.GetReasoning() == nil ||
		!strings.Contains(g.GetGrammar(), "root ::= json-object\n") {
		t.Errorf("constraint %v", g)
	}
}
