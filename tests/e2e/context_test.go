package e2e

import (
	"encoding/json"
	"testing"

	"github.com/tandem-inference/tandem/tests/client"
)

// TestAutomaticContext: a target with too little memory for the model's context opens with less, says how much
// everywhere, drafts, and gives the texts that it gives otherwise.
func TestAutomaticContext(t *testing.T) {
	_, whole := demo(t)
	_, c := demo(t, "--max-ctx", "auto", "--lanes", "2", "--memory-cap", "80MiB")
	context := func(c *client.Client, role string) (n int) {
		workers, err := c.Workers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range workers {
			if w.Role == role {
				n = w.MaxCtx
			}
		}
		return n
	}
	eventually(t, "the model's own context", func() bool { return context(whole, "target") > 0 })
	eventually(t, "a context", func() bool { return context(c, "target") > 0 && context(c, "draft") > 0 })
	trained, n := context(whole, "target"), context(c, "target")
	if n < 1024 || n > trained*3/4 {
		t.Fatalf("a context of %d of the %d that the model was trained for", n, trained)
	}
	body, err := c.Get(t.Context(), "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	var models struct {
		Data []struct {
			MaxModelLen int `json:"max_model_len"`
		}
	}
	if err := json.Unmarshal(body, &models); err != nil || len(models.Data) == 0 || models.Data[0].MaxModelLen != n {
		t.Errorf("/v1/models gives %s (%v), want %d", body, err, n)
	}
	if body, err = c.Get(t.Context(), "/props"); err != nil {
		t.Fatal(err)
	}
	var props struct {
		Generation struct {
			NCtx int `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	if err := json.Unmarshal(body, &props); err != nil || props.Generation.NCtx != n {
		t.Errorf("/props gives %d (%v), want %d", props.Generation.NCtx, err, n)
	}
	ask := client.Request{Messages: chat("What is DDTree?"), MaxTokens: 24}
	want, err := whole.Do(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Do(t.Context(), ask)
	if err != nil || got.Text != want.Text {
		t.Errorf("%q (%v), in the model's context %q", got.Text, err, want.Text)
	}
}
