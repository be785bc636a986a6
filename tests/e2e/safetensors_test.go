package e2e

import (
	"path/filepath"
	"testing"

	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/gguf/gguftest"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// TestDraftFormats: the demonstration draft in the forms in which others publish drafts gives the same text and about
// the same acceptance.
func TestDraftFormats(t *testing.T) {
	needPrograms(t)
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	target, draft := filepath.Join(root, "models", "tandem-tiny-target-q4_k_m.gguf"),
		filepath.Join(root, "models", "tandem-tiny-draft-q8_0.gguf")
	published, bf16, f32 := filepath.Join(t.TempDir(), "published.gguf"), t.TempDir(), t.TempDir()
	gguftest.PublishedDraft(t, draft, published, nil)
	gguftest.SafetensorsDraft(t, draft, bf16, gguf.BF16)
	gguftest.SafetensorsDraft(t, draft, f32, gguf.F32)
	var want client.Reply
	for _, form := range []struct{ name, path string }{
		{"GGUF", draft}, {"GGUF dflash", published}, {"safetensors BF16", bf16},
		{"safetensors F32, by its file", filepath.Join(f32, "model.safetensors")},
	} {
		c := start(t, target, "--draft", form.path, "--no-lookup")
		api := client.New(c.HTTP)
		got := inTime(t, func() (client.Reply, error) {
			return api.Do(t.Context(), client.Request{Messages: chat("What is DDTree?"), MaxTokens: 100,
				Speculation: &client.Speculation{Mode: "tree", Budget: 16}})
		})
		c.Close()
		if got.Usage.AcceptRate == nil {
			t.Fatalf("%s: nothing was drafted: %+v", form.name, got.Usage)
		}
		t.Logf("%s: accept rate %.3f, accept length %.2f", form.name, *got.Usage.AcceptRate, got.Usage.Timings.AcceptLength)
		if form.name == "GGUF" {
			want = got
			continue
		}
		if got.Text != want.Text {
			t.Errorf("%s: text %q, want %q", form.name, got.Text, want.Text)
		}
		if a, b := got.Usage.Timings.AcceptLength, want.Usage.Timings.AcceptLength; a < 0.8*b {
			t.Errorf("%s: accept length %.2f, as GGUF %.2f", form.name, a, b)
		}
	}
}
