package e2e

import (
	"testing"

	"github.com/tandem-inference/tandem/tests/client"
)

// TestStages: a target whose layers are spread over two engines gives the texts of one engine, however it speculates,
// greedy and sampled, from a cached prompt too, and when one of its engines is killed.
func TestStages(t *testing.T) {
	if device != "" {
		t.Skip("one card is not two devices")
	}
	_, whole := demo(t, "--threads", "1")
	cl, c := demo(t, "--threads", "1", "--target-devices", "cpu,cpu", "--target-layer-split", "5,3")
	drafted := 0
	for i, g := range golden(t) {
		if i%5 != 0 {
			continue
		}
		request := client.Request{Prompt: g.IDs, MaxTokens: len(g.Greedy) + 8}
		for _, temperature := range []float64{0, 0.8} {
			seed := int64(i)
			request.Temperature, request.Seed = temperature, &seed
			want := generate(t, whole, request, client.Speculation{Mode: "off"})
			for _, s := range []client.Speculation{{Mode: "off"}, {Mode: "chain"}, {Mode: "tree", Budget: 22}, {Mode: "auto"}} {
				got := generate(t, c, request, s)
				if got.Text != want.Text || got.Finish != want.Finish {
					t.Errorf("case %d, temperature %v, %s: %q (%s)\none engine: %q (%s)", i, temperature, name(s), got.Text,
						got.Finish, want.Text, want.Finish)
				}
				drafted += got.Usage.Timings.AcceptedTokens
			}
		}
	}
	if drafted == 0 {
		t.Error("no draft was accepted")
	}

	want, err := whole.Do(t.Context(), longRequest())
	if err != nil {
		t.Fatal(err)
	}
	killed(t, c, want.Text, enginesOf(t, cl, 2)[1])
}
