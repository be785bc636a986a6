package e2e

import (
	"os"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/soak"
)

// TestSoak is the short form of bench/soak: mixed traffic with clients that leave at every kind of moment.
func TestSoak(t *testing.T) {
	cl := start(t, "--demo")
	cfg := soak.Config{Duration: 20 * time.Second, Clients: 8, Seed: 1, MemoryRise: 0.25, MemorySlack: 64 << 20}
	if testing.Verbose() {
		cfg.Log = os.Stderr
	}
	r, err := soak.Run(t.Context(), cl, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d finished, %v left, %d samples, engines at the end %v", r.Finished, r.Left, r.Samples, r.AtEnd)
	for _, p := range r.Problems {
		t.Error(p)
	}
}
